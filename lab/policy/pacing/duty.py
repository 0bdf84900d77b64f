"""Duty cycle on the container's own GPU time: a bucket of GPU-ns, refilled at the target, charged what kernels took.

Debt is repaid before the next launch, without a floor. Credit is capped, but only what nothing in flight will take.
What is in flight must be bounded by the launch path: tokens spent at launch say nothing of when the GPU runs it.
"""

from lab.policy.pacing._words import (
    CHARGED,
    IN_FLIGHT,
    MEASURED,
    NEIGHBOURS,
    OWN,
    RETURNED,
    TARGET,
    Controller,
    signed,
    word,
)

BURST = 25_000_000  # GPU-ns of credit that an idle program may save up
CROWDED = 250_000_000  # and one that has work in flight, which neighbours keep from running
FIRST = 8_000_000  # credit to begin with: the first launches of a program wait for nothing
QUANTUM = 1_000_000  # granted beyond what is asked for, so that most launches need not ask
WAKE = 500_000  # after a wait, so much credit before the next launch
TURN = 2_000_000  # both with neighbours: a whole time slice at once, for every turn costs a switch (0.2 ms on an H200)
PATIENCE = 100_000_000  # since the last grant; then less credit is needed, down to debt that later launches repay
DEBT = 100_000_000  # so much less at most
LOST = 1_000_000_000  # tokens that neither ran nor came back for so long went down with their process
_LONGEST = 50_000_000  # one wait: targets change and brackets settle meanwhile
_SHORTER = 10_000_000  # the same, once patience ends

_STARTED, BALANCE, _FILLED, _SEEN, _REST, _WAITING, CORRECTION, GRANTED, _GRANTED_AT = range(OWN, OWN + 9)
NEXT = OWN + 9
ONE = 1024  # of the correction


class Duty(Controller):
    """Tokens are GPU-ns. `CORRECTION` stays `ONE` here; `GRANTED` is the sum of all grants."""

    def _pending(self, shared: memoryview) -> int:
        """GPU-ns that were granted and have neither completed nor come back, as they will be charged."""
        return max(0, shared[GRANTED] - shared[CHARGED] - shared[RETURNED]) * shared[CORRECTION] // ONE

    def _settle(self, now: int, shared: memoryview) -> int:
        """Brings the bucket up to `now`; the credit that nothing pending will take."""
        measured = shared[MEASURED]
        settled = shared[CHARGED] + shared[RETURNED]
        if not shared[_STARTED]:
            shared[_STARTED] = 1
            shared[_FILLED] = now
            shared[_SEEN] = measured
            shared[CORRECTION] = ONE
            shared[BALANCE] = FIRST
            shared[GRANTED] = settled
        if shared[GRANTED] < settled or (not shared[IN_FLIGHT] and now - shared[_GRANTED_AT] > LOST):
            shared[GRANTED] = settled
        earned = max(0, now - shared[_FILLED]) * shared[TARGET] + shared[_REST]
        shared[_FILLED] = now
        shared[_REST] = earned % 100
        balance = signed(shared[BALANCE]) + earned // 100
        balance -= max(0, measured - shared[_SEEN]) * shared[CORRECTION] // ONE
        shared[_SEEN] = measured
        pending = self._pending(shared)
        most = pending + (CROWDED if shared[IN_FLIGHT] else BURST)
        if balance > most:
            balance = most
        shared[BALANCE] = word(balance)
        return balance - pending

    def _lend(self, now: int, shared: memoryview) -> bool:
        """Whether time that nobody else uses may be used beyond the target."""
        return False

    def lease(self, device: int, cost: int, now: int, shared: memoryview) -> int:
        """At least `cost` GPU-ns, or a wait while there is too little credit."""
        target = shared[TARGET]
        if not 0 < target < 100:
            return cost
        free = self._settle(now, shared)
        # Half before and half after: so the bucket swings evenly around zero whatever a kernel takes.
        wake, quantum = (TURN, TURN) if shared[NEIGHBOURS] else (WAKE, QUANTUM)
        needed = min(cost // 2, BURST - TURN)
        if shared[_WAITING] and needed < wake:
            needed = wake
        waited = now - shared[_GRANTED_AT] - PATIENCE
        if waited > 0:
            needed -= min(waited, DEBT)
        if free < needed and not self._lend(now, shared):
            shared[_WAITING] = 1
            longest, goal = (_LONGEST, max(needed, wake)) if waited + _LONGEST < 0 else (_SHORTER, needed)
            return -min(longest, max(20_000, (goal - free) * 100 // target + 1))
        shared[_WAITING] = 0
        grant = max(cost, min(free, quantum))
        shared[GRANTED] = shared[GRANTED] + grant
        shared[_GRANTED_AT] = now
        return grant

    def observe(self, device: int, busy: int, window: int, now: int, shared: memoryview) -> int:
        """0: samples say nothing here."""
        return 0
