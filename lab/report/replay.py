"""Whether a run and its repetition say the same: verdicts, and where planned faults fired.

Processes of one group are the same program: which of them wins a race is not part of what a run says, so fault
positions name the group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from lab.checks.history import HistoryData, empty, load
from lab.report.model import RunReport, load_run

Position = tuple[int, str, int]  # fault of the scenario, container and group of the process, number of the call


def differences(before: Path, after: Path) -> tuple[str, ...]:
    """One line each for what a repetition did otherwise; empty when it says the same. Both are run directories."""
    old, new = load_run(before), load_run(after)
    found: list[str] = []
    verdicts = _verdicts(old), _verdicts(new)
    for key in sorted(verdicts[0].keys() | verdicts[1].keys()):
        first, second = (side.get(key, "absent") for side in verdicts)
        if first != second:
            found.append(f"{key[1]} ({key[2]}): {first} before, {second} now")
    positions = _positions(old, before), _positions(new, after)
    for position in sorted((positions[0] - positions[1]) + (positions[1] - positions[0])):
        fault, group, call = position
        found.append(
            f"fault {fault} in {group} at call {call}: fired {positions[0][position]} times before, "
            f"{positions[1][position]} now"
        )
    return tuple(found)


def fault_positions(history: HistoryData, fault_slots: list[int], groups: Mapping[int, str]) -> Counter[Position]:
    """Where planned faults fired, and how often at each place.

    ``fault_slots`` maps the fake's fault slots to the scenario's faults (run.json has it), ``groups`` the index of a
    process to its group.
    """
    found: Counter[Position] = Counter()
    for record in history.of("FAULT"):
        slot = int(record["a"])
        fault = fault_slots[slot] if slot < len(fault_slots) else slot
        process = int(record["process"])
        found[(fault, groups.get(process, "an unknown process"), int(record["b"]))] += 1
    return found


def _positions(report: RunReport, directory: Path) -> Counter[Position]:
    path = directory / "history"
    history = load(path) if path.exists() else empty()
    groups = {one.index: f"{one.container.name}/{one.process.name}" for one in report.scenario.instances()}
    return fault_positions(history, list(report.info.get("fault_slots") or ()), groups)


def _verdicts(report: RunReport) -> dict[tuple[int, str, str], str]:
    """Status by (place in the list, check, subject): the list's order is that of the scenario."""
    return {(number, one.check, one.subject): one.status for number, one in enumerate(report.verdicts)}
