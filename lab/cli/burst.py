"""`hooklab burst`: many processes start at once; what it costs them, phase by phase, under one condition or another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


def _numbers(_context: click.Context, _parameter: click.Parameter, text: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        raise click.BadParameter(f"{text!r}: write numbers of workers, e.g. 1,8,32") from None
    if not found or min(found) < 1 or max(found) > 10_000:
        raise click.BadParameter(f"{text!r}: 1 to 10000 workers")
    return found


@click.command()
@click.option("--workers", default="1,2,8,32", show_default=True, metavar="N,N", callback=_numbers, help="Sizes.")
@click.option("--repeat", default=1, show_default=True, type=click.IntRange(1, 1000), help="Bursts of each kind.")
@click.option(
    "--on", "where", type=click.Choice(["fake", "real", "sim"]), default="fake", show_default=True, help="Driver."
)
@click.option(
    "--interposer", multiple=True, metavar="builtin|none|PATH", help="The library under test; several compare."
)
@click.option("--condition", multiple=True, metavar="NAME|NAME:KEY=VALUE,...", help="What differs between bursts.")
@click.option("--control", multiple=True, metavar="NAME", help="A theory to test, e.g. nested_retain or no_probe.")
@click.option("--gpu", default="a100-80g", show_default=True, metavar="PROFILE,...", help="GPUs of the node.")
@click.option("--driver", default="580", show_default=True, metavar="VERSION", help="Driver generation of the fake.")
@click.option("--memory", default=None, metavar="SIZE", help="Memory limit of the container.")
@click.option("--cores", default=None, type=click.IntRange(0, 100), metavar="PERCENT", help="Core limit.")
@click.option("--dialect", default=None, metavar="NAME|FILE", help="How limits reach a foreign interposer.")
@click.option("--policy", default=None, metavar="NAME|FILE:Class", help="Policy of the built-in interposer.")
@click.option(
    "--latency", default="none", show_default=True, metavar="none|profile|NAME=DURATION,...", help="Of the fake."
)
@click.option(
    "--time-scale", default=1.0, show_default=True, type=click.FloatRange(0, min_open=True), help="Of latencies."
)
@click.option("--context", default=None, metavar="SIZE", help="What a context takes instead of the profile's size.")
@click.option("--visible", type=click.Choice(["all", "spread"]), default="all", show_default=True, help="Devices seen.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Of the order of bursts.")
@click.option("--timeout", default="120s", show_default=True, metavar="DURATION", help="Of one burst.")
@click.option(
    "--out", type=click.Path(file_okay=False), default="runs", show_default=True, help="Parent of the directory."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document (docs/report-schema.md), nothing else.")
@click.option("--plot", type=click.Path(dir_okay=False), help="Write the phase composition to this SVG file.")
@click.option("--csv", type=click.Path(dir_okay=False), help="sim: write one row a worker to this file.")
@click.option("--pod", type=click.Path(exists=True, dir_okay=False), help="sim: take limits from this Pod manifest.")
@click.option("--fit", is_flag=True, help="Fit the start-up model to the article's table, with errors.")
@click.option("--trace", type=click.Path(dir_okay=False), help="Write a Perfetto trace (extra `trace`).")
def burst(workers: list[int], where: str, **options: Any) -> int:
    """Release many fresh processes into cuInit at once and show where their time goes.

    Percentiles are nearest rank over all workers; one that failed counts as never finished. Exit status: 0, or 1 when
    a worker failed.
    """
    source = click.get_current_context().get_parameter_source
    if options["fit"] and source("where") is click.core.ParameterSource.DEFAULT:
        where = "sim"  # there is nothing else that it could mean
    if where != "sim":
        for name in ("csv", "pod", "fit"):
            if options[name]:
                raise click.UsageError(f"--{name} belongs to --on sim")
        directory = _play(workers, where, options)
        return show(directory, as_json=options["as_json"], plot=options["plot"], trace=options["trace"])
    if options["fit"]:
        return _fit(as_json=options["as_json"])
    given = source("workers") is not click.core.ParameterSource.DEFAULT
    return _simulate(workers if given or not options["pod"] else None, options)


def _play(workers: list[int], where: str, options: dict[str, Any]) -> Path:
    from lab.report.burst_phases import read_raw
    from lab.runner.burst import BurstOptions, run_burst
    from lab.scenario.units import parse_duration

    try:
        timeout_ns = parse_duration(options["timeout"])
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--timeout") from None
    asked = BurstOptions(
        workers=workers,
        repeat=options["repeat"],
        interposers=options["interposer"] or ("builtin",),
        conditions=options["condition"] or (() if options["control"] else ("baseline",)),
        controls=options["control"],
        gpus=options["gpu"].split(","),
        driver=options["driver"],
        memory=options["memory"],
        cores=options["cores"],
        dialect=options["dialect"],
        policy=options["policy"],
        latency=options["latency"],
        time_scale=options["time_scale"],
        context=options["context"],
        visible=options["visible"],
        on=where,
        seed=options["seed"],
        timeout_s=timeout_ns / 1e9,
        out=Path(options["out"]),
    )
    progress = None if options["as_json"] else lambda line: click.echo(line, err=True)
    return run_burst(asked, read_raw=read_raw, progress=progress)


def _fit(*, as_json: bool) -> int:
    import json

    from lab.report import burst_sim
    from lab.report.console import console
    from lab.sim import burst as simulated
    from lab.sim.fit import fit

    progress = None if as_json else lambda done, total: click.echo(f"fit {done} of {total}", err=True)
    found = simulated.fit_document(fit(progress=progress))
    if as_json:
        click.echo(json.dumps(found, indent=1))
    else:
        burst_sim.show_fit(console(), found)
    return 0


def _simulate(workers: list[int] | None, options: dict[str, Any]) -> int:
    """`workers` None: as many as the Pod manifest has containers."""
    from lab.report import burst as figures
    from lab.report import burst_sim
    from lab.report.console import console
    from lab.scenario.units import parse_size
    from lab.sim.burst import simulate_burst

    for name in ("memory", "context"):
        try:
            options[f"{name}_bytes"] = None if options[name] is None else parse_size(options[name])
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint=f"--{name}") from None
    if options["pod"]:
        workers = _from_pod(workers, options)
    assert workers is not None
    directory = simulate_burst(
        workers=workers, repeat=options["repeat"], seed=options["seed"], out=Path(options["out"]), options=options
    )
    document = figures.load_burst(directory)
    if options["csv"]:
        _csv(Path(options["csv"]), document)
    plot = options["plot"]
    if plot and not plot.endswith(".svg"):
        from lab.sim import plots

        plots.started(Path(plot), _series(document))
        plot = None
    code = show(directory, as_json=options["as_json"], plot=plot, trace=options["trace"])
    if not options["as_json"]:
        burst_sim.show(console(), document)
    return code


def _from_pod(workers: list[int] | None, options: dict[str, Any]) -> list[int]:
    """Puts the manifest's limits into `options`; the numbers of workers."""
    from lab.sim import pod
    from lab.spec.profile import load_profile

    requests = pod.read(Path(options["pod"]))
    first = requests[0]
    if any(
        (one.gpus, one.memory, one.memory_percent, one.cores)
        != (first.gpus, first.memory, first.memory_percent, first.cores)
        for one in requests
    ):
        raise click.ClickException(
            f"{options['pod']}: its containers have different limits; give one of them at a time"
        )
    profile = options["gpu"].split(",")[0]
    memory = first.memory
    if memory is None and first.memory_percent is not None:
        memory = load_profile(profile).cuda_total_bytes * first.memory_percent // 100
    if options["memory_bytes"] is None:
        options["memory_bytes"] = memory
    if options["cores"] is None:
        options["cores"] = first.cores
    if "," not in options["gpu"]:
        options["gpu"] = ",".join([profile] * max(1, first.gpus))
    return workers or [max(1, sum(one.copies for one in requests))]


