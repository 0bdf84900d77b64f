"""The words that a controller and the launch path share, and what all controllers have in common."""

from lab.policy._memory import MemoryPolicy

WORDS = 64  # of 64 bits, per container and device

# Written by the launch path before every call; what a controller writes there is dropped.
TARGET = 0  # percent of the device's time, 1..99; anything else = not limited
SMS = 1
THREADS = 2  # per SM, at most
FLAGS = 3  # USABLE | KNOWN | EXACT
MEASURED = 4  # ns of own kernel time that has completed: by events, union over streams, whole container; never falls
CHARGED = 5  # ns that were estimated for that same work when it was launched; never falls
RETURNED = 6  # tokens that were granted and came back unused; never falls
IN_FLIGHT = 7  # ns estimated of what the container has launched and not completed
SAMPLE_SEQ = 8  # fresh samples so far
SAMPLE_TIME = 9  # of the newest
SAMPLE_OWN = 10  # own use in it, 1/100 percent
SAMPLE_ALL = 11  # everybody's
SAMPLE_WINDOW = 12  # ns
NEIGHBOURS = 13  # other processes seen on the device
SAMPLE_OWN_NS = 14  # sum over samples of own busy ns; never falls
SAMPLE_MEASURED = 15  # what was measured, up to the newest sample

# The controller's own from here on; zero when the region is made.
OWN = 16

USABLE, KNOWN = 1, 2
EXACT = 4  # the sample is from the board of the node, where everybody writes when they had work on the GPU; else NVML's
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
    """A memory policy that paces too. What the two constants mean is said in the package."""

    UNIT = "ns"
    BOUNDED = True
