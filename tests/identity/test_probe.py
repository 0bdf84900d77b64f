"""The experiment: right in crowds over containers, under every form of visibility, on busy devices, after deaths."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.identity.endpoint import namespace_problem
from lab.identity.paths import tiers
from lab.node.faults import Fault
from lab.region import Region
from lab.spec import load_layout

CONSTANTS = load_layout("history").constants
GUEST = Path(__file__).parents[1] / "native" / "shim" / "cuda_guest.py"
TIER = {name: number for number, name in tiers().items()}
pytestmark = pytest.mark.sanitize
START = "init(); say(retain()[0]); say(first())"
NEED = {"HOOKLAB_HOST_PID": "1"}
MEMBER = Path(__file__).parents[1] / "native" / "identity" / "member.c"
first_only = pytest.mark.skipif(bool(namespace_problem()), reason="the outermost PID namespace is out of sight here")


@pytest.fixture(scope="session")
def member(compile_c: Callable[..., Path], native: Path) -> Path:
    libraries = [native / "fake" / "libcuda.so.1", native / "fake" / "libnvidia-ml.so.1"]
    return compile_c(MEMBER, name="member", extra=libraries)


def crowd(identity: object, node: object, member: Path, *, containers: int, each: int, naive: bool) -> list[list[int]]:
    """Lines of `containers` x `each` members, released together; all are alive until the last one has spoken."""
    (gate, open_gate), (stay, end_stay) = os.pipe(), os.pipe()
    made, lines = [], []
    for container in range(containers):
        ours, theirs = (
            f"env LD_PRELOAD={identity.preload} {member}",
            f"{member} naive {identity.folder}/gate-{container}",
        )
        first = container * each
        number = f"HOOKLAB_PROCESS=$(({first} + i))"
        script = (
            f"for i in $(seq 0 {each - 1}); do {number} {theirs if naive else ours} 3<&{gate} 4<&{stay} & done; wait"
        )
        for index in range(first, first + each):
            node.expect(process=index, container=container)
        environment = identity.environment(
            node,
            HOOKLAB_CONTAINER=str(container),
            CUDA_DEVICE_MEMORY_SHARED_CACHE=f"{identity.region}-{container}",
            **NEED,
        )
        command = identity.command(["bash", "-c", script], place="private")
        made.append(
            subprocess.Popen(command, env=environment, pass_fds=[gate, stay], stdout=subprocess.PIPE, text=True)
        )
    for descriptor in (gate, open_gate, stay):
        os.close(descriptor)
    for one in made:
        assert one.stdout is not None
        lines += [list(map(int, one.stdout.readline().split())) for _ in range(each)]
    os.close(end_stay)
    for one in made:
        one.communicate(timeout=60)
        assert one.returncode == 0
    return lines


@pytest.mark.report("B93")
@first_only
def test_four_containers_of_sixteen(identity: object, member: Path) -> None:
    """They all hold their first context before the first of them goes on: the worst moment there is."""
    with identity.start() as node:
        meeting = node.plan(Fault(name="cuDevicePrimaryCtxRetain", action="meet", meet=64, when="after"))
        lines = crowd(identity, node, member, containers=4, each=16, naive=False)
        assert {result for _truth, result in lines} == {0}
        truth = {pid for pid, _result in lines}
        paths = identity.paths()
        assert node.fired(meeting) == 64
    assert len(truth) == 64
    assert {pid for pid, (tier, _index) in paths.host_pids.items() if tier == "probe"} == truth
    assert paths.nvml_success == 64
    assert paths.unknown == 0
    for container in range(4):
        identity.region = identity.region.with_name(f"region-{container}")
        slots = identity.slots()
        assert len(slots) == 16
        assert {tier for _pid, tier in slots} == {TIER["probe"]}


@pytest.mark.report("B93", plants="a lock that other containers do not see")
@first_only
def test_a_gate_for_each_container_is_wrong(identity: object, member: Path) -> None:
    """The planted failure: what the experiment above would say with a lock that other containers do not see."""
    with identity.start() as node:
        node.plan(Fault(name="cuDevicePrimaryCtxRetain", action="meet", meet=4, when="after"))
        lines = crowd(identity, node, member, containers=4, each=16, naive=True)
    wrong = [pair for pair in lines if pair[0] != pair[1]]
    assert wrong
    assert all(guess > 0 for _truth, guess in lines)


@pytest.mark.report("B86")
@pytest.mark.parametrize(
    ("visible", "count"),
    [(None, 2), ("0", 1), ("1", 1), ("1,0", 2), ("0,1", 2), ("uuid:1", 1), ("uuid:1,uuid:0", 2), ("1,-1,0", 1)],
)
def test_every_form_of_visibility(identity: object, visible: str | None, count: int) -> None:
    """The last ordinal that CUDA shows, whichever card that is."""
    with identity.start(gpus=["a100-80g", "a100-80g"]) as node:
        uuids = [device.uuid for device in node.snapshot().devices]
        given = {}
        if visible is not None:
            words = [uuids[int(word[-1])] if word.startswith("uuid") else word for word in visible.split(",")]
            given["CUDA_VISIBLE_DEVICES"] = ",".join(words)
        script = f"init(); say(retain({count - 1})[0]); say(first())"
        result, pid = identity.run(node, script, place="private", **NEED, **given)
    assert result == 0
    assert identity.paths().host_pids == {pid: ("probe", 0)}


def test_nvml_was_initialised_first(identity: object) -> None:
    script = """
