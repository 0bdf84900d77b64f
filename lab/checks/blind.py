"""What an interposer's dialect cannot have makes the checks that need it unknown, with its reason.

The runner writes into run.json what it could not tell an interposer (`lab.runner.plan.blind`); a check that would call
it wrong, or right, for that reason alone says nothing instead. What does not hang on it stays judged.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from lab.checks.model import UNKNOWN, RunData, Scope, Verdict
from lab.scenario.model import Expectation, Scenario

OOM = frozenset(("oom", "CUDA_ERROR_OUT_OF_MEMORY"))
OOM_CODE = 2


def dimmed(verdict: Verdict, scenario: Scenario, run: RunData, expectation: Expectation | None = None) -> Verdict:
    """The verdict, or unknown with the reason where it hangs on what the interposer could not be told.

    ``expectation``: the one it judges, None for what holds unsaid.
    """
    if verdict.status == UNKNOWN:
        return verdict
    names = {one.container.name for one in Scope.of(scenario, expectation.arguments if expectation else {}).instances}
    for item in run.info.get("blind") or ():
        if not isinstance(item, Mapping) or item.get("container") not in names:
            continue
        if _needs(str(item.get("what")), verdict, scenario, expectation):
            return dataclasses.replace(
                verdict, status=UNKNOWN, seen=f"{verdict.seen}; not judged: {item.get('why')}", details=()
            )
    return verdict


def _needs(what: str, verdict: Verdict, scenario: Scenario, expectation: Expectation | None) -> bool:
    if what == "ledger":
        return verdict.check == "ledger_empty"
    if what == "points":
        return verdict.check in ("faults", "faults_fired", "exits", "exit")
    if what != "memory":
        return False
    if verdict.check in ("never_above", "view"):
        return True
    named = expectation.arguments.get("named", {}) if expectation is not None else {}
    if verdict.check == "outcome":
        return not OOM.isdisjoint(named)
    if verdict.check == "values":
        return "refused" in named
    return verdict.check == "steps" and any(
        step.result == OOM_CODE for instance in scenario.instances() for step in instance.process.walk()
    )
