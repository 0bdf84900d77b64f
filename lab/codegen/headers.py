"""Finding the vendor headers: CUDA_HOME when set, else the header wheels (build requirements, never in git)."""

from __future__ import annotations

import importlib.metadata
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lab.codegen.failure import BuildError

WHEELS = {"cuda.h": "nvidia-cuda-runtime", "nvml.h": "nvidia-nvml-dev"}


@dataclass(frozen=True, slots=True)
class Headers:
    """Where the vendor headers are."""

    directories: tuple[Path, ...]
    versions: Mapping[str, str]
    """Header file -> where it is from: a wheel and its version, or the CUDA_HOME version macro."""


def find(environment: Mapping[str, str] | None = None, path: list[str] | None = None) -> Headers:
    """Both headers, or a BuildError that names the package to install."""
    environment = os.environ if environment is None else environment
    home = environment.get("CUDA_HOME")
    directories: list[Path] = []
    versions: dict[str, str] = {}
    for name, wheel in WHEELS.items():
        where = _in_home(Path(home), name) if home else _in_wheels(name, sys.path if path is None else path)
        if where is None and home:
            raise BuildError(
                f"{name} is not under CUDA_HOME={home}: install the CUDA headers there, or unset CUDA_HOME"
            )
        if where is None:
            raise BuildError(f"{name} not found: pip install {requirement(wheel)}, or set CUDA_HOME to a CUDA toolkit")
        if where not in directories:
            directories.append(where)
        versions[name] = f"CUDA_HOME {_macro(where / name)}" if home else _wheel_version(wheel)
    return Headers(tuple(directories), versions)


def requirement(wheel: str) -> str:
    """The wheel with the version this hooklab is built against."""
    pyproject = Path(__file__).parents[2] / "pyproject.toml"
    try:
        found = re.search(rf'"({re.escape(wheel)}==[^";]+)', pyproject.read_text(encoding="utf-8"))
    except OSError:
        found = None
    return found[1].strip() if found else wheel


def _in_home(home: Path, name: str) -> Path | None:
    for directory in (home / "include", *sorted(home.glob("targets/*/include"))):
        if (directory / name).is_file():
            return directory
    return None


def _in_wheels(name: str, path: list[str]) -> Path | None:
    for entry in path:
        directory = Path(entry or ".") / "nvidia" / "cu13" / "include"
        if (directory / name).is_file():
            return directory.resolve()
    return None


def _wheel_version(wheel: str) -> str:
    try:
        return f"{wheel} {importlib.metadata.version(wheel)}"
    except importlib.metadata.PackageNotFoundError:
        return f"{wheel} of unknown version"


def _macro(header: Path) -> str:
    found = re.search(r"#define\s+(?:CUDA_VERSION|NVML_API_VERSION)\s+(\d+)", header.read_text(errors="replace"))
    return found[1] if found else "of unknown version"
