"""Does a daemon keep the protocol? Each clause by itself, over plain files, against any program.

Invariants: every clause leaves the daemon alive and idle for the next one, or says that it did not; nothing is judged
that the protocol leaves open. Idleness is judged after the daemon was seen looking again (or, where that cannot be
seen, after `idle_s`), and by what it answers next.
"""

from __future__ import annotations

import errno
import math
import os
import re
import signal
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from lab.bridge.findings import (
    INVALID,
    OUT,
    UNKNOWN,
    UNSPECIFIED,
    VALID,
    FaultError,
    Finding,
    UnseenError,
    UnspecifiedError,
)
from lab.bridge.records import (
    BAD_JOB,
    BLOB_MAX,
    CUDA_ERROR,
    N_MAX,
    OK,
    SENTENCE,
    STATUS_NAMES,
    TRANSPORT_ERROR,
    VADD_MAX,
    Done,
    Job,
    mail_text,
    problem,
)
from lab.bridge.rig import Rig, SilentError

MARK = b"nothing of this may change"
V1_MAGIC = 0x42425543
LINE = re.compile(
    r'CUBB2 seq=(\d+) op=(\d+) n=(\d+) gpu="([^"]*)" kernel_ns=(\d+) status=(\S+) checksum=(\S+) bad=(\d+) '
    r"out_bytes=(\d+)"
)
Clause = Callable[[Rig], str]
C = TypeVar("C", bound=Clause)
CLAUSES: dict[str, tuple[str, Clause]] = {}
"""Every clause by its name: what it says, and its check, which gives what is wrong or nothing."""


def conform(rig: Rig, *, only: Collection[str] = ()) -> Iterator[Finding]:
    """Runs every clause (or those named) against the daemon of a rig. Never raises for what a daemon does; ValueError
    for an unknown clause, OSError if there is no such program."""
    unknown = sorted(set(only) - CLAUSES.keys())
    if unknown:
        raise ValueError(f"no clause {', '.join(unknown)}; known are {', '.join(CLAUSES)}")
    dead = ""
    for name, (text, check) in CLAUSES.items():
        if only and name not in only:
            continue
        if dead:
            yield Finding(name, text, UNKNOWN, dead)
            continue
        yield _judge(rig, name, text, check)
        dead = _revive(rig)
    if not only:
        yield Finding(
            "scope.v1", "the v1 offline modes", OUT, "128-byte records and --ram are no part of the interface"
        )


def _judge(rig: Rig, name: str, text: str, check: Clause) -> Finding:
    try:
        if rig.process is None:
            rig.start()
        wrong = check(rig)
    except (SilentError, FaultError) as why:
        wrong = str(why)
    except UnspecifiedError as seen:
        return Finding(name, text, UNSPECIFIED, str(seen))
    except UnseenError as why:
        return Finding(name, text, UNKNOWN, str(why))
    return Finding(name, text, INVALID if wrong else VALID, wrong)


def _revive(rig: Rig) -> str:
    """A daemon that ended or hangs is started again; files that a clause took away are made again."""
    for role, path in rig.path.items():
        if not path.is_file():
            rig.make(role)
    if rig.process is None:
        return ""
    try:
        if not rig.over:
            rig.ask(Job.mail(rig.next(), 1))
            return ""
    except SilentError:
        pass
    try:
        rig.start()
    except (SilentError, OSError) as why:
        return f"the daemon cannot be started: {why}"
    return ""


def clause(name: str, text: str) -> Callable[[C], C]:
    """Registers a check."""

    def register(check: C) -> C:
        assert name not in CLAUSES
        CLAUSES[name] = (text, check)
        return check

    return register


# -- what every answer must be --
def flaws(job: Job, done: Done, *, status: int = OK) -> str:
    """What is wrong with a done record whatever the job was."""
    if not done.valid:
        return f"magic {done.magic:#x}, version {done.version}"
    if done.seq != job.seq:
        return f"seq {done.seq} instead of {job.seq}"
    if done.status != status:
        return f"status {done.status} (code {done.err_code}) instead of {status} ({STATUS_NAMES[status]})"
    if any(done.rsv):
        return "reserved bytes are not zero"
    name = done.device_name.rstrip(b"\0")
    if not name or b"\0" in name:
        return f"device_name {done.device_name!r} is no name padded with NUL"
    if done.host_ns < done.kernel_ns:
        return f"host_ns {done.host_ns} is less than kernel_ns {done.kernel_ns}"
    if status == OK and (done.err_code or done.out_bytes_written != job.out_bytes):
        return f"err_code {done.err_code}, out_bytes_written {done.out_bytes_written} of {job.out_bytes}"
    return ""


