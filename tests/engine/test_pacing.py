"""The controllers inside the engine: the same answers and the same words as the classes, and a light start."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab.policy import pacing
from lab.policy.pacing import _words as w

FACTS = {w.TARGET: 30, w.SMS: 108, w.THREADS: 2048}


def history(seed: int) -> list[tuple[Any, ...]]:
    """A plausible life: launches, settlements, samples."""
    draws = random.Random(seed)
    now, measured, charged, samples = 1_000, 0, 0, 0
    calls: list[tuple[Any, ...]] = []
    for _ in range(200):
        now += draws.randrange(1, 30_000_000)
        choice = draws.random()
        if choice < 0.6:
            calls.append(("lease", 0, draws.choice((1, 864, 200_000, 50_000_000)), now))
        elif choice < 0.8:
            measured += draws.randrange(10_000_000)
            charged += draws.randrange(10_000_000)
            calls.append(("poke", w.MEASURED, measured))
            calls.append(("poke", w.CHARGED, charged))
            calls.append(("poke", w.IN_FLIGHT, draws.randrange(9_000_000)))
        else:
            samples += 1
            own = draws.randrange(100)
            for index, value in (
                (w.FLAGS, w.USABLE | w.KNOWN),
                (w.SAMPLE_SEQ, samples),
                (w.SAMPLE_OWN, own * 100),
                (w.SAMPLE_ALL, min(10_000, own * 100 + draws.choice((0, 3_000)))),
                (w.SAMPLE_MEASURED, measured),
            ):
                calls.append(("poke", index, value))
            calls.append(("observe", 0, own * 1_666_666, 166_666_666, now))
    return calls


@pytest.mark.parametrize("name", pacing.PACING_NAMES)
def test_engine_equals_class(engine: Path, serve: Callable[..., Any], name: str) -> None:
    server = serve(engine, "", THIN_PACING=name)
    assert (server.booted, server.reason) == (0, "")
    policy = pacing.make(name)
    words = memoryview(bytearray(8 * w.WORDS)).cast("Q")
    for index, value in FACTS.items():
        words[index] = value
        server.ask("poke", index, value)
    granted = waited = 0
    for call in history(7):
        if call[0] == "poke":
            words[call[1]] = call[2]
            server.ask(*call)
            continue
        method, device, *numbers = call
        truth = getattr(policy, method)(device, *numbers, words)
        assert server.ask(*call) == truth, call
        granted += method == "lease" and truth > 0
        waited += method == "lease" and truth < 0
    assert [server.ask("word", index) % 2**64 for index in range(w.WORDS)] == list(words)
    assert server.ask("faults") == 0
    assert granted
    assert waited
    assert server.ask("admit", 0, 1, 1, 1, 1, 0) == 2  # the memory policy is still there


def test_controllers_import_nothing_but_policies() -> None:
    program = (
        "import sys; import lab.policy; before = set(sys.modules); from lab.policy import pacing\n"
        "for name in pacing.PACING_NAMES: pacing.make(name)\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split()
    assert all(name.startswith("lab.policy.") for name in done.stdout.split())
