"""A device whose memory is the host's: what CUDA and NVML say of it, where it is full, and what its kernels reach."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lab.node.server import NodeServer

pytestmark = pytest.mark.sanitize
TOTAL, HOST, CONTEXT = 130_663_165_952, 6 << 30, 200 << 20
UNSUPPORTED = 3
VADD = """
current()
m, f = pointer(), pointer()
call("cuModuleLoadData", at(m), PTX), call("cuModuleGetFunction", at(f), m, b"vadd")
A = c.c_float * 256
a, b, out = A(*range(256)), A(*(2 * i for i in range(256))), A()
places = [u64(c.addressof(one)) for one in (a, b, out)]
n = c.c_uint(256)
def launch():
    each = (c.c_void_p * 4)(*(c.cast(at(one), c.c_void_p) for one in (*places, n)))
    done = call("cuLaunchKernel", f, 1, 1, 1, 256, 1, 1, 0, None, each, None)
    return [done, call("cuCtxSynchronize")]
"""


def test_what_it_says(play: Callable[..., Any]) -> None:
    program = """
current()
values = []
for which in (18, 86, 88, 100, 101, 116):
    v = c.c_int(7)
    call("cuDeviceGetAttribute", at(v), which, 0)
    values.append(v.value)
nvml = c.CDLL("libnvidia-ml.so.1")
nvml.nvmlInit_v2()
d, three, v2, n, rows = c.c_void_p(), (c.c_ulonglong * 3)(), (c.c_ulonglong * 5)(), c.c_uint(8), (c.c_ubyte * 192)()
nvml.nvmlDeviceGetHandleByIndex_v2(0, at(d))
v2[0] = 0x02000028
power = c.c_uint(7)
tell(values, free(), total(), [
    nvml.nvmlDeviceGetMemoryInfo(d, three), nvml.nvmlDeviceGetMemoryInfo_v2(d, v2),
    nvml.nvmlDeviceGetBAR1MemoryInfo(d, three), nvml.nvmlDeviceGetEnforcedPowerLimit(d, at(power)),
    nvml.nvmlDeviceGetMigMode(d, at(power), at(power))], list(three),
    [nvml.nvmlDeviceGetComputeRunningProcesses_v3(d, at(n), rows), n.value,
     int.from_bytes(bytes(rows)[8:16], "little")])
"""
    with NodeServer(gpus=["gb10"], containers=["tenant"]) as node:
        ((values, free, total, codes, untouched, listed),) = play(node, program)
    assert values == [1, 1, 1, 1, 1, 0]
    assert (free, total) == (TOTAL - HOST - CONTEXT, TOTAL)
    assert (codes, untouched) == ([UNSUPPORTED] * 5, [0, 0, 0])
    assert listed == [0, 1, CONTEXT]


def test_it_is_full_where_the_host_needs_the_rest(play: Callable[..., Any]) -> None:
    program = """
current()
p, left = u64(), free()
blocks = left // (2 * MIB) * 2 * MIB
alloc = lambda bytes_wanted: call("cuMemAlloc_v2", at(p), size(bytes_wanted))
tell(alloc(blocks + 2 * MIB), alloc(blocks), free() == left - blocks)
"""
    with NodeServer(gpus=["gb10"], containers=["tenant"]) as node:
        assert play(node, program) == [[2, 0, True]]


@pytest.mark.parametrize(("gpu", "result"), [("gb10", [0, 0]), ("a100-80g", [0, 700])])
def test_kernels_reach_the_programs_own_memory(play: Callable[..., Any], gpu: str, result: list[int]) -> None:
    program = VADD + "codes = launch()\ntell(codes, list(out) == [3 * i for i in range(256)])"
    with NodeServer(gpus=[gpu], containers=["tenant"]) as node:
        assert play(node, program) == [[result, result == [0, 0]]]


def test_what_nobody_has_mapped_is_out_of_reach(play: Callable[..., Any]) -> None:
    program = VADD + "places[2] = u64(1 << 20)\ntell(launch())"
    with NodeServer(gpus=["gb10"], containers=["tenant"]) as node:
        assert play(node, program) == [[[0, 700]]]
