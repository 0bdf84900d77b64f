"""The forms of the matrix, the strict baseline, one symbol's story, and the command itself."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lab.hooks import baseline, outputs
from lab.hooks.baseline import BaselineError
from lab.hooks.explain import ExplainError, explain
from lab.hooks.model import CRASH, ESCAPE, HOOKED, OUT, PASSES, WRONG, Cell, Decision, Finding, Matrix
from lab.spec import load_hooks

HOOK, PASS = Decision(True, ""), Decision(False, "asks only")
CELLS = (
    Cell("cuMemAlloc_v2", "link", 0, 0, "program", HOOKED, ""),
    Cell("cuMemAlloc_v2", "dlsym", 0, 0, "program", ESCAPE, "the driver's own pointer"),
    Cell("cuMemAlloc_v2", "dlsym", 0, 0, "jit", ESCAPE, "the driver's own pointer"),
    Cell("cuMemAlloc_v2", "resolver2", 3020, 0, "program", WRONG, "reached <cuMemFree_v2> & more"),
    Cell("cuMemAlloc_v2", "resolver2", 3030, 2, "program", WRONG, "reached <cuMemFree_v2> & more"),
    Cell("cuMemAlloc_v2", "link", 0, 0, "namespace", OUT, "the driver answers"),
    Cell("cuCtxGetDevice", "dlsym", 0, 0, "program", PASSES, "asks only"),
)
MATRIX = Matrix(
    interposer="lib.so",
    evidence="fake-driver",
    driver="580",
    cells=CELLS,
    findings=(Finding("no-dlsym", "lib.so", "dlsym is not exported"), Finding("probe", "LD_AUDIT", "the same", False)),
    decisions={"cuMemAlloc_v2": HOOK, "cuCtxGetDevice": PASS},
    exports={"cuMemAlloc_v2": "default"},
)


def test_csv_has_every_case_and_its_evidence() -> None:
    rows = list(csv.DictReader(io.StringIO(outputs.as_csv(MATRIX))))
    assert len(rows) == len(CELLS)
    assert {row["evidence"] for row in rows} == {"fake-driver"}
    assert [tuple(row[key] for key in ("name", "route", "host", "verdict")) for row in rows][1] == (
        "cuMemAlloc_v2",
        "dlsym",
        "program",
        ESCAPE,
    )


def test_sarif_has_a_result_a_cause_and_a_rule_for_each() -> None:
    drift = Finding("order", "cuInit", "place 3", where="src/hook.c:17")
    run = json.loads(outputs.as_sarif(MATRIX, tree=[drift]))["runs"][0]
    results = run["results"]
    assert [result["level"] for result in results].count("error") == 4  # two causes, no-dlsym, the drifted list
    assert {result["ruleId"] for result in results} <= {rule["id"] for rule in run["tool"]["driver"]["rules"]}
    assert len({result["partialFingerprints"]["hooklab/1"] for result in results}) == len(results)
    place = results[-1]["locations"][0]["physicalLocation"]
    assert (place["artifactLocation"]["uri"], place["region"]["startLine"]) == ("src/hook.c", 17)


def test_junit_fails_the_name_on_the_route() -> None:
    root = ET.fromstring(outputs.as_junit(MATRIX))
    suites = {suite.get("name"): suite for suite in root}
    assert suites["dlsym"].get("failures") == suites["resolver2"].get("failures") == "1"
    assert suites["link"].get("failures") == "0"
    failure = suites["resolver2"].find("testcase/failure")
    assert failure is not None
    assert "3020/0 3030/2" in failure.get("message", "")
    assert suites["findings"].get("failures") == "1"


def test_html_shows_the_worst_of_each_route_and_escapes_texts() -> None:
    page = outputs.as_html(MATRIX)
    assert "&lt;cuMemFree_v2&gt; &amp; more" in page
    assert "<cuMemFree_v2>" not in page
    assert "asks only" in page


def test_a_baseline_of_itself_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "baseline"
    assert baseline.write(MATRIX, file) == 5  # four cells and a finding
    difference = baseline.compare(MATRIX, baseline.read(file))
    assert difference.same
    assert difference.expected == 5
    again = tmp_path / "again"
    baseline.write(replace(MATRIX, cells=tuple(reversed(CELLS))), again)
    assert again.read_text() == file.read_text()


def test_a_new_fault_and_a_silent_repair_both_fail(tmp_path: Path) -> None:
    file = tmp_path / "baseline"
    baseline.write(MATRIX, file)
    worse = replace(MATRIX, cells=(*CELLS, Cell("cuMemFree_v2", "next", 0, 0, "program", CRASH, "SIGSEGV")))
    difference = baseline.compare(worse, baseline.read(file))
    assert difference.new == ("cell crash cuMemFree_v2 next program -",)
    assert difference.repaired == ()
    better = replace(MATRIX, cells=CELLS[:4] + CELLS[5:])  # one case of several
    difference = baseline.compare(better, baseline.read(file))
    assert difference.repaired == ("cell 'wrong variant' cuMemAlloc_v2 resolver2 program 3030/2",)
    assert not difference.same
    other = replace(MATRIX, cells=tuple(c._replace(verdict=CRASH) if c.verdict == ESCAPE else c for c in CELLS))
    difference = baseline.compare(other, baseline.read(file))
    assert len(difference.new) == len(difference.repaired) == 2


@pytest.mark.parametrize("text", ["cell escape\n", "cell 'open\n", "something else here\n"])
def test_what_is_no_baseline_is_refused_with_its_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "baseline"
    file.write_text("# head\n" + text)
    with pytest.raises(BaselineError, match=r"baseline:2:1: "):
        baseline.read(file)
    with pytest.raises(BaselineError, match="--write-baseline"):
        baseline.read(tmp_path / "none")


def test_one_symbols_story() -> None:
    story = "\n".join(explain(MATRIX, "cuMemAlloc_v2", load_hooks()))
    for part in (
        "pointer, 64-bit",
        "cuMemAlloc from 2000, cuMemAlloc_v2 from 3020",
        "exports it (default)",
        "to be hooked",
    ):
        assert part in story
    assert "!dlsym       escape (the driver's own pointer): program, jit" in story
    assert "3020/0 3030/2" in story
    with pytest.raises(ExplainError, match="near are cuMemAlloc"):
        explain(MATRIX, "cuMemAlloc_v3", load_hooks())


def test_the_command_on_our_shim(hooklab: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    files = [f"--{form}={tmp_path / form}" for form in ("html", "csv", "sarif", "junit")]
    done = hooklab("hooks", *files)
    assert done.returncode == 0, done.stderr
    assert "evidence fake-driver" in done.stdout
    assert all((tmp_path / form).stat().st_size for form in ("html", "csv", "sarif", "junit"))
    with (tmp_path / "csv").open() as stream:
        assert {row["verdict"] for row in csv.DictReader(stream)} == {HOOKED, PASSES, OUT}


def test_the_command_on_a_planted_fault(
    hooklab: Callable[..., subprocess.CompletedProcess[str]], twin: Callable[..., Path], tmp_path: Path
) -> None:
    project = tmp_path / "project.toml"
    project.write_text('dialect = "hooklab"\n[passes]\n"*" = "the example hooks a few names"\n')
    known = tmp_path / "known"
    leak, clean = (("--interposer", twin(one), "--project", project) for one in ("RESOLVER_LEAK", "CLEAN"))
    assert hooklab("hooks", *leak).returncode == 1
    assert hooklab("hooks", *leak, "--write-baseline", known).returncode == 0
    assert hooklab("hooks", *leak, "--baseline", known).returncode == 0
    repaired = hooklab("hooks", *clean, "--baseline", known)
    assert repaired.returncode == 1
    assert "repaired: cell escape" in repaired.stdout


def test_the_command_reads_without_running(
    hooklab: Callable[..., subprocess.CompletedProcess[str]], twin: Callable[..., Path], tmp_path: Path
) -> None:
    done = hooklab("hooks", "--interposer", twin("HIDDEN"), "--static")
    assert done.returncode == 1
    assert "intercepts-nothing" in done.stdout
    assert hooklab("hooks", "--static").returncode == 0
    assert hooklab("hooks", "--interposer", "none").returncode == 2
    assert hooklab("hooks", "--interposer", tmp_path / "none.so").returncode == 2
    assert hooklab("hooks", "--tree", tmp_path / "none").returncode == 2
