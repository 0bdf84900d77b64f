"""A GPU in virtual time: SMs, kernels as waves, streams, and processes that take turns or share.

A kernel of B blocks takes ceil(B / (SMs * blocks resident on one SM)) waves. Kernels of one stream run in order; those
of different streams run side by side where SMs are free, started in the order of submission. Processes take turns in
time slices (``slices``: one context on the GPU at a time, a switch costs time) or run side by side (``concurrent``, as
under MPS).

Invariant: the time of a group advances only while it is on the GPU. A kernel's end is fixed in its group's own time
when it starts, so switching away and back moves no number but one offset.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass

from lab.sim.gate import Bracket
from lab.spec.profile import load_profile

SHARING = ("slices", "concurrent")
CARD = load_profile("h200-141g")  # what no profile is named for; each constant says there where it is from


@dataclass(frozen=True, kw_only=True)
class GpuModel:
    """Constants of one GPU; times in ns. `resident`: blocks that fit on one SM at once."""

    sms: int = 108
    threads_per_sm: int = 2048  # public: compute capability table
    resident: int = 16  # assumed: blocks of 128 threads
    slice_ns: int = CARD.number("sharing.slice_ns")
    switch_ns: int = CARD.number("sharing.switch_ns")  # from a process that has work
    idle_switch_ns: int = CARD.number("sharing.idle_switch_ns")  # from one that has none
    kernel_ns: int = 1_500  # fitted: what a kernel takes beyond its work; two tenants with kernels of 200 us on an H200
    sharing: str = "slices"

    def __post_init__(self) -> None:
        if self.sharing not in SHARING:
            raise ValueError(f"sharing {self.sharing!r} is none of {', '.join(SHARING)}")
        positive = self.sms, self.threads_per_sm, self.resident, self.slice_ns
        if min(positive) < 1 or min(self.switch_ns, self.idle_switch_ns) < 0:
            raise ValueError("a GPU has at least one SM, thread, resident block and nanosecond of slice")


class Kernel:
    """One launch. `began` and `ended` are virtual times, -1 until then."""

    __slots__ = ("began", "bracket", "ended", "key", "launched", "ns", "process", "sms", "stream")

    def __init__(self, process: int, stream: int, key: int, blocks: int, wave_ns: int, model: GpuModel) -> None:
        room = model.sms * model.resident
        self.process = process
        self.stream = stream
        self.key = key
        self.ns = -(-blocks // room) * wave_ns + model.kernel_ns
        self.sms = min(model.sms, -(-blocks // model.resident))
        self.launched = 0
        self.began = self.ended = -1
        self.bracket: Bracket | None = None


class _Group:
    """The work of one time slice: one process, or all of them when they share."""

    __slots__ = ("busy_streams", "free", "own", "queue", "resumed", "running", "serial")

    def __init__(self, sms: int) -> None:
        self.queue: deque[Kernel] = deque()
        self.running: list[tuple[int, int, Kernel]] = []  # by end in own time
        self.busy_streams: set[tuple[int, int]] = set()
        self.free = sms
        self.own = 0  # own time when it last went onto or left the GPU
        self.resumed = -1  # virtual time of that moment; -1 while it is off
        self.serial = 0


class Gpu:
    """One device and what `processes` have submitted to it."""

    def __init__(self, model: GpuModel, processes: int) -> None:
        self.model = model
        self.slices = model.sharing == "slices"
        self.groups = [_Group(model.sms) for _ in range(processes if self.slices else 1)]
        self.active = -1  # group on the GPU
        self.last = -1  # the one before, while none is
        self.slice_began = 0
        self.switching = -1  # end of a switch under way
        self.due = -1  # when `handle` has something to do; -1 never
        self._running = [0] * processes
        self._since = [0] * processes
        self._busy = [0] * processes

    def busy(self, process: int, now: int) -> int:
        """Time in which a kernel of `process` was on the GPU, up to `now`; the union over its streams."""
        found = self._busy[process]
        if self._running[process] and self._on(process):
            found += now - self._since[process]
        return found

    def _on(self, process: int) -> bool:
        return self.active == (process if self.slices else 0) and self.switching < 0

    def submit(self, kernel: Kernel, now: int) -> None:
        """Queue a kernel behind those of its stream."""
        kernel.launched = now
        index = kernel.process if self.slices else 0
        group = self.groups[index]
        group.queue.append(kernel)
        if self.active == index:
            if self.switching < 0:
                self._fill(group, now)
        elif self.active < 0:
            self._switch(index, now)
        self._plan(now)

    def _fill(self, group: _Group, now: int) -> None:
        """Starts what fits, in the order of submission; nothing overtakes."""
        queue = group.queue
        while queue:
            kernel = queue[0]
            stream = (kernel.process, kernel.stream)
            if kernel.sms > group.free or stream in group.busy_streams:
                return
            queue.popleft()
            group.free -= kernel.sms
            group.busy_streams.add(stream)
            group.serial += 1
            kernel.began = now
            end = group.own + (now - group.resumed) + kernel.ns
            heapq.heappush(group.running, (end, group.serial, kernel))
            process = kernel.process
            if not self._running[process]:
                self._since[process] = now
            self._running[process] += 1

    def _pause(self, now: int) -> None:
        group = self.groups[self.active]
        if group.resumed >= 0:
            group.own += now - group.resumed
            group.resumed = -1
            if self._running[self.active]:
                self._busy[self.active] += now - self._since[self.active]
        self.last = self.active
        self.active = -1

    def _switch(self, index: int, now: int) -> None:
        """Brings a group onto the GPU, after the time that a switch takes when it is another than the last."""
        cost = 0
        if self.last not in (-1, index):
            last = self.groups[self.last]
            cost = self.model.switch_ns if last.running or last.queue else self.model.idle_switch_ns
        self.active = index
        if cost:
            self.switching = now + cost
        else:
            self._resume(now)

    def _resume(self, now: int) -> None:
        self.switching = -1
        group = self.groups[self.active]
        group.resumed = now
        self.slice_began = now
        if self.slices:
            self._since[self.active] = now
        self._fill(group, now)

    def _other(self) -> int:
        """The next group that has work, in turn; -1 when only the active one has."""
        count = len(self.groups)
        for step in range(1, count):
            index = (self.active + step) % count
            if self.groups[index].queue or self.groups[index].running:
                return index
        return -1

    def _plan(self, now: int) -> None:
        if self.switching >= 0:
            self.due = self.switching
            return
        if self.active < 0:
            self.due = -1
            return
        group = self.groups[self.active]
        self.due = -1
        if group.running:
            self.due = group.resumed + group.running[0][0] - group.own
        if self.slices and len(self.groups) > 1 and self._other() >= 0:
            length = self.model.slice_ns
            over = self.slice_began + max(1, -((self.slice_began - now) // length)) * length
            self.due = over if self.due < 0 else min(self.due, over)

    def handle(self, now: int) -> list[Kernel]:
        """Does what is due at `now`; the kernels that ended, in order."""
        if self.switching >= 0:
            self._resume(now)
            self._plan(now)
            return []
        group = self.groups[self.active]
        ended: list[Kernel] = []
        own = group.own + now - group.resumed
        while group.running and group.running[0][0] <= own:
            kernel = heapq.heappop(group.running)[2]
            kernel.ended = now
            group.free += kernel.sms
            group.busy_streams.discard((kernel.process, kernel.stream))
            process = kernel.process
            self._running[process] -= 1
            if not self._running[process]:
                self._busy[process] += now - self._since[process]
            ended.append(kernel)
        if ended:
            self._fill(group, now)
        if self.slices:
            idle = not group.running
            expired = now > self.slice_began and (now - self.slice_began) % self.model.slice_ns == 0
            if idle or expired:
                other = self._other()
                if other >= 0:
                    self._pause(now)
                    self._switch(other, now)
                elif idle:
                    self._pause(now)
        self._plan(now)
        return ended
