"""The launch path as a pure model: integers in, integers out, no clock. What the C path does is compared with this.

One for each process and device. It holds tokens, estimates kernels, brackets launches, settles brackets. See
`lab.policy.pacing` for what the words mean.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from lab.policy.pacing._words import CHARGED, IN_FLIGHT, MEASURED, RETURNED

BRACKET = 1_000_000  # estimated GPU-ns after which a bracket is closed
BOUND = 8_000_000  # estimated GPU-ns in flight at once, beside a single launch that is longer
LAUNCHES = 512  # in flight at once, at most
KEEP = 50_000_000  # ns after the last grant for which tokens are kept
_EWMA = 4  # a new value counts for a quarter


class Pacer(Protocol):
    """What the gate asks."""

    def lease(self, device: int, cost: int, now: int, shared: memoryview) -> int: ...
    def observe(self, device: int, busy: int, window: int, now: int, shared: memoryview) -> int: ...


class Bracket:
    """Launches between two events. `open` until its second event is recorded."""

    __slots__ = ("began", "ended", "estimate", "left", "open", "parts")

    def __init__(self) -> None:
        self.parts: list[tuple[int, int, bool]] = []  # key, tokens reserved, whether the key was known
        self.left = 0  # launches that have not ended
        self.estimate = 0
        self.began = -1
        self.ended = -1
        self.open = True


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
        self.estimates: dict[int, int] = {}
        self.brackets: deque[Bracket] = deque()
        self.in_flight = 0  # launches
        self.in_flight_ns = 0
        self._until = 0  # end of the newest settled bracket: the next one cannot count from before it

    def estimate(self, key: int) -> int:
        """GPU-ns that a launch of `key` is taken to need; an unknown one fills the bound, so that it runs alone."""
        return self.estimates.get(key, BOUND)

    def ask(self, key: int, blocks: int, now: int) -> int:
        """0 = launch now (tokens are taken), else ns to wait before asking again."""
        need = self.estimate(key)
        if self.bounded and (
            self.in_flight >= LAUNCHES or (self.in_flight and self.in_flight_ns + min(need, BOUND // 2) > BOUND)
        ):
            self.close()
            return BOUND
        cost = blocks if self.blocks else need
        if self.held and now > self.kept_until:
            self.give_back()
        if self.held < cost:
            answer = self.policy.lease(self.device, cost - self.held, now, self.words)
            if answer <= 0:
                self.close()
                return max(1, -answer)
            self.held += answer
            self.kept_until = now + KEEP
            if self.held < cost:
                return 1
        self.held -= cost
        return 0

    def launched(self, key: int) -> Bracket:
        """Books the launch that `ask` let through; the bracket it belongs to."""
        known = key in self.estimates
        need = self.estimate(key)
        if not known:
            self.close()  # an unknown kernel is measured alone
        if not self.brackets or not self.brackets[-1].open:
            self.brackets.append(Bracket())
        bracket = self.brackets[-1]
        bracket.parts.append((key, need, known))
        bracket.left += 1
        bracket.estimate += need
        self.in_flight += 1
        self.in_flight_ns += need
        self.words[IN_FLIGHT] += need
        if bracket.estimate >= BRACKET:
            bracket.open = False
        return bracket

    def close(self) -> None:
        """Ends the open bracket: before a wait, a synchronisation, an unknown kernel."""
        if self.brackets:
            self.brackets[-1].open = False

    def give_back(self) -> None:
        """Returns tokens that are held."""
        self.words[RETURNED] += self.held
        self.held = 0

    def ended(self, bracket: Bracket, began: int, ended: int) -> bool:
        """A launch of `bracket` ran from `began` to `ended`; whether something was settled."""
        self.in_flight -= 1
        bracket.left -= 1
        if bracket.began < 0 or began < bracket.began:
            bracket.began = began
        if ended > bracket.ended:
            bracket.ended = ended
        if not self.in_flight:
            self.close()  # the stream has drained
        settled = False
        while self.brackets and not self.brackets[0].left and not self.brackets[0].open:
            self._settle(self.brackets.popleft())
            settled = True
        return settled

    def _settle(self, bracket: Bracket) -> None:
        span = max(0, bracket.ended - max(bracket.began, self._until))
        self._until = max(self._until, bracket.ended)
        cost = bracket.estimate
        self.in_flight_ns -= cost
        words = self.words
        words[MEASURED] += span
        words[CHARGED] += cost
        words[IN_FLIGHT] -= min(cost, words[IN_FLIGHT])
        estimates = self.estimates
        unknown = {key for key, _, known in bracket.parts if not known}
        if unknown:
            each = max(1, span // len(bracket.parts))
            for key in unknown:
                estimates.setdefault(key, each)
            return
        # Towards what was estimated at launch, scaled: scaling what the estimate has become meanwhile would compound
        # the correction of every bracket that was in flight at once.
        for key, was in {key: need for key, need, _ in bracket.parts}.items():
            estimates[key] = max(1, (estimates[key] * (_EWMA - 1) + was * span // cost) // _EWMA)
