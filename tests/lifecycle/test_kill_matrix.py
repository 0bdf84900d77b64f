"""A process killed at a sequence point: whoever is left goes on at once, and nothing of the dead stays charged.

Processes enter the region one after another, so that `first`, `middle` and `last` mean what they say; the first also
makes the region. After all that live have entered, each of them allocates again and frees: that is the progress. A hang
would be the run's time limit, which is an invalid run.
"""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest

from lab.report.model import RunReport, load_run
from lab.runner.execute import run_scenario
from lab.scenario.load import load

POINTS = (
    "before_lock",
    "locked",
    "owned",
    "mid_repair",
    "mid_write",
    "published",
    "gate",
    "admitted",
    "called",
    "detached",
    "freed",
    "exit",
)
PLACES = {"first": 0, "middle": 2, "last": 4}
LOCKS = ("robust", "file")
PROCESSES = 5
ALL = list(itertools.product(POINTS, PLACES, LOCKS))


def scenario_text(point: str, place: str, lock: str, *, call: int = 1, planted: bool = False) -> str:
    victim = PLACES[place]
    lines = ["name: kill matrix", "node: {context: 16MiB}", "timeout: 60s", "containers:", "  tenant:"]
    lines += ["    limits: {memory: 1GiB}", f"    environment: {{HOOKLAB_REGION_LOCK: {lock}}}", "    processes:"]
    for index in range(PROCESSES):
        lines += [f"      - name: p{index}"]
        if index == victim and not planted:
            lines += ["        expect_exit: SIGKILL"]
        lines += ["        steps:"]
        if index:
            lines += [f"          - barrier: t{index - 1}"]
        if index == victim and point == "mid_repair":  # somebody who died just before, for the victim to bury
            lines += ["          - barrier: corpse"]
        lines += ["          - init", f"          - alloc: {{bytes: 100MiB, as: x{index}}}"]
        lines += [
            f"          - free: {{what: x{index}, as: f{index}}}",
            f"          - alloc: {{bytes: 64MiB, as: y{index}}}",
        ]
        if index < PROCESSES - 1:
            lines += [f"          - barrier: t{index}"]
        lines += ["          - barrier: all", f"          - alloc: {{bytes: 90MiB, as: z{index}, count: 2}}"]
        lines += [f"          - free: z{index}", f"          - free: y{index}"]
    if point == "mid_repair":
        lines += ["      - name: corpse", "        expect_exit: SIGKILL", "        steps:"]
        if victim:
            lines += [f"          - barrier: t{victim - 1}"]
        lines += ["          - init", "          - alloc: {bytes: 300MiB, as: lost}"]
        # never reached: the barrier opens for the victim once its other participant is dead
        lines += ["          - signal: SIGKILL", "          - barrier: corpse"]
    if not planted:
        lines += ["faults:", f"  - {{at: point.{point}, call: {call}, process: p{victim}, kill: SIGKILL}}"]
    lines += ["expect:"]
    lines += ["  - never_above: {memory: 1GiB}", "  - ledger_empty: {at: end}"]
    for index in range(PROCESSES):
        if index != victim:
            lines += [f"  - outcome: {{step: z{index}, ok: 2}}"]
    return "\n".join(lines) + "\n"


def play(tmp_path: Path, text: str, number: int = 0) -> tuple[RunReport, float]:
    file = tmp_path / f"scenario-{number}.yaml"
    file.write_text(text, encoding="utf-8")
    (scenario,) = load(file)
    before = time.monotonic()
    directory = run_scenario(scenario, out=tmp_path / "runs")
    return load_run(directory), time.monotonic() - before


def judge(report: RunReport) -> None:
    bad = [
        f"{one.check} {one.subject}: {one.expected}, seen {one.seen}"
        for one in report.verdicts
        if one.status != "valid"
    ]
    assert report.status == "valid", "\n".join(bad)


pytestmark = pytest.mark.usefixtures("natives_under_test")


@pytest.fixture
def natives_under_test(native: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOKLAB_NATIVE", str(native))


SAMPLE = [(point, tuple(PLACES)[number % 3], LOCKS[number % 2]) for number, point in enumerate(POINTS)]


@pytest.mark.report("B98")
@pytest.mark.parametrize(("point", "place", "lock"), SAMPLE)
def test_survivors_go_on(tmp_path: Path, point: str, place: str, lock: str) -> None:
    report, _ = play(tmp_path, scenario_text(point, place, lock))
    judge(report)


@pytest.mark.full
@pytest.mark.parametrize(("point", "place", "lock"), ALL)
def test_the_whole_matrix(
    tmp_path: Path, point: str, place: str, lock: str, record_property: pytest.RecordProperty
) -> None:
    times = []
    for number in range(20):
        report, seconds = play(tmp_path, scenario_text(point, place, lock), number)
        judge(report)
        times.append(seconds)
    record_property("slowest_s", max(times))


@pytest.mark.parametrize("call", [2, 3])
def test_the_second_and_third_time_at_a_point(tmp_path: Path, call: int) -> None:
    report, _ = play(tmp_path, scenario_text("published", "middle", "robust", call=call))
    judge(report)


def test_a_point_that_is_never_reached_is_noticed(tmp_path: Path) -> None:
    text = scenario_text("owned", "last", "file", call=10_000).replace("        expect_exit: SIGKILL\n", "")
    report, _ = play(tmp_path, text)
    assert report.status == "invalid"
    assert [one.check for one in report.verdicts if one.status == "invalid"] == ["faults"]


def test_points_are_silent_without_a_plan(tmp_path: Path) -> None:
    report, _ = play(tmp_path, scenario_text("owned", "middle", "robust", planted=True))
    judge(report)