def _csv(path: Path, document: Any) -> None:
    from lab.sim.tables import write

    names = list(dict.fromkeys(name for run in document["runs"] for one in run["raw"] for name in one["phases"]))
    rows = (
        (
            *(run[key] for key in ("condition", "workers", "repeat")),
            *(one[key] for key in ("worker", "cuinit_ns")),
            *(one["phases"].get(name, "") for name in names),
        )
        for run in document["runs"]
        for one in run["raw"]
    )
    write(path, ("condition", "workers", "repeat", "worker", "cuinit_ns", *names), rows)


def _series(document: Any) -> list[tuple[str, list[int]]]:
    return [
        (f"{run['condition']}, {run['workers']}", [one["cuinit_ns"] for one in run["raw"]])
        for run in document["runs"]
        if not run["repeat"]
    ]


def show(directory: Path, *, as_json: bool, plot: str | None = None, trace: str | None = None) -> int:
    """Print a burst's directory, write its plot and trace; 0, or 1 when a worker failed outside the controls."""
    from lab.report import burst as figures
    from lab.report import burst_show
    from lab.report.console import console

    document = figures.load_burst(directory)
    largest = burst_show.largest(document)
    if plot is not None and largest is not None:
        Path(plot).write_text(burst_show.as_svg(largest), encoding="utf-8")
    if trace is not None and largest is not None:
        Path(trace).write_bytes(_trace(largest))
    if as_json:
        click.echo(burst_show.as_json(document))
    else:
        out = console(width=150)
        burst_show.show(out, document)
        out.print(f"\n{directory}", soft_wrap=True)
    return 1 if any(row.failed for row in burst_show.plain_rows(document)) else 0


def _trace(run: Any) -> bytes:
    try:
        from lab.report.burst_trace import trace
    except ImportError:
        raise click.ClickException("--trace needs the package perfetto; pip install 'hooklab[trace]'") from None
    return trace(run)
