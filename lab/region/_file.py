"""A region file (layout hooklab-1) mapped as numpy views.

Invariants: a file is mapped only when magic, version, layout hash, size, counts and offsets hold, so that no view
reaches past its end; nothing here writes. Whoever lives is what the kernel says about the presence byte of a slot,
never what a PID suggests.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import mmap
import os
import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from lab import native
from lab.region import _check
from lab.spec import load_layout
from lab.spec.mapped import taken

Records = npt.NDArray[Any]
MEND = "remove the file or give another path"
HAMI_MAGIC = 19920718
FLOCK = struct.Struct("hhqqi4x")  # struct flock of 64-bit Linux
F_OFD_GETLK = 36
WHY_BYTES = 2048
_LOOKS = 1000


class RegionError(ValueError):
    """A region that cannot be used; the text is one line: file, cause, mend."""


@functools.cache
def _tiers() -> Mapping[int, str]:
    names = load_layout("history").constants
    return {int(names[name]): name.removeprefix("HL_TIER_").lower() for name in names if name.startswith("HL_TIER_")}


@dataclass(frozen=True, slots=True)
class Process:
    """One taken slot. Sizes are bytes."""

    slot: int
    generation: int
    pid: int
    """In its own PID namespace."""
    host_pid: int
    """0: unknown."""
    tier: str
    """Who told the host PID: `broker`, `procfs`, `probe`; empty while it is unknown."""
    start_time: int
    """Clock ticks since boot, /proc/PID/stat field 22."""
    pid_namespace: int
    comm: str
    present: bool
    """False: it has died and its bytes come back when anybody needs them."""
    used: Mapping[int, tuple[int, ...]]
    """By device, then by HL_KIND_*; devices on which it holds or waits for something."""
    pending: Mapping[int, int]
    """By device: reserved, driver call under way."""

    @property
    def held(self) -> int:
        """Bytes on all devices, pending included."""
        return sum(map(sum, self.used.values())) + sum(self.pending.values())


class Region:
    """A mapped region; close it or use it as a context manager. Views are live: other processes change them."""

    def __init__(self, path: Path, memory: mmap.mmap, descriptor: int) -> None:
        layout = load_layout("hooklab-1")
        self.path = path
        self._memory = memory
        self._descriptor = descriptor
        self.header: Records = np.frombuffer(memory, layout.dtype("hl_region_header"), 1)
        """One element: hl_region_header."""
        head = self.header[0]
        devices = layout.dtype("hl_region_device")
        self.devices: Records = np.frombuffer(memory, devices, int(head["device_count"]), int(head["device_offset"]))
        """hl_region_device by row: of an ordinal, or of whichever device it was claimed for (`row`)."""
        slots = layout.dtype("hl_region_slot")
        self.slots: Records = np.frombuffer(memory, slots, int(head["slot_count"]), int(head["slot_offset"]))
        """hl_region_slot by index."""

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, writable: bool = False) -> Region:
        """Map a region file; RegionError when it is none. With `writable` the views can be written to (for tests)."""
        file = Path(path)
        try:
            descriptor = os.open(file, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
        except OSError as error:
            raise RegionError(
                f"{file}: the region cannot be opened: {error.strerror}; give the path of a region file"
            ) from None
        try:
            _validate(file, descriptor)
            access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
            return cls(file, mmap.mmap(descriptor, 0, access=access), descriptor)
        except BaseException:
            os.close(descriptor)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Unmap; views that the caller still holds stay readable."""
        if self._descriptor < 0:
            return
        os.close(self._descriptor)
        self._descriptor = -1
        del self.header, self.devices, self.slots
        with contextlib.suppress(BufferError):  # somebody holds a view; the mapping goes with it
            self._memory.close()

    def used(self, device: int) -> int:
        """Bytes in use on a device, pending included: what the limit is compared with."""
        return int(self.devices["used"][device])

    def row(self, uuid: bytes, number: int) -> int | None:
        """The row of the device with this UUID: the one that was claimed for it, else that of its number while nobody
        has claimed it; None: its processes have no row yet."""
        known = [bytes(one) for one in self.devices["uuid"]]
        if uuid in known:
            return known.index(uuid)
        return number if number < len(known) and not any(known[number]) else None

    def limit(self, device: int) -> int:
        """Bytes; 0 = none."""
        return int(self.devices["limit"][device])

    def is_present(self, slot: int) -> bool:
        """Whether the process of a slot lives, from any PID namespace."""
        base = load_layout("hooklab-1").constants["HL_PRESENCE_BYTE"]
        asked = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, base + slot, 1, 0)
        answer = fcntl.fcntl(self._descriptor, F_OFD_GETLK, asked)
        return bool(FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)

    def processes(self) -> tuple[Process, ...]:
        """The taken slots in order, those of the dead that nobody has buried yet included (`present` is False)."""
        slots = ((int(index), self._slot(int(index))) for index in taken(self.slots["state"]))
        return tuple(self._process(index, slot) for index, slot in slots if slot is not None)

    def _slot(self, index: int) -> Any | None:
        """A slot as it was at one moment, its identity at least; None when it was given back meanwhile.

        Who takes a slot changes its generation, then makes the sequence number odd while it writes who it is, and
        says last that the slot is live. A number that stays odd is that of somebody who died there.
        """
        live = self.slots[index]
        for _ in range(_LOOKS):
            before = int(live["generation"]), int(live["sequence"])
            copy = live.copy()
            after = int(live["generation"]), int(live["sequence"])
            if not int(live["state"]):
                return None
            if before == after and not before[1] % 2:
                break
        return copy

    def _process(self, index: int, slot: Any) -> Process:
        devices = slot["device"]
        busy = [int(d) for d in taken(devices["used"].any(axis=1) | (devices["pending"] != 0))]
        return Process(
            slot=index,
            generation=int(slot["generation"]),
            pid=int(slot["pid"]),
            host_pid=int(slot["host_pid"]),
            tier=_tiers().get(int(slot["identity_tier"]), "another") if slot["host_pid"] else "",
            start_time=int(slot["start_time"]),
            pid_namespace=int(slot["pid_namespace"]),
            comm=bytes(slot["comm"]).decode(errors="replace"),
            present=self.is_present(index),
            used={d: tuple(int(value) for value in devices["used"][d]) for d in busy},
            pending={d: int(devices["pending"][d]) for d in busy},
        )

    def holder(self) -> str:
        """Who holds the lock: "free", "slot N, pid P, alive" or "... dead", or that its holder cannot be named.

        Whoever has no slot (a process that is entering, a tool) holds it unnamed for a few instructions.
        """
        holder = int(self.header["lock_holder"][0])
        if not holder:
            return "free"
        if holder > len(self.slots):
            return "taken, its holder cannot be named"
        state = "alive" if self.is_present(holder - 1) else "dead"
        return f"slot {holder - 1}, pid {self.slots['pid'][holder - 1]}, {state}"

    def locks(self) -> dict[str, str]:
        """Every lock of the layout and its :meth:`holder`."""
        return {"lock": self.holder()}

    def check(self) -> list[str]:
        """Problems of the books, one line each, none when they are sound."""
        return [
            f"{self.path}: {problem}"
            for problem in _check.problems(self.header, self.devices, self.slots, self.is_present)
        ]

    def reap(self) -> int:
        """Give back what dead processes hold; how many were buried.

        RegionError when their lock is out of reach: a robust mutex of another PID namespace, still in use.
        """
        library = ctypes.CDLL(str(native.path("libhooklab-region.so")))
        why = ctypes.create_string_buffer(WHY_BYTES)
        buried = int(library.hl_region_reap(os.fsencode(self.path), why, ctypes.c_size_t(WHY_BYTES)))
        if buried < 0:
            raise RegionError(why.value.decode(errors="replace"))
        return buried


