"""Byte layouts: `layouts/*.toml` as structs with explicit offsets, a hash, and numpy dtypes.

Invariants, checked at loading: fields ascend, are naturally aligned, do not overlap and fill their struct without a
gap (padding is written out), so that C, numpy and a hex dump agree on every byte.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab.spec._toml import HERE, SpecError, check_keys, fnv1a, read

if TYPE_CHECKING:
    import numpy as np

SCALARS = {
    "u8": 1, "i8": 1, "u16": 2, "i16": 2, "u32": 4, "i32": 4, "u64": 8, "i64": 8, "f64": 8, "char": 1,
}  # fmt: skip
NUMPY = {
    "u8": "<u1", "i8": "<i1", "u16": "<u2", "i16": "<i2", "u32": "<u4", "i32": "<i4", "u64": "<u8", "i64": "<i8",
    "f64": "<f8",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Field:
    """One member of a struct."""

    name: str
    type: str
    """A scalar (u8 ... i64, f64, char) or the name of an earlier struct of the layout."""
    offset: int
    count: int
    """Elements; 0 is a single value, not an array."""
    size: int
    """Bytes, all elements."""
    doc: str


@dataclass(frozen=True, slots=True)
class Struct:
    """One C struct."""

    name: str
    size: int
    align: int
    fields: tuple[Field, ...]
    doc: str

    def __getitem__(self, name: str) -> Field:
        for field in self.fields:
            if field.name == name:
                return field
        raise KeyError(name)


@dataclass(frozen=True)
class Layout:
    """One layout file."""

    name: str
    doc: str
    constants: Mapping[str, int]
    structs: Mapping[str, Struct]

    @functools.cached_property
    def hash(self) -> int:
        """Identity of everything that C and Python must agree on: names, offsets, sizes, constants; not the docs."""
        lines = [self.name]
        lines += [f"{name}={value}" for name, value in self.constants.items()]
        for struct in self.structs.values():
            lines.append(f"{struct.name}:{struct.size}")
            lines += [f"{field.name} {field.type} {field.offset} {field.count}" for field in struct.fields]
        return fnv1a("\n".join(lines))

    def dtype(self, struct: str) -> np.dtype[Any]:
        """The numpy dtype of a struct: little-endian, same offsets and item size as the C struct."""
        return _dtype(self, struct)


@functools.cache
def _dtype_of(name: str, struct: str) -> np.dtype[Any]:
    return _build_dtype(load_layout(name), struct)


def _dtype(layout: Layout, struct: str) -> np.dtype[Any]:
    if layout.name in layout_names() and load_layout(layout.name) is layout:
        return _dtype_of(layout.name, struct)
    return _build_dtype(layout, struct)


def _build_dtype(layout: Layout, struct: str) -> np.dtype[Any]:
    import numpy as np

    fields = layout.structs[struct].fields
    formats: list[Any] = []
    for field in fields:
        if field.type == "char":
            formats.append(f"S{field.count or 1}")
            continue
        base: Any = NUMPY.get(field.type) or layout.dtype(field.type)
        formats.append((base, (field.count,)) if field.count else base)
    return np.dtype(
        {
            "names": [field.name for field in fields],
            "formats": formats,
            "offsets": [field.offset for field in fields],
            "itemsize": layout.structs[struct].size,
        }
    )


def layout_names() -> tuple[str, ...]:
    """Names that `load_layout` knows, sorted."""
    return tuple(sorted(path.stem for path in (HERE / "layouts").glob("*.toml")))


@functools.cache
def load_layout(name: str) -> Layout:
    """A layout by name ('history', 'node', 'hooklab-1', 'hami-1.2')."""
    path = HERE / "layouts" / f"{name}.toml"
    if not path.is_file():
        raise SpecError(f"{name}: no such layout; known are {', '.join(layout_names())}")
    return read_layout(path)


def read_layout(path: Path) -> Layout:
    """A layout from a file."""
    data = read(path)
    check_keys(path, "file", data, frozenset({"name", "doc", "constants", "struct"}))
    if data.get("name") != path.stem:
        raise SpecError(f"{path}: name is {data.get('name')!r}; write the file's own name '{path.stem}'")
    constants = data.get("constants", {})
    for key, value in constants.items():
        if not isinstance(value, int) or isinstance(value, bool) or not key.startswith("HL_"):
            raise SpecError(f"{path}: constant {key}: needs an HL_ name and an integer")
    structs: dict[str, Struct] = {}
    for entry in data.get("struct", []):
        struct = _read_struct(path, entry, structs)
        structs[struct.name] = struct
    return Layout(data["name"], data.get("doc", ""), constants, structs)


def _read_struct(path: Path, entry: dict[str, Any], known: dict[str, Struct]) -> Struct:
    name = str(entry.get("name"))
    check_keys(path, name, entry, frozenset({"name", "size", "doc", "fields"}))
    size = entry.get("size")
    if not name.startswith("hl_") or not isinstance(size, int) or size <= 0:
        raise SpecError(f"{path}: {name}: a struct needs a name that starts with hl_ and a positive size")
    if name in known:
        raise SpecError(f"{path}: {name}: defined twice; rename one")
    fields: list[Field] = []
    end, align = 0, 1
    for raw in entry.get("fields", []):
        thing = f"{name}.{raw.get('name')}"
        check_keys(path, thing, raw, frozenset({"name", "type", "offset", "count", "doc"}))
        kind, offset, count = raw.get("type"), raw.get("offset"), raw.get("count", 0)
        if kind not in SCALARS and kind not in known:
            raise SpecError(f"{path}: {thing}: unknown type {kind!r}; use {', '.join(SCALARS)} or an earlier struct")
        if not isinstance(offset, int) or not isinstance(count, int) or count < 0:
            raise SpecError(f"{path}: {thing}: offset and count must be integers that are not negative")
        width = SCALARS[kind] if kind in SCALARS else known[kind].size
        natural = SCALARS[kind] if kind in SCALARS else known[kind].align
        if offset % natural:
            raise SpecError(f"{path}: {thing}: offset {offset} is not a multiple of {natural}; move it")
        if offset < end:
            raise SpecError(f"{path}: {thing}: offset {offset} overlaps the field before it, which ends at {end}")
        if offset > end:
            raise SpecError(f"{path}: {thing}: gap of {offset - end} bytes before it; write the padding as a field")
        if any(field.name == raw["name"] for field in fields):
            raise SpecError(f"{path}: {thing}: listed twice; rename one")
        fields.append(Field(raw["name"], kind, offset, count, width * (count or 1), raw.get("doc", "")))
        end, align = offset + width * (count or 1), max(align, natural)
    if end != size:
        raise SpecError(f"{path}: {name}: fields end at {end} but its size is {size}; add the rest as a field")
    if size % align:
        raise SpecError(f"{path}: {name}: size {size} is not a multiple of its alignment {align}")
    return Struct(name, size, align, tuple(fields), entry.get("doc", ""))
