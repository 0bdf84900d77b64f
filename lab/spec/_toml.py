"""Reading a spec file: TOML to plain mappings, every failure one line that names the file."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FNV_OFFSET = 0xCBF29CE484222325
FNV_PRIME = 0x100000001B3


class SpecError(ValueError):
    """A spec file that cannot be used; the text is one line."""


def read(path: Path) -> dict[str, Any]:
    """Parse one TOML file."""
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: not TOML: {error}") from None


def check_keys(path: Path, thing: str, given: Mapping[str, Any], allowed: frozenset[str]) -> None:
    """Refuse keys that mean nothing, so that a typo cannot pass silently."""
    for key in given:
        if key not in allowed:
            raise SpecError(f"{path}: {thing}: unknown key '{key}'; known are {', '.join(sorted(allowed))}")


def fnv1a(text: str) -> int:
    """64-bit FNV-1a of the UTF-8 bytes: the hash that C and Python compare across processes."""
    value = FNV_OFFSET
    for byte in text.encode():
        value = ((value ^ byte) * FNV_PRIME) & 0xFFFFFFFFFFFFFFFF
    return value
