"""What a start-up burst compares: conditions (what differs between two bursts) and controls (theories that can lose).

A condition is data: environment variables, a limit, an interposer, faults. The harness is the same for all of them.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from lab.node.faults import Fault
from lab.runner.guest import GuestError
from lab.scenario.units import parse_duration
from lab.scenario.vocabulary import points
from lab.spec.profile import LATENCIES


@dataclass(frozen=True, kw_only=True)
class Condition:
    """What is special about a burst. ``memory``: None as the options say, "" no limit, "all" the device's size."""

    name: str
    environment: Mapping[str, str] = field(default_factory=dict)
    interposer: str | None = None
    memory: str | None = None
    faults: tuple[Fault, ...] = ()
    first: Mapping[str, str] = field(default_factory=dict)  # variables of worker 0 only
    worker: str = ""  # what each worker measures after its cuInit
    holder: str = ""  # what another process holds meanwhile
    broker: str = ""  # who serves host PIDs meanwhile: "", "right" or "faulty"
    control: str = ""  # the control this burst belongs to


@dataclass(frozen=True, kw_only=True)
class Control:
    """A theory, the bursts that test it and the sign that it predicts for (with - without)."""

    name: str
    theory: str
    figure: str  # of lab.report.burst_controls
    predicted: str  # "+" or "-"
    conditions: tuple[Condition, ...] = ()
    single: bool = False  # one worker is enough


# Ours dies as the published holder of the region lock, any other in the driver's retain, where HAMi has its semaphore.
_KILL_OWNER = {"HOOKLAB_POINTS": f"{points()['point.owned']}:1:{int(signal.SIGKILL)}:0"}
_KILL = Fault(name="cuDevicePrimaryCtxRetain", action="kill", call=1, process=0)


def _conditions() -> dict[str, Condition]:
    found = [
        Condition(name="baseline"),
        Condition(name="bare", interposer="none"),
        Condition(name="limit_on", memory="all"),
        Condition(name="limit_off", memory=""),
        Condition(name="client_only", environment={"LIBVGPU_HOSTPID_BROKER": "0"}),
        Condition(name="broker", environment={"LIBVGPU_HOSTPID_BROKER": "1"}, broker="right"),
        Condition(name="broker_faulty", environment={"LIBVGPU_HOSTPID_BROKER": "1"}, broker="faulty"),
        Condition(name="broker_missing", environment={"LIBVGPU_HOSTPID_BROKER": "1"}),
        Condition(name="probe", interposer="none", worker="phase_probe"),
        Condition(name="unified_exclusive", interposer="none", worker="unified_exclusive"),
        Condition(name="unified_flock", interposer="none", worker="unified_flock"),
        Condition(name="procfs", environment={"LIBVGPU_HOST_PROCFS": "/proc"}),
    ]
    return {condition.name: condition for condition in found}


CONDITIONS = _conditions()

CONTROLS = {
    control.name: control
    for control in (
        Control(
            name="phase_probe",
            theory="the probe's context work takes longer than its NVML work",
            figure="context_minus_nvml",
            predicted="+",
            conditions=(Condition(name="phase_probe", worker="phase_probe"),),
            single=True,
        ),
        Control(
            name="nested_retain",
            theory="only the first retain makes a context, a nested one is cheap",
            figure="nested_minus_first",
            predicted="-",
            conditions=(Condition(name="retain", worker="retain"),),
            single=True,
        ),
        *(
            Control(
                name=f"warm_holder:{kind}",
                theory=f"a {kind} context alive in another process makes a retain cheap",
                figure="retain_with_holder",
                predicted="-",
                conditions=(
                    Condition(name="retain", worker="retain"),
                    Condition(name=f"retain beside {kind}", worker="retain", holder=f"hold_{kind}"),
                ),
                single=True,
            )
            for kind in ("primary", "nonprimary")
        ),
        Control(
            name="no_probe",
            theory="what the interposer does around cuInit is on cuInit's path",
            figure="p99",
            predicted="-",
            conditions=(Condition(name="baseline"), Condition(name="bare", interposer="none")),
        ),
        Control(
            name="lock_owner_killed",
            theory="a process killed while it holds a lock of the start-up delays the others",
            figure="slowest",
            predicted="+",
            conditions=(Condition(name="baseline"), Condition(name="owner killed", faults=(_KILL,), first=_KILL_OWNER)),
        ),
        Control(
            name="limit_on",
            theory="a memory limit makes start-up slower",
            figure="p99",
            predicted="+",
            conditions=(Condition(name="limit_off", memory=""), Condition(name="limit_on", memory="all")),
        ),
        Control(
            name="limit_off",
            theory="taking the memory limit away makes start-up faster",
            figure="p99",
            predicted="-",
            conditions=(Condition(name="limit_on", memory="all"), Condition(name="limit_off", memory="")),
        ),
    )
}


def condition_named(text: str) -> Condition:
    """A known condition, or ``NAME:KEY=VALUE,KEY=VALUE``. GuestError in one line."""
    name, colon, pairs = text.partition(":")
    if not colon:
        if name in CONDITIONS:
            return CONDITIONS[name]
        raise GuestError(
            f"--condition {text}: not known; known are {', '.join(CONDITIONS)}, or write NAME:KEY=VALUE,KEY=VALUE"
        )
    environment = {}
    for pair in pairs.split(","):
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise GuestError(f"--condition {text}: {pair!r} is not KEY=VALUE")
        environment[key] = value
    return Condition(name=name, environment=environment)


def controls_named(texts: tuple[str, ...]) -> tuple[Control, ...]:
    """Controls by name; ``warm_holder`` alone means the primary kind. GuestError in one line."""
    found = []
    for text in texts:
        name = "warm_holder:primary" if text == "warm_holder" else text
        if name not in CONTROLS:
            raise GuestError(f"--control {text}: not known; known are {', '.join(CONTROLS)}")
        control = CONTROLS[name]
        marked = tuple(
            replace(condition, name=f"{name} {condition.name}", control=name) for condition in control.conditions
        )
        found.append(replace(control, conditions=marked))
    return tuple(found)


def latencies(text: str) -> Mapping[str, int] | str | None:
    """``none``, ``profile`` or ``init=20ms,context_create=50ms``: ns by name. GuestError in one line."""
    if text in ("none", "profile"):
        return None if text == "none" else text
    found = {}
    for pair in text.split(","):
        name, equals, value = pair.partition("=")
        if not equals or name not in LATENCIES:
            raise GuestError(f"--latency {pair}: write none, profile or NAME=DURATION with {', '.join(LATENCIES)}")
        try:
            found[name] = parse_duration(value)
        except ValueError as error:
            raise GuestError(f"--latency {pair}: {error}") from None
    return found
