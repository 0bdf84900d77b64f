"""The limiter in C against the pure model: the same histories, equal to the nanosecond and the token.

Both play the same plan: launches of several processes, samples, ends, policies that fail, drivers that refuse, and
processes that get in between another's question to the policy and its answer. Each has an event loop of its own, so a
difference in one wait moves everything after it. Kernels take a millisecond and more (see `lab.sim.gate`).
"""

from __future__ import annotations

import heapq
import random
import shutil
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, event, find, given, settings
from hypothesis import strategies as st

from lab.policy import pacing
from lab.policy.pacing import _words as w
from lab.sim import gate as model
from lab.sim.gate import Bracket, Gate

sys.path.insert(0, str(Path(__file__).parent))
import limiter_rig as rig

START = 5_000_000_000
TICK = 120_000_000
FAULT = 100_000_000  # launches pass so long after the policy failed
HORIZON = 4_000_000_000
UNIT = 15_625  # ns: kernels take multiples of it, which the driver's milliseconds in float hold exactly
WENT, PASSED = 0, -1


@dataclass(frozen=True)
class Launch:
    """One launch of a process's program. `gap`: ns of thought before it."""

    gap: int
    key: int
    blocks: int
    ns: int
    refused: bool = False
    fault: bool = False  # the policy fails when it is asked for this one
    between: int = 0  # so many processes further, one steps between the policy's question and its answer; 0 none


@dataclass(frozen=True)
class Sample:
    at: int
    usable: bool
    own: int
    everybody: int
    window: int
    neighbours: int


@dataclass(frozen=True)
class Plan:
    controller: str
    percent: int
    programs: tuple[tuple[Launch, ...], ...]
    samples: tuple[Sample, ...]
    ends: tuple[tuple[int, bool], ...]  # for each process: when (ns after the start), and whether it is killed


class Machine(ABC):
    """What steps the processes of a plan; everything else is `play`'s."""

    between: Callable[[], None]

    @abstractmethod
    def step(self, process: int, launch: Launch, now: int) -> int:
        """Begins or goes on with a launch: ns to sleep, or WENT or PASSED."""

    @abstractmethod
    def sample(self, sample: Sample, now: int) -> None: ...

    @abstractmethod
    def end(self, process: int, killed: bool) -> None: ...

    @abstractmethod
    def facts(self, process: int, launch: Launch) -> tuple[int, ...]:
        """Tokens, end of the lease, ns, launches and strangers in flight, the kernel's estimate and its samples."""

    @abstractmethod
    def words(self, process: int) -> list[int]:
        """The container's, as `process` sees them."""


class Failing:
    """A policy of the plan's, that fails and lets others in between when it is told to."""

    def __init__(self, name: str) -> None:
        self.policy: Any = pacing.make(name)
        self.UNIT, self.BOUNDED = self.policy.UNIT, self.policy.BOUNDED


class PolicyFailedError(Exception):
    """As the plan wants it."""


