"""Does a module keep the protocol? The daemon's part is played here, clause by clause, against three kinds of target:
the module in this process, the files of a kernel module, and any program over plain files.

Invariants: nothing is judged that the target cannot show: plain files have no position rules, and the memory of a
foreign guest is out of sight. A target without a pending job makes its clauses unknown, never valid.
"""

from __future__ import annotations

import os
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

from lab.bridge import files as transfer
from lab.bridge.files import Files, PlainFiles, debugfs_paths
from lab.bridge.findings import INVALID, UNKNOWN, VALID, FaultError, Finding, UnseenError
from lab.bridge.module import MODES, GuestMemory, Module
from lab.bridge.records import (
    CUDA_ERROR,
    MAIL,
    RECORD_BYTES,
    SEM_ENABLE,
    SEM_ONE_WORD,
    Done,
    Job,
    mail_text,
    problem,
)
from lab.bridge.rig import arguments


class Target(Protocol):
    """A module under test, seen from the daemon's side."""

    files: Files
    positions: bool
    """Writes are seen with their offsets."""

    def feed(self) -> None:
        """Has a job submitted, where that can be asked for."""

    def mode(self, role: str) -> int | None:
        """Permission bits of a file, None where they are the test's own."""

    def memory(self) -> GuestMemory | None:
        """The guest's memory, if it can be seen."""


class ModuleTarget:
    """A `Module` in this process, made with `GuestMemory`."""

    positions = True

    def __init__(self, module: Module, memory: GuestMemory) -> None:
        self.files: Files = module
        self._module, self._memory = module, memory
        self._count = 0

    def feed(self) -> None:
        """A vadd and a mail in turn, each with a destination and a one-word semaphore."""
        self._count += 1
        base = self._memory.base
        fields = {
            "destination": base,
            "sem_va": base + 4096,
            "sem_payload": self._count,
            "sem_flags": SEM_ENABLE | SEM_ONE_WORD,
        }
        if self._count % 2:
            self._module.vadd(bytes(range(240)), **fields)
        else:
            self._module.mail(39, **fields)

    def mode(self, role: str) -> int | None:
        """As its files open."""
        bits = 0
        for write, bit in ((False, 0o444), (True, 0o200)):
            try:
                self.files.open(role, write=write).close()
                bits |= bit
            except PermissionError:
                continue
        return bits

    def memory(self) -> GuestMemory | None:
        """All of it."""
        return self._memory


class DebugfsTarget:
    """The files of a kernel module; its guests submit the jobs."""

    positions = True

    def __init__(self, directory: Path) -> None:
        self._paths = debugfs_paths(directory)
        self.files: Files = PlainFiles(self._paths)

    def feed(self) -> None:
        """The guest does."""

    def mode(self, role: str) -> int | None:
        """Of the file."""
        return stat.S_IMODE(os.stat(self._paths[role]).st_mode)

    def memory(self) -> GuestMemory | None:
        """Out of sight."""
        return None


class ProgramTarget:
    """A program over plain files; it submits the jobs."""

    positions = False

    def __init__(self, paths: dict[str, Path]) -> None:
        self.files: Files = PlainFiles(paths)

    def feed(self) -> None:
        """The program does."""

    def mode(self, role: str) -> int | None:  # noqa: ARG002 - as of Target
        """The test made the files."""
        return None

    def memory(self) -> GuestMemory | None:
        """Out of sight."""
        return None


@contextmanager
def opened(target: str) -> Iterator[Target]:
    """`builtin`, a directory with a kernel module's files, or a command with {job} {in} {out} {done} [{status}]."""
    if target == "builtin":
        memory = GuestMemory()
        yield ModuleTarget(Module(memory=memory), memory)
        return
    if Path(target).is_dir():
        yield DebugfsTarget(Path(target))
        return
    with tempfile.TemporaryDirectory(prefix="hooklab-bridge-") as name:
        paths = {role: Path(name) / role for role in MODES}
        argv = arguments(target, paths)
        for path in paths.values():
            path.touch()
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True)
        try:
            yield ProgramTarget(paths)
        finally:
            process.kill()
            process.wait()


