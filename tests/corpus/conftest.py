"""The planted interposer of the corpus, one library a fault."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

FLAGS = ("-O2", "-shared", "-fPIC", "-fvisibility=hidden")


@pytest.fixture(scope="session")
def planted(compile_c: Callable[..., Path], root: Path) -> Callable[[str], Path]:
    """`planted("NULL_OUTPUT")`: our shim's neighbour with that fault; `planted("NONE")`: with none."""
    source, tables = root / "tests/native/interposers/planted.c", root / "shim/preload/tables.c"
    made: dict[str, Path] = {}

    def build(fault: str) -> Path:
        if fault not in made:
            made[fault] = compile_c(source, *FLAGS, f"-D{fault}", extra=[tables], name=f"planted-{fault.lower()}.so")
        return made[fault]

    return build
