"""The conformance suite over what we ship, and over policies with one planted fault each, which it must catch."""

# ruff: noqa: ARG002 - a policy takes every argument of the protocol, used or not

from __future__ import annotations

import inspect
from typing import Any

import pytest

from lab.policy import MemoryPolicy
from lab.policy.pacing._words import TARGET
from lab.policy.pacing.duty import Duty
from lab.testing.conformance import PolicyConformance


class TestMemory(PolicyConformance):
    policy = ""


class TestHybrid(PolicyConformance):
    policy = "hybrid"


class TestHybridSoft(PolicyConformance):
    policy = "hybrid-soft"


class TestDuty(PolicyConformance):
    policy = "duty"


class TestPid(PolicyConformance):
    policy = "pid"


class TestAimd(PolicyConformance):
    policy = "aimd"


class TestDeltaHami(PolicyConformance):
    policy = "delta-hami"


class TestDeltaLinear(PolicyConformance):
    policy = "delta-linear"


class Above(MemoryPolicy):
    def admit(self, device: int, size: int, kind: int, used: int, limit: int, shared: int) -> int:
        return 0 if used + size <= limit + 1 or not limit else 2


class Flag(MemoryPolicy):
    def admit(self, device: int, size: int, kind: int, used: int, limit: int, shared: int) -> int:
        return used + size > limit > 0  # a bool


class Fussy(MemoryPolicy):
    def admit(self, device: int, size: int, kind: int, used: int, limit: int, shared: int) -> int:
        return 2 if limit and (used + size > limit or 0 < used < limit // 2) else 0


class Favourite(MemoryPolicy):
    """Keeps a quarter free of those who hold nothing yet."""

    def admit(self, device: int, size: int, kind: int, used: int, limit: int, shared: int) -> int:
        kept = limit // 4 if shared == used else 0
        return 2 if limit and used + size + kept > limit else 0


class Nothing(MemoryPolicy):
    def lease(self, device: int, cost: int, now: int, shared: memoryview) -> int:
        return 0


class Sleepy(MemoryPolicy):
    def lease(self, device: int, cost: int, now: int, shared: memoryview) -> int:
        return cost if cost < 1_000 else -3_600_000_000_000


class Private(MemoryPolicy):
    def __init__(self) -> None:
        self.count = 0

    def lease(self, device: int, cost: int, now: int, shared: memoryview) -> int:
        self.count += 1
        return cost if self.count % 3 else -1


class Hangs(Duty):
    def lease(self, device: int, cost: int, now: int, shared: memoryview) -> int:
        return -1_000_000_000 if shared[TARGET] % 100 and cost > 100 else super().lease(device, cost, now, shared)


class Always(Duty):
    def lease(self, device: int, cost: int, now: int, shared: memoryview) -> int:
        shared[40] += 1
        return -1_000 if shared[40] == 20 else cost


PLANTED = [
    (Above, "test_admit_answers_a_code", "above the limit"),
    (Flag, "test_admit_answers_a_code", "not an int"),
    (Fussy, "test_admit_is_monotone", "admitted at"),
    (Favourite, "test_a_crowd_gets_what_fits", "in a row to one process"),
    (Nothing, "test_answers_are_in_range", "neither tokens nor a wait"),
    (Sleepy, "test_answers_are_in_range", "more than a minute"),
    (Private, "test_all_state_is_shared", "a second instance"),
    (Hangs, "test_waits_end", "still waits"),
    (Always, "test_no_limit_is_no_limit", "although the target"),
]


@pytest.mark.parametrize(("kind", "test", "words"), PLANTED, ids=lambda value: getattr(value, "__name__", ""))
def test_a_planted_fault_is_caught(kind: type, test: str, words: str) -> None:
    suite: Any = type("Suite", (PolicyConformance,), {"policy": kind, "patience_s": 60})()
    with pytest.raises(AssertionError, match=words):
        getattr(suite, test)()


def test_every_promise_has_a_planted_fault() -> None:
    promises = {name for name, _ in inspect.getmembers(PolicyConformance) if name.startswith("test_")}
    assert promises == {test for _, test, _ in PLANTED}
