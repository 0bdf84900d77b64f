"""Strict expected failures: what is known to be wrong may stay, anything new fails, and so does a silent repair.

A baseline is text, sorted, one line a (verdict, name, route, host) with the versions and flags at which it holds, and
one a finding; `hooklab hooks --write-baseline` writes it.
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from lab.hooks.model import FAULTS, Cell, Finding, Matrix

HEAD = "# hooklab hooks baseline 1: expected faults; a new one fails, and so does one that is gone\n"


class BaselineError(Exception):
    """A file that is no baseline; one line."""


@dataclass(frozen=True)
class Difference:
    """A matrix beside its baseline; texts as in the file."""

    new: tuple[str, ...]
    repaired: tuple[str, ...]
    expected: int
    """Faults that the baseline knows."""

    @property
    def same(self) -> bool:
        """Whether nothing changed."""
        return not self.new and not self.repaired


def entries(matrix: Matrix) -> set[tuple[str, ...]]:
    """Every fault of a matrix as words: a cell with its case, or a finding by kind and subject."""
    found = {_cell(cell) for cell in matrix.cells if cell.verdict in FAULTS}
    return found | {_finding(finding) for finding in matrix.findings if finding.fault}


def _cell(cell: Cell) -> tuple[str, ...]:
    case = f"{cell.version}/{cell.flags}" if cell.version else "-"
    return ("cell", cell.verdict, cell.name, cell.route, cell.host, case)


def _finding(finding: Finding) -> tuple[str, ...]:
    return ("finding", finding.kind, finding.subject)


def write(matrix: Matrix, path: Path) -> int:
    """Writes the baseline; returns how many faults it holds."""
    found = entries(matrix)
    path.write_text(HEAD + "".join(line + "\n" for line in _lines(found)), encoding="utf-8")
    return len(found)


def _lines(found: Iterable[tuple[str, ...]]) -> list[str]:
    cases: dict[tuple[str, ...], list[str]] = defaultdict(list)
    lines = []
    for entry in found:
        if entry[0] == "cell":
            cases[entry[:5]].append(entry[5])
        else:
            lines.append(shlex.join(entry))
    lines += [shlex.join([*key, *sorted(where)]) for key, where in cases.items()]
    return sorted(lines)


def read(path: Path) -> set[tuple[str, ...]]:
    """The faults that a file expects. BaselineError when it is none."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise BaselineError(f"{path}: {reason}; write one with --write-baseline") from None
    found: set[tuple[str, ...]] = set()
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            words = tuple(shlex.split(line))
        except ValueError:
            words = ()
        if len(words) >= 6 and words[0] == "cell":
            found.update((*words[:5], case) for case in words[5:])
        elif len(words) == 3 and words[0] == "finding":
            found.add(words)
        else:
            raise BaselineError(f"{path}:{number}:1: not a line of a baseline; write it with --write-baseline")
    return found


def compare(matrix: Matrix, expected: set[tuple[str, ...]]) -> Difference:
    """What is new and what is gone."""
    found = entries(matrix)
    return Difference(
        new=tuple(_lines(found - expected)), repaired=tuple(_lines(expected - found)), expected=len(found & expected)
    )
