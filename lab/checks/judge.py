"""All verdicts of one run: the expectations in the order written, then what holds unsaid."""

from __future__ import annotations

from collections.abc import Callable

from lab.checks import failures, measured, memory, processes, simulated, steps, told
from lab.checks.model import RunData, Verdict
from lab.scenario.model import Expectation, Scenario

Check = Callable[[Expectation, Scenario, RunData], Verdict]

CHECKS: dict[str, Check] = {
    "outcome": steps.outcome,
    "values": steps.values,
    "view": steps.view,
    "never_above": memory.never_above,
    "ledger_empty": memory.ledger_empty,
    "no_leak": failures.no_leak,
    "known_results": failures.known_results,
    "outputs_untouched": failures.outputs_untouched,
    "exit": processes.exits,
    "order": processes.order,
    "calls": processes.calls,
    "not_executed": processes.not_executed,
    "faults_fired": processes.faults_fired,
    "reported": told.reported,
    "held": told.held,
    "identity": told.identity,
    "bridged": told.bridged,
    "added": measured.added,
    "start_up": simulated.start_up,
    "share": simulated.share,
}


def judge(scenario: Scenario, run: RunData) -> list[Verdict]:
    """The verdicts of a run. Pure: equal arguments give equal verdicts, and no history makes it raise."""
    if run.info.get("not_played"):  # the machine has not what the scenario needs
        return processes.whole(scenario, run)
    verdicts = [CHECKS[expectation.check](expectation, scenario, run) for expectation in scenario.expect]
    if not scenario.has_processes:  # no history
        return [*verdicts, *processes.whole(scenario, run)]
    for implied in (steps.every_step, processes.every_exit, processes.every_fault, processes.engine):
        verdict = implied(scenario, run)
        if verdict is not None:
            verdicts.append(verdict)
    return [*verdicts, *processes.whole(scenario, run)]