class Modelled(Machine):
    """`lab.sim.gate`, one for each process, over one set of words."""

    def __init__(self, plan: Plan) -> None:
        self.memory = memoryview(bytearray(8 * w.WORDS)).cast("Q")
        self.memory[w.TARGET], self.memory[w.SMS], self.memory[w.THREADS] = plan.percent, 108, 2048
        self.gates = [Gate(_Asked(self, plan.controller), self.memory) for _ in plan.programs]
        self.streams: list[deque[tuple[int, int, Bracket]]] = [deque() for _ in plan.programs]
        self.drained = [0] * len(plan.programs)
        self.passing = [0] * len(plan.programs)
        self.dead: list[Gate] = []
        self.last_tick = 0
        self.next: Sample | None = None
        self.taken_at = 0
        self.fresh = False
        self.fault = False

    def _tick(self, gate: Gate, now: int) -> None:
        if now < self.last_tick + TICK:
            return
        self.last_tick = now
        words = self.memory
        for dead in self.dead:
            words[w.IN_FLIGHT] -= dead.in_flight_ns
        self.dead.clear()
        found = self.next
        words[w.FLAGS] = (w.USABLE | w.KNOWN) if found and found.usable else 0
        words[w.NEIGHBOURS] = found.neighbours if found else 0
        if found and self.fresh:
            self.fresh = False
            words[w.SAMPLE_SEQ] += 1
            words[w.SAMPLE_TIME], words[w.SAMPLE_WINDOW] = self.taken_at, found.window
            words[w.SAMPLE_OWN], words[w.SAMPLE_ALL] = found.own, found.everybody
            words[w.SAMPLE_OWN_NS] += found.window // 10_000 * found.own
            words[w.SAMPLE_MEASURED] = words[w.MEASURED]
        window = words[w.SAMPLE_WINDOW] if found and found.usable else 0
        gate.policy.observe(0, window * words[w.SAMPLE_OWN] // 10_000, window, now, words)

    def step(self, process: int, launch: Launch, now: int) -> int:
        gate, stream, key = self.gates[process], self.streams[process], launch.key
        while stream and stream[0][1] <= now:
            began, ended, bracket = stream.popleft()
            gate.ended(bracket, began, ended)
        self.fault = launch.fault
        if now < self.passing[process]:
            if now >= gate.kept_until:
                gate.give_back()
            wait = PASSED
        else:
            self._tick(gate, now)
            try:
                wait = gate.ask(key, launch.blocks, now)
            except PolicyFailedError:
                self.passing[process] = now + FAULT
                wait = PASSED
        if wait > 0:
            return wait
        if wait == WENT and launch.refused:
            gate.refused()
            return WENT
        if launch.refused:
            return PASSED
        began = max(self.drained[process], now)
        self.drained[process] = began + launch.ns
        if wait == WENT:
            stream.append((began, began + launch.ns, gate.launched(key)))
        return wait

    def sample(self, sample: Sample, now: int) -> None:
        self.next, self.taken_at, self.fresh = sample, now, True

    def end(self, process: int, killed: bool) -> None:
        gate = self.gates[process]
        if killed:
            self.dead.append(gate)
            return
        gate.give_back()
        self.memory[w.IN_FLIGHT] -= gate.in_flight_ns

    def facts(self, process: int, launch: Launch) -> tuple[int, ...]:
        gate = self.gates[process]
        estimate = gate.estimates.get(launch.key) or model.Estimate()
        flying = (gate.in_flight_ns, gate.in_flight, gate.strangers)
        return (gate.held, gate.kept_until, *flying, estimate.ns, estimate.samples)

    def words(self, process: int) -> list[int]:  # noqa: ARG002 - all see the same
        return list(self.memory)


class _Asked(Failing):
    def __init__(self, machine: Modelled, name: str) -> None:
        super().__init__(name)
        self.machine = machine

    def lease(self, device: int, cost: int, now: int, shared: memoryview) -> int:
        fault = self.machine.fault
        self.machine.between()
        if fault:
            raise PolicyFailedError
        return int(self.policy.lease(device, cost, now, shared))

    def observe(self, device: int, busy: int, window: int, now: int, shared: memoryview) -> int:
        return int(self.policy.observe(device, busy, window, now, shared))


class Real(Machine):
    """The limiter in C, one copy of its library for each process, over one region."""

    def __init__(self, plan: Plan, libraries: Sequence[Path], region: Path) -> None:
        self.policy = Failing(plan.controller)
        self.processes = [
            rig.Process(library, region, percent=plan.percent, policy=self.policy, now=START, robust=False)
            for library, _ in zip(libraries, plan.programs, strict=False)
        ]
        self.sleeping = [False] * len(plan.programs)

    def step(self, process: int, launch: Launch, now: int) -> int:
        guest, policy = self.processes[process], self.policy.policy
        guest.clock(now)
        if self.sleeping[process]:
            talk = guest.go_on()
        else:
            talk = guest.launch(launch.key, launch.blocks, launch.ns, result=int(launch.refused))
        while talk.what in (rig.LEASES, rig.OBSERVES):
            if talk.what == rig.OBSERVES:
                for other in self.processes:
                    other.seen()
                answer = policy.observe(0, talk.busy, talk.window, talk.now, talk.shared())
            else:
                self.between()
                answer = policy.lease(0, talk.cost, talk.now, talk.shared()) if not launch.fault else rig.ENGINE_FAULT
            talk = guest.go_on(answer)
        self.sleeping[process] = talk.what == rig.NAPS
        return {rig.NAPS: int(talk.ns), rig.WENT: WENT, rig.PASSED: PASSED}[talk.what]

    def sample(self, sample: Sample, now: int) -> None:
        for process in self.processes:
            process.clock(now)
            process.sample(
                usable=sample.usable,
                fresh=True,
                own=sample.own,
                everybody=sample.everybody,
                window=sample.window,
                neighbours=sample.neighbours,
            )

    def end(self, process: int, killed: bool) -> None:
        guest = self.processes[process]
        if killed:
            guest.kill()
        else:
            guest.close()

    def facts(self, process: int, launch: Launch) -> tuple[int, ...]:
        found = self.processes[process].state()
        flying = (found.in_flight_ns, found.in_flight, found.strangers)
        return (found.tokens, found.lease_end, *flying, *self.processes[process].estimate(launch.key, launch.blocks))

    def words(self, process: int) -> list[int]:
        return self.processes[process].words()


def play(plan: Plan, machine: Machine) -> list[Any]:
    """Everything that happens, in order: (now, process, outcome, facts)."""
    log: list[Any] = []
    heap: list[tuple[int, int, str, int]] = []
    at = [0] * len(plan.programs)  # index of the next launch
    due: list[int | None] = [None] * len(plan.programs)
    alive = [True] * len(plan.programs)
    busy = [False] * len(plan.programs)
    order = iter(range(1 << 30))

    def push(when: int, what: str, who: int) -> None:
        heapq.heappush(heap, (when, next(order), what, who))

    def wake(process: int, when: int) -> None:
        due[process] = when
        push(when, "step", process)

    def step(process: int, now: int) -> None:
        launch = plan.programs[process][at[process]]
        due[process] = None
        busy[process] = True

        def between() -> None:
            other = (process + launch.between) % len(plan.programs)
            machine.between = lambda: None
            if launch.between and alive[other] and due[other] is not None and not busy[other]:
                step(other, now)

        machine.between = between
        outcome = machine.step(process, launch, now)
        machine.between = lambda: None
        busy[process] = False
        log.append((now - START, process, outcome, machine.facts(process, launch)))
        if outcome > 0:
            wake(process, now + outcome)
            return
        at[process] += 1
        if at[process] < len(plan.programs[process]):
            wake(process, now + plan.programs[process][at[process]].gap)

    for process, program in enumerate(plan.programs):
        if program:
            wake(process, START + program[0].gap)
    for process, (when, _) in enumerate(plan.ends):
        push(START + when, "end", process)
    for number, sample in enumerate(plan.samples):
        push(START + sample.at, "sample", number)
    while heap:
        now, _, what, who = heapq.heappop(heap)
        if now > START + HORIZON:  # who launched 2^60 blocks may wait for ever
            break
        if what == "sample":
            machine.sample(plan.samples[who], now)
        elif what == "end":
            if alive[who]:
                alive[who] = False
                machine.end(who, plan.ends[who][1])
        elif alive[who] and due[who] == now:
            step(who, now)
    living = [process for process, lives in enumerate(alive) if lives]
    if living:
        log.append(machine.words(living[0]))
    return log


BLOCKS = {1: 72, 2: 80, 3: 2**31 + 7, 4: (2**63 - 1) // 8}  # the last is what nonsense grids are taken for
kernels = st.builds(lambda key, ns: (key, BLOCKS[key], ns * UNIT), st.integers(1, 4), st.integers(64, 3_200))
launches = st.builds(
    lambda gap, kernel, odd, between: Launch(gap, *kernel, refused=odd == 0, fault=odd == 1, between=between),
    st.one_of(st.just(0), st.integers(0, 20_000_000), st.integers(0, 200_000_000)),
    kernels,
    st.integers(0, 40),
    st.sampled_from((0, 0, 1, 2)),
)
samples = st.builds(
    lambda at, usable, own, more, window, neighbours: Sample(
        at, usable, own, min(10_000, own + more), window, neighbours
    ),
    st.integers(0, 1_500_000_000),
    st.booleans(),
    st.integers(0, 10_000),
    st.sampled_from((0, 0, 3_000)),
    st.sampled_from((166_666_667, 200_000_000)),
    st.integers(0, 2),
)
ends = st.tuples(st.one_of(st.just(1 << 60), st.integers(0, 1_000_000_000)), st.booleans())


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    count = draw(st.integers(1, 3))
    programs = st.lists(launches, max_size=25).map(tuple)
    return Plan(
        draw(st.sampled_from(pacing.PACING_NAMES)),
        draw(st.sampled_from((10, 30, 80))),
        tuple(draw(programs) for _ in range(count)),
        tuple(draw(st.lists(samples, max_size=6))),
        ((1 << 60, False), *(draw(ends) for _ in range(count - 1))),
    )


def copies(made: Path) -> list[Path]:
    return [Path(shutil.copy(made, made.with_name(f"{made.stem}-{number}.so"))) for number in range(3)]


@pytest.fixture(scope="module")
def libraries(compile_c: Callable[..., Path], root: Path) -> list[Path]:
    return copies(rig.build(compile_c, root))


@contextmanager
def real(plan: Plan, libraries: Sequence[Path], folder: Path) -> Iterator[Real]:
    region = folder / "region"
    region.unlink(missing_ok=True)
    machine = Real(plan, libraries, region)
    try:
        yield machine
    finally:
        for process in reversed(machine.processes):
            process.unload()


def compare(plan: Plan, libraries: Sequence[Path], folder: Path) -> list[Any]:
    with real(plan, libraries, folder) as machine:
        seen = play(plan, machine)
    expected = play(plan, Modelled(plan))
    for number, (one, other) in enumerate(zip(seen, expected, strict=False)):
        assert one == other, f"step {number}: the limiter {one}, the model {other}"
    assert len(seen) == len(expected)
    return seen


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plan=plans())
def test_the_limiter_equals_the_model(plan: Plan, libraries: list[Path], tmp_path: Path) -> None:
    log = compare(plan, libraries, tmp_path)
    event(f"waits: {any(isinstance(line, tuple) and line[2] > 0 for line in log)}")


@pytest.mark.full
@settings(max_examples=2_000, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plan=plans())
def test_the_limiter_equals_the_model_in_many_histories(plan: Plan, libraries: list[Path], tmp_path: Path) -> None:
    compare(plan, libraries, tmp_path)


def differs(plan: Plan, libraries: Sequence[Path], folder: Path) -> bool:
    try:
        compare(plan, libraries, folder)
    except AssertionError:
        return True
    return False


def is_caught(libraries: Sequence[Path], folder: Path) -> None:
    """Some plan shows the difference (NoSuchExample otherwise)."""
    search = settings(max_examples=3000, deadline=None, database=None, derandomize=True, phases=[Phase.generate])
    find(plans(), lambda plan: differs(plan, libraries, folder), settings=search)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("KEEP", model.KEEP + 1),
        ("BOUND", model.BOUND + 1),
        ("WAIT", model.WAIT - 1),
        ("NAP", (model.NAP[0] + 1, model.NAP[1])),
        ("NAP", (model.NAP[0], model.NAP[1] - 1)),
        ("UNKNOWN", model.UNKNOWN + 1),
    ],
    ids=str,
)
def test_a_model_that_is_off_by_one_is_caught(
    name: str, value: object, libraries: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, name, value)
    is_caught(libraries, tmp_path)


