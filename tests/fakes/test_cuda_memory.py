"""The allocator under threads and deaths: right bytes, nothing shared, nothing lost."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab.node.server import NodeServer

HERE = Path(__file__).parent
CONTEXT = 436_207_616
pytestmark = pytest.mark.sanitize


@pytest.fixture(scope="module")
def stress(compile_c: Callable[..., Path], native: Path) -> Path:
    return compile_c(HERE / "stress.c", str(native / "fake" / "libcuda.so.1"), name="stress")


def test_threads_share_nothing_and_lose_nothing(
    node: NodeServer, stress: Path, guest_environment: Callable[..., dict[str, str]], seed: int
) -> None:
    environment = guest_environment(**node.environment)
    done = subprocess.run([stress, "1500", str(seed)], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    # Alone on the card the answer is exact: bytes used before equal those after.
    assert done.stdout.split() == ["6000", "0", "0", "0"], done.stderr
    node.wait_live(0)
    assert node.snapshot().devices[0].used == 0


def test_neighbours_and_the_killed(
    node: NodeServer, stress: Path, guest_environment: Callable[..., dict[str, str]], seed: int
) -> None:
    """Four processes on a card, two of them killed in the middle: the others go on, and every byte comes back."""
    environment = guest_environment(**node.environment)
    processes = [
        subprocess.Popen(
            [stress, "800", str(seed + i), *(["300"] if i % 2 else [])],
            env={**environment, "HOOKLAB_PROCESS": str(i), "HOOKLAB_CONTAINER": "0"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(4)
    ]
    for i, process in enumerate(processes):
        out, err = process.communicate(timeout=120)
        assert process.returncode == (-signal.SIGKILL if i % 2 else 0), err
        assert i % 2 or out.split()[2] == "0", err
    node.wait_live(0)
    snapshot = node.snapshot()
    assert snapshot.devices[0].used == 0
    assert snapshot.containers[0].used[0] == 0
    assert CONTEXT < snapshot.devices[0].peak <= snapshot.devices[0].total_bytes


def test_what_no_allocation_call_takes_is_in_the_accounts(node: NodeServer, guest: Callable[..., Any]) -> None:
    """Each kind by itself, as the node sees it, and nothing of it is left when the context has ended."""
    program = (
        "from context_cases import *\n"
        "context = current()\n"
        'assert call("cuCtxSetLimit", 0, size(2048)) == 0\n'
        'assert loaded(PRINTS, b"prints")[0] == 0\n'
        'result, function = loaded(ALLOCATES, b"allocates")\n'
        "assert (result, *ran(function)) == (0, 0, 0)\n"
        "p = u64()\n"
        'assert call("cuMemAllocPitch_v2", at(p), at(size(0)), size(512), size(8192), 4) == 0\n'
        'assert call("cuMemAllocAsync", at(u64()), size(1), None) == 0\n'
        "tell(resident_threads())\n"
        "sys.stdin.readline()\n"
        'assert call("cuDevicePrimaryCtxReset_v2", 0) == 0\n'
        "tell(0)\n"
        "sys.stdin.read()\n"
    )
    running = guest(node, program)
    threads = json.loads(running.process.stdout.readline())[0]
    stack = (threads * 1024 + (2 << 20) - 1) // (2 << 20) * (2 << 20)
    kinds = node.snapshot().processes[0].bytes[0]
    assert {kind: count for kind, count in kinds.items() if count} == {
        "context": CONTEXT,
        "pitched": 4 << 20,
        "async": 32 << 20,
        "other": stack + (64 << 20) + (76 << 20) + (10 << 20),
    }
    running.process.stdin.write("\n")
    running.process.stdin.flush()
    assert json.loads(running.process.stdout.readline()) == [0]
    kinds = node.snapshot().processes[0].bytes[0]
    assert {kind: count for kind, count in kinds.items() if count} == {"async": 32 << 20}
    assert running.end()[0] == 0
    node.wait_live(0)
    assert node.snapshot().devices[0].used == 0
