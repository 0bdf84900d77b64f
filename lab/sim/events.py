"""The event engine of start-ups, on SimPy: any plan, timers included. The oracle of `recursion`.

Within one instant, work ends and arrivals happen at SimPy's normal priority; then, at a lower one, gates open. So what
a gate sees does not depend on the order in which events were scheduled.
"""

from __future__ import annotations

import heapq
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import numpy as np

from lab.sim import rng
from lab.sim.plan import Gate, Phase, Plan, PlanError
from lab.sim.startup import Started, Times, factors

try:
    import simpy
except ImportError:
    raise PlanError("the event engine needs SimPy: pip install 'hooklab[sim]'") from None

if TYPE_CHECKING:
    from simpy import Environment, Event

_OPENING = 3  # after all that ends or arrives in the same instant


class _Ticket:
    __slots__ = ("event", "worker")

    def __init__(self, event: Event, worker: int) -> None:
        self.event = event
        self.worker = worker


class _Server:
    """One instance of a gate."""

    def __init__(self, env: Environment, gate: Gate, seed: int, group: int) -> None:
        self.env = env
        self.gate = gate
        self.free = gate.servers
        self.turns = 0
        self.queue: list[tuple[int, int, int, _Ticket]] = []
        self.waiting = 0
        self.opening = False
        self.draws = rng.stream(seed, f"gate {gate.name} {group}") if gate.order == "random" else None

    def request(self, worker: int) -> Event:
        env = self.env
        ticket = _Ticket(env.event(), worker)
        now = int(env.now)
        if self.draws is None:
            sign = -1 if self.gate.order == "lifo" else 1
            heapq.heappush(self.queue, (sign * now, sign * worker, 0, ticket))
        else:
            self.queue.append((now, worker, 0, ticket))
        self.waiting += 1
        if self.free:
            self._open_later()
        if self.gate.timeout_ns:
            env.timeout(self.gate.timeout_ns, ticket).callbacks.append(self._expire)
        return ticket.event

    def _expire(self, timer: Any) -> None:
        event = timer.value.event
        if not event.triggered:
            self.waiting -= 1
            event.succeed(False)

    def release(self) -> None:
        self.free += 1
        if self.waiting:
            self._open_later()

    def _open_later(self) -> None:
        if not self.opening:
            self.opening = True
            event = self.env.event()
            event._ok, event._value = True, None
            event.callbacks.append(self._open)
            self.env.schedule(event, priority=_OPENING)  # type: ignore[arg-type]

    def _open(self, _event: Any) -> None:
        self.opening = False
        while self.free and self.waiting:
            ticket = self._next()
            if not ticket.event.triggered:
                self.free -= 1
                self.waiting -= 1
                ticket.event.succeed(True)

    def _next(self) -> _Ticket:
        if self.draws is None:
            return heapq.heappop(self.queue)[3]
        place = int(self.draws.integers(len(self.queue)))
        self.queue[place], self.queue[-1] = self.queue[-1], self.queue[place]
        return self.queue.pop()[3]


class _World:
    def __init__(self, plan: Plan, release: Times, seed: int, *, record: bool) -> None:
        self.plan = plan
        names = [phase.name for phase in plan.walk()] if record else []
        self.began = {name: [-1] * len(release) for name in names}
        self.ended = {name: [-1] * len(release) for name in names}
        self.env = simpy.Environment(initial_time=0)
        self.seed = seed
        self.servers: dict[tuple[str, int], _Server] = {}
        self.gates = {gate.name: gate for gate in plan.gates}
        self.factors = {name: found.tolist() for name, found in factors(plan, len(release), seed).items()}
        count = len(release)
        self.live = 0
        self.latency = [0] * count
        self.end = [0] * count
        self.timeouts = [0] * count
        self.gave_up = [False] * count
        for worker, at in enumerate(release.tolist()):
            self.env.process(self._worker(worker, at))

    def _server(self, name: str, worker: int) -> _Server:
        gate = self.gates[name]
        group = self.plan.group(gate, worker)
        server = self.servers.get((name, group))
        if server is None:
            server = self.servers[name, group] = _Server(self.env, gate, self.seed, group)
        return server

    def _worker(self, worker: int, at: int) -> Generator[Event, Any, None]:
        env = self.env
        if at:
            yield env.timeout(at)
        timed = True
        for phase in self.plan.phases:
            if timed and not phase.timed:
                self.latency[worker] = int(env.now) - at
                timed = False
            yield from self._phase(worker, phase)
        if timed:
            self.latency[worker] = int(env.now) - at
        self.end[worker] = int(env.now)

    def _phase(self, worker: int, phase: Phase) -> Generator[Event, Any, None]:
        server = None
        if phase.joins:
            self.live += 1
        if phase.gate is not None:
            server = self._server(phase.gate, worker)
            for _ in range(server.gate.tries):
                if (yield server.request(worker)):
                    break
                self.timeouts[worker] += 1
            else:
                self.gave_up[worker] = True
                return
        turn = 0
        if self.began:
            self.began[phase.name][worker] = int(self.env.now)
        if server is not None:
            turn, server.turns = server.turns, server.turns + 1
        time = phase.base_ns + phase.per_client_ns * self.live + phase.per_turn_ns * turn
        found = self.factors.get(phase.name)
        if found is not None:
            time = int(time * found[worker])
        if time:
            yield self.env.timeout(time)
        for inner in phase.inside:
            yield from self._phase(worker, inner)
        if self.ended:
            self.ended[phase.name][worker] = int(self.env.now)
        if server is not None:
            server.release()


def play(plan: Plan, release: Times, *, seed: int, record: bool = False) -> Started:
    """Every worker from its release to its end; see `startup.play`."""
    world = _World(plan, release, seed, record=record)
    world.env.run()
    return Started(
        latency=np.array(world.latency, dtype=np.int64),
        end=np.array(world.end, dtype=np.int64),
        timeouts=np.array(world.timeouts, dtype=np.int64),
        gave_up=np.array(world.gave_up, dtype=np.bool_),
        engine="events",
        events=next(world.env._eid),
        began={name: np.array(times, dtype=np.int64) for name, times in world.began.items()},
        ended={name: np.array(times, dtype=np.int64) for name, times in world.ended.items()},
    )
