"""Suspending a container's processes: who waits, who does not, and who is named when it does not obey."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from lab.region import RegionError, members, resume_all, suspend_all, wait_status_all
from lab.scenario import vocabulary
from lab.spec import load_hooks

Place = Any
PATIENCE_S = 30.0


def silent(life: Any) -> bool:
    """Nothing to read: it is held up (checked once its thread is seen asleep in a futex wait)."""
    while True:
        with open(f"/proc/{life.popen.pid}/syscall") as stream:
            if stream.read().split()[0] == str(202 if os.uname().machine == "x86_64" else 98):  # futex
                break
    return not select.select([life.popen.stdout], [], [], 0)[0]


@pytest.mark.report("B112")
def test_allocations_wait_and_views_and_frees_do_not(place: Place) -> None:
    life = place.start("init", "alloc", "wait", "view", "free", "alloc", "view")
    for word in ("init", "alloc", "waiting"):
        assert life.heard(word)[0] == 0
    (told,) = suspend_all(place.region)
    assert told.host_pid == life.popen.pid
    (member,) = wait_status_all(place.region, suspended=True, timeout_s=PATIENCE_S)
    assert member.suspended
    life.say()
    assert life.heard("view")[0] > 0
    assert life.heard("free")[0] == 0
    assert silent(life)
    resume_all(place.region)
    wait_status_all(place.region, suspended=False, timeout_s=PATIENCE_S)
    assert life.heard("alloc")[0] == 0
    assert life.ended() == 0
    place.zero()


def test_check_names_who_holds_the_lock(place: Place, hooklab: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """Free; held by somebody who lives (stopped inside it); held by somebody who died there."""
    quiet = place.start("init", "wait")
    quiet.heard("init")
    quiet.heard("waiting")
    done = hooklab("region", "check", place.region)
    assert (done.returncode, done.stdout) == (0, f"{place.region}: the lock is free\n")
    plan = f"{vocabulary.points()['point.owned']}:2:{int(signal.SIGSTOP)}:0"  # the first time is its entry
    holder = place.start("init", "alloc", HOOKLAB_POINTS=plan)
    result = os.waitid(os.P_PID, holder.popen.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    assert result is not None
    assert result.si_code == os.CLD_STOPPED
    told = hooklab("region", "check", place.region).stdout
    assert f"the lock is held: slot 1, pid {holder.popen.pid}, alive" in told
    os.kill(holder.popen.pid, signal.SIGKILL)
    holder.ended()
    done = hooklab("region", "check", place.region)
    assert done.returncode == 1
    assert f"the lock is held: slot 1, pid {holder.popen.pid}, dead" in done.stdout


def test_one_that_cannot_hear_is_named(place: Place) -> None:
    quick = place.start("init", "wait")
    slow = place.start("init", "wait")
    for life in (quick, slow):
        life.heard("init")
        life.heard("waiting")
    os.kill(slow.popen.pid, signal.SIGSTOP)
    suspend_all(place.region)
    with pytest.raises(RegionError, match="not suspended") as raised:
        wait_status_all(place.region, suspended=True, timeout_s=0.2)
    assert f"pid {slow.popen.pid} " in str(raised.value)
    assert f"pid {quick.popen.pid} " not in str(raised.value)
    os.kill(slow.popen.pid, signal.SIGCONT)
    wait_status_all(place.region, suspended=True, timeout_s=PATIENCE_S)
    resume_all(place.region)
    wait_status_all(place.region, suspended=False, timeout_s=PATIENCE_S)


@pytest.mark.report("B112", plants="a program with handlers of its own")
@pytest.mark.parametrize("how", ["own", "off"])
def test_one_with_handlers_of_its_own_is_never_sent_a_signal(place: Place, how: str) -> None:
    life = place.start(
        *(["own"] if how == "own" else []), "init", "wait", HOOKLAB_SIGNALS="off" if how == "off" else ""
    )
    for word in (["own"] if how == "own" else []) + ["init", "waiting"]:
        life.heard(word)
    with pytest.raises(RegionError, match="takes no signals"):
        suspend_all(place.region)
    assert life.popen.poll() is None
    life.say()
    assert life.ended() == 0


def test_a_child_is_not_suspended_with_its_parent(place: Place) -> None:
    life = place.start("init", "wait", "fork", "view", "_exit", "join", "alloc")
    life.heard("init")
    life.heard("waiting")
    suspend_all(place.region)
    wait_status_all(place.region, suspended=True, timeout_s=PATIENCE_S)
    life.say()
    life.heard("view")
    assert life.heard("fork")[0] == 0
    resume_all(place.region)
    assert life.heard("alloc")[0] == 0


def test_the_command(place: Place, hooklab: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    life = place.start("init", "wait", "alloc")
    life.heard("init")
    life.heard("waiting")
    done = hooklab("region", "suspend", place.region)
    assert (done.returncode, done.stdout) == (0, "1 processes suspended\n"), done.stderr
    assert [member.suspended for member in members(place.region)] == [True]
    os.kill(life.popen.pid, signal.SIGSTOP)
    done = hooklab("region", "resume", place.region, "--timeout", "0.2")
    assert done.returncode == 1
    assert f"pid {life.popen.pid}" in done.stderr
    os.kill(life.popen.pid, signal.SIGCONT)
    assert hooklab("region", "resume", place.region).returncode == 0
    assert hooklab("region", "suspend", place.region.parent / "nothing").returncode == 2
    life.say()
    assert life.heard("alloc")[0] == 0
    assert life.ended() == 0
    done = hooklab("region", "repair", place.region)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_hook_says_whether_it_waits() -> None:
    table = load_hooks()
    waits = {hook.name for hook in table.hooks if hook.running}
    assert {"cuMemAlloc_v2", "cuMemAllocAsync"} <= waits
    assert not waits & {"cuInit", "cuMemFree_v2", "cuMemGetInfo_v2", "cuGetProcAddress_v2", "nvmlDeviceGetMemoryInfo"}
    assert {hook.action for hook in table.hooks if hook.running} <= {"charge", "pace"}
