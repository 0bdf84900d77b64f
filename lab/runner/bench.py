"""Measures what an interposer adds to driver calls: bare and interposed processes in turn, in one run.

The measuring program (`hooklab-bench`) is the same on both sides. A round runs it once bare and once interposed, the
order alternating, so that a drift of the machine falls on both. A figure is the median over rounds of each run's own
median; `added` and `ratio` are computed from those two medians. A run that fails gives no figure at all: it is counted
and its reason kept, so that what fails can not look fast.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab import native
from lab.runner.guest import check_natives, check_real_driver, interposer_path, limit_environment

SCHEMA = "hooklab.bench/1"
_PRELOAD_RUNS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """What to measure. `memory` is a size with unit, `live` ascending counts separated by commas."""

    interposer: str = "builtin"
    dialect: str | None = None
    gpu: str = "a100-80g"
    memory: str = "16GiB"
    live: str = "0,1000,10000,100000"
    rounds: int = 5
    batches: int = 41
    on: str = "fake"


@dataclass(frozen=True, slots=True)
class BenchRow:
    """One call: medians in ns on both sides; `failed` counts runs (either side) that gave no figure."""

    call: str
    live: int
    bare_ns: float
    interposed_ns: float
    failed: int

    @property
    def added_ns(self) -> float:
        return self.interposed_ns - self.bare_ns

    @property
    def ratio(self) -> float:
        return self.interposed_ns / self.bare_ns if self.bare_ns else float("inf")


@dataclass(frozen=True, slots=True)
class BenchResult:
    """All rows of one measurement with its evidence class; `failures` is one line for each run without figures."""

    rows: tuple[BenchRow, ...]
    evidence: str
    rounds: int
    interposer: str
    failures: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """The documented JSON form, schema hooklab.bench/1."""
        return {
            "schema": SCHEMA,
            "evidence": self.evidence,
            "rounds": self.rounds,
            "interposer": self.interposer,
            "failures": list(self.failures),
            "rows": [
                {
                    "call": row.call,
                    "live": row.live,
                    "bare_ns": row.bare_ns,
                    "interposed_ns": row.interposed_ns,
                    "added_ns": row.added_ns,
                    "ratio": row.ratio,
                    "failed": row.failed,
                }
                for row in self.rows
            ],
        }


class BenchError(Exception):
    """Options that cannot be measured, or a side that never gave figures; the text is one line with the reason."""


def measure_calls(options: BenchOptions, *, progress: bool = False) -> BenchResult:
    """Runs all rounds. Raises BenchError when a side never worked, GuestError on options that cannot be used."""
    check_natives()
    if options.on == "real":
        check_real_driver()
    _check_live(options.live)
    interposer = interposer_path(options.interposer)
    program = str(native.path("hooklab-bench"))
    command = [program, "--live", options.live, "--batches", str(options.batches)]
    figures: dict[tuple[str, int], dict[str, list[float]]] = defaultdict(lambda: {"bare": [], "interposed": []})
    failures: list[str] = []
    with _driver(options) as base, tempfile.TemporaryDirectory(prefix="hooklab-bench-") as scratch:
        for index in _rounds(options.rounds, progress=progress):
            sides = ("bare", "interposed") if index % 2 == 0 else ("interposed", "bare")
            for side in sides:
                environment = dict(base)
                if side == "interposed" and interposer is not None:
                    environment["LD_PRELOAD"] = str(interposer)
                    environment |= limit_environment(
                        dialect=options.dialect,
                        interposer=options.interposer,
                        region=Path(scratch) / f"region-{index}",
                        memory=options.memory,
                    )
                done = subprocess.run(
                    command, env=environment, capture_output=True, text=True, timeout=600, check=False
                )
                if done.returncode != 0:
                    failures.append(f"{side} run {index + 1}: {_ending(done.returncode)}: {_last_line(done.stderr)}")
                    continue
                for line in done.stdout.splitlines():
                    record = json.loads(line)
                    figures[record["call"], record["live"]][side].append(float(record["ns"]))
    _require(figures, failures)
    preload = _preload_cost(interposer, failures)
    rows = [
        BenchRow(
            call=call,
            live=live,
            bare_ns=statistics.median(sides["bare"]),
            interposed_ns=statistics.median(sides["interposed"]),
            failed=2 * options.rounds - len(sides["bare"]) - len(sides["interposed"]),
        )
        for (call, live), sides in figures.items()
        if sides["bare"] and sides["interposed"]
    ]
    rows.append(preload)
    return BenchResult(
        rows=tuple(rows),
        evidence="real-gpu" if options.on == "real" else "fake-driver",
        rounds=options.rounds,
        interposer=options.interposer,
        failures=tuple(failures),
    )


def _check_live(text: str) -> None:
    """BenchError unless it is ascending counts: the measuring program would say so in every round."""
    counts = [int(part) if part.isdecimal() else -1 for part in text.split(",")]
    if -1 in counts or counts != sorted(counts):
        raise BenchError(f"--live {text}: not ascending counts; write for example 0,1000,10000")


def _ending(code: int) -> str:
    """How a program ended, from subprocess's return code."""
    return f"exit {code}" if code >= 0 else signal.Signals(-code).name


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def _require(figures: Mapping[tuple[str, int], Mapping[str, list[float]]], failures: list[str]) -> None:
    for side in ("bare", "interposed"):
        if not any(sides[side] for sides in figures.values()):
            raise BenchError(
                f"bench calls: no {side} run gave figures; "
                + next((line for line in failures if line.startswith(side)), "the program printed none")
            )


