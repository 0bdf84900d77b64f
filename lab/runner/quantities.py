"""What a node and the ledgers of its containers say of memory at one moment, by process, device and kind.

`lab.checks.quantities` reads these rows, from a run's run.json or at once, and explains their gaps. A row:
``{"at", "container", "process", "device", "host_pid", "physical": {kind: bytes} | None, "limit": bytes (0 none),
"ledger": {kind: bytes} | bytes (no kinds) | None (unknown), "observed": bytes | None}``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lab.node.layout import kind_names
from lab.node.model import ContainerState, DeviceState, NodeSnapshot, ProcessState
from lab.region import Process, Region
from lab.spec import LedgerRow

Ledger = Region | Sequence[LedgerRow]
"""A region of ours, or the rows of a foreign interposer's ledger."""
ALL_DEVICES = -1
RENUMBER = frozenset({"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"})
"""Variables after which a program's device numbers may be others than the node's."""


def cards(snapshot: NodeSnapshot) -> list[dict[str, int]]:
    """What the devices' profiles say of memory that no allocation call asks for, by device."""
    return [
        {
            "context_bytes": device.context_bytes,
            "context_extra": device.nvml_context_extra,
            "printing_bytes": device.printing_bytes,
            "allocating_bytes": device.allocating_bytes,
        }
        for device in snapshot.devices
    ]


def moment(
    at: str,
    snapshot: NodeSnapshot,
    ledgers: Mapping[str, Ledger],
    *,
    labels: Mapping[int, str] | None = None,
    renumbering: frozenset[int] = frozenset(),
) -> list[dict[str, Any]]:
    """Rows of every process that holds memory or has some booked.

    ``ledgers``: by container. ``labels``: of processes by their index in the run. ``renumbering``: indices of processes
    whose device numbers are their own; where a ledger knows devices by those numbers only, they get one row of all.
    """
    containers = {container.index: container for container in snapshot.containers}
    booked = {name: _slots(ledger) for name, ledger in ledgers.items()}
    rows: list[dict[str, Any]] = []
    for process in snapshot.processes:
        container = containers.get(process.container)
        name = container.name if container else ""
        entry = _entry(process, booked.get(name, ()))
        base = {
            "at": at,
            "container": name,
            "process": (labels or {}).get(process.index, ""),
            "host_pid": process.host_pid,
        }
        mine = []
        for device in snapshot.devices:
            index = device.index
            physical = {kind: size for kind, size in process.bytes[index].items() if size}
            row = _row(ledgers.get(name), device)
            ledger = None if entry is None else _booked(entry, row)
            counted = sum(ledger.values()) if isinstance(ledger, dict) else ledger or 0
            if not physical and not process.contexts[index] and not counted:
                continue
            mine.append(
                base
                | {
                    "device": index,
                    "physical": physical,
                    "limit": _limit(container, ledgers.get(name), row, index),
                    "ledger": ledger,
                    "observed": process.seen(index, device.nvml_context_extra),
                }
            )
        own = process.index in renumbering and not isinstance(ledgers.get(name), Region)
        rows += [_all_devices(mine)] if own and mine else mine
    return rows


def _all_devices(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One row of what a process has on all devices; the limit is each device's own and stays out."""
    whole = {**rows[0], "device": ALL_DEVICES, "limit": 0, "observed": sum(row["observed"] for row in rows)}
    whole["physical"] = _sum([row["physical"] for row in rows])
    ledgers = [row["ledger"] for row in rows if row["ledger"] is not None]
    plain = [one for one in ledgers if not isinstance(one, dict)]
    whole["ledger"] = (sum(plain) if plain else _sum(ledgers)) if ledgers else None
    return whole


def _sum(parts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for part in parts:
        for kind, size in part.items():
            total[kind] = total.get(kind, 0) + size
    return total


def _slots(ledger: Ledger) -> Sequence[Process | LedgerRow]:
    if isinstance(ledger, Region):
        return [one for one in ledger.processes() if one.present]
    return ledger


def _entry(process: ProcessState, booked: Sequence[Process | LedgerRow]) -> Process | LedgerRow | None:
    """Its slot: by host PID where the books have one, else by its PID inside."""
    for one in booked:
        if one.host_pid == process.host_pid if one.host_pid else one.pid == process.ns_pid:
            return one
    return None


def _row(ledger: Ledger | None, device: DeviceState) -> int | None:
    """Where a ledger keeps this device; None: nowhere."""
    if isinstance(ledger, Region):
        return ledger.row(bytes.fromhex(device.uuid.partition("-")[2].replace("-", "")), device.index)
    return device.index


def _booked(entry: Process | LedgerRow, device: int | None) -> dict[str, int] | int:
    if device is None:
        return {}
    if isinstance(entry, LedgerRow):
        return entry.bytes[device] if device < len(entry.bytes) else 0
    found = dict(zip(kind_names(), entry.used.get(device, ()), strict=False))
    found["pending"] = entry.pending.get(device, 0)
    return {kind: size for kind, size in found.items() if size}


def _limit(container: ContainerState | None, ledger: Ledger | None, row: int | None, device: int) -> int:
    if isinstance(ledger, Region):
        return 0 if row is None else ledger.limit(row)
    return container.limit[device] if container else 0


def observed(
    at: str,
    by_device: Mapping[int, int],
    pid: int,
    ledger: Ledger | None,
    *,
    container: str,
    process: str,
    limit: Callable[[int], int | None],
) -> list[dict[str, Any]]:
    """Rows of one process on real devices: only NVML says what it holds (``by_device``), physical is not known."""
    slots = () if ledger is None else _slots(ledger)
    entry = next((one for one in slots if pid in (one.host_pid, one.pid)), None)
    rows = []
    for device, seen in sorted(by_device.items()):
        booked = None if entry is None else _booked(entry, device)
        row: dict[str, Any] = {"at": at, "container": container, "process": process, "device": device, "host_pid": pid}
        row |= {"physical": None, "limit": limit(device) or 0, "ledger": booked, "observed": seen}
        rows.append(row)
    return rows


def end(snapshot: NodeSnapshot, left: Mapping[tuple[str, int], int]) -> list[dict[str, Any]]:
    """Rows of what is left of each container when its processes have ended; ``left``: its ledger's bytes by device."""
    rows = []
    for container in snapshot.containers:
        processes = [one for one in snapshot.processes if one.container == container.index]
        for device in snapshot.devices:
            index, held = device.index, container.used[device.index]
            booked = left.get((container.name, index))
            if index and not held and not booked:
                continue
            seen = sum(one.seen(index, device.nvml_context_extra) for one in processes)
            row: dict[str, Any] = {"at": "end", "container": container.name, "process": "", "device": index}
            kinds = _sum([one.bytes[index] for one in processes])
            row["physical"] = {kind: size for kind, size in kinds.items() if size} or ({"other": held} if held else {})
            rows.append(row | {"host_pid": 0, "limit": container.limit[index], "ledger": booked, "observed": seen})
    return rows
