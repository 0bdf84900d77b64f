"""What a failure sweep found: by function how many of its calls were failed and what broke; then each broken run."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

import lab
from lab.checks import INVALID, UNKNOWN, VALID, worst
from lab.report import as_json
from lab.report.junit import clean
from lab.report.model import RunReport
from lab.report.model import exit_code as model_exit_code
from lab.scenario.failures import Failure, said
from lab.scenario.model import Scenario
from lab.scenario.vocabulary import code_name

SCHEMA = "hooklab.failures/1"
_SHOWN = 20


@dataclass(frozen=True)
class Outcome:
    """One run in which one call was to fail. ``fired``: the call was made."""

    failure: Failure
    report: RunReport
    fired: bool


@dataclass(frozen=True)
class Sweep:
    """All failures of one scenario. ``first``: the run without any; ``total``: how many failures there are, of which
    ``outcomes`` may be a sample."""

    scenario: Scenario
    first: RunReport
    outcomes: tuple[Outcome, ...]
    total: int

    @property
    def status(self) -> str:
        """A sweep without a failure shows nothing: unknown."""
        return worst([self.first.status, *(outcome.report.status for outcome in self.outcomes)] * bool(self.outcomes))


@dataclass
class _Row:
    failed: int = 0
    broken: int = 0
    unknown: int = 0
    missed: int = 0


def rows(sweep: Sweep) -> Mapping[tuple[str, str], _Row]:
    """By (function, result): how many failures were made, broke something, could not be judged, never came up."""
    found: dict[tuple[str, str], _Row] = {}
    for outcome in sweep.outcomes:
        failure = outcome.failure
        row = found.setdefault((failure.name, code_name(failure.code, failure.name)), _Row())
        row.failed += 1
        row.broken += outcome.report.status == INVALID
        row.unknown += outcome.report.status == UNKNOWN
        row.missed += not outcome.fired
    return found


def show(console: Console, sweep: Sweep) -> None:
    """For people."""
    count = len(sweep.outcomes)
    sample = f", a sample of {sweep.total} (seed {sweep.scenario.seed})" if count < sweep.total else ""
    colour = {VALID: "green", INVALID: "bold red"}.get(sweep.status, "yellow")
    console.print(
        f"[{colour}]{sweep.status}[/]  {escape(sweep.scenario.id)}: {count} failed calls{sample} "
        f"[dim]{escape(sweep.first.evidence)}[/]",
        soft_wrap=True,
    )
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("function", "result", "failed", "broken", "unknown", "not made"):
        table.add_column(column, justify="left" if column in ("function", "result") else "right")
    for (name, code), row in sorted(rows(sweep).items()):
        table.add_row(name, code, *(str(value) for value in (row.failed, row.broken, row.unknown, row.missed)))
    console.print(table)
    for title, report in _odd(sweep)[:_SHOWN]:
        for verdict in report.verdicts:
            if verdict.status != VALID:
                console.print(
                    f"[{'red' if verdict.status == INVALID else 'yellow'}]{escape(title)}[/]: {verdict.check}: "
                    f"expected {escape(verdict.expected)}; seen {escape(verdict.seen)}",
                    soft_wrap=True,
                )
        console.print(f"[dim]    run directory: {escape(str(report.directory))}[/]", soft_wrap=True)
    if len(_odd(sweep)) > _SHOWN:
        console.print(f"and {len(_odd(sweep)) - _SHOWN} more; --json has all")


def _odd(sweep: Sweep) -> list[tuple[str, RunReport]]:
    first = [("without any failure", sweep.first)] if sweep.first.status != VALID else []
    rest = [(said(sweep.scenario, one.failure), one.report) for one in sweep.outcomes if one.report.status != VALID]
    return first + rest


def document(sweeps: Sequence[Sweep], *, errors: Sequence[str] = ()) -> dict[str, Any]:
    """The JSON document, schema ``hooklab.failures/1``."""
    return {
        "schema": SCHEMA,
        "hooklab": lab.__version__,
        "status": worst(sweep.status for sweep in sweeps),
        "sweeps": [
            {
                "scenario": sweep.scenario.id,
                "file": sweep.scenario.path,
                "status": sweep.status,
                "evidence": sweep.first.evidence,
                "seed": sweep.scenario.seed,
                "failures": sweep.total,
                "made": len(sweep.outcomes),
                "first": as_json.run(sweep.first),
                "calls": [
                    {
                        "function": name,
                        "result": code,
                        "failed": row.failed,
                        "broken": row.broken,
                        "unknown": row.unknown,
                        "not_made": row.missed,
                    }
                    for (name, code), row in sorted(rows(sweep).items())
                ],
                "broken": [
                    {"failure": said(sweep.scenario, one.failure), "run": as_json.run(one.report)}
                    for one in sweep.outcomes
                    if one.report.status != VALID
                ],
            }
            for sweep in sweeps
        ],
        "errors": list(errors),
    }


def junit_text(sweeps: Sequence[Sweep], *, errors: Sequence[str] = ()) -> str:
    """JUnit XML: a suite for each scenario, a case for each failed call."""
    root = ET.Element("testsuites", name="hooklab")
    for sweep in sweeps:
        statuses = [outcome.report.status for outcome in sweep.outcomes]
        suite = ET.SubElement(
            root,
            "testsuite",
            name=clean(f"{sweep.scenario.id} --fail-each-call"),
            tests=str(len(statuses)),
            failures=str(statuses.count(INVALID)),
            errors="0",
            skipped=str(statuses.count(UNKNOWN)),
        )
        for outcome in sweep.outcomes:
            title = said(sweep.scenario, outcome.failure)
            case = ET.SubElement(suite, "testcase", classname=clean(sweep.scenario.id), name=clean(title))
            wrong = [one for one in outcome.report.verdicts if one.status == outcome.report.status != VALID]
            text = "; ".join(f"{one.check}: expected {one.expected}; seen {one.seen}" for one in wrong)
            if outcome.report.status == INVALID:
                ET.SubElement(case, "failure", message=clean(text), type=wrong[0].check)
            elif outcome.report.status == UNKNOWN:
                ET.SubElement(case, "skipped", message=clean(f"unknown: {text}"))
    if errors:
        suite = ET.SubElement(root, "testsuite", name="runs", tests=str(len(errors)), errors=str(len(errors)))
        for number, error in enumerate(errors):
            case = ET.SubElement(suite, "testcase", classname="runs", name=f"run {number}")
            ET.SubElement(case, "error", message=clean(error))
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def exit_code(sweeps: Sequence[Sweep], *, allow_unknown: bool = False) -> int:
    """1 when anything broke, 3 when anything could not be judged."""
    return model_exit_code([sweep.status for sweep in sweeps], allow_unknown=allow_unknown)
