"""`duty`, corrected slowly by NVML: the default.

Events of a container also span the time slices of its neighbours, so with neighbours its own measure is too high. NVML
says what it really had; the ratio of both, over a decaying sum, scales what is charged. Bounded, in a dead band, once
for each fresh sample, and never below the own measure while nobody else is there. Without samples this is `duty`.
"""

from lab.policy.pacing._words import GRANTED, MEASURED, MODE, OTHERS, SAMPLES, SOFT, TARGET, word
from lab.policy.pacing.duty import _BALANCE, CORRECTION, ONE, QUANTUM, Duty

_SEEN, _OWN, _SUM_SEEN, _SUM_OWN, _SUM_WINDOW, _SAMPLED, _MOVED = 16, 17, 18, 19, 20, 21, 22
_CARRIED, _CARRIED_WINDOW = 23, 24  # samples in which a kernel ran and none ended: it is settled at its end
_LOWEST, _HIGHEST = ONE // 8, ONE * 4
_LEND_FOR = 1_500_000_000  # an older sample says nothing about neighbours


class Hybrid(Duty):
    """Hard mode; with the bit SOFT of MODE it lends time while the newest sample shows no neighbour."""

    def _lend(self, free: int, now: int, shared: memoryview) -> bool:
        if not shared[MODE] & SOFT or shared[OTHERS] or not shared[_SEEN] or now - shared[_SAMPLED] > _LEND_FOR:
            return False
        shared[_BALANCE] = word(shared[GRANTED] * shared[CORRECTION] // ONE)  # what is lent leaves no debt
        return True

    def observe(self, device: int, busy: int, window: int, now: int, shared: memoryview) -> int:
        """The correction in 1/1024."""
        if not window or shared[SAMPLES] == shared[_SEEN] or not shared[TARGET]:
            return shared[CORRECTION]
        self._settle(now, shared)  # charged so far at the correction that held so far
        measured = shared[MEASURED]
        own = measured - shared[_OWN] if shared[_SEEN] else 0
        first = not shared[_SEEN]
        shared[_SEEN], shared[_OWN], shared[_SAMPLED] = shared[SAMPLES], measured, now
        if first:
            return shared[CORRECTION]
        busy += shared[_CARRIED]
        window += shared[_CARRIED_WINDOW]
        running = shared[GRANTED] > QUANTUM
        shared[_CARRIED], shared[_CARRIED_WINDOW] = (0, 0) if own or not running else (busy, window)
        if not own:
            return shared[CORRECTION]
        seen = shared[_SUM_SEEN] * 7 // 8 + busy
        mine = shared[_SUM_OWN] * 7 // 8 + own
        span = shared[_SUM_WINDOW] * 7 // 8 + window
        shared[_SUM_SEEN], shared[_SUM_OWN], shared[_SUM_WINDOW] = seen, mine, span
        if not mine or not seen:
            return shared[CORRECTION]
        # What is in flight has been seen and not measured, or the other way round: no ground to correct.
        goal = ONE if abs(seen - mine) <= span // 50 + shared[GRANTED] else seen * ONE // mine
        if not shared[OTHERS]:
            goal = max(goal, ONE)
        correction = shared[CORRECTION]
        moved = max(_LOWEST, min(_HIGHEST, correction + (goal - correction) // 2))
        if moved != correction:
            shared[CORRECTION] = moved
            shared[_MOVED] = shared[_MOVED] + 1  # counted, so that a report can say how often
        return moved
