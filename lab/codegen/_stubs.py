"""Generated bodies of the fakes and the linker's export lists.

Every exported function of a fake is in its address table: a name that claims a body (`fake = "real"`) and has none
is an undefined symbol, so the link fails and names it.
"""

from __future__ import annotations

from collections.abc import Iterable

from lab.codegen._text import HEADER
from lab.spec import Hook, HookTable

NOT_SUPPORTED = {"cuda": 801, "nvml": 3}  # CUDA_ERROR_NOT_SUPPORTED, NVML_ERROR_NOT_SUPPORTED


def emit(table: HookTable) -> dict[str, str]:
    files = {"hl_fake_stubs.h": _HEADER}
    for library in ("cuda", "nvml"):
        hooks = [hook for hook in table.hooks if hook.library == library and hook.fake != "absent"]
        files[f"fake_{library}_stubs.c"] = _stubs(library, hooks, table)
        files[f"fake_{library}.map"] = version_script(hook.name for hook in hooks)
    hooked = [hook.name for hook in table.hooks if hook.hooked]
    files["preload.map"] = version_script([*hooked, "dlsym", "dlvsym", "hooklab_*"])
    files["region.map"] = version_script(["hl_*"])
    files["engine.map"] = version_script(["hl_engine"])
    return files


_HEADER = (
    HEADER
    + """#ifndef HOOKLAB_GEN_HL_FAKE_STUBS_H
#define HOOKLAB_GEN_HL_FAKE_STUBS_H
#include "hl_names.h"
/* Written by hand in fakes/common: counts a call of a name without behaviour. */
void hl_fake_unsupported(unsigned id);
/* Address of each exported function of this library by name id - HL_FAKE_FIRST; NULL: not exported or data. */
extern void *const hl_fake_address[];
extern const unsigned hl_fake_first, hl_fake_count;
#endif
"""
)


def version_script(names: Iterable[str]) -> str:
    """A linker version script that exports exactly these names."""
    return "{\n  global:\n" + "".join(f"    {name};\n" for name in sorted(names)) + "  local:\n    *;\n};\n"


def _stubs(library: str, hooks: list[Hook], table: HookTable) -> str:
    parts = [HEADER, '#include "hl_fake_stubs.h"\n#include <stddef.h>\n']
    parts.append('#define EXPORT __attribute__((visibility("default")))\n\n')
    for hook in hooks:
        if hook.kind == "data":
            parts.append(f"extern EXPORT unsigned char {hook.name}[{hook.bytes}];\n")
            parts.append(f"EXPORT unsigned char {hook.name}[{hook.bytes}] __attribute__((aligned(8)));\n")
        elif hook.fake == "real":
            parts.append(f"extern EXPORT int {hook.name}(void);\n")
        else:
            parts.append(
                f"EXPORT int {hook.name}(void);\nEXPORT int {hook.name}(void) {{\n"
                f"    hl_fake_unsupported(HL_{hook.name});\n    return {NOT_SUPPORTED[library]};\n}}\n"
            )
    first = 0 if library == "cuda" else table.cuda_count
    count = table.cuda_count if library == "cuda" else len(table) - table.cuda_count
    parts.append(f"\nconst unsigned hl_fake_first = {first}, hl_fake_count = {count};\n")
    parts.append(f"void *const hl_fake_address[{count}] = {{\n")
    for hook in hooks:
        if hook.kind == "func":
            parts.append(f"    [HL_{hook.name} - {first}] = (void *){hook.name},\n")
    parts.append("};\n")
    return "".join(parts)
