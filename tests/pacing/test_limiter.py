"""Launches under a core limit: the order of things, who is paced, who is not and why, and that nothing is silent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lab.spec import load_layout

REGION = load_layout("hooklab-1").constants
ENTRIES = {"async": "KERNEL", "ex": "EX", "cooperative": "COOPERATIVE", "graph": "GRAPH"}


def paced(slot: Any, entry: str) -> int:
    return int(slot["paced"][REGION[f"HL_ENTRY_{entry}"]])


def why(slot: Any, reason: str) -> int:
    return int(slot["unpaced_why"][REGION[f"HL_UNPACED_{reason}"]])


@pytest.mark.report("B78", plants="no core limit")
def test_without_a_core_limit_nothing_is_looked_at(lab: Any) -> None:
    played = lab.play(seconds=0.1)
    assert played.slot["pacing_state"] == REGION["HL_PACING_NONE"]
    assert not played.slot["paced"].any()
    assert not played.slot["unpaced"].any()
    assert not played.slot["slept"]
    assert not len(lab.events("LAUNCH"))
    assert not len(lab.events("PACE"))


@pytest.mark.report("B75", "B76")
@pytest.mark.parametrize("pattern", ENTRIES)
def test_every_entry_is_paced_alike(lab: Any, pattern: str) -> None:
    played = lab.play(pattern, CUDA_DEVICE_SM_LIMIT="30")
    assert paced(played.slot, ENTRIES[pattern]) == played.report["launches"] > 0
    assert int(played.slot["unpaced"].sum()) == why(played.slot, "CAPTURE") == (5 if pattern == "graph" else 0)
    assert played.slot["pacing_state"] == REGION["HL_PACING_ON"]
    assert played.slot["waits"]
    assert played.slot["slept"]
    assert played.slot["leases"]
    wall = played.report["ended_ns"] - played.report["began_ns"]
    assert played.device["measured"] < wall * 0.6  # unlimited it is the whole time


@pytest.mark.report("B75", "B76", plants="PAST_LIMITER")
@pytest.mark.parametrize("pattern", ["cooperative", "graph"])
def test_an_entry_past_the_limiter_is_seen(lab: Any, planted: Callable[[str], Path], pattern: str) -> None:
    played = lab.play(pattern, seconds=0.001, before=[planted("PAST_LIMITER")], CUDA_DEVICE_SM_LIMIT="30")
    assert played.report["launches"] > paced(played.slot, ENTRIES[pattern]) == 0


def test_order_of_a_launch(lab: Any) -> None:
    lab.play(seconds=0.1, CUDA_DEVICE_SM_LIMIT="50")
    stages = [int(record["a"]) for record in lab.events("LAUNCH")]
    assert len(stages) >= 8
    assert stages == [1, 2, 3, 4] * (len(stages) // 4)
    calls = lab.events("CALL")
    kernel = int(lab.events("LAUNCH")["name"][0])
    times = [int(record["time_ns"]) for record in lab.events("LAUNCH") if int(record["a"]) == 4]
    driver = sorted(int(record["time_ns"]) for record in calls if int(record["name"]) == kernel)
    assert len(driver) >= len(times)
    for limiter, call in zip(times, driver, strict=False):  # each limiter before its driver call, none overtakes
        assert limiter <= call


@pytest.mark.report("B78", plants="the policy says disable")
def test_policies_of_hami_keep_their_meaning(lab: Any) -> None:
    off = lab.play(seconds=0.1, CUDA_DEVICE_SM_LIMIT="30", GPU_CORE_UTILIZATION_POLICY="disable")
    assert off.slot["pacing_state"] == REGION["HL_PACING_OFF"]
    assert not off.slot["paced"].any()


@pytest.mark.report("B78", plants="a monitor has switched pacing off")
def test_a_monitor_may_switch_pacing_off_unless_forced(lab: Any) -> None:
    from lab.region import Region

    lab.play(seconds=0.1, CUDA_DEVICE_SM_LIMIT="30")
    header = load_layout("hooklab-1").dtype("hl_region_header")
    offset = int(header.fields["pacing_switch"][1])
    path: Path = lab.folder / "region"
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(b"\x01")
    with Region.open(path) as region:
        assert region is not None
    switched = lab.play(seconds=0.1, CUDA_DEVICE_SM_LIMIT="30")
    assert why(switched.slot, "SWITCHED") > 0
    assert not paced(switched.slot, "KERNEL")
    forced = lab.play(seconds=0.1, CUDA_DEVICE_SM_LIMIT="30", GPU_CORE_UTILIZATION_POLICY="force")
    assert paced(forced.slot, "KERNEL") > 0
    assert not forced.slot["unpaced"].any()


@pytest.mark.report("B78", plants="a policy that raises")
def test_a_policy_that_fails_lets_launches_pass_and_counts_them(lab: Any, tmp_path: Path) -> None:
    policy = tmp_path / "broken.py"
    policy.write_text(
        "class Broken:\n"
        "    def admit(self, device, size, kind, used, limit, shared): return 0\n"
        "    def lease(self, device, cost, now, shared): return cost // 0\n"
        "    def observe(self, device, busy, window, now, shared): return 0\n"
    )
    played = lab.play(seconds=0.1, CUDA_DEVICE_SM_LIMIT="30", HOOKLAB_PACING=f"{policy}:Broken")
    assert played.slot["pacing_state"] == REGION["HL_PACING_FAULT"]
    assert why(played.slot, "FAULT") == played.report["launches"]
    assert not played.slot["paced"].any()
    assert "ZeroDivisionError" in played.err


@pytest.mark.report("B78", plants="no engine")
def test_without_an_engine_launches_pass_and_are_counted(lab: Any) -> None:
    played = lab.play(seconds=0.1, CUDA_DEVICE_SM_LIMIT="30", HOOKLAB_ENGINE_LIB="/nowhere/engine.so")
    assert played.slot["pacing_state"] == REGION["HL_PACING_ABSENT"]
    assert why(played.slot, "ABSENT") == played.report["launches"]
    (line,) = [line for line in played.err.splitlines() if "no policy engine" in line]
    assert "/nowhere/engine.so" in line


@pytest.mark.parametrize("wanted", ["no-such", "here.py:Mine", "/nowhere/mine.py:Mine"])
def test_a_policy_that_cannot_be_used_is_said_and_the_default_one_applies(lab: Any, wanted: str) -> None:
    played = lab.play(seconds=0.3, CUDA_DEVICE_SM_LIMIT="30", HOOKLAB_PACING=wanted)
    (line,) = [line for line in played.err.splitlines() if "HOOKLAB_PACING" in line]
    assert line.startswith(f"hooklab: HOOKLAB_PACING={wanted}: ")
    assert line.endswith("; hybrid applies")
    assert played.slot["pacing_state"] == REGION["HL_PACING_ON"]
    assert (bytes(played.slot["pacing_policy"]).rstrip(b"\0"), played.slot["pacing_instead"]) == (b"hybrid", 1)
    assert paced(played.slot, "KERNEL") == played.report["launches"]
    assert not played.slot["unpaced"].any()
    wall = played.report["ended_ns"] - played.report["began_ns"]
    assert played.device["measured"] < wall * 0.6  # unlimited it is the whole time


def test_the_board_of_the_node_is_the_sample(lab: Any, tmp_path: Path) -> None:
    board = tmp_path / "board"
    on = lab.play(CUDA_DEVICE_SM_LIMIT="30", HOOKLAB_BOARD=str(board))
    assert int(on.device["sample_flags"]) & REGION["HL_SAMPLE_EXACT"]
    assert 0 < on.device["sample_own_ns"] <= on.device["measured"]
    layout = load_layout("board")
    rows = np.frombuffer(
        board.read_bytes(), layout.dtype("hl_board_row"), offset=layout.dtype("hl_board_header").itemsize
    )
    (used,) = np.flatnonzero(rows["head"])
    row = rows[used]
    assert not row["container"]  # it left
    spans = row["interval"][: min(int(row["head"]), len(row["interval"]))]
    assert (spans["start"] < spans["end"]).all()
    off = lab.play(CUDA_DEVICE_SM_LIMIT="30", HOOKLAB_BOARD="off")
    assert not int(off.device["sample_flags"]) & REGION["HL_SAMPLE_EXACT"]


def test_a_file_that_is_no_board_is_said_and_left_alone(lab: Any, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"x" * 2_000_000)
    played = lab.play(CUDA_DEVICE_SM_LIMIT="30", HOOKLAB_BOARD=str(other))
    assert "of another version" in played.err
    assert other.read_bytes() == b"x" * 2_000_000
    assert paced(played.slot, "KERNEL")
