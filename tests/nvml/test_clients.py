"""Real, unmodified monitors on the fake NVML: right names, memory and processes, by host PID."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from lab.node.server import NodeServer
from lab.spec.profile import device_uuid, load_profile, node_uuids, uuid_text

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

    def run(*arguments: str, on: NodeServer = node, **variables: str) -> str:
        environment = guest_environment(**on.environment, TERM="xterm", COLUMNS="120", **variables)
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


def test_nvitop_lists_mig_devices(
    make_node: Callable[..., NodeServer], join: Callable[..., Any], client: Callable[..., str]
) -> None:
    cut = make_node(gpus=["a100-40g-mig"])
    guest = join(cut, index=0)
    guest.ask("take", 2, 1, 3072 * MIB)  # row 2: the second MIG device
    guest.ask("context", 2, 1)
    table = client("-m", "nvitop", "--once", "--no-unicode", on=cut)
    for text in (
        "3072MiB / 40.00GiB",
        "Enabled",
        "0:0      3g.20gb @ GI/CI: 2/0 |        0B / 20096MiB",
        "0:1      2g.10gb @ GI/CI: 3/0 |   3072MiB /  9984MiB",
        "0:2       1g.5gb @ GI/CI: 9/0 |        0B /  4864MiB",
    ):
        assert text in table
    (line,) = [line for line in table.splitlines() if f" {guest.pid} C" in line]
    assert "0:1" in line
    assert "3072MiB" in line


READ_MIG = """
import json, pynvml
pynvml.nvmlInit()
card = pynvml.nvmlDeviceGetHandleByIndex(0)
rows = []
for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(card)):
    try:
        device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(card, index)
    except pynvml.NVMLError_NotFound:
        continue
    uuid = pynvml.nvmlDeviceGetUUID(device)
    again = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    attributes = pynvml.nvmlDeviceGetAttributes(device)
    rows.append([uuid, pynvml.nvmlDeviceGetMemoryInfo(again).total, attributes.multiprocessorCount])
print(json.dumps(rows))
"""


def test_nvidia_ml_py_on_a_cut_card(make_node: Callable[..., NodeServer], client: Callable[..., str]) -> None:
    cut = make_node(gpus=["h200-141g-mig"])
    _, *uuids = node_uuids(0, [load_profile("h200-141g-mig")])[0]
    assert json.loads(client("-c", READ_MIG, on=cut)) == [[uuid, 16384 * MIB, 16] for uuid in uuids]


def test_monitors_of_a_card_without_memory_of_its_own(
    make_node: Callable[..., NodeServer], join: Callable[..., Any], client: Callable[..., str]
) -> None:
    """NVML has no figure of the card, but one of each process: what unmodified monitors make of that."""
    node = make_node(gpus=["gb10"])
    guest = join(node, index=0)
    guest.ask("take", 0, 1, 3072 * MIB)
    guest.ask("context", 0, 1)
    (card,) = json.loads(client("-m", "gpustat", "--json", on=node))["gpus"]
    assert (card["name"], card["memory.used"], card["memory.total"]) == ("NVIDIA GB10", None, None)
    assert [(user["pid"], user["gpu_memory_usage"]) for user in card["processes"]] == [(guest.pid, 3072)]
    table = client("-m", "nvitop", "--once", "--no-unicode", on=node)
    (line,) = [line for line in table.splitlines() if f" {guest.pid} C" in line]
    assert "3072MiB" in line
    assert "4W / N/A" in table


BINDINGS = """
import json
from cuda.bindings import driver as d
assert d.cuInit(0)[0] == 0
count = d.cuDeviceGetCount()[1]
device = d.cuDeviceGet(0)[1]
uuid = getattr(d, "cuDeviceGetUuid_v2", d.cuDeviceGetUuid)  # of the device itself; the first version names its card
A = d.CUdevice_attribute
ask = lambda which: d.cuDeviceGetAttribute(which, device)[1]
d.cuDevicePrimaryCtxRetain(device)
context = d.cuDevicePrimaryCtxRetain(device)[1]
d.cuCtxSetCurrent(context)
print(json.dumps([
    count, d.cuDeviceGetName(96, device)[1].split(b"\\0")[0].decode(), uuid(device)[1].bytes.hex(),
    ask(A.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT), ask(A.CU_DEVICE_ATTRIBUTE_INTEGRATED),
    d.cuMemGetInfo()[2], int(d.cuMemAlloc(d.cuMemGetInfo()[1] + 1)[0]),
]))
"""


@pytest.mark.parametrize(
    ("profile", "visible", "expected"),
    [
        ("a100-40g-mig", 3, ["NVIDIA A100-SXM4-40GB MIG 1g.5gb", 14, 0, 4864 * MIB, 2]),
        ("gb10", 0, ["NVIDIA GB10", 48, 1, 130663165952, 2]),
    ],
)
def test_cuda_bindings(
    make_node: Callable[..., NodeServer], client: Callable[..., str], profile: str, visible: int, expected: list[Any]
) -> None:
    node = make_node(gpus=[profile])
    uuid = node_uuids(0, node.profiles)[0][visible]
    name, *numbers = expected
    raw = uuid[4:].replace("-", "")
    seen = json.loads(client("-c", BINDINGS, on=node, CUDA_VISIBLE_DEVICES=uuid))
    assert seen == [1, name, raw, *numbers]
