"""The module's side of the bridge, as a kernel module plays it: pending jobs, the position rules of its five files,
completion. For tests, for guests without a kernel module, and over plain files.

Invariants: the oldest pending job is the one served, until a valid done record with its seq has come; `out` bytes
count for one job only; a job is completed only with all its output, else it has failed; every ticket ends once. All
methods may be called from any thread. Standard library only.
"""

from __future__ import annotations

import errno
import os
import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from lab.bridge import files as transfer
from lab.bridge.files import READ_ROLES, WRITE_ROLES, Handle, PlainFiles
from lab.bridge.records import (
    BLOB_MAX,
    OK,
    RECORD_BYTES,
    SEM_ENABLE,
    SEM_ONE_WORD,
    SEM_REDUCE,
    TRANSPORT_ERROR,
    Done,
    Job,
)

PENDING_MAX = 1024
MODES = {"job": 0o444, "in": 0o444, "out": 0o200, "done": 0o200, "status": 0o444}


class ModuleError(RuntimeError):
    """A job that cannot be taken, or that did not end in time; the text is one line."""


class Memory(Protocol):
    """The guest's memory by address. OSError where nothing is."""

    def read(self, address: int, size: int) -> bytes:
        """Exactly `size` bytes."""

    def write(self, address: int, data: bytes) -> None:
        """All of `data`."""


class GuestMemory:
    """A guest's memory for tests: `size` bytes from address `base` on."""

    def __init__(self, base: int = 0x10000, size: int = 1 << 16) -> None:
        self.base, self.data = base, bytearray(size)

    def read(self, address: int, size: int) -> bytes:
        """EFAULT outside."""
        at = self._at(address, size)
        return bytes(self.data[at : at + size])

    def write(self, address: int, data: bytes) -> None:
        """EFAULT outside; then nothing is written."""
        at = self._at(address, len(data))
        self.data[at : at + len(data)] = data

    def _at(self, address: int, size: int) -> int:
        at = address - self.base
        if at < 0 or at + size > len(self.data):
            raise OSError(errno.EFAULT, f"guest address {address:#x} + {size}: {os.strerror(errno.EFAULT)}")
        return at


@dataclass(slots=True)
class Ticket:
    """A job on its way. Ended when `ended`; then completed (`ok`) or failed (`failure` says why, in one clause)."""

    job: Job
    data: bytes
    destination: int | None = None
    ended: bool = False
    failure: str = ""
    status: int = OK
    """Of the done record, or 3 where the module itself found fault."""
    err_code: int = 0
    output: bytes = b""
    done: Done | None = None

    @property
    def ok(self) -> bool:
        """Ended well. `bad` elements are data, no failure: see `done.bad`."""
        return self.ended and not self.failure


@dataclass(slots=True)
class Counts:
    """What the status file says."""

    jobs: int = 0
    completed: int = 0
    failed: int = 0
    last_seq: int = 0
    """Of the last job that ended."""
    bad_done: int = 0
    """Done records with a foreign magic or version."""
    unknown_done: int = 0
    """Done records for no pending job."""


