"""What a start-up consists of: phases that a process goes through, and the gates that it waits at.

A phase takes ``base + per_client * L + per_turn * K`` ns, times a factor of mean 1 and standard deviation ``spread``
that is drawn for each worker. L is the number of live driver clients when the service starts, K how many services the
gate has given before. Times are integers; the product with the factor is cut to whole nanoseconds.

Order within one instant, the same in both engines: first everybody arrives whose earlier work ends now, then gates
open. A fifo gate serves by (arrival, worker number).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

ORDERS = ("fifo", "random", "lifo")
SCOPES = ("host", "cache", "gpu")


class PlanError(ValueError):
    """A plan that does not hold together, or that an engine cannot play; one line."""


@dataclass(frozen=True, kw_only=True)
class Gate:
    """Something that serves `servers` processes at a time.

    `scope`: one for the host, one for each shared cache file (container), or one for each GPU. With `timeout_ns` > 0
    a wait ends after so long and is tried again at the end of the queue, `tries` times in all; then the process gives
    up and goes on without what the gate guards.
    """

    name: str
    servers: int = 1
    order: str = "fifo"
    scope: str = "host"
    timeout_ns: int = 0
    tries: int = 1

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise PlanError(f"gate {self.name}: order {self.order!r} is none of {', '.join(ORDERS)}")
        if self.scope not in SCOPES:
            raise PlanError(f"gate {self.name}: scope {self.scope!r} is none of {', '.join(SCOPES)}")
        if self.servers < 1 or self.tries < 1 or self.timeout_ns < 0:
            raise PlanError(f"gate {self.name}: servers and tries are at least 1, a timeout is not negative")


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One stretch of a start-up. `inside` is played with the gate still held, after the phase's own time.

    `joins`: the process becomes a live driver client when it arrives here, for good. `timed` = False: not part of the
    latency (work after the call returned).
    """

    name: str
    gate: str | None = None
    base_ns: int = 0
    per_client_ns: int = 0
    per_turn_ns: int = 0
    spread: float = 0.0
    joins: bool = False
    timed: bool = True
    inside: tuple[Phase, ...] = ()

    def walk(self) -> Iterator[Phase]:
        """This phase and all inside it."""
        yield self
        for phase in self.inside:
            yield from phase.walk()


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Phases in order, the gates they name, and how processes are spread.

    Workers are released within `release_ns` of each other (uniformly). Worker i uses GPU i mod `gpus` and shares the
    cache i // `per_cache` (0: one cache for all).
    """

    phases: tuple[Phase, ...]
    gates: tuple[Gate, ...] = ()
    release_ns: int = 0
    gpus: int = 1
    per_cache: int = 0

    def __post_init__(self) -> None:
        names = [gate.name for gate in self.gates]
        if len(set(names)) != len(names):
            raise PlanError("two gates have one name")
        for phase in self.walk():
            if phase.gate is not None and phase.gate not in names:
                raise PlanError(f"phase {phase.name}: no gate {phase.gate!r}; there are: {', '.join(names) or 'none'}")
            if phase.inside and phase.gate is None:
                raise PlanError(f"phase {phase.name}: `inside` needs a gate that is held meanwhile")
            if min(phase.base_ns, phase.per_client_ns, phase.per_turn_ns) < 0 or phase.spread < 0:
                raise PlanError(f"phase {phase.name}: times and spread are not negative")
        own = [phase.name for phase in self.walk()]
        if len(set(own)) != len(own):
            raise PlanError("two phases have one name")
        late = False
        for phase in self.phases:
            if late and phase.timed:
                raise PlanError(f"phase {phase.name}: a timed phase after one that is not")
            late = late or not phase.timed
        if self.gpus < 1 or self.per_cache < 0 or self.release_ns < 0:
            raise PlanError("gpus is at least 1; per_cache and release_ns are not negative")

    def walk(self) -> Iterator[Phase]:
        """Every phase, outer ones first."""
        for phase in self.phases:
            yield from phase.walk()

    def gate(self, name: str) -> Gate:
        """The gate called `name`."""
        return next(gate for gate in self.gates if gate.name == name)

    def group(self, gate: Gate, worker: int) -> int:
        """Which of the instances of `gate` serves `worker`."""
        if gate.scope == "gpu":
            return worker % self.gpus
        if gate.scope == "cache":
            return worker // self.per_cache if self.per_cache else 0
        return 0
