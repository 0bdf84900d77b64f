"""Every shipped scenario is invalid as soon as one expectation is made wrong. (That each is valid as it stands, the
scenario files themselves say: pytest collects them through our own plugin.)

A twin is the same file with one planted mistake in what it expects; a scenario whose twin is not caught would prove
nothing. `none` runs without any interposer: limits that hold there are not held by the interposer.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from lab import native
from lab.report.model import RunReport, report_run
from lab.scenario.load import Overrides, loads

ROOT = native.scenarios_dir()
FILES = sorted(str(path.relative_to(ROOT)) for path in ROOT.rglob("*.yaml"))

TWINS = {  # file -> [(text, planted text, the check that must be invalid)]
    "quickstart.yaml": [
        ("too-much, oom: 2", "too-much, ok: 2", "outcome"),
        ("total: 4GiB", "total: 5GiB", "view"),
        ("verified: 1", "verified: 0", "values"),
        ("never_above: {memory: 4GiB}", "never_above: {memory: 1GiB}", "never_above"),
        ("preinit_enter, real_enter", "real_enter, preinit_enter", "order"),
        ("          - free: linked\n", "          - {free: {what: linked, result: oom}}\n", "steps"),
    ],
    "memory/race-reserve.yaml": [
        ("ok: 1, oom: 1", "ok: 2", "outcome"),
        ("memory: 4GiB}\n  - l", "memory: 2GiB}\n  - l", "never_above"),
    ],
    "memory/race-double-check.yaml": [
        ("ok: 1, oom: 1", "oom: 2", "outcome"),
        ("memory: 6GiB", "memory: 4GiB", "never_above"),
        ("count: 2}                 ", "count: 1}                 ", "faults_fired"),
    ],
    "faults/held-in-driver.yaml": [
        ("step: late, ok: 1", "step: late, oom: 1", "outcome"),
        ("stop: done", "kill: SIGSEGV", "exits"),
        ("count: 1}", "count: 2}", "faults_fired"),
    ],
    "faults/wrong-figures.yaml": [
        ("free: {max: 3GiB}", "free: {min: 4GiB}", "view"),
        ("too-much, oom: 1", "too-much, ok: 1", "outcome"),
    ],
    "faults/device-lost.yaml": [
        ("step: after, CUDA_ERROR_UNKNOWN: 1", "step: after, ok: 1", "outcome"),
        (", lost: true", ", delay: 1ms", "outcome"),
    ],
    "faults/threads-meet.yaml": [
        ("ok: 1, oom: 1", "ok: 2", "outcome"),
        ("memory: 6GiB", "memory: 4GiB", "never_above"),
        ("count: 2}", "count: 1}", "faults_fired"),
    ],
    "memory/killed-process.yaml": [
        ("ok: 2", "ok: 1, oom: 1", "outcome"),
        ("expect_exit: SIGKILL", "expect_exit: 0", "exits"),
    ],
    "memory/killed-in-driver.yaml": [
        ("inherited, ok: 1", "inherited, oom: 1", "outcome"),
        ("expect_exit: SIGKILL", "expect_exit: SIGTERM", "exits"),
    ],
    "lifecycle/killed-with-the-lock.yaml": [
        ("inherited, ok: 2", "inherited, oom: 2", "outcome"),
        ("expect_exit: SIGKILL", "expect_exit: 0", "exits"),
    ],
    "memory/implicit-free.yaml": [
        ("after-destroy, ok: 1", "after-destroy, oom: 1", "outcome"),
        ("after-reset, ok: 1", "after-reset, oom: 1", "outcome"),
    ],
    "memory/families.yaml": [("over, oom: 1", "over, ok: 1", "outcome"), ("again, ok: 1", "again, oom: 1", "outcome")],
    "memory/pitched.yaml": [
        ("second, oom: 1", "second, ok: 1", "outcome"),
        ("never_above: {memory: 3GiB}", "never_above: {memory: 1GiB}", "never_above"),
    ],
    "memory/crowd.yaml": [
        ("expect_exit: SIGKILL", "expect_exit: 0", "exits"),
        ("never_above: {memory: 12GiB}", "never_above: {memory: 11GiB}", "never_above"),
        ("refused: {min: 1}", "refused: 0", "values"),
    ],
    "views/limit.yaml": [("total: 4GiB", "total: 80GiB", "view")],
    "views/used.yaml": [
        ("step: nvml, total: 4GiB", "step: nvml, total: 3GiB", "view"),
        ("used: {min: 1GiB, max: 3GiB}", "used: 0", "view"),
    ],
    "lifecycle/fork.yaml": [
        ("of-child, ok: 1", "of-child, oom: 1", "outcome"),
        ("CUDA_ERROR_NOT_INITIALIZED", "ok", "outcome"),
    ],
    "lifecycle/cleared-environment.yaml": [
        ("bare-over, oom: 1", "bare-over, ok: 1", "outcome"),
        ("seen-renewed, total: 4GiB", "seen-renewed, total: 1GiB", "view"),
    ],
    "lifecycle/first-init.yaml": [
        ("ok: 64", "ok: 63", "outcome"),
        ("preinit_exit, real_enter", "real_enter, preinit_exit", "order"),
    ],
    "lifecycle/failed-init.yaml": [
        ("second, ok: 1", "second, CUDA_ERROR_SYSTEM_NOT_READY: 1", "outcome"),
        ("postinit_exit]}", "postinit_exit, real_enter]}", "order"),
    ],
    "lifecycle/colliding-pids.yaml": [("expect_exit: SIGKILL", "expect_exit: 0", "exits")],
    "faults/return-code.yaml": [
        ("failed, CUDA_ERROR_LAUNCH_FAILED: 1", "failed, ok: 1", "outcome"),
        ("call: 1, return", "call: 9, return", "faults"),
    ],
    "faults/failed-free.yaml": [
        ("over, oom: 1", "over, ok: 1", "outcome"),
        ("first-free, CUDA_ERROR_UNKNOWN: 1", "first-free, ok: 1", "outcome"),
    ],
    "faults/slow-driver.yaml": [
        ("min: 300000000", "min: 30000000000", "values"),
        ("max: 250000000", "max: 1", "values"),
    ],
    "bridge/vadd-and-mail.yaml": [
        ("kernel: vadd, count: 2", "kernel: vadd, count: 3", "bridged"),
        ("step: mail, verified: 1", "step: mail, verified: 0", "values"),
    ],
    "bridge/split.yaml": [("kernel: vadd, count: 3", "kernel: vadd, count: 2", "bridged")],
    "gpu/limit.yaml": [
        ("over, oom: 2", "over, ok: 2", "outcome"),
        ("barrier: full, memory: {min: 1GiB, max: 4GiB}", "barrier: full, memory: {max: 1GiB}", "held"),
    ],
    "gpu/families.yaml": [("over, oom: 1", "over, ok: 1", "outcome"), ("rows, ok: 1", "rows, oom: 1", "outcome")],
    "gpu/views.yaml": [
        ("seen, total: 4GiB", "seen, total: 5GiB", "view"),
        ("held, memory: {min: 1GiB", "held, memory: {min: 3GiB", "held"),
    ],
    "gpu/killed.yaml": [
        ("inherited, ok: 2", "inherited, oom: 2", "outcome"),
        ("memory: {min: 6GiB, max: 8GiB}", "memory: {min: 7GiB, max: 8GiB}", "held"),
    ],
    "gpu/fork.yaml": [("of-child, ok: 1", "of-child, oom: 1", "outcome"), ("verified: 1", "verified: 0", "values")],
    "gpu/host-pid-broker.yaml": [("tier: broker", "tier: procfs", "identity")],
    "gpu/host-pid-procfs.yaml": [("tier: procfs", "tier: broker", "identity")],
    "gpu/host-pid-experiment.yaml": [("[probe, unknown]", "[broker]", "identity")],
    "startup/article-table.yaml": [
        ("min: 76.81 s, max: 79.93 s", "min: 70 s, max: 72 s", "start_up"),
        ("min: 830, max: 870", "min: 0, max: 100", "start_up"),
        ("min: 68.68 s", "min: 69.68 s", "start_up"),
    ],
    "startup/four-workers.yaml": [("180 ms, 230 ms", "180 ms, 231 ms", "start_up"), ("155 ms", "154 ms", "start_up")],
    "startup/four-workers-broker.yaml": [("time: 1 ms", "time: 1 ms, gate: broker", "start_up")],
    "startup/four-workers-registration.yaml": [("time: 12 ms", "time: 13 ms", "start_up")],
    "pacing/hybrid.yaml": [("controller: hybrid", "controller: delta-hami", "share")],
    "pacing/neighbours.yaml": [
        ("controller: hybrid", "controller: aimd", "share"),
        ("seconds: 20", "seconds: 20\n    attribution: winner", "share"),
    ],
    "monitor/holds-launches.yaml": [
        ("--do, block]", "--do, release]", "values"),
        ("min: 200000000", "min: 60000000000", "values"),
    ],
    "versions/fields-disagree.yaml": [("refused, oom: 1", "refused, ok: 1", "outcome")],
    "versions/longer-file.yaml": [("--do, block]", "--do, release]", "values")],
    "versions/shorter-file.yaml": [("size=1000000", "size=2008953", "outcome")],
    "versions/old-interposer-first.yaml": [("dialect: hooklab\n", "dialect: hooklab-hami\n", "outcome")],
    "versions/new-interposer-first.yaml": [("dialect: hooklab-hami\n", "dialect: hooklab\n", "outcome")],
    "pacing/delta-hami.yaml": [("controller: delta-hami", "controller: hybrid", "share")],
}
ELSEWHERE = {  # files whose figures need a real GPU (tests/gpu plants mistakes in them) -> what is unknown here
    "gpu/torch-limit.yaml": "run",
    "gpu/torch-workers.yaml": "run",
    "gpu/overhead-calls.yaml": "added",
    "gpu/overhead-training.yaml": "run",
}
NONE = {  # files whose limit must be seen broken without an interposer -> the check that sees it
    "quickstart.yaml": "view",
    "memory/race-reserve.yaml": "outcome",
    "memory/families.yaml": "outcome",
    "views/limit.yaml": "view",
    "lifecycle/cleared-environment.yaml": "outcome",
    "gpu/limit.yaml": "outcome",
    "gpu/views.yaml": "view",
}


def run_all(text: str, file: str, out: Path, **overrides: str) -> list[RunReport]:
    from lab.runner.execute import run_scenario

    scenarios = loads(text, str(ROOT / file), overrides=Overrides(timeout="30s", **overrides))
    return [report_run(scenario, run_scenario(scenario, out=out)) for scenario in scenarios]


def story(report: RunReport) -> str:
    lines = [f"{one.status} {one.check} {one.subject}: {one.expected} | {one.seen}" for one in report.verdicts]
    details = [line for one in report.verdicts for line in one.details]
    return "\n".join([report.id, str(report.directory), *lines, *details])


@pytest.mark.parametrize(("file", "check"), ELSEWHERE.items())
def test_figures_of_real_gpus_are_unknown_on_the_fake(file: str, check: str, tmp_path: Path, native: Path) -> None:
    for report in run_all((ROOT / file).read_text(encoding="utf-8"), file, tmp_path):
        assert report.status == "unknown", story(report)
        assert {one.check for one in report.verdicts if one.status == "unknown"} == {check}, story(report)


@pytest.mark.parametrize(("file", "old", "new", "check"), [(f, *twin) for f, twins in TWINS.items() for twin in twins])
def test_a_wrong_expectation_is_caught(file: str, old: str, new: str, check: str, tmp_path: Path, native: Path) -> None:
    text = (ROOT / file).read_text(encoding="utf-8")
    assert text.count(old) >= 1
    (report, *_) = run_all(_one_run(text.replace(old, new, 1)), file, tmp_path)
    assert check in {one.check for one in report.verdicts if one.status == "invalid"}, story(report)


def _one_run(text: str) -> str:
    """The first value of every sweep: a twin need be caught only once."""
    import re

    text = re.sub(r"((?:route|kind|api|pid_namespace): )\[(\w+)[^]]*\]", r"\1\2", text)
    return re.sub(r"(moment: \[\w+)[^]]*\]", r"\1]", text)


@pytest.mark.parametrize(("file", "check"), NONE.items())
def test_without_an_interposer_no_limit_holds(file: str, check: str, tmp_path: Path, native: Path) -> None:
    text = _one_run((ROOT / file).read_text(encoding="utf-8"))
    (report, *_) = run_all(text, file, tmp_path, interposer="none")
    assert check in {one.check for one in report.verdicts if one.status == "invalid"}, story(report)


def test_every_shipped_scenario_has_a_twin_and_a_purpose() -> None:
    assert not set(TWINS) & set(ELSEWHERE)
    for file in FILES:
        for scenario in loads((ROOT / file).read_text(encoding="utf-8"), file):
            assert scenario.planted or file in TWINS or file in ELSEWHERE, file  # planted faults: tests/corpus
            assert scenario.doc, file
            assert scenario.expect, file


def test_quickstart_from_the_command_line(hooklab, tmp_path: Path, native: Path) -> None:
    done = hooklab("run", "@quickstart", "--out", tmp_path / "runs")
    assert done.returncode in (0, 3), done.stdout + done.stderr
    assert "never above 4GiB" in done.stdout
    (directory,) = (tmp_path / "runs").iterdir()
    assert hooklab("report", directory).returncode == done.returncode
    again = hooklab("run", directory, "--out", tmp_path / "again")
    assert again.returncode == done.returncode, again.stdout + again.stderr
    assert "the same verdicts and fault positions" in again.stdout


def test_a_wrong_expectation_from_the_command_line(hooklab, tmp_path: Path, native: Path) -> None:
    text = (ROOT / "quickstart.yaml").read_text(encoding="utf-8").replace("too-much, oom: 2", "too-much, ok: 2")
    (tmp_path / "wrong.yaml").write_text(text, encoding="utf-8")
    done = hooklab("run", "wrong.yaml")
    assert done.returncode == 1
    assert "step too-much: expected ok: 2; seen oom: 2" in done.stdout
