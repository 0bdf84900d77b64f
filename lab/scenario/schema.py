"""The schema of a scenario file, as pydantic forms: what may be written, with the words that docs/scenarios.md prints.

A form mirrors the file exactly (same keys, same nesting), so that the location of an error in a form is the path of
the offending part in the file. lab.scenario.build turns valid forms into the dataclasses of lab.scenario.model.
What needs the whole file (does this name exist?) is in lab.scenario.crosscheck.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from lab.scenario import arguments, units, vocabulary
from lab.scenario.crosscheck import SHORT


def _one_of(what: str, known: Callable[[], Iterable[str]]) -> Callable[[object], object]:
    def check(value: object) -> object:
        names = list(known())
        if value not in names:
            listing = f"; known: {', '.join(names)}" if len(names) <= 12 else ""
            raise ValueError(f"unknown {what} {value!r}{vocabulary.nearest(value, names) or listing}")
        return value

    return check


def _code(value: object) -> object:
    if isinstance(value, str):
        known = vocabulary.codes()
        if value not in known:
            raise ValueError(f"unknown result code {value!r}{vocabulary.nearest(value, known)}")
        return known[value]
    return value


def _code_or_any(value: object) -> object:
    return "any" if value == "any" else _code(value)


def _signal(value: object) -> object:
    known = vocabulary.signals()
    if value not in known:
        raise ValueError(f"unknown signal {value!r}{vocabulary.nearest(value, known) or '; write it like SIGKILL'}")
    return known[str(value)]


SIGNAL_OFFSET = 1000  # a signal in an exit status is kept as its number minus this, apart from exit codes


def _exit_status(value: object) -> object:
    if value == "any":
        return value
    if isinstance(value, str):
        return vocabulary.signals()[value] - SIGNAL_OFFSET if value in vocabulary.signals() else _signal(value)
    if isinstance(value, int) and not isinstance(value, bool) and not 0 <= value <= 255:
        raise ValueError(f"an exit code is between 0 and 255, not {value}")
    return value


def _short(name: str) -> BeforeValidator:
    """A scalar stands for a mapping with the one key of SHORT; an empty value for an empty mapping."""
    key = SHORT[name]

    def expand(value: object) -> object:
        if value is None:
            return {}
        return value if isinstance(value, dict) else {key: value}

    return BeforeValidator(expand)


def _bounds(value: object) -> object:
    return value if isinstance(value, dict) else {"min": value, "max": value}


def _driver(value: object) -> object:
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    known = vocabulary.drivers()
    if text not in known:
        raise ValueError(f"unknown driver generation {value!r}; known: {', '.join(known)}")
    return text


def _dialect(value: object) -> object:
    if not isinstance(value, str) or "/" in value or value.endswith(".toml"):
        return value
    known = vocabulary.dialects()
    if value not in known:
        raise ValueError(f"unknown dialect {value!r}; known: {', '.join(known)}, or a TOML file")
    return value


Size = Annotated[int, BeforeValidator(units.parse_size)]
Duration = Annotated[int, BeforeValidator(units.parse_duration)]
HookName = Annotated[str, BeforeValidator(_one_of("driver function", vocabulary.hook_ids))]
FaultPlace = Annotated[str, BeforeValidator(_one_of("driver function or sequence point", vocabulary.fault_places))]
ProfileName = Annotated[str, BeforeValidator(_one_of("GPU profile", vocabulary.profiles))]
Code = Annotated[int, BeforeValidator(_code)]
CodeOrAny = Annotated[int | Literal["any"], BeforeValidator(_code_or_any)]
Signal = Annotated[int, BeforeValidator(_signal)]
ExitCode = Annotated[int | Literal["any"], BeforeValidator(_exit_status)]
Driver = Annotated[str, BeforeValidator(_driver)]
DialectName = Annotated[str, BeforeValidator(_dialect)]
Route = Literal["link", "dlsym", "default", "next", "dlvsym", "getproc", "getproc1"]
Kind = Literal["sync", "managed", "pitched", "async"]
Phase = Annotated[str, BeforeValidator(_one_of("phase", lambda: vocabulary.constants("history", "HL_PHASE_")))]
LatencyName = Annotated[str, BeforeValidator(_one_of("latency", lambda: vocabulary.constants("node", "HL_LATENCY_")))]
Argument = Annotated[Any, BeforeValidator(arguments.parse)]
Tier = Annotated[str, BeforeValidator(_one_of("tier", lambda: vocabulary.constants("history", "HL_TIER_")))]
Need = Literal["real-gpu", "torch", "containers", "broker"]
Device = Annotated[int, Field(ge=0, le=15)]
Positive = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_-]{0,47}$")]


class Form(BaseModel):
    """Strict: nothing unknown, nothing converted."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


F = TypeVar("F", bound=Form)


class CountBounds(Form):
    """A number, or a range of numbers."""

    min: Natural | None = Field(default=None, description="at least this many")
    max: Natural | None = Field(default=None, description="at most this many")


