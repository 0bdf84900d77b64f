"""Reads dialects from TOML (`dialects/*.toml`, or a user's file of the same form); docs/dialects.md has the form."""

from __future__ import annotations

import functools
import posixpath
import re
from pathlib import Path
from typing import Any, cast

from lab.spec._dialects import (
    PLACEHOLDERS,
    UNITS,
    DeviceTables,
    Dialect,
    Directory,
    FileForm,
    LedgerDialect,
    Limit,
    MemoryUnit,
    Service,
    Slots,
)
from lab.spec._layouts import Field, Layout, Struct, layout_names, load_layout
from lab.spec._toml import HERE, SpecError, check_keys, read

VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FILE_KEYS = frozenset(("path", "layout", "struct", "size", "fields", "devices", "device"))
_KEYS = frozenset(
    (
        "name",
        "doc",
        "memory",
        "cores",
        "environment",
        "mount",
        "directory",
        "file",
        "service",
        "ledger",
        "points",
        "calls",
    )
)


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
    check_keys(path, "file", data, _KEYS)
    if not data.get("name") or not isinstance(data["name"], str):
        raise SpecError(f'{path}: name is missing; write name = "..."')
    memory = _table(path, data, "memory", {"variable", "device_variable", "uuid_variable", "unit", "none", "lazy"})
    cores = _table(path, data, "cores", {"variable", "device_variable", "uuid_variable", "none"})
    unit = memory.get("unit", "bytes")
    if unit not in UNITS:
        raise SpecError(f"{path}: [memory] unit is {unit!r}; write one of {', '.join(UNITS)}")
    points = data.get("points", False)
    if not isinstance(points, bool):
        raise SpecError(f"{path}: points is {points!r}; write true or false")
    environment = _table(path, data, "environment", None)
    for key in environment:
        _check_variable(path, "[environment]", key)
    directories = _directories(path, _list(path, data, "directory"))
    return Dialect(
        name=data["name"],
        doc=str(data.get("doc", "")),
        memory=_limit(path, "memory", memory),
        memory_unit=cast(MemoryUnit, unit),
        lazy=memory.get("lazy", ""),
        cores=_limit(path, "cores", cores),
        environment=environment,
        container_path=_table(path, data, "mount", {"library"}).get("library", ""),
        directories=directories,
        files=tuple(_file(path, entry, directories) for entry in _list(path, data, "file")),
        service=_service(path, data.get("service"), directories),
        calls=_table(path, data, "calls", None),
        points=points,
        ledger=_ledger(path, data.get("ledger", {}), directories),
    )


def _limit(path: Path, section: str, table: dict[str, str]) -> Limit:
    limit = Limit(
        table.get("variable", ""),
        table.get("device_variable", ""),
        table.get("none", ""),
        table.get("uuid_variable", ""),
    )
    if not limit.variable and not limit.device_variable and not limit.none and section == "memory":
        raise SpecError(
            f'{path}: [{section}]: needs variable or device_variable, or none = "why such a limit cannot be told"'
        )
    if limit.none and (limit.variable or limit.device_variable):
        raise SpecError(f"{path}: [{section}]: none beside a variable; write one of them")
    if limit.device_variable and "{i}" not in limit.device_variable:
        raise SpecError(f"{path}: [{section}] device_variable: needs {{i}} where the device ordinal goes")
    if limit.uuid_variable and "{uuid}" not in limit.uuid_variable:
        raise SpecError(f"{path}: [{section}] uuid_variable: needs {{uuid}} where the device's UUID goes")
    for name in (limit.variable, limit.device_variable):
        _check_variable(path, f"[{section}] variable", name)
    return limit


def _check_variable(path: Path, thing: str, name: str) -> None:
    if name and not VARIABLE.fullmatch(name.replace("{i}", "0")):
        raise SpecError(f"{path}: {thing} is {name!r}, not the name of an environment variable")


def _list(path: Path, data: dict[str, Any], key: str) -> list[dict[str, Any]]:
    raw = data.get(key, [])
    if not isinstance(raw, list) or not all(isinstance(entry, dict) for entry in raw):
        raise SpecError(f"{path}: {key}: is a list of tables; write [[{key}]]")
    return raw


