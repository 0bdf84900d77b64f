"""Does a broker keep its contract? Asks any broker behind a socket: golden frames, identity, security, load.

Invariants: a check says valid, invalid or unknown with its reason; unknown is what this machine or this user cannot
show (namespaces forbidden, a directory out of sight), never a pass. Every wait has an end. Host PIDs that answers are
compared with come from fork and from procfs, not from a socket.
"""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import termios
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lab.identity import namespaces
from lab.identity.client import AskError, ask, exchange
from lab.identity.frames import REQUESTS
from lab.identity.protocol import REQUEST_BYTES, RESPONSE_BYTES, ProtocolError, pid_of, request

VALID, INVALID, UNKNOWN = "valid", "invalid", "unknown"
_PATIENCE_S = 5.0
_IDLE_PATIENCE_S = 30.0
_CROWD, _IDLE = 32, 64


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found."""

    check: str
    verdict: str
    reason: str = ""


class _UnknownError(Exception):
    """This machine cannot show it."""


def conform(path: Path) -> Iterator[Finding]:
    """Runs every check against the broker at `path`, one finding each; never raises for what a broker does."""
    for name, check in _checks():
        try:
            problem = check(path)
        except _UnknownError as why:
            yield Finding(name, UNKNOWN, str(why))
        except (AskError, ProtocolError, OSError) as error:
            yield Finding(name, INVALID, str(error))
        else:
            yield Finding(name, INVALID if problem else VALID, problem)


def _checks() -> Iterator[tuple[str, Callable[[Path], str]]]:
    yield "directory: owner, mode, nobody else can replace it", _directory
    yield "socket: type, owner", _socket
    yield "server: the listener belongs to the owner of the socket", _server_user
    yield "identity: the caller's own PID", _own_pid
    for frame in REQUESTS:
        yield f"frame {frame.name}", lambda path, frame=frame: _frame(path, frame.bytes, frame.trusted)  # type: ignore[misc]
    yield "framing: a request that comes byte by byte", _fragments
    yield "framing: bytes of another connection are never used", _leftovers
    yield "framing: one answer a connection", _one_answer
    yield "identity: a child is its own process", _child
    yield f"identity: {_CROWD} callers at once", _crowd
    for kind in namespaces.KINDS:
        yield f"identity: {kind.words}", lambda path, kind=kind: _inside(path, kind)  # type: ignore[misc]
    yield "identity: no PID of a caller that has ended", _dead_caller
    yield "load: an idle connection is ended", _idle
    yield f"load: {_IDLE} idle connections do not keep others waiting", _idle_crowd
    yield "load: garbage is answered with no PID and survived", _garbage


# -- the place --
def _directory(path: Path) -> str:
    from lab.identity.endpoint import directory_problem

    try:
        owner = os.lstat(path).st_uid
    except OSError as error:
        return f"{path}: {error.strerror}"
    if owner not in (0, os.geteuid()):
        return f"{path}: belongs to user {owner}; a broker's socket belongs to root"
    return directory_problem(path.parent, owner=owner)


def _socket(path: Path) -> str:
    seen = os.lstat(path)
    if not stat.S_ISSOCK(seen.st_mode):
        return f"{path}: is no socket"
    return "" if seen.st_uid in (0, os.geteuid()) else f"{path}: belongs to user {seen.st_uid}"


def _server_user(path: Path) -> str:
    with _connect(path) as connection:
        pid, uid = _peer(connection)
    owner = os.lstat(path).st_uid
    if uid != owner:
        return f"the listener (PID {pid}) has user {uid}, the socket {owner}: somebody else answers here"
    return ""


# -- frames --
def _frame(path: Path, frame: bytes, trusted: bool) -> str:
    answer = exchange(path, frame, patience_s=_PATIENCE_S, close_writing=len(frame) < REQUEST_BYTES)
    if trusted:
        return _compare(pid_of(answer), os.getpid(), path)
    try:
        return f"answered with PID {pid_of(answer)}"
    except ProtocolError:
        return "" if len(answer) in (0, RESPONSE_BYTES) else f"answered with {len(answer)} bytes"


def _fragments(path: Path) -> str:
    with _connect(path) as connection:
        for byte in request():
            connection.sendall(bytes([byte]))
            _wait_until_read(connection)
        return _compare(pid_of(_receive(connection)), os.getpid(), path)


def _leftovers(path: Path) -> str:
    """Half a request and the end of the stream; then the other half on a connection of its own."""
    exchange(path, request()[:4], patience_s=_PATIENCE_S, close_writing=True)
    answer = exchange(path, request()[4:], patience_s=_PATIENCE_S, close_writing=True)
    return f"the second half alone was answered with {len(answer)} bytes" if len(answer) else ""


def _one_answer(path: Path) -> str:
    answer = exchange(path, request() * 2, patience_s=_PATIENCE_S)
    return "" if len(answer) == RESPONSE_BYTES else f"two requests on one connection: {len(answer)} bytes came back"


def _garbage(path: Path) -> str:
    with _connect(path) as connection:
        try:
            for _ in range(16):
                connection.sendall(bytes(range(256)) * 16)
        except OSError:
            pass  # closed early: as it should be
        try:
            answer = _receive(connection)
        except ConnectionResetError:
            answer = b""
    try:
        return f"garbage was answered with PID {pid_of(answer)}"
    except ProtocolError:
        return _compare(ask(path, patience_s=_PATIENCE_S), os.getpid(), path)


# -- identity --
def _own_pid(path: Path) -> str:
    answer = ask(path, patience_s=_PATIENCE_S)
    problem = _compare(answer, os.getpid(), path)
    if not problem and not _same_namespace(path):
        raise _UnknownError("the broker's PID namespace cannot be seen from here: no truth to compare with")
    return problem


def _child(path: Path) -> str:
    (said, truth) = namespaces.ask_in(namespaces.SAME, lambda: ask(path, patience_s=_PATIENCE_S))
    return "" if said == truth else f"child {truth} was told {said} (parent {os.getpid()})"


def _crowd(path: Path) -> str:
    pairs = namespaces.ask_at_once(_CROWD, lambda: ask(path, patience_s=_PATIENCE_S))
    wrong = [f"child {truth} was told {said}" for truth, said in pairs if said != truth]
    return "; ".join(wrong[:3])


def _inside(path: Path, kind: namespaces.Kind) -> str:
    try:
        said, truth = namespaces.ask_in(kind, lambda: ask(path, patience_s=_PATIENCE_S))
    except namespaces.Forbidden as why:
        raise _UnknownError(str(why)) from None
    return "" if said == truth else f"host PID {truth} was told {said}"


def _dead_caller(path: Path) -> str:
    """A caller connects, leaves its connection to a child and ends: its number may soon be another process's."""
    pid, answer = namespaces.inherited(path, request(), patience_s=_PATIENCE_S)
    try:
        told = pid_of(answer)
    except ProtocolError:
        return ""
    if not namespaces.has_peer_pidfd():
        raise _UnknownError("this kernel has no SO_PEERPIDFD: a broker cannot tell that a caller has ended")
    return f"PID {told} was answered although process {pid} had ended"


