"""What a broker counts. Plain integers, so that counting costs nothing; `metrics` shows them to Prometheus.

Invariants: every label is one of a fixed handful; nothing is ever counted by PID, user, path or error text.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

BUCKETS_S = (50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 50e-3, 100e-3, 500e-3, 1.0)
"""Upper bounds of the duration histogram, seconds; one more bucket has no bound."""
BAD = ("magic", "version", "command", "truncated")
DIRECTIONS = ("read", "write")


@dataclass(slots=True)
class Counts:
    """Counters since the start, and one gauge."""

    accepted: int = 0
    replies: int = 0
    bad: dict[str, int] = field(default_factory=lambda: dict.fromkeys(BAD, 0))
    credential_failures: int = 0
    """The kernel named no process, or the process has ended."""
    timeouts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(DIRECTIONS, 0))
    active: int = 0
    """Connections that wait for the rest of their request."""
    rejected: int = 0
    """Waiting connections that were closed early to make room."""
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))
    seconds: float = 0.0

    def took(self, seconds: float) -> None:
        """One request ended, answered or not, after this long."""
        self.buckets[bisect_left(BUCKETS_S, seconds)] += 1
        self.seconds += seconds
