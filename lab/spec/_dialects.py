"""Dialects: how limits reach an interposer and how its ledger reads (`dialects/*.toml`, or a user's file).

A dialect is data only: names of variables, how sizes are written, and where in which layout the used bytes lie.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from lab.spec._layouts import Field, Layout, Struct, layout_names, load_layout
from lab.spec._toml import HERE, SpecError, check_keys, read

MemoryUnit = Literal["bytes", "k", "m", "g"]
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
UNITS: Mapping[str, tuple[int, str]] = {"bytes": (1, ""), "k": (1 << 10, "k"), "m": (1 << 20, "m"), "g": (1 << 30, "g")}


@dataclass(frozen=True, slots=True)
class Slots:
    """Where in a ledger file the processes are and which words of theirs are charged bytes."""

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
    bytes: tuple[str, ...]
    """Fields of one element of `devices` that add up to what is charged; empty: the elements themselves."""


@dataclass(frozen=True, slots=True)
class LedgerDialect:
    """Where the ledger file of a container is and how to read it."""

    variable: str
    """Environment variable that names the file; empty: the interposer has no ledger file."""
    path: str
    """Default path of the file inside the container."""
    layout: str
    """Layout it is written in; empty: cannot be read, checks of the ledger are unknown."""
    slots: Slots | None
    """How the used bytes are read; None exactly when there is no layout."""

    def used(self, data: bytes) -> tuple[int, ...]:
        """Charged bytes by device ordinal, summed over live slots, from the content of a ledger file.

        ValueError when this dialect cannot be read or the file is too short.
        """
        by_slot = self.used_by_slot(data)
        assert self.slots is not None
        devices = load_layout(self.layout).structs[self.slots.struct][self.slots.devices].count
        return tuple(sum(row[device] for row in by_slot.values()) for device in range(devices))

    def used_by_slot(self, data: bytes) -> dict[int, tuple[int, ...]]:
        """The same by slot index, live slots only."""
        import numpy as np

        if self.slots is None:
            raise ValueError("the ledger of this dialect has no known layout")
        layout, slots = load_layout(self.layout), self.slots
        at = slots.offset
        if slots.offset_field:
            if len(data) < layout.structs[slots.header].size:
                raise ValueError(f"ledger of {len(data)} bytes is shorter than its header")
            at = int(np.frombuffer(data, layout.dtype(slots.header), 1)[slots.offset_field][0])
        end = at + slots.count * layout.structs[slots.struct].size
        if len(data) < end:
            raise ValueError(f"ledger of {len(data)} bytes is shorter than its {slots.count} slots, which end at {end}")
        rows = np.frombuffer(data, layout.dtype(slots.struct), slots.count, at)
        result = {}
        for index in np.flatnonzero(rows[slots.live]):
            devices = rows[index][slots.devices]
            words = [devices[name] for name in slots.bytes] or [devices]
            result[int(index)] = tuple(sum(int(word[device]) for word in words) for device in range(len(devices)))
        return result


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one family of interposers is told its limits."""

    name: str
    doc: str
    memory_variable: str
    """Limit of every device."""
    memory_device_variable: str
    """Limit of device {i}; empty: there is none."""
    memory_unit: MemoryUnit
    cores_variable: str
    """Core limit of every device, in percent; empty: there is none."""
    cores_device_variable: str
    environment: Mapping[str, str]
    """Variables always set; {interposer} stands for the path of the library inside the container."""
    container_path: str
    """Where a device plugin mounts the library; empty: anywhere."""
    ledger: LedgerDialect

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
    ) -> dict[str, str]:
        """The environment of a process under limits: bytes and percent, for all devices or by ordinal."""
        result = {key: value.replace("{interposer}", interposer) for key, value in self.environment.items()}
        pairs = (
            (memory, self.memory_variable, self.memory_device_variable, self.memory_text),
            (cores, self.cores_variable, self.cores_device_variable, str),
        )
        for limit, variable, device_variable, text in pairs:
            if limit is None:
                continue
            if isinstance(limit, int):
                if not variable:
                    raise ValueError(f"dialect {self.name} has no variable for this limit")
                result[variable] = text(limit)
                continue
            for device, value in limit.items():
                if not device_variable:
                    raise ValueError(f"dialect {self.name} has no variable for a limit of one device")
                result[device_variable.replace("{i}", str(device))] = text(value)
        if ledger and self.ledger.variable:
            result[self.ledger.variable] = ledger
        return result


def dialect_names() -> tuple[str, ...]:
    """Built-in dialects, sorted."""
    return tuple(sorted(path.stem for path in (HERE / "dialects").glob("*.toml")))


@functools.cache
def load_dialect(name: str | Path) -> Dialect:
    """A built-in dialect by name, or a TOML file of the same form by path."""
    path = HERE / "dialects" / f"{name}.toml"
    if "/" in str(name) or str(name).endswith(".toml"):
        path = Path(name)
    elif not path.is_file():
        raise SpecError(f"{name}: no such dialect; known are {', '.join(dialect_names())}, or give a TOML file")
    return _read_dialect(path)


