"""Planned faults: what shall happen at the n-th call of a driver function, and how that is written into the node file.

Faults live in the fake driver, so that they work under any interposer and hit the window between an interposer's check
and its re-check.
"""

from __future__ import annotations

import signal as signals
from dataclasses import dataclass
from typing import Any, Literal

from lab.node.layout import constants
from lab.spec import load_hooks
from lab.spec.outputs import SPOILT

Action = Literal["return", "delay", "kill", "meet", "stop", "hold", "lost", "wrong", "torn"]
Mode = Literal["nth", "every", "from"]
Scope = Literal["process", "node", "container"]
When = Literal["before", "after"]


class FaultError(ValueError):
    """A fault that cannot be planned; the text is one line."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One planned fault.

    ``call`` counts from 1, by process unless ``scope`` says otherwise; ``mode``: only that call, every multiple of it,
    or that and all later ones. ``process`` and ``container`` restrict whom it applies to (indices in the run).
    ``patience_s``: how long all who could still come to a MEET must have been at rest until they count as held up.
    ``hold`` stops the caller (SIGSTOP) until ``NodeServer.release``; ``wrong`` turns every bit of what the call wrote
    for its caller, ``torn`` those of the second half.
    A MEET counts threads, of one process or of several. How many of a process can come is what the run says of it
    (``NodeServer.expect``); of a program that it knows nothing of, one, or as many as there are where the fault is for
    that process alone.
    """

    name: str
    action: Action
    call: int = 1
    mode: Mode = "nth"
    scope: Scope = "process"
    process: int | None = None
    container: int | None = None
    code: int = 0
    delay_ns: int = 0
    signal: int = int(signals.SIGKILL)
    meet: int = 0
    when: When = "before"
    patience_s: float = 5.0

    def check(self) -> None:
        """:class:`FaultError` when the fault could never do what it says."""
        where = f"fault at {self.name}"
        hook = load_hooks().by_name.get(self.name)
        if hook is None:
            raise FaultError(f"{where}: the hook table has no such function; use its ELF name, e.g. cuMemAlloc_v2")
        if hook.fake != "real":
            raise FaultError(f"{where}: the fake driver has no body for it, so no call of it can be disturbed")
        if self.call < 1:
            raise FaultError(f"{where}: call is {self.call}, counted from 1")
        if self.action == "delay" and self.delay_ns <= 0:
            raise FaultError(f"{where}: a delay needs a duration above 0")
        if self.action == "return" and self.code == 0:
            raise FaultError(f"{where}: a returned code of 0 is no fault")
        if self.action in ("wrong", "torn") and self.name not in SPOILT:
            raise FaultError(f"{where}: outputs can be spoilt of {', '.join(SPOILT)} only")
        if self.action == "kill" and self.signal not in signals.valid_signals():
            raise FaultError(f"{where}: {self.signal} is no signal number")
        if self.action == "meet":
            if self.meet < 2:
                raise FaultError(f"{where}: meet is {self.meet}, at least two callers meet")
            if self.meet > constants()["HL_MEET_MAX"]:
                raise FaultError(f"{where}: meet is {self.meet}, at most {constants()['HL_MEET_MAX']} can wait at once")
            if self.mode == "nth" and (self.scope != "process" or self.process is not None):
                whom = "one process" if self.scope == "process" else f"the {self.scope}"
                raise FaultError(f"{where}: meet of one call counted over {whom} can hold one caller only")

    def write(self, record: Any) -> None:
        """Fill the ``hl_node_fault`` record (all but ``active``)."""
        self.check()
        table = constants()
        record["name"] = load_hooks()[self.name].id
        record["scope"] = table[f"HL_SCOPE_{self.scope.upper()}"]
        record["mode"] = table[f"HL_FAULT_{self.mode.upper()}"]
        record["process"] = -1 if self.process is None else self.process
        record["container"] = -1 if self.container is None else self.container
        record["call"] = self.call
        record["action"] = table[f"HL_ACTION_{self.action.upper()}"]
        record["code"] = self.code
        record["delay_ns"] = self.delay_ns
        record["signal"] = self.signal if self.action == "kill" else 0
        record["meet"] = self.meet
        spoils = self.action in ("wrong", "torn")
        record["when"] = table["HL_WHEN_AFTER" if spoils else f"HL_WHEN_{self.when.upper()}"]


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A process as a MEET sees it. ``calls`` = its calls of the function so far (0 before it attached); ``waiting`` =
    its threads that wait there; ``callers`` = its threads that can be in the driver at once; ``pid`` is the host's, 0
    before it attached."""

    process: int
    container: int
    calls: int
    waiting: int
    callers: int = 1
    pid: int = 0


def applies(fault: Fault, candidate: Candidate) -> bool:
    """Whether the filters of the fault let the process in."""
    process = fault.process is None or fault.process == candidate.process
    return process and (fault.container is None or fault.container == candidate.container)


def may_arrive(fault: Fault, candidate: Candidate) -> bool:
    """Whether a thread of the process can still arrive at the meeting: not all are there, and its call is to come."""
    if candidate.waiting >= candidate.callers or not applies(fault, candidate):
        return False
    return fault.mode != "nth" or candidate.calls < fault.call


def must_open(fault: Fault, candidates: list[Candidate]) -> bool:
    """Whether the waiters of a MEET must be released: enough are there, or nobody else can come."""
    waiting = sum(candidate.waiting for candidate in candidates)
    if waiting == 0:
        return False
    return waiting >= fault.meet or not any(may_arrive(fault, candidate) for candidate in candidates)