def refused(rig: Rig, job: Job, data: bytes = b"") -> str:
    """What is wrong with the answer to a bad job: status 1, nothing read, nothing written."""
    rig.put("out", MARK)
    before = rig.reads()
    done = rig.ask(job, data)
    wrong = flaws(job, done, status=BAD_JOB)
    if wrong:
        return wrong
    if rig.get("out") != MARK or done.out_bytes_written:
        return "output of a bad job was written"
    read = rig.reads() - before
    return f"the input was read ({read} times) although the job is bad" if read else ""


def several(rig: Rig, jobs: dict[str, Job]) -> str:
    """The first bad job that is not refused as it must be."""
    for name, job in jobs.items():
        assert problem(job)
        wrong = refused(rig, replace(job, seq=rig.next()), bytes(64))
        if wrong:
            return f"{name}: {wrong}"
    return ""


def idle(rig: Rig, record: bytes) -> str:
    """What is wrong if the daemon does anything about a record, or lets it change what it does next."""
    before = rig.get("done")
    rig.put("out", MARK)
    rig.offer(record, bytes(64))
    rig.looked()
    if rig.over:
        return f"the daemon ended ({rig.ending})"
    if rig.get("done") != before or rig.get("out") != MARK:
        return "it was answered"
    job = Job.mail(rig.next(), 5)
    return flaws(job, rig.ask(job))


# -- idle --
@clause("idle.absent", "an absent job file means idle")
def _absent(rig: Rig) -> str:
    before = rig.get("done")
    rig.remove("job")
    rig.watch.until(lambda: rig.over, rig.idle_s)
    if rig.over:
        return f"the daemon ended ({rig.ending})"
    if rig.get("done") != before:
        return "it was answered"
    rig.make("job")
    job = Job.mail(rig.next(), 5)
    return flaws(job, rig.ask(job))


@clause("idle.short", "a short job file means idle: 0, 4, 128 and 255 bytes of a job")
def _short(rig: Rig) -> str:
    record = Job.mail(rig.seq + 1000, 39).pack()
    for size in (0, 4, 128, 255):
        wrong = idle(rig, record[:size])
        if wrong:
            return f"{size} bytes: {wrong}"
    return ""


@clause("idle.torn", "a job that comes in two parts is taken once it is whole")
def _torn(rig: Rig) -> str:
    job = Job.mail(rig.next(), 5)
    record, before = job.pack(), rig.get("done")
    rig.offer(record[:100])
    rig.looked()
    if rig.get("done") != before:
        return "100 bytes were answered"
    rig.put("job", record)
    return flaws(job, rig.answer(job.seq))


@clause("idle.magic", "zero or foreign magic means idle")
def _magic(rig: Rig) -> str:
    record = Job.mail(rig.seq + 1000, 39)
    done = Done(seq=rig.seq + 1000).magic
    for magic in (0, V1_MAGIC, done, 0x43424232, 0x32424242, 0xFFFFFFFF):
        wrong = idle(rig, replace(record, magic=magic).pack())
        if wrong:
            return f"magic {magic:#x}: {wrong}"
    return idle(rig, bytes(256))


@clause("idle.v1", "a v1 record (128 bytes, CUBB) means idle")
def _v1(rig: Rig) -> str:
    old = b"CUBB" + (1).to_bytes(4, "little") + bytes(120)
    return idle(rig, old) or idle(rig, old + bytes(128))


@clause("idle.version", "any version but 2 means idle")
def _version(rig: Rig) -> str:
    record = Job.mail(rig.seq + 1000, 39)
    for version in (0, 1, 3, 0x02000000, 0xFFFFFFFF):
        wrong = idle(rig, replace(record, version=version).pack())
        if wrong:
            return f"version {version}: {wrong}"
    return ""


# -- seq --
@clause("seq.first", "the first valid record after a start runs, whatever its seq")
def _first(rig: Rig) -> str:
    for seq in (rig.seq + 500, 7, 7):  # the last: the record that lies there already
        rig.stop()
        rig.put("done", b"")
        job = Job.mail(seq, 5)
        rig.offer(job)
        rig.start(wait=False)
        wrong = flaws(job, rig.answer(seq, patience_s=rig.start_s))
        if wrong:
            return f"seq {seq}: {wrong}"
    rig.seq = max(rig.seq, 7) + 500
    return ""


