"""Checks of memory: ``never_above`` from the driver's own books, ``ledger_empty`` from both books at the end.

The physical truth is what the fake driver recorded with the change itself (PHYS: used after it, atomically) and the
peaks of its counters (PHYS_END). A real driver is asked through NVML, at barriers and at the end (``held`` in
run.json), which says nothing of the moments between. An interposer's own claims count only for the moment at which a
process has closed its books: from then on its bytes are the driver's to return.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lab.checks import blind
from lab.checks.history import NONE8, NONE16, Records, event
from lab.checks.model import INVALID, UNKNOWN, VALID, RunData, Scope, Verdict, worst
from lab.scenario.model import Container, Expectation, Scenario
from lab.scenario.units import say_size
from lab.spec import load_layout

SIGKILL = 9  # the number on every system; `signal` has no such name on some


@dataclass(frozen=True)
class _Peak:
    subject: str
    peak: int | None  # None = no physical evidence
    certain: bool  # no lost record can hide a higher value
    lingering: int = 0  # what the books showed beyond `peak`, held by processes that had already ended


def never_above(expectation: Expectation, scenario: Scenario, run: RunData) -> Verdict:
    """Physical bytes of each container, process or device in scope stay at or below the bound at every moment."""
    arguments = expectation.arguments
    bound = int(arguments["memory"])
    of = str(arguments.get("of", "container"))
    peaks = list(_peaks(of, arguments, scenario, run, bound))
    statuses = []
    for peak in peaks:
        if peak.peak is not None and peak.peak > bound:
            statuses.append(INVALID)
        elif peak.peak is None or not (peak.certain or run.complete):
            statuses.append(UNKNOWN)
        else:
            statuses.append(VALID)
    unjudged = blind.why(run, (one.name for one in _containers(Scope.of(scenario, arguments))), "memory")
    known = [peak for peak in peaks if peak.peak is not None]
    over = [peak for peak in known if (peak.peak or 0) > bound]
    return Verdict(
        status=UNKNOWN if unjudged else worst(statuses),
        check="never_above",
        subject=over[0].subject if over else f"memory of each {of}" if len(peaks) != 1 else peaks[0].subject,
        expected=f"never above {say_size(bound)}",
        seen=_seen(peaks, known)
        + (f" ({run.history.dropped} records were dropped)" if run.history.dropped else "")
        + blind.note(unjudged),
        where=str(expectation.where),
        evidence=run.evidence,
        details=tuple(
            f"{peak.subject}: {say_size(peak.peak or 0)}, {say_size((peak.peak or 0) - bound)} too much"
            for peak in over
            if not unjudged
        ),
    )


def _seen(peaks: list[_Peak], known: list[_Peak]) -> str:
    said: list[str] = []
    highest = max(known, key=lambda peak: peak.peak or 0, default=None)
    if highest is not None:
        said.append(f"at most {say_size(highest.peak or 0)} ({highest.subject})")
        if highest.lingering:
            said.append(f"and up to {say_size(highest.lingering)} of processes already ended")
    silent = [peak.subject for peak in peaks if peak.peak is None]
    if silent or not peaks:
        said.append(f"no physical record of {', '.join(silent) or 'anything'}")
    return "; ".join(said)


def _peaks(of: str, arguments: Mapping[str, Any], scenario: Scenario, run: RunData, bound: int) -> Iterable[_Peak]:
    changes, ends = run.history.of("PHYS"), run.history.of("PHYS_END")
    device = arguments.get("device")
    if device is not None:
        changes, ends = changes[changes["device"] == device], ends[ends["device"] == device]
    scope = Scope.of(scenario, arguments)
    deaths = _Deaths(scenario, run)
    if of == "device":
        known = range(len(scenario.node.gpus)) if not ends.size else sorted({*ends["device"].tolist()})
        for ordinal in [device] if device is not None else known:
            mine = ends[(ends["device"] == ordinal) & (ends["container"] == NONE16)]
            counter = _highest(mine, "b")
            yield _living(f"device {ordinal}", changes[changes["device"] == ordinal], counter, bound, deaths)
    elif of == "process":
        silent = 0 if run.history.of("PHYS", "PHYS_END").size else None
        for instance in scope.instances:
            peak = _highest(changes[changes["process"] == instance.index], "c")
            yield _Peak(f"process {instance.label}", silent if peak is None else peak, False)
    else:
        for container in _containers(scope):
            counter = _highest(ends[ends["container"] == container.index], "b")
            mine = changes[changes["container"] == container.index]
            yield _living(f"container {container.name}", mine, counter, bound, deaths)


def _living(subject: str, changes: Records, counter: int | None, bound: int, deaths: _Deaths) -> _Peak:
    """The highest use. A process that was killed, or has closed its books, keeps its bytes in the driver until the
    driver notices (as on a real GPU); a bound that is only broken by such bytes is not broken by anyone alive."""
    moments = _highest(changes, "b") if not subject.startswith("device") else None
    peak = max((value for value in (counter, moments) if value is not None), default=None)
    if peak is None or peak <= bound or not deaths.any:
        return _Peak(subject, peak, counter is not None)
    living = _peak_of_the_living(changes, deaths)
    if living > bound:
        return _Peak(subject, living, True)
    return _Peak(subject, living, False, lingering=peak - living)


def _peak_of_the_living(changes: Records, deaths: _Deaths) -> int:
    """The highest sum, over processes not yet ended, of what each held on one device; changes come in their order."""
    highest = 0
    for device in set(changes["device"].tolist()):
        mine = changes[changes["device"] == device]
        columns = (mine["time_ns"].tolist(), mine["process"].tolist(), mine["pid"].tolist(), mine["c"].tolist())
        held: dict[tuple[int, int], int] = {}
        total = 0
        leaving = sorted((deaths.at(owner), owner) for owner in set(zip(columns[1], columns[2], strict=True)))
        for now, process, pid, size in zip(*columns, strict=True):
            while leaving and leaving[0][0] <= now:
                total -= held.get(leaving.pop(0)[1], 0)
            owner = (process, pid)
            if deaths.at(owner) > now:
                total += size - held.get(owner, 0)
                held[owner] = size
                highest = max(highest, total)
    return highest


class _Deaths:
    """When each process (index, pid) stopped being answerable for its bytes."""

    NEVER = 2**64

    def __init__(self, scenario: Scenario, run: RunData) -> None:
        own: dict[tuple[int, int], int] = {}
        whole: dict[int, int] = {}  # by process index: an EXIT ends its forgotten children's claims too
        suicides = {
            (instance.index, step.index)
            for instance in scenario.instances()
            for step in instance.process.walk()
            if step.op == "signal" and step.arguments.get("signal") == SIGKILL
        }
        marks = run.history.of("FAULT", "SIGNAL", "EXIT", "LEDGER", "STEP_BEGIN")
        marks = marks[(marks["event"] != event("LEDGER")) | (marks["c"] == 1)]  # most are no ends; do not walk them
        for record in marks:
            if not _ends(record, suicides):
                continue
            index, pid, now = int(record["process"]), int(record["pid"]), int(record["time_ns"])
            own[(index, pid)] = min(own.get((index, pid), now), now)
            if int(record["event"]) == event("EXIT"):
                whole[index] = min(whole.get(index, now), now)
        self.any = bool(own)
        changes = run.history.of("PHYS")
        taken = changes[(changes["a"] > 0) & (changes["a"] < 2**63)]
        last: dict[tuple[int, int], int] = {}
        for now, *owner in zip(
            taken["time_ns"].tolist(), taken["process"].tolist(), taken["pid"].tolist(), strict=True
        ):
            last[(owner[0], owner[1])] = now
        self._at = {
            owner: max(min(own.get(owner, self.NEVER), whole.get(owner[0], self.NEVER)), now + 1)
            for owner, now in last.items()  # whoever still takes memory is not dead yet
        }

    def at(self, owner: tuple[int, int]) -> int:
        """The moment; NEVER for a process that lives, and for one that never took memory."""
        return self._at.get(owner, self.NEVER)


def _ends(record: Any, suicides: set[tuple[int, int]]) -> bool:
    kind = int(record["event"])
    if kind == event("FAULT"):
        return int(record["c"]) == int(load_layout("node").constants["HL_ACTION_KILL"])
    if kind == event("SIGNAL"):
        return int(record["a"]) == SIGKILL
    if kind == event("STEP_BEGIN"):
        return (int(record["process"]), int(record["step"])) in suicides
    return True


def _containers(scope: Scope) -> list[Container]:
    return list({instance.container.name: instance.container for instance in scope.instances}.values())


def _highest(records: Records, field: str) -> int | None:
    """The highest value; None without records. Values above 2^63 are small negative numbers of a broken count."""
    if not records.size:
        return None
    return int(records[field].astype(np.uint64).max())


def ledger_empty(expectation: Expectation, scenario: Scenario, run: RunData) -> Verdict:
    """At the end no ledger row and no counter of the driver holds a byte or a slot."""
    scope = Scope.of(scenario, expectation.arguments)
    ledger, physical = run.history.of("LEDGER_END"), run.history.of("PHYS_END")
    at_end = {
        str(entry.get("container")): int(entry["bytes"])
        for entry in run.info.get("held") or ()
        if isinstance(entry, Mapping) and entry.get("barrier") is None
    }
    statuses: list[str] = []
    said: list[str] = []
    for container in _containers(scope):
        for name, records in (("ledger", ledger), ("driver", physical)):
            mine = records[records["container"] == container.index]
            reason = blind.why(run, (container.name,), "ledger") if name == "ledger" else ""
            if reason:
                statuses.append(UNKNOWN)
                said.append(f"{container.name}: not judged: {reason}")
                continue
            if name == "driver" and not mine.size and container.name in at_end:  # a real one, asked by NVML
                held = at_end[container.name]
                statuses.append(INVALID if held else VALID)
                if held:
                    said.append(f"{container.name}: processes that ended still hold {say_size(held)} in the driver")
                continue
            if not mine.size:
                statuses.append(UNKNOWN)
                said.append(f"{container.name}: no {name} could be read")
                continue
            full = mine[(mine["a"] != 0) | ((mine["b"] != 0) if name == "ledger" else False)]
            statuses.append(INVALID if full.size else VALID)
            if full.size:
                said.append(f"{container.name}: {name} holds {_holdings(full, slots=name == 'ledger')}")
    lost = INVALID in statuses
    return Verdict(
        status=worst(statuses),
        check="ledger_empty",
        subject="ledgers at the end",
        expected="no bytes, no slots, in ledger and driver",
        seen="; ".join(said) or "nothing is held",
        where=str(expectation.where),
        evidence=run.evidence,
        details=tuple(said) if lost and len(said) > 1 else (),
    )


def _holdings(records: Records, *, slots: bool) -> str:
    total = sum(int(record["a"]) for record in records)
    devices = sorted({int(record["device"]) for record in records if int(record["device"]) != NONE8})
    text = say_size(total)
    if devices:
        text += f" on device {', '.join(map(str, devices))}"
    if slots:
        text += f", {max(int(record['b']) for record in records)} slots"
    return text
