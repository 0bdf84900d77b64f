"""Real processes under a core limit on a fake node, and what the region and the history say of their launches."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lab.checks import history
from lab.node.server import NodeServer
from lab.region import Region
from lab.runner.recorder import Recorder

HISTORY = history.constants()


@dataclass(frozen=True)
class Played:
    """A load that ended."""

    report: dict[str, Any]
    slot: Any
    device: Any
    err: str


class Lab:
    def __init__(
        self, folder: Path, environment: Callable[..., dict[str, str]], native: Path, history_level: int
    ) -> None:
        self.node = NodeServer(gpus=["a100-80g"], history_level=history_level)
        self.folder, self.native, self._environment = folder, native, environment
        self.recorder = Recorder(folder / "history", capacity=200_000)

    def play(
        self, pattern: str = "async", *, seconds: float = 0.5, before: Sequence[Path] = (), **variables: str
    ) -> Played:
        """``before``: libraries preloaded before the shim."""
        region = self.folder / "region"
        given = {
            **self.node.environment,
            "HOOKLAB_HISTORY": str(self.folder / "history"),
            "HOOKLAB_REGION_LOCK": "robust",
            "HOOKLAB_HOST_NAMESPACE": str(os.stat("/proc/self/ns/pid").st_ino),
            "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(region),
            **variables,
        }
        environment = self._environment(*before, self.native / "libhooklab-preload.so", **given)
        command = [str(self.native / "hooklab-bench"), "--load", f"pattern={pattern}", f"seconds={seconds}"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        with Region.open(region) as opened:
            slot, device = opened.slots[0].copy(), opened.devices[0].copy()
        return Played(json.loads(done.stdout.splitlines()[-1]), slot, device, done.stderr)

    def events(self, name: str) -> Any:
        found = history.load(self.folder / "history").records
        return found[found["event"] == HISTORY[f"HL_EVENT_{name}"]]


@pytest.fixture
def lab(tmp_path: Path, guest_environment: Callable[..., dict[str, str]], native: Path) -> Iterator[Lab]:
    made = Lab(tmp_path, guest_environment, native, 2)
    with made.node:
        yield made
