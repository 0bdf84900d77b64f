"""What an interposer's dialect cannot have, and which of a check's answers hang on it: those say nothing, and why.

The runner writes into run.json what it could not tell an interposer, or an interposer cannot tell (`lab.runner.blind`).
Only the difference that the missing notion explains is forgiven: an allocation over a limit that there is not may
succeed, it may not crash. The checks ask here about each of their answers; all others stay judged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from lab.checks.model import Bounds, RunData, Scope
from lab.scenario.model import Fault, Instance, Scenario, Step
from lab.scenario.vocabulary import hook_names

OOM = 2
_QUERIES = ("cuMemGetInfo", "cuDeviceTotalMem", "nvmlDeviceGetMemoryInfo")


def why(run: RunData, containers: Iterable[str], what: str) -> str:
    """Why ``what`` (see `lab.runner.blind`) cannot be judged in one of these containers; empty: it can."""
    names = set(containers)
    for item in entries(run, what):
        if item.get("container") in names:
            return str(item.get("why"))
    return ""


def entries(run: RunData, what: str) -> list[Mapping[str, Any]]:
    """The entries of run.json about ``what``."""
    return [item for item in run.info.get("blind") or () if isinstance(item, Mapping) and item.get("what") == what]


def note(reason: str) -> str:
    """What a verdict adds to what was seen; empty without a reason."""
    return f"; not judged: {reason}" if reason else ""


def refusal(run: RunData, instances: Iterable[Instance], results: Iterable[int], *, expected: bool) -> str:
    """Of a step that a limit has or has not refused: why it cannot be told, unless it ended in another way.

    ``expected``: it should have been refused. Where not, only settings that do not reach the interposer explain it.
    """
    found = set(results)
    if not found or not found <= {0, OOM} or not (expected or OOM in found):
        return ""
    return why(run, _names(instances), "memory" if expected else "settings")


def figure(run: RunData, instance: Instance, step: Step, name: str, value: int, bounds: Bounds) -> str:
    """Of a value that hangs on a limit: a figure of memory, the count of refusals, the least time of a launch."""
    container = (instance.container.name,)
    if _is_view(step) or (step.op == "random" and name == "refused"):
        return why(run, container, "memory")
    low, high = bounds
    if step.op == "launch" and name == "ns" and low is not None and (high is None or value <= high):
        return why(run, container, "cores")
    return ""


def failed_view(scenario: Scenario, run: RunData, instance: Instance, record: Any, step: Step) -> str:
    """Of a memory query that ended with the code planned for it: without a limit that is the right answer."""
    if not _is_view(step):
        return ""
    function = hook_names()[int(record["name"])] if int(record["name"]) < len(hook_names()) else ""
    planned = any(
        fault.at == function and fault.action == "return" and fault.code == int(record["result"])
        for fault in scenario.faults
    )
    return why(run, (instance.container.name,), "memory") if planned else ""


def points(scenario: Scenario, run: RunData, fault: Fault) -> str:
    """Of a fault at a sequence point that did not fire: why it cannot be told."""
    if not fault.at.startswith("point."):
        return ""
    aimed = [one for one in scenario.instances() if fault.container in (None, one.container.name)]
    if fault.process is not None:
        indices = scenario.process_indices(fault.process, fault.container)
        aimed = [one for one in aimed if one.index in indices]
    return why(run, _names(aimed), "points")


def survivor(scenario: Scenario, run: RunData, instance: Instance, status: int) -> str:
    """Of a process that ended well instead of dying at a sequence point: why it cannot be told."""
    if status:
        return ""
    for fault in scenario.faults:
        if fault.process is None or instance.index in scenario.process_indices(fault.process, fault.container):
            reason = points(scenario, run, fault)
            if reason:
                return reason
    return ""


def replaced(scenario: Scenario, run: RunData, arguments: Mapping[str, Any], name: str) -> str:
    """Of a count of driver calls by a name that the interposer calls another one for: why it cannot be told."""
    names = _names(Scope.of(scenario, arguments).instances)
    for item in entries(run, "calls"):
        if item.get("container") in names and name in (item.get("names") or ()):
            return str(item.get("why"))
    return ""


def _names(instances: Iterable[Instance]) -> set[str]:
    return {instance.container.name for instance in instances}


def of_nvml(step: Step) -> bool:
    """Whether the results of a step are NVML's, whose 2 is an invalid argument."""
    asked = {"view": "api", "call": "name"}.get(step.op, "")
    return str(step.arguments.get(asked, "")).startswith("nvml")


def _is_view(step: Step) -> bool:
    """Whether it asks for memory: other views, of devices and processes, are no matter of a limit."""
    return step.op == "view" or (step.op == "call" and str(step.arguments.get("name", "")).startswith(_QUERIES))
