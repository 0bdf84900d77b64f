"""Brokers under test: ours, as a process of its own, in a directory that nobody else can write to."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

RUN_CLI = "import sys; from lab.cli import main; sys.exit(main())"


class Serving:
    """`hooklab broker serve` in a process."""

    def __init__(self, socket: Path, *options: str, descriptors: int = 0) -> None:
        self.socket = socket
        limit = [] if not descriptors else ["prlimit", f"--nofile={descriptors}:{descriptors}"]
        words = [sys.executable, "-P", "-c", RUN_CLI, "broker", "serve", "--any-namespace"]
        self.process = subprocess.Popen(
            [*limit, *words, "--socket", str(socket), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.said: list[str] = []
        while not (self.said and self.said[-1].startswith("ready ")):
            line = self.process.stdout.readline()
            if not line:
                raise AssertionError(self.process.communicate()[1])
            self.said.append(line.strip())

    @property
    def metrics(self) -> str:
        """Address of the HTTP side."""
        return next(line.removeprefix("metrics ") for line in self.said if line.startswith("metrics "))

    def descriptors(self) -> int:
        """How many descriptors the broker holds."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def resident_kib(self) -> int:
        """Resident memory of the broker, KiB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])

    def stop(self) -> str:
        """SIGTERM; its last line."""
        self.process.send_signal(signal.SIGTERM)
        out, err = self.process.communicate(timeout=30)
        assert self.process.returncode == 0, err
        return str(out).strip()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def place() -> Iterator[Path]:
    """A short path in a folder whose parents only root or we can change."""
    folder = Path(tempfile.mkdtemp(prefix="hl-id-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def serve(place: Path) -> Iterator[Callable[..., Serving]]:
    """`serve(*options, socket=PATH)` -> Serving; whatever still runs at the end is killed."""
    made: list[Serving] = []

    def start(*options: str, socket: Path | None = None, descriptors: int = 0) -> Serving:
        made.append(Serving(socket or place / "hostpid" / "broker.sock", *options, descriptors=descriptors))
        return made[-1]

    yield start
    for serving in made:
        with contextlib.suppress(ProcessLookupError, ValueError):
            serving.kill()
