"""A small client of the broker for tools and tests. What programs under test use is the C client (shim/identity)."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from pathlib import Path

from lab.identity.protocol import RESPONSE_BYTES, pid_of, request


class AskError(RuntimeError):
    """No answer; one line."""


def exchange(path: Path, frame: bytes, *, patience_s: float, close_writing: bool = False) -> bytes:
    """Send `frame`, read until the broker closes or said more than a response has; at most `patience_s` altogether.

    AskError when nobody can be reached or the broker neither closes nor completes an answer in time.
    """
    deadline = time.monotonic() + patience_s
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(patience_s)
        try:
            connection.connect(os.fspath(path))
        except OSError as error:
            raise AskError(f"{path}: {error.strerror or error}") from None
        with contextlib.suppress(ConnectionError):  # refused early: what was answered, if anything, is still read
            connection.sendall(frame)
            if close_writing:
                connection.shutdown(socket.SHUT_WR)
        found = b""
        while len(found) <= RESPONSE_BYTES:
            left = deadline - time.monotonic()
            try:
                connection.settimeout(max(left, 0.001))
                part = connection.recv(RESPONSE_BYTES + 1 - len(found)) if left > 0 else None
            except TimeoutError:
                part = None
            except ConnectionResetError:
                part = b""
            if part is None:
                raise AskError(f"{path}: no end of the answer within {patience_s:g} s ({len(found)} bytes came)")
            if not part:
                break
            found += part
        return found


def ask(path: Path, *, patience_s: float = 0.5) -> int:
    """This process's PID as the broker sees it. AskError or ProtocolError when there is no answer to trust."""
    return pid_of(exchange(path, request(), patience_s=patience_s))
