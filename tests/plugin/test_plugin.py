"""Scenario files as pytest items, in a pytest of their own: what passes, what fails and what it says, -k, -n, JUnit."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

import pytest

LIMIT = """name: a limit
tags: [quick]
report: [B07]
containers:
  tenant:
    limits: {memory: 1GiB}
    processes:
      - name: worker
        steps:
          - init
          - alloc: {bytes: 2GiB, as: over, route: [link, dlsym]}
expect:
  - outcome: {step: over, oom: 1}
"""


@dataclass(frozen=True)
class Pytest:
    """A pytest without any configuration, over a folder with one scenario file and one other YAML file."""

    folder: Path

    def __call__(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", "-m", "pytest", "-p", "no:cacheprovider", *map(str, arguments)]
        return subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def inner(tmp_path: Path) -> Pytest:
    folder = tmp_path / "suite"
    folder.mkdir()
    (folder / "limit.yaml").write_text(LIMIT)
    (folder / "other.yaml").write_text("containers-of-something-else: []\n")
    (folder / "pytest.ini").write_text("[pytest]\n")
    return Pytest(folder)


def test_each_run_is_an_item_with_a_readable_id(inner: Pytest) -> None:
    done = inner(".", "--hooklab-interposer", "builtin", "-v")
    assert done.returncode == 0, done.stdout
    assert "limit.yaml::a limit[route=link] PASSED" in done.stdout
    assert "limit.yaml::a limit[route=dlsym] PASSED" in done.stdout
    assert "other" not in done.stdout
    assert "2 passed" in done.stdout


def test_an_interposer_that_lets_through_fails_with_the_verdicts(inner: Pytest) -> None:
    done = inner(".", "--hooklab-interposer", "none", "--junitxml", "out.xml")
    assert done.returncode == 1
    assert "limit.yaml:13:5: step over: expected oom: 1; seen ok: 1" in done.stdout
    assert "run directory: " in done.stdout
    assert "Traceback" not in done.stdout
    (suite,) = ET.parse(inner.folder / "out.xml").getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("2", "2")
    named = {one.get("name"): one.get("value") for one in suite[0].iter("property")}
    assert named["evidence"] == "fake-driver"
    assert named["reports"] == "B07"
    assert Path(named["run directory"] or "").is_dir()


@pytest.mark.parametrize(("word", "count"), [("dlsym", 1), ("B07", 2), ("quick", 2), ("nothing", 0)])
def test_items_are_chosen_by_name_tag_and_report(inner: Pytest, word: str, count: int) -> None:
    done = inner(".", "--hooklab-interposer", "builtin", "-k", word, "--collect-only", "-q")
    assert sum("::" in line for line in done.stdout.splitlines()) == count


def test_items_run_in_several_workers(inner: Pytest) -> None:
    done = inner(".", "--hooklab-interposer", "builtin", "-n", "2")
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


def test_a_baseline_makes_them_expected_failures(inner: Pytest, tmp_path: Path) -> None:
    from lab.report.baseline import SCHEMA

    known = tmp_path / "known.yaml"
    check = "checks: [{check: outcome, subject: step over, status: invalid}]"
    known.write_text(f"schema: {SCHEMA}\nexpected:\n  - {{scenario: 'a limit[route=link]', report: X1, {check}}}\n")
    done = inner(".", "--hooklab-interposer", "none", "--hooklab-baseline", known, "-rx")
    assert done.returncode == 1  # the other run's failure is new
    assert "1 failed, 1 xfailed" in done.stdout
    assert "X1" in done.stdout
    done = inner(".", "--hooklab-baseline", known)  # our own shim keeps the limit
    assert done.returncode == 1
    assert "only in the baseline: a limit[route=link]: outcome step over invalid is expected (X1)" in done.stdout


def test_what_cannot_be_judged_fails_unless_allowed(inner: Pytest) -> None:
    file = inner.folder / "limit.yaml"
    file.write_text(LIMIT.replace("outcome: {step: over, oom: 1}", "ledger_empty").replace("[link, dlsym]", "link"))
    arguments = (".", "--hooklab-interposer", "none", "-rs")
    assert inner(*arguments).returncode == 1
    assert inner(*arguments, "--hooklab-allow-unknown", "run").returncode == 1
    for allowed in ("ledger_empty", "all"):
        done = inner(*arguments, "--hooklab-allow-unknown", allowed)
        assert done.returncode == 0
        assert "1 skipped" in done.stdout
        assert "no ledger could be read" in done.stdout


def test_mistakes_of_a_file_are_told_with_their_place(inner: Pytest) -> None:
    file = inner.folder / "limit.yaml"
    file.write_text(LIMIT.replace("step: over", "step: other"))
    done = inner(".", "--hooklab-interposer", "builtin")
    assert done.returncode == 2
    assert "limit.yaml:13:21: no step 'other'" in done.stdout


def test_a_bad_option_is_one_line_before_anything_runs(inner: Pytest) -> None:
    for arguments, said in (
        (("--hooklab-interposer", "nowhere.so"), "nowhere.so"),
        (("--hooklab-baseline", "nowhere.yaml"), "nowhere.yaml"),
    ):
        done = inner(".", *arguments)
        assert done.returncode == 4, done.stdout + done.stderr
        assert said in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1


def test_files_are_left_alone_unless_asked_for(inner: Pytest) -> None:
    assert inner(".").returncode == 5  # nothing collected
    ini = inner.folder / "pytest.ini"
    ini.write_text("[pytest]\nhooklab_scenarios = *.yaml\n")
    assert inner(".").returncode == 0


def test_other_projects_pay_nothing_for_it() -> None:
    """pytest loads the plugin everywhere: no part of hooklab with it."""
    script = "import sys, lab.testing.plugin; print([m for m in sys.modules if m.startswith('lab.') or m == 'numpy'])"
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['lab.testing', 'lab.testing.plugin']"
