"""The module's side: position rules of its files, validation, completion, semaphores; over memory and plain files."""

from __future__ import annotations

import errno
import struct
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.bridge import files as transfer
from lab.bridge.module import MODES, FileModule, GuestMemory, Module, ModuleError, release
from lab.bridge.records import SEM_ENABLE, SEM_ONE_WORD, SEM_REDUCE, Done, Job


def answer(module: Module, seq: int, output: bytes = b"", **fields: int) -> None:
    """What a daemon writes for a job."""
    if output:
        transfer.write(module, "out", output)
    transfer.write(module, "done", Done(seq=seq, **{"out_bytes_written": len(output), **fields}).pack())


def test_nothing_pending_is_a_zero_read() -> None:
    module = Module()
    assert transfer.read(module, "job", 256) == b""
    assert transfer.read(module, "in", 8) == b""


def test_the_oldest_pending_job_is_served_until_it_is_answered() -> None:
    module = Module()
    first, second = module.vadd(b"12345678"), module.mail(3)
    assert (first.job.seq, second.job.seq) == (1, 2)
    for _ in range(2):
        assert Job.unpack(transfer.read(module, "job", 300)) == first.job
        assert transfer.read(module, "in", 100) == b"12345678"
    answer(module, 1, b"abcd")
    assert first.ok
    assert first.output == b"abcd"
    assert Job.unpack(transfer.read(module, "job", 256)) == second.job
    assert transfer.read(module, "in", 100) == b""


def test_reads_are_by_position() -> None:
    module = Module()
    job = module.vadd(bytes(range(80))).job.pack()
    handle, blob = module.open("job"), module.open("in")
    assert handle.pread(100, 0) + handle.pread(1000, 100) == job
    assert handle.pread(16, 256) == handle.pread(16, 10**6) == b""
    assert blob.pread(5, 75) == bytes(range(75, 80))


@pytest.mark.parametrize("role", MODES)
def test_modes_are_kept(role: str) -> None:
    module = Module()
    readable = MODES[role] == 0o444
    with pytest.raises(OSError, match="Permission denied"):
        module.open(role, write=readable)
    handle = module.open(role, write=not readable)
    with pytest.raises(OSError, match="Bad file descriptor"):
        handle.pwrite(b"x", 0) if readable else handle.pread(1, 0)


def test_an_unknown_file_is_absent() -> None:
    with pytest.raises(FileNotFoundError):
        Module().open("ram")


def test_offset_0_starts_a_new_output() -> None:
    module = Module()
    ticket, out = module.mail(6), module.open("out", write=True)
    assert out.pwrite(b"stale output", 0) == 12
    assert out.pwrite(b"abc", 0) == 3
    assert out.pwrite(b"cde", 2) == 3  # a chunk that overlaps
    assert out.pwrite(b"f", 5) == 1
    answer(module, 1, out_bytes_written=6)
    assert ticket.output == b"abcdef"


def test_gaps_and_floods_of_output_are_refused() -> None:
    out = Module().open("out", write=True)
    with pytest.raises(OSError, match="Invalid argument"):
        out.pwrite(b"x", 1)
    block = bytes(1 << 20)
    for at in range(32):
        out.pwrite(block, at << 20)
    with pytest.raises(OSError, match="File too large"):
        out.pwrite(b"x", 32 << 20)


def test_output_of_one_job_is_not_anothers() -> None:
    module = Module()
    first, second = module.mail(3), module.mail(3)
    answer(module, 1, b"abc")
    answer(module, 2, out_bytes_written=3)
    assert first.ok
    assert "output incomplete: 0 bytes came" in second.failure
    assert (second.status, second.err_code) == (3, errno.EIO)


@pytest.mark.parametrize("cuts", [[1, 255], [128, 128], [255, 1], [4, 4, 8, 240]])
def test_a_done_record_may_come_in_parts(cuts: list[int]) -> None:
    module = Module()
    ticket, done = module.mail(0), module.open("done", write=True)
    record, at = Done(seq=1).pack(), 0
    for cut in cuts:
        assert not ticket.ended
        assert done.pwrite(record[at : at + cut], at) == cut
        at += cut
    assert ticket.ok


