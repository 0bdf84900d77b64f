"""Runs one scenario: makes its directory, its node, its containers and processes; ends all of them; writes what it saw.

Invariants: everything that was started is ended by its PID before `run_scenario` returns, whatever happens; the run
directory stays. Nothing waits by sleeping: processes meet at their channels, ends arrive on pidfds.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import selectors
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from lab import native
from lab.node.faults import FaultError
from lab.node.server import NodeError, NodeServer
from lab.region import Region, RegionError, read_usage
from lab.runner import needs, plan, quantities, rundir
from lab.runner.backtrace import backtrace
from lab.runner.blind import blind
from lab.runner.container import Container, loader_cache, probe_isolation
from lab.runner.dialects import ledger_file
from lab.runner.guest import GuestError, check_natives, check_real_driver, fake_directory, interposer_path
from lab.runner.limiters import Limiters
from lab.runner.nvml import Nvml, NvmlError
from lab.runner.process import Guest, end_strays, start_guest
from lab.runner.program import barrier_names, program_text
from lab.runner.recorder import Recorder
from lab.runner.rundir import RunDirectory
from lab.runner.service import service_of
from lab.scenario.load import dump
from lab.scenario.model import Container as ContainerModel
from lab.scenario.model import Instance, Scenario
from lab.spec import load_layout

if TYPE_CHECKING:
    from lab.runner.bridge import Bridge

RunError = GuestError
Progress = Callable[[str], None]
_START = " start"  # the barrier of processes that start together; no scenario name begins with a blank
_RELEASE_PATIENCE_S = 10.0
_TAIL_LINES = 40
_MOST_FRAMES = 8  # processes that gdb looks at: it takes a second or more each, and hung crowds hang alike
_CRASHES = frozenset((signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP))


class Interrupted(KeyboardInterrupt):
    """The run was stopped from outside. ``directory`` is kept and says so."""

    def __init__(self, directory: Path) -> None:
        super().__init__(str(directory))
        self.directory = directory


class Cancel:
    """Stops runs from another thread."""

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def set(self) -> None:
        """Every run that has this token ends its processes and returns."""
        os.eventfd_write(self.descriptor, 1)

    @property
    def is_set(self) -> bool:
        return bool(select.select([self.descriptor], [], [], 0)[0])

    def close(self) -> None:
        """No run may use it any more."""
        os.close(self.descriptor)


def run_scenario(
    scenario: Scenario,
    *,
    out: Path,
    on: str = "fake",
    progress: Progress | None = None,
    cancel: Cancel | None = None,
) -> Path:
    """Run a scenario once; the run directory. ``on``: ``fake`` or ``real`` (no fakes, no node).

    GuestError (one line) when it cannot be started as asked; Interrupted after Ctrl-C or ``cancel``.
    """
    if scenario.simulate is not None:
        from lab.runner.simulate import simulate

        return simulate(scenario, out=out, on=on)
    if scenario.measure is not None:
        from lab.runner.measure import measure

        return measure(scenario, out=out, on=on)
    if on == "sim":
        raise GuestError(
            f"{scenario.path}: --on sim plays scenarios with `simulate`; this one needs processes: --on fake"
        )
    if on not in ("fake", "real"):
        raise GuestError(f"--on {on}: the runner knows fake and real")
    check_natives()
    if on == "real":
        check_real_driver()
    for container in scenario.containers:  # what the user named is looked at before anything is made
        _check_interposer(scenario, container.name, on)
    directory = RunDirectory.create(out, scenario.id)
    unmet = needs.missing(scenario.needs, on=on) + plan.other_layout(scenario)
    if unmet:
        return _not_played(scenario, directory, on, unmet)
    with (
        _signals_cancel() as stopped,
        _Run(
            scenario,
            directory,
            on=on,
            progress=progress or (lambda _: None),
            cancels=[stopped, *([cancel] if cancel else [])],
        ) as run,
    ):
        run.play()
    if run.interrupted:
        raise Interrupted(directory.path)
    return directory.path


def _check_interposer(scenario: Scenario, name: str, on: str) -> None:
    container = scenario.container(name)
    dialect = plan.dialect_of(scenario, container)
    if interposer_path(plan.interposer_of(scenario, container)) is None:
        return
    if dialect.needs_container and (reason := probe_isolation()):
        raise GuestError(f"--dialect {dialect.name}: needs {dialect.needs_container}; no containers here: {reason}")
    if on == "real" and plan.names_uuids(scenario):
        raise GuestError(f"{scenario.name}: names devices by {{uuid:...}}, which only --on fake knows beforehand")
    if dialect.names_devices and on == "real":
        raise GuestError(f"--dialect {dialect.name}: names devices by UUID, which only --on fake knows beforehand")


def _not_played(scenario: Scenario, directory: RunDirectory, on: str, unmet: list[dict[str, str]]) -> Path:
    """The directory of a run that this machine cannot make."""
    directory.scenario.write_text(dump(scenario), encoding="utf-8")
    Recorder(directory.history, capacity=1).close()
    directory.write_info(
        {
            "scenario": scenario.id,
            "seed": scenario.seed,
            "evidence": "fake-driver" if on == "fake" else "real-gpu",
            "environment": rundir.environment(_devices(scenario, on)),
            "options": {"on": on},
            "unknown": unmet,
            "not_played": True,
        }
    )
    return directory.path


def _devices(scenario: Scenario, on: str) -> dict[str, str]:
    if on == "real":
        return rundir.real_devices()
    return {"gpus": ", ".join(scenario.node.gpus), "driver": scenario.node.driver}


class _Run:
    """The moving parts of one run, in the order they are made; undone in the reverse order."""

    def __init__(
        self, scenario: Scenario, directory: RunDirectory, *, on: str, progress: Progress, cancels: Sequence[Cancel]
    ) -> None:
        self.scenario, self.directory, self.on = scenario, directory, on
        self.progress, self.cancels = progress, cancels
        self.instances = scenario.instances()
        self.guests: dict[int, Guest] = {}
        self.statuses: dict[int, int] = {}
        self.pids: dict[int, int] = {}
        self.limiters = Limiters(scenario)
        self.backtraces: dict[int, str] = {}
        self.containers: list[Container] = []
        self.unknown: list[dict[str, str]] = []
        self.fault_slots: list[int] = []
        self.holds: dict[str, list[int]] = {}  # barrier -> node faults that it releases
        self.point_slots: dict[int, int] = {}  # faults at sequence points: the numbers after the node's
        self.timed_out = self.interrupted = False
        self.barriers = {
            instance.index: barrier_names(instance.process) if instance.process.steps else frozenset()
            for instance in self.instances
        }
        self.arrived: dict[str, set[int]] = {}
        self.started_ns = self.ended_ns = 0
        self.recorder: Recorder | None = None
        self.node: NodeServer | None = None
        self.nvml: Nvml | None = None
        self.bridge: Bridge | None = None
        self.memory: list[dict[str, Any]] = []  # rows of lab.runner.quantities at the quiet points
        self.left: dict[tuple[str, int], int] = {}  # what the ledger of a container holds at the end, by device
        self.cards: list[dict[str, int]] = []
        self.held: list[dict[str, Any]] = []  # what the driver says containers hold: {"barrier", "container", "bytes"}
        self.failure = ""

    # -- before and after ------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.stack = contextlib.ExitStack()
        try:
            self._prepare()
        except BaseException as error:
            self.failure = str(error)
            self._finish()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _trace: object) -> None:
        if error is not None:
            self.failure = str(error)
        self._finish()

    def _prepare(self) -> None:
        scenario, directory = self.scenario, self.directory
        directory.scenario.write_text(dump(scenario), encoding="utf-8")
        reason = probe_isolation()
        self.isolated = not reason
        if reason:
            self._note_missing(reason)
            self.stack.enter_context(_serial())
        self.scratch = Path(tempfile.mkdtemp(prefix="hooklab-run-"))
        self.stack.callback(shutil.rmtree, self.scratch, ignore_errors=True)
        if scenario.options.history != "none":
            self.recorder = Recorder(directory.history, capacity=plan.history_capacity(scenario))
        self.driver = fake_directory(scenario.node.driver) if self.on == "fake" else None
        self._start_node()
        if self.on == "real":
            try:
                self.nvml = self.stack.enter_context(Nvml())
            except NvmlError as error:
                self.unknown.append({"what": "memory as the driver books it", "why": str(error)})
        for fault in plan.point_faults(scenario):  # numbered after those that the node carries out
            self.point_slots[fault.index] = len(self.fault_slots)
            self.fault_slots.append(fault.index)
        self._write_info()
        cache = loader_cache(self.scratch, self.driver) if self.driver is not None and self.isolated else None
        self.has_cache = cache is not None
        keep = [directory.path, self.node.directory if self.node else None, plan.policy_file(scenario.options.policy)]
        keep += [Path(scenario.path).parent, *(instance.process.cwd for instance in self.instances)]
        keep += [
            library for instance in self.instances for library in plan.preloaded(instance.container, instance.process)
        ]
        keep += [word for instance in self.instances for word in instance.process.run if os.path.exists(word)]
        self._start_services()
        by_name: dict[str, Container] = {}
        robust = plan.robust_regions(scenario)
        self.variables: list[dict[str, str]] = []
        for model in scenario.containers:
            container = plan.make_container(
                scenario,
                model,
                scratch=self.scratch,
                shared=by_name.get(model.share_region_with or ""),
                isolated=self.isolated,
                cache=cache,
                keep=keep,
            )
            self._serve_host_pids(model, container)
            by_name[model.name] = container
            self.containers.append(container)
            shared = self._common() | plan.limit_variables(
                scenario, model, container, robust=model.name in robust or not self.isolated
            )
            shared |= plan.host_pid_variables(model, isolated=self.isolated)
            shared["HOOKLAB_CONTAINER"] = str(model.index)
            self.variables.append(shared | plan.filled(scenario, model.environment))
            self.stack.callback(container.stop)
            container.start(shared)

    def _start_services(self) -> None:
        started: set[str] = set()
        for model in self.scenario.containers:
            dialect = plan.dialect_of(self.scenario, model)
            library = interposer_path(plan.interposer_of(self.scenario, model))
            if dialect.name in started:
                continue
            started.add(dialect.name)
            log = self.directory.path / "stderr" / f"service-{dialect.name}.txt"
            service = service_of(dialect, library, scratch=self.scratch, log=log)
            if service is not None:
                self.stack.enter_context(service)

    def _start_node(self) -> None:
        scenario = self.scenario
        if self.on != "fake":
            return
        latency = scenario.node.latency
        if scenario.node.execute == "bridge":
            from lab.runner.bridge import Bridge  # a room of its own, needed by few runs

            files, timeout_ns = scenario.node.bridge_files, scenario.node.bridge_timeout_ns
            self.bridge = self.stack.enter_context(Bridge(files=files, timeout_ns=timeout_ns))
        try:
            self.node = NodeServer(
                gpus=plan.profiles(scenario),
                driver=scenario.node.driver,
                history_level=plan.HISTORY_LEVELS[scenario.options.history],
                context_bytes=scenario.node.context,
                latencies=None if latency == "none" else latency,
                time_scale=scenario.node.time_scale,
                nvml_pids=scenario.node.nvml_pids,
                sharing=scenario.node.sharing,
                seed=scenario.seed,
                process_capacity=max(1024, 2 * len(self.instances)),
                fault_capacity=max(64, len(plan.node_faults(scenario))),
                runs=self.bridge,
            )
            self.node.start()
            self.stack.callback(self.node.close)
            for container in scenario.containers:
                limits = [container.memory_limit(device) or 0 for device in range(len(scenario.node.gpus))]
                self.node.register_container(container.name, limits=limits)
            for index, fault in plan.node_faults(scenario):
                slot = self.node.plan(fault)
                self.fault_slots += [-1] * (slot + 1 - len(self.fault_slots))
                self.fault_slots[slot] = index
                if scenario.faults[index].until:
                    self.holds.setdefault(scenario.faults[index].until, []).append(slot)
            for instance in self.instances:
                self.node.expect(
                    process=instance.index,
                    container=instance.container.index,
                    callers=None if instance.process.run else instance.process.callers,
                )
                if instance.process.start == "after":
                    self.node.blocked(process=instance.index)
        except (NodeError, FaultError) as error:
            raise GuestError(str(error)) from None

    def _serve_host_pids(self, model: ContainerModel, container: Container) -> None:
        """Makes what tells a container's processes their host PID: a broker, or the place for the host's procfs."""
        if model.host_pids is None or not self.isolated:
            return
        for source, _ in container.layout.read_only:
            source.mkdir(parents=True, exist_ok=True)
        if model.host_pids == "broker":
            from lab.runner.burst_broker import serving

            (source, _), *_ = container.layout.read_only
            (container.layout.locks / os.path.basename(source)).mkdir(parents=True, exist_ok=True)
            self.stack.enter_context(serving("right", socket=source / "broker.sock"))

    def _note_missing(self, reason: str) -> None:
        for container in self.scenario.containers:
            what = "private mounts and preload file"
            if container.pid_namespace == "private":
                what = "private PID namespace, " + what
            if any(process.clear_environment for process in container.processes):
                what += ", cleared environment"
            self.unknown.append({"what": f"container {container.name}: {what}", "why": reason})

    def _common(self) -> dict[str, str]:
        """Variables of every process of the run."""
        found = dict(self.node.environment) if self.node else {}
        if self.recorder is not None:
            found["HOOKLAB_HISTORY"] = str(self.directory.history)
        if self.scenario.options.memory_mode:
            found["HOOKLAB_MEMORY_MODE"] = self.scenario.options.memory_mode
        if self.scenario.options.policy:
            found["HOOKLAB_POLICY"] = plan.policy_text(self.scenario.options.policy)
        found["HOOKLAB_CONTEXT_BYTES"] = self._context_bytes()
        return found

    def _context_bytes(self) -> str:
        """What a context is charged: on a real GPU, and where MIG devices differ, what NVML says of the first one."""
        if self.scenario.node.context is not None:
            return str(self.scenario.node.context)
        if self.on == "real":
            return "learn"
        return plan.context_bytes(plan.profiles(self.scenario))

    # -- play --------------------------------------------------------------------------------------------------------

    def play(self) -> None:
        """Start everything, serve it until all have ended or the time is over."""
        self.started_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        deadline = time.monotonic() + self.scenario.timeout_ns / 1e9
        with selectors.DefaultSelector() as self.selector:
            for cancel in self.cancels:
                self.selector.register(cancel.descriptor, selectors.EVENT_READ, ("cancel", -1))
            self._start_ready()
            while len(self.statuses) < len(self.instances) and not self.interrupted:
                left = deadline - time.monotonic()
                if left <= 0:
                    self._time_over()
                    break
                for key, _ in self.selector.select(left):
                    self._handle(*key.data)

    def _handle(self, what: str, index: int) -> None:
        if what == "cancel":
            self.interrupted = True
        elif what == "end":
            self._ended(index)
        elif what == "channel":
            self._hear(index)

    def _start_ready(self) -> None:
        """Start every process whose time has come."""
        for instance in self.instances:
            if any(cancel.is_set for cancel in self.cancels):
                return  # the loop will hear of it next; nothing more is started
            if instance.index in self.guests:
                continue
            after = instance.process.after if instance.process.start == "after" else None
            if after is None or all(one in self.statuses for one in self.scenario.process_indices(after)):
                self._start(instance)

    def _start(self, instance: Instance) -> None:
        if self.node is not None:
            self.node.unblocked(process=instance.index)
        process, container = instance.process, self.containers[instance.container.index]
        played = bool(process.steps)
        together = process.start == "barrier"
        label = f"{instance.container.name}-{instance.label}"
        if played:
            program = self.directory.path / "programs" / f"{instance.index}.txt"
            text = program_text(process, seed=self.scenario.seed + instance.index, waits=together)
            text = plan.with_uuids(self.scenario, text)
            program.write_text(text, encoding="utf-8")
            command = [str(native.path("hooklab-caller"))]
            if process.clear_environment:
                command += ["--process", str(instance.index), "--container", str(instance.container.index)]
            command.append(str(program))
        else:
            command = plan.command(process.run)
        with (
            (self.directory.path / "stdout" / f"{label}.txt").open("wb") as stdout,
            (self.directory.path / "stderr" / f"{label}.txt").open("wb") as stderr,
        ):
            guest = start_guest(
                command,
                environment=self._environment(instance, container),
                scratch=self.scratch,
                label=label,
                enter=container.enter_arguments(),
                cwd=os.path.abspath(process.cwd)
                if process.cwd
                else os.getcwd()
                if process.run
                else str(self.directory.path),
                control=played,
                hold=together and not played,
                stdout=stdout,
                stderr=stderr,
            )
        self.guests[instance.index] = guest
        self.pids[instance.index] = guest.pid
        self.limiters.started(instance, guest.pid)
        self._record("SPAWN", instance, pid=guest.pid, a=guest.pid)
        self.selector.register(guest.pidfd, selectors.EVENT_READ, ("end", instance.index))
        if guest.channel is not None:
            guest.channel.setblocking(False)
            self.selector.register(guest.channel, selectors.EVENT_READ, ("channel", instance.index))
        self.progress(f"{instance.label} started as process {guest.pid}")

    def _environment(self, instance: Instance, container: Container) -> dict[str, str]:
        process = instance.process
        own = plan.filled(self.scenario, process.environment)
        if process.clear_environment:
            return own
        found = plan.inherited() | self.variables[instance.container.index] | plan.process_variables(instance)
        found |= plan.point_plan(self.scenario, instance, self.point_slots)
        found |= plan.library_path(self.driver, needed=not self.has_cache, scratch=self.scratch) | own
        if not self.isolated and container.layout.library is not None:
            first = plan.preloaded(instance.container, process)  # before the interposer, as with ld.so.preload
            found["LD_PRELOAD"] = ":".join([*first, *plan.preload_list(str(container.layout.library))])
        return found

    def _ended(self, index: int) -> None:
        guest, instance = self.guests[index], self.instances[index]
        self.selector.unregister(guest.pidfd)
        if guest.channel is not None and guest.channel.fileno() in self.selector.get_map():
            self.selector.unregister(guest.channel)
        status = guest.status()
        guest.close()
        self.statuses[index] = status
        self._record("EXIT", instance, pid=guest.pid, a=status)
        self.limiters.look(instance.container, self.containers[instance.container.index].region)
        if self.node is not None:
            self.node.ended(process=index)
        if status & 0x7F in _CRASHES:
            self.backtraces[index] = self._tail(instance)
        self.progress(f"{instance.label} ended ({len(self.statuses)} of {len(self.instances)})")
        for name in list(self.arrived):
            self._release(name)
        self._start_ready()

    # -- meeting ---------------------------------------------------------------------------------------------------

    def _hear(self, index: int) -> None:
        guest = self.guests[index]
        if guest.channel is None:
            return
        try:
            data = guest.channel.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.selector.unregister(guest.channel)
            return
        *lines, guest.received = (guest.received + data).split(b"\n")
        for line in lines:
            word, _, name = line.decode(errors="replace").partition(" ")
            if word == "arrive":
                self._arrive(name, index)
            elif word == "ready" and self.instances[index].process.start == "barrier":
                self._arrive(_START, index)

    def _arrive(self, name: str, index: int) -> None:
        self.arrived.setdefault(name, set()).add(index)
        if self.node is not None and name != _START:  # before its start a process is awaited, after it is not
            self.node.blocked(process=index)
        self._release(name)

    def _participants(self, name: str) -> set[int]:
        return {
            instance.index
            for instance in self.instances
            if instance.index not in self.statuses
            and (instance.process.start == "barrier" if name == _START else name in self.barriers[instance.index])
        }

    def _release(self, name: str) -> None:
        """Let a barrier go when everybody who can still come is there."""
        waiting = self.arrived.get(name, set()) - set(self.statuses)
        if not waiting or not self._participants(name) <= waiting:
            return
        del self.arrived[name]
        if name != _START:
            self._ask_held(name)
        if self.recorder is not None:
            self.recorder.add("BARRIER", a=len(waiting))
        if self.node is not None:
            for index in waiting:
                self.node.unblocked(process=index)
            for slot in self.holds.get(name, ()):
                self.node.release(slot)
        for index in sorted(waiting):
            channel = self.guests[index].channel
            if channel is not None:
                with contextlib.suppress(OSError):
                    channel.send(b"go\n")

    def _ask_held(self, barrier: str | None) -> None:
        """Notes what the driver says each container holds, while everybody waits (None: at the end)."""
        held: dict[str, int] = {}
        at = "end" if barrier is None else f"barrier {barrier}"
        if self.node is not None:
            if barrier is None:  # the node's own books are recorded, by kind
                return
            snapshot = self.node.snapshot()
            with self._ledgers() as ledgers:
                labels = {instance.index: instance.label for instance in self.instances}
                self.memory += quantities.moment(at, snapshot, ledgers, labels=labels, renumbering=self._renumbering())
            held = {container.name: sum(container.used) for container in snapshot.containers}
        elif self.nvml is not None:
            try:
                pids = set(self.pids.values())
                by_pid = self.nvml.held() if barrier is not None else self.nvml.wait_gone(pids, patience_s=10.0)
            except NvmlError as error:
                self.unknown.append({"what": "memory as the driver books it", "why": str(error)})
                return
            held = {container.name: 0 for container in self.scenario.containers}
            for instance in self.instances:
                held[instance.container.name] += sum(by_pid.get(self.pids.get(instance.index, -1), {}).values())
            with self._ledgers() as ledgers:
                for instance in self.instances:
                    pid = self.pids.get(instance.index, -1)
                    name, limit = instance.container.name, instance.container.memory_limit
                    self.memory += quantities.observed(
                        at,
                        by_pid.get(pid, {}),
                        pid,
                        ledgers.get(name),
                        container=name,
                        process=instance.label,
                        limit=limit,
                    )
        self.held += [{"barrier": barrier, "container": name, "bytes": size} for name, size in held.items()]

    @contextlib.contextmanager
    def _ledgers(self) -> Iterator[dict[str, quantities.Ledger]]:
        """The ledgers by container, as far as they can be read now."""
        with contextlib.ExitStack() as stack:
            found: dict[str, quantities.Ledger] = {}
            for model, container in zip(self.scenario.containers, self.containers, strict=False):
                dialect = plan.dialect_of(self.scenario, self.scenario.container(model.share_region_with or model.name))
                file = ledger_file(dialect, container)
                if container.layout.library is None or not dialect.ledger.layout or not file.is_file():
                    continue
                with contextlib.suppress(RegionError):  # at the end this is told; a ledger may be half made now
                    if dialect.ledger.layout == "hooklab-1":
                        found[model.name] = stack.enter_context(Region.open(file))
                    else:
                        found[model.name] = read_usage(file, ledger=dialect.ledger)
            yield found

    def _renumbering(self) -> frozenset[int]:
        """Processes that may number the devices in their own way."""
        cut = any(profile.cuts is not None for profile in plan.profiles(self.scenario))
        return frozenset(
            instance.index
            for instance in self.instances
            if quantities.RENUMBER & {*instance.container.environment, *instance.process.environment} or cut
        )

    # -- the end ---------------------------------------------------------------------------------------------------

    def _alive(self) -> Iterator[tuple[Instance, Guest]]:
        for index, guest in self.guests.items():
            if index not in self.statuses:
                yield self.instances[index], guest

    def _time_over(self) -> None:
        self.timed_out = True
        self.progress("time is over; taking backtraces")
        for number, (instance, guest) in enumerate(self._alive()):
            text = backtrace(guest.pid, frames=number < _MOST_FRAMES)
            self.backtraces[instance.index] = text
            (self.directory.path / "backtrace" / f"{instance.label}.txt").write_text(text + "\n", encoding="utf-8")

    def _kill_all(self) -> None:
        for instance, guest in list(self._alive()):
            guest.kill()
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(guest.popen.pid, signal.SIGKILL)
            status = guest.status()
            guest.close()
            self.statuses[instance.index] = status
            self._record("SIGNAL", instance, pid=guest.pid, a=signal.SIGKILL)
            self._record("EXIT", instance, pid=guest.pid, a=status)
        for token in (self.node.socket_path if self.node else None, self.directory.history):
            if token is not None:
                end_strays(str(token))
        if self.node is not None:
            for process in self.node.snapshot().processes:  # a cleared environment holds no token
                if process.host_pid != os.getpid():
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(process.host_pid, signal.SIGKILL)

    def _finish(self) -> None:
        """End what is alive, then write down what is left. Runs once, also after a failed start."""
        try:
            self._kill_all()
            self.ended_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
            if self.node is not None:
                with contextlib.suppress(TimeoutError, NodeError):
                    self.node.wait_live(0, timeout=_RELEASE_PATIENCE_S)
            for container in self.containers:
                container.stop()
            self._ask_held(None)
            for model, container in zip(self.scenario.containers, self.containers, strict=False):
                self.limiters.look(model, container.region)
            self._record_ledgers()
            self._record_node()
            if self.recorder is not None:
                self.recorder.close()
            self._write_info()
        finally:
            self.stack.close()

    def _record_ledgers(self) -> None:
        for model, container in zip(self.scenario.containers, self.containers, strict=False):
            owner = self.scenario.container(model.share_region_with or model.name)
            dialect = plan.dialect_of(self.scenario, owner)
            file = ledger_file(dialect, container)
            if container.layout.library is None or not file.is_file():
                continue
            shutil.copyfile(file, self.directory.path / f"region-{model.name}")
            if not dialect.ledger.layout:
                continue
            try:
                if dialect.ledger.layout == "hooklab-1":
                    with Region.open(container.region, writable=True) as region:
                        region.reap()
                usages = read_usage(file, ledger=dialect.ledger)
            except RegionError as error:
                self.unknown.append({"what": f"ledger of container {model.name}", "why": str(error)})
                continue
            rows = max((len(usage.bytes) for usage in usages), default=0)
            for device in range(max(rows, len(self.scenario.node.gpus))):
                held = sum(usage.bytes[device] for usage in usages if device < len(usage.bytes))
                if not held and device >= len(self.scenario.node.gpus):
                    continue
                self.left[(model.name, device)] = held
                if self.recorder is not None:
                    self.recorder.add("LEDGER_END", container=model.index, device=device, a=held, b=len(usages))

    def _record_node(self) -> None:
        if self.node is None:
            return
        snapshot = self.node.snapshot()
        self.cards = quantities.cards(snapshot)
        self.memory += quantities.end(snapshot, self.left)
        constants = load_layout("history").constants
        kinds = {
            name.removeprefix("HL_KIND_").lower(): value
            for name, value in constants.items()
            if name.startswith("HL_KIND_")
        }
        for device in range(len(snapshot.devices)):
            if self.recorder is None:
                break
            state = snapshot.devices[device]
            self.recorder.add("PHYS_END", device=device, a=state.used, b=state.peak)
            for container in snapshot.containers:
                held = dict.fromkeys(kinds, 0)
                for process in snapshot.processes:
                    if process.container == container.index:
                        for kind, size in process.bytes[device].items():
                            held[kind] = held.get(kind, 0) + size
                held["context"] += container.used[device] - sum(held.values())  # what no living process explains
                for kind, number in kinds.items():
                    self.recorder.add(
                        "PHYS_END",
                        container=container.index,
                        device=device,
                        a=held[kind],
                        b=container.peak[device],
                        extra=number,
                    )
        self.node.save(self.directory.node)

    def _record(self, event: str, instance: Instance, *, pid: int, a: int) -> None:
        if self.recorder is not None:
            self.recorder.add(event, process=instance.index, container=instance.container.index, pid=pid, a=a)

    def _tail(self, instance: Instance) -> str:
        path = self.directory.path / "stderr" / f"{instance.container.name}-{instance.label}.txt"
        return "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL_LINES:])

    def _reported(self, instance: Instance) -> dict[str, int | float]:
        """The figures that a real command printed: lines `hooklab: NAME=NUMBER`."""
        path = self.directory.path / "stdout" / f"{instance.container.name}-{instance.label}.txt"
        if not instance.process.run or not path.is_file():
            return {}
        found: dict[str, int | float] = {}
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            name, equals, value = line.removeprefix("hooklab: ").partition("=")
            if line.startswith("hooklab: ") and equals:
                with contextlib.suppress(ValueError):
                    found[name] = int(value) if value.lstrip("-").isdigit() else float(value)
        return found

    def _write_info(self) -> None:
        self.directory.write_info(self._info())

    def _info(self) -> Mapping[str, Any]:
        scenario = self.scenario
        devices = _devices(scenario, self.on)
        return {
            "scenario": scenario.id,
            "seed": scenario.seed,
            "evidence": "fake-driver" if self.on == "fake" else "real-gpu",
            "environment": rundir.environment(devices | {"containers": "isolated" if self.isolated else "plain"}),
            "options": {
                "on": self.on,
                "memory_mode": scenario.options.memory_mode,
                "policy": scenario.options.policy,
                "history": scenario.options.history,
                "interposers": {
                    container.name: plan.interposer_of(scenario, container) for container in scenario.containers
                },
            },
            "unknown": self.unknown,
            "blind": blind(scenario),
            "timed_out": self.timed_out,
            "interrupted": self.interrupted,
            "failure": self.failure,
            "held": self.held,
            "memory": self.memory,
            "cards": self.cards,
            "pacing": self.limiters.as_json(),
            "notes": self.bridge.notes() if self.bridge is not None else [],
            "fault_slots": self.fault_slots,
            "started_ns": self.started_ns,
            "ended_ns": self.ended_ns,
            "processes": [
                {
                    "index": instance.index,
                    "label": instance.label,
                    "container": instance.container.name,
                    "pid": self.pids.get(instance.index),
                    "status": self.statuses.get(instance.index),
                    "reported": self._reported(instance),
                    "stderr": f"stderr/{instance.container.name}-{instance.label}.txt",
                    "backtrace": self.backtraces.get(instance.index),
                }
                for instance in self.instances
            ],
        }


@contextlib.contextmanager
def _signals_cancel() -> Iterator[Cancel]:
    """Ctrl-C and SIGTERM become an event of the run's own loop, so that they cannot fall between the start of a process
    and its entry in our books. Only the main thread can receive them; elsewhere the token is never set."""
    token = Cancel()
    numbers = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.signal(number, lambda *_: token.set()) for number in numbers}
    try:
        yield token
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        token.close()


@contextlib.contextmanager
def _serial() -> Iterator[None]:
    """Without containers two runs would share /tmp and HAMi's lock directory: one at a time on this machine."""
    path = Path(tempfile.gettempdir()) / f"hooklab-serial-{os.getuid()}.lock"
    with path.open("a") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield
