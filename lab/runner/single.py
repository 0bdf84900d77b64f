"""Runs one program of the user's under an interposer on a fake node (or on the real driver): `hooklab exec`.

The light form is a plain process with LD_PRELOAD and LD_LIBRARY_PATH; with ``container`` it gets a container as a
device plugin's Allocate makes them. The program keeps our terminal and its own exit status.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import signal
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from lab.node.server import NodeError, NodeServer
from lab.region import RegionError
from lab.region.pacing import read_pacing
from lab.runner import guest, plan, rundir
from lab.runner.container import Container, Layout, loader_cache, probe_isolation, visible_paths
from lab.runner.dialects import directories_of, ledger_file, write_files
from lab.runner.guest import GuestError
from lab.runner.limiters import gathered
from lab.runner.process import Guest, end_strays, start_guest
from lab.runner.recorder import Recorder
from lab.runner.rundir import RunDirectory
from lab.runner.service import service_of
from lab.scenario.units import format_size
from lab.spec import SpecError, load_profile
from lab.spec.profile import ProfileError, node_uuids

_CAPACITY = 1 << 20


@dataclass(frozen=True, kw_only=True)
class ExecOptions:
    """How a program is run. ``memory`` is a size with unit, ``cores`` percent, ``gpus`` profile names."""

    gpus: Sequence[str] = ("a100-80g",)
    driver: str = "580"
    memory: str | None = None
    cores: int | None = None
    interposer: str = "builtin"
    dialect: str | None = None
    policy: str | None = None
    memory_mode: str | None = None
    container: bool = False
    on: str = "fake"
    latency: str = "none"
    history: str = "events"
    out: Path | None = None


@dataclass(frozen=True)
class ExecResult:
    """How it went. ``status`` as a shell gives it; ``evidence`` one line about what the numbers are worth."""

    status: int
    evidence: str
    directory: Path | None


def execute(command: Sequence[str], options: ExecOptions) -> ExecResult:
    """Run ``command`` with our own standard streams. GuestError (one line) when it cannot be started as asked."""
    guest.check_natives()
    if options.on == "real":
        guest.check_real_driver()
    library = guest.interposer_path(options.interposer)
    choose = guest.dialect_for if options.container or library is None else guest.plain_dialect
    dialect = choose(options.dialect, options.interposer)
    memory = None if options.memory is None else guest.parse_size(options.memory)
    if options.container and (reason := probe_isolation()):
        raise GuestError(f"--container: this machine does not allow it ({reason}); leave it out for a plain process")
    with contextlib.ExitStack() as stack:
        scratch = Path(tempfile.mkdtemp(prefix="hooklab-exec-"))
        stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        node = _start_node(options, memory, stack)
        directory = RunDirectory.create(options.out, f"exec-{Path(command[0]).name}") if options.out else None
        recorder = Recorder(directory.history, capacity=_CAPACITY) if directory else None
        driver = guest.fake_directory(options.driver) if node else None
        layout = Layout(
            name="exec",
            scratch=scratch,
            vgpu=scratch / "vgpu",
            region_name=f"{uuid.uuid4()}.cache",
            locks=scratch / "vgpulock",
            private_pids=options.container,
            library=library,
            library_inside=plan.library_place(dialect, library),
            preload=tuple(plan.preload_list(plan.library_place(dialect, library))) if library else (),
            cache=loader_cache(scratch, driver) if driver and options.container else None,
            keep=visible_paths(
                directory.path if directory else None,
                node.directory if node else None,
                plan.policy_file(options.policy),
                shutil.which(command[0]),
                *(argument for argument in command if os.path.exists(argument)),
            ),
            directories=directories_of(dialect, scratch / "exec", scratch) if options.container else (),
        )
        box = Container(layout, isolated=options.container)
        if service := service_of(dialect, library, scratch=scratch, log=scratch / "service.txt"):
            stack.enter_context(service)
        shared = _variables(options, node, directory, recorder)
        each = {} if memory is None else dict.fromkeys(range(len(options.gpus)), memory)
        uuids = [card[0] for card in node_uuids(0, [load_profile(gpu) for gpu in options.gpus])]
        if library is not None:
            percent = {} if options.cores is None else dict.fromkeys(range(len(options.gpus)), options.cores)
            write_files(dialect, box, memory=each, cores=percent, uuids=uuids)
        shared |= guest.limits(
            dialect,
            memory=each or None,
            cores=options.cores,
            interposer=box.library_inside,
            region=box.region_inside if library else "",
            robust=True,
            uuids=uuids,
        )
        stack.callback(box.stop)
        box.start(shared)
        environment = plan.inherited() | shared
        if library is not None and not options.container:
            environment["LD_PRELOAD"] = ":".join(plan.preload_list(str(library)))
        environment |= plan.library_path(driver, needed=layout.cache is None, scratch=scratch)
        with _passing_on() as passing:
            started = start_guest(
                command,
                environment=environment,
                scratch=scratch,
                label="exec",
                enter=box.enter_arguments(),
                cwd=os.getcwd(),
                stdin=None,
                own_session=False,
            )
            passing.to(started)
            if recorder is not None:
                recorder.add("SPAWN", process=0, container=0, pid=started.pid, a=started.pid)
            raw = started.status()
        started.close()
        end_strays(str(node.socket_path) if node else str(scratch))
        if recorder is not None:
            recorder.add("EXIT", process=0, container=0, pid=started.pid, a=raw)
        box.stop()
        line = _evidence(options, node)
        if directory is not None and recorder is not None:
            _keep(directory, recorder, node, ledger_file(dialect, box), options, command, raw)
    status = 128 + (raw & 0x7F) if raw & 0x7F else raw >> 8
    return ExecResult(status, line, directory.path if directory else None)


def _start_node(options: ExecOptions, memory: int | None, stack: contextlib.ExitStack) -> NodeServer | None:
    if options.on != "fake":
        return None
    try:
        node = NodeServer(
            gpus=list(options.gpus),
            driver=options.driver,
            latencies=None if options.latency == "none" else options.latency,
            history_level=plan.HISTORY_LEVELS[options.history],
        )
        node.start()
        stack.callback(node.close)
        node.register_container("exec", limits=[memory or 0] * len(options.gpus))
    except (NodeError, ProfileError, SpecError, KeyError, ValueError) as error:
        raise GuestError(str(error)) from None
    return node


def _variables(
    options: ExecOptions, node: NodeServer | None, directory: RunDirectory | None, recorder: Recorder | None
) -> dict[str, str]:
    found = {"HOOKLAB_CONTAINER": "0", "HOOKLAB_PROCESS": "0"}
    if node is not None:
        found |= node.environment
        found["HOOKLAB_CONTEXT_BYTES"] = plan.context_bytes([load_profile(gpu) for gpu in options.gpus])
    if directory is not None and recorder is not None:
        found["HOOKLAB_HISTORY"] = str(directory.history)
    if options.memory_mode:
        found["HOOKLAB_MEMORY_MODE"] = options.memory_mode
    if options.policy:
        found["HOOKLAB_POLICY"] = plan.policy_text(options.policy)
    return found


class _Passing:
    """Where a SIGTERM for us goes; one that comes before the program has started waits for it."""

    def __init__(self) -> None:
        self._program: Guest | None = None
        self._early: int | None = None

    def receive(self, number: int, _frame: FrameType | None) -> None:
        """The signal handler."""
        if self._program is None:
            self._early = number
        else:
            self._program.kill(number)

    def to(self, program: Guest) -> None:
        """From now on signals go to `program`, beginning with one that came too early."""
        self._program = program
        if self._early is not None:
            program.kill(self._early)


@contextlib.contextmanager
def _passing_on() -> Iterator[_Passing]:
    """Wait as a shell does: the terminal's signals reach the program itself, a SIGTERM for us is passed on.

    The SIGTERM handler stands before the program starts, so that none falls in between. The terminal's signals are
    ignored by us alone: an ignored signal would be inherited, a handled one is not.
    """
    passing = _Passing()
    before = signal.signal(signal.SIGTERM, passing.receive)
    try:
        with _signals({number: lambda _number, _frame: None for number in (signal.SIGINT, signal.SIGQUIT)}):
            yield passing
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _signals(handlers: Mapping[int, Callable[[int, FrameType | None], None]]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _evidence(options: ExecOptions, node: NodeServer | None) -> str:
    limit = f"limit {options.memory}" if options.memory else "no memory limit"
    under = f"interposer {options.interposer}, {limit}"
    if node is None:
        return f"evidence real-gpu: this machine's own driver, {under}"
    records = node.file.processes
    not_executed, unsupported = int(records["not_executed"].sum()), int(records["unsupported"].sum())
    peak = max(int(value) for value in node.file.containers[0]["peak"])
    parts = [f"evidence fake-driver: {', '.join(options.gpus)}, {under}, peak {format_size(peak)}"]
    if not_executed:
        parts.append(f"{not_executed} kernel launches only took time, they were not executed")
    if unsupported:
        parts.append(f"{unsupported} calls of functions that the fake driver does not have")
    return "; ".join(parts)


def _keep(
    directory: RunDirectory,
    recorder: Recorder,
    node: NodeServer | None,
    ledger: Path,
    options: ExecOptions,
    command: Sequence[str],
    raw: int,
) -> None:
    recorder.close()
    if ledger.is_file():
        shutil.copyfile(ledger, directory.path / "region-exec")
    if node is not None:
        node.save(directory.node)
    directory.write_info(
        {
            "scenario": "exec",
            "command": list(command),
            "seed": 0,
            "evidence": "fake-driver" if node else "real-gpu",
            "environment": rundir.environment(
                {"gpus": ", ".join(options.gpus), "driver": options.driver} if node else rundir.real_devices()
            ),
            "options": {key: str(value) for key, value in dataclasses.asdict(options).items()},
            "processes": [{"index": 0, "label": "exec", "container": "exec", "status": raw}],
            "pacing": {"rows": _pacing(ledger, options)},
            "ended_ns": time.clock_gettime_ns(time.CLOCK_MONOTONIC),
        }
    )


def _pacing(region: Path, options: ExecOptions) -> list[dict[str, Any]]:
    """What the limiters of the command's processes said; see `lab.runner.limiters`."""
    if options.interposer != "builtin" or not region.is_file():
        return []
    try:
        return [{"container": "exec", "process": "", **row} for row in gathered(read_pacing(region, ended=True))]
    except RegionError:
        return []  # not of a layout that has room for it
