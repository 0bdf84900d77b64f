"""The broker's way into a node and out again: dark server, canary, client off, both gates, compare; then back.

Compatibility by absence of obligation: whoever does not know the other side goes its old way, and the shared region is
not rewritten by any step.
"""

from __future__ import annotations

import itertools
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lab.identity.client import ask
from lab.spec import load_layout

START = "init(); say(retain()[0]); say(first()); say(alloc(64 << 20)[0])"
GATE = {"LIBVGPU_HOSTPID_BROKER": "1"}
NEED = {"HOOKLAB_HOST_PID": "1"}
NAIVE = Path(__file__).parents[1] / "native" / "interposers" / "naive.c"


def made_at(region: Path) -> int:
    """When a region was made: changes when it is made anew."""
    return int(
        np.frombuffer(region.read_bytes(), load_layout("hooklab-1").dtype("hl_region_header"), 1)["created_ns"][0]
    )


def test_five_steps_and_the_way_back(
    identity: object,
    serve: Callable[..., object],
    hooklab: Callable[..., subprocess.CompletedProcess[str]],
    place: Path,
) -> None:
    directory = place / "node" / "hostpid"  # of the machine; containers see it only where it is mounted
    directory.parent.mkdir()
    seen: dict[str, object] = {}

    def step(name: str, node: object, *, broker: Path | None = None, **variables: str) -> str:
        """One guest; by which tier it learned its PID in this step."""
        before = set(identity.paths().host_pids)
        result, pid, allocated = identity.run(node, START, place="private", broker=broker, **variables)
        assert (result, allocated) == (0, 0)
        new = {key: value for key, value in identity.paths().host_pids.items() if key not in before}
        assert set(new) <= {pid}  # no step ever says a wrong one
        seen[name] = new[pid][0] if new else "not asked"
        return str(seen[name])

    with identity.start() as node:
        assert step("before", node) == "not asked"
        made = made_at(identity.region)

        # 1. a plugin that can serve, not mounted and not enabled
        serving = serve(socket=directory / "broker.sock")
        assert step("dark", node) == "not asked"

        # 2. the canary: contract, restart, a burst
        done = hooklab("broker", "conform", "--socket", serving.socket, "--allow-unknown")
        assert done.returncode == 0, done.stdout
        serving.stop()
        serving = serve(socket=directory / "broker.sock")
        assert ask(serving.socket, patience_s=5) > 0

        # 3. a client that could, its gate off: the old way, and nobody calls the broker
        serving.stop()
        serving = serve(socket=directory / "broker.sock")
        assert step("client, gate off", node, broker=directory, **NEED) == "probe"
        assert serving.stop() == "stopped: 0 accepted, 0 answered, 0 left"
        serving = serve(socket=directory / "broker.sock")

        # 4. mount and gate for a chosen pod; another has one of the two only
        assert step("both", node, broker=directory, **GATE) == "broker"
        assert step("mount only", node, broker=directory, **NEED) == "probe"
        assert step("gate only", node, **GATE) == "probe"

        # 5. compare: counters say which way each went and why
        paths = identity.paths()
        assert (paths.broker_success, paths.nvml_success, paths.unknown) == (1, 3, 0)
        assert paths.reasons == {"broker: no_socket": 1}  # the mount point is left, empty
        assert {name: len(times) for name, times in paths.durations_ns.items()} == {"broker": 1, "probe": 3}

        # the server dies: the next ones fall back; it comes again: they find it behind the mount they have
        serving.kill()
        assert step("server dead", node, broker=directory, **GATE) == "probe"
        assert identity.paths().reasons["broker: refused"] == 1
        serving = serve(socket=directory / "broker.sock")
        assert step("server again", node, broker=directory, **GATE) == "broker"

        # back: the variable goes, then the mount; the region is the same file all the way
        assert step("gate off again", node, broker=directory, **NEED) == "probe"
        serving.stop()
        assert step("all gone", node, **NEED) == "probe"
        assert step("as before", node) == "not asked"
        assert made_at(identity.region) == made


def test_a_restart_is_seen_behind_an_existing_mount(
    identity: object, serve: Callable[..., object], place: Path
) -> None:
    """The container had its mount before the broker's restart, which makes a new socket in the same directory."""
    directory = place / "node" / "hostpid"
    directory.parent.mkdir()
    first = serve(socket=directory / "broker.sock")
    up, again = identity.folder / "up", identity.folder / "again"
    script = """
import select
init()
open(os.environ['UP'], 'w').close()
while not os.path.exists(os.environ['AGAIN']): select.select([], [], [], 0.01)
retain(); say(first())
"""
    restarted: list[object] = []

    def restart() -> None:
        while not up.exists():
            threading.Event().wait(0.01)
        first.stop()
        restarted.append(serve(socket=directory / "broker.sock"))
        again.touch()

    helper = threading.Thread(target=restart)
    helper.start()
    with identity.start() as node:
        (pid,) = identity.run(node, script, place="private", broker=directory, UP=str(up), AGAIN=str(again), **GATE)
    helper.join()
    assert identity.paths().host_pids == {pid: ("broker", 0)}
    assert restarted[0].stop() == "stopped: 1 accepted, 1 answered, 0 left"


PLUGINS, INTERPOSERS, REGIONS = ("old", "new"), ("none", "old", "new"), ("fresh", "ours", "other version", "foreign")


@pytest.mark.parametrize(("plugin", "interposer", "region"), list(itertools.product(PLUGINS, INTERPOSERS, REGIONS)))
def test_old_and_new_together(
    identity: object,
    serve: Callable[..., object],
    compile_c: Callable[..., Path],
    place: Path,
    plugin: str,
    interposer: str,
    region: str,
) -> None:
    """The program works in every pairing; only new with new uses the broker; a foreign region stays as it is."""
    directory = place / "node" / "hostpid"
    directory.parent.mkdir()
    if region in ("ours", "other version"):
        with identity.start() as node:
            identity.run(node, START)
    if region == "other version":
        layout = load_layout("hooklab-1").dtype("hl_region_header")
        data = bytearray(identity.region.read_bytes())
        at = int(layout.fields["layout_hash"][1])
        data[at : at + 8] = b"anothers"
        identity.region.write_bytes(data)
    elif region == "foreign":
        identity.region.write_bytes(b"some other program's file" * 1000)
    kept = identity.region.read_bytes() if region in ("other version", "foreign") else b""
    if interposer == "none":
        identity.preload = ""
    elif interposer == "old":
        identity.preload = str(compile_c(NAIVE, "-shared", "-fPIC", "-ldl", name="libold.so"))
    given: dict[str, object] = {"place": "private"}
    if plugin == "new":
        serving = serve(socket=directory / "broker.sock")
        given |= {"broker": directory, **GATE}
    with identity.start() as node:
        result, pid, allocated = identity.run(node, START, **given)
    assert (result, allocated) == (0, 0)
    uses = plugin == "new" and interposer == "new"
    assert identity.paths().host_pids == ({pid: ("broker", 0)} if uses else {})
    if plugin == "new":
        assert serving.stop() == f"stopped: {int(uses)} accepted, {int(uses)} answered, 0 left"
    if kept:
        assert identity.region.read_bytes() == kept
    elif interposer == "new":
        assert (pid in [host for host, _tier in identity.slots()]) == uses
