"""Layout headers: constants, structs, and a static assert on every offset and size."""

from __future__ import annotations

from collections.abc import Iterable

from lab.codegen._text import guard
from lab.spec import Field, Layout, Struct

C_TYPES = {
    "u8": "uint8_t", "i8": "int8_t", "u16": "uint16_t", "i16": "int16_t", "u32": "uint32_t", "i32": "int32_t",
    "u64": "uint64_t", "i64": "int64_t", "f64": "double", "char": "char",
}  # fmt: skip


def emit(layouts: Iterable[Layout]) -> dict[str, str]:
    files = {}
    for layout in layouts:
        file = f"hl_layout_{identifier(layout.name)}.h"
        files[file] = guard(file, _header(layout))
    return files


def identifier(name: str) -> str:
    """A layout's name as part of a C name."""
    return name.replace("-", "_").replace(".", "_")


def _header(layout: Layout) -> str:
    parts = [f"/* {layout.doc} */\n#include <stddef.h>\n#include <stdint.h>\n"]
    parts.append(f"#define HL_{identifier(layout.name).upper()}_HASH UINT64_C(0x{layout.hash:016x})\n")
    parts += [f"#define {name} {_literal(value)}\n" for name, value in layout.constants.items()]
    parts += [_struct(struct) for struct in layout.structs.values()]
    return "".join(parts)


def _literal(value: int) -> str:
    if value > 0x7FFFFFFF:
        return f"UINT64_C(0x{value:x})"
    return f"({value})" if value < 0 else str(value)


def _struct(struct: Struct) -> str:
    lines = [f"\n/* {struct.doc} */\nstruct {struct.name} {{\n"]
    lines += [_member(field) for field in struct.fields]
    lines.append("};\n")
    lines.append(f'_Static_assert(sizeof(struct {struct.name}) == {struct.size}, "size of {struct.name}");\n')
    for field in struct.fields:
        lines.append(
            f"_Static_assert(offsetof(struct {struct.name}, {field.name}) == {field.offset} && "
            f"sizeof(((struct {struct.name} *)0)->{field.name}) == {field.size}, "
            f'"{struct.name}.{field.name}");\n'
        )
    return "".join(lines)


def _member(field: Field) -> str:
    kind = C_TYPES.get(field.type) or f"struct {field.type}"
    array = f"[{field.count}]" if field.count else ""
    doc = f" /* {field.doc} */" if field.doc else ""
    return f"    {kind} {field.name}{array};{doc}\n"
