"""Whether the books of a region are sound: pure functions of its records and of who is present.

A region may change while it is looked at, so a difference between a total and its parts counts only when two looks in a
row find the same numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from lab.spec import load_layout
from lab.spec.mapped import taken

Records = npt.NDArray[Any]
LOOKS = 5
NO_SLOT = 0xFFFFFFFF


def problems(header: Records, devices: Records, slots: Records, is_present: Callable[[int], bool]) -> list[str]:
    """What is wrong, one line each without the file's name."""
    return [
        *_header(header[0], slots),
        *_slots(slots, is_present),
        *_lock(header, slots, is_present),
        *_totals(devices, slots),
    ]


def _header(head: Any, slots: Records) -> Iterator[str]:
    constants = load_layout("hooklab-1").constants
    if int(head["lock_kind"]) not in (constants["HL_LOCK_ROBUST"], constants["HL_LOCK_FILE"]):
        yield f"lock kind {head['lock_kind']} is none of the two there are"
    if int(head["slot_high"]) > len(slots):
        yield f"slot_high {head['slot_high']} is beyond the {len(slots)} slots"
    beyond = [int(i) for i in taken(slots["state"]) if i >= int(head["slot_high"])]
    if beyond:
        yield f"slot {beyond[0]} is taken but beyond slot_high {head['slot_high']}: no scan finds it"


def _slots(slots: Records, is_present: Callable[[int], bool]) -> Iterator[str]:
    constants = load_layout("hooklab-1").constants
    owners: Counter[tuple[int, int, int]] = Counter()
    generations: Counter[int] = Counter()
    for index in taken(slots["state"]):
        slot = slots[index].copy()
        if int(slot["state"]) != constants["HL_SLOT_LIVE"]:
            yield f"slot {index}: state {slot['state']} is unknown"
            continue
        present = is_present(int(index))
        if int(slot["sequence"]) % 2 and not present:
            yield f"slot {index}: pid {slot['pid']} died while it wrote its identity"
        if int(slot["pid"]) and present:
            owners[int(slot["pid_namespace"]), int(slot["pid"]), int(slot["start_time"])] += 1
        generations[int(slot["generation"])] += 1
    for (name_space, pid, _), count in owners.items():
        if count > 1:
            yield f"pid {pid} of PID namespace {name_space} has {count} slots"
    for generation, count in generations.items():
        if count > 1:
            yield f"generation {generation} was handed out {count} times"


def _lock(header: Records, slots: Records, is_present: Callable[[int], bool]) -> Iterator[str]:
    holder = int(header["lock_holder"][0])
    if holder in (0, NO_SLOT):
        return
    index = holder - 1
    if index >= len(slots):
        yield f"lock holder {holder} is beyond the {len(slots)} slots"
    elif not is_present(index) and int(header["lock_holder"][0]) == holder:
        yield f"slot {index} (pid {slots['pid'][index]}) died holding the lock: totals are recomputed at the next use"


def _totals(devices: Records, slots: Records) -> list[str]:
    """The differences that stay the same from one look to the next."""
    previous: list[str] | None = None
    for _ in range(LOOKS):
        seen = list(_differences(devices, slots))
        if not seen or seen == previous:
            return seen
        previous = seen
    return []  # the books are being written faster than they can be read: nothing was seen twice


def _differences(devices: Records, slots: Records) -> Iterator[str]:
    live = slots[slots["state"] != 0].copy()
    for device in range(len(devices)):
        rows = live["device"][:, device]
        used, held = int(devices["used"][device]), int(rows["held"].sum(dtype=np.uint64))
        if used != held:
            yield f"device {device}: total {used} bytes, its slots hold {held}"
        if int(devices["peak"][device]) < used:
            yield f"device {device}: peak {devices['peak'][device]} is below the total {used}"
        for row, index in zip(rows, taken(slots["state"]), strict=False):
            parts = int(row["used"].sum(dtype=np.uint64)) + int(row["pending"])
            if parts % 2**64 != int(row["held"]):
                yield f"slot {index}, device {device}: holds {row['held']} bytes, its parts are {parts}"
