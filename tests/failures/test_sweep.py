"""The failure sweep: every driver call of a scenario failed once. Our shim keeps every invariant; an interposer with
one planted fault that only a failed call shows is caught, its clean twin is not."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from lab.cli import _failures, _making, main
from lab.scenario.failures import Failure, failing, failures, lenient
from lab.scenario.load import dump, loads
from lab.spec import load_failures, load_hooks

Run = Callable[..., CompletedProcess[str]]
SMALL = """name: two allocations
containers:
  tenant:
    limits: {memory: 4GiB}
    processes:
      - name: worker
        steps:
          - init
          - alloc: {bytes: 8MiB, as: x}
          - memset: {what: x, value: 7}
          - read: x
          - free: x
          - alloc: {bytes: 8MiB, as: y}
timeout: 20s
"""
CAUGHT = {  # planted fault -> (function that fails, the check that sees it)
    "LEAKS": ("cuMemGetInfo_v2", "no_leak"),
    "WRITES": ("cuMemGetInfo_v2", "outputs_untouched"),
    "MINUS_ONE": ("cuMemAlloc_v2", "known_results"),
    "FREE_SUCCEEDS": ("cuMemFree_v2", "no_leak"),
    "CRASHES": ("cuMemGetInfo_v2", "exits"),
    "HANGS": ("cuMemFree_v2", "run"),
}


@pytest.fixture(scope="module")
def interposer(root: Path, compile_c: Callable[..., Path]) -> Callable[[str], Path]:
    def build(fault: str) -> Path:
        source = root / "tests/native/interposers/failures.c"
        return compile_c(source, "-shared", "-fPIC", f"-DFAULT={fault}", name=f"libfailures-{fault.lower()}.so")

    return build


def sweep(hooklab: Run, file: Path, *arguments: Any, code: int) -> dict[str, Any]:
    done = hooklab("run", file, "--fail-each-call", "--json", *arguments, timeout=400)
    assert done.returncode == code, done.stdout + done.stderr
    document = json.loads(done.stdout)
    assert document["schema"] == "hooklab.failures/1"
    return document


@pytest.fixture
def small(tmp_path: Path) -> Path:
    file = tmp_path / "small.yaml"
    file.write_text(SMALL)
    return file


def test_our_shim_keeps_every_invariant(hooklab: Run, small: Path, tmp_path: Path) -> None:
    document = sweep(hooklab, small, "--jobs", "2", "--junit", "sweep.xml", code=0)
    (one,) = document["sweeps"]
    assert one["status"] == "valid"
    assert one["made"] == one["failures"] == sum(row["failed"] for row in one["calls"])
    assert all(row["broken"] == row["unknown"] == row["not_made"] == 0 for row in one["calls"])
    assert {"cuInit", "cuMemAlloc_v2", "cuMemFree_v2", "cuMemsetD8_v2"} <= {row["function"] for row in one["calls"]}
    assert one["evidence"] == "fake-driver"
    assert list((tmp_path / "runs").iterdir()) == []  # nothing broke: nothing is kept
    (suite,) = ET.parse(tmp_path / "sweep.xml").getroot()
    assert (int(suite.get("tests", "")), suite.get("failures")) == (one["made"], "0")


def test_the_clean_twin_passes(hooklab: Run, small: Path, interposer: Callable[[str], Path]) -> None:
    document = sweep(hooklab, small, "--interposer", interposer("CLEAN"), "--jobs", "2", code=0)
    assert document["sweeps"][0]["made"] > 20


@pytest.mark.parametrize("fault", CAUGHT)
def test_a_planted_fault_is_caught(
    hooklab: Run, small: Path, tmp_path: Path, interposer: Callable[[str], Path], fault: str
) -> None:
    function, check = CAUGHT[fault]
    limits = ("--timeout", "2s") if fault == "HANGS" else ()
    document = sweep(hooklab, small, "--interposer", interposer(fault), "--jobs", "2", *limits, code=1)
    (one,) = document["sweeps"]
    assert one["first"]["status"] == "valid"  # nothing shows as long as nothing fails
    broken = {row["function"] for row in one["calls"] if row["broken"]}
    assert function in broken
    seen = {
        verdict["check"]
        for item in one["broken"]
        if f" {function} " in item["failure"]
        for verdict in item["run"]["verdicts"]
        if verdict["status"] == "invalid"
    }
    assert check in seen
    assert all(Path(tmp_path, item["run"]["directory"]).is_dir() for item in one["broken"])


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_is_valid_is_removed_while_others_are_made(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: int
) -> None:
    """A sweep never holds more than a few run directories: what is judged and valid goes before the next ones come."""
    held: list[int] = []
    removed = _failures._remove

    def counting(report: Any) -> None:
        held.append(len(list((tmp_path / "runs").iterdir())))
        removed(report)

    monkeypatch.setattr(_failures, "_remove", counting)
    monkeypatch.chdir(tmp_path)
    assert main(["run", str(small), "--fail-each-call", "--fail-most", "24", "--jobs", str(jobs), "--json"]) == 0
    assert len(held) >= 24
    assert max(held) <= 2 * _making._AHEAD * jobs < 24
    assert list((tmp_path / "runs").iterdir()) == []


def test_all_is_kept_when_asked(hooklab: Run, small: Path, tmp_path: Path) -> None:
    done = hooklab("run", small, "--fail-each-call", "--fail-most", 3, "--keep", "--jobs", 2)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "runs").iterdir())) == 4  # the run without a failure, too


def test_a_sample_says_that_it_is_one(hooklab: Run, small: Path) -> None:
    done = hooklab("run", small, "--fail-each-call", "--fail-most", 3)
    assert done.returncode == 0
    assert "3 failed calls, a sample of" in done.stdout


def test_what_it_cannot_do_is_said_in_one_line(hooklab: Run, small: Path, tmp_path: Path) -> None:
    for arguments, said in (
        ((small, "--fail-most", 3), "--fail-each-call"),
        ((small, "--keep"), "--fail-each-call"),
        ((small, "--fail-each-call", "--on", "sim"), "the fake driver; not with"),
        ((small, "--fail-each-call", "--write-baseline", "x"), "--write-baseline"),
        (("@startup/four-workers", "--fail-each-call"), "virtual time"),
    ):
        done = hooklab("run", *arguments)
        assert done.returncode == 2, arguments
        assert said in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_every_name_that_can_fail_has_codes() -> None:
    table = load_failures()
    for hook in load_hooks().hooks:
        if hook.fake == "real":
            codes = table.codes(hook.name)
            assert codes, hook.name
            assert 0 not in codes


def test_the_plan_covers_each_call_of_each_process_once() -> None:
    calls = [(0, 10, "cuInit"), (0, 10, "cuMemFree_v2"), (0, 10, "cuMemFree_v2"), (0, 11, "cuMemFree_v2")]
    found, total = failures(calls)
    assert total == len(found) == len(set(found))
    assert {(one.name, one.call) for one in found} == {("cuInit", 1), ("cuMemFree_v2", 1), ("cuMemFree_v2", 2)}
    some, of = failures(calls, most=2, seed=5)
    assert (len(some), of) == (2, total)
    assert set(some) <= set(found)
    assert failures(calls, most=2, seed=5)[0] == some


def test_a_failing_run_can_be_written_down_and_read_again() -> None:
    scenario = lenient(loads(SMALL)[0])
    assert all(step.result is None for one in scenario.instances() for step in one.process.walk())
    variant = failing(scenario, Failure(0, "cuMemAlloc_v2", 2, 999))
    (again,) = loads(dump(variant))
    assert [(fault.at, fault.call, fault.code, fault.process) for fault in again.faults] == [
        ("cuMemAlloc_v2", 2, 999, "worker")
    ]
    assert [one.check for one in again.expect] == [one.check for one in variant.expect]


@pytest.mark.full
@pytest.mark.parametrize("folder", ["@memory", "@faults", "@lifecycle", "@views"])
def test_every_shipped_scenario_keeps_the_invariants(hooklab: Run, folder: str) -> None:
    done = hooklab(
        "run", folder, "--fail-each-call", "--fail-most", 300, "--jobs", 2, "--json", "--allow-unknown", timeout=3600
    )
    document: Sequence[Any] = json.loads(done.stdout)["sweeps"]
    broken = [(one["scenario"], [item["failure"] for item in one["broken"]]) for one in document if one["broken"]]
    assert done.returncode == 0, broken
