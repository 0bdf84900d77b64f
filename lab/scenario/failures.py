"""The failure sweep of a scenario: one run for each driver call it makes, in which exactly that call fails.

First the scenario is made lenient: its steps may end with any result, its expectations give way to what must hold
whatever fails. Then, from the calls that a run of that really made, come the runs that fail one each. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from lab.scenario.crosscheck import SHORT
from lab.scenario.load import dump, loads
from lab.scenario.model import Fault, Scenario
from lab.scenario.vocabulary import code_name
from lab.spec import FailureTable, load_failures

INVARIANTS = ("no_leak", "ledger_empty", "known_results", "outputs_untouched")


@dataclass(frozen=True, order=True)
class Failure:
    """The ``call``-th call of driver function ``name`` by the run's process ``process`` ends with ``code``."""

    process: int
    name: str
    call: int
    code: int


def lenient(scenario: Scenario, *, ledger: bool = True) -> Scenario:
    """The scenario with steps that may fail, and the invariants as its expectations. ``ledger``: whether the dialect's
    ledger can be read, so that it must be empty at the end."""
    raw = dict(scenario.raw)
    raw["containers"] = {
        name: {**container, "processes": [_process(process) for process in container["processes"]]}
        for name, container in raw["containers"].items()
    }
    raw["options"] = {**(raw.get("options") or {}), "history": "calls"}
    unread = set() if ledger else {"ledger_empty"}
    if any(step.op == "call" for one in scenario.instances() for step in one.process.walk()):
        unread.add("no_leak")  # what a bare call allocates its program does not report
    raw["expect"] = [{name: None} for name in INVARIANTS if name not in unread]
    raw["expect"].append({"faults_fired": {"count": {"min": 0}}})  # a failed call may keep another fault from its place
    found = loads(dump(replace(scenario, raw=raw)), scenario.path)
    return replace(found[0], id=scenario.id, name=scenario.name, seed=scenario.seed)


def _process(process: Mapping[str, Any]) -> dict[str, Any]:
    steps = process.get("steps")
    found = {**process, "steps": [_step(step) for step in steps]} if steps else dict(process)
    if process.get("expect_exit") not in (
        None,
        0,
    ):  # a failed call may keep it from where it is killed
        found["expect_exit"] = "any"
    return found


def _step(step: Any) -> dict[str, Any]:
    if isinstance(step, str):
        return {step: {"result": "any"}}
    ((op, body),) = step.items()
    if not isinstance(body, dict):
        body = {} if body is None else {SHORT[op]: body}
    body = {**body, "result": "any"}
    if "steps" in body:
        body["steps"] = [_step(nested) for nested in body["steps"]]
    return {op: body}


def failures(
    calls: Iterable[tuple[int, int, str]], *, most: int | None = None, seed: int = 1, table: FailureTable | None = None
) -> tuple[Sequence[Failure], int]:
    """What to fail, and how many failures there are in all. ``calls``: (process, PID, function) of every call that
    reached the driver. ``most``: at most so many, drawn by ``seed``."""
    table = table or load_failures()
    counts = Counter(calls)
    reach: dict[tuple[int, str], int] = {}
    for (process, _pid, name), count in counts.items():  # a fault counts by process: parent and child each have a first
        reach[process, name] = max(reach.get((process, name), 0), count)
    found = [
        Failure(process, name, call, code)
        for (process, name), count in sorted(reach.items())
        for call in range(1, count + 1)
        for code in table.codes(name)
    ]
    total = len(found)
    if most is not None and most < total:
        found = sorted(Random(seed).sample(found, most))
    return found, total


def failing(scenario: Scenario, failure: Failure) -> Scenario:
    """The lenient scenario with this one failure planned beside its own faults."""
    instance = scenario.instances()[failure.process]
    process = f"{instance.process.name}.{instance.ordinal}" if instance.process.count > 1 else instance.process.name
    where = instance.process.where
    fault = Fault(
        index=len(scenario.faults),
        at=failure.name,
        mode="call",
        call=failure.call,
        scope="process",
        process=process,
        container=instance.container.name,
        when="before",
        action="return",
        code=failure.code,
        delay_ns=0,
        signal=0,
        meet=0,
        until="",
        where=where,
    )
    raw_fault = {
        "at": failure.name,
        "call": failure.call,
        "process": process,
        "container": instance.container.name,
        "return": failure.code,
    }
    return replace(
        scenario,
        id=f"{scenario.id} {said(scenario, failure)}",
        faults=(*scenario.faults, fault),
        raw={**scenario.raw, "faults": [*(scenario.raw.get("faults") or []), raw_fault]},
    )


def said(scenario: Scenario, failure: Failure) -> str:
    """``worker: cuMemAlloc_v2 #2 = oom``."""
    label = scenario.instances()[failure.process].label
    return f"{label}: {failure.name} #{failure.call} = {code_name(failure.code, failure.name)}"
