"""Whether the processes that a meeting still waits for are at rest, and so cannot come by themselves.

An interposer that holds a lock across the driver call lets one caller in and puts the others to sleep: they never come
while the first waits for them. That shows from outside: every thread of theirs sleeps and uses no processor time. What
cannot be judged (a stopped process, one in the kernel, one that is gone) is not at rest.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Rest:
    """One look at a process: whether all its threads sleep, and the processor time it has used (clock ticks)."""

    asleep: bool
    ticks: int


def threads(pid: int) -> int:
    """How many threads the process has now; 0 when it is gone."""
    try:
        return sum(1 for _ in Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return 0


def look(pid: int) -> Rest:
    """Look at a process through /proc."""
    states, ticks = set(), 0
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            # The name in parentheses may hold anything; the fields after it are fixed: state first, times 11 later.
            fields = (task / "stat").read_text().rpartition(")")[2].split()
            states.add(fields[0])
            ticks += int(fields[11]) + int(fields[12])
    except OSError:
        return Rest(False, 0)
    return Rest(states == {"S"}, ticks)


class Stillness:
    """Remembers since when nothing has changed. One a meeting."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._seen: Hashable = None
        self._since = 0.0
        self._situation: Hashable = None
        self._situation_since = 0.0

    def unchanged(self, situation: Hashable, now_s: float) -> float:
        """Seconds that this situation has lasted, whoever is at rest."""
        if situation != self._situation:
            self._situation, self._situation_since = situation, now_s
        return now_s - self._situation_since

    def lasts(self, situation: Hashable, resting: Sequence[Rest], now_s: float) -> bool:
        """Whether this situation has lasted for the whole patience with all of `resting` asleep and idle."""
        seen = (situation, tuple(resting))
        if seen != self._seen or not all(rest.asleep for rest in resting):
            self._seen, self._since = seen, now_s
            return False
        return now_s - self._since >= self._patience_s
