"""The C client against every kind of broker and place: an answer, or a named reason and nothing."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.identity.frames import RESPONSES, Frame
from lab.identity.protocol import ProtocolError, Status, pid_of, request, response
from lab.spec import load_layout

IDENTITY = Path(__file__).parents[2] / "shim" / "identity"
NATIVE = Path(__file__).parents[1] / "native" / "identity"
REASON = {
    name.removeprefix("HL_REASON_"): value
    for name, value in load_layout("history").constants.items()
    if name.startswith("HL_REASON_")
}
NAME = {value: name for name, value in REASON.items() if name != "COUNT"}
NOBODY = 65534
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to other users")


class Client:
    """The client compiled for one directory, whose owner it takes for root; under the sanitizers."""

    def __init__(self, compile_c: Callable[..., Path], folder: Path) -> None:
        self.directory = folder / "hostpid"
        self.socket = self.directory / "broker.sock"
        defines = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
        defines += [f'-DHL_BROKER_DIRECTORY="{self.directory}"', "-DHL_BROKER_OWNER=geteuid()", f"-I{IDENTITY}"]
        sources = [IDENTITY / "broker.c", IDENTITY / "procfs.c"]
        self.program = compile_c(NATIVE / "ask.c", *defines, name="ask-here", extra=sources)

    def ask(self) -> tuple[str, int, int]:
        """(reason, PID told, the asker's PID)."""
        asking = subprocess.Popen([self.program, "broker"], stdout=subprocess.PIPE, text=True)
        out, _ = asking.communicate(timeout=30)
        assert asking.returncode == 0
        reason, told, _ns = map(int, out.split())
        return NAME[reason], told, asking.pid

    def refused(self) -> str:
        """The reason; that no PID came with it is asserted."""
        reason, told, _pid = self.ask()
        assert told == 0
        return reason


@pytest.fixture(scope="session")
def compiled(compile_c: Callable[..., Path]) -> Iterator[Client]:
    folder = Path(tempfile.mkdtemp(prefix="hl-id-"))
    folder.chmod(0o755)
    yield Client(compile_c, folder)
    shutil.rmtree(folder)


@pytest.fixture
def client(compiled: Client) -> Iterator[Client]:
    compiled.directory.mkdir(mode=0o711)
    yield compiled
    if compiled.directory.is_symlink():
        compiled.directory.unlink()
    else:
        shutil.rmtree(compiled.directory)


def peer(connection: socket.socket) -> int:
    return int(struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])


@contextlib.contextmanager
def answering(path: Path, handle: Callable[[socket.socket], None], *, backlog: int = 16) -> Iterator[None]:
    """A broker of the test's own; `handle` gets each connection until the test is over."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(backlog)
    over = threading.Event()

    def run() -> None:
        while True:
            connection, _ = listener.accept()
            with connection:
                if over.is_set():
                    return
                with contextlib.suppress(OSError):
                    handle(connection)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        with socket.socket(socket.AF_UNIX) as last:
            last.connect(str(path))
        thread.join()
        listener.close()


def saying(frame: bytes) -> Callable[[socket.socket], None]:
    def handle(connection: socket.socket) -> None:
        assert connection.recv(8, socket.MSG_WAITALL) == request()
        connection.sendall(frame)

    return handle


# -- answers --
def test_ours(client: Client, serve: Callable[..., object]) -> None:
    serve(socket=client.socket)
    reason, told, pid = client.ask()
    assert (reason, told) == ("ANSWERED", pid)


EXPECTED = {
    "response-8011": "ANSWERED",
    "response-extra": "ANSWERED",
    "response-invalid": "STATUS",
    "response-pid-zero": "BAD_PID",
    "response-pid-huge": "BAD_PID",
    "response-status-with-pid": "STATUS",
    "response-bad-magic": "FRAME",
    "response-bad-version": "FRAME",
    "response-truncated": "CLOSED",
}


@pytest.mark.parametrize("frame", RESPONSES, ids=lambda frame: frame.name)
def test_golden_responses(client: Client, frame: Frame) -> None:
    with answering(client.socket, saying(frame.bytes)):
        reason, told, _pid = client.ask()
    assert (reason, told) == (EXPECTED[frame.name], 8011 if frame.trusted else 0)


def test_a_partial_answer_and_the_end_reuse_nothing(client: Client) -> None:
    """After a good answer one that is cut: the first one's PID does not come again."""
    frames = [response(Status.OK, 8011), response(Status.OK, 8011)[:8], b""]

    def handle(connection: socket.socket) -> None:
        connection.recv(8, socket.MSG_WAITALL)
        connection.sendall(frames.pop(0))

    with answering(client.socket, handle):
        out = subprocess.run([client.program, "series", "3"], capture_output=True, text=True, check=True).stdout
    assert [line.split()[:2] for line in out.splitlines()] == [
        [str(REASON["ANSWERED"]), "8011"],
        [str(REASON["CLOSED"]), "0"],
        [str(REASON["CLOSED"]), "0"],
    ]