N = ctypes.CDLL('libnvidia-ml.so.1')
say(N.nvmlInit_v2())
init(); retain(); say(first())
count = ctypes.c_uint(0)
say(N.nvmlDeviceGetCount_v2(ctypes.byref(count)))
say(N.nvmlShutdown()); say(N.nvmlShutdown())
"""
    with identity.start() as node:
        first, pid, counted, stopped, again = identity.run(node, script, **NEED)
    assert (first, counted, stopped, again) == (0, 0, 0, 1)  # the program's own reference is the only one left
    assert identity.paths().host_pids == {pid: ("probe", 0)}


def test_a_created_context_does_as_well(identity: object) -> None:
    with identity.start() as node:
        _, pid = identity.run(node, "init(); say(create()[0]); say(first())", place="private", **NEED)
        node.wait_live(0)  # its contexts end with it
    assert identity.paths().host_pids == {pid: ("probe", 0)}


@pytest.mark.parametrize("limit", ["", "600m", "513m"])
def test_the_experiment_stays_within_the_limit(identity: object, limit: str) -> None:
    """What it holds is booked first; where nothing fits there is no answer, and no overshoot either."""
    limits = {"CUDA_DEVICE_MEMORY_LIMIT": limit, "HOOKLAB_CONTEXT_BYTES": "512m", "HOOKLAB_REGION_LOCK": "robust"}
    with identity.start() as node:
        result, pid = identity.run(node, START, **NEED, **limits)
        peak = node.snapshot().containers[0].peak[0]
    assert result == 0
    found = identity.paths()
    if limit == "513m":
        assert found.host_pids == {}
        assert found.reasons == {"probe: unconfirmed": 1}
        assert peak <= 513 << 20
    else:
        assert found.host_pids == {pid: ("probe", 0)}
        assert not limit or peak <= 600 << 20


def test_neighbours_that_come_go_and_allocate(identity: object) -> None:
    """A busy device: others make contexts and move blocks of every size that the experiment uses, all the time."""
    churn = """
init(); retain()
import random
print('1', flush=True)
while True:
    pointers = [alloc(random.randrange(1, 33) << 21)[1] for _ in range(4)]
    for pointer in pointers: CUDA.cuMemFree_v2(ctypes.c_uint64(pointer))
    result, context = create()
    CUDA.cuCtxDestroy_v2(context)
