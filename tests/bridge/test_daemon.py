"""The daemon over a module in memory and over faulty files: every job that is taken is answered, whatever happens."""

from __future__ import annotations

import errno
import os
import random
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.bridge import files as transfer
from lab.bridge.backend import BackendError, Result
from lab.bridge.cpu import CpuBackend
from lab.bridge.daemon import Daemon
from lab.bridge.files import PlainFiles, TransferError
from lab.bridge.inputs import ramp
from lab.bridge.module import FileModule, Module
from lab.bridge.records import BLOB_MAX, N_MAX, VADD_MAX, Done, Job, bits, mail_text, problem
from lab.bridge.verify import checksum, mismatches
from lab.bridge.watch import Watch


class Pair:
    """A module and a daemon on it."""

    def __init__(self, backend: Any = None, **options: Any) -> None:
        self.module, self.lines, self.complaints = Module(**options), [], []
        self.files: Any = self.module
        self.daemon = Daemon(
            self.module, backend or CpuBackend(), log=self.lines.append, complain=self.complaints.append
        )

    def vadd(self, *numbers: float, **fields: Any) -> Any:
        ticket = self.module.vadd(np.array(numbers, "<f4").tobytes(), **fields)
        self.daemon.poll()
        return ticket

    def mail(self, n: int, **fields: Any) -> Any:
        ticket = self.module.mail(n, **fields)
        self.daemon.poll()
        return ticket


def test_sums() -> None:
    ticket = Pair().vadd(1, 2, 3, 0.5, 0.25, -3)
    assert np.frombuffer(ticket.output, "<f4").tolist() == [1.5, 2.25, 0]
    assert (ticket.done.bad, ticket.done.checksum_value, ticket.done.device) == (0, 3.75, "CPU (numpy)")
    assert ticket.done.host_ns >= ticket.done.kernel_ns > 0


@pytest.mark.parametrize("n", [1, 39, 64, 4096, BLOB_MAX])
def test_mail(n: int) -> None:
    ticket = Pair().mail(n)
    assert ticket.output == mail_text(n)
    assert (ticket.done.bad, ticket.done.checksum) == (0, 0)


def test_the_largest_sum_and_one_more() -> None:
    pair = Pair()
    data = ramp(VADD_MAX)
    ticket = pair.module.vadd(data)
    pair.daemon.poll()
    sums = np.frombuffer(data, "<f4").reshape(2, -1).sum(axis=0, dtype="<f4")
    assert ticket.output == sums.tobytes()
    assert ticket.done.checksum_value == float(sums.astype("<f8").sum())  # all exact: any order gives it
    more = pair.module.vadd(data + bytes(8))
    pair.daemon.poll()
    assert (more.status, more.err_code) == (1, 2)


def test_a_grid_too_small_is_data() -> None:
    ticket = Pair().vadd(*[1.0] * 200, grid=(1, 1, 1), block=(64, 1, 1))
    assert ticket.ok
    assert ticket.done.bad == 36
    assert np.frombuffer(ticket.output, "<f4").tolist() == [2.0] * 64 + [0.0] * 36


def test_what_the_silent_cases_do() -> None:
    """docs/decisions.md, one line each."""
    pair = Pair()
    for ticket in (pair.mail(0), pair.vadd()):
        assert ticket.ok
        assert (ticket.done.kernel_ns, ticket.done.out_bytes_written) == (0, 0)
    nan = pair.vadd(float("nan"), float("inf"), 1, -float("inf"))
    assert nan.done.bad == 0
    assert nan.done.checksum == 0x7FF8000000000000
    assert pair.mail(4, in_bytes=8).status == 1
    assert pair.mail(4, pad=1, pad2=2, hole=3, rsv=b"\xff" * 144, sem_flags=2**32 - 1).ok
    assert pair.mail(4, grid=(2**31 - 1, 65535, 2)).status == 1
    assert pair.mail(4, grid=(1, 65536, 1)).status == 2
    assert pair.mail(4, shared=(48 << 10) + 1).status == 2
    assert pair.mail(4, shared=48 << 10).ok


@given(st.lists(st.floats(width=32), min_size=1, max_size=300))
def test_checksums_add_in_the_order_of_the_index(values: list[float]) -> None:
    job, output = Job.vadd(1, len(values)), np.array(values, "<f4").tobytes()
    total = 0.0
    for value in values:
        total += value
    assert checksum(job, output) == bits(total)


