"""`hooklab node`: what a fake node holds, as nvidia-smi would show a real one."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import RenderableType

    from lab.node.model import DeviceState, NodeSnapshot
    from lab.region import Region

MIB = 1 << 20


@click.group()
def node() -> None:
    """Look at fake GPU nodes."""


@node.command()
@click.argument("path", envvar="HOOKLAB_NODE", metavar="[SOCKET|FILE|RUN]", type=click.Path())
@click.option(
    "--region",
    "files",
    multiple=True,
    metavar="CONTAINER=FILE",
    help="The ledger of a container; those of a run directory are found.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema hooklab.node/1).")
def show(path: str, files: tuple[str, ...], as_json: bool) -> None:
    """Show devices, processes and the four quantities of memory of a node: what the driver holds (physical), what the
    container may hold (limit), what the interposer booked (ledger) and what NVML reports (observed), and every gap.

    Takes the socket of a running node (default: $HOOKLAB_NODE), a node file, or a run directory. Exit status 2 when it
    is none of them or of another version.
    """
    from lab.checks.quantities import from_rows
    from lab.node.client import open_node
    from lab.node.layout import NodeFileError
    from lab.node.model import read_snapshot
    from lab.report.quantities import lines
    from lab.report.quantities import table as memory_table
    from lab.runner.quantities import cards, moment

    try:
        file = open_node(path)
    except NodeFileError as error:
        click.echo(f"hooklab node show: {error}", err=True)
        sys.exit(2)
    regions = _regions(path, files)
    running = file.path.is_socket()
    snapshot = read_snapshot(file, now_ns=time.clock_gettime_ns(time.CLOCK_MONOTONIC) if running else None)
    file.close()
    rows = from_rows(moment("now", snapshot, regions), cards(snapshot))
    for region in regions.values():
        region.close()
    if as_json:
        memory = [asdict(row) for row in rows]
        body = {"schema": "hooklab.node/1", "evidence": "fake-driver", "running": running, "memory": memory}
        body |= asdict(snapshot)
        click.echo(json.dumps(body, indent=2))
        return
    from lab.report.console import console

    out = console()
    for one in render(snapshot):
        out.print(one)
    if rows:
        out.print(memory_table(rows))
        for line in lines(rows):
            out.print(line, markup=False, highlight=False)


def _regions(path: str, files: tuple[str, ...]) -> dict[str, Region]:
    """The ledgers by container; exit status 2 with one line where a named one cannot be read."""
    from lab.region import Region, RegionError

    found: dict[str, Region] = {}
    run = Path(path)
    for file in sorted(run.glob("region-*")) if run.is_dir() else []:
        with contextlib.suppress(RegionError):  # a layout of another interposer: hooklab region reads it
            found[file.name.removeprefix("region-")] = Region.open(file)
    for word in files:
        name, sign, file_name = word.partition("=")
        try:
            if not sign:
                raise RegionError(f"--region {word}: no container is named; write CONTAINER=FILE")
            found[name] = Region.open(file_name)
        except RegionError as error:
            click.echo(f"hooklab node show: {error}", err=True)
            sys.exit(2)
    return found


def render(snapshot: NodeSnapshot) -> list[RenderableType]:
    """The tables of a node: devices, containers if there are any, processes."""
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    title = (
        f"fake node · driver {snapshot.driver} · CUDA {snapshot.cuda_version // 1000}."
        f"{snapshot.cuda_version % 1000 // 10} · evidence fake-driver"
    )
    devices = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for column in ("GPU", "name, bus id"):
        devices.add_column(column, no_wrap=True)
    for column in ("temp", "power", "memory", "util"):
        devices.add_column(column, justify="right", no_wrap=True)
    for device in snapshot.devices:
        devices.add_row(*_device_row(device))
    tables: list[RenderableType] = [devices]
    count = len(snapshot.devices)
    if snapshot.containers:
        containers = Table(title="containers", title_justify="left", box=SIMPLE_HEAD)
        for column in ("container", "GPU"):
            containers.add_column(column)
        for column in ("used", "peak", "limit"):
            containers.add_column(column, justify="right")
        for container in snapshot.containers:
            for index in range(count):
                if container.peak[index] or container.limit[index] or index == 0:
                    limit = _mib(container.limit[index]) if container.limit[index] else "none"
                    figures = (_mib(container.used[index]), _mib(container.peak[index]), limit)
                    containers.add_row(escape(container.name), str(index), *figures)
        tables.append(containers)
    names = {container.index: container.name for container in snapshot.containers}
    processes = Table(title="processes", title_justify="left", box=SIMPLE_HEAD)
    for column in ("GPU", "host PID", "inner PID", "container", "#", "name"):
        processes.add_column(column)
    for column in ("ctx", "memory", "kernels"):
        processes.add_column(column, justify="right")
    rows = 0
    for process in snapshot.processes:
        for index in range(count):
            if not process.contexts[index] and not process.total(index):
                continue
            processes.add_row(
                str(index),
                str(process.host_pid),
                str(process.ns_pid),
                escape(names.get(process.container, "-")),
                "-" if process.index < 0 else str(process.index),
                escape(process.comm) + (" (dying)" if process.dying else ""),
                str(process.contexts[index]),
                _mib(process.total(index)),
                f"{process.kernels[index]:,}",
            )
            rows += 1
    tables.append(processes if rows else "no process holds a context")
    return tables


def _device_row(device: DeviceState) -> tuple[str, ...]:
    watts = device.idle_power_mw + (device.power_limit_mw - device.idle_power_mw) * device.utilisation_percent // 100
    return (
        str(device.index),
        f"{device.name}{' (lost)' if device.lost else ''}\n{device.bus_id}",
        f"{device.temperature_c} C",
        f"{watts // 1000}/{device.power_limit_mw // 1000} W",
        f"{device.used / MIB:,.0f} / {_mib(device.nvml_total_bytes)}\npeak {_mib(device.peak)}",
        f"{device.utilisation_percent} %",
    )


def _mib(size: int) -> str:
    return f"{size / MIB:,.0f} MiB"
