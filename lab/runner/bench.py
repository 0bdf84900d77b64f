"""Times driver calls bare and interposed, side by side (lab.runner.pairs), over a fake or the machine's own driver."""

from __future__ import annotations

import dataclasses
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab import native
from lab.runner import pairs
from lab.runner.guest import check_natives, check_real_driver, interposer_path, limit_environment
from lab.runner.pairs import PairRow, ending
from lab.runner.plan import preload_list

SCHEMA = "hooklab.bench/1"
WAIT_SCHEMA = "hooklab.bench.waiting/1"
_PRELOAD_RUNS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """What to measure. `memory` is a size with unit, `cores` percent, `live` ascending counts separated by commas."""

    interposer: str = "builtin"
    dialect: str | None = None
    gpu: str = "a100-80g"
    memory: str = "16GiB"
    cores: int | None = None
    live: str = "0,1000,10000,100000"
    rounds: int = 5
    batches: int = 41
    on: str = "fake"


@dataclass(frozen=True, slots=True)
class BenchResult:
    """All rows of one measurement with its evidence class; `failures` is one line for each run without figures."""

    rows: tuple[PairRow, ...]
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
            "rows": [pairs.as_json(row) for row in self.rows],
        }


class BenchError(Exception):
    """Options that cannot be measured, or a side that never gave figures; the text is one line with the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramOptions:
    """A measuring program of the user's own (lab.runner.pairs), under the same two conditions."""

    command: Sequence[str]
    interposer: str = "builtin"
    dialect: str | None = None
    memory: str = "16GiB"
    cores: int | None = None
    rounds: int = 5
    batches: int = 41
    cpus: int = 4
    on: str = "fake"
    gpu: str = "a100-80g"


def measure_calls(options: BenchOptions, *, progress: bool = False) -> BenchResult:
    """Runs all rounds. Raises BenchError when a side never worked, GuestError on options that cannot be used."""
    _check_live(options.live)
    program = ProgramOptions(
        command=(str(native.path("hooklab-bench")), "--live", options.live),
        interposer=options.interposer,
        dialect=options.dialect,
        memory=options.memory,
        cores=options.cores,
        rounds=options.rounds,
        batches=options.batches,
        cpus=1,
        on=options.on,
        gpu=options.gpu,
    )
    result = measure_program(program, progress=progress, together=False)
    failures = list(result.failures)
    preload = _preload_cost(interposer_path(options.interposer), failures)
    return dataclasses.replace(result, rows=(*result.rows, preload), failures=tuple(failures))


