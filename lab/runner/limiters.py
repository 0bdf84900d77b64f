"""What the limiters of a run's processes said of themselves.

Each writes it into its slot of the region and, when it ends by itself, into the history. A slot is another's as soon as
another process takes it, so regions are read whenever a process has ended, and at the end: what a killed process said
stands there. A row: `lab.region.pacing.ProcessPacing` as JSON, with `container` and `process` (its label; empty for
children that a process forked). A process that should have a limiter and whose state nobody saw has a row with the
state `unseen` and a reason in `why`: nothing is silently off.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lab.checks.history import HistoryError, load
from lab.region import RegionError
from lab.region.pacing import DevicePacing, ProcessPacing, from_slot, read_devices, read_pacing
from lab.runner import plan, proc
from lab.scenario.model import Container, Instance, Scenario
from lab.spec import load_layout


class Limiters:
    """The rows of one run."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._started: dict[tuple[int, int], Instance] = {}  # by PID namespace and PID inside
        self._pids: dict[int, set[int]] = {}  # by index: as we and as it sees it
        self._slots: dict[tuple[Path, int], dict[str, Any]] = {}  # by region and generation
        self._devices: dict[str, tuple[DevicePacing, ...]] = {}  # by container
        self._watched = [
            container
            for container in scenario.containers
            if any(scenario.container(container.share_region_with or container.name).cores.values())
            and plan.interposer_of(scenario, container) == "builtin"
        ]

    def started(self, instance: Instance, pid: int) -> None:
        """A process of the run; `pid` as we see it."""
        inner = proc.innermost_pid(pid)
        self._pids[instance.index] = {pid, inner}
        self._started[(proc.pid_namespace(pid), inner)] = instance

    def look(self, container: Container, region: Path) -> None:
        """Reads a container's region, where it has a core limit."""
        if container not in self._watched or not region.is_file():
            return
        try:
            found, self._devices[container.name] = read_pacing(region, ended=True), read_devices(region)
        except RegionError:
            return  # said elsewhere; it may be half made now
        for row in gathered(found):
            instance = self._started.get((row["pid_namespace"], row["pid"]))
            name = instance.container.name if instance else container.name
            label = instance.label if instance else ""
            key = (region, row["generation"])
            known = self._slots.get(key, {"container": name, "process": label})
            self._slots[key] = {"container": known["container"], "process": known["process"], **row}

    def rows(self, history: Path) -> list[dict[str, Any]]:
        """By container and process, those never seen included."""
        found = {(row["container"], row["process"], row["generation"]): row for row in self._slots.values()}
        for row in self._told(history) if self._watched else ():  # what a process said last counts
            found[(row["container"], row["process"], row["generation"])] = row
        seen = {(container, process) for container, process, _ in found}
        for instance in self._started.values():
            container = instance.container
            if container not in self._watched or (container.name, instance.label) in seen:
                continue
            layout = plan.dialect_of(self._scenario, container).ledger.layout
            why = "it never opened its container's region: it made no call of the driver that needs it"
            if layout != "hooklab-1":
                why = f"its books have layout {layout or 'none'}, which has no place for the state of a limiter"
            row = {"container": container.name, "process": instance.label, "state": "unseen", "why": why}
            found[(container.name, instance.label, 0)] = row
        return [found[key] for key in sorted(found)]

    def _told(self, history: Path) -> list[dict[str, Any]]:
        """What processes that ended by themselves wrote last."""
        records = None
        with contextlib.suppress(HistoryError):
            records = load(history).of("LIMITER")
        if records is None or not records.size:
            return []
        slot = load_layout("hooklab-1").dtype("hl_region_slot")
        names = {container.index: container.name for container in self._watched}
        labels = {instance.index: instance.label for instance in self._started.values()}
        rows = []
        for process, pid in sorted({(int(record["process"]), int(record["pid"])) for record in records}):
            mine = records[(records["process"] == process) & (records["pid"] == pid)]
            memory = bytearray(slot.itemsize)
            for record in mine:
                at = int(record["extra"])
                memory[at : at + 24] = b"".join(record[word].tobytes() for word in ("a", "b", "c"))
            name = names.get(int(mine[0]["container"]), "")
            label = labels.get(process, "") if pid in self._pids.get(process, ()) else ""
            said = from_slot(np.frombuffer(bytes(memory), slot)[0], self._devices.get(name, ()))
            rows.append({"container": name, "process": label, **said.as_json()})
        return rows


def gathered(found: Sequence[ProcessPacing]) -> list[dict[str, Any]]:
    """Rows of the processes that have a limit."""
    return [row.as_json() for row in found if row.state != "none"]
