"""One container on a fake node, its guests (tests/native/shim/families.py), and what its books and the driver say."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from lab.checks import history
from lab.node.server import NodeServer
from lab.region import Region

GUEST = Path(__file__).parents[1] / "native" / "shim" / "families.py"
MIB = 1 << 20
CONTEXT = 512 * MIB
KINDS = {
    int(value): name.removeprefix("HL_KIND_").lower()
    for name, value in history.constants().items()
    if name.startswith("HL_KIND_")
}


class Guest:
    """A process that does what it is told."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(GUEST)],
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self.pid = self.process.pid

    def ask(self, *command: Any) -> list[Any]:
        """The answer to a command: [result, ...]."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"{command}: the guest ended with {self.process.wait(timeout=30)}"
        return list(json.loads(line))

    def do(self, *command: Any) -> int:
        """The result of a command."""
        return int(self.ask(*command)[0])

    def end(self, *, kill: bool = False) -> int:
        """End of input, or SIGKILL."""
        if kill:
            self.process.kill()
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.close()
        self.process.stdout.close()
        return self.process.wait(timeout=60)


class Tenant:
    """A container: its node, its region, its guests."""

    def __init__(
        self,
        folder: Path,
        environment: Callable[..., dict[str, str]],
        preload: Sequence[Path],
        *,
        gpus: int = 2,
        **variables: str,
    ) -> None:
        self.region = folder / "region"
        self.node = NodeServer(gpus=["a100-80g"] * gpus, containers=["tenant"], context_bytes=CONTEXT)
        self.guests: list[Guest] = []
        self._preload = tuple(preload)
        self._environment = environment
        self._variables = {
            "HOOKLAB_CONTEXT_BYTES": str(CONTEXT),
            "HOOKLAB_REGION_LOCK": "robust",
            "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(self.region),
            "CUDA_DEVICE_MEMORY_LIMIT": "16g",
            "HOOKLAB_CONTAINER": "0",
            **variables,
        }

    def start(self, *, process: int = 0, **variables: str) -> Guest:
        given = {**self.node.environment, **self._variables, "HOOKLAB_PROCESS": str(process), **variables}
        given = {key: value for key, value in given.items() if value != "unset"}
        guest = Guest(self._environment(*self._preload, **given))
        self.guests.append(guest)
        return guest

    def ledger(self, pid: int, device: int) -> dict[str, int]:
        """What the books say of a process on a device, by kind; kinds of which it holds nothing are left out."""
        if not self.region.exists():
            return {}
        with Region.open(self.region) as region:
            for process in region.processes():
                if process.pid == pid:
                    assert not process.pending.get(device), "a reservation is left over"
                    return {KINDS[i]: n for i, n in enumerate(process.used.get(device, ())) if n}
        return {}

    def used(self, device: int) -> int:
        """What the books say of all processes on a device."""
        with Region.open(self.region) as region:
            return region.used(device)

    def truth(self, pid: int, device: int) -> dict[str, int]:
        """What the driver holds for a process on a device, by kind."""
        for process in self.node.snapshot().processes:
            if process.host_pid == pid and not process.dying:
                return {kind: n for kind, n in process.bytes[device].items() if n}
        return {}

    def differs(self, guest: Guest, device: int, *, without: frozenset[str] = frozenset()) -> tuple[int, int] | None:
        """(books, driver) where they differ in their sums, kinds in `without` left out."""
        books = sum(n for kind, n in self.ledger(guest.pid, device).items() if kind not in without)
        driver = sum(n for kind, n in self.truth(guest.pid, device).items() if kind not in without)
        return None if books == driver else (books, driver)

    def close(self) -> None:
        guests, self.guests = self.guests, []
        for guest in guests:
            if guest.process.poll() is None:
                guest.end(kill=True)
        if guests:
            self.node.close()


@pytest.fixture
def tenant(
    tmp_path: Path, guest_environment: Callable[..., dict[str, str]], native: Path
) -> Iterator[Callable[..., Tenant]]:
    """Makes a tenant: `preload` other libraries than the shim, `gpus`, then variables of its processes."""
    made: list[Tenant] = []
    folders = itertools.count()

    def make(preload: Sequence[Path] | None = None, *, gpus: int = 2, **variables: str) -> Tenant:
        libraries = [native / "libhooklab-preload.so"] if preload is None else preload
        folder = tmp_path / str(next(folders))
        folder.mkdir()
        one = Tenant(folder, guest_environment, libraries, gpus=gpus, **variables)
        made.append(one)
        one.node.start()
        return one

    yield make
    for one in made:
        one.close()
