"""The broker's wire protocol: a request of 8 bytes, a response of 12, everything big-endian.

    request   0..3 "HPID"   4..5 version   6..7 command
    response  0..3 "HPID"   4..5 version   6..7 status   8..11 PID

Invariants: a request carries no PID, so nobody can ask about anybody else; a response carries a PID exactly when its
status is OK. One request a connection: what follows the eighth byte is never read.
"""

from __future__ import annotations

import struct
from enum import IntEnum

MAGIC = b"HPID"
VERSION = 1
GET_PID = 1
PID_MAX = 0x7FFFFFFF

_REQUEST = struct.Struct(">4sHH")
_RESPONSE = struct.Struct(">4sHHI")
REQUEST_BYTES = _REQUEST.size
RESPONSE_BYTES = _RESPONSE.size

DIRECTORY = "/tmp/vgpulock/hostpid"
"""Where a container sees the broker's directory; compiled into the client, the only place where it looks."""
SOCKET = f"{DIRECTORY}/broker.sock"


class Status(IntEnum):
    """What a response says. A refusal comes with PID 0; a caller that the kernel does not name gets no response."""

    OK = 0
    INVALID = 1


class Verdict(IntEnum):
    """What is wrong with a request; the response says INVALID for all of them, the metrics say which."""

    FINE = 0
    BAD_MAGIC = 1
    BAD_VERSION = 2
    BAD_COMMAND = 3


class ProtocolError(ValueError):
    """A response that must not be trusted; one line."""


def request(*, magic: bytes = MAGIC, version: int = VERSION, command: int = GET_PID) -> bytes:
    """The 8 bytes of a request; wrong values are for tests of brokers."""
    return _REQUEST.pack(magic, version, command)


def judge(frame: bytes) -> Verdict:
    """Whether a whole request of 8 bytes is one."""
    magic, version, command = _REQUEST.unpack(frame)
    if magic != MAGIC:
        return Verdict.BAD_MAGIC
    if version != VERSION:
        return Verdict.BAD_VERSION
    return Verdict.FINE if command == GET_PID else Verdict.BAD_COMMAND


def response(status: Status, pid: int = 0) -> bytes:
    """The 12 bytes of a response. ValueError where a PID does not fit the status."""
    if (status is Status.OK) != (0 < pid <= PID_MAX):
        raise ValueError(f"status {status.name} does not go with PID {pid}")
    return _RESPONSE.pack(MAGIC, VERSION, status, pid)


def pid_of(frame: bytes) -> int:
    """The PID in a response; ProtocolError for anything that is not a whole, successful answer."""
    if len(frame) != RESPONSE_BYTES:
        raise ProtocolError(f"{len(frame)} bytes instead of {RESPONSE_BYTES}")
    magic, version, status, pid = _RESPONSE.unpack(frame)
    if magic != MAGIC or version != VERSION:
        raise ProtocolError(f"magic {magic!r} version {version}, not {MAGIC!r} version {VERSION}")
    if status != Status.OK:
        raise ProtocolError(f"status {status}")
    if not 0 < pid <= PID_MAX:
        raise ProtocolError(f"status OK with PID {pid}")
    return int(pid)
