"""`hooklab bridge`: run jobs of a GPU-free guest on a GPU, or test any daemon or module that speaks the protocol."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

FILE = click.Path(path_type=Path)


@click.group()
def bridge() -> None:
    """CUDA Bridge Protocol v2: the daemon, and tests for anybody's daemon or module."""


@bridge.command()
@click.option("--job", type=FILE, help="Where jobs come from.")
@click.option("--in", "in_", type=FILE, help="Where a job's input comes from.")
@click.option("--out", type=FILE, help="Where an output goes.")
@click.option("--done", type=FILE, help="Where answers go.")
@click.option(
    "--debugfs", is_flag=True, help="The files of vgsp.ko under /sys/kernel/debug/vgsp instead of these four."
)
@click.option("--poll-ms", default=50.0, show_default=True, type=click.FloatRange(0, 60000), help="0: without a pause.")
@click.option("--backend", type=click.Choice(["gpu", "cpu"]), default="gpu", show_default=True, help="What executes.")
@click.option("--device", default=0, show_default=True, type=click.IntRange(0), help="CUDA ordinal of the GPU.")
def serve(debugfs: bool, poll_ms: float, backend: str, device: int, in_: Path | None, **given: Path | None) -> None:
    """Serve until SIGTERM or SIGINT: one line a job on standard output.

    Exit status: 0 stopped, 1 a done record could not be written, 2 cannot serve.
    """
    from lab.bridge.daemon import Daemon, run, say
    from lab.bridge.files import PlainFiles, debugfs_paths

    paths = {"job": given["job"], "in": in_, "out": given["out"], "done": given["done"]}
    if debugfs:
        if any(paths.values()):
            raise click.UsageError("--debugfs names all files; leave out --job, --in, --out and --done")
        paths = {role: path for role, path in debugfs_paths().items() if role in paths}
    missing = [f"--{role}" for role, path in paths.items() if path is None]
    if missing:
        raise click.UsageError(f"missing {', '.join(missing)} (or --debugfs)")
    if len({path.resolve() for path in paths.values() if path is not None}) < len(paths):
        raise click.UsageError("--job, --in, --out and --done must be four files")
    files = PlainFiles({role: path for role, path in paths.items() if path is not None})
    try:
        files.claim()
    except BlockingIOError as error:
        raise click.ClickException(f"{error.filename}: another daemon serves this file; stop it first") from None
    made = _backend(backend, device)
    daemon = Daemon(files, made, log=say, complain=lambda line: click.echo(f"hooklab bridge: {line}", err=True))
    try:
        code = run(daemon, poll_ms=poll_ms, ready=lambda: say(f"ready {made.name}, poll {poll_ms:g} ms"))
    finally:
        made.close()
        files.release()
    say(f"stopped: {daemon.answered} jobs answered")
    sys.exit(code)


def _backend(kind: str, device: int) -> Any:
    from lab.bridge.backend import BackendError

    if kind == "cpu":
        from lab.bridge.cpu import CpuBackend

        return CpuBackend()
    try:
        from lab.bridge.gpu import GpuBackend
    except ImportError as error:
        mend = "pip install 'hooklab[bridge]'"
        raise click.ClickException(f"--backend gpu needs cuda.bindings ({error}): {mend}") from None
    try:
        return GpuBackend(device)
    except (BackendError, RuntimeError) as error:
        raise click.ClickException(f"--backend gpu: {error}; --backend cpu needs no GPU") from None
