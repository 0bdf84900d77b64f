"""`duty`, corrected by what the container really had: the default.

Events of a container also span the time slices of its neighbours, so with neighbours its own measure is too high. The
board of the node says what it really had, or slowly NVML; the ratio of both, over a decaying sum, scales what is
charged. Bounded, in a dead band, once for each fresh sample, and never below the own measure while nobody else is
there. What the ratio charged wrongly is made good where the sample is of the same work as the measure, which the
board's is. Without samples this is `duty`.
"""

from lab.policy.pacing._words import (
    EXACT,
    FLAGS,
    IN_FLIGHT,
    NEIGHBOURS,
    SAMPLE_ALL,
    SAMPLE_MEASURED,
    SAMPLE_OWN,
    SAMPLE_SEQ,
    TARGET,
    USABLE,
    signed,
    word,
)
from lab.policy.pacing.duty import BALANCE, CORRECTION, NEXT, ONE, Duty

_SEQ, _OWN, _SUM_SEEN, _SUM_OWN, _SUM_WINDOW, _SEQ_AT, MOVED = range(NEXT, NEXT + 7)
_CARRIED, _CARRIED_WINDOW = (
    NEXT + 7,
    NEXT + 8,
)  # of samples in which a kernel ran and none ended: it is settled at its end
_SHORT_MEMORY = 8  # samples
_MEMORY = 64  # NVML credits a sample to one process: only the long run is right
_LOWEST, _HIGHEST = ONE // 8, ONE * 4
_LEND_FOR = 1_500_000_000  # an older sample says nothing about neighbours
_NOISE = 100  # 1/100 percent that others use in an idle sample, by rounding


class Hybrid(Duty):
    """Hard mode. `MOVED` counts how often the correction moved, so that a report can say it."""

    def observe(self, device: int, busy: int, window: int, now: int, shared: memoryview) -> int:
        """The correction in 1/1024."""
        if not window or not shared[FLAGS] & USABLE or shared[SAMPLE_SEQ] == shared[_SEQ] or not shared[TARGET]:
            return shared[CORRECTION]
        self._settle(now, shared)  # charged so far at the correction that held so far
        measured = shared[SAMPLE_MEASURED]
        first = not shared[_SEQ]
        own = max(0, measured - shared[_OWN])
        shared[_SEQ], shared[_OWN], shared[_SEQ_AT] = shared[SAMPLE_SEQ], measured, now
        if first:
            return shared[CORRECTION]
        exact = shared[FLAGS] & EXACT
        running = shared[IN_FLIGHT]
        busy += shared[_CARRIED]
        window += shared[_CARRIED_WINDOW]
        shared[_CARRIED], shared[_CARRIED_WINDOW] = (0, 0) if own or not running else (busy, window)
        if not own:
            return shared[CORRECTION]
        memory = _MEMORY if shared[NEIGHBOURS] and not exact else _SHORT_MEMORY
        seen = shared[_SUM_SEEN] * (memory - 1) // memory + busy
        mine = shared[_SUM_OWN] * (memory - 1) // memory + own
        span = shared[_SUM_WINDOW] * (memory - 1) // memory + window
        shared[_SUM_SEEN], shared[_SUM_OWN], shared[_SUM_WINDOW] = seen, mine, span
        # What is in flight has been seen and not measured, or the other way round: no ground to correct.
        goal = ONE if abs(seen - mine) <= (0 if exact else span // 50) + running else seen * ONE // mine
        if shared[SAMPLE_ALL] <= shared[SAMPLE_OWN] + _NOISE:
            goal = max(goal, ONE)
        correction = shared[CORRECTION]
        if exact and shared[SAMPLE_ALL] > shared[SAMPLE_OWN] + _NOISE:
            # The ratio is an average, what neighbours took is not: what it charged wrongly is made good.
            had = max(own * _LOWEST // ONE, min(own * _HIGHEST // ONE, busy))
            shared[BALANCE] = word(signed(shared[BALANCE]) - had + own * correction // ONE)
        moved = max(_LOWEST, min(_HIGHEST, correction + (goal - correction) // 2))
        if moved != correction:
            shared[CORRECTION] = moved
            shared[MOVED] = shared[MOVED] + 1
        return moved


class HybridSoft(Hybrid):
    """Soft mode: lends time while the newest sample shows nobody else at work, and yields with the next that does."""

    def _lend(self, now: int, shared: memoryview) -> bool:
        if shared[SAMPLE_ALL] > shared[SAMPLE_OWN] + _NOISE or not shared[_SEQ] or now - shared[_SEQ_AT] > _LEND_FOR:
            return False
        shared[BALANCE] = word(self._pending(shared))  # what is lent leaves no debt
        return True