def _directories(path: Path, raw: list[dict[str, Any]]) -> tuple[Directory, ...]:
    found = []
    for entry in raw:
        check_keys(path, "[[directory]]", entry, frozenset({"path", "shared"}))
        where, shared = entry.get("path"), entry.get("shared", False)
        if not isinstance(where, str) or not posixpath.isabs(where) or posixpath.normpath(where) != where:
            raise SpecError(f"{path}: [[directory]] path is {where!r}; write a plain absolute path")
        if not isinstance(shared, bool):
            raise SpecError(f"{path}: [[directory]] shared is {shared!r}; write true or false")
        found.append(Directory(where, shared))
    return tuple(found)


def _file(path: Path, raw: dict[str, Any], directories: tuple[Directory, ...]) -> FileForm:
    thing = "[[file]]"
    check_keys(path, thing, raw, _FILE_KEYS)
    own = {directory.path for directory in directories if not directory.shared}
    where, layout, size = raw.get("path"), raw.get("layout"), raw.get("size")
    if not isinstance(where, str) or posixpath.dirname(where) not in own:
        raise SpecError(f"{path}: {thing} path is {where!r}; it must lie in a [[directory]] of the container's own")
    if layout not in layout_names():
        raise SpecError(f"{path}: {thing} layout is {layout!r}; known are {', '.join(layout_names())}")
    known = load_layout(str(layout))
    struct = _known(path, thing, known, str(raw.get("struct")))
    if not isinstance(size, int) or size < struct.size:
        raise SpecError(f"{path}: {thing} size is {size!r}; {struct.name} has {struct.size} bytes")
    fields, device, devices = raw.get("fields", {}), raw.get("device", {}), raw.get("devices", "")
    _check_values(path, known, struct, fields)
    if devices:
        _check_values(path, known, _known(path, thing, known, _member(path, thing, struct, str(devices)).type), device)
    elif device:
        raise SpecError(f"{path}: {thing} device: needs devices, the array that it fills")
    return FileForm(where, str(layout), struct.name, size, fields, str(devices), device)


def _check_values(path: Path, layout: Layout, struct: Struct, values: Any) -> None:
    thing = "[[file]]"
    if not isinstance(values, dict):
        raise SpecError(f"{path}: {thing}: {struct.name} needs a table of fields")
    for name, value in values.items():
        text = _member(path, thing, struct, name).type == "char"
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise SpecError(f"{path}: {thing} {name} is {value!r}; write a number or text")
        if text and (isinstance(value, int) or value in PLACEHOLDERS[:-1]):
            raise SpecError(f"{path}: {thing} {name} is {value!r}, and the field holds text")
        if isinstance(value, str) and not text and value not in layout.constants and value not in PLACEHOLDERS[:-1]:
            raise SpecError(
                f"{path}: {thing} {name} is {value!r}, no constant of layout {layout.name} and none of"
                f" {', '.join(PLACEHOLDERS[:-1])}"
            )


def _service(path: Path, raw: Any, directories: tuple[Directory, ...]) -> Service | None:
    if raw is None:
        return None
    if not isinstance(raw, dict):
        raise SpecError(f"{path}: service: not a table; write [service]")
    check_keys(path, "[service]", raw, frozenset({"command", "ready"}))
    command, ready = raw.get("command"), raw.get("ready")
    if not isinstance(command, list) or not command or not all(isinstance(word, str) and word for word in command):
        raise SpecError(f'{path}: [service] command: write a list of words, e.g. ["scheduler"]')
    if "/" in command[0]:
        raise SpecError(f"{path}: [service] command: {command[0]!r} has a path; the program lies beside the interposer")
    shared = {directory.path for directory in directories if directory.shared}
    if not isinstance(ready, str) or posixpath.dirname(ready) not in shared:
        raise SpecError(f"{path}: [service] ready: needs the path of a socket in a [[directory]] with shared = true")
    return Service(tuple(command), ready)


