"""A region file of layout hami-1.2: read and checked, live or dead, without a write; repaired only when asked.

Each slot is read by the layout's own sequence number, so that its words are those of one moment as far as that protocol
can tell (two writers of one slot defeat it); a number that stays odd, a dead writer's, is taken as it is.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lab import native
from lab.region._file import WHY_BYTES, RegionError
from lab.spec import load_layout

Records = npt.NDArray[Any]
LAYOUT = "hami-1.2"
_LOOKS = 10_000
_COUNT = 0x7FFFFFFF  # of a semaphore, in glibc's word and in musl's, whose highest bit says that somebody waits


def is_hami(path: str | os.PathLike[str]) -> bool:
    """Whether a file begins like a region of HAMi."""
    try:
        with Path(path).open("rb") as stream:
            return int.from_bytes(stream.read(4), "little") == load_layout(LAYOUT).constants["HL_HAMI_MAGIC"]
    except OSError:
        return False


class HamiRegion:
    """One look at a region file. ``record`` is hl_hami_region as it was then."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        layout = load_layout(LAYOUT)
        self.path = Path(path)
        self._constants = layout.constants
        dtype = layout.dtype("hl_hami_region")
        try:
            data, self.bytes = self._read(dtype)
        except OSError as error:
            raise RegionError(
                f"{path}: the region cannot be opened: {error.strerror}; give the path of a region file"
            ) from None
        self.record: Any = data
        if int(self.record["magic"]) != self._constants["HL_HAMI_MAGIC"]:
            raise RegionError(f"{path}: not a region of layout {LAYOUT}; give another path")

    def _read(self, dtype: np.dtype[Any]) -> tuple[Any, int]:
        with self.path.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            if size < dtype.itemsize:
                raise RegionError(
                    f"{self.path}: too short for a region of layout {LAYOUT} ({size} bytes); give another path"
                )
            memory = mmap.mmap(stream.fileno(), dtype.itemsize, access=mmap.ACCESS_READ)
        live = np.frombuffer(memory, dtype, 1)[0]
        record = live.copy()
        for index in range(min(max(0, int(record["proc_count"])), self._constants["HL_HAMI_SLOTS"])):
            slot = live["procs"][index]
            for _ in range(_LOOKS):
                before = int(slot["sequence"])
                copy = slot.copy()
                if not before % 2 and int(slot["sequence"]) == before:
                    break
            record["procs"][index] = copy
        return record, size

    def live(self) -> int:
        """How many slots count, bounded by the table."""
        return min(max(0, int(self.record["proc_count"])), self._constants["HL_HAMI_SLOTS"])

    def used(self, device: int) -> int:
        """What the limiter adds up, the bytes of slots that ended or died included."""
        return int(self.record["procs"]["used"][: self.live(), device]["total"].sum(dtype=np.uint64))

    def holder(self, which: str = "lock") -> str:
        """Who holds a lock: "free", "pid N, alive", "pid N, dead" or "taken, its holder cannot be named"."""
        if struct.unpack_from("<I", self.record[which].tobytes())[0] & _COUNT:
            return "free"
        owner = int(self.record["owner_pid"]) if which == "lock" else 0
        if not owner:
            return "taken, its holder cannot be named"
        return f"pid {owner}, {'alive' if _alive(owner) else 'dead'}"

    def locks(self) -> dict[str, str]:
        """Every lock of the layout and its :meth:`holder`."""
        return {"lock": self.holder(), "post-init lock": self.holder("postinit_lock")}

    def check(self) -> list[str]:
        """Problems, one line each. PIDs are those of the container: run it inside, or on the host's own."""
        return [f"{self.path}: {problem}" for problem in self._problems()]

    def _problems(self) -> list[str]:
        record, constants, found = self.record, self._constants, []
        version = (int(record["major"]), int(record["minor"]))
        if version != (constants["HL_HAMI_MAJOR"], constants["HL_HAMI_MINOR"]):
            found.append(f"version {version[0]}.{version[1]}, this build knows 1.2")
        if self.bytes != constants["HL_HAMI_FILE_BYTES"]:
            found.append(f"{self.bytes} bytes, a file of layout {LAYOUT} has {constants['HL_HAMI_FILE_BYTES']}")
        if not 0 <= int(record["proc_count"]) <= constants["HL_HAMI_SLOTS"]:
            found.append(f"proc_count {int(record['proc_count'])} is beyond the {constants['HL_HAMI_SLOTS']} slots")
        slots = record["procs"][: self.live()]
        pids, counts = np.unique(slots["pid"][slots["pid"] != 0], return_counts=True)
        found += [f"pid {pid} has {count} slots" for pid, count in zip(pids, counts, strict=True) if count > 1]
        for index, slot in enumerate(slots):
            pid = int(slot["pid"])
            dead = pid != 0 and not _alive(pid)
            if dead:
                found.append(f"slot {index}: pid {pid} is dead and its bytes are still charged")
            if int(slot["sequence"]) % 2 and (dead or not pid):
                found.append(f"slot {index}: pid {pid} died while it wrote: every reader of its totals waits for ever")
            for device in range(constants["HL_HAMI_DEVICES"]):
                used = slot["used"][device]
                parts = sum(int(used[name]) for name in ("context", "module", "data")) % 2**64
                if parts != int(used["total"]) and (dead or not int(slot["sequence"]) % 2):
                    found.append(f"slot {index}, device {device}: total {used['total']}, its parts are {parts}")
        for which, name in (("lock", "lock"), ("postinit_lock", "post-init lock")):
            holder = self.holder(which)
            if holder.endswith("dead") or ("named" in holder and not any(_alive(int(pid)) for pid in pids)):
                found.append(f"the {name} is held: {holder}")
        return found

    def reap(self) -> int:
        """Give back what the dead hold, locks too; how many slots went. RegionError when a lock cannot be had."""
        library = ctypes.CDLL(str(native.path("libhooklab-region.so")))
        why = ctypes.create_string_buffer(WHY_BYTES)
        gone = int(library.hl_hami_repair(os.fsencode(self.path), why, ctypes.c_size_t(WHY_BYTES)))
        if gone < 0:
            raise RegionError(why.value.decode(errors="replace"))
        return gone


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
