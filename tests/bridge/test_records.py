"""The records: bytes and values are one to one, at the offsets of the protocol's tables; what is not set is zero.

The tables are repeated here from the protocol itself, so that a slip in the layout file cannot pass.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.bridge import records
from lab.bridge.records import Done, Job

U32, U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
AXES = st.tuples(U32, U32, U32)
JOBS = st.builds(
    Job, magic=U32, version=U32, seq=U64, opcode=U32, grid=AXES, block=AXES, shared=U32, n=U32, hole=U32, in_bytes=U64,
    out_bytes=U64, sem_va=U64, sem_payload=U64, sem_flags=U32, pad=U32, prog_va=U64, param_count=U32, pad2=U32,
    rsv=st.binary(min_size=144, max_size=144),
)  # fmt: skip
DONES = st.builds(
    Done, magic=U32, version=U32, seq=U64, status=U32, bad=U32, checksum=U64, kernel_ns=U64, out_bytes_written=U32,
    err_code=U32, device_name=st.binary(min_size=64, max_size=64), host_ns=U64,
    rsv=st.binary(min_size=136, max_size=136),
)  # fmt: skip
JOB_TABLE = {
    "magic": (0x00, 4), "version": (0x04, 4), "seq": (0x08, 8), "opcode": (0x10, 4), "grid": (0x14, 12),
    "block": (0x20, 12), "shared": (0x2C, 4), "n": (0x30, 4), "hole": (0x34, 4), "in_bytes": (0x38, 8),
    "out_bytes": (0x40, 8), "sem_va": (0x48, 8), "sem_payload": (0x50, 8), "sem_flags": (0x58, 4), "pad": (0x5C, 4),
    "prog_va": (0x60, 8), "param_count": (0x68, 4), "pad2": (0x6C, 4), "rsv": (0x70, 144),
}  # fmt: skip
DONE_TABLE = {
    "magic": (0x00, 4), "version": (0x04, 4), "seq": (0x08, 8), "status": (0x10, 4), "bad": (0x14, 4),
    "checksum": (0x18, 8), "kernel_ns": (0x20, 8), "out_bytes_written": (0x28, 4), "err_code": (0x2C, 4),
    "device_name": (0x30, 64), "host_ns": (0x70, 8), "rsv": (0x78, 136),
}  # fmt: skip


@pytest.mark.parametrize(("name", "table"), [("job", JOB_TABLE), ("done", DONE_TABLE)])
def test_offsets_are_the_protocols(name: str, table: dict[str, tuple[int, int]]) -> None:
    found = {field.name: (field.offset, field.size) for field in records.layout(name).fields}
    assert found == table
    kind = records.dtype(name)
    assert kind.fields is not None
    assert {field: (at, part.itemsize) for field, (part, at, *_) in kind.fields.items()} == table
    assert kind.itemsize == records.layout(name).size == 256


def little(value: Any) -> bytes:
    """A field's bytes, written out without the code under test."""
    if isinstance(value, bytes):
        return value
    return b"".join(struct.pack("<I", part) for part in value)


def check(record: Job | Done, table: dict[str, tuple[int, int]]) -> None:
    data = record.pack()
    assert len(data) == 256
    assert type(record).unpack(data) == record
    for name, (at, size) in table.items():
        value = getattr(record, name)
        wanted = value.to_bytes(size, "little") if isinstance(value, int) else little(value)
        assert data[at : at + size] == wanted


@given(JOBS)
def test_a_job_comes_back_exactly(job: Job) -> None:
    check(job, JOB_TABLE)
    seen = np.frombuffer(job.pack(), records.dtype("job"))[0]
    assert all(tuple(seen[name]) == getattr(job, name) for name in ("grid", "block"))
    scalars = [name for name in JOB_TABLE if name not in ("grid", "block", "rsv")]
    assert all(int(seen[name]) == getattr(job, name) for name in scalars)
    assert seen.tobytes() == job.pack()


