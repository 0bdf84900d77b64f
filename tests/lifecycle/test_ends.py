"""However a process ends or multiplies, the ledger is at zero afterwards and nobody else is disturbed."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

Place = Any


@pytest.mark.parametrize("words", ["", "exit", "_exit"])
def test_an_end_of_its_own(place: Place, words: str) -> None:
    life = place.start("init", "alloc", "alloc", "free", *words.split())
    assert [life.heard(word)[0] for word in ("init", "alloc", "alloc", "free")] == [0, 0, 0, 0]
    assert life.ended() == 0
    place.zero()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGINT])
def test_an_end_by_a_signal(place: Place, number: signal.Signals) -> None:
    life = place.start("init", "alloc", "wait")
    for word in ("init", "alloc", "waiting"):
        life.heard(word)
    other = place.start("init", "wait", "alloc")
    other.heard("init")
    os.kill(life.popen.pid, number)
    assert life.ended() == -number
    other.heard("waiting")
    other.say()
    assert other.heard("alloc")[0] == 0
    assert other.ended() == 0
    place.zero()


@pytest.mark.report("B47", "B110")
@pytest.mark.parametrize("kind", ["fork", "clone"])
def test_a_child_after_init_owns_nothing_of_its_parent(place: Place, kind: str) -> None:
    life = place.start("init", "alloc", kind, "view", "_exit", "join", "view", "free", "view")
    assert life.heard("init")[0] == life.heard("alloc")[0] == 0
    assert life.heard("view")[1] != life.popen.pid  # whatever the child was told
    assert life.heard(kind)[0] == 0
    assert life.heard("view")[0] == 1024 - 64 - 64  # context and allocation, still the parent's
    assert life.heard("free")[0] == 0
    assert life.heard("view")[0] == 1024 - 64
    assert life.ended() == 0
    place.zero()


def test_a_child_before_init_is_a_process_of_its_own(place: Place) -> None:
    life = place.start("fork", "init", "alloc", "exit", "join", "init", "alloc", "view")
    assert life.heard("init")[0] == life.heard("alloc")[0] == 0
    assert life.heard("fork")[0] == 0
    assert life.heard("init")[0] == life.heard("alloc")[0] == 0
    life.heard("view")
    assert life.ended() == 0
    place.zero()


@pytest.mark.parametrize("how", ["vfork", "exec"])
def test_a_fresh_image_has_a_slot_of_its_own(place: Place, how: str) -> None:
    words = ["init", "alloc", how, "init", "alloc", "alloc", "wait"] + (["join"] if how == "vfork" else [])
    life = place.start(*words)
    for word in ("init", "alloc", "init", "alloc", "alloc", "waiting"):
        assert life.heard(word)[0] == 0
    assert place.live_slots() == (2 if how == "vfork" else 1)
    life.say()
    if how == "vfork":
        assert life.heard("vfork")[0] == 0
    assert life.ended() == 0
    place.zero()


def test_a_daemon_keeps_its_slot_after_its_parents(place: Place) -> None:
    life = place.start("daemon", "init", "alloc", "wait", "free")
    assert life.heard("init")[0] == life.heard("alloc")[0] == 0
    _, pid = life.heard("waiting")
    assert life.popen.wait(60) == 0
    assert pid != life.popen.pid
    assert place.live_slots() == 1
    life.say()
    assert life.heard("free")[0] == 0
    life.ended()
    place.zero()


def test_a_parent_killed_leaves_its_child_alone(place: Place) -> None:
    life = place.start("fork", "init", "alloc", "wait", "alloc", "exit", "join")
    for word in ("init", "alloc", "waiting"):
        life.heard(word)
    os.kill(life.popen.pid, signal.SIGKILL)
    life.popen.wait(60)
    life.say()
    assert life.heard("alloc")[0] == 0
    life.ended()
    place.zero()