@clause("seq.replay", "a seq that was executed is ignored, whatever else has changed")
def _replay(rig: Rig) -> str:
    job = Job.mail(rig.next(), 5)
    rig.ask(job)
    for again in (job, replace(job, n=6, out_bytes=6), replace(job, seq=job.seq - 1), replace(job, seq=0)):
        wrong = idle(rig, again.pack())
        if wrong:
            return f"seq {again.seq} after {job.seq}: {wrong}"
        job = replace(job, seq=rig.seq)
    return ""


@clause("seq.bad", "a bad job counts as executed: it is answered once")
def _bad_once(rig: Rig) -> str:
    job = Job.mail(rig.next(), 5, opcode=9)
    rig.ask(job)
    rig.put("done", b"")
    rig.looked()
    return "it was answered again" if rig.get("done") else ""


@clause("seq.skip", "a seq may skip numbers")
def _skip(rig: Rig) -> str:
    rig.seq += 1 << 33
    job = Job.mail(rig.next(), 5)
    return flaws(job, rig.ask(job))


@clause("seq.unsigned", "seq is 64 bits without sign")
def _unsigned(rig: Rig) -> str:
    small = rig.seq
    try:
        for seq in ((1 << 63) + 1, (1 << 64) - 2):
            job = Job.mail(seq, 5)
            wrong = flaws(job, rig.ask(job))
            if wrong:
                return f"seq {seq}: {wrong}"
            rig.seq = seq
        return idle(rig, Job.mail(small + 1, 5).pack())
    finally:
        rig.stop()
        rig.seq = small


# -- bad jobs --
@clause("bad.opcode", "an unknown opcode is status 1 with the opcode as err_code")
def _opcode(rig: Rig) -> str:
    for opcode in (0, 3, 0xFFFFFFFF):
        job = Job.mail(rig.next(), 39, opcode=opcode)
        wrong = refused(rig, job)
        if not wrong:
            code = rig.answer(job.seq).err_code
            wrong = f"err_code {code}" if code != opcode else ""
        if wrong:
            return f"opcode {opcode}: {wrong}"
    return ""


@clause("limit.n", "n over 2^26 is status 1, before the input is read")
def _limit_n(rig: Rig) -> str:
    return several(
        rig,
        {
            "mail, n 2^26 + 1": Job.mail(0, N_MAX + 1),
            "mail, n 2^26 + 1, small output": Job.mail(0, N_MAX + 1, out_bytes=4),
            "vadd, n 2^32 - 1": Job.vadd(0, 2**32 - 1),
            "vadd, 8 n is 8 in 32 bits": Job.vadd(0, 0x20000001, in_bytes=8, out_bytes=4),
        },
    )


@clause("limit.blob", "in_bytes or out_bytes over 32 MiB is status 1, before the input is read")
def _limit_blob(rig: Rig) -> str:
    return several(
        rig,
        {
            "vadd, n 2^22 + 1": Job.vadd(0, VADD_MAX + 1),
            "mail of 32 MiB + 1": Job.mail(0, BLOB_MAX + 1),
            "mail, n 2^26": Job.mail(0, N_MAX),
            "vadd, n 2^26": Job.vadd(0, N_MAX),
            "in_bytes 2^64 - 8": Job.vadd(0, 1, in_bytes=2**64 - 8),
            "in_bytes 2^63": Job.vadd(0, 1, in_bytes=2**63),
            "in_bytes 2^32 + 8": Job.vadd(0, 1, in_bytes=2**32 + 8),
            "out_bytes 2^32 + 4": Job.vadd(0, 1, out_bytes=2**32 + 4),
        },
    )


@clause("bad.sizes", "sizes that do not fit n are status 1: vadd 8 n and 4 n, mail n")
def _sizes(rig: Rig) -> str:
    return several(
        rig,
        {
            "vadd, in_bytes 8 n - 1": Job.vadd(0, 8, in_bytes=63),
            "vadd, in_bytes 4 n": Job.vadd(0, 8, in_bytes=32),
            "vadd, in_bytes 0": Job.vadd(0, 8, in_bytes=0),
            "vadd, out_bytes 4 n + 4": Job.vadd(0, 8, out_bytes=36),
            "vadd, out_bytes 0": Job.vadd(0, 8, out_bytes=0),
            "mail, out_bytes n - 1": Job.mail(0, 8, out_bytes=7),
            "mail, out_bytes n + 1": Job.mail(0, 8, out_bytes=9),
        },
    )