def test_a_boundary_starts_a_fresh_record() -> None:
    module = Module()
    first, second, done = module.mail(0), module.mail(0), module.open("done", write=True)
    assert done.pwrite(Done(seq=77).pack()[:100], 0) == 100  # given up in the middle
    assert done.pwrite(Done(seq=1).pack(), 256) == 256
    assert first.ok
    assert done.pwrite(Done(seq=2).pack(), 512) == 256
    assert second.ok
    assert module.counts.unknown_done == 0


def test_two_records_in_one_write() -> None:
    module = Module()
    tickets, done = [module.mail(0), module.mail(0)], module.open("done", write=True)
    assert done.pwrite(Done(seq=1).pack() + Done(seq=2).pack() + b"xyz", 0) == 515
    assert all(ticket.ok for ticket in tickets)


@pytest.mark.parametrize("position", [1, 100, 255, 300])
def test_a_record_does_not_begin_in_the_middle(position: int) -> None:
    done = Module().open("done", write=True)
    with pytest.raises(OSError, match="Invalid argument"):
        done.pwrite(bytes(256), position)


@pytest.mark.parametrize("fields", [{"magic": 0}, {"magic": 0x44425543}, {"version": 1}, {"version": 3}])
def test_foreign_done_records_are_counted_and_dropped(fields: dict[str, int]) -> None:
    module = Module()
    ticket = module.mail(0)
    answer(module, 1, **fields)
    assert not ticket.ended
    assert module.counts.bad_done == 1
    answer(module, 1)
    assert ticket.ok


def test_done_records_of_nobody_are_counted_and_dropped() -> None:
    module = Module()
    ticket = module.mail(3)
    transfer.write(module, "out", b"abc")
    answer(module, 2, out_bytes_written=3)
    assert module.counts.unknown_done == 1
    answer(module, 1, out_bytes_written=3)  # what was accumulated is still its output
    assert ticket.output == b"abc"
    answer(module, 1, out_bytes_written=3)  # ended already
    assert module.counts.unknown_done == 2


@pytest.mark.parametrize(("output", "said"), [(b"", 3), (b"ab", 2), (b"ab", 3), (b"abc", 2), (b"abcd", 4)])
def test_success_needs_the_whole_output(output: bytes, said: int) -> None:
    memory = GuestMemory()
    module = Module(memory=memory)
    ticket = module.mail(3, destination=memory.base, sem_va=memory.base + 64, sem_flags=SEM_ENABLE, sem_payload=9)
    answer(module, 1, output, out_bytes_written=said)
    assert ticket.failure.startswith("output incomplete")
    assert not any(memory.data)
    assert module.counts.failed == 1


@pytest.mark.parametrize("status", [1, 2, 3, 4, 2**32 - 1])
def test_a_status_fails_the_job(status: int) -> None:
    memory = GuestMemory()
    module = Module(memory=memory)
    ticket = module.mail(3, destination=memory.base, sem_va=memory.base + 64, sem_flags=SEM_ENABLE, sem_payload=9)
    answer(module, 1, b"abc", status=status, err_code=700)
    assert (ticket.ended, ticket.ok, ticket.status, ticket.err_code) == (True, False, status, 700)
    assert not any(memory.data)  # neither output nor semaphore


def test_bad_elements_are_data() -> None:
    memory = GuestMemory()
    module = Module(memory=memory)
    ticket = module.mail(3, destination=memory.base + 5)
    answer(module, 1, b"abc", bad=2)
    assert ticket.ok
    assert ticket.done is not None
    assert ticket.done.bad == 2
    assert memory.read(memory.base + 4, 5) == b"\0abc\0"


def test_a_destination_that_is_not_there_fails_the_job() -> None:
    module = Module(memory=GuestMemory())
    ticket = module.mail(3, destination=4)
    answer(module, 1, b"abc")
    assert (ticket.ok, ticket.err_code) == (False, errno.EFAULT)


@given(st.integers(0, 7), st.integers(0, 2**64 - 1), st.binary(min_size=16, max_size=16), st.integers(0, 2**64 - 1))
def test_semaphores(flags: int, payload: int, before: bytes, now: int) -> None:
    memory = GuestMemory(size=16)
    memory.write(memory.base, before)
    release(memory, Job.mail(1, 0, sem_va=memory.base, sem_payload=payload, sem_flags=flags), now)
    word, both = struct.unpack("<I", before[:4])[0], struct.unpack("<Q", before[:8])[0]
    if not flags & SEM_ENABLE:
        wanted = before
    elif flags & SEM_ONE_WORD:
        value = word + payload if flags & SEM_REDUCE else payload
        wanted = struct.pack("<I", value & 0xFFFFFFFF) + before[4:]
    else:
        value = both + payload if flags & SEM_REDUCE else payload
        wanted = struct.pack("<QQ", value & 0xFFFFFFFFFFFFFFFF, now)
    assert bytes(memory.data) == wanted


