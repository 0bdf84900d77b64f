"""Duty cycle on the container's own GPU time: a bucket of GPU-ns, refilled at the target, charged what kernels took.

Debt is repaid before the next launch, without a floor. Credit is capped, but only what nothing in flight will take.
What is in flight is bounded in estimated time: tokens spent at launch say nothing of when the GPU runs it.
"""

from lab.policy.pacing._words import GRANTED, MEASURED, TARGET, Controller, signed, word

BURST = 25_000_000  # GPU-ns of credit that an idle program may save up
CROWDED = 250_000_000  # and one that has work in flight, which neighbours keep from running
IN_FLIGHT = 8_000_000  # estimated GPU-ns granted at once
QUANTUM = 1_000_000  # granted beyond what is asked for, so that most launches need not ask
WAKE = 500_000  # after a wait, so much credit before the next launch
_LONGEST = 50_000_000  # one wait: targets change and brackets settle meanwhile

_STARTED, _BALANCE, _FILLED, _CHARGED, _REST, _WAITING, CORRECTION = 8, 9, 10, 11, 12, 13, 14
ONE = 1024  # of the correction


class Duty(Controller):
    """Tokens are GPU-ns. `CORRECTION` stays `ONE` here."""

    unit = 1

    def _settle(self, now: int, shared: memoryview) -> int:
        """Brings the bucket up to `now`; the credit that nothing in flight will take."""
        measured = shared[MEASURED]
        if not shared[_STARTED]:
            shared[_STARTED] = 1
            shared[_FILLED] = now
            shared[_CHARGED] = measured
            shared[CORRECTION] = ONE
            shared[_BALANCE] = IN_FLIGHT  # the first launches of a program wait for nothing
        correction = shared[CORRECTION]
        earned = (now - shared[_FILLED]) * shared[TARGET] + shared[_REST]
        shared[_FILLED] = now
        shared[_REST] = earned % 100
        balance = signed(shared[_BALANCE]) + earned // 100
        balance -= (measured - shared[_CHARGED]) * correction // ONE
        shared[_CHARGED] = measured
        granted = shared[GRANTED]
        pending = granted * correction // ONE
        most = pending + (CROWDED if granted > QUANTUM else BURST)
        if balance > most:
            balance = most
        shared[_BALANCE] = word(balance)
        return balance - pending

    def _lend(self, free: int, now: int, shared: memoryview) -> bool:
        """Whether time that nobody else uses may be used beyond the target."""
        return False

    def lease(self, device: int, cost: int, now: int, shared: memoryview) -> int:
        """At least `cost` GPU-ns; to wait while there is debt, or while enough is in flight."""
        target = shared[TARGET]
        if not 0 < target < 100:
            return cost
        free = self._settle(now, shared)
        granted = shared[GRANTED]
        # A kernel longer than the bound still gets its turn, beside others' held tokens but not beside their kernels.
        if granted and granted + min(cost, IN_FLIGHT // 2) > IN_FLIGHT:
            return -IN_FLIGHT
        # Half before and half after: so the bucket swings evenly around zero whatever a kernel takes.
        needed = min(cost // 2, BURST - WAKE)
        if shared[_WAITING] and needed < WAKE:
            needed = WAKE
        if free < needed and not self._lend(free, now, shared):
            shared[_WAITING] = 1
            return -min(_LONGEST, max(20_000, (max(needed, WAKE) - free) * 100 // target + 1))
        shared[_WAITING] = 0
        grant = max(cost, min(free, QUANTUM, IN_FLIGHT - granted))
        shared[GRANTED] = granted + grant
        return grant
