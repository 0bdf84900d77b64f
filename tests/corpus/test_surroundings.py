"""Public reports that are not about driver calls: what a program sees of an interposer that it did not ask for."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

CALLS = "import ctypes; print(ctypes.CDLL('libcuda.so.1').cuInit(0), flush=True)"
TAKES = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
print(cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cuda.cuCtxSetCurrent(context),
      *(cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)) for size in (1 << 21, 1 << 32)), flush=True)
"""
ELSEWHERE = """
#include <sys/vfs.h>
#include <string.h>
int fstatfs(int fd, struct statfs *info) { (void)fd, memset(info, 0, sizeof *info), info->f_type = TYPE; return 0; }
"""
Hooklab = Callable[..., subprocess.CompletedProcess[str]]
Compile = Callable[..., Path]


@pytest.mark.report("B102", plants="a file system that says it is NFS")
@pytest.mark.parametrize(("kind", "said"), [("0x6969", True), ("0xff534d42", True), ("0xef53", False)])
def test_a_region_on_another_machine_is_said(hooklab: Hooklab, compile_c: Compile, kind: str, said: bool) -> None:
    """Locks there may be granted half a minute late; that is nothing an interposer can mend, so it says so."""
    stub = compile_c(ELSEWHERE, "-w", "-shared", "-fPIC", f"-DTYPE={kind}", name=f"statfs-{kind}.so")
    shell = f'LD_PRELOAD={stub}:$LD_PRELOAD exec "$0" -c "$1"'
    done = hooklab("exec", "-q", "--memory", "4GiB", "--", "/bin/sh", "-c", shell, sys.executable, TAKES)
    assert done.stdout.split() == ["0", "0", "0", "0", "2"], done.stderr  # the limit holds either way
    lines = [line for line in done.stderr.splitlines() if "network file system" in line]
    assert len(lines) == int(said), done.stderr
    assert all(re.search(r" /\S+ lies on a network file system", line) for line in lines), "which region it is"


@pytest.mark.report("B115", plants="TALKS")
@pytest.mark.parametrize("fault", ["NONE", "TALKS"])
def test_standard_output_is_the_programs(hooklab: Hooklab, planted: Callable[[str], Path], fault: str) -> None:
    first = {"NONE": planted("NONE"), "TALKS": planted("TALKS")}[fault]
    shell = f'LD_PRELOAD={first}:$LD_PRELOAD exec "$0" -c "$1"'
    bare = hooklab("exec", "-q", "--interposer", "none", "--", sys.executable, "-c", CALLS)
    done = hooklab("exec", "-q", "--memory", "4GiB", "--", "/bin/sh", "-c", shell, sys.executable, CALLS)
    assert bare.stdout == "0\n"
    assert (done.stdout == bare.stdout) is (fault == "NONE")


@pytest.mark.report("B129", plants="a preload that the loader leaves out")
@pytest.mark.parametrize(
    ("what", "words"),
    [("missing", "No such file"), ("empty", "not an ELF file"), ("other", "made for"), ("text", "not an ELF file")],
)
def test_an_interposer_that_cannot_be_preloaded(hooklab: Hooklab, tmp_path: Path, what: str, words: str) -> None:
    """The loader only warns and goes on without it; a run that judged that would judge no interposer at all."""
    library = tmp_path / "libvgpu.so"
    if what == "empty":
        library.write_bytes(b"")
    elif what == "text":
        library.write_text("/usr/local/vgpu/libvgpu.so\n")
    elif what == "other":
        elf = bytearray(Path(sys.executable).resolve().read_bytes()[:64])
        elf[18:20] = (8).to_bytes(2, "little")  # MIPS
        library.write_bytes(elf)
    done = hooklab("run", "@views/limit", "--interposer", library)
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.report("B129")
def test_an_interposer_that_is_there(hooklab: Hooklab, native: Path) -> None:
    library = native / "libhooklab-preload.so"
    done = hooklab("run", "@views/null-outputs", "--interposer", library, "--dialect", "hooklab")
    assert done.returncode == 0, done.stdout + done.stderr
