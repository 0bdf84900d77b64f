"""What the ledger writes into the history: every change in its order, every verdict acted upon, opening and closing."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lab.spec import load_layout

LAYOUT = load_layout("history")
CODES = LAYOUT.constants
RECORD = LAYOUT.dtype("hl_history_record")
LIMIT = 40 << 20


@pytest.fixture
def records(region_program: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Any]:
    """`records("threads_robust")`: the history of a unit test, in the order of its times."""

    def get(name: str) -> Any:
        header = np.zeros(1, LAYOUT.dtype("hl_history_header"))
        header["magic"], header["version"] = CODES["HL_HISTORY_MAGIC"], CODES["HL_HISTORY_VERSION"]
        header["record_size"], header["capacity"] = RECORD.itemsize, 1 << 17
        file = tmp_path / "history"
        file.write_bytes(header.tobytes() + bytes((1 << 17) * RECORD.itemsize))
        subprocess.run(
            [region_program("units"), tmp_path, name], env={**os.environ, "HOOKLAB_HISTORY": str(file)}, check=True
        )
        found = np.frombuffer(file.read_bytes(), RECORD, offset=header.nbytes)
        found = found[found["commit"] == 1]
        assert set(found["source"].tolist()) == {CODES["HL_SOURCE_SHIM"]}
        return found[np.argsort(found["time_ns"], kind="stable")]

    return get


def of(records: Any, name: str) -> Any:
    return records[records["event"] == CODES[f"HL_EVENT_{name}"]]


def out_of_step(ledger: Any) -> list[int]:
    """Positions at which the total is not the one before plus the change."""
    total, wrong = 0, []
    for i, (change, after) in enumerate(zip(ledger["a"].tolist(), ledger["b"].tolist(), strict=True)):
        total = (total + change) % 2**64
        if after != total:
            wrong.append(i)
            total = after
    return wrong


@pytest.mark.parametrize("name", ["threads_robust", "threads_file", "threads_double_check"])
def test_changes_stand_in_their_order_and_never_pass_the_limit(records: Callable[[str], Any], name: str) -> None:
    seen = records(name)
    for device in (0, 1):
        ledger = of(seen, "LEDGER")
        ledger = ledger[ledger["device"] == device]
        assert len(ledger) > 1000
        assert out_of_step(ledger) == []
        assert int(ledger["b"].max()) <= LIMIT
        assert int(ledger["b"][-1]) == 0
    verdicts = of(seen, "VERDICT")
    admitted, refused = verdicts[verdicts["result"] == 0], verdicts[verdicts["result"] != 0]
    assert len(admitted) > 1000
    assert len(refused) > 10
    assert set(verdicts["c"].tolist()) == {LIMIT}
    assert (admitted["a"] + admitted["b"] <= LIMIT).all()
    assert (refused["a"] + refused["b"] > LIMIT).all()


def test_a_lost_change_is_noticed(records: Callable[[str], Any]) -> None:
    ledger = of(records("threads_robust"), "LEDGER")
    ledger = ledger[ledger["device"] == 0]
    assert out_of_step(np.delete(ledger, 500)) == [500]


def test_opening_and_closing_are_told(records: Callable[[str], Any]) -> None:
    seen = records("life_robust")
    phases = of(seen, "PHASE")["a"].tolist()
    assert phases == [CODES[f"HL_PHASE_REGION_{step}"] for step in ("ENTER", "ACQUIRED", "RELEASED")]
    ledger = of(seen, "LEDGER")
    closed = ledger[ledger["c"] == 1]
    assert closed["a"].tolist() == [0, 0]  # the unit closes twice
    assert int(closed["b"][0]) == 1 << 20  # its bytes stay booked
    assert set(ledger["c"].tolist()) == {0, 1}