def test_an_answer_in_pieces(client: Client) -> None:
    def handle(connection: socket.socket) -> None:
        connection.recv(8, socket.MSG_WAITALL)
        for byte in response(Status.OK, 8011):
            connection.sendall(bytes([byte]))

    with answering(client.socket, handle):
        assert client.ask()[:2] == ("ANSWERED", 8011)


@given(frame=st.binary(max_size=24))
def test_no_bytes_give_a_wrong_pid(compiled: Client, frame: bytes) -> None:
    """Python's rules and the C client's are the same for any answer."""
    try:
        expected = pid_of(frame[:12])
    except ProtocolError:
        expected = 0
    compiled.directory.mkdir(mode=0o711)
    try:
        with answering(compiled.socket, saying(frame)):
            assert compiled.ask()[1] == expected
    finally:
        shutil.rmtree(compiled.directory)


# -- no answer --
def test_nothing_there(client: Client) -> None:
    assert client.refused() == "NO_SOCKET"
    client.directory.rmdir()
    assert client.refused() == "NO_DIRECTORY"
    client.directory.mkdir()


def test_nobody_listens(client: Client) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(client.socket))
        assert client.refused() == "REFUSED"


def test_a_broker_that_says_nothing(client: Client) -> None:
    over = threading.Event()
    with answering(client.socket, lambda _: over.wait(30) and None):
        assert client.refused() == "TIMEOUT"
        over.set()


def test_trickled_bytes_renew_no_deadline(client: Client) -> None:
    over = threading.Event()

    def trickle(connection: socket.socket) -> None:
        connection.recv(8, socket.MSG_WAITALL)
        for byte in response(Status.OK, 8011):
            if over.wait(0.2):
                return
            connection.sendall(bytes([byte]))

    with answering(client.socket, trickle):
        assert client.refused() == "TIMEOUT"
        over.set()


def test_a_full_queue_ends_too(client: Client) -> None:
    """A stream socket refuses a caller that does not block as soon as its queue is full; the client waits, not long."""
    with socket.socket(socket.AF_UNIX) as listener, contextlib.ExitStack() as held:
        listener.bind(str(client.socket))
        listener.listen(0)
        for _ in range(8):
            one = held.enter_context(socket.socket(socket.AF_UNIX))
            one.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                one.connect(str(client.socket))
        assert client.refused() == "CONNECT_TIMEOUT"


def test_a_full_queue_that_moves_again_is_waited_for(client: Client) -> None:
    with socket.socket(socket.AF_UNIX) as listener, contextlib.ExitStack() as held:
        listener.bind(str(client.socket))
        listener.listen(0)
        one = held.enter_context(socket.socket(socket.AF_UNIX))
        one.connect(str(client.socket))
        asking = subprocess.Popen([client.program, "broker"], stdout=subprocess.PIPE, text=True)
        while "unix_wait_for_peer" not in (Path(f"/proc/{asking.pid}/wchan").read_text()) and asking.poll() is None:
            threading.Event().wait(0.005)
            if Path(f"/proc/{asking.pid}/wchan").read_text() in ("0", ""):
                break  # a kernel that does not say what is waited for
        listener.accept()[0].close()
        connection, _ = listener.accept()
        with connection:
            saying(response(Status.OK, peer(connection)))(connection)
            out, _ = asking.communicate(timeout=30)
    assert out.split()[:2] == [str(REASON["ANSWERED"]), str(asking.pid)]


