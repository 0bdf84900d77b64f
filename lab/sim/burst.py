"""`hooklab burst --on sim`: bursts in virtual time, in the same document form as bursts of real processes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from lab.sim import EVIDENCE, article, fit
from lab.sim.capacity import capacity
from lab.sim.constants import STARTUP
from lab.sim.plan import Gate, Phase, Plan, PlanError
from lab.sim.startup import Started, play
from lab.spec.profile import ProfileError, profile_names

SCHEMA = "hooklab.burst/1"
CONDITIONS = {  # name -> how the host PID is found; None: no interposer
    "baseline": "probe",
    "client_only": "probe",
    "broker_missing": "probe",
    "procfs": "procfs",
    "broker": "broker",
    "lazy": "lazy",
    "bare": None,
}


def bare() -> Plan:
    """cuInit without an interposer: loader, its private part, the driver."""
    found = article.plan("broker")
    kept = {"loader", "private", "init"}
    phases: tuple[Phase, ...] = tuple(phase for phase in found.phases if phase.name in kept)
    used = {phase.gate for phase in phases}
    gates: tuple[Gate, ...] = tuple(gate for gate in found.gates if gate.name in used)
    return Plan(phases=phases, gates=gates, release_ns=found.release_ns)


def plan_of(condition: str, *, gpus: int) -> Plan:
    """The start-up of one condition of `CONDITIONS`. PlanError for one that the simulator does not know."""
    if condition not in CONDITIONS:
        known = ", ".join(CONDITIONS)
        raise PlanError(f"--on sim: no condition {condition!r}; known there: {known}; others need real processes")
    identity = CONDITIONS[condition]
    return bare() if identity is None else article.plan(identity, gpus=gpus)


def phases(started: Started, release: np.ndarray[Any, Any]) -> list[dict[str, int]]:
    """For each worker, the phases of a burst document: ns since the release of all."""
    began, ended = started.began, started.ended
    columns: dict[str, Any] = {"loader_ready": release, "worker_enter": release}
    real_exit = ended["init"]
    if "register" in ended:
        columns["region_enter"] = ended["loader"]
        columns["region_acquired"] = began["register"]
        columns["region_released"] = ended["register"]
        columns["real_enter"] = ended["register"]
    else:
        columns["real_enter"] = ended["loader"]
    columns["real_exit"] = real_exit
    exit_ = release + started.latency
    for name in ("probe", "procfs", "broker"):
        if name in ended:
            late = ended[name]
            columns["identity_enter"] = np.where(began[name] >= 0, began[name], exit_)
            columns["identity_exit"] = np.where(late >= 0, late, exit_)
    columns["worker_exit"] = exit_
    lists = {name: column.tolist() for name, column in columns.items()}
    return [{name: column[worker] for name, column in lists.items()} for worker in range(len(release))]


def _one(
    condition: str, workers: int, repeat: int, order: int, seed: int, gpus: int, cores: int | None
) -> dict[str, Any]:
    from lab.sim.startup import releases

    plan = plan_of(condition, gpus=gpus)
    release = releases(plan, workers, seed + repeat)
    started = play(plan, workers=workers, seed=seed + repeat, record=True)
    gave_up = int(started.gave_up.sum())
    latency = started.latency.tolist()
    return {
        "condition": condition,
        "interposer": "none" if CONDITIONS[condition] is None else "model",
        "workers": workers,
        "repeat": repeat,
        "order": order,
        "release_ns": 0,
        "timed_out": False,
        "wall_ns": int((release + started.latency).max()),
        "raw": [
            {"worker": worker, "ok": True, "reason": "", "cuinit_ns": latency[worker], "phases": times}
            for worker, times in enumerate(phases(started, release))
        ],
        "counts": {
            "identity timeouts": int(started.timeouts.sum()),
            "identity gave up": gave_up,
            "run unpaced": gave_up if cores and CONDITIONS[condition] is not None else 0,
        },
    }


def simulate_burst(*, workers: Sequence[int], repeat: int, seed: int, out: Path, options: Mapping[str, Any]) -> Path:
    """Plays every condition, writes ``burst.json`` into a new directory below `out` and returns it.

    `options` as the command has them: condition, gpu, memory, cores, context. PlanError in one line.
    """
    if options.get("control"):
        raise PlanError("--on sim: controls test the machine; they need --on fake or --on real")
    for interposer in options.get("interposer") or ():
        if interposer not in ("builtin", "none"):
            raise PlanError(f"--on sim: no model of {interposer}; the simulator plays the article's interposer")
    profiles = str(options.get("gpu") or "a100-80g").split(",")
    if len(set(profiles)) > 1:
        raise PlanError("--on sim: all GPUs of a simulated node are of one profile")
    if profiles[0] not in profile_names():
        raise ProfileError(f"no GPU profile {profiles[0]!r}; known: {', '.join(profile_names())}")
    cores = options.get("cores")
    conditions = tuple(options.get("condition") or ("baseline",))
    runs = [
        _one(condition, size, number, order, seed, len(profiles), cores)
        for order, (number, condition, size) in enumerate(
            (number, condition, size) for number in range(repeat) for condition in conditions for size in workers
        )
    ]
    held = capacity(
        profiles[0],
        workers=max(workers),
        gpus=len(profiles),
        memory=options.get("memory_bytes"),
        cores=cores,
        context=options.get("context_bytes"),
    )
    document = {
        "schema": SCHEMA,
        "evidence": EVIDENCE,
        "seed": seed,
        "environment": {"model": "the article's start-up on eight A100", "gpu": ",".join(profiles)},
        "runs": runs,
        "capacity": held.as_json(),
        "constants": [{"name": name, **asdict(constant)} for name, constant in STARTUP.items()],
    }
    return _write(document, out)


def _write(document: Mapping[str, Any], out: Path) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    out.mkdir(parents=True, exist_ok=True)
    for attempt in range(1000):
        directory = out.absolute() / (f"{stamp}-burst-sim" + (f"-{attempt}" if attempt else ""))
        try:
            directory.mkdir()
        except FileExistsError:
            continue
        fresh = directory / "burst.json.new"
        fresh.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        os.replace(fresh, directory / "burst.json")
        return directory
    raise PlanError(f"{out}: a thousand runs of this second are there already; choose another place with --out")


def fit_document(found: fit.Fit) -> dict[str, Any]:
    """A fit as plain values, every constant with its tag."""
    return {
        "schema": "hooklab.fit/1",
        "evidence": EVIDENCE,
        "rms_percent": found.rms,
        "worst_percent": found.worst,
        "left_out_rms_percent": found.left_out_rms,
        "density_left_out_worst_percent": found.density_left_out_worst,
        "cells": [{**asdict(cell), "condition": article.NAMES[cell.identity]} for cell in found.cells],
        "constants": [
            {"name": name, "value": value, "unit": unit, "tag": tag, "source": source}
            for name, value, unit, tag, source in fit.tagged(found.values)
        ],
    }
