"""The generated C says what the table says: names, resolver, error texts, X-macros, stubs and export lists."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lab.codegen import _stubs, emit
from lab.codegen._text import hash32, open_table
from lab.codegen._write import write_files
from lab.spec import HookTable, load_errors, load_hooks
from lab.spec._toml import fnv1a

VERSIONS = (-1, 0, 1999, 2000, 3020, 6999, 7000, 11040, 12000, 12999, 13000)


def output(program: Path, text: str = "") -> str:
    return subprocess.run([str(program)], input=text, capture_output=True, text=True, check=True, timeout=60).stdout


def test_emitting_is_pure() -> None:
    assert emit.emit() == emit.emit()
    assert list(emit.emit()) == sorted(emit.emit())


def test_writing_touches_only_what_changed(tmp_path: Path) -> None:
    assert write_files(tmp_path, {"a.h": "1\n", "b.h": "2\n"}) == ["a.h", "b.h"]
    before = (tmp_path / "a.h").stat().st_mtime_ns
    assert write_files(tmp_path, {"a.h": "1\n", "c.h": "3\n"}) == ["c.h"]
    assert (tmp_path / "a.h").stat().st_mtime_ns == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.h", "c.h"]


def test_known_hashes() -> None:
    assert (fnv1a(""), fnv1a("a"), fnv1a("foobar")) == (0xCBF29CE484222325, 0xAF63DC4C8601EC8C, 0x85944171F73967E8)
    assert (hash32(""), hash32("a"), hash32("foobar")) == (0x811C9DC5, 0xE40C292C, 0xBF9CF968)


def test_open_table_finds_every_key() -> None:
    keys = [hook.name for hook in load_hooks().hooks]
    slots = open_table(keys)
    assert sorted(slot for slot in slots if slot) == list(range(1, len(keys) + 1))
    assert len(slots) & (len(slots) - 1) == 0


def test_names_are_found_in_c(compile_c: Callable[..., Path], generated: Path) -> None:
    text = """#include "hl_names.h"
#include <stdio.h>
#include <string.h>
int main(void) {
    char line[128];
    printf("%d %d %llx\\n", HL_NAME_COUNT, HL_CUDA_COUNT, (unsigned long long)HL_NAMES_HASH);
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\\n")] = 0;
        int id = hl_name_find(line);
        printf("%d %s\\n", id, id < 0 ? "" : hl_name_text[id]);
    }
    return 0;
}
"""
    program = compile_c(text, name="names", extra=[generated / "hl_names.c"])
    table = load_hooks()
    unknown = ["", "cu", "cuInitx", "malloc", "cuMemAlloc_v3", "nvml"]
    lines = output(program, "\n".join([*(hook.name for hook in table.hooks), *unknown]) + "\n").splitlines()
    assert lines[0] == f"{len(table)} {table.cuda_count} {table.hash:x}"
    assert lines[1:] == [f"{hook.id} {hook.name}" for hook in table.hooks] + ["-1 "] * len(unknown)


def test_resolver_in_c_answers_like_the_table(compile_c: Callable[..., Path], generated: Path) -> None:
    text = """#include "hl_names.h"
#include "hl_versions.h"
#include <stdio.h>
int main(void) {
    char base[128];
    int version, flags;
    while (scanf("%127s %d %d", base, &version, &flags) == 3) {
        int status = -7, any = -7, id = hl_resolve(base, version, (unsigned long long)flags, &status);
        if (hl_resolve(base, version, (unsigned long long)flags, NULL) != id) return 1;
        hl_resolve_any(base, version, (unsigned long long)flags, &any);
        printf("%d %s %d\\n", status, id < 0 ? "-" : hl_name_text[id], any);
    }
    return 0;
}
"""
    program = compile_c(text, name="versions", extra=[generated / "hl_versions.c", generated / "hl_names.c"])
    table = load_hooks()
    bases = [*table.resolver(absent=True), "cuNoSuchThing", "cuMemAlloc_v2", "cu"]
    questions = [(base, version, flags) for base in bases for version in VERSIONS for flags in (0, 1, 2, 3)]
    lines = output(program, "".join(f"{base} {version} {flags}\n" for base, version, flags in questions)).splitlines()
    newer = HookTable(tuple(replace(hook, fake="real") for hook in table.hooks))
    expected = []
    for question in questions:
        status, name = table.resolve(*question)
        expected.append(f"{status} {name or '-'} {newer.resolve(*question)[0]}")
    assert lines == expected


def test_error_texts_in_c(compile_c: Callable[..., Path], generated: Path) -> None:
    text = """#include "hl_errors.h"
