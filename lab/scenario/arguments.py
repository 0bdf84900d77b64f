"""Arguments of a ``call`` step: what may be written, which names they make and use, and how the caller is told.

Forms: a number or a size, null, ``NAME+N`` (what an earlier step got), ``{text: T}``, ``{out: NAME, was: N}``,
``{struct: {OFFSET: VALUE}, size: N, as: NAME, out: {NAME: OFFSET}}`` and ``{value: NAME}`` (a buffer's bytes by value).
Works on the plain tree, so that every mistake of a file is found in one reading.
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Iterator, Sequence
from typing import Any

from lab.scenario import units

_REFERENCE = re.compile(r"([A-Za-z_][A-Za-z0-9_-]{0,47})(?:\+([0-9]+[A-Za-z]*))?")
_KEYS = {
    frozenset({"text"}),
    frozenset({"value"}),
    frozenset({"out"}),
    frozenset({"out", "was"}),
}
_STRUCT = frozenset({"struct", "size", "as", "out"})


def parse(value: object) -> Any:
    """The plain form of one argument, sizes as bytes; ValueError with one line."""
    if value is None:
        return 0
    if isinstance(value, dict):
        return _mapping(value)
    return _scalar(value)


def _scalar(value: object) -> int | str:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{value!r} is no argument; write a number, a size, a name or one of the mappings")
    if isinstance(value, int):
        if not -(1 << 63) <= value < 1 << 64:
            raise ValueError(f"{value} does not fit 64 bits")
        return value & (1 << 64) - 1
    match = _REFERENCE.fullmatch(value)
    if match is None:
        return units.parse_size(value)
    return f"{match[1]}+{units.parse_size(match[2])}" if match[2] else match[1]


def _mapping(value: dict[Any, Any]) -> dict[str, Any]:
    keys = frozenset(value)
    if keys in _KEYS:
        if "out" in keys:
            return {"out": _name(value["out"]), "was": _number(value.get("was", 0))}
        key = next(iter(keys))
        if key == "value":
            return {"value": _name(value["value"])}
        if not isinstance(value["text"], str):
            raise ValueError("text is a string")
        return {"text": value["text"]}
    if "struct" not in keys or not keys <= _STRUCT or "size" not in keys:
        raise ValueError("an argument is {text}, {value}, {out, was} or {struct, size, as, out}")
    size = units.parse_size(value["size"])
    fields = value["struct"] if isinstance(value["struct"], dict) else {}
    outs = value.get("out", {})
    if not isinstance(outs, dict) or not 0 < size <= 1 << 20:
        raise ValueError("a structure has a size up to 1MiB, and out: {NAME: OFFSET}")
    found: dict[str, Any] = {"struct": {}, "size": size, "as": _name(value["as"]) if "as" in value else "", "out": {}}
    for offset, item in fields.items():
        found["struct"][_offset(offset, size)] = _field(item)
    for name, offset in outs.items():
        found["out"][_name(name)] = _offset(offset, size)
    return found


def _field(item: object) -> tuple[int, int | str]:
    """(width, value): a bare number has four bytes when it fits, a size with a unit and a name eight."""
    value = _scalar(item)
    return (4 if isinstance(item, int) and item < 1 << 32 else 8, value)


def _offset(value: object, size: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < size:
        raise ValueError(f"{value!r} is no offset within {size} bytes")
    return value


def _number(value: object) -> int:
    found = _scalar(value)
    if isinstance(found, str):
        raise ValueError(f"{value!r} is no number")
    return found


def _name(value: object) -> str:
    if not isinstance(value, str) or not _REFERENCE.fullmatch(value) or "+" in value:
        raise ValueError(f"{value!r} is no name")
    return value


def outputs(arguments: object) -> tuple[str, ...]:
    """Names of the outputs of a call, in order; its STEP_END record carries the first three."""
    found: list[str] = []
    for item in arguments if isinstance(arguments, list | tuple) else ():
        out = item.get("out") if isinstance(item, dict) else None
        if isinstance(out, str):
            found.append(out)
        elif isinstance(out, dict):
            found += [str(name) for name in out]
    return tuple(found)


def makes(arguments: object) -> Iterator[str]:
    """Names that later steps may use."""
    yield from outputs(arguments)
    for item in arguments if isinstance(arguments, list | tuple) else ():
        name = item.get("as") if isinstance(item, dict) else None
        if isinstance(name, str):
            yield name


def uses(arguments: object) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """(path below the list, name) of everything that an earlier step must have made."""
    for index, item in enumerate(arguments if isinstance(arguments, list | tuple) else ()):
        if isinstance(item, dict):
            fields = item.get("struct")
            for offset, field in fields.items() if isinstance(fields, dict) else ():
                yield from (((index, "struct", offset), name) for name in _used(field))
            yield from (((index, "value"), name) for name in _used(item.get("value")))
        else:
            yield from (((index,), name) for name in _used(item))


def _used(value: object) -> Iterator[str]:
    match = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
    if match:
        yield match[1]


def encode(arguments: Sequence[Any]) -> str:
    """The caller's `with` list (its form stands at the head of caller/call.c) of parsed arguments."""
    return ",".join(urllib.parse.quote(_item(one), safe="/._-+:@=") for one in arguments)


def _item(one: Any) -> str:
    if not isinstance(one, dict):
        return _plain(one)
    if "text" in one:
        return f"t{one['text']}"
    if "value" in one:
        return f"v{one['value']}"
    if "struct" not in one:
        return f"o{one['out']}:{one['was']}"
    fields = "/".join(f"{width}@{at}={_plain(item).removeprefix('n')}" for at, (width, item) in one["struct"].items())
    outs = "/".join(f"{name}@{offset}" for name, offset in one["out"].items())
    return f"b{one['as']}:{one['size']}:{fields}:{outs}"


def _plain(value: int | str) -> str:
    return f"r{value}" if isinstance(value, str) else f"n{value}"