def test_the_output_is_there_before_the_semaphore() -> None:
    class Log(GuestMemory):
        writes: tuple[int, ...] = ()

        def write(self, address: int, data: bytes) -> None:
            self.writes += (address - self.base,)
            super().write(address, data)

    memory = Log()
    module = Module(memory=memory)
    module.mail(3, destination=memory.base, sem_va=memory.base + 64, sem_flags=SEM_ENABLE)
    answer(module, 1, b"abc")
    assert memory.writes == (0, 64)


def test_status_text() -> None:
    module = Module(first_seq=40)
    for _ in range(4):
        module.mail(0)
    answer(module, 40)
    answer(module, 41, status=2)
    answer(module, 99)
    answer(module, 42, version=1)
    text = "jobs=4 completed=1 failed=1 last_seq=41 pending=2 bad_done=1 unknown_done=1\n"
    assert module.status == text
    assert transfer.read(module, "status", 999) == text.encode()
    assert module.open("status").pread(6, 5) == text.encode()[5:11]


def test_the_table_is_bounded() -> None:
    module = Module(pending_max=2)
    module.mail(1)
    module.mail(1)
    with pytest.raises(ModuleError, match="2 jobs are pending"):
        module.mail(1)


def test_waiting_ends() -> None:
    module = Module()
    ticket = module.mail(2)
    with pytest.raises(ModuleError, match="seq 1: no done record within 0 s"):
        module.wait(ticket, 0)
    threading.Thread(target=answer, args=(module, 1, b"xy")).start()
    assert module.wait(ticket, 30).output == b"xy"


# -- plain files --
@pytest.fixture
def paths(tmp_path: Path) -> dict[str, Path]:
    return {role: tmp_path / role for role in MODES}


def test_over_plain_files(paths: dict[str, Path]) -> None:
    module = FileModule(paths)
    assert paths["job"].read_bytes() == b""
    first, second = module.vadd(b"12345678"), module.mail(3)
    assert module.pump()
    assert paths["in"].read_bytes() == b"12345678"
    assert Job.unpack(paths["job"].read_bytes()) == first.job
    assert not module.pump()
    paths["out"].write_bytes(b"abcd, and what an earlier, longer output left")
    paths["done"].write_bytes(Done(seq=1, out_bytes_written=4).pack()[:200])
    assert not module.pump()  # half a record
    paths["done"].write_bytes(Done(seq=1, out_bytes_written=4).pack())
    assert module.pump()
    assert first.output == b"abcd"
    assert Job.unpack(paths["job"].read_bytes()) == second.job
    assert paths["in"].read_bytes() == b""
    paths["done"].write_bytes(Done(seq=2, status=2, err_code=3).pack())
    module.wait(second)
    assert (second.status, second.err_code) == (2, 3)
    assert paths["job"].read_bytes() == b""
    assert paths["status"].read_text().startswith("jobs=2 completed=1 failed=1 last_seq=2 pending=0")


def test_numbers_go_on_after_the_last_done_record(paths: dict[str, Path]) -> None:
    paths["done"].write_bytes(Done(seq=41).pack())
    module = FileModule(paths)
    assert module.mail(1).job.seq == 42
    assert FileModule(paths, first_seq=7).mail(1).job.seq == 7
    paths["done"].write_bytes(Done(seq=41, version=1).pack())
    assert FileModule(paths).mail(1).job.seq == 1


def test_a_stale_done_record_completes_nothing(paths: dict[str, Path]) -> None:
    paths["done"].write_bytes(Done(seq=1, out_bytes_written=2).pack())
    module = FileModule(paths, first_seq=1)
    ticket = module.mail(2)
    module.pump()
    module.pump()
    assert not ticket.ended


def test_wait_over_files_says_what_is_missing(paths: dict[str, Path]) -> None:
    module = FileModule(paths)
    with pytest.raises(ModuleError, match="is a daemon running"):
        module.wait(module.mail(2), 0.01)
