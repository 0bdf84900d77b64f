"""Which results a call may plausibly end with (`failures.toml`): what a failure sweep tries."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from lab.spec._errors import load_errors
from lab.spec._toml import HERE, SpecError, check_keys, read


@dataclass(frozen=True)
class FailureTable:
    """Rows in the order of the file: (patterns of names, codes)."""

    rows: tuple[tuple[tuple[str, ...], tuple[int, ...]], ...]

    def codes(self, name: str) -> tuple[int, ...]:
        """The codes of the first row whose pattern fits ``name``; none when no row does."""
        for patterns, codes in self.rows:
            if any(fnmatchcase(name, pattern) for pattern in patterns):
                return codes
        return ()


@functools.cache
def load_failures(path: Path | None = None) -> FailureTable:
    """The table of this hooklab, or of another file of the same form."""
    path = path or HERE / "failures.toml"
    data = read(path)
    check_keys(path, "file", data, frozenset({"row"}))
    known = load_errors().by_name
    rows = []
    for number, row in enumerate(data.get("row", ())):
        check_keys(path, f"row {number}", row, frozenset({"names", "codes"}))
        names, codes = row.get("names"), row.get("codes")
        if not names or not codes:
            raise SpecError(f"{path}: row {number}: needs names and codes")
        for code in codes:
            if code not in known:
                raise SpecError(f"{path}: row {number}: no result is called {code!r}; errors.toml has them")
        rows.append((tuple(names), tuple(known[code].code for code in codes)))
    return FailureTable(tuple(rows))
