"""NVML's lists of processes in a container: its own, by their PIDs there, whichever numbers the driver uses."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.node.server import NodeServer
from lab.region import Region

_spec = importlib.util.spec_from_file_location("hooklab_nvml_holders", Path(__file__).with_name("test_with_cuda.py"))
assert _spec
assert _spec.loader
_holders = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_holders)
Holder, CONTEXT = _holders.Holder, _holders.NVML_CONTEXT

MIB = 1 << 20
UNKNOWN = (1 << 64) - 1
SMALL, NOT_FOUND = 7, 6

pytestmark = pytest.mark.sanitize
Start = Callable[..., Any]


def _namespaces() -> tuple[str, str] | None:
    unshare, nsenter = shutil.which("unshare"), shutil.which("nsenter")
    if not unshare or subprocess.run([unshare, "-Urpf", "true"], capture_output=True, check=False).returncode:
        return None
    return (unshare, nsenter) if nsenter else None


@pytest.fixture
def start(tmp_path: Path, guest_environment: Callable[..., dict[str, str]], native: Path) -> Iterator[Start]:
    """`start(node, container, *wrapper)`: a holder under the shim with 4 GiB, in the container's region."""
    running: list[Any] = []

    def begin(node: NodeServer, container: str, *wrapper: str, **variables: str) -> Any:
        own = {
            "CUDA_DEVICE_MEMORY_LIMIT": "4g",
            "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(tmp_path / container),
            "HOOKLAB_IDENTITY_PROBE": "0",
            **variables,
        }
        running.append(Holder(guest_environment(native / "libhooklab-preload.so", **node.environment, **own), *wrapper))
        running[-1].region = tmp_path / container
        return running[-1]

    yield begin
    for holder in running:
        holder.close()


