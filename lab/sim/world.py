"""Processes that launch under a policy on one GPU, in virtual time: the closed loop.

The policy objects are those of `lab.policy`, one instance a process, as in the shim; processes of one container share
its words. NVML samples come every `period_ns`, are visible `lag_ns` later, and say whole percents. Who is told what:
``board`` (tenants tell each other, `lab.sim.board`, as the shim's do; controllers that count blocks have NVML as on an
H200), ``exact`` (NVML says of each process what it had) or ``winner`` (NVML credits the whole window to one process,
drawn by what each had: measured on an H200 with two saturating processes).
"""

from __future__ import annotations

import bisect
import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from lab.policy.pacing._words import (
    EXACT,
    FLAGS,
    KNOWN,
    MEASURED,
    NEIGHBOURS,
    SAMPLE_ALL,
    SAMPLE_MEASURED,
    SAMPLE_OWN,
    SAMPLE_OWN_NS,
    SAMPLE_SEQ,
    SAMPLE_TIME,
    SAMPLE_WINDOW,
    SMS,
    TARGET,
    THREADS,
    USABLE,
    WORDS,
)
from lab.sim import rng
from lab.sim.board import Board
from lab.sim.gate import Gate, Pacer
from lab.sim.gpu import CARD, Gpu, GpuModel, Kernel
from lab.sim.patterns import SYNC, THINK, Pattern

SECOND = 1_000_000_000
TICK = 120_000_000  # between two calls of observe
ATTRIBUTION = ("board", "exact", "winner")
Make: TypeAlias = Callable[[], Pacer]


@dataclass(frozen=True, kw_only=True)
class NvmlModel:
    """How utilisation is sampled. Absent when `period_ns` is 0."""

    period_ns: int = SECOND // 6  # public; a profile says what was measured
    lag_ns: int = CARD.number("sharing.sample_lag_ns")
    attribution: str = "exact"

    def __post_init__(self) -> None:
        if self.attribution not in ATTRIBUTION:
            raise ValueError(f"attribution {self.attribution!r} is none of {', '.join(ATTRIBUTION)}")
        if self.period_ns < 0 or self.lag_ns < 0:
            raise ValueError("the period and the lag of samples are not negative")


@dataclass(frozen=True, kw_only=True)
class HostModel:
    """What the processor's side takes, ns. `depth`: launches that a context queues before the call blocks."""

    launch_ns: int = CARD.number("latency_ns.launch")
    sync_ns: int = 5_200  # measured on an H200: launch and wait, less the submit
    depth: int = 1_024  # assumed


@dataclass(frozen=True, kw_only=True)
class Tenant:
    """A container with equal processes. `target` in percent, 0 = no limit; `start_ns`, `stop_ns`: when it launches."""

    pattern: Pattern
    target: int = 0
    processes: int = 1
    start_ns: int = 0
    stop_ns: int = -1


@dataclass(frozen=True, kw_only=True)
class Trace:
    """What happened. T tenants, W windows of `window_ns`."""

    window_ns: int
    busy: npt.NDArray[np.int64]  # (W, T) GPU-ns in each window, by the GPU's own clock, summed over processes
    launches: npt.NDArray[np.int64]  # (T,)
    waits: tuple[npt.NDArray[np.int64], ...]  # for each tenant, ns that each launch was held at the gate
    latencies: tuple[npt.NDArray[np.int64], ...]  # for each tenant, ns from the first ask to the kernel's end
    events: int


@dataclass(slots=True)
class _Process:
    index: int
    tenant: int
    program: Any
    gate: Gate | None
    stop: int
    pending: tuple[int, ...] | None = None  # a launch that waits at the gate
    asked: int = 0
    outstanding: int = 0
    syncing: bool = False
    started: bool = False
    full: bool = False  # the driver's queue is full
    token: int = 0  # number of the wake-up that counts
    waits: list[int] = field(default_factory=list)
    latencies: list[int] = field(default_factory=list)


_WAKE, _GPU, _SAMPLE, _VISIBLE, _TICK, _MARK = range(6)


