"""The fake libcuda stays itself under an interposer: what it does inside reaches no exported name, not even its own."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.relocation import RelocationSection
from elftools.elf.sections import SymbolTableSection

from lab.node.server import NodeServer

# An interposer that ends the process when it is called from inside the driver: every name the driver could reach.
TRAP = """
#define _GNU_SOURCE
#include <stdlib.h>
#define TRAP(NAME) int NAME(void); int NAME(void) { abort(); }
TRAP(cuMemAlloc_v2) TRAP(cuMemFree_v2) TRAP(cuMemGetInfo_v2) TRAP(cuCtxGetCurrent) TRAP(cuCtxGetDevice)
TRAP(cuDeviceGetMemPool) TRAP(cuMemGetAddressRange_v2) TRAP(cuStreamSynchronize) TRAP(cuCtxSynchronize)
TRAP(cuPointerGetAttribute) TRAP(cuLaunchKernel) TRAP(cuGetProcAddress_v2) TRAP(cuGetProcAddress)
TRAP(hl_fake_enter_slow) TRAP(hl_node_attach) TRAP(fake_lock) TRAP(hl_history_add) TRAP(hl_resolve)
"""
# Only through pointers that the driver's own file gives out, never through the trapped global names.
PROGRAM = """
lib = c.CDLL("libcuda.so.1")
context = current()
stream = pointer()
p = u64()
tell(call("cuStreamCreate", at(stream), 0), call("cuMemAllocAsync", at(p), size(100), stream),
     call("cuMemcpyHtoDAsync_v2", p, b"x" * 100, size(100), stream), call("cuMemFreeAsync", p, stream),
     call("cuStreamQuery", stream), call("cuMemAllocManaged", at(p), size(100), 1))
tell(call("cuDevicePrimaryCtxReset_v2", 0))
function = pointer()
tell(call("cuMemHostAlloc", at(function), size(64), 0))
"""


def library(native: Path) -> Path:
    return native / "fake" / "libcuda.so.1"


def test_no_name_of_its_own_is_bound_by_the_loader(native: Path) -> None:
    with library(native).open("rb") as file:
        elf = ELFFile(file)
        names = set()
        for section in elf.iter_sections():
            if isinstance(section, RelocationSection):
                symbols = elf.get_section(section["sh_link"])
                if isinstance(symbols, SymbolTableSection):
                    names |= {symbols.get_symbol(r["r_info_sym"]).name for r in section.iter_relocations()}
    assert not {name for name in names if name.startswith(("cu", "hl_", "fake_"))}
    # The planted counter-check: the loader does bind something here, so an empty answer above is not a blind reader.
    assert "getpid" in names


def test_looks_nothing_up(native: Path, sanitizer_runtime: str) -> None:
    with library(native).open("rb") as file:
        elf = ELFFile(file)
        symbols = elf.get_section_by_name(".dynsym")
        undefined = {symbol.name for symbol in symbols.iter_symbols() if symbol["st_shndx"] == "SHN_UNDEF"}
        needed = {tag.needed for tag in elf.get_section_by_name(".dynamic").iter_tags("DT_NEEDED")}
    assert not undefined & {"dlsym", "dlvsym", "dlopen", "dlmopen"}
    system = {"libc.so.6", "libpthread.so.0", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1", "libgcc_s.so.1"}
    assert needed - system <= {name for name in needed if sanitizer_runtime and name.startswith("libasan.so")}


def test_soname_and_binding(native: Path) -> None:
    with library(native).open("rb") as file:
        dynamic = ELFFile(file).get_section_by_name(".dynamic")
        assert isinstance(dynamic, DynamicSection)
        tags = {tag.entry.d_tag: tag for tag in dynamic.iter_tags()}
    assert tags["DT_SONAME"].soname == "libcuda.so.1"
    symbolic, now = 0x2, 0x8
    assert "DT_SYMBOLIC" in tags or tags["DT_FLAGS"].entry.d_val & symbolic
    assert tags["DT_FLAGS"].entry.d_val & now


def test_an_interposer_sees_only_what_the_program_calls(
    node: NodeServer, guest: Callable[..., Any], compile_c: Callable[..., Path]
) -> None:
    trap = compile_c(TRAP, "-shared", "-fPIC", name="trap.so")
    status, told, err = guest(node, PROGRAM, trap).end()
    assert (status, told) == (0, [[0, 0, 0, 0, 0, 0], [0], [709]]), err


def test_the_trap_closes(node: NodeServer, guest: Callable[..., Any], compile_c: Callable[..., Path]) -> None:
    """The planted failure: a program that does call a trapped name dies."""
    trap = compile_c(TRAP, "-shared", "-fPIC", name="trap.so")
    program = 'c.CDLL("libcuda.so.1")\nc.CDLL(None).cuMemGetInfo_v2(None, None)'
    assert guest(node, program, trap).end()[0] == -6


def test_exports_exactly_the_table(native: Path) -> None:
    from lab.spec import load_hooks

    done = subprocess.run(["nm", "-D", "--defined-only", library(native)], capture_output=True, text=True, check=True)
    exported = {line.split()[-1].split("@")[0] for line in done.stdout.splitlines()}
    wanted = {hook.name for hook in load_hooks().hooks if hook.library == "cuda" and hook.fake != "absent"}
    assert exported - {"libcuda.so.1"} == wanted
