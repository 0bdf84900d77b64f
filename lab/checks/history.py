"""Reads the history file of a run into a numpy structured array.

Invariants: records come sorted by (time, ticket); a record that its writer never committed is left out and counted;
tickets past the capacity are counted as dropped. A file that is not a history of this hooklab is one line of error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lab.spec import load_hooks, load_layout

NONE16 = 0xFFFF  # no process, step, container or name
NONE8 = 0xFF  # no device

Records = npt.NDArray[np.void]


class HistoryError(ValueError):
    """A history that cannot be read; one line."""


@cache
def dtype() -> np.dtype[Any]:
    """The dtype of one record."""
    return load_layout("history").dtype("hl_history_record")


@cache
def constants() -> Mapping[str, int]:
    """HL_EVENT_*, HL_SOURCE_*, HL_ROUTE_*, HL_KIND_*, HL_PHASE_*."""
    return load_layout("history").constants


def event(name: str) -> int:
    """The number of an event: ``event("STEP_END")``."""
    return int(constants()[f"HL_EVENT_{name}"])


@dataclass(frozen=True)
class HistoryData:
    """A history in memory. ``records`` has the layout's dtype and is sorted by (time_ns, ticket)."""

    records: Records
    dropped: int = 0
    uncommitted: int = 0
    start_mono_ns: int = 0
    start_real_ns: int = 0

    def of(self, *events: str) -> Records:
        """Only the records of these events."""
        wanted = np.isin(self.records["event"], [event(name) for name in events])
        return self.records[wanted]


def empty() -> HistoryData:
    """A history without records, e.g. of a run without one."""
    return HistoryData(np.zeros(0, dtype()))


def from_records(records: Records, *, dropped: int = 0, uncommitted: int = 0) -> HistoryData:
    """Sorts records (any order; the order given breaks ties of time)."""
    return HistoryData(records[np.argsort(records["time_ns"], kind="stable")], dropped, uncommitted)


def load(path: str | Path) -> HistoryData:
    """Reads a history file; HistoryError says what is wrong with it in one line."""
    layout = load_layout("history")
    header_type = layout.dtype("hl_history_header")
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise HistoryError(f"{path}: {error.strerror}") from None
    if len(data) < header_type.itemsize:
        raise HistoryError(f"{path}: not a history: {len(data)} bytes, the header alone has {header_type.itemsize}")
    header = np.frombuffer(data, header_type, 1)[0]
    if int(header["magic"]) != layout.constants["HL_HISTORY_MAGIC"]:
        raise HistoryError(f"{path}: not a history (magic {int(header['magic']):#x})")
    if int(header["version"]) != layout.constants["HL_HISTORY_VERSION"]:
        raise HistoryError(
            f"{path}: history version {int(header['version'])}; this hooklab reads "
            f"{layout.constants['HL_HISTORY_VERSION']}"
        )
    if int(header["record_size"]) != dtype().itemsize:
        raise HistoryError(f"{path}: records of {int(header['record_size'])} bytes, not {dtype().itemsize}")
    if int(header["names_hash"]) != load_hooks().hash:
        raise HistoryError(f"{path}: written with another hook table; read it with the hooklab that wrote it")
    tickets, capacity = int(header["next"]), int(header["capacity"])
    used = min(tickets, capacity)
    room = (len(data) - header_type.itemsize) // dtype().itemsize
    if used > room:
        raise HistoryError(f"{path}: truncated: {used} records were written, {room} are there")
    records = np.frombuffer(data, dtype(), used, header_type.itemsize)
    whole = records["commit"] == 1
    kept = records[whole].copy()
    return HistoryData(
        records=kept[np.argsort(kept["time_ns"], kind="stable")],
        dropped=max(0, tickets - capacity),
        uncommitted=int(used - np.count_nonzero(whole)),
        start_mono_ns=int(header["start_mono_ns"]),
        start_real_ns=int(header["start_real_ns"]),
    )
