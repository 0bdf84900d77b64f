"""The layout hami-1.2 under deaths: what its protocol survives, and what it does not, each written down and met.

`goes` - allocates at once or after one recovered wait; `refused` - it could never register, so nobody counts it and its
charges under a limit are refused; `hangs` - it waits for an even sequence number that its writer will never write,
until somebody registers and clears the dead away.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest

from lab.region import HamiRegion, members
from lab.scenario import vocabulary

Place = Any
HAMI = {"HOOKLAB_REGION_LAYOUT": "hami-1.2", "HOOKLAB_HAMI_WAIT_MS": "10"}
# point -> how whoever was registered before the death fares, and how one that comes after it
OUTCOMES = {
    "before_lock": ("goes", "goes"),
    "locked": ("goes", "refused"),  # the owner's PID was not yet written: nobody can find it dead
    "owned": ("goes", "goes"),
    "mid_repair": ("goes", "goes"),
    "published": ("goes", "goes"),
    "mid_write": ("hangs", "goes"),
    "admitted": ("goes", "goes"),
    "called": ("goes", "goes"),
    "detached": ("goes", "goes"),
    "freed": ("goes", "goes"),
    "gate": ("goes", "goes"),
    "exit": ("goes", "goes"),
}
PLACES = ("first", "middle", "last")


def start(place: Place, *words: str, **variables: str) -> Any:
    return place.start(*words, **HAMI, **variables)


def fares(place: Place, life: Any) -> str:
    """Let it allocate; how that went."""
    life.say()
    while True:
        odd = [int(slot["sequence"]) % 2 for slot in HamiRegion(place.region).record["procs"][:16]]
        with open(f"/proc/{life.popen.pid}/syscall") as stream:
            call = stream.read().split()[0]
        if any(odd) and call in ("35", "230", "101", "115"):  # nanosleep, clock_nanosleep
            return "hangs"
        if select.select([life.popen.stdout], [], [], 0.01)[0]:
            return "refused" if life.heard("alloc")[0] else "goes"


@pytest.mark.report("B98", plants="the same deaths under hami-1.2")
@pytest.mark.parametrize(
    ("point", "where"),
    [(point, PLACES[number % 3]) for number, point in enumerate(OUTCOMES)],
)
def test_a_death_at_every_point(place: Place, point: str, where: str) -> None:
    die_and_fare(place, point, where)


@pytest.mark.full
@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("point", OUTCOMES)
def test_the_whole_matrix(
    make_place: Callable[[], Any], point: str, where: str, record_property: pytest.RecordProperty
) -> None:
    times = []
    for _ in range(20):
        before = time.monotonic()
        with make_place() as place:
            die_and_fare(place, point, where)
        times.append(time.monotonic() - before)
    record_property("slowest_s", max(times))


def die_and_fare(place: Place, point: str, where: str) -> None:
    """Kill the first, middle or last of its kind at a point; everybody else must fare as written above."""
    plan = f"{vocabulary.points()[f'point.{point}']}:1:{int(signal.SIGKILL)}:0"
    before, after = [], []

    def enter(into: list[Any]) -> None:
        into.append(start(place, "init", "wait", "alloc"))
        into[-1].heard("init")
        into[-1].heard("waiting")

    for _ in range(PLACES.index(where)):
        enter(before)
    if point == "mid_repair":  # somebody dead for the victim to clear away
        corpse = start(place, "init", "wait")
        corpse.heard("init")
        corpse.heard("waiting")
        os.kill(corpse.popen.pid, signal.SIGKILL)
        corpse.ended()
    victim = start(place, "init", "alloc", "free", HOOKLAB_POINTS=plan)
    assert victim.ended() == -signal.SIGKILL
    old, new = OUTCOMES[point]
    if old == "hangs":  # before the next one registers
        assert {fares(place, life) for life in before} <= {"hangs"}
    for _ in range(3 - len(before)):
        enter(after)
    if old == "hangs":
        assert [life.heard("alloc")[0] for life in before] == [0] * len(before)
    else:
        assert {fares(place, life) for life in before} <= {old}
    assert {fares(place, life) for life in after} == {new}


def test_bytes_of_a_killed_process_stay_until_somebody_clears(place: Place) -> None:
    victim = start(place, "init", "alloc", "wait")
    for word in ("init", "alloc", "waiting"):
        victim.heard(word)
    os.kill(victim.popen.pid, signal.SIGKILL)
    victim.ended()
    region = HamiRegion(place.region)
    assert region.used(0) == (64 + 64) << 20
    assert any("is dead and its bytes are still charged" in problem for problem in region.check())
    other = start(place, "init", "view")
    assert other.heard("init")[0] == 0
    assert other.heard("view")[0] == 1024 - 64  # its registration cleared them
    other.ended()


@pytest.mark.report("B51", plants="compaction as hami-1.2 does it")
def test_a_moved_slot_is_lost_to_its_owner(place: Place) -> None:
    """Two dead at once: the compaction moves a third process's slot and cannot repair that process's own pointer."""
    dead = [start(place, "init", "wait") for _ in range(1)]
    for life in dead:
        life.heard("init"), life.heard("waiting")
    second = start(place, "init", "wait")
    second.heard("init"), second.heard("waiting")
    mover = start(place, "init", "wait", "alloc", "wait")
    mover.heard("init"), mover.heard("waiting")
    for life in (dead[0], second):
        os.kill(life.popen.pid, signal.SIGKILL)
        life.ended()
    newcomer = start(place, "init", "wait")
    newcomer.heard("init"), newcomer.heard("waiting")
    before = HamiRegion(place.region).used(0)
    mover.say()
    assert mover.heard("alloc")[0] == 0
    mover.heard("waiting")
    assert HamiRegion(place.region).used(0) == before  # 64 MiB that nobody counts
    assert place.node.snapshot().devices[0].used > before


def test_a_file_others_can_read(place: Place, hooklab: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    life = start(place, "init", "alloc", "wait")
    for word in ("init", "alloc", "waiting"):
        life.heard(word)
    assert place.region.stat().st_size == 2_008_953
    (member,) = members(place.region)
    assert member.host_pid == life.popen.pid
    assert not member.suspended
    shown = hooklab("region", "show", place.region)
    assert f"pid {life.popen.pid}" in shown.stdout
    assert "lock: free" in shown.stdout
    assert hooklab("region", "check", place.region).returncode == 0
    assert hooklab("region", "suspend", place.region).returncode == 0
    assert [one.suspended for one in members(place.region)] == [True]
    os.kill(life.popen.pid, signal.SIGKILL)
    life.ended()
    checked = hooklab("region", "check", place.region)
    assert checked.returncode == 1
    assert "is dead" in checked.stdout
    repaired = hooklab("region", "repair", place.region)
    assert (repaired.returncode, repaired.stdout) == (0, "1 dead processes buried\n"), repaired.stderr


@pytest.mark.parametrize("point", ["locked", "owned", "mid_write", "mid_repair"])
def test_repair_mends_what_the_protocol_cannot(
    place: Place, point: str, hooklab: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    if point == "mid_repair":
        corpse = start(place, "init", "wait")
        corpse.heard("init"), corpse.heard("waiting")
        os.kill(corpse.popen.pid, signal.SIGKILL)
        corpse.ended()
    plan = f"{vocabulary.points()[f'point.{point}']}:1:9:0"
    assert start(place, "init", "alloc", HOOKLAB_POINTS=plan).ended() == -signal.SIGKILL
    assert hooklab("region", "check", place.region).returncode == 1
    done = hooklab("region", "repair", place.region)
    assert done.returncode == 0, done.stdout + done.stderr
    life = start(place, "init", "alloc", "view")
    assert life.heard("init")[0] == life.heard("alloc")[0] == 0
    assert life.heard("view")[0] == 1024 - 128
    assert life.ended() == 0
