"""Reading a history file: order, uncommitted and dropped records, and every kind of file that is none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lab.checks import HistoryError
from lab.checks.history import dtype, event, load
from lab.spec import load_hooks, load_layout


def write(path: Path, records: np.ndarray, *, tickets: int | None = None, room: int = 8, **fields: int) -> Path:
    layout = load_layout("history")
    header = np.zeros(1, layout.dtype("hl_history_header"))
    header["magic"] = layout.constants["HL_HISTORY_MAGIC"]
    header["version"] = 1
    header["record_size"] = dtype().itemsize
    header["capacity"] = room
    header["next"] = len(records) if tickets is None else tickets
    header["names_hash"] = load_hooks().hash
    for key, value in fields.items():
        header[key] = value
    body = np.zeros(room, dtype())
    body[: len(records)] = records
    path.write_bytes(header.tobytes() + body.tobytes())
    return path


def records(*times: int) -> np.ndarray:
    found = np.zeros(len(times), dtype())
    found["time_ns"] = times
    found["a"] = np.arange(len(times))
    found["commit"] = 1
    found["event"] = event("PHYS")
    return found


def test_records_are_sorted_by_time_then_ticket(tmp_path: Path) -> None:
    history = load(write(tmp_path / "h", records(5, 1, 5, 3)))
    assert list(history.records["a"]) == [1, 3, 0, 2]
    assert (history.dropped, history.uncommitted) == (0, 0)
    assert history.of("PHYS").size == 4
    assert history.of("CALL").size == 0


def test_uncommitted_records_are_skipped_and_dropped_ones_counted(tmp_path: Path) -> None:
    some = records(1, 2, 3, 4)
    some["commit"][1] = 0
    history = load(write(tmp_path / "h", some, tickets=7, room=4))
    assert list(history.records["a"]) == [0, 2, 3]
    assert (history.dropped, history.uncommitted) == (3, 1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"magic": 1}, "not a history"),
        ({"version": 2}, "history version 2"),
        ({"record_size": 72}, "records of 72 bytes"),
        ({"names_hash": 5}, "another hook table"),
        ({"capacity": 99, "next": 50}, "truncated: 50 records were written, 8 are there"),
    ],
)
def test_a_foreign_file_is_one_line(tmp_path: Path, fields: dict[str, int], message: str) -> None:
    with pytest.raises(HistoryError, match=message) as caught:
        load(write(tmp_path / "h", records(1), **fields))
    assert "\n" not in str(caught.value)


def test_a_missing_and_a_short_file(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match="No such file"):
        load(tmp_path / "none")
    (tmp_path / "short").write_bytes(b"HLHIST1")
    with pytest.raises(HistoryError, match="7 bytes"):
        load(tmp_path / "short")
