"""Who asks, for what, and of whom: what a lookup of a hooked or foreign name answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

HOSTS = Path(__file__).parents[1] / "native" / "shim"
HOOK = "libhooklab-preload.so"
Run = Callable[..., list[str]]
Compile = Callable[..., Path]


@pytest.fixture(scope="session")
def asks(compile_c: Compile) -> Path:
    return compile_c(HOSTS / "asks.c", "-w", name="asks")


@pytest.fixture(scope="session")
def plugin(compile_c: Compile, mini: Path) -> Path:
    """Linked against the driver, opened by the program later."""
    return compile_c(
        HOSTS / "plugin.c",
        "-shared",
        "-fPIC",
        "-O0",
        f"-L{mini}",
        "-Wl,--no-as-needed",
        "-l:libcuda.so.1",
        name="libplugin.so",
    )


@pytest.fixture(scope="session")
def namesake(compile_c: Compile) -> Path:
    """Defines a name of the driver's and has nothing to do with it."""
    return compile_c(HOSTS / "plugin.c", "-shared", "-fPIC", "-DOWN=cuMemAlloc_v2", name="libnamesake.so")


@pytest.mark.parametrize("question", ["default-without-driver", "next-without-driver", "default-local-driver"])
def test_a_name_that_no_visible_driver_has_is_absent(run: Run, asks: Path, shim: Path, question: str) -> None:
    assert run(asks, question) == ["absent with-error"]
    assert run(asks, question, preload=[shim]) == ["absent with-error"]


def test_a_global_driver_is_found_and_hooked(run: Run, asks: Path, shim: Path) -> None:
    assert run(asks, "default-global-driver") == ["libcuda.so.1 cuInit"]
    assert run(asks, "default-global-driver", preload=[shim]) == [f"{HOOK} cuInit"]


@pytest.mark.parametrize("name", ["cuCtxCreate_v4", "cuNoSuchName", "cuMemAlloc_v9", "nvmlInit_v2", "cu", "c"])
@pytest.mark.parametrize("question", ["handle", "default"])
def test_a_name_that_the_driver_lacks_stays_absent(run: Run, asks: Path, shim: Path, question: str, name: str) -> None:
    assert run(asks, question, name) == run(asks, question, name, preload=[shim]) == ["absent with-error"]


@pytest.mark.parametrize("name", ["cuDriverGetVersion", "cuStreamCreate"])
def test_a_name_that_passes_is_the_drivers(run: Run, asks: Path, shim: Path, name: str) -> None:
    assert run(asks, "handle", name, preload=[shim]) == [f"libcuda.so.1 {name}"]


def test_another_librarys_definition_stays_its_own(run: Run, asks: Path, shim: Path, namesake: Path) -> None:
    assert run(asks, "handle-of", namesake, preload=[shim]) == ["libnamesake.so cuMemAlloc_v2"]
    assert run(asks, "default-beside", namesake, preload=[shim]) == ["libnamesake.so cuMemAlloc_v2"]


def test_our_own_handle_gives_our_own_function(run: Run, asks: Path, shim: Path) -> None:
    assert run(asks, "own-handle", shim, preload=[shim]) == [f"{HOOK} cuInit"]


def test_dlsym_asked_of_libc_is_ours(run: Run, asks: Path, shim: Path) -> None:
    assert run(asks, "dlsym-of-libc") == ["libc.so.6 dlsym"]
    assert run(asks, "dlsym-of-libc", preload=[shim]) == [f"{HOOK} dlsym"]


def test_code_in_no_object_gets_the_hook(run: Run, asks: Path, shim: Path) -> None:
    assert run(asks, "jit", preload=[shim]) == [f"{HOOK} cuInit"]


@pytest.mark.report("B24")
def test_lookups_of_the_driver_find_the_driver(run: Run, asks: Path, shim: Path) -> None:
    expected = ["libcuda.so.1 cuMemAlloc_v2"] * 4
    expected[2] = run(asks, "inside")[2]
    answers = run(asks, "inside", preload=[shim])
    assert answers[:2] == expected[:2]
    assert answers[2] in (expected[0], expected[2])
    assert answers[3] == expected[3]


def test_a_thread_inside_a_driver_call_finds_the_driver(run: Run, asks: Path, shim: Path) -> None:
    assert run(asks, "callback", preload=[shim]) == ["libcuda.so.1 cuMemAlloc_v2", f"{HOOK} cuMemAlloc_v2"]


@pytest.mark.parametrize("how", ["plugin", "plugin-global"])
def test_a_plugin_cannot_reach_past_the_hook(run: Run, asks: Path, shim: Path, plugin: Path, how: str) -> None:
    assert run(asks, how, plugin, "cuMemAlloc_v2") == ["libcuda.so.1 cuMemAlloc_v2"] * 2
    assert run(asks, how, plugin, "cuMemAlloc_v2", preload=[shim]) == [f"{HOOK} cuMemAlloc_v2"] * 2


def test_a_plugin_opened_after_the_driver(run: Run, asks: Path, shim: Path, plugin: Path, mini: Path) -> None:
    assert (
        run(asks, "plugin", plugin, "cuMemAlloc_v2", preload=[shim, mini / "libcuda.so.1"])
        == [f"{HOOK} cuMemAlloc_v2"] * 2
    )


def test_a_plugins_foreign_names_are_what_they_were(run: Run, asks: Path, shim: Path, plugin: Path) -> None:
    for name in ("malloc", "plugin_next", "main", "nothing_of_that_name"):
        assert run(asks, "plugin", plugin, name) == run(asks, "plugin", plugin, name, preload=[shim])


def chain(compile_c: Compile, level: str) -> tuple[Path, list[Path]]:
    shared = ("-shared", "-fPIC", level)
    libraries = [
        compile_c(HOSTS / "chain.c", *shared, f"-DDIGIT={digit}", *last, name=f"libchain{digit}{level}.so")
        for digit, last in ((1, ()), (2, ()), (3, ("-DLAST",)))
    ]
    host = 'int ping(void);\n#include <stdio.h>\nint main(void) { printf("%d\\n", ping()); return 0; }\n'
    program = compile_c(
        host,
        level,
        "-Wl,--no-as-needed",
        *map(str, libraries),
        f"-Wl,-rpath,{libraries[0].parent}",
        name=f"chain{level}",
    )
    return program, libraries


@pytest.mark.report("B22")
def test_next_of_a_foreign_name_keeps_its_caller(run: Run, compile_c: Compile, shim: Path, level: str) -> None:
    program, libraries = chain(compile_c, level)
    assert run(program) == run(program, preload=[shim]) == ["321"]
    first, second, _ = libraries
    assert run(program, preload=[second, shim, first]) == run(program, preload=[second, first])


@pytest.mark.report("B22", plants="an interposer that forwards by a call")
def test_a_dlsym_hook_that_loses_its_caller_is_seen(run: Run, compile_c: Compile) -> None:
    program, libraries = chain(compile_c, "-O0")
    lossy = compile_c(HOSTS / "callerless.c", "-shared", "-fPIC", "-w", name="libcallerless.so")
    first, second, _ = libraries
    # Behind the lossy hook every wrapper finds the first definition again: the chain never ends.
    with pytest.raises(AssertionError, match="status -11"):
        run(program, preload=[lossy, second, first])
