"""A node file that is none, or not of this version, is refused in one line; a good one reads back what was written."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lab.node.layout import NodeFileError, constants, dtype, open_node_file
from lab.node.model import read_snapshot
from lab.node.server import NodeServer

MIB = 1 << 20


@pytest.fixture
def saved(make_node: Callable[..., NodeServer], join: Callable[..., Any], tmp_path: Path) -> Path:
    """The node file of a small node with one process that holds memory."""
    node = make_node(gpus=["t4-16g"], containers=["tenant"], process_capacity=4)
    node.register_container("other", limits=[4 << 30])
    guest = join(node, container=0, index=0)
    guest.ask("take", 0, 0, 104 * MIB)
    guest.ask("take", 0, 1, 20 * MIB)
    guest.ask("context", 0, 1)
    path = tmp_path / "node"
    node.save(path)
    return path


def offset(field: str) -> int:
    fields = dtype("hl_node_header").fields
    assert fields
    return int(fields[field][1])


def patch(path: Path, at: int, raw: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(raw)


def test_a_saved_node_reads_back(saved: Path) -> None:
    snapshot = read_snapshot(open_node_file(saved))
    assert (snapshot.profile, snapshot.driver, snapshot.cuda_version) == ("t4-16g", "580.159.04", 13000)
    (device,) = snapshot.devices
    assert (device.name, device.used) == ("Tesla T4", 124 * MIB)
    assert device.total_bytes == device.nvml_total_bytes - device.nvml_reserved_bytes
    (process,) = snapshot.processes
    assert {kind: size for kind, size in process.bytes[0].items() if size} == {"context": 104 * MIB, "sync": 20 * MIB}
    assert [container.name for container in snapshot.containers] == ["tenant", "other"]
    assert snapshot.containers[1].limit[0] == 4 << 30


def test_a_saved_node_is_small(saved: Path) -> None:
    status = saved.stat()
    assert status.st_blocks * 512 < status.st_size / 4, "holes stay holes"


@pytest.mark.parametrize(
    ("spoil", "cause"),
    [
        (lambda path: path.unlink(), "cannot open node file: No such file or directory"),
        (lambda path: (path.unlink(), path.mkdir()), "is no regular file"),
        (lambda path: os.truncate(path, 0), "truncated: 0 bytes"),
        (lambda path: os.truncate(path, 100), "truncated: 100 bytes"),
        (lambda path: os.truncate(path, path.stat().st_size - 1), "truncated:"),
        (lambda path: os.truncate(path, path.stat().st_size + 4096), "truncated:"),
        (lambda path: path.write_bytes(b"\x7fELF" + bytes(8192)), "is no node file"),
        (lambda path: patch(path, offset("version"), struct.pack("<I", 77)), "has version 77, this hooklab reads 2"),
        (lambda path: patch(path, offset("layout_hash"), b"12345678"), "has layout"),
        (lambda path: patch(path, offset("names_hash"), b"12345678"), "another hook table"),
        (lambda path: patch(path, offset("device_count"), struct.pack("<I", 17)), "contradicts itself"),
        (lambda path: patch(path, offset("process_offset"), struct.pack("<Q", 1 << 40)), "contradicts itself"),
        (lambda path: patch(path, offset("container_count"), struct.pack("<I", 1 << 30)), "contradicts itself"),
    ],
)
def test_a_spoilt_file_is_refused_in_one_line(
    saved: Path, spoil: Callable[[Path], Any], cause: str, hooklab: Callable[..., Any]
) -> None:
    spoil(saved)
    with pytest.raises(NodeFileError) as caught:
        open_node_file(saved)
    text = str(caught.value)
    assert text.startswith(f"{saved}: ")
    assert cause in text
    assert "; give " in text
    assert "\n" not in text


def test_every_header_byte_is_checked_or_harmless(saved: Path) -> None:
    """A file with any one flipped byte in its header is refused or read without an error of another kind."""
    whole = saved.read_bytes()
    refused = 0
    for at in range(320):
        spoilt = bytearray(whole)
        spoilt[at] ^= 0xFF
        saved.write_bytes(spoilt)
        try:
            read_snapshot(open_node_file(saved))
        except NodeFileError:
            refused += 1
    shape = sum(
        np.dtype(dtype("hl_node_header").fields[name][0]).itemsize
        for name in ("magic", "version", "device_count", "size", "layout_hash", "names_hash")
    )
    assert refused >= shape


def test_show_reads_a_run_a_file_and_a_running_node(
    saved: Path, make_node: Callable[..., NodeServer], join: Callable[..., Any], hooklab: Callable[..., Any]
) -> None:
    for path in (saved, saved.parent):
        done = hooklab("node", "show", path)
        assert done.returncode == 0, done.stderr
        for text in ("Tesla T4", "tenant", "124 MiB", "evidence fake-driver", "4,096 MiB"):
            assert text in done.stdout
    node = make_node(gpus=["h200-141g"])
    guest = join(node)
    guest.ask("take", 0, 0, 527 * MIB)
    guest.ask("context", 0, 1)
    done = hooklab("node", "show", "--json", env=node.environment)
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert (shown["schema"], shown["evidence"], shown["running"]) == ("hooklab.node/1", "fake-driver", True)
    assert shown["devices"][0]["used"] == 527 * MIB
    assert [process["host_pid"] for process in shown["processes"]] == [guest.pid]
    assert len(node.snapshot().processes) == 1, "looking is no attaching"


def test_show_refuses_in_one_line(saved: Path, hooklab: Callable[..., Any], tmp_path: Path) -> None:
    os.truncate(saved, 5000)
    for path in (saved, tmp_path / "gone", "/dev/null"):
        done = hooklab("node", "show", path)
        assert done.returncode == 2
        assert done.stdout == ""
        assert done.stderr.startswith(f"hooklab node show: {path}: ")
        assert done.stderr.count("\n") == 1


def test_a_dead_socket_is_named(hooklab: Callable[..., Any], tmp_path: Path) -> None:
    import socket

    place = tmp_path / "dead.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(place))
    done = hooklab("node", "show", place)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f"{place}: no node answers" in done.stderr


def test_kinds_have_their_names() -> None:
    assert constants()["HL_KINDS"] == 8
