"""Programs that hold still while they are looked at."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture(scope="session")
def link(native: Path) -> tuple[str, ...]:
    """Linker flags of a program that refers to the driver by relocation."""
    return (f"-L{native / 'fake'}", "-l:libcuda.so.1", "-Wl,--no-as-needed")


@pytest.fixture(scope="session")
def program(compile_c: Callable[..., Path], root: Path, link: tuple[str, ...]) -> Path:
    return compile_c(root / "tests/native/doctor/guest.c", "-Wl,-z,now", *link, "-ldl", name="doctor-guest")


@pytest.fixture(scope="session")
def plugin(compile_c: Callable[..., Path], root: Path, link: tuple[str, ...]) -> Callable[..., Path]:
    def build(*flags: str, name: str) -> Path:
        source = root / "tests/native/doctor/plugin.c"
        return compile_c(source, "-shared", "-fPIC", *flags, *link, "-ldl", name=name)

    return build


@pytest.fixture
def start(program: Path, guest_environment: Callable[..., dict[str, str]]) -> Iterator[Start]:
    """`start(library, argument, **variables)`: the program under a preload library, once it says that it is ready."""
    with ExitStack() as stack:

        def run(library: Path | None, *arguments: str | Path, **variables: str) -> subprocess.Popen[str]:
            environment = guest_environment(*([library] if library else []), **variables)
            return stack.enter_context(_held([str(program), *map(str, arguments)], environment))

        yield run


@contextmanager
def _held(command: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True) as guest:
        assert guest.stdout is not None
        assert guest.stdout.readline() == "ready\n"
        try:
            yield guest
        finally:
            guest.kill()
