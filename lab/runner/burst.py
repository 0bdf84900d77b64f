"""Start-up bursts: many processes begin cuInit at the same moment, under one condition after another.

Every worker is a fresh process image. All wait on one pipe; the parent closes its write end, which wakes them together
(bench/worker.c has the stages). The parent never touches CUDA. What each worker did is in the history it wrote; one
that wrote no result has failed, whatever the reason, and counts as never finished.

Invariants: everything started is ended by its PID before a burst returns; conditions come in random order from the
seed; the harness is the same for every condition and interposer.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import resource
import selectors
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab import native
from lab.node.faults import FaultError
from lab.node.server import NodeError, NodeServer
from lab.runner import burst_broker, burst_plan, guest, plan, rundir
from lab.runner.burst_plan import Condition, Control
from lab.runner.guest import GuestError
from lab.runner.recorder import Recorder
from lab.runner.rundir import RunDirectory
from lab.spec import SpecError
from lab.spec.profile import ProfileError

SCHEMA = "hooklab.burst/1"
_RECORDS = 2048  # of history a worker at most: a foreign interposer that polls the driver writes many
_STAGES = b"ria"
_SAID = {  # what interposers are known to print on standard error, by the count it becomes
    "waits": re.compile(rb"waiting \d+ second|lock.*(?:wait|busy)", re.IGNORECASE),
    "timeouts": re.compile(rb"time(?:d )?-?out", re.IGNORECASE),
    "pacing_disabled": re.compile(rb"SET_TASK_PID FAILED|host ?pid .*not found", re.IGNORECASE),
}
ReadRaw = Callable[[Path, int, int], list[dict[str, Any]]]
Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class BurstOptions:
    """What to start. ``memory`` is a size with unit or None; ``latency`` none, profile or NAME=DURATION,...;
    ``visible``: ``all`` devices to each worker or ``spread`` (worker i sees device i mod count)."""

    workers: Sequence[int]
    repeat: int = 1
    interposers: Sequence[str] = ("builtin",)
    conditions: Sequence[str] = ("baseline",)
    controls: Sequence[str] = ()
    gpus: Sequence[str] = ("a100-80g",)
    driver: str = "580"
    memory: str | None = None
    cores: int | None = None
    dialect: str | None = None
    policy: str | None = None
    latency: str = "none"
    time_scale: float = 1.0
    context: str | None = None
    visible: str = "all"
    on: str = "fake"
    seed: int = 0
    timeout_s: float = 120.0
    calls: bool = True
    out: Path = Path("runs")


@dataclass(frozen=True)
class _One:
    condition: Condition
    interposer: str
    workers: int
    repeat: int


def run_burst(options: BurstOptions, *, read_raw: ReadRaw, progress: Progress | None = None) -> Path:
    """All bursts of ``options`` in random order; the run directory with ``burst.json``.

    ``read_raw(history, workers, release_ns)`` turns a history into one dictionary a worker (lab.report.burst_phases).
    GuestError (one line) when something cannot be started as asked.
    """
    guest.check_natives()
    if options.on not in ("fake", "real"):
        raise GuestError(f"--on {options.on}: the harness with real processes knows fake and real")
    if options.visible not in ("all", "spread"):
        raise GuestError(f"--visible {options.visible}: write all or spread")
    for interposer in options.interposers:
        guest.interposer_path(interposer)
    conditions = [burst_plan.condition_named(name) for name in options.conditions]
    controls = burst_plan.controls_named(tuple(options.controls))
    latencies = burst_plan.latencies(options.latency)
    jobs = list(_jobs(options, conditions, controls))
    random.Random(options.seed).shuffle(jobs)
    _allow_descriptors(64 + 8 * max(options.workers))
    directory = RunDirectory.create(options.out, "burst")
    document = _document(options, controls)
    if options.on == "real":  # the first process after a pause wakes the card: it is nobody's figure
        _Burst(options, _One(Condition(name="warm-up"), "none", 1, 0), -1, directory.path, latencies).run(read_raw)
    for order, job in enumerate(jobs):
        if progress is not None:
            progress(
                f"{order + 1} of {len(jobs)}: {job.workers} workers, {job.condition.name}, {_short(job.interposer)}"
            )
        burst = _Burst(options, job, order, directory.path, latencies)
        document["runs"].append(burst.run(read_raw))
        _write(directory.path / "burst.json", document)
    return directory.path


def _jobs(options: BurstOptions, conditions: Sequence[Condition], controls: Sequence[Control]) -> Iterator[_One]:
    for repeat in range(options.repeat):
        for interposer in options.interposers:
            for workers in options.workers:
                for condition in conditions:
                    yield _One(condition, interposer, workers, repeat)
            for control in controls:
                for workers in (1,) if control.single else options.workers:
                    for condition in control.conditions:
                        yield _One(condition, interposer, workers, repeat)


def _document(options: BurstOptions, controls: Sequence[Control]) -> dict[str, Any]:
    environment = rundir.environment(
        {
            "interposer": ", ".join(_version(one) for one in options.interposers),
            "control plane": "none",
            "gpus": ", ".join(options.gpus) if options.on == "fake" else "this machine's",
            "gpu count": str(len(options.gpus)) if options.on == "fake" else "",
            "driver": options.driver if options.on == "fake" else "this machine's",
            "latency": f"{options.latency} x {options.time_scale:g}" if options.on == "fake" else "real",
            "runtime": "plain processes",
            "pid namespace": "host",
            "visible": options.visible,
            "barrier": "one pipe close",
        }
    )
    return {
        "schema": SCHEMA,
        "evidence": "fake-driver" if options.on == "fake" else "real-gpu",
        "seed": options.seed,
        "environment": environment,
        "options": {key: str(value) for key, value in vars(options).items()},
        "controls": [
            {
                "name": control.name,
                "theory": control.theory,
                "figure": control.figure,
                "predicted": control.predicted,
                "conditions": [condition.name for condition in control.conditions],
            }
            for control in controls
        ],
        "runs": [],
    }


def _short(interposer: str) -> str:
    return interposer if interposer in ("builtin", "none") else os.path.basename(interposer)


def _version(interposer: str) -> str:
    import hashlib

    path = guest.interposer_path(interposer)
    if path is None:
        return "none"
    return f"{_short(interposer)} sha256:{hashlib.sha256(path.read_bytes()).hexdigest()[:12]}"


def _write(path: Path, document: Mapping[str, Any]) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    os.replace(fresh, path)


def _close_all(descriptors: set[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _allow_descriptors(wanted: int) -> None:
    """Room for the pidfds and the node's connections. GuestError when the machine does not give it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= wanted:
        return
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise GuestError(f"{wanted} descriptors are needed and ulimit -Hn allows {hard}; take fewer workers")
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class _Worker:
    def __init__(self, popen: subprocess.Popen[bytes], index: int) -> None:
        self.popen, self.index = popen, index
        self.pidfd = os.pidfd_open(popen.pid)
        self.status: int | None = None
        self.given_up = False  # ended by us, because the time was over


