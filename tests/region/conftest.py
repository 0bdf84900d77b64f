"""The region's native programs, compiled with the sources under test.

HOOKLAB_SANITIZE=address|undefined|thread compiles them with that sanitizer: every test here then runs under it.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

FORBIDDEN = 77
SANITIZERS = ("address", "undefined", "thread")
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def sanitizer() -> str:
    chosen = os.environ.get("HOOKLAB_SANITIZE", "")
    assert chosen in ("", *SANITIZERS), f"HOOKLAB_SANITIZE is {chosen!r}; it must be one of {', '.join(SANITIZERS)}"
    return chosen


@pytest.fixture(scope="session")
def region_program(compile_c: Callable[..., Path], root: Path, sanitizer: str) -> Callable[[str], Path]:
    """`region_program("units")`: tests/native/region/units.c with the region's sources, compiled once."""
    sources = sorted((root / "shim/region").glob("*.c")) + [
        root / f"shim/common/{name}.c" for name in ("config", "history", "points")
    ]
    flags = [f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all"] if sanitizer else []
    done: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in done:
            done[name] = compile_c(root / f"tests/native/region/{name}.c", *flags, name=f"region-{name}", extra=sources)
        return done[name]

    return get


@pytest.fixture
def run_region(region_program: Callable[[str], Path], tmp_path: Path) -> Run:
    """`run_region("stress", "robust", ...)`: the program in a folder of its own; its output as text."""

    def run(name: str, *arguments: str | int, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("HOOKLAB_")}
        return subprocess.run(
            [region_program(name), tmp_path, *map(str, arguments)],
            env={**kept, "ASAN_OPTIONS": "detect_leaks=0"},  # the leak check cannot stop threads in a PID namespace
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
        )

    return run


@pytest.fixture
def passes(run_region: Run) -> Run:
    """The same, and the program must be satisfied; where the machine forbids PID namespaces it must say why."""

    def run(name: str, *arguments: str | int, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        done = run_region(name, *arguments, timeout=timeout)
        if done.returncode == FORBIDDEN:
            assert "PID namespaces are forbidden: " in done.stderr
            return done
        assert done.returncode == 0, f"{name} {arguments}: status {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    return run
