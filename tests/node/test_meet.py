"""A meeting holds its callers until enough have arrived or nobody else can come."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.node.faults import Candidate, Fault, FaultError, may_arrive, must_open
from lab.node.server import NodeServer
from lab.node.stillness import Rest, Stillness, look

Make = Callable[..., NodeServer]
Join = Callable[..., object]

NAME = "nvmlInit_v2"  # any function with a body


def meet(count: int = 2, **options: object) -> Fault:
    options.setdefault("patience_s", 3600.0)  # only the tests of patience run out of it
    return Fault(name=NAME, action="meet", meet=count, **options)


def wait_arrived(node: NodeServer, fault: int, count: int) -> None:
    """Until so many wait. An arrival is a word in shared memory, no event: it is looked at on the server's tick."""
    node.wait_for(lambda _: node.waiting(fault) == count)


def wait_unmarked(node: NodeServer) -> None:
    """Until every word of a waiter is free again: who goes on clears its own."""
    node.wait_for(lambda _: not node.file.header["waiters"].any())


def review(node: NodeServer) -> None:
    """Let the server look at its meetings now, as its tick does."""
    with node._condition:
        node._review_meetings()


def enter(guest: object, fault: int) -> None:
    guest.ask("call", NAME)
    assert guest.ask("meet", fault) == "meeting"


def test_two_meet(make_node: Make, join: Join) -> None:
    node = make_node()
    fault = node.plan(meet())
    first, second = join(node, index=0), join(node, index=1)
    enter(first, fault)
    wait_arrived(node, fault, 1)
    review(node)
    assert node.file.faults[fault]["open"] == 0, "the other one can still come"
    enter(second, fault)
    assert (first.hear(), second.hear()) == ("met", "met")
    assert (node.file.faults[fault]["open"], node.waiting(fault)) == (1, 0)
    wait_unmarked(node)


def crowd(guest: object, fault: int, threads: int) -> None:
    """So many threads of one process come."""
    guest.say("crowd", fault, threads)


def test_threads_of_one_process_meet(make_node: Make, join: Join) -> None:
    node = make_node()
    node.expect(process=0, container=0, callers=3)
    fault = node.plan(meet(3, mode="from", process=0))
    guest = join(node, index=0)
    crowd(guest, fault, 1)
    wait_arrived(node, fault, 1)
    review(node)
    assert node.file.faults[fault]["open"] == 0, "two more of its threads can come"
    crowd(guest, fault, 2)
    assert [guest.hear() for _ in range(3)] == ["met"] * 3
    wait_unmarked(node)
    assert node.met_short(fault) == 0


def test_threads_of_two_processes_meet(make_node: Make, join: Join) -> None:
    node = make_node()
    for index in range(2):
        node.expect(process=index, container=0, callers=2)
    fault = node.plan(meet(4, mode="every"))
    guests = [join(node, index=index) for index in range(2)]
    for guest in guests:
        crowd(guest, fault, 2)
    assert [guest.hear() for guest in guests for _ in range(2)] == ["met"] * 4


def test_a_dead_process_takes_all_its_threads_along(make_node: Make, join: Join) -> None:
    node = make_node()
    for index in range(3):
        node.expect(process=index, container=0, callers=2)
    fault = node.plan(meet(4, mode="from"))
    guests = [join(node, index=index) for index in range(3)]
    for guest in guests[:2]:
        crowd(guest, fault, 1 if guest is guests[0] else 2)
    wait_arrived(node, fault, 3)
    guests[1].kill()
    node.wait_live(2)
    assert node.waiting(fault) == 1
    crowd(guests[2], fault, 2)
    wait_arrived(node, fault, 3)
    review(node)
    assert node.file.faults[fault]["open"] == 0, "three wait, and one of the first process can come"
    crowd(guests[0], fault, 1)
    assert [guest.hear() for guest in (guests[0], guests[0], guests[2], guests[2])] == ["met"] * 4


def test_a_program_with_no_other_thread_is_let_go(make_node: Make, join: Join) -> None:
    """What the run knows nothing of has as many callers as threads; here one, and it waits."""
    node = make_node()
    node.expect(process=0, container=0, callers=None)
    fault = node.plan(meet(2, mode="from", process=0))
    guest = join(node, index=0)
    enter(guest, fault)
    assert guest.hear() == "met"
    assert node.met_short(fault) == 1


