"""No lock of the container is held across a driver or NVML call: one process is stopped inside each call that a whole
life makes, and another one must get through its whole life meanwhile."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab.node.faults import Fault
from lab.spec import load_hooks

Place = Any
LIFE = ("init", "view", "alloc", "alloc", "free", "view", "free")
FLOCK = "73" if os.uname().machine == "x86_64" else "32"
SOURCE = Path(__file__).parents[1] / "native" / "lifecycle" / "holds.c"


def wait_stopped(pid: int) -> None:
    """Until a child of ours is stopped."""
    result = os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    assert result is not None
    assert result.si_code == os.CLD_STOPPED, "it ended instead of stopping in the driver"


def calls_of_a_life(place: Place) -> list[str]:
    assert place.start(*LIFE).ended() == 0
    place.node.wait_live(0)
    fakeable = {hook.name for hook in load_hooks().hooks if hook.fake == "real"}
    return [name for name in place.node.snapshot().calls if name in fakeable]


@pytest.mark.parametrize("lock", ["robust", "file"])
def test_others_live_while_one_is_stopped_in_any_call(place: Place, lock: str) -> None:
    names = calls_of_a_life(place)
    assert {"cuInit", "cuDevicePrimaryCtxRetain", "cuMemAlloc_v2", "cuMemFree_v2", "cuMemGetInfo_v2"} <= set(names)
    for number, name in enumerate(names):
        stopped = 1000 + number
        fault = place.node.plan(Fault(name=name, action="stop", call=1, process=stopped))
        one = place.start(*LIFE, HOOKLAB_REGION_LOCK=lock, HOOKLAB_PROCESS=str(stopped))
        wait_stopped(one.popen.pid)
        assert place.node.fired(fault) == 1
        assert place.start(*LIFE, HOOKLAB_REGION_LOCK=lock).ended() == 0, f"while one is stopped in {name}"
        place.node.withdraw(fault)
        os.kill(one.popen.pid, signal.SIGCONT)
        assert one.ended() == 0
    place.zero()


def test_a_lock_held_across_the_driver_is_seen(place: Place, compile_c: Callable[..., Path], native: Path) -> None:
    """The planted offender: the second process sleeps in the lock that the stopped one holds."""
    library = compile_c(SOURCE, "-shared", "-fPIC", f"-L{native / 'fake'}", "-l:libcuda.so.1", "-ldl", name="holds.so")
    place.node.plan(Fault(name="cuMemAlloc_v2", action="stop", call=1, process=1000))
    environment = {"LD_PRELOAD": str(library)}
    one = place.start(*LIFE, HOOKLAB_PROCESS="1000", **environment)
    wait_stopped(one.popen.pid)
    other = place.start(*LIFE, **environment)
    other.heard("init"), other.heard("view")
    while True:
        ended = other.popen.poll()
        assert ended is None, "it got through: the offender was not planted"
        with open(f"/proc/{other.popen.pid}/syscall") as stream:
            if stream.read().split()[0] == FLOCK:
                break
    assert not select.select([other.popen.stdout], [], [], 0)[0]
    os.kill(one.popen.pid, signal.SIGCONT)
    assert one.ended() == other.ended() == 0
