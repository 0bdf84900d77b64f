"""Nodes and their processes for tests: a process is a real one, driven over its standard input."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

import pytest

from lab.node.server import NodeServer

GUEST = Path(__file__).with_name("guest.py")


class Nest:
    """The program that forks guests (see guest.py)."""

    def __init__(self) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen([sys.executable, str(GUEST)], stdin=theirs)

    def spawn(self, *arguments: object) -> tuple[int, TextIO, TextIO]:
        """A new guest: (pid, its stdin, its stdout)."""
        in_read, in_write = os.pipe()
        out_read, out_write = os.pipe()
        socket.send_fds(self.control, ["\0".join(map(str, arguments)).encode()], [in_read, out_write])
        os.close(in_read)
        os.close(out_write)
        pid = int(self.control.recv(64))
        return pid, open(in_write, "w", buffering=1), open(out_read)

    def close(self) -> None:
        self.control.close()
        self.process.wait()


class GuestProcess:
    """A process attached to a node."""

    def __init__(
        self, nest: Nest, node: NodeServer, *, container: int = -1, index: int = -1, kind: str = "cuda"
    ) -> None:
        self.pid, self.stdin, self.stdout = nest.spawn(node.socket_path, container, index, kind)
        self.refused = 0
        self.heard = b""
        self.read_attached()

    def read_attached(self) -> None:
        words = self.hear().split()
        if words[0] == "refused":
            self.refused = int(words[1])
            return
        assert words[0] == "attached", words
        self.slot, self.generation, self.host_pid, self.memory_bytes, self.descriptors, self.blocks = map(
            int, words[1:]
        )

    def say(self, *words: object) -> None:
        self.stdin.write(" ".join(map(str, words)) + "\n")

    def hear(self) -> str:
        """The next line; a guest that says nothing for a minute fails the test instead of hanging it."""
        while b"\n" not in self.heard:
            ready, _, _ = select.select([self.stdout], [], [], 60)
            assert ready, f"guest {self.pid} says nothing"
            more = os.read(self.stdout.fileno(), 4096)
            if not more:
                return self.heard.decode()
            self.heard += more
        line, _, self.heard = self.heard.partition(b"\n")
        return line.decode().strip()

    def ask(self, *words: object) -> str:
        self.say(*words)
        return self.hear()

    def kill(self) -> None:
        """SIGKILL; the nest reaps it."""
        os.kill(self.pid, signal.SIGKILL)
        self.close()

    def close(self) -> None:
        """End it politely: its input ends; then wait until it closed its output."""
        if not self.stdin.closed:
            self.stdin.close()
            self.stdout.read()
            self.stdout.close()


@pytest.fixture(scope="session")
def nest() -> Iterator[Nest]:
    """Where guests come from."""
    made = Nest()
    yield made
    made.close()


@pytest.fixture(scope="session")
def churn(compile_c: Callable[..., Path], native: Path) -> Path:
    """A library with an endless loop over the accounts."""
    flags = ("-shared", "-fPIC", f"-Wl,-rpath,{native}")
    return compile_c(Path(__file__).with_name("churn.c"), *flags, extra=[native / "libhooklab-region.so"])


@pytest.fixture
def make_node() -> Iterator[Callable[..., NodeServer]]:
    """Start nodes that end with the test."""
    nodes: list[NodeServer] = []

    def make(**options: Any) -> NodeServer:
        node = NodeServer(**options)
        nodes.append(node)
        node.start()
        return node

    yield make
    for node in nodes:
        node.close()


@pytest.fixture
def join(nest: Nest) -> Iterator[Callable[..., GuestProcess]]:
    """Start processes of a node that are gone after the test."""
    guests: list[GuestProcess] = []

    def start(node: NodeServer, **options: Any) -> GuestProcess:
        guest = GuestProcess(nest, node, **options)
        guests.append(guest)
        return guest

    yield start
    for guest in guests:
        if not guest.stdin.closed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(guest.pid, signal.SIGKILL)
            guest.close()


@pytest.fixture(scope="session")
def guest_type() -> type[GuestProcess]:
    """For tests that keep their own processes."""
    return GuestProcess