#include <stdio.h>
#define TEXT(value) ((value) ? (value) : "NULL")
int main(void) {
    for (int code = -1; code <= 1100; code++)
        printf("%s|%s|%s|%s\\n", TEXT(hl_cuda_error_name(code)), TEXT(hl_cuda_error_text(code)),
               TEXT(hl_nvml_error_name(code)), TEXT(hl_nvml_error_text(code)));
    return 0;
}
"""
    lines = output(compile_c(text, name="errors", extra=[generated / "hl_errors.c"])).splitlines()
    errors = load_errors()
    cuda = {error.code: (error.name, error.text) for error in errors.cuda}
    nvml = {error.code: (error.name, error.text) for error in errors.nvml}
    none = ("NULL", "NULL")
    assert lines == ["|".join(cuda.get(code, none) + nvml.get(code, none)) for code in range(-1, 1101)]


def test_macros_carry_every_column(compile_c: Callable[..., Path]) -> None:
    text = """#include "hl_hooked.h"
#include "hl_names.h"
#include "hl_table.h"
#include <stdio.h>
#define ROW(name, lib, action, fake, running, since, base) \\
    printf("%d " #name " " #lib " " #action " " #fake " %d %d %s\\n", HL_##name, running, since, base);
int main(void) {
    HL_TABLE(ROW)
    puts("--");
    HL_HOOKED(ROW)
    return 0;
}
"""
    lines = output(compile_c(text, name="table")).splitlines()
    rows = [
        f"{hook.id} {hook.name} {hook.library.upper()} {hook.action.upper()} {hook.fake.upper()} "
        f"{int(hook.running)} {hook.since} {hook.base}"
        for hook in load_hooks().hooks
    ]
    hooked = [row for row, hook in zip(rows, load_hooks().hooks, strict=True) if hook.hooked]
    assert lines == [*rows, "--", *hooked]


@pytest.mark.parametrize("header", ["cuda", "nvml"])
def test_every_name_that_claims_a_header_is_declared_there(header: str, compile_c: Callable[..., Path]) -> None:
    """The compiler is asked, not a pattern: an undeclared name does not compile."""
    names = [hook.name for hook in load_hooks().hooks if hook.header == header]
    table = "".join(f"    (void (*)(void)){name},\n" for name in names)
    compile_c(
        f"#include <{header}.h>\nextern void (*const declared[])(void);\n"
        f"void (*const declared[])(void) = {{\n{table}}};\n",
        "-shared",
        "-fPIC",
        "-Wno-cast-function-type",
        "-Wno-deprecated-declarations",
        name=f"declared-{header}",
    )


FAKE = '#include "hl_fake_stubs.h"\nvoid hl_fake_unsupported(unsigned id) { (void)id; }\n'
LIBRARY = ("-shared", "-fPIC", "-fvisibility=hidden", "-Wl,-z,defs", "-Wl,-Bsymbolic")


def small_table(**changes: str) -> HookTable:
    """Three names of the real table, changed."""
    hooks = [load_hooks()[name] for name in ("cuInit", "cuMemAlloc_v2", "cudbgIpcFlag")]
    hooks = [replace(hook, id=index, **{"fake": "unsupported", **changes}) for index, hook in enumerate(hooks[:2])] + [
        replace(hooks[2], id=2)
    ]
    return HookTable(tuple(hooks))


def stub_library(
    table: HookTable, folder: Path, compile_c: Callable[..., Path], body: str = "", name: str = ""
) -> Path:
    files = emit.emit(table)
    write_files(
        folder, {key: files[key] for key in ("fake_cuda_stubs.c", "fake_cuda.map", "hl_fake_stubs.h", "hl_names.h")}
    )
    flags = (*LIBRARY, f"-Wl,--version-script={folder / 'fake_cuda.map'}")
    source = folder / "fake.c"
    source.write_text(FAKE + body)
    return compile_c(source, *flags, name=name, extra=[folder / "fake_cuda_stubs.c"], gen=folder)


def exported(library: Path) -> set[str]:
    from elftools.elf.elffile import ELFFile

    with library.open("rb") as file:
        symbols = ELFFile(file).get_section_by_name(".dynsym").iter_symbols()

        return {symbol.name for symbol in symbols if symbol.name and symbol["st_shndx"] != "SHN_UNDEF"}


def test_stubs_export_exactly_the_names(tmp_path: Path, compile_c: Callable[..., Path]) -> None:
    library = stub_library(small_table(), tmp_path, compile_c, name="stubs.so")
    assert exported(library) == {"cuInit", "cuMemAlloc_v2", "cudbgIpcFlag"}


def test_a_real_name_without_a_body_does_not_link(tmp_path: Path, compile_c: Callable[..., Path]) -> None:
    with pytest.raises(AssertionError, match="undefined reference to `cuMemAlloc_v2'"):
        stub_library(
            small_table(fake="real"),
            tmp_path,
            compile_c,
            "int cuInit(void);\nint cuInit(void) { return 0; }\n",
            "planted.so",
        )


def test_a_body_that_is_also_a_stub_does_not_link(tmp_path: Path, compile_c: Callable[..., Path]) -> None:
    with pytest.raises(AssertionError, match="multiple definition of `cuInit'"):
        stub_library(
            small_table(), tmp_path, compile_c, "int cuInit(void);\nint cuInit(void) { return 0; }\n", "double.so"
        )


def test_export_lists() -> None:
    files = emit.emit()
    table = load_hooks()

    def listed(file: str) -> list[str]:
        return re.findall(r"^    ([^*\s]\S*);$", files[file].partition("local:")[0], re.M)

    assert listed("fake_cuda.map") == sorted(h.name for h in table.hooks if h.library == "cuda" and h.fake != "absent")
    assert listed("fake_nvml.map") == sorted(h.name for h in table.hooks if h.library == "nvml" and h.fake != "absent")
    hooked = {hook.name for hook in table.hooks if hook.hooked}
    assert set(listed("preload.map")) == {*hooked, "dlsym", "dlvsym", "hooklab_*"}
    assert _stubs.version_script(["b", "a"]) == "{\n  global:\n    a;\n    b;\n  local:\n    *;\n};\n"


@pytest.mark.parametrize("soname", ["libcuda.so.1", "libnvidia-ml.so.1"])
def test_built_fakes_have_no_version_tags(native: Path, soname: str) -> None:
    """Those of a real 580 driver have none, so glibc's dlvsym finds nothing in them."""
    from elftools.elf.elffile import ELFFile

    with (native / "fake" / soname).open("rb") as file:
        assert ELFFile(file).get_section_by_name(".gnu.version_d") is None


def test_built_fakes_export_the_whole_driver(native: Path) -> None:
    table = load_hooks()
    for library, file in (("cuda", "libcuda.so.1"), ("nvml", "libnvidia-ml.so.1")):
        names = {hook.name for hook in table.hooks if hook.library == library and hook.fake != "absent"}
        assert exported(native / "fake" / file) == names


def test_built_preload_exports_exactly_the_hooks(native: Path) -> None:
    hooked = {hook.name for hook in load_hooks().hooks if hook.hooked}
    names = exported(native / "libhooklab-preload.so")
    assert {name for name in names if not name.startswith("hooklab_")} == {*hooked, "dlsym", "dlvsym"}
