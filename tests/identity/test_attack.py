"""A broker under attack: honest callers are answered, memory and descriptors stay bounded, nothing stays."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import select
import socket
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.identity.client import ask
from lab.identity.protocol import ProtocolError, pid_of, request

GROWTH_KIB = 16 << 10  # far below what an unbounded broker would take


def connect(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(10)
    connection.connect(str(path))
    return connection


@contextlib.contextmanager
def many(path: Path, count: int) -> Iterator[list[socket.socket]]:
    """Idle connections; this process gets the descriptors it needs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, count + 512)), hard))
    held: list[socket.socket] = []
    try:
        for _ in range(count):
            held.append(connect(path))
        yield held
    finally:
        for connection in held:
            connection.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def counted(serving: object) -> dict[str, float]:
    with urllib.request.urlopen(serving.metrics, timeout=10) as answer:
        lines = [line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if not line.startswith("#")]
    return {name.removeprefix("hostpid_broker_"): float(value) for name, value in lines}


def settled(serving: object, held: int) -> bool:
    """Whether the broker is back at the descriptors it had; waits for deadlines to pass, not for a fixed time."""
    for _ in range(400):
        if serving.descriptors() <= held:
            return True
        select.select([], [], [], 0.025)
    return False


@pytest.mark.parametrize("count", [600, pytest.param(5000, marks=pytest.mark.full)])
def test_idle_connections(serve: Callable[..., object], count: int) -> None:
    serving = serve("--metrics", "127.0.0.1:0", "--deadline", "2000", "--handlers", "256")
    ask(serving.socket, patience_s=5)
    held, memory = serving.descriptors(), serving.resident_kib()
    with many(serving.socket, count):
        told = [ask(serving.socket) for _ in range(20)]  # at the client's own patience
        most = serving.descriptors()
        figures = counted(serving)
    assert told == [os.getpid()] * 20
    assert most <= held + 256 + 8
    assert figures["handlers_active"] <= 256
    assert figures["handlers_rejected_total"] + figures['timeouts_total{direction="read"}'] >= count - 256
    assert serving.resident_kib() - memory < GROWTH_KIB
    assert settled(serving, held)
    assert counted(serving)["handlers_active"] == 0
    assert serving.stop().endswith(", 0 left")


def test_bytes_one_at_a_time_renew_no_deadline(serve: Callable[..., object]) -> None:
    serving = serve("--metrics", "127.0.0.1:0", "--deadline", "150")
    writer = connect(serving.socket)
    began = time.monotonic()
    sent = 0
    with contextlib.suppress(OSError):
        while time.monotonic() - began < 10 and not select.select([writer], [], [], 0.04)[0]:
            writer.sendall(b"H" if sent < 7 else b"")
            sent += sent < 7
    assert writer.recv(64) == b""  # ended by the broker
    writer.close()
    assert counted(serving)['timeouts_total{direction="read"}'] == 1
    assert ask(serving.socket, patience_s=5) == os.getpid()


def test_many_slow_writers(serve: Callable[..., object]) -> None:
    serving = serve("--handlers", "64")
    held = serving.descriptors()
    with many(serving.socket, 200) as writers:
        for byte in request()[:7]:
            for writer in writers:
                with contextlib.suppress(OSError):
                    writer.send(bytes([byte]))
            assert ask(serving.socket) == os.getpid()
            assert serving.descriptors() <= held + 64 + 8
    assert settled(serving, held)


def test_garbage(serve: Callable[..., object], seed: int) -> None:
    serving = serve("--metrics", "127.0.0.1:0")
    held, sample = serving.descriptors(), random.Random(seed)
    for _ in range(300):
        frame = bytearray(request() + sample.randbytes(sample.randrange(0, 64)))
        for _ in range(sample.randrange(1, 4)):
            frame[sample.randrange(8)] ^= 1 << sample.randrange(8)
        frame = frame[: sample.choice([len(frame), 8, sample.randrange(0, 9)])]
        with connect(serving.socket) as caller:
            with contextlib.suppress(ConnectionError):
                caller.sendall(frame)
                caller.shutdown(socket.SHUT_WR)
            try:
                answer = caller.recv(64)
            except ConnectionError:
                answer = b""
        if bytes(frame[:8]) != request():
            with pytest.raises(ProtocolError):
                pid_of(answer)
    bad = {name: value for name, value in counted(serving).items() if name.startswith("bad_requests")}
    assert len(bad) == 4
    assert all(bad.values())
    assert ask(serving.socket, patience_s=5) == os.getpid()
    assert settled(serving, held)


def test_no_descriptors_left(serve: Callable[..., object]) -> None:
    """Its whole table is smaller than the crowd, and handlers alone would not stop it from filling up."""
    serving = serve("--handlers", "100000", "--deadline", "5000", descriptors=128)
    held = serving.descriptors()
    with many(serving.socket, 400):
        assert [ask(serving.socket) for _ in range(20)] == [os.getpid()] * 20
        assert serving.descriptors() <= 128
    assert settled(serving, held)
    assert serving.stop().endswith(", 0 left")


def test_callers_that_do_not_wait(serve: Callable[..., object]) -> None:
    serving = serve()
    held = serving.descriptors()
    for _ in range(200):
        with connect(serving.socket) as caller:
            caller.sendall(request())
    assert ask(serving.socket, patience_s=5) == os.getpid()
    assert settled(serving, held)


def test_readiness_follows_the_broker(serve: Callable[..., object]) -> None:
    serving = serve("--metrics", "127.0.0.1:0")
    ready = serving.metrics.replace("/metrics", "/ready")
    with urllib.request.urlopen(ready, timeout=10) as answer:
        assert (answer.status, answer.read()) == (200, b"ready\n")
    serving.stop()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(ready, timeout=10)


def test_labels_are_finite(serve: Callable[..., object]) -> None:
    serving = serve("--metrics", "127.0.0.1:0")
    before = set(counted(serving))
    for frame in (b"", b"HPID", b"\xff" * 8, request()[:6] + b"\xff\xff", request()):
        with connect(serving.socket) as caller, contextlib.suppress(ConnectionError):
            caller.sendall(frame)
            caller.shutdown(socket.SHUT_WR)
            caller.recv(64)
    assert set(counted(serving)) == before
    assert sorted(name.split("{")[0] for name in before if "bucket" not in name) == [
        *["bad_requests_total"] * 4,
        "connections_accepted_total",
        "handlers_active",
        "handlers_rejected_total",
        "peer_credential_failures_total",
        "replies_total",
        "request_duration_seconds_count",
        "request_duration_seconds_sum",
        *["timeouts_total"] * 2,
    ]