# -- execution --
@clause("mail.bytes", "mail writes the mail constant: n bytes, bad 0, checksum 0.0")
def _mail(rig: Rig) -> str:
    for n in (1, 38, 39):
        rig.put("out", b"")
        job = Job.mail(rig.next(), n)
        done = rig.ask(job)
        wrong = flaws(job, done) or wrong_mail(rig, done, n)
        if wrong:
            return f"n {n}: {wrong}"
    return ""


@clause("mail.limit", "a mail of 32 MiB is within the limits")
def _mail_limit(rig: Rig) -> str:
    job = Job.mail(rig.next(), BLOB_MAX)
    done = rig.ask(job, patience_s=max(rig.patience_s, 60))
    wrong = flaws(job, done) or wrong_mail(rig, done, BLOB_MAX)
    if not wrong and rig.output_came_late():
        wrong = "the output was written after the done record"
    rig.put("out", b"")
    return wrong


def wrong_mail(rig: Rig, done: Done, n: int) -> str:
    """What is wrong with a mail, as far as the sentence reaches."""
    output = rig.get("out")
    if len(output) != n:
        return f"{len(output)} bytes of output instead of {n}"
    if output[:39] != SENTENCE[:n]:
        return f"the output is {output[:39]!r}"
    return f"bad {done.bad}, checksum {done.checksum:#x}" if done.bad or done.checksum else ""


@clause("mail.long", "what a mail beyond 39 bytes holds")
def _mail_long(rig: Rig) -> str:
    job = Job.mail(rig.next(), 100)
    done = rig.ask(job)
    wrong = flaws(job, done) or wrong_mail(rig, done, 100)
    if wrong:
        return wrong
    output = rig.get("out")
    if output == mail_text(100):
        how = "the sentence over and over"
    elif not any(output[39:]):
        how = "zeros after the sentence"
    else:
        how = f"{output[39:48].hex()}... after the sentence"
    raise UnspecifiedError(how)


@clause("vadd.sums", "vadd computes c = a + b for every element with the default launch")
def _vadd(rig: Rig) -> str:
    for n in (1, 2, 255, 256, 257, 1000, 65537):
        wrong = vadd(rig, n)
        if wrong:
            return f"n {n}: {wrong}"
    return ""


@clause("vadd.limit", "2^22 elements, the most that the blob limit allows, are computed")
def _vadd_limit(rig: Rig) -> str:
    wrong = vadd(rig, VADD_MAX - 1) or vadd(rig, VADD_MAX)
    rig.put("in", b"")
    rig.put("out", b"")
    return wrong


def vadd(rig: Rig, n: int, **fields: object) -> str:
    """What is wrong with the sum of random numbers."""
    random = np.random.default_rng(n)
    inputs = (random.standard_normal(2 * n) * 1000).astype("<f4")
    rig.put("out", b"")
    job = replace(Job.vadd(rig.next(), n), **fields)  # type: ignore[arg-type]  # fields by name
    done = rig.ask(job, inputs.tobytes(), patience_s=max(rig.patience_s, 60 * n / VADD_MAX))
    return flaws(job, done) or wrong_sums(rig, done, inputs[:n] + inputs[n:])


def wrong_sums(rig: Rig, done: Done, wanted: npt.NDArray[np.float32]) -> str:
    """What is wrong with sums that are all finite. A checksum may be off by what any order of adding doubles allows."""
    output = rig.get("out")
    if len(output) != 4 * len(wanted):
        return f"{len(output)} bytes of output instead of {4 * len(wanted)}"
    found = np.frombuffer(output, "<f4")
    wrong = np.flatnonzero(found != wanted)
    if len(wrong):
        return f"c[{wrong[0]}] is {found[wrong[0]]} instead of {wanted[wrong[0]]}, {len(wrong)} are wrong"
    if done.bad:
        return f"bad {done.bad}, but every element is right"
    exact, room = math.fsum(wanted), len(wanted) * 2.0**-53 * math.fsum(np.abs(wanted))
    if not abs(done.checksum_value - exact) <= room:
        return f"checksum {done.checksum_value!r} instead of {exact!r} (± {room:.3g})"
    return ""


