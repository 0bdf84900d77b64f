"""Makes runs: one after another here, or several at a time in worker processes, with progress on a terminal."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiprocessing.synchronize import Event

    from lab.report.model import RunReport
    from lab.scenario.model import Scenario


@dataclass(frozen=True)
class Made:
    """A run that was made, or the one line why it could not be."""

    report: RunReport | None
    error: str = ""


def make(scenarios: Sequence[Scenario], options: dict[str, Any]) -> Iterator[Made]:
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


def _here(scenario: Scenario, options: dict[str, Any]) -> Made:
    """One run in this process."""
    from lab.report.keep import keep
    from lab.report.model import report_run
    from lab.runner.execute import run_scenario

    directory = run_scenario(scenario, out=Path(options["out"]), on=options["where"])
    return Made(keep(report_run(scenario, directory)))


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


def _collect(scenario: Scenario, done: tuple[str, str]) -> Made:
    from lab.report.keep import keep
    from lab.report.model import report_run

    directory, error = done
    return Made(None, f"{scenario.id}: {error}") if error else Made(keep(report_run(scenario, directory)))
