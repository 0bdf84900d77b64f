"""Scenarios that reproduce public reports, each with a fault planted: it must be seen, by the check that is about it.

A fault is a library before our own shim (tests/native/interposers/planted.c), which is the shim but for that fault, or
a change of the scenario itself (another controller, a context that is not counted). That the same scenarios are valid
without it is the business of tests/scenario/test_shipped.py; that the library without a fault changes nothing, of this.
"""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lab import native as installed
from lab.report.model import RunReport, report_run
from lab.scenario.load import dump, load, loads
from lab.scenario.model import Planted, Scenario

ROOT = installed.scenarios_dir()
SCENARIOS = {str(path.relative_to(ROOT)): load(path) for path in ROOT.rglob("*.yaml")}
CASES = [(file, one) for file, found in sorted(SCENARIOS.items()) for one in found[0].planted]
FAULTS = sorted({file for file, one in CASES if one.fault})
Build = Callable[[str], Path]


def changed(scenario: Scenario, changes: dict[str, Any]) -> Scenario:
    """The same run with other values at these paths of its file."""
    raw = copy.deepcopy(dict(scenario.raw))
    for path, value in changes.items():
        *above, last = path.split(".")
        inner: Any = raw
        for part in above:
            inner = inner.setdefault(part, {})
        inner[last] = value
    (made,) = loads(dump(dataclasses.replace(scenario, raw=raw)), scenario.path)
    return made


def preloading(scenario: Scenario, library: Path) -> Scenario:
    """The library before the shim, in every container that has one."""
    hooked = [container.name for container in scenario.containers if container.interposer != "none"]
    variables = [f"containers.{name}.environment.LD_PRELOAD" for name in hooked]
    return changed(scenario, dict.fromkeys(variables, str(library)))


def reports(scenarios: list[Scenario], out: Path) -> Iterator[RunReport]:
    from lab.runner.execute import run_scenario

    return (report_run(scenario, run_scenario(scenario, out=out)) for scenario in scenarios)


def story(report: RunReport) -> str:
    return "\n".join(f"{one.status} {one.check} {one.subject}: {one.seen}" for one in report.verdicts)


@pytest.mark.parametrize(("file", "one"), [pytest.param(f, o, id=f"{f}-{o.fault or o.change}") for f, o in CASES])
def test_a_planted_fault_is_caught(file: str, one: Planted, planted: Build, native: Path, tmp_path: Path) -> None:
    if one.fault:
        library = planted(one.fault)
        runs = [preloading(scenario, library) for scenario in SCENARIOS[file]]
    else:
        runs = [changed(scenario, dict(one.change)) for scenario in SCENARIOS[file]]
    seen = []
    for report in reports(runs, tmp_path):  # of a sweep, one run that catches it is enough
        invalid = {verdict.check for verdict in report.verdicts if verdict.status == "invalid"}
        if one.fails in invalid:
            return
        seen.append(story(report))
    pytest.fail(f"{one.fails} is valid:\n" + "\n".join(seen))


@pytest.mark.parametrize("file", FAULTS)
@pytest.mark.full
def test_without_a_fault_the_neighbour_changes_nothing(file: str, planted: Build, native: Path, tmp_path: Path) -> None:
    for report in reports([preloading(SCENARIOS[file][0], planted("NONE"))], tmp_path):
        assert not [one for one in report.verdicts if one.status == "invalid"], story(report)


def test_every_reproduction_of_a_report_says_what_it_must_catch() -> None:
    assert len(FAULTS) >= 25
    silent = [file for file, found in SCENARIOS.items() if found[0].report and not found[0].planted]
    assert silent == []


def test_every_planted_fault_is_of_use(root: Path) -> None:
    text = (root / "tests/native/interposers/planted.c").read_text(encoding="utf-8")
    written = set(re.findall(r"^ \*   ([A-Z0-9_]+) ", text, re.MULTILINE))
    used = "".join(path.read_text(encoding="utf-8") for path in (root / "tests").rglob("test_*.py"))
    assert written == {one.fault for _, one in CASES if one.fault} | set(
        re.findall(r'planted\("([A-Z0-9_]+)"\)', used)
    ) - {"NONE"}