@contextmanager
def _driver(options: BenchOptions) -> Iterator[dict[str, str]]:
    """The environment of the bare side; a node server lives as long as the context on a fake."""
    base = {key: value for key, value in os.environ.items() if not key.startswith(("HOOKLAB_", "CUDA_DEVICE_", "LD_"))}
    if options.on == "real":
        if "LD_LIBRARY_PATH" in os.environ:  # the driver may lie there
            base["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]
        yield base
        return
    from lab.node.server import NodeServer

    with NodeServer(gpus=[options.gpu], history_level=0) as server:
        base["LD_LIBRARY_PATH"] = str(native.path("fake/libcuda.so.1").parent)
        base["HOOKLAB_NODE"] = str(server.socket_path)
        yield base


def _preload_cost(interposer: Path | None, failures: list[str]) -> BenchRow:
    """Whole-process wall time of a program that never calls a driver, bare and preloaded in turn.

    Programs that fail give no time; BenchError when all of one side do.
    """
    failed = 0
    times: dict[str, list[float]] = {"bare": [], "interposed": []}
    clean = {"PATH": os.environ.get("PATH", "/usr/bin:/bin")}
    loaded = dict(clean, LD_PRELOAD=str(interposer)) if interposer is not None else clean
    for index in range(_PRELOAD_RUNS):
        pairs = [("bare", clean), ("interposed", loaded)]
        for side, environment in pairs if index % 2 == 0 else reversed(pairs):
            start = time.perf_counter_ns()
            pid = os.posix_spawnp("true", ["true"], environment)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            took = time.perf_counter_ns() - start
            if code == 0:
                times[side].append(float(took))
                continue
            failed += 1
            failures.append(f"{side} run {index + 1} of `true`: {_ending(code)}")
            if index + 1 == _PRELOAD_RUNS and not times[side]:
                raise BenchError(f"bench calls: {failures[-1]}, as all before it")
    return BenchRow("exec of true", 0, statistics.median(times["bare"]), statistics.median(times["interposed"]), failed)


def _rounds(count: int, *, progress: bool) -> Iterator[int]:
    if not progress or not sys.stderr.isatty():
        yield from range(count)
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(range(count), description="rounds", console=Console(stderr=True), transient=True)
