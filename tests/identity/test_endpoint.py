"""Where a broker listens: directory rules, stale sockets, access, restarts."""

from __future__ import annotations

import os
import signal
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.identity.client import ask
from lab.identity.endpoint import EndpointError, directory_problem, listen

NOBODY = 65534
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to other users")


def test_made_protected_and_removed(place: Path) -> None:
    before = os.umask(0)
    try:
        made = listen(place / "d" / "s")
    finally:
        os.umask(before)
    seen = os.lstat(place / "d")
    assert stat.S_IMODE(seen.st_mode) == 0o711
    assert stat.S_IMODE(os.lstat(place / "d" / "s").st_mode) == 0o666
    made.close()
    assert os.listdir(place / "d") == ["broker.lock"]


def test_the_group_form(place: Path) -> None:
    made = listen(place / "d" / "s", group=os.getegid())
    seen = os.lstat(place / "d" / "s")
    assert (stat.S_IMODE(seen.st_mode), seen.st_gid) == (0o660, os.getegid())
    made.close()


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o773, 0o1777, 0o2770, 0o702])
def test_a_directory_others_can_write_to_is_refused(place: Path, mode: int) -> None:
    (place / "d").mkdir()
    (place / "d").chmod(mode)
    with pytest.raises(EndpointError, match="lets others write"):
        listen(place / "d" / "s")
    assert os.listdir(place / "d") == []


def test_a_directory_below_one_others_can_rename_in_is_refused(place: Path) -> None:
    (place / "open").mkdir()
    (place / "open").chmod(0o777)
    with pytest.raises(EndpointError, match="lets others replace"):
        listen(place / "open" / "d" / "s")
    (place / "open").chmod(0o1777)
    listen(place / "open" / "d" / "s").close()


@root_only
def test_another_owner_is_refused(place: Path) -> None:
    (place / "d").mkdir(mode=0o711)
    os.chown(place / "d", NOBODY, NOBODY)
    with pytest.raises(EndpointError, match="belongs to user"):
        listen(place / "d" / "s")
    assert "belongs to user" in directory_problem(place / "d")


def test_a_linked_directory_is_refused(place: Path) -> None:
    (place / "real").mkdir(mode=0o711)
    (place / "d").symlink_to("real")
    with pytest.raises(EndpointError, match="symbolic link"):
        listen(place / "d" / "s")


def test_a_stale_socket_is_removed(place: Path) -> None:
    (place / "d").mkdir(mode=0o711)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(place / "d" / "s"))
    before = os.lstat(place / "d" / "s").st_ino
    made = listen(place / "d" / "s")
    assert os.lstat(place / "d" / "s").st_ino != before or made.identity[1] == before
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(str(place / "d" / "s"))
    made.close()


@pytest.mark.parametrize("kind", ["file", "link to a socket", "directory", "fifo"])
def test_what_is_no_socket_is_left_alone(place: Path, kind: str) -> None:
    (place / "d").mkdir(mode=0o711)
    path = place / "d" / "s"
    if kind == "file":
        path.write_text("precious")
    elif kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(place / "other"))
        path.symlink_to(place / "other")
    with pytest.raises(EndpointError, match="is no socket"):
        listen(path)
    assert os.path.lexists(path)


@root_only
def test_a_socket_of_another_user_is_left_alone(place: Path) -> None:
    (place / "d").mkdir(mode=0o711)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(place / "d" / "s"))
    os.chown(place / "d" / "s", NOBODY, NOBODY)
    with pytest.raises(EndpointError, match="a socket of user"):
        listen(place / "d" / "s")
    assert (place / "d" / "s").is_socket()


def test_one_broker_a_directory(place: Path) -> None:
    made = listen(place / "d" / "s")
    with pytest.raises(EndpointError, match="another broker"):
        listen(place / "d" / "s")
    made.close()
    listen(place / "d" / "s").close()


def test_a_socket_that_took_our_place_is_not_removed(place: Path) -> None:
    made = listen(place / "d" / "s")
    (place / "d" / "s").rename(place / "d" / "elsewhere")
    (place / "d" / "s").write_text("not ours")
    made.close()
    assert (place / "d" / "s").read_text() == "not ours"


def test_a_path_that_is_too_long_is_said(place: Path) -> None:
    with pytest.raises(EndpointError, match="at most 107 bytes"):
        listen(place / ("x" * 120))


@root_only
@pytest.mark.parametrize(("options", "served"), [((), True), (("--group", "12345"), False)])
def test_who_may_connect(serve: Callable[..., object], place: Path, options: tuple[str, ...], served: bool) -> None:
    serving = serve(*options)

    def as_user(*groups: int) -> int:
        """What a process of another user is told; 0 for nothing."""
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            told = 0
            try:
                os.setgroups(list(groups))
                os.setgid(NOBODY)
                os.setuid(NOBODY)
                told = int(ask(serving.socket, patience_s=5) == os.getpid())
            finally:
                os.write(writing, b"%d" % told)
                os._exit(0)
        os.waitpid(child, 0)
        told = int(os.read(reading, 8))
        os.close(reading)
        os.close(writing)
        return told

    assert as_user() == served
    assert as_user(12345) == 1


def test_a_killed_broker_is_succeeded(serve: Callable[..., object]) -> None:
    first = serve()
    first.kill()
    assert first.socket.is_socket()
    second = serve()
    assert ask(second.socket, patience_s=5) == os.getpid()
    second.stop()
    assert not second.socket.exists()


def test_ctrl_c_ends_it_cleanly(serve: Callable[..., object]) -> None:
    serving = serve()
    serving.process.send_signal(signal.SIGINT)
    serving.process.communicate(timeout=30)
    assert serving.process.returncode == 0
    assert not serving.socket.exists()
