"""The history file under many writers, killed writers, forks, a full file and bad files."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lab.spec import load_layout

Compile = Callable[..., Path]
MASK = 2**64 - 1
LAYOUT = load_layout("history")
HEADER, RECORD = LAYOUT.dtype("hl_history_header"), LAYOUT.dtype("hl_history_record")


@pytest.fixture(scope="module")
def chronicle(compile_c: Compile, root: Path) -> Path:
    sources = [root / "shim/common/history.c", root / "shim/common/config.c"]
    return compile_c(root / "tests/native/common/chronicle.c", name="chronicle", extra=sources)


def make(path: Path, room: int, **changes: int) -> Path:
    header = np.zeros(1, HEADER)
    constants = LAYOUT.constants
    header["magic"], header["version"] = constants["HL_HISTORY_MAGIC"], constants["HL_HISTORY_VERSION"]
    header["record_size"], header["capacity"] = RECORD.itemsize, room
    for name, value in changes.items():
        header[name] = value
    path.write_bytes(header.tobytes() + bytes(room * RECORD.itemsize))
    return path


def read(path: Path) -> tuple[int, Any]:
    """Tickets drawn, and the committed records."""
    data = path.read_bytes()
    records = np.frombuffer(data, RECORD, offset=HEADER.itemsize)
    return int(np.frombuffer(data, HEADER, 1)["next"][0]), records[records["commit"] == 1]


def broken(records: Any) -> list[int]:
    """Positions of records whose check value does not fit: torn ones."""
    expected = [
        ((int(a) << 32 | int(b)) * 0x9E3779B97F4A7C15) & MASK for a, b in zip(records["a"], records["b"], strict=True)
    ]
    return [i for i, value in enumerate(expected) if value != int(records["c"][i])]


def run(program: Path, file: Path, *arguments: int, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HOOKLAB_")}
    return subprocess.run(
        [program, *map(str, arguments)],
        env={**kept, "HOOKLAB_HISTORY": str(file), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_writers_killed_writers_and_forks(chronicle: Path, tmp_path: Path) -> None:
    file = make(tmp_path / "history", 100_000)
    done = run(chronicle, file, 8, 4, 1000, 3, HOOKLAB_PROCESS="5", HOOKLAB_CONTAINER="2")
    assert (done.returncode, done.stderr) == (0, "")
    tickets, records = read(file)
    assert broken(records) == []
    assert len(records) <= tickets <= len(records) + 3 * 4  # at most one torn record a killed thread
    notes = {9999: 1, 8888: 1}
    for writer in range(800):
        process, thread = divmod(writer, 100)
        mine = records[records["a"] == writer]
        if thread >= 4:
            assert len(mine) == 0
        elif process >= 3:
            notes[writer] = 1000
            assert sorted(mine["b"].tolist()) == list(range(1000))
        else:
            assert mine["b"].tolist() == sorted(set(mine["b"].tolist()))  # in order, none twice
    for writer, count in notes.items():
        assert int((records["a"] == writer).sum()) == count
    assert set(records["process"].tolist()) == {5}
    assert set(records["container"].tolist()) == {2}
    child = records[records["a"] == 9999][0]
    assert child["pid"] == child["tid"] == child["b"]  # a fork child knows its own ids
    named = records[records["a"] == 8888][0]
    assert named["pid"] == 77777  # what the node said
    assert named["tid"] != 77777


def test_the_torn_record_check_finds_a_planted_one(chronicle: Path, tmp_path: Path) -> None:
    file = make(tmp_path / "history", 1000)
    assert run(chronicle, file, 1, 1, 10, 0).returncode == 0
    data = bytearray(file.read_bytes())
    at = HEADER.itemsize + 3 * RECORD.itemsize + RECORD.fields["b"][1]  # type: ignore[index]
    data[at] ^= 1
    file.write_bytes(data)
    assert broken(read(file)[1]) == [3]


def test_a_full_file_counts_what_it_lost(chronicle: Path, tmp_path: Path) -> None:
    file = make(tmp_path / "history", 100)
    assert run(chronicle, file, 2, 2, 100, 0).returncode == 0
    tickets, records = read(file)
    assert (tickets, len(records)) == (402, 100)
    assert file.stat().st_size == HEADER.itemsize + 100 * RECORD.itemsize


def test_unknown_indices(chronicle: Path, tmp_path: Path) -> None:
    file = make(tmp_path / "history", 100)
    assert run(chronicle, file, 1, 1, 3, 0, HOOKLAB_PROCESS="x", HOOKLAB_CONTAINER="65535").returncode == 0
    _, records = read(file)
    assert set(records["process"].tolist()) == set(records["container"].tolist()) == {0xFFFF}


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        ({"magic": 1}, "not a history file"),
        ({"version": 9}, "another layout version"),
        ({"record_size": 32}, "another layout version"),
        ({"capacity": 11}, "shorter than its header says"),
    ],
)
def test_a_bad_file_is_told_and_left_alone(chronicle: Path, tmp_path: Path, damage: dict[str, int], text: str) -> None:
    file = make(tmp_path / "history", 10, **damage)
    before = file.read_bytes()
    done = run(chronicle, file, 1, 1, 3, 0)
    assert done.returncode == 1  # the program insists on a history; a guest goes on without
    assert done.stderr.count("\n") == 1
    assert str(file) in done.stderr
    assert text in done.stderr
    assert file.read_bytes() == before


def test_missing_and_short_files(chronicle: Path, tmp_path: Path) -> None:
    assert "No such file" in run(chronicle, tmp_path / "none", 1, 1, 3, 0).stderr
    short = tmp_path / "short"
    short.write_bytes(b"x" * 100)
    assert "shorter than its header" in run(chronicle, short, 1, 1, 3, 0).stderr


def test_without_a_history_nothing_is_said(chronicle: Path) -> None:
    done = subprocess.run(
        [chronicle, "1", "1", "3", "0"],
        env={key: value for key, value in os.environ.items() if not key.startswith("HOOKLAB_")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr, done.stdout) == (1, "", "")
