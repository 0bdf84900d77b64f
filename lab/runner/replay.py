"""Whether a run and its repetition say the same: verdicts, and where planned faults fired."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

from lab.checks import RunData, Verdict, judge
from lab.checks.history import HistoryError, empty, load
from lab.runner.guest import GuestError
from lab.runner.rundir import RunDirectory
from lab.scenario.load import load as load_scenario
from lab.scenario.model import Scenario

Position = tuple[int, int, int]  # fault of the scenario, process index, number of the call


def differences(before: Path, after: Path) -> tuple[str, ...]:
    """One line each for what a repetition did otherwise; empty when it says the same."""
    old_scenario, old = _read(before)
    new_scenario, new = _read(after)
    found: list[str] = []
    verdicts = _verdicts(judge(old_scenario, old)), _verdicts(judge(new_scenario, new))
    for key in sorted(verdicts[0].keys() | verdicts[1].keys()):
        first, second = (side.get(key, "absent") for side in verdicts)
        if first != second:
            found.append(f"{key[1]} ({key[2]}): {first} before, {second} now")
    positions = fault_positions(old), fault_positions(new)
    for position in sorted((positions[0] - positions[1]) + (positions[1] - positions[0])):
        fault, process, call = position
        found.append(
            f"fault {fault} in process {process} at call {call}: fired {positions[0][position]} times before, "
            f"{positions[1][position]} now"
        )
    return tuple(found)


def fault_positions(run: RunData) -> Counter[Position]:
    """Where planned faults fired: how often at each (fault, process, call number)."""
    slots = list(run.info.get("fault_slots", ()))
    found: Counter[Position] = Counter()
    for record in run.history.of("FAULT"):
        slot = int(np.uint64(record["a"]))
        fault = slots[slot] if slot < len(slots) else slot
        found[(fault, int(record["process"]), int(record["b"]))] += 1
    return found


def _verdicts(verdicts: list[Verdict]) -> dict[tuple[int, str, str], str]:
    """Status by (place in the list, check, subject): the list's order is that of the scenario."""
    return {(number, one.check, one.subject): one.status for number, one in enumerate(verdicts)}


def _read(path: Path) -> tuple[Scenario, RunData]:
    directory = RunDirectory(path)
    info = directory.read_info()
    try:
        history = load(directory.history) if directory.history.exists() else empty()
    except HistoryError as error:
        raise GuestError(str(error)) from None
    return load_scenario(directory.scenario)[0], RunData(history, info)