def test_checksum_over_several_parts() -> None:
    values = (np.random.default_rng(3).standard_normal(200_000) * np.logspace(-20, 20, 200_000)).astype("<f4")
    total = 0.0
    for value in values.tolist():
        total += value
    assert checksum(Job.vadd(1, len(values)), values.tobytes()) == bits(total)
    assert bits(total) != bits(float(values.astype("f8").sum()))  # numpy's own order would not do


def test_mismatches_are_counted() -> None:
    inputs = np.array([1, 2, float("nan"), -0.0, 1, 2, 1, 0.0], "<f4").tobytes()
    job = Job.vadd(1, 4)
    assert mismatches(job, inputs, np.array([2, 4, float("nan"), -0.0], "<f4").tobytes()) == 0
    assert mismatches(job, inputs, np.array([2, 5, 1, float("nan")], "<f4").tobytes()) == 3
    assert mismatches(Job.mail(1, 5), b"", b"thx m") == 2


def test_log_line_is_the_protocols() -> None:
    class Named(CpuBackend):
        name = 'NVIDIA "GeForce"\nRTX'

        def run(self, job: Job, data: bytes) -> Result:
            return Result(super().run(job, data).output, 41919)

    pair = Pair(Named())
    pair.vadd(1, 2, 3.5, 4)
    pair.mail(1, opcode=7)
    good, bad = pair.lines
    assert good == (
        'CUBB2 seq=1 op=2 n=2 gpu="NVIDIA ?GeForce??RTX" kernel_ns=41919 status=ok checksum=10.500000 bad=0 out_bytes=8'
    )
    assert bad == (
        'CUBB2 seq=2 op=7 n=1 gpu="NVIDIA ?GeForce??RTX" kernel_ns=0 '
        'status=bad-job checksum=0.000000 bad=0 out_bytes=0 err_code=7 reason="opcode 7 is unknown"'
    )


# -- failures --
class Failing:
    """A backend that raises."""

    name = "x" * 100

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def run(self, _job: Job, _data: bytes) -> Result:
        raise self.error

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (BackendError(700, "illegal address"), 2, 700),
        (BackendError(2, "out of memory"), 2, 2),
        (MemoryError(), 3, errno.ENOMEM),
        (RuntimeError("a fault of ours"), 2, 999),
        (OSError(errno.EIO, "no such luck"), 2, 999),
    ],
)
def test_what_a_backend_raises_is_answered(error: Exception, status: int, code: int) -> None:
    pair = Pair(Failing(error))
    ticket = pair.mail(5)
    assert (ticket.status, ticket.err_code, ticket.done.out_bytes_written) == (status, code, 0)
    assert ticket.done.device == "x" * 63
    pair.daemon.backend = CpuBackend()
    assert pair.mail(5).ok


class Broken:
    """Files that fail as planned: (role, write) -> what each call does; then they work."""

    def __init__(self, files: Any) -> None:
        self.files = files
        self.plan: dict[str, list[Any]] = {}

    def next(self, call: str) -> Any:
        steps = self.plan.get(call)
        step = steps.pop(0) if steps else None
        if isinstance(step, OSError):
            raise step
        return step

    def open(self, role: str, *, write: bool = False) -> Any:
        self.next(f"open {role}")
        handle = self.files.open(role, write=write)
        outer = self

        class Handle:
            def pread(self, size: int, position: int) -> bytes:
                step = outer.next(f"read {role}")
                return handle.pread(size if step is None else min(size, step), position)

            def pwrite(self, data: bytes, position: int) -> int:
                step = outer.next(f"write {role}")
                return handle.pwrite(data if step is None else data[:step], position) if step != 0 else 0

            close = handle.close

        return Handle()


def broken(pair: Pair, **plan: list[Any]) -> None:
    made = Broken(pair.module)
    made.plan = {name.replace("_", " "): list(steps) for name, steps in plan.items()}
    pair.daemon.files = made


def interrupted() -> OSError:
    return InterruptedError(errno.EINTR, "")


def test_short_counts_and_interruptions_are_gone_on_from() -> None:
    pair = Pair()
    broken(
        pair,
        read_job=[3, interrupted(), 200],
        read_in=[1, 5, interrupted()],
        write_out=[interrupted(), 2, 3],
        write_done=[100, interrupted(), 1],
    )
    assert np.frombuffer(pair.vadd(1, 2, 3, 4).output, "<f4").tolist() == [4, 6]


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EACCES, errno.EIO, errno.ENODEV])
def test_a_job_that_cannot_be_read_is_idle(number: int) -> None:
    pair = Pair()
    broken(pair, open_job=[OSError(number, "")] * 3)
    ticket = pair.module.mail(3)
    assert [pair.daemon.poll() for _ in range(3)] == [None] * 3
    assert len(pair.complaints) == (number != errno.ENOENT)  # once, not every poll
    pair.daemon.poll()
    assert ticket.ok


