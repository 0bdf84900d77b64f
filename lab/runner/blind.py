"""What cannot be judged of which container because of its interposer's dialect, and why (for lab.checks.blind)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from lab.runner import plan
from lab.scenario.model import Container, Scenario
from lab.spec import Dialect, Limit, dialect_names, load_dialect


def blind(scenario: Scenario) -> list[dict[str, Any]]:
    """Entries of run.json: ``container``, ``what``, ``why``.

    ``what``: memory, cores (there is no such limit, or the scenario tells it in words of another dialect), resident
    (what is allocated takes device memory only later), settings (which the scenario makes are the built-in one's),
    ledger, points, reports (of searches for a host PID), calls (with the ``names`` that it calls others for).
    """
    found: list[dict[str, Any]] = []
    for container in scenario.containers:
        if plan.interposer_of(scenario, container) == "none":
            continue
        dialect = plan.dialect_of(scenario, container)
        limited = any(container.memory_limit(device) is not None for device in range(len(scenario.node.gpus)))
        words = _foreign_words(container, dialect)
        ours = f"an interposer of dialect {dialect.name}"
        settings = "" if dialect.points else _settings(container, ours)
        reasons = {
            "memory": (dialect.memory.none if limited else "") or words.get("memory", "") or settings,
            "settings": settings or words.get("memory", ""),
            "cores": (dialect.cores.none if container.cores else "") or words.get("cores", ""),
            "resident": dialect.lazy or settings,
            "ledger": dialect.ledger.none,
            "points": f"{ours} has no sequence points" if _points_of(scenario, container.name) else "",
            "reports": f"{ours} does not say how it finds its host PID",
            "calls": f"{ours} calls other functions instead" if dialect.calls else "",
        }
        if dialect.points:
            reasons |= {"points": "", "reports": ""}
        more: dict[str, dict[str, Any]] = {"calls": {"names": sorted({*dialect.calls, *dialect.calls.values()})}}
        found += [
            {"container": container.name, "what": what, "why": why, **more.get(what, {})}
            for what, why in reasons.items()
            if why
        ]
    return found


def _foreign_words(container: Container, dialect: Dialect) -> Mapping[str, str]:
    """Limits that the scenario itself writes into the environment, in variables that this dialect does not have."""
    own = {form for one in (dialect.memory, dialect.cores) for form in _forms(one)}
    set_here = {*container.environment, *(name for process in container.processes for name in process.environment)}
    found: dict[str, str] = {}
    for kind, form in _limit_variables():
        for name in sorted(set_here):
            if form not in own and re.fullmatch(_pattern(form), name):
                found.setdefault(
                    kind, f"the scenario sets {name}, which an interposer of dialect {dialect.name} does not read"
                )
    return found


def _settings(container: Container, whose: str) -> str:
    """Why what a container holds cannot be told: the scenario sets up the built-in interposer, which is another one."""
    set_here = {*container.environment, *(name for process in container.processes for name in process.environment)}
    for name in sorted(set_here):
        if name.startswith("HOOKLAB_"):
            return f"the scenario sets {name}, which {whose} does not read"
    return ""


@cache
def _limit_variables() -> tuple[tuple[str, str], ...]:
    return tuple(_of_all_dialects())


def _of_all_dialects() -> Iterator[tuple[str, str]]:
    for name in dialect_names():
        dialect = load_dialect(name)
        for kind, limit in (("memory", dialect.memory), ("cores", dialect.cores)):
            yield from ((kind, form) for form in _forms(limit) if form)


def _forms(limit: Limit) -> tuple[str, str, str]:
    return limit.variable, limit.device_variable, limit.uuid_variable


def _pattern(form: str) -> str:
    """Names of this form; a UUID may still be a placeholder of the scenario's."""
    return re.escape(form).replace(r"\{i\}", r"\d+").replace(r"\{uuid\}", r"(GPU|MIG|\{uuid:)\S+")


def _points_of(scenario: Scenario, container: str) -> bool:
    indices = {instance.index for instance in scenario.instances() if instance.container.name == container}
    return any(
        fault.container in (None, container)
        and (fault.process is None or indices & set(scenario.process_indices(fault.process, fault.container)))
        for fault in plan.point_faults(scenario)
    )
