"""Feed-forward start-ups without events: one pass of array arithmetic a phase, exact to the nanosecond.

One server that serves in order of arrival: ``D[k] = max(A[k], D[k-1]) + s[k]``. With ``C = cumsum(s)`` that is
``D = C + cummax(A - (C - s))``. Equal services on c servers are c such queues, worker k on lane k mod c. Unequal ones,
and services that depend on how many clients live, take a loop over the workers.
"""

from __future__ import annotations

import heapq

import numpy as np

from lab.sim.plan import Gate, Phase, Plan, PlanError
from lab.sim.rng import Floats
from lab.sim.startup import Started, Times, factors

_FAR = np.iinfo(np.int64).max // 4


def obstacle(plan: Plan) -> str:
    """Why the plan is not feed-forward; empty when it is."""
    used: set[str] = set()
    joined = False
    for phase in plan.phases:
        if phase.inside:
            return f"phase {phase.name} holds its gate through others"
        joined = joined or phase.joins
        if phase.per_client_ns and not phase.joins:
            return f"phase {phase.name} depends on clients that came by another phase"
        if phase.joins and phase.per_client_ns and phase.gate is None:
            return f"phase {phase.name} depends on the number of clients but has no gate"
        if phase.gate is None:
            continue
        gate = plan.gate(phase.gate)
        if phase.gate in used:
            return f"gate {gate.name} is used by two phases"
        used.add(phase.gate)
        if gate.order != "fifo":
            return f"gate {gate.name} serves in {gate.order} order"
        if gate.timeout_ns:
            return f"gate {gate.name} has a timeout"
        if phase.per_client_ns and (gate.servers > 1 or gate.scope != "host"):
            return f"phase {phase.name} depends on the number of clients behind more than one server"
        if phase.per_turn_ns and gate.servers > 1:
            return f"phase {phase.name} depends on its turn among several servers"
    if sum(phase.joins for phase in plan.phases) > 1:
        return "processes become clients in two phases"
    return ""


def fifo(arrive: Times, service: Times) -> Times:
    """When each leaves a single server, arrivals sorted along the last axis; shapes (..., n)."""
    total = np.cumsum(service, axis=-1)
    leave: Times = total + np.maximum.accumulate(arrive - (total - service), axis=-1)
    return leave


def lanes(arrive: Times, service: int, servers: int) -> Times:
    """The same for `servers` servers and one service time for all; shape (n,)."""
    count = arrive.shape[-1]
    if servers >= count:
        return arrive + service
    rows = -(-count // servers)
    padded = np.full(rows * servers, _FAR, dtype=np.int64)
    padded[:count] = arrive
    table = padded.reshape(rows, servers).T
    leave = fifo(table, np.full_like(table, service))
    return leave.T.reshape(-1)[:count]


def _unequal(arrive: Times, service: Times, servers: int) -> Times:
    """Several servers, a service time for each worker."""
    free = [0] * min(servers, len(arrive))
    leave = []
    for at, time in zip(arrive.tolist(), service.tolist(), strict=True):
        end = max(at, free[0]) + time
        heapq.heapreplace(free, end)
        leave.append(end)
    return np.array(leave, dtype=np.int64)


def _by_clients(arrive: Times, phase: Phase, factor: Floats | None) -> tuple[Times, Times]:
    """One server whose service grows with the clients that have arrived when it starts: (leave, service)."""
    count = len(arrive)
    base, growth, turn = phase.base_ns, phase.per_client_ns, phase.per_turn_ns
    leave = np.empty(count, dtype=np.int64)
    service_of = np.empty(count, dtype=np.int64)
    times = arrive.tolist()
    scale = None if factor is None else factor.tolist()
    last = times[-1]
    free = clients = k = 0
    ends, services_so_far = [], []
    while k < count:
        start = times[k] if times[k] > free else free
        if start >= last:
            break
        while clients < count and times[clients] <= start:
            clients += 1
        service = base + growth * clients + turn * k
        if scale is not None:
            service = int(service * scale[k])
        free = start + service
        ends.append(free)
        services_so_far.append(service)
        k += 1
    leave[:k] = ends
    service_of[:k] = services_so_far
    if k < count:  # all are there: nothing changes any more but the turn
        services = base + growth * count + turn * np.arange(k, count, dtype=np.int64)
        if factor is not None:
            services = (services * factor[k:]).astype(np.int64)
        leave[k:] = max(times[k], free) + np.cumsum(services)
        service_of[k:] = services
    return leave, service_of


def _through(gate: Gate | None, phase: Phase, arrive: Times, factor: Floats | None) -> tuple[Times, Times | int]:
    """When sorted arrivals at one instance of a gate leave it, and how long they are served."""
    count = len(arrive)
    if gate is not None and phase.per_client_ns:
        return _by_clients(arrive, phase, factor)
    if factor is None and not phase.per_turn_ns:
        return arrive + phase.base_ns if gate is None else lanes(arrive, phase.base_ns, gate.servers), phase.base_ns
    service = phase.base_ns + phase.per_turn_ns * np.arange(count, dtype=np.int64)
    if factor is not None:
        service = (service * factor).astype(np.int64)
    if gate is None:
        return arrive + service, service
    return fifo(arrive, service) if gate.servers == 1 else _unequal(arrive, service, gate.servers), service


def play(plan: Plan, release: Times, *, seed: int, record: bool = False) -> Started:
    """Every worker from its release to its end. PlanError when the plan is not feed-forward."""
    why = obstacle(plan)
    if why:
        raise PlanError(f"not feed-forward: {why}; use the event engine")
    count = len(release)
    drawn = factors(plan, count, seed)
    workers = np.arange(count)
    now = release.copy()
    timed = release
    began: dict[str, Times] = {}
    ended: dict[str, Times] = {}
    for phase in plan.phases:
        factor = drawn.get(phase.name)
        gate = None if phase.gate is None else plan.gate(phase.gate)
        if gate is None or gate.scope == "host":
            groups = [workers]
        else:
            key = workers % plan.gpus if gate.scope == "gpu" else workers // (plan.per_cache or count)
            order = np.argsort(key, kind="stable")
            groups = np.split(order, np.flatnonzero(np.diff(key[order])) + 1)
        after = np.empty_like(now)
        begin = np.empty_like(now) if record else now
        for group in groups:
            order = group[np.argsort(now[group], kind="stable")]
            leave, service = _through(gate, phase, now[order], None if factor is None else factor[order])
            after[order] = leave
            if record:
                begin[order] = leave - service
        now = after
        if record:
            began[phase.name], ended[phase.name] = begin, after
        if phase.timed:
            timed = now
    nothing = np.zeros(count, dtype=np.int64)
    return Started(
        latency=timed - release,
        end=now,
        timeouts=nothing,
        gave_up=nothing.astype(np.bool_),
        engine="recursion",
        began=began,
        ended=ended,
    )