def test_threads_that_never_rest_are_not_waited_for_without_end(make_node: Make, join: Join) -> None:
    node = make_node()
    node.expect(process=0, container=0, callers=None)
    fault = node.plan(meet(2, mode="from", process=0, patience_s=0.05))
    guest = join(node, index=0)
    guest.say("spin", fault)
    assert guest.hear() == "met"
    assert node.met_short(fault) == 1


def test_a_death_releases_the_last_one(make_node: Make, join: Join) -> None:
    node = make_node()
    fault = node.plan(meet())
    first, second = join(node, index=0), join(node, index=1)
    enter(first, fault)
    second.kill()
    assert first.hear() == "met"


def test_an_expected_process_is_waited_for(make_node: Make, join: Join) -> None:
    node = make_node()
    node.expect(process=0, container=0)
    node.expect(process=1, container=0)
    fault = node.plan(meet())
    first = join(node, index=0)
    enter(first, fault)
    wait_arrived(node, fault, 1)
    review(node)
    assert node.file.faults[fault]["open"] == 0, "process 1 has not started yet"
    node.ended(process=1)
    assert first.hear() == "met"


def test_a_process_past_its_call_is_not_waited_for(make_node: Make, join: Join) -> None:
    node = make_node()
    fault = node.plan(meet(call=1))
    early, late = join(node, index=0), join(node, index=1)
    early.ask("call", NAME)
    enter(late, fault)
    assert late.hear() == "met"


def test_filters_say_who_can_come(make_node: Make, join: Join) -> None:
    node = make_node(containers=["a", "b"])
    fault = node.plan(meet(container=0))
    stranger = join(node, index=0, container=1)
    guest = join(node, index=1, container=0)
    enter(guest, fault)
    assert guest.hear() == "met", "the process of another container cannot come"
    assert stranger.ask("take", 0, 1, 1) == "took 0"


def test_a_dead_waiter_does_not_count(make_node: Make, join: Join) -> None:
    node = make_node()
    fault = node.plan(meet())
    guests = [join(node, index=index) for index in range(3)]
    enter(guests[0], fault)
    wait_arrived(node, fault, 1)
    guests[0].kill()
    node.wait_live(2)
    assert node.waiting(fault) == 0
    enter(guests[1], fault)
    wait_arrived(node, fault, 1)
    review(node)
    assert node.file.faults[fault]["open"] == 0, "one waits, one can still come: the dead one is not the second"
    enter(guests[2], fault)
    assert [guest.hear() for guest in guests[1:]] == ["met", "met"]


def test_withdrawing_lets_go(make_node: Make, join: Join) -> None:
    node = make_node()
    fault = node.plan(meet())
    first = join(node, index=0)
    join(node, index=1)
    enter(first, fault)
    wait_arrived(node, fault, 1)
    node.withdraw(fault)
    assert first.hear() == "met"
    assert node.file.faults[fault]["active"] == 0
    assert node.plan(meet(3)) == fault, "the place is free again"


def test_a_later_meeting_in_the_same_place_is_a_new_one(make_node: Make, join: Join) -> None:
    node = make_node()
    fault = node.plan(meet())
    first, second = join(node, index=0), join(node, index=1)
    for _ in range(2):
        node.withdraw(fault)
        assert node.plan(meet(call=1, mode="every")) == fault
        assert first.ask("meet", fault) == "meeting"
        assert second.ask("meet", fault) == "meeting"
        assert (first.hear(), second.hear()) == ("met", "met")


def test_who_sleeps_behind_a_lock_is_not_waited_for(make_node: Make, join: Join) -> None:
    """As under an interposer that keeps its lock across the driver call: one can only come after the other left."""
    node = make_node()
    fault = node.plan(meet(patience_s=0.1))
    first, second = join(node, index=0), join(node, index=1)
    enter(first, fault)
    assert first.hear() == "met"
    assert node.met_short(fault) == 1
    assert second.ask("take", 0, 1, 1) == "took 0", "it lives"


