"""Memory policies graded: what a container's processes ask for, and what became of it.

Processes allocate and free at random under one limit; the books are exact. Overshoot: bytes above the limit, at worst.
Refused though it fitted: asks that were refused with room for them. Starvation: the longest run of refusals of one
process, each with room for it, while others were admitted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lab import policy as policies
from lab.sim import rng

if TYPE_CHECKING:
    from lab.policy import Policy

MIB = 1 << 20
_KINDS = 8


@dataclass(frozen=True, kw_only=True)
class MemoryGrade:
    """One policy over all seeds. Bytes; counts of asks."""

    policy: str
    asks: int
    admitted: int
    overshoot: int
    refused_though_fitting: int
    starvation: int


def grade(
    name: str, *, limit: int = 4 << 30, processes: int = 8, asks: int = 2_000, seeds: tuple[int, ...] = (1, 2, 3)
) -> MemoryGrade:
    """`name` as in ``--policy``; "" is the built-in one. PolicyError says why it cannot be used."""
    return grade_made(
        lambda: policies.load(name), name or "memory", limit=limit, processes=processes, asks=asks, seeds=seeds
    )


def grade_made(
    make: Callable[[], Policy],
    name: str,
    *,
    limit: int = 4 << 30,
    processes: int = 8,
    asks: int = 2_000,
    seeds: tuple[int, ...] = (1, 2, 3),
) -> MemoryGrade:
    """The same of policies that `make` makes."""
    admitted = overshoot = unjust = starved = 0
    for seed in seeds:
        found = _one(make(), limit, processes, asks, seed)
        admitted += found[0]
        overshoot = max(overshoot, found[1])
        unjust += found[2]
        starved = max(starved, found[3])
    return MemoryGrade(
        policy=name,
        asks=asks * len(seeds),
        admitted=admitted,
        overshoot=overshoot,
        refused_though_fitting=unjust,
        starvation=starved,
    )


def _one(policy: Policy, limit: int, processes: int, asks: int, seed: int) -> tuple[int, int, int, int]:
    draws = rng.stream(seed, "memory")
    held: list[list[int]] = [[] for _ in range(processes)]
    streak = [0] * processes
    used = admitted = overshoot = unjust = starved = 0
    for who, pages, choice, kind in zip(
        draws.integers(0, processes, asks).tolist(),
        (2.0 ** draws.uniform(0, 9, asks)).astype(int).tolist(),
        draws.random(asks).tolist(),
        draws.integers(0, _KINDS, asks).tolist(),
        strict=True,
    ):
        own = held[who]
        if own and choice < 0.45:
            used -= own.pop(int(choice / 0.45 * len(own)))
            continue
        size = pages * 2 * MIB
        answer = policy.admit(0, size, kind, used, limit, used - sum(own))
        if answer == 0:
            admitted += 1
            own.append(size)
            used += size
            overshoot = max(overshoot, used - limit)
            streak[who] = 0
        elif used + size <= limit:
            unjust += 1
            streak[who] += 1
            starved = max(starved, streak[who])
    return admitted, overshoot, unjust, starved
