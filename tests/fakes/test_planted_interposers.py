"""What an interposer must not do, and interposers that do it: each planted fault is caught, the clean twin passes.

The faults are those of public interposers. A guest plays a few calls under the interposer and tells what it saw; the
promises below judge it. Each fault must break the promise that it is about, and the clean twin none.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab.node.faults import Fault
from lab.node.server import NodeServer

SOURCE = "tests/native/interposers/behaviour.c"
LIMIT = 64 << 20
PLAY = """
import ctypes
current()
seen = {}
p, q, pitch, f, t = u64(7), u64(7), size(0), size(7), size(7)
held = u64()
seen["48 MiB"] = call("cuMemAlloc_v2", at(held), size(48 << 20))
seen["refused free"] = call("cuMemFree_v2", held)
seen["after a refused free"] = call("cuMemAlloc_v2", at(p), size(48 << 20))
seen["sync over"] = [call("cuMemAlloc_v2", at(p), size(32 << 20)), p.value]
seen["async over"] = [call("cuMemAllocAsync", at(q), size(32 << 20), None), q.value]
pool = pointer()
call("cuDeviceGetDefaultMemPool", at(pool), 0)
seen["pool over"] = [call("cuMemAllocFromPoolAsync", at(q), size(32 << 20), pool, None), q.value]
seen["unknown free"] = call("cuMemFree_v2", u64(0x1234))
if q.value: call("cuMemFree_v2", q)
seen["free"] = call("cuMemFree_v2", held)
seen["failed in the driver"] = call("cuMemAlloc_v2", at(p), size(8 << 20))
results = [call("cuMemAllocPitch_v2", at(p), at(pitch), size(1), size(65536), 4) for _ in range(3)]
seen["pitched"] = results
ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)
ask = ctypes.CDLL(None).dlsym
ask.restype, ask.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p]
seen["next"] = [bool(ask(ctypes.c_void_p(-1).value, b"cuCtxGetDevice")) for _ in range(2)]
tell(seen)
"""
PROMISES: dict[str, Callable[[dict[str, Any]], bool]] = {
    "a refused allocation is 2 and leaves no pointer": lambda seen: seen["sync over"] == [2, 0],
    "a refused stream-ordered allocation is 2": lambda seen: seen["async over"] == [2, 0],
    "memory of a pool counts": lambda seen: seen["pool over"] == [2, 0],
    "the driver judges an unknown free": lambda seen: seen["unknown free"] == 1,
    "what a refused free holds stays charged": lambda seen: seen["after a refused free"] == 2,
    "a failed allocation costs nothing": lambda seen: seen["pitched"][:2] == [0, 0],
    "pitched memory costs its pitch": lambda seen: seen["pitched"][2] == 2,
    "a second look-up finds what the first did": lambda seen: seen["next"] == [True, True],
}
BREAKS = {
    "WRITES_ON_FAILURE": "a refused allocation is 2 and leaves no pointer",
    "UNKNOWN_FREE": "the driver judges an unknown free",
    "POOL_UNACCOUNTED": "memory of a pool counts",
    "ASYNC_MINUS_ONE": "a refused stream-ordered allocation is 2",
    "PITCH_UNDERCOUNT": "pitched memory costs its pitch",
    "NEXT_NULL": "a second look-up finds what the first did",
    "FREED_EARLY": "what a refused free holds stays charged",
    "SIZE_ZERO_CHARGED": "a failed allocation costs nothing",
}
Build = Callable[[str], Path]


@pytest.fixture
def build(compile_c: Callable[..., Path], root: Path) -> Build:
    def made(fault: str) -> Path:
        return compile_c(root / SOURCE, "-shared", "-fPIC", f"-DFAULT={fault}", "-ldl", name=f"{fault.lower()}.so")

    return made


@pytest.fixture
def under(build: Build, guest: Callable[..., Any], node: NodeServer, tmp_path: Path) -> Callable[..., Any]:
    def begin(fault: str, program: str, *, limit: int | None = LIMIT) -> Any:
        variables = {"CUDA_DEVICE_MEMORY_SHARED_CACHE": os.fspath(tmp_path / "rows")}
        if limit is not None:
            variables["CUDA_DEVICE_MEMORY_LIMIT"] = str(limit)
        return guest(node, program, build(fault), **variables)

    return begin


def broken(node: NodeServer, under: Callable[..., Any], fault: str) -> list[str]:
    """The promises that an interposer with this fault breaks. The driver itself refuses one free and one allocation."""
    node.plan(Fault(name="cuMemFree_v2", action="return", code=999, call=1))
    node.plan(Fault(name="cuMemAlloc_v2", action="return", code=999, call=2))
    status, told, err = under(fault, PLAY).end()
    assert status == 0, err
    ((seen,),) = told
    assert seen["48 MiB"] == 0
    assert seen["refused free"] == 999
    return [promise for promise, holds in PROMISES.items() if not holds(seen)]


def test_the_clean_twin_keeps_every_promise(node: NodeServer, under: Callable[..., Any]) -> None:
    assert broken(node, under, "CLEAN") == []


@pytest.mark.parametrize("fault", BREAKS)
def test_a_planted_fault_is_caught(fault: str, node: NodeServer, under: Callable[..., Any]) -> None:
    assert BREAKS[fault] in broken(node, under, fault)


@pytest.mark.parametrize(("fault", "end"), [("CLEAN", 0), ("NULL_OUTPUT", -signal.SIGSEGV)])
def test_a_query_without_an_output(fault: str, end: int, under: Callable[..., Any]) -> None:
    program = 'current()\nt = size(0)\ntell(call("cuMemGetInfo_v2", None, at(t)), t.value)'
    status, told, _ = under(fault, program).end()
    assert status == end
    assert told == ([[0, LIMIT]] if end == 0 else [])


@pytest.mark.parametrize(("fault", "lost"), [("CLEAN", 0), ("QUERY_LEAKS", 32 << 20)])
def test_a_bookkeeping_query_that_fails(fault: str, lost: int, node: NodeServer, under: Callable[..., Any]) -> None:
    """Handed out or given back: after a free of what was handed out, the driver holds nothing of it."""
    node.plan(Fault(name="cuMemPoolGetAttribute", action="return", code=999, call=1))
    program = (
        "current()\n"
        "before, p = free(), u64(7)\n"
        'result = call("cuMemAllocAsync", at(p), size(1 << 20), None)\n'
        'if result == 0: call("cuMemFree_v2", p)\n'
        'call("cuCtxSynchronize")\n'
        "tell(result, before - free())"
    )
    status, told, err = under(fault, program, limit=None).end()
    assert status == 0, err
    assert told == [[999 if lost else 0, lost]]


@pytest.mark.parametrize(("fault", "right"), [("CLEAN", True), ("TOTAL_ZERO", False)])
def test_a_total_without_a_limit(fault: str, right: bool, node: NodeServer, under: Callable[..., Any]) -> None:
    status, told, err = under(fault, "current()\ntell(total())", limit=None).end()
    assert status == 0, err
    assert (told == [[node.snapshot().devices[0].total_bytes]]) is right


@pytest.mark.parametrize(("fault", "result"), [("CLEAN", 0), ("DEAD_BYTES", 2)])
def test_the_bytes_of_the_killed(fault: str, result: int, under: Callable[..., Any]) -> None:
    take = 'current()\np = u64()\ntell(call("cuMemAlloc_v2", at(p), size(48 << 20)))\n'
    first = under(fault, take + "sys.stdin.read()")
    assert first.process.stdout.readline().strip() == "[0]"
    first.process.kill()
    first.process.wait()
    status, told, err = under(fault, take).end()
    assert status == 0, err
    assert told == [[result]]


def test_every_fault_of_the_source_has_a_test(root: Path) -> None:
    text = (root / SOURCE).read_text(encoding="utf-8")
    planted = {line.split()[1] for line in text.splitlines() if line.startswith("#define ") and "/*" in line}
    assert planted == {*BREAKS, "NULL_OUTPUT", "TOTAL_ZERO", "DEAD_BYTES", "QUERY_LEAKS"}
    assert len(planted) >= 10
