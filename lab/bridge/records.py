"""The two records as values, from and to bytes by `lab/spec/layouts/bridge.toml`, and what makes a job a bad one.

Invariants: packing and unpacking lose nothing, whatever the bytes; what is packed without being set is zero, the hole
at 0x34 and all reserved bytes included. Nothing here reads a file or a clock.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Self

from lab.spec import Struct, load_layout

if TYPE_CHECKING:
    import numpy as np

_LAYOUT = load_layout("bridge")
_C = _LAYOUT.constants
JOB_MAGIC, DONE_MAGIC = _C["HL_BRIDGE_JOB_MAGIC"], _C["HL_BRIDGE_DONE_MAGIC"]
VERSION, RECORD_BYTES = _C["HL_BRIDGE_VERSION"], _C["HL_BRIDGE_RECORD_BYTES"]
N_MAX, BLOB_MAX = _C["HL_BRIDGE_N_MAX"], _C["HL_BRIDGE_BLOB_MAX"]
MAIL, VADD = _C["HL_BRIDGE_MAIL"], _C["HL_BRIDGE_VADD"]
OK, BAD_JOB = _C["HL_BRIDGE_OK"], _C["HL_BRIDGE_BAD_JOB"]
CUDA_ERROR, TRANSPORT_ERROR = _C["HL_BRIDGE_CUDA_ERROR"], _C["HL_BRIDGE_TRANSPORT_ERROR"]
SEM_REDUCE, SEM_ONE_WORD = _C["HL_BRIDGE_SEM_REDUCE"], _C["HL_BRIDGE_SEM_ONE_WORD"]
SEM_ENABLE = _C["HL_BRIDGE_SEM_ENABLE"]

STATUS_NAMES = {OK: "ok", BAD_JOB: "bad-job", CUDA_ERROR: "cuda-error", TRANSPORT_ERROR: "transport-error"}
SENTENCE = b"the little gpu man says you've got mail"
"""What `mail` writes, over and over."""
VADD_MAX = BLOB_MAX // 8
"""Most elements of a vadd: its input is 8 bytes an element (4,194,304)."""
THREADS_MAX = 1 << 32
"""Most threads of a launch, all axes: more would only keep the GPU busy without touching another element."""

Axes = tuple[int, int, int]
_CODES = {"u8": "B", "u32": "I", "u64": "Q", "char": "s"}


@cache
def _codec(name: str) -> tuple[struct.Struct, tuple[str, ...]]:
    """How a record is packed, and its fields; an array of u8 is bytes, one of u32 several values."""
    form, names = "<", []
    for one in _LAYOUT.structs[name].fields:
        if one.type in ("u8", "char"):
            form += f"{one.size}s"
        else:
            form += f"{one.count or 1}{_CODES[one.type]}"
        names += [one.name] * (one.count if one.count and one.type == "u32" else 1)
    made = struct.Struct(form)
    assert made.size == RECORD_BYTES
    return made, tuple(names)


def _pack(name: str, record: object) -> bytes:
    codec, names = _codec(name)
    values: list[Any] = []
    for key in dict.fromkeys(names):
        value = getattr(record, key)
        values += value if isinstance(value, tuple) else [value]
    return codec.pack(*values)


def _unpack(name: str, data: bytes) -> dict[str, Any]:
    if len(data) != RECORD_BYTES:
        raise ValueError(f"{name}: {len(data)} bytes; a record has {RECORD_BYTES}")
    codec, names = _codec(name)
    found: dict[str, Any] = {}
    for key, value in zip(names, codec.unpack(data), strict=True):
        found[key] = (*found[key], value) if key in found else (value,) if names.count(key) > 1 else value
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """CUBB2. Bytes and elements as in the protocol's table; `valid` says whether a daemon may look at the rest."""

    magic: int = JOB_MAGIC
    version: int = VERSION
    seq: int
    opcode: int
    grid: Axes = (0, 0, 0)
    block: Axes = (0, 0, 0)
    shared: int = 0
    n: int
    hole: int = 0
    in_bytes: int
    out_bytes: int
    sem_va: int = 0
    sem_payload: int = 0
    sem_flags: int = 0
    pad: int = 0
    prog_va: int = 0
    param_count: int = 0
    pad2: int = 0
    rsv: bytes = field(default=bytes(144), repr=False)

    @classmethod
    def mail(cls, seq: int, n: int, **fields: Any) -> Self:
        """A mail of `n` bytes."""
        return cls(**{"seq": seq, "opcode": MAIL, "n": n, "in_bytes": 0, "out_bytes": n, "param_count": 2, **fields})

    @classmethod
    def vadd(cls, seq: int, n: int, **fields: Any) -> Self:
        """A vadd of `n` elements."""
        sizes = {"in_bytes": 8 * n, "out_bytes": 4 * n, "param_count": 5}
        return cls(**{"seq": seq, "opcode": VADD, "n": n, **sizes, **fields})

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """From exactly 256 bytes, whatever they are."""
        return cls(**_unpack("hl_bridge_job", data))

    def pack(self) -> bytes:
        """256 bytes."""
        return _pack("hl_bridge_job", self)

    @property
    def valid(self) -> bool:
        """Magic and version are right; else the daemon stays idle."""
        return self.magic == JOB_MAGIC and self.version == VERSION

    @property
    def shape(self) -> tuple[Axes, Axes]:
        """Grid and block of the launch: each 0 replaced by the default of its axis."""
        defaults = ((1, 1, 1), (64, 1, 1)) if self.opcode == MAIL else (((self.n + 255) // 256, 1, 1), (256, 1, 1))
        grid, block = (
            (given[0] or usual[0], given[1] or usual[1], given[2] or usual[2])
            for given, usual in zip((self.grid, self.block), defaults, strict=True)
        )
        return grid, block


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """CBD2. Times in nanoseconds; `checksum` is the bits of a double, `checksum_value` the double."""

    magic: int = DONE_MAGIC
    version: int = VERSION
    seq: int
    status: int = OK
    bad: int = 0
    checksum: int = 0
    kernel_ns: int = 0
    out_bytes_written: int = 0
    err_code: int = 0
    device_name: bytes = b""
    host_ns: int = 0
    rsv: bytes = field(default=bytes(136), repr=False)

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """From exactly 256 bytes, whatever they are; `device_name` keeps its padding."""
        return cls(**_unpack("hl_bridge_done", data))

    def pack(self) -> bytes:
        """256 bytes."""
        return _pack("hl_bridge_done", self)

    @property
    def valid(self) -> bool:
        """Magic and version are right; else the module ignores it."""
        return self.magic == DONE_MAGIC and self.version == VERSION

    @property
    def checksum_value(self) -> float:
        """The sum itself."""
        value: float = struct.unpack("<d", struct.pack("<Q", self.checksum))[0]
        return value

    @property
    def device(self) -> str:
        """The GPU's name as text."""
        return self.device_name.split(b"\0", 1)[0].decode("utf-8", "replace")


def bits(value: float) -> int:
    """The bits of a double; any NaN becomes the one quiet NaN, so that equal sums are equal bits."""
    if value != value:
        return 0x7FF8000000000000
    found: int = struct.unpack("<Q", struct.pack("<d", value))[0]
    return found


def problem(job: Job) -> str:
    """Why a valid record is a bad job (status 1): one clause naming the field; empty for a good one."""
    if job.opcode not in (MAIL, VADD):
        return f"opcode {job.opcode} is unknown"
    if job.n > N_MAX:
        return f"n {job.n} is over {N_MAX}"
    sizes = {"in_bytes": job.in_bytes, "out_bytes": job.out_bytes}
    for name, size in sizes.items():
        if size > BLOB_MAX:
            return f"{name} {size} is over {BLOB_MAX}"
    needs = (0, job.n) if job.opcode == MAIL else (8 * job.n, 4 * job.n)
    for (name, size), need in zip(sizes.items(), needs, strict=True):
        if size != need:
            return f"{name} is {size} and must be {need}"
    threads = 1
    for length in (*job.shape[0], *job.shape[1]):
        threads *= length
    return f"{threads} threads are over {THREADS_MAX}" if threads > THREADS_MAX else ""


def mail_text(n: int) -> bytes:
    """The right output of a mail of `n` bytes."""
    return (SENTENCE * (n // len(SENTENCE) + 1))[:n]


def layout(name: str) -> Struct:
    """The struct `job` or `done`: fields with offsets and sizes."""
    return _LAYOUT.structs[f"hl_bridge_{name}"]


def dtype(name: str) -> np.dtype[Any]:
    """The numpy dtype of `job` or `done`."""
    return _LAYOUT.dtype(f"hl_bridge_{name}")
