"""`hooklab bench`: what an interposer costs, bare and interposed measured side by side in one run."""

from __future__ import annotations

import json
from typing import Any

import click


@click.group()
def bench() -> None:
    """Measure overhead as ratios, bare against interposed, side by side in one run."""


@bench.command()
@click.option(
    "--interposer", default="builtin", show_default=True, metavar="builtin|none|PATH", help="What to measure."
)
@click.option("--dialect", default=None, metavar="NAME|FILE", help="How limits reach a foreign interposer.")
@click.option("--gpu", default="a100-80g", show_default=True, metavar="PROFILE", help="Fake GPU.")
@click.option(
    "--memory", default="16GiB", show_default=True, metavar="SIZE", help="Memory limit of the interposed side."
)
@click.option(
    "--cores", metavar="PERCENT", type=click.IntRange(1, 99), help="Core limit of the interposed side; default: none."
)
@click.option(
    "--live", default="0,1000,10000,100000", show_default=True, metavar="N,N", help="Live allocations to time at."
)
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1, 100), help="Processes of each side.")
@click.option("--batches", default=41, show_default=True, type=click.IntRange(1, 1001), help="Batches a figure.")
@click.option(
    "--on", "where", type=click.Choice(["fake", "real"]), default="fake", show_default=True, help="Driver below."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema hooklab.bench/1).")
def calls(**options: Any) -> None:
    """Time driver calls bare and under an interposer.

    Bare, bare again and interposed processes take turns, batch by batch. `added` is the median difference of
    interposed and bare batches; `control` is that of the two bare processes, so what is below it is noise.
    """
    from lab.runner.bench import BenchOptions, measure_calls

    show_progress = not options["as_json"]
    result = measure_calls(
        BenchOptions(
            interposer=options["interposer"],
            dialect=options["dialect"],
            gpu=options["gpu"],
            memory=options["memory"],
            cores=options["cores"],
            live=options["live"],
            rounds=options["rounds"],
            batches=options["batches"],
            on=options["where"],
        ),
        progress=show_progress,
    )
    if options["as_json"]:
        click.echo(json.dumps(result.as_json(), indent=2))
        return
    from rich.markup import escape
    from rich.table import Table

    from lab.report.console import console

    out = console()
    title = f"calls, {result.evidence} evidence, {result.rounds} rounds, interposer {result.interposer}"
    out.print(escape(title), style="italic", soft_wrap=True)
    table = Table(box=None)
    table.add_column("call", no_wrap=True)
    for name in ("live", "bare ns", "interposed ns", "added ns", "control ns", "ratio", "failed"):
        table.add_column(name, justify="right")
    for row in result.rows:
        table.add_row(
            row.call,
            f"{row.live:,}",
            f"{row.bare_ns:,.0f}",
            f"{row.interposed_ns:,.0f}",
            f"{row.added_ns:,.0f}",
            f"{row.control_ns:,.0f}",
            f"{row.ratio:.2f}",
            str(row.failed),
        )
    out.print(table)
    for line in result.failures:
        click.echo(f"hooklab bench: no figure from {line}", err=True)


@bench.command()
@click.option(
    "--cores", default=10, show_default=True, metavar="PERCENT", type=click.IntRange(1, 99), help="Core limit."
)
@click.option("--patterns", default="long,sync,async", show_default=True, metavar="NAME,NAME", help="What is launched.")
@click.option("--policy", default="hybrid", show_default=True, metavar="NAME", help="Controller.")
@click.option("--seconds", default=5, show_default=True, type=click.IntRange(1, 600), help="Of each pattern.")
@click.option("--gpu", default="a100-80g", show_default=True, metavar="PROFILE", help="Fake GPU.")
@click.option(
    "--on", "where", type=click.Choice(["fake", "real"]), default="fake", show_default=True, help="Driver below."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema hooklab.bench.waiting/1).")
def waiting(**options: Any) -> None:
    """Measure the processor time of processes that a core limit holds back.

    A launch that waits sleeps: what is left is the price of waking up, asking and launching, in percent of a core.
    """
    from lab.runner.bench import WaitOptions, measure_waiting

    found = measure_waiting(
        WaitOptions(
            cores=options["cores"],
            patterns=options["patterns"].split(","),
            policy=options["policy"],
            seconds=options["seconds"],
            gpu=options["gpu"],
            on=options["where"],
        )
    )
    if options["as_json"]:
        click.echo(json.dumps(found, indent=2))
        return
    from rich.markup import escape
    from rich.table import Table

    from lab.report.console import console

    out = console()
    title = f"waiting, {found['evidence']} evidence, core limit {found['cores']} %, {found['policy']}"
    out.print(escape(title), style="italic", soft_wrap=True)
    table = Table(box=None)
    table.add_column("pattern", no_wrap=True)
    for name in ("launches", "waited", "waited % of the time", "CPU % of a core"):
        table.add_column(name, justify="right")
    for row in found["rows"]:
        table.add_row(
            escape(row["pattern"]),
            f"{row['launches']:,}",
            f"{row['waits']:,}",
            f"{row['waited_percent']:.1f}",
            f"{row['cpu_percent']:.2f}",
        )
    out.print(table)