def measure_program(options: ProgramOptions, *, progress: bool = False, together: bool = True) -> BenchResult:
    """The figures of any measuring program. Raises as measure_calls."""
    check_natives()
    if options.on == "real":
        check_real_driver()
    interposer = interposer_path(options.interposer)
    with _driver(options) as base, tempfile.TemporaryDirectory(prefix="hooklab-bench-") as scratch:

        def environment(side: str, number: int) -> Mapping[str, str]:
            if side != "interposed" or interposer is None:
                return base
            limits = limit_environment(
                dialect=options.dialect,
                interposer=options.interposer,
                region=Path(scratch) / f"region-{number}",
                memory=options.memory,
                cores=options.cores,
            )
            return base | {"LD_PRELOAD": ":".join(preload_list(str(interposer)))} | limits

        rows, failures = pairs.measure(
            list(options.command),
            environment,
            rounds=_rounds(options.rounds, progress=progress),
            batches=options.batches,
            cpus=options.cpus,
            together=together,
        )
    _require(rows, failures)
    return BenchResult(
        rows=rows,
        evidence="real-gpu" if options.on == "real" else "fake-driver",
        rounds=options.rounds,
        interposer=options.interposer,
        failures=failures,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitOptions:
    """What shall wait: `patterns` of `lab.runner.pacing`, under a core limit of `cores` percent, `seconds` each."""

    cores: int = 10
    patterns: Sequence[str] = ("long", "sync", "async")
    policy: str = "hybrid"
    seconds: float = 5
    gpu: str = "a100-80g"
    on: str = "fake"


def measure_waiting(options: WaitOptions) -> dict[str, Any]:
    """Processor time of processes that a core limit holds back most of the time; percent of one processor.

    Everything that they do counts, their launches and the start of the policy engine too. BenchError says why there are
    no figures.
    """
    from lab.runner.pacing import SKIPPED_S, PacingError, run_pacing

    check_natives()
    if options.on == "real":
        check_real_driver()
    try:
        rows = run_pacing(
            policies=[options.policy],
            targets=[options.cores],
            patterns=list(options.patterns),
            window_s=options.seconds,
            gpu=options.gpu,
            on=options.on,
        )
    except PacingError as error:
        raise BenchError(str(error)) from None
    found = []
    for row in rows:
        (tenant,) = row["tenants"]
        wall_s = options.seconds + (SKIPPED_S if options.seconds >= 5 else 1) + 0.5
        found.append(
            {
                "pattern": row["pattern"],
                "launches": tenant["launches"],
                "waits": tenant.get("waits", 0),
                "waited_percent": round(tenant.get("slept_ns", 0) / wall_s / 1e7, 1),
                "cpu_percent": tenant["cpu_percent"],
            }
        )
    evidence = rows[0]["evidence"] if rows else ""
    return {
        "schema": WAIT_SCHEMA,
        "evidence": evidence,
        "cores": options.cores,
        "policy": options.policy,
        "rows": found,
    }


def _check_live(text: str) -> None:
    """BenchError unless it is ascending counts: the measuring program would say so in every round."""
    counts = [int(part) if part.isdecimal() else -1 for part in text.split(",")]
    if -1 in counts or counts != sorted(counts):
        raise BenchError(f"--live {text}: not ascending counts; write for example 0,1000,10000")


def _require(rows: Sequence[PairRow], failures: Sequence[str]) -> None:
    if rows:
        return
    first = next((line for side in pairs.SIDES for line in failures if line.startswith(side)), "none was printed")
    side = first.partition(" ")[0] if failures else "measuring"
    raise BenchError(f"bench calls: no {side} run gave figures; {first}")


@contextmanager
def _driver(options: ProgramOptions) -> Iterator[dict[str, str]]:
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


def _preload_cost(interposer: Path | None, failures: list[str]) -> PairRow:
    """Whole-process wall time of a program that never calls a driver, on each side in turn.

    Programs that fail give no time; BenchError when all of one side do.
    """
    times: dict[str, list[float]] = {side: [] for side in pairs.SIDES}
    differences: dict[str, list[float]] = {"control": [], "interposed": []}
    clean = {"PATH": os.environ.get("PATH", "/usr/bin:/bin")}
    loaded = dict(clean, LD_PRELOAD=":".join(preload_list(str(interposer)))) if interposer is not None else clean
    for index in range(_PRELOAD_RUNS):
        took: dict[str, float] = {}
        for side in pairs.SIDES if index % 2 == 0 else reversed(pairs.SIDES):
            start = time.perf_counter_ns()
            pid = os.posix_spawnp("true", ["true"], loaded if side == "interposed" else clean)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            if code == 0:
                took[side] = float(time.perf_counter_ns() - start)
                times[side].append(took[side])
                continue
            failures.append(f"{side} run {index + 1} of `true`: {ending(code)}")
            if index + 1 == _PRELOAD_RUNS and not times[side]:
                raise BenchError(f"bench calls: {failures[-1]}, as all before it")
        for side, found in differences.items():
            if side in took and "bare" in took:
                found.append(took[side] - took["bare"])
    return PairRow(
        call="exec of true",
        live=0,
        bare_ns=statistics.median(times["bare"]),
        interposed_ns=statistics.median(times["interposed"]),
        added_ns=statistics.median(differences["interposed"]),
        control_ns=statistics.median(differences["control"]),
        failed=3 * _PRELOAD_RUNS - sum(map(len, times.values())),
    )


def _rounds(count: int, *, progress: bool) -> Iterator[int]:
    if not progress or not sys.stderr.isatty():
        yield from range(count)
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(range(count), description="rounds", console=Console(stderr=True), transient=True)
