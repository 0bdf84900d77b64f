"""Whether a run was right: pure functions of a scenario, a history and the facts about a run.

Invariants: no check reads a file, a clock or the environment; none raises on any history; each verdict names what was
expected and what was seen.
"""

from lab.checks.history import HistoryData, HistoryError
from lab.checks.judge import judge
from lab.checks.model import INVALID, UNKNOWN, VALID, RunData, Verdict, worst

__all__ = [
    "INVALID",
    "UNKNOWN",
    "VALID",
    "HistoryData",
    "HistoryError",
    "RunData",
    "Verdict",
    "judge",
    "worst",
]