class SizeBounds(Form):
    """A size, or a range of sizes."""

    min: Size | None = Field(default=None, description="at least this size")
    max: Size | None = Field(default=None, description="at most this size")


class DurationBounds(Form):
    """A duration, or a range of durations."""

    min: Duration | None = Field(default=None, description="at least this long")
    max: Duration | None = Field(default=None, description="at most this long")


class NumberBounds(Form):
    """A number, or a range of numbers, fractions too."""

    min: float | None = Field(default=None, description="at least this")
    max: float | None = Field(default=None, description="at most this")


Count = Annotated[CountBounds, BeforeValidator(_bounds)]
DurationRange = Annotated[DurationBounds, BeforeValidator(_bounds)]
NumberRange = Annotated[NumberBounds, BeforeValidator(_bounds)]
SizeRange = Annotated[SizeBounds, BeforeValidator(_bounds)]


# --- steps -----------------------------------------------------------------------------------------------------------


class StepForm(Form):
    """A step of a process."""

    label: Name | None = Field(default=None, alias="as", description="name of the step (and of what it allocates)")
    result: CodeOrAny = Field(default=0, description="the result that this step must end with, or `any`")


class CallForm(StepForm):
    """A step that calls the driver."""

    route: Route | None = Field(
        default=None, description="how the caller finds the function; a list makes one run each"
    )
    device: Device | None = Field(default=None, description="device ordinal; default: the current one, else 0")


class Init(CallForm):
    """`cuInit`."""

    flags: Natural = Field(default=0, description="its argument")


class Context(CallForm):
    """Primary and created contexts. Without one, the first step that needs it retains the primary context."""

    op: Literal["retain", "release", "create", "destroy", "reset", "push", "pop"] = Field(description="what to do")
    what: Name | None = Field(default=None, description="label of the `create` step, for destroy and push")


class Sync(CallForm):
    """`cuCtxSynchronize`."""


class Alloc(CallForm):
    """An allocation."""

    size: Size | None = Field(default=None, alias="bytes", description="how much (not for pitched)")
    kind: Kind = Field(default="sync", description="the family; a list makes one run each")
    width: Size | None = Field(default=None, description="bytes of a row (pitched)")
    height: Positive | None = Field(default=None, description="rows (pitched)")
    element: Literal[4, 8, 16] | None = Field(default=None, description="element size (pitched), default 4")
    count: Positive = Field(default=1, description="so many allocations under one name, each with its own result")

    @model_validator(mode="after")
    def _shape(self) -> Alloc:
        pitched = self.kind == "pitched"
        if pitched and (self.width is None or self.height is None or self.size is not None):
            raise ValueError("a pitched allocation has width and height instead of bytes")
        if not pitched and (self.size is None or self.width is not None or self.height is not None):
            raise ValueError("an allocation needs bytes (width and height are for kind: pitched)")
        return self


class Free(CallForm):
    """Frees what an `alloc` step got. `free: x` is short for `free: {what: x}`."""

    what: Name | None = Field(default=None, description="label of the alloc step")
    pointer: Natural | None = Field(
        default=None, description="a raw pointer instead, e.g. one that was never allocated"
    )
    kind: Literal["sync", "async"] | None = Field(default=None, description="default: as it was allocated")

    @model_validator(mode="after")
    def _target(self) -> Free:
        if (self.what is None) == (self.pointer is None):
            raise ValueError("say what to free: either what: LABEL or pointer: NUMBER")
        return self


class Memset(CallForm):
    """`cuMemsetD8`."""

    what: Name = Field(description="label of the alloc step")
    value: Annotated[int, Field(ge=0, le=255)] = Field(default=0, description="the byte")
    size: Size | None = Field(default=None, alias="bytes", description="default: all of it")


class Write(CallForm):
    """Copies a pattern from the host to the device."""

    what: Name = Field(description="label of the alloc step")
    size: Size | None = Field(default=None, alias="bytes", description="default: all of it")


class Read(CallForm):
    """Copies back and counts the bytes that differ from the last write or memset."""

    what: Name = Field(description="label of the alloc step")
    size: Size | None = Field(default=None, alias="bytes", description="default: all of it")


class Copy(CallForm):
    """A copy on the device."""

    source: Name = Field(alias="from", description="label of an alloc step")
    target: Name = Field(alias="to", description="label of an alloc step")
    size: Size | None = Field(default=None, alias="bytes", description="default: the smaller of both")


class Module(CallForm):
    """Loads or unloads a module."""

    op: Literal["load", "unload"] = Field(default="load", description="what to do")
    what: Name | None = Field(default=None, description="label of the load step, for unload")
    image: str = Field(default="builtin", description="`builtin` (the caller's PTX with vadd and mail) or a file")


class Launch(CallForm):
    """Launches a kernel. `vadd` and `mail` are executed and their output is verified; others take modelled time."""

    kernel: str = Field(default="vadd", min_length=1, description="its name")
    blocks: Positive | None = Field(default=None, description="grid size; default: what n needs")
    threads: Annotated[int, Field(ge=1, le=1024)] | None = Field(default=None, description="block size; default 256")
    n: Positive | None = Field(default=None, description="elements")
    duration: Duration | None = Field(default=None, description="modelled duration of a kernel that is not executed")
    count: Positive = Field(default=1, description="so many launches")


