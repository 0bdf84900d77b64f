"""Baselines: what fails as expected passes; anything more, and anything less, fails the run."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from lab.report.baseline import BaselineError, compare, load

Run = Callable[..., CompletedProcess[str]]
LEAKY = """name: a limit that nobody keeps
report: [B07]
containers:
  tenant:
    limits: {memory: 1GiB}
    processes:
      - name: worker
        steps:
          - init
          - alloc: {bytes: 2GiB, as: over}
expect:
  - outcome: {step: over, oom: 1}
  - never_above: {memory: 4GiB}
"""


@pytest.fixture
def leaky(tmp_path: Path) -> Path:
    file = tmp_path / "leaky.yaml"
    file.write_text(LEAKY)
    return file


@pytest.fixture
def written(hooklab: Run, leaky: Path, tmp_path: Path) -> Path:
    done = hooklab("run", leaky, "--interposer", "none", "--write-baseline", "known.yaml")
    assert done.returncode == 0, done.stderr
    return tmp_path / "known.yaml"


def test_a_baseline_written_from_a_run_makes_it_pass(hooklab: Run, leaky: Path, written: Path, tmp_path: Path) -> None:
    assert hooklab("run", leaky, "--interposer", "none").returncode == 1
    done = hooklab("run", leaky, "--interposer", "none", "--baseline", written, "--junit", "out.xml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 runs fail as the baseline says; 0 new, 0 stale" in done.stdout
    (suite,) = ET.parse(tmp_path / "out.xml").getroot()
    assert suite.get("failures") == "0"
    skipped = [case.find("skipped").get("message") for case in suite if case.find("skipped") is not None]
    assert any("expected (B07)" in text for text in skipped)


def test_a_failure_that_did_not_happen_is_stale(hooklab: Run, leaky: Path, written: Path) -> None:
    done = hooklab("run", leaky, "--baseline", written)  # our own shim keeps the limit
    assert done.returncode == 1
    assert "only in the baseline: a limit that nobody keeps: outcome step over invalid is expected (B07)" in done.stdout


def test_a_failure_that_is_not_in_it_is_new(hooklab: Run, leaky: Path, written: Path) -> None:
    leaky.write_text(LEAKY.replace("memory: 4GiB}", "memory: 1GiB}"))
    done = hooklab("run", leaky, "--interposer", "none", "--baseline", written, "--json")
    assert done.returncode == 1
    compared = json.loads(done.stdout)["baseline"]
    assert len(compared["new"]) == 1
    assert ": invalid: never_above" in compared["new"][0]
    assert compared["expected"] == [{"scenario": "a limit that nobody keeps", "report": "B07"}]


def test_a_loose_entry_may_also_hold(hooklab: Run, leaky: Path, written: Path) -> None:
    written.write_text(written.read_text().replace("  report: B07\n", "  report: B07\n  strict: false\n"))
    assert load(written)["a limit that nobody keeps"].strict is False
    assert hooklab("run", leaky, "--baseline", written).returncode == 0


def test_runs_that_were_not_made_are_not_stale(written: Path) -> None:
    assert compare([], load(written)).exit_code() == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("schema: other/1", "its schema must be hooklab.baseline/1"),
        ("[", "not YAML"),
        ("schema: hooklab.baseline/1\nexpected: [{scenario: a, checks: [{check: x}]}]", "needs scenario, report"),
        ("schema: hooklab.baseline/1\nexpected: [{scenario: a, report: '', checks: [{check: x}]}]", "names no report"),
        ("schema: hooklab.baseline/1\nexpected: [{scenario: a, report: B1, checks: []}]", "expects no check to fail"),
        (
            "schema: hooklab.baseline/1\nexpected: [{scenario: a, report: B1, checks: [{check: x, status: valid}]}]",
            "what is expected is invalid or unknown",
        ),
        (
            "schema: hooklab.baseline/1\nexpected: [&a {scenario: a, report: B1, checks: [{check: x}]}, *a]",
            "is there twice",
        ),
    ],
)
def test_a_bad_baseline_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "known.yaml"
    file.write_text(text)
    with pytest.raises(BaselineError) as error:
        load(file)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    assert str(file) in str(error.value)


def test_a_missing_baseline_is_said_before_anything_runs(hooklab: Run, leaky: Path, tmp_path: Path) -> None:
    done = hooklab("run", leaky, "--baseline", "nowhere.yaml")
    assert done.returncode == 2
    assert "nowhere.yaml" in done.stderr
    assert not (tmp_path / "runs").exists()