@pytest.mark.parametrize(
    ("plan", "code", "written"),
    [
        ({"open_in": [OSError(errno.ENOENT, "")]}, errno.ENOENT, 0),
        ({"read_in": [4, OSError(errno.EIO, "")]}, errno.EIO, 0),
        ({"read_in": [4, 0]}, errno.EIO, 0),
        ({"open_out": [OSError(errno.EACCES, "")]}, errno.EACCES, 0),
        ({"write_out": [3, OSError(errno.ENOSPC, "")]}, errno.ENOSPC, 3),
        ({"write_out": [3, 0]}, errno.EIO, 3),
    ],
)
def test_a_transfer_that_fails_is_answered(plan: dict[str, list[Any]], code: int, written: int) -> None:
    pair = Pair()
    broken(pair, **plan)
    ticket = pair.vadd(1, 2, 3, 4)
    assert (ticket.status, ticket.err_code, ticket.done.out_bytes_written) == (3, code, written)
    assert pair.vadd(1, 2, 3, 4).ok


def test_a_done_record_that_cannot_be_written_is_owed() -> None:
    pair = Pair()
    broken(pair, open_done=[OSError(errno.ENOENT, "")] * 2, write_done=[7, OSError(errno.EIO, "")])
    first = pair.mail(3)
    second = pair.module.mail(4)
    assert pair.daemon.owes
    assert not first.ended
    assert pair.daemon.poll() is None  # still no done file
    assert pair.daemon.poll() is None  # taken in part
    assert pair.daemon.poll() is not None
    assert first.ok
    assert second.ok
    assert len(pair.complaints) == 2  # two troubles, each once
    assert len(pair.lines) == 2


def test_write_says_how_far_it_came() -> None:
    files = Broken(Module())
    files.plan = {"write out": [None, OSError(errno.ENOSPC, "")]}
    with pytest.raises(TransferError) as caught:
        transfer.write(files, "out", bytes(transfer.CHUNK + 10))
    assert (caught.value.moved, caught.value.errno) == (transfer.CHUNK, errno.ENOSPC)


def test_a_record_put_together_from_two_is_not_taken() -> None:
    """The first read ends one byte short, and before the second the module puts another job there."""
    records = [Job.mail(1000, 5).pack()[:255], *[Job.mail(2, 6).pack()] * 9]
    ran = []

    class Files:
        def open(self, _role: str, **_: bool) -> Any:
            class Handle:
                def pread(self, size: int, position: int) -> bytes:
                    return (records.pop(0) if len(records) > 1 else records[0])[position : position + size]

                def pwrite(self, data: bytes, _position: int) -> int:
                    ran.append(bytes(data))
                    return len(data)

                def close(self) -> None:
                    pass

            return Handle()

    daemon = Daemon(Files(), CpuBackend())
    assert daemon.poll() is None
    done = daemon.poll()
    assert done is not None
    assert done.seq == 2
    assert len(ran) == 2  # its output and its answer


