"""`hooklab broker`: serve the host PID broker, or test any broker."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import click

DEFAULT = "/var/run/hami/hostpid/broker.sock"


@click.group()
def broker() -> None:
    """Answer local processes with their own host PID, or test who does."""


@broker.command()
@click.option(
    "--socket",
    "path",
    default=DEFAULT,
    show_default=True,
    type=click.Path(path_type=Path),
    help="Where to listen; its directory is made and must be ours alone.",
)
@click.option("--group", metavar="NAME", help="Only members of this group may connect; default: every local process.")
@click.option("--handlers", default=1024, show_default=True, type=click.IntRange(min=1), help="Waiting connections.")
@click.option("--deadline", default=250, show_default=True, type=click.IntRange(1, 60000), help="For a request, ms.")
@click.option("--metrics", metavar="HOST:PORT", help="Serve /metrics and /ready there (extra `broker`).")
@click.option(
    "--any-namespace", is_flag=True, help="Serve PIDs of this PID namespace although it is not the machine's first."
)
def serve(
    path: Path, group: str | None, handlers: int, deadline: int, metrics: str | None, any_namespace: bool
) -> None:
    """Serve until SIGTERM or SIGINT; prints one line once callers are answered.

    Exit status: 0 stopped, 2 cannot serve.
    """
    from lab.identity.endpoint import EndpointError, group_id, namespace_problem

    problem = namespace_problem()
    if problem and not any_namespace:
        raise click.ClickException(
            f"{problem}: its PIDs are not the ones NVML reports; run where host PIDs are seen, or give --any-namespace"
        )
    try:
        number = group_id(group) if group else None
        asyncio.run(_serve(path, number, handlers, deadline / 1000, _address(metrics)))
    except EndpointError as error:
        raise click.ClickException(str(error)) from None


def _address(text: str | None) -> tuple[str, int] | None:
    if not text:
        return None
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise click.BadParameter(f"{text}: not HOST:PORT", param_hint="--metrics")
    return host.strip("[]"), int(port)


async def _serve(
    path: Path, group: int | None, handlers: int, deadline_s: float, address: tuple[str, int] | None
) -> None:
    from lab.identity.broker import Broker

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with Broker(path, group=group, handlers=handlers, deadline_s=deadline_s) as made:
        server = None
        if address:
            try:
                from lab.identity.metrics import serve_http
            except ModuleNotFoundError:
                raise click.ClickException("--metrics needs prometheus-client: pip install 'hooklab[broker]'") from None
            try:
                server = await serve_http(made, *address)
            except OSError as error:
                raise click.ClickException(f"--metrics {address[0]}:{address[1]}: {error.strerror}") from None
            port = server.sockets[0].getsockname()[1]
            click.echo(f"metrics http://{address[0]}:{port}/metrics")
        click.echo(f"ready {path} (PID {os.getpid()}, at most {made.handlers} waiting)")
        sys.stdout.flush()
        await stop.wait()
        if server:
            server.close()
    counts = made.counts
    click.echo(f"stopped: {counts.accepted} accepted, {counts.replies} answered, {counts.active} left")


@broker.command()
@click.option(
    "--socket", "path", default=DEFAULT, show_default=True, type=click.Path(path_type=Path), help="The broker to test."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema hooklab.broker-conform/1).")
@click.option("--allow-unknown", is_flag=True, help="Exit 0 although something could not be judged here.")
def conform(path: Path, as_json: bool, allow_unknown: bool) -> None:
    """Test any broker: golden frames, identity in namespaces, security, load.

    Exit status: 0 valid, 1 invalid, 2 nobody answers there, 3 something could not be judged here.
    """
    from lab.identity.client import AskError, exchange
    from lab.identity.conform import INVALID, UNKNOWN
    from lab.identity.conform import conform as run
    from lab.identity.protocol import request

    try:
        exchange(path, request(), patience_s=5.0)
    except AskError as error:
        raise click.ClickException(f"no broker to test: {error}") from None
    findings = []
    for finding in run(path):
        findings.append(finding)
        if not as_json:
            click.echo(f"{finding.verdict:8} {finding.check}" + (f": {finding.reason}" if finding.reason else ""))
    if as_json:
        rows = [{"check": item.check, "verdict": item.verdict, "reason": item.reason} for item in findings]
        click.echo(json.dumps({"schema": "hooklab.broker-conform/1", "socket": str(path), "findings": rows}, indent=2))
    verdicts = {item.verdict for item in findings}
    sys.exit(1 if INVALID in verdicts else 3 if UNKNOWN in verdicts and not allow_unknown else 0)
