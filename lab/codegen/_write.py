"""Writing generated text: atomically, and only where it changed, so that an unchanged spec rebuilds nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def write_files(directory: Path, files: Mapping[str, str]) -> list[str]:
    """Make the directory hold these files; returns the names that changed. Other generated files there are removed."""
    directory.mkdir(parents=True, exist_ok=True)
    for stale in directory.iterdir():
        if stale.is_file() and stale.name not in files and stale.suffix in (".c", ".h", ".map"):
            stale.unlink()
    return [name for name, text in files.items() if write_text(directory / name, text)]


def write_text(path: Path, text: str) -> bool:
    """Write one file unless it already says so."""
    try:
        if path.read_text(encoding="utf-8") == text:
            return False
    except FileNotFoundError:
        pass
    partial = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
    return True
