"""Whose utilisation a container under a core limit sees: its own card's, wherever that stands in NVML's order."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab.node.server import NodeServer
from lab.region import Region

IDLE, BUSY = 5000, 8000  # in hundredths of a percent of a card


def sampled(folder: Path, native: Path, environment: Callable[..., dict[str, str]], visible: str) -> Any:
    """What a tenant that takes 15 % sees of its first device while a neighbour fills the node's card 0."""
    bench, region = str(native / "hooklab-bench"), folder / "region"
    with NodeServer(gpus=["a100-80g"] * 4) as node:
        others = environment(**node.environment, CUDA_VISIBLE_DEVICES="0")
        neighbour = subprocess.Popen(
            [bench, "--load", "pattern=async", "seconds=30"], env=others, stdout=subprocess.DEVNULL
        )
        try:
            own = environment(
                native / "libhooklab-preload.so",
                **node.environment,
                CUDA_VISIBLE_DEVICES=visible,
                CUDA_DEVICE_SM_LIMIT="50",
                CUDA_DEVICE_MEMORY_SHARED_CACHE=str(region),
                HOOKLAB_HOST_NAMESPACE=str(os.stat("/proc/self/ns/pid").st_ino),
            )
            load = [bench, "--load", "pattern=modest", "seconds=1.5"]
            subprocess.run(load, env=own, check=True, timeout=60, stdout=subprocess.DEVNULL)
        finally:
            neighbour.kill()
            neighbour.wait()
        with Region.open(region) as opened:
            return opened.devices[0].copy()


@pytest.mark.report("B84", plants="a neighbour on the same card")
@pytest.mark.parametrize(("visible", "low", "high"), [("2,3", 1, IDLE), ("3", 1, IDLE), ("0,1", BUSY, 10000)])
def test_the_sample_is_of_the_containers_own_card(
    visible: str,
    low: int,
    high: int,
    tmp_path: Path,
    native: Path,
    guest_environment: Callable[..., dict[str, str]],
) -> None:
    device = sampled(tmp_path, native, guest_environment, visible)
    assert int(device["sample_sequence"]) > 0
    assert low <= int(device["sample_all"]) <= high