def _read_dialect(path: Path) -> Dialect:
    data = read(path)
    check_keys(path, "file", data, frozenset({"name", "doc", "memory", "cores", "environment", "mount", "ledger"}))
    memory = _table(path, data, "memory", {"variable", "device_variable", "unit"})
    cores = _table(path, data, "cores", {"variable", "device_variable"})
    raw_ledger = dict(data.get("ledger", {}))
    raw_slots = raw_ledger.pop("slots", None)
    ledger = _table(path, {"ledger": raw_ledger}, "ledger", {"variable", "path", "layout"})
    mount = _table(path, data, "mount", {"library"})
    environment = data.get("environment", {})
    for key, value in environment.items():
        if not isinstance(value, str):
            raise SpecError(f"{path}: environment {key}: is not a string; put it in quotes")
    if not data.get("name") or not isinstance(data["name"], str):
        raise SpecError(f'{path}: name is missing; write name = "..."')
    if not memory.get("variable") and not memory.get("device_variable"):
        raise SpecError(f"{path}: [memory]: needs variable or device_variable, else no limit can reach the interposer")
    unit = memory.get("unit", "bytes")
    if unit not in UNITS:
        raise SpecError(f"{path}: [memory] unit is {unit!r}; write one of {', '.join(UNITS)}")
    for section, table in (("memory", memory), ("cores", cores)):
        if table.get("device_variable") and "{i}" not in table["device_variable"]:
            raise SpecError(f"{path}: [{section}] device_variable: needs {{i}} where the device ordinal goes")
    for table in (memory, cores, ledger):
        for key, value in table.items():
            if key.endswith("variable") and value and not VARIABLE.fullmatch(value.replace("{i}", "0")):
                raise SpecError(f"{path}: {key} is {value!r}, not the name of an environment variable")
    layout = ledger.get("layout", "")
    if layout and layout not in layout_names():
        raise SpecError(f"{path}: [ledger] layout is {layout!r}; known are {', '.join(layout_names())}")
    if bool(layout) != (raw_slots is not None):
        raise SpecError(f"{path}: [ledger]: layout and slots belong together; write both or none")
    slots = _read_slots(path, load_layout(layout), raw_slots) if layout else None
    return Dialect(
        name=data["name"],
        doc=data.get("doc", ""),
        memory_variable=memory.get("variable", ""),
        memory_device_variable=memory.get("device_variable", ""),
        memory_unit=cast(MemoryUnit, unit),
        cores_variable=cores.get("variable", ""),
        cores_device_variable=cores.get("device_variable", ""),
        environment=environment,
        container_path=mount.get("library", ""),
        ledger=LedgerDialect(ledger.get("variable", ""), ledger.get("path", ""), layout, slots),
    )


def _read_slots(path: Path, layout: Layout, raw: Any) -> Slots:
    thing = "[ledger] slots"
    if not isinstance(raw, dict):
        raise SpecError(f"{path}: {thing}: not a table; write slots = {{struct = ..., at = ..., count = ..., ...}}")
    check_keys(path, thing, raw, frozenset({"struct", "header", "at", "count", "live", "devices", "bytes"}))
    at, count, names = raw.get("at"), raw.get("count"), raw.get("bytes", [])
    if not isinstance(count, int) or count <= 0 or not isinstance(names, list):
        raise SpecError(f"{path}: {thing}: count must be a positive integer and bytes a list of fields")
    if not isinstance(at, int | str) or (isinstance(at, str) and not raw.get("header")):
        raise SpecError(f"{path}: {thing}: at is an offset, or a field of the struct that header names")
    slots = Slots(
        struct=str(raw.get("struct")),
        offset=at if isinstance(at, int) else 0,
        offset_field=at if isinstance(at, str) else "",
        header=raw.get("header", ""),
        count=count,
        live=str(raw.get("live")),
        devices=str(raw.get("devices")),
        bytes=tuple(names),
    )
    struct = _known(path, layout, slots.struct)
    device = _member(path, struct, slots.devices)
    _member(path, struct, slots.live)
    for name in slots.bytes:
        _member(path, _known(path, layout, device.type), name)
    if slots.offset_field:
        _member(path, _known(path, layout, slots.header), slots.offset_field)
    return slots


def _known(path: Path, layout: Layout, name: str) -> Struct:
    if name not in layout.structs:
        raise SpecError(f"{path}: [ledger] slots: {name} is no struct of layout {layout.name}")
    return layout.structs[name]


def _member(path: Path, struct: Struct, name: str) -> Field:
    for field in struct.fields:
        if field.name == name:
            return field
    raise SpecError(f"{path}: [ledger] slots: {name} is no field of {struct.name}")


def _table(path: Path, data: dict[str, Any], key: str, allowed: set[str]) -> dict[str, str]:
    table = data.get(key, {})
    if not isinstance(table, dict):
        raise SpecError(f"{path}: {key}: not a table; write [{key}]")
    check_keys(path, f"[{key}]", table, frozenset(allowed))
    for name, value in table.items():
        if not isinstance(value, str):
            raise SpecError(f"{path}: [{key}] {name}: is not a string; put it in quotes")
    return table
