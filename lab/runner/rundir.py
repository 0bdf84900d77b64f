"""The run directory: everything a run leaves behind, and what is needed to run it again."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lab import native
from lab.runner.guest import GuestError

SCHEMA = "hooklab.run/1"


class RunDirectory:
    """``<parent>/<time>-<name>/`` and the files in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.scenario = path / "scenario.yaml"
        self.info = path / "run.json"
        self.history = path / "history"
        self.node = path / "node"
        self.verdicts = path / "verdicts.json"

    @classmethod
    def create(cls, parent: Path, name: str) -> RunDirectory:
        """A new directory; GuestError when the place cannot be written."""
        stamp = time.strftime("%Y%m%d-%H%M%S")
        slug = re.sub(r"[^A-Za-z0-9._=-]+", "-", name).strip("-")[:80] or "run"
        try:
            parent.mkdir(parents=True, exist_ok=True)
            for attempt in range(1000):
                path = parent.absolute() / (f"{stamp}-{slug}" + (f"-{attempt}" if attempt else ""))
                with contextlib.suppress(FileExistsError):
                    path.mkdir()
                    for part in ("stderr", "stdout", "programs", "backtrace"):
                        (path / part).mkdir()
                    return cls(path)
        except OSError as error:
            raise GuestError(
                f"{parent}: cannot make a run directory there ({error.strerror}); choose another place with --out"
            ) from None
        raise GuestError(f"{parent}: a thousand runs of this second are there already; choose another place with --out")

    def write_info(self, info: Mapping[str, Any]) -> None:
        """run.json, replaced whole, so that a reader never sees half of it."""
        text = json.dumps({"schema": SCHEMA, **info}, indent=1, sort_keys=True, default=str)
        fresh = self.info.with_suffix(".new")
        fresh.write_text(text + "\n", encoding="utf-8")
        os.replace(fresh, self.info)


def environment(extra: Mapping[str, str]) -> dict[str, str]:
    """What the numbers of this run depend on: versions, machine, what was built."""
    import importlib.metadata

    try:
        version = importlib.metadata.version("hooklab")
    except importlib.metadata.PackageNotFoundError:
        version = "not installed"
    found = {
        "hooklab": version,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()),
        "cpus": str(len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()),
    }
    with contextlib.suppress(OSError, ValueError):
        for key, value in native.build_info().items():
            if isinstance(value, str) and key in ("revision", "engine", "compiler", "policy_hash", "sanitize"):
                found[f"native {key}"] = value
    return found | dict(extra)


def real_devices(root: Path = Path("/proc/driver/nvidia")) -> dict[str, str]:
    """GPU models and driver version of this machine as its kernel module tells them; "unknown" where it does not."""
    models = []
    for file in sorted(root.glob("gpus/*/information")):
        with contextlib.suppress(OSError):
            found = re.search(r"^Model:\s*(.+)$", file.read_text(errors="replace"), re.MULTILINE)
            models.append(found[1].strip() if found else "unknown")
    version = None
    with contextlib.suppress(OSError):
        version = re.search(r"\b(\d+\.\d+(?:\.\d+)?)\b", (root / "version").read_text(errors="replace"))
    return {"gpus": ", ".join(models) or "unknown", "driver": version[1] if version else "unknown"}
