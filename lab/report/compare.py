"""Two runs side by side: verdicts by check and subject, calls by step and route with the ratio of their medians.

Runs of different evidence classes are never put in one row: then only the verdicts are compared.
"""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lab.checks import Verdict
from lab.report.model import CallRow, RunReport
from lab.report.terminal import COLOURS, environment_line
from lab.scenario.units import format_duration


@dataclass(frozen=True)
class Difference:
    """One row of a comparison; None where a run has no such row."""

    check: str
    subject: str
    first: Verdict | None
    second: Verdict | None

    @property
    def same(self) -> bool:
        """Whether both runs reached the same verdict."""
        return self.first is not None and self.second is not None and self.first.status == self.second.status


def differences(first: RunReport, second: RunReport) -> list[Difference]:
    """Verdicts of both runs, paired by check and the number of its occurrence (subjects may name what failed)."""
    mine, theirs = _numbered(first), _numbered(second)
    rows = []
    for key in [*mine, *(key for key in theirs if key not in mine)]:
        one, other = mine.get(key), theirs.get(key)
        named = one or other
        rows.append(Difference(key[0], named.subject if named is not None else "", one, other))
    return rows


def _numbered(report: RunReport) -> dict[tuple[str, int], Verdict]:
    seen: dict[str, int] = {}
    found: dict[tuple[str, int], Verdict] = {}
    for verdict in report.verdicts:
        found[(verdict.check, seen.get(verdict.check, 0))] = verdict
        seen[verdict.check] = seen.get(verdict.check, 0) + 1
    return found


def show(console: Console, first: RunReport, second: RunReport) -> None:
    """The comparison for people."""
    for name, report in (("A", first), ("B", second)):
        console.print(f"{name}: [{COLOURS[report.status]}]{report.status}[/]  {escape(report.id)}", soft_wrap=True)
        console.print(f"   [dim]{escape(environment_line(report))}[/]", soft_wrap=True)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("check", "subject", "A", "A seen", "B", "B seen"):
        table.add_column(column, overflow="fold")
    for row in differences(first, second):
        cells = []
        for verdict in (row.first, row.second):
            cells += [f"[{COLOURS[verdict.status]}]{verdict.status}[/]", escape(verdict.seen)] if verdict else ["–", ""]
        mark = "" if row.same else " [bold]*[/]"
        table.add_row(row.check + mark, escape(row.subject), *cells)
    console.print(table)
    if first.evidence != second.evidence:
        console.print(f"times are not compared: A is {first.evidence}, B is {second.evidence}")
        return
    calls = _calls(first, second)
    if calls is not None:
        console.print(calls)


def _calls(first: RunReport, second: RunReport) -> Table | None:
    mine = {(row.step, row.function, row.route): row for row in first.calls}
    theirs = {(row.step, row.function, row.route): row for row in second.calls}
    if not mine and not theirs:
        return None
    table = Table(
        title=f"steps by route ({first.evidence})", title_justify="left", box=None, pad_edge=False, header_style="dim"
    )
    for column in ("step", "function", "route"):
        table.add_column(column, overflow="fold")
    for column in ("A ended", "A failed", "A p50", "A p99", "B ended", "B failed", "B p50", "B p99", "B/A p50"):
        table.add_column(column, justify="right")
    for key in [*mine, *(key for key in theirs if key not in mine)]:
        one, other = mine.get(key), theirs.get(key)
        table.add_row(*map(escape, key), *_cells(one), *_cells(other), _ratio(one, other))
    return table


def _cells(row: CallRow | None) -> list[str]:
    if row is None:
        return ["–", "–", "", ""]
    failed = row.count - row.ok + row.unfinished
    times = [format_duration(row.ns[key]) if key in row.ns else "" for key in ("p50", "p99")]
    return [str(row.count), str(failed), *times]


def _ratio(one: CallRow | None, other: CallRow | None) -> str:
    if one is None or other is None or not one.ns.get("p50") or "p50" not in other.ns:
        return ""
    return f"{other.ns['p50'] / one.ns['p50']:.2f}"
