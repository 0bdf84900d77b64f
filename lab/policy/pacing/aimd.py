"""Additive increase, multiplicative decrease of a block rate, after public forms.

Below 87.5 % of the target the share rises by a constant, above it is cut by a third, at most every second time, so
that one stale sample does not cut twice. It settles a little below its target by design.
"""

from lab.policy.pacing._words import OWN, SMS, TARGET, THREADS, Controller, signed, word

_POLL = 10_000_000
_STARTED, _BALANCE, _SHARE, _COOLDOWN = range(OWN, OWN + 4)


class Aimd(Controller):
    """Tokens are blocks."""

    UNIT = "blocks"
    BOUNDED = False

    def lease(self, device: int, cost: int, now: int, shared: memoryview) -> int:
        """`cost`, unless the balance is negative."""
        if not 0 < shared[TARGET] < 100:
            return cost
        if not shared[_STARTED]:
            self._start(shared)
        balance = signed(shared[_BALANCE])
        if balance < 0:
            return -_POLL
        shared[_BALANCE] = word(balance - cost)
        return cost

    def _start(self, shared: memoryview) -> None:
        shared[_STARTED] = 1
        shared[_SHARE] = shared[_BALANCE] = shared[SMS] * shared[THREADS] * shared[TARGET] // 400

    def observe(self, device: int, busy: int, window: int, now: int, shared: memoryview) -> int:
        """One tick; the new share."""
        if not shared[_STARTED]:
            self._start(shared)
        share, balance, cooldown = shared[_SHARE], signed(shared[_BALANCE]), shared[_COOLDOWN]
        if cooldown:
            cooldown -= 1
        if busy * 800 < shared[TARGET] * window * 7:
            share += shared[SMS] * shared[THREADS] * 3 // 8
        elif not cooldown:
            share = max(shared[SMS] * shared[THREADS] // 1024, share - share // 3)
            cooldown = 2
        pool = shared[SMS] * shared[THREADS] * 32
        shared[_SHARE] = share = max(1, min(share, pool))
        shared[_COOLDOWN] = cooldown
        shared[_BALANCE] = word(min(pool, balance + share))
        return share