class View(CallForm):
    """Asks how much memory there is."""

    api: Literal["cuda", "total", "nvml", "nvml2"] = Field(
        default="cuda",
        description="cuMemGetInfo_v2, cuDeviceTotalMem_v2, nvmlDeviceGetMemoryInfo or its _v2; a list: one run each",
    )


class Lookup(CallForm):
    """Looks a function up without calling it."""

    name: str = Field(min_length=1, description="the name asked for")
    version: Natural = Field(default=12000, description="CUDA version, for the resolver routes")
    flags: Natural = Field(default=0, description="resolver flags")


class Random(CallForm):
    """Random allocations and frees, checked against the caller's own books; everything left is freed at the end."""

    threads: Annotated[int, Field(ge=1, le=256)] = Field(default=1, description="threads of the process")
    operations: Positive = Field(default=1000, description="allocations and frees by each thread")
    live: Positive = Field(default=64, description="allocations alive at once in each thread, at most")
    min: Size = Field(default=256, description="smallest allocation")
    max: Size = Field(default=4 << 20, description="largest allocation")
    seed: Natural | None = Field(default=None, description="default: of the run")
    kinds: list[Kind] = Field(default=["sync"], min_length=1, description="families to draw from")

    @model_validator(mode="after")
    def _order(self) -> Random:
        if self.min > self.max or self.min == 0:
            raise ValueError("min must be at least 1 byte and not above max")
        return self


class Barrier(StepForm):
    """Waits until every process that has this barrier is there (or dead). `barrier: NAME` for short."""

    name: Name = Field(description="its name")


class Fork(StepForm):
    """Forks; the child plays the nested steps and exits."""

    steps: list[StepItem] = Field(min_length=1, description="what the child does")
    wait: bool = Field(default=True, description="wait for the child")
    raw: bool = Field(default=False, description="a bare clone, past libc: no fork handlers run")


class Exec(StepForm):
    """Replaces the process image by a fresh caller that plays the nested steps. Only as a last step."""

    steps: list[StepItem] = Field(min_length=1, description="what the new program does")
    clear_environment: bool = Field(default=False, description="start it with an empty environment")
    environment: dict[str, str] = Field(default={}, description="variables to set for it")


class Parallel(StepForm):
    """Every thread plays the nested steps; all are joined."""

    threads: Annotated[int, Field(ge=1, le=1024)] = Field(description="how many")
    steps: list[StepItem] = Field(min_length=1, description="what each does")


class Repeat(StepForm):
    """Plays the nested steps again and again, each time with records of their own."""

    count: Annotated[int, Field(ge=1, le=100_000)] = Field(description="how often")
    steps: list[StepItem] = Field(min_length=1, description="what is repeated")


class Call(CallForm):
    """Any driver function by its name. Nothing is added to it: no context is made for it, and all it gets is `with`.

    An argument is a number or a size, `null`, `NAME` or `NAME+SIZE` (what an earlier `alloc`, `context`, `module` or
    `call` step got), `{text: T}`, `{out: NAME, was: N}` (a place of eight bytes that held N before, 0 by default),
    `{struct: {OFFSET: VALUE}, size: N, as: NAME, out: {NAME: OFFSET}}` (a zeroed buffer of exactly that size that
    ends at an inaccessible page; numbers take four bytes, sizes with a unit and names eight) or `{value: NAME}` (the
    bytes of a buffer of that name, by value). What lies in outputs afterwards can be used by later steps and judged by
    `values`: the first three outputs of a call, by their names.
    """

    name: HookName = Field(description="the driver function; without `route` it is found as the caller finds others")
    with_: list[Argument] = Field(default=[], alias="with", description="its arguments, all of them")


class Give(StepForm):
    """Leaves what a step of this process got for another process of the run. `give: x` for short."""

    what: Name = Field(description="a name that an earlier step made: a value, an allocation or a buffer")


class Take(StepForm):
    """Takes what another process gave under this name; a barrier says when it is there. `take: x` for short."""

    what: Name = Field(description="the name; later steps use it like an output of their own")


class Raise(StepForm):
    """The process sends itself a signal. `signal: SIGTERM` for short."""

    signal: Signal = Field(description="which")


class Exit(StepForm):
    """Ends the process. `exit: 3` for short."""

    code: Annotated[int, Field(ge=0, le=255)] = Field(default=0, description="exit code")
    quick: bool = Field(default=False, description="`_exit`: no exit handlers")


