"""Every hooked name is reached over every route; an interposer that only exports names is seen to leak."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lab.spec import load_hooks

HOSTS = Path(__file__).parents[1] / "native" / "shim"
ABSENT = "cuCtxCreate_v4"  # the miniature driver hides it
ALWAYS = {"link", "handle", "default", "next", "program", "dlvsym", "dlvsym-default"}
RESOLVER = {"resolver", "resolver1", "depth3", "below", "above"}


@pytest.fixture(scope="session")
def routes(compile_c: Callable[..., Path], native: Path, generated: Path) -> Path:
    """The host that asks for every name over every route."""
    return compile_c(
        HOSTS / "routes.c",
        "-w",
        "-fPIE",
        "-pie",
        "-fno-builtin",
        f"-L{native}/fake",
        "-Wl,--no-as-needed",  # weak references alone do not make a library needed
        "-l:libcuda.so.1",
        "-l:libnvidia-ml.so.1",
        extra=[generated / "hl_names.c", generated / "hl_versions.c"],
        name="routes",
    )


def escapes(lines: list[str], library: str, *, absent: str = ABSENT) -> list[str]:
    """The lines whose answer is not the hook of exactly the name expected."""
    hooked = {hook.name for hook in load_hooks().hooks if hook.hooked}
    wrong = []
    for line in lines:
        route, _, expected, file, symbol = line.split()
        if route == "link" and expected == absent:
            continue  # our own export stands in for a name that no driver here has
        should = "-" if expected == "-" or (expected == absent and route in ALWAYS) else library
        if expected in hooked and should == library and (file, symbol) != (library, expected):
            wrong.append(line)
        if should == "-" and file != "-":
            wrong.append(line)
    return wrong


def test_every_name_over_every_route(run: Callable[..., list[str]], routes: Path, shim: Path) -> None:
    lines = run(routes, preload=[shim])
    names = {hook.name for hook in load_hooks().hooks if hook.hooked}
    for route in ALWAYS:
        assert {line.split()[2] for line in lines if line.split()[0] == route} == names, route
    assert {line.split()[0] for line in lines} == ALWAYS | RESOLVER
    assert escapes(lines, shim.name) == []


def test_an_interposer_that_only_exports_names_is_seen_to_leak(
    run: Callable[..., list[str]], routes: Path, compile_c: Callable[..., Path]
) -> None:
    leaky = compile_c(HOSTS / "leaky.c", "-shared", "-fPIC", "-w", "-fno-builtin", name="libleaky.so")
    wrong = escapes(run(routes, preload=[leaky]), leaky.name)
    leaking = {line.split()[0] for line in wrong}
    assert {"handle", "dlvsym", "dlvsym-default"} <= leaking
    assert "link" not in leaking


def test_a_shim_whose_resolver_replaces_nothing_is_seen_to_leak_there(
    run: Callable[..., list[str]], routes: Path, variant: Callable[..., Path]
) -> None:
    blind = variant(replace={"resolver.c": HOSTS / "blind_resolver.c"})
    wrong = escapes(run(routes, preload=[blind]), blind.name)
    assert {line.split()[0] for line in wrong} == RESOLVER


def test_without_an_interposer_everything_is_the_drivers(run: Callable[..., list[str]], routes: Path) -> None:
    lines = run(routes)
    assert {line.split()[3] for line in lines} == {"libcuda.so.1", "libnvidia-ml.so.1", "-"}


def test_the_fake_driver_behaves_like_the_miniature_one(
    run: Callable[..., list[str]], routes: Path, shim: Path, native: Path
) -> None:
    """A route that finds nothing without us (a version above the driver's own) finds nothing with us; a relocation
    finds what a library exports, whatever the driver has."""
    fakes = native / "fake"
    bare = run(routes, drivers=fakes)
    found = [line.split()[3] != "-" for line in bare]
    lines = run(routes, preload=[shim], drivers=fakes)
    assert len(lines) == len(bare)
    assert escapes([line for line, there in zip(lines, found, strict=True) if there], shim.name, absent="") == []
    asked = [line.split() for line, there in zip(lines, found, strict=True) if not there]
    assert {words[3] for words in asked if words[0] != "link"} <= {"-"}
    assert {line.split()[0] for line, there in zip(bare, found, strict=True) if there} >= (ALWAYS | RESOLVER) - {
        "dlvsym",
        "dlvsym-default",
    }