class World:
    """One run. `seed` decides the programs' draws, the phases of samples and ticks, and who wins a sample."""

    def __init__(
        self,
        tenants: Sequence[Tenant],
        make: Make | None,
        *,
        gpu: GpuModel | None = None,
        nvml: NvmlModel | None = None,
        host: HostModel | None = None,
        seed: int = 1,
        window_ns: int = SECOND,
    ) -> None:
        self.model = gpu or GpuModel()
        self.nvml = nvml or NvmlModel()
        self.host = host or HostModel()
        self.tenants = tuple(tenants)
        self.window = window_ns
        self.heap: list[tuple[int, int, int, int, int]] = []
        self.serial = 0
        self.events = 0
        self.words: list[memoryview] = []
        self.processes: list[_Process] = []
        self.observers: list[Pacer | None] = []
        phases = rng.stream(seed, "phases").random(1 + len(self.tenants))
        for number, tenant in enumerate(self.tenants):
            words = memoryview(bytearray(8 * WORDS)).cast("Q")
            words[TARGET], words[SMS], words[THREADS] = tenant.target, self.model.sms, self.model.threads_per_sm
            self.words.append(words)
            policies = [make() for _ in range(tenant.processes)] if make is not None and tenant.target else []
            self.observers.append(policies[0] if policies else None)
            for ordinal in range(tenant.processes):
                program = tenant.pattern.make(self.model, seed * 1_000_003 + number * 1009 + ordinal)
                gate = Gate(policies[ordinal], words) if policies else None
                process = _Process(len(self.processes), number, program, gate, tenant.stop_ns)
                self.processes.append(process)
                self._push(tenant.start_ns, _WAKE, process.index, 0)
            if policies:
                self._push(tenant.start_ns + max(1, int(phases[1 + number] * TICK)), _TICK, number, 0)
        self.gpu = Gpu(self.model, len(self.processes))
        self._due = -1
        self.board = Board() if self.nvml.attribution == "board" else None
        self.cuts = [0] * len(self.tenants)
        for process in self.processes:
            if self.board is not None and process.gate is not None and not process.gate.blocks:
                process.gate.row = self.board.take(process.tenant)
        self.at_sample = [0] * len(self.processes)
        self.samples = 0
        self.draws = rng.stream(seed, "winner")
        self.told = [self.nvml.attribution != "board"] * len(self.tenants)  # by NVML
        for process in self.processes:
            self.told[process.tenant] |= process.gate is not None and process.gate.row is None
        if self.nvml.period_ns and any(self.told):
            self._push(max(1, int(phases[0] * self.nvml.period_ns)), _SAMPLE, 0, 0)
        self.pending: dict[int, list[int]] = {}

    def _push(self, at: int, kind: int, who: int, what: int) -> None:
        self.serial += 1
        heapq.heappush(self.heap, (at, self.serial, kind, who, what))

    def run(self, until_ns: int) -> Trace:
        """Plays until `until_ns`, a multiple of the window."""
        windows = until_ns // self.window
        marks = np.zeros((windows + 1, len(self.tenants)), dtype=np.int64)
        for number in range(1, windows + 1):
            self._push(number * self.window, _MARK, number, 0)
        heap, gpu = self.heap, self.gpu
        while heap:
            now, _, kind, who, what = heapq.heappop(heap)
            if now > until_ns:
                break
            self.events += 1
            if kind == _GPU:
                if who != self._due or gpu.due != now:
                    continue
                for kernel in gpu.handle(now):
                    self._ended(kernel, now)
            elif kind == _WAKE:
                process = self.processes[who]
                if what == process.token:
                    self._host(process, now)
            elif kind == _SAMPLE:
                self._sample(now)
            elif kind == _VISIBLE:
                self._visible(what, now)
            elif kind == _TICK:
                self._observe(who, now)
                self._push(now + TICK, _TICK, who, 0)
            else:
                for process in self.processes:
                    marks[who, process.tenant] += gpu.busy(process.index, now)
            if gpu.due >= 0 and gpu.due != self._due:
                self._due = gpu.due
                self._push(gpu.due, _GPU, gpu.due, 0)
        grouped = [[p for p in self.processes if p.tenant == number] for number in range(len(self.tenants))]
        return Trace(
            window_ns=self.window,
            busy=np.diff(marks, axis=0),
            launches=np.array([sum(len(p.waits) for p in group) for group in grouped], dtype=np.int64),
            waits=tuple(np.array([w for p in group for w in p.waits], dtype=np.int64) for group in grouped),
            latencies=tuple(np.array([w for p in group for w in p.latencies], dtype=np.int64) for group in grouped),
            events=self.events,
        )

    def _host(self, process: _Process, now: int) -> None:
        """Runs the program until it waits for something."""
        process.token += 1
        gate, index = process.gate, process.index
        while True:
            action = process.pending
            if action is None:
                if 0 <= process.stop <= now:
                    if gate is not None:
                        gate.close()
                        gate.give_back()
                    return
                action = process.program.send(now if process.started else None)
                process.started = True
                kind = action[0]
                if kind == THINK:
                    if gate is not None:
                        gate.close()
                    self._push(now + action[1], _WAKE, index, process.token)
                    return
                if kind == SYNC:
                    if gate is not None:
                        gate.close()
                    if process.outstanding:
                        process.syncing = True
                        return
                    continue
                process.asked = now
            if process.outstanding >= self.host.depth:
                process.pending, process.full = action, True
                return
            _, key, blocks, wave, stream = action
            bracket = None
            if gate is not None:
                wait = gate.ask(key, blocks, now)
                if wait:
                    process.pending = action
                    self._push(now + wait, _WAKE, index, process.token)
                    return
                bracket = gate.launched(key)
            process.pending = None
            process.waits.append(now - process.asked)
            process.outstanding += 1
            kernel = Kernel(index, stream, key, blocks, wave, self.model)
            kernel.bracket = bracket
            self.gpu.submit(kernel, now)
            kernel.launched = process.asked
            self._push(now + self.host.launch_ns, _WAKE, index, process.token)
            return

    def _ended(self, kernel: Kernel, now: int) -> None:
        process = self.processes[kernel.process]
        process.outstanding -= 1
        process.latencies.append(now - kernel.launched)
        settled = False
        if process.gate is not None and kernel.bracket is not None:
            settled = process.gate.ended(kernel.bracket, kernel.began, now)
        if process.syncing and not process.outstanding:
            process.syncing = False
            self._push(now + self.host.sync_ns, _WAKE, process.index, process.token)
        elif process.full:
            process.full = False
            self._push(now, _WAKE, process.index, process.token)
        if settled:
            for other in self.processes:
                if other.tenant == process.tenant and other.pending is not None and not other.full:
                    self._push(now, _WAKE, other.index, other.token)

    def _sample(self, now: int) -> None:
        had = []
        for process in self.processes:
            busy = self.gpu.busy(process.index, now)
            had.append(busy - self.at_sample[process.index])
            self.at_sample[process.index] = busy
        if self.nvml.attribution != "exact" and any(had):
            total = sum(had)
            winner = bisect.bisect_right(list(itertools.accumulate(had)), int(self.draws.integers(total)))
            had = [total if number == winner else 0 for number in range(len(had))]
        percents = [0] * len(self.tenants)
        for process, busy in zip(self.processes, had, strict=True):
            percents[process.tenant] += (busy * 200 // self.nvml.period_ns + 1) // 2
        self.samples += 1
        self.pending[self.samples] = percents
        self._push(now + self.nvml.lag_ns, _VISIBLE, 0, self.samples)
        self._push(now + self.nvml.period_ns, _SAMPLE, 0, 0)

    def _visible(self, number: int, now: int) -> None:
        percents = self.pending.pop(number)
        total = min(100, sum(percents))
        window = self.nvml.period_ns
        for tenant, words in enumerate(self.words):
            if not self.told[tenant]:
                continue
            own = min(100, percents[tenant])
            words[FLAGS] = USABLE | KNOWN
            words[SAMPLE_SEQ], words[SAMPLE_TIME], words[SAMPLE_WINDOW] = number, now - self.nvml.lag_ns, window
            words[SAMPLE_OWN], words[SAMPLE_ALL] = own * 100, total * 100
            words[SAMPLE_OWN_NS] += own * window // 100
            words[SAMPLE_MEASURED] = words[MEASURED]
            words[NEIGHBOURS] = len(self.processes) - self.tenants[tenant].processes

    def _look(self, tenant: int, words: memoryview, now: int) -> None:
        """What the board says, in place of NVML."""
        assert self.board is not None
        look = self.board.sample(tenant, self.cuts[tenant], now)
        self.cuts[tenant] = look.cut
        words[FLAGS] = USABLE | KNOWN | EXACT
        words[NEIGHBOURS] = look.others
        if look.division is None:
            return
        words[SAMPLE_SEQ] += 1
        words[SAMPLE_TIME], words[SAMPLE_WINDOW] = look.cut, look.window
        words[SAMPLE_OWN] = look.division.own * 10_000 // look.window
        words[SAMPLE_ALL] = look.division.all * 10_000 // look.window
        words[SAMPLE_OWN_NS] += look.division.own
        words[SAMPLE_MEASURED] += look.division.raw

    def _observe(self, tenant: int, now: int) -> None:
        """With the newest sample; none there yet reads as an idle one, as NVML does."""
        observer, words = self.observers[tenant], self.words[tenant]
        if self.board is not None and not self.told[tenant]:
            self._look(tenant, words, now)
        if observer is not None:
            window = words[SAMPLE_WINDOW] if self.nvml.period_ns else 0
            observer.observe(0, words[SAMPLE_OWN] * window // 10_000, window, now, words)
