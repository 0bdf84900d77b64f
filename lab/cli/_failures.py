"""`hooklab run --fail-each-call`: each driver call of a scenario failed once, with each code that it may return.

What the calls are is found by a first run without failures; what must hold whatever fails is in lab.checks.failures.
Run directories of runs in which all held are removed as soon as they are judged (unless --keep): a sweep may have
thousands of them.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from lab.report.failures import Sweep
    from lab.report.model import RunReport
    from lab.scenario.model import Scenario


def sweep(scenarios: Sequence[Scenario], options: dict[str, Any]) -> int:
    """All sweeps, shown; the exit code."""
    from lab.report import failures as shown

    errors: list[str] = []
    sweeps = [one for scenario in scenarios if (one := _sweep(scenario, options, errors)) is not None]
    if options["junit"]:
        Path(options["junit"]).write_text(shown.junit_text(sweeps, errors=errors), encoding="utf-8")
    if options["as_json"]:
        click.echo(json.dumps(shown.document(sweeps, errors=errors), indent=1))
    else:
        from lab.report.console import console

        out = console()
        for one in sweeps:
            shown.show(out, one)
    for error in errors:
        click.echo(f"hooklab: {error}", err=True)
    return 2 if errors else shown.exit_code(sweeps, allow_unknown=options["allow_unknown"])


def _sweep(scenario: Scenario, options: dict[str, Any], errors: list[str]) -> Sweep | None:
    from lab.cli._making import Made, make
    from lab.report.failures import Outcome, Sweep
    from lab.scenario.failures import failing, failures, lenient

    if scenario.simulate is not None:
        errors.append(
            f"{scenario.path}: plays in virtual time and makes no driver calls; --fail-each-call has no meaning"
        )
        return None
    base, first = lenient(scenario), Made(None)
    for known in (True, False):
        base = lenient(scenario, ledger=known)
        (first,) = make([base], options)
        if first.report is None or first.report.directory is None:
            errors.append(first.error)
            return None
        if not any(one.check == "ledger_empty" and one.status == "unknown" for one in first.report.verdicts):
            break  # else: an interposer whose books nobody can read is judged by the rest
        _remove(first.report)
    assert first.report is not None
    assert first.report.directory is not None
    chosen, total = failures(_calls(first.report.directory), most=options["fail_most"], seed=scenario.seed)
    if not options["keep"]:
        _remove(first.report)
    variants = [failing(base, failure) for failure in chosen]
    outcomes: list[Outcome] = []
    with contextlib.closing(make(variants, options)) as runs:
        for failure, variant, made in zip(chosen, variants, runs, strict=True):
            if made.report is None:
                errors.append(made.error)
                continue
            outcomes.append(Outcome(failure, made.report, _fired(variant, made.report)))
            if made.report.status == "valid" and not options["keep"]:
                _remove(made.report)
    return Sweep(scenario, first.report, tuple(outcomes), total)


def _calls(directory: Path) -> Iterator[tuple[int, int, str]]:
    """(process, PID, function) of every call that reached the fake driver."""
    from lab.checks.history import NONE16, load
    from lab.scenario.vocabulary import hook_names

    names = hook_names()
    for record in load(directory / "history").of("CALL"):
        if int(record["process"]) != NONE16:
            yield int(record["process"]), int(record["pid"]), names[int(record["name"])]


def _fired(variant: Scenario, report: RunReport) -> bool:
    """Whether the planned call was made and failed. What processes do together may differ from run to run."""
    from lab.checks.history import load
    from lab.checks.model import RunData
    from lab.checks.processes import fired

    if report.directory is None:
        return False
    run = RunData(load(report.directory / "history"), report.info)
    return fired(variant, run).get(len(variant.faults) - 1, 0) > 0


def _remove(report: RunReport) -> None:
    if report.directory is not None:
        shutil.rmtree(report.directory, ignore_errors=True)
