"""What each worker of a burst did and when: its phase vector, read from the history.

Phases the interposer writes itself are used where it does; for any other the driver's own stamps of its calls give the
same points (when cuInit was inside the driver, when the identity experiment ran). A worker without a result has failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lab.checks import history
from lab.spec import load_errors, load_hooks

PHASES = (
    "loader_ready",
    "worker_enter",
    "wrapper_enter",
    "region_enter",
    "region_acquired",
    "region_released",
    "real_enter",
    "real_exit",
    "identity_enter",
    "identity_exit",
    "postinit_exit",
    "wrapper_exit",
    "worker_exit",
    "first_alloc",
)
STEPS = {10: "nvml_init", 11: "snapshot", 12: "retain", 13: "retain_nested", 14: "release"}  # bench/worker.c
LOADED, INIT, ALLOCATE = 0, 1, 2
Records = npt.NDArray[np.void]


def read_raw(path: Path, workers: int, release_ns: int) -> list[dict[str, Any]]:
    """One record a worker: ``ok``, ``reason`` ("" when nothing told it), ``cuinit_ns``, ``phases`` (ns since release),
    ``parts`` (ns of what a control measured, in order), ``alloc`` (None, or the CUresult of the first allocation)."""
    records = history.load(path).records
    order = np.argsort(records["process"], kind="stable")
    by_process = records[order]
    starts = np.searchsorted(by_process["process"], np.arange(workers + 1))
    return [
        _worker(index, by_process[starts[index] : starts[index + 1]], release_ns, _phase_names())
        for index in range(workers)
    ]


def _phase_names() -> Mapping[int, str]:
    """Number of an interposer's phase -> name here, where it is one of ours."""
    found = {}
    for name, number in history.constants().items():
        if name.startswith("HL_PHASE_") and (short := name.removeprefix("HL_PHASE_").lower()) in PHASES:
            found[number] = short
    return found


def _worker(index: int, records: Records, release_ns: int, names: Mapping[int, str]) -> dict[str, Any]:
    phases: dict[str, int] = {}

    def put(name: str, time_ns: int) -> None:
        phases.setdefault(name, int(time_ns) - release_ns)

    caller = records["source"] == history.constants()["HL_SOURCE_CALLER"]
    ends = records[caller & (records["event"] == history.event("STEP_END"))]
    begins = records[caller & (records["event"] == history.event("STEP_BEGIN"))]
    for record in ends[ends["step"] == LOADED]:
        put("loader_ready", record["time_ns"])
    for record in begins[begins["step"] == INIT]:
        put("worker_enter", record["time_ns"])
    result: Any = None
    for record in ends[ends["step"] == INIT]:
        put("worker_exit", record["time_ns"])
        result = record
    for record in records[records["event"] == history.event("PHASE")]:
        if int(record["a"]) in names:
            put(names[int(record["a"])], record["time_ns"])
    _from_driver(records, phases, release_ns)
    alloc = None
    for record in ends[ends["step"] == ALLOCATE]:
        put("first_alloc", record["time_ns"])
        alloc = int(record["result"])
    ok = result is not None and int(result["result"]) == 0
    reason = ""
    if result is not None and not ok:
        reason = f"cuInit returned {load_errors().name('cuda', int(result['result']))}"
    return {
        "worker": index,
        "ok": ok,
        "reason": reason,
        "cuinit_ns": int(result["c"]) if result is not None else None,
        "phases": {name: phases[name] for name in PHASES if name in phases},
        "parts": [[STEPS[int(one["step"])], int(one["c"])] for one in ends if int(one["step"]) in STEPS],
        "alloc": alloc,
        "identity": _identity(records),
    }


def _identity(records: Records) -> str:
    """Which tier said the host PID, "unknown" when none could, "" when nobody asked."""
    outcomes = records[(records["event"] == history.event("IDENTITY")) & (records["extra"] == 1)]
    tiers = {number: name for name, number in history.constants().items() if name.startswith("HL_TIER_")}
    return tiers[int(outcomes[0]["a"])].removeprefix("HL_TIER_").lower() if len(outcomes) else ""


def _from_driver(records: Records, phases: dict[str, int], release_ns: int) -> None:
    """Fills in what the interposer did not say, from the fake driver's records of its calls (time = return)."""
    calls = records[records["event"] == history.event("CALL")]
    ids = load_hooks()
    init = calls[calls["name"] == ids["cuInit"].id][:1]
    for record in init:
        phases.setdefault("real_enter", int(record["time_ns"]) - int(record["c"]) - release_ns)
        phases.setdefault("real_exit", int(record["time_ns"]) - release_ns)
    if "real_exit" not in phases or "worker_exit" not in phases or "identity_enter" in phases:
        return
    begin, end = phases["real_exit"] + release_ns, phases["worker_exit"] + release_ns
    probing = {
        ids[name].id
        for name in ("cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxRelease")
    }
    first_nvml = ids.cuda_count
    started = calls["time_ns"].astype(np.int64) - calls["c"].astype(np.int64)
    inside = calls[
        (started >= begin)
        & (calls["time_ns"].astype(np.int64) <= end)
        & (np.isin(calls["name"], list(probing)) | ((calls["name"] >= first_nvml) & (calls["name"] != history.NONE16)))
    ]
    if len(inside):
        phases["identity_enter"] = (
            int((inside["time_ns"].astype(np.int64) - inside["c"].astype(np.int64)).min()) - release_ns
        )
        phases["identity_exit"] = int(inside["time_ns"].max()) - release_ns
