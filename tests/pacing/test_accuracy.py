"""A sample of the accuracy table on the fake, with a planted failure: the public law on a large GPU."""

from __future__ import annotations

import pytest

from lab.report.pacing import leaderboard
from lab.runner.pacing import Graded, PacingError, run_pacing


@pytest.mark.parametrize("target", [30, 50])
def test_hybrid_holds_its_target(target: int) -> None:
    (row,) = run_pacing(policies=["hybrid"], targets=[target], window_s=3)
    (tenant,) = row["tenants"]
    assert row["evidence"] == "fake-driver"
    assert row["sm_count"] == 132
    # A machine that is busy otherwise wakes the launches late, and credit is capped: less is possible, more is not.
    assert target - 6 <= tenant["achieved"] <= target + 1


def test_neighbours_hold_their_targets() -> None:
    (row,) = run_pacing(policies=["hybrid"], targets=[], neighbours=["30/50"], window_s=3)
    for tenant in row["tenants"]:
        assert tenant["target"] - 8 <= tenant["achieved"] <= tenant["target"] + 3
    assert sum(tenant["achieved"] for tenant in row["tenants"]) <= 91  # two that always have work get no more


@pytest.mark.parametrize(("sms", "least", "most"), [(16, 0, 36), (188, 60, 100)])
def test_the_public_law_overshoots_the_more_the_more_sms(sms: int, least: int, most: int) -> None:
    (row,) = run_pacing(policies=["delta-hami"], targets=[30], sms=[sms], window_s=3)
    assert row["sm_count"] == sms
    assert least <= row["tenants"][0]["achieved"] <= most  # at 188 the harness fails, as it can
    (line,) = leaderboard([row])  # rows of real processes and of the simulator have one form
    assert (line.policy, line.evidence, line.worst_sms) == ("delta-hami", "fake-driver", sms)


@pytest.mark.parametrize(
    ("windows", "settled"),
    [((30.0,) * 5, 3), ((80.0, 30.0, 31.0, 34.9, 26.0, 30.0), 4), ((30.0,) * 4, None), ((36.0,) * 9, None)],
)
def test_settled_is_five_seconds_in_a_row(windows: tuple[float, ...], settled: int | None) -> None:
    graded = Graded(target=30, achieved=30.0, windows=windows, launches=1, launch={}, cpu_percent=0.0)
    assert graded.as_json()["settled_s"] == settled


@pytest.mark.full
@pytest.mark.parametrize("pattern", ["async", "sync", "mixed", "cooperative", "graph", "ex"])
@pytest.mark.parametrize("target", [10, 20, 30, 50, 80])
def test_alone(pattern: str, target: int) -> None:
    (row,) = run_pacing(policies=["hybrid"], targets=[target], patterns=[pattern], window_s=10)
    assert row["tenants"][0]["mae"] <= 2


@pytest.mark.full
@pytest.mark.parametrize("pattern", ["async", "sync", "mixed"])
def test_beside_a_neighbour(pattern: str) -> None:
    """Targets that a card with time slices can keep."""
    (row,) = run_pacing(policies=["hybrid"], targets=[], patterns=[pattern], neighbours=["30/50"], window_s=10)
    assert max(tenant["mae"] for tenant in row["tenants"]) <= 3


@pytest.mark.full
@pytest.mark.parametrize("pattern", ["async", "sync", "mixed"])
def test_two_that_ask_for_more_than_there_is(pattern: str) -> None:
    """30/70 of the 91 % that two tenants get: the smaller one is kept."""
    (row,) = run_pacing(policies=["hybrid"], targets=[], patterns=[pattern], neighbours=["30/70"], window_s=10)
    small, large = row["tenants"]
    assert small["mae"] <= 3
    assert 45 <= large["achieved"] <= 70


def test_nonsense_is_refused() -> None:
    with pytest.raises(PacingError, match="known are async"):
        run_pacing(policies=["hybrid"], patterns=["waltz"])
    with pytest.raises(PacingError, match="write targets in percent"):
        run_pacing(policies=["hybrid"], neighbours=["many"])
