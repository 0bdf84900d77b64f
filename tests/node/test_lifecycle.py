"""A process joins a node, holds memory, and is gone: whatever it was doing, nothing of it stays."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lab.node.layout import constants, dtype, open_node_file
from lab.node.server import ADDRESS_FACTOR, NodeError, NodeServer

MIB = 1 << 20
SYNC = 1

Make = Callable[..., NodeServer]
Join = Callable[..., object]


def ask_raw(node: NodeServer, message: bytes) -> int:
    """The errno a message gets as answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(str(node.socket_path))
        connection.send(message)
        return int(np.frombuffer(connection.recv(64), dtype("hl_node_reply"))[0]["status"])


def request(**fields: int) -> bytes:
    record = np.zeros((), dtype("hl_node_request"))
    record["magic"] = constants()["HL_NODE_MAGIC"]
    record["version"] = constants()["HL_NODE_VERSION"]
    record["kind"] = constants()["HL_REQUEST_ATTACH_CUDA"]
    record["container"] = record["index"] = -1
    for name, value in fields.items():
        record[name] = value
    return record.tobytes()


def test_attach_gives_slot_host_pid_and_files(make_node: Make, join: Join) -> None:
    node = make_node(gpus=["a100-80g", "t4-16g"], containers=["tenant"])
    guest = join(node, container=0, index=3)
    assert guest.host_pid == guest.pid
    assert guest.descriptors == 2
    assert guest.memory_bytes == node.memory_bytes == 2 * ADDRESS_FACTOR * 84987740160
    assert guest.blocks == 0, "the memory file must be sparse"
    (process,) = node.snapshot().processes
    assert (process.host_pid, process.container, process.index, process.slot) == (guest.pid, 0, 3, guest.slot)
    assert process.comm


def test_nvml_gets_the_node_file_only(make_node: Make, join: Join) -> None:
    guest = join(make_node(), kind="nvml")
    assert (guest.descriptors, guest.memory_bytes) == (1, 0)


def test_two_connections_of_a_process_are_one_slot(make_node: Make, join: Join) -> None:
    node = make_node()
    guest = join(node)
    guest.ask("take", 0, SYNC, 10 * MIB)
    assert guest.ask("second", "nvml") == "done"
    assert len(node.snapshot().processes) == 1
    guest.ask("drop")
    other = join(node)  # its attach comes after the end of the dropped connection was seen
    assert {process.host_pid for process in node.snapshot().processes} == {guest.pid, other.pid}
    assert node.snapshot().used() == 10 * MIB, "one of two connections closed is no death"
    guest.kill()
    node.wait_live(1)
    assert node.snapshot().used() == 0


def test_a_death_gives_everything_back(make_node: Make, join: Join) -> None:
    node = make_node(gpus=["t4-16g", "t4-16g"], containers=["a", "b"])
    survivor = join(node, container=0)
    survivor.ask("take", 0, SYNC, 5 * MIB)
    victim = join(node, container=1)
    for device in (0, 1):
        for kind in range(8):
            victim.ask("take", device, kind, (kind + 1) * MIB)
    victim.ask("context", 1, 1)
    before = node.snapshot()
    assert (before.used(0), before.used(1)) == (41 * MIB, 36 * MIB)
    assert before.containers[1].used[:2] == (36 * MIB, 36 * MIB)
    victim.kill()
    node.wait_live(1)
    after = node.snapshot()
    assert (after.used(0), after.used(1)) == (5 * MIB, 0)
    assert after.containers[0].used[0] == 5 * MIB
    assert after.containers[1].used[:2] == (0, 0)
    assert after.containers[1].peak[0] == 36 * MIB
    slot = node.file.processes[victim.slot]
    assert not slot["device"]["bytes"].any()
    assert not slot["device"]["context_count"].any()


def test_a_full_card_refuses(make_node: Make, join: Join) -> None:
    node = make_node(gpus=["t4-16g"])
    guest = join(node)
    total = node.snapshot().devices[0].total_bytes
    assert guest.ask("take", 0, SYNC, total) == "took 0"
    assert guest.ask("take", 0, SYNC, 1) == "took -1"
    assert node.snapshot().used() == total


def test_a_torn_change_is_undone(make_node: Make, join: Join) -> None:
    node = make_node(containers=["tenant"])
    survivor = join(node, container=0)
    survivor.ask("take", 0, SYNC, 3 * MIB)
    victim = join(node, container=0)
    victim.ask("take", 0, SYNC, 7 * MIB)
    victim.ask("tear", 0, SYNC, 11 * MIB)
    victim.kill()
    node.wait_live(1)
    snapshot = node.snapshot()
    assert snapshot.used() == snapshot.containers[0].used[0] == 3 * MIB
    assert survivor.ask("take", 0, SYNC, MIB) == "took 0", "the dead holder's lock must be open again"


def test_a_held_lock_never_blocks_the_server(make_node: Make, join: Join) -> None:
    """Of two that die, one holds the lock the other's burial needs: the server must see both deaths."""
    node = make_node(containers=["tenant"])
    holder = join(node, container=0)
    victim = join(node, container=0)
    victim.ask("take", 0, SYNC, 7 * MIB)
    holder.ask("tear", 0, SYNC, 11 * MIB)
    victim.kill()
    node.wait_for(lambda snapshot: any(process.dying for process in snapshot.processes))
    newcomer = join(node, container=0)
    assert node.file.processes[newcomer.slot]["host_pid"] == newcomer.pid
    holder.kill()
    node.wait_live(1)
    assert node.snapshot().used() == node.snapshot().containers[0].used[0] == 0


