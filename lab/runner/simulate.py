"""Scenarios in virtual time: played by `lab.sim`, left behind as a run directory like any other."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lab.policy import PolicyError
from lab.runner import rundir
from lab.runner.guest import GuestError
from lab.runner.rundir import RunDirectory
from lab.scenario.load import dump
from lab.scenario.model import Scenario
from lab.sim import EVIDENCE
from lab.sim.patterns import PatternError
from lab.sim.plan import Gate, Phase, Plan, PlanError
from lab.sim.startup import Started, play


def simulate(scenario: Scenario, *, out: Path, on: str) -> Path:
    """Plays a scenario with `simulate`; the run directory. GuestError in one line."""
    assert scenario.simulate is not None
    if on == "real":
        raise GuestError(f"{scenario.path}: --on real: a scenario with `simulate` is played in virtual time only")
    started = time.monotonic_ns()
    try:
        figures = _PLAYERS[scenario.simulate["kind"]](scenario.simulate, scenario.seed)
    except (PlanError, PatternError, PolicyError) as error:
        raise GuestError(f"{scenario.path}: {error}") from None
    directory = RunDirectory.create(out, scenario.id)
    directory.scenario.write_text(dump(scenario), encoding="utf-8")
    directory.write_info(
        {
            "scenario": scenario.id,
            "seed": scenario.seed,
            "evidence": EVIDENCE,
            "environment": rundir.environment({}),
            "options": {"on": "sim"},
            "started_ns": started,
            "ended_ns": time.monotonic_ns(),
            "simulated": figures,
        }
    )
    return directory.path


def _burst(condition: str, started: Started) -> dict[str, Any]:
    return {
        "condition": condition,
        "workers": len(started.latency),
        "engine": started.engine,
        "latencies": started.latency.tolist(),
        "timeouts": int(started.timeouts.sum()),
        "gave_up": int(started.gave_up.sum()),
    }


def _start_up(asked: Mapping[str, Any], seed: int) -> dict[str, Any]:
    from lab.sim.burst import plan_of

    return {
        "bursts": [
            _burst(condition, play(plan_of(condition, gpus=1), workers=workers, seed=seed))
            for condition in asked["conditions"]
            for workers in asked["workers"]
        ]
    }


def _phases(asked: Mapping[str, Any], seed: int) -> dict[str, Any]:
    gates = {
        name: Gate(
            name=name,
            servers=form["servers"],
            order=form["order"],
            scope=form["scope"],
            timeout_ns=form["timeout"],
            tries=form["tries"],
        )
        for name, form in asked["gates"].items()
    }
    for form in asked["plan"]:
        if form["gate"] is not None:
            gates.setdefault(form["gate"], Gate(name=form["gate"]))
    phases = tuple(
        Phase(name=form["name"], gate=form["gate"], base_ns=form["time"], per_turn_ns=form["per_turn"])
        for form in asked["plan"]
    )
    plan = Plan(phases=phases, gates=tuple(gates.values()), release_ns=asked["release"])
    return {"bursts": [_burst("phases", play(plan, workers=asked["workers"], seed=seed))]}


def _pacing(asked: Mapping[str, Any], seed: int) -> dict[str, Any]:
    from lab.sim import grade

    case = grade.Case(
        tenants=tuple((tenant["pattern"], tenant["target"]) for tenant in asked["tenants"]), seconds=asked["seconds"]
    )
    run = grade.play(
        asked["controller"],
        case,
        sms=asked["sms"],
        period_ns=asked["period"],
        seed=seed,
        attribution=asked["attribution"],
        sharing=asked["sharing"],
    )
    tenants = [
        {
            "pattern": tenant.pattern,
            "target": tenant.target,
            "achieved": tenant.achieved,
            "mae": tenant.mae,
            "long_run": tenant.long_run_error,
            "windows": run.shares[:, number].tolist(),
        }
        for number, tenant in enumerate(run.tenants)
    ]
    return {"controller": run.controller, "sms": run.sms, "tenants": tenants, "jain": run.jain, "lost": run.lost}


_PLAYERS = {"start_up": _start_up, "phases": _phases, "pacing": _pacing}
