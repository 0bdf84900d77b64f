"""A proportional-integral controller of the rate of block tokens, acting once on every fresh sample.

Velocity form on the relative error: the rate changes by a fraction of itself, so one pair of gains fits kernels of any
size. Acting twice on one sample would oscillate.
"""

from lab.policy.pacing._words import OWN, SAMPLE_SEQ, SMS, TARGET, Controller, signed, word

_KP, _KI, _ONE = 150, 200, 1024
_BUCKET = 50_000_000  # ns of rate that may be saved up
_STARTED, _BALANCE, _RATE, _FILLED, _ERROR, _SEEN, _SPENT, _REST, _KNOWN = range(OWN, OWN + 9)
_SECOND = 1_000_000_000


class Pid(Controller):
    """`_RATE` is in blocks a second; `_BALANCE` in blocks."""

    UNIT = "blocks"

    def _fill(self, now: int, shared: memoryview) -> int:
        if not shared[_STARTED]:
            shared[_STARTED] = 1
            shared[_FILLED] = now
            shared[_RATE] = shared[SMS] * shared[TARGET] * 320  # about one block an SM each 30 us at 100 %
        rate = shared[_RATE]
        earned = rate * (now - shared[_FILLED]) + shared[_REST]
        shared[_FILLED] = now
        shared[_REST] = earned % _SECOND
        balance = min(signed(shared[_BALANCE]) + earned // _SECOND, max(1, rate * _BUCKET // _SECOND))
        shared[_BALANCE] = word(balance)
        return balance

    def lease(self, device: int, cost: int, now: int, shared: memoryview) -> int:
        """`cost` once the debt of earlier launches is repaid."""
        if not 0 < shared[TARGET] < 100:
            return cost
        balance = self._fill(now, shared)
        if balance < 0:
            return -min(20_000_000, max(100_000, -balance * _SECOND // max(1, shared[_RATE])))
        shared[_BALANCE] = word(balance - cost)
        shared[_SPENT] = word(shared[_SPENT] + cost)
        return cost

    def observe(self, device: int, busy: int, window: int, now: int, shared: memoryview) -> int:
        """The new rate; a sample that was seen before changes nothing."""
        target = shared[TARGET]
        if not target or not window or shared[SAMPLE_SEQ] == shared[_SEEN]:
            return shared[_RATE]
        balance = self._fill(now, shared)
        first = shared[_SEEN] == 0
        shared[_SEEN] = shared[SAMPLE_SEQ]
        rate, spent = shared[_RATE], shared[_SPENT]
        shared[_SPENT] = 0
        goal = target * window
        error = max(-_ONE, min(_ONE, (goal - busy * 100) * _ONE // goal))
        before = 0 if first else signed(shared[_ERROR])
        shared[_ERROR] = word(error)
        if shared[_KNOWN] < 3 and busy and abs(error) > _ONE // 4:  # nothing is known yet: scale instead of creeping
            rate = max(rate // 16, min(rate * 16, spent * goal * _SECOND // (busy * 100 * window)))
            shared[_KNOWN] = shared[_KNOWN] + 1
        elif error < 0 or balance * 2 * _SECOND < rate * _BUCKET:  # no windup while the program asks for less
            rate += rate * (_KP * (error - before) + _KI * error) // (_ONE * _ONE)
        shared[_RATE] = max(shared[SMS], min(rate, 1 << 48))
        return shared[_RATE]
