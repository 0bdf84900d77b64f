"""The report for people: a table of verdicts for each run, calls by route with failures beside the percentiles, and
where everything lies. Colour and width follow the terminal; plain text everywhere else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lab.checks import INVALID, VALID, Verdict
from lab.report import limiters, quantities
from lab.report.baseline import Comparison
from lab.report.model import CallRow, RunReport
from lab.scenario.units import format_duration, say_size

MOST_ROWS = 24
COLOURS = {"valid": "green", "invalid": "bold red", "unknown": "yellow"}


def show(console: Console, report: RunReport, *, full: bool) -> None:
    """One run. A valid run is a line unless ``full``; anything else always shows its table."""
    took = f" in {format_duration(report.duration_ns)}" if report.duration_ns is not None else ""
    console.print(
        f"[{COLOURS[report.status]}]{report.status}[/]  {escape(report.id)}{took}  [dim]{escape(report.evidence)}[/]",
        soft_wrap=True,
    )
    if report.repeats is not None:
        same = "the same verdicts and fault positions"
        said = f"[red]{len(report.differences)} differences[/]" if report.differences else f"[green]{same}[/]"
        console.print(f"repeats {escape(str(report.repeats))}: {said}", soft_wrap=True)
        for line in report.differences:
            console.print(f"    {escape(line)}", soft_wrap=True)
    if report.status == VALID and not full:
        return
    console.print(_verdicts(report.verdicts))
    for verdict in report.verdicts:
        if verdict.status != VALID:
            _failure(console, verdict)
    if report.calls:
        console.print(_calls(report.calls, report.evidence))
    if report.info.get("measured"):
        console.print(_measured(report.info["measured"], report.evidence))
    for row in report.memory:
        limit = f" of {say_size(row.limit)}" if row.limit else ""
        console.print(
            f"memory: {escape(row.container)}, device {row.device}: at most {say_size(row.peak)}{limit} "
            f"[dim]({row.evidence})[/]"
        )
    if report.quantities:
        shown = report.quantities[:MOST_ROWS]
        console.print(quantities.table(shown, evidence=report.evidence))
        for line in quantities.lines(shown):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        if len(shown) < len(report.quantities):
            console.print(f"{len(report.quantities) - len(shown)} more rows of memory: --json has them")
    if report.pacing:
        shown_rows = report.pacing[:MOST_ROWS]
        console.print(limiters.table(shown_rows, evidence=report.evidence))
        for line in limiters.lines(shown_rows):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        if len(shown_rows) < len(report.pacing):
            console.print(f"{len(report.pacing) - len(shown_rows)} more processes under a core limit: --json has them")
    if report.not_executed:
        console.print(f"kernels: {report.not_executed} launches only took time, their code was not executed")
    for note in report.notes:
        console.print(f"note: {escape(note)}", soft_wrap=True)
    if report.dropped:
        console.print(f"[yellow]history: {report.dropped} records were dropped; counts are lower bounds[/]")
    console.print(f"[dim]{escape(environment_line(report))}[/]", soft_wrap=True)
    if report.directory is not None:
        console.print(f"[dim]run directory: {escape(str(report.directory))}[/]", soft_wrap=True)


def environment_line(report: RunReport) -> str:
    """GPU, driver, interposer, policy, seed and versions in one line."""
    node, options = report.scenario.node, report.scenario.options
    environment = report.info.get("environment")
    known = environment if isinstance(environment, dict) else {}
    gpus = ", ".join(f"{count} × {gpu}" if count > 1 else gpu for gpu, count in Counter(node.gpus).items())
    driver = node.driver
    if report.evidence == "real-gpu":  # what the scenario asks of a fake says nothing of this machine's card
        gpus, driver = known.get("gpus", "unknown"), known.get("driver", "unknown")
    parts = [f"gpu {gpus}", f"driver {driver}", f"interposer {options.interposer or 'builtin'}"]
    if options.policy:
        parts.append(f"policy {options.policy}")
    if options.memory_mode:
        parts.append(f"mode {options.memory_mode}")
    parts += [f"seed {report.scenario.seed}", f"evidence {report.evidence}"]
    parts += [f"{key} {value}" for key, value in known.items() if key in ("hooklab", "revision", "kernel")]
    return "environment: " + ", ".join(parts)


def summary(console: Console, reports: Sequence[RunReport]) -> None:
    """The last line of several runs."""
    counts = Counter(report.status for report in reports)
    said = ", ".join(
        f"[{COLOURS[status]}]{counts[status]} {status}[/]"
        for status in ("valid", "invalid", "unknown")
        if counts[status]
    )
    console.print(f"{len(reports)} runs: {said}")


def compared(console: Console, comparison: Comparison) -> None:
    """Runs against a baseline: what is new, what is gone, how much was expected."""
    for kind, colour, lines in (
        ("not in the baseline", "red", comparison.new),
        ("not in the baseline", "yellow", comparison.unknown),
        ("only in the baseline", "red", comparison.stale),
    ):
        for line in lines:
            console.print(f"[{colour}]{kind}[/]: {escape(line)}", soft_wrap=True)
    said = f"{len(comparison.expected)} runs fail as the baseline says"
    if comparison.unreported:
        said += f", {comparison.unreported} of them without a report's id"
    console.print(f"{said}; {len(comparison.new) + len(comparison.unknown)} new, {len(comparison.stale)} stale")


def _verdicts(verdicts: Sequence[Verdict]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("verdict", "check", "subject", "expected", "seen"):
        table.add_column(column, overflow="fold")
    for verdict in verdicts:
        table.add_row(
            f"[{COLOURS[verdict.status]}]{verdict.status}[/]",
            verdict.check,
            escape(verdict.subject),
            escape(verdict.expected),
            escape(verdict.seen),
        )
    return table


def _failure(console: Console, verdict: Verdict) -> None:
    colour = "red" if verdict.status == INVALID else "yellow"
    console.print(
        f"[{colour}]{escape(verdict.where)}[/]: {escape(verdict.subject)}: expected {escape(verdict.expected)}; "
        f"seen {escape(verdict.seen)}",
        soft_wrap=True,
    )
    for line in verdict.details:
        console.print(f"    {escape(line)}", soft_wrap=True)


def _calls(rows: Sequence[CallRow], evidence: str) -> Table:
    table = Table(
        title=f"steps by route ({evidence})", title_justify="left", box=None, pad_edge=False, header_style="dim"
    )
    for column in ("step", "function", "route"):
        table.add_column(column, overflow="fold")
    for column in ("ended", "ok", "failed", "open", "p50", "p99", "max"):  # open: begun, never ended
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            escape(row.step),
            row.function,
            row.route,
            str(row.count),
            str(row.ok),
            ", ".join(f"{count} {name}" for name, count in row.failures.items()) or "0",
            str(row.unfinished),
            *(format_duration(row.ns[key]) if key in row.ns else "" for key in ("p50", "p99", "max")),
        )
    return table


def _measured(rows: Sequence[Mapping[str, Any]], evidence: str) -> Table:
    """Figures of `measure`: what the interposer adds, beside what two bare processes differ by."""
    table = Table(
        title=f"bare against interposed ({evidence})",
        title_justify="left",
        box=None,
        pad_edge=False,
        header_style="dim",
    )
    table.add_column("figure", overflow="fold")
    for column in ("live", "bare ns", "interposed ns", "added ns", "control ns", "ratio", "failed"):
        table.add_column(column, justify="right")
    for row in rows:
        control = row.get("control_ns")
        table.add_row(
            escape(str(row["call"])),
            f"{row['live']:,}",
            f"{row['bare_ns']:,.0f}",
            f"{row['interposed_ns']:,.0f}",
            f"{row['added_ns']:,.0f}",
            "" if control is None else f"{control:,.0f}",
            f"{row['ratio']:.3f}",
            str(row["failed"]),
        )
    return table
