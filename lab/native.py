"""Where the native parts are: the built libraries, what they were built from, and the shipped scenarios."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
CLONE = (HERE.parent / "shim").is_dir()
REBUILD = "python -m lab.codegen build" if CLONE else "pip install --force-reinstall --no-deps hooklab"
"""What mends missing or stale natives of this installation: in a clone (editable install) the build driver."""


def directory() -> Path:
    """The native folder: $HOOKLAB_NATIVE, else the one installed with this package."""
    chosen = os.environ.get("HOOKLAB_NATIVE")
    return Path(chosen) if chosen else HERE / "_native"


def path(name: str) -> Path:
    """A native file by its name under the native folder; FileNotFoundError with one line when it is missing."""
    found = directory() / name
    if not found.is_file():
        raise FileNotFoundError(f"{found}: not built; {_mend()}")
    return found


def build_info() -> dict[str, Any]:
    """What the natives were built from (build.json); FileNotFoundError or ValueError with one line."""
    file = directory() / "build.json"
    try:
        info = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(f"{file}: not built; {_mend()}") from None
    except ValueError as error:
        raise ValueError(f"{file}: not JSON ({error}); {_mend()}") from None
    if not isinstance(info, dict):
        raise ValueError(f"{file}: not a JSON object; {_mend()}")
    return info


def scenarios_dir() -> Path:
    """The scenario files: those of the clone this package is imported from, else those shipped in the wheel."""
    clone = HERE.parent / "scenarios"
    return clone if (HERE.parent / "pyproject.toml").is_file() and clone.is_dir() else HERE / "_scenarios"


def _mend() -> str:
    if os.environ.get("HOOKLAB_NATIVE"):
        return "unset HOOKLAB_NATIVE or point it to a folder of built natives"
    return f"rebuild with: {REBUILD}"