class StepItemForm(Form):
    """One step: a mapping with exactly one of these keys. A bare word (`init`, `sync`, `view`) takes the defaults."""

    init: Annotated[Init | None, _short("init")] = None
    context: Annotated[Context | None, _short("context")] = None
    sync: Annotated[Sync | None, _short("sync")] = None
    alloc: Annotated[Alloc | None, _short("alloc")] = None
    free: Annotated[Free | None, _short("free")] = None
    memset: Annotated[Memset | None, _short("memset")] = None
    write: Annotated[Write | None, _short("write")] = None
    read: Annotated[Read | None, _short("read")] = None
    copy_: Annotated[Copy | None, _short("copy")] = Field(default=None, alias="copy")
    module: Annotated[Module | None, _short("module")] = None
    launch: Annotated[Launch | None, _short("launch")] = None
    view: Annotated[View | None, _short("view")] = None
    lookup: Annotated[Lookup | None, _short("lookup")] = None
    random: Annotated[Random | None, _short("random")] = None
    barrier: Annotated[Barrier | None, _short("barrier")] = None
    fork: Annotated[Fork | None, _short("fork")] = None
    exec: Annotated[Exec | None, _short("exec")] = None
    parallel: Annotated[Parallel | None, _short("parallel")] = None
    repeat: Annotated[Repeat | None, _short("repeat")] = None
    call: Annotated[Call | None, _short("call")] = None
    give: Annotated[Give | None, _short("give")] = None
    take: Annotated[Take | None, _short("take")] = None
    signal: Annotated[Raise | None, _short("signal")] = None
    exit: Annotated[Exit | None, _short("exit")] = None

    @model_validator(mode="after")
    def _one(self) -> StepItemForm:
        return _exactly_one(self, "a step has exactly one operation")


def _bare_step(value: object) -> object:
    if isinstance(value, str):
        known = [field.alias or name for name, field in StepItemForm.model_fields.items()]
        if value not in known:
            raise ValueError(f"unknown step {value!r}{vocabulary.nearest(value, known)}")
        return {value: None}
    return value


StepItem = Annotated[StepItemForm, BeforeValidator(_bare_step)]


def _exactly_one(form: F, what: str) -> F:
    given = sorted(form.model_fields_set)
    if len(given) != 1:
        raise ValueError(f"{what}; found {', '.join(name.rstrip('_') for name in given) or 'none'}")
    return form


# --- containers ------------------------------------------------------------------------------------------------------


class Limits(Form):
    """What a container may use."""

    memory: Size | dict[Device, Size] | None = Field(
        default=None, description="device memory: a size for every device, or a mapping from ordinal to size"
    )
    cores: Annotated[int, Field(ge=0, le=100)] | dict[Device, Annotated[int, Field(ge=0, le=100)]] | None = Field(
        default=None, description="percent of the SMs, likewise"
    )


class StartAfter(Form):
    """Start order."""

    after: Name = Field(description="start once every process of this group has ended")


class ProcessForm(Form):
    """A group of equal processes."""

    name: Name = Field(description="its name; with count > 1 the processes are `name.0`, `name.1`, ...")
    count: Annotated[int, Field(ge=1, le=1024)] = Field(default=1, description="how many")
    start: Literal["now", "barrier"] | StartAfter = Field(
        default="now", description="`now`; `barrier`: released together with all others that say so; `{after: NAME}`"
    )
    steps: list[StepItem] | None = Field(default=None, min_length=1, description="played by the caller; or:")
    run: list[str] | None = Field(
        default=None,
        min_length=1,
        description="a command and its arguments; `hooklab` is this one, `{python}` the interpreter that runs it",
    )
    environment: dict[str, str] = Field(default={}, description="variables to set")
    clear_environment: bool = Field(default=False, description="start with an empty environment (as `env -i` does)")
    cwd: str | None = Field(default=None, description="working directory of `run`")
    expect_exit: ExitCode = Field(default=0, description="exit code, signal name, or `any`")

    @model_validator(mode="after")
    def _work(self) -> ProcessForm:
        if (self.steps is None) == (self.run is None):
            raise ValueError("a process has either steps or run")
        return self


class ContainerForm(Form):
    """A container, arranged as a device plugin's Allocate would arrange it."""

    limits: Limits = Field(default=Limits(), description="what it may use")
    pid_namespace: Literal["host", "private"] = Field(
        default="host", description="whether it has its own PID namespace"
    )
    share_region_with: Name | None = Field(default=None, description="use the ledger file of that container")
    environment: dict[str, str] = Field(
        default={},
        description="variables for all its processes; in names and values, here and in steps, `{uuid:CARD}` is a "
        "card's UUID, `{uuid:CARD/NUMBER}` that of one of its MIG devices, and `{uuid:...:bare}` the same without what "
        "it begins with",
    )
    host_pids: Literal["broker", "procfs"] | None = Field(
        default=None, description="who tells its processes their host PID: a broker, or the host's procfs mounted"
    )
    interposer: str | None = Field(default=None, description="`builtin`, `none` or a path; default: as the run says")
    dialect: DialectName | None = Field(
        default=None, description="how limits reach the interposer; default: as the run says"
    )
    processes: list[ProcessForm] = Field(min_length=1, description="what runs in it")


class BridgeForm(Form):
    """The bridge of `execute: bridge`. Without `files`, a daemon of the run's own computes on the CPU."""

    files: str | None = Field(
        default=None, description="a folder with job, in, out and done that a daemon elsewhere serves"
    )
    timeout: Annotated[Duration, Field(gt=0, le=50_000_000_000)] = Field(
        default=10_000_000_000, description="then a job's launch has timed out"
    )


