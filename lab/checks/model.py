"""What a check is given and what it says."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from lab.checks.history import NONE16, HistoryData, Records
from lab.scenario.model import Instance, Scenario, Step

VALID, INVALID, UNKNOWN = "valid", "invalid", "unknown"
_SEVERITY = {VALID: 0, UNKNOWN: 1, INVALID: 2}

Bounds = tuple[int | None, int | None]  # both inclusive, None = open


@dataclass(frozen=True)
class Verdict:
    """The answer of one check. ``where`` is file:line:col; ``details`` are further lines (processes, backtraces)."""

    status: str
    check: str
    subject: str  # the step, process or container that it is about
    expected: str
    seen: str
    where: str
    evidence: str
    implied: bool = False  # not written in the file, but always expected
    details: tuple[str, ...] = ()


def worst(statuses: Iterable[str]) -> str:
    """The verdict on a whole: invalid over unknown over valid; nothing at all is unknown."""
    return max(statuses, key=lambda status: _SEVERITY.get(status, 2), default=UNKNOWN)


@dataclass(frozen=True)
class RunData:
    """A run as the checks see it: its history, and ``info`` = run.json (every key optional here)."""

    history: HistoryData
    info: Mapping[str, Any] = field(default_factory=dict)

    @property
    def evidence(self) -> str:
        return str(self.info.get("evidence", "fake-driver"))

    @property
    def complete(self) -> bool:
        """Whether no record can be missing: nothing was dropped, and the run was not cut short from outside.

        The half-written record of a killed process is no loss.
        """
        if self.info.get("interrupted"):
            return False
        lost = self.history.uncommitted if not self.killed else 0
        return self.history.dropped == 0 and lost == 0

    @cached_property
    def killed(self) -> bool:
        return any(status & 0x7F for status in self.statuses.values())

    @cached_property
    def statuses(self) -> dict[int, int]:
        """Process index -> raw wait status, of those that are known to have ended."""
        found: dict[int, int] = {}
        for process in self.info.get("processes", ()):
            status = process.get("status") if isinstance(process, Mapping) else None
            if isinstance(status, int) and isinstance(process.get("index"), int):
                found[process["index"]] = status
        for record in self.history.of("EXIT"):
            if int(record["process"]) != NONE16:
                found[int(record["process"])] = int(record["a"]) & 0xFFFFFFFF
        if self.info.get("interrupted"):  # what the runner itself killed then says nothing about the process
            for record in self.history.of("SIGNAL"):
                found.pop(int(record["process"]), None)
        return found

    def process_info(self, index: int) -> Mapping[str, Any]:
        """The entry of run.json about a process; empty when there is none."""
        for process in self.info.get("processes", ()):
            if isinstance(process, Mapping) and process.get("index") == index:
                return process
        return {}


@dataclass(frozen=True)
class Scope:
    """The processes of a scenario that an expectation is about, and their steps."""

    instances: tuple[Instance, ...]

    @classmethod
    def of(cls, scenario: Scenario, arguments: Mapping[str, Any]) -> Scope:
        """Narrowed by ``process`` and ``container`` of an expectation's arguments."""
        container, process = arguments.get("container"), arguments.get("process")
        chosen = scenario.instances()
        if process is not None:
            indices = scenario.process_indices(process)
            chosen = tuple(instance for instance in chosen if instance.index in indices)
        return cls(tuple(one for one in chosen if container in (None, one.container.name)))

    def steps(self, label: str) -> dict[tuple[int, int], Step]:
        """(process index, step index) -> step, for every step called ``label``."""
        return {
            (instance.index, step.index): step
            for instance in self.instances
            for step in instance.process.walk()
            if step.label == label
        }


def select(records: Records, keys: Iterable[tuple[int, int]]) -> Records:
    """The records of these (process, step) pairs."""
    codes = [process * 0x10000 + step for process, step in keys]
    own = records["process"].astype(np.int64) * 0x10000 + records["step"].astype(np.int64)
    return records[np.isin(own, np.array(codes, dtype=np.int64))]


def judge_count(count: int, bounds: Bounds, *, complete: bool) -> str:
    """Whether a count of records is within bounds; unknown where missing records could change the answer."""
    low, high = bounds
    if high is not None and count > high:
        return INVALID
    if not complete:
        return UNKNOWN
    return INVALID if low is not None and count < low else VALID


def within(value: float, bounds: tuple[float | None, float | None]) -> bool:
    """Whether a number lies within bounds, both inclusive."""
    low, high = bounds
    return (low is None or value >= low) and (high is None or value <= high)


def bounds_text(bounds: Bounds, form: Any = str) -> str:
    """``3``, ``1 to 4``, ``at least 1``, ``at most 4``, ``any``."""
    low, high = bounds
    if low is not None and low == high:
        return str(form(low))
    if low is not None and high is not None:
        return f"{form(low)} to {form(high)}"
    if low is not None:
        return f"at least {form(low)}"
    return f"at most {form(high)}" if high is not None else "any"


def status_text(status: int) -> str:
    """A raw wait status in words: ``exit 0``, ``SIGKILL``."""
    number = status & 0x7F
    if number:
        try:
            return signal.Signals(number).name
        except ValueError:
            return f"signal {number}"
    return f"exit {(status >> 8) & 0xFF}"
