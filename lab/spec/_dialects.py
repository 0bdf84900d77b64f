"""Dialects: how limits reach an interposer, what it needs around it, and how its ledger reads.

A dialect is data only (`dialects/*.toml` or a user's file, read by `_dialect_forms`): names of variables, how sizes are
written, directories and a service beside the processes, and where in which layout the used bytes lie. What it says it
has *not*, with its reason, makes the checks that need it unknown instead of wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lab.spec._layouts import load_layout

MemoryUnit = Literal["bytes", "k", "m", "g"]
UNITS: Mapping[str, tuple[int, str]] = {"bytes": (1, ""), "k": (1 << 10, "k"), "m": (1 << 20, "m"), "g": (1 << 30, "g")}


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """What one process holds according to a ledger."""

    slot: int
    pid: int
    """As the process sees itself; 0: the layout has no such field."""
    host_pid: int
    """0: unknown."""
    bytes: tuple[int, ...]
    """By device ordinal."""


@dataclass(frozen=True, slots=True)
class Slots:
    """A ledger of processes, each with its bytes by device: where they are and which words are charged bytes."""

    struct: str
    """Struct of one process in the ledger's layout."""
    offset: int
    """Of the first slot in the file; 0 with `offset_field`."""
    offset_field: str
    """Field of the header that holds the offset; empty: the offset is fixed."""
    header: str
    """Struct at the start of the file, for `offset_field`."""
    count: int
    live: str
    """Field that is not zero in a slot that is taken."""
    devices: str
    """Array by device ordinal, of structs or of plain words."""
    words: tuple[str, ...]
    """Fields of one element of `devices` that add up to what is charged; empty: the elements themselves."""

    def rows(self, layout: str, data: bytes) -> Iterator[LedgerRow]:
        """The taken slots. ValueError when the file is too short."""
        import numpy as np

        known = load_layout(layout)
        at = self.offset
        if self.offset_field:
            if len(data) < known.structs[self.header].size:
                raise ValueError(f"ledger of {len(data)} bytes is shorter than its header")
            at = int(np.frombuffer(data, known.dtype(self.header), 1)[self.offset_field][0])
        end = at + self.count * known.structs[self.struct].size
        if len(data) < end:
            raise ValueError(f"ledger of {len(data)} bytes is shorter than its {self.count} slots, which end at {end}")
        records = np.frombuffer(data, known.dtype(self.struct), self.count, at)
        names = records.dtype.names or ()
        for index in np.flatnonzero(records[self.live]):
            record = records[index]
            devices = record[self.devices]
            words = [devices[name] for name in self.words] or [devices]
            yield LedgerRow(
                slot=int(index),
                pid=int(record["pid"]) if "pid" in names else 0,
                host_pid=int(record["host_pid"]) if "host_pid" in names else 0,
                bytes=tuple(sum(int(word[device]) for word in words) for device in range(len(devices))),
            )


@dataclass(frozen=True, slots=True)
class DeviceTables:
    """A ledger of devices, each with a table of processes."""

    struct: str
    """Struct of one device in the ledger's layout."""
    offset: int
    count: int
    processes: str
    """Array of structs in it, one a process."""
    live: str
    """Field that is not zero in an entry that is taken and tells processes apart: their PID."""
    words: tuple[str, ...]
    """Fields of an entry that add up to what is charged."""

    def rows(self, layout: str, data: bytes) -> Iterator[LedgerRow]:
        """The processes in the order of their PIDs. ValueError when the file is too short."""
        import numpy as np

        known = load_layout(layout)
        end = self.offset + self.count * known.structs[self.struct].size
        if len(data) < end:
            raise ValueError(
                f"ledger of {len(data)} bytes is shorter than its {self.count} devices, which end at {end}"
            )
        held: dict[int, list[int]] = {}
        devices = np.frombuffer(data, known.dtype(self.struct), self.count, self.offset)[self.processes]
        for ordinal, index in zip(*np.nonzero(devices[self.live]), strict=True):
            entry = devices[ordinal, index]
            row = held.setdefault(int(entry[self.live]), [0] * self.count)
            row[ordinal] += sum(int(entry[name]) for name in self.words)
        for slot, (pid, row) in enumerate(sorted(held.items())):
            yield LedgerRow(slot=slot, pid=pid, host_pid=0, bytes=tuple(row))


@dataclass(frozen=True, slots=True)
class LedgerDialect:
    """Where the ledger file of a container is and how to read it."""

    variable: str
    """Environment variable that names the file; empty: it has one place, or there is none."""
    path: str
    """Path of the file inside the container: the default of `variable`, or its one place. Empty: there is none."""
    layout: str
    """Layout it is written in; empty: cannot be read, checks of the ledger are unknown."""
    table: Slots | DeviceTables | None
    """How the used bytes are read; None exactly when there is no layout."""
    none: str
    """Why it cannot be read or there is none; empty: no reason was given."""

    def rows(self, data: bytes) -> tuple[LedgerRow, ...]:
        """Who holds what, from the content of a ledger file.

        ValueError when this dialect cannot be read or the file is too short.
        """
        if self.table is None:
            raise ValueError("the ledger of this dialect has no known layout")
        return tuple(self.table.rows(self.layout, data))