class NodeForm(Form):
    """The fake GPU node."""

    gpus: list[ProfileName] = Field(
        default=["a100-80g"], min_length=1, max_length=16, description="a profile for each device"
    )
    driver: Driver = Field(default="580", description="driver version; a list makes one run each")
    memory: Size | None = Field(default=None, description="device memory instead of the profile's")
    context: Size | None = Field(default=None, description="what a context takes instead of the profile's")
    latency: Literal["none", "profile"] | dict[LatencyName, Duration] = Field(
        default="none", description="modelled durations of driver work: none, the profile's, or by name"
    )
    time_scale: Annotated[float, Field(gt=0, le=1000)] | Annotated[int, Field(ge=1, le=1000)] = Field(
        default=1.0, description="modelled time over real time"
    )
    nvml_pids: Literal["host", "visible"] | None = Field(
        default=None,
        description="whom NVML lists in a private PID namespace: all by host PIDs, or those there by their PIDs there; "
        "default: as the first device's profile says",
    )
    sharing: Literal["slices", "concurrent"] = Field(
        default="slices",
        description="processes take turns on a GPU by the slices of its profile, or run side by side as under MPS",
    )
    execute: Literal["fake", "bridge"] = Field(
        default="fake", description="who runs `vadd` and `mail`: the fake driver itself, or a daemon of the CUDA bridge"
    )
    bridge: BridgeForm = Field(default=BridgeForm(), description="how that daemon is reached")


class FaultForm(Form):
    """A planned fault in the driver, or at a sequence point of the built-in interposer (`point.locked` and others).

    A sequence point takes `kill` or `stop`, by `call` (the n-th time the process comes there) and by process.
    """

    at: FaultPlace = Field(description="the driver function, or `point.NAME`")
    call: Positive | None = Field(default=None, description="fires at the n-th call only (default: at the first)")
    every: Positive | None = Field(default=None, description="fires at every n-th call")
    from_: Positive | None = Field(default=None, alias="from", description="fires at the n-th call and all later ones")
    scope: Literal["process", "container", "node"] = Field(default="process", description="whose calls are counted")
    process: str | None = Field(
        default=None, description="only in this process: `name` (each of the group) or `name.N`"
    )
    container: Name | None = Field(default=None, description="only in this container")
    when: Literal["before", "after"] = Field(default="before", description="before or after the driver does its work")
    return_: Code | None = Field(default=None, alias="return", description="action: return this code")
    delay: Duration | None = Field(default=None, description="action: take longer")
    kill: Signal | None = Field(default=None, description="action: the caller gets this signal")
    meet: Annotated[int, Field(ge=2)] | None = Field(
        default=None,
        description="action: hold callers (threads of one process or of several) until so many have arrived or nobody "
        "else can",
    )
    stop: Literal[True] | Name | None = Field(
        default=None, description="action: stop the caller (SIGSTOP); a name: until the others have met at this barrier"
    )
    lost: Literal[True] | None = Field(default=None, description="action: the device falls off the bus")

    spoil: Literal["wrong", "torn"] | None = Field(
        default=None, description="action: turn every bit of what the call wrote for its caller, or of its second half"
    )

    @model_validator(mode="after")
    def _shape(self) -> FaultForm:
        actions = self.model_fields_set & {"return_", "delay", "kill", "meet", "stop", "lost", "spoil"}
        if len(actions) != 1:
            raise ValueError(
                "a fault has exactly one action of return, delay, kill, meet, stop, lost, spoil; found "
                + (", ".join(sorted(action.rstrip("_") for action in actions)) or "none")
            )
        if len(self.model_fields_set & {"call", "every", "from_"}) > 1:
            raise ValueError("a fault has one of call, every, from")
        if self.at.startswith("point."):
            if not actions & {"kill", "stop"} or isinstance(self.stop, str):
                raise ValueError(f"at {self.at} a process can only be killed or stopped")
            if self.model_fields_set & {"every", "from_", "scope", "when"}:
                raise ValueError(f"at {self.at} only call, process and container can be chosen")
        return self


class OptionsForm(Form):
    """How the run is made; the command line wins."""

    memory_mode: Literal["reserve", "double-check"] | None = Field(
        default=None, description="how the ledger admits; a list makes one run each"
    )
    policy: str | None = Field(default=None, description="FILE.py:Class, looked for beside the scenario file")
    history: Literal["none", "events", "calls"] = Field(
        default="events", description="how much to record; `calls`: every call"
    )
    interposer: str | None = Field(default=None, description="`builtin`, `none` or a path")
    dialect: DialectName | None = Field(default=None, description="how limits reach the interposer")


# --- expectations ----------------------------------------------------------------------------------------------------


class Where(Form):
    """Narrows an expectation."""

    process: str | None = Field(default=None, description="only this process: `name` or `name.N`")
    container: Name | None = Field(default=None, description="only this container")