class Dialogue:
    """What a daemon does, one step at a time."""

    def __init__(self, target: Target, *, patience_s: float) -> None:
        self.target, self.files, self.patience_s = target, target.files, patience_s
        self.order = ""
        """What was wrong with the order of seqs, if anything."""

    def job(self) -> Job:
        """The pending job; asks for one where none is."""
        record = self._read_job()
        if len(record) < RECORD_BYTES:
            self.target.feed()

            def came() -> bool:
                nonlocal record
                record = self._read_job()
                return len(record) == RECORD_BYTES

            if not self.until(came):
                raise UnseenError(f"no job came within {self.patience_s:g} s")
        return Job.unpack(record)

    def finish(self, job: Job, **fields: Any) -> None:
        """Answers a job: its right output unless `out_bytes_written` says otherwise, then the done record."""
        if fields.get("status", 0) == 0 and "out_bytes_written" not in fields:
            transfer.write(self.files, "out", self.output(job))
            fields["out_bytes_written"] = job.out_bytes
        self.tell(job, **fields)

    def tell(self, job: Job, **fields: Any) -> None:
        """A done record for a job."""
        transfer.write(self.files, "done", Done(**{"seq": job.seq, **fields}).pack())

    def gone(self, job: Job) -> None:
        """Waits until a job is no longer served. FaultError when it stays."""
        if not self.until(lambda: not self.serves(job)):
            raise FaultError(f"seq {job.seq} is still served after its done record")
        record = self._read_job()
        if len(record) == RECORD_BYTES and (seq := Job.unpack(record).seq) <= job.seq:
            self.order = f"seq {seq} came after {job.seq}"

    def stays(self, job: Job) -> None:
        """FaultError when a job is dropped; plain files are watched for a moment."""
        if self.target.positions:
            kept = self.serves(job)
        else:
            kept = not self.until(lambda: not self.serves(job), min(0.3, self.patience_s))
        if not kept:
            raise FaultError(f"seq {job.seq} is no longer served")

    def counters(self) -> dict[str, int]:
        """The numbers of the status file. UnseenError without one."""
        try:
            text = transfer.read(self.files, "status", 4096).decode("ascii", "replace")
        except OSError as error:
            raise UnseenError(f"status: {error.strerror}") from None
        if not text:
            raise UnseenError("the status file is empty")
        found = dict(word.split("=", 1) for word in text.split() if "=" in word)
        return {name: int(value) for name, value in found.items() if value.isdecimal()}

    def counted(self, name: str, before: dict[str, int]) -> str:
        """What is wrong unless a counter has gone up by one."""
        self.until(lambda: self.counters().get(name) != before.get(name))
        now = self.counters().get(name)
        return "" if now == before.get(name, 0) + 1 else f"{name}= went from {before.get(name)} to {now}"

    def input(self, job: Job) -> bytes:
        """All that is served of the input, up to a byte more than it should be."""
        return transfer.read(self.files, "in", job.in_bytes + 1)

    def output(self, job: Job) -> bytes:
        """Bytes of the right number."""
        return mail_text(job.out_bytes) if job.opcode == MAIL else bytes(k % 251 for k in range(job.out_bytes))

    def _read_job(self) -> bytes:
        try:
            return transfer.read(self.files, "job", RECORD_BYTES)
        except OSError:
            return b""

    def serves(self, job: Job) -> bool:
        """Whether this job is the one that is served."""
        record = self._read_job()
        return len(record) == RECORD_BYTES and Job.unpack(record).seq == job.seq

    def until(self, met: Callable[[], bool], seconds: float | None = None) -> bool:
        """Asks again and again, at most `seconds` (the patience)."""
        deadline = time.monotonic() + (self.patience_s if seconds is None else seconds)
        while not met():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.001)
        return True


Clause = Callable[[Dialogue], str]
C = TypeVar("C", bound=Clause)
CLAUSES: dict[str, tuple[str, Clause]] = {}


def conform(target: Target, *, patience_s: float = 5.0, only: Collection[str] = ()) -> Iterator[Finding]:
    """Runs every clause (or those named); never raises for what a module does. ValueError for an unknown clause."""
    unknown = sorted(set(only) - CLAUSES.keys())
    if unknown:
        raise ValueError(f"no clause {', '.join(unknown)}; known are {', '.join(CLAUSES)}")
    dialogue = Dialogue(target, patience_s=patience_s)
    for name, (text, check) in CLAUSES.items():
        if only and name not in only:
            continue
        try:
            wrong = check(dialogue)
        except UnseenError as why:
            yield Finding(name, text, UNKNOWN, str(why))
            continue
        except (FaultError, OSError) as why:
            wrong = str(why)
        yield Finding(name, text, INVALID if wrong else VALID, wrong)


def clause(name: str, text: str) -> Callable[[C], C]:
    """Registers a check."""

    def register(check: C) -> C:
        assert name not in CLAUSES
        CLAUSES[name] = (text, check)
        return check

    return register