@dataclass(frozen=True, slots=True)
class Limit:
    """How one kind of limit is told."""

    variable: str
    """Limit of every device; empty: there is no such variable."""
    device_variable: str
    """Limit of device {i}; empty: there is none."""
    none: str
    """Why this limit cannot be told at all: what depends on it is unknown. Empty: there is no such reason."""
    uuid_variable: str = ""
    """Limit of the device whose UUID stands for {uuid}; empty: there is none."""


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory of the containers that the interposer writes to."""

    path: str
    """Inside the containers."""
    shared: bool
    """One for the whole node; else each container has its own."""


PLACEHOLDERS = ("{memory}", "{memory_limited}", "{cores}", "{cores_limited}", "{uuid}")


@dataclass(frozen=True, slots=True)
class FileForm:
    """A file that tells an interposer its limits: one struct of a layout, zero but for what is named here.

    A value is a number, the name of a constant of the layout, text for a field of characters, or one of `PLACEHOLDERS`:
    the device's limit in bytes and percent (0 without one), 1 where it has one, its UUID.
    """

    path: str
    """Inside the container, in a directory of its own."""
    layout: str
    struct: str
    size: int
    """Of the file, in bytes; beyond the struct it is zero."""
    fields: Mapping[str, int | str]
    devices: str
    """Array by device ordinal in the struct; empty: there is none."""
    device: Mapping[str, int | str]
    """The fields of its elements, for each device of the node."""

    def content(self, *, memory: Mapping[int, int], cores: Mapping[int, int], uuids: Sequence[str]) -> bytes:
        """The file for these limits by device ordinal."""
        import numpy as np

        known = load_layout(self.layout)
        record = np.zeros(1, known.dtype(self.struct))

        def value(said: int | str, device: int) -> int | bytes:
            if isinstance(said, int):
                return said
            limits = {
                "{memory}": memory.get(device, 0),
                "{memory_limited}": int(device in memory),
                "{cores}": cores.get(device, 0),
                "{cores_limited}": int(device in cores),
            }
            if said in limits:
                return limits[said]
            if said == "{uuid}":
                return uuids[device].encode()
            return known.constants[said] if said in known.constants else said.encode()

        for name, said in self.fields.items():
            record[name] = value(said, -1)
        for device in range(len(uuids) if self.devices else 0):
            for name, said in self.device.items():
                record[self.devices][name][0, device] = value(said, device)
        return bytes(record.tobytes().ljust(self.size, b"\0"))


@dataclass(frozen=True, slots=True)
class Service:
    """A process beside the containers, one a node, that the interposer talks to."""

    command: tuple[str, ...]
    """Its first word is the name of a program in the folder of the interposer."""
    ready: str
    """Path of the socket that it listens at when it is ready, in a directory that it shares with the containers."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one family of interposers is told its limits."""

    name: str
    doc: str
    memory: Limit
    memory_unit: MemoryUnit
    lazy: str
    """Why an allocation takes no device memory before it is touched; empty: it takes it at once."""
    cores: Limit
    """In percent."""
    environment: Mapping[str, str]
    """Variables always set; {interposer} stands for the path of the library inside the container, {uuids} for those of
    the node's devices, separated by commas. One with {i} in its name is set for each device; {uuid} is its own."""
    container_path: str
    """Where a device plugin mounts the library; empty: anywhere."""
    directories: tuple[Directory, ...]
    files: tuple[FileForm, ...]
    service: Service | None
    calls: Mapping[str, str]
    """Driver functions that it calls in the place of those that were called: faults of these are planned there."""
    points: bool
    """Whether it carries out faults at sequence points (HOOKLAB_POINTS) and writes into the run's history."""
    ledger: LedgerDialect

    @property
    def needs_container(self) -> str:
        """What of it a plain process cannot have; empty: nothing."""
        if self.service is not None:
            return f"the service {self.service.command[0]}"
        return f"the directory {self.directories[0].path}" if self.directories else ""

    @property
    def names_devices(self) -> bool:
        """Whether its environment has the UUIDs of the node's devices."""
        return bool(self.files) or any("{uuid" in value for value in self.environment.values())

    def memory_text(self, size: int) -> str:
        """A size in bytes as this dialect writes it; ValueError when the unit cannot say it exactly."""
        factor, suffix = UNITS[self.memory_unit]
        if size % factor:
            raise ValueError(f"{size} bytes is not a whole number of {self.memory_unit} for dialect {self.name}")
        return f"{size // factor}{suffix}"

    def limits(
        self,
        *,
        memory: Mapping[int, int] | int | None = None,
        cores: Mapping[int, int] | int | None = None,
        interposer: str = "",
        ledger: str = "",
        uuids: Sequence[str] = (),
    ) -> dict[str, str]:
        """The environment of a process under limits: bytes and percent, for all devices or by ordinal.

        A limit that this dialect says it cannot tell is left out. ``uuids``: the node's devices, in NVML's order.
        """
        result = self._always(interposer, uuids)
        pairs: tuple[tuple[Mapping[int, int] | int | None, Limit, Any], ...] = (
            (memory, self.memory, self.memory_text),
            (cores, self.cores, str),
        )
        for limit, told, text in pairs:
            if limit is None or told.none:
                continue
            if isinstance(limit, int):
                if not told.variable:
                    raise ValueError(f"dialect {self.name} has no variable for this limit")
                result[told.variable] = text(limit)
                continue
            for device, value in limit.items():
                if not told.device_variable:
                    raise ValueError(f"dialect {self.name} has no variable for a limit of one device")
                result[told.device_variable.replace("{i}", str(device))] = text(value)
        if ledger and self.ledger.variable:
            result[self.ledger.variable] = ledger
        return result

    def _always(self, interposer: str, uuids: Sequence[str]) -> dict[str, str]:
        result: dict[str, str] = {}
        for key, value in self.environment.items():
            text = value.replace("{interposer}", interposer).replace("{uuids}", ",".join(uuids))
            if "{i}" not in key:
                result[key] = text
                continue
            for device, uuid in enumerate(uuids):
                result[key.replace("{i}", str(device))] = text.replace("{i}", str(device)).replace("{uuid}", uuid)
        return result
