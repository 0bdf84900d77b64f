"""Processes in namespaces of their own, and what their PIDs are outside: for checks of brokers.

Invariants: the outer PID of a process comes from fork's return value or from /proc/PID/task/PID/children of its parent,
never from a socket. Every child made here dies with its maker, and is waited for. Only forks without threads.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

CLONE_NEWUSER, CLONE_NEWPID = 0x10000000, 0x20000000
_PR_SET_PDEATHSIG = 1
_SO_PEERPIDFD = getattr(socket, "SO_PEERPIDFD", 77)


class Forbidden(RuntimeError):  # noqa: N818 - a fact about the machine, not a fault
    """The kernel makes no such namespace for this user; one line."""


@dataclass(frozen=True, slots=True)
class Kind:
    """How a child is placed: one set of unshare flags for each level below us."""

    words: str
    levels: tuple[int, ...]


SAME = Kind("the namespace of the caller", ())
KINDS = (
    Kind("a private PID namespace", (CLONE_NEWPID,)),
    Kind("two nested PID namespaces", (CLONE_NEWPID, CLONE_NEWPID)),
    Kind("a user and a PID namespace", (CLONE_NEWUSER | CLONE_NEWPID,)),
)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def unshare(flags: int) -> None:
    """unshare(2); in a user namespace of its own the caller stays the user it was. OSError."""
    uid, gid = os.geteuid(), os.getegid()
    if _libc().unshare(flags) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    if flags & CLONE_NEWUSER:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def _die_with_parent() -> None:
    _libc().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _tell(descriptor: int, text: str) -> None:
    os.write(descriptor, text.encode() + b"\n")


def ask_in(kind: Kind, question: Callable[[], int]) -> tuple[int, int]:
    """(what `question` returned in a process placed as `kind`, that process's PID here). Forbidden; RuntimeError."""
    reading, writing = os.pipe()
    hold_reading, hold_writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            os.close(hold_writing)
            _die_with_parent()
            _descend(kind.levels, question, writing, hold_reading)
        finally:
            os._exit(1)
    os.close(writing)
    os.close(hold_reading)
    try:
        with os.fdopen(reading, "rb") as report:
            line = report.readline().decode().strip()
        truth = child
        for _ in kind.levels:
            found = Path(f"/proc/{truth}/task/{truth}/children").read_text().split() if line.isdecimal() else []
            truth = int(found[0]) if found else 0
    finally:
        os.close(hold_writing)
        os.waitpid(child, 0)
    if line.startswith("forbidden "):
        raise Forbidden(line.removeprefix("forbidden "))
    if not line.isdecimal():
        raise OSError(line or "the asking process ended without a word")
    return int(line), truth


def _descend(levels: tuple[int, ...], question: Callable[[], int], report: int, hold: int) -> None:
    """In the child: one level deeper, or ask, tell, and stay until the maker has looked."""
    if levels:
        try:
            unshare(levels[0])
        except OSError as error:
            _tell(report, f"forbidden unshare: {error.strerror}")
            os._exit(0)
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            os._exit(0)
        _die_with_parent()
        _descend(levels[1:], question, report, hold)
    try:
        _tell(report, str(question()))
    except Exception as error:
        _tell(report, str(error) or type(error).__name__)
    os.read(hold, 1)
    os._exit(0)


def ask_at_once(count: int, question: Callable[[], int]) -> list[tuple[int, int]]:
    """(PID, what it was told) of `count` children released together; told 0: it got no answer."""
    reading, writing = os.pipe()
    gate_reading, gate_writing = os.pipe()
    children = []
    for _ in range(count):
        child = os.fork()
        if child == 0:
            told = 0
            try:
                os.close(gate_writing)
                os.read(gate_reading, 1)
                told = question()
            finally:
                _tell(writing, f"{os.getpid()} {told}")
                os._exit(0)
        children.append(child)
    os.close(writing)
    os.close(gate_reading)
    os.close(gate_writing)
    with os.fdopen(reading, "rb") as report:
        lines = [line.split() for line in report.read().decode().splitlines()]
    said = {int(pid): int(told) for pid, told in lines}
    for child in children:
        os.waitpid(child, 0)
    return [(child, said.get(child, 0)) for child in children]


def inherited(path: Path, frame: bytes, *, patience_s: float) -> tuple[int, bytes]:
    """A process connects and ends; this one then sends `frame` on its connection. (the dead one's PID, the answer)."""
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        try:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.connect(os.fspath(path))
            socket.send_fds(theirs, [b"x"], [connection.fileno()])
        finally:
            os._exit(0)
    theirs.close()
    _message, descriptors, _flags, _address = socket.recv_fds(ours, 1, 1)
    os.waitpid(child, 0)
    ours.close()
    if not descriptors:
        raise OSError(f"{path}: the child could not connect")
    with socket.socket(fileno=descriptors[0]) as connection:
        connection.settimeout(patience_s)
        try:
            connection.sendall(frame)
            return child, connection.recv(64)
        except ConnectionError:
            return child, b""


def has_peer_pidfd() -> bool:
    """Whether this kernel hands out a descriptor of the process that connected (Linux 6.5)."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        try:
            os.close(ours.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD))
        except OSError:
            return False
    return True
