"""Kills at any moment leave no byte behind and no byte wrong.

Two views of one promise: a model-based sequence of joins, charges, forks and deaths whose every state is checked, and
processes that change their accounts as fast as C can and are killed in the middle of it.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from lab.node.model import NodeSnapshot
from lab.node.server import NodeServer

MIB = 1 << 20
GPUS = ("t4-16g", "t4-16g")
CONTAINERS = ("a", "b", "c")


def books_agree(snapshot: NodeSnapshot) -> list[str]:
    """What is wrong: totals of devices and containers against what the processes hold."""
    wrong = []
    for device in snapshot.devices:
        held = sum(process.total(device.index) for process in snapshot.processes)
        if device.used != held:
            wrong.append(f"device {device.index}: used {device.used}, its processes hold {held}")
        if device.used > device.total_bytes:
            wrong.append(f"device {device.index}: used {device.used} above {device.total_bytes}")
        for container in snapshot.containers:
            owned = [process for process in snapshot.processes if process.container == container.index]
            held = sum(process.total(device.index) for process in owned)
            if container.used[device.index] != held:
                wrong.append(f"{container.name}: used {container.used[device.index]}, its processes hold {held}")
    return wrong


def machine(nest: Any, start: Callable[..., Any]) -> type[RuleBasedStateMachine]:
    """The state machine over one nest of processes."""

    class Machine(RuleBasedStateMachine):
        @initialize()
        def boot(self) -> None:
            self.node = NodeServer(gpus=GPUS, containers=CONTAINERS, process_capacity=6)
            self.node.start()
            self.guests: list[Any] = []
            self.model: dict[int, dict[tuple[int, int], int]] = {}  # host pid: (device, kind): bytes

        def teardown(self) -> None:
            if hasattr(self, "node"):
                for guest in self.guests:
                    guest.kill()
                self.node.wait_live(0)
                assert not self.node.snapshot().devices[0].used
                self.node.close()

        @precondition(lambda self: len(self.guests) < 5)
        @rule(container=st.integers(-1, len(CONTAINERS) - 1))
        def join(self, container: int) -> None:
            guest = start(nest, self.node, container=container)
            self.guests.append(guest)
            self.model[guest.pid] = {}

        @precondition(lambda self: self.guests)
        @rule(data=st.data(), device=st.integers(0, 1), kind=st.integers(0, 7), size=st.integers(1, 9000))
        def take(self, data: st.DataObject, device: int, kind: int, size: int) -> None:
            guest = data.draw(st.sampled_from(self.guests))
            free = self.node.snapshot().devices[device]
            fits = free.used + size * MIB <= free.total_bytes
            assert guest.ask("take", device, kind, size * MIB) == ("took 0" if fits else "took -1")
            if fits:
                books = self.model[guest.pid]
                books[device, kind] = books.get((device, kind), 0) + size * MIB

        @precondition(lambda self: any(self.model.values()))
        @rule(data=st.data())
        def give(self, data: st.DataObject) -> None:
            guest = data.draw(st.sampled_from([guest for guest in self.guests if self.model[guest.pid]]))
            books = self.model[guest.pid]
            device, kind = data.draw(st.sampled_from(sorted(books)))
            assert guest.ask("give", device, kind, books.pop((device, kind))) == "done"

        @precondition(lambda self: self.guests)
        @rule(data=st.data(), torn=st.booleans(), device=st.integers(0, 1), kind=st.integers(0, 7))
        def kill(self, data: st.DataObject, torn: bool, device: int, kind: int) -> None:
            guest = data.draw(st.sampled_from(self.guests))
            if torn:
                guest.ask("tear", device, kind, 123 * MIB)
            self.guests.remove(guest)
            del self.model[guest.pid]
            guest.kill()
            self.node.wait_live(len(self.guests))

        @precondition(lambda self: len(self.guests) > 1)
        @rule(data=st.data())
        def kill_all_at_once(self, data: st.DataObject) -> None:
            holder = data.draw(st.sampled_from(self.guests))
            holder.ask("tear", 0, 1, 77 * MIB)
            for guest in self.guests:
                os.kill(guest.pid, signal.SIGKILL)
            for guest in self.guests:
                guest.close()
            self.guests, self.model = [], {}
            self.node.wait_live(0)

        @invariant()
        def right(self) -> None:
            if not hasattr(self, "node"):
                return
            snapshot = self.node.snapshot()
            assert books_agree(snapshot) == []
            seen = {process.host_pid: sum(process.total(i) for i in range(2)) for process in snapshot.processes}
            assert seen == {pid: sum(books.values()) for pid, books in self.model.items()}

    return Machine


def test_any_sequence_keeps_the_books_right(nest: Any, guest_type: Callable[..., Any]) -> None:
    examples = max(10, settings().max_examples // 2)  # each starts a node and some processes
    run_state_machine_as_test(machine(nest, guest_type), settings=settings(max_examples=examples))


@pytest.mark.parametrize("rounds", [6, pytest.param(200, marks=pytest.mark.full)])
def test_killed_while_changing(
    make_node: Callable[..., NodeServer], join: Callable[..., Any], churn: Path, seed: int, rounds: int
) -> None:
    rng = random.Random(seed)
    node = make_node(gpus=GPUS, containers=CONTAINERS, process_capacity=16)
    guests = [join(node, container=index % 3) for index in range(4)]
    for guest in guests:
        assert guest.ask("churn", churn) == "churning"
    for _ in range(rounds):
        victim = guests.pop(rng.randrange(len(guests)))
        calls_before = [node.file.devices[index]["peak"] for index in range(2)]
        spin(rng.randrange(20_000))
        victim.kill()
        node.wait_for(lambda snapshot, pid=victim.pid: pid not in {p.host_pid for p in snapshot.processes})
        assert all(node.file.devices[index]["peak"] >= calls_before[index] for index in range(2))
        guests.append(join(node, container=rng.randrange(3)))
        assert guests[-1].ask("churn", churn) == "churning"
    for guest in guests:
        with contextlib.suppress(ProcessLookupError):
            os.kill(guest.pid, signal.SIGSTOP)  # at rest, so that a snapshot is exact
    for guest in guests:
        guest.kill()
    node.wait_live(0)
    end = node.snapshot()
    assert books_agree(end) == []
    assert [device.used for device in end.devices] == [0, 0]
    assert all(device.peak > 0 for device in end.devices), "the processes must have done something"


@pytest.fixture(scope="session")
def killsteps(compile_c: Callable[..., Path], native: Path) -> Path:
    """A program that kills a change of the accounts after each of its instructions."""
    source = Path(__file__).with_name("killsteps.c")
    return compile_c(source, f"-Wl,-rpath,{native}", "-Wl,-z,now", extra=[native / "libhooklab-region.so"])


@pytest.mark.parametrize("change", ["take", "give"])
def test_killed_after_every_instruction(killsteps: Path, change: str) -> None:
    done = subprocess.run([killsteps, change], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout
    places, inside = map(int, done.stdout.split())
    assert places > 100
    assert inside > 20, "some of them must lie under the lock"


@pytest.mark.parametrize("change", ["take", "give"])
def test_killsteps_sees_a_missing_undo(killsteps: Path, change: str) -> None:
    done = subprocess.run([killsteps, change, "plant"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "should be" in done.stdout


def spin(turns: int) -> None:
    """A little time of random length: where in its loop a victim is hit must vary."""
    for _ in range(turns):
        pass


def test_the_check_sees_a_lost_byte(make_node: Callable[..., NodeServer], join: Callable[..., Any]) -> None:
    """Planted failure: a total that lost one change must be noticed."""
    node = make_node(gpus=GPUS, containers=CONTAINERS)
    guest = join(node, container=1)
    guest.ask("take", 0, 1, 5 * MIB)
    assert books_agree(node.snapshot()) == []
    node.file.devices[0]["used"] += MIB
    node.file.containers[1]["used"][0] -= MIB
    assert len(books_agree(node.snapshot())) == 2
