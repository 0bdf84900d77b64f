"""Which tier answered how often, why others did not, and how long it took: read from the history of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import numpy.typing as npt

from lab.spec import load_layout


@cache
def tiers() -> Mapping[int, str]:
    """Number -> name: unknown, broker, procfs, probe."""
    return _names("HL_TIER_")


@cache
def reasons() -> Mapping[int, str]:
    """Number -> name of why a tier did not answer: `answered`, `disabled`, `no_socket` ..."""
    return {number: name for number, name in _names("HL_REASON_").items() if name != "count"}


def _names(prefix: str) -> Mapping[int, str]:
    constants = load_layout("history").constants
    return {
        int(value): name.removeprefix(prefix).lower() for name, value in constants.items() if name.startswith(prefix)
    }


@dataclass(frozen=True)
class Paths:
    """What the processes of a run did to learn their host PIDs. Attempts, not processes: a failed one is repeated."""

    broker_success: int = 0
    broker_failure: int = 0
    procfs_success: int = 0
    procfs_failure: int = 0
    nvml_fallback: int = 0
    """How often the experiment was begun, whatever came of it."""
    nvml_success: int = 0
    unknown: int = 0
    """Attempts that no tier answered."""
    reasons: Mapping[str, int] = field(default_factory=dict)
    """`tier: reason` -> count, of tiers that were enabled and did not answer."""
    durations_ns: Mapping[str, list[int]] = field(default_factory=dict)
    """By answering tier (or `unknown`): what each attempt took altogether, in order of time."""
    host_pids: Mapping[int, tuple[str, int]] = field(default_factory=dict)
    """By host PID: the tier that said so and the process index of the run."""


def paths(records: npt.NDArray[np.void]) -> Paths:
    """Counts the IDENTITY records among `records` (layout history), which come sorted by time."""
    constants = load_layout("history").constants
    mine = records[records["event"] == int(constants["HL_EVENT_IDENTITY"])]
    asked, why = Counter[tuple[str, bool]](), Counter[str]()
    durations: dict[str, list[int]] = {}
    found: dict[int, tuple[str, int]] = {}
    unknown = 0
    for record in mine:
        tier, reason = tiers()[int(record["a"])], reasons()[int(record["result"])]
        if int(record["extra"]) == 1:
            durations.setdefault(tier, []).append(int(record["c"]))
            unknown += tier == "unknown"
            if int(record["b"]):
                found[int(record["b"])] = (tier, int(record["process"]))
        elif reason != "disabled":
            asked[tier, bool(record["b"])] += 1
            if not record["b"]:
                why[f"{tier}: {reason}"] += 1
    return Paths(
        broker_success=asked["broker", True],
        broker_failure=asked["broker", False],
        procfs_success=asked["procfs", True],
        procfs_failure=asked["procfs", False],
        nvml_fallback=asked["probe", True] + asked["probe", False],
        nvml_success=asked["probe", True],
        unknown=unknown,
        reasons=dict(why),
        durations_ns=durations,
        host_pids=found,
    )
