"""Running the route walker: a fresh process a host, with and without the interposer, restarted behind each crash.

The walker writes a mapped file (layout routes), so that the case in which a process died or stood still is known.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab import native
from lab.spec import load_layout

STILL_SECONDS = 10.0  # CPU-starved machines included: one case takes microseconds
MOST_DEATHS, MOST_HANGS = 1000, 4
_TAIL = 2000


class WalkError(Exception):
    """No walk was possible; the text is one line."""


@dataclass
class Walk:
    """What one host saw."""

    host: int
    header: Any
    rows: Any
    """numpy records of hl_routes_row."""
    ledger: Any
    crashed: dict[int, str] = field(default_factory=dict)
    """Row -> how the process died in it."""
    hung: set[int] = field(default_factory=set)
    broken: str = ""
    """Why the walk could not be finished; empty when it was."""
    stderr: str = ""

    @property
    def died_looking(self) -> bool:
        """Whether a lookup ended the process, not a call."""
        looking = load_layout("routes").constants["HL_STATE_LOOKING"]
        return any(int(self.rows[row]["state"]) == looking for row in self.crashed)

    @property
    def objects(self) -> list[str]:
        """Paths of the objects that own answers."""
        raw = bytes(self.header["object"])
        return [
            raw[at * 256 : at * 256 + 256].split(b"\0")[0].decode(errors="replace")
            for at in range(int(self.header["objects"]))
        ]


def walk(
    *, host: int, environment: Mapping[str, str], folder: Path, measure: bool = False, patience: float = STILL_SECONDS
) -> Walk:
    """One walk. `measure`: no calls, the ledger instead. WalkError when the walker itself cannot start."""
    constants = load_layout("routes").constants
    plugin = host not in (constants["HL_HOST_PROGRAM"], constants["HL_HOST_JIT"])
    command = [str(native.path("hooklab-routes-host")), str(native.path("libhooklab-routes.so"))]
    if not plugin:
        command = [str(native.path("hooklab-routes"))]
    file = folder / f"walk-{host}-{time.monotonic_ns()}"
    crashed: dict[int, str] = {}
    hung: set[int] = set()
    first, broken, said = (0xFFFFFFFF if measure else 0), "", ""
    while True:
        end, said = _once([*command, str(file), str(host), str(first)], environment, file, folder, patience)
        seen = _read(file)
        if seen is None:
            last = said.strip().splitlines()[-1] if said.strip() else "it said nothing"
            raise WalkError(f"{Path(command[0]).name} did not start ({end}): {last}")
        header, rows, ledger = seen
        if int(header["finished"]) and end != "stood still":
            break
        phase, row = int(header["phase"]), int(header["row"])
        if phase == 2 or row >= len(rows):
            broken = f"{end} while the driver was initialised" if phase == 2 else f"{end} in phase {phase}"
            break
        if end == "stood still":
            hung.add(row)
        else:
            crashed[row] = end
        if len(crashed) + len(hung) > MOST_DEATHS or len(hung) > MOST_HANGS:
            broken = f"given up after {len(crashed)} crashes and {len(hung)} hangs"
            break
        if phase == 3:
            first = row + 1
    return Walk(host, header, rows, ledger, crashed, hung, broken, said[-_TAIL:])


def _once(
    command: list[str], environment: Mapping[str, str], file: Path, folder: Path, patience: float
) -> tuple[str, str]:
    """Runs the walker until it ends or its row stands still; returns how it ended and what it said."""
    with (folder / "stderr").open("w+b") as stream:
        process = subprocess.Popen(
            command, env=dict(environment), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stream
        )
        end = ""
        at, since = None, time.monotonic()
        while True:
            try:
                status = process.wait(timeout=min(0.5, patience / 2))
                break
            except subprocess.TimeoutExpired:
                now = _progress(file)
                if now != at:
                    at, since = now, time.monotonic()
                elif time.monotonic() - since > patience:
                    process.kill()
                    process.wait()
                    status, end = 0, "stood still"
                    break
        stream.seek(0, os.SEEK_END)
        stream.seek(max(0, stream.tell() - _TAIL))
        said = stream.read().decode(errors="replace")
    if not end:
        end = f"status {status}" if status >= 0 else signal.Signals(-status).name
    return end, said


def _progress(file: Path) -> bytes:
    try:
        with file.open("rb") as stream:
            return stream.read(64)
    except OSError:
        return b""


def _read(file: Path) -> tuple[Any, Any, Any] | None:
    import numpy as np

    layout = load_layout("routes")
    head, row, ledger = (layout.dtype(name) for name in ("hl_routes_header", "hl_routes_row", "hl_routes_ledger"))
    try:
        raw = file.read_bytes()
    except OSError:
        return None
    if len(raw) < head.itemsize:
        return None
    header = np.frombuffer(raw, head, 1)[0]
    if int(header["magic"]) != layout.constants["HL_ROUTES_MAGIC"] or int(header["layout_hash"]) != layout.hash:
        return None
    count = int(header["rows"])
    rows = np.frombuffer(raw, row, count, head.itemsize).copy()
    behind = head.itemsize + count * row.itemsize
    return header, rows, np.frombuffer(raw, ledger, int(header["ledger_rows"]), behind).copy()
