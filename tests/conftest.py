"""What every test folder may use: the natives, a C compiler with our headers, the command line, one seed for all.

Tests run against the installed package (importlib mode, no import from the clone). Heavy variants carry the mark
`full` and are left out unless --full is given.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).parents[1]
RUN_CLI = "import sys; from lab.cli import main; sys.exit(main())"
QUIET = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}

settings.register_profile("sample", derandomize=True, max_examples=40, stateful_step_count=30, **QUIET)
settings.register_profile("full", max_examples=400, stateful_step_count=60, **QUIET)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="also run the heavy variants")


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("full" if config.getoption("--full") else "sample")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a job in the background, whose guests would ignore it too
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects (and so counts) what this run is not for: heavy variants without --full, what needs a GPU without
    `-m gpu`, and real clients where their packages are not installed.

    A run that asks for clients or a GPU by `-m`, as tox's `clients` environment does, keeps them: what is missing is a
    failure there.
    """
    absent = set()
    asked = config.getoption("markexpr", "")
    if not config.getoption("--full"):
        absent.add("full")
    if "gpu" not in asked:
        absent.add("gpu")
    if "clients" not in asked and not importlib.util.find_spec("numba_cuda"):
        absent.add("clients")
    if "bindings12" not in asked and not os.environ.get("HOOKLAB_BINDINGS_12"):
        absent.add("bindings12")
    left_out = [item for item in items if any(item.get_closest_marker(mark) for mark in absent)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        kept = set(items) - set(left_out)
        items[:] = [item for item in items if item in kept]


@pytest.fixture(scope="session")
def root() -> Path:
    """The clone the tests lie in: sources, headers, scenarios."""
    return ROOT


@pytest.fixture(scope="session")
def seed() -> int:
    """Where every random sample starts: $HOOKLAB_TEST_SEED, else always the same."""
    return int(os.environ.get("HOOKLAB_TEST_SEED", "20240229"))


@pytest.fixture(scope="session")
def native() -> Path:
    """The folder of the built natives under test ($HOOKLAB_NATIVE, else the installed ones)."""
    from lab import native as module

    module.build_info()
    return module.directory()


@pytest.fixture(scope="session")
def sanitizer_runtime(native: Path) -> str:
    """What must come first in LD_PRELOAD with the natives under test; empty unless they have AddressSanitizer."""
    return str(json.loads((native / "build.json").read_text()).get("sanitizer_runtime", ""))


@pytest.fixture(scope="session")
def guest_environment(native: Path, sanitizer_runtime: str) -> Callable[..., dict[str, str]]:
    """`guest_environment(*libraries, **variables)`: the environment of a process under LD_PRELOAD over the fakes.

    With sanitized natives the sanitizer's runtime comes first in LD_PRELOAD: with the link-order check off instead,
    AddressSanitizer misses overflows.
    """

    def environment(*libraries: str | Path, **variables: str) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("CUDA_", "HOOKLAB_", "LD_"))}
        preload = ":".join(str(library) for library in (sanitizer_runtime, *libraries) if str(library))
        result = {**kept, "LD_LIBRARY_PATH": str(native / "fake")}
        if preload:
            result["LD_PRELOAD"] = preload
        return {**result, **variables}

    return environment


@pytest.fixture
def hooklab(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`hooklab("run", file, env={...})`: the command line in a process of its own, in the test's folder."""

    def run(
        *arguments: str | Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout: float = 120,
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-P", "-c", RUN_CLI, *map(str, arguments)],
            cwd=cwd or tmp_path,
            env={**os.environ, "COLUMNS": "200", **(env or {})},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run


@pytest.fixture(scope="session")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all generated files."""
    from lab.codegen import emit
    from lab.codegen._write import write_files

    folder = tmp_path_factory.mktemp("gen")
    write_files(folder, emit.emit())
    return folder


@pytest.fixture(scope="session")
def compile_c(generated: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`compile_c(source, *flags)`: a C text or file compiled with our headers; returns the output.

    A program by default; give -shared -fPIC for a library.
    """
    from lab.codegen.build import DEFINES, INCLUDES

    folder = tmp_path_factory.mktemp("compiled")

    def build(
        source: str | Path, *flags: str, name: str = "", extra: Sequence[Path] = (), gen: Path = generated
    ) -> Path:
        if isinstance(source, str):
            text, source = source, folder / f"{name or f'source{len(list(folder.iterdir()))}'}.c"
            source.write_text(text)
        output = folder / (name or f"{source.stem}.out")
        includes = [f"-I{gen}", *(f"-I{ROOT / directory}" for directory in INCLUDES), *vendor_includes()]
        command = [
            *compiler(),
            "-std=gnu11",
            "-O1",
            "-g",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-pthread",
            *DEFINES,
            *includes,
        ]
        done = subprocess.run(
            [*command, str(source), *map(str, extra), *map(str, flags), "-o", str(output)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return output

    return build


@pytest.fixture(scope="session")
def planted(compile_c: Callable[..., Path]) -> Callable[[str], Path]:
    """`planted("NULL_OUTPUT")`: a library before our shim that has one fault of public interposers, or `NONE`."""
    source, tables = ROOT / "tests/native/interposers/planted.c", ROOT / "shim/preload/tables.c"
    flags = ("-O2", "-shared", "-fPIC", "-fvisibility=hidden")
    made: dict[str, Path] = {}

    def build(fault: str) -> Path:
        if fault not in made:
            made[fault] = compile_c(source, *flags, f"-D{fault}", extra=[tables], name=f"planted-{fault.lower()}.so")
        return made[fault]

    return build


def compiler() -> list[str]:
    """The C compiler of this machine."""
    return shlex.split(os.environ.get("CC", "cc"))


def vendor_includes() -> list[str]:
    """Compiler flags that find the vendor headers."""
    from lab.codegen import headers

    return [flag for directory in headers.find().directories for flag in ("-isystem", str(directory))]
