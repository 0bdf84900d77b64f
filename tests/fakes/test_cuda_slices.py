"""Real processes on one fake GPU: they take turns, a killed one gives its turns back, its stamps tell what it had."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from lab.node.server import NodeServer

pytestmark = pytest.mark.sanitize
SLICE, SWITCH, IDLE_SWITCH = 2_000_000, 220_000, 139_000  # as in the profile of the node below
WORK, HOUR = 25_000_000, 3_600_000_000_000
SPIN = b".visible .entry spin(.param .u64 d) { .reg .b64 %d<3>; mov.u64 %d2, %globaltimer; ret; }"
PROGRAM = f"""
context = current()
module, f = pointer(), pointer()
image = b".version 7.0\\n.target sm_52\\n.address_size 64\\n" + {SPIN!r}
assert call("cuModuleLoadData", c.byref(module), image) == 0
assert call("cuModuleGetFunction", c.byref(f), module, b"spin") == 0
events = [pointer(), pointer()]
for e in events: assert call("cuEventCreate", c.byref(e), 0) == 0
def launch(ns):
    value = u64(ns)
    parameters = (c.c_void_p * 1)(c.addressof(value))
    return call("cuLaunchKernel", f, 1, 1, 1, 1, 1, 1, 0, None, parameters, None)
call("cuEventRecord", events[0], None)
codes = [launch(ns) for ns in KERNELS]
call("cuEventRecord", events[1], None)
tell("launched")
codes.append(call("cuCtxSynchronize"))
elapsed = c.c_float()
codes.append(call("cuEventElapsedTime", c.byref(elapsed), *events))
tell(codes, elapsed.value)
"""


def runs_of(node: NodeServer, slot: int) -> npt.NDArray[Any]:
    """Busy intervals of a process, by their start: columns start and end, ns."""
    node.snapshot()
    ring = node.file.intervals[0][: int(node.file.devices[0]["interval_head"])]
    own = ring[ring["slot"] == slot]
    return np.stack([own["start_ns"], own["end_ns"]], axis=1).astype(np.int64)


def slot_of(node: NodeServer, pid: int) -> int:
    return int(np.flatnonzero(node.file.processes["host_pid"] == pid)[0])


def begin(guest: Callable[..., Any], node: NodeServer, work: Sequence[int], index: int) -> Any:
    """A guest that has launched these kernels."""
    one = guest(node, PROGRAM.replace("KERNELS", str(list(work))), index=index)
    line = one.process.stdout.readline()
    assert line == '["launched"]\n', line or one.end()[2]
    return one


@pytest.mark.parametrize("sharing", ["slices", "concurrent"])
def test_two_processes_share(guest: Callable[..., Any], sharing: str) -> None:
    with NodeServer(gpus=["h200-141g"], containers=["tenant"], sharing=sharing) as node:
        endless = begin(guest, node, [HOUR], 0)
        status, answers, err = (other := begin(guest, node, [WORK // 5] * 5, 1)).end()
        assert (status, answers[-1][0], err) == (0, [0] * 7, "")
        assert answers[-1][1] >= WORK / 1e6  # by its own stamps
        slots = [slot_of(node, one.process.pid) for one in (endless, other)]
        first, second = (runs_of(node, slot) for slot in slots)
        endless.process.kill()
        endless.end()
    assert WORK <= (second[:, 1] - second[:, 0]).sum() <= WORK + 10  # a stamp may take a turn of 1 ns
    if sharing == "concurrent":
        assert second[-1, 1] - second[0, 0] == WORK  # one behind the other
        assert first[0, 0] < second[0, 0] < second[-1, 1] < first[0, 1]  # side by side
        return
    both = np.concatenate([first, second])
    both = both[both[:, 0].argsort()]
    gaps = both[1:, 0] - both[:-1, 1]
    assert set(gaps.tolist()) <= {SWITCH, IDLE_SWITCH}  # nobody overlaps, nothing idles but for switches
    between = first[1:-1]
    assert len(between) >= WORK // SLICE - 2
    assert set((between[:, 1] - between[:, 0]).tolist()) == {SLICE}


def test_one_that_is_killed_in_a_kernel_gives_its_turns_back(guest: Callable[..., Any]) -> None:
    with NodeServer(gpus=["h200-141g"], containers=["tenant"]) as node:
        endless, other = begin(guest, node, [HOUR], 0), begin(guest, node, [WORK * 10], 1)
        slot, survivor = (slot_of(node, one.process.pid) for one in (endless, other))
        os.kill(endless.process.pid, signal.SIGKILL)
        node.wait_live(1)
        share = node.file.shares[0][slot]
        assert (share["submitted"], share["hold_until"]) == (share["done"], 0)
        status, answers, err = other.end()
        assert (status, answers[-1][0], err) == (0, [0, 0, 0], "")
        killed, runs = runs_of(node, slot), runs_of(node, survivor)
        endless.end()
    assert killed[-1, 1] <= runs[-1, 0]  # the other had the GPU for itself from then on
    assert runs[-1, 1] - runs[-1, 0] > 10 * SLICE
