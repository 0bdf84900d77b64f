"""What a simulated burst says beyond its figures: how many processes fit, who runs unpaced, whence the constants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lab.scenario.units import say_size


def show(console: Console, document: Mapping[str, Any]) -> None:
    """Nothing for a burst of real processes."""
    held = document.get("capacity")
    if not isinstance(held, Mapping):
        return
    cards = f"{held['gpus']} x {held['gpu']}"
    console.print(
        f"\nfits: {held['fit']} of {held['workers']} processes with a bare context of "
        f"{say_size(held['context_bytes'])} ({held['context_tag']}) in one container on {escape(cards)}",
        soft_wrap=True,
    )
    console.print(f"  the cards hold {held['contexts']} contexts", soft_wrap=True)
    if held["in_one_container"] is not None:
        console.print(
            f"  a container of {say_size(held['memory'])} holds {held['in_one_container']}; "
            f"{held['containers_by_memory']} such containers fit without overbooking memory",
            soft_wrap=True,
        )
    if held["containers_by_cores"] is not None:
        console.print(
            f"  {held['containers_by_cores']} containers of {held['cores']} % fit without overbooking time",
            soft_wrap=True,
        )
    for run in document["runs"]:
        counts, workers = run["counts"], run["workers"]
        line = f"  {escape(run['condition'])}, {workers}: {counts['identity gave up']} gave up at the identity gate"
        if held["cores"]:
            line += f" and run without their core limit, silently: {counts['run unpaced']} of {workers} unpaced"
        console.print(line, soft_wrap=True)
    constants(console, document["constants"])


def constants(console: Console, entries: list[Mapping[str, Any]]) -> None:
    """Every constant with its tag and source."""
    console.print()
    table = Table(title="constants", box=None, pad_edge=False, header_style="dim", title_justify="left")
    table.add_column("constant", no_wrap=True)
    table.add_column("value", justify="right")
    for name in ("unit", "tag", "source"):
        table.add_column(name)
    for entry in entries:
        value = f"{entry['value']:,}"
        table.add_row(entry["name"], value, entry["unit"], entry["tag"], escape(entry["source"]))
    console.print(table)


def show_fit(console: Console, found: Mapping[str, Any]) -> None:
    """The fit to the article's table."""
    table = Table(
        title=f"p99 of cuInit in s, evidence {found['evidence']}", box=None, pad_edge=False, title_justify="left"
    )
    table.add_column("condition")
    for name in ("workers", "given", "model", "error", "left out", "density left out"):
        table.add_column(name, justify="right")
    for cell in found["cells"]:
        table.add_row(
            cell["condition"],
            str(cell["workers"]),
            f"{cell['given']:.2f}",
            f"{cell['model']:.2f}",
            *(f"{cell[key]:+.2f} %" for key in ("error", "left_out", "density_left_out")),
        )
    console.print(table)
    console.print(
        f"fit {found['rms_percent']:.2f} % rms, at most {found['worst_percent']:.2f} %; one cell left out "
        f"{found['left_out_rms_percent']:.2f} % rms; a whole density left out at most "
        f"{found['density_left_out_worst_percent']:.2f} %",
        soft_wrap=True,
    )
    constants(console, found["constants"])
