"""`hooklab pacing`: controllers of compute time against each other, on the simulator, the fake, or a real GPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

_CALLBACK = Callable[[click.Context, click.Parameter, str], list[int]]


def _numbers(low: int, high: int) -> _CALLBACK:
    def read(_context: click.Context, _parameter: click.Parameter, text: str) -> list[int]:
        try:
            found = [int(part) for part in text.split(",")] if text else []
        except ValueError:
            raise click.BadParameter(f"{text!r}: whole numbers with commas between them") from None
        if found and not low <= min(found) <= max(found) <= high:
            raise click.BadParameter(f"{text!r}: each from {low} to {high}")
        return found

    return read


def _words(_context: click.Context, _parameter: click.Parameter, text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _groups(_context: click.Context, _parameter: click.Parameter, text: str) -> list[list[int]]:
    try:
        found = [[int(target) for target in part.split("/")] for part in text.split(",")] if text else []
    except ValueError:
        found = [[]]
    for group in found:
        if len(group) < 2 or not all(1 <= target <= 100 for target in group):
            raise click.BadParameter(f"{text!r}: targets of tenants from 1 to 100, e.g. 30/70,20/20/20/20")
    return found


@click.command()
@click.argument("controllers", nargs=-1, metavar="[NAME|FILE:Class]...")
@click.option(
    "--on", "where", type=click.Choice(["fake", "real", "sim"]), default="fake", show_default=True, help="Driver below."
)
@click.option(
    "--interposer", default="builtin", show_default=True, metavar="builtin|PATH", help="The limiter's library."
)
@click.option("--grade", type=click.Choice(["compute", "memory"]), default="compute", show_default=True, help="What.")
@click.option(
    "--targets", default="30", show_default=True, callback=_numbers(1, 99), metavar="N,N", help="Alone; percent."
)
@click.option(
    "--patterns",
    default="async,sync,mixed",
    show_default=True,
    callback=_words,
    metavar="NAME,...",
    help="What programs do; `help` lists them; sync+async: tenants in turn; trace:FILE.csv plays a trace.",
)
@click.option("--neighbours", default="30/70", show_default=True, callback=_groups, metavar="N/N,...", help="Together.")
@click.option("--gpu", default="a100-80g", show_default=True, metavar="PROFILE", help="fake: GPU of the node.")
@click.option(
    "--sms",
    default="",
    callback=_numbers(1, 1024),
    metavar="N,N",
    help="sim, fake: GPUs with so many SMs.  [default: sim: 16,54,108,132,188; fake: as the profile has]",
)
@click.option(
    "--switch", metavar="DURATION", help="sim, fake: time of a switch between processes, instead of the measured one."
)
@click.option(
    "--seconds", default=10, show_default=True, type=click.IntRange(5, 600), help="Graded, after 3 s to settle."
)
@click.option("--seeds", default=10, show_default=True, type=click.IntRange(1, 1000), help="sim: runs of each.")
@click.option("--seed", default=1, show_default=True, type=click.IntRange(min=0), help="The first one.")
@click.option(
    "--period", default="166666667ns", show_default=True, metavar="DURATION", help="sim: between NVML samples."
)
@click.option(
    "--attribution",
    type=click.Choice(["board", "exact", "winner"]),
    default="board",
    show_default=True,
    help="sim: who had what, by the board of the node, or NVML's samples: each its own, or one process all of it.",
)
@click.option(
    "--sharing",
    type=click.Choice(["slices", "concurrent"]),
    default="slices",
    show_default=True,
    help="sim: of the GPU.",
)
@click.option(
    "--jobs", default=1, show_default=True, type=click.IntRange(min=0), help="sim: at once; 0: all processors."
)
@click.option("--fail-above", type=click.FloatRange(min=0), metavar="POINTS", help="Exit 1 if any MAE is above this.")
@click.option("--csv", type=click.Path(dir_okay=False), help="Write a row a second and tenant.")
@click.option("--plot", type=click.Path(dir_okay=False), help="Write target against achieved over time.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document, nothing else.")
def pacing(controllers: tuple[str, ...], where: str, **options: Any) -> int:
    """Grade controllers: how well a share of the GPU is kept, by a clock that is not the controller's own.

    Without names, all that are built in. Exit status: 0, or 1 with --fail-above when one misses by more.
    """
    from lab.policy.pacing import PACING_NAMES, load_pacing

    if options["patterns"] == ["help"]:
        return _help()
    if options["grade"] == "memory":
        return _memory(controllers, as_json=options["as_json"])
    names = [_absolute(name) for name in controllers] or [name for name in PACING_NAMES if name != "hybrid-soft"]
    for name in names:
        load_pacing(name)  # a wrong one is said before minutes of play, in which its processes would only fall back
    rows = _simulate(names, options) if where == "sim" else _play(names, where, options)
    return _finish(rows, options)


def _absolute(name: str) -> str:
    file, colon, kind = name.rpartition(":")
    return f"{Path(file).absolute()}:{kind}" if colon else name


def _help() -> int:
    from lab.sim.patterns import PATTERNS

    for one in PATTERNS.values():
        click.echo(f"{one.name:12} {one.doc}")
    click.echo("trace:FILE   launches from a CSV file with the columns kernel,blocks,wave_ns,stream,gap_ns,sync")
    return 0


def _duration(options: dict[str, Any], name: str) -> int:
    from lab.scenario.units import parse_duration

    try:
        return parse_duration(options[name])
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=f"--{name}") from None


def _simulate(names: list[str], options: dict[str, Any]) -> list[dict[str, Any]]:
    from lab.sim import grade

    if options["interposer"] != "builtin":
        raise click.UsageError(f"--on sim: there is no model of {options['interposer']}; use --on fake")
    period = _duration(options, "period")
    cases = [
        grade.alone(pattern, target, seconds=options["seconds"])
        for pattern in options["patterns"]
        for target in options["targets"]
        if "+" not in pattern or pattern.startswith("trace:")
    ]
    cases += [
        grade.together(pattern, group, seconds=2 * options["seconds"])
        for pattern in options["patterns"]
        for group in options["neighbours"]
    ]
    matrix = grade.Matrix(
        controllers=tuple(names),
        cases=tuple(cases),
        sms=tuple(options["sms"]) or (16, 54, 108, 132, 188),
        switch_ns=None if options["switch"] is None else _duration(options, "switch"),
        period_ns=period,
        seeds=tuple(range(options["seed"], options["seed"] + options["seeds"])),
        attribution=options["attribution"],
        sharing=options["sharing"],
    )
    runs = list(grade.play_all(matrix, jobs=options["jobs"]))
    if options["csv"]:
        from lab.sim.tables import write_runs

        write_runs(Path(options["csv"]), runs)
    if options["plot"]:
        from lab.sim.plots import shares

        shares(Path(options["plot"]), runs)
    return [run.row() for run in runs]


def _play(names: list[str], where: str, options: dict[str, Any]) -> list[dict[str, Any]]:
    from lab.runner.pacing import run_pacing

    for name in ("csv", "plot"):
        if options[name]:
            raise click.UsageError(f"--{name} belongs to --on sim")
    rows: list[dict[str, Any]] = run_pacing(
        policies=names,
        targets=options["targets"],
        patterns=options["patterns"],
        neighbours=["", *("/".join(map(str, group)) for group in options["neighbours"])],
        gpu=options["gpu"],
        sms=options["sms"],
        switch_ns=None if options["switch"] is None else _duration(options, "switch"),
        window_s=float(options["seconds"]),
        seed=options["seed"],
        on=where,
        interposer=options["interposer"],
        progress=None if options["as_json"] else lambda line: click.echo(line, err=True),
    )
    return rows


def _finish(rows: list[dict[str, Any]], options: dict[str, Any]) -> int:
    from dataclasses import asdict

    from lab.report import pacing as board

    if options["as_json"]:
        lines = [asdict(line) for line in board.leaderboard(rows)]
        click.echo(json.dumps({"schema": "hooklab.pacing/1", "leaderboard": lines, "rows": rows}, indent=1))
    else:
        from lab.report.console import console

        board.show(console(width=170), rows)
    bound = options["fail_above"]
    missed = [] if bound is None else board.above(rows, bound)
    for line in missed:
        click.echo(f"hooklab: {line.policy} misses {line.case} by {line.mae} points, more than {bound:g}", err=True)
    return 1 if missed else 0


def _memory(policies: tuple[str, ...], *, as_json: bool) -> int:
    from dataclasses import asdict

    from lab.sim.memory import grade

    grades = [grade(_absolute(name) if name else "") for name in policies or ("",)]
    if as_json:
        document = {
            "schema": "hooklab.memory-grade/1",
            "evidence": "simulated",
            "grades": [asdict(one) for one in grades],
        }
        click.echo(json.dumps(document, indent=1))
    else:
        for one in grades:
            click.echo(
                f"{one.policy}: {one.asks} asks, {one.admitted} admitted, overshoot {one.overshoot} bytes, "
                f"{one.refused_though_fitting} refused though they fitted, longest starvation {one.starvation} "
                "(evidence simulated)"
            )
    return 1 if any(one.overshoot > 0 for one in grades) else 0
