"""The four quantities of memory, by process and device, and why they differ.

* physical: what the driver holds for the process
* ledger: what the interposer has booked for it
* observed: what NVML reports of it, which counts a context as NVML does
* limit: what its container may hold on the device
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lab.node.model import NodeSnapshot, ProcessState
    from lab.region import Process, Region

MIB = 1 << 20
WHY = {
    "module": "code of modules is not booked",
    "managed": "managed memory is booked when it is asked for, held when it is touched",
    "context": "a context is booked as HOOKLAB_CONTEXT_BYTES says",
    "other": "local memory, printf buffer, device heap and arrays below 2 MiB are not booked as they are held",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantities:
    """One process on one device; bytes. None: there is no ledger, or the process is not in it."""

    device: int
    host_pid: int
    container: str
    physical: int
    limit: int
    """0: none."""
    ledger: int | None
    observed: int
    gaps: tuple[str, ...]
    """Why physical and ledger differ, one text a kind; empty where they agree or no ledger is known."""


def quantities(snapshot: NodeSnapshot, regions: Mapping[str, Region]) -> list[Quantities]:
    """Rows for every process that holds memory. ``regions``: the ledger of a container by the container's name."""
    names = {container.index: container for container in snapshot.containers}
    booked = {name: region.processes() for name, region in regions.items()}
    rows = []
    for process in snapshot.processes:
        container = names.get(process.container)
        name = container.name if container else ""
        entry = _entry(process, booked.get(name, ()))
        for device in snapshot.devices:
            index = device.index
            physical = process.total(index)
            by_kind = _by_kind(entry, index)
            if not physical and not process.contexts[index] and not sum(by_kind.values()):
                continue
            limit = regions[name].limit(index) if name in regions else container.limit[index] if container else 0
            rows.append(
                Quantities(
                    device=index,
                    host_pid=process.host_pid,
                    container=name,
                    physical=physical,
                    limit=limit,
                    ledger=sum(by_kind.values()) if entry else None,
                    observed=max(0, physical + process.contexts[index] * device.nvml_context_extra),
                    gaps=tuple(_gaps(process.bytes[index], by_kind)) if entry else (),
                )
            )
    return rows


def _entry(process: ProcessState, booked: Iterable[Process]) -> Process | None:
    """Its slot: by host PID where the books have one, else by its PID inside."""
    for one in booked:
        if one.present and (one.host_pid == process.host_pid if one.host_pid else one.pid == process.ns_pid):
            return one
    return None


def _by_kind(entry: Process | None, device: int) -> dict[str, int]:
    from lab.node.layout import kind_names

    if entry is None:
        return {}
    found = dict(zip(kind_names(), entry.used.get(device, ()), strict=False))
    found["pending"] = entry.pending.get(device, 0)
    return {kind: size for kind, size in found.items() if size}


def _gaps(physical: Mapping[str, int], booked: Mapping[str, int]) -> Iterable[str]:
    """Small allocations of all plain families share blocks, so those are compared in one sum."""
    plain = ("sync", "pitched")
    sums = {kind: (physical.get(kind, 0), booked.get(kind, 0)) for kind in {*physical, *booked} - {*plain}}
    sums["sync"] = (sum(physical.get(k, 0) for k in plain), sum(booked.get(k, 0) for k in plain))
    for kind, (held, counted) in sorted(sums.items()):
        if held != counted:
            side = "held and not booked" if held > counted else "booked and not held"
            less = f"{kind}: {abs(held - counted) / MIB:,.1f} MiB {side}"
            yield f"{less} ({WHY[kind]})" if kind in WHY else less