"""
    with identity.start() as node, contextlib.ExitStack() as stack:
        for _ in range(3):
            noisy = subprocess.Popen(
                identity.command([sys.executable, "-I", "-S", GUEST, churn]),
                env={key: value for key, value in identity.environment(node).items() if key != "HOOKLAB_HISTORY"},
                stdout=subprocess.PIPE,
            )
            stack.callback(noisy.communicate)
            stack.callback(noisy.kill)
            assert noisy.stdout is not None
            noisy.stdout.readline()
        truth = [identity.run(node, START, place="private", **NEED)[1] for _ in range(8)]
    found = identity.paths()
    assert set(found.host_pids) <= set(truth)  # never a neighbour's
    assert found.nvml_success + found.unknown == 8
    assert found.nvml_success >= 4  # the rest said so, and would be asked again


@pytest.mark.report("B101")
def test_a_dead_owner_of_the_gate(identity: object) -> None:
    """Killed behind the gate by a sequence point: the kernel opens it, the next one passes at once."""
    points = f"{CONSTANTS['HL_POINT_IDENTITY_GATE']}:1:9:0"
    command = [
        "env",
        f"LD_PRELOAD={identity.preload}",
        sys.executable,
        "-I",
        "-S",
        GUEST,
        "def first(): return 0\n" + START,
    ]
    with identity.start() as node:
        done = subprocess.run(
            identity.command(command),
            env=identity.environment(node, HOOKLAB_POINTS=points, **NEED),
            capture_output=True,
            check=False,
        )
        assert done.returncode == -9
        assert identity.paths().host_pids == {}
        _, pid = identity.run(node, START, place="private", **NEED)
    assert identity.paths().host_pids == {pid: ("probe", 0)}


@pytest.mark.parametrize("kind", ["link", "fifo", "directory"])
def test_a_gate_that_is_no_file_stays_closed(identity: object, kind: str) -> None:
    with identity.start() as node:
        uuid = node.snapshot().devices[0].uuid
        gate = identity.locks / f"hooklab-probe-{uuid}.lock"
        if kind == "link":
            gate.symlink_to("/etc/passwd")
        elif kind == "fifo":
            os.mkfifo(gate)
        else:
            gate.mkdir()
        before = Path("/etc/passwd").read_bytes()
        assert identity.run(node, START, **NEED)[0] == 0
    assert identity.paths().reasons == {"probe: gate": 1}
    assert Path("/etc/passwd").read_bytes() == before


def test_no_nvml_no_answer(identity: object) -> None:
    """Every call the experiment makes may fail; each time it says so, and gives everything back."""
    with identity.start() as node:
        node.plan(Fault(name="nvmlInit_v2", action="return", code=9))
        assert identity.run(node, START, **NEED)[0] == 0
    assert identity.paths().reasons == {"probe: no_nvml": 1}


@pytest.mark.report("B86", plants="each call of the experiment fails")
@pytest.mark.parametrize(
    ("name", "code", "reason"),
    [
        ("nvmlDeviceGetHandleByUUID", 6, "no_nvml"),
        ("nvmlDeviceGetComputeRunningProcesses_v3", 999, "no_nvml"),
        ("cuMemAlloc_v2", 2, "unconfirmed"),
        ("cuCtxPushCurrent_v2", 201, "no_context"),
    ],
)
def test_a_call_that_fails(identity: object, name: str, code: int, reason: str) -> None:
    script = (
        "init(); say(retain()[0]); CUDA.cuCtxSetCurrent(None); say(CUDA.cuDevicePrimaryCtxRelease_v2(0)); say(first())"
    )
    with identity.start() as node:
        node.plan(Fault(name=name, action="return", code=code, mode="from"))
        result, released, _pid = identity.run(node, script, **NEED)
        ended = node.snapshot()
    assert (result, released) == (0, 0)
    assert identity.paths().reasons == {f"probe: {reason}": 1}
    assert ended.devices[0].used == 0


@pytest.mark.report("B91", plants="an NVML that names inner PIDs")
@pytest.mark.parametrize("gate", [{}, {"LIBVGPU_HOST_PROCFS": "/proc"}], ids=["experiment", "procfs"])
def test_a_driver_that_translates_its_list(identity: object, gate: dict[str, str]) -> None:
    """As measured on a real one: NVML shows a container's process under its inner PID, never taken for the host's.

    What it is good for, the context's bytes, still comes, whether or not another tier knows the host PID.
    """
    script = START + "\nimport shutil; shutil.copy(os.environ['CUDA_DEVICE_MEMORY_SHARED_CACHE'], os.environ['COPY'])"
    copy = identity.folder / "copy"
    given = {"HOOKLAB_CONTEXT_BYTES": "learn", "COPY": str(copy), **gate}
    with identity.start(nvml_pids="visible") as node:
        result, pid = identity.run(node, script, place="private", **given)
    assert result == 0
    paths = identity.paths()
    if gate:
        assert paths.host_pids == {pid: ("procfs", 0)}
    else:
        assert paths.host_pids == {}
        assert paths.reasons == {"probe: inner_pids": 1}
    with Region.open(copy) as region:
        assert abs(int(region.devices["used"][0]) - (512 << 20)) < 32 << 20
        assert [process.host_pid for process in region.processes()] == [pid if gate else 0]
