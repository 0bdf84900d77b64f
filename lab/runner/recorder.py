"""The runner's own pen in a run's history: creates the file, appends records beside the guests', cuts it to size.

Guests append through shim/common/history.c; the ticket is the same atomic word, so both may write at once.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from pathlib import Path

import numpy as np

from lab import native
from lab.spec import load_hooks, load_layout

NONE16 = 0xFFFF


class Recorder:
    """A history file of at most ``capacity`` records, writable by every user of the run's containers."""

    def __init__(self, path: Path, *, capacity: int) -> None:
        layout = load_layout("history")
        self.path = path
        self._constants = layout.constants
        self._header, self._record = layout.dtype("hl_history_header"), layout.dtype("hl_history_record")
        size = self._header.itemsize + capacity * self._record.itemsize
        with path.open("xb+") as stream:
            stream.truncate(size)
            self._map = mmap.mmap(stream.fileno(), size)
        header = np.frombuffer(self._map, self._header, 1)[0]
        header["version"] = self._constants["HL_HISTORY_VERSION"]
        header["record_size"] = self._record.itemsize
        header["capacity"] = capacity
        header["names_hash"] = load_hooks().hash
        header["start_mono_ns"] = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        header["start_real_ns"] = time.time_ns()
        header["magic"] = self._constants["HL_HISTORY_MAGIC"]
        self._records = np.frombuffer(self._map, self._record, capacity, self._header.itemsize)
        self._capacity = capacity
        self._next = int(self._header.fields["next"][1])  # type: ignore[index]
        library = ctypes.CDLL(str(native.path("libhooklab-region.so")))
        library.hl_atomic_add64.restype = ctypes.c_uint64
        library.hl_atomic_add64.argtypes = (ctypes.c_void_p, ctypes.c_uint64)
        self._library = library
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    def add(
        self,
        event: str,
        *,
        pid: int = 0,
        process: int | None = None,
        container: int | None = None,
        device: int | None = None,
        result: int = 0,
        a: int = 0,
        b: int = 0,
        c: int = 0,
        extra: int = 0,
    ) -> None:
        """Append one record of HL_EVENT_``event``; dropped, as a guest's would be, when the file is full."""
        ticket = self._take(1)
        if ticket >= self._capacity:
            return
        record = self._records[ticket]
        record["time_ns"] = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        record["pid"], record["result"], record["extra"] = pid, result, extra
        record["a"], record["b"], record["c"] = (value & 0xFFFFFFFFFFFFFFFF for value in (a, b, c))
        record["name"] = record["step"] = NONE16
        record["process"] = NONE16 if process is None else process
        record["container"] = NONE16 if container is None else container
        record["device"] = 0xFF if device is None else device
        record["event"] = self._constants[f"HL_EVENT_{event}"]
        record["source"] = self._constants["HL_SOURCE_RUNNER"]
        record["commit"] = 1

    def _take(self, count: int) -> int:
        return int(self._library.hl_atomic_add64(self._base + self._next, count))

    def close(self) -> int:
        """Cut the file to what was written; how many records found no room. No guest may be alive any more."""
        taken = self._take(0)
        self._map.flush()
        os.truncate(self.path, self._header.itemsize + min(taken, self._capacity) * self._record.itemsize)
        return max(0, taken - self._capacity)
