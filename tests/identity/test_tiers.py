"""The tiers inside real guests: who answers, what a wrong place is told, what is written down."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from lab.identity.paths import tiers
from lab.region import Region

TIER = {name: number for number, name in tiers().items()}
pytestmark = pytest.mark.sanitize
START = "init(); say(retain()[0]); say(first())"


@pytest.mark.parametrize("inside", ["host", "private", "nested twice"])
@pytest.mark.parametrize("tier", ["broker", "procfs", "probe"])
def test_each_tier_tells_the_outermost_pid(
    identity: object, serve: Callable[..., object], inside: str, tier: str
) -> None:
    gate = {"broker": {"LIBVGPU_HOSTPID_BROKER": "1"}, "procfs": {"LIBVGPU_HOST_PROCFS": "/proc"}, "probe": {}}[tier]
    if tier == "broker":
        serve(socket=identity.socket)
    with identity.start() as node:
        result, pid = identity.run(node, START, place=inside, HOOKLAB_HOST_PID="1", **gate)
        assert result == 0
        assert identity.slots() == [(pid, TIER[tier])]
    paths = identity.paths()
    assert paths.host_pids == {pid: (tier, 0)}
    assert (paths.broker_success, paths.procfs_success, paths.nvml_success) == tuple(
        int(tier == name) for name in ("broker", "procfs", "probe")
    )
    assert paths.unknown == 0


def test_cuinit_asks_nobody(identity: object, serve: Callable[..., object]) -> None:
    """The need is the first context: cuInit, device queries and views come without."""
    serving = serve("--metrics", "127.0.0.1:0", socket=identity.socket)
    script = """
init(); n = ctypes.c_int(); CUDA.cuDeviceGetCount(ctypes.byref(n)); say(n.value)
"""
    with identity.start() as node:
        identity.run(node, script, LIBVGPU_HOSTPID_BROKER="1", HOOKLAB_HOST_PID="1")
        assert identity.paths().durations_ns == {}
        assert serving.stop() == "stopped: 0 accepted, 0 answered, 0 left"


def test_nobody_asks_without_a_need(identity: object) -> None:
    with identity.start() as node:
        assert identity.run(node, START)[0] == 0
    assert identity.paths().durations_ns == {}
    assert identity.slots() == []


@pytest.mark.parametrize("need", ["HOOKLAB_HOST_PID=1", "HOOKLAB_CONTEXT_BYTES=learn", "CUDA_DEVICE_SM_LIMIT=30"])
def test_what_is_a_need(identity: object, need: str) -> None:
    key, _, value = need.partition("=")
    with identity.start() as node:
        _, pid = identity.run(node, START, place="private", **{key: value})
    assert identity.paths().host_pids == {pid: ("probe", 0)}


@pytest.mark.parametrize("value", ["0", "true", "2", " 1", "/tmp/vgpulock/hostpid/broker.sock"])
def test_the_brokers_gate_is_exactly_one(identity: object, serve: Callable[..., object], value: str) -> None:
    serving = serve(socket=identity.socket)
    with identity.start() as node:
        identity.run(node, START, LIBVGPU_HOSTPID_BROKER=value)
    assert identity.paths().reasons == {"broker: bad_gate": 1}
    assert identity.paths().nvml_success == 1
    assert serving.stop().startswith("stopped: 0 accepted")


@pytest.mark.report("B96", plants="a socket that refuses, a procfs without the field")
def test_the_order_and_every_reason(identity: object) -> None:
    """A sandbox: the socket refuses, its procfs knows no NStgid, the experiment is off: unknown, said with reasons."""
    identity.socket.parent.mkdir(mode=0o711)
    with socket.socket(socket.AF_UNIX) as nobody_listens:
        nobody_listens.bind(str(identity.socket))
    with identity.start() as node:
        said = identity.run(
            node,
            START,
            LIBVGPU_HOSTPID_BROKER="1",
            LIBVGPU_HOST_PROCFS=str(identity.folder),
            HOOKLAB_IDENTITY_PROBE="0",
        )
    assert said[0] == 0  # the program never notices
    paths = identity.paths()
    assert paths.reasons == {"broker: refused": 1, "procfs: not_procfs": 1}
    assert (paths.unknown, paths.nvml_fallback, paths.host_pids) == (1, 0, {})
    assert identity.slots() == []


@pytest.mark.report("B92", plants="no tier can answer at first")
def test_unknown_is_not_for_life(identity: object) -> None:
    """The first context comes while no tier can answer; a later one finds the broker there."""
    with identity.start() as node:
        script = """
import select
init(); retain()
open(os.environ['ASKED'], 'w').close()
while not os.path.exists(os.environ['READY']):
    select.select([], [], [], 0.02)
