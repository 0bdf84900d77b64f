"""Checks of what others told about a run: programs (`reported`), the driver at a barrier (`held`), the tiers that find
out host PIDs (`identity`). Their sources are run.json (``processes[].reported``, ``held``) and IDENTITY records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from lab.checks import blind
from lab.checks.model import INVALID, UNKNOWN, VALID, RunData, Scope, Verdict, bounds_text, judge_count, within, worst
from lab.scenario import vocabulary
from lab.scenario.model import Expectation, Scenario
from lab.scenario.units import say_size


def reported(expectation: Expectation, scenario: Scenario, run: RunData) -> Verdict:
    """Figures that programs printed, each within its bounds; one that was not printed is wrong."""
    wanted: Mapping[str, Any] = expectation.arguments.get("named", {})
    statuses: list[str] = []
    said: list[str] = []
    for instance in Scope.of(scenario, expectation.arguments).instances:
        figures = run.process_info(instance.index).get("reported")
        figures = figures if isinstance(figures, Mapping) else {}
        for name, bounds in wanted.items():
            value = figures.get(name)
            if not isinstance(value, (int, float)):
                statuses.append(UNKNOWN if run.info.get("interrupted") else INVALID)
                said.append(f"{instance.label}: no {name}")
                continue
            good = within(value, bounds)
            statuses.append(VALID if good else INVALID)
            said.append(f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}")
    return Verdict(
        status=worst(statuses),
        check="reported",
        subject=f"process {expectation.arguments['process']}",
        expected=", ".join(f"{name} {bounds_text(bounds)}" for name, bounds in wanted.items()),
        seen=", ".join(said) or "nothing",
        where=str(expectation.where),
        evidence=run.evidence,
    )


def held(expectation: Expectation, scenario: Scenario, run: RunData) -> Verdict:
    """What the driver says containers hold at a barrier; unknown where nobody could ask it."""
    wanted = expectation.arguments
    names = {instance.container.name for instance in Scope.of(scenario, wanted).instances}
    entries = [
        entry
        for entry in run.info.get("held") or ()
        if isinstance(entry, Mapping) and entry.get("barrier") == wanted["barrier"] and entry.get("container") in names
    ]
    low, high = wanted["memory"]
    statuses = [VALID if within(int(entry["bytes"]), wanted["memory"]) else INVALID for entry in entries]
    unjudged = ""
    for index, entry in enumerate(entries):
        container, size = (str(entry["container"]),), int(entry["bytes"])
        no_limit = blind.why(run, container, "memory") if high is not None else ""
        no_floor = blind.why(run, container, "resident") if low is not None else ""
        too_little, too_much = low is not None and size < low, high is not None and size > high
        if (no_limit or no_floor) and (no_floor or not too_little) and (no_limit or not too_much):
            statuses[index] = UNKNOWN
        unjudged = unjudged or (no_limit or no_floor) * (statuses[index] == UNKNOWN)
    return Verdict(
        status=worst(statuses),
        check="held",
        subject=f"barrier {wanted['barrier']}",
        expected=f"the driver says {bounds_text(wanted['memory'], say_size)}",
        seen=(
            ", ".join(f"{entry['container']}: {say_size(int(entry['bytes']))}" for entry in entries)
            or "nobody could ask the driver"
        )
        + blind.note(unjudged),
        where=str(expectation.where),
        evidence=run.evidence,
    )


_STATUSES = {"ok": 0, "bad job": 1, "cuda error": 2, "transport error": 3, "none": -1}


def bridged(expectation: Expectation, _scenario: Scenario, run: RunData) -> Verdict:
    """How many jobs of a kernel ended so on the bridge, and how many elements were wrong in them."""
    wanted = expectation.arguments
    kernels = {
        number: name for name, number in vocabulary.constants("node", "HL_RUN_").items() if name in ("vadd", "mail")
    }
    jobs = [
        (kernels.get(int(record["a"]) >> 56, "?"), int(record["result"]), int(record["extra"]))
        for record in run.history.of("BRIDGE")
    ]
    jobs = [job for job in jobs if wanted.get("kernel", job[0]) == job[0]]
    chosen = [job for job in jobs if job[1] == _STATUSES[wanted["status"]]]
    wrong = sum(job[2] for job in chosen)
    statuses = [judge_count(len(chosen), wanted["count"], complete=run.complete)]
    if "wrong" in wanted:
        statuses.append(VALID if wrong == wanted["wrong"] else INVALID)
    names = {number: name for name, number in _STATUSES.items()}
    seen = Counter(names.get(job[1], str(job[1])) for job in jobs)
    return Verdict(
        status=worst(statuses),
        check="bridged",
        subject=f"jobs of {wanted.get('kernel', 'vadd and mail')}",
        expected=f"{wanted['status']}: {bounds_text(wanted['count'])}"
        + (f", {wanted['wrong']} wrong" if "wrong" in wanted else ""),
        seen=(", ".join(f"{name}: {count}" for name, count in sorted(seen.items())) or "no job")
        + (f", {wrong} wrong" if "wrong" in wanted else ""),
        where=str(expectation.where),
        evidence=run.evidence,
    )


def identity(expectation: Expectation, scenario: Scenario, run: RunData) -> Verdict:
    """The outcome of every search for a host PID: found by one of these tiers, and the process's own."""
    wanted = expectation.arguments["tier"]
    wanted = (wanted,) if isinstance(wanted, str) else tuple(wanted)
    tiers = {number: name for name, number in vocabulary.constants("history", "HL_TIER_").items()}
    records = run.history.of("IDENTITY", "SPAWN")
    own = {int(record["process"]): int(record["a"]) for record in run.history.of("SPAWN")}
    instances = {instance.index: instance for instance in Scope.of(scenario, expectation.arguments).instances}
    statuses: list[str] = []
    seen: Counter[str] = Counter()
    for record in run.history.of("IDENTITY"):
        index = int(record["process"])
        if int(record["extra"]) != 1 or index not in instances:
            continue
        tier, pid = tiers.get(int(record["a"]), "?"), int(record["b"])
        right = tier == "unknown" or pid == own.get(index)
        statuses.append(VALID if tier in wanted and right else INVALID)
        seen[tier if right else f"{tier} with a wrong PID"] += 1
    silent = not statuses
    unjudged = blind.why(run, {one.container.name for one in instances.values()}, "reports") if silent else ""
    if silent and records.size and not unjudged:
        statuses.append(INVALID if run.complete else UNKNOWN)
    return Verdict(
        status=worst(statuses),
        check="identity",
        subject="host PIDs",
        expected=" or ".join(wanted),
        seen=(", ".join(f"{name}: {count}" for name, count in sorted(seen.items())) or "nobody asked")
        + blind.note(unjudged),
        where=str(expectation.where),
        evidence=run.evidence,
    )