def test_who_works_is_waited_for(make_node: Make, join: Join, churn: Path) -> None:
    node = make_node()
    fault = node.plan(meet(patience_s=0.0))
    first, second = join(node, index=0), join(node, index=1)
    assert second.ask("churn", churn) == "churning"
    enter(first, fault)
    wait_arrived(node, fault, 1)
    for _ in range(20):
        review(node)
    assert node.file.faults[fault]["open"] == 0
    second.kill()
    assert first.hear() == "met"


def test_modelled_driver_work_is_no_rest(make_node: Make, join: Join) -> None:
    node = make_node()
    node.file.devices[0]["init_busy_until"] = time.clock_gettime_ns(time.CLOCK_MONOTONIC) + 3_600_000_000_000
    fault = node.plan(meet(patience_s=0.0))
    first, _ = join(node, index=0), join(node, index=1)
    enter(first, fault)
    wait_arrived(node, fault, 1)
    for _ in range(5):
        review(node)
    assert node.file.faults[fault]["open"] == 0
    node.file.devices[0]["init_busy_until"] = 0
    assert first.hear() == "met"


def test_stillness_needs_the_whole_patience() -> None:
    watch = Stillness(2.0)
    asleep, later, awake = Rest(True, 7), Rest(True, 8), Rest(False, 8)
    assert not watch.lasts("a", [asleep], 10.0)
    assert not watch.lasts("a", [asleep], 11.9)
    assert watch.lasts("a", [asleep], 12.0)
    assert not watch.lasts("a", [later], 12.1), "it used the processor"
    assert watch.lasts("a", [later], 14.1)
    assert not watch.lasts("b", [later], 14.2), "somebody else waits now"
    assert not watch.lasts("b", [later, awake], 20.0)
    assert not watch.lasts("b", [later, awake], 30.0)


def test_looking_at_processes(make_node: Make, join: Join, churn: Path) -> None:
    node = make_node()
    busy = join(node)
    assert busy.ask("churn", churn) == "churning"
    before = look(busy.pid)
    while look(busy.pid).ticks == before.ticks:
        pass
    assert not look(busy.pid).asleep
    os.kill(busy.pid, signal.SIGSTOP)
    assert not look(busy.pid).asleep, "a stopped process was stopped by somebody who may let it go on"
    assert look(1 << 22) == Rest(False, 0)


candidates = st.lists(
    st.builds(
        Candidate,
        process=st.integers(0, 5),
        container=st.integers(0, 2),
        calls=st.integers(0, 3),
        waiting=st.integers(0, 2),
        callers=st.integers(1, 2),
    ),
    max_size=6,
)


@given(candidates, st.integers(2, 4), st.sampled_from(["nth", "every", "from"]), st.integers(1, 3))
def test_opens_exactly_when_enough_or_nobody_can_come(found: list[Candidate], count: int, mode: str, call: int) -> None:
    fault = meet(count, mode=mode, call=call)
    waiting = sum(candidate.waiting for candidate in found)
    coming = [candidate for candidate in found if may_arrive(fault, candidate)]
    assert all(candidate.waiting < candidate.callers for candidate in coming)
    assert must_open(fault, found) == bool(waiting and (waiting >= count or not coming))


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (Fault(name="cuNothing", action="delay", delay_ns=1), "the hook table has no such function"),
        (Fault(name="nvmlVgpuTypeGetName", action="delay", delay_ns=1), "has no body"),
        (Fault(name=NAME, action="meet", meet=1), "at least two callers meet"),
        (Fault(name=NAME, action="meet", meet=2, scope="node"), "can hold one caller only"),
        (Fault(name=NAME, action="meet", meet=2, process=0), "over one process can hold one caller only"),
        (Fault(name=NAME, action="meet", meet=449), "at most 448 can wait at once"),
        (Fault(name=NAME, action="delay"), "a delay needs a duration"),
        (Fault(name=NAME, action="return"), "is no fault"),
        (Fault(name=NAME, action="kill", signal=1000), "is no signal"),
        (Fault(name=NAME, action="stop", call=0), "counted from 1"),
    ],
)
def test_senseless_faults_are_refused(make_node: Make, fault: Fault, message: str) -> None:
    node = make_node()
    with pytest.raises(FaultError, match=message) as caught:
        node.plan(fault)
    assert "\n" not in str(caught.value)
    assert not node.file.faults["active"].any()
