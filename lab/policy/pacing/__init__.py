"""Controllers of compute time: how much of a GPU a container may use, kept by delaying its launches.

A controller is a policy with `lease` and `observe` (see `lab.policy`) and two more facts about itself:

* ``unit``  what a launch costs: 0 = its number of blocks, 1 = its estimated GPU time in ns
* ``tick``  0 = `observe` is called once for every fresh sample; > 0 = every so many ns, with the newest sample there is

All of its state is in ``shared``, the 64 words of the container's device, so that it works the same in one process, in
several, and in the simulator. The launch path writes the first words (`FACTS`), the controller owns the rest. Words are
unsigned; the controllers read those that may be negative as two's complement.

What the launch path does, in C and in the simulator's model of it alike:

* It takes tokens from what `lease` has granted it and asks again when they do not suffice. It gives tokens back that it
  holds before it asks for more than them, when it synchronises and when it ends, by lowering GRANTED.
* With ``unit`` 1 it estimates each (function, grid) by a moving average, brackets launches by events until about 1 ms
  is estimated, and settles a finished bracket: MEASURED grows by the time between its events, GRANTED falls by what its
  launches had reserved. An answer to wait is worth asking again as soon as a bracket settles.
* Before `observe` it writes OTHERS and counts SAMPLES when the sample is fresh.
"""

from lab.policy.pacing._words import (
    FACTS,
    GRANTED,
    MEASURED,
    MODE,
    OTHERS,
    SAMPLES,
    SMS,
    SOFT,
    TARGET,
    THREADS,
    WORDS,
    Controller,
)

NAMES = ("delta-hami", "delta-linear", "aimd", "pid", "duty", "hybrid")
DEFAULT = "hybrid"

__all__ = [
    "DEFAULT",
    "FACTS",
    "GRANTED",
    "MEASURED",
    "MODE",
    "NAMES",
    "OTHERS",
    "SAMPLES",
    "SMS",
    "SOFT",
    "TARGET",
    "THREADS",
    "WORDS",
    "Controller",
    "make",
]


def make(name: str) -> Controller:
    """A fresh controller by its name. KeyError names those that exist."""
    # Imported one at a time: what a process does not use costs its start nothing.
    if name == "hybrid":
        from lab.policy.pacing.hybrid import Hybrid

        return Hybrid()
    if name == "duty":
        from lab.policy.pacing.duty import Duty

        return Duty()
    if name == "pid":
        from lab.policy.pacing.pid import Pid

        return Pid()
    if name == "aimd":
        from lab.policy.pacing.aimd import Aimd

        return Aimd()
    if name == "delta-hami":
        from lab.policy.pacing.delta import DeltaHami

        return DeltaHami()
    if name == "delta-linear":
        from lab.policy.pacing.delta import DeltaLinear

        return DeltaLinear()
    raise KeyError(f"no controller {name!r}; known: {', '.join(NAMES)}")
