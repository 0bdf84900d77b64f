"""How the five files of the protocol are reached: opened by role, read and written at explicit offsets, in chunks.

Invariants: a file for reading is opened read-only, one for writing write-only; nothing is ever truncated; no open, read
or write waits for another process. What can go wrong is an OSError with its errno. Names are the roles `job`, `in`,
`out`, `done`, `status`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import ParamSpec, Protocol, TypeVar

CHUNK = 1 << 16
"""Bytes a read or write asks for at once."""
READ_ROLES, WRITE_ROLES = ("job", "in", "status"), ("out", "done")
"""What the daemon may read, and what it may write."""
P = ParamSpec("P")
T = TypeVar("T")
DEBUGFS = Path("/sys/kernel/debug/vgsp")


class Handle(Protocol):
    """One open file. Positions are explicit; a short count is a short count, 0 bytes read the end."""

    def pread(self, size: int, position: int) -> bytes:
        """At most `size` bytes."""

    def pwrite(self, data: bytes | memoryview, position: int) -> int:
        """Bytes taken."""

    def close(self) -> None:
        """No more."""


class Files(Protocol):
    """Where the records are: plain files, debugfs, or a module in this process."""

    def open(self, role: str, *, write: bool = False) -> Handle:
        """A handle for reading or for writing."""


class TransferError(OSError):
    """A transfer that ended early, after `moved` bytes."""

    moved: int

    def __init__(self, number: int, moved: int) -> None:
        super().__init__(number, os.strerror(number))
        self.moved = moved


def debugfs_paths(directory: Path = DEBUGFS) -> dict[str, Path]:
    """The module's own files."""
    return {role: directory / f"cuda_bridge_{role}" for role in (*READ_ROLES, *WRITE_ROLES)}


def read(files: Files, role: str, size: int) -> bytes:
    """Up to `size` bytes from offset 0 on; fewer when the file ends."""
    with _opened(files, role, write=False) as handle:
        first = _again(handle.pread, min(size, CHUNK), 0)
        if len(first) in (0, size):
            return first
        found = bytearray(first)
        while len(found) < size:
            part = _again(handle.pread, min(size - len(found), CHUNK), len(found))
            if not part:
                break
            found += part
        return bytes(found)


def write(files: Files, role: str, data: bytes | memoryview) -> int:
    """All of `data` from offset 0 on; returns its length. `TransferError` says how much was taken before it failed."""
    view, moved = memoryview(data), 0
    try:
        with _opened(files, role, write=True) as handle:
            while moved < len(view):
                taken = _again(handle.pwrite, view[moved : moved + CHUNK], moved)
                if taken <= 0:
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
                moved += taken
    except OSError as error:
        raise TransferError(error.errno or errno.EIO, moved) from None
    return moved


@contextlib.contextmanager
def _opened(files: Files, role: str, *, write: bool) -> Iterator[Handle]:
    handle = files.open(role, write=write)
    try:
        yield handle
    finally:
        handle.close()


def _again(call: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """A call that a signal interrupted is made again."""
    while True:
        try:
            return call(*arguments, **named)
        except InterruptedError:
            continue


class PlainFiles:
    """Files by path: plain ones, or a module's debugfs files. An absent file that is to be written is made."""

    def __init__(self, paths: Mapping[str, Path | str]) -> None:
        self.paths = {role: os.fspath(path) for role, path in paths.items()}
        self._held: list[int] = []

    def open(self, role: str, *, write: bool = False) -> Handle:
        """O_NONBLOCK, so that a fifo in a file's place is an error and no wait."""
        flags = os.O_WRONLY | os.O_CREAT if write else os.O_RDONLY
        return _Descriptor(os.open(self.paths[role], flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o644))

    def claim(self) -> None:
        """Locks every file that exists (`out` and `done` are made) until `release` or death: one daemon a file.

        BlockingIOError with the file's name when another one has it; other OSErrors as they come.
        """
        for role in ("job", "in", "out", "done"):
            writes = role in WRITE_ROLES
            try:
                descriptor = os.open(
                    self.paths[role],
                    (os.O_WRONLY | os.O_CREAT if writes else os.O_RDONLY) | os.O_NONBLOCK | os.O_CLOEXEC,
                    0o644,
                )
            except OSError:
                if writes:
                    self.release()
                    raise
                continue
            self._held.append(descriptor)
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                continue  # /dev/null, say, belongs to everybody
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                self.release()
                raise OSError(error.errno, error.strerror, self.paths[role]) from None

    def release(self) -> None:
        """Gives the files back."""
        while self._held:
            os.close(self._held.pop())


class _Descriptor:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def pread(self, size: int, position: int) -> bytes:
        return os.pread(self._descriptor, size, position)

    def pwrite(self, data: bytes | memoryview, position: int) -> int:
        return os.pwrite(self._descriptor, data, position)

    def close(self) -> None:
        os.close(self._descriptor)
