"""Hand-made histories: records by keyword, runs of a scenario text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from lab.checks import RunData, Verdict, judge
from lab.checks.history import dtype, event, from_records
from lab.scenario.load import loads
from lab.scenario.model import Scenario

DEFAULTS = {"name": 0xFFFF, "process": 0, "step": 0xFFFF, "container": 0, "device": 0, "commit": 1, "pid": 1}


def history(rows: Sequence[Mapping[str, Any]], **lost: int) -> Any:
    """A history of rows: ``{"event": "STEP_END", "step": 1, ...}``; times count up unless given."""
    records = np.zeros(len(rows), dtype())
    for index, row in enumerate(rows):
        for key, value in {"time_ns": index + 1, **DEFAULTS, **row}.items():
            field = event(value) if key == "event" else value
            records[index][key] = np.uint64(field % 2**64) if key in "abc" else field
    return from_records(records, **lost)


class Lab:
    """Judges hand-made runs of small scenarios."""

    def scenario(self, text: str) -> Scenario:
        (scenario,) = loads(text, "f")
        return scenario

    def run(self, rows: Sequence[Mapping[str, Any]], *, info: Mapping[str, Any] | None = None, **lost: int) -> RunData:
        return RunData(history(rows, **lost), {"evidence": "fake-driver", **(info or {})})

    def verdict(self, text: str, rows: Sequence[Mapping[str, Any]], check: str, **more: Any) -> Verdict:
        """The only verdict of this check."""
        (found,) = [one for one in judge(self.scenario(text), self.run(rows, **more)) if one.check == check]
        return found

    def checks(self, text: str, rows: Sequence[Mapping[str, Any]], **more: Any) -> dict[str, str]:
        return {one.check: one.status for one in judge(self.scenario(text), self.run(rows, **more))}


@pytest.fixture(scope="session")
def lab() -> Lab:
    return Lab()
