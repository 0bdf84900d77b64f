"""`hooklab report`: a run directory read and judged again, or two of them compared."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from lab.report.model import RunReport


@click.command()
@click.argument("directory", metavar="RUN")
@click.argument("other", metavar="[RUN]", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document (docs/report-schema.md), nothing else.")
@click.option("--junit", type=click.Path(dir_okay=False), help="Write JUnit XML to this file too.")
@click.option("--plot", type=click.Path(dir_okay=False), help="Draw the memory of one run over time (SVG file).")
@click.option("--coverage", is_flag=True, help="Show the driver functions that the run called, and those it did not.")
@click.option("--allow-unknown", is_flag=True, help="Exit 0 when nothing is invalid but something is unknown.")
def report(
    directory: str,
    other: str | None,
    as_json: bool,
    junit: str | None,
    plot: str | None,
    coverage: bool,
    allow_unknown: bool,
) -> int:
    """Read and judge a run again, or compare two runs.

    Exit status of one run: as when it was made. Of a comparison: 0 when every verdict is the same, 1 when one differs.
    """
    from lab.report import burst as bursts

    if coverage:
        return _coverage(directory, other, as_json)
    places = [place for place in (directory, other) if place is not None]
    if any(bursts.is_burst(place) for place in places):
        return _burst(places, as_json)
    from lab.report import as_json as json_report
    from lab.report import compare, terminal
    from lab.report import junit as junit_report
    from lab.report.console import console
    from lab.report.model import exit_code, load_run

    reports = [load_run(place) for place in places]
    if plot is not None:
        if len(reports) > 1:
            raise click.UsageError("--plot is of one run")
        _plot(Path(plot), reports[0])
    if junit is not None:
        Path(junit).write_text(junit_report.text(reports), encoding="utf-8")
    if as_json:
        click.echo(json.dumps(json_report.document(reports), indent=1))
    elif len(reports) == 1:
        terminal.show(console(), reports[0], full=True)
    else:
        compare.show(console(), reports[0], reports[1])
    if len(reports) == 2:
        return 0 if all(row.same for row in compare.differences(reports[0], reports[1])) else 1
    return exit_code([reports[0].status], allow_unknown=allow_unknown)


def _plot(file: Path, report: RunReport) -> None:
    from lab.report.model import run_data
    from lab.report.quantities import as_svg

    picture = as_svg(report.scenario, run_data(report))
    if not picture:
        raise click.ClickException(f"{report.directory}: its history has no change of memory; nothing to draw")
    file.write_text(picture, encoding="utf-8")


def _burst(places: list[str], as_json: bool) -> int:
    """One burst, or two compared: then 1 when a row is worse in kind (more workers fail) or cannot be compared."""
    from lab.cli.burst import show
    from lab.report import burst, burst_show
    from lab.report.console import console

    if len(places) == 1:
        return show(Path(places[0]), as_json=as_json)
    first, second = (burst.load_burst(place) for place in places)
    if as_json:
        changes = burst.compare(first, second)
        click.echo(json.dumps([asdict(change) for change in changes], indent=1))
    else:
        changes = burst_show.compared(console(width=150), first, second)
    return 1 if any(change.ratio is None for change in changes) else 0


def _coverage(directory: str, other: str | None, as_json: bool) -> int:
    from lab.runner import coverage

    if other is not None:
        raise click.UsageError("--coverage is of one run")
    try:
        found = coverage.read_coverage(directory)
    except coverage.CoverageError as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        click.echo(json.dumps(found.document(), indent=1))
    else:
        click.echo("\n".join(coverage.lines(found)))
    return 0
