"""`hooklab exec`: any program on a fake GPU, under an interposer and its limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


@click.command("exec", context_settings={"ignore_unknown_options": False})
@click.option("--on", type=click.Choice(["fake", "real"]), default="fake", show_default=True, help="Driver below.")
@click.option("--gpu", default="a100-80g", show_default=True, metavar="PROFILE,...", help="GPUs of the fake node.")
@click.option("--driver", default="580", show_default=True, metavar="VERSION", help="Driver generation of the fake.")
@click.option("--memory", metavar="SIZE", help="Memory limit on each device, e.g. 4GiB.")
@click.option("--cores", metavar="PERCENT", type=click.IntRange(0, 100), help="Core limit.")
@click.option(
    "--interposer", default="builtin", show_default=True, metavar="builtin|none|PATH", help="The library under test."
)
@click.option("--dialect", metavar="NAME|FILE", help="How limits reach the interposer.")
@click.option("--policy", metavar="NAME|FILE:Class", help="Policy of the built-in interposer.")
@click.option("--memory-mode", type=click.Choice(["reserve", "double-check"]), help="How the ledger admits.")
@click.option("--latency", type=click.Choice(["none", "profile"]), default="none", show_default=True,
              help="Modelled durations of driver work.")  # fmt: skip
@click.option("--container", is_flag=True, help="In a container as a device plugin's Allocate makes it.")
@click.option("--history", type=click.Choice(["events", "calls"]), default="events", show_default=True,
              help="How much the run directory records.")  # fmt: skip
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Keep a run directory below this folder.")
@click.option("--quiet", "-q", is_flag=True, help="No evidence line at the end.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- CMD [ARG]...")
def exec_(command: tuple[str, ...], quiet: bool, gpu: str, **options: Any) -> int:
    """Run any program on a fake GPU under an interposer.

    The exit status is the program's own. What the numbers are worth is said on standard error at the end.
    """
    from lab.runner.single import ExecOptions, execute

    result = execute(command, ExecOptions(gpus=tuple(gpu.split(",")), **options))
    if not quiet:
        kept = f"; kept in {result.directory}" if result.directory else ""
        click.echo(f"hooklab: {result.evidence}{kept}", err=True)
    return result.status
