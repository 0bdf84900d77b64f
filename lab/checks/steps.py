"""Checks of what steps reported: ``outcome``, ``values``, ``view``, and what holds for every step unsaid."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from lab.checks import blind
from lab.checks.history import Records
from lab.checks.model import (
    INVALID,
    UNKNOWN,
    VALID,
    Bounds,
    RunData,
    Scope,
    Verdict,
    bounds_text,
    judge_count,
    select,
    status_text,
    worst,
)
from lab.scenario.crosscheck import VALUES, values_of
from lab.scenario.model import Expectation, Instance, Scenario, Step
from lab.scenario.units import say_size
from lab.scenario.vocabulary import code_name, codes, skipped

SKIPPED = skipped()
_SIZES = ("bytes", "total", "free", "used")


def outcome(expectation: Expectation, scenario: Scenario, run: RunData) -> Verdict:
    """How often a step ended how; a result that is not named must not occur."""
    arguments = expectation.arguments
    label = str(arguments["step"])
    steps = Scope.of(scenario, arguments).steps(label)
    ends = select(run.history.of("STEP_END"), steps)
    family = _family(steps.values())
    wanted: dict[int, Bounds] = {codes()[str(name)]: bounds for name, bounds in arguments.get("named", {}).items()}
    seen = Counter(int(result) for result in ends["result"] if int(result) != SKIPPED)
    statuses = [
        judge_count(seen.get(code, 0), wanted.get(code, (0, 0)), complete=run.complete) for code in {*wanted, *seen}
    ]
    playing = {process for process, _ in steps}
    unjudged = ""
    if family == "cu":
        players = [one for one in scenario.instances() if one.index in playing]
        unjudged = blind.refusal(run, players, seen, expected=blind.OOM in wanted)
    return Verdict(
        status=UNKNOWN if unjudged else worst(statuses),
        check="outcome",
        subject=f"step {label}",
        expected=", ".join(f"{code_name(code, family)}: {bounds_text(bounds)}" for code, bounds in wanted.items()),
        seen=_counted(seen, family) + _lost(run) + blind.note(unjudged),
        where=str(expectation.where),
        evidence=run.evidence,
        details=tuple(_by_process(ends, scenario, family)) if INVALID in statuses and not unjudged else (),
    )


def values(expectation: Expectation, scenario: Scenario, run: RunData) -> Verdict:
    """Values of every successful execution of a step, each within its bounds."""
    arguments = expectation.arguments
    return _values("values", expectation, scenario, run, dict(arguments.get("named", {})))


def view(expectation: Expectation, scenario: Scenario, run: RunData) -> Verdict:
    """What every execution of a view step saw; the view must succeed."""
    wanted = {key: expectation.arguments[key] for key in ("total", "free", "used") if key in expectation.arguments}
    return _values("view", expectation, scenario, run, wanted)


def _values(
    check: str, expectation: Expectation, scenario: Scenario, run: RunData, wanted: Mapping[str, Bounds]
) -> Verdict:
    label = str(expectation.arguments["step"])
    steps = Scope.of(scenario, expectation.arguments).steps(label)
    ends = select(run.history.of("STEP_END"), steps)
    family = _family(steps.values())
    instances = {instance.index: instance for instance in scenario.instances()}
    statuses: list[str] = []
    odd: list[str] = []
    unjudged = ""
    seen: dict[str, list[int]] = {key: [] for key in wanted}
    for record in ends:
        process = int(record["process"])
        step = steps.get((process, int(record["step"])))
        if step is None:
            continue
        result = int(record["result"])
        if result != 0:
            reason = blind.failed_view(scenario, run, instances[process], record, step)
            unjudged = unjudged or reason
            statuses.append(UNKNOWN if reason else INVALID)
            odd.append(code_name(result, family))
            continue
        for key, bounds in wanted.items():
            names = values_of(step.op, step.arguments)
            if key in names:
                value = int(record["abc"[names.index(key)]])
                seen[key].append(value)
                reason = blind.figure(run, instances[process], step, key, value, bounds)
                unjudged = unjudged or reason
                statuses.append(UNKNOWN if reason else judge_count(value, bounds, complete=True))
    if not ends.size:
        statuses.append(INVALID if run.complete else UNKNOWN)
    elif not run.complete:
        statuses.append(UNKNOWN)
    said = [f"{key} {_range(key, found)}" for key, found in seen.items() if found]
    said += [f"{count} × {name}" for name, count in Counter(odd).items()]
    return Verdict(
        status=worst(statuses),
        check=check,
        subject=f"step {label}",
        expected=", ".join(f"{key} {bounds_text(bounds, _form(key))}" for key, bounds in wanted.items()),
        seen=(", ".join(said) or "the step never ended") + _lost(run) + blind.note(unjudged),
        where=str(expectation.where),
        evidence=run.evidence,
    )


def every_step(scenario: Scenario, run: RunData) -> Verdict | None:
    """Unsaid: steps that no ``outcome`` speaks of end with their ``result`` and right data, and none is left out.

    None when the scenario has no steps of its own (real commands only).
    """
    spoken: set[tuple[int, int]] = set()
    for expectation in scenario.expect:
        if expectation.check == "outcome":
            spoken |= set(Scope.of(scenario, expectation.arguments).steps(str(expectation.arguments["step"])))
    ends = run.history.of("STEP_END")
    begun = run.history.of("STEP_BEGIN")
    ended = {(int(record["process"]), int(record["step"])) for record in ends} if ends.size else set()
    started = {(int(record["process"]), int(record["step"])) for record in begun} if begun.size else set()
    steps = {
        (instance.index, step.index): (instance, step)
        for instance in scenario.instances()
        for step in instance.process.walk()
    }
    if not steps:
        return None
    wrong: list[tuple[Instance, Step, str]] = []
    unjudged = ""
    for record in ends:
        key = (int(record["process"]), int(record["step"]))
        if key in steps and key not in spoken:
            instance, step = steps[key]
            reason = _unjudged(scenario, run, instance, record, step)
            said = "" if reason else _complaint(record, step)
            unjudged = unjudged or reason
            if said:
                wrong.append((instance, step, said))
    dead_children = {
        (int(record["process"]), int(record["step"]))
        for record in ends
        if (int(record["process"]), int(record["step"])) in steps and int(record["b"]) & 0x7F
    }
    missing = [
        (instance, step, "never ended")
        for instance in scenario.instances()
        if _ended_by_itself(run, instance)
        for step in _required(instance.process.steps, instance.index, dead_children)
        if (instance.index, step.index) not in (started if step.op == "exec" else ended)
    ]
    status = INVALID if wrong else VALID
    if missing and not wrong:
        status = INVALID if run.complete and scenario.options.history != "none" else UNKNOWN
    elif not wrong and (unjudged or not run.complete):
        status = UNKNOWN
    complaints = wrong + missing
    details = tuple(f"{i.label}: step {s.label} ({s.op}): {said} – {s.where}" for i, s, said in complaints[:10])
    if len(complaints) > 10:
        details += (f"... and {len(complaints) - 10} more",)
    first = complaints[0] if complaints else None
    return Verdict(
        status=status,
        check="steps",
        subject=f"step {first[1].label}" if first else f"{len(steps)} steps",
        expected=f"ends with {_expected(first[1])}" if first else "every step ends with its result and right data",
        seen=(f"{first[0].label}: {first[2]}" if first else f"{ends.size} ends as they should be")
        + _lost(run)
        + blind.note(unjudged),
        where=str(first[1].where) if first else scenario.path,
        evidence=run.evidence,
        implied=True,
        details=details,
    )


def _unjudged(scenario: Scenario, run: RunData, instance: Instance, record: Any, step: Step) -> str:
    if not blind.of_nvml(step) and step.result in (0, blind.OOM):
        reason = blind.refusal(run, (instance,), (int(record["result"]),), expected=step.result == blind.OOM)
        if reason:
            return reason
    return blind.failed_view(scenario, run, instance, record, step)


def _expected(step: Step) -> str:
    return "any result" if step.result is None else code_name(step.result, _family([step]))


def _complaint(record: Any, step: Step) -> str:
    result = int(record["result"])
    if result == SKIPPED:
        return ""
    if step.result is not None and result != step.result:
        return code_name(result, _family([step]))
    names = VALUES.get(step.op, ())
    if result == 0 and "wrong" in names and step.op != "launch":
        wrong = int(record["abc"[names.index("wrong")]])
        return f"{wrong} wrong" if wrong else ""
    if result == 0 and step.op == "fork" and step.arguments.get("wait", True):
        return _child(int(record["b"]), step)
    if result == 0 and step.op == "launch" and int(record["a"]) == 0:
        return f"wrong output: {int(record['b'])} elements"
    return ""


def _child(status: int, step: Step) -> str:
    """A child that ends in a way its steps do not ask for."""
    for own in step.walk():
        if own.op == "exit" and status & 0x7F == 0 and (status >> 8) & 0xFF == own.arguments.get("code", 0):
            return ""
        if own.op == "signal" and status & 0x7F == own.arguments.get("signal"):
            return ""
    return f"the child ended with {status_text(status)}" if status & 0xFFFF else ""


def _ended_by_itself(run: RunData, instance: Instance) -> bool:
    status = run.statuses.get(instance.index)
    return status is not None and status & 0x7F == 0


def _required(steps: Iterable[Step], process: int, dead_children: set[tuple[int, int]]) -> Iterator[Step]:
    """The steps that a process which ended by itself must have ended (begun, for exec)."""
    for step in steps:
        if step.op in ("exit", "signal"):
            return  # what follows a signal to oneself need not be reached
        yield step
        if step.op != "fork" or (process, step.index) not in dead_children:
            yield from _required(step.steps, process, dead_children)


def _family(steps: Iterable[Step]) -> str:
    """The library whose codes the results of these steps are, by prefix."""
    return "nvml" if any(blind.of_nvml(step) for step in steps) else "cu"


def _counted(seen: Counter[int], family: str) -> str:
    return ", ".join(f"{code_name(code, family)}: {count}" for code, count in sorted(seen.items())) or "no end recorded"


def _by_process(ends: Records, scenario: Scenario, family: str) -> Iterable[str]:
    labels = {instance.index: instance.label for instance in scenario.instances()}
    for process in sorted({int(record["process"]) for record in ends})[:10]:
        results = Counter(int(record["result"]) for record in ends if int(record["process"]) == process)
        yield f"{labels.get(process, process)}: {_counted(results, family)}"


def _form(key: str) -> Any:
    return say_size if key in _SIZES else str


def _range(key: str, found: list[int]) -> str:
    form = _form(key)
    low, high = min(found), max(found)
    return str(form(low)) if low == high else f"{form(low)} to {form(high)}"


def _lost(run: RunData) -> str:
    dropped = run.history.dropped
    return f" ({dropped} records were dropped)" if dropped else ""
