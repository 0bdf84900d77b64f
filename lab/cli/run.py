"""`hooklab run`: scenarios into run directories, judged and reported."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from lab.report.baseline import Entry
    from lab.report.model import RunReport
    from lab.scenario.load import Overrides
    from lab.scenario.model import Scenario

DEFAULT_OUT = "runs"


@click.command()
@click.argument("targets", nargs=-1, required=True, metavar="FILE|DIR|@NAME...")
@click.option(
    "--on",
    "where",
    type=click.Choice(["fake", "real", "sim"]),
    default="fake",
    show_default=True,
    help="Driver below: the fake, this machine's own, or the simulator.",
)
@click.option("--gpu", metavar="PROFILE,...", help="GPU profiles of the node instead of the file's.")
@click.option("--driver", metavar="VERSION", help="Driver generation instead of the file's.")
@click.option("--memory", metavar="SIZE", help="Memory limit of every container instead of the file's.")
@click.option("--cores", metavar="PERCENT", type=click.IntRange(0, 100), help="Core limit of every container.")
@click.option("--interposer", metavar="builtin|none|PATH", help="The library under test.")
@click.option("--dialect", metavar="NAME|FILE", help="How limits reach the interposer.")
@click.option("--policy", metavar="NAME|FILE:Class", help="Policy of the built-in interposer.")
@click.option("--memory-mode", type=click.Choice(["reserve", "double-check"]), help="How the ledger admits.")
@click.option("--seed", type=click.IntRange(min=0), help="Seed instead of the file's.")
@click.option(
    "--repeat", type=click.IntRange(min=1), default=1, show_default=True, help="Runs of each, seeds counting up."
)
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Runs at the same time.")
@click.option("--timeout", metavar="DURATION", help="Time limit of each run instead of the file's, e.g. 30s.")
@click.option(
    "--out", type=click.Path(file_okay=False), default=DEFAULT_OUT, show_default=True, help="Parent of run directories."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document (docs/report-schema.md), nothing else.")
@click.option("--junit", type=click.Path(dir_okay=False), help="Write JUnit XML to this file too.")
@click.option("--baseline", type=click.Path(dir_okay=False), help="Failures that are expected, and must happen.")
@click.option("--write-baseline", type=click.Path(dir_okay=False), help="Write what failed as a baseline, and exit 0.")
@click.option(
    "--fail-each-call", is_flag=True, help="For each driver call of the scenario a run in which just that call fails."
)
@click.option(
    "--fail-most", type=click.IntRange(min=1), metavar="N", help="At most N of these runs, drawn by the seed."
)
@click.option("--keep", is_flag=True, help="Keep the directories of all of these runs, not only of those that broke.")
@click.option("--allow-unknown", is_flag=True, help="Exit 0 when nothing is invalid but something is unknown.")
def run(targets: tuple[str, ...], **options: Any) -> int:
    """Run scenarios, or replay a run directory.

    Each run makes a directory with everything needed to judge and repeat it. Exit status: 0 all valid, 1 something
    invalid, 2 wrong usage, 3 something unknown.
    """
    from lab.cli._making import make
    from lab.cli._targets import resolve
    from lab.report import baseline
    from lab.runner.guest import check_natives

    _agree(options)
    before = baseline.load(options["baseline"]) if options["baseline"] else None  # said before an hour of runs
    plans = _load(resolve(targets), _overrides(options), options["repeat"])
    if any(plan.scenario.simulate is None for plan in plans) and options["where"] != "sim":
        check_natives()
    _check([plan.scenario for plan in plans], options["where"])
    if options["fail_each_call"]:
        from lab.cli._failures import sweep

        return sweep([plan.scenario for plan in plans], options)
    made = list(make([plan.scenario for plan in plans], options))
    reports: list[RunReport] = []
    for plan, one in zip(plans, made, strict=True):
        if one.report is not None:
            reports.append(_repeated(one.report, plan.before))
    return _finish(reports, [one.error for one in made if one.error], options, before)


def _agree(options: dict[str, Any]) -> None:
    """Options that mean nothing together."""
    if options["fail_most"] and not options["fail_each_call"]:
        raise click.UsageError("--fail-most limits --fail-each-call; give that, too")
    if options["keep"] and not options["fail_each_call"]:
        raise click.UsageError("--keep is of --fail-each-call, which removes what is valid; other runs are all kept")
    if options["fail_each_call"]:
        if options["where"] != "fake":
            raise click.UsageError(
                f"--fail-each-call plans faults in the fake driver; not with --on {options['where']}"
            )
        for name in ("baseline", "write_baseline"):
            if options[name]:
                raise click.UsageError(f"--{name.replace('_', '-')} is of whole scenarios; not with --fail-each-call")


def _overrides(options: dict[str, Any]) -> Overrides:
    from lab.scenario.load import Overrides

    return Overrides(
        gpu=options["gpu"],
        driver=options["driver"],
        memory=options["memory"],
        cores=options["cores"],
        interposer=_interposer(options["interposer"]),
        dialect=_file_first(options["dialect"]),
        policy=_file_first(options["policy"]),
        memory_mode=options["memory_mode"],
        seed=options["seed"],
        timeout=options["timeout"],
    )


def _interposer(value: str | None) -> str | None:
    if value in (None, "builtin", "none"):
        return value
    from lab.runner.guest import interposer_path

    return str(interposer_path(value))  # its error names the file and what is wrong with it


def _file_first(value: str | None) -> str | None:
    """``FILE`` or ``FILE:Class`` made absolute, so that a replay finds it; names stay names."""
    if value is None:
        return None
    file, colon, rest = value.partition(":")
    return f"{Path(file).absolute()}{colon}{rest}" if Path(file).is_file() else value


@dataclass(frozen=True)
class _Plan:
    """A run to make, and the run directory that it repeats."""

    scenario: Scenario
    before: Path | None


def _load(files: Mapping[Path, Path | None], overrides: Overrides, repeat: int) -> list[_Plan]:
    from lab.scenario.load import ScenarioError, load

    found: list[_Plan] = []
    problems: list[Any] = []
    for file, before in files.items():
        try:
            found += [_Plan(scenario, before) for scenario in load(file, overrides=overrides)]
        except ScenarioError as error:
            problems += error.problems
    if problems:
        raise ScenarioError(problems)
    if repeat == 1:
        return found
    return [_Plan(_again(plan.scenario, number), plan.before) for plan in found for number in range(repeat)]


def _repeated(report: RunReport, before: Path | None) -> RunReport:
    """Says beside the report of a repetition what it did otherwise."""
    if before is None or report.directory is None:
        return report
    from lab.report.replay import differences

    return replace(report, repeats=before, differences=differences(before, report.directory))


def _again(scenario: Scenario, number: int) -> Scenario:
    seed = scenario.seed + number
    return replace(scenario, id=f"{scenario.id} #{number + 1}", seed=seed, raw={**scenario.raw, "seed": seed})


def _check(scenarios: Sequence[Scenario], where: str) -> None:
    """What would fail in every process is said once, before anything is made."""
    from lab import policy

    for name in dict.fromkeys(scenario.options.policy for scenario in scenarios):
        if name is not None:
            policy.load(name)
    if where == "real" and any(scenario.simulate is None for scenario in scenarios):
        probe = [sys.executable, "-c", "import ctypes; ctypes.CDLL('libcuda.so.1')"]  # never loaded in this process
        if subprocess.run(probe, capture_output=True, check=False).returncode:
            raise click.ClickException("--on real: this machine has no libcuda.so.1 (the NVIDIA driver); use --on fake")


def _finish(
    reports: Sequence[RunReport],
    errors: Sequence[str],
    options: dict[str, Any],
    before: Mapping[str, Entry] | None,
) -> int:
    from lab.report import as_json, baseline, junit
    from lab.report.model import exit_code

    compared = baseline.compare(reports, before) if before is not None else None
    if options["write_baseline"]:
        Path(options["write_baseline"]).write_text(baseline.text(reports, before=before), encoding="utf-8")
    if options["junit"]:
        Path(options["junit"]).write_text(junit.text(reports, errors=errors, baseline=before), encoding="utf-8")
    if options["as_json"]:
        click.echo(json.dumps(as_json.document(reports, errors=errors, compared=compared), indent=1))
    else:
        from lab.report import terminal
        from lab.report.console import console

        out = console()
        for report in reports:
            terminal.show(out, report, full=len(reports) == 1)
        if len(reports) > 1:
            terminal.summary(out, reports)
        if compared is not None:
            terminal.compared(out, compared)
    for error in errors:
        click.echo(f"hooklab: {error}", err=True)
    if errors:
        return 2
    if options["write_baseline"]:
        return 0
    if any(report.differences for report in reports):
        return 1
    if compared is not None:
        return compared.exit_code(allow_unknown=options["allow_unknown"])
    return exit_code([report.status for report in reports], allow_unknown=options["allow_unknown"])
