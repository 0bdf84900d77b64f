"""Generated bodies of the fakes and the linker's export lists.

Every exported function of a fake is in its address table: a name that claims a body (`fake = "real"`) and has none
is an undefined symbol, so the link fails and names it.
"""

from __future__ import annotations

from collections.abc import Iterable

from lab.codegen._text import HEADER
from lab.spec import DEFAULT_DRIVER, Driver, Hook, HookTable, driver_names, load_driver

# CUDA_ERROR_NOT_SUPPORTED; NVML_ERROR_NOT_SUPPORTED, in a process that has not started the library UNINITIALIZED
NOT_SUPPORTED = {"cuda": "801", "nvml": "hl_nvml_ready() ? 3 : 1"}
ALWAYS = {"nvmlInternalGetExportTable": "3"}  # needs no start


def emit(table: HookTable) -> dict[str, str]:
    files = {"hl_fake_stubs.h": _HEADER}
    for library in ("cuda", "nvml"):
        for driver in map(load_driver, driver_names()):
            hooks = [hook for hook in table.hooks if hook.library == library and _has(driver, hook)]
            tail = "" if driver.branch == DEFAULT_DRIVER else f"_{driver.branch}"
            files[f"fake_{library}_stubs{tail}.c"] = _stubs(library, hooks, table, driver.cuda)
            files[f"fake_{library}{tail}.map"] = version_script(hook.name for hook in hooks)
            if library == "cuda" and driver.stages == 2:
                files[f"fake_cuda_stage{tail}.c"] = _stage(hooks)
    hooked = [hook.name for hook in table.hooks if hook.hooked]
    files["preload.map"] = version_script([*hooked, "dlsym", "dlvsym", "hooklab_*"])
    files["region.map"] = version_script(["hl_*"])
    files["engine.map"] = version_script(["hl_engine"])
    return files


def _has(driver: Driver, hook: Hook) -> bool:
    """NVML's names carry no version: a generation has those of the measured one."""
    return driver.has(since=hook.since, absent=hook.fake == "absent")


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
/* CUDA version of the generation that this library is. */
extern const int hl_fake_driver;
#endif
"""
)


def version_script(names: Iterable[str]) -> str:
    """A linker version script that exports exactly these names."""
    return "{\n  global:\n" + "".join(f"    {name};\n" for name in sorted(names)) + "  local:\n    *;\n};\n"


def _stubs(library: str, hooks: list[Hook], table: HookTable, version: int) -> str:
    parts = [HEADER, '#include "hl_fake_stubs.h"\n#include <stddef.h>\n']
    parts.append('#define EXPORT __attribute__((visibility("default")))\n\n')
    if library == "nvml":
        parts.append("int hl_nvml_ready(void); /* fakes/nvml */\n")
    for hook in hooks:
        if hook.kind == "data":
            parts.append(f"extern EXPORT unsigned char {hook.name}[{hook.bytes}];\n")
            parts.append(f"EXPORT unsigned char {hook.name}[{hook.bytes}] __attribute__((aligned(8)));\n")
        elif hook.fake == "real":
            parts.append(f"extern EXPORT int {hook.name}(void);\n")
        else:
            parts.append(
                f"EXPORT int {hook.name}(void);\nEXPORT int {hook.name}(void) {{\n"
                f"    hl_fake_unsupported(HL_{hook.name});\n"
                f"    return {ALWAYS.get(hook.name, NOT_SUPPORTED[library])};\n}}\n"
            )
    first = 0 if library == "cuda" else table.cuda_count
    count = table.cuda_count if library == "cuda" else len(table) - table.cuda_count
    parts.append(f"\nconst int hl_fake_driver = {version};\n")
    parts.append(f"const unsigned hl_fake_first = {first}, hl_fake_count = {count};\n")
    parts.append(f"void *const hl_fake_address[{count}] = {{\n")
    for hook in hooks:
        if hook.kind == "func":
            parts.append(f"    [HL_{hook.name} - {first}] = (void *){hook.name},\n")
    parts.append("};\n")
    return "".join(parts)


def _stage(hooks: list[Hook]) -> str:
    """The thin first library of a driver in two stages: jumps through a table that one look at the second one fills."""
    functions = [hook.name for hook in hooks if hook.kind == "func"]
    names = "".join(f'    "{name}",\n' for name in functions)
    jumps = "".join(f"JUMP({name}, {index})\n" for index, name in enumerate(functions))
    data = "".join(
        f"extern EXPORT unsigned char {hook.name}[{hook.bytes}];\n"
        f"EXPORT unsigned char {hook.name}[{hook.bytes}] __attribute__((aligned(8)));\n"
        for hook in hooks
        if hook.kind == "data"
    )
    return f"""{HEADER}#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#define EXPORT __attribute__((visibility("default")))
{data}
static const char *const names[] = {{
{names}}};
void *hl_stage_table[sizeof names / sizeof names[0]] __attribute__((visibility("hidden")));

__attribute__((constructor)) static void open_second(void) {{
    Dl_info self;
    char path[4096];
    if (!dladdr((void *)open_second, &self) || !self.dli_fname) return;
    const char *slash = strrchr(self.dli_fname, '/');
    int length = slash ? (int)(slash - self.dli_fname) + 1 : 0;
    if ((size_t)snprintf(path, sizeof path, "%.*slibcuda.so.1.1", length, self.dli_fname) >= sizeof path) return;
    void *second = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!second) {{
        fprintf(stderr, "hooklab fake driver: %s\\n", dlerror());
        return;
    }}
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) hl_stage_table[i] = dlsym(second, names[i]);
}}

#define TEXT(X) #X
#if defined(__x86_64__)
#define JUMP(NAME, INDEX) \\
    __asm__(".pushsection .text\\n.globl " #NAME "\\n.type " #NAME ", @function\\n" #NAME ":\\n" \\
            " endbr64\\n jmp *hl_stage_table+8*" TEXT(INDEX) "(%rip)\\n.size " #NAME ", .-" #NAME "\\n.popsection");
#else
#define JUMP(NAME, INDEX) \\
    __asm__(".pushsection .text\\n.globl " #NAME "\\n.type " #NAME ", %function\\n" #NAME ":\\n" \\
            " adrp x16, hl_stage_table+8*" TEXT(INDEX) "\\n" \\
            " ldr x16, [x16, :lo12:hl_stage_table+8*" TEXT(INDEX) "]\\n" \\
            " br x16\\n.size " #NAME ", .-" #NAME "\\n.popsection");
#endif
{jumps}"""
