"""Controllers of compute time: how much of a GPU a container may use, kept by delaying its launches.

A controller is a policy with `lease` and `observe` (see `lab.policy`) and two more facts about itself, both optional:

* ``UNIT``     what a launch costs: ``"ns"`` (default) its estimated GPU time, ``"blocks"`` its number of blocks
* ``BOUNDED``  whether the launch path bounds what is in flight (8 ms of estimated time, 512 launches, at least one);
  default True

``shared`` is 64 unsigned 64-bit words of the container and device. The launch path writes the first 16 before every
call (`_words` has their names and meanings), the rest belongs to the controller. All state lives there and none in the
object: the launch path hands out a copy, and an answer counts only if nobody else changed the words meanwhile; else it
asks again. So no two processes are granted the same tokens, and one controller behaves the same in one process, in
several, and in the simulator. Negative numbers are kept as two's complement.

What the launch path does, in C and in the simulator's model of it alike:

* It takes tokens from what `lease` has granted it and asks for the rest when they do not suffice. More than asked for
  may be granted, so that most launches need not ask; what is left 50 ms after the last grant goes into RETURNED.
* It estimates each (function, grid) by a moving average, brackets launches by events until about 1 ms is estimated, and
  settles a finished bracket: MEASURED grows by the time between its events, CHARGED by what its launches had cost.
* It sleeps what `lease` says, 50 ms at most at a time, and asks again then (in the simulator also when a bracket has
  settled).
* About every 120 ms of activity it calls `observe` with the newest NVML sample there is, which may be the same as last
  time: SAMPLE_SEQ tells. ``busy`` and ``window`` are 0 when NVML cannot be used.
"""

from lab.policy._load import PolicyError, load
from lab.policy.pacing._words import Controller

TYPE_CHECKING = False
if TYPE_CHECKING:
    from lab.policy._protocol import Pacer

PACING_NAMES = ("delta-hami", "delta-linear", "aimd", "pid", "duty", "hybrid", "hybrid-soft")
DEFAULT = "hybrid"

__all__ = ["DEFAULT", "PACING_NAMES", "Controller", "load_pacing", "make"]


def make(name: str) -> Controller:
    """A fresh controller by its name. KeyError names those that exist."""
    # Imported one at a time: what a process does not use costs its start nothing.
    if name == "hybrid":
        from lab.policy.pacing.hybrid import Hybrid

        return Hybrid()
    if name == "hybrid-soft":
        from lab.policy.pacing.hybrid import HybridSoft

        return HybridSoft()
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
    raise KeyError(f"no controller {name!r}; known: {', '.join(PACING_NAMES)}")


def load_pacing(name: str) -> "Pacer":
    """A fresh controller: a name of `PACING_NAMES`, or ``/path/to/file.py:Class``. PolicyError in one line."""
    if ":" not in name:
        try:
            return make(name)
        except KeyError as error:
            raise PolicyError(f"{error.args[0]}, or /path/to/file.py:Class") from None
    found = load(name)
    for method in ("lease", "observe"):
        if not callable(getattr(found, method, None)):
            raise PolicyError(
                f"{name}: paces nothing: it has no method {method}; see the docstring of lab.policy.pacing"
            )
    return found  # type: ignore[return-value]
