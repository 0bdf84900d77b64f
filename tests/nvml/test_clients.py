"""Real, unmodified monitors on the fake NVML: right names, memory and processes, by host PID."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from lab.node.server import NodeServer
from lab.spec.profile import device_uuid, uuid_text

pytestmark = pytest.mark.clients
MIB = 1 << 20
CONTEXT, DATA = 416 * MIB, 3072 * MIB

READ_ALL = """
import json, pynvml
pynvml.nvmlInit()
rows = []
for index in range(pynvml.nvmlDeviceGetCount()):
    device = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = pynvml.nvmlDeviceGetMemoryInfo(device, version=pynvml.nvmlMemory_v2)
    users = pynvml.nvmlDeviceGetComputeRunningProcesses(device)
    rows.append([pynvml.nvmlDeviceGetName(device), pynvml.nvmlDeviceGetUUID(device), memory.total, memory.used,
                 [[user.pid, user.usedGpuMemory] for user in users]])
print(json.dumps([pynvml.nvmlSystemGetDriverVersion(), rows]))
"""


@pytest.fixture
def node(make_node: Callable[..., NodeServer]) -> NodeServer:
    return make_node(gpus=["a100-80g", "rtx4090-24g"], containers=["tenant"])


@pytest.fixture
def tenant(node: NodeServer, join: Callable[..., Any]) -> Any:
    """A process that holds a context and 3 GiB on the first card."""
    guest = join(node, container=0, index=0)
    guest.ask("take", 0, 0, CONTEXT)
    guest.ask("take", 0, 1, DATA)
    guest.ask("context", 0, 1)
    return guest


@pytest.fixture
def client(node: NodeServer, guest_environment: Callable[..., dict[str, str]]) -> Callable[..., str]:
    """The output of a Python program under the fake driver."""

    def run(*arguments: str) -> str:
        environment = guest_environment(**node.environment, TERM="xterm", COLUMNS="120")
        command = [sys.executable, "-P", *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_nvidia_ml_py(tenant: Any, client: Callable[..., str]) -> None:
    driver, rows = json.loads(client("-c", READ_ALL))
    assert driver == "580.159.04"
    assert rows[0] == [
        "NVIDIA A100-SXM4-80GB",
        uuid_text(device_uuid(0, 0)),
        81920 * MIB,
        CONTEXT + DATA,
        [[tenant.pid, CONTEXT + DATA]],
    ]
    assert rows[1] == ["NVIDIA GeForce RTX 4090", uuid_text(device_uuid(0, 1)), 24564 * MIB, 0, []]


def test_nvitop(tenant: Any, client: Callable[..., str]) -> None:
    table = client("-m", "nvitop", "--once", "--no-unicode")
    (line,) = [line for line in table.splitlines() if f" {tenant.pid} C" in line]
    assert "3488MiB" in line
    assert "python" in line  # the command, cut to the width of the table
    for text in ("A100-SXM4-80GB", "GeForce RTX 4090", "3488MiB / 80.00GiB", "580.159.04", "60W / 400W"):
        assert text in table


def test_gpustat(tenant: Any, client: Callable[..., str]) -> None:
    seen = json.loads(client("-m", "gpustat", "--json"))
    first, second = seen["gpus"]
    assert (first["name"], first["memory.used"], first["memory.total"]) == ("NVIDIA A100-SXM4-80GB", 3488, 81920)
    assert [(user["pid"], user["gpu_memory_usage"]) for user in first["processes"]] == [(tenant.pid, 3488)]
    assert (second["memory.used"], second["processes"], second["power.draw"]) == (0, [], 20)


def test_clients_touch_nothing_without_a_body(node: NodeServer, tenant: Any, client: Callable[..., str]) -> None:
    """Everything that these clients call has a body, so that the fake never reports a gap for them."""
    client("-m", "nvitop", "--once", "--no-unicode")
    client("-m", "gpustat", "--json")
    from lab.spec import load_hooks

    hooks = load_hooks()
    called = node.snapshot().calls
    assert len(called) >= 24
    assert {name for name in called if hooks[name].fake != "real"} == set()
