"""Real processes under a core limit on a fake node, and what the region and the history say of their launches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lab.checks import history
from lab.node.server import NodeServer
from lab.region import Region
from lab.runner.recorder import Recorder
from lab.spec.mapped import taken

HISTORY = history.constants()
LAUNCHER = Path(__file__).parents[1] / "native" / "pacing" / "launcher.py"


@dataclass(frozen=True)
class Played:
    """A load that ended."""

    report: dict[str, Any]
    slot: Any
    device: Any
    err: str


@dataclass(frozen=True)
class Look:
    """The region while a guest waits, or at its end. `slots` by PID: of every process that ever had one."""

    slots: dict[int, Any]
    devices: Any
    pid: int

    @property
    def own(self) -> Any:
        """The slot of who said that it may be looked at."""
        return self.slots[self.pid]


@dataclass
class Told:
    """What a guest said and what was seen meanwhile."""

    looks: dict[str, Look]
    said: list[Any]
    err: str
    status: int


class Lab:
    def __init__(
        self,
        folder: Path,
        environment: Callable[..., dict[str, str]],
        native: Path,
        history_level: int,
        gpus: Sequence[str] = ("a100-80g",),
    ) -> None:
        self.node = NodeServer(gpus=list(gpus), history_level=history_level)
        self.folder, self.native, self._environment = folder, native, environment
        self.recorder = Recorder(folder / "history", capacity=200_000)

    def play(
        self, pattern: str = "async", *, seconds: float = 0.5, before: Sequence[Path] = (), **variables: str
    ) -> Played:
        """``before``: libraries preloaded before the shim."""
        region = self.folder / "region"
        environment = self.environment(*before, **variables)
        command = [str(self.native / "hooklab-bench"), "--load", f"pattern={pattern}", f"seconds={seconds}"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        with Region.open(region) as opened:
            slot, device = opened.slots[0].copy(), opened.devices[0].copy()
        return Played(json.loads(done.stdout.splitlines()[-1]), slot, device, done.stderr)

    def environment(self, *before: Path, **variables: str) -> dict[str, str]:
        """Of a process under the shim; `before`: libraries preloaded before it."""
        given = {
            **self.node.environment,
            "HOOKLAB_HISTORY": str(self.folder / "history"),
            "HOOKLAB_REGION_LOCK": "robust",
            "HOOKLAB_HOST_NAMESPACE": str(os.stat("/proc/self/ns/pid").st_ino),
            "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(self.folder / "region"),
            **variables,
        }
        return self._environment(*before, self.native / "libhooklab-preload.so", **given)

    def start(self, script: str, **variables: str) -> subprocess.Popen[str]:
        """A guest of tests/native/pacing/launcher.py."""
        command = [sys.executable, "-I", "-S", str(LAUNCHER), script]
        pipe = subprocess.PIPE
        environment = self.environment(**variables)
        return subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def look(self, pid: int) -> Look:
        """The region as it is now."""
        with Region.open(self.folder / "region") as opened:
            used = taken(opened.slots["generation"])
            newest = sorted((opened.slots[slot].copy() for slot in used), key=lambda slot: int(slot["generation"]))
            return Look({int(slot["pid"]): slot for slot in newest}, opened.devices.copy(), pid)

    def tell(self, script: str, *, seen: Callable[[str, int], None] | None = None, **variables: str) -> Told:
        """Plays a script to its end. `seen(name, pid)` is called while the guest waits to be looked at."""
        told = Told({}, [], "", 0)
        with self.start(script, **variables) as guest:
            watch = threading.Timer(60, guest.kill)  # a guest that hangs ends here, and its status says so
            watch.start()
            assert guest.stdout
            assert guest.stdin
            for line in guest.stdout:
                value = json.loads(line)
                if not isinstance(value, dict) or "look" not in value:
                    told.said.append(value)
                    continue
                if (self.folder / "region").exists():
                    told.looks[value["look"]] = self.look(value["pid"])
                if seen:
                    seen(value["look"], value["pid"])
                print(file=guest.stdin, flush=True)
            assert guest.stderr
            told.err = guest.stderr.read()
            told.status = guest.wait(timeout=30)
            watch.cancel()
        assert told.status == 0, f"{told.status}: {told.err}"
        return told

    def events(self, name: str) -> Any:
        found = history.load(self.folder / "history").records
        return found[found["event"] == HISTORY[f"HL_EVENT_{name}"]]


@pytest.fixture
def two_cards(tmp_path: Path, guest_environment: Callable[..., dict[str, str]], native: Path) -> Iterator[Lab]:
    made = Lab(tmp_path, guest_environment, native, 2, ["a100-80g", "a100-80g"])
    with made.node:
        yield made


@pytest.fixture
def lab(tmp_path: Path, guest_environment: Callable[..., dict[str, str]], native: Path) -> Iterator[Lab]:
    made = Lab(tmp_path, guest_environment, native, 2)
    with made.node:
        yield made
