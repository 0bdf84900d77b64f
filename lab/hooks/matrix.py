"""One `hooklab hooks`: walks over the recording driver on every host, judged into a matrix.

Beneath the recording driver lies the fake driver with a node of its own, or the machine's real one (`on = "real"`).
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from lab import native
from lab.hooks import model, probes, static
from lab.hooks.judge import Judge, agreement, answered, ledger, lookups, uneven
from lab.hooks.model import Finding, Matrix
from lab.hooks.project import Project, decisions
from lab.hooks.walk import STILL_SECONDS, Walk, walk
from lab.runner.guest import GuestError, interposer_path, limit_environment
from lab.spec import load_hooks

FIRST_HOSTS = ("program", "plugin-local", "plugin-global", "jit")
OUTER_HOSTS = ("plugin-deepbind", "namespace")
MEMORY = "16GiB"
FEW = 10  # deaths that are worth dying again under the auditor
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Options:
    """What to examine, and over what."""

    interposer: str = "builtin"
    project: Project = field(default_factory=Project)
    dialect: str | None = None
    on: str = "fake"
    gpu: str = "a100-80g"
    driver: str = "580"
    hosts: tuple[str, ...] = FIRST_HOSTS + OUTER_HOSTS
    patience: float = STILL_SECONDS
    """How long one case may stand still before it is a hang, in seconds."""


def examine(options: Options, *, progress: Progress | None = None) -> Matrix:
    """The whole matrix. GuestError, WalkError or StaticError say in one line why there is none."""
    started = time.monotonic()
    path = interposer_path(options.interposer)
    if path is None:
        raise GuestError("--interposer none: there is nothing to examine; give builtin or the path of a library")
    table = load_hooks()
    own = options.interposer == "builtin"
    library = static.read_library(path)
    steps = 2 * len(options.hosts) + 3
    done = 0

    def step(text: str) -> None:
        nonlocal done
        if progress is not None:
            progress(text, done, steps)
        done += 1

    with _session(options, path) as session:
        bare, seen = [], []
        for host in options.hosts:
            step(f"{host} without it")
            bare.append(session.walk(host, interposed=False))
            step(f"{host} under it")
            seen.append(session.walk(host, interposed=True))
        sound = not any(one.broken or one.hung or one.died_looking for one in seen)
        measured = audited = None
        step("what allocations take")
        if sound:  # lookups that die or hang would do so again in each of these
            measured = session.walk("program", interposed=True, measure=True)
        step("probes")
        probed = probes.classify(path)
        if sound:
            probed.append(probes.injection(session, path))
        if sound and len(seen[0].crashed) <= FEW:
            audited = session.walk("program", interposed=True, LD_AUDIT=str(native.path("libhooklab-audit.so")))
    step("judging")
    decided = decisions(table, options.project, own=own, hooked=library.exports | answered(seen, str(path), table))
    judge = Judge(table, lambda name: decided[name], str(path))
    cells: list[model.Cell] = []
    findings = static.traits(library, declared=sorted(options.project.declared([hook.name for hook in table.hooks])))
    for one, other in zip(bare, seen, strict=True):
        cells += judge.walk(one, other)
        if model.HOSTS[other.host] in FIRST_HOSTS:
            findings += lookups(one, other, table)
    taken = ledger(measured.ledger, table) if measured is not None else []
    if measured is not None and not measured.broken and not measured.crashed and not measured.hung:
        findings += uneven(taken)
    else:
        why = "lookups die or stand still" if measured is None else measured.broken or "the process died or stood still"
        findings.append(Finding("ledger-unmeasured", "program", why))
    findings += probed
    if audited is not None:
        findings.append(_audit(Judge(table, lambda name: decided[name], str(path)), bare[0], audited, cells))
    return Matrix(
        interposer=options.interposer,
        evidence="real-gpu" if options.on == "real" else "fake-driver",
        driver="the machine's" if options.on == "real" else options.driver,
        cells=tuple(cells),
        findings=tuple(findings),
        decisions=decided,
        ledger=tuple(taken),
        agreed=judge.agreed,
        seconds=time.monotonic() - started,
        exports={
            name: f"{symbol.visibility}{symbol.version}" for name, symbol in library.symbols.items() if symbol.exported
        },
    )


def compare_drivers(options: Options) -> list[Finding]:
    """Where the fake and the real driver, without an interposer, answer a lookup differently."""
    answers: list[Walk] = []
    for where in ("fake", "real"):
        with _session(Options(on=where, gpu=options.gpu, driver=options.driver), Path("/nonexistent")) as session:
            answers.append(session.walk("program", interposed=False))
    return agreement(answers[0], answers[1], load_hooks())


def _audit(judge: Judge, bare: Walk, audited: Walk, cells: list[model.Cell]) -> Finding:
    """Whether the program's walk is the same under an auditor that changes nothing."""
    before = {cell[:5]: cell.verdict for cell in cells if cell.host == "program"}
    changed = [cell for cell in judge.walk(bare, audited) if before.get(cell[:5]) != cell.verdict]
    if not changed and not audited.broken:
        return Finding("probe", "LD_AUDIT", "under an auditor that changes nothing every verdict is the same", False)
    first = (
        f"{changed[0].name} by {changed[0].route} becomes {changed[0].verdict} ({changed[0].note})"
        if changed
        else audited.broken
    )
    return Finding("probe", "LD_AUDIT", f"under an auditor {len(changed)} verdicts change: {first}", True)


