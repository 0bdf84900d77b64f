"""Controllers in closed loop: cases, seeds, what each run showed. `lab.report.pacing` makes the leaderboard of it.

Graded is what the simulated GPU's own clock says, never what a controller measured. A window is one second; the first
three after arrival do not count. Errors are in points (percent of the GPU).
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from lab.policy import pacing
from lab.sim import EVIDENCE
from lab.sim.gate import Pacer
from lab.sim.gpu import GpuModel
from lab.sim.patterns import pattern
from lab.sim.startup import Times, nearest_rank
from lab.sim.world import SECOND, NvmlModel, Tenant, World

SKIP = 3  # windows after arrival
SMS = (16, 54, 108, 132, 188)
Shares: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Case:
    """Tenants on one GPU: (pattern, target percent) for each; `seconds` of virtual time after the first `SKIP`."""

    tenants: tuple[tuple[str, int], ...]
    seconds: int = 10

    @property
    def pattern(self) -> str:
        """What they do: one name where all do the same."""
        return "+".join(dict.fromkeys(name for name, _ in self.tenants))

    @property
    def neighbours(self) -> str:
        """``30/70``; empty for a tenant alone."""
        return "/".join(str(target) for _, target in self.tenants) if len(self.tenants) > 1 else ""

    @property
    def name(self) -> str:
        """``async 30`` or ``async 30/70``."""
        return f"{self.pattern} {self.neighbours or self.tenants[0][1]}"

    @property
    def alone(self) -> bool:
        return len(self.tenants) == 1


def alone(name: str, target: int, *, seconds: int = 10) -> Case:
    """One tenant with a pattern; patterns that change slowly are watched four times as long."""
    pattern(name)
    return Case(tenants=((name, target),), seconds=seconds * 4 if name in SLOW else seconds)


def together(name: str, targets: Sequence[int], *, seconds: int = 20) -> Case:
    """Tenants with these targets and the same pattern, or with those of ``sync+async`` in turn."""
    names = [name] if name.startswith("trace:") else name.split("+")
    for one in names:
        pattern(one)
    return Case(tenants=tuple(zip(itertools.cycle(names), targets, strict=False)), seconds=seconds)


SLOW = ("changing", "giant")
ASSUMED_SWITCH = 30_000  # of the public tables; tenants lose 1.5 % to it, so that targets that add up to 100 are kept
KEPT: tuple[Case, ...] = (  # what can be kept with switches as measured, which take a tenth of the GPU
    together("async", (30, 50)),
    together("sync", (30, 50)),
    together("mixed", (30, 50)),
    together("mixed", (10, 70)),
    together("async", (20, 20, 20, 20)),
)
NEIGHBOURS: tuple[Case, ...] = (
    together("async", (30, 70)),
    together("mixed", (30, 70)),
    together("mixed", (10, 90)),
    together("mixed", (20, 20, 20, 20)),
)
ALONE = ("async", "async-short", "sync", "sync-long", "burst", "modest", "mixed", "changing", "giant")


@dataclass(frozen=True, kw_only=True)
class TenantRun:
    """What one tenant got. Errors in points against what it could have had (`wanted`: target or demand)."""

    pattern: str
    target: int
    wanted: float
    achieved: float
    mae: float
    long_run_error: float
    settled_s: int | None  # first second from which five in a row are within 5 points
    waits: Times  # (launches,) ns held at the gate
    latencies: Times  # (launches,) ns from the first ask to the kernel's end


@dataclass(frozen=True, kw_only=True)
class Run:
    """One case with one controller, GPU, sampling and seed. `shares` in percent, shape (windows, tenants)."""

    controller: str
    case: Case
    sms: int
    period_ns: int
    seed: int
    shares: Shares
    tenants: tuple[TenantRun, ...]
    jain: float  # of achieved over wanted
    lost: float  # points of capacity that were asked for, allowed, and not used

    @property
    def mae(self) -> float:
        """Of the worst tenant."""
        return max(tenant.mae for tenant in self.tenants)

    @property
    def long_run(self) -> float:
        """Of the worst tenant."""
        return max(tenant.long_run_error for tenant in self.tenants)

    def row(self) -> dict[str, Any]:
        """As `lab.report.pacing` takes it."""
        return {
            "policy": self.controller,
            "target": self.case.tenants[0][1],
            "pattern": self.case.pattern,
            "neighbours": self.case.neighbours,
            "sm_count": self.sms,
            "evidence": EVIDENCE,
            "seed": self.seed,
            "sample_period_ns": self.period_ns,
            "tenants": [
                {
                    "target": tenant.target,
                    "achieved": tenant.achieved,
                    "mae": tenant.mae,
                    "long_run_error": tenant.long_run_error,
                    "windows": self.shares[:, number].tolist(),
                    "settled_s": tenant.settled_s,
                    "launch_wait_p50_ns": _rank(tenant.waits, 50),
                    "launch_wait_p99_ns": _rank(tenant.waits, 99),
                    "launch_wait_max_ns": _rank(tenant.waits, 100),
                    "latency_p99_ns": _rank(tenant.latencies, 99),
                }
                for number, tenant in enumerate(self.tenants)
            ],
            "jain": self.jain,
            "lost": self.lost,
        }


def _rank(values: Times, percent: float) -> int:
    return nearest_rank(values, percent) if values.size else 0


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
    switch_ns: int | None = None,
    resident: int | None = None,
) -> Run:
    """One run. `controller` ``none``: nothing is limited. `switch_ns`: between time slices; None as measured."""
    model = GpuModel(sms=sms, sharing=sharing)
    if resident is not None:
        model = replace(model, resident=resident)
    if switch_ns is not None:
        model = replace(model, switch_ns=switch_ns, idle_switch_ns=switch_ns)
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
    return Run(
        controller=controller,
        case=case,
        sms=sms,
        period_ns=period_ns,
        seed=seed,
        shares=shares,
        tenants=tuple(
            TenantRun(
                pattern=name,
                target=target,
                wanted=float(wanted[number]),
                achieved=float(means[number]),
                mae=float(np.abs(counted[:, number] - wanted[number]).mean()),
                long_run_error=float(abs(means[number] - wanted[number])),
                settled_s=_settled(shares[:, number], float(wanted[number])),
                waits=trace.waits[number],
                latencies=trace.latencies[number],
            )
            for number, (name, target) in enumerate(case.tenants)
        ),
        jain=float(ratio.sum() ** 2 / (len(ratio) * (ratio**2).sum())) if ratio.any() else 0.0,
        lost=max(0.0, min(100.0, float(wanted.sum())) - float(means.sum())),
    )


def _settled(shares: Shares, wanted: float) -> int | None:
    good = (np.abs(shares - wanted) <= 5).tolist()
    for first in range(len(good) - 4):
        if all(good[first : first + 5]):
            return first
    return None


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
    switch_ns: int | None = None

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
            switch_ns=self.switch_ns,
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
