"""The place a broker listens at: a protected directory, one broker a directory, a socket that is really ours.

Invariants: whatever is found in the way is looked at without following links and is removed only when it is a socket
of our own user while the directory's lock is ours, that is: when no broker answers there any more. The directory and
what lies above it cannot be replaced by another user. On the way down only our own socket is removed.
"""

from __future__ import annotations

import errno
import fcntl
import grp
import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path

DIRECTORY_MODE = 0o711
PATH_BYTES = 107
INITIAL_PID_NAMESPACE = 0xEFFFFFFC
"""Inode of the machine's first PID namespace, fixed in the kernel."""


class EndpointError(RuntimeError):
    """Why a broker cannot listen; one line."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A bound, listening socket and what must be undone at the end."""

    listener: socket.socket
    path: Path
    lock: int
    identity: tuple[int, int]

    def close(self) -> None:
        """Stop listening and remove the socket if the path still leads to it."""
        try:
            seen = os.lstat(self.path)
            if (seen.st_dev, seen.st_ino) == self.identity:
                os.unlink(self.path)
        except FileNotFoundError:
            pass
        self.listener.close()
        os.close(self.lock)


def namespace_problem() -> str:
    """Why PIDs seen here are not those of the outermost namespace; empty when they are."""
    try:
        inode = os.stat("/proc/self/ns/pid").st_ino
    except OSError as error:
        return f"/proc/self/ns/pid: {error.strerror}"
    return "" if inode == INITIAL_PID_NAMESPACE else f"this is PID namespace {inode}, not the machine's first"


def group_id(name: str) -> int:
    """The number of a group given by name or number; EndpointError for an unknown name."""
    if name.isdecimal():
        return int(name)
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise EndpointError(f"group {name}: there is none; make it, or give its number") from None


def listen(path: Path, *, group: int | None = None, backlog: int = 4096) -> Endpoint:
    """Make the directory safe, take its lock, bind. Open to every local process, or with `group` to that group only."""
    path = Path(os.path.abspath(path))
    if len(os.fsencode(path)) > PATH_BYTES:
        raise EndpointError(f"{path}: a socket's path has at most {PATH_BYTES} bytes; give a shorter one")
    _make(path.parent)
    problem = directory_problem(path.parent)
    if problem:
        raise EndpointError(problem)
    lock = _take_lock(path.parent / "broker.lock")
    try:
        _clear(path)
        listener = _bind(path, group, backlog)
    except BaseException:
        os.close(lock)
        raise
    seen = os.lstat(path)
    return Endpoint(listener, path, lock, (seen.st_dev, seen.st_ino))


def _make(directory: Path) -> None:
    try:
        os.mkdir(directory, 0o700)
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.fchmod(descriptor, DIRECTORY_MODE)  # mkdir's own mode is cut by the umask
        finally:
            os.close(descriptor)
    except FileExistsError:
        pass
    except OSError as error:
        raise EndpointError(
            f"{directory}: cannot be made: {error.strerror}; make the directories above it first"
        ) from None


def directory_problem(directory: Path, *, owner: int | None = None) -> str:
    """Why a directory cannot hold a trusted socket, one line; empty when it can.

    Its owner must be `owner` (default: this user), nobody else may write to it, and no other user may replace it or
    what lies above it.
    """
    owner = os.geteuid() if owner is None else owner
    try:
        seen = os.lstat(directory)
    except OSError as error:
        return f"{directory}: {error.strerror}"
    if not stat.S_ISDIR(seen.st_mode):
        return f"{directory}: a symbolic link or no directory; remove it"
    if seen.st_uid != owner:
        return f"{directory}: belongs to user {seen.st_uid}, not to {owner}; remove it or chown it"
    if seen.st_mode & 0o022:
        return f"{directory}: mode {stat.S_IMODE(seen.st_mode):04o} lets others write; chmod go-w it"
    for above in Path(os.path.realpath(directory)).parents:
        seen = os.lstat(above)
        if seen.st_uid not in (0, owner):
            return f"{above}: belongs to user {seen.st_uid}, who could replace {directory}; use another place"
        if seen.st_mode & 0o022 and not seen.st_mode & stat.S_ISVTX:
            return f"{above}: mode {stat.S_IMODE(seen.st_mode):04o} lets others replace {directory}; chmod +t it"
    return ""


def _take_lock(path: Path) -> int:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise EndpointError(f"{path}: {error.strerror}; remove it") from None
    seen = os.fstat(descriptor)
    problem = ""
    if not stat.S_ISREG(seen.st_mode) or seen.st_uid != os.geteuid():
        problem = f"{path}: not a file of ours; remove it"
    else:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            problem = f"{path.parent}: another broker serves here; stop it first"
    if problem:
        os.close(descriptor)
        raise EndpointError(problem)
    return descriptor


def _clear(path: Path) -> None:
    """Remove what a broker that was killed left behind; the lock says that none is alive."""
    try:
        seen = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(seen.st_mode):
        raise EndpointError(f"{path}: something that is no socket lies there; remove it")
    if seen.st_uid != os.geteuid():
        raise EndpointError(f"{path}: a socket of user {seen.st_uid} lies there; remove it")
    os.unlink(path)


def _bind(path: Path, group: int | None, backlog: int) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    before = os.umask(0o177)  # nobody connects before the mode is set
    try:
        listener.bind(os.fspath(path))
    except OSError as error:
        listener.close()
        why = "was bound by somebody else meanwhile" if error.errno == errno.EADDRINUSE else error.strerror
        raise EndpointError(f"{path}: {why}") from None
    finally:
        os.umask(before)
    try:
        listener.listen(backlog)
        if group is not None:
            os.chown(path, -1, group)
        os.chmod(path, 0o660 if group is not None else 0o666)
    except OSError as error:
        listener.close()
        os.unlink(path)
        raise EndpointError(f"{path}: {error.strerror}") from None
    return listener