class Outcome(Where):
    """How often a step ended how: `outcome: {step: x, ok: 1, oom: 1}`. Every result that occurs must be named.

    Other keys are result codes (`CUDA_ERROR_INVALID_VALUE: 2`); each takes a number or `{min, max}`.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Count]
    step: Name = Field(description="label of the step")


class NeverAbove(Where):
    """Physical memory never exceeds this, not even for a moment (from the fake driver's own books)."""

    memory: Size = Field(description="the bound")
    of: Literal["container", "process", "device"] = Field(default="container", description="whose memory")
    device: Device | None = Field(default=None, description="default: each device")


class LedgerEmpty(Where):
    """The interposer's ledger and the driver's books hold nothing."""

    at: Literal["end"] = Field(default="end", description="when")


class NoLeak(Where):
    """At the end of its program the driver holds just the allocations that a process still has: none that it was never
    given or believes freed, none missing (needs `options: {history: calls}`)."""

    at: Literal["end"] = Field(default="end", description="when")


class KnownResults(Where):
    """Every result that a step saw is a value of the driver's enum."""

    of: Literal["steps"] = Field(default="steps", description="whose results")


class OutputsUntouched(Where):
    """A call that failed left its outputs as they were: no pointer of a refused allocation, no figures of a view."""

    of: Literal["steps"] = Field(default="steps", description="whose calls")


class ViewExpect(Where):
    """What a `view` step saw."""

    step: Name = Field(description="label of the view step")
    total: SizeRange | None = Field(default=None, description="a size or {min, max}")
    free: SizeRange | None = Field(default=None, description="a size or {min, max}")
    used: SizeRange | None = Field(default=None, description="a size or {min, max} (NVML views)")


class ExitExpect(Where):
    """How processes ended; replaces their `expect_exit`."""

    code: Annotated[int, Field(ge=0, le=255)] | None = Field(default=None, description="exit code")
    signal: Signal | None = Field(default=None, description="signal")
    count: Count | None = Field(default=None, description="so many of them; default: all")

    @model_validator(mode="after")
    def _end(self) -> ExitExpect:
        if (self.code is None) == (self.signal is None):
            raise ValueError("an exit expectation has either code or signal")
        if self.process is None:
            raise ValueError("an exit expectation names its process")
        return self


class Order(Where):
    """Order of the phases of an interposed `cuInit`, in every process that shows one."""

    phases: list[Phase] = Field(min_length=1, description="these occur, first occurrences in this order")
    once: bool = Field(default=False, description="and each exactly once a process")


class Calls(Where):
    """How often the driver was called (needs `options: {history: calls}`)."""

    name: HookName = Field(description="the driver function")
    result: Code | None = Field(default=None, description="only calls with this result")
    count: Count = Field(description="a number or {min, max}")


class NotExecuted(Where):
    """Launches of kernels that only took time."""

    count: Count = Field(description="a number or {min, max}")


class FaultsFired(Form):
    """How often planned faults fired. Without this, every fault must fire at least once."""

    fault: Natural | None = Field(
        default=None, description="number of the fault in `faults`, from 0; default: all together"
    )
    count: Count = Field(description="a number or {min, max}")


class Values(Where):
    """Values that a step reported: `values: {step: x, wrong: 0}`. Names by step are in the table of steps.

    Each takes a number, a size, or `{min, max}` of them.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, SizeRange]
    step: Name = Field(description="label of the step")


class Reported(Where):
    """Figures that a `run` program printed, each as a line `hooklab: NAME=NUMBER`; of several, the last counts.

    `reported: {process: torch, wrong: 0}`. A process that printed no such figure is wrong.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, NumberRange]
    process: str = Field(description="only this process: `name` or `name.N`")

    @model_validator(mode="after")
    def _some(self) -> Reported:
        if not self.model_extra:
            raise ValueError("reported names at least one figure, e.g. wrong: 0")
        return self


class Held(Where):
    """Device memory that the driver says a container holds while everybody waits at a barrier."""

    barrier: Name = Field(description="name of the barrier")
    memory: SizeRange = Field(description="a size or {min, max}, of all devices together")


class IdentityExpect(Where):
    """Which tier found out the host PID of every process that asked; a PID that is not its own is always wrong."""

    tier: Tier | list[Tier] = Field(description="one tier, or several that may have been it")


class Bridged(Form):
    """Jobs that went over the bridge (`execute: bridge`), by what came of them."""

    kernel: Literal["vadd", "mail"] | None = Field(default=None, description="of this kernel; default: of both")
    status: Literal["ok", "bad job", "cuda error", "transport error", "none"] = Field(
        default="ok", description="of the done record; `none`: there was none in time"
    )
    wrong: Natural | None = Field(default=None, description="elements that the daemon found wrong, in all these jobs")
    count: Count = Field(description="a number or {min, max}")


class Added(Form):
    """What the interposer adds to a figure of `measure`. Bounds are for a real GPU; over a fake they judge nothing."""

    figure: str = Field(min_length=1, description="name of the figure, e.g. `cuLaunchKernel`")
    live: Natural | None = Field(default=None, description="at this number of live allocations; default: any")
    ns: NumberRange | None = Field(default=None, description="nanoseconds, a number or {min, max}")
    percent: NumberRange | None = Field(default=None, description="percent of the bare time, a number or {min, max}")

    @model_validator(mode="after")
    def _bound(self) -> Added:
        if self.ns is None and self.percent is None:
            raise ValueError("added says ns or percent")
        return self


