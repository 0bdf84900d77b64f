"""The broker: answers each local process with its own PID as this namespace sees it, and with nothing else.

Invariants:
  - The kernel's word on who connected (SO_PEERCRED) is taken before a byte is read; a request can only be valid or not.
  - A PID is answered only while its process lives (SO_PEERPIDFD): a number that the kernel may have given to somebody
    else meanwhile is not.
  - One event loop, no thread, no task a connection. A request that has arrived whole is answered in the same turn of
    the loop; only connections that still owe bytes are kept, at most `handlers` of them, each until a deadline that no
    byte renews. One too many, or a full descriptor table, closes the one that has waited longest: whoever sends its
    eight bytes at once is never the victim, and callers never queue behind each other's silence.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import select
import socket
import struct
import time
from collections import OrderedDict
from pathlib import Path

from lab.identity.counts import Counts
from lab.identity.endpoint import Endpoint, listen
from lab.identity.protocol import REQUEST_BYTES, Status, Verdict, judge, response

_UCRED = struct.Struct("iII")  # pid is signed, uid and gid are not
_SO_PEERPIDFD = getattr(socket, "SO_PEERPIDFD", 77)
_NO_PEERPIDFD = (errno.ENOPROTOOPT, errno.EINVAL, errno.ENODATA)
_BAD = {Verdict.BAD_MAGIC: "magic", Verdict.BAD_VERSION: "version", Verdict.BAD_COMMAND: "command"}
_TURN = 64  # connections taken in one turn of the loop
_SPARE_DESCRIPTORS = 64
_PAUSE_S = 0.005


class _Waiting:
    """A connection that owes bytes."""

    __slots__ = ("connection", "pid", "received", "since")

    def __init__(self, connection: socket.socket, pid: int, since: float) -> None:
        self.connection, self.pid, self.since, self.received = connection, pid, since, b""


class Broker:
    """Serves one socket from the running event loop; ``async with`` starts and stops it."""

    def __init__(
        self,
        path: Path,
        *,
        group: int | None = None,
        handlers: int = 1024,
        deadline_s: float = 0.25,
    ) -> None:
        self.path = path
        self.counts = Counts()
        self.ready = False
        self._group = group
        self._deadline_s = deadline_s
        self._handlers = max(1, min(handlers, _descriptor_room()))
        self._endpoint: Endpoint | None = None
        self._waiting: OrderedDict[int, _Waiting] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None
        self._resume: asyncio.TimerHandle | None = None

    @property
    def handlers(self) -> int:
        """How many connections may wait at the same time."""
        return self._handlers

    async def __aenter__(self) -> Broker:
        self._endpoint = listen(self.path, group=self._group)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._endpoint.listener, self._take)
        self.ready = True
        return self

    async def __aexit__(self, *_: object) -> None:
        """Answers nobody any more; every connection and the socket's path are gone afterwards."""
        assert self._endpoint is not None
        self.ready = False
        self._loop.remove_reader(self._endpoint.listener)
        for timer in (self._timer, self._resume):
            if timer is not None:
                timer.cancel()
        self._timer = self._resume = None
        for waiting in list(self._waiting.values()):
            self._end(waiting)
        self._endpoint.close()
        self._endpoint = None

    def _take(self) -> None:
        assert self._endpoint is not None
        for _ in range(_TURN):
            try:
                connection, _address = self._endpoint.listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    raise
                if not self._make_room():
                    self._pause()
                    return
                continue
            connection.setblocking(False)
            self.counts.accepted += 1
            self._meet(connection)

    def _pause(self) -> None:
        """No descriptor is left and none is ours to close: look again soon, do not spin."""
        assert self._endpoint is not None
        listener = self._endpoint.listener
        self._loop.remove_reader(listener)
        self._resume = self._loop.call_later(_PAUSE_S, self._loop.add_reader, listener, self._take)

    def _meet(self, connection: socket.socket) -> None:
        since = time.monotonic()
        pid = _peer_pid(connection)
        waiting = _Waiting(connection, pid, since)
        if pid <= 0:
            self.counts.credential_failures += 1
            self._close(waiting)
            return
        if self._read(waiting):
            self._close(waiting)
            return
        if len(self._waiting) >= self._handlers:
            self._make_room()
        self._waiting[connection.fileno()] = waiting
        self.counts.active = len(self._waiting)
        self._loop.add_reader(connection, self._more, waiting)
        if self._timer is None:
            self._timer = self._loop.call_later(self._deadline_s, self._expire)

    def _more(self, waiting: _Waiting) -> None:
        if self._read(waiting):
            self._end(waiting)

    def _read(self, waiting: _Waiting) -> bool:
        """True when the connection is done with, one way or another."""
        try:
            part = waiting.connection.recv(REQUEST_BYTES - len(waiting.received))
        except (BlockingIOError, InterruptedError):
            return False
        except ConnectionError:
            part = b""
        if not part:
            self.counts.bad["truncated"] += 1
            return True
        waiting.received += part
        if len(waiting.received) < REQUEST_BYTES:
            return False
        self._answer(waiting)
        return True

    def _answer(self, waiting: _Waiting) -> None:
        verdict = judge(waiting.received)
        if verdict is not Verdict.FINE:
            self.counts.bad[_BAD[verdict]] += 1
            self._send(waiting, response(Status.INVALID))
        elif not _lives(waiting.connection):
            self.counts.credential_failures += 1
        elif self._send(waiting, response(Status.OK, waiting.pid)):
            self.counts.replies += 1

    def _send(self, waiting: _Waiting, frame: bytes) -> bool:
        """Twelve bytes always fit into the buffer of a connection that was sent nothing yet."""
        try:
            if waiting.connection.send(frame, socket.MSG_NOSIGNAL) == len(frame):
                return True
            self.counts.timeouts["write"] += 1
        except BlockingIOError:
            self.counts.timeouts["write"] += 1
        except ConnectionError:
            pass  # the caller did not wait: nobody to answer
        return False

    def _expire(self) -> None:
        now = time.monotonic()
        self._timer = None
        while self._waiting:
            waiting = next(iter(self._waiting.values()))
            left = waiting.since + self._deadline_s - now
            if left > 0:
                self._timer = self._loop.call_later(left, self._expire)
                return
            self.counts.timeouts["read"] += 1
            self._end(waiting)

    def _make_room(self) -> bool:
        """Close the connection that has waited longest; False when none waits."""
        if not self._waiting:
            return False
        self.counts.rejected += 1
        self._end(next(iter(self._waiting.values())))
        return True

    def _end(self, waiting: _Waiting) -> None:
        self._loop.remove_reader(waiting.connection)
        del self._waiting[waiting.connection.fileno()]
        self.counts.active = len(self._waiting)
        self._close(waiting)

    def _close(self, waiting: _Waiting) -> None:
        waiting.connection.close()
        self.counts.took(time.monotonic() - waiting.since)


def _peer_pid(connection: socket.socket) -> int:
    """0 when the kernel names no process that this namespace can see."""
    try:
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    except OSError:
        return 0
    return int(_UCRED.unpack(raw)[0])


def _lives(connection: socket.socket) -> bool:
    """Whether the process that connected still exists; True where the kernel cannot say."""
    try:
        descriptor = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError as error:
        return error.errno in _NO_PEERPIDFD
    try:
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        return not poller.poll(0)
    finally:
        with contextlib.suppress(OSError):
            os.close(descriptor)


def _descriptor_room() -> int:
    """Connections that may wait without using up this process's descriptors; raises the soft limit where it can."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    if soft == resource.RLIM_INFINITY:
        return 65536
    return int(soft) - _SPARE_DESCRIPTORS
