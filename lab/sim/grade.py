"""Controllers against each other: cases, seeds, figures with 95 % intervals.

Graded is what the simulated GPU's own clock says, never what a controller measured. A window is one second; the first
three after arrival do not count. Errors are in points (percent of the GPU).
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from lab.policy import pacing
from lab.sim.gate import Pacer
from lab.sim.gpu import GpuModel
from lab.sim.patterns import pattern
from lab.sim.startup import nearest_rank
from lab.sim.world import SECOND, NvmlModel, Tenant, World

SKIP = 3  # windows after arrival
SMS = (16, 54, 108, 132, 188)
Shares: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Case:
    """Tenants on one GPU: (pattern, target percent) for each; `seconds` of virtual time after the first `SKIP`."""

    name: str
    tenants: tuple[tuple[str, int], ...]
    seconds: int = 10
    long_run: bool = False  # judged by its mean only: one kernel is longer than a window

    @property
    def alone(self) -> bool:
        return len(self.tenants) == 1


def alone(name: str, target: int) -> Case:
    """One tenant with a pattern."""
    slow = name in ("changing", "giant")
    settles = name.startswith("trace:") or pattern(name).settles
    return Case(name=f"{name} {target}", tenants=((name, target),), seconds=40 if slow else 10, long_run=not settles)


NEIGHBOURS: tuple[Case, ...] = (
    Case(name="30/70 uniform", tenants=(("async", 30), ("async", 70)), seconds=20),
    Case(name="30/70 mixed", tenants=(("mixed", 30), ("mixed", 70)), seconds=20),
    Case(name="10/90 mixed", tenants=(("mixed", 10), ("mixed", 90)), seconds=20),
    Case(name="20x4 mixed", tenants=(("mixed", 20),) * 4, seconds=20),
)
ALONE = ("async", "async-short", "sync", "sync-long", "burst", "modest", "mixed", "changing", "giant")


@dataclass(frozen=True, kw_only=True)
class Run:
    """One case with one controller, GPU, sampling and seed. Shares in percent, shape (windows, tenants)."""

    controller: str
    case: Case
    sms: int
    period_ns: int
    seed: int
    shares: Shares
    mae: float  # of the worst tenant, over the windows that count
    long_run: float  # |mean - target| of the worst tenant
    settled_s: int  # first window from which five in a row are within 5 points for all; -1 never
    jain: float  # of achieved over target
    wait_p50_ns: int
    wait_p99_ns: int
    latency_p99_ns: int
    lost: float  # points of capacity that were asked for, allowed, and not used


def maker(name: str) -> Callable[[], Pacer]:
    """What makes fresh controllers; `name` as `lab.policy.pacing.load_pacing` takes it. PolicyError in one line."""
    pacing.load_pacing(name)
    return functools.partial(pacing.load_pacing, name)


def play(
    controller: str,
    case: Case,
    *,
    sms: int = 108,
    period_ns: int = SECOND // 6,
    seed: int = 1,
    attribution: str = "exact",
    sharing: str = "slices",
    resident: int | None = None,
) -> Run:
    """One run. `controller` ``none``: nothing is limited."""
    model = (
        GpuModel(sms=sms, sharing=sharing)
        if resident is None
        else GpuModel(sms=sms, sharing=sharing, resident=resident)
    )
    found = [pattern(name) for name, _ in case.tenants]
    tenants = [Tenant(pattern=one, target=target) for one, (_, target) in zip(found, case.tenants, strict=True)]
    world = World(
        tenants,
        None if controller == "none" else maker(controller),
        gpu=model,
        nvml=NvmlModel(period_ns=period_ns, attribution=attribution),
        seed=seed,
    )
    trace = world.run((SKIP + case.seconds) * SECOND)
    shares: Shares = trace.busy.astype(np.float64) * (100 / SECOND)
    wanted: Shares = np.array(
        [min(target, one.demand) for one, (_, target) in zip(found, case.tenants, strict=True)], dtype=np.float64
    )
    counted = shares[SKIP:]
    means = counted.mean(axis=0)
    ratio = means / wanted
    waits = np.concatenate(trace.waits)
    latencies = np.concatenate(trace.latencies)
    return Run(
        controller=controller,
        case=case,
        sms=sms,
        period_ns=period_ns,
        seed=seed,
        shares=shares,
        mae=float(np.abs(counted - wanted).mean(axis=0).max()),
        long_run=float(np.abs(means - wanted).max()),
        settled_s=_settled(shares, wanted),
        jain=float(ratio.sum() ** 2 / (len(ratio) * (ratio**2).sum())) if ratio.any() else 0.0,
        wait_p50_ns=nearest_rank(waits, 50) if waits.size else 0,
        wait_p99_ns=nearest_rank(waits, 99) if waits.size else 0,
        latency_p99_ns=nearest_rank(latencies, 99) if latencies.size else 0,
        lost=max(0.0, min(100.0, float(wanted.sum())) - float(means.sum())),
    )


def _settled(shares: Shares, wanted: Shares) -> int:
    good = [bool(row.all()) for row in np.abs(shares - wanted) <= 5]
    for first in range(len(good) - 4):
        if all(good[first : first + 5]):
            return first
    return -1


@dataclass(frozen=True)
class Figure:
    """Mean over seeds and half the width of its 95 % interval."""

    mean: float
    half: float

    def __str__(self) -> str:
        return f"{self.mean:.1f} ±{self.half:.1f}"


_T95 = (
    12.71,
    4.30,
    3.18,
    2.78,
    2.57,
    2.45,
    2.36,
    2.31,
    2.26,
    2.23,
    2.20,
    2.18,
    2.16,
    2.14,
    2.13,
    2.12,
    2.11,
    2.10,
    2.09,
)


def figure(values: Sequence[float]) -> Figure:
    """Student's interval; NaN half-width for a single value, of which nothing can be said."""
    count = len(values)
    mean = math.fsum(values) / count
    if count < 2:
        return Figure(mean, math.nan)
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    t = _T95[count - 2] if count - 2 < len(_T95) else 1.96
    return Figure(mean, t * spread / math.sqrt(count))


