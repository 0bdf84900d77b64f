"""Checks of processes and of the run as a whole: how they ended, the order of phases, calls, faults, the engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lab.checks import blind
from lab.checks.history import Records, constants
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
    status_text,
    worst,
)
from lab.scenario.model import ExitStatus, Expectation, Fault, Instance, Scenario
from lab.scenario.units import format_duration
from lab.scenario.vocabulary import code_name, hook_ids

ENGINE_FAULT, ENGINE_ABSENT = 2, 3  # a of HL_EVENT_ENGINE


def exits(expectation: Expectation, scenario: Scenario, run: RunData) -> Verdict:
    """Processes end with this code or signal: all of them, or as many as ``count`` says."""
    arguments = expectation.arguments
    wanted = ExitStatus(arguments.get("code"), arguments.get("signal"))
    instances = Scope.of(scenario, arguments).instances
    known = {one.index: run.statuses[one.index] for one in instances if one.index in run.statuses}
    right = sum(wanted.matches(status) for status in known.values())
    lived = {
        one.index: reason
        for one in instances
        if one.index in known and (reason := blind.survivor(scenario, run, one, known[one.index]))
    }
    unjudged = next(iter(lived.values()), "")
    bounds = arguments.get("count", (len(instances), len(instances)))
    return Verdict(
        status=_with_lived(right, len(lived), bounds, complete=len(known) == len(instances)),
        check="exit",
        subject=f"process {arguments['process']}",
        expected=f"{_wanted_text(wanted)} × {bounds_text(bounds)}",
        seen=_ends_text(known.values(), len(instances) - len(known)) + blind.note(unjudged),
        where=str(expectation.where),
        evidence=run.evidence,
        details=tuple(_stories(tuple(one for one in instances if one.index not in lived), run, wanted)),
    )


def _with_lived(right: int, lived: int, bounds: Bounds, *, complete: bool) -> str:
    """A count of ends, where ``lived`` processes would have died if the interposer had been able to do it."""
    if not lived:
        return judge_count(right, bounds, complete=complete)
    low, high = bounds
    possible = (low is None or right + lived >= low) and (high is None or right <= high)
    return UNKNOWN if possible or not complete else INVALID


def every_exit(scenario: Scenario, run: RunData) -> Verdict | None:
    """Unsaid: every process ends as its ``expect_exit`` says, unless an ``exit`` expectation speaks of it."""
    spoken: set[int] = set()
    for expectation in scenario.expect:
        if expectation.check == "exit":
            spoken |= {instance.index for instance in Scope.of(scenario, expectation.arguments).instances}
    judged = [
        instance
        for instance in scenario.instances()
        if instance.index not in spoken and instance.process.expect_exit is not None
    ]
    if not judged:
        return None
    statuses: list[str] = []
    wrong: list[Instance] = []
    unjudged = ""
    for instance in judged:
        status, wanted = run.statuses.get(instance.index), instance.process.expect_exit
        if status is None or wanted is None:
            statuses.append(UNKNOWN)
        elif wanted.matches(status):
            statuses.append(VALID)
        elif reason := blind.survivor(scenario, run, instance, status):
            unjudged = unjudged or reason
            statuses.append(UNKNOWN)
        else:
            statuses.append(INVALID)
            wrong.append(instance)
    subject = wrong[0] if wrong else judged[0]
    wanted_text = _wanted_text(subject.process.expect_exit or ExitStatus(code=0))
    known = [run.statuses[one.index] for one in judged if one.index in run.statuses]
    return Verdict(
        status=worst(statuses),
        check="exits",
        subject=f"process {subject.label}" if wrong or len(judged) == 1 else f"{len(judged)} processes",
        expected=wanted_text if wrong or len(judged) == 1 else "each ends as its expect_exit says",
        seen=(status_text(run.statuses[wrong[0].index]) if wrong else _ends_text(known, len(judged) - len(known)))
        + blind.note(unjudged),
        where=str(subject.process.where),
        evidence=run.evidence,
        implied=True,
        details=tuple(line for one in wrong[:5] for line in _stories((one,), run, one.process.expect_exit)),
    )


def _wanted_text(wanted: ExitStatus) -> str:
    return status_text(wanted.signal) if wanted.signal is not None else f"exit {wanted.code}"


def _ends_text(statuses: Any, unknown: int) -> str:
    counts: dict[str, int] = {}
    for status in statuses:
        counts[status_text(status)] = counts.get(status_text(status), 0) + 1
    said = [f"{text} × {count}" for text, count in sorted(counts.items())]
    if unknown:
        said.append(f"unknown × {unknown}")
    return ", ".join(said) or "nothing"


def _stories(instances: tuple[Instance, ...], run: RunData, wanted: ExitStatus | None) -> list[str]:
    """What is known about the processes that ended otherwise: end, standard error, backtrace."""
    lines: list[str] = []
    for instance in instances:
        status = run.statuses.get(instance.index)
        if status is None or wanted is None or wanted.matches(status):
            continue
        info = run.process_info(instance.index)
        error = f"; stderr in {info['stderr']}" if info.get("stderr") else ""
        lines.append(f"{instance.label}: {status_text(status)}{error}")
        backtrace = None if run.info.get("timed_out") else info.get("backtrace")  # the verdict on the time has them
        if isinstance(backtrace, str) and backtrace:
            lines += [f"    {line}" for line in backtrace.splitlines()[:40]]
        if len(lines) > 60:
            break
    return lines


def order(expectation: Expectation, scenario: Scenario, run: RunData) -> Verdict:
    """Phases of the interposed start: all there, first occurrences in this order, once each if so said."""
    arguments = expectation.arguments
    names = [str(name) for name in arguments["phases"]]
    numbers = [int(constants()[f"HL_PHASE_{name.upper()}"]) for name in names]
    labels = {instance.index: instance.label for instance in Scope.of(scenario, arguments).instances}
    phases = run.history.of("PHASE")
    complaints: list[str] = []
    processes: set[tuple[int, int]] = {
        (int(record["process"]), int(record["pid"])) for record in phases if int(record["process"]) in labels
    }
    for process, pid in sorted(processes):
        mine = phases[(phases["process"] == process) & (phases["pid"] == pid)]
        said = _order_complaint(mine, names, numbers, once=bool(arguments.get("once")))
        if said:
            complaints.append(f"{labels[process]}: {said}")
    if complaints:
        status = INVALID if run.complete else UNKNOWN
    elif processes:
        status = VALID if run.complete else UNKNOWN
    else:
        status = UNKNOWN
    once = " once each" if arguments.get("once") else ""
    return Verdict(
        status=status,
        check="order",
        subject=f"{len(processes)} processes",
        expected=" → ".join(names) + once,
        seen=complaints[0] if complaints else "in order" if processes else "the interposer reports no phases",
        where=str(expectation.where),
        evidence=run.evidence,
        details=tuple(complaints[:20]),
    )


def _order_complaint(records: Records, names: list[str], numbers: list[int], *, once: bool) -> str:
    sequence = [int(phase) for phase in records["a"]]
    for name, number in zip(names, numbers, strict=True):
        if number not in sequence:
            return f"{name} is missing"
        if once and sequence.count(number) != 1:
            return f"{name} × {sequence.count(number)}"
    first = [sequence.index(number) for number in numbers]
    for (before, a), (after, b) in zip(
        zip(names, first, strict=True), list(zip(names, first, strict=True))[1:], strict=False
    ):
        if a > b:
            return f"{after} before {before}"
    return ""


def calls(expectation: Expectation, scenario: Scenario, run: RunData) -> Verdict:
    """How often the driver was called by this name (as the driver saw it)."""
    arguments = expectation.arguments
    name = str(arguments["name"])
    records = _in_scope(run.history.of("CALL"), scenario, arguments)
    records = records[records["name"] == hook_ids()[name]]
    result = arguments.get("result")
    if result is not None:
        records = records[records["result"] == result]
    told = run.evidence == "fake-driver" and scenario.options.history == "calls"
    unjudged = blind.replaced(scenario, run, arguments, name)
    with_result = f" with {code_name(int(result), name)}" if result is not None else ""
    return Verdict(
        status=UNKNOWN
        if unjudged
        else judge_count(int(records.size), arguments["count"], complete=run.complete and told),
        check="calls",
        subject=name,
        expected=f"{bounds_text(arguments['count'])} calls{with_result}",
        seen=(f"{records.size} calls{with_result}" if told else "calls were not recorded") + blind.note(unjudged),
        where=str(expectation.where),
        evidence=run.evidence,
    )


def not_executed(expectation: Expectation, scenario: Scenario, run: RunData) -> Verdict:
    """Launches that only took time."""
    arguments = expectation.arguments
    records = _in_scope(run.history.of("NOT_EXECUTED"), scenario, arguments)
    return Verdict(
        status=judge_count(int(records.size), arguments["count"], complete=run.complete),
        check="not_executed",
        subject="kernels that only took time",
        expected=bounds_text(arguments["count"]),
        seen=str(records.size),
        where=str(expectation.where),
        evidence=run.evidence,
    )


def _in_scope(records: Records, scenario: Scenario, arguments: Mapping[str, Any]) -> Records:
    if "process" not in arguments and "container" not in arguments:
        return records
    wanted = {instance.index for instance in Scope.of(scenario, arguments).instances}
    return records[[int(process) in wanted for process in records["process"]]]


def faults_fired(expectation: Expectation, scenario: Scenario, run: RunData) -> Verdict:
    """How often one planned fault, or all together, fired."""
    arguments = expectation.arguments
    times = fired(scenario, run)
    fault = arguments.get("fault")
    count = sum(times.values()) if fault is None else times.get(fault, 0)
    low, high = arguments["count"]
    silent = [one for one in scenario.faults if fault in (None, one.index) and not times.get(one.index)]
    unjudged = next(filter(None, (blind.points(scenario, run, one) for one in silent)), "")
    if (high is not None and count > high) or low is None or count >= low:
        unjudged = ""
    return Verdict(
        status=UNKNOWN if unjudged else judge_count(count, arguments["count"], complete=run.complete),
        check="faults_fired",
        subject="all faults" if fault is None else _fault_text(scenario.faults[fault]),
        expected=f"fires × {bounds_text(arguments['count'])}",
        seen=f"fired × {count}" + blind.note(unjudged),
        where=str(expectation.where),
        evidence=run.evidence,
    )


def every_fault(scenario: Scenario, run: RunData) -> Verdict | None:
    """Unsaid: a fault that never fires shows nothing. None without faults, or when ``faults_fired`` speaks."""
    if not scenario.faults or any(expectation.check == "faults_fired" for expectation in scenario.expect):
        return None
    times = fired(scenario, run)
    reasons = {fault.index: blind.points(scenario, run, fault) for fault in scenario.faults}
    silent = [fault for fault in scenario.faults if not times.get(fault.index) and not reasons[fault.index]]
    unjudged = next(filter(None, reasons.values()), "")
    return Verdict(
        status=(INVALID if run.complete else UNKNOWN) if silent else UNKNOWN if unjudged else VALID,
        check="faults",
        subject=_fault_text(silent[0]) if silent else f"{len(scenario.faults)} faults",
        expected="every planned fault fires",
        seen=(f"{len(silent)} never fired" if silent else f"fired × {sum(times.values())}") + blind.note(unjudged),
        where=str(silent[0].where if silent else scenario.faults[0].where),
        evidence=run.evidence,
        implied=True,
    )


def fired(scenario: Scenario, run: RunData) -> dict[int, int]:
    """Fault index -> times fired. A fault may take several slots of the node file; run.json says which."""
    slots = run.info.get("fault_slots")
    times: dict[int, int] = {}
    for record in run.history.of("FAULT"):
        slot = int(record["a"])
        index = slot
        if isinstance(slots, list):
            index = slots[slot] if slot < len(slots) else -1
        if 0 <= index < len(scenario.faults):
            times[index] = times.get(index, 0) + 1
    return times


def _fault_text(fault: Fault) -> str:
    nth = {"call": f"call {fault.call}", "every": f"every {fault.call}", "from": f"from call {fault.call}"}[fault.mode]
    return f"fault {fault.index} ({fault.action} at {fault.at}, {nth})"


def engine(scenario: Scenario, run: RunData) -> Verdict | None:
    """Unsaid: no policy raised and no engine was missing. None when nothing of the kind happened."""
    events = run.history.of("ENGINE")
    broken = events[(events["a"] == ENGINE_FAULT) | (events["a"] == ENGINE_ABSENT)]
    if not broken.size:
        return None
    faults = int((broken["a"] == ENGINE_FAULT).sum())
    seen = f"{faults} policy faults" if faults else f"no engine in {broken.size} processes"
    return Verdict(
        status=INVALID,
        check="engine",
        subject="policy engine",
        expected="every verdict comes from the policy",
        seen=f"{seen}; see the standard error of the processes",
        where=scenario.path,
        evidence=run.evidence,
        implied=True,
    )


def whole(scenario: Scenario, run: RunData) -> list[Verdict]:
    """Unsaid: the run ended by itself and the machine allowed what the scenario asks for."""
    verdicts: list[Verdict] = []

    def add(status: str, subject: str, expected: str, seen: str, details: tuple[str, ...] = ()) -> None:
        verdicts.append(
            Verdict(status, "run", subject, expected, seen, scenario.path, run.evidence, implied=True, details=details)
        )

    if run.info.get("timed_out"):
        details = []
        for instance in scenario.instances():
            info = run.process_info(instance.index)
            if isinstance(info.get("backtrace"), str) and info["backtrace"]:
                details += [f"{instance.label}:", *(f"    {line}" for line in info["backtrace"].splitlines()[:40])]
        limit = format_duration(scenario.timeout_ns)
        add(INVALID, "timeout", f"ends within {limit}", "did not end and was killed", tuple(details[:200]))
    if run.info.get("interrupted"):
        add(UNKNOWN, "run", "ends by itself", "interrupted")
    for item in run.info.get("unknown") or ():
        if isinstance(item, Mapping):
            add(UNKNOWN, str(item.get("what", "environment")), "is possible here", str(item.get("why", "not possible")))
    return verdicts
