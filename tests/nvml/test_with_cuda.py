"""Both fake drivers show one card: what CUDA takes in one process, NVML shows in every other, by host PID."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.node.faults import Fault
from lab.node.server import NodeServer

MIB = 1 << 20
TOTAL, RESERVED, CONTEXT, NVML_CONTEXT = 150754820096, 644939776, 552402944, 543162368
V3 = "nvmlDeviceGetComputeRunningProcesses_v3"

pytestmark = pytest.mark.sanitize

Probe = Callable[..., Any]


class Holder:
    """A process that holds what it is told to (see holder.py)."""

    def __init__(self, environment: dict[str, str], *wrapper: str) -> None:
        pipe = subprocess.PIPE
        command = [*wrapper, sys.executable, "-S", str(Path(__file__).with_name("holder.py"))]
        self.process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True, bufsize=1)
        assert self.hear() == 0

    def hear(self) -> Any:
        assert self.process.stdout
        return json.loads(self.process.stdout.readline())

    def ask(self, *words: object) -> Any:
        assert self.process.stdin
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        return self.hear()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def node(make_node: Callable[..., NodeServer]) -> NodeServer:
    return make_node(gpus=["h200-141g"])


@pytest.fixture
def hold(node: NodeServer, guest_environment: Callable[..., dict[str, str]]) -> Iterator[Callable[..., Holder]]:
    """Start holders that end with the test."""
    holders: list[Holder] = []

    def start(*wrapper: str) -> Holder:
        holders.append(Holder(guest_environment(**node.environment), *wrapper))
        return holders[-1]

    yield start
    for holder in holders:
        holder.close()


def listed(probe: Probe, node: NodeServer) -> dict[int, int]:
    """Bytes by PID, as another process sees them."""
    return dict(probe(node, "processes")[V3][4][5])


def test_a_process_is_listed_from_retain_to_release(
    node: NodeServer, hold: Callable[..., Holder], probe: Probe
) -> None:
    holder = hold()
    pid = holder.process.pid
    assert listed(probe, node) == {}
    assert holder.ask("retain") == [0, 0]
    assert listed(probe, node) == {pid: NVML_CONTEXT}
    assert holder.ask("retain") == [0, 0]
    assert holder.ask("release") == 0
    assert listed(probe, node) == {pid: NVML_CONTEXT}, "one retain is left"
    assert holder.ask("release") == 0
    assert listed(probe, node) == {}


def test_cuda_and_nvml_agree(node: NodeServer, hold: Callable[..., Holder], probe: Probe) -> None:
    first, second = hold(), hold()
    assert (first.ask("retain"), second.ask("retain")) == ([0, 0], [0, 0])
    assert first.ask("allocate", 256 * MIB) == 0
    assert second.ask("allocate", 64 * MIB) == 0
    used = 2 * CONTEXT + 320 * MIB
    assert first.ask("info") == second.ask("info") == [0, TOTAL - RESERVED - used, TOTAL - RESERVED]
    memory = probe(node, "memory")
    assert memory["v2 0x2000028"] == [0, False, TOTAL, RESERVED, TOTAL - RESERVED - used, used]
    assert memory["v1"] == [0, TOTAL, TOTAL - RESERVED - used, RESERVED + used]
    assert listed(probe, node) == {
        first.process.pid: NVML_CONTEXT + 256 * MIB,
        second.process.pid: NVML_CONTEXT + 64 * MIB,
    }
    first.close()
    node.wait_live(1)
    assert listed(probe, node) == {second.process.pid: NVML_CONTEXT + 64 * MIB}
    assert second.ask("free") == 0
    assert second.ask("info")[1] == TOTAL - RESERVED - CONTEXT


def test_shared_memory_is_shown_once(node: NodeServer, hold: Callable[..., Holder], probe: Probe) -> None:
    """To its maker while it has it, then to a holder that has it alone, to nobody while several do (assumed)."""
    maker, first, second = hold(), hold(), hold()
    for holder in (maker, first, second):
        assert holder.ask("retain") == [0, 0]
    assert maker.ask("allocate", 64 * MIB) == 0
    result, handle = maker.ask("export")
    assert (result, first.ask("open_block", handle), second.ask("open_block", handle)) == (0, 0, 0)
    pids = [holder.process.pid for holder in (maker, first, second)]

    def shown() -> list[int]:
        rows = listed(probe, node)
        return [(rows[pid] - NVML_CONTEXT) // MIB for pid in pids if pid in rows]

    assert shown() == [64, 0, 0]
    assert maker.ask("free") == 0
    assert shown() == [0, 0, 0]
    assert node.snapshot().used() == 3 * CONTEXT + 64 * MIB
    second.close()
    node.wait_live(2)
    assert shown() == [0, 64]
    maker.close()
    node.wait_for(lambda now: now.used() == CONTEXT + 64 * MIB)
    assert shown() == [64]
    assert first.ask("close_block") == 0
    assert shown() == [0]
    node.wait_live(1)
    assert (node.snapshot().used(), len(node.snapshot().processes)) == (CONTEXT, 1)


def test_two_libraries_one_process(node: NodeServer, hold: Callable[..., Holder]) -> None:
    holder = hold()
    assert holder.ask("nvml") == 0
    (process,) = node.snapshot().processes
    assert process.host_pid == holder.process.pid
    assert int(node.file.processes[process.slot]["connections"]) == 2
    holder.close()
    node.wait_live(0)


def test_one_uuid(node: NodeServer, hold: Callable[..., Holder], probe: Probe) -> None:
    result, raw = hold().ask("uuid")
    assert result == 0
    assert probe(node, "identity")["uuid"][1].removeprefix("GPU-").replace("-", "") == raw


def test_work_shows_as_utilisation(node: NodeServer, hold: Callable[..., Holder], probe: Probe) -> None:
    holder = hold()
    assert holder.ask("retain") == [0, 0]
    assert holder.ask("burn", 300) == 0  # about 8 ms each
    percent = 0
    while percent == 0:  # a sample is visible when its 200 ms are over
        seen = probe(node, "utilisation")
        if seen["many"][0] == 0:
            ((pid, percent, _),) = seen["many"][2]
            assert pid == holder.process.pid
    assert node.snapshot().processes[0].not_executed == 300


def test_samples_can_be_spoilt(node: NodeServer, hold: Callable[..., Holder], probe: Probe) -> None:
    holder = hold()
    assert holder.ask("retain") == [0, 0]
    assert holder.ask("burn", 300) == 0
    while probe(node, "utilisation")["many"][0] != 0:
        pass
    node.plan(Fault(name="nvmlDeviceGetProcessUtilization", action="wrong", mode="from"))
    ((pid, _, _), *_) = probe(node, "utilisation")["many"][2]
    assert pid == holder.process.pid ^ 0xFFFFFFFF


@pytest.mark.parametrize("told", ["host", "visible"])
def test_two_containers_in_pid_namespaces(
    make_node: Callable[..., NodeServer], guest_environment: Callable[..., dict[str, str]], probe: Probe, told: str
) -> None:
    """The host is told four right PIDs and bytes that sum to the physical use; a container all of that, or its own two
    under their PIDs there. Nothing is left after SIGKILL."""
    unshare, nsenter = shutil.which("unshare"), shutil.which("nsenter")
    if not unshare or subprocess.run([unshare, "-Urpf", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine allows no PID namespace")
    assert nsenter
    node = make_node(gpus=["h200-141g"], nvml_pids=told)
    environment = guest_environment(**node.environment)
    holders: list[Holder] = []
    try:
        for container in range(2):
            holders.append(Holder(environment, unshare, "-Urpf"))
            first = node.snapshot().processes[-1].host_pid
            enter = (nsenter, "--user", "--pid", "--preserve-credentials", "--target", str(first))
            holders.append(Holder(environment, *enter))
            for holder in holders[-2:]:
                assert holder.ask("retain") == [0, 0]
                assert holder.ask("allocate", 64 * MIB << container) == 0
        processes = node.snapshot().processes
        assert [process.ns_pid == 1 for process in processes] == [True, False, True, False]
        sizes = [NVML_CONTEXT + (64 * MIB << container) for container in (0, 0, 1, 1)]
        hosts = [process.host_pid for process in processes]
        assert len(set(hosts)) == 4
        assert all(Path(f"/proc/{pid}").is_dir() for pid in hosts)
        assert listed(probe, node) == dict(zip(hosts, sizes, strict=True))
        assert sum(sizes) == node.snapshot().devices[0].used - 4 * (CONTEXT - NVML_CONTEXT)
        for number, holder in enumerate(holders):
            own = number // 2 * 2
            inner = [[processes[i].ns_pid, sizes[i]] for i in (own, own + 1)]
            every = [[pid, size] for pid, size in zip(hosts, sizes, strict=True)]
            assert holder.ask("listed") == [0, every if told == "host" else inner]
        os.kill(hosts[1], signal.SIGKILL)
        os.kill(hosts[2], signal.SIGKILL)  # the first of its namespace: everybody in there ends with it
        node.wait_live(1)
        assert listed(probe, node) == {hosts[0]: sizes[0]}
    finally:
        for holder in holders:
            holder.close()
    for pid in hosts:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    node.wait_live(0)
    assert listed(probe, node) == {}
    assert node.snapshot().devices[0].used == 0
