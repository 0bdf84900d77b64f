"""Names and ids: hl_names.h/.c, hl_table.h, hl_hooked.h."""

from __future__ import annotations

from lab.codegen._text import FIND, HEADER, guard, open_table, quote, rows
from lab.spec import Hook, HookTable


def emit(table: HookTable) -> dict[str, str]:
    return {
        "hl_names.h": _header(table),
        "hl_names.c": _source(table),
        "hl_table.h": guard("hl_table.h", _macro("HL_TABLE", table.hooks)),
        "hl_hooked.h": guard("hl_hooked.h", _macro("HL_HOOKED", [hook for hook in table.hooks if hook.hooked])),
    }


def _width(table: HookTable) -> int:
    return -(-(max(len(hook.name) for hook in table.hooks) + 1) // 8) * 8


def _header(table: HookTable) -> str:
    enum = "".join(f"    HL_{hook.name} = {hook.id},\n" for hook in table.hooks)
    body = (
        "#include <stdint.h>\n"
        "/* Ids: cu* names sorted, then nvml* names sorted. */\n"
        f"enum {{\n{enum}    HL_NAME_COUNT = {len(table)},\n"
        f"    HL_CUDA_COUNT = {table.cuda_count} /* ids below it are cu*, from it on nvml* */\n}};\n"
        f"#define HL_NAMES_HASH UINT64_C(0x{table.hash:016x})\n"
        "/* A row a name, no pointers: the table costs no relocation. */\n"
        f"extern const char hl_name_text[HL_NAME_COUNT][{_width(table)}];\n"
        "int hl_name_find(const char *name); /* id, -1 unknown; no allocation, no lock */\n"
    )
    return guard("hl_names.h", body)


def _source(table: HookTable) -> str:
    slots = open_table([hook.name for hook in table.hooks])
    texts = "".join(f"    {quote(hook.name)},\n" for hook in table.hooks)
    return (
        f'{HEADER}#include "hl_names.h"\n#include <string.h>\n\n'
        f"const char hl_name_text[HL_NAME_COUNT][{_width(table)}] = {{\n{texts}}};\n\n"
        f"static const uint16_t slots[{len(slots)}] = {{\n{rows(slots, 16)}}};\n\n{FIND}\n"
        "int hl_name_find(const char *name) {\n"
        f"    for (uint32_t at = hash(name) & {len(slots) - 1}u; slots[at]; at = (at + 1) & {len(slots) - 1}u)\n"
        "        if (strcmp(hl_name_text[slots[at] - 1], name) == 0) return slots[at] - 1;\n"
        "    return -1;\n}\n"
    )


def _macro(name: str, hooks: list[Hook] | tuple[Hook, ...]) -> str:
    """X(name, LIB, ACTION, FAKE, RUNNING, since, base): LIB, ACTION and FAKE are upper-case words to paste."""
    lines = [f"#define {name}(X) \\"]
    for hook in hooks:
        lines.append(
            f"    X({hook.name}, {hook.library.upper()}, {hook.action.upper()}, {hook.fake.upper()}, "
            f"{int(hook.running)}, {hook.since}, {quote(hook.base)}) \\"
        )
    lines[-1] = lines[-1].removesuffix(" \\")
    return "\n".join(lines) + "\n"
