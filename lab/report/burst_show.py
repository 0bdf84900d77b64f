"""Bursts for people: tables, phase composition as bars, and as an SVG file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any
from xml.sax.saxutils import escape as xml

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lab.report import burst
from lab.scenario.units import format_duration

_WIDTH = 60
_MARKS = "#=+:*o%@-~"
_COLOURS = (
    "#4e79a7",
    "#f28e2b",
    "#e15759",
    "#76b7b2",
    "#59a14f",
    "#edc948",
    "#b07aa1",
    "#ff9da7",
    "#9c755f",
    "#bab0ac",
)
_NAMES = {50: "p50", 95: "p95", 99: "p99", 100: "max"}


def _time(ns: float | None) -> str:
    return "never" if ns is None else format_duration(ns)


def show(console: Console, document: Mapping[str, Any]) -> None:
    """Everything a burst says."""
    environment = document["environment"]
    console.print(
        f"burst, evidence {document['evidence']}, seed {document['seed']}; "
        + escape(", ".join(f"{key} {value}" for key, value in environment.items() if value)),
        soft_wrap=True,
        style="dim",
    )
    table = burst.rows(document)
    console.print(_figures(plain_rows(document) or table))
    for row in table:
        for reason, count in sorted(row.failed.items()):
            console.print(f"failed: {row.condition}, {row.interposer}, {row.workers}: {count} x {escape(reason)}")
        told = {name: count for name, count in row.counts.items() if count}
        if told:
            console.print(f"said: {row.condition}, {row.interposer}, {row.workers}: {told}")
    for line in burst.lines(table):
        parts = ", ".join(f"{a} to {b}: {format_duration(slope)}" for a, b, slope in line.slopes)
        console.print(
            f"p99 of {line.condition}, {line.interposer}: {format_duration(line.slope_ns)} a worker, "
            f"R² {line.r_squared:.4f}; piecewise {parts}"
        )
    for result in burst.controls(document):
        console.print(
            f"control {result.name} ({result.interposer}, {result.workers}): {result.theory}: predicted "
            f"{result.predicted}, measured {result.measured} "
            f"({_time(result.figure_ns)} on {_time(result.base_ns)}): [bold]{result.outcome}[/]"
        )
    run = largest(document)
    if run is not None:
        _composition(console, run)


def plain_rows(document: Mapping[str, Any]) -> list[burst.Row]:
    """Rows of conditions, without those that belong to a control."""
    return [row for row in burst.rows(document) if not _of_control(document, row.condition)]


def _of_control(document: Mapping[str, Any], condition: str) -> bool:
    return any(condition in control["conditions"] for control in document.get("controls", ()))


def _figures(table: Sequence[burst.Row]) -> Table:
    shown = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("condition", "interposer"):
        shown.add_column(name)
    for name in (
        "workers",
        "runs",
        "ok",
        "failed",
        "p50",
        "p95",
        "p99",
        "max",
        "cv",
        "mean",
        "summed",
        "wall",
        "offset",
    ):
        shown.add_column(name, justify="right")
    for row in table:
        shown.add_row(
            escape(row.condition),
            escape(row.interposer),
            str(row.workers),
            str(row.repeats),
            str(row.ok),
            str(sum(row.failed.values())),
            *(_time(row.percentiles[rank]) for rank in burst.RANKS),
            "" if row.variation is None else f"{row.variation:.1%}",
            _time(row.mean_ns),
            _time(row.summed_ns),
            _time(row.wall_ns),
            _time(row.release_p99_ns),
        )
    return shown


def largest(document: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The burst with the most workers, the first of them; None without any."""
    runs = [run for run in document["runs"] if not _of_control(document, run["condition"])] or document["runs"]
    return max(runs, key=lambda run: (run["workers"], -run["order"]), default=None)


