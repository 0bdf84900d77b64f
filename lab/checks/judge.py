"""All verdicts of one run: the expectations in the order written, then what holds unsaid."""

from __future__ import annotations

from collections.abc import Callable

from lab.checks import failures, memory, processes, simulated, steps
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
    "start_up": simulated.start_up,
    "share": simulated.share,
}


def judge(scenario: Scenario, run: RunData) -> list[Verdict]:
    """The verdicts of a run. Pure: equal arguments give equal verdicts, and no history makes it raise."""
    verdicts = [CHECKS[expectation.check](expectation, scenario, run) for expectation in scenario.expect]
    if scenario.simulate is not None:  # no processes, no history
        return verdicts
    for implied in (steps.every_step, processes.every_exit, processes.every_fault, processes.engine):
        verdict = implied(scenario, run)
        if verdict is not None:
            verdicts.append(verdict)
    return [*verdicts, *processes.whole(scenario, run)]
