"""The four quantities of memory for people: a table, a line for every gap, and a picture over time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape as xml

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from lab.checks.model import RunData
from lab.checks.quantities import ALL_DEVICES, Quantities, renumbers, timeline
from lab.scenario.model import Scenario

MIB = 1 << 20
_COLOURS = {"physical": "#4e79a7", "ledger": "#f28e2b", "limit": "#e15759"}


def table(rows: Sequence[Quantities], *, evidence: str = "fake-driver") -> Table:
    """One row a moment, process and device."""
    made = Table(title=f"memory in MiB ({evidence})", title_justify="left", box=SIMPLE_HEAD)
    moments = {row.at for row in rows} != {"now"}
    for column in (*(("at",) if moments else ()), "GPU", "process", "container"):
        made.add_column(column, overflow="fold")
    for column in ("physical", "limit", "ledger", "observed", "gap"):
        made.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        made.add_row(
            *((escape(row.at),) if moments else ()),
            _device(row),
            escape(_process(row)),
            escape(row.container or "-"),
            _plain(row.physical),
            _plain(row.limit) if row.limit else "none",
            _plain(row.ledger),
            _plain(row.observed),
            _plain(row.gap),
        )
    return made


def lines(rows: Sequence[Quantities]) -> Iterator[str]:
    """A line for every gap between what the driver holds and what the ledger says."""
    for row in rows:
        for gap in row.gaps:
            at = "" if row.at == "now" else f"{row.at}, "
            yield f"{at}GPU {_device(row)}, {_process(row)}: {gap}"


def _device(row: Quantities) -> str:
    return "all" if row.device == ALL_DEVICES else str(row.device)


def _process(row: Quantities) -> str:
    if row.process:
        return row.process
    return f"host PID {row.host_pid}" if row.host_pid else f"all of {row.container}"


def _plain(size: int | None) -> str:
    return "unknown" if size is None else f"{size / MIB:,.0f}"


def as_svg(scenario: Scenario, run: RunData) -> str:
    """What each container held and had booked on each device over time, beside its limit; empty without records."""
    panels = []
    for container in scenario.containers:
        same = not renumbers(scenario, container.environment)
        for device in range(len(scenario.node.gpus)):
            curves = timeline(run, container.index, device)
            if not same:
                curves.pop("ledger")
            if any(curves.values()):
                panels.append((container.name, device, curves, container.memory_limit(device) or 0))
    if not panels:
        return ""
    height, width, left = 150, 760, 90
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height * len(panels) + 30}">',
        '<g font-family="sans-serif" font-size="12">',
        f'<text x="10" y="18">{xml(scenario.id)}: memory over time ({xml(run.evidence)})</text>',
    ]
    end = max(time for _, _, curves, _ in panels for points in curves.values() for time, _ in points) or 1
    for number, (name, device, curves, limit) in enumerate(panels):
        top = 30 + number * height
        most = max([limit, *(size for points in curves.values() for _, size in points)]) or 1
        floor, tall, wide = top + height - 30, height - 50, width - left - 20

        out.append(f'<text x="10" y="{top + 16}">{xml(name)}, GPU {device}: at most {most / MIB:,.0f} MiB shown</text>')
        shown = {kind: _steps(points, end) for kind, points in curves.items()}
        if limit:
            shown["limit"] = [(0, limit), (end, limit)]
        for kind, points in shown.items():
            path = " ".join(f"{left + wide * time / end:.1f},{floor - tall * size / most:.1f}" for time, size in points)
            dash = ' stroke-dasharray="6 4"' if kind != "physical" else ""
            out.append(f'<polyline fill="none" stroke="{_COLOURS[kind]}" stroke-width="2"{dash} points="{path}"/>')
        for place_of, kind in enumerate(shown):
            y = top + 36 + 16 * place_of
            out.append(f'<text x="10" y="{y}" fill="{_COLOURS[kind]}">{kind}</text>')
    return "\n".join([*out, "</g></svg>"]) + "\n"


def _steps(points: Sequence[tuple[int, int]], end: int) -> list[tuple[int, int]]:
    """Corners of a curve that keeps each value until the next."""
    found = [(0, 0)]
    for time, size in points:
        found += [(time, found[-1][1]), (time, size)]
    return [*found, (end, found[-1][1])]
