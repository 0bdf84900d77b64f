"""What cannot be judged of which container because of its interposer's dialect, and why (for lab.checks.blind)."""

from __future__ import annotations

from lab.runner import plan
from lab.scenario.model import Scenario


def blind(scenario: Scenario) -> list[dict[str, str]]:
    """Entries of run.json: ``container``, ``what`` (memory, cores, ledger, points), ``why``."""
    found = []
    for container in scenario.containers:
        if plan.interposer_of(scenario, container) == "none":
            continue
        dialect = plan.dialect_of(scenario, container)
        limited = any(container.memory_limit(device) is not None for device in range(len(scenario.node.gpus)))
        reasons = {
            "memory": dialect.memory.none if limited else "",
            "cores": dialect.cores.none if container.cores else "",
            "ledger": dialect.ledger.none,
            "points": ""
            if dialect.points or not _points_of(scenario, container.name)
            else f"an interposer of dialect {dialect.name} has no sequence points",
        }
        found += [{"container": container.name, "what": what, "why": why} for what, why in reasons.items() if why]
    return found


def _points_of(scenario: Scenario, container: str) -> bool:
    indices = {instance.index for instance in scenario.instances() if instance.container.name == container}
    return any(
        fault.container in (None, container)
        and (fault.process is None or indices & set(scenario.process_indices(fault.process, fault.container)))
        for fault in plan.point_faults(scenario)
    )
