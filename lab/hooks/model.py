"""The matrix as data: one cell a case (name, route, version, stream flags, host), findings beside it, and the counts.

Cells are judged by `lab.hooks.judge`; everything here is a plain value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

HOOKED = "hooked"
PASSES = "passes by decision"
GAP = "gap"
ESCAPE = "escape"
WRONG = "wrong variant"
CRASH = "crash"
HANG = "hang"
OUT = "out of reach"
VERDICTS = (HOOKED, PASSES, OUT, GAP, ESCAPE, WRONG, CRASH, HANG)  # from best to worst
FAULTS = frozenset({GAP, ESCAPE, WRONG, CRASH, HANG})

ROUTES = ("", "link", "dlsym", "default", "next", "dlvsym", "resolver1", "resolver2", "depth3", "entry-point")
HOSTS = ("program", "plugin-local", "plugin-global", "jit", "plugin-deepbind", "namespace")


class Cell(NamedTuple):
    """One case with its verdict."""

    name: str
    """The driver's function that the case is about: the name asked for, or the variant the driver chose."""
    route: str
    version: int
    """CUDA version asked of the resolver; 0 on routes by name."""
    flags: int
    host: str
    verdict: str
    note: str


@dataclass(frozen=True, slots=True)
class Decision:
    """What is meant to happen to a name."""

    hook: bool
    reason: str
    """Why it passes; empty where it is hooked, or where nobody decided."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something found that is no cell: a trait of the library, a broken rule of lookups, a drifted list."""

    kind: str
    subject: str
    text: str
    fault: bool = True
    """False: worth knowing, not wrong."""
    where: str = ""
    """file:line in a source tree; empty otherwise."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What one allocation and its free changed in the view, in bytes; None = it failed there."""

    allocate: str
    free: str
    route: str
    taken: int | None
    left: int | None


@dataclass(frozen=True)
class Matrix:
    """Everything one `hooklab hooks` found."""

    interposer: str
    evidence: str
    driver: str
    cells: tuple[Cell, ...]
    findings: tuple[Finding, ...]
    decisions: Mapping[str, Decision]
    ledger: tuple[Taken, ...] = ()
    agreed: int = 0
    """Cases in which the driver has no answer and neither has the interposer."""
    seconds: float = 0.0
    exports: Mapping[str, str] = field(default_factory=dict)
    """What the interposer exports of the driver's names: name -> visibility and version, as text."""

    def counts(self) -> dict[str, int]:
        """Cells by verdict, every verdict named."""
        found = Counter(cell.verdict for cell in self.cells)
        return {verdict: found.get(verdict, 0) for verdict in VERDICTS}

    def worst(self) -> dict[tuple[str, str], str]:
        """The worst verdict of each (name, route) among the hosts that can be reached."""
        found: dict[tuple[str, str], str] = {}
        rank = {verdict: place for place, verdict in enumerate(VERDICTS)}
        for cell in self.cells:
            if cell.verdict == OUT:
                continue
            key = (cell.name, cell.route)
            if key not in found or rank[cell.verdict] > rank[found[key]]:
                found[key] = cell.verdict
        return found

    def faults(self) -> tuple[Cell, ...]:
        """Cells that are not right."""
        return tuple(cell for cell in self.cells if cell.verdict in FAULTS)


def names(cells: Iterable[Cell]) -> list[str]:
    """The names that cells are about, sorted, each once."""
    return sorted({cell.name for cell in cells})