# -- what is served --
@clause("job.none", "with nothing pending the job file reads short or zero")
def _none(dialogue: Dialogue) -> str:
    data = transfer.read(dialogue.files, "job", RECORD_BYTES)
    if len(data) == RECORD_BYTES and any(data):
        raise UnseenError("a job is pending from the start")
    return ""


@clause("modes", "job, in and status are 0444, out and done 0200")
def _modes(dialogue: Dialogue) -> str:
    for role, wanted in MODES.items():
        mode = dialogue.target.mode(role)
        if mode is None:
            raise UnseenError("over plain files the modes are the test's own")
        # The runner may open the files to others before an unprivileged daemon starts (chmod 666).
        if mode not in (wanted, 0o666):
            return f"{role} is {mode:04o} instead of {wanted:04o}"
    return ""


@clause("job.record", "a job is a record of version 2 with sizes that fit, every reserved byte zero")
def _record(dialogue: Dialogue) -> str:
    for _ in range(2):
        job = dialogue.job()
        wrong = _wrong_record(job)
        if wrong:
            return f"seq {job.seq}: {wrong}"
        dialogue.finish(job)
        dialogue.gone(job)
    return ""


def _wrong_record(job: Job) -> str:
    if not job.valid:
        return f"magic {job.magic:#x}, version {job.version}"
    if job.seq == 0:
        return "seq is 0"
    if job.hole or job.pad or job.pad2 or any(job.rsv):
        return "reserved bytes are not zero"
    if problem(job):
        return problem(job)
    wanted = 2 if job.opcode == MAIL else 5
    return f"param_count {job.param_count} instead of {wanted}" if job.param_count != wanted else ""


@clause("job.served", "the oldest pending job is served until it is answered")
def _served(dialogue: Dialogue) -> str:
    job = dialogue.job()
    dialogue.target.feed()
    for _ in range(3):
        if transfer.read(dialogue.files, "job", RECORD_BYTES) != job.pack():
            return "two reads of the job differ"
    dialogue.finish(job)
    dialogue.gone(job)
    return ""


@clause("in.bytes", "the input has in_bytes and belongs to the job that is served")
def _input(dialogue: Dialogue) -> str:
    for _ in range(2):
        job = dialogue.job()
        size = len(dialogue.input(job))
        if size != job.in_bytes:
            return f"seq {job.seq}: {size} bytes or more of {job.in_bytes}"
        dialogue.finish(job)
        dialogue.gone(job)
    return ""


@clause("read.positions", "reads are by position, and end where the record and the input end")
def _reads(dialogue: Dialogue) -> str:
    job = dialogue.job()
    for role, data in (("job", job.pack()), ("in", dialogue.input(job))):
        handle = dialogue.files.open(role)
        try:
            found = b"".join(handle.pread(37, at) for at in range(0, len(data), 37))
            if found != data:
                return f"{role}: chunks of 37 bytes differ from one read"
            if dialogue.target.positions and handle.pread(16, len(data)) != b"":
                return f"{role}: there is something at offset {len(data)}"
        finally:
            handle.close()
    return ""


@clause("seq.ascends", "seq ascends from job to job")
def _ascends(dialogue: Dialogue) -> str:
    job = dialogue.job()
    dialogue.finish(job)
    dialogue.gone(job)
    following = dialogue.job()
    return f"seq {following.seq} came after {job.seq}" if following.seq <= job.seq else dialogue.order


# -- what is answered --
@clause("done.foreign", "a done record of foreign magic or version is ignored")
def _foreign(dialogue: Dialogue) -> str:
    job = dialogue.job()
    transfer.write(dialogue.files, "out", dialogue.output(job))
    for fields in ({"magic": 0}, {"magic": 0x44425543}, {"version": 1}, {"version": 3}):
        dialogue.tell(job, out_bytes_written=job.out_bytes, **fields)
        dialogue.stays(job)
    return ""


@clause("done.unknown", "a done record for a seq that is not pending is ignored")
def _unknown(dialogue: Dialogue) -> str:
    job = dialogue.job()
    for seq in (job.seq + 1000, 0, 2**64 - 1):
        dialogue.tell(job, seq=seq)
        dialogue.stays(job)
    return ""


@clause("done.failed", "a status that is not 0 fails the job")
def _failed(dialogue: Dialogue) -> str:
    job, before = dialogue.job(), dialogue.counters()
    dialogue.finish(job, status=CUDA_ERROR, err_code=2)
    dialogue.gone(job)
    return dialogue.counted("failed", before)


@clause("done.completed", "status 0 with the output completes the job")
def _completed(dialogue: Dialogue) -> str:
    job, before = dialogue.job(), dialogue.counters()
    dialogue.finish(job)
    dialogue.gone(job)
    return dialogue.counted("completed", before)