def _ledger(path: Path, raw: Any, directories: tuple[Directory, ...]) -> LedgerDialect:
    if not isinstance(raw, dict):
        raise SpecError(f"{path}: ledger: not a table; write [ledger]")
    raw = dict(raw)
    slots, devices = raw.pop("slots", None), raw.pop("devices", None)
    ledger = _table(path, {"ledger": raw}, "ledger", {"variable", "path", "layout", "none"})
    _check_variable(path, "[ledger] variable", ledger.get("variable", ""))
    layout = ledger.get("layout", "")
    if layout and layout not in layout_names():
        raise SpecError(f"{path}: [ledger] layout is {layout!r}; known are {', '.join(layout_names())}")
    if bool(layout) != (slots is not None or devices is not None) or (slots is not None and devices is not None):
        raise SpecError(f"{path}: [ledger]: layout and one of slots and devices belong together; write both or none")
    if layout and ledger.get("none"):
        raise SpecError(f"{path}: [ledger]: none beside a layout; write one of them")
    if layout and not ledger.get("variable"):
        own = {directory.path for directory in directories if not directory.shared}
        if posixpath.dirname(ledger.get("path", "")) not in own:
            raise SpecError(
                f"{path}: [ledger]: without variable its path must lie in a [[directory]] of the container's own"
            )
    table: Slots | DeviceTables | None = None
    if slots is not None:
        table = _read_slots(path, load_layout(layout), slots)
    elif devices is not None:
        table = _read_devices(path, load_layout(layout), devices)
    return LedgerDialect(ledger.get("variable", ""), ledger.get("path", ""), layout, table, ledger.get("none", ""))


def _read_slots(path: Path, layout: Layout, raw: Any) -> Slots:
    thing = "[ledger] slots"
    count, names = _counted(path, thing, raw, {"struct", "header", "at", "count", "live", "devices", "bytes"})
    at = raw.get("at")
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
        words=names,
    )
    struct = _known(path, thing, layout, slots.struct)
    device = _member(path, thing, struct, slots.devices)
    _member(path, thing, struct, slots.live)
    for name in slots.words:
        _member(path, thing, _known(path, thing, layout, device.type), name)
    if slots.offset_field:
        _member(path, thing, _known(path, thing, layout, slots.header), slots.offset_field)
    return slots


def _read_devices(path: Path, layout: Layout, raw: Any) -> DeviceTables:
    thing = "[ledger] devices"
    count, names = _counted(path, thing, raw, {"struct", "at", "count", "processes", "live", "bytes"})
    if not isinstance(raw.get("at"), int) or not names:
        raise SpecError(f"{path}: {thing}: at is an offset, and bytes names at least one field")
    tables = DeviceTables(
        struct=str(raw.get("struct")),
        offset=raw["at"],
        count=count,
        processes=str(raw.get("processes")),
        live=str(raw.get("live")),
        words=names,
    )
    entry = _member(path, thing, _known(path, thing, layout, tables.struct), tables.processes)
    for name in (tables.live, *tables.words):
        _member(path, thing, _known(path, thing, layout, entry.type), name)
    return tables


def _counted(path: Path, thing: str, raw: Any, allowed: set[str]) -> tuple[int, tuple[str, ...]]:
    if not isinstance(raw, dict):
        raise SpecError(f"{path}: {thing}: not a table; write {{struct = ..., at = ..., count = ..., ...}}")
    check_keys(path, thing, raw, frozenset(allowed))
    count, names = raw.get("count"), raw.get("bytes", [])
    if not isinstance(count, int) or count <= 0 or not isinstance(names, list):
        raise SpecError(f"{path}: {thing}: count must be a positive integer and bytes a list of fields")
    return count, tuple(names)


def _known(path: Path, thing: str, layout: Layout, name: str) -> Struct:
    if name not in layout.structs:
        raise SpecError(f"{path}: {thing}: {name} is no struct of layout {layout.name}")
    return layout.structs[name]


def _member(path: Path, thing: str, struct: Struct, name: str) -> Field:
    for field in struct.fields:
        if field.name == name:
            return field
    raise SpecError(f"{path}: {thing}: {name} is no field of {struct.name}")


def _table(path: Path, data: dict[str, Any], key: str, allowed: set[str] | None) -> dict[str, str]:
    table = data.get(key, {})
    if not isinstance(table, dict):
        raise SpecError(f"{path}: {key}: not a table; write [{key}]")
    if allowed is not None:
        check_keys(path, f"[{key}]", table, frozenset(allowed))
    for name, value in table.items():
        if not isinstance(value, str):
            raise SpecError(f"{path}: [{key}] {name}: is not a string; put it in quotes")
    return table