@clause("vadd.values", "sums are those of IEEE single precision: denormals, infinities, signs")
def _values(rig: Rig) -> str:
    pairs = [
        (1e-40, 1e-41), (1.17549435e-38, -1e-45), (3e38, 3e38), (float("inf"), 1.0), (-float("inf"), -1.0),
        (-0.0, -0.0), (1.0, 5.9604645e-08), (16777216.0, 1.0), (0.1, 0.2),
    ]  # fmt: skip
    inputs = np.array([pair[0] for pair in pairs] + [pair[1] for pair in pairs], "<f4")
    with np.errstate(over="ignore"):
        wanted = inputs[: len(pairs)] + inputs[len(pairs) :]
    job = Job.vadd(rig.next(), len(pairs))
    done = rig.ask(job, inputs.tobytes())
    wrong = flaws(job, done)
    if wrong:
        return wrong
    found = np.frombuffer(rig.get("out")[: 4 * len(pairs)], "<f4")
    differ = np.flatnonzero(found.view("<u4") != wanted.view("<u4"))
    if len(differ):
        return f"{pairs[differ[0]]} gave {found[differ[0]]!r} instead of {wanted[differ[0]]!r}"
    return f"bad {done.bad}, but every element is right" if done.bad else ""


@clause(
    "launch.grid",
    "grid and block come from the job: threads that are not there compute nothing, status ok, bad says so",
)
def _grid(rig: Rig) -> str:
    if wrong := vadd(rig, 300, grid=(3, 1, 1), block=(128, 1, 1), shared=1024):
        return f"grid 3, block 128, shared 1024: {wrong}"
    reached, bad = short_launch(rig, 256, grid=(1, 1, 1), block=(64, 1, 1))
    if reached == 256 and bad == 0:
        raise UnspecifiedError("a grid too small still computes every element: the kernel strides")
    if reached < 64:
        return f"64 threads computed {reached} elements"
    return f"bad {bad}, but {256 - reached} elements are wrong" if bad != 256 - reached else ""


def short_launch(rig: Rig, n: int, **fields: object) -> tuple[int, int]:
    """(elements that are right, `bad`) of a vadd of ones."""
    job = replace(Job.vadd(rig.next(), n), **fields)  # type: ignore[arg-type]  # fields by name
    done = rig.ask(job, np.ones(2 * n, "<f4").tobytes())
    wrong = flaws(job, done)
    if wrong:
        raise FaultError(wrong)
    found = np.frombuffer(rig.get("out")[: 4 * n], "<f4")
    return int((found == 2).sum()), done.bad


@clause("launch.axes", "what further axes of a launch do")
def _axes(rig: Rig) -> str:
    reached, bad = short_launch(rig, 256, grid=(2, 2, 2), block=(64, 4, 2))
    raise UnspecifiedError(f"128 threads along x and 4,096 in all: {reached} of 256 computed, bad {bad}")


@clause("launch.partial", "what a partly zero grid or block means")
def _partial(rig: Rig) -> str:
    by_axis, _ = short_launch(rig, 512, grid=(1, 0, 0), block=(64, 0, 0))
    x_given, _ = short_launch(rig, 512, grid=(0, 1, 1), block=(64, 1, 1))
    first = {64: "the axis that is given counts", 512: "the whole is the default"}
    second = {128: "the axis that is zero is the default's", 512: "the whole is the default"}
    raise UnspecifiedError(
        f"x given: {first.get(by_axis, f'{by_axis} of 512 computed')}; "
        f"x zero: {second.get(x_given, f'{x_given} of 512 computed')}"
    )


@clause("launch.refused", "a launch that CUDA refuses is status 2 with the CUresult, without output")
def _refused(rig: Rig) -> str:
    rig.put("out", MARK)
    job = Job.vadd(rig.next(), 8, block=(2048, 1, 1))
    done = rig.ask(job, bytes(64))
    if done.status == BAD_JOB:
        raise UnspecifiedError("the daemon itself refuses such a block: status 1")
    wrong = flaws(job, done, status=CUDA_ERROR)
    if not wrong and done.err_code == 0:
        wrong = "err_code is 0"
    return wrong or ("output of a failed job was written" if rig.get("out") != MARK else "")


