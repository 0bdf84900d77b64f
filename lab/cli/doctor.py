"""`hooklab doctor`: what is built, what this machine allows, and what a process really runs under."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import click


@click.command()
@click.option("--pid", type=int, default=None, help="Examine a running process: interposer, references, region.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema hooklab.doctor/1).")
def doctor(pid: int | None, as_json: bool) -> None:
    """Check the installation and this machine, or a running process.

    Exit status: 0 nothing bad, 1 something is bad, 2 the process cannot be examined.
    """
    from lab.runner import doctor as examine
    from lab.runner.proc import ProcessError

    try:
        sections = (
            {"process": examine.examine_process(pid)}
            if pid is not None
            else {"build": examine.examine_build(), "machine": examine.examine_machine()}
        )
    except ProcessError as error:
        click.echo(f"hooklab doctor: {error}", err=True)
        sys.exit(2)
    bad = any(finding.state == "bad" for findings in sections.values() for finding in findings)
    if as_json:
        body = {name: [asdict(finding) for finding in findings] for name, findings in sections.items()}
        click.echo(json.dumps({"schema": "hooklab.doctor/1", "healthy": not bad, **body}, indent=2))
        sys.exit(1 if bad else 0)
    from rich.markup import escape
    from rich.table import Table

    from lab.report.console import console

    out = console()
    colours = {"ok": "green", "warn": "yellow", "bad": "red"}
    for name, findings in sections.items():
        table = Table(title=name, show_header=False, title_justify="left")
        for column in range(3):
            table.add_column(overflow="fold", no_wrap=column == 0)  # a path cut short proves nothing
        for finding in findings:
            note = f"\n[dim]mend: {escape(finding.mend)}[/dim]" if finding.mend else ""
            table.add_row(
                f"[{colours[finding.state]}]{finding.state}[/]", escape(finding.subject), escape(finding.seen) + note
            )
        out.print(table)
    sys.exit(1 if bad else 0)
