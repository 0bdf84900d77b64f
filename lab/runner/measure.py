"""Scenarios with `measure`: bare against interposed, left behind as a run directory like any other."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from lab.runner import needs, pairs, plan, rundir
from lab.runner.bench import BenchError, BenchOptions, BenchResult, ProgramOptions, measure_calls, measure_program
from lab.runner.guest import GuestError, dialect_for
from lab.runner.rundir import RunDirectory
from lab.scenario.load import dump
from lab.scenario.model import Scenario


def measure(scenario: Scenario, *, out: Path, on: str) -> Path:
    """Measures what a scenario with `measure` asks for; the run directory. GuestError in one line."""
    if on == "sim":
        raise GuestError(f"{scenario.path}: --on sim: a scenario with `measure` needs processes: --on fake or real")
    unmet = needs.missing(scenario.needs, on=on) + _unmet(scenario)
    started = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    result = None if unmet else _measured(scenario, on)
    devices = {"gpus": scenario.node.gpus[0], "driver": scenario.node.driver}
    directory = RunDirectory.create(out, scenario.id)
    directory.scenario.write_text(dump(scenario), encoding="utf-8")
    info: dict[str, Any] = {
        "scenario": scenario.id,
        "seed": scenario.seed,
        "evidence": "real-gpu" if on == "real" else "fake-driver",
        "environment": rundir.environment(rundir.real_devices() if on == "real" else devices),
        "options": {"on": on, "interposer": scenario.options.interposer or "builtin"},
        "unknown": unmet,
        "not_played": bool(unmet),
        "started_ns": started,
        "ended_ns": time.clock_gettime_ns(time.CLOCK_MONOTONIC),
    }
    if result is not None:
        info["measured"] = [pairs.as_json(row) for row in result.rows]
        info["notes"] = [f"no figure from {line}" for line in result.failures]
    directory.write_info(info)
    return directory.path


def _unmet(scenario: Scenario) -> list[dict[str, str]]:
    """What the dialect of the interposer needs and plain processes, which are measured, have not."""
    interposer = scenario.options.interposer or "builtin"
    dialect = dialect_for(scenario.options.dialect, interposer)
    if interposer in ("builtin", "none") or not dialect.needs_container:
        return []
    what = f"dialect {dialect.name}: {dialect.needs_container}"
    return [{"what": what, "why": "plain processes are measured, and only containers have it"}]


def _measured(scenario: Scenario, on: str) -> BenchResult:
    asked, options = scenario.measure, scenario.options
    assert asked is not None
    common: dict[str, Any] = {
        "interposer": options.interposer or "builtin",
        "dialect": options.dialect,
        "gpu": scenario.node.gpus[0],
        "memory": str(asked["memory"]),
        "rounds": asked["rounds"],
        "batches": asked["batches"],
        "on": on,
    }
    try:
        if asked["kind"] == "calls":
            return measure_calls(BenchOptions(live=",".join(map(str, asked["live"])), **common))
        return measure_program(ProgramOptions(command=plan.command(asked["run"]), cpus=asked["cpus"], **common))
    except BenchError as error:
        raise GuestError(f"{scenario.path}: {error}") from None
