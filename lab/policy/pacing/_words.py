"""The words that a controller and the launch path share, and what all controllers have in common."""

from lab.policy._memory import MemoryPolicy

WORDS = 64  # of 64 bits, per container and device

TARGET = 0  # percent of the device's time; 0 or 100 = not limited
SMS = 1  # of the device
THREADS = 2  # per SM, at most
MODE = 3  # bit SOFT
MEASURED = 4  # GPU-ns that finished brackets of the container have taken so far (union over its streams)
GRANTED = 5  # GPU-ns granted and neither settled nor given back: held, queued or running
OTHERS = 6  # ns that other containers were busy within the window of the newest sample
SAMPLES = 7  # fresh samples so far
FACTS = 8  # words below this one are written by the launch path (GRANTED by both)

SOFT = 1  # lend time that nobody else uses
_SIGN = 1 << 63
_MASK = (1 << 64) - 1


def signed(word: int) -> int:
    """A word as a number that may be negative."""
    return (word ^ _SIGN) - _SIGN


def word(number: int) -> int:
    """The other way round; numbers beyond 64 bits stay at the ends."""
    if number >= _SIGN:
        number = _SIGN - 1
    elif number < -_SIGN:
        number = -_SIGN
    return number & _MASK


class Controller(MemoryPolicy):
    """A memory policy that paces too. `unit` and `tick` as the package says."""

    unit = 0
    tick = 0