def test_a_forked_child_has_its_own_slot(make_node: Make, join: Join) -> None:
    node = make_node()
    guest = join(node)
    guest.ask("take", 0, SYNC, 2 * MIB)
    parent = guest.pid
    guest.say("fork")
    guest.read_attached()
    assert guest.host_pid != parent
    assert guest.ask("take", 0, SYNC, 3 * MIB) == "took 0"
    held = {process.host_pid: process.total(0) for process in node.snapshot().processes}
    assert held == {parent: 2 * MIB, guest.host_pid: 3 * MIB}
    os.kill(parent, signal.SIGKILL)
    node.wait_live(1)
    assert node.snapshot().used() == 3 * MIB
    os.kill(guest.host_pid, signal.SIGKILL)
    node.wait_live(0)


def test_exec_starts_over_under_the_same_pid(make_node: Make, join: Join) -> None:
    node = make_node()
    guest = join(node)
    guest.ask("take", 0, SYNC, 2 * MIB)
    guest.say("exec")
    guest.read_attached()
    node.wait_live(1)
    (process,) = node.snapshot().processes
    assert process.host_pid == guest.pid
    assert node.snapshot().used() == 0


def test_slots_are_reused_with_a_new_generation(make_node: Make, join: Join) -> None:
    node = make_node(process_capacity=1)
    first = join(node)
    refused = join(node)
    assert refused.refused == errno.ENOSPC
    first.ask("call", "cuInit")
    first.kill()
    node.wait_live(0)
    assert node.snapshot().calls == {"cuInit": 1}, "an ended process's calls stay counted"
    second = join(node)
    assert (second.slot, first.generation, second.generation) == (first.slot, 1, 2)
    assert node.snapshot().calls == {"cuInit": 1}
    assert not node.file.process_calls[second.slot].any()


def test_memory_comes_back_after_the_modelled_time(make_node: Make, join: Join) -> None:
    node = make_node(latencies={"process_exit": 3_600_000_000_000})
    guest, light = join(node), join(node)
    guest.ask("take", 0, SYNC, 2 * MIB)
    guest.kill()
    light.kill()  # holds nothing: gone at once
    dying = node.wait_for(lambda snapshot: [process.dying for process in snapshot.processes] == [True])
    assert dying.used() == 2 * MIB
    node.close()
    assert node.file.devices[0]["used"] == 0


def test_three_hundred_attach(make_node: Make) -> None:
    node = make_node()
    pipe = subprocess.PIPE
    command = [sys.executable, str(Path(__file__).with_name("guest.py")), "swarm", str(node.socket_path), "300"]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as swarm:
        assert swarm.stdout
        children = sorted(map(int, swarm.stdout.readline().split()))
        node.wait_attached(300)
        processes = node.snapshot().processes
        assert sorted(process.host_pid for process in processes) == children
        assert sorted(process.index for process in processes) == list(range(300))
        swarm.communicate(timeout=60)
    node.wait_live(0)


def test_clients_outlive_the_server(make_node: Make, join: Join) -> None:
    node = make_node()
    guest = join(node)
    node.close()
    assert guest.ask("take", 0, SYNC, MIB) == "took 0"
    assert node.file.devices[0]["used"] == MIB
    assert not node.socket_path.exists()


def test_stopping_gives_bytes_back(make_node: Make, join: Join, tmp_path: Path) -> None:
    node = make_node(directory=tmp_path / "n", containers=["tenant"])
    guest = join(node, container=0)
    guest.ask("take", 0, SYNC, 9 * MIB)
    node.save(tmp_path / "before")
    node.close()
    assert open_node_file(tmp_path / "before").devices[0]["used"] == 9 * MIB
    assert open_node_file(node.path).devices[0]["used"] == 0


@pytest.mark.parametrize(
    ("message", "answer"),
    [
        (request(magic=1), errno.EPROTO),
        (request(version=99), errno.EPROTO),
        (request()[:-1], errno.EPROTO),
        (request() + b"x", errno.EPROTO),
        (request(kind=77), errno.EINVAL),
        (request(container=0), errno.EINVAL),
        (request(container=-2), errno.EINVAL),
        (request(kind=3), 0),  # a ping is no attach
    ],
)
def test_bad_requests_get_an_errno(make_node: Make, message: bytes, answer: int) -> None:
    node = make_node()
    assert ask_raw(node, message) == answer
    assert node.snapshot().processes == ()


def test_a_silent_connection_harms_nobody(make_node: Make, join: Join) -> None:
    node = make_node()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(str(node.socket_path))
        assert join(node).descriptors == 2
    assert join(node).descriptors == 2


def test_errors_are_one_line(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 120)
    with pytest.raises(NodeError, match="longer than 107 bytes; choose a directory with a shorter path"):
        NodeServer(directory=long).start()
    (tmp_path / "node").touch()
    with pytest.raises(NodeError, match="a node file is there already"):
        NodeServer(directory=tmp_path).start()
    with pytest.raises(NodeError, match="17 GPUs and MIG instances: a node has 1 to 16"):
        NodeServer(gpus=["t4-16g"] * 17, directory=tmp_path / "crowd").start()
    with pytest.raises(NodeError, match="latency 'warp' is unknown"):
        NodeServer(latencies={"warp": 1}, directory=tmp_path / "other").start()
