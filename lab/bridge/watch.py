"""Sees when another process opens, reads or writes a file, by inotify; so that waiting needs no guess.

Invariants: every wait has an end; without inotify (`Watch.works` is false) waits are by time alone and nothing is
claimed about reads.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

_ACCESS, _MODIFY, _CLOSE_WRITE, _OPEN = 0x1, 0x2, 0x8, 0x20
_FLAGS = os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)
_HEAD = struct.Struct("iIII")


class Watch:
    """Counts what happens to some files: `opened`, `read`, `changed` by path. Files must exist; one that is replaced
    must be added again. What this process does counts as well. `written` has the place of each file's last write in the
    order of all events."""

    def __init__(self) -> None:
        self.opened: Counter[str] = Counter()
        self.read: Counter[str] = Counter()
        self.changed: Counter[str] = Counter()
        self.written: dict[str, int] = {}
        self._events = 0
        self._names: dict[int, str] = {}
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = -1
        if hasattr(self._libc, "inotify_init1"):
            self._descriptor = self._libc.inotify_init1(_FLAGS)

    @property
    def works(self) -> bool:
        """This system tells."""
        return self._descriptor >= 0

    def add(self, path: Path) -> None:
        """Watches the file that is there now."""
        if self.works:
            mask = _ACCESS | _MODIFY | _CLOSE_WRITE | _OPEN
            number = self._libc.inotify_add_watch(self._descriptor, os.fsencode(path), mask)
            if number >= 0:
                self._names[number] = str(path)

    def until(self, met: Callable[[], bool], seconds: float) -> bool:
        """Waits until `met`, which is asked again after every event (and every 10 ms), at most `seconds`."""
        deadline = time.monotonic() + seconds
        while True:
            self.catch_up()
            if met():
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            if self.works:
                select.select([self._descriptor], [], [], min(left, 0.01))
            else:
                time.sleep(min(left, 0.002))

    def catch_up(self) -> None:
        """Counts what has happened up to now."""
        while self.works:
            try:
                data = os.read(self._descriptor, 1 << 16)
            except BlockingIOError:
                return
            at = 0
            while at < len(data):
                number, mask, _, length = _HEAD.unpack_from(data, at)
                at += _HEAD.size + length
                name = self._names.get(number, "")
                self.read[name] += bool(mask & _ACCESS)
                self.opened[name] += bool(mask & _OPEN)
                self._events += 1
                if mask & _MODIFY:
                    self.written[name] = self._events
                self.changed[name] += bool(mask & (_MODIFY | _CLOSE_WRITE))

    def close(self) -> None:
        """No more."""
        if self.works:
            os.close(self._descriptor)
            self._descriptor = -1
