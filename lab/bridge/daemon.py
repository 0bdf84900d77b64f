"""The daemon: looks for a job, executes it, answers. One thread, one job at a time.

Invariants: a job that was taken is answered by a done record at offset 0, whatever happens in between; a record that
cannot be written is tried again before anything else is done. Nothing is read of `in`, and nothing asked of the
backend, for a bad job. `out` is written after a success only, before the done record.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from lab.bridge.backend import Backend, BackendError
from lab.bridge.files import Files, TransferError, read, write
from lab.bridge.records import (
    BAD_JOB,
    CUDA_ERROR,
    OK,
    RECORD_BYTES,
    STATUS_NAMES,
    TRANSPORT_ERROR,
    Done,
    Job,
    problem,
)
from lab.bridge.verify import checksum, mismatches

CUDA_ERROR_UNKNOWN = 999
LAST_TRIES_S = 1.0
"""How long a done record that cannot be written is tried after a request to stop."""


class _JobError(Exception):
    def __init__(self, status: int, code: int, reason: str, written: int = 0) -> None:
        super().__init__(reason)
        self.status, self.code, self.written = status, code, written


class Daemon:
    """Answers the jobs of one set of files. `log` gets one line a job; `complain` what else is worth a line."""

    def __init__(
        self,
        files: Files,
        backend: Backend,
        *,
        log: Callable[[str], None] = lambda _line: None,
        complain: Callable[[str], None] = lambda _line: None,
    ) -> None:
        self.files, self.backend = files, backend
        self.answered = 0
        self._log, self._complain = log, complain
        self._last: int | None = None
        self._owed: bytes | None = None
        self._trouble = ""

    @property
    def owes(self) -> bool:
        """A done record could not be written yet."""
        return self._owed is not None

    def poll(self) -> Done | None:
        """Looks once; executes and answers what is there. None: idle, or a done record is still owed."""
        if not self.settle():
            return None
        job = self._look()
        if job is None or (self._last is not None and job.seq <= self._last):
            return None
        if self._look() != job:  # read in the middle of being replaced, in two parts of different records
            return None
        self._last = job.seq
        done, reason = self._answer(job)
        self.answered += 1
        self._owed = done.pack()
        self.settle()
        self._log(log_line(job, done, reason))
        return done

    def settle(self) -> bool:
        """Writes the done record that is owed, if any; whether none is left."""
        if self._owed is None:
            return True
        try:
            write(self.files, "done", self._owed)
        except OSError as error:
            self._note(f"done: {os.strerror(error.errno or errno.EIO)}; the record is tried again")
            return False
        self._owed = None
        self._note("")
        return True

    def _look(self) -> Job | None:
        try:
            data = read(self.files, "job", RECORD_BYTES)
        except OSError as error:
            self._note("" if error.errno == errno.ENOENT else f"job: {os.strerror(error.errno or errno.EIO)}; idle")
            return None
        self._note("")
        if len(data) < RECORD_BYTES:
            return None
        job = Job.unpack(data)
        return job if job.valid else None

    def _note(self, trouble: str) -> None:
        """A trouble that lasts is one line, not one a poll."""
        if trouble and trouble != self._trouble:
            self._complain(trouble)
        self._trouble = trouble

    def _answer(self, job: Job) -> tuple[Done, str]:
        began = time.monotonic_ns()
        reason = ""
        try:
            found: dict[str, Any] = self._execute(job)
        except _JobError as error:
            reason = str(error)
            found = {"status": error.status, "err_code": error.code, "out_bytes_written": error.written}
        except MemoryError:
            reason = "no memory on the host"
            found = {"status": TRANSPORT_ERROR, "err_code": errno.ENOMEM}
        except Exception as error:  # whatever it is, the module must not wait for ever
            reason = f"{type(error).__name__}: {error}"
            found = {"status": CUDA_ERROR, "err_code": CUDA_ERROR_UNKNOWN}
        name = self.backend.name.encode()[:63]
        return Done(seq=job.seq, device_name=name, host_ns=time.monotonic_ns() - began, **found), reason

    def _execute(self, job: Job) -> dict[str, int]:
        bad = problem(job)
        if bad:
            raise _JobError(BAD_JOB, job.opcode, bad)
        data = self._input(job)
        if job.n == 0:
            return {"status": OK}
        try:
            result = self.backend.run(job, data)
        except BackendError as error:
            raise _JobError(CUDA_ERROR, error.code, str(error)) from None
        found = {
            "bad": mismatches(job, data, result.output),
            "checksum": checksum(job, result.output),
            "kernel_ns": result.kernel_ns,
        }
        try:
            return {**found, "out_bytes_written": write(self.files, "out", memoryview(result.output))}
        except TransferError as error:
            number = error.errno or errno.EIO
            raise _JobError(TRANSPORT_ERROR, number, f"out: {os.strerror(number)}", error.moved) from None

    def _input(self, job: Job) -> bytes:
        if job.in_bytes == 0:
            return b""
        try:
            data = read(self.files, "in", job.in_bytes)
        except OSError as error:
            number = error.errno or errno.EIO
            raise _JobError(TRANSPORT_ERROR, number, f"in: {os.strerror(number)}") from None
        if len(data) < job.in_bytes:
            raise _JobError(TRANSPORT_ERROR, errno.EIO, f"in: {len(data)} of {job.in_bytes} bytes")
        return data


def log_line(job: Job, done: Done, reason: str = "") -> str:
    """The protocol's line of a job; one that failed has its code and the reason behind it."""
    device = "".join(letter if letter.isprintable() and letter != '"' else "?" for letter in done.device)
    line = (
        f'CUBB2 seq={job.seq} op={job.opcode} n={job.n} gpu="{device}" kernel_ns={done.kernel_ns} '
        f"status={STATUS_NAMES[done.status]} checksum={done.checksum_value:.6f} bad={done.bad} "
        f"out_bytes={done.out_bytes_written}"
    )
    return line + (f' err_code={done.err_code} reason="{reason}"' if done.status else "")


def run(daemon: Daemon, *, poll_ms: float, ready: Callable[[], None] = lambda: None) -> int:
    """Polls until SIGTERM or SIGINT; a job that is being executed is finished and answered first.

    `ready` is called once signals are caught. Returns 0, or 1 if a done record could not be written in the end. Must
    run in the main thread.
    """
    with _stop_signals() as (stopped, wait):
        ready()
        while not stopped():
            daemon.poll()
            wait(poll_ms / 1000)
        deadline = time.monotonic() + LAST_TRIES_S
        while not daemon.settle() and time.monotonic() < deadline:
            time.sleep(0.01)
    return 1 if daemon.owes else 0


@contextmanager
def _stop_signals() -> Iterator[tuple[Callable[[], bool], Callable[[float], None]]]:
    """(was asked to stop, wait that a signal ends). Signals never break into a job."""
    told: list[int] = []

    def tell(number: int, _frame: FrameType | None) -> None:
        told.append(number)

    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before = {number: signal.signal(number, tell) for number in (signal.SIGTERM, signal.SIGINT)}
    old = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    poller = select.poll()
    poller.register(reader, select.POLLIN)

    def wait(seconds: float) -> None:
        if seconds > 0 and not told and poller.poll(seconds * 1000):
            with suppress(BlockingIOError):
                os.read(reader, 64)

    try:
        yield (lambda: bool(told)), wait
    finally:
        signal.set_wakeup_fd(old)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(reader)
        os.close(writer)


def say(line: str) -> None:
    """A line on standard output at once; who reads it may have gone, and that is no reason to stop serving."""
    try:
        print(line, flush=True)
    except OSError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - until the process ends
