"""Reports of hand-made run directories: what they say, what they count, and that they cannot flatter."""

from __future__ import annotations

import io
import json
import xml.etree.ElementTree as ET
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from lab.checks.quantities import Quantities
from lab.report import as_json, compare, junit, terminal
from lab.report.model import ReportError, exit_code, load_run, percentile
from lab.report.replay import differences

SCHEMA_PAGE = Path(__file__).parents[2] / "docs" / "report-schema.md"


def shown(report, *, full: bool = True) -> str:
    stream = io.StringIO()
    terminal.show(Console(file=stream, width=200), report, full=full)
    return stream.getvalue()


def test_a_valid_run(make_run) -> None:
    directory = make_run()
    report = load_run(directory)
    assert report.status == "valid"
    (init, alloc) = report.calls
    assert (alloc.step, alloc.function, alloc.route) == ("x", "cuMemAlloc_v2", "dlsym")
    assert (alloc.count, alloc.ok, alloc.failures) == (2, 1, {"oom": 1})
    assert alloc.ns == {"p50": 2000, "p95": 9000, "p99": 9000, "max": 9000}
    assert init.ns == {}
    text = shown(report)
    for part in ("valid", "hand-made", "1 oom", "at most 1GiB of 4GiB", "fake-driver", f"run directory: {directory}"):
        assert part in text
    assert shown(report, full=False).count("\n") == 1


def test_a_real_run_names_the_card_it_ran_on(make_run) -> None:
    """Not the one that the scenario asks of a fake."""
    card = {"gpus": "NVIDIA H200", "driver": "580.159.04"}
    real = terminal.environment_line(load_run(make_run("real", evidence="real-gpu", environment=card)))
    assert "gpu NVIDIA H200, driver 580.159.04," in real
    fake = terminal.environment_line(load_run(make_run("fake", environment=card)))
    assert "gpu a100-80g, driver 580," in fake


def test_a_failure_names_step_expected_and_seen(make_run, good) -> None:
    good[3]["result"] = 0
    report = load_run(make_run(rows=good))
    assert report.status == "invalid"
    text = shown(report, full=False)
    assert "scenario.yaml:8:5" in text
    assert "step x: expected ok: 1, oom: 1; seen ok: 2" in text


def test_a_failed_tail_does_not_improve_the_percentiles(make_run, good) -> None:
    """The planted false green: the slow call fails, or never ends. Its time stays, or it is counted as unfinished."""
    failed = load_run(make_run("failed", good)).calls[1]
    assert (failed.ns["p99"], failed.count - failed.ok) == (9000, 1)
    begun = {**good[3], "event": "STEP_BEGIN"}
    lost = load_run(make_run("lost", [*good[:3], {**good[2], "event": "STEP_BEGIN"}, begun, *good[4:]])).calls[1]
    assert (lost.ns["p99"], lost.unfinished) == (2000, 1)


@given(st.lists(st.integers(0, 1000), min_size=1), st.floats(0.1, 100))
def test_percentiles_are_nearest_rank(values: list[int], percent: float) -> None:
    ordered = sorted(values)
    found = percentile(ordered, percent)
    assert found in values
    assert sum(value <= found for value in values) >= percent / 100 * len(values) - 1e-9
    below = [value for value in values if value < found]
    assert len(below) < percent / 100 * len(values) + 1e-9


def test_exit_codes() -> None:
    assert exit_code(["valid", "valid"]) == 0
    assert exit_code(["valid", "unknown"]) == 3
    assert exit_code(["valid", "unknown"], allow_unknown=True) == 0
    assert exit_code(["invalid", "unknown"], allow_unknown=True) == 1
    assert exit_code([]) == 3


def test_the_json_document_has_exactly_the_documented_keys(make_run) -> None:
    document = as_json.document([load_run(make_run())], errors=["one line"])
    assert json.loads(json.dumps(document)) == document
    (run,) = document["runs"]
    page = SCHEMA_PAGE.read_text(encoding="utf-8")
    sections = {text.split("\n", 1)[0]: text for text in page.split("\n## ")}

    def documented(section: str) -> set[str]:
        cells = [line.split("|")[1] for line in sections[section].splitlines() if line.startswith("| `")]
        return {word.strip("` ") for cell in cells for word in cell.split(",")}

    assert documented("# The JSON report") == set(document)
    assert documented("A run") == set(run)
    assert documented("A verdict") == set(run["verdicts"][0])
    assert documented("Calls") == set(run["calls"][0])
    assert documented("Memory") == set(run["memory"][0])
    assert documented("Quantities") == {one.name for one in fields(Quantities)}
    assert document["schema"] == "hooklab.report/1"
    assert document["errors"] == ["one line"]


def test_documented_checks_are_those_that_exist() -> None:
    from lab.checks.judge import CHECKS

    line = next(line for line in SCHEMA_PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `check`"))
    assert {word.strip("`") for word in line.split("|")[3].replace("; unsaid:", ",").replace(" ", "").split(",")} == {
        *CHECKS,
        "steps",
        "exits",
        "faults",
        "engine",
        "run",
    }


def test_junit_counts_and_carries_the_failure(make_run, good) -> None:
    good[3]["result"] = 0
    del good[4]
    report = load_run(make_run(rows=good))
    root = ET.fromstring(junit.text([report], errors=["bad \x00 thing"]))
    suite, errors = root.findall("testsuite")
    assert (suite.get("failures"), suite.get("skipped")) == ("1", "1")
    failure = suite.find("testcase/failure")
    assert failure is not None
    assert "seen ok: 2" in failure.get("message", "")
    assert suite.find("testcase/skipped") is not None
    assert errors.get("errors") == "1"


def test_a_comparison_marks_what_differs(make_run, good) -> None:
    first = load_run(make_run("a"))
    good[3]["result"] = 0
    second = load_run(make_run("b", good))
    rows = compare.differences(first, second)
    assert [row.check for row in rows if not row.same] == ["outcome"]
    stream = io.StringIO()
    compare.show(Console(file=stream, width=200), first, second)
    assert "outcome *" in stream.getvalue()
    assert "B/A p50" in stream.getvalue()


def test_times_of_different_evidence_are_never_in_one_row(make_run) -> None:
    first, second = load_run(make_run("a")), load_run(make_run("b", evidence="real-gpu"))
    stream = io.StringIO()
    compare.show(Console(file=stream, width=200), first, second)
    assert "times are not compared: A is fake-driver, B is real-gpu" in stream.getvalue()
    assert "B/A p50" not in stream.getvalue()


def test_a_repetition_that_does_otherwise_is_seen(make_run, good) -> None:
    before = make_run("before")
    assert differences(before, make_run("same")) == ()
    good[3]["result"] = 0
    (line,) = differences(before, make_run("other", good))
    assert line.startswith("outcome")


def test_what_is_no_run_is_one_line(make_run, tmp_path: Path) -> None:
    directory = make_run()
    cases = [
        (tmp_path, lambda: None, "not a run directory"),
        (directory, lambda: (directory / "history").write_bytes(b"x"), "not a history"),
        (directory, lambda: (directory / "scenario.yaml").write_text("name: 1\ncontainers: {}"), "scenario.yaml:1:7"),
        (directory, lambda: (directory / "run.json").write_text("{"), "not valid JSON"),
    ]
    for place, damage, message in cases:
        damage()
        with pytest.raises(ReportError, match=message) as caught:
            load_run(place)
        assert "\n" not in str(caught.value)
