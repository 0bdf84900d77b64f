"""Figures of bursts from raw records: known answers, properties, and the planted false green."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.report import burst, burst_show


def run(times: list[int | None], *, condition: str = "baseline", repeat: int = 0, **more: Any) -> dict[str, Any]:
    """A burst whose workers took these ns; None: it failed."""
    raw = [
        {
            "worker": index,
            "ok": ns is not None,
            "reason": "" if ns is not None else "killed by SIGKILL",
            "cuinit_ns": ns,
            "phases": {"worker_enter": 10, "real_enter": 12, "real_exit": 8 + (ns or 0), "worker_exit": 10 + (ns or 0)},
            "parts": [],
            "alloc": 0,
        }
        for index, ns in enumerate(times)
    ]
    row = {"condition": condition, "interposer": "builtin", "workers": len(times), "repeat": repeat, "order": repeat}
    return {**row, "release_ns": 0, "wall_ns": max([ns or 0 for ns in times]) + 10, "counts": {}, "raw": raw, **more}


def document(*runs: dict[str, Any], evidence: str = "fake-driver") -> dict[str, Any]:
    return {"schema": burst.SCHEMA, "evidence": evidence, "environment": {}, "seed": 0, "controls": [], "runs": [*runs]}


def test_the_four_workers_of_the_article() -> None:
    """80, 130, 180 and 230 ms: mean 155, sum 620, and nearest ranks without interpolation."""
    summary = burst.summarise(run([80_000_000, 130_000_000, 180_000_000, 230_000_000]))
    assert summary.mean_ns == 155_000_000
    assert summary.summed_ns == 620_000_000
    assert summary.percentiles == {50: 130_000_000, 95: 230_000_000, 99: 230_000_000, 100: 230_000_000}


@pytest.mark.parametrize(("count", "rank"), [(300, 297), (128, 127), (1, 1), (240, 238)])
def test_p99_is_the_nearest_rank(count: int, rank: int) -> None:
    assert burst.nearest_rank(list(range(1, count + 1)), 99) == rank


def test_failing_the_slow_tail_never_improves_a_report() -> None:
    """The planted false green: the same burst with its slowest workers failed must not look better anywhere."""
    times = list(range(1_000, 101_000, 1_000))
    honest = document(run(list(times)))
    planted = document(run([ns if ns <= 90_000 else None for ns in times]))
    good, bad = burst.rows(honest)[0], burst.rows(planted)[0]
    for rank in burst.RANKS:
        before, after = good.percentiles[rank], bad.percentiles[rank]
        assert after is None or (before is not None and after >= before)
    assert bad.percentiles[99] is None
    assert bad.mean_ns is None
    assert bad.failed == {"killed by SIGKILL": 10}
    change = burst.compare(honest, planted)[0]
    assert change.ratio is None
    assert change.words.startswith("worse")


@given(st.lists(st.integers(1, 10**12), min_size=1, max_size=400), st.data())
def test_a_failure_never_lowers_a_percentile(times: list[int], data: st.DataObject) -> None:
    lost = data.draw(st.sets(st.integers(0, len(times) - 1)))
    before = burst.summarise(run([*times]))
    after = burst.summarise(run([None if index in lost else ns for index, ns in enumerate(times)]))
    for rank in burst.RANKS:
        one, other = before.percentiles[rank], after.percentiles[rank]
        assert one is not None
        assert other is None or other >= one


def test_the_fit_of_the_articles_table() -> None:
    """The baseline column: intercept -33.864 s, slope 858.087 ms a worker, R squared 0.99353."""
    seconds = {128: 78.37, 240: 165.20, 300: 228.04}
    table = burst.rows(document(*(run([round(p99 * 1e9)] * count) for count, p99 in seconds.items())))
    (line,) = burst.lines(table)
    assert line.intercept_ns / 1e9 == pytest.approx(-33.864, abs=0.001)
    assert line.slope_ns / 1e6 == pytest.approx(858.087, abs=0.001)
    assert line.r_squared == pytest.approx(0.99353, abs=0.00001)
    assert [(a, b) for a, b, _ in line.slopes] == [(128, 240), (240, 300)]
    assert line.slopes[1][2] > line.slopes[0][2]  # super-linear: one line would hide it


def test_variation_over_repetitions() -> None:
    runs = [run([1_000] * 4, repeat=0), run([1_100] * 4, repeat=1), run([1_200] * 4, repeat=2)]
    (row,) = burst.rows(document(*runs))
    assert row.repeats == 3
    assert row.variation == pytest.approx(100 / 1100)


def test_the_segments_of_a_worker_add_up() -> None:
    found = burst.composition(run([1_000, 2_000, 3_000, 4_000]))
    assert {rank: sum(parts.values()) for rank, parts in found.items()} == {50: 2000, 95: 4000, 99: 4000, 100: 4000}
    assert found[100] == {"before the driver": 2, "driver's cuInit": 3996, "after the driver": 2}
    assert burst_show.as_svg(run([1_000, 2_000])).count("<rect") > 4


def test_evidence_classes_are_not_compared() -> None:
    change = burst.compare(document(run([1])), document(run([2]), evidence="real-gpu"))[0]
    assert change.ratio is None
    assert "evidence" in change.words


CONTROL = {
    "name": "nested_retain",
    "theory": "t",
    "figure": "nested_minus_first",
    "predicted": "-",
    "conditions": ["r"],
}


@pytest.mark.parametrize(("nested", "outcome"), [(1, "holds"), (1000, "loses"), (5000, "loses")])
def test_a_theory_can_lose(nested: int, outcome: str) -> None:
    one = run([5], condition="r")
    one["raw"][0]["parts"] = [["retain", 1000], ["retain_nested", nested]]
    made = document(one)
    made["controls"] = [CONTROL]
    (result,) = burst.controls(made)
    assert result.outcome == outcome


def test_a_control_without_a_measurement_is_unknown() -> None:
    made = document(run([5], condition="r"))
    made["controls"] = [CONTROL]
    assert [result.outcome for result in burst.controls(made)] == ["unknown"]


def test_a_killed_owner_that_stops_everybody_is_slower_without_end() -> None:
    made = document(run([5, 6], condition="a"), run([None, None], condition="b"))
    made["controls"] = [{**CONTROL, "figure": "slowest", "predicted": "+", "conditions": ["a", "b"]}]
    made["runs"][1]["raw"][1]["reason"] = "not finished after 120 s"  # the first one was killed, as planned
    (result,) = burst.controls(made)
    assert result.outcome == "holds"
    assert result.figure_ns is None


def test_the_killed_owner_itself_is_no_laggard() -> None:
    made = document(run([5, 6], condition="a"), run([None, 6], condition="b"))
    made["controls"] = [{**CONTROL, "figure": "slowest", "predicted": "+", "conditions": ["a", "b"]}]
    assert [result.outcome for result in burst.controls(made)] == ["loses"]


def test_nothing_is_changed_by_reading() -> None:
    made = document(run([3, 1, 2]))
    before = copy.deepcopy(made)
    burst.rows(made), burst.composition(made["runs"][0]), burst.controls(made)
    assert made == before
    assert math.isinf(burst.NEVER)


def test_a_control_without_an_interposer_has_its_outcome_too() -> None:
    first, last = run([5], condition="a", interposer="none"), run([5], condition="b", interposer="none")
    first["raw"][0]["parts"], last["raw"][0]["parts"] = [["retain", 1000]], [["retain", 10]]
    made = document(first, last)
    made["controls"] = [{**CONTROL, "figure": "retain_with_holder", "conditions": ["a", "b"]}]
    assert [result.outcome for result in burst.controls(made)] == ["holds"]


def test_runs_without_an_interposer_are_lent_to_a_comparison() -> None:
    made = document(run([100]), run([10], condition="bare", interposer="none"))
    made["controls"] = [{**CONTROL, "figure": "p99", "conditions": ["baseline", "bare"]}]
    assert [(result.interposer, result.outcome) for result in burst.controls(made)] == [("builtin", "holds")]
