"""Brokers under test: ours, as a process of its own, in a directory that nobody else can write to."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lab.checks import history
from lab.identity.paths import Paths, paths
from lab.node.server import NodeServer
from lab.runner.recorder import Recorder
from lab.spec import load_layout

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


GUEST = Path(__file__).parents[1] / "native" / "shim" / "cuda_guest.py"
FIRST = """
def first():
    'The PID that the machine sees, by a procfs that the test shows the guest; 0 when there is none.'
    for line in open('/proc/self/status'):
        if line.startswith('NStgid:'):
            return int(line.split()[1])
    return 0
"""
PLACES = {
    "host": [],
    "private": ["unshare", "--pid", "--fork"],
    "nested twice": ["unshare", "--pid", "--fork", "unshare", "--pid", "--fork"],
    # root outside is nobody in there, as in a pod with users of its own
    "user": [
        *("setpriv", "--reuid", "100000", "--regid", "100000", "--clear-groups"),
        *("unshare", "--user", "--map-root-user", "--pid", "--fork"),
    ],
    "root's user": ["unshare", "--user", "--map-root-user", "--pid", "--fork"],
}


class IdentityLab:
    """A fake node, a container's region, a history, and guests in namespaces who see `locks` as /tmp/vgpulock."""

    def __init__(self, folder: Path, place: Path, environment: Callable[..., dict[str, str]], preload: str) -> None:
        self.folder, self.locks, self.preload = folder, place / "locks", preload
        self.locks.mkdir()
        self.locks.chmod(0o1777)
        self.socket = self.locks / "hostpid" / "broker.sock"
        self.region = folder / "region"
        self._environment = environment
        self.gpus = ["a100-80g"]
        self.recorder = Recorder(folder / "history", capacity=200_000)

    def start(self, *, gpus: list[str] | None = None, nvml_pids: str | None = None) -> NodeServer:
        return NodeServer(
            gpus=gpus or self.gpus, containers=["a", "b", "c", "d"], context_bytes=512 << 20, nvml_pids=nvml_pids
        )

    def command(
        self, words: list[str | Path], *, place: str = "host", read_only: bool = False, broker: Path | None = None
    ) -> list[str]:
        """`words` where /tmp/vgpulock is ours; in the namespaces of `place`.

        `broker`: a directory of the machine that a plugin mounts at /tmp/vgpulock/hostpid, read-only; `read_only`: the
        one that is there already.
        """
        inside = "/tmp/vgpulock/hostpid"
        script = f"mount --bind {self.locks} /tmp/vgpulock"
        if broker or read_only:
            script += f" && mkdir -p {inside} && mount --bind {broker or inside} {inside}"
            script += f" && mount -o remount,ro,bind {inside}"
        return ["unshare", "--mount", "sh", "-c", f'{script} && exec "$@"', "sh", *PLACES[place], *map(str, words)]

    def environment(self, node: NodeServer, **variables: str) -> dict[str, str]:
        given = {
            **node.environment,
            "HOOKLAB_HISTORY": str(self.folder / "history"),
            "HOOKLAB_CONTAINER": "0",
            "HOOKLAB_PROCESS": "0",
            "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(self.region),
            **variables,
        }
        return self._environment(**given)

    def run(
        self, node: NodeServer, script: str, *, place: str = "host", broker: Path | None = None, **variables: str
    ) -> list[Any]:
        """What a Python guest said. The preload is given to the guest alone, not to what makes its namespaces."""
        preload = [f"LD_PRELOAD={self.preload}"] if self.preload else []
        guest = ["env", *preload, sys.executable, "-I", "-S", GUEST, FIRST + script]
        done = subprocess.run(
            self.command(guest, place=place, broker=broker),
            env=self.environment(node, **variables),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def paths(self) -> Paths:
        return paths(history.load(self.folder / "history").records)

    def slots(self) -> list[tuple[int, int]]:
        """(host PID, tier) of every slot of the region that names one, the dead included."""
        layout = load_layout("hooklab-1")
        data = self.region.read_bytes()
        head = np.frombuffer(data, layout.dtype("hl_region_header"), 1)[0]
        slots = np.frombuffer(data, layout.dtype("hl_region_slot"), int(head["slot_count"]), int(head["slot_offset"]))
        return [(int(slot["host_pid"]), int(slot["identity_tier"])) for slot in slots if slot["host_pid"]]


@pytest.fixture
def identity(
    tmp_path: Path, place: Path, guest_environment: Callable[..., dict[str, str]], native: Path, sanitizer_runtime: str
) -> Iterator[IdentityLab]:
    """Needs a mount namespace of its own for every guest, and /tmp/vgpulock to mount over."""
    made = not os.path.isdir("/tmp/vgpulock")
    if made:
        os.mkdir("/tmp/vgpulock")
        os.chmod("/tmp/vgpulock", 0o1777)
    probe = subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "mount", "--bind", str(place), "/tmp/vgpulock"],
        capture_output=True,
        text=True,
        check=False,
    )
    if probe.returncode:
        pytest.skip(f"this machine allows no mount and PID namespaces: {probe.stderr.strip()}")
    preload = [word for word in (sanitizer_runtime, str(native / "libhooklab-preload.so")) if word]
    yield IdentityLab(tmp_path, place, guest_environment, ":".join(preload))
    if made:
        os.rmdir("/tmp/vgpulock")
