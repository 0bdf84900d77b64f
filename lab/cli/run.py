"""`hooklab run`: scenarios into run directories, judged and reported."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from multiprocessing.synchronize import Event

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
@click.option("--allow-unknown", is_flag=True, help="Exit 0 when nothing is invalid but something is unknown.")
def run(targets: tuple[str, ...], **options: Any) -> int:
    """Run scenarios, or replay a run directory.

    Each run makes a directory with everything needed to judge and repeat it. Exit status: 0 all valid, 1 something
    invalid, 2 wrong usage, 3 something unknown.
    """
    from lab.cli._targets import resolve
    from lab.runner.guest import check_natives

    plans = _load(resolve(targets), _overrides(options), options["repeat"])
    if any(plan.scenario.simulate is None for plan in plans) and options["where"] != "sim":
        check_natives()
    _check([plan.scenario for plan in plans], options["where"])
    made = list(_make([plan.scenario for plan in plans], options))
    reports: list[RunReport] = []
    for plan, one in zip(plans, made, strict=True):
        if one.report is not None:
            reports.append(_repeated(one.report, plan.before))
    return _finish(reports, [one.error for one in made if one.error], options)


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


@dataclass(frozen=True)
class _Made:
    """A run that was made, or the one line why it could not be."""

    report: RunReport | None
    error: str = ""


def _make(scenarios: Sequence[Scenario], options: dict[str, Any]) -> Iterator[_Made]:
    """Makes the runs, in order, with progress on a terminal; yields them in the order of the scenarios."""
    jobs = min(options["jobs"], len(scenarios))
    with _progress(len(scenarios), quiet=options["as_json"]) as step:
        if jobs <= 1:
            for scenario in scenarios:
                step(scenario.id, 0)
                yield _here(scenario, options)
                step(scenario.id, 1)
            return
        # Each run in the main thread of a worker process: runs at the same time share nothing. Workers ignore Ctrl-C
        # except while they run a scenario, which then ends its processes and keeps its directory.
        context = multiprocessing.get_context("spawn")
        stopped = context.Event()
        with ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin_worker, initargs=(stopped,)) as pool:
            futures = {
                pool.submit(_apart, scenario, options["out"], options["where"]): scenario for scenario in scenarios
            }
            try:
                for future in as_completed(futures):
                    step(futures[future].id, 1)
                yield from (_collect(scenario, future.result()) for future, scenario in futures.items())
            except KeyboardInterrupt:
                stopped.set()
                for worker in multiprocessing.active_children():
                    if worker.pid is not None:
                        os.kill(worker.pid, signal.SIGINT)
                pool.shutdown(wait=True, cancel_futures=True)
                raise KeyboardInterrupt(options["out"]) from None


@contextmanager
def _progress(total: int, *, quiet: bool) -> Iterator[Callable[[str, int], None]]:
    if quiet or not sys.stderr.isatty():
        yield lambda _name, _advance: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        MofNCompleteColumn(),
        BarColumn(20),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)

        def step(name: str, advance: int) -> None:
            bar.update(task, description=name, advance=advance)

        yield step


def _here(scenario: Scenario, options: dict[str, Any]) -> _Made:
    """One run in this process."""
    from lab.report.model import report_run
    from lab.runner.execute import run_scenario

    directory = run_scenario(scenario, out=Path(options["out"]), on=options["where"])
    return _Made(_keep(report_run(scenario, directory)))


_stopped: Event | None = None  # in a worker: set once no further run may begin


def _begin_worker(stopped: Event) -> None:
    global _stopped
    _stopped = stopped
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _apart(scenario: Scenario, out: str, where: str) -> tuple[str, str]:
    """In a worker: one run. (run directory, "") or ("", the one line why there is none)."""
    from lab.runner.execute import RunError, run_scenario

    if _stopped is not None and _stopped.is_set():
        return "", "not begun"
    try:
        return str(run_scenario(scenario, out=Path(out), on=where)), ""
    except (RunError, OSError) as error:
        return "", str(error)


def _collect(scenario: Scenario, done: tuple[str, str]) -> _Made:
    from lab.report.model import report_run

    directory, error = done
    return _Made(None, f"{scenario.id}: {error}") if error else _Made(_keep(report_run(scenario, directory)))


def _keep(report: RunReport) -> RunReport:
    """Puts the verdicts beside the history they came from."""
    from lab.report.as_json import document

    if report.directory is not None:
        _keep_policy(report.scenario, report.directory)
        fresh = report.directory / "verdicts.json.new"
        fresh.write_text(json.dumps(document([report]), indent=1) + "\n", encoding="utf-8")
        os.replace(fresh, report.directory / "verdicts.json")
    return report


def _keep_policy(scenario: Scenario, directory: Path) -> None:
    """Puts a policy of the user's own into the run directory, so that the run can be repeated anywhere."""
    from lab.scenario.load import dump

    file, _, name = (scenario.options.policy or "").rpartition(":")
    if file and Path(file).is_file():
        shutil.copyfile(file, directory / "policy.py")
        options = {**scenario.raw.get("options", {}), "policy": f"policy.py:{name}"}
        copy = replace(scenario, raw={**scenario.raw, "options": options})
        (directory / "scenario.yaml").write_text(dump(copy), encoding="utf-8")


def _finish(reports: Sequence[RunReport], errors: Sequence[str], options: dict[str, Any]) -> int:
    from lab.report import as_json, junit
    from lab.report.model import exit_code

    if options["junit"]:
        Path(options["junit"]).write_text(junit.text(reports, errors=errors), encoding="utf-8")
    if options["as_json"]:
        click.echo(json.dumps(as_json.document(reports, errors=errors), indent=1))
    else:
        from lab.report import terminal
        from lab.report.console import console

        out = console()
        for report in reports:
            terminal.show(out, report, full=len(reports) == 1)
        if len(reports) > 1:
            terminal.summary(out, reports)
    for error in errors:
        click.echo(f"hooklab: {error}", err=True)
    if errors:
        return 2
    if any(report.differences for report in reports):
        return 1
    return exit_code([report.status for report in reports], allow_unknown=options["allow_unknown"])
