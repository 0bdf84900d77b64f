"""The launch path as a pure model: integers in, integers out, no clock. What the C path does is compared with this.

One for each process and device. It holds tokens, estimates kernels, brackets launches, settles brackets. See
`lab.policy.pacing` for what the words mean.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from lab.policy.pacing import GRANTED, MEASURED
from lab.policy.pacing.duty import IN_FLIGHT

BRACKET = 1_000_000  # estimated GPU-ns after which a bracket is closed
LAUNCHES = 512  # in flight at once, at most
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
    """The launches of one process on one device. `unit` 0: tokens are blocks and nothing is measured."""

    def __init__(self, policy: Pacer, words: memoryview, *, device: int = 0) -> None:
        self.policy = policy
        self.words = words
        self.device = device
        self.unit = int(getattr(policy, "unit", 0))
        self.held = 0
        self.estimates: dict[int, int] = {}
        self.brackets: deque[Bracket] = deque()
        self.in_flight = 0
        self._until = 0  # end of the newest settled bracket: the next one cannot count from before it

    def ask(self, key: int, blocks: int, now: int) -> int:
        """0 = launch now (tokens are taken), else ns to wait before asking again."""
        if self.unit == 0:
            cost = blocks
        else:
            if self.in_flight >= LAUNCHES:
                self.close()
                return IN_FLIGHT
            cost = self.estimates.get(key, IN_FLIGHT)
        if self.held < cost:
            self.give_back()
            answer = self.policy.lease(self.device, cost, now, self.words)
            if answer <= 0:
                self.close()
                return max(1, -answer)
            self.held += answer
        self.held -= cost
        return 0

    def launched(self, key: int) -> Bracket | None:
        """Books the launch that `ask` let through; the bracket it belongs to."""
        if self.unit == 0:
            return None
        known = key in self.estimates
        cost = self.estimates.get(key, IN_FLIGHT)
        if not known:
            self.close()  # an unknown kernel is measured alone
        if not self.brackets or not self.brackets[-1].open:
            self.brackets.append(Bracket())
        bracket = self.brackets[-1]
        bracket.parts.append((key, cost, known))
        bracket.left += 1
        bracket.estimate += cost
        self.in_flight += 1
        if bracket.estimate >= BRACKET:
            bracket.open = False
        return bracket

    def close(self) -> None:
        """Ends the open bracket: before a wait, a synchronisation, an unknown kernel."""
        if self.brackets:
            self.brackets[-1].open = False

    def give_back(self) -> None:
        """Returns tokens that are held."""
        if self.held and self.unit:
            self.words[GRANTED] = max(0, self.words[GRANTED] - self.held)
            self.held = 0

    def ended(self, bracket: Bracket | None, began: int, ended: int) -> bool:
        """A launch of `bracket` ran from `began` to `ended`; whether something was settled."""
        if bracket is None:
            return False
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
        words = self.words
        words[MEASURED] = words[MEASURED] + span
        words[GRANTED] = max(0, words[GRANTED] - sum(cost for _, cost, _ in bracket.parts))
        estimates = self.estimates
        unknown = {key for key, _, known in bracket.parts if not known}
        if unknown:
            each = max(1, span // len(bracket.parts))
            for key in unknown:
                estimates.setdefault(key, each)
            return
        if not bracket.estimate:
            return
        for key in {key for key, _, _ in bracket.parts}:
            old = estimates[key]
            estimates[key] = max(1, (old * (_EWMA - 1) + old * span // bracket.estimate) // _EWMA)
