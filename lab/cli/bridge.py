"""`hooklab bridge`: run jobs of a GPU-free guest on a GPU, or test any daemon or module that speaks the protocol."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from lab.bridge.findings import Finding

FILE = click.Path(path_type=Path, readable=False)  # `out` and `done` are for writing only


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


@bridge.command()
@click.option("--daemon", metavar="'CMD {job} {in} {out} {done}'", help="A daemon to start over plain files.")
@click.option("--module", metavar="builtin|DIR|'CMD {job} ...'", help="A module: ours, its debugfs, or a program.")
@click.option("--patience", default=10.0, show_default=True, type=click.FloatRange(0.1), help="For an answer, seconds.")
@click.option(
    "--idle",
    "idle_s",
    default=0.3,
    show_default=True,
    type=click.FloatRange(0.01),
    help="Several polls of the daemon, seconds: how long it is watched where it cannot be seen looking.",
)
@click.option("--clause", "only", multiple=True, metavar="NAME", help="Only this clause; may be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema hooklab.bridge-conform/1).")
@click.option("--junit", type=click.Path(path_type=Path), help="Also write JUnit XML there.")
@click.option("--allow-unknown", is_flag=True, help="Exit 0 although something could not be seen here.")
def conform(
    daemon: str | None,
    module: str | None,
    patience: float,
    idle_s: float,
    only: tuple[str, ...],
    as_json: bool,
    junit: Path | None,
    allow_unknown: bool,
) -> None:
    """Test any daemon or module, clause by clause.

    A daemon's command names {job} {in} {out} {done}; a module's, which must keep submitting jobs, may also name
    {status}. Where the protocol is silent the verdict is `unspecified` and tells what was seen.

    Exit status: 0 valid, 1 invalid, 2 cannot be started, 3 something could not be seen here.
    """
    from lab.bridge import findings

    if (daemon is None) == (module is None):
        raise click.UsageError("give one of --daemon and --module")
    found = []
    try:
        for finding in _conform(daemon, module, patience, idle_s, only):
            found.append(finding)
            if not as_json:
                seen = f": {finding.seen}" if finding.seen else ""
                click.echo(f"{finding.verdict:12} {finding.clause:20} {finding.text}{seen}")
    except (ValueError, FileNotFoundError, PermissionError) as error:
        raise click.ClickException(f"bridge conform: {error}") from None
    subject = daemon or f"module {module}"
    if as_json:
        click.echo(json.dumps(findings.as_json(subject, found), indent=2))
    else:
        verdicts = [finding.verdict for finding in found]
        click.echo(", ".join(f"{verdicts.count(name)} {name}" for name in dict.fromkeys(sorted(verdicts))))
    if junit is not None:
        junit.write_text(findings.as_junit(subject, found))
    sys.exit(findings.exit_code(found, allow_unknown=allow_unknown))


def _conform(
    daemon: str | None, module: str | None, patience_s: float, idle_s: float, only: Sequence[str]
) -> Iterator[Finding]:
    if daemon is not None:
        from lab.bridge.conform_daemon import conform as judge_daemon
        from lab.bridge.rig import Rig

        with (
            tempfile.TemporaryDirectory(prefix="hooklab-bridge-") as folder,
            Rig(Path(folder), daemon, patience_s=patience_s, idle_s=idle_s) as rig,
        ):
            yield from judge_daemon(rig, only=only)
        return
    from lab.bridge.conform_module import conform as judge_module
    from lab.bridge.conform_module import opened

    assert module is not None
    with opened(module) as target:
        yield from judge_module(target, patience_s=patience_s, only=only)


@bridge.command()
@click.option("--job", type=FILE, required=True, help="Where jobs are put.")
@click.option("--in", "in_", type=FILE, required=True, help="Where inputs are put.")
@click.option("--out", type=FILE, required=True, help="Where outputs come.")
@click.option("--done", type=FILE, required=True, help="Where answers come.")
@click.option("--status", type=FILE, help="Where the counters are put.")
@click.option("--op", type=click.Choice(["mail", "vadd"]), default="vadd", show_default=True, help="What to run.")
@click.option("--n", default=1024, show_default=True, type=click.IntRange(0), help="Elements (vadd) or bytes (mail).")
@click.option("--count", default=1, show_default=True, type=click.IntRange(1), help="Jobs, one after another.")
@click.option("--patience", default=10.0, show_default=True, type=click.FloatRange(0.1), help="For an answer, seconds.")
def submit(op: str, n: int, count: int, patience: float, in_: Path, **given: Path | None) -> None:
    """Play the module over plain files: submit jobs to a daemon and print what becomes of them.

    Exit status: 0 all completed, 1 one failed or had bad elements, 3 no answer.
    """
    from lab.bridge.inputs import ramp
    from lab.bridge.module import FileModule, ModuleError

    paths = {"in": in_, **{role: path for role, path in given.items() if path is not None}}
    module = FileModule(paths)
    good = True
    for _ in range(count):
        ticket = module.mail(n) if op == "mail" else module.vadd(ramp(n))
        try:
            module.wait(ticket, patience)
        except ModuleError as error:
            click.echo(f"hooklab bridge submit: {error}", err=True)
            sys.exit(3)
        done = ticket.done
        assert done is not None
        good &= ticket.ok and not done.bad
        click.echo(
            f"seq={ticket.job.seq} {'completed' if ticket.ok else f'failed: {ticket.failure}'} bad={done.bad} "
            f"checksum={done.checksum_value:.6f} kernel_ns={done.kernel_ns} host_ns={done.host_ns} gpu={done.device!r}"
        )
    sys.exit(0 if good else 1)


@bridge.command()
@click.option("--backend", type=click.Choice(["gpu", "cpu"]), default="gpu", show_default=True, help="What executes.")
@click.option("--device", default=0, show_default=True, type=click.IntRange(0), help="CUDA ordinal of the GPU.")
@click.option(
    "--poll-ms", default="0,50", show_default=True, metavar="MS,MS", help="Polls of the daemon to measure at."
)
@click.option("--jobs", default=200, show_default=True, type=click.IntRange(1), help="Jobs of each kind at poll 0.")
@click.option("--large", is_flag=True, help="Also the largest jobs (2^20 and 2^22 elements, a mail of 32 MiB).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema hooklab.bridge-bench/1).")
def bench(backend: str, device: int, poll_ms: str, jobs: int, large: bool, as_json: bool) -> None:
    """Time jobs from submission to completion, through a daemon over files in memory, one at a time.

    Exit status: 0 measured, 1 a job failed or had bad elements, 2 no daemon.
    """
    from lab.bridge.bench import measure

    try:
        polls = [float(text) for text in poll_ms.split(",")]
    except ValueError:
        raise click.BadParameter(f"{poll_ms}: not numbers separated by commas", param_hint="--poll-ms") from None
    result = measure(backend=backend, device=device, polls_ms=polls, jobs=jobs, large=large)
    if as_json:
        click.echo(json.dumps(result.as_json(), indent=2))
    else:
        for line in result.lines():
            click.echo(line)
    sys.exit(1 if any(row.failed for row in result.rows) else 0)
