"""HAMi's controller, faithfully with its faults, and a variant whose step does not grow with the square of the SMs.

A pool of P = SMs * threads * 32 tokens; a launch costs its blocks and waits, polling, while the balance is below zero.
With every call of `observe`, 120 ms, the share moves by a step towards the target and is added to the balance. Nothing
is limited before the first one, and launch-then-wait programs hide behind a balance that one tick fills.
"""

from lab.policy.pacing._words import OWN, SMS, TARGET, THREADS, Controller, signed, word

_POLL = 10_000_000
_STARTED, _BALANCE, _SHARE, _POOL = range(OWN, OWN + 4)


class DeltaHami(Controller):
    """The published law."""

    UNIT = "blocks"
    BOUNDED = False

    def _scale(self, sms: int) -> int:
        return sms * sms

    def lease(self, device: int, cost: int, now: int, shared: memoryview) -> int:
        """`cost`, unless the balance is negative; never more, never less."""
        if not shared[_STARTED] or not 0 < shared[TARGET] < 100:
            return cost
        balance = signed(shared[_BALANCE])
        if balance < 0:
            return -_POLL
        shared[_BALANCE] = word(balance - cost)
        return cost

    def observe(self, device: int, busy: int, window: int, now: int, shared: memoryview) -> int:
        """One tick; the new share."""
        target = shared[TARGET]
        if not shared[_STARTED]:
            shared[_STARTED] = 1
            shared[_POOL] = shared[SMS] * shared[THREADS] * 32
        pool, share, balance = shared[_POOL], shared[_SHARE], signed(shared[_BALANCE])
        if share == pool and balance < 0:
            pool = min(pool * 2, 1 << 62)
            shared[_POOL] = share = pool
        used = busy * 100 // window if window else 0
        far = max(5, abs(target - used))
        step = self._scale(shared[SMS]) * shared[THREADS] * far // 2560
        if far > target // 2:
            step = step * far * 2 // (target + 1)
        share = min(pool, share + step) if used <= target else max(0, share - step)
        shared[_SHARE] = share
        shared[_BALANCE] = word(min(pool, balance + share))
        return share


class DeltaLinear(DeltaHami):
    """The same with a step that grows with the SMs only."""

    def _scale(self, sms: int) -> int:
        return sms * 16
