"""Why a process was, or was not, held to its core limit: a row for each, and a line for each that was not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

COLUMNS = ("process", "state", "policy", "identity", "target", "achieved", "sample age")
NUMBERS = ("paced", "unpaced", "slept s", "longest s")


def table(rows: Sequence[Mapping[str, Any]], *, evidence: str) -> Table:
    """One row a process and limited device; what a limiter measured itself, not what the GPU's clock says."""
    made = Table(title=f"core limits ({evidence})", title_justify="left", box=None, pad_edge=False, header_style="dim")
    for column in COLUMNS:
        made.add_column(column, overflow="fold")
    for column in NUMBERS:
        made.add_column(column, justify="right")
    for row in rows:
        if row["state"] == "unseen":
            made.add_row(escape(_name(row)), "unseen")
            continue
        for device in row["devices"]:
            made.add_row(
                escape(_name(row)),
                row["state"],
                escape(row["policy"]) + (" (instead)" if row["instead"] else ""),
                row["identity"] or "unknown",
                f"{device['target']} %"
                if len(row["devices"]) == 1
                else f"GPU {device['device']}: {device['target']} %",
                "not measured" if device["achieved"] is None else f"{device['achieved']:.1f} %",
                "none" if device["sample_age_s"] is None else f"{device['sample_age_s']:.1f} s",
                _counts(row["paced"]),
                _counts(row["unpaced"]),
                f"{row['slept_s']:.3f}",
                f"{row['longest_s']:.3f}",
            )
    return made


def lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A line for every process that has launched beside its limit, or whose limiter nobody has seen."""
    for row in rows:
        if row["state"] == "unseen":
            yield f"core limit of {_name(row)}: its state is unknown: {row['why']}"
            continue
        if row["instead"]:
            yield f"core limit of {_name(row)}: what HOOKLAB_PACING asks for cannot be used: {row['policy']} applies"
        if row["unpaced_why"]:
            yield f"core limit of {_name(row)}: launches beside it: {_counts(row['unpaced_why'])}"


def _name(row: Mapping[str, Any]) -> str:
    return row["process"] or f"{row['comm']} (PID {row['pid']} in {row['container']})"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "0"
