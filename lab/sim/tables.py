"""Arrays as CSV files, written whole or not at all."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from lab.sim.grade import Run


def write(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A CSV file with a header line."""
    fresh = path.with_name(path.name + ".new")
    with fresh.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
    os.replace(fresh, path)


def write_runs(path: Path, runs: Iterable[Run]) -> None:
    """One row a window and tenant of every run."""
    header = ("controller", "case", "sms", "period_ns", "seed", "second", "tenant", "target", "share_percent")
    write(path, header, (row for run in runs for row in _windows(run)))


def _windows(run: Run) -> Iterable[Sequence[object]]:
    for second, shares in enumerate(run.shares.tolist()):
        for tenant, share in enumerate(shares):
            target = run.case.tenants[tenant][1]
            yield (
                run.controller,
                run.case.name,
                run.sms,
                run.period_ns,
                run.seed,
                second,
                tenant,
                target,
                round(share, 4),
            )
