"""What the limiters of a run's processes said of themselves, last.

Each writes it into its slot of the region and, when it ends by itself, into the history. The runner has read the slots
(run.json, `pacing`); what the history says counts more. A row: `lab.region.pacing.ProcessPacing` as JSON, with
`container` and `process` (its label; empty for children that a process forked). A process that should have a limiter
and whose state nobody saw has a row with the state `unseen` and a reason in `why`: nothing is silently off.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from lab.checks.model import RunData
from lab.region.pacing import DevicePacing, from_slot
from lab.scenario.model import Scenario
from lab.spec import load_layout


def limiters(scenario: Scenario, run: RunData) -> tuple[dict[str, Any], ...]:
    """By container and process; empty where no container has a core limit."""
    said = run.info.get("pacing") or {}
    watched: Mapping[str, str] = said.get("watched") or {}
    if not watched:
        return ()
    found = {(row["container"], row["process"], row["generation"]): row for row in said["rows"]}
    for row in _told(scenario, run, said):
        found[(row["container"], row["process"], row["generation"])] = row
    seen = {(container, process) for container, process, _ in found}
    for instance in scenario.instances():
        name, label = instance.container.name, instance.label
        if name in watched and str(instance.index) in said["pids"] and (name, label) not in seen:
            found[(name, label, 0)] = {
                "container": name,
                "process": label,
                "state": "unseen",
                "why": watched[name] or "it never opened its container's region: it made no call that needs it",
            }
    return tuple(found[key] for key in sorted(found))


def _told(scenario: Scenario, run: RunData, said: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """What processes that ended by themselves wrote last."""
    records = run.history.of("LIMITER")
    slot = load_layout("hooklab-1").dtype("hl_region_slot")
    instances = {instance.index: instance for instance in scenario.instances()}
    for process, pid in sorted({(int(record["process"]), int(record["pid"])) for record in records}):
        instance = instances.get(process)
        if instance is None:
            continue
        memory = bytearray(slot.itemsize)
        for record in records[(records["process"] == process) & (records["pid"] == pid)]:
            at = int(record["extra"])
            memory[at : at + 24] = b"".join(record[word].tobytes() for word in ("a", "b", "c"))
        name = instance.container.name
        devices = tuple(DevicePacing(**device) for device in said["devices"].get(name, ()))
        row = from_slot(np.frombuffer(bytes(memory), slot)[0], devices)
        own = pid in said["pids"].get(str(process), ())
        yield {"container": name, "process": instance.label if own else "", **row.as_json()}