@dataclass(frozen=True, kw_only=True)
class Row:
    """One controller in one case: the worst GPU of those tried, means over seeds."""

    controller: str
    case: str
    mae: Figure
    worst_sms: int
    long_run: Figure
    settled_s: float  # mean over the runs that settled; NaN when none did
    unsettled: int  # runs that never did
    runs: int
    jain: float  # the lowest mean over seeds
    wait_p50_ms: float
    wait_p99_ms: float
    latency_p99_ms: float
    lost: float


def summarise(runs: Sequence[Run]) -> list[Row]:
    """Rows by case, then by controller, in the order in which they were first seen."""
    grouped: dict[tuple[str, str], dict[int, list[Run]]] = {}
    for run in runs:
        grouped.setdefault((run.case.name, run.controller), {}).setdefault(run.sms, []).append(run)
    return [_row(case, controller, by_sms) for (case, controller), by_sms in grouped.items()]


def _row(case: str, controller: str, by_sms: Mapping[int, list[Run]]) -> Row:
    every = [run for group in by_sms.values() for run in group]
    error = {sms: figure([run.mae for run in group]) for sms, group in by_sms.items()}
    worst = max(error, key=lambda sms: error[sms].mean)
    settled = [run.settled_s for run in every if run.settled_s >= 0]
    return Row(
        controller=controller,
        case=case,
        mae=error[worst],
        worst_sms=worst,
        long_run=max((figure([r.long_run for r in group]) for group in by_sms.values()), key=lambda found: found.mean),
        settled_s=math.fsum(settled) / len(settled) if settled else math.nan,
        unsettled=len(every) - len(settled),
        runs=len(every),
        jain=min(math.fsum(run.jain for run in group) / len(group) for group in by_sms.values()),
        wait_p50_ms=max(run.wait_p50_ns for run in every) / 1e6,
        wait_p99_ms=max(run.wait_p99_ns for run in every) / 1e6,
        latency_p99_ms=max(run.latency_p99_ns for run in every) / 1e6,
        lost=max(math.fsum(run.lost for run in group) / len(group) for group in by_sms.values()),
    )


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """Everything that is tried with everything."""

    controllers: tuple[str, ...]
    cases: tuple[Case, ...]
    sms: tuple[int, ...] = SMS
    period_ns: int = SECOND // 6
    seeds: tuple[int, ...] = tuple(range(1, 11))
    attribution: str = "exact"
    sharing: str = "slices"

    def plan(self) -> list[tuple[str, Case, int, int]]:
        """(controller, case, SMs, seed) of every run."""
        return [
            (c, case, sms, seed)
            for case in self.cases
            for c in self.controllers
            for sms in self.sms
            for seed in self.seeds
        ]

    def one(self, item: tuple[str, Case, int, int]) -> Run:
        """Plays one of them."""
        controller, case, sms, seed = item
        return play(
            controller,
            case,
            sms=sms,
            period_ns=self.period_ns,
            seed=seed,
            attribution=self.attribution,
            sharing=self.sharing,
        )


def play_all(matrix: Matrix, *, jobs: int = 1) -> Iterator[Run]:
    """Every run in the order of the plan, on `jobs` processes (0: one for each processor)."""
    for name in matrix.controllers:
        if name != "none":
            maker(name)  # says what is wrong before anything runs
    plan = matrix.plan()
    jobs = jobs or len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else jobs or 1
    if jobs == 1 or len(plan) == 1:
        yield from map(matrix.one, plan)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(matrix.one, plan, chunksize=max(1, len(plan) // (jobs * 16)))