def _composition(console: Console, run: Mapping[str, Any]) -> None:
    found = burst.composition(run)
    if not found:
        return
    names = list(dict.fromkeys(name for parts in found.values() for name in parts))
    console.print(
        f"\nwhere the time of cuInit went: {run['condition']}, {run['interposer']}, {run['workers']} workers, "
        f"repetition {run['repeat'] + 1}"
    )
    shown = Table(box=None, pad_edge=False, header_style="dim")
    shown.add_column("")
    shown.add_column("segment")
    for rank in found:
        shown.add_column(_NAMES[rank], justify="right")
    for number, name in enumerate(names):
        cells = (format_duration(parts[name]) if name in parts else "" for parts in found.values())
        shown.add_row(_MARKS[number % len(_MARKS)], name, *cells)
    console.print(shown)
    longest = max(sum(parts.values()) for parts in found.values()) or 1
    for rank, parts in found.items():
        bar = "".join(
            _MARKS[number % len(_MARKS)] * round(parts.get(name, 0) / longest * _WIDTH)
            for number, name in enumerate(names)
        )
        console.print(f"{_NAMES[rank]:>4} {escape(bar)}", highlight=False)


def compared(console: Console, first: Mapping[str, Any], second: Mapping[str, Any]) -> list[burst.Change]:
    """Two bursts side by side; the changes."""
    changes = burst.compare(first, second)
    shown = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("condition", "interposer", "workers", "A failed", "B failed", "A p99", "B p99", "B/A", ""):
        shown.add_column(name)
    for change in changes:
        sides = (change.first, change.second)
        shown.add_row(
            escape(change.condition),
            escape(change.interposer),
            str(change.workers),
            *("" if row is None else str(sum(row.failed.values())) for row in sides),
            *("" if row is None else _time(row.percentiles[99]) for row in sides),
            "" if change.ratio is None else f"{change.ratio:.3f}",
            escape(change.words),
        )
    console.print(f"A: evidence {first['evidence']}   B: evidence {second['evidence']}")
    console.print(shown)
    return changes


def as_json(document: Mapping[str, Any]) -> str:
    """The document with its figures beside the raw records."""
    return json.dumps(
        {
            **document,
            "rows": [asdict(row) for row in burst.rows(document)],
            "lines": [asdict(line) for line in burst.lines(burst.rows(document))],
            "control_results": [{**asdict(result), "outcome": result.outcome} for result in burst.controls(document)],
        },
        indent=1,
    )


def as_svg(run: Mapping[str, Any]) -> str:
    """The composition of one burst's p50, p95, p99 and slowest worker as a stacked bar chart."""
    found = burst.composition(run)
    names = list(dict.fromkeys(name for parts in found.values() for name in parts))
    longest = max((sum(parts.values()) for parts in found.values()), default=1) or 1
    colours = {name: _COLOURS[number % len(_COLOURS)] for number, name in enumerate(names)}
    title = f"{run['condition']}, {run['interposer']}, {run['workers']} workers"
    height = 60 + 40 * len(found) + 20 * len(names)
    out = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="760" height="{height}" '
            'font-family="sans-serif" font-size="13">'
        ),
        f'<text x="10" y="20">{xml(title)}</text>',
    ]
    for line, (rank, parts) in enumerate(found.items()):
        top, left = 35 + 40 * line, 60.0
        out.append(f'<text x="10" y="{top + 20}">{_NAMES[rank]}</text>')
        for name in names:
            width = parts.get(name, 0) / longest * 600
            out.append(
                f'<rect x="{left:.2f}" y="{top}" width="{width:.2f}" height="28" fill="{colours[name]}">'
                f"<title>{xml(name)}: {format_duration(parts.get(name, 0))}</title></rect>"
            )
            left += width
        out.append(f'<text x="{left + 6:.0f}" y="{top + 20}">{format_duration(sum(parts.values()))}</text>')
    for line, name in enumerate(names):
        top = 50 + 40 * len(found) + 20 * line
        out.append(f'<rect x="60" y="{top}" width="14" height="14" fill="{colours[name]}"/>')
        out.append(f'<text x="80" y="{top + 12}">{xml(name)}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"