@clause("done.bad", "bad elements are data, no failure")
def _bad(dialogue: Dialogue) -> str:
    job, before = dialogue.job(), dialogue.counters()
    dialogue.finish(job, bad=3)
    dialogue.gone(job)
    return dialogue.counted("completed", before)


@clause("out.required", "status 0 without the output does not complete the job")
def _required(dialogue: Dialogue) -> str:
    job, before = dialogue.job(), dialogue.counters()
    if dialogue.target.positions:
        dialogue.tell(job, out_bytes_written=job.out_bytes)
    else:
        dialogue.tell(job, out_bytes_written=0)
    dialogue.until(lambda: not dialogue.serves(job), 0.3)
    completed = dialogue.counters().get("completed")
    if completed != before.get("completed"):
        return f"completed= went from {before.get('completed')} to {completed}"
    if dialogue.serves(job):  # it may wait for the output instead of failing
        dialogue.finish(job)
        dialogue.gone(job)
    return ""


@clause("status", "the status file has jobs=, completed=, failed= and last_seq=")
def _status(dialogue: Dialogue) -> str:
    missing = {"jobs", "completed", "failed", "last_seq"} - dialogue.counters().keys()
    return f"there is no {', '.join(sorted(missing))}" if missing else ""


# -- positions --
def positions(dialogue: Dialogue) -> None:
    """UnseenError where offsets of writes are not seen."""
    if not dialogue.target.positions:
        raise UnseenError("plain files have no position rules")


@clause("out.restart", "a write of the output at offset 0 starts a new accumulation")
def _restart(dialogue: Dialogue) -> str:
    positions(dialogue)
    job, before = dialogue.job(), dialogue.counters()
    output = dialogue.output(job)
    transfer.write(dialogue.files, "out", output + b"more than the job has")
    transfer.write(dialogue.files, "out", output)
    dialogue.tell(job, out_bytes_written=job.out_bytes)
    dialogue.gone(job)
    return dialogue.counted("completed", before)


@clause("out.chunks", "an output may come in chunks at explicit offsets")
def _chunks(dialogue: Dialogue) -> str:
    positions(dialogue)
    job, before = dialogue.job(), dialogue.counters()
    output = dialogue.output(job)
    handle = dialogue.files.open("out", write=True)
    for at in range(0, len(output), 7):
        handle.pwrite(output[at : at + 7], at)
    handle.close()
    dialogue.tell(job, out_bytes_written=job.out_bytes)
    dialogue.gone(job)
    return dialogue.counted("completed", before)


@clause("done.parts", "a done record may come in parts at explicit offsets")
def _parts(dialogue: Dialogue) -> str:
    positions(dialogue)
    job, before = dialogue.job(), dialogue.counters()
    record = Done(seq=job.seq, status=CUDA_ERROR, err_code=1).pack()
    handle = dialogue.files.open("done", write=True)
    handle.pwrite(record[:100], 0)
    dialogue.stays(job)
    handle.pwrite(record[100:], 100)
    handle.close()
    dialogue.gone(job)
    return dialogue.counted("failed", before)


@clause("done.fresh", "a write on a 256-byte boundary starts a fresh record")
def _fresh(dialogue: Dialogue) -> str:
    positions(dialogue)
    job, before = dialogue.job(), dialogue.counters()
    handle = dialogue.files.open("done", write=True)
    handle.pwrite(Done(seq=job.seq + 77).pack()[:100], 0)
    handle.pwrite(Done(seq=job.seq, status=CUDA_ERROR, err_code=1).pack(), 256)
    handle.close()
    dialogue.gone(job)
    return dialogue.counted("failed", before)


# -- the guest --
@clause("guest.copy", "the output is copied to the guest, then the semaphore is released; a failed job does neither")
def _copy(dialogue: Dialogue) -> str:
    memory = dialogue.target.memory()
    if memory is None:
        raise UnseenError("the guest's memory is out of sight")
    job = dialogue.job()
    memory.data[:] = bytes(len(memory.data))
    dialogue.finish(job, status=CUDA_ERROR, err_code=2)
    if any(memory.data):
        return "a failed job changed the guest's memory"
    job = dialogue.job()
    dialogue.finish(job)
    wanted = dialogue.output(job)
    if memory.read(memory.base, len(wanted)) != wanted:
        return "the output is not at its destination"
    word = int.from_bytes(memory.read(job.sem_va, 4), "little")
    return f"the semaphore holds {word} instead of {job.sem_payload}" if word != job.sem_payload else ""