class StartUpExpect(Form):
    """Latencies of a simulated start-up, failures and waits that ran out beside them. Percentiles are nearest rank."""

    condition: str | None = Field(default=None, description="of which condition; default: each")
    workers: Positive | None = Field(default=None, description="of which number of workers; default: each")
    p50: DurationRange | None = Field(default=None, description="a duration or {min, max}")
    p99: DurationRange | None = Field(default=None, description="a duration or {min, max}")
    max: DurationRange | None = Field(default=None, description="a duration or {min, max}")
    mean: DurationRange | None = Field(default=None, description="a duration or {min, max}")
    latencies: list[Duration] | None = Field(default=None, description="of all workers, the fastest first")
    timeouts: Count | None = Field(default=None, description="waits that ran out")
    gave_up: Count | None = Field(default=None, description="workers that gave up at a gate")


class Share(Form):
    """What tenants of a simulated GPU got. Errors are in points, percent of the GPU, over windows of a second."""

    tenant: Natural | None = Field(default=None, description="which, from 0; default: each")
    achieved: NumberRange | None = Field(default=None, description="mean share in percent")
    mae: NumberRange | None = Field(default=None, description="mean absolute error")
    long_run: NumberRange | None = Field(default=None, description="error of the mean")
    jain: NumberRange | None = Field(default=None, description="Jain's index of achieved over wanted, of all tenants")


class ExpectForm(Form):
    """One expectation: a mapping with exactly one of these keys.

    Three hold without being written: every step without an expectation of its own ends with its `result` and right
    data, every process ends as its `expect_exit` says, every planned fault fires.
    """

    outcome: Outcome | None = None
    never_above: Annotated[NeverAbove | None, _short("never_above")] = None
    ledger_empty: Annotated[LedgerEmpty | None, _short("ledger_empty")] = None
    no_leak: Annotated[NoLeak | None, _short("no_leak")] = None
    known_results: Annotated[KnownResults | None, _short("known_results")] = None
    outputs_untouched: Annotated[OutputsUntouched | None, _short("outputs_untouched")] = None
    view: ViewExpect | None = None
    exit: ExitExpect | None = None
    order: Order | None = None
    calls: Calls | None = None
    not_executed: Annotated[NotExecuted | None, _short("not_executed")] = None
    faults_fired: Annotated[FaultsFired | None, _short("faults_fired")] = None
    values: Values | None = None
    reported: Reported | None = None
    held: Held | None = None
    identity: IdentityExpect | None = None
    bridged: Bridged | None = None
    added: Added | None = None
    start_up: StartUpExpect | None = None
    share: Share | None = None

    @model_validator(mode="after")
    def _one(self) -> ExpectForm:
        return _exactly_one(self, "an expectation has exactly one check")


_BARE = ("ledger_empty", "no_leak", "known_results", "outputs_untouched")


def _bare_expect(value: object) -> object:
    return {value: None} if value in _BARE else value


class StartUpForm(Form):
    """Start-ups of the article's interposer, as `hooklab burst --on sim` plays them."""

    conditions: list[str] = Field(default=["baseline"], min_length=1, description="as `burst --condition`")
    workers: list[Positive] = Field(min_length=1, description="how many start at once; each is a burst")


class GateForm(Form):
    """Something that phases wait at."""

    servers: Positive = Field(default=1, description="how many it serves at a time")
    order: Literal["fifo", "random", "lifo"] = Field(default="fifo", description="whom it serves next")
    scope: Literal["host", "cache", "gpu"] = Field(default="host", description="one for the host, or one for each")
    timeout: Duration = Field(default=0, description="a wait ends after so long; 0: never")
    tries: Positive = Field(default=1, description="so many waits, then the process goes on without")


class PhaseForm(Form):
    """One stretch of a start-up."""

    name: Name = Field(description="its name")
    time: Duration = Field(default=0, description="how long it takes")
    gate: Name | None = Field(default=None, description="where it waits; a gate not listed serves one at a time")
    per_turn: Duration = Field(default=0, description="longer by this for every process served before")


class PhasesForm(Form):
    """A start-up of your own: phases in order, each perhaps behind a gate."""

    workers: Positive = Field(description="how many start at once")
    plan: list[PhaseForm] = Field(min_length=1, description="what each goes through")
    gates: dict[Name, GateForm] = Field(default={}, description="gates that are not the default")
    release: Duration = Field(default=0, description="they are released within this time")


class TenantForm(Form):
    """A container on a simulated GPU."""

    pattern: str = Field(description="what it launches; `hooklab pacing --patterns help` lists them")
    target: Annotated[int, Field(ge=1, le=99)] = Field(description="percent of the GPU")


