"""Utilisation follows the busy intervals that drivers write: sampled, attributed and aged as a real card does it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from lab.node.server import NodeServer

NOT_FOUND, SMALL, INVALID, KEPT = 6, 7, 2, 72
MS = 1_000_000

Probe = Callable[..., Any]

pytestmark = pytest.mark.sanitize


def busy(node: NodeServer, slot: int, start_ns: int, end_ns: int) -> None:
    """What a fake driver writes when a kernel runs."""
    ring = node.file.intervals[0]
    head = int(node.file.devices[0]["interval_head"])
    entry = ring[head % len(ring)]
    entry["start_ns"], entry["end_ns"], entry["slot"], entry["share_permille"] = start_ns, end_ns, slot, 1000
    entry["sequence"] = head + 1
    node.file.devices[0]["interval_head"] = head + 1


def now() -> int:
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


@pytest.fixture
def node(make_node: Callable[..., NodeServer]) -> NodeServer:
    return make_node(gpus=["h200-141g"])


@pytest.fixture
def tenants(node: NodeServer, join: Callable[..., Any]) -> list[Any]:
    """Two processes that have been there for a minute, as far as the node file says."""
    guests = [join(node), join(node)]
    for guest in guests:
        node.file.processes[guest.slot]["start_ns"] = now() - 60_000 * MS
    return guests


def test_idle(node: NodeServer, tenants: list[Any], probe: Probe) -> None:
    seen = probe(node, "utilisation")
    assert seen["size"] == seen["one"] == seen["buffer"] == seen["null"] == [SMALL, KEPT, []]
    assert seen["many"] == seen["now"] == [NOT_FOUND, 100, []]
    assert seen["no count"] == INVALID
    assert seen["rates"] == [0, 0, 0]


def test_one_process_all_the_time(node: NodeServer, tenants: list[Any], probe: Probe) -> None:
    start = now() - 20_000 * MS
    for step in range(400):
        busy(node, tenants[0].slot, start + step * 100 * MS, start + (step + 1) * 100 * MS)
    seen = probe(node, "utilisation")
    result, count, rows = seen["many"]
    assert (result, count) == (0, 1)
    ((pid, percent, stamp),) = rows
    assert (pid, percent) == (tenants[0].pid, 100)
    assert 0 < seen["wall_us"] - stamp < 10_000_000
    assert seen["rates"] == [0, 100, 0]
    assert seen["now"] == [NOT_FOUND, 100, []]
    assert seen["size"] == [SMALL, KEPT, []], "the size asked for does not depend on the load"


def test_a_known_duty_reads_right(node: NodeServer, tenants: list[Any], probe: Probe) -> None:
    """30 of every 100 ms for 20 s: each 200 ms sample holds 60."""
    start = now() - 20_000 * MS
    for step in range(260):
        busy(node, tenants[1].slot, start + step * 100 * MS, start + (step * 100 + 30) * MS)
    for back in ("0", "1500000"):
        ((pid, percent, _),) = probe(node, "utilisation", back)["many"][2]
        assert (pid, percent) == (tenants[1].pid, 30)


def test_old_load_is_forgotten(node: NodeServer, tenants: list[Any], probe: Probe) -> None:
    busy(node, tenants[0].slot, now() - 40_000 * MS, now() - 20_000 * MS)
    assert probe(node, "utilisation")["many"][0] == NOT_FOUND


@pytest.mark.parametrize("field", ["entry_start", "starts"])
def test_who_has_worked_stays_named(node: NodeServer, tenants: list[Any], probe: Probe, field: str) -> None:
    """With 0 %, as on an H200 after 20 us of work; not before its first sample, and not whoever had the slot before."""
    share = node.file.shares[0][tenants[0].slot]

    def came_on(moment: int) -> None:
        if field == "entry_start":
            share["entry_start"] = moment
        else:
            share["start"][3]["at"], share["starts"] = moment, 4

    came_on(now() - 61_000 * MS)
    assert probe(node, "utilisation")["many"] == [NOT_FOUND, 100, []], "that was an earlier process"
    came_on(now() + 60_000 * MS)
    assert probe(node, "utilisation")["many"] == [NOT_FOUND, 100, []], "no sample of it is there yet"
    came_on(now() - 40_000 * MS)
    for back in ("0", "1500000"):
        result, count, ((pid, percent, _),) = probe(node, "utilisation", back)["many"]
        assert (result, count, pid, percent) == (0, 1, tenants[0].pid, 0)
    node.file.processes[tenants[0].slot]["state"] = 0
    assert probe(node, "utilisation")["many"][0] == NOT_FOUND, "it has ended"
    node.file.processes[tenants[0].slot]["state"] = 1


def test_shared_samples_go_to_one_process(node: NodeServer, tenants: list[Any], probe: Probe) -> None:
    """Two that share every sample equally: over many samples each gets about half, over one sample only one is seen."""
    start = now() - 20_000 * MS
    for step in range(4000):
        busy(node, tenants[step % 2].slot, start + step * 10 * MS, start + (step + 1) * 10 * MS)
    rows = {pid: percent for pid, percent, _ in probe(node, "utilisation")["many"][2]}
    assert set(rows) == {guest.pid for guest in tenants}
    assert 99 <= sum(rows.values()) <= 101
    assert all(20 <= percent <= 80 for percent in rows.values())
    while True:  # as long as the look-back happens to hold no whole sample
        result, _, last = probe(node, "utilisation", "150000")["many"]
        if result == 0:
            break
    assert [percent for _, percent, _ in last] == [100]


def test_readers_agree(node: NodeServer, tenants: list[Any], probe: Probe) -> None:
    """Who a sample is credited to does not depend on the reader."""
    start = now() - 20_000 * MS
    for step in range(4000):
        busy(node, tenants[step % 2].slot, start + step * 10 * MS, start + (step + 1) * 10 * MS)
    first, second = ({pid: percent for pid, percent, _ in probe(node, "utilisation")["many"][2]} for _ in range(2))
    assert all(abs(first[pid] - second[pid]) <= 5 for pid in first), "a few samples newer, the rest the same"


def test_a_reused_slot_is_not_blamed(node: NodeServer, tenants: list[Any], probe: Probe) -> None:
    busy(node, tenants[0].slot, now() - 5_000 * MS, now() + 5_000 * MS)
    node.file.processes[tenants[0].slot]["start_ns"] = now()
    seen = probe(node, "utilisation")
    assert seen["many"][0] == NOT_FOUND
    assert seen["rates"][1] == 100, "the card was busy all the same"


def test_a_full_ring_keeps_the_newest(node: NodeServer, tenants: list[Any], probe: Probe) -> None:
    room = len(node.file.intervals[0])
    node.file.devices[0]["interval_head"] = room * 3 + 5
    start = now() - 20_000 * MS
    for step in range(400):
        busy(node, tenants[0].slot, start + step * 100 * MS, start + (step + 1) * 100 * MS)
    assert probe(node, "utilisation")["many"][2][0][1] == 100


def test_half_written_entries_are_left_out(node: NodeServer, tenants: list[Any], probe: Probe) -> None:
    busy(node, tenants[0].slot, now() - 5_000 * MS, now() + 5_000 * MS)
    node.file.intervals[0][0]["sequence"] = 0
    assert probe(node, "utilisation")["many"][0] == NOT_FOUND


@pytest.mark.parametrize(("on", "off"), [(2, 0), (1, 1), (1, 3), (0, 2)])
def test_metrics_between_two_samples(node: NodeServer, tenants: list[Any], probe: Probe, on: int, off: int) -> None:
    start = now()
    for step in range(10_000 // (on + off) if on else 0):
        begun = start + step * (on + off) * MS
        busy(node, tenants[0].slot, begun, begun + on * MS)
    result, percent = probe(node, "metrics")
    assert result == 0
    assert percent == pytest.approx(100 * on / (on + off), abs=8)  # a period more or less in 40 ms


def test_older_cards_have_no_metrics(make_node: Callable[..., NodeServer], probe: Probe) -> None:
    assert probe(make_node(gpus=["a100-80g"]), "metrics")[0] == INVALID, "nothing was read into the samples"
