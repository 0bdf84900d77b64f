"""Whole runs on the fake driver: what an interposer promises about memory, and that the lab can see it broken.

The planted failure is tests/native/interposers/naive.c, which checks the limit before the call only.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab.checks.history import load
from lab.report.model import RunReport, load_run
from lab.report.replay import differences
from lab.runner.container import probe_isolation
from lab.runner.execute import run_scenario
from lab.scenario.load import loads

GIB, MIB = 1 << 30, 1 << 20
Run = Callable[..., RunReport]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a scenario given as a mapping; its report."""

    def go(tree: dict[str, Any]) -> RunReport:
        scenarios = loads(json.dumps(tree))
        assert len(scenarios) == 1
        return load_run(run_scenario(scenarios[0], out=tmp_path / "runs"))

    return go


def race(**options: Any) -> dict[str, Any]:
    """Two processes that meet inside the driver, each with more than half of the limit."""
    return {
        "name": "race",
        "node": {"gpus": ["a100-80g"]},
        "options": options,
        "containers": {
            "tenant": {
                "limits": {"memory": "4GiB"},
                "processes": [
                    {
                        "name": "racer",
                        "count": 2,
                        "start": "barrier",
                        "steps": [
                            "init",
                            {"alloc": {"bytes": "2400MiB", "as": "x", "result": "any"}},
                            {"barrier": "done"},  # a winner that ends early would leave room for the other
                        ],
                    }
                ],
            }
        },
        "faults": [{"at": "cuMemAlloc_v2", "call": 1, "meet": 2}],
        "expect": [
            {"never_above": {"memory": "4GiB"}},
            {"outcome": {"step": "x", "ok": 1, "oom": 1}},
            {"ledger_empty": {"at": "end"}},
        ],
    }


def verdicts(report: RunReport) -> dict[str, str]:
    return {verdict.check: verdict.status for verdict in report.verdicts}


@pytest.mark.parametrize("mode", ["reserve", "double-check"])
def test_the_built_in_interposer_lets_one_through(run: Run, mode: str) -> None:
    report = run(race(memory_mode=mode))
    said = verdicts(report)
    assert said["outcome"] == "valid", [verdict.seen for verdict in report.verdicts]
    assert said["ledger_empty"] == "valid", [verdict.seen for verdict in report.verdicts]
    if mode == "reserve":  # double-check finds out after the driver's call, by design
        assert said["never_above"] == "valid"
        assert report.status == "valid"


def test_a_naive_interposer_is_caught(run: Run, compile_c: Any, root: Path) -> None:
    library = compile_c(root / "tests/native/interposers/naive.c", "-shared", "-fPIC", "-ldl", name="naive.so")
    report = run(race(interposer=str(library)))
    assert verdicts(report)["never_above"] == "invalid"
    assert verdicts(report)["outcome"] == "invalid"
    assert report.status == "invalid"


def test_without_an_interposer_both_get_everything(run: Run) -> None:
    report = run(race(interposer="none"))
    assert verdicts(report)["never_above"] == "invalid"
    assert verdicts(report)["ledger_empty"] == "unknown"


def test_a_replay_elsewhere_says_the_same(run: Run, tmp_path: Path) -> None:
    first = run(race(memory_mode="reserve"))
    assert first.directory is not None
    moved = tmp_path / "elsewhere" / "copy"
    shutil.copytree(first.directory, moved)
    shutil.rmtree(first.directory)
    again = run_scenario(loads((moved / "scenario.yaml").read_text())[0], out=tmp_path / "other")
    assert differences(moved, again) == ()
    assert len(load(moved / "history").of("FAULT")) > 0


def test_a_replay_that_differs_is_seen(run: Run) -> None:
    """The planted failure of the comparison: the same race under two interposers."""
    first, second = run(race(memory_mode="reserve")), run(race(interposer="none"))
    assert first.directory is not None
    assert second.directory is not None
    lines = differences(first.directory, second.directory)
    assert any("never_above" in line for line in lines)


@pytest.mark.skipif(bool(probe_isolation()), reason="this machine allows no containers")
def test_a_cleared_environment_stays_under_the_limit(run: Run) -> None:
    report = run(
        {
            "name": "cleared",
            "containers": {
                "tenant": {
                    "limits": {"memory": "2GiB"},
                    "pid_namespace": "private",
                    "processes": [
                        {
                            "name": "started",
                            "clear_environment": True,
                            "steps": [
                                "init",
                                {"alloc": {"bytes": "1GiB", "as": "fits"}},
                                {"alloc": {"bytes": "1GiB", "as": "over", "result": "oom"}},
                                {"view": {"as": "seen"}},
                            ],
                        },
                        {
                            "name": "execs",
                            "start": {"after": "started"},
                            "steps": [
                                "init",
                                {
                                    "exec": {
                                        "clear_environment": True,
                                        "steps": ["init", {"alloc": {"bytes": "3GiB", "as": "more", "result": "oom"}}],
                                    }
                                },
                            ],
                        },
                    ],
                }
            },
            "expect": [{"view": {"step": "seen", "total": "2GiB"}}, {"never_above": {"memory": "2GiB"}}],
        }
    )
    assert report.status == "valid", [(one.check, one.subject, one.seen) for one in report.verdicts]


