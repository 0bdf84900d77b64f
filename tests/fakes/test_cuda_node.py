"""How the fake libcuda joins a node: once a process, only a node that fits, and with the node's modelled times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lab.node.server import NodeServer
from lab.spec import load_hooks

pytestmark = pytest.mark.sanitize

THREADS = """
import threading
results = []
gate = threading.Barrier(64)
def one():
    gate.wait()
    results.append(call("cuInit", 0))
call("cuGetErrorName", 0, at(c.c_char_p()))
threads = [threading.Thread(target=one) for _ in range(64)]
for thread in threads: thread.start()
for thread in threads: thread.join()
tell(results, call("cuCtxGetCurrent", at(pointer())))
"""


def test_many_threads_start_it_once(node: NodeServer, play: Callable[..., Any]) -> None:
    assert play(node, THREADS) == [[[0] * 64, 0]]
    node.wait_attached(1)
    with pytest.raises(TimeoutError):
        node.wait_attached(2, timeout=0)


def test_calls_are_counted_by_name(node: NodeServer, play: Callable[..., Any]) -> None:
    """Those before there was a node are not lost, and an ended process's stay in the node's own count."""
    program = (
        'for _ in range(5): call("cuGetProcAddress_v2", b"cuInit", at(pointer()), 12000, u64(0), None)\ncurrent()\n'
    )
    play(node, program + "for _ in range(3): free()\ntell(0)")
    node.wait_live(0)
    names = load_hooks()
    rows = node.file.process_calls.sum(axis=0)  # a dead process's row stays until its slot is used again
    wanted = ("cuGetProcAddress_v2", "cuInit", "cuMemGetInfo_v2")
    counts = {name: int(node.file.calls[names[name].id] + rows[names[name].id]) for name in wanted}
    assert counts == {"cuGetProcAddress_v2": 5, "cuInit": 1, "cuMemGetInfo_v2": 3}


def test_names_without_behaviour_say_so_and_are_counted(node: NodeServer, guest: Callable[..., Any]) -> None:
    process = guest(
        node,
        'current()\ntell(call("cuProfilerInitialize", None, None, 0), call("cuGLInit"))\nsys.stdin.read()',
    )
    line = process.process.stdout.readline()
    assert line.strip() == "[801, 801]"
    assert node.snapshot().processes[0].unsupported == 2
    process.process.kill()
    process.end()


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("magic", 1, "not a node file"),
        ("version", 99, "another layout version"),
        ("layout_hash", 1, "another layout version"),
        ("names_hash", 1, "another hook table"),
        ("device_count", 4000, "truncated"),
        ("interval_capacity", 1 << 31, "truncated"),
    ],
)
def test_a_node_that_does_not_fit_is_one_line(
    node: NodeServer, guest: Callable[..., Any], field: str, value: int, said: str
) -> None:
    kept = node.file.header[field].copy()
    node.file.header[field] = value
    try:
        status, told, err = guest(node, 'tell(call("cuInit", 0))').end()
    finally:
        node.file.header[field] = kept
    assert (status, told) == (0, [[100]])
    assert err.count("\n") == 1
    assert said in err


def test_starting_up_is_one_resource(guest: Callable[..., Any]) -> None:
    """Initialisation is serialised on the node, as on a real one: the last of N ends no earlier than N times one."""
    program = 'import time\nt = time.monotonic_ns()\ncode = call("cuInit", 0)\ntell(code, t, time.monotonic_ns())\n'
    with NodeServer(gpus=["a100-40g"], containers=["tenant"], latencies={"init": 30_000_000}) as node:
        answers = [one.end()[1][0] for one in [guest(node, program, index=i) for i in range(3)]]
    assert [code for code, _, _ in answers] == [0, 0, 0]
    assert max(end for *_, end in answers) - min(begin for _, begin, _ in answers) >= 90_000_000
    assert all(end - begin >= 30_000_000 for _, begin, end in answers)


def test_two_cards_are_two_memories(guest_environment: Any, play: Callable[..., Any]) -> None:
    program = (
        "start()\n"
        "contexts, pointers, frees = [], [], []\n"
        "for device in (0, 1):\n"
        "    context, p = pointer(), u64()\n"
        '    call("cuDevicePrimaryCtxRetain", at(context), device)\n'
        '    call("cuCtxSetCurrent", context)\n'
        "    before = free()\n"
        '    assert call("cuMemAlloc_v2", at(p), size((device + 1) << 30)) == 0\n'
        '    assert call("cuMemsetD8_v2", p, 5 + device, size(16)) == 0\n'
        "    pointers.append(p); frees.append(before - free())\n"
        "ordinals, bytes_seen = [], []\n"
        "for p in pointers:\n"
        "    n, b = c.c_int(7), c.c_uint8()\n"
        '    call("cuPointerGetAttribute", at(n), 9, p)\n'
        '    call("cuMemcpyDtoH_v2", at(b), p, size(1))\n'
        "    ordinals.append(n.value); bytes_seen.append(b.value)\n"
        "big = u64()\n"
        'tell(frees, ordinals, bytes_seen, call("cuMemAlloc_v2", at(big), size(20 << 30)))\n'
    )
    with NodeServer(gpus=["t4-16g", "a100-40g"], containers=["tenant"]) as node:
        # The bigger card's memory is not cut to the smaller one's.
        by_bus = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        assert play(node, program, **by_bus) == [[[1 << 30, 2 << 30], [0, 1], [5, 6], 0]]
        swapped = play(
            node,
            "start()\nn = c.c_int()\nt = size(0)\ncall('cuDeviceTotalMem_v2', at(t), 0)\ntell(t.value)",
            CUDA_VISIBLE_DEVICES="1,0",
            **by_bus,
        )
        assert swapped == [[node.snapshot().devices[1].total_bytes]]
