"""The fake NVML answers as a real one did: codes, counts, strides, what stays untouched.

The figures were taken on one H200 with driver 580.159.04, so the node here is one, too.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab.node.server import NodeServer
from lab.spec.profile import device_uuid, load_profile, uuid_text

UNINITIALIZED, INVALID, NOT_SUPPORTED, NOT_FOUND, SMALL, DRIVER, TIMEOUT, VERSION, LOST = 1, 2, 3, 6, 7, 9, 10, 13, 15
TOTAL, RESERVED, CONTEXT, NVML_CONTEXT = 150754820096, 644939776, 552402944, 543162368
KEPT = 72

pytestmark = pytest.mark.sanitize

Make = Callable[..., NodeServer]
Join = Callable[..., Any]
Probe = Callable[..., Any]


@pytest.fixture
def node(make_node: Make) -> NodeServer:
    return make_node(gpus=["h200-141g"])


@pytest.fixture
def tenant(node: NodeServer, join: Join) -> Any:
    """A process with one context."""
    guest = join(node)
    guest.ask("take", 0, 0, CONTEXT)
    guest.ask("context", 0, 1)
    return guest


def test_nothing_works_before_init(node: NodeServer, probe: Probe) -> None:
    seen = probe(node, "before_init")
    assert seen["count"] == [UNINITIALIZED, 77]
    assert seen["cuda"] == [UNINITIALIZED, 77]
    assert {seen["handle"], seen["driver"], seen["shutdown"]} == {UNINITIALIZED}
    assert node.snapshot().processes == ()


def test_init_is_counted(node: NodeServer, probe: Probe) -> None:
    assert probe(node, "init_counts") == [0, 0, 0, [0, 1], 0, UNINITIALIZED, UNINITIALIZED, 0, 0]


def test_versions(node: NodeServer, probe: Probe) -> None:
    seen = probe(node, "system")
    assert seen["driver"] == [0, "580.159.04"]
    assert seen["nvml"] == [0, "13.580.159.04"]
    assert seen["cuda"] == seen["cuda2"] == [0, 13000]
    assert seen["short"] == [SMALL, "\x07" * 3]
    assert seen["units"] == [0, 0]


def test_handles(make_node: Make, probe: Probe) -> None:
    seen = probe(make_node(gpus=["h200-141g", "t4-16g"]), "handles", CUDA_VISIBLE_DEVICES="1")
    for name in ("nvmlDeviceGetHandleByIndex", "nvmlDeviceGetHandleByIndex_v2"):
        assert seen["by_index"][f"{name} 0"] == [0, False]
        assert seen["by_index"][f"{name} 1"] == [0, False], "CUDA_VISIBLE_DEVICES is not NVML's"
        for index in (2, 100, 0xFFFFFFFF):
            assert seen["by_index"][f"{name} {index}"] == [INVALID, True]
    assert seen["null"] == INVALID
    assert seen["junk"] == seen["wellformed"] == seen["no_bus"] == NOT_FOUND
    assert seen["uuid"] == seen["bus"] == [0, True]
    assert seen["short_bus"] == 0


def test_identity_is_the_profile(make_node: Make, probe: Probe) -> None:
    seen = probe(make_node(gpus=["h200-141g"], seed=7), "identity")
    assert seen["name"] == [0, "NVIDIA H200"]
    uuid = uuid_text(device_uuid(7, 0))
    assert seen["uuid"] == [0, uuid]
    assert len(uuid) == 40
    assert seen["short"] == SMALL
    legacy, full, device_id, subsystem = "0000:01:00.0", "00000000:01:00.0", 0x233510DE, 0x18BE10DE
    untouched = "\xee" * 32
    pci = seen["pci"]
    assert pci["nvmlDeviceGetPciInfo"] == [0, legacy, untouched, device_id, True, 0xEEEEEEEE]
    assert pci["nvmlDeviceGetPciInfo_v2"] == [0, legacy, untouched, device_id, True, subsystem]
    assert pci["nvmlDeviceGetPciInfo_v3"] == [0, legacy, full, device_id, False, subsystem]
    numbers = seen["numbers"]
    assert numbers["nvmlDeviceGetPersistenceMode"] == [0, 1]
    assert numbers["nvmlDeviceGetAccountingMode"] == numbers["nvmlDeviceGetComputeMode"] == [0, 0]
    assert numbers["nvmlDeviceGetArchitecture"] == [0, 9]
    assert numbers["nvmlDeviceGetEnforcedPowerLimit"] == [0, 700_000]
    assert numbers["nvmlDeviceGetPowerUsage"] == [0, 75_000]
    assert numbers["nvmlDeviceGetFanSpeed"] == [NOT_SUPPORTED, 77], "a passive card has no fan"
    assert numbers["nvmlDeviceGetNumGpuCores"] == [0, 132 * 128]
    assert seen["mig"] == [0, 0, 0]
    assert seen["temperature"] == [0, 31]
    assert seen["clock"] == [0, 1980]
    assert seen["unsupported"] == NOT_SUPPORTED


@pytest.mark.parametrize("name", ["t4-16g", "a100-40g", "a100-80g", "h100-80g", "h200-141g", "rtx4090-24g"])
def test_every_profile_is_seen(make_node: Make, probe: Probe, name: str) -> None:
    profile = load_profile(name)
    node = make_node(gpus=[name])
    assert probe(node, "identity")["name"] == [0, profile.name]
    seen = probe(node, "memory")
    assert seen["v2 0x2000028"][2:] == [
        profile.nvml_total_bytes,
        profile.nvml_reserved_bytes,
        profile.cuda_total_bytes,
        0,
    ]


def test_memory_of_an_idle_card(node: NodeServer, probe: Probe) -> None:
    seen = probe(node, "memory")
    assert seen["v1"] == [0, TOTAL, 150109880320, RESERVED], "version 1 counts the reserved bytes as used"
    assert seen["v2 0x2000028"] == [0, False, TOTAL, RESERVED, 150109880320, 0]
    assert seen["null"] == [INVALID, INVALID]


def test_memory_with_a_context(node: NodeServer, tenant: Any, probe: Probe) -> None:
    seen = probe(node, "memory")
    assert seen["v1"] == [0, TOTAL, 149557477376, 1197342720]
    assert seen["v2 0x2000028"] == [0, False, TOTAL, RESERVED, 149557477376, 552402944]
    assert seen["bar1"] == [0, 274877906944, 554172416]


@pytest.mark.report("B120")
def test_a_wrong_version_is_refused_untouched(node: NodeServer, probe: Probe) -> None:
    seen = probe(node, "memory")
    for version in ("0x0", "0x1", "0x1000028", "0x2000020", "0xffffffff"):
        assert seen[f"v2 {version}"][:2] == [VERSION, True]


def test_nobody_is_listed_without_a_context(node: NodeServer, join: Join, probe: Probe) -> None:
    guest = join(node)
    guest.ask("take", 0, 1, 1 << 30)
    for name, rows in probe(node, "processes").items():
        if name.startswith("nvml"):
            assert [row[2:5] for row in rows[:-1]] == [[0, 0, 0]] * 5, name


def test_one_process(node: NodeServer, tenant: Any, probe: Probe) -> None:
    seen = probe(node, "processes")
    for name, stride in (("", 16), ("_v2", 24), ("_v3", 24)):
        rows = seen[f"nvmlDeviceGetComputeRunningProcesses{name}"]
        assert [row[2:5] for row in rows[:2]] == [[SMALL, 1, 0]] * 2
        for row in rows[2:5]:
            assert row[2:6] == [0, 1, stride, [[tenant.pid, NVML_CONTEXT]]]
            assert row[6] == ([0xFFFFFFFF] * 2 if stride == 24 else [])
        assert rows[5][2:5] == [INVALID, 1, 0], "room without a buffer"
    for name in ("Graphics", "MPSCompute"):
        assert [row[2:5] for row in seen[f"nvmlDeviceGet{name}RunningProcesses_v3"][:5]] == [[0, 0, 0]] * 5
    assert seen["null count"] == INVALID
    assert seen["detail"] == [SMALL, 1]


def test_two_processes_and_a_buffer_for_one(node: NodeServer, tenant: Any, join: Join, probe: Probe) -> None:
    other = join(node)
    other.ask("take", 0, 0, CONTEXT)
    other.ask("take", 0, 1, 64 << 20)
    other.ask("context", 0, 1)
    seen = probe(node, "processes")
    for name in ("", "_v2", "_v3"):
        rows = seen[f"nvmlDeviceGetComputeRunningProcesses{name}"]
        assert rows[2][2:5] == [SMALL, 2, 0], "too small a buffer stays untouched"
        assert rows[3][5] == [[tenant.pid, NVML_CONTEXT], [other.pid, NVML_CONTEXT + (64 << 20)]]
    tenant.kill()
    node.wait_live(1)
    rows = probe(node, "processes")["nvmlDeviceGetComputeRunningProcesses_v3"]
    assert rows[4][5] == [[other.pid, NVML_CONTEXT + (64 << 20)]]


def test_process_names(node: NodeServer, tenant: Any, probe: Probe) -> None:
    assert probe(node, "named", tenant.pid)[0] == 0
    assert Path(probe(node, "named", tenant.pid)[1]).name.startswith("python")
    assert probe(node, "named", 1 << 22)[0] == NOT_FOUND


def test_a_forked_child_must_start_again(node: NodeServer, probe: Probe) -> None:
    seen = probe(node, "forked")
    assert seen["child"] == [[UNINITIALIZED, 77], UNINITIALIZED, 0, [0, 1]]
    assert seen["parent"] == [0, 1]


def test_a_garbage_handle_crashes(node: NodeServer, probe: Probe) -> None:
    with pytest.raises(AssertionError, match=rf"bad_handle: ({-signal.SIGSEGV}\n|\d+\n.*DEADLYSIGNAL)"):
        probe(node, "bad_handle")


def test_without_a_node_there_is_no_driver(
    probe: Probe, guest_environment: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    assert probe(None, "alone") == [DRIVER, DRIVER]
    gone = str(tmp_path / "gone.sock")
    command = [sys.executable, "-S", str(Path(__file__).with_name("probe.py")), "alone"]
    environment = guest_environment(HOOKLAB_NODE=gone)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stderr.count("\n") == 1, "one line a process, however often it tries"
    assert gone in done.stderr


def test_a_stopped_server_refuses_newcomers(make_node: Make, probe: Probe) -> None:
    node = make_node()
    node.close()
    assert probe(node, "alone") == [DRIVER, DRIVER]


def test_a_lost_device(node: NodeServer, guest_environment: Callable[..., dict[str, str]]) -> None:
    import json

    command = [sys.executable, "-S", str(Path(__file__).with_name("probe.py")), "lost"]
    pipe = subprocess.PIPE
    environment = guest_environment(**node.environment)
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        node.file.devices[0]["lost"] = 1
        seen = json.loads(process.communicate("go\n", timeout=60)[0])
    assert (seen["create"], seen["register"], seen["bad register"], seen["free"]) == (0, 0, NOT_SUPPORTED, 0)
    assert (seen["quiet"], seen["event"], seen["again"]) == (TIMEOUT, [0, 8, 79], TIMEOUT)
    assert seen["name"] == LOST


def test_errors_of_a_card_are_heard_in_order(
    node: NodeServer, guest_environment: Callable[..., dict[str, str]]
) -> None:
    """By each set from its registration on; of more than eight that nobody waited for, the last eight."""
    import json

    def happen(*codes: int) -> None:
        device = node.file.devices[0]
        for code in codes:
            number = int(device["xid_count"])
            device["xid"][number % 8] = (number + 1) << 32 | code
            device["xid_count"] = number + 1

    happen(45)
    command = [sys.executable, "-S", str(Path(__file__).with_name("probe.py")), "errors"]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, env=guest_environment(**node.environment), stdin=pipe, stdout=pipe, text=True, bufsize=1
    ) as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        happen(31, 13)
        process.stdin.write("go\n")
        assert process.stdout.readline() == "ready\n"
        happen(*range(100, 112))
        seen = json.loads(process.communicate("go\n", timeout=60)[0])
    assert seen == [[31, 13], [], list(range(104, 112)), list(range(104, 112))]


@pytest.mark.report("B125")
@pytest.mark.parametrize(
    ("code", "words"),
    [(0, "Success"), (1, "Uninitialized"), (6, "Not Found"), (7, "Insufficient Size"), (999, "Unknown Error")],
)
def test_error_texts(node: NodeServer, probe: Probe, code: int, words: str) -> None:
    assert probe(None, "error_text", code) == words


def test_a_crowd_is_listed_whole(make_node: Make, probe: Probe) -> None:
    """As many as the node has room for, however many that is: no list of ours ends earlier."""
    node = make_node(gpus=["h200-141g"], process_capacity=1500)
    live = 1
    for slot in range(1, 1500):  # the first is the asking process itself
        record = node.file.processes[slot]
        record["state"], record["host_pid"] = live, 10_000 + slot
        record["device"][0]["context_count"] = 1
    rows = probe(node, "processes")["nvmlDeviceGetComputeRunningProcesses_v3"]
    assert rows[0][2:5] == [SMALL, 1499, 0]
    node.file.processes["state"] = 0
