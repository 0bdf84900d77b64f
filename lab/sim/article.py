"""The article's start-up: how an interposed cuInit finds out who it is, three ways, and its two sets of figures."""

from __future__ import annotations

from collections.abc import Mapping

from lab.sim.constants import start_up
from lab.sim.plan import Gate, Phase, Plan, PlanError

IDENTITIES = ("probe", "procfs", "broker", "lazy")
NAMES = {"probe": "baseline", "procfs": "NStgid", "broker": "broker"}  # what the article calls them
MS = 1_000_000

# p99 of cuInit in seconds by workers; public: eight A100, mean of three runs (NStgid: single runs).
TABLE: Mapping[str, Mapping[int, float]] = {
    "probe": {128: 78.37, 240: 165.20, 300: 228.04},
    "procfs": {128: 27.85, 240: 52.89, 300: 68.73},
    "broker": {128: 27.01, 240: 53.56, 300: 70.08},
}
TIMEOUTS = {300: 849}  # public: timeout cycles at the identity gate of the 300-worker baseline

DRIVER = Gate(name="driver")


def plan(
    identity: str = "probe",
    *,
    constants: Mapping[str, int] | None = None,
    gpus: int = 1,
    per_cache: int = 0,
    order: str = "fifo",
    spread: float = 0.0,
    identity_scope: str = "host",
) -> Plan:
    """A start-up as the article describes it.

    `identity`: ``probe`` (a context made and dropped under the identity gate), ``procfs``, ``broker``, or ``lazy`` (the
    probe only after cuInit has returned: not in its latency). `order` is that of the identity gate, `spread` the
    relative standard deviation of every service in the driver.
    """
    if identity not in IDENTITIES:
        raise PlanError(f"identity {identity!r} is none of {', '.join(IDENTITIES)}")
    c = start_up() if constants is None else dict(constants)
    probe = Phase(
        name="probe",
        gate="identity",
        base_ns=c["nvml"],
        timed=identity != "lazy",
        inside=(
            Phase(
                name="retain",
                gate="driver",
                base_ns=c["retain"],
                per_client_ns=c["retain_per_client"],
                spread=spread,
            ),
        ),
    )
    after = Phase(name="after", gate="after-cpus", base_ns=c["after"])
    known = {
        "probe": (probe, after),
        "lazy": (after, probe),
        "procfs": (Phase(name="procfs", base_ns=c["procfs"]), after),
        "broker": (Phase(name="broker", base_ns=c["broker"]), after),
    }[identity]
    gates = [
        Gate(name="loader-cpus", servers=c["cpus"]),
        Gate(name="region", scope="cache"),
        Gate(name="private-cpus", servers=c["cpus"]),
        DRIVER,
        Gate(name="after-cpus", servers=c["cpus"]),
    ]
    if identity in ("probe", "lazy"):
        gates.append(
            Gate(
                name="identity",
                order=order,
                scope=identity_scope,
                timeout_ns=c["identity_timeout"],
                tries=c["identity_tries"],
            )
        )
    return Plan(
        phases=(
            Phase(name="loader", gate="loader-cpus", base_ns=c["loader"]),
            Phase(name="register", gate="region", base_ns=c["register"], per_turn_ns=c["register_per_slot"]),
            Phase(name="private", gate="private-cpus", base_ns=c["private"]),
            Phase(
                name="init",
                gate="driver",
                base_ns=c["init"],
                per_client_ns=c["init_per_client"],
                joins=True,
                spread=spread,
            ),
            *known,
        ),
        gates=tuple(gates),
        release_ns=c["release"],
        gpus=gpus,
        per_cache=per_cache,
    )


def four_workers(variant: str = "probe") -> Plan:
    """The article's worked example.

    ``probe``: 20 ms, 50 ms serialised, 10 ms; ``broker``: the middle is 1 ms for each on its own; ``registration``: a
    gate of 12 ms before the broker.
    """
    before = Phase(name="before", base_ns=20 * MS)
    after = Phase(name="after", base_ns=10 * MS)
    broker = Phase(name="broker", base_ns=MS)
    if variant == "probe":
        return Plan(phases=(before, Phase(name="probe", gate="identity", base_ns=50 * MS), after), gates=(_IDENTITY,))
    if variant == "broker":
        return Plan(phases=(before, broker, after))
    if variant == "registration":
        register = Phase(name="register", gate="region", base_ns=12 * MS)
        return Plan(phases=(before, register, broker, after), gates=(Gate(name="region", scope="cache"),))
    raise PlanError(f"variant {variant!r} is none of probe, broker, registration")


_IDENTITY = Gate(name="identity")