def test_closed_without_reading(client: Client) -> None:
    with answering(client.socket, lambda _: None):
        assert client.refused() == "CLOSED"


def test_no_signal_is_raised(client: Client) -> None:
    out = subprocess.run([client.program, "signal"], capture_output=True, text=True, check=True).stdout
    assert out.split() == [str(REASON["CLOSED"]), "0"]


# -- places --
@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777, 0o731])
def test_a_directory_others_can_write_to_gives_no_pid(client: Client, serve: Callable[..., object], mode: int) -> None:
    serve(socket=client.socket)
    client.directory.chmod(mode)
    expected = "DIRECTORY_MODE" if mode & 0o022 else "ANSWERED"
    assert client.refused() == expected
    client.directory.chmod(0o711)
    assert client.ask()[0] == "ANSWERED"


def test_a_linked_directory_gives_no_pid(client: Client, serve: Callable[..., object], place: Path) -> None:
    serve()
    client.directory.rmdir()
    client.directory.symlink_to(place / "hostpid")
    assert client.refused() == "DIRECTORY_TYPE"


def test_a_linked_socket_gives_no_pid(client: Client, serve: Callable[..., object], place: Path) -> None:
    serving = serve()
    client.socket.symlink_to(serving.socket)
    assert client.refused() == "SOCKET_TYPE"


def test_a_file_is_no_socket(client: Client) -> None:
    client.socket.write_bytes(response(Status.OK, 8011))
    assert client.refused() == "SOCKET_TYPE"
    client.socket.unlink()
    os.mkfifo(client.socket)
    assert client.refused() == "SOCKET_TYPE"


@root_only
def test_foreign_owners_give_no_pid(client: Client, serve: Callable[..., object]) -> None:
    serve(socket=client.socket)
    os.chown(client.socket, NOBODY, NOBODY)
    assert client.refused() == "SOCKET_OWNER"
    os.chown(client.socket, 0, 0)
    os.chown(client.directory, NOBODY, NOBODY)
    assert client.refused() == "DIRECTORY_OWNER"
    os.chown(client.directory, 0, 0)
    assert client.ask()[0] == "ANSWERED"


@root_only
def test_a_listener_of_another_user_gives_no_pid(client: Client) -> None:
    """Everything on the file system is root's, and yet somebody else took the socket's place while we looked."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            client.directory.chmod(0o777)
            os.setuid(NOBODY)
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(str(client.socket))
            listener.listen(4)
            os.write(writing, b"x")
            saying(response(Status.OK, 1))(listener.accept()[0])
        finally:
            os._exit(0)
    os.read(reading, 1)
    os.chown(client.socket, 0, 0)
    client.directory.chmod(0o711)
    try:
        assert client.refused() == "PEER_USER"
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        os.close(reading)
        os.close(writing)


@pytest.mark.report("B95")
def test_children_of_fork_ask_for_themselves(client: Client, serve: Callable[..., object]) -> None:
    serve(socket=client.socket)
    out = subprocess.run([client.program, "forked"], capture_output=True, text=True, check=True).stdout
    rows = [line.split()[:3] for line in out.splitlines()]
    assert [row[0] for row in rows] == [row[2] for row in rows]
    assert rows[0][0] != rows[1][0]


def test_restarts_during_a_burst(client: Client, serve: Callable[..., object]) -> None:
    """Killed and started again while four ask as fast as they can: right answers or named failures."""
    serving = serve(socket=client.socket)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    asking = [subprocess.Popen([client.program, "until"], text=True, **pipes) for _ in range(4)]
    for _ in range(3):
        assert client.ask()[0] == "ANSWERED"
        serving.kill()
        serving = serve(socket=client.socket)
    assert client.ask()[0] == "ANSWERED"
    seen: set[str] = set()
    for one in asking:
        out, _ = one.communicate(timeout=60)
        for reason, times, wrong in (map(int, line.split()) for line in out.splitlines()):
            assert (wrong, times > 0) == (0, True)
            seen.add(NAME[reason])
    assert seen <= {
        "ANSWERED",
        "NO_SOCKET",
        "REFUSED",
        "CLOSED",
        "TIMEOUT",
        "CONNECT_TIMEOUT",
        "SOCKET_OWNER",
        "DENIED",
    }
    assert {"ANSWERED", "REFUSED"} <= seen