@given(DONES)
def test_a_done_record_comes_back_exactly(done: Done) -> None:
    check(done, DONE_TABLE)
    seen = np.frombuffer(done.pack(), records.dtype("done"))[0]
    assert all(int(seen[name]) == getattr(done, name) for name in DONE_TABLE if name not in ("device_name", "rsv"))


@given(st.binary(min_size=256, max_size=256))
def test_any_bytes_are_kept(data: bytes) -> None:
    assert Job.unpack(data).pack() == data
    assert Done.unpack(data).pack() == data


@given(st.integers(1, 2**64 - 1), st.integers(0, 2**22))
def test_what_is_not_set_is_zero(seq: int, n: int) -> None:
    for job in (Job.mail(seq, n), Job.vadd(seq, n)):
        data = job.pack()
        assert data[:4] == b"CBB2"
        assert data[0x34:0x38] == data[0x5C:0x60] == data[0x6C:0x70] == bytes(4)
        assert data[0x70:] == bytes(144)
        assert records.problem(job) == ""
    data = Done(seq=seq, device_name=b"GPU").pack()
    assert data[:4] == b"CBD2"
    assert data[0x30:0x70] == b"GPU" + bytes(61)
    assert data[0x78:] == bytes(136)


def test_a_record_has_256_bytes() -> None:
    for size in (0, 128, 255, 257):
        with pytest.raises(ValueError, match="a record has 256"):
            Job.unpack(bytes(size))


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (Job.vadd(1, 1 << 22), ""),
        (Job.vadd(1, (1 << 22) + 1), "in_bytes 33554440 is over 33554432"),
        (Job.mail(1, 32 << 20), ""),
        (Job.mail(1, (32 << 20) + 1), "out_bytes 33554433 is over 33554432"),
        (Job.mail(1, 1 << 26), "out_bytes 67108864 is over 33554432"),
        (Job.mail(1, (1 << 26) + 1), "n 67108865 is over 67108864"),
        (Job.mail(1, 39, opcode=0), "opcode 0 is unknown"),
        (Job.mail(1, 39, opcode=3), "opcode 3 is unknown"),
        (Job.mail(1, 39, out_bytes=40), "out_bytes is 40 and must be 39"),
        (Job.mail(1, 39, in_bytes=8), "in_bytes is 8 and must be 0"),
        (Job.vadd(1, 4, in_bytes=31), "in_bytes is 31 and must be 32"),
        (Job.vadd(1, 4, out_bytes=17), "out_bytes is 17 and must be 16"),
        (Job.vadd(1, 4, in_bytes=2**64 - 1), "in_bytes 18446744073709551615 is over 33554432"),
        (Job.vadd(1, 4, grid=(2**31 - 1, 65535, 65535)), "threads are over 4294967296"),
        (Job.vadd(1, 4, param_count=77, sem_va=1, prog_va=2, sem_flags=255, sem_payload=3), ""),
    ],
)
def test_bad_jobs_are_told_by_their_fields(job: Job, reason: str) -> None:
    found = records.problem(job)
    assert reason in found
    assert bool(found) == bool(reason)


def test_zeros_are_the_defaults_axis_by_axis() -> None:
    assert Job.mail(1, 4096).shape == ((1, 1, 1), (64, 1, 1))
    assert Job.vadd(1, 1).shape == ((1, 1, 1), (256, 1, 1))
    assert Job.vadd(1, 257).shape == ((2, 1, 1), (256, 1, 1))
    assert Job.vadd(1, 1000, grid=(0, 2, 0), block=(32, 0, 4)).shape == ((4, 2, 1), (32, 1, 4))


def test_bits_of_a_sum() -> None:
    assert records.bits(1.0) == 0x3FF0000000000000
    assert records.bits(float("nan")) == records.bits(-float("nan")) == 0x7FF8000000000000
    assert Done(seq=1, checksum=records.bits(-2.5)).checksum_value == -2.5


def test_the_sentence() -> None:
    assert len(records.SENTENCE) == 39
    assert records.mail_text(1) == b"t"
    assert records.mail_text(80) == records.SENTENCE * 2 + b"th"