def test_a_limiter_whose_answers_overwrite_each_other_is_caught(
    libraries: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commits that do not look whether somebody else was quicker: two processes are granted the same tokens."""
    made = rig.Process.__init__

    def planted(process: rig.Process, *arguments: Any, **options: Any) -> None:
        made(process, *arguments, **options)
        process.plant()

    monkeypatch.setattr(rig.Process, "__init__", planted)
    is_caught(libraries, tmp_path)


class FourProcesses(Machine):
    """The limiter and the engine in real processes over one region."""

    def __init__(self, plan: Plan, program: Path, engine: Path, region: Path) -> None:
        self.guests = [
            rig.Served(program, region, engine, percent=plan.percent, controller=plan.controller, now=START)
            for _ in plan.programs
        ]

    def step(self, process: int, launch: Launch, now: int) -> int:
        words = (launch.key, launch.blocks, launch.ns, int(launch.refused))
        what, ns, looked = self.guests[process].ask("step", now, *words)
        if looked:
            for guest in self.guests:
                if guest.process.poll() is None:
                    guest.ask("seen")
        return {rig.NAPS: ns, rig.WENT: WENT, rig.PASSED: PASSED}[what]

    def sample(self, sample: Sample, now: int) -> None:
        for guest in self.guests:
            if guest.process.poll() is None:
                values = (sample.own, sample.everybody, sample.window, sample.neighbours)
                guest.ask("sample", now, int(sample.usable), *values)

    def end(self, process: int, killed: bool) -> None:
        if not killed:
            self.guests[process].ask("close")
        self.guests[process].end()

    def facts(self, process: int, launch: Launch) -> tuple[int, ...]:
        guest = self.guests[process]
        return (*guest.ask("state")[:5], *guest.ask("estimate", launch.key, launch.blocks))

    def words(self, process: int) -> list[int]:
        return [value % 2**64 for value in self.guests[process].ask("words")]


def lives(controller: str, seed: int) -> Plan:
    """Four processes of one container; one is killed and one ends while the others go on."""
    draws = random.Random(f"{controller}/{seed}")

    def launch() -> Launch:
        key = draws.randrange(1, 3)
        ns = draws.randrange(64, 1_500) * UNIT
        return Launch(draws.choice((0, 0, 3_000_000, 40_000_000)), key, BLOCKS[key], ns, draws.random() < 0.05)

    samples = [
        Sample(at * 170_000_000, draws.random() < 0.8, own, own + draws.choice((0, 2_000)), 170_000_000, 1)
        for at, own in enumerate(draws.sample(range(8_000), 8), 1)
    ]
    ends = ((1 << 60, False), (1 << 60, False), (300_000_000, True), (400_000_000, False))
    programs = tuple(tuple(launch() for _ in range(25)) for _ in range(4))
    return Plan(controller, 30, programs, tuple(samples), ends)


@pytest.fixture(scope="module")
def server(compile_c: Callable[..., Path], root: Path) -> Path:
    return rig.build_server(compile_c, root)


def in_four_processes(plan: Plan, server: Path, engine: Path, folder: Path) -> list[Any]:
    machine = FourProcesses(plan, server, engine, folder / "region")
    try:
        return play(plan, machine)
    finally:
        for guest in machine.guests:
            guest.end()


@pytest.mark.parametrize("controller", pacing.PACING_NAMES)
def test_four_real_processes_equal_the_simulator(controller: str, server: Path, native: Path, tmp_path: Path) -> None:
    plan = lives(controller, 1)
    seen = in_four_processes(plan, server, native / "libhooklab-engine.so", tmp_path)
    expected = play(plan, Modelled(plan))
    assert seen == expected
    assert sum(line[2] == WENT for line in seen[:-1]) >= 50


def test_another_history_is_another_result(server: Path, native: Path, tmp_path: Path) -> None:
    seen = in_four_processes(lives("hybrid", 1), server, native / "libhooklab-engine.so", tmp_path)
    plan = lives("hybrid", 1)
    first, *rest = plan.programs[0]
    longer = replace(plan, programs=((replace(first, ns=first.ns + UNIT), *rest), *plan.programs[1:]))
    assert seen != play(longer, Modelled(longer))
