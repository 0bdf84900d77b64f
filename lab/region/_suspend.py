"""Suspending the processes of a container and letting them go on: SIGUSR2 and SIGUSR1, as HAMi has them.

A signal is sent only to a process that certainly is the slot's: it maps this very file, its innermost PID is the slot's
and, where the layout has them, start time and PID namespace agree. A process that has handlers of its own for the two
signals, or none, is never sent one, because it would end by it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lab.region._file import HAMI_MAGIC, Region, RegionError
from lab.spec import load_layout

_LOOK_S = 0.002


@dataclass(frozen=True, slots=True)
class Member:
    """A living process of a region."""

    slot: int
    pid: int
    """In its own PID namespace."""
    host_pid: int
    """As we see it; 0: it cannot be told."""
    takes_signals: bool
    suspended: bool

    def __str__(self) -> str:
        return f"slot {self.slot}, pid {self.pid}" + (f" (here {self.host_pid})" if self.host_pid else "")


def members(path: str | os.PathLike[str]) -> tuple[Member, ...]:
    """The living processes of a region file of either layout. RegionError when it is none."""
    file = Path(path)
    with contextlib.suppress(OSError):
        if int.from_bytes(file.open("rb").read(4), "little") == HAMI_MAGIC:
            return tuple(_hami(file))
    return tuple(_hooklab(file))


def _hooklab(file: Path) -> Iterator[Member]:
    constants = load_layout("hooklab-1").constants
    users = _users(file)
    with Region.open(file) as region:
        for process in region.processes():
            if not process.present:
                continue
            flags = int(region.slots["flags"][process.slot])
            found = [
                pid
                for pid, inner in users.items()
                if inner == process.pid
                and _start_time(pid) == process.start_time
                and _namespace(pid) in (0, process.pid_namespace)
            ]
            yield Member(
                slot=process.slot,
                pid=process.pid,
                host_pid=found[0] if len(found) == 1 else 0,
                takes_signals=bool(flags & constants["HL_SLOT_TAKES_SIGNALS"]),
                suspended=bool(flags & constants["HL_SLOT_SUSPENDED"]),
            )


def _hami(file: Path) -> Iterator[Member]:
    layout = load_layout("hami-1.2")
    dtype = layout.dtype("hl_hami_region")
    data = file.read_bytes()
    if len(data) < dtype.itemsize:
        raise RegionError(f"{file}: the region was truncated ({len(data)} bytes); give another path")
    region = np.frombuffer(data, dtype, 1)[0]
    users = _users(file)
    for slot in range(min(max(0, int(region["proc_count"])), layout.constants["HL_HAMI_SLOTS"])):
        row = region["procs"][slot]
        found = [pid for pid, inner in users.items() if inner == int(row["pid"])]
        if not found:
            continue
        yield Member(
            slot=slot,
            pid=int(row["pid"]),
            host_pid=found[0] if len(found) == 1 else 0,
            takes_signals=int(row["status"]) in (layout.constants["HL_HAMI_STATUS_RUNNING"], 2),
            suspended=int(row["status"]) == layout.constants["HL_HAMI_STATUS_SUSPENDED"],
        )


def suspend_all(path: str | os.PathLike[str]) -> tuple[Member, ...]:
    """Tell every process to begin no more allocations and launches; those that were told.

    RegionError when there is one that cannot be told; nobody has been told then.
    """
    return _tell(path, signal.SIGUSR2)


def resume_all(path: str | os.PathLike[str]) -> tuple[Member, ...]:
    """Let every process go on; those that were told. RegionError as in :func:`suspend_all`."""
    return _tell(path, signal.SIGUSR1)


def _tell(path: str | os.PathLike[str], number: signal.Signals) -> tuple[Member, ...]:
    found = members(path)
    for member in found:
        if not member.takes_signals:
            raise RegionError(
                f"{path}: {member} takes no signals of ours ({number.name} would end it or mean something else); "
                "start it without handlers of its own for SIGUSR1 and SIGUSR2"
            )
        if not member.host_pid:
            raise RegionError(
                f"{path}: {member} cannot be found in /proc here; run this where all its processes are seen"
            )
    told = []
    for member in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(member.host_pid, number)
            told.append(member)
    return tuple(told)


def wait_status_all(path: str | os.PathLike[str], *, suspended: bool, timeout_s: float = 10.0) -> tuple[Member, ...]:
    """Wait until every living process shows that it is (not) suspended; who they are.

    RegionError after ``timeout_s`` names the laggards.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        found = members(path)
        laggards = [member for member in found if member.suspended != suspended]
        if not laggards:
            return found
        if time.monotonic() >= deadline:
            state = "suspended" if suspended else "running"
            names = "; ".join(map(str, laggards))
            raise RegionError(
                f"{path}: not {state} after {timeout_s:g} s: {names}; they are stopped or block the signal"
            )
        time.sleep(_LOOK_S)


def _users(file: Path) -> dict[int, int]:
    """PID here -> innermost PID of every process that maps the file."""
    status = file.stat()
    needle = f" {status.st_ino} ".encode()
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError):
            lines = Path(f"/proc/{entry}/maps").read_bytes().splitlines()
            name = os.fsencode(file.name)
            if any(needle in line and line.endswith(name) for line in lines):
                found[int(entry)] = _innermost(int(entry))
    return found


def _innermost(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    return pid


def _start_time(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return -1
    return int(text[text.rindex(b")") + 2 :].split()[19])


def _namespace(pid: int) -> int:
    try:
        return os.stat(f"/proc/{pid}/ns/pid").st_ino
    except OSError:
        return 0
