"""The launch path as a pure model: integers in, integers out, no clock. What the C path does is compared with this.

One for each process and device. It holds tokens, estimates kernels, brackets launches, settles brackets. See
`lab.policy.pacing` for what the words mean.

Equal to the C path to the nanosecond and the token, on one stream of kernels of a millisecond and more that the process
looks at when it asks: tests/pacing/test_differential.py holds both against each other. What differs: a launch that
waits learns here of work that ends meanwhile, and a stream that runs dry inside a bracket ends it here.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from lab.policy.pacing._words import CHARGED, IN_FLIGHT, MEASURED, RETURNED
from lab.sim.board import SLICE, Row

BRACKET = 1_000_000  # estimated GPU-ns after which a bracket is closed
BOUND = 8_000_000  # estimated GPU-ns in flight at once, beside a single launch that is longer
LAUNCHES = 512  # in flight at once, at most
KEEP = 50_000_000  # ns after the last grant for which tokens are kept
WAIT = 50_000_000  # ns of one wait for credit, at most
NAP = (300_000, 5_000_000)  # ns of one wait for room, at least and at most
UNKNOWN = 50_000  # GPU-ns of a launch that was never measured, where nothing is bounded
_LEAST, _MOST = 500, 1 << 42  # GPU-ns of an estimate


class Pacer(Protocol):
    """What the gate asks."""

    def lease(self, device: int, cost: int, now: int, shared: memoryview) -> int: ...
    def observe(self, device: int, busy: int, window: int, now: int, shared: memoryview) -> int: ...


class Estimate:
    """What a kernel is taken to need, GPU-ns, and how often it was measured."""

    __slots__ = ("ns", "samples")

    def __init__(self) -> None:
        self.ns = BOUND  # an unknown kernel fills the bound, so that it runs alone
        self.samples = 0

    def learn(self, took: float) -> None:
        """One more measurement; in floating point, as the C path does it."""
        found = self.ns + (took - self.ns) / 4 if self.samples else took
        self.ns = int(min(max(found, _LEAST), _MOST))
        self.samples += 1


class Bracket:
    """Launches between two events. `open` until its second event is recorded."""

    __slots__ = (
        "ahead",
        "ahead_launches",
        "began",
        "ended",
        "estimate",
        "expected",
        "idle",
        "lazy",
        "left",
        "open",
        "parts",
        "serial",
        "strangers",
    )

    def __init__(self) -> None:
        self.parts: dict[int, list[int]] = {}  # by key: GPU-ns charged, launches
        self.left = 0  # launches that have not ended
        self.estimate = 0
        self.strangers = 0  # launches that were never measured before
        self.began = -1
        self.ended = -1
        self.expected = 0  # when it should be done
        self.serial = 0  # of the gate at its newest launch
        self.open = True
        self.idle = False  # the stream had nothing to do when it was opened
        self.lazy = False  # not measured: the estimate counts
        self.ahead_launches = 0
        self.ahead = 0  # GPU-ns of lazy launches before it that may end with it


class Gate:
    """The launches of one process on one device."""

    def __init__(self, policy: Pacer, words: memoryview, *, device: int = 0) -> None:
        self.policy = policy
        self.words = words
        self.device = device
        self.blocks = getattr(policy, "UNIT", "ns") == "blocks"  # tokens are blocks
        self.bounded = bool(getattr(policy, "BOUNDED", True))
        self.held = 0
        self.kept_until = 0
        self.estimates: dict[int, Estimate] = {}
        self.brackets: deque[Bracket] = deque()
        self.in_flight = 0  # launches
        self.in_flight_ns = 0
        self.strangers = 0  # launches in flight of kernels that were never measured
        self.drain = 0  # when the stream should have nothing left to do
        self._serial = 0
        self._now = 0
        self._spent = 0
        self._until = 0  # end of the newest settled bracket: the next one cannot count from before it
        self._unmeasured = 0  # GPU-ns launched on an idle stream since the last measurement
        self.row: Row | None = None  # of the board

    def _known(self, key: int) -> Estimate:
        found = self.estimates.get(key)
        if found is None:
            found = self.estimates[key] = Estimate()
        return found

    def estimate(self, key: int) -> int:
        """GPU-ns that a launch of `key` is taken to need."""
        return self._known(key).ns

    def _has_room(self, estimate: Estimate) -> bool:
        if not self.bounded or not self.in_flight:
            return True
        need = min(estimate.ns, BOUND // 2) if estimate.samples else estimate.ns
        fits = self.in_flight_ns + need <= BOUND and self.in_flight < LAUNCHES
        return fits and bool(estimate.samples or not self.strangers)

    def ask(self, key: int, blocks: int, now: int) -> int:
        """0 = launch now (tokens are taken), else ns to wait before asking again."""
        self._now = now
        while self.brackets and self.brackets[0].lazy and now >= self.brackets[0].expected:
            self._settle(self.brackets.popleft())
        estimate = self._known(key)
        cost = blocks if self.blocks else estimate.ns
        if now >= self.kept_until:
            self.give_back()
        if not self._has_room(estimate):
            self.close()
            landing = min(bracket.expected for bracket in self.brackets)
            return min(max(landing - now, NAP[0]), NAP[1])
        while self.held < max(cost, 1):
            answer = self.policy.lease(self.device, max(cost - self.held, 1), now, self.words)
            if answer <= 0:
                self.close()
                return min(max(1, -answer), WAIT)
            self.held += answer
            self.kept_until = now + KEEP
        self.held -= cost
        self._spent = cost
        return 0

    def launched(self, key: int) -> Bracket:
        """Books the launch that `ask` let through; the bracket it belongs to."""
        estimate = self._known(key)
        need = estimate.ns if estimate.samples or self.bounded else min(estimate.ns, UNKNOWN)
        bracket = self._bracket(estimate, need)
        part = bracket.parts.setdefault(key, [0, 0])
        part[0] += need
        part[1] += 1
        bracket.left += 1
        bracket.estimate += need
        self._serial += 1
        self.drain = max(self.drain, self._now) + need
        bracket.expected, bracket.serial = self.drain, self._serial
        if self.row is not None:
            self.row.drain = self.drain
            if not self.in_flight:
                self.row.since = self._now
        if not estimate.samples:
            bracket.strangers += 1
            self.strangers += 1
        self.in_flight += 1
        self.in_flight_ns += need
        self.words[IN_FLIGHT] += need
        if bracket.idle or estimate.samples < 2 or bracket.estimate >= BRACKET:
            bracket.open = False
        return bracket

    def _bracket(self, estimate: Estimate, need: int) -> Bracket:
        """What a launch belongs to. On an idle stream it is measured by itself, one in about 1 ms of work."""
        last = self.brackets[-1] if self.brackets else None
        if last is not None and last.open:
            return last
        found = Bracket()
        found.idle = self._now >= self.drain
        if found.idle and estimate.samples >= 2 and self._unmeasured + need < BRACKET:
            found.lazy = True
            self._unmeasured += need
        else:
            self._unmeasured = 0
            if last is not None and last.lazy:  # it ends with this one, as far as anybody knows
                self.brackets.pop()
                found.ahead = last.estimate
                found.ahead_launches = 1
        self.brackets.append(found)
        return found

    def refused(self) -> None:
        """Instead of `launched`: the driver refused the launch that `ask` let through. It costs nothing."""
        self.held += self._spent
        self._serial += 1
        self.drain = max(self.drain, self._now)

    def close(self) -> None:
        """Ends the open bracket: before a wait or a synchronisation."""
        if self.brackets:
            self.brackets[-1].open = False

    def give_back(self) -> None:
        """Returns tokens that are held."""
        self.words[RETURNED] += max(0, self.held)
        self.held = 0

    def ended(self, bracket: Bracket, began: int, ended: int) -> bool:
        """A launch of `bracket` ran from `began` to `ended`; whether something was settled."""
        bracket.left -= 1
        if bracket.began < 0 or began < bracket.began:
            bracket.began = began
        if ended > bracket.ended:
            bracket.ended = ended
        if not any(found.left for found in self.brackets):
            self.close()  # the stream has drained
        settled = False
        while self.brackets and not (self.brackets[0].left or self.brackets[0].open or self.brackets[0].lazy):
            self._settle(self.brackets.popleft())
            settled = True
        return settled

    def _settle(self, bracket: Bracket) -> None:
        span = max(0, bracket.ended - max(bracket.began, self._until))
        end = bracket.ended
        self._until = max(self._until, end)
        if bracket.lazy:
            span, end = bracket.estimate, bracket.expected
        launches = sum(count for _, count in bracket.parts.values())
        cost, took = bracket.estimate + bracket.ahead, span
        if bracket.ahead:  # estimates hold neighbours' turns, a piece may not
            took += min(bracket.ahead, bracket.ahead * span // bracket.estimate)
        self.in_flight -= launches + bracket.ahead_launches
        self.in_flight_ns -= cost
        self.strangers -= bracket.strangers
        if bracket.serial == self._serial:
            self.drain = 0
        words = self.words
        words[MEASURED] += took
        words[CHARGED] += cost
        words[IN_FLIGHT] -= min(cost, words[IN_FLIGHT])
        if self.row is not None:
            single = bracket.idle and launches == 1 and not bracket.ahead
            self.row.ran(end - took, end, single and took <= SLICE)
            if not self.in_flight:
                self.row.since = 0
        if bracket.lazy:
            return
        cost = bracket.estimate
        # Towards what was estimated at launch, scaled: scaling what the estimate has become meanwhile would compound
        # the correction of every bracket that was in flight at once.
        ratio = span / cost if cost else 1.0
        for key, (charged, count) in bracket.parts.items():
            self.estimates[key].learn(charged * ratio / count)
