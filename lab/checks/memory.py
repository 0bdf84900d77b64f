"""Checks of memory: ``never_above`` from the driver's own books, ``ledger_empty`` from both books at the end.

The physical truth is what the fake driver recorded with the change itself (PHYS: used after it, atomically) and the
peaks of its counters (PHYS_END); an interposer's own claims are never believed here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from lab.checks.history import NONE8, NONE16, Records
from lab.checks.model import INVALID, UNKNOWN, VALID, RunData, Scope, Verdict, worst
from lab.scenario.model import Container, Expectation, Scenario
from lab.scenario.units import format_size


@dataclass(frozen=True)
class _Peak:
    subject: str
    peak: int | None  # None = no physical evidence
    certain: bool  # a counter's peak, which no lost record can hide


def never_above(expectation: Expectation, scenario: Scenario, run: RunData) -> Verdict:
    """Physical bytes of each container, process or device in scope stay at or below the bound at every moment."""
    arguments = expectation.arguments
    bound = int(arguments["memory"])
    of = str(arguments.get("of", "container"))
    device = arguments.get("device")
    peaks = list(_peaks(of, arguments, scenario, run, device))
    statuses = []
    for peak in peaks:
        if peak.peak is not None and peak.peak > bound:
            statuses.append(INVALID)
        elif peak.peak is None or not (peak.certain or run.complete):
            statuses.append(UNKNOWN)
        else:
            statuses.append(VALID)
    known = [peak for peak in peaks if peak.peak is not None]
    highest = max(known, key=lambda peak: peak.peak or 0, default=None)
    seen = f"at most {format_size(highest.peak or 0)} ({highest.subject})" if highest else ""
    blind = [peak.subject for peak in peaks if peak.peak is None]
    if blind or not peaks:
        seen += f"{'; ' if seen else ''}no physical record of {', '.join(blind) or 'anything'}"
    over = [peak for peak in known if (peak.peak or 0) > bound]
    return Verdict(
        status=worst(statuses),
        check="never_above",
        subject=over[0].subject if over else f"memory of each {of}" if len(peaks) != 1 else peaks[0].subject,
        expected=f"never above {format_size(bound)}",
        seen=seen + (f" ({run.history.dropped} records were dropped)" if run.history.dropped else ""),
        where=str(expectation.where),
        evidence=run.evidence,
        details=tuple(
            f"{peak.subject}: {format_size(peak.peak or 0)}, {format_size((peak.peak or 0) - bound)} too much"
            for peak in over
        ),
    )


def _peaks(of: str, arguments: object, scenario: Scenario, run: RunData, device: int | None) -> Iterable[_Peak]:
    changes, ends = run.history.of("PHYS"), run.history.of("PHYS_END")
    if device is not None:
        changes, ends = changes[changes["device"] == device], ends[ends["device"] == device]
    scope = Scope.of(scenario, arguments if isinstance(arguments, dict) else {})
    if of == "device":
        devices = [device] if device is not None else range(len(scenario.node.gpus))
        for ordinal in devices:
            mine = ends[(ends["device"] == ordinal) & (ends["container"] == NONE16)]
            yield _Peak(f"device {ordinal}", _highest(mine, "b"), True)
    elif of == "process":
        for instance in scope.instances:
            peak = _highest(changes[changes["process"] == instance.index], "c")
            silent = 0 if _recorded(run) else None
            yield _Peak(f"process {instance.label}", peak if peak is not None else silent, False)
    else:
        for container in _containers(scope):
            counter = _highest(ends[ends["container"] == container.index], "b")
            moments = _highest(changes[changes["container"] == container.index], "b")
            both = [peak for peak in (counter, moments) if peak is not None]
            yield _Peak(f"container {container.name}", max(both, default=None), counter is not None)


def _containers(scope: Scope) -> list[Container]:
    return list({instance.container.name: instance.container for instance in scope.instances}.values())


def _highest(records: Records, field: str) -> int | None:
    """The highest value; None without records. Values above 2^63 are small negative numbers of a broken count."""
    if not records.size:
        return None
    return int(records[field].astype(np.uint64).max())


def _recorded(run: RunData) -> bool:
    """Whether a fake driver kept books in this run at all."""
    return bool(run.history.of("PHYS", "PHYS_END").size)


def ledger_empty(expectation: Expectation, scenario: Scenario, run: RunData) -> Verdict:
    """At the end no ledger row and no counter of the driver holds a byte or a slot."""
    scope = Scope.of(scenario, expectation.arguments)
    ledger, physical = run.history.of("LEDGER_END"), run.history.of("PHYS_END")
    statuses: list[str] = []
    said: list[str] = []
    for container in _containers(scope):
        for name, records in (("ledger", ledger), ("driver", physical)):
            mine = records[records["container"] == container.index]
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
    text = format_size(total)
    if devices:
        text += f" on device {', '.join(map(str, devices))}"
    if slots:
        text += f", {max(int(record['b']) for record in records)} slots"
    return text