def _validate(file: Path, descriptor: int) -> None:
    layout = load_layout("hooklab-1")
    constants = layout.constants
    dtype = layout.dtype("hl_region_header")
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise RegionError(f"{file}: not a regular file; give the path of a region file")
    data = os.pread(descriptor, dtype.itemsize, 0)
    if len(data) >= 4 and int.from_bytes(data[:4], "little") == HAMI_MAGIC:
        raise RegionError(f"{file}: holds a region of HAMi-core, not of hooklab; read it with --dialect hami")
    if len(data) < dtype.itemsize:
        raise RegionError(f"{file}: too short for a region ({len(data)} bytes); {MEND}")
    head = np.frombuffer(data, dtype, 1)[0]
    if int(head["magic"]) != constants["HL_REGION_MAGIC"]:
        raise RegionError(f"{file}: not a hooklab-1 region (magic {int(head['magic']):#x}); {MEND}")
    if int(head["version"]) != constants["HL_REGION_VERSION"]:
        raise RegionError(
            f"{file}: region version {head['version']}, this build reads {constants['HL_REGION_VERSION']}; {MEND}"
        )
    seen = int(head["layout_hash"])
    if seen != layout.hash:
        raise RegionError(f"{file}: the region was made with another layout ({seen:#x}, ours {layout.hash:#x}); {MEND}")
    devices, slots = int(head["device_count"]), int(head["slot_count"])
    end_of_devices = int(head["device_offset"]) + devices * layout.structs["hl_region_device"].size
    end_of_slots = int(head["slot_offset"]) + slots * layout.structs["hl_region_slot"].size
    if status.st_size != int(head["size"]):
        raise RegionError(f"{file}: the region has {status.st_size} bytes, its header says {head['size']}; {MEND}")
    if max(end_of_devices, end_of_slots) > status.st_size or slots != constants["HL_REGION_SLOTS"] or devices == 0:
        raise RegionError(f"{file}: the header of the region is damaged (counts or offsets); {MEND}")