class PacingForm(Form):
    """Tenants under a controller of compute time, as `hooklab pacing --on sim` plays them."""

    controller: str = Field(default="hybrid", description="NAME or FILE.py:Class")
    tenants: list[TenantForm] = Field(min_length=1, description="who shares the GPU")
    sms: Positive = Field(default=108, description="its SMs")
    seconds: Positive = Field(default=10, description="graded, after 3 s to settle")
    period: Duration = Field(default=166_666_667, description="between NVML samples")
    attribution: Literal["board", "exact", "winner"] = Field(
        default="board", description="who had what: by the board of the node, or by NVML's samples"
    )
    sharing: Literal["slices", "concurrent"] = Field(default="slices", description="of the GPU")


class SimulateForm(Form):
    """A scenario in virtual time instead of processes: a mapping with exactly one of these keys.

    Such a scenario has no containers and no faults; its evidence is `simulated`, whatever `--on` says.
    """

    start_up: StartUpForm | None = Field(default=None, description="the article's interposer")
    phases: PhasesForm | None = Field(default=None, description="a start-up of your own")
    pacing: PacingForm | None = Field(default=None, description="tenants under a controller of compute time")

    @model_validator(mode="after")
    def _one(self) -> SimulateForm:
        return _exactly_one(self, "simulate has exactly one of start_up, phases and pacing")


class PlantedForm(Form):
    """A fault with which this scenario must become invalid. Ignored by `run`; the tests plant it."""

    fault: str | None = Field(default=None, description="one of tests/native/interposers/planted.c")
    change: dict[str, Any] | None = Field(default=None, description="`path.in.this.file: value` instead")
    fails: str = Field(min_length=1, description="the check that must be invalid then")

    @model_validator(mode="after")
    def _one(self) -> PlantedForm:
        if (self.fault is None) == (self.change is None):
            raise ValueError("a planted fault is either a fault of the planted interposer or a change of this file")
        return self


class MeasureCalls(Form):
    """Times driver calls, as `hooklab bench calls` does."""

    rounds: Positive = Field(default=5, description="processes of each side")
    batches: Positive = Field(default=41, description="batches of each figure in a round")
    live: list[Natural] = Field(default=[0], min_length=1, description="live allocations to time at, ascending")
    memory: Size = Field(default=16 << 30, description="memory limit of the interposed side")

    @model_validator(mode="after")
    def _ascending(self) -> MeasureCalls:
        if self.live != sorted(set(self.live)):
            raise ValueError("live takes ascending counts")
        return self


class MeasureProgram(Form):
    """Times a program that measures itself on demand (lab/runner/pairs.py says how it is asked)."""

    run: list[str] = Field(min_length=1, description="its command; `{python}` is hooklab's own Python")
    rounds: Positive = Field(default=5, description="processes of each side")
    batches: Positive = Field(default=41, description="batches of each figure in a round")
    cpus: Positive = Field(default=4, description="processors that the three processes of a round share")
    memory: Size = Field(default=16 << 30, description="memory limit of the interposed side")


class MeasureForm(Form):
    """Bare against interposed, side by side, instead of containers: a mapping with exactly one of these keys."""

    calls: MeasureCalls | None = Field(default=None, description="driver calls")
    program: MeasureProgram | None = Field(default=None, description="a program that measures itself")

    @model_validator(mode="after")
    def _one(self) -> MeasureForm:
        return _exactly_one(self, "measure has exactly one of calls and program")


class ScenarioForm(Form):
    """The keys of a scenario file."""

    name: Annotated[str, Field(min_length=1, max_length=120)] = Field(description="what it is called")
    doc: str = Field(default="", description="what it shows, for people")
    tags: list[str] = Field(default=[], description="free words to select it by: `hooklab run @WORD`")
    needs: list[Need] = Field(
        default=[], description="what the machine must have; without it nothing is played and the verdict is unknown"
    )
    report: list[str] = Field(default=[], description="ids of public reports that it reproduces (docs/corpus.md)")
    planted: list[PlantedForm] = Field(default=[], description="faults that it must catch; the tests plant each")
    sweep: dict[str, list[Any]] = Field(
        default={}, description="values for `$name` anywhere; one run for each combination"
    )
    node: NodeForm = Field(default=NodeForm(), description="the fake node")
    containers: dict[Name, ContainerForm] = Field(
        default={}, description="by name; at least one, or `simulate` or `measure`"
    )
    simulate: SimulateForm | None = Field(default=None, description="in virtual time, instead of containers")
    measure: MeasureForm | None = Field(default=None, description="bare against interposed, instead of containers")
    faults: list[FaultForm] = Field(default=[], description="planned faults")
    expect: list[Annotated[ExpectForm, BeforeValidator(_bare_expect)]] = Field(default=[], description="what must hold")
    options: OptionsForm = Field(default=OptionsForm(), description="how the run is made")
    timeout: Duration = Field(
        default=60_000_000_000, gt=0, description="then processes are killed and the run is invalid"
    )
    seed: Natural = Field(default=1, description="of everything random")


for _form in (Fork, Exec, Parallel, Repeat, StepItemForm):
    _form.model_rebuild()
