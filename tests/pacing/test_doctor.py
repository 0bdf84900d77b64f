"""`hooklab doctor --pid` says why a process is, or is not, limited: a line for each state that it can be in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lab.region import Region
from lab.runner.doctor import Finding, examine_process
from lab.spec import load_layout

START = "good(CUDA.cuInit(0))\ngpu = Gpu()\n"
WORK = START + "for _ in range(3): good(gpu.launch(20 * MS))\nlook('now')\n"
IDLE = START + "look('now')\n"
LIMIT = {"CUDA_DEVICE_SM_LIMIT": "30"}


def examined(lab: Any, script: str, **variables: str) -> list[Finding]:
    """What doctor says of the core limit while the guest waits."""
    found: list[Finding] = []
    lab.tell(script, seen=lambda _, pid: found.extend(examine_process(pid)), **variables)
    return [finding for finding in found if finding.subject == "core limit"]


def test_on(lab: Any) -> None:
    state, device, counts, times = examined(lab, WORK, **LIMIT)
    assert {finding.state for finding in (state, device, counts, times)} == {"ok"}
    assert state.seen.startswith("on; policy hybrid; identity tier ")
    assert device.seen.startswith("device 0: target 30 %, container achieved ")
    assert "NVML sample" in device.seen
    assert counts.seen == "paced: 3 kernel; unpaced: none"
    assert times.seen.startswith("slept ")
    assert " in 0 launches" not in times.seen


def test_no_limit(lab: Any) -> None:
    (line,) = examined(lab, IDLE)
    assert (line.state, line.seen) == (
        "ok",
        "none applies to this process: no device has a CUDA_DEVICE_SM_LIMIT of 1 to 99",
    )


def test_nothing_launched_yet(lab: Any) -> None:
    state, device, counts, _ = examined(lab, IDLE, **LIMIT)
    assert (state.state, state.seen.partition(";")[0]) == ("ok", "idle")
    assert "not measured yet" in device.seen
    assert counts.seen == "paced: none; unpaced: none"
    (line,) = examined(lab, "look('now')\n", CUDA_DEVICE_MEMORY_SHARED_CACHE=f"{lab.folder}/new", **LIMIT)
    assert (line.state, line.seen) == ("ok", "CUDA_DEVICE_SM_LIMIT=30 is set; nothing was launched yet")


def test_switched_off_by_hand(lab: Any) -> None:
    found = examined(lab, WORK, GPU_CORE_UTILIZATION_POLICY="disable", **LIMIT)
    assert found[0].seen.startswith("off; ")
    assert {finding.state for finding in found} == {"ok"}  # somebody wants it so


def test_switched_off_by_a_monitor(lab: Any) -> None:
    lab.tell(START, **LIMIT)
    with Region.open(lab.folder / "region", writable=True) as region:
        region.header["pacing_switch"][0] = 1
    found = examined(lab, WORK, **LIMIT)
    said = [finding.seen for finding in found]
    assert said[0].startswith("switched; ")
    assert "unpaced because: 3 switched" in said
    assert {finding.state for finding in found} == {"warn"}
    assert all(finding.mend for finding in found)


def test_a_policy_that_fails(lab: Any, tmp_path: Path) -> None:
    policy = tmp_path / "broken.py"
    policy.write_text(
        "class Broken:\n"
        "    def admit(self, device, size, kind, used, limit, shared): return 0\n"
        "    def lease(self, device, cost, now, shared): return cost // 0\n"
        "    def observe(self, device, busy, window, now, shared): return 0\n"
    )
    found = examined(lab, WORK, HOOKLAB_PACING=f"{policy}:Broken", **LIMIT)
    assert found[0].seen.startswith("fault; ")
    assert "unpaced because: 3 fault" in [finding.seen for finding in found]
    assert {finding.state for finding in found} == {"warn"}


def test_no_engine(lab: Any) -> None:
    found = examined(lab, WORK, HOOKLAB_ENGINE_LIB="/nowhere.so", **LIMIT)
    assert found[0].seen.startswith("absent; ")
    assert "unpaced because: 3 absent" in [finding.seen for finding in found]
    assert {finding.state for finding in found} == {"warn"}


def test_no_such_controller(lab: Any) -> None:
    found = examined(lab, WORK, HOOKLAB_PACING="no-such", **LIMIT)
    assert found[0].seen.startswith("on; policy hybrid (what HOOKLAB_PACING asks for cannot be used); ")
    assert found[0].state == "warn"
    assert found[0].mend.startswith("HOOKLAB_PACING is a controller's name or")


@pytest.mark.parametrize("text", ["x" * 5_000_000, ""], ids=["no-region", "a-folder"])
def test_no_books(lab: Any, tmp_path: Path, text: str) -> None:
    """What the process itself says is nowhere to be read, but that nothing is paced is said."""
    place = tmp_path / "other"
    if text:
        place.write_text(text)
    else:
        place.mkdir()
    found = examined(lab, WORK, CUDA_DEVICE_MEMORY_SHARED_CACHE=str(place), **LIMIT)
    assert [(finding.state, finding.seen) for finding in found] == [
        ("bad", "CUDA_DEVICE_SM_LIMIT=30 is set; blind: without books nothing is paced")
    ]


def test_private_books(lab: Any) -> None:
    (line,) = examined(lab, WORK, CUDA_DEVICE_MEMORY_SHARED_CACHE="", **LIMIT)
    assert (line.state, line.seen) == (
        "warn",
        "CUDA_DEVICE_SM_LIMIT=30 is set; its state is private to the process, too",
    )


def test_books_of_hami(lab: Any, tmp_path: Path) -> None:
    place = {"CUDA_DEVICE_MEMORY_SHARED_CACHE": str(tmp_path / "hami")}
    (line,) = examined(lab, WORK, HOOKLAB_REGION_LAYOUT="hami-1.2", **place, **LIMIT)
    assert line.state == "warn"
    assert line.seen.endswith("this layout has no place for the state of a limiter")


def test_every_state_has_its_line() -> None:
    states = {name for name in load_layout("hooklab-1").constants if name.startswith("HL_PACING_")}
    tested = {"ON", "NONE", "IDLE", "OFF", "SWITCHED", "FAULT", "ABSENT", "BLIND"}
    assert states == {f"HL_PACING_{state}" for state in tested}