# -- fuzz --
def allowed(data: bytes) -> str:
    """What the protocol says of 256 bytes, written down again: idle, bad or good."""
    magic, version, _seq, opcode = struct.unpack_from("<IIQI", data)
    n, in_bytes, out_bytes = struct.unpack_from("<I4xQQ", data, 0x30)
    if magic != 0x32424243 or version != 2:
        return "idle"
    if opcode not in (1, 2) or n > 67108864 or in_bytes > 33554432 or out_bytes > 33554432:
        return "bad"
    if (in_bytes, out_bytes) != ((0, n) if opcode == 1 else (8 * n, 4 * n)):
        return "bad"
    sizes = struct.unpack_from("<6I", data, 0x14)
    default = (1, 1, 1, 64, 1, 1) if opcode == 1 else ((n + 255) // 256, 1, 1, 256, 1, 1)
    threads = 1
    for given_, usual in zip(sizes, default, strict=True):
        threads *= given_ or usual
    return "bad" if threads > 2**32 else "good"


def records(seed: int) -> Iterator[bytes]:
    """Noise, and jobs with a few fields or bytes changed; the sizes of good ones are small."""
    chance = random.Random(seed)
    words = [0, 1, 2, 3, 39, 64, 255, 256, 2**16, 2**22, 2**25, N_MAX, N_MAX + 1, 2**31, 2**32 - 1]
    long = [*words, BLOB_MAX, BLOB_MAX + 1, 2**32, 2**32 + 8, 2**63, 2**64 - 8, 2**64 - 1]
    while True:
        if chance.random() < 0.05:
            yield chance.randbytes(256)
            continue
        n = chance.randrange(100)
        job = (Job.mail if chance.random() < 0.5 else Job.vadd)(chance.randrange(2**64), n)
        data = bytearray(job.pack())
        for _ in range(chance.choice((0, 1, 1, 2, 3))):
            kind = chance.random()
            if kind < 0.4:
                struct.pack_into("<I", data, 4 * chance.randrange(64), chance.choice(words))
            elif kind < 0.7:
                struct.pack_into("<Q", data, chance.choice((8, 0x38, 0x40, 0x48)), chance.choice(long))
            else:
                data[chance.randrange(256)] = chance.randrange(256)
        yield bytes(data)


def fuzz(count: int, seed: int) -> dict[str, int]:
    """Shows a daemon so many records; every one must be ignored, refused or run as the protocol says."""
    shown, answers, ran, read = b"", [], [], []

    class Files:
        def open(self, role: str, *, write: bool = False) -> Any:
            class Handle:
                def pread(self, size: int, position: int) -> bytes:
                    if role == "job":
                        return shown[position : position + size]
                    read.append(size)
                    return bytes(size)

                def pwrite(self, data: bytes, position: int) -> int:
                    if role == "done":
                        assert position == 0
                        answers.append(bytes(data))
                    return len(data)

                def close(self) -> None:
                    pass

            assert write == (role in ("out", "done"))
            return Handle()

    class Counting(CpuBackend):
        def run(self, job: Job, data: bytes) -> Result:
            ran.append(job)
            return super().run(job, data)

    daemon = Daemon(Files(), Counting())
    seen = {"idle": 0, "bad": 0, "good": 0, "old": 0}
    last: int | None = None
    source = records(seed)
    for _ in range(count):
        shown = next(source)
        size = random.Random(shown).choice((256, 256, 256, 256, 256, 256, 256, 0, 128, 255))
        shown = shown[:size]
        verdict = allowed(shown) if size == 256 else "idle"
        if verdict == "good" and struct.unpack_from("<I", shown, 0x30)[0] > 2**16:
            continue  # takes its time on a CPU; the limits have tests of their own
        seq = struct.unpack_from("<Q", shown.ljust(256, b"\0"), 8)[0]
        if verdict != "idle" and last is not None and seq <= last:
            verdict = "old"
        if last is not None and last > 2**63:
            daemon, last = Daemon(Files(), Counting()), None  # so that seqs are new again
            verdict = allowed(shown) if size == 256 else "idle"
        for log in (answers, ran, read):
            log.clear()
        daemon.poll()
        seen[verdict] += 1
        if verdict in ("idle", "old"):
            assert not answers
            assert not ran
            assert not read
            continue
        last = seq
        assert len(answers) == 1
        done = Done.unpack(answers[0])
        assert done.valid
        assert done.seq == seq
        assert not any(done.rsv)
        if verdict == "bad":
            assert (done.status, done.err_code) == (1, struct.unpack_from("<I", shown, 0x10)[0])
            assert not ran
            assert not read
        else:
            assert done.status in (0, 2)
            assert (done.err_code == 0) == (done.status == 0)
    return seen


def test_fuzzed_records(seed: int) -> None:
    seen = fuzz(5_000, seed)
    assert min(seen.values()) > 100, seen  # every outcome was met often


@pytest.mark.full
def test_100_000_fuzzed_records(seed: int) -> None:
    seen = fuzz(100_000, seed + 1)
    assert min(seen.values()) > 5_000, seen


def test_the_fuzzer_catches_a_daemon_that_runs_bad_jobs(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    def any_opcode(job: Job) -> str:
        return problem(job if job.opcode in (1, 2) else replace(job, opcode=1))

    monkeypatch.setattr("lab.bridge.daemon.problem", any_opcode)
    with pytest.raises(AssertionError):
        fuzz(2_000, seed)


# -- the process --
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def paths(tmp_path: Path) -> dict[str, Path]:
    return {role: tmp_path / role for role in ("job", "in", "out", "done")}


@pytest.fixture
def serve(paths: dict[str, Path]) -> Iterator[Start]:
    """Starts `hooklab bridge serve` on the CPU and waits until it is ready (unless told not to)."""
    started: list[subprocess.Popen[str]] = []

    def start(*options: str, ready: bool = True) -> subprocess.Popen[str]:
        argv = [sys.executable, "-P", "-m", "lab.cli", "bridge", "serve", "--backend", "cpu", *options]
        argv += [word for role, path in paths.items() for word in (f"--{role}", str(path))]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(process)
        if ready:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("ready CPU (numpy), poll")
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_serving(paths: dict[str, Path], serve: Start) -> None:
    process = serve("--poll-ms", "1")
    module = FileModule(paths)
    assert module.wait(module.mail(100)).output == mail_text(100)
    assert module.wait(module.vadd(ramp(1000))).ok
    assert module.wait(module.mail(1, opcode=0)).status == 1
    second = serve(ready=False)
    out, err = second.communicate(timeout=60)
    assert second.returncode == 2
    assert "another daemon serves this file; stop it first" in err
    for role in ("job", "in", "out", "done"):  # all files vanish, and come back
        paths[role].unlink()
    again = FileModule(paths, first_seq=4)
    assert again.wait(again.mail(7)).output == mail_text(7)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert [line.split()[0] for line in out.splitlines()] == ["CUBB2"] * 4 + ["stopped:"]
    assert serve().poll() is None  # the files are free again


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_in_the_middle_of_a_job(paths: dict[str, Path], serve: Start, number: int) -> None:
    process = serve("--poll-ms", "0")
    module, watch = FileModule(paths), Watch()
    if not watch.works:
        pytest.skip("this system has no inotify: when a job begins cannot be seen")
    watch.add(paths["in"])
    ticket = module.vadd(ramp(VADD_MAX))
    module.pump()
    assert watch.until(lambda: watch.read[str(paths["in"])] > 0, 60)
    process.send_signal(number)
    assert process.wait(60) == 0
    module.wait(ticket)
    watch.close()
    assert ticket.ok


def test_signals_end_a_pause(serve: Start) -> None:
    process = serve("--poll-ms", "60000")
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0


def test_who_reads_its_lines_may_go(paths: dict[str, Path], serve: Start) -> None:
    process = serve("--poll-ms", "1")
    assert process.stdout is not None
    process.stdout.close()
    module = FileModule(paths)
    for _ in range(3):
        assert module.wait(module.mail(5)).ok
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0


def test_a_fifo_in_a_files_place_blocks_nobody(paths: dict[str, Path], serve: Start) -> None:
    serve("--poll-ms", "1")
    module = FileModule(paths)
    assert module.wait(module.mail(5)).ok
    paths["out"].unlink()
    os.mkfifo(paths["out"])
    ticket = module.mail(6)
    assert module.wait(ticket).err_code == errno.ENXIO


def test_claims(paths: dict[str, Path]) -> None:
    first, second = PlainFiles(paths), PlainFiles(paths)
    first.claim()
    with pytest.raises(BlockingIOError) as caught:
        second.claim()
    assert caught.value.filename == str(paths["out"])
    first.release()
    second.claim()
    second.release()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "missing --job, --in, --out, --done"),
        (("--debugfs", "--job", "x"), "--debugfs names all files"),
        (("--job", "x", "--in", "x", "--out", "y", "--done", "z"), "must be four files"),
        (("--job", "j", "--in", "i", "--out", "/no/o", "--done", "d", "--backend", "cpu"), "/no/o"),
    ],
)
def test_usage(hooklab: Callable[..., Any], arguments: tuple[str, ...], said: str) -> None:
    done = hooklab("bridge", "serve", *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_submit(paths: dict[str, Path], serve: Start, hooklab: Callable[..., Any], tmp_path: Path) -> None:
    serve("--poll-ms", "1")
    files = [word for role, path in paths.items() for word in (f"--{role}", str(path))]
    done = hooklab("bridge", "submit", *files, "--n", "10", "--count", "2", "--status", tmp_path / "status")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1].startswith("seq=2 completed bad=0 checksum=145.000000 ")
    assert (tmp_path / "status").read_text().startswith("jobs=2 completed=2 failed=0 last_seq=2 pending=0")
    too_much = hooklab("bridge", "submit", *files, "--op", "mail", "--n", str(BLOB_MAX + 1))
    assert too_much.returncode == 1
    assert "failed: status 1, code 1" in too_much.stdout
