"""Guests of the lifecycle tests: started on one fake node, in one region, spoken to over pipes."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.node.server import NodeServer
from lab.region import Region

SOURCE = Path(__file__).parents[1] / "native" / "lifecycle" / "lives.c"


class Life:
    """One running guest."""

    def __init__(self, popen: subprocess.Popen[str]) -> None:
        self.popen = popen

    def heard(self, word: str) -> tuple[int, int]:
        """The next line, which must be of ``word``: (result, PID that said it)."""
        assert self.popen.stdout is not None
        line = self.popen.stdout.readline().split()
        assert line, f"it ended instead of saying {word}"
        assert line[0] == word
        return int(line[1]), int(line[2])

    def say(self) -> None:
        """Let it go on from a `wait`."""
        assert self.popen.stdin is not None
        self.popen.stdin.write("\n")
        self.popen.stdin.flush()

    def ended(self) -> int:
        """Its exit status, once its standard output is closed by everybody."""
        assert self.popen.stdout is not None
        self.popen.stdout.read()
        return self.popen.wait(60)


class Place:
    """One node, one region of 1 GiB, and guests in it."""

    def __init__(self, folder: Path, environment: Callable[..., dict[str, str]], shim: Path, program: Path) -> None:
        self.region = folder / "region"
        self._environment, self._shim, self._program = environment, shim, program
        self._lives: list[Life] = []
        self.node = NodeServer(gpus=["a100-80g"], containers=["tenant"], context_bytes=64 << 20)

    def start(self, *words: str, **variables: str) -> Life:
        given = {
            **self.node.environment,
            "HOOKLAB_CONTAINER": "0",
            "HOOKLAB_PROCESS": str(len(self._lives)),
            "HOOKLAB_REGION_LOCK": "robust",
            "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(self.region),
            "CUDA_DEVICE_MEMORY_LIMIT": "1024m",
            "HOOKLAB_CONTEXT_BYTES": str(64 << 20),
            **variables,
        }
        popen = subprocess.Popen(
            [self._program, *words],
            env=self._environment(self._shim, **given),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lives.append(Life(popen))
        return self._lives[-1]

    def live_slots(self) -> int:
        with Region.open(self.region) as region:
            return sum(process.present for process in region.processes())

    def zero(self) -> None:
        """Nothing is left: no slot, no byte of any kind, no lock, and the books are sound."""
        self.node.wait_live(0)
        with Region.open(self.region, writable=True) as region:
            deadline = (
                time.monotonic() + 30
            )  # a presence goes with the file's last reference, which the kernel drops late
            while any(process.present for process in region.processes()) and time.monotonic() < deadline:
                os.sched_yield()
            region.reap()
            assert region.check() == []
            assert region.processes() == ()
            assert [region.used(device) for device in range(16)] == [0] * 16
            assert not region.slots["device"]["held"].any()
            assert int(region.header["lock_holder"][0]) == 0
        snapshot = self.node.snapshot()
        assert [device.used for device in snapshot.devices] == [0]

    def end(self) -> None:
        for life in self._lives:
            with contextlib.suppress(ProcessLookupError):
                os.kill(life.popen.pid, signal.SIGKILL) if life.popen.poll() is None else None
            life.popen.communicate()


@pytest.fixture(scope="session")
def lives(compile_c: Callable[..., Path], native: Path) -> Path:
    return compile_c(SOURCE, f"-L{native / 'fake'}", "-l:libcuda.so.1", name="lives")


@pytest.fixture
def make_place(
    tmp_path: Path, guest_environment: Callable[..., dict[str, str]], native: Path, lives: Path
) -> Callable[[], contextlib.AbstractContextManager[Place]]:
    """As many places as are wanted, one after another."""
    numbers = itertools.count()

    @contextlib.contextmanager
    def make() -> Iterator[Place]:
        folder = tmp_path / f"place-{next(numbers)}"
        folder.mkdir()
        made = Place(folder, guest_environment, native / "libhooklab-preload.so", lives)
        with made.node:
            yield made
            made.end()

    return make


@pytest.fixture
def place(make_place: Callable[[], contextlib.AbstractContextManager[Place]]) -> Iterator[Place]:
    with make_place() as made:
        yield made
