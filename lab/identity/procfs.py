"""The NStgid line of a status text, and the guard that refuses a procfs which cannot know host PIDs.

The same rules as shim/identity/procfs.c, written by themselves; a test holds the two against each other.
"""

from __future__ import annotations

import os
from enum import IntEnum
from pathlib import Path

from lab.identity.endpoint import INITIAL_PID_NAMESPACE
from lab.identity.protocol import PID_MAX

LEVELS = 33
"""The kernel nests 32 deep below the first namespace."""
_FIELD = b"NStgid:"
_KERNEL_THREAD = 0x00200000


class Nstgid(IntEnum):
    """What a status text says; the numbers of the C parser."""

    OK = 0
    NULL = 1
    NO_ROOM = 2
    NO_FIELD = 3
    EMPTY = 4
    NOT_POSITIVE = 5
    OVERFLOW = 6
    JUNK = 7
    TOO_DEEP = 8


class ProcfsError(RuntimeError):
    """Why a procfs gives no host PID; one line."""


def parse(text: bytes | None, room: int = LEVELS) -> tuple[Nstgid, list[int]]:
    """The PIDs of the NStgid line, outermost first; an empty list with anything but OK."""
    if text is None:
        return Nstgid.NULL, []
    if room <= 0:
        return Nstgid.NO_ROOM, []
    *lines, rest = text.split(b"\n")
    found = [line[len(_FIELD) :] for line in lines if line.startswith(_FIELD)]
    if len(found) > 1 or rest.startswith(_FIELD):
        return Nstgid.JUNK, []
    if not found:
        return Nstgid.NO_FIELD, []
    (line,) = found
    if line and line[:1] not in (b"\t", b" "):
        return Nstgid.JUNK, []
    words = line.replace(b"\t", b" ").split(b" ")
    pids: list[int] = []
    for word in words:
        if not word:
            continue
        if len(pids) == room:
            return Nstgid.TOO_DEEP, []
        problem, pid = _number(word)
        if problem:
            return problem, []
        pids.append(pid)
    if not pids:
        return Nstgid.EMPTY, []
    return (Nstgid.JUNK, []) if line[-1:] in (b"\t", b" ") else (Nstgid.OK, pids)


def _number(word: bytes) -> tuple[Nstgid, int]:
    negative = word.startswith(b"-")
    digits = word[1:] if negative else word
    if not digits or any(not 0x30 <= byte <= 0x39 for byte in digits) or (digits[:1] == b"0" and len(digits) > 1):
        return Nstgid.JUNK, 0
    value = PID_MAX + 1 if len(digits) > 10 else int(digits)
    if negative or value == 0:
        return Nstgid.NOT_POSITIVE, 0
    return (Nstgid.OVERFLOW, 0) if value > PID_MAX else (Nstgid.OK, value)


def host_pid(root: Path) -> int:
    """This process's PID in the machine's first PID namespace, from a procfs mounted at `root`.

    ProcfsError where the mount does not show this process, or does not show that it is of the first namespace.
    """
    try:
        text = (root / "self" / "status").read_bytes()
    except OSError as error:
        raise ProcfsError(f"{root}/self/status: {error.strerror}; mount the host's procfs there") from None
    problem, pids = parse(text)
    if problem:
        raise ProcfsError(f"{root}/self/status: NStgid {problem.name.lower().replace('_', ' ')}")
    if pids[-1] != os.getpid():
        raise ProcfsError(f"{root}/self/status: PID {pids[-1]} is not this process, which is {os.getpid()}")
    try:
        at_home = os.stat(root / "self" / "ns" / "pid").st_ino == INITIAL_PID_NAMESPACE
    except OSError:
        at_home = False
    if at_home:
        if len(pids) > 1:
            raise ProcfsError(f"{root}/self/status: NStgid names levels above the machine's first namespace")
        return pids[0]
    threads = shows_kernel_threads(root)
    if threads is False or (threads is None and len(pids) == 1):
        raise ProcfsError(f"{root}: belongs to a private PID namespace; mount the host's procfs there")
    if threads is None:
        raise ProcfsError(f"{root}: does not show process 2, so nothing proves that it is the machine's first")
    if len(pids) == 1:
        raise ProcfsError(f"{root}/self/status: NStgid has one level, and this process lives below the first namespace")
    return pids[0]


def shows_kernel_threads(root: Path) -> bool | None:
    """Whether process 2 is a kernel thread, which it is in the first namespace only; None when it cannot be seen."""
    try:
        fields = (root / "2" / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    try:
        return int(fields[1]) == 0 and bool(int(fields[6]) & _KERNEL_THREAD)
    except (IndexError, ValueError):
        return False
