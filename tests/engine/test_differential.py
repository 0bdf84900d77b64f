"""The engine answers what the same class answers when it is called directly, for any sequence of calls."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lab.policy
from lab.codegen import freeze

FAULT = -(2**63) + 1

# Remembers what it was asked; its answers depend on all arguments, and some of them mean nothing.
STATEFUL = """\
class P:
    def __init__(self):
        self.seen = 0

    def admit(self, device, size, kind, used, limit, shared):
        mixed = device + 3 * size + 5 * kind + 7 * used + 11 * limit + 13 * shared
        self.seen = (self.seen * 31 + mixed) % (2 ** 61 - 1)
        if kind == 6:
            raise ValueError(self.seen)
        if kind == 7:
            return self.seen % 2000 - 500
        if limit and used + size > limit:
            return (2, 801, 999)[self.seen % 3]
        return 0

    def lease(self, device, cost, now, shared):
        self.seen += 1
        shared[device % 4] = (shared[device % 4] + cost + self.seen) % 2 ** 64
        return shared[device % 4] % 9 - 4
"""

words = st.one_of(
    st.integers(0, 300), st.integers(0, 2**64 - 1), st.sampled_from([2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1])
)
devices = st.integers(0, 15)
admits = st.tuples(st.just("admit"), devices, words, st.integers(0, 7), words, words, words)
leases = st.tuples(st.just("lease"), devices, st.integers(1, 2**62), words)


def expected(policy: Any, shared: memoryview, codes: frozenset[int], call: tuple[Any, ...]) -> int:
    """What the engine must answer: the class's own answer where it has a meaning, else a fault."""
    name, *arguments = call
    try:
        if name == "admit":
            answer = policy.admit(*arguments)
            return answer if answer in codes else FAULT
        answer = policy.lease(*arguments, shared)
    except Exception:
        return FAULT
    return answer if answer else FAULT


@pytest.mark.parametrize("variant", ["static", "copy"])
@pytest.mark.parametrize("kind", ["built-in", "file"])
def test_engine_equals_class(
    engines: Callable[[str], Path], serve: Callable[..., Any], tmp_path: Path, variant: str, kind: str
) -> None:
    spec = ""
    if kind == "file":
        (tmp_path / "p.py").write_text(STATEFUL)
        spec = f"{tmp_path}/p.py:P"
    server = serve(engines(variant), spec)
    policy = lab.policy.load(spec)
    shared = memoryview(bytearray(32)).cast("Q")
    codes = frozenset(freeze.admit_codes())
    wrong: list[str] = []

    @given(calls=st.lists(st.one_of(admits, leases), min_size=1, max_size=40))
    def same(calls: list[tuple[Any, ...]]) -> None:
        if wrong:  # both sides remember: after a difference no later call can be compared
            raise AssertionError(wrong[0])
        for call in calls:
            answer, truth = server.ask(*call), expected(policy, shared, codes, call)
            if answer != truth:
                wrong.append(f"{call}: the engine answers {answer}, the class {truth}")
                raise AssertionError(wrong[0])

    same()
    assert [server.ask("word", index) % 2**64 for index in range(4)] == list(shared)


def test_a_difference_is_seen(engines: Callable[[str], Path], serve: Callable[..., Any]) -> None:
    """The comparison fails for a class that admits one byte more."""
    server = serve(engines("static"))

    class Generous(lab.policy.MemoryPolicy):
        def admit(self, device: int, size: int, kind: int, used: int, limit: int, shared: int) -> int:
            return super().admit(device, size, kind, used, limit and limit + 1, shared)

    call = ("admit", 0, 51, 1, 50, 100, 0)
    truth = expected(Generous(), memoryview(b""), frozenset(freeze.admit_codes()), call)
    assert server.ask(*call) != truth
