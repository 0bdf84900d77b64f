"""The conformance check: ours passes, brokers with a planted flaw do not."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lab.identity.client import ask
from lab.identity.conform import conform
from lab.identity.protocol import Status, response


def peer(connection: socket.socket) -> int:
    return struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]


def read(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = connection.recv(size - len(found))
        if not part:
            return found
        found += part
    return found


OK = Status.OK


def believes_the_caller(connection: socket.socket) -> None:
    frame = connection.recv(64)
    pid = int.from_bytes(frame[8:12], "big") if len(frame) == 12 else peer(connection)
    connection.sendall(response(OK, pid))


def reads_nothing_first(connection: socket.socket) -> None:
    connection.sendall(response(OK, peer(connection)))


def forgets_the_version(connection: socket.socket) -> None:
    frame = read(connection, 8)
    if frame[:4] == b"HPID" and frame[6:] == b"\0\1":
        connection.sendall(response(OK, peer(connection)))


def takes_one_read_for_a_frame(connection: socket.socket) -> None:
    if connection.recv(8) == b"HPID\0\1\0\1":
        connection.sendall(response(OK, peer(connection)))


def answers_its_first_caller(connection: socket.socket, known: list[int] = []) -> None:  # noqa: B006 - the flaw
    known.append(peer(connection))
    if read(connection, 8) == b"HPID\0\1\0\1":
        connection.sendall(response(OK, known[0]))


def keeps_old_bytes(connection: socket.socket, kept: list[bytes] = []) -> None:  # noqa: B006 - the flaw
    kept.append(read(connection, 8))
    frame = b"".join(kept)[-8:]
    if frame == b"HPID\0\1\0\1":
        connection.sendall(response(OK, peer(connection)))


def answers_as_often_as_asked(connection: socket.socket) -> None:
    connection.settimeout(0.3)
    with_frames = True
    while with_frames:
        try:
            with_frames = read(connection, 8) == b"HPID\0\1\0\1"
        except TimeoutError:
            return
        if with_frames:
            connection.sendall(response(OK, peer(connection)))


def cares_not_who_lives(connection: socket.socket) -> None:
    if read(connection, 8) == b"HPID\0\1\0\1":
        connection.sendall(response(OK, peer(connection)))


@contextmanager
def flawed(path: Path, handle: Callable[[socket.socket], None]) -> Iterator[None]:
    """A broker of one thread: that it serves one caller after another is a flaw by itself."""
    path.parent.mkdir(mode=0o711)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(128)
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(0.3)
                try:
                    handle(connection)
                except OSError:
                    continue

    thread = threading.Thread(target=run)
    thread.start()
    yield
    over.set()
    with socket.socket(socket.AF_UNIX) as last:
        last.connect(str(path))
    thread.join()
    listener.close()


@pytest.mark.parametrize(
    ("handle", "check"),
    [
        (believes_the_caller, "frame request-extra"),
        (reads_nothing_first, "frame request-bad-magic"),
        (forgets_the_version, "frame request-bad-version"),
        (takes_one_read_for_a_frame, "framing: a request that comes byte by byte"),
        (answers_its_first_caller, "identity: a child is its own process"),
        (keeps_old_bytes, "framing: bytes of another connection are never used"),
        (answers_as_often_as_asked, "framing: one answer a connection"),
        (cares_not_who_lives, "identity: no PID of a caller that has ended"),
        (cares_not_who_lives, "load: 64 idle connections do not keep others waiting"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_flaw_is_found(place: Path, handle: Callable[[socket.socket], None], check: str) -> None:
    from lab.identity import conform as module
    from lab.identity import namespaces

    if "has ended" in check and not namespaces.has_peer_pidfd():
        pytest.skip("this kernel has no SO_PEERPIDFD")
    path = place / "d" / "s"
    (run,) = [one for name, one in module._checks() if name == check]
    with flawed(path, handle):
        with contextlib.suppress(Exception):
            ask(path, patience_s=2)  # a first caller, for flaws that remember one
        try:
            problem = run(path)
        except Exception as error:
            problem = str(error) or type(error).__name__
    assert problem


def test_an_unsafe_directory_is_found(place: Path) -> None:
    with flawed(place / "d" / "s", cares_not_who_lives):
        (place / "d").chmod(0o777)
        found = next(finding for finding in conform(place / "d" / "s") if finding.check.startswith("directory"))
    assert found.verdict == "invalid"
    assert "lets others write" in found.reason


def test_ours_conforms(serve: Callable[..., object], hooklab: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    serving = serve()
    done = hooklab("broker", "conform", "--socket", serving.socket, "--json", "--allow-unknown")
    findings = json.loads(done.stdout)["findings"]
    assert [finding for finding in findings if finding["verdict"] == "invalid"] == []
    assert done.returncode == 0
    assert serving.stop().endswith(", 0 left")


def test_nobody_there_is_usage(hooklab: Callable[..., subprocess.CompletedProcess[str]], place: Path) -> None:
    done = hooklab("broker", "conform", "--socket", place / "none")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "no broker to test" in done.stderr