@pytest.fixture
def ask(tmp_path: Path, guest_environment: Callable[..., dict[str, str]], native: Path) -> Callable[..., Any]:
    """`ask(node, container, case)`: a case of probe.py in a container, in a process that uses NVML only."""

    def run(node: NodeServer, container: str, case: str, *words: object, **variables: str) -> Any:
        import json

        own = {
            "CUDA_DEVICE_MEMORY_LIMIT": "4g",
            "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(tmp_path / container),
            **variables,
        }
        environment = guest_environment(native / "libhooklab-preload.so", **node.environment, **own)
        command = [sys.executable, "-S", "-P", str(Path(__file__).with_name("probe.py")), case, *map(str, words)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
        assert done.stderr == ""
        return json.loads(done.stdout)

    return run


def hold(holder: Any, mib: int) -> int:
    assert holder.ask("retain") == [0, 0]
    assert holder.ask("allocate", mib * MIB) == 0
    return int(CONTEXT + mib * MIB)


@pytest.mark.report("B69", plants="a neighbour's process on the card")
@pytest.mark.parametrize("layout", ["hooklab-1", "hami-1.2"])
def test_one_namespace(
    make_node: Callable[..., NodeServer], start: Start, ask: Callable[..., Any], layout: str
) -> None:
    """All PIDs are the machine's: those of a region are its container's. Every list keeps the count protocol."""
    kept = {"HOOKLAB_REGION_LAYOUT": layout}
    node = make_node(gpus=["h200-141g"])
    first, second, other = (start(node, name, **kept) for name in ("mine", "mine", "theirs"))
    sizes = [hold(holder, mib) for holder, mib in ((first, 64), (second, 128), (other, 256))]
    mine = [[first.process.pid, sizes[0]], [second.process.pid, sizes[1]]]
    theirs = [[other.process.pid, sizes[2]]]
    assert first.ask("listed") == second.ask("listed") == [0, mine]
    assert other.ask("listed") == [0, theirs]
    seen = ask(node, "mine", "processes", **kept)
    for form, stride in (("", 16), ("_v2", 24), ("_v3", 24)):
        rows = seen[f"nvmlDeviceGetComputeRunningProcesses{form}"]
        assert [row[2:5] for row in rows[:3]] == [[SMALL, 2, 0]] * 3
        assert [row[2:6] for row in rows[3:5]] == [[0, 2, 2 * stride, mine]] * 2
        assert rows[5][2:4] == [2, 2], "room without a buffer is an invalid argument, with the count"
    for form in ("Graphics", "MPSCompute"):
        assert [row[2:5] for row in seen[f"nvmlDeviceGet{form}RunningProcesses_v3"][:5]] == [[0, 0, 0]] * 5
    assert seen["null count"] == 2
    assert seen["detail"] == [SMALL, 2]
    assert [row[:2] for row in ask(node, "mine", "details", **kept)] == mine
    whole = ask(node, "mine", "processes", **kept, HOOKLAB_NVML_PROCESSES="all")
    assert whole["nvmlDeviceGetComputeRunningProcesses_v3"][4][5] == mine + theirs
    assert ask(node, "nobodys", "processes", **kept)["nvmlDeviceGetComputeRunningProcesses_v3"][4][2:5] == [0, 0, 0]
    second.close()
    assert first.ask("listed") == [0, mine[:1]], "the dead have no row"


@pytest.mark.report("B69", plants="numbers of another namespace")
@pytest.mark.report("B71", plants="a process that is in no list")
@pytest.mark.parametrize("told", ["host", "visible"])
def test_private_namespaces(make_node: Callable[..., NodeServer], start: Start, told: str) -> None:
    """Where the driver gives outer PIDs, a process is known once its slot says which is its; until then its figure is
    unknown and no zero. Where it gives inner ones, they are the container's already."""
    tools = _namespaces()
    if not tools:
        pytest.skip("this machine allows no PID namespace")
    node = make_node(gpus=["h200-141g"], nvml_pids=told)
    holders, sizes = [], []
    for container in range(2):
        holders.append(start(node, f"box-{container}", tools[0], "-Urpf"))
        host = str(node.snapshot().processes[-1].host_pid)
        enter = (tools[1], "--user", "--pid", "--preserve-credentials", "--target", host)
        holders.append(start(node, f"box-{container}", *enter))
        sizes += [hold(holder, 64 << container) for holder in holders[-2:]]
    processes = node.snapshot().processes
    for number, holder in enumerate(holders):
        own = number // 2 * 2
        rows = [[processes[i].ns_pid, sizes[i]] for i in (own, own + 1)]
        if told == "host" and number == own:
            assert sorted(holder.ask("listed")[1]) == sorted([pid, UNKNOWN] for pid, _ in rows)
            with Region.open(holder.region, writable=True) as region:
                for slot in region.slots[region.slots["state"] == 1]:
                    (known,) = [p for p in processes[own : own + 2] if p.ns_pid == slot["pid"]]
                    region.slots["host_pid"][region.slots["pid"] == slot["pid"]] = known.host_pid
        assert holder.ask("listed") == [0, rows]
        assert holder.ask("named", processes[own].ns_pid)[0] == 0


@pytest.mark.report("B69", plants="a neighbour that fills the card")
def test_samples_are_the_containers_own(
    make_node: Callable[..., NodeServer], start: Start, ask: Callable[..., Any]
) -> None:
    node = make_node(gpus=["h200-141g"])
    mine, other = start(node, "mine"), start(node, "theirs")

    def seen(container: str, *busy: Any, case: str = "utilisation", **variables: str) -> set[int]:
        """PIDs with a sample, once all who are kept busy meanwhile have one: it is visible when its 200 ms are over."""
        for _ in range(200):
            for holder in busy:
                assert holder.ask("burn", 20) == 0
            told = ask(node, container, case, **variables)
            found = {row[0] for row in (told["many"][2] if case == "utilisation" else told)}
            if {holder.process.pid for holder in busy} <= found:
                return found
        raise AssertionError(f"{container}: no sample of everybody who works, only of {found}")

    for holder in (mine, other):
        assert holder.ask("retain") == [0, 0]
    assert seen("theirs", other) == {other.process.pid}
    asked = ask(node, "mine", "utilisation")
    assert asked["many"][0] == NOT_FOUND, "somebody else was at work"
    assert asked["size"] == asked["one"] == asked["buffer"] == [SMALL, 72, []]
    assert seen("mine", mine) == seen("mine", mine, case="loads") == {mine.process.pid}
    assert seen("mine", mine, other, HOOKLAB_NVML_PROCESSES="all") == {mine.process.pid, other.process.pid}
