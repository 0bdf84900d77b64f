"""One run, judged and counted, ready to be shown. Every number carries the evidence class of its run.

Percentiles are nearest-rank over every execution that ended, failed ones included; failures and executions that never
ended stand beside them, so that losing the slow tail cannot improve a report.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.checks import INVALID, UNKNOWN, HistoryError, RunData, Verdict, judge, worst
from lab.checks.history import NONE8, NONE16, HistoryData, constants, empty, load
from lab.checks.limiters import limiters
from lab.checks.model import status_text
from lab.checks.quantities import Quantities, from_rows, peaks
from lab.scenario.crosscheck import VALUES
from lab.scenario.load import ScenarioError
from lab.scenario.load import load as load_scenario
from lab.scenario.model import Scenario, Step
from lab.scenario.vocabulary import code_name, hook_names, skipped

PERCENTILES = (50, 95, 99)


class ReportError(ValueError):
    """A run directory that cannot be reported; one line."""


@dataclass(frozen=True)
class CallRow:
    """Executions of one step by one path."""

    step: str
    function: str
    route: str
    count: int
    ok: int
    failures: Mapping[str, int]
    unfinished: int
    ns: Mapping[str, int]  # p50, p95, p99, max; empty where nothing was timed
    evidence: str


@dataclass(frozen=True)
class MemoryRow:
    """The driver's own count of one container on one device."""

    container: str
    device: int
    peak: int
    limit: int | None
    evidence: str


@dataclass(frozen=True)
class ProcessRow:
    """How one process ended."""

    label: str
    container: str
    end: str


@dataclass(frozen=True)
class RunReport:
    """Everything a report says about one run."""

    scenario: Scenario
    directory: Path | None
    verdicts: tuple[Verdict, ...]
    status: str
    evidence: str
    info: Mapping[str, Any]
    calls: tuple[CallRow, ...] = ()
    memory: tuple[MemoryRow, ...] = ()
    quantities: tuple[Quantities, ...] = ()
    processes: tuple[ProcessRow, ...] = ()
    pacing: tuple[Mapping[str, Any], ...] = ()  # rows of lab.checks.limiters
    not_executed: int = 0
    records: int = 0
    dropped: int = 0
    uncommitted: int = 0
    duration_ns: int | None = None
    notes: tuple[str, ...] = ()
    repeats: Path | None = None  # the run directory that this one repeats
    differences: tuple[str, ...] = ()  # what it did otherwise

    @property
    def id(self) -> str:
        return self.scenario.id


def percentile(sorted_values: Sequence[int], percent: float) -> int:
    """Nearest rank: the smallest value that at least ``percent`` % of the values do not exceed."""
    rank = max(1, math.ceil(percent / 100 * len(sorted_values)))
    return sorted_values[rank - 1]


def load_run(directory: str | Path) -> RunReport:
    """Reads and judges a run directory; ReportError says in one line why it cannot be."""
    place = Path(directory)
    info = _read_info(place / "run.json")
    try:
        scenarios = load_scenario(place / "scenario.yaml")
    except ScenarioError as error:
        raise ReportError(str(error.problems[0])) from None
    if len(scenarios) != 1:
        raise ReportError(f"{place / 'scenario.yaml'}: the scenario of a run makes one run, not {len(scenarios)}")
    return _report(scenarios[0], info, place)


def report_run(scenario: Scenario, directory: str | Path) -> RunReport:
    """As load_run, for a run just made of ``scenario``: positions are those of its own file, not of the copy."""
    place = Path(directory)
    return _report(scenario, _read_info(place / "run.json"), place)


def _report(scenario: Scenario, info: Mapping[str, Any], place: Path) -> RunReport:
    return build_report(scenario, _data(scenario, info, place), place)


def _data(scenario: Scenario, info: Mapping[str, Any], place: Path) -> RunData:
    path = place / "history"
    try:
        history = load(path) if path.exists() or _recorded(scenario) else empty()
    except HistoryError as error:
        raise ReportError(str(error)) from None
    return RunData(history, info)


def run_data(report: RunReport) -> RunData:
    """History and run.json of a run that was reported, read again: a report keeps neither."""
    if report.directory is None:
        return RunData(empty(), report.info)
    return _data(report.scenario, report.info, report.directory)


def _recorded(scenario: Scenario) -> bool:
    return scenario.options.history != "none" and scenario.has_processes


def _read_info(path: Path) -> Mapping[str, Any]:
    try:
        info = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ReportError(f"{path.parent}: not a run directory ({path.name}: {error.strerror})") from None
    except ValueError as error:
        raise ReportError(f"{path}: not valid JSON ({error})") from None
    if not isinstance(info, dict):
        raise ReportError(f"{path}: not a mapping")
    return info


