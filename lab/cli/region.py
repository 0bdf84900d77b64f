"""`hooklab region`: what a container's shared ledger says, and whether its books are sound."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from lab.region import HamiRegion, Process, Region

KINDS = ("context", "sync", "managed", "pitched", "async", "module", "vmm", "other")


@click.group()
def region() -> None:
    """Show or check the shared region of a container."""


@region.command()
@click.argument("file", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema hooklab.region/1).")
def show(file: str, as_json: bool) -> None:
    """Print limits, totals and processes of a region.

    Exit status: 0 shown, 2 not a region.
    """
    from lab.region import HamiRegion, Region, RegionError, is_hami

    try:
        if is_hami(file):
            _show_hami(HamiRegion(file), as_json=as_json)
            return
        with Region.open(file) as opened:
            if as_json:
                click.echo(json.dumps(_as_json(opened), indent=2))
            else:
                _print(opened)
    except RegionError as error:
        click.echo(f"hooklab region: {error}", err=True)
        sys.exit(2)


@region.command()
@click.argument("file", type=click.Path())
def check(file: str) -> None:
    """Check the books of a region: one line a problem, then each lock with its holder.

    Exit status: 0 sound, 1 there are problems (a file that is no region is one).
    """
    from lab.region import HamiRegion, Region, RegionError, is_hami

    try:
        if is_hami(file):
            region_of_hami = HamiRegion(file)
            problems, locks = region_of_hami.check(), region_of_hami.locks()
        else:
            with Region.open(file) as opened:
                problems, locks = opened.check(), opened.locks()
    except RegionError as error:
        problems, locks = [str(error)], {}
    for problem in problems:
        click.echo(problem)
    for name, holder in locks.items():
        click.echo(f"{file}: the {name} is {holder if holder == 'free' else f'held: {holder}'}")
    sys.exit(1 if problems else 0)


@region.command()
@click.argument("file", type=click.Path())
@click.option("--timeout", default=10.0, show_default=True, metavar="SECONDS", help="How long to wait for them.")
def suspend(file: str, timeout: float) -> None:
    """Hold up allocations and launches of every process of a region (SIGUSR2).

    Views and frees go on. Exit status: 0 all are suspended, 1 one is not (it is named), 2 not a region.
    """
    _change(file, timeout, suspended=True)


@region.command()
@click.argument("file", type=click.Path())
@click.option("--timeout", default=10.0, show_default=True, metavar="SECONDS", help="How long to wait for them.")
def resume(file: str, timeout: float) -> None:
    """Let the processes of a region go on (SIGUSR1).

    Exit status: 0 all run, 1 one does not (it is named), 2 not a region.
    """
    _change(file, timeout, suspended=False)


def _change(file: str, timeout: float, *, suspended: bool) -> None:
    from lab.region import RegionError, members, resume_all, suspend_all, wait_status_all

    try:
        members(file)
    except (RegionError, OSError) as error:
        click.echo(f"hooklab region: {error}", err=True)
        sys.exit(2)
    try:
        (suspend_all if suspended else resume_all)(file)
        found = wait_status_all(file, suspended=suspended, timeout_s=timeout)
    except RegionError as error:
        click.echo(f"hooklab region: {error}", err=True)
        sys.exit(1)
    click.echo(f"{len(found)} processes {'suspended' if suspended else 'running'}")


@region.command()
@click.argument("file", type=click.Path())
def repair(file: str) -> None:
    """Give back what dead processes hold, and what they left of the lock.

    Exit status: 0 repaired (or nothing to do), 1 the lock is out of reach, 2 not a region.
    """
    from lab.region import HamiRegion, Region, RegionError, is_hami

    try:
        if is_hami(file):
            buried = _reaped(HamiRegion(file))
            left = HamiRegion(file).check()
        else:
            with Region.open(file, writable=True) as opened:
                buried = _reaped(opened)
                left = opened.check()
    except RegionError as error:
        click.echo(f"hooklab region: {error}", err=True)
        sys.exit(2)
    click.echo(f"{buried} dead processes buried")
    for problem in left:
        click.echo(problem)
    sys.exit(1 if left else 0)


def _reaped(opened: Region | HamiRegion) -> int:
    from lab.region import RegionError

    try:
        return opened.reap()
    except RegionError as error:
        click.echo(f"hooklab region: {error}", err=True)
        sys.exit(1)


@region.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(), envvar="CUDA_DEVICE_MEMORY_SHARED_CACHE")
@click.option("--do", "actions", multiple=True, metavar="ACTION", help="What to do, in this order; see above.")
@click.option("--timeout", default=60.0, show_default=True, metavar="SECONDS", help="For what is waited for.")
def monitor(files: tuple[str, ...], actions: tuple[str, ...], timeout: float) -> None:
    """Stand in for the monitor of containers whose regions have layout hami-1.2.

    Actions: block and release launches (recent_kernel -1 and 0), FIELD=NUMBER (any number of the region), live=N and
    kernel (wait for N slots, for a launch), wait=DURATION, rounds=N/DURATION (what a monitor does once in a while:
    lower priorities wait while higher ones launch), restart (map the files anew), size=BYTES (of the file).

    Without FILES the container's own is taken. Exit status: 0 done, 1 something did not come in time or is no action.
    """
    from lab.region import RegionError
    from lab.region.monitor import play

    try:
        play(files, actions, timeout_s=timeout)
    except RegionError as error:
        click.echo(f"hooklab region: {error}", err=True)
        sys.exit(1)


@region.command()
@click.option(
    "--lang", type=click.Choice(["c", "go", "rust", "numpy"]), default="c", show_default=True, help="Language."
)
@click.option(
    "--layout", type=click.Choice(["hami-1.2", "hooklab-1"]), default="hami-1.2", show_default=True, help="Which."
)
def emit(lang: str, layout: str) -> None:
    """Print assertions about a region layout for another project's CI.

    The text compiles (numpy: runs) silently where sizes and offsets agree and stops it where they do not.
    """
    from lab.region._emit import emit as text

    click.echo(text(layout, lang), nl=False)


def _show_hami(opened: HamiRegion, *, as_json: bool) -> None:
    record = opened.record
    slots = record["procs"][: opened.live()]
    busy = [d for d in range(16) if int(record["limit"][d]) or slots["used"][:, d]["total"].any()] or [0]
    document = {
        "schema": "hooklab.region/1",
        "file": str(opened.path),
        "layout": "hami-1.2",
        "lock": opened.holder(),
        "postinit_lock": opened.holder("postinit_lock"),
        **{
            name: int(record[name])
            for name in ("utilization_switch", "recent_kernel", "priority", "last_kernel_time", "sm_init")
        },
        "devices": [
            {"limit": int(record["limit"][d]), "sm_limit": int(record["sm_limit"][d]), "used": opened.used(d)}
            for d in busy
        ],
        "processes": [
            {
                "slot": index,
                "pid": int(slot["pid"]),
                "host_pid": int(slot["host_pid"]),
                "status": int(slot["status"]),
                "sequence": int(slot["sequence"]),
                "used": {str(d): int(slot["used"][d]["total"]) for d in busy},
            }
            for index, slot in enumerate(slots)
        ],
    }
    if as_json:
        click.echo(json.dumps(document, indent=2))
        return
    for key, value in document.items():
        if isinstance(value, list):
            for number, row in enumerate(value):
                click.echo(f"{key} {number}: " + ", ".join(f"{name} {one}" for name, one in row.items()))
        else:
            click.echo(f"{key}: {value}")


def _as_json(opened: Region) -> dict[str, object]:
    head = opened.header[0]
    return {
        "schema": "hooklab.region/1",
        "file": str(opened.path),
        "lock": "robust" if int(head["lock_kind"]) == 1 else "file",
        "lock_holder": opened.holder(),
        "pid_namespace": int(head["pid_namespace"]),
        "repairs": int(head["repairs"]),
        "devices": [
            {
                name: int(opened.devices[name][d])
                for name in ("limit", "sm_limit", "used", "peak", "refused", "rollbacks")
            }
            for d in _devices(opened)
        ],
        "processes": [
            {
                "slot": process.slot,
                "generation": process.generation,
                "pid": process.pid,
                "host_pid": process.host_pid,
                "identity_tier": process.tier or None,
                "comm": process.comm,
                "present": process.present,
                "held": process.held,
                "used": {str(d): dict(zip(KINDS, row, strict=True)) for d, row in process.used.items()},
                "pending": {str(d): value for d, value in process.pending.items()},
            }
            for process in opened.processes()
        ],
    }


def _devices(opened: Region) -> list[int]:
    """Ordinals up to the last that has a limit or was ever used."""
    busy = [d for d in range(len(opened.devices)) if int(opened.devices["limit"][d]) or int(opened.devices["peak"][d])]
    return list(range(max(busy, default=0) + 1))


def _print(opened: Region) -> None:
    from rich.markup import escape
    from rich.table import Table

    from lab.report.console import console

    head = opened.header[0]
    out = console()
    lock = "robust mutex" if int(head["lock_kind"]) == 1 else "file lock"
    out.print(f"{escape(str(opened.path))}: {lock}, {int(head['repairs'])} repairs, {opened.holder()}", soft_wrap=True)
    totals = Table(
        "device", "limit", "used", "peak", "refused", "rolled back", "cores", title="devices", title_justify="left"
    )
    for d in _devices(opened):
        row = opened.devices[d]
        totals.add_row(
            str(d),
            _size(int(row["limit"])) if row["limit"] else "none",
            _size(int(row["used"])),
            _size(int(row["peak"])),
            str(row["refused"]),
            str(row["rollbacks"]),
            f"{row['sm_limit']} %" if row["sm_limit"] else "none",
        )
    out.print(totals)
    processes = Table("slot", "pid", "host pid", "command", "state", "holds", title="processes", title_justify="left")
    for process in opened.processes():
        processes.add_row(
            str(process.slot),
            str(process.pid),
            f"{process.host_pid} ({process.tier})" if process.host_pid else "unknown",
            escape(process.comm),
            "lives" if process.present else "dead, not buried yet",
            _holds(process),
        )
    out.print(processes)


def _holds(process: Process) -> str:
    parts = []
    for device in process.used:
        kinds = [f"{name} {_size(value)}" for name, value in zip(KINDS, process.used[device], strict=True) if value]
        if process.pending[device]:
            kinds.append(f"pending {_size(process.pending[device])}")
        parts.append(f"{device}: {', '.join(kinds)}")
    return "; ".join(parts) or "nothing"


def _size(value: int) -> str:
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if value >= 1 << shift:
            return f"{value / (1 << shift):.6g} {unit}"
    return f"{value} B"
