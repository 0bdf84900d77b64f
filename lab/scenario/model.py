"""What a scenario is once it has been loaded: frozen dataclasses, integers in base units (bytes, nanoseconds).

Invariants: every value here was validated; every name refers to something that exists; lists of routes and other
sweeps are already expanded (one Scenario is one run). Nothing here reads files or imports a heavy library, so that
runner, checks and report can share it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a scenario file: 1-based line and column."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a process.

    ``op`` is the kind (``alloc``), ``label`` the name that expectations use (its ``as``, else ``op``), ``index`` its
    position in the process's program counted through nested steps (pre-order): the number that history records carry.
    ``arguments`` holds only plain values (int, float, str, bool, None, tuples and mappings of them): sizes in bytes,
    durations in ns, a named result as its code. ``steps`` are nested steps (fork, exec, parallel).
    ``result`` is the code the step itself must end with, 0 by default; None = any.
    """

    op: str
    label: str
    index: int
    arguments: Mapping[str, Any]
    where: Position
    steps: tuple[Step, ...] = ()
    result: int | None = 0

    def walk(self) -> Iterator[Step]:
        """This step and everything nested in it, in order of ``index``."""
        yield self
        for step in self.steps:
            yield from step.walk()


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """How a process ends: by an exit code or by a signal; exactly one is not None."""

    code: int | None = None
    signal: int | None = None

    def matches(self, wait_status: int) -> bool:
        """Whether a raw ``waitpid`` status is this end."""
        if self.signal is not None:
            return wait_status & 0x7F == self.signal
        return wait_status & 0x7F == 0 and (wait_status >> 8) & 0xFF == self.code

    def __str__(self) -> str:
        return f"signal {self.signal}" if self.signal is not None else f"exit {self.code}"


@dataclass(frozen=True, slots=True)
class Process:
    """A group of ``count`` equal processes of a container: either ``steps`` (played by the caller) or ``run``."""

    name: str
    count: int
    start: str  # "now" | "barrier" | "after"
    after: str | None  # name of the process group of the same scenario that must have ended, for start == "after"
    steps: tuple[Step, ...]
    run: tuple[str, ...]
    environment: Mapping[str, str]
    clear_environment: bool
    cwd: str | None
    expect_exit: ExitStatus | None  # None = any end is fine
    where: Position

    @property
    def callers(self) -> int:
        """How many threads of one such process can be in a driver call at once, by its steps."""
        return max(
            (int(step.arguments.get("threads", 1)) for step in self.walk() if step.op in ("random", "parallel")),
            default=1,
        )

    def walk(self) -> Iterator[Step]:
        """All steps, nested ones included, in order of index."""
        for step in self.steps:
            yield from step.walk()


@dataclass(frozen=True, slots=True)
class Container:
    """One container. ``memory`` and ``cores`` map a device ordinal, or None for every device, to bytes / percent."""

    name: str
    index: int
    memory: Mapping[int | None, int]
    cores: Mapping[int | None, int]
    pid_namespace: str  # "host" | "private"
    share_region_with: str | None
    environment: Mapping[str, str]
    interposer: str | None  # None = what the run says; else builtin | none | path
    dialect: str | None
    processes: tuple[Process, ...]
    where: Position
    host_pids: str | None = None  # "broker" | "procfs": who tells the host PID

    @property
    def limits_by_uuid(self) -> bool:
        """Whether variables of its own tell limits by UUID: then a device's limit is not that of its ordinal."""
        names = [*self.environment, *(name for process in self.processes for name in process.environment)]
        return any("_LIMIT_GPU" in name or "_LIMIT_MIG" in name or "_LIMIT_{uuid:" in name for name in names)

    def memory_limit(self, device: int) -> int | None:
        """Bytes of ``device`` this container may use; None = no limit."""
        limit = self.memory.get(device, self.memory.get(None))
        return limit or None


@dataclass(frozen=True, slots=True)
class Node:
    """The fake node. Overrides of None leave the profile's value."""

    gpus: tuple[str, ...] = ("a100-80g",)
    driver: str = "580"
    memory: int | None = None
    context: int | None = None
    latency: str | Mapping[str, int] = "none"  # "none" | "profile" | {HL_LATENCY_* in lower case, without prefix: ns}
    time_scale: float = 1.0
    nvml_pids: str | None = None  # "host" | "visible"
    sharing: str = "slices"  # "slices" | "concurrent"
    execute: str = "fake"  # who runs vadd and mail: "fake" | "bridge"
    bridge_files: str | None = None  # folder that a daemon elsewhere serves; None = one of our own on the CPU
    bridge_timeout_ns: int = 10_000_000_000