class _Session:
    """The environment of all walks of one examination."""

    def __init__(self, base: dict[str, str], limits: dict[str, str], path: Path, folder: Path, patience: float) -> None:
        self.base, self.limits, self.path, self.folder, self.patience = base, limits, path, folder, patience

    def environment(self, *, interposed: bool) -> dict[str, str]:
        return {**self.base, **self.limits, "LD_PRELOAD": str(self.path)} if interposed else dict(self.base)

    def walk(self, host: str, *, interposed: bool, measure: bool = False, **variables: str) -> Walk:
        environment = self.environment(interposed=interposed) | variables
        return walk(
            host=model.HOSTS.index(host),
            environment=environment,
            folder=self.folder,
            measure=measure,
            patience=self.patience,
        )


@contextmanager
def _session(options: Options, path: Path) -> Iterator[_Session]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("HOOKLAB_", "CUDA_", "LD_"))}
    base = {**kept, "LD_LIBRARY_PATH": str(native.path("echo/libcuda.so.1").parent)}
    base["HOOKLAB_ROUTES_PLUGIN"] = str(native.path("libhooklab-routes.so"))
    with tempfile.TemporaryDirectory(prefix="hooklab-hooks-") as scratch:
        folder = Path(scratch)
        limits: dict[str, str] = {}
        if path.is_file():
            limits = limit_environment(
                dialect=options.dialect or options.project.dialect,
                interposer=options.interposer,
                region=folder / "region",
                memory=MEMORY,
            )
        if options.on == "real":
            base["HOOKLAB_ECHO_DRIVER"] = str(real_driver())
            yield _Session(base, limits, path, folder, options.patience)
            return
        from lab.node.server import NodeServer

        base["HOOKLAB_ECHO_DRIVER"] = str(native.path("fake/libcuda.so.1").parent)
        with NodeServer(gpus=[options.gpu], driver=options.driver, history_level=0) as server:
            base["HOOKLAB_NODE"] = str(server.socket_path)
            yield _Session(base, limits, path, folder, options.patience)


def real_driver() -> Path:
    """The folder of this machine's driver libraries. GuestError when there is none."""
    import subprocess

    listed = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=False).stdout
    for line in listed.splitlines():
        name, _, path = line.strip().partition(" => ")
        if name.startswith("libcuda.so.1 ") and ("x86-64" in name or "AArch64" in name):
            return Path(path).parent
    raise GuestError(
        "--on real: no libcuda.so.1 in the loader's cache of this machine; run where a driver is installed"
    )
