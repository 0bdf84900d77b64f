"""Makes runs: one after another here, or several at a time in worker processes, with progress on a terminal."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiprocessing.synchronize import Event

    from lab.report.model import RunReport
    from lab.scenario.model import Scenario


_AHEAD = 4


@dataclass(frozen=True)
class Made:
    """A run that was made, or the one line why it could not be."""

    report: RunReport | None
    error: str = ""


def make(scenarios: Sequence[Scenario], options: dict[str, Any]) -> Generator[Made]:
    """Makes the runs with progress on a terminal, and yields them in the order of the scenarios.

    At most `_AHEAD` runs a job are made before the caller has taken theirs, so that it may remove what it does not need
    while others are made. Close it (`contextlib.closing`) where the caller may leave before its end.
    """
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
        with (
            _interruptible(),
            ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin_worker, initargs=(stopped,)) as pool,
        ):
            under_way: deque[tuple[Scenario, Future[tuple[str, str]]]] = deque()
            try:
                for scenario in scenarios:
                    under_way.append((scenario, pool.submit(_apart, scenario, options["out"], options["where"])))
                    if len(under_way) >= _AHEAD * jobs:
                        yield _next(under_way, step)
                while under_way:
                    yield _next(under_way, step)
            except BaseException as error:
                stopped.set()
                for worker in multiprocessing.active_children():
                    if worker.pid is not None:
                        os.kill(worker.pid, signal.SIGINT)
                pool.shutdown(wait=True, cancel_futures=True)
                if isinstance(error, KeyboardInterrupt):
                    raise KeyboardInterrupt(options["out"]) from None
                raise


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C and SIGTERM raise KeyboardInterrupt, once, in a job of the background too, which begins deaf to Ctrl-C."""

    def stop(*_: object) -> None:
        for number in before:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    numbers = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _next(under_way: deque[tuple[Scenario, Future[tuple[str, str]]]], step: Callable[[str, int], None]) -> Made:
    scenario, future = under_way.popleft()
    done = future.result()
    step(scenario.id, 1)
    return _collect(scenario, done)


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
