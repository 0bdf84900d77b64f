"""The recording driver's functions: one small stub a name, all of one size, that hands its id to the common entry."""

from __future__ import annotations

from lab.codegen._stubs import version_script
from lab.codegen._text import HEADER, guard, quote
from lab.spec import FOREIGN, HookTable, load_signatures

SONAMES = {"cuda": "libcuda.so.1", "nvml": "libnvidia-ml.so.1"}

_MACROS = """#include "echo.h"
#if defined(__x86_64__)
#define GO(id) "    movl $" id ", %eax\\n    jmp hl_echo_entry\\n"
#elif defined(__aarch64__)
#define GO(id) "    mov w16, #" id "\\n    b hl_echo_entry\\n"
#endif
#define STUB(name, id)                                                                       \\
    ".balign 16\\n.globl " name "\\n.type " name ", %function\\n" name ":\\n" GO(id) ".size " name ", . - " name "\\n"
#define GAP ".balign 16\\n.skip 16\\n"
"""


def emit(table: HookTable) -> dict[str, str]:
    files = {}
    for library, soname in SONAMES.items():
        hooks = [hook for hook in table.hooks if hook.library == library]
        first = hooks[0].id if hooks else 0
        there = [hook.kind == "func" and hook.fake != "absent" for hook in hooks]
        flags = ", ".join(str(int(one)) for one in (*there, False))  # never empty: C has no such arrays
        lines = [
            f'    STUB("{hook.name}", "{hook.id}")\n' if exported else "    GAP\n"
            for hook, exported in zip(hooks, there, strict=True)
        ]
        data = [hook for hook in hooks if hook.kind == "data" and hook.fake != "absent"]
        parts = [
            HEADER,
            _MACROS,
            '__asm__(\n    ".text\\n.balign 16\\n.globl hl_echo_stubs\\n.hidden hl_echo_stubs\\nhl_echo_stubs:\\n"\n',
            *lines,
            ");\n\n",
            f'extern const char hl_echo_soname[];\nconst char hl_echo_soname[] = "{soname}";\n',
            "extern const unsigned hl_echo_first, hl_echo_count;\n",
            f"const unsigned hl_echo_first = {first}, hl_echo_count = {len(hooks)};\n",
            "extern const unsigned char hl_echo_there[];\n",
            f"const unsigned char hl_echo_there[{len(hooks) + 1}] = {{{flags}}};\n",
        ]
        for hook in data:
            parts.append(f'extern __attribute__((visibility("default"))) unsigned char {hook.name}[{hook.bytes}];\n')
            parts.append(f"unsigned char {hook.name}[{hook.bytes}] __attribute__((aligned(8)));\n")
        files[f"echo_{library}.c"] = "".join(parts)
        exported_names = [hook.name for hook, exported in zip(hooks, there, strict=True) if exported]
        files[f"echo_{library}.map"] = version_script([*exported_names, *(hook.name for hook in data), "hl_echo"])
    width = max(map(len, load_signatures().values())) + 1
    files["hl_signatures.h"] = guard(
        "hl_signatures.h",
        '#include "hl_names.h"\n'
        '/* A letter a parameter, as in lab/spec/signatures.toml; "?" where no vendor header declares the name. */\n'
        f"extern const char hl_signature[HL_NAME_COUNT][{width}];\n",
    )
    texts = (quote(load_signatures().get(hook.name, "?")) for hook in table.hooks)
    files["hl_signatures.c"] = (
        f'{HEADER}#include "hl_signatures.h"\n\nconst char hl_signature[HL_NAME_COUNT][{width}] = {{\n'
        + "".join(f"    {text},\n" for text in texts)
        + "};\n"
    )
    files["routes.map"] = version_script(["hl_walk", "InitializeInjection", *FOREIGN])
    files["hl_foreign.h"] = guard(
        "hl_foreign.h", "#define HL_FOREIGN(X) " + " ".join(f"X({name})" for name in FOREIGN) + "\n"
    )
    files["audit.map"] = version_script(["la_version", "la_objopen", "la_symbind64"])
    return files
