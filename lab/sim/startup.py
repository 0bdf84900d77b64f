"""Plays a start-up: picks the engine, returns arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from lab.sim import rng
from lab.sim.plan import Plan, PlanError

Times: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]
ENGINES = ("auto", "events", "recursion")


@dataclass(frozen=True, kw_only=True)
class Started:
    """What became of N workers. Arrays of shape (N,), by worker number; times in ns."""

    latency: Times  # from a worker's own release to the end of its last timed phase
    end: Times  # virtual time at which it had ended all phases
    timeouts: Times  # waits that ran out
    gave_up: Flags  # some gate was given up: the worker went on without
    engine: str
    events: int = 0
    began: Mapping[str, Times] = field(default_factory=dict)  # by phase: when its service began; -1 for who gave up
    ended: Mapping[str, Times] = field(default_factory=dict)  # and when the phase was left, all inside it included

    def percentile(self, percent: float) -> int:
        """Nearest rank over all workers, those that gave up included; ns."""
        return nearest_rank(self.latency, percent)


def nearest_rank(values: Times, percent: float) -> int:
    """The smallest value that at least `percent` % of the values do not exceed."""
    if values.size == 0:
        raise PlanError("no values: a percentile of nothing")
    rank = max(1, -int(-percent * values.size // 100))
    return int(np.partition(values.ravel(), rank - 1)[rank - 1])


def releases(plan: Plan, workers: int, seed: int) -> Times:
    """When each worker is released, shape (workers,)."""
    return (rng.uniform(seed, "release", workers) * plan.release_ns).astype(np.int64)


def factors(plan: Plan, workers: int, seed: int) -> dict[str, rng.Floats]:
    """For each phase with a spread, the factor of each worker."""
    return {
        phase.name: rng.lognormal(seed, f"phase {phase.name}", workers, phase.spread)
        for phase in plan.walk()
        if phase.spread
    }


def play(
    plan: Plan,
    *,
    workers: int,
    seed: int = 1,
    engine: str = "auto",
    release: Sequence[int] | Times | None = None,
    record: bool = False,
) -> Started:
    """Start `workers` processes at once.

    `engine`: ``recursion`` (feed-forward plans only: PlanError says why not), ``events`` (needs the extra ``sim``), or
    ``auto``: the recursion where it is exact, else the events. `release`: when each worker is released, ns, instead of
    the plan's uniform spread. `record`: fill `Started.began` and
    `Started.ended`.
    """
    from lab.sim import recursion

    if workers < 1:
        raise PlanError("at least one worker")
    if engine not in ENGINES:
        raise PlanError(f"engine {engine!r} is none of {', '.join(ENGINES)}")
    at = releases(plan, workers, seed) if release is None else np.asarray(release, dtype=np.int64)
    if at.shape != (workers,) or bool((at < 0).any()):
        raise PlanError(f"release: {workers} times of at least 0, not {at.shape[0] if at.ndim else 'one'}")
    if engine == "events" or (engine == "auto" and recursion.obstacle(plan)):
        from lab.sim import events

        return events.play(plan, at, seed=seed, record=record)
    return recursion.play(plan, at, seed=seed, record=record)