# -- load --
def _idle(path: Path) -> str:
    with _connect(path) as connection:
        connection.settimeout(_IDLE_PATIENCE_S)
        try:
            got = connection.recv(1)
        except TimeoutError:
            return f"still open after {_IDLE_PATIENCE_S:g} s without a byte"
        except ConnectionResetError:
            return ""
    return "" if not got else "was sent something without asking"


def _idle_crowd(path: Path) -> str:
    held = []
    try:
        for _ in range(_IDLE):
            held.append(_connect(path))
        began = time.monotonic()
        problem = _compare(ask(path, patience_s=_PATIENCE_S), os.getpid(), path)
        took = time.monotonic() - began
    finally:
        for connection in held:
            connection.close()
    return problem or (f"answered after {took:.2f} s: clients give up after 0.5 s" if took > 0.5 else "")


# -- helpers --
def _connect(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(_PATIENCE_S)
    try:
        connection.connect(os.fspath(path))
    except OSError:
        connection.close()
        raise
    return connection


def _wait_until_read(connection: socket.socket) -> None:
    """Until the other side took all bytes, so that each is a read of its own; not for long: it may read at the end."""
    deadline = time.monotonic() + 0.05
    while time.monotonic() < deadline:
        left = fcntl.ioctl(connection, termios.TIOCOUTQ, b"\0\0\0\0")
        if not any(left):
            return
        time.sleep(0)


def _receive(connection: socket.socket) -> bytes:
    found = b""
    while len(found) <= RESPONSE_BYTES:
        part = connection.recv(64)
        if not part:
            break
        found += part
    return found


def _peer(connection: socket.socket) -> tuple[int, int]:
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int.from_bytes(raw[:4], "little", signed=True), int.from_bytes(raw[4:8], "little")


def _same_namespace(path: Path) -> bool:
    with _connect(path) as connection:
        pid, _uid = _peer(connection)
    try:
        return os.stat(f"/proc/{pid}/ns/pid").st_ino == os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return False


def _compare(said: int, truth: int, path: Path) -> str:
    """The caller's PID here is the truth only where the broker counts PIDs as we do."""
    if said == truth or not _same_namespace(path):
        return ""
    return f"process {truth} was told {said}"