@dataclass(frozen=True, slots=True)
class Fault:
    """A planned fault in the driver. ``process`` is ``name`` (every instance) or ``name.N``; None = any."""

    index: int
    at: str
    mode: str  # "call" (the n-th) | "every" | "from"
    call: int
    scope: str  # "process" | "container" | "node": whose calls are counted
    process: str | None
    container: str | None
    when: str  # "before" | "after" the driver does its work
    action: str  # "return" | "delay" | "kill" | "meet" | "stop" | "hold" | "lost" | "wrong" | "torn"
    code: int  # for return
    delay_ns: int  # for delay
    signal: int  # for kill
    meet: int  # for meet
    until: str  # for hold: the barrier that releases it
    where: Position


@dataclass(frozen=True, slots=True)
class Expectation:
    """One check to make: its name (``outcome``) and its plain arguments."""

    index: int
    check: str
    arguments: Mapping[str, Any]
    where: Position


@dataclass(frozen=True, slots=True)
class Options:
    """How the run is made. None = the runner's default."""

    memory_mode: str | None = None  # "reserve" | "double-check"
    policy: str | None = None  # NAME | FILE:Class
    interposer: str | None = None  # builtin | none | PATH; a container's own wins
    dialect: str | None = None  # a container's own wins
    history: str = "events"  # "none" | "events" | "calls"


@dataclass(frozen=True, slots=True)
class Planted:
    """A fault that a scenario must catch: one of the planted interposer, or a change of the file's own tree."""

    fault: str | None
    change: Mapping[str, Any]  # path, parts joined by dots -> value
    fails: str  # the check that must be invalid


@dataclass(frozen=True, slots=True)
class Instance:
    """One process of a run: its index in the run (what history and node file carry) and where it comes from."""

    index: int
    ordinal: int  # 0 .. process.count - 1
    container: Container
    process: Process

    @property
    def label(self) -> str:
        """``name`` for a single process, ``name.N`` for one of several."""
        return self.process.name if self.process.count == 1 else f"{self.process.name}.{self.ordinal}"


@dataclass(frozen=True, slots=True)
class Scenario:
    """One run. ``name`` is the file's, ``id`` adds the values of the sweep: ``race[route=dlsym]``."""

    name: str
    id: str
    doc: str
    node: Node
    containers: tuple[Container, ...]
    faults: tuple[Fault, ...]
    expect: tuple[Expectation, ...]
    timeout_ns: int
    seed: int
    options: Options
    sweep: Mapping[str, str]
    tags: tuple[str, ...]
    report: tuple[str, ...]  # ids of public reports that this scenario reproduces
    planted: tuple[Planted, ...]
    path: str  # the file it came from
    raw: Mapping[str, Any] = field(repr=False)  # the plain tree of this one run; lab.scenario.dump writes it
    simulate: Mapping[str, Any] | None = None  # in virtual time: {"kind": start_up | phases | pacing, keys of it}
    measure: Mapping[str, Any] | None = None  # bare against interposed: {"kind": calls | program, keys of it}
    needs: tuple[str, ...] = ()  # what the machine must have to play it

    @property
    def has_processes(self) -> bool:
        """Whether it is played by processes in containers, and so leaves a history."""
        return self.simulate is None and self.measure is None

    def container(self, name: str) -> Container:
        """The container called ``name``; KeyError when there is none."""
        for container in self.containers:
            if container.name == name:
                return container
        raise KeyError(name)

    def instances(self) -> tuple[Instance, ...]:
        """Every process of the run in the order of its index: containers, groups, ordinals as written."""
        found: list[Instance] = []
        for container in self.containers:
            for process in container.processes:
                for ordinal in range(process.count):
                    found.append(Instance(len(found), ordinal, container, process))
        return tuple(found)

    def process_indices(self, reference: str, container: str | None = None) -> tuple[int, ...]:
        """Run indices of the processes that ``name`` or ``name.N`` means, optionally of one container only."""
        return tuple(
            instance.index
            for instance in self.instances()
            if (container is None or instance.container.name == container)
            and reference in (instance.process.name, f"{instance.process.name}.{instance.ordinal}")
        )