class Module:
    """Pending table, completion, and its files: a `Files` for a daemon in this process.

    `memory` is where outputs and semaphores go (None: outputs stay in the tickets); `first_seq` numbers the first job;
    `clock` gives the nanoseconds of a four-word semaphore.
    """

    def __init__(
        self,
        *,
        memory: Memory | None = None,
        first_seq: int = 1,
        clock: Callable[[], int] = time.monotonic_ns,
        pending_max: int = PENDING_MAX,
    ) -> None:
        self.memory, self.counts = memory, Counts()
        self._next, self._clock, self._pending_max = first_seq, clock, pending_max
        self._pending: dict[int, Ticket] = {}
        self._out, self._record = bytearray(), bytearray()  # as far as they have been written
        self._change = threading.Condition(threading.RLock())

    # -- the guest's side --
    def vadd(self, data: bytes, **fields: Any) -> Ticket:
        """Submits c = a + b: `data` is a then b, 8 bytes an element; `fields` as of `Job`, and `destination`."""
        if len(data) % 8:
            raise ModuleError(f"vadd: {len(data)} bytes of input are no whole number of elements of 8")
        return self.submit(Job.vadd(0, len(data) // 8), data, **fields)

    def mail(self, n: int, **fields: Any) -> Ticket:
        """Submits a mail of `n` bytes."""
        return self.submit(Job.mail(0, n), **fields)

    def submit(self, job: Job, data: bytes = b"", *, destination: int | None = None, **fields: Any) -> Ticket:
        """Puts a job into the table under the next seq, with `fields` changed; nothing of it is checked.

        `destination` is the guest address that the output is copied to. `ModuleError` when the table is full.
        """
        with self._change:
            if len(self._pending) >= self._pending_max:
                raise ModuleError(f"{self._pending_max} jobs are pending; wait for one")
            known = {name: getattr(job, name) for name in Job.__dataclass_fields__}
            ticket = Ticket(Job(**{**known, **fields, "seq": self._next}), bytes(data), destination)
            self._pending[self._next] = ticket
            self._next += 1
            self.counts.jobs += 1
            self._change.notify_all()
            return ticket

    def wait(self, ticket: Ticket, timeout_s: float = 10.0) -> Ticket:
        """Until the job has ended. `ModuleError` after `timeout_s`; the job stays pending."""
        with self._change:
            if not self._change.wait_for(lambda: ticket.ended, timeout_s):
                raise ModuleError(f"seq {ticket.job.seq}: no done record within {timeout_s:g} s; is a daemon running?")
        return ticket

    @property
    def pending(self) -> int:
        """Jobs that have not ended."""
        return len(self._pending)

    @property
    def status(self) -> str:
        """The text of the status file: one line of counters."""
        with self._change:
            c = self.counts
            return (
                f"jobs={c.jobs} completed={c.completed} failed={c.failed} last_seq={c.last_seq} "
                f"pending={len(self._pending)} bad_done={c.bad_done} unknown_done={c.unknown_done}\n"
            )

    # -- the daemon's side: files with exact position rules --
    def open(self, role: str, *, write: bool = False) -> Handle:
        """As the modes 0444 and 0200 say to a caller without privileges (EACCES)."""
        if role not in MODES:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), role)
        if not MODES[role] & (0o200 if write else 0o400):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES), role)
        return _ModuleHandle(self, role, write)

    def serve(self, role: str, size: int, position: int) -> bytes:
        """A read of `job`, `in` or `status`; empty at the end, or with nothing pending."""
        with self._change:
            if role == "status":
                return self.status.encode()[position : position + size]
            oldest = self.oldest
            if oldest is None:
                return b""
            data = oldest.job.pack() if role == "job" else oldest.data
            return data[position : position + size]

    def take(self, role: str, data: bytes | memoryview, position: int) -> int:
        """A write of `out` or `done`; returns the bytes taken.

        `out`: offset 0 starts a new accumulation; a write may overlap what is there, a gap is EINVAL, more than 32 MiB
        EFBIG. `done`: a 256-byte boundary starts a fresh record; elsewhere a write goes on where the last one ended,
        or is EINVAL. A record that is whole is looked at before the write returns.
        """
        with self._change:
            return self._take_out(bytes(data), position) if role == "out" else self._take_done(bytes(data), position)

    @property
    def oldest(self) -> Ticket | None:
        """The pending job that is served."""
        with self._change:
            return next(iter(self._pending.values()), None)

    def _take_out(self, data: bytes, position: int) -> int:
        if position == 0:
            self._out.clear()
        if position > len(self._out):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), "out")
        if position + len(data) > BLOB_MAX:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), "out")
        self._out[position : position + len(data)] = data
        return len(data)

    def _take_done(self, data: bytes, position: int) -> int:
        taken = 0
        while taken < len(data):
            at = (position + taken) % RECORD_BYTES
            if at == 0:
                self._record.clear()
            if at != len(self._record):
                if taken:
                    break
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), "done")
            part = data[taken : taken + RECORD_BYTES - at]
            self._record += part
            taken += len(part)
            if len(self._record) == RECORD_BYTES:
                record = bytes(self._record)
                self._record.clear()
                self._complete(Done.unpack(record))
        return taken

    # -- completion --
    def _complete(self, done: Done) -> None:
        if not done.valid:
            self.counts.bad_done += 1
            return
        ticket = self._pending.get(done.seq)
        if ticket is None:
            self.counts.unknown_done += 1
            return
        output = bytes(self._out)
        self._out.clear()
        ticket.done, ticket.status, ticket.err_code = done, done.status, done.err_code
        if done.status != OK:
            ticket.failure = f"status {done.status}, code {done.err_code}"
        elif not len(output) == done.out_bytes_written == ticket.job.out_bytes:
            ticket.status, ticket.err_code = TRANSPORT_ERROR, errno.EIO
            ticket.failure = (
                f"output incomplete: {len(output)} bytes came, {done.out_bytes_written} were said to, "
                f"the job has {ticket.job.out_bytes}"
            )
        else:
            self._deliver(ticket, output)
        del self._pending[done.seq]
        if ticket.failure:
            self.counts.failed += 1
        else:
            self.counts.completed += 1
        self.counts.last_seq = done.seq
        ticket.ended = True
        self._change.notify_all()

    def _deliver(self, ticket: Ticket, output: bytes) -> None:
        try:
            if self.memory is not None and ticket.destination is not None:
                self.memory.write(ticket.destination, output)
            if self.memory is not None:
                release(self.memory, ticket.job, self._clock())
        except OSError as error:
            ticket.status, ticket.err_code = TRANSPORT_ERROR, error.errno or errno.EFAULT
            ticket.failure = str(error)
            return
        ticket.output = output