@clause("fields.informational", "sem_*, prog_va and param_count do not matter to the daemon")
def _informational(rig: Rig) -> str:
    fields = {"sem_va": 2**64 - 1, "sem_payload": 5, "sem_flags": 0xFFFFFFFF, "prog_va": 1, "param_count": 0}
    return vadd(rig, 64, **fields)


@clause("fields.reserved", "what a job with reserved bytes that are not zero gets")
def _reserved(rig: Rig) -> str:
    seen = []
    for name, fields in {"hole": {"hole": 1}, "pad": {"pad": 1}, "rsv": {"rsv": b"\1" * 144}}.items():
        job = replace(Job.mail(rig.next(), 5), **fields)  # type: ignore[arg-type]  # fields by name
        seen.append(f"{name}: status {rig.ask(job).status}")
    raise UnspecifiedError(", ".join(seen))


@clause("fields.mail_input", "what a mail with in_bytes gets")
def _mail_input(rig: Rig) -> str:
    raise UnspecifiedError(f"status {rig.ask(Job.mail(rig.next(), 5, in_bytes=8), bytes(8)).status}")


@clause("n.zero", "what n = 0 gets")
def _zero(rig: Rig) -> str:
    statuses = [rig.ask(make(rig.next(), 0)).status for make in (Job.mail, Job.vadd)]
    raise UnspecifiedError(f"mail: status {statuses[0]}, vadd: status {statuses[1]}")


@clause("bad.nan", "whether a NaN that should be one counts in bad")
def _nan(rig: Rig) -> str:
    job = Job.vadd(rig.next(), 2)
    done = rig.ask(job, np.array([float("nan"), 1, 1, 1], "<f4").tobytes())
    wrong = flaws(job, done)
    if not wrong and not np.isnan(np.frombuffer(rig.get("out")[:4], "<f4")[0]):
        wrong = "NaN + 1 is not NaN"
    if wrong:
        return wrong
    raise UnspecifiedError(f"bad {done.bad}, checksum {done.checksum_value}")


# -- transport --
@clause("in.short", "an input that is too short or absent is status 3, without output")
def _in_short(rig: Rig) -> str:
    rig.put("out", MARK)
    for name in ("one byte too short", "absent"):
        job = Job.vadd(rig.next(), 8)
        rig.put("in", bytes(63))
        if name == "absent":
            rig.remove("in")
        rig.put("job", job.pack())
        done = rig.answer(job.seq)
        wrong = flaws(job, done, status=TRANSPORT_ERROR)
        if not wrong and rig.get("out") != MARK:
            wrong = "output of a failed job was written"
        if name == "absent":
            rig.make("in")
        if wrong:
            return f"{name}: {wrong}"
    return vadd(rig, 8)


@clause("in.long", "only in_bytes are taken of a longer input")
def _in_long(rig: Rig) -> str:
    job = Job.vadd(rig.next(), 4)
    rig.put("out", b"")
    done = rig.ask(job, np.ones(4096, "<f4").tobytes())
    return flaws(job, done) or wrong_sums(rig, done, np.full(4, 2, "<f4"))


@clause("out.offset", "every output starts at offset 0, every done record lies there")
def _offset(rig: Rig) -> str:
    rig.put("out", b"")
    rig.put("done", b"")
    for n in (30, 20, 10):
        job = Job.mail(rig.next(), n)
        wrong = flaws(job, rig.ask(job))
        if wrong:
            return wrong
        output, record = rig.get("out"), rig.get("done")
        if output[:n] != SENTENCE[:n] or len(output) > 30:
            return f"output of {n} bytes left {output!r}"
        if len(record) != 256:
            return f"the done file has {len(record)} bytes"
    return ""


@clause("out.failure", "an output that cannot be written is status 3 with the errno, and done all the same")
def _out_failure(rig: Rig) -> str:
    rig.remove("out")
    rig.path["out"].mkdir()
    job = Job.mail(rig.next(), 39)
    done = rig.ask(job)
    rig.make("out")
    wrong = flaws(job, done, status=TRANSPORT_ERROR)
    if wrong:
        # A daemon that opened the file at its start writes on into what was removed; that is no fault.
        if done.status == OK:
            raise UnspecifiedError("the file was replaced by a directory; the daemon keeps the one it has opened")
        return wrong
    if done.err_code != errno.EISDIR:
        return f"err_code {done.err_code} instead of {errno.EISDIR} (EISDIR)"
    rig.put("out", b"")
    job = Job.mail(rig.next(), 39)
    return flaws(job, rig.ask(job))


