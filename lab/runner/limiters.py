"""What the limiters of a run's processes say of themselves in their slots of the regions, for `lab.checks.limiters`.

A slot is another's as soon as another process takes it, so regions are read whenever a process has ended, and at the
end: what a killed process said stands there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lab.region import RegionError
from lab.region.pacing import ProcessPacing, read_devices, read_pacing
from lab.runner import plan, proc
from lab.scenario.model import Container, Instance, Scenario


class Limiters:
    """Those of one run."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._started: dict[tuple[int, int], Instance] = {}  # by PID namespace and PID inside
        self._pids: dict[int, list[int]] = {}  # by index: as we see it and as it sees itself
        self._rows: dict[tuple[Path, int], dict[str, Any]] = {}  # by region and generation
        self._devices: dict[str, list[dict[str, Any]]] = {}  # by container
        self._watched = [
            container
            for container in scenario.containers
            if any(scenario.container(container.share_region_with or container.name).cores.values())
            and plan.interposer_of(scenario, container) == "builtin"
        ]

    def started(self, instance: Instance, pid: int) -> None:
        """A process of the run; `pid` as we see it."""
        inner = proc.innermost_pid(pid)
        self._pids[instance.index] = [pid, inner]
        self._started[(proc.pid_namespace(pid), inner)] = instance

    def look(self, container: Container, region: Path) -> None:
        """Reads a container's region, where it has a core limit."""
        if container not in self._watched or not region.is_file():
            return
        try:
            found, devices = read_pacing(region, ended=True), read_devices(region)
        except RegionError:
            return  # said elsewhere; it may be half made now
        self._devices[container.name] = [asdict(device) for device in devices]
        for row in gathered(found):
            instance = self._started.get((row["pid_namespace"], row["pid"]))
            name = instance.container.name if instance else container.name
            label = instance.label if instance else ""
            key = (region, row["generation"])
            known = self._rows.get(key, {"container": name, "process": label})
            self._rows[key] = {"container": known["container"], "process": known["process"], **row}

    def as_json(self) -> dict[str, Any]:
        """`rows`, `devices` by container, `pids` by index (outside, inside), and the containers that are watched, each
        with why nothing can be seen of it (empty: it can)."""
        watched = {}
        for container in self._watched:
            layout = plan.dialect_of(self._scenario, container).ledger.layout
            why = f"its books have layout {layout or 'none'}, which has no place for the state of a limiter"
            watched[container.name] = "" if layout == "hooklab-1" else why
        rows = list(self._rows.values())
        return {"watched": watched, "rows": rows, "devices": self._devices, "pids": self._pids}


def gathered(found: Sequence[ProcessPacing]) -> list[dict[str, Any]]:
    """Rows of the processes that have a limit."""
    return [row.as_json() for row in found if row.state != "none"]
