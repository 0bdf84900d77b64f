"""Planned faults as a program on the fake driver meets them, and what is left on the card afterwards."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab.node.faults import Fault, FaultError
from lab.node.server import NodeServer
from lab.spec.outputs import SPOILT

pytestmark = pytest.mark.sanitize
MIB = 1 << 20
CONTEXT = 436_207_616  # of the a100 profiles
ALLOCATE = """
current()
def alloc(n):
    p = u64(7)
    return [call("cuMemAlloc_v2", at(p), size(n)), bool(p.value)]
"""


def held(node: NodeServer) -> int:
    return node.snapshot().devices[0].used


def test_a_returned_code_comes_instead_of_the_work(node: NodeServer, play: Callable[..., Any]) -> None:
    fault = node.plan(Fault(name="cuMemAlloc_v2", action="return", call=2, code=46))
    program = ALLOCATE + f"before = free()\ntell([alloc({4 * MIB}) for _ in range(3)], before - free())"
    assert play(node, program) == [[[[0, True], [46, False], [0, True]], 8 * MIB]]
    assert node.fired(fault) == 1


def test_a_code_returned_after_the_work_leaves_the_work_done(node: NodeServer, play: Callable[..., Any]) -> None:
    node.plan(Fault(name="cuMemAlloc_v2", action="return", call=1, code=2, when="after"))
    program = ALLOCATE + f"before = free()\ntell(alloc({4 * MIB}), before - free())"
    assert play(node, program) == [[[2, True], 4 * MIB]]


@pytest.mark.parametrize(
    ("mode", "call", "expected"),
    [("nth", 3, [0, 0, 2, 0, 0, 0]), ("every", 2, [0, 2, 0, 2, 0, 2]), ("from", 4, [0, 0, 0, 2, 2, 2])],
)
def test_modes(node: NodeServer, play: Callable[..., Any], mode: Any, call: int, expected: list[int]) -> None:
    node.plan(Fault(name="cuMemAlloc_v2", action="return", call=call, mode=mode, code=2))
    assert play(node, ALLOCATE + "tell([alloc(64)[0] for _ in range(6)])") == [[expected]]


def test_calls_of_the_node_are_counted_together(node: NodeServer, guest: Callable[..., Any]) -> None:
    node.plan(Fault(name="cuMemAlloc_v2", action="return", call=5, scope="node", code=2))
    guests = [guest(node, ALLOCATE + "tell([alloc(64)[0] for _ in range(4)])", index=i) for i in range(2)]
    results = [code for one in guests for code in one.end()[1][0][0]]
    assert sorted(results) == [0] * 7 + [2]


def test_calls_of_a_container_are_counted_together(node: NodeServer, guest: Callable[..., Any]) -> None:
    other = str(node.register_container("other"))
    node.plan(
        Fault(name="cuMemAlloc_v2", action="return", mode="every", call=3, scope="container", container=0, code=2)
    )
    program = ALLOCATE + "tell([alloc(64)[0] for _ in range(3)])"
    guests = [guest(node, program, index=i) for i in range(2)] + [
        guest(node, program, index=2, HOOKLAB_CONTAINER=other)
    ]
    first, second, stranger = (one.end()[1][0][0] for one in guests)
    assert sorted(first + second) == [0] * 4 + [2] * 2
    assert stranger == [0, 0, 0]


def test_a_fault_of_one_process_spares_the_other(node: NodeServer, guest: Callable[..., Any]) -> None:
    node.plan(Fault(name="cuMemAlloc_v2", action="return", code=2, process=1))
    guests = [guest(node, ALLOCATE + "tell(alloc(64)[0])", index=i) for i in range(2)]
    assert [one.end()[1] for one in guests] == [[[0]], [[2]]]


def test_a_failed_init_can_be_tried_again(node: NodeServer, play: Callable[..., Any]) -> None:
    node.plan(Fault(name="cuInit", action="return", call=1, code=999))
    program = 'n = c.c_int(7)\ntell(call("cuInit", 0), call("cuDeviceGetCount", at(n)), call("cuInit", 0))'
    assert play(node, program) == [[999, 3, 0]]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_killed_process_leaves_nothing(node: NodeServer, guest: Callable[..., Any], when: Any) -> None:
    node.plan(Fault(name="cuMemAlloc_v2", action="kill", call=3, when=when))
    status, told, _ = guest(node, ALLOCATE + f"for _ in range(5): tell(alloc({64 * MIB}))").end()
    assert (status, told) == (-signal.SIGKILL, [[[0, True]]] * 2)
    node.wait_live(0)
    assert held(node) == 0
    assert node.snapshot().containers[0].used[0] == 0


def test_a_delay_takes_at_least_its_time(node: NodeServer, play: Callable[..., Any]) -> None:
    node.plan(Fault(name="cuMemAlloc_v2", action="delay", delay_ns=50_000_000))
    program = ALLOCATE + "import time\nt = time.monotonic_ns()\nalloc(64)\ntell(time.monotonic_ns() - t)"
    assert play(node, program)[0][0] >= 50_000_000


def test_two_meet_inside_the_driver(node: NodeServer, guest: Callable[..., Any]) -> None:
    """Each is held in its first allocation until the other is there: neither has returned before both have entered."""
    fault = node.plan(Fault(name="cuMemAlloc_v2", action="meet", call=1, meet=2))
    node.expect(process=0, container=0)
    node.expect(process=1, container=0)
    program = ALLOCATE + (
        "import time\nentered = time.monotonic_ns()\ncode = alloc(64)[0]\ntell(code, entered, time.monotonic_ns())"
    )
    guests = [guest(node, program, index=i) for i in range(2)]
    answers = [one.end()[1][0] for one in guests]
    assert [answer[0] for answer in answers] == [0, 0]
    assert max(entered for _, entered, _ in answers) <= min(left for _, _, left in answers)
    assert node.fired(fault) == 2
    assert node.met_short(fault) == 0


def test_who_is_alone_is_let_go(node: NodeServer, guest: Callable[..., Any]) -> None:
    fault = node.plan(Fault(name="cuMemAlloc_v2", action="meet", call=1, meet=2))
    node.expect(process=0, container=0)
    assert guest(node, ALLOCATE + "tell(alloc(64)[0])").end()[1] == [[0]]
    assert node.met_short(fault) == 1


def test_a_lost_device_answers_nothing(node: NodeServer, play: Callable[..., Any]) -> None:
    node.plan(Fault(name="cuMemAlloc_v2", action="lost", call=2))
    program = ALLOCATE + 'tell([alloc(64)[0] for _ in range(3)], call("cuCtxSynchronize"), call("cuStreamQuery", None))'
    assert play(node, program) == [[[0, 999, 999], 999, 999]]
    assert node.snapshot().devices[0].lost


# How a program sees each function whose outputs can be spoilt: the bytes that it gets, of the card alone in its node.
CUDA_SEEN = {
    "cuDeviceGetCount": "n = c.c_int(7); r = call('cuDeviceGetCount', at(n)); out = bytes(n)",
    "cuDeviceTotalMem_v2": "n = size(7); r = call('cuDeviceTotalMem_v2', at(n), 0); out = bytes(n)",
    "cuMemAlloc_v2": "n = u64(7); r = call('cuMemAlloc_v2', at(n), size(64)); out = bytes(n)",
    "cuMemGetInfo_v2": "n = (c.c_size_t * 2)(); r = call('cuMemGetInfo_v2', c.byref(n), c.byref(n, 8)); out = bytes(n)",
}
NVML_SEEN = {
    "nvmlDeviceGetMemoryInfo": ("n = (c.c_ubyte * 24)()", "device, at(n)", "bytes(n)"),
    "nvmlDeviceGetMemoryInfo_v2": (
        "n = (c.c_uint * 10)(0x2000028)",
        "device, at(n)",
        "bytes(n)[8:]",
    ),
    "nvmlDeviceGetComputeRunningProcesses": (
        "n, k = (c.c_ubyte * 16)(), c.c_uint(1)",
        "device, at(k), at(n)",
        "bytes(n)",
    ),
    "nvmlDeviceGetComputeRunningProcesses_v2": (
        "n, k = (c.c_ubyte * 24)(), c.c_uint(1)",
        "device, at(k), at(n)",
        "bytes(n)",
    ),
    "nvmlDeviceGetComputeRunningProcesses_v3": (
        "n, k = (c.c_ubyte * 24)(), c.c_uint(1)",
        "device, at(k), at(n)",
        "bytes(n)",
    ),
    "nvmlDeviceGetUtilizationRates": ("n = (c.c_ubyte * 8)()", "device, at(n)", "bytes(n)"),
}
NVML = """
library = c.CDLL("libnvidia-ml.so.1")
device = pointer()
assert library.nvmlInit_v2() == 0 == library.nvmlDeviceGetHandleByIndex_v2(0, at(device))
"""


def looked(name: str) -> str:
    """A program that tells the outputs of two calls: the second is the spoilt one."""
    if name in CUDA_SEEN:
        return f"current()\nfor _ in range(2):\n    {CUDA_SEEN[name]}\n    tell(r, out.hex())"
    made, arguments, out = NVML_SEEN[name]
    call = f"    {made}\n    r = library.{name}({arguments})\n    tell(r, {out}.hex())"
    return f"current()\n{NVML}for _ in range(2):\n{call}"


@pytest.mark.parametrize("action", ["wrong", "torn"])
@pytest.mark.parametrize("name", sorted({*SPOILT} - {"nvmlDeviceGetProcessUtilization"}))  # that one: tests/nvml
def test_spoilt_outputs(node: NodeServer, play: Callable[..., Any], name: str, action: Any) -> None:
    fault = node.plan(Fault(name=name, action=action, call=2))
    (first, plain), (second, spoilt) = play(node, looked(name))
    assert (first, second, node.fired(fault)) == (0, 0, 1)
    true, seen = bytes.fromhex(plain), bytes.fromhex(spoilt)
    if name == "cuMemAlloc_v2":  # another allocation: 512 bytes behind
        true = (int.from_bytes(true, "little") + 512).to_bytes(8, "little")
    start = 0 if action == "wrong" else len(true) // 2
    assert seen == true[:start] + bytes(byte ^ 0xFF for byte in true[start:])


def test_outputs_that_nobody_tells_of_cannot_be_spoilt(node: NodeServer) -> None:
    with pytest.raises(FaultError, match="cuCtxGetDevice: outputs can be spoilt of cuDeviceGetCount, "):
        node.plan(Fault(name="cuCtxGetDevice", action="wrong"))


def test_held_until_released(node: NodeServer, guest: Callable[..., Any]) -> None:
    fault = node.plan(Fault(name="cuMemAlloc_v2", action="hold", call=2))
    held_one = guest(node, ALLOCATE + "for _ in range(4): tell(alloc(64)[0])")
    node.wait_for(lambda _: node.waiting(fault) == 1)
    stat = Path(f"/proc/{held_one.process.pid}/stat")
    while stat.read_text().rpartition(")")[2].split()[0] != "T":
        pass
    node.release(fault)
    assert held_one.end()[:2] == (0, [[0]] * 4)
    assert (node.fired(fault), node.waiting(fault)) == (1, 0)


def test_released_before_it_comes(node: NodeServer, guest: Callable[..., Any]) -> None:
    fault = node.plan(Fault(name="cuMemAlloc_v2", action="hold", mode="from"))
    node.release(fault)
    assert guest(node, ALLOCATE + "for _ in range(3): tell(alloc(64)[0])").end()[:2] == (0, [[0]] * 3)
    assert node.fired(fault) == 3


def test_a_segmentation_fault_can_be_planned(node: NodeServer, guest: Callable[..., Any]) -> None:
    node.plan(Fault(name="cuMemAlloc_v2", action="kill", signal=signal.SIGSEGV))
    assert guest(node, ALLOCATE + "tell(alloc(64))").end()[0] == -signal.SIGSEGV
    node.wait_live(0)
    assert held(node) == 0


def test_no_node_is_one_line(node: NodeServer, guest: Callable[..., Any]) -> None:
    program = 'tell(call("cuInit", 0), call("cuInit", 0), call("cuDeviceGetCount", at(c.c_int())))'
    status, told, err = guest(node, program, HOOKLAB_NODE="/nonexistent/node.sock").end()
    assert (status, told) == (0, [[100, 100, 3]])
    assert err.count("\n") == 1
    assert "/nonexistent/node.sock" in err
