"""The ledger against a dictionary: several processes, charges in every state, deaths and forks in any order.

Commands are given one at a time, so the model says exactly what every answer must be: a refusal may count only bytes of
the living, and a death is over when the kernel says so.
"""

from __future__ import annotations

import itertools
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from lab.region import Region

LIMIT = 1000
DEVICES = 2
OUT_OF_MEMORY = 2


@dataclass
class Guest:
    """One process and what the model says it holds."""

    process: subprocess.Popen[str]
    tickets: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Ticket -> device, bytes asked."""
    live: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """Pointer -> device, bytes, context."""
    detached: dict[int, tuple[int, int, int]] = field(default_factory=dict)

    def ask(self, *words: object) -> list[int]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        answer = self.process.stdout.readline()
        assert answer, f"the guest ended at {words}"
        return [int(word) for word in answer.split()]


class Ledger(RuleBasedStateMachine):
    program: list[str]
    lock: str
    mode: str

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="hooklab-region-"))
        self.region = self.folder / "region"
        self.guests: list[Guest] = []
        self.dead: list[Guest] = []
        self.pointers = itertools.count(0x10000, 512)
        self.start()

    def teardown(self) -> None:
        for guest in self.guests:
            guest.process.kill()
            guest.process.communicate()
        with Region.open(self.region) as region:
            region.reap()
            assert [region.used(device) for device in range(DEVICES)] == [0] * DEVICES
            assert region.processes() == ()
            assert region.check() == []
        shutil.rmtree(self.folder)

    def held(self, device: int) -> int:
        """What the living use on a device, reservations included where there are any."""
        total = 0
        for guest in self.guests:
            total += sum(size for where, size, _ in [*guest.live.values(), *guest.detached.values()] if where == device)
            if self.mode == "reserve":
                total += sum(size for where, size in guest.tickets.values() if where == device)
        return total

    def pick(self, number: int) -> Guest:
        return self.guests[number % len(self.guests)]

    @precondition(lambda self: len(self.guests) < 4)
    @rule()
    def start(self) -> None:
        pipe = subprocess.PIPE
        guest = Guest(subprocess.Popen(self.program, stdin=pipe, stdout=pipe, text=True, bufsize=1))
        assert guest.ask("open", self.region, self.lock, self.mode, LIMIT) == [0]
        self.guests.append(guest)
        self.dead.clear()  # who enters buries the dead

    @rule(who=st.integers(0, 7), device=st.integers(0, DEVICES - 1), size=st.integers(0, 600), kind=st.integers(0, 7))
    def reserve(self, who: int, device: int, size: int, kind: int) -> None:
        guest = self.pick(who)
        ticket = next(number for number in range(64) if number not in guest.tickets)
        fits = self.held(device) + size <= LIMIT
        code, before = guest.ask("reserve", ticket, device, size, kind)
        assert code == (0 if fits else OUT_OF_MEMORY)
        if fits:
            assert self.held(device) <= before <= self.held(device) + self.unburied(device)
            guest.tickets[ticket] = (device, size)
        else:
            assert before == self.held(device)
            for corpse in self.dead:
                self.bury(corpse, device)

    def unburied(self, device: int) -> int:
        return sum(size for corpse in self.dead for where, size, _ in corpse.live.values() if where == device)

    def bury(self, corpse: Guest, device: int) -> None:
        """A refusal on a device buries those who hold something there, with all they have."""
        if any(where == device for where, _, _ in corpse.live.values()):
            corpse.live.clear()

    @rule(who=st.integers(0, 7), which=st.integers(0, 63), grow=st.integers(-300, 300), context=st.integers(1, 3))
    def settle(self, who: int, which: int, grow: int, context: int) -> None:
        guest = self.pick(who)
        if not guest.tickets:
            return
        ticket = sorted(guest.tickets)[which % len(guest.tickets)]
        device, asked = guest.tickets.pop(ticket)
        took = max(0, asked + grow)
        fits = self.held(device) + took <= LIMIT
        if self.mode == "reserve" and took <= asked:
            assert fits  # what was reserved is had
        pointer = next(self.pointers)
        assert guest.ask("settle", ticket, pointer, context, took) == [0 if fits else OUT_OF_MEMORY]
        if fits:
            guest.live[pointer] = (device, took, context)
        else:
            for corpse in self.dead:
                self.bury(corpse, device)

    @rule(who=st.integers(0, 7), which=st.integers(0, 63))
    def cancel(self, who: int, which: int) -> None:
        guest = self.pick(who)
        if guest.tickets:
            ticket = sorted(guest.tickets)[which % len(guest.tickets)]
            del guest.tickets[ticket]
            assert guest.ask("cancel", ticket) == [0]

    @rule(who=st.integers(0, 7), which=st.integers(0, 63))
    def detach(self, who: int, which: int) -> None:
        guest = self.pick(who)
        if guest.live and len(guest.detached) < 60:
            pointer = sorted(guest.live)[which % len(guest.live)]
            guest.detached[pointer] = guest.live.pop(pointer)
            assert guest.ask("detach", pointer) == [1, guest.detached[pointer][1]]
            assert guest.ask("find", pointer) == [0, 0]

    @rule(who=st.integers(0, 7), freed=st.booleans())
    def finish_detached(self, who: int, freed: bool) -> None:
        guest = self.pick(who)
        if guest.detached:
            pointer, entry = guest.detached.popitem()
            assert guest.ask("credit" if freed else "reattach", pointer) == [0]
            if not freed:
                guest.live[pointer] = entry
            assert guest.ask("find", pointer) == ([0, 0] if freed else [1, entry[1]])

    @rule(who=st.integers(0, 7), context=st.integers(1, 3))
    def end_context(self, who: int, context: int) -> None:
        guest = self.pick(who)
        gone = [pointer for pointer, (_, _, owner) in guest.live.items() if owner == context]
        assert guest.ask("release", context) == [sum(guest.live.pop(pointer)[1] for pointer in gone)]

    @rule(who=st.integers(0, 7))
    def fork(self, who: int) -> None:
        guest = self.pick(who)
        assert guest.ask("fork") == [0]  # its child takes a byte and ends with it
        self.dead.clear()  # who enters buries the dead ...
        self.dead.append(Guest(guest.process, live={0: (0, 1, 0)}))  # ... and is dead now, if it got its byte

    @rule(who=st.integers(0, 7))
    def close(self, who: int) -> None:
        guest = self.pick(who)
        assert guest.ask("close") == [
            0
        ]  # whoever holds nothing gives its slot back and enters again at the next charge

    @precondition(lambda self: len(self.guests) > 1)
    @rule(who=st.integers(0, 7))
    def kill(self, who: int) -> None:
        guest = self.guests.pop(who % len(self.guests))
        guest.process.send_signal(signal.SIGKILL)
        guest.process.communicate()
        held = {**guest.live, **{-pointer: entry for pointer, entry in guest.detached.items()}}
        if self.mode == "reserve":
            held.update({-ticket - 1: (device, size, 0) for ticket, (device, size) in guest.tickets.items()})
        self.dead.append(Guest(guest.process, live=held))

    @invariant()
    def the_books_are_right(self) -> None:
        for device in range(DEVICES):
            (used,) = self.guests[0].ask("used", device)
            assert self.held(device) <= used <= self.held(device) + self.unburied(device)
            assert used <= LIMIT
        for guest in self.guests:
            assert guest.ask("live") == [len(guest.live)]
        with Region.open(self.region) as region:
            assert region.check() == []


@pytest.mark.parametrize(("lock", "mode"), [("robust", "reserve"), ("file", "reserve"), ("robust", "double-check")])
def test_against_a_model(region_program: Callable[[str], Path], lock: str, mode: str) -> None:
    class Bound(Ledger):
        pass

    Bound.program, Bound.lock, Bound.mode = [str(region_program("worker"))], lock, mode
    run_state_machine_as_test(Bound, settings=settings(max_examples=max(10, settings().max_examples // 3)))


def test_the_model_notices_a_wrong_answer(region_program: Callable[[str], Path]) -> None:
    """A guest that books one byte more than it was told to settle must be found out."""

    class Bound(Ledger):
        pass

    Bound.program, Bound.lock, Bound.mode = [str(region_program("worker")), "plant"], "robust", "reserve"
    generated = settings(
        max_examples=40, database=None, print_blob=False, phases=[Phase.generate], report_multiple_bugs=False
    )
    with pytest.raises(AssertionError):
        run_state_machine_as_test(Bound, settings=generated)