def build_report(scenario: Scenario, run: RunData, directory: Path | None) -> RunReport:
    """Judges a run and counts what its history holds."""
    verdicts = tuple(judge(scenario, run))
    history = run.history
    started, ended = run.info.get("started_ns"), run.info.get("ended_ns")
    return RunReport(
        scenario=scenario,
        directory=directory,
        verdicts=verdicts,
        status=worst(verdict.status for verdict in verdicts),
        evidence=run.evidence,
        info=run.info,
        calls=_calls(scenario, run),
        memory=_memory(scenario, run),
        quantities=_quantities(scenario, run),
        processes=_processes(scenario, run),
        pacing=limiters(scenario, run),
        not_executed=int(history.of("NOT_EXECUTED").size),
        records=int(history.records.size),
        dropped=history.dropped,
        uncommitted=history.uncommitted,
        duration_ns=ended - started if isinstance(started, int) and isinstance(ended, int) else None,
        notes=tuple(str(note) for note in run.info.get("notes") or ()),
    )


def _names(prefix: str) -> dict[int, str]:
    return {number: name[len(prefix) :].lower() for name, number in constants().items() if name.startswith(prefix)}


def _calls(scenario: Scenario, run: RunData) -> tuple[CallRow, ...]:
    steps: dict[tuple[int, int], Step] = {
        (instance.index, step.index): step for instance in scenario.instances() for step in instance.process.walk()
    }
    routes, hooks = _names("HL_ROUTE_"), hook_names()
    groups: dict[tuple[str, str, str], list[Any]] = {}
    begun: Counter[tuple[int, int]] = Counter()
    for record in run.history.of("STEP_BEGIN"):
        begun[(int(record["process"]), int(record["step"]))] += 1
    ops: dict[tuple[str, str, str], Step] = {}
    for record in run.history.of("STEP_END"):
        key = (int(record["process"]), int(record["step"]))
        step, name = steps.get(key), int(record["name"])
        if step is None or int(record["result"]) == skipped():
            begun[key] -= 1
            continue
        begun[key] -= 1
        function = hooks[name] if name < len(hooks) else ""
        route = routes.get(int(record["route"]), "") if function else ""
        group = (step.label, function, "" if route == "none" else route)
        groups.setdefault(group, []).append(record)
        ops.setdefault(group, step)
    unfinished: Counter[str] = Counter()
    for key, count in begun.items():
        if key in steps and count > 0 and steps[key].op not in ("exit", "exec", "signal"):
            unfinished[steps[key].label] += count
    rows = [_call_row(group, records, ops[group], unfinished, run) for group, records in groups.items()]
    for label, count in unfinished.items():
        if not any(row.step == label for row in rows):
            rows.append(CallRow(label, "", "", 0, 0, {}, count, {}, run.evidence))
    return tuple(rows)


def _call_row(
    group: tuple[str, str, str], records: list[Any], step: Step, unfinished: Mapping[str, int], run: RunData
) -> CallRow:
    label, function, route = group
    results = Counter(int(record["result"]) for record in records)
    names = VALUES.get(step.op, ())
    # A step that failed before its call has no time; a 0 for it would improve the percentiles.
    times = sorted(int(record["c"]) for record in records if int(record["c"])) if "ns" in names else []
    ns = {f"p{percent}": percentile(times, percent) for percent in PERCENTILES} if times else {}
    if times:
        ns["max"] = times[-1]
    ok = results.pop(0, 0)
    return CallRow(
        step=label,
        function=function,
        route=route,
        count=len(records),
        ok=ok,
        failures={code_name(code, function or "cu"): count for code, count in sorted(results.items())},
        unfinished=unfinished.get(label, 0),
        ns=ns,
        evidence=run.evidence,
    )


def _memory(scenario: Scenario, run: RunData) -> tuple[MemoryRow, ...]:
    ends = run.history.of("PHYS_END")
    peaks: dict[tuple[int, int], int] = {}
    for record in ends:
        key = (int(record["container"]), int(record["device"]))
        if key[0] != NONE16 and key[1] != NONE8:
            peaks[key] = max(peaks.get(key, 0), int(record["b"]))
    return tuple(
        MemoryRow(
            scenario.containers[container].name,
            device,
            peak,
            None
            if scenario.containers[container].limits_by_uuid
            else scenario.containers[container].memory_limit(device),
            run.evidence,
        )
        for (container, device), peak in sorted(peaks.items())
        if container < len(scenario.containers) and (peak or device == 0)
    )


def _quantities(scenario: Scenario, run: RunData) -> tuple[Quantities, ...]:
    """The four quantities at each container's peak, then at the quiet points that the runner saw."""
    seen = from_rows(run.info.get("memory") or (), run.info.get("cards") or (), evidence=run.evidence)
    return (*peaks(scenario, run), *seen)


def _processes(scenario: Scenario, run: RunData) -> tuple[ProcessRow, ...]:
    return tuple(
        ProcessRow(
            instance.label,
            instance.container.name,
            status_text(run.statuses[instance.index]) if instance.index in run.statuses else "unknown",
        )
        for instance in scenario.instances()
    )


def exit_code(statuses: Sequence[str], *, allow_unknown: bool = False) -> int:
    """0 valid, 1 invalid, 3 unknown (0 when allowed); no run at all is unknown."""
    status = worst(statuses)
    if status == INVALID:
        return 1
    return 3 if status == UNKNOWN and not allow_unknown else 0


__all__ = [
    "CallRow",
    "HistoryData",
    "MemoryRow",
    "ProcessRow",
    "ReportError",
    "RunReport",
    "build_report",
    "exit_code",
    "load_run",
    "percentile",
    "report_run",
]
