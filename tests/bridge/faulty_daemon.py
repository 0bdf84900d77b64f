"""A daemon with one planted fault: `python faulty_daemon.py FAULT JOB IN OUT DONE`; `none` is its clean twin.

Each fault changes one thing about our own daemon; the conformance test must see every one of them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lab.bridge import daemon as module
from lab.bridge import files as transfer
from lab.bridge import records
from lab.bridge.backend import Result
from lab.bridge.cpu import CpuBackend
from lab.bridge.daemon import Daemon, run
from lab.bridge.files import PlainFiles
from lab.bridge.records import Done, Job

FAULTS: dict[str, Callable[[Setup], None]] = {}


class Setup:
    """What a fault may change."""

    def __init__(self, paths: dict[str, str]) -> None:
        self.files: Any = PlainFiles(paths)
        self.backend: Any = CpuBackend()
        self.daemon: type[Daemon] = Daemon
        self.log: Callable[[str], None] = module.say


def fault(plant: Callable[[Setup], None]) -> Callable[[Setup], None]:
    FAULTS[plant.__name__] = plant
    return plant


def answers(setup: Setup, change: Callable[[Job, Done], Done]) -> None:
    """Every answer goes through `change`."""

    class Changed(Daemon):
        def _answer(self, job: Job) -> tuple[Done, str]:
            done, reason = super()._answer(job)
            return change(job, done), reason

    setup.daemon = Changed


def outputs(setup: Setup, change: Callable[[Job, bytes], bytes]) -> None:
    """Every output goes through `change`."""

    class Changed(CpuBackend):
        def run(self, job: Job, data: bytes) -> Result:
            result = super().run(job, data)
            return Result(change(job, bytes(result.output)), result.kernel_ns)

    setup.backend = Changed()


def looks(setup: Setup, wanted: Callable[[Daemon, bytes], Job | None]) -> None:
    """Another idea of what a job is."""

    class Changed(Daemon):
        def _look(self) -> Job | None:
            with contextlib.suppress(OSError):
                return wanted(self, transfer.read(self.files, "job", 256))
            return None

    setup.daemon = Changed


def whole(data: bytes) -> Job | None:
    return Job.unpack(data) if len(data) == 256 else None


def valid(data: bytes) -> Job | None:
    job = whole(data)
    return job if job and job.valid else None


def none(_: Setup) -> None:
    pass


FAULTS["none"] = none


@fault
def any_version(setup: Setup) -> None:
    looks(setup, lambda _, data: replace(whole(data), version=2) if data[:4] == b"CBB2" and whole(data) else None)


@fault
def any_magic(setup: Setup) -> None:
    looks(setup, lambda _, data: whole(data) if data[4:8] == b"\2\0\0\0" else None)


@fault
def pads_short_records(setup: Setup) -> None:
    looks(setup, lambda _, data: Job.unpack(data.ljust(256, b"\0")) if data[:8] == b"CBB2\2\0\0\0" else None)


@fault
def takes_v1(setup: Setup) -> None:
    def look(daemon: Daemon, data: bytes) -> Job | None:
        if data[:4] == b"CUBB":
            return Job.mail((daemon._last or 0) + 1, 1)
        return valid(data)

    looks(setup, look)


@fault
def idle_records_use_up_seq(setup: Setup) -> None:
    def look(daemon: Daemon, data: bytes) -> Job | None:
        job = whole(data)
        if job and not job.valid:
            daemon._last = max(daemon._last or 0, job.seq)
        return valid(data)

    looks(setup, look)


@fault
def dies_without_job_file(setup: Setup) -> None:
    class Changed(Daemon):
        def _look(self) -> Job | None:
            if not Path(self.files.paths["job"]).exists():  # type: ignore[attr-defined]  # faults are planted from outside
                sys.exit(1)
            return super()._look()

    setup.daemon = Changed


@fault
def runs_a_seq_again(setup: Setup) -> None:
    class Changed(Daemon):
        before: bytes = b""

        def poll(self) -> Done | None:
            with contextlib.suppress(OSError):
                now = transfer.read(self.files, "job", 256)
                if now != self.before:
                    self.before, self._last = now, None
            return super().poll()

    setup.daemon = Changed


@fault
def wants_seq_in_order(setup: Setup) -> None:
    def look(daemon: Daemon, data: bytes) -> Job | None:
        job = valid(data)
        return job if job and (daemon._last is None or job.seq == daemon._last + 1) else None

    looks(setup, look)


@fault
def first_seq_must_be_high(setup: Setup) -> None:
    class Changed(Daemon):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self._last = 8

    setup.daemon = Changed
    # As a daemon does that remembers: seq 7 of the test has been seen.


@fault
def signed_seq(setup: Setup) -> None:
    def look(daemon: Daemon, data: bytes) -> Job | None:
        job = valid(data)
        return job if job and job.seq < 1 << 63 else None

    looks(setup, look)


@fault
def bad_jobs_are_answered_for_ever(setup: Setup) -> None:
    class Changed(Daemon):
        def poll(self) -> Done | None:
            before, done = self._last, super().poll()
            if done is not None and done.status == 1:
                self._last = before
            return done

    setup.daemon = Changed


@fault
def reads_input_first(setup: Setup) -> None:
    class Changed(Daemon):
        def _execute(self, job: Job) -> dict[str, int]:
            with contextlib.suppress(OSError):
                transfer.read(self.files, "in", min(job.in_bytes, 1 << 20))
            return super()._execute(job)

    setup.daemon = Changed


def limits(setup: Setup, problem: Callable[[Job], str]) -> None:
    module.problem = problem  # type: ignore[attr-defined]  # faults are planted from outside


@fault
def no_blob_limit(setup: Setup) -> None:
    def problem(job: Job) -> str:
        found = records.problem(job)
        return "" if " is over " in found and not found.startswith("n ") else found

    limits(setup, problem)


@fault
def limit_is_one_less(setup: Setup) -> None:
    limits(setup, lambda job: records.problem(job) or ("too much" if job.out_bytes >= records.BLOB_MAX else ""))


@fault
def vadd_limit_is_one_less(setup: Setup) -> None:
    limits(setup, lambda job: records.problem(job) or ("too much" if job.in_bytes >= records.BLOB_MAX else ""))


@fault
def sizes_in_32_bits(setup: Setup) -> None:
    def problem(job: Job) -> str:
        cut = replace(job, in_bytes=job.in_bytes & 0xFFFFFFFF, out_bytes=job.out_bytes & 0xFFFFFFFF)
        return records.problem(cut)

    limits(setup, problem)


@fault
def sizes_are_not_compared(setup: Setup) -> None:
    limits(setup, lambda job: "" if " must be " in records.problem(job) else records.problem(job))


@fault
def unknown_opcode_is_ok(setup: Setup) -> None:
    answers(setup, lambda job, done: replace(done, status=0, err_code=0) if job.opcode not in (1, 2) else done)


@fault
def no_err_code(setup: Setup) -> None:
    answers(setup, lambda _, done: replace(done, err_code=0))


@fault
def no_answer_to_failures(setup: Setup) -> None:
    class Changed(Daemon):
        def settle(self) -> bool:
            if self._owed and Done.unpack(self._owed).status:
                self._owed = None
            return super().settle()

    setup.daemon = Changed


@fault
def output_on_failure(setup: Setup) -> None:
    class Changed(Daemon):
        def _execute(self, job: Job) -> dict[str, int]:
            try:
                return super()._execute(job)
            except Exception:
                transfer.write(self.files, "out", bytes(16))
                raise

    setup.daemon = Changed


class Appending(PlainFiles):
    """Goes on where it ended last time."""

    role = ""

    def __init__(self, paths: dict[str, str]) -> None:
        super().__init__(paths)
        self.ends = {"done": 0, "out": 0}

    def open(self, role: str, *, write: bool = False) -> Any:
        handle = super().open(role, write=write)
        if role != self.role:
            return handle
        ends = self.ends

        class Moved:
            def pwrite(self, data: bytes, _position: int) -> int:
                taken = handle.pwrite(data, ends[role])
                ends[role] += taken
                return taken

            close = handle.close

        return Moved()


@fault
def done_is_appended(setup: Setup) -> None:
    setup.files = type("Done", (Appending,), {"role": "done"})(setup.files.paths)


@fault
def out_is_appended(setup: Setup) -> None:
    setup.files = type("Out", (Appending,), {"role": "out"})(setup.files.paths)


@fault
def opens_for_both(setup: Setup) -> None:
    class Both(PlainFiles):
        def open(self, role: str, *, write: bool = False) -> Any:
            if write:
                os.close(os.open(self.paths[role], os.O_RDWR))
            return super().open(role, write=write)

    setup.files = Both(setup.files.paths)


@fault
def input_in_one_read(setup: Setup) -> None:
    """What a single read of at most a page gives is all."""

    def input_(self: Daemon, job: Job) -> bytes:
        return transfer.read(self.files, "in", min(job.in_bytes, 4096)).ljust(job.in_bytes, b"\0")

    setup.daemon = type("Changed", (Daemon,), {"_input": input_})


@fault
def short_input_is_filled_up(setup: Setup) -> None:
    def input_(self: Daemon, job: Job) -> bytes:
        try:
            return transfer.read(self.files, "in", job.in_bytes).ljust(job.in_bytes, b"\0")
        except FileNotFoundError:
            return bytes(job.in_bytes)

    setup.daemon = type("Changed", (Daemon,), {"_input": input_})


@fault
def short_writes_are_not_noticed(setup: Setup) -> None:
    class Careless(PlainFiles):
        def open(self, role: str, *, write: bool = False) -> Any:
            handle = super().open(role, write=write)
            if role != "out" or not write:
                return handle

            class Once:
                def pwrite(self, data: bytes, position: int) -> int:
                    with contextlib.suppress(OSError):
                        handle.pwrite(data, position)
                    return len(data)

                close = handle.close

            return Once()

    setup.files = Careless(setup.files.paths)


@fault
def dies_of_an_output_error(setup: Setup) -> None:
    def execute(self: Daemon, job: Job) -> dict[str, int]:
        if Path(self.files.paths["out"]).is_dir():  # type: ignore[attr-defined]  # faults are planted from outside
            os._exit(3)
        return Daemon._execute(self, job)

    setup.daemon = type("Changed", (Daemon,), {"_execute": execute})


@fault
def transport_error_without_errno(setup: Setup) -> None:
    answers(setup, lambda _, done: replace(done, err_code=errno.EPERM) if done.status == 3 else done)


@fault
def sum_in_single_precision(setup: Setup) -> None:
    def checksum(job: Job, output: Any) -> int:
        return records.bits(0.0 if job.opcode == 1 else float(np.frombuffer(output, "<f4").cumsum(dtype="f4")[-1]))

    module.checksum = checksum  # type: ignore[attr-defined]  # faults are planted from outside


@fault
def mail_has_a_checksum(setup: Setup) -> None:
    module.checksum = lambda _job, output: records.bits(float(sum(output[:1])))  # type: ignore[attr-defined]  # faults are planted from outside


@fault
def checksum_is_a_float(setup: Setup) -> None:
    def change(_: Job, done: Done) -> Done:
        return replace(done, checksum=struct.unpack("<I", struct.pack("<f", done.checksum_value))[0])

    answers(setup, change)


@fault
def bad_is_never_counted(setup: Setup) -> None:
    answers(setup, lambda _, done: replace(done, bad=0))


@fault
def bad_is_an_error(setup: Setup) -> None:
    answers(setup, lambda _, done: replace(done, status=2, err_code=999) if done.bad else done)


@fault
def ignores_the_grid(setup: Setup) -> None:
    class Changed(CpuBackend):
        def run(self, job: Job, data: bytes) -> Result:
            return super().run(replace(job, grid=(1, 1, 1), block=(32, 1, 1)), data)

    setup.backend = Changed()


@fault
def default_grid_too_small(setup: Setup) -> None:
    class Changed(CpuBackend):
        def run(self, job: Job, data: bytes) -> Result:
            blocks = job.grid[0] or max(1, job.n // 256)
            return super().run(replace(job, grid=(blocks, 1, 1)), data)

    setup.backend = Changed()


@fault
def flushes_denormals(setup: Setup) -> None:
    def change(job: Job, output: bytes) -> bytes:
        if job.opcode == 1:
            return output
        found = np.frombuffer(output, "<f4").copy()
        found[np.abs(found) < np.finfo("f4").tiny] = 0
        return found.tobytes()

    outputs(setup, change)


@fault
def mail_of_another(setup: Setup) -> None:
    outputs(setup, lambda job, output: output.replace(b"little", b"small!") if job.opcode == 1 else output)


@fault
def mail_with_a_nul(setup: Setup) -> None:
    outputs(setup, lambda job, output: output[:-1] + b"\0" if job.opcode == 1 else output)


@fault
def reads_b_first(setup: Setup) -> None:
    """a + a instead of a + b."""

    class Changed(CpuBackend):
        def run(self, job: Job, data: bytes) -> Result:
            return super().run(job, data[: len(data) // 2] * 2)

    setup.backend = Changed()


@fault
def seq_is_not_echoed(setup: Setup) -> None:
    answers(setup, lambda job, done: replace(done, seq=done.seq + 1) if job.opcode == 2 else done)


@fault
def done_of_version_1(setup: Setup) -> None:
    answers(setup, lambda _, done: replace(done, version=1))


@fault
def done_in_big_endian(setup: Setup) -> None:
    class Changed(Daemon):
        def settle(self) -> bool:
            if self._owed:
                done = Done.unpack(self._owed)
                self._owed = struct.pack(">IIQ", done.magic, done.version, done.seq) + self._owed[16:]
            return super().settle()

    setup.daemon = Changed


@fault
def rubbish_in_reserved_bytes(setup: Setup) -> None:
    answers(setup, lambda _, done: replace(done, rsv=b"\xaa" * 136))


@fault
def rubbish_after_the_name(setup: Setup) -> None:
    answers(setup, lambda _, done: replace(done, device_name=(done.device_name + b"\0").ljust(64, b"x")))


@fault
def no_out_bytes_written(setup: Setup) -> None:
    answers(setup, lambda _, done: replace(done, out_bytes_written=0))


@fault
def times_in_milliseconds(setup: Setup) -> None:
    answers(setup, lambda _, done: replace(done, host_ns=done.host_ns // 1_000_000))


@fault
def done_before_output(setup: Setup) -> None:
    class Changed(Daemon):
        def _execute(self, job: Job) -> dict[str, int]:
            files, kept = self.files, []

            class Later:
                def open(self, role: str, *, write: bool = False) -> Any:
                    if role != "out":
                        return files.open(role, write=write)

                    class Kept:
                        def pwrite(self, data: bytes, position: int) -> int:
                            kept.append((bytes(data), position))
                            return len(data)

                        def close(self) -> None:
                            pass

                    return Kept()

            self.files = Later()
            try:
                found = super()._execute(job)
            finally:
                self.files = files
            self.kept = kept
            return found

        def settle(self) -> bool:
            answered = super().settle()
            handle = self.files.open("out", write=True)
            for data, position in getattr(self, "kept", []):
                os.sched_yield()
                handle.pwrite(data, position)
            handle.close()
            self.kept: list[tuple[bytes, int]] = []
            return answered

    setup.daemon = Changed


@fault
def two_lines_a_job(setup: Setup) -> None:
    setup.log = lambda line: module.say(line.replace(" kernel_ns=", " \\\nkernel_ns="))


@fault
def no_line(setup: Setup) -> None:
    setup.log = lambda _line: None


@fault
def line_of_rounded_sums(setup: Setup) -> None:
    def say(line: str) -> None:
        before, _, after = line.partition("checksum=")
        number, _, rest = after.partition(" ")
        module.say(f"{before}checksum={float(number):g} {rest}")

    setup.log = say


def serve(name: str, paths: dict[str, str]) -> int:
    """The daemon with one fault, in a process of its own."""
    setup = Setup(paths)
    FAULTS[name](setup)
    made = setup.daemon(setup.files, setup.backend, log=setup.log)
    return run(made, poll_ms=1)


if __name__ == "__main__":
    sys.exit(serve(sys.argv[1], dict(zip(("job", "in", "out", "done"), sys.argv[2:], strict=True))))
