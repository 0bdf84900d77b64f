"""What a reader sees of a node: devices, containers and processes as plain values at one moment.

A snapshot is not one atomic moment of a running node: each word is whole, sums may be taken while a process changes its
own. At rest (no driver call under way) it is exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lab.node.layout import NodeFile, constants, kind_names
from lab.spec import load_hooks
from lab.spec.mapped import taken
from lab.spec.profile import uuid_text


@dataclass(frozen=True, kw_only=True)
class DeviceState:
    """One fake GPU, or a MIG instance of one: ``parent`` is then the index of its card and ``mig`` its number there.
    Bytes, kHz, mW."""

    index: int
    parent: int | None
    mig: int | None
    name: str
    uuid: str
    bus_id: str
    total_bytes: int
    nvml_total_bytes: int
    nvml_reserved_bytes: int
    context_bytes: int
    nvml_context_extra: int
    printing_bytes: int
    allocating_bytes: int
    used: int
    peak: int
    sm_count: int
    power_limit_mw: int
    idle_power_mw: int
    temperature_c: int
    lost: bool
    utilisation_percent: int


@dataclass(frozen=True, kw_only=True)
class ContainerState:
    """One container. ``used``, ``peak`` and ``limit`` are bytes by device of the node; limit 0 = none."""

    index: int
    name: str
    used: tuple[int, ...]
    peak: tuple[int, ...]
    limit: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class ProcessState:
    """One process slot in use. ``bytes`` is by device of the node, then by memory kind."""

    slot: int
    generation: int
    host_pid: int
    ns_pid: int
    container: int
    index: int
    comm: str
    dying: bool
    contexts: tuple[int, ...]
    bytes: tuple[Mapping[str, int], ...]
    shown: tuple[int, ...]
    """What NVML shows beside ``bytes``, by device: shared memory that it alone holds, less what others hold of its."""
    peak: tuple[int, ...]
    kernels: tuple[int, ...]
    not_executed: int
    unsupported: int

    def total(self, device: int) -> int:
        """Bytes on one device, all kinds."""
        return sum(self.bytes[device].values())

    def seen(self, device: int, context_extra: int) -> int:
        """What NVML reports of the process on a device."""
        return max(0, self.total(device) + self.shown[device] + self.contexts[device] * context_extra)


@dataclass(frozen=True, kw_only=True)
class NodeSnapshot:
    """A node at one moment."""

    profile: str
    driver: str
    nvml: str
    cuda_version: int
    devices: tuple[DeviceState, ...]
    containers: tuple[ContainerState, ...]
    processes: tuple[ProcessState, ...]
    calls: Mapping[str, int]

    def used(self, device: int = 0) -> int:
        """Physical bytes in use on a device."""
        return self.devices[device].used


def read_snapshot(file: NodeFile, *, now_ns: int | None = None) -> NodeSnapshot:
    """Read a node file into plain values. ``now_ns`` (CLOCK_MONOTONIC) ends the sample that the
    utilisation is taken over; without it, utilisation reads 0 (a copied file has no present)."""
    header = file.header.copy()
    names = load_hooks().hooks
    used = taken(file.processes["generation"])  # the rest is all zero, and large
    calls = file.calls + file.process_calls[used].sum(axis=0, dtype="u8")
    return NodeSnapshot(
        profile=_text(header["profile"]),
        driver=_text(header["driver_string"]),
        nvml=_text(header["nvml_string"]),
        cuda_version=int(header["driver_version"]),
        devices=tuple(_device(file, index, now_ns) for index in range(int(header["device_count"]))),
        containers=tuple(_container(file, index) for index in range(int(header["container_count"]))),
        processes=tuple(_processes(file)),
        calls={names[index].name: int(calls[index]) for index in taken(calls)},
    )


def busy_ns(file: NodeFile, device: int, *, start_ns: int, end_ns: int) -> int:
    """Nanoseconds of ``[start_ns, end_ns)`` in which the device was busy, from its ring of intervals."""
    written = int(file.devices[device]["interval_head"])
    ring = file.intervals[device][:written].copy()
    whole = ring[ring["sequence"] > 0]
    first = whole["start_ns"].clip(start_ns, end_ns).astype("i8")
    last = whole["end_ns"].clip(start_ns, end_ns).astype("i8")
    return min(end_ns - start_ns, int((last - first).clip(0).sum()))


def _device(file: NodeFile, index: int, now_ns: int | None) -> DeviceState:
    record = file.devices[index].copy()
    window = max(1, int(record["sample_period_ns"]))
    busy = 0 if now_ns is None else busy_ns(file, index, start_ns=max(0, now_ns - window), end_ns=now_ns)
    return DeviceState(
        index=index,
        parent=int(record["parent"]) - 1 if record["parent"] else None,
        mig=int(record["mig_index"]) if record["parent"] else None,
        name=_text(record["name"]),
        uuid=uuid_text(record["uuid"].tobytes(), mig=bool(record["parent"])),
        bus_id=f"{int(record['pci_domain']):08X}:{int(record['pci_bus']):02X}:{int(record['pci_device']):02X}.0",
        total_bytes=int(record["total_bytes"]),
        nvml_total_bytes=int(record["nvml_total_bytes"]),
        nvml_reserved_bytes=int(record["nvml_reserved_bytes"]),
        context_bytes=int(record["context_bytes"]),
        nvml_context_extra=int(record["nvml_context_extra"]),
        printing_bytes=int(record["printing_bytes"]),
        allocating_bytes=int(record["allocating_bytes"]),
        used=int(record["used"]),
        peak=int(record["peak"]),
        sm_count=int(record["sm_count"]),
        power_limit_mw=int(record["power_limit_mw"]),
        idle_power_mw=int(record["idle_power_mw"]),
        temperature_c=int(record["temperature_c"]),
        lost=bool(record["lost"]),
        utilisation_percent=100 * busy // window,
    )


def _container(file: NodeFile, index: int) -> ContainerState:
    record = file.containers[index].copy()
    devices = len(file.devices)
    return ContainerState(
        index=index,
        name=_text(record["name"]),
        used=_integers(record["used"][:devices]),
        peak=_integers(record["peak"][:devices]),
        limit=_integers(record["limit"][:devices]),
    )


def _processes(file: NodeFile) -> list[ProcessState]:
    kinds = kind_names()
    dying = constants()["HL_PROCESS_DYING"]
    found = []
    for slot in taken(file.processes["state"]):
        record = file.processes[slot].copy()
        devices = record["device"][: len(file.devices)]
        found.append(
            ProcessState(
                slot=int(slot),
                generation=int(record["generation"]),
                host_pid=int(record["host_pid"]),
                ns_pid=int(record["ns_pid"]),
                container=int(record["container"]),
                index=int(record["index"]),
                comm=_text(record["comm"]),
                dying=int(record["state"]) == dying,
                contexts=_integers(devices["context_count"]),
                bytes=tuple(dict(zip(kinds, _integers(row), strict=True)) for row in devices["bytes"]),
                shown=_integers(devices["shown"]),
                peak=_integers(devices["peak"]),
                kernels=_integers(devices["kernels"]),
                not_executed=int(record["not_executed"]),
                unsupported=int(record["unsupported"]),
            )
        )
    return found


def _text(raw: bytes) -> str:
    return bytes(raw).split(b"\0", 1)[0].decode("utf-8", "replace")


def _integers(values: object) -> tuple[int, ...]:
    return tuple(int(value) for value in values)  # type: ignore[attr-defined]
