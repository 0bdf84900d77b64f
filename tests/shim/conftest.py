"""Guests under the shim over a fake node: how they are started, what they say, what the history tells."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lab.checks import history
from lab.node.server import NodeServer
from lab.runner.recorder import Recorder
from lab.spec import load_hooks

HOSTS = Path(__file__).parents[1] / "native" / "shim"
PHASES = {
    value: name.removeprefix("HL_PHASE_")
    for name, value in history.constants().items()
    if name.startswith("HL_PHASE_") and value
}


@dataclass(frozen=True)
class Ended:
    """A guest that ended: exit status, what it said (JSON lines), its stderr."""

    status: int
    said: list[Any]
    err: str


class Lab:
    """One fake node with one container, a region and a history, and guests on it."""

    def __init__(
        self, folder: Path, environment: Callable[..., dict[str, str]], shim: Path, gpus: Sequence[str] = ("a100-80g",)
    ) -> None:
        self.folder = folder
        self.shim = shim
        self.node = NodeServer(gpus=list(gpus), containers=["tenant"], context_bytes=512 << 20)
        self.region = folder / "region"
        self._environment = environment
        self.recorder = Recorder(folder / "history", capacity=100_000)

    def environment(self, *, preload: Sequence[Path] | None = None, **variables: str) -> dict[str, str]:
        libraries = [self.shim] if preload is None else list(preload)
        given = {
            **self.node.environment,
            "HOOKLAB_HISTORY": str(self.folder / "history"),
            "HOOKLAB_CONTAINER": "0",
            "HOOKLAB_PROCESS": "0",
            "HOOKLAB_REGION_LOCK": "robust",
            "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(self.region),
            **variables,
        }
        return self._environment(*libraries, **{key: value for key, value in given.items() if value != "unset"})

    def run(
        self,
        command: Sequence[str | Path],
        *,
        preload: Sequence[Path] | None = None,
        timeout: float = 60,
        **variables: str,
    ) -> Ended:
        done = subprocess.run(
            [str(word) for word in command],
            env=self.environment(preload=preload, **variables),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        return Ended(done.returncode, lines, done.stderr)

    def guest(self, script: str, *, preload: Sequence[Path] | None = None, **variables: str) -> Ended:
        """A Python guest (tests/native/shim/cuda_guest.py) that runs the script."""
        return self.run([sys.executable, "-I", "-S", HOSTS / "cuda_guest.py", script], preload=preload, **variables)

    def records(self, *events: str) -> Any:
        return history.load(self.folder / "history").of(*events)

    def phases(self, pid: int | None = None) -> list[tuple[int, str]]:
        """(thread, phase) of the shim's phase events, in the order they happened."""
        records = self.records("PHASE")
        names = {load_hooks()["cuInit"].id}
        return [
            (int(record["tid"]), PHASES[int(record["a"])])
            for record in records
            if int(record["name"]) in names and (pid is None or int(record["pid"]) == pid)
        ]

    def calls(self, name: str) -> int:
        """How often the fake driver saw a call."""
        return self.node.snapshot().calls.get(name, 0)


@pytest.fixture(scope="session")
def shim(native: Path) -> Path:
    return native / "libhooklab-preload.so"


@pytest.fixture
def several(tmp_path: Path, guest_environment: Callable[..., dict[str, str]], shim: Path) -> Iterator[Lab]:
    """Three unlike cards: NVML's order is A100, T4, H100; CUDA's is H100, A100, T4."""
    made = Lab(tmp_path, guest_environment, shim, ("a100-80g", "t4-16g", "h100-80g"))
    with made.node:
        yield made


@pytest.fixture
def lab(tmp_path: Path, guest_environment: Callable[..., dict[str, str]], shim: Path) -> Iterator[Lab]:
    made = Lab(tmp_path, guest_environment, shim)
    with made.node:
        yield made
