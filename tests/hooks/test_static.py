"""The static side: traits of a library's file, and its exports beside the names of drivers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lab.hooks import static
from lab.hooks.static import StaticError
from lab.spec import load_hooks

Compile = Callable[..., Path]
SHARED = ("-shared", "-fPIC", "-w")
TABLE = load_hooks()
WRAPPER = '__attribute__((visibility("default"))) int %s(void) { return 0; }\n'


def library(compile_c: Compile, names: str, *flags: str, text: str = "", name: str) -> static.Library:
    source = text + "".join(WRAPPER % one for one in names.split())
    return static.read_library(compile_c(source, *SHARED, *flags, name=name))


def kinds(read: static.Library, **options: object) -> set[str]:
    return {finding.kind for finding in static.traits(read, **options) if finding.fault}  # type: ignore[arg-type]


@pytest.mark.report("B117", "B118")
def test_our_shim_has_no_bad_trait_and_misses_nothing(native: Path) -> None:
    read = static.read_library(native / "libhooklab-preload.so")
    assert kinds(read, declared=[hook.name for hook in TABLE.hooks if hook.hooked]) == set()
    passes = {hook.name: hook.reason for hook in TABLE.hooks if not hook.hooked}
    found = static.compare(read, static.shipped(TABLE), TABLE, passes)
    assert set(found.covered) == {hook.name for hook in TABLE.hooks if hook.hooked and hook.fake != "absent"}
    assert found.missing == found.unknown == found.stranded == ()


def test_the_surface_of_the_shipped_driver_is_the_measured_one(root: Path) -> None:
    measured = static.read_surface(root / "tests" / "spec" / "data" / "driver-580.159.04.txt")
    assert measured.names == static.shipped(TABLE).names


def test_a_driver_library_is_a_surface_too(native: Path) -> None:
    names = static.read_surface(native / "fake" / "libcuda.so.1").names
    assert names == {
        hook.name for hook in TABLE.hooks if hook.library == "cuda" and hook.fake != "absent" and hook.kind
    }


def test_coverage_says_what_is_covered_missing_optional_and_unknown(compile_c: Compile, tmp_path: Path) -> None:
    read = library(compile_c, "cuInit cuMemAlloc_v2 cuCheckpointOperationComplete cuMemoryAllocate", name="libsome.so")
    surface = tmp_path / "names.txt"
    surface.write_text("# a driver\n[cuda]\ncuInit\ncuMemAlloc_v2\n0000 T cuMemFree_v2\ncuCtxGetDevice\n")
    found = static.compare(read, static.read_surface(surface), TABLE, {"cuCtxGetDevice": "asks only"})
    assert found.covered == ("cuInit", "cuMemAlloc_v2")
    assert found.missing == ("cuMemFree_v2",)
    assert found.passing == ("cuCtxGetDevice",)
    assert found.optional == ("cuCheckpointOperationComplete",)
    assert found.unknown == ("cuMemoryAllocate",)


def test_generations_are_paired_and_walked_back(compile_c: Compile, tmp_path: Path) -> None:
    names = "cuCtxCreate_v2 cuCtxCreate_v4 cuMemAlloc cuGraphInstantiate_v2"
    read = library(compile_c, names, name="libgenerations.so")
    surface = tmp_path / "old.txt"
    surface.write_text("cuCtxCreate\ncuCtxCreate_v2\ncuMemAlloc\ncuMemAlloc_v2\ncuGraphInstantiate\n")
    found = static.compare(read, static.read_surface(surface), TABLE, {})
    assert found.pairs == (("cuMemAlloc", "cuMemAlloc_v2"),)  # old hooked, new in the driver
    assert found.walked_back == (("cuCtxCreate_v4", "cuCtxCreate_v2"),)
    assert found.stranded == ("cuGraphInstantiate_v2",)


def test_a_release_build_that_intercepts_nothing_is_named(twin: Callable[..., Path]) -> None:
    read = static.read_library(twin("HIDDEN"))
    assert not read.exports
    said = next(finding for finding in static.traits(read) if finding.kind == "intercepts-nothing")
    assert "hidden visibility" in said.text


def test_a_stripped_build_is_named_too(compile_c: Compile) -> None:
    read = library(compile_c, "", "-s", text="int nothing(void) { return 1; }\n", name="libstripped.so")
    assert read.stripped
    assert {"intercepts-nothing", "no-dlsym"} <= kinds(read)


def test_what_a_project_promises_and_the_file_lacks(twin: Callable[..., Path]) -> None:
    promised = ["cuMemAlloc_v2", "nvmlDeviceGetMemoryInfo"]
    assert kinds(static.read_library(twin()), declared=promised) == set()
    assert {"declared-not-exported", "library-lost"} <= kinds(static.read_library(twin("NO_NVML")), declared=promised)


@pytest.mark.report("B117", "B118", plants="a library that needs the driver")
@pytest.mark.parametrize(
    ("flags", "text", "kind"),
    [
        (("-Wl,-z,execstack",), "", "executable-stack"),
        (("-Wl,-z,notext",), '__asm__(".text\\n.8byte cuInit\\n");\n', "text-relocations"),
        (("-Wl,--no-as-needed", "-l:libcuda.so.1"), "", "needs-driver"),
    ],
)
def test_a_bad_trait_is_a_fault(compile_c: Compile, native: Path, flags: tuple[str, ...], text: str, kind: str) -> None:
    plain = library(compile_c, "cuInit cuGetProcAddress cuGetProcAddress_v2 dlsym", name=f"libplain-{kind}.so")
    bad = library(
        compile_c,
        "cuInit cuGetProcAddress cuGetProcAddress_v2 dlsym",
        f"-L{native}/fake",
        *flags,
        text=text,
        name=f"lib{kind}.so",
    )
    assert kinds(bad) - kinds(plain) == {kind}


def test_constructors_are_noted(compile_c: Compile) -> None:
    text = "volatile int ran;\n__attribute__((constructor)) static void early(void) { ran = 1; }\n"
    read = library(compile_c, "cuInit dlsym", text=text, name="libearly.so")
    assert read.constructors == 1
    assert "constructors" in {finding.kind for finding in static.traits(read)}
    assert library(compile_c, "cuInit dlsym", name="liblate.so").constructors == 0


@pytest.mark.parametrize("text", ["not a list of names, but prose\n", "cu-Init\n"])
def test_a_surface_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "surface"
    file.write_text(text if "cu" in text else "name!\n")
    with pytest.raises(StaticError, match="no symbol"):
        static.read_surface(file)


def test_a_file_that_is_no_library_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "text.so"
    file.write_text("text")
    with pytest.raises(StaticError, match="not an ELF"):
        static.read_library(file)
    with pytest.raises(StaticError, match="No such file"):
        static.read_library(tmp_path / "none.so")
