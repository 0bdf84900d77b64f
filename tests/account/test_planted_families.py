"""What no scenario can play, because it needs a file: external memory is nobody's charge, and a fault there is seen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

MIB = 1 << 20
OOM = 2


def fits(one: Any) -> int:
    guest = one.start()
    assert guest.do("init") == guest.do("use", 0) == 0
    assert guest.do("external", "e", 64 * MIB) == 0
    assert one.differs(guest, 0) is None
    return int(guest.do("alloc", "x", "sync", 400 * MIB, 0))


def test_external_memory_is_charged_to_nobody(tenant: Callable[..., Any]) -> None:
    assert fits(tenant(gpus=1, CUDA_DEVICE_MEMORY_LIMIT="1g")) == 0


def test_a_charge_for_external_memory_is_seen(
    tenant: Callable[..., Any], planted: Callable[[str], Path], native: Path
) -> None:
    libraries = [planted("IMPORT_CHARGED"), native / "libhooklab-preload.so"]
    assert fits(tenant(libraries, gpus=1, CUDA_DEVICE_MEMORY_LIMIT="1g")) == OOM