result, context = create()
say(first())
"""
        asked, ready = identity.folder / "asked", identity.folder / "ready"
        code = "import sys; from lab.cli import main; sys.exit(main())"
        made: list[subprocess.Popen[bytes]] = []

        def bring_up() -> None:
            while not asked.exists():
                threading.Event().wait(0.01)
            words = ["broker", "serve", "--any-namespace", "--socket", str(identity.socket)]
            made.append(subprocess.Popen([sys.executable, "-P", "-c", code, *words], stdout=subprocess.PIPE))
            assert made[0].stdout is not None
            made[0].stdout.readline()
            threading.Event().wait(0.6)  # longer than the first pause; a guest that asks too early is no failure
            ready.touch()

        helper = threading.Thread(target=bring_up)
        helper.start()
        said = identity.run(
            node,
            script,
            LIBVGPU_HOSTPID_BROKER="1",
            HOOKLAB_IDENTITY_PROBE="0",
            ASKED=str(asked),
            READY=str(ready),
        )
        helper.join()
        made[0].kill()
        made[0].communicate()
    paths = identity.paths()
    assert paths.reasons["broker: no_directory"] >= 1
    assert paths.unknown >= 1
    assert paths.host_pids == {said[-1]: ("broker", 0)}


@pytest.mark.parametrize("tier", ["broker", "procfs", "probe"])
def test_the_ledger_is_the_same_whoever_answered(identity: object, serve: Callable[..., object], tier: str) -> None:
    """The context's bytes come from NVML by the known PID, lazily."""
    gate = {"broker": {"LIBVGPU_HOSTPID_BROKER": "1"}, "procfs": {"LIBVGPU_HOST_PROCFS": "/proc"}, "probe": {}}[tier]
    if tier == "broker":
        serve(socket=identity.socket)
    script = """
init(); say(retain()[0]); say(alloc(64 << 20)[0])
import shutil; shutil.copy(os.environ['CUDA_DEVICE_MEMORY_SHARED_CACHE'], os.environ['COPY'])
result, context = create(); say(result)
shutil.copy(os.environ['CUDA_DEVICE_MEMORY_SHARED_CACHE'], os.environ['COPY'] + '2')
"""
    copy = identity.folder / "copy"
    with identity.start() as node:
        assert (
            identity.run(node, script, place="private", HOOKLAB_CONTEXT_BYTES="learn", COPY=str(copy), **gate)
            == [0] * 3
        )
        nvml_extra = node.snapshot().devices[0]
    assert nvml_extra is not None
    with Region.open(copy) as region:
        first = int(region.devices["used"][0])
    with Region.open(f"{copy}2") as region:
        second = int(region.devices["used"][0])
    context = first - (64 << 20)
    assert (512 << 20) - (32 << 20) <= context <= (512 << 20) + (32 << 20)  # NVML's figure differs by some MiB
    assert second - first == context
    assert identity.paths().nvml_success == (tier == "probe")


def test_a_learned_context_that_does_not_fit_is_refused(identity: object) -> None:
    script = "init(); say(retain()[0]); say(retain()[0])"
    limits = {"CUDA_DEVICE_MEMORY_LIMIT": "256m", "HOOKLAB_CONTEXT_BYTES": "learn"}
    with identity.start() as node:
        assert identity.run(node, script, **limits) == [2, 2]
        assert all(not process.contexts[0] for process in node.snapshot().processes)


# -- life: fork, exec, ends --
@pytest.mark.report("B95", plants="a child that inherits what its parent was told")
def test_a_fork_child_never_has_its_parents_pid(identity: object, serve: Callable[..., object]) -> None:
    """A driver that was initialised does not work in a child of fork; what the child inherits is not its own."""
    serve(socket=identity.socket)
    script = """
init(); retain(); say(first())
if os.fork() == 0:
    say([first(), init(), retain()[0]])
    os._exit(0)
os.wait()
import shutil; shutil.copy(os.environ['CUDA_DEVICE_MEMORY_SHARED_CACHE'], os.environ['COPY'])
"""
    copy = identity.folder / "copy"
    with identity.start() as node:
        said = identity.run(node, script, place="private", LIBVGPU_HOSTPID_BROKER="1", COPY=str(copy))
    parent, (child, _initialised, context) = said
    assert parent != child
    assert context != 0
    assert identity.paths().host_pids == {parent: ("broker", 0)}
    with Region.open(copy) as region:
        told = [(process.host_pid, process.tier) for process in region.processes() if process.host_pid]
    assert told == [(parent, "broker")]


def test_after_exec_it_is_asked_again(identity: object, serve: Callable[..., object]) -> None:
    serve(socket=identity.socket)
    script = """
init(); retain(); say(first())
if 'AGAIN' not in os.environ:
    os.environ['AGAIN'] = '1'
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
"""
    with identity.start() as node:
        before, after = identity.run(node, script, place="private", LIBVGPU_HOSTPID_BROKER="1")
    assert before == after
    assert identity.paths().broker_success == 2


@pytest.mark.parametrize("end", ["pass", "os.kill(os.getpid(), 15)", "os.kill(os.getpid(), 9)"])
def test_however_it_ends_nothing_stays(identity: object, serve: Callable[..., object], end: str) -> None:
    """The slot and the broker's connection of the process are gone, and the next one answers for itself."""
    serving = serve(socket=identity.socket)
    held = serving.descriptors()
    script = f"""
pid = os.fork()
if pid == 0:
    init(); retain(); say(first()); {end}; os._exit(0)
os.wait()
init(); retain(); say(first())
"""
    with identity.start() as node:
        ended, living = identity.run(node, script, place="private", LIBVGPU_HOSTPID_BROKER="1")
    assert ended != living
    assert set(identity.paths().host_pids) == {ended, living}
    with Region.open(identity.region) as region:
        region.check()
        assert not [process for process in region.processes() if process.present]
    assert serving.descriptors() == held
    assert serving.stop().endswith(", 0 left")
