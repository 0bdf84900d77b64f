"""What the bridge costs: jobs through a real daemon process over plain files in memory, submitted one at a time.

A figure is wall time from submission to completion, seen by the module; failed jobs are counted and give no time.
With a poll of P ms a job that is submitted when the last one has ended waits P ms for the daemon to look: that is the
protocol's floor, and the result says so. Evidence: `real-gpu` on a GPU, else `fake-driver`.
"""

from __future__ import annotations

import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lab.bridge.inputs import ramp
from lab.bridge.module import FileModule, ModuleError, Ticket
from lab.bridge.records import BLOB_MAX, OK, VADD_MAX

SCHEMA = "hooklab.bridge-bench/1"
_READY_S, _JOB_S = 120.0, 60.0
_WARM_UP = 3


class BenchError(RuntimeError):
    """Nothing could be measured; one line."""


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of job at one poll; times in microseconds, medians but where named otherwise."""

    poll_ms: float
    job: str
    jobs: int
    failed: int
    p50_us: float
    p99_us: float
    max_us: float
    jobs_per_s: float
    host_us: float
    """In the daemon, from its record to its answer."""
    kernel_us: float


@dataclass(frozen=True, slots=True)
class BenchResult:
    """All rows with their evidence class."""

    device: str
    evidence: str
    rows: tuple[Row, ...]

    def as_json(self) -> dict[str, Any]:
        """The documented JSON form."""
        rows = [asdict(row) for row in self.rows]
        return {"schema": SCHEMA, "device": self.device, "evidence": self.evidence, "rows": rows}

    def lines(self) -> list[str]:
        """The same for people."""
        widths = {"jobs": 5, "failed": 6, "p50 us": 10, "p99 us": 10, "max us": 10, "jobs/s": 8, "daemon us": 10}
        head = " ".join(f"{name:>{width}}" for name, width in widths.items())
        found = [f"bridge jobs on {self.device}, {self.evidence}", f"poll ms  {'job':14} {head}  kernel us"]
        found += [
            f"{row.poll_ms:>7g}  {row.job:14} {row.jobs:>5} {row.failed:>6} {row.p50_us:>10,.1f} {row.p99_us:>10,.1f} "
            f"{row.max_us:>10,.1f} {row.jobs_per_s:>8,.1f} {row.host_us:>10,.1f} {row.kernel_us:>10,.1f}"
            for row in self.rows
        ]
        for poll in dict.fromkeys(row.poll_ms for row in self.rows if row.poll_ms > 0):
            found.append(
                f"with a poll of {poll:g} ms the floor is the poll: {poll * 1000:,.0f} us a job, {1000 / poll:g} jobs/s"
            )
        return found


def measure(*, backend: str, device: int, polls_ms: Sequence[float], jobs: int, large: bool) -> BenchResult:
    """Runs a daemon at each poll; `BenchError` if one cannot be started."""
    rows: list[Row] = []
    name = ""
    folder = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    for poll in polls_ms:
        with tempfile.TemporaryDirectory(prefix="hooklab-bridge-", dir=folder) as place:
            paths = {role: Path(place) / role for role in ("job", "in", "out", "done")}
            process = _start(paths, backend, device, poll)
            try:
                name = name or process.name
                module = FileModule(paths)
                count = jobs if poll == 0 else max(5, min(jobs, round(2000 / poll)))
                for job, make, share in _loads(module, large):
                    rows.append(_row(poll, job, module, make, max(3, count // share)))
            finally:
                process.stop()
    # The node's environment variable is there exactly when the driver is a fake one.
    real = backend == "gpu" and "HOOKLAB_NODE" not in os.environ
    return BenchResult(name, "real-gpu" if real else "fake-driver", tuple(rows))


def _loads(module: FileModule, large: bool) -> list[tuple[str, Callable[[], Ticket], int]]:
    """(name, submission, how many times fewer of it)."""

    def vadd(n: int) -> Callable[[], Ticket]:
        data = ramp(n)
        return lambda: module.vadd(data)

    found: list[tuple[str, Callable[[], Ticket], int]] = [
        ("mail 39", lambda: module.mail(39), 1),
        ("vadd 1", vadd(1), 1),
        ("vadd 1024", vadd(1024), 1),
    ]
    if large:
        found += [
            ("vadd 2^20", vadd(1 << 20), 10),
            ("vadd 2^22", vadd(VADD_MAX), 20),
            ("mail 32 MiB", lambda: module.mail(BLOB_MAX), 20),
        ]
    return found


def _row(poll: float, job: str, module: FileModule, make: Callable[[], Ticket], count: int) -> Row:
    times, host, kernel, failed = [], [], [], 0
    began = time.monotonic()
    for number in range(-_WARM_UP, count):
        if number == 0:
            began = time.monotonic()
        start = time.monotonic_ns()
        try:
            ticket = module.wait(make(), _JOB_S)
        except ModuleError as error:
            raise BenchError(f"bridge bench: {job}: {error}") from None
        took = time.monotonic_ns() - start
        if number < 0:
            continue
        done = ticket.done
        if not ticket.ok or done is None or done.status != OK or done.bad:
            failed += 1
            continue
        times.append(took / 1000)
        host.append(done.host_ns / 1000)
        kernel.append(done.kernel_ns / 1000)
    whole = time.monotonic() - began
    if not times:
        return Row(poll, job, count, failed, *[math.nan] * 6)
    times.sort()
    p99 = times[min(len(times) - 1, math.ceil(0.99 * len(times)) - 1)]
    middle = statistics.median
    return Row(
        poll, job, count, failed, middle(times), p99, times[-1], len(times) / whole, middle(host), middle(kernel)
    )


@dataclass(frozen=True, slots=True)
class _Serving:
    process: subprocess.Popen[str]
    name: str

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _start(paths: dict[str, Path], backend: str, device: int, poll: float) -> _Serving:
    argv = [sys.executable, "-P", "-m", "lab.cli", "bridge", "serve", "--backend", backend, "--device", str(device)]
    argv += ["--poll-ms", f"{poll:g}"]
    for role, path in paths.items():
        argv += [f"--{role}", str(path)]
    # Its line a job is read by nobody before the end: a file takes them all.
    log = paths["job"].parent / "log"
    with log.open("w") as stream:
        process = subprocess.Popen(argv, stdout=stream, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + _READY_S
    while time.monotonic() < deadline:
        first, newline, _ = log.read_text().partition("\n")
        if newline:
            return _Serving(process, first.removeprefix("ready ").rpartition(", poll")[0])
        if process.poll() is not None:
            said = (process.stderr.read() if process.stderr else "").strip()
            raise BenchError(said.removeprefix("hooklab: ") or f"the daemon ended with status {process.returncode}")
        time.sleep(0.01)
    process.kill()
    process.wait()
    raise BenchError(f"the daemon was not ready within {_READY_S:g} s")