def release(memory: Memory, job: Job, now_ns: int) -> None:
    """Applies a job's release semaphore: nothing without `enable`; one word of 32 bits with `oneWord`, else a payload
    of 64 bits and `now_ns`; with `redEn` the payload is added to what is there (modulo the word) instead of stored."""
    if not job.sem_flags & SEM_ENABLE:
        return
    size, form = (4, "<I") if job.sem_flags & SEM_ONE_WORD else (8, "<Q")
    value = job.sem_payload
    if job.sem_flags & SEM_REDUCE:
        value += struct.unpack(form, memory.read(job.sem_va, size))[0]
    data = struct.pack(form, value % (1 << 8 * size))
    memory.write(job.sem_va, data if size == 4 else data + struct.pack("<Q", now_ns % (1 << 64)))


class _ModuleHandle:
    def __init__(self, module: Module, role: str, writes: bool) -> None:
        self._module, self._role, self._writes = module, role, writes

    def pread(self, size: int, position: int) -> bytes:
        if self._writes:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self._role)
        return self._module.serve(self._role, size, position)

    def pwrite(self, data: bytes | memoryview, position: int) -> int:
        if not self._writes:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self._role)
        return self._module.take(self._role, data, position)

    def close(self) -> None:
        pass


class FileModule(Module):
    """A module over plain files: what it serves is published into `job` and `in`, what a daemon wrote is fetched.

    `paths` names `job`, `in`, `out`, `done` and, if wanted, `status`. Numbering goes on after the seq of a done record
    that is already there, because a daemon that still runs ignores numbers it has seen. `pump` does the work; `wait`
    calls it. The files are made when they are absent.
    """

    def __init__(self, paths: Mapping[str, Path | str], **options: Any) -> None:
        self._paths = {role: os.fspath(path) for role, path in paths.items()}
        for role in (*READ_ROLES, *WRITE_ROLES):
            if role in self._paths:
                os.close(os.open(self._paths[role], os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
        self._reader = PlainFiles(self._paths)
        self._published: Ticket | None = None
        self._seen = transfer.read(self._reader, "done", RECORD_BYTES)
        if "first_seq" not in options and len(self._seen) == RECORD_BYTES and (last := Done.unpack(self._seen)).valid:
            options["first_seq"] = last.seq + 1
        super().__init__(**options)
        self._put("job", b"")
        self._put("status", self.status.encode())

    def pump(self) -> bool:
        """Publishes the oldest job and fetches an answer; True when something changed. Never waits."""
        with self._change:
            changed = self._fetch()
            oldest = self.oldest
            if oldest is not self._published:
                self._put("job", b"")
                if oldest is not None:
                    self._put("in", oldest.data)
                    self._put("job", oldest.job.pack())
                self._published = oldest
                changed = True
            if changed:
                self._put("status", self.status.encode())
            return changed

    def wait(self, ticket: Ticket, timeout_s: float = 10.0) -> Ticket:
        """Pumps until the job has ended. `ModuleError` after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while not ticket.ended:
            if not self.pump():
                if time.monotonic() > deadline:
                    return super().wait(ticket, 0)
                time.sleep(0.00002)
        self.pump()
        return ticket

    def _fetch(self) -> bool:
        if self._published is None:
            return False
        record = transfer.read(self._reader, "done", RECORD_BYTES)
        if len(record) < RECORD_BYTES or record == self._seen:
            return False
        if transfer.read(self._reader, "done", RECORD_BYTES) != record:
            return False  # it is being written
        self._seen = record
        done = Done.unpack(record)
        if done.valid and done.status == OK and done.seq == self._published.job.seq:
            size = min(done.out_bytes_written, BLOB_MAX)
            output = transfer.read(self._reader, "out", size)
            self.take("out", output, 0)
        self.take("done", record, 0)
        return True

    def _put(self, role: str, data: bytes) -> None:
        """A shorter text than the last leaves no rest behind."""
        if role not in self._paths:
            return
        descriptor = os.open(self._paths[role], os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            moved = 0
            while moved < len(data):
                moved += os.pwrite(descriptor, data[moved:], moved)
            os.ftruncate(descriptor, len(data))
        finally:
            os.close(descriptor)
