"""The conformance suite of policies: subclass it, name the policy, and pytest finds the tests.

    from lab.testing.conformance import PolicyConformance

    class TestMine(PolicyConformance):
        policy = "/path/to/mine.py:Mine"

`policy` is a spec as in ``--policy``, the name of a controller of `lab.policy.pacing`, or a class. Each test says in
its message which call broke which promise. Tests of `lease` and `observe` pass over policies without them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lab import policy as policies
from lab.policy import pacing
from lab.policy.pacing import _words as w
from lab.sim import memory

GIB = 1 << 30
SECOND = 1_000_000_000
_RULES = settings(
    deadline=None, derandomize=True, max_examples=50, suppress_health_check=[HealthCheck.differing_executors]
)

_sizes = st.integers(1, 96 * GIB) | st.sampled_from((1, 512, 2 << 20, GIB))
_kinds = st.integers(0, 7)


@dataclass(frozen=True)
class Ask:
    """One thing that happens: a lease of `cost`, a settlement, or a sample; `after` ns since the one before."""

    what: str
    after: int
    cost: int = 1
    busy: int = 0  # percent
    others: int = 0  # percent
    fresh: bool = True
    exact: bool = False


_asks = st.one_of(
    st.builds(Ask, st.just("lease"), st.integers(0, 200_000_000), cost=st.integers(1, 60_000_000)),
    st.builds(Ask, st.just("settle"), st.integers(0, 50_000_000), cost=st.integers(0, 20_000_000)),
    st.builds(
        Ask,
        st.just("observe"),
        st.integers(0, SECOND),
        busy=st.integers(0, 100),
        others=st.integers(0, 100),
        fresh=st.booleans(),
        exact=st.booleans(),
    ),
)
_histories = st.lists(_asks, min_size=1, max_size=60)
_targets = st.integers(1, 99)
_sms = st.sampled_from((1, 16, 54, 108, 132, 188))


class PolicyConformance:
    """Promises of a policy. Override `policy`; `oversubscribes` = True where going above the limit is meant."""

    policy: ClassVar[str | type] = ""
    oversubscribes: ClassVar[bool] = False
    reserves: ClassVar[bool] = False  # True where refusing what would fit is meant
    patience_s: ClassVar[int] = 600  # virtual time after which a lease that still waits is taken to hang

    def make(self) -> Any:
        """A fresh instance."""
        if isinstance(self.policy, type):
            return self.policy()
        if self.policy in pacing.PACING_NAMES:
            return pacing.make(self.policy)
        return policies.load(self.policy)

    @_RULES
    @given(size=_sizes, kind=_kinds, used=st.integers(0, 96 * GIB), limit=st.integers(0, 96 * GIB), data=st.data())
    def test_admit_answers_a_code(self, size: int, kind: int, used: int, limit: int, data: st.DataObject) -> None:
        """An int, 0 or a positive code; refused above the limit; admitted without one."""
        shared = data.draw(st.integers(0, used))
        answer = self.make().admit(0, size, kind, used, limit, shared)
        call = f"admit(0, {size}, {kind}, {used}, {limit}, {shared})"
        assert type(answer) is int, f"{call} answered {answer!r}, not an int"
        assert 0 <= answer < 1000, f"{call} answered {answer}, which is no CUresult"
        if limit == 0:
            assert answer == 0, f"{call} refused with {answer} although there is no limit"
        elif used + size > limit and not self.oversubscribes:
            assert answer != 0, f"{call} admitted {used + size - limit} bytes above the limit"

    @_RULES
    @given(kind=_kinds, limit=_sizes, shares=st.tuples(*[st.integers(0, 64)] * 3))
    def test_admit_is_monotone(self, kind: int, limit: int, shares: tuple[int, int, int]) -> None:
        """What is admitted at a use is admitted at any lower one: verdicts are committed when no more is in use."""
        used = limit * shares[0] // 64
        size = max(1, (limit - used) * shares[1] // 64)
        if self.make().admit(0, size, kind, used, limit, 0) == 0:
            lower = used * shares[2] // 64
            answer = self.make().admit(0, size, kind, lower, limit, 0)
            assert answer == 0, f"{size} bytes are admitted at {used} in use and refused ({answer}) at {lower}"

    def test_a_crowd_gets_what_fits(self) -> None:
        """Eight processes that ask and free at random: what fits is admitted, so nobody is starved."""
        found = memory.grade_made(self.make, "policy")
        told = f"of {found.asks} asks {found.refused_though_fitting} were refused though they fitted"
        assert self.reserves or not found.refused_though_fitting, f"{told}, {found.starvation} in a row to one process"
        assert self.oversubscribes or not found.overshoot, f"a crowd got {found.overshoot} bytes above its limit"

    @_RULES
    @given(history=_histories, target=_targets, sms=_sms)
    def test_answers_are_in_range(self, history: list[Ask], target: int, sms: int) -> None:
        """lease: tokens or a wait of a minute at most; observe: an int; and no exception, ever."""
        _Life(self.make(), target, sms).play(history, check=True)

    @_RULES
    @given(history=_histories, target=_targets, sms=_sms, choices=st.lists(st.booleans(), min_size=60, max_size=60))
    def test_all_state_is_shared(self, history: list[Ask], target: int, sms: int, choices: list[bool]) -> None:
        """Processes of a container share words and nothing else: two instances in turn answer as one does."""
        one = _Life(self.make(), target, sms)
        answers = one.play(history)
        pair = [self.make(), self.make()]
        turns = iter(choices)
        two = _Life(pair[0], target, sms, turn=lambda: pair[next(turns)])
        assert two.play(history) == answers, "a second instance over the same words answers differently"
        assert one.words.tolist() == two.words.tolist(), "a second instance leaves other words"

    @_RULES
    @given(history=_histories, target=_targets, sms=_sms, cost=st.integers(1, 60_000_000))
    def test_waits_end(self, history: list[Ask], target: int, sms: int, cost: int) -> None:
        """With nothing in flight and an idle GPU, asking again after each wait is granted in the end."""
        life = _Life(self.make(), target, sms)
        if not life.paces:
            return
        life.play(history)
        end = life.now + self.patience_s * SECOND
        rest = cost  # a grant may be partial
        while life.now < end:
            life.drain()
            answer = life.lease(rest)
            rest -= max(0, answer)
            if rest <= 0:
                return
            life.pass_time(max(1_000, -answer))
        raise AssertionError(f"a lease of {cost} still waits after {self.patience_s} s with nothing in flight")

    @_RULES
    @given(target=st.sampled_from((0, 100)), cost=st.integers(1, 60_000_000), count=st.integers(1, 50))
    def test_no_limit_is_no_limit(self, target: int, cost: int, count: int) -> None:
        """Targets 0 and 100 never wait."""
        life = _Life(self.make(), target, 108)
        if life.paces:
            for _ in range(count):
                assert life.lease(cost) > 0, f"a lease waits although the target is {target}"


class _Life:
    """A policy over its words, as a launch path drives it."""

    def __init__(self, policy: Any, target: int, sms: int, *, turn: Callable[[], Any] | None = None) -> None:
        self._policy: Callable[[], Any] = turn or (lambda: policy)
        self.words = memoryview(bytearray(8 * w.WORDS)).cast("Q")
        self.words[w.TARGET], self.words[w.SMS], self.words[w.THREADS] = target, sms, 2048
        self.now = SECOND
        self.out = 0  # tokens granted and not over
        self.paces = hasattr(policy, "lease")
        self.watches = hasattr(policy, "observe")

    def lease(self, cost: int) -> int:
        answer = self._policy().lease(0, cost, self.now, self.words)
        assert type(answer) is int, f"lease({cost}) answered {answer!r}, not an int"
        self.out += max(0, answer)
        self.words[w.IN_FLIGHT] = self.out
        return answer

    def drain(self) -> None:
        """All that was granted is over."""
        self.settle(self.out, self.out)

    def settle(self, cost: int, took: int) -> None:
        """Launches that had cost `cost` tokens are over and took `took` ns."""
        self.out -= cost
        self.words[w.CHARGED] += cost
        self.words[w.MEASURED] += took
        self.words[w.IN_FLIGHT] = self.out

    def pass_time(self, wait: int) -> None:
        """Time goes on; an idle GPU is sampled every sixth of a second."""
        end = self.now + wait
        while self.now < end:
            self.now = min(end, self.now + SECOND // 6)
            self._observe(0, 0, fresh=True)

    def _observe(self, busy: int, others: int, *, fresh: bool, exact: bool = False) -> int:
        window = SECOND // 6
        if fresh:
            self.words[w.FLAGS] = w.USABLE | w.KNOWN | (w.EXACT if exact else 0)
            self.words[w.SAMPLE_SEQ] += 1
            self.words[w.SAMPLE_TIME], self.words[w.SAMPLE_WINDOW] = self.now, window
            self.words[w.SAMPLE_OWN], self.words[w.SAMPLE_ALL] = busy * 100, min(100, busy + others) * 100
            self.words[w.SAMPLE_OWN_NS] += busy * window // 100
            self.words[w.SAMPLE_MEASURED] = self.words[w.MEASURED]
            self.words[w.NEIGHBOURS] = others > 0
        if not self.watches:
            return 0
        answer = self._policy().observe(0, busy * window // 100, window, self.now, self.words)
        assert type(answer) is int, f"observe answered {answer!r}, not an int"
        return answer

    def play(self, history: list[Ask], *, check: bool = False) -> list[int]:
        answers = []
        for ask in history:
            self.now += ask.after
            if ask.what == "lease" and self.paces:
                answer = self.lease(ask.cost)
                if check:
                    assert answer != 0, f"lease({ask.cost}) answered 0: neither tokens nor a wait"
                    assert answer > -60 * SECOND, f"lease({ask.cost}) asks to wait {-answer} ns: more than a minute"
                answers.append(answer)
            elif ask.what == "settle":
                self.settle(min(ask.cost, self.out), ask.cost)
            elif ask.what == "observe":
                answers.append(self._observe(ask.busy, ask.others, fresh=ask.fresh, exact=ask.exact))
        return answers