class _Burst:
    """One release of ``job.workers`` processes."""

    def __init__(
        self, options: BurstOptions, job: _One, order: int, place: Path, latencies: Mapping[str, int] | str | None
    ) -> None:
        self.options, self.job, self.order, self.latencies = options, job, order, latencies
        self.history = place / f"history-{order}"
        self.stderr = place / "stderr" / f"{order}.txt"
        self.workers: list[_Worker] = []
        self.holder: _Worker | None = None
        self.reached: dict[int, set[int]] = {stage: set() for stage in _STAGES}
        self.timed_out = False

    def run(self, read_raw: ReadRaw) -> dict[str, Any]:
        """The result row with its raw records."""
        with contextlib.ExitStack() as stack:
            scratch = Path(tempfile.mkdtemp(prefix="hooklab-burst-"))
            stack.callback(shutil.rmtree, scratch, ignore_errors=True)
            node = self._start_node(stack)
            stack.enter_context(burst_broker.serving(self.job.condition.broker))
            recorder = Recorder(self.history, capacity=_RECORDS * (self.job.workers + 2))
            stack.callback(self._kill_all)
            release_ns, wall_ns = self._play(self._environment(node, scratch), stack)
            recorder.add("BARRIER", a=self.job.workers)
            counts = self._said()
            dropped = recorder.close()
        raw = read_raw(self.history, self.job.workers, release_ns)
        for worker, record in zip(self.workers, raw, strict=True):
            record["pid"] = worker.popen.pid
            if not record["ok"]:
                record["reason"] = self._reason(worker, record["reason"])
        return {
            "condition": self.job.condition.name,
            "interposer": _short(self.job.interposer if not self.job.condition.interposer else "none"),
            "workers": self.job.workers,
            "repeat": self.job.repeat,
            "order": self.order,
            "control": self.job.condition.control,
            "release_ns": release_ns,
            "wall_ns": wall_ns,
            "timed_out": self.timed_out,
            "history_dropped": dropped,
            "counts": counts,
            "raw": raw,
        }

    def _start_node(self, stack: contextlib.ExitStack) -> NodeServer | None:
        if self.options.on != "fake":
            return None
        count = self.job.workers + 1
        try:
            node = NodeServer(
                gpus=list(self.options.gpus),
                driver=self.options.driver,
                latencies=self.latencies,
                time_scale=self.options.time_scale,
                history_level=2 if self.options.calls else 1,
                context_bytes=None if self.options.context is None else guest.parse_size(self.options.context),
                seed=self.options.seed,
                process_capacity=max(1024, 2 * count),
            )
            node.start()
            stack.callback(node.close)
            node.register_container("burst", limits=[self._memory() or 0] * len(self.options.gpus))
            for fault in self.job.condition.faults:
                node.plan(fault)
        except (NodeError, FaultError, ProfileError, SpecError, KeyError, ValueError) as error:
            raise GuestError(str(error)) from None
        return node

    def _memory(self) -> int | None:
        asked = self.job.condition.memory
        if asked == "all":
            from lab.spec import load_profile

            return load_profile(self.options.gpus[0]).cuda_total_bytes
        if asked is not None or self.options.memory is None:
            return None
        return guest.parse_size(self.options.memory)

    def _environment(self, node: NodeServer | None, scratch: Path) -> dict[str, str]:
        interposer = self.job.condition.interposer or self.job.interposer
        library = guest.interposer_path(interposer)
        found = plan.inherited() | {"HOOKLAB_CONTAINER": "0", "HOOKLAB_HISTORY": str(self.history)}
        found |= {"HOOKLAB_BURST_LOCK": str(scratch / "unified.lock")}  # of the two unified_* baselines
        found |= {"HOOKLAB_BURST_WAIT_MS": str(max(1, round(1000 * self.options.time_scale)))}
        if node is not None:
            found |= node.environment | plan.library_path(
                guest.fake_directory(self.options.driver), needed=True, scratch=scratch
            )
        else:
            found |= plan.library_path(None, needed=False, scratch=scratch)
        if library is not None:
            memory = self._memory()
            found |= guest.limits(
                guest.plain_dialect(self.options.dialect, interposer),
                memory=memory,
                cores=self.options.cores,
                interposer=str(library),
                region=str(scratch / "region.cache"),
                robust=True,
            )
            found["LD_PRELOAD"] = ":".join(plan.preload_list(str(library)))
        if self.options.policy:
            found["HOOKLAB_POLICY"] = plan.policy_text(self.options.policy)
        return found | dict(self.job.condition.environment)

    # -- the burst itself --------------------------------------------------------------------------------------------

    def _play(self, environment: Mapping[str, str], stack: contextlib.ExitStack) -> tuple[int, int]:
        deadline = time.monotonic() + self.options.timeout_s
        with self.stderr.open("ab") as stderr, selectors.DefaultSelector() as self.selector:
            gates = {stage: os.pipe() for stage in _STAGES}
            ready, say = os.pipe()
            held = {descriptor for pair in gates.values() for descriptor in pair} | {ready, say}
            stack.callback(_close_all, held)
            os.set_blocking(ready, False)
            self.selector.register(ready, selectors.EVENT_READ, None)
            reads = [gates[stage][0] for stage in _STAGES]
            if self.job.condition.holder:
                self._hold(environment, stderr, say, reads[2], deadline)
            for index in range(self.job.workers):
                words = [str(say), *map(str, reads), str(index)]
                words += [self.job.condition.worker] if self.job.condition.worker else []
                self.workers.append(self._spawn(environment, index, words, (say, *reads), stderr))
            self._until(_STAGES[0], deadline)
            release_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
            done_ns = release_ns
            for stage, reached in ((_STAGES[0], _STAGES[1]), (_STAGES[1], _STAGES[2]), (_STAGES[2], None)):
                os.close(gates[stage][1])
                held.discard(gates[stage][1])
                self._until(reached, deadline)
                if reached == _STAGES[1]:
                    done_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        return release_ns, done_ns - release_ns

    def _spawn(
        self, environment: Mapping[str, str], index: int, words: Sequence[str], passed: Sequence[int], stderr: Any
    ) -> _Worker:
        own = {"HOOKLAB_PROCESS": str(index)} | (dict(self.job.condition.first) if index == 0 else {})
        if self.options.visible == "spread":
            own["CUDA_VISIBLE_DEVICES"] = str(index % len(self.options.gpus))
        popen = subprocess.Popen(
            [str(native.path("hooklab-bench")), "--burst", *words],
            env=dict(environment) | own,
            pass_fds=tuple(passed),
            stdin=subprocess.DEVNULL,
            stdout=stderr,
            stderr=stderr,
            start_new_session=True,
        )
        worker = _Worker(popen, index)
        self.selector.register(worker.pidfd, selectors.EVENT_READ, worker)
        return worker

    def _hold(self, environment: Mapping[str, str], stderr: Any, say: int, end: int, deadline: float) -> None:
        """A process that makes its context before the burst and keeps it until the end."""
        opened, shut = os.pipe()
        os.close(shut)  # its first gate is open from the start
        try:
            words = [str(say), str(opened), str(end), str(end), str(self.job.workers), self.job.condition.holder]
            self.holder = self._spawn(environment, self.job.workers, words, (say, opened, end), stderr)
        finally:
            os.close(opened)
        self._until(_STAGES[1], deadline)

    def _until(self, stage: int | None, deadline: float) -> None:
        """Serve until everyone who lives has reached the stage (None: until all have ended)."""
        while any(worker.status is None and not self._at(worker, stage) for worker in self._everyone()):
            left = deadline - time.monotonic()
            if left <= 0:
                self.timed_out = True
                self._kill_all()
                return
            for key, _ in self.selector.select(left):
                if key.data is None:
                    self._hear(key.fd)
                else:
                    self._ended(key.data)

    def _at(self, worker: _Worker, stage: int | None) -> bool:
        if worker is self.holder:  # it waits for the end from its own second stage on
            return stage is not None and worker.index in self.reached[_STAGES[1]]
        return stage is not None and worker.index in self.reached[stage]

    def _everyone(self) -> list[_Worker]:
        return [*([self.holder] if self.holder else []), *self.workers]

    def _hear(self, descriptor: int) -> None:
        with contextlib.suppress(BlockingIOError):
            text = os.read(descriptor, 4096)  # whole messages: each is written at once and 4096 is a multiple
            for at in range(0, len(text), 4):
                self.reached[text[at]].add(int.from_bytes(text[at + 1 : at + 3], "little"))

    def _ended(self, worker: _Worker) -> None:
        if worker.status is None:
            self.selector.unregister(worker.pidfd)
            os.close(worker.pidfd)
            worker.status = worker.popen.wait()

    def _kill_all(self) -> None:
        for worker in self._everyone():
            if worker.status is None:
                worker.given_up = True
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker.popen.pid, signal.SIGKILL)
                with contextlib.suppress(KeyError, ValueError, RuntimeError):
                    self.selector.unregister(worker.pidfd)
                os.close(worker.pidfd)
                worker.status = worker.popen.wait()

    def _reason(self, worker: _Worker, told: str) -> str:
        """Why a worker has no result, most telling first."""
        if told:
            return told
        if worker.given_up:
            return f"not finished after {self.options.timeout_s:g} s"
        if worker.status is not None and worker.status < 0:
            return f"killed by {signal.Signals(-worker.status).name}"
        return f"ended with status {worker.status} and no result"

    def _said(self) -> dict[str, int]:
        text = self.stderr.read_bytes()
        return {name: len(pattern.findall(text)) for name, pattern in _SAID.items()}