ROUTES = ["link", "dlsym", "default", "next", "dlvsym", "getproc", "getproc1"]


def test_the_limit_holds_on_every_route(run: Run) -> None:
    steps: list[Any] = ["init"]
    for route in ROUTES:
        steps += [
            {"view": {"as": f"cuda-{route}", "route": route}},
            {"view": {"as": f"nvml-{route}", "route": route, "api": "nvml"}},
            {"alloc": {"bytes": "1GiB", "as": f"fits-{route}", "route": route}},
            {"alloc": {"bytes": "1GiB", "as": f"over-{route}", "route": route, "result": "oom"}},
            {"free": {"what": f"fits-{route}", "route": route}},
        ]
    expect: list[Any] = [{"never_above": {"memory": "2GiB"}}]
    expect += [{"view": {"step": f"{api}-{route}", "total": "2GiB"}} for route in ROUTES for api in ("cuda", "nvml")]
    tree = {
        "name": "routes",
        "containers": {"tenant": {"limits": {"memory": "2GiB"}, "processes": [{"name": "one", "steps": steps}]}},
        "expect": expect,
    }
    report = run(tree)
    assert report.status == "valid", [(one.check, one.subject, one.seen) for one in report.verdicts]
    bare = run({**tree, "options": {"interposer": "none"}})
    assert {one.status for one in bare.verdicts if one.check in ("view", "never_above")} == {"invalid"}


def test_who_cannot_come_is_not_waited_for(run: Run) -> None:
    """A meeting of two where the second waits elsewhere: at a barrier for the first, or for its turn to start."""
    step = {"alloc": {"bytes": "1MiB", "as": "x"}}
    report = run(
        {
            "name": "nobody else",
            "timeout": "20s",
            "containers": {
                "tenant": {
                    "processes": [
                        {"name": "first", "steps": ["init", step, {"barrier": "done"}]},
                        {"name": "other", "steps": ["init", {"barrier": "done"}]},
                        {"name": "late", "start": {"after": "first"}, "steps": ["init", step]},
                    ]
                }
            },
            "faults": [{"at": "cuMemAlloc_v2", "call": 1, "meet": 2}],
            "expect": [],
        }
    )
    assert report.status == "valid", [(one.check, one.subject, one.seen) for one in report.verdicts]


def storm(*, processes: int, threads: int, operations: int, private: bool) -> dict[str, Any]:
    """Two containers with colliding PIDs; one process in four is killed inside an allocation."""
    doomed = processes // 4
    step = {"random": {"threads": threads, "operations": operations, "min": 4096, "max": "48MiB", "live": 8, "as": "r"}}

    def container(name: str) -> dict[str, Any]:
        return {
            "limits": {"memory": "12GiB"},
            "pid_namespace": "private" if private else "host",
            "processes": [
                {
                    "name": f"doomed-{name}",
                    "count": doomed // 2,
                    "start": "barrier",
                    "steps": ["init", step],
                    "expect_exit": "SIGKILL",
                },
                {
                    "name": f"survivor-{name}",
                    "count": (processes - doomed) // 2,
                    "start": "barrier",
                    "steps": ["init", step],
                },
            ],
        }

    return {
        "name": "storm",
        "node": {"gpus": ["a100-80g"]},
        "timeout": "300s",
        "containers": {"left": container("left"), "right": container("right")},
        "faults": [
            {"at": "cuMemAlloc_v2", "call": operations * threads // 5, "kill": "SIGKILL", "process": f"doomed-{name}"}
            for name in ("left", "right")
        ],
        "expect": [{"never_above": {"memory": "12GiB"}}, {"ledger_empty": {"at": "end"}}],
    }


@pytest.mark.parametrize(
    ("processes", "threads", "operations"),
    [
        pytest.param(8, 2, 150, id="sample"),
        pytest.param(16, 4, 10_000, id="full", marks=pytest.mark.full),
    ],
)
def test_killed_processes_lose_no_bytes(run: Run, processes: int, threads: int, operations: int) -> None:
    tree = storm(processes=processes, threads=threads, operations=operations, private=not probe_isolation())
    report = run(tree)
    assert report.status == "valid", [(one.check, one.subject, one.seen) for one in report.verdicts]
    assert report.directory is not None
    history = load(report.directory / "history")
    finished = history.of("STEP_END")
    finished = finished[finished["step"] == 1]
    assert len(finished) == processes - processes // 4
    assert set(finished["a"]) == {threads * operations}
    assert set(finished["b"]) == {0}
    assert len(history.of("FAULT")) == processes // 4