@clause("out.partial", "an output of which only a part is taken is status 3, and done all the same")
def _out_partial(rig: Rig) -> str:
    limit = 150_000
    rig.start(limit_bytes=limit)
    rig.put("out", b"")
    job = Job.vadd(rig.next(), 100_000)
    done = rig.ask(job, bytes(800_000))
    wrong = flaws(job, done, status=TRANSPORT_ERROR)
    if not wrong and done.err_code != errno.EFBIG:
        wrong = f"err_code {done.err_code} instead of {errno.EFBIG} (EFBIG)"
    if not wrong and done.out_bytes_written not in (0, limit):
        wrong = f"out_bytes_written {done.out_bytes_written}, but {len(rig.get('out'))} were taken"
    job = Job.mail(rig.next(), 39)
    wrong = wrong or flaws(job, rig.ask(job))
    rig.stop()
    return wrong


@clause("modes", "job and in are opened for reading only, out and done for writing only (modes 0444 and 0200)")
def _modes(rig: Rig) -> str:
    rig.start(without_privileges=True, wait=False)
    job = Job.mail(rig.next(), 39)
    rig.put("out", b"")
    wrong = flaws(job, rig.ask(job, patience_s=rig.start_s)) or vadd(rig, 64)
    rig.stop()
    return wrong


@clause("log.line", "one line a job, as the protocol writes it")
def _log(rig: Rig) -> str:
    sums = Job.vadd(rig.next(), 2)
    done = rig.ask(sums, np.array([1, 2, 3.5, 4], "<f4").tobytes())
    bad = Job.mail(rig.next(), 5, opcode=9)
    rig.ask(bad)

    def lines(seq: int) -> list[str]:
        text = rig.log.read_text(errors="replace")
        return [line for line in text.splitlines() if line.startswith("CUBB2 ") and f" seq={seq} " in line]

    if not rig.watch.until(lambda: bool(lines(sums.seq) and lines(bad.seq)), 1.0):
        rig.stop()  # what is written into a file may be kept back until the end
    for job in (sums, bad):
        if len(lines(job.seq)) != 1:
            return f"{len(lines(job.seq))} lines that begin with CUBB2 say seq={job.seq}"
        if not LINE.match(lines(job.seq)[0]):
            return f"{lines(job.seq)[0]!r} is not as the protocol writes it"
    wanted = (
        f'CUBB2 seq={sums.seq} op=2 n=2 gpu="{done.device}" kernel_ns={done.kernel_ns} status=ok '
        "checksum=10.500000 bad=0 out_bytes=8"
    )
    return "" if lines(sums.seq)[0] == wanted else f"{lines(sums.seq)[0]!r} instead of {wanted!r}"


# -- the daemon's life --
@clause("stop", "whether a job is answered that SIGTERM comes into")
def _stop(rig: Rig) -> str:
    if not rig.watch.works:
        raise UnseenError("this system has no inotify: when a job begins cannot be seen")
    name = str(rig.path["in"])
    job = Job.vadd(rig.next(), VADD_MAX)
    rig.put("in", bytes(8 * VADD_MAX))
    before = rig.reads()
    rig.put("job", job.pack())
    rig.inputs.until(lambda: rig.inputs.read[name] > before or rig.over, rig.patience_s)
    process = rig.process
    assert process is not None
    os.kill(process.pid, signal.SIGTERM)
    try:
        done = rig.answer(job.seq)
    except SilentError:
        raise UnspecifiedError("it is not answered") from None
    finally:
        rig.stop()
        rig.put("in", b"")
        rig.put("out", b"")
        rig.put("job", b"")
    raise UnspecifiedError(f"it is answered with status {done.status}")


@clause("second", "whether a second daemon on the same files is refused")
def _second(rig: Rig) -> str:
    first = rig.process
    rig.put("job", b"")
    rig.process = None
    rig.start(wait=False)
    second, rig.process = rig.process, first
    try:
        for _ in range(2):
            rig.ask(Job.mail(rig.next(), 5))
        assert second is not None
        rig.watch.until(lambda: second.poll() is not None, rig.patience_s / 2)
        refused = second.poll() not in (None, 0)
    finally:
        rig.process = second
        rig.stop()
        rig.process = first
    raise UnspecifiedError("it is refused" if refused else "both run")
