"""The node file from Python: create, open, map, and view it through the one layout of ``node.toml``.

Invariants: a file is accepted only when magic, version, layout hash, name table and every offset hold together, so that
views never reach past its end; words that C changes at the same time are changed here through :class:`Words` only.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lab import native
from lab.spec import load_hooks, load_layout

PAGE = 4096
Records = npt.NDArray[Any]


class NodeFileError(ValueError):
    """A node file that cannot be used; the text is one line: file, cause, mend."""


@cache
def constants() -> Mapping[str, int]:
    """Constants of ``node.toml``, and the memory kinds of ``history.toml``."""
    kinds = {name: value for name, value in load_layout("history").constants.items() if name.startswith("HL_KIND_")}
    return {**load_layout("node").constants, **kinds}


@cache
def dtype(struct: str) -> np.dtype[Any]:
    """numpy dtype of a struct of ``node.toml``."""
    return load_layout("node").dtype(struct)


def kind_names() -> tuple[str, ...]:
    """Names of the memory kinds in the order of ``hl_node_process_device.bytes``."""
    kinds = [(value, name) for name, value in constants().items() if name.startswith("HL_KIND_")]
    return tuple(name.removeprefix("HL_KIND_").lower() for _, name in sorted(kinds))


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """How many of each a node file has room for."""

    devices: int
    processes: int = 1024
    containers: int = 256
    faults: int = 64
    intervals: int = 65536


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(native.path("libhooklab-region.so")))
    address, word32, word64 = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64
    for name, result, arguments in (
        ("hl_atomic_load32", word32, [address]),
        ("hl_atomic_store32", None, [address, word32]),
        ("hl_atomic_load64", word64, [address]),
        ("hl_atomic_add64", word64, [address, word64]),
        ("hl_accounts_undo", None, [address, word32]),
        ("hl_accounts_bury", ctypes.c_int, [address, word32, address, address]),
        ("hl_accounts_take_back", ctypes.c_int, [address, word32, word32, word32, word64]),
        ("hl_meet_open", None, [address, word32, word32]),
        ("hl_meet_leave", None, [address, word32]),
        ("hl_calls_fold", None, [address, word32]),
        ("hl_turns_look", ctypes.c_int, [address, word32, word32, word64]),
        ("hl_turns_leave", ctypes.c_int, [address, word32, word32, word64]),
    ):
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


class Words:
    """What must happen atomically in one mapping: single words by byte offset, and the changes C makes for the server
    (see ``accounts.h``)."""

    def __init__(self, base: int) -> None:
        self._base = base
        self._library = _library()

    def load32(self, offset: int) -> int:
        """The 32-bit word at ``offset``."""
        return int(self._library.hl_atomic_load32(self._base + offset))

    def store32(self, offset: int, value: int) -> None:
        """Store a 32-bit word."""
        self._library.hl_atomic_store32(self._base + offset, value)

    def load64(self, offset: int) -> int:
        """The 64-bit word at ``offset``."""
        return int(self._library.hl_atomic_load64(self._base + offset))

    def undo(self, slot: int) -> None:
        """Undo the half-made change of a dead process and open the locks it held."""
        self._library.hl_accounts_undo(self._base, slot)

    def bury(self, slot: int, kept: Mapping[tuple[int, int], int]) -> bool:
        """Give back all bytes of a dead process but those ``kept``, by (device, kind). False: somebody else has a lock
        now, try again."""
        table = constants()
        keep = (ctypes.c_uint64 * (table["HL_MAX_DEVICES"] * table["HL_KINDS"]))()
        for (device, kind), size in kept.items():
            keep[device * table["HL_KINDS"] + kind] = size
        return int(self._library.hl_accounts_bury(self._base, slot, ctypes.byref(keep), None)) == 0

    def take_back(self, slot: int, device: int, kind: int, size: int) -> bool:
        """Give bytes of a living process back that it disowned. False as with :meth:`bury`."""
        return int(self._library.hl_accounts_take_back(self._base, slot, device, kind, size)) == 0

    def add64(self, offset: int, value: int) -> None:
        """Add to a 64-bit word."""
        self._library.hl_atomic_add64(self._base + offset, value)

    def look(self, device: int) -> bool:
        """Bring the busy intervals of a device up to now. Whether anything is queued or running there; True also when
        its lock was not to be had at once."""
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        return int(self._library.hl_turns_look(self._base, constants()["HL_ACCOUNT_SERVER"], device, now)) != 0

    def leave(self, slot: int, devices: int) -> bool:
        """Take a dead process off the GPUs and open their locks. False: one is held by somebody else now, try again."""
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        return int(self._library.hl_turns_leave(self._base, slot, devices, now)) == 0

    def open_meeting(self, fault: int, meeting: int) -> None:
        """Release everybody who waits in this round of a MEET; nothing to do when it is over already."""
        self._library.hl_meet_open(self._base, fault, meeting)

    def leave_meeting(self, slot: int) -> None:
        """Forget the arrivals of a dead process, so that the living meet in the number that was asked for."""
        self._library.hl_meet_leave(self._base, slot)

    def fold_calls(self, slot: int) -> None:
        """Add the calls of an ended process to the node's and zero its row."""
        self._library.hl_calls_fold(self._base, slot)


def _align(value: int) -> int:
    return -(-value // PAGE) * PAGE


def _plan(capacity: Capacity, name_count: int) -> tuple[dict[str, int], int]:
    """Offsets by header field and the size of a file with this capacity."""
    offset = _align(dtype("hl_node_header").itemsize)
    offsets: dict[str, int] = {}
    for field, size in (
        ("device_offset", capacity.devices * dtype("hl_node_device").itemsize),
        ("container_offset", capacity.containers * dtype("hl_node_container").itemsize),
        ("process_offset", capacity.processes * dtype("hl_node_process").itemsize),
        ("fault_offset", capacity.faults * dtype("hl_node_fault").itemsize),
        ("call_offset", 8 * name_count),
        ("process_call_offset", 4 * name_count * capacity.processes),
        ("interval_offset", capacity.devices * capacity.intervals * dtype("hl_node_interval").itemsize),
        ("turns_offset", capacity.devices * dtype("hl_node_turns").itemsize),
        ("share_offset", capacity.devices * capacity.processes * dtype("hl_node_share").itemsize),
    ):
        offsets[field] = offset
        offset = _align(offset + size)
    return offsets, offset


class NodeFile:
    """One mapped node file. ``header`` is a record; the others are arrays of records (see ``node.toml``)."""

    def __init__(self, path: Path, mapping: mmap.mmap, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor
        self._mapping = mapping
        self._bytes = np.frombuffer(mapping, dtype=np.uint8)
        header = self._view("hl_node_header", 0, 1)
        self.header = header[0]
        devices = int(self.header["device_count"])
        names = int(self.header["name_count"])
        processes = int(self.header["process_capacity"])
        intervals = int(self.header["interval_capacity"])
        self.devices = self._view("hl_node_device", int(self.header["device_offset"]), devices)
        containers = int(self.header["container_capacity"])
        self.containers = self._view("hl_node_container", int(self.header["container_offset"]), containers)
        self.processes = self._view("hl_node_process", int(self.header["process_offset"]), processes)
        faults = int(self.header["fault_capacity"])
        self.faults = self._view("hl_node_fault", int(self.header["fault_offset"]), faults)
        self.calls: Records = np.frombuffer(mapping, np.uint64, names, int(self.header["call_offset"]))
        start = int(self.header["process_call_offset"])
        self.process_calls: Records = np.frombuffer(mapping, np.uint32, names * processes, start)
        self.process_calls = self.process_calls.reshape(processes, names)
        rings = self._view("hl_node_interval", int(self.header["interval_offset"]), devices * intervals)
        self.intervals = rings.reshape(devices, intervals)
        self.turns = self._view("hl_node_turns", int(self.header["turns_offset"]), devices)
        shares = self._view("hl_node_share", int(self.header["share_offset"]), devices * processes)
        self.shares = shares.reshape(devices, processes)

    def _view(self, struct: str, offset: int, count: int) -> Records:
        return np.frombuffer(self._mapping, dtype(struct), count, offset)

    @property
    def base(self) -> int:
        """Address of the mapping."""
        return int(self._bytes.ctypes.data)

    @property
    def size(self) -> int:
        """Bytes of the mapping."""
        return len(self._bytes)

    def process_at(self, slot: int, field: str) -> int:
        """Byte offset of a field of process slot ``slot``."""
        return self._at("hl_node_process", "process_offset", slot, field)

    def fault_at(self, index: int, field: str) -> int:
        """Byte offset of a field of fault ``index``."""
        return self._at("hl_node_fault", "fault_offset", index, field)

    def _at(self, struct: str, base: str, index: int, field: str) -> int:
        kind = dtype(struct)
        fields = kind.fields
        if fields is None:
            raise KeyError(struct)
        return int(self.header[base]) + index * kind.itemsize + int(fields[field][1])

    def close(self) -> None:
        """Close the descriptor. The mapping itself ends with the last view of it."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def create_node_file(path: Path, *, capacity: Capacity, name_count: int, names_hash: int) -> NodeFile:
    """Make a new node file of this capacity at ``path`` (sparse, all zero but the header's shape), mapped writable."""
    limit = constants()["HL_MAX_DEVICES"]
    if not 1 <= capacity.devices <= limit:
        raise NodeFileError(
            f"{path}: {capacity.devices} GPUs and MIG instances: a node has 1 to {limit} of both together"
        )
    most = constants()["HL_MAX_PROCESSES"]
    if capacity.processes > most:
        raise NodeFileError(f"{path}: room for {capacity.processes} processes: a node has at most {most}")
    offsets, size = _plan(capacity, name_count)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    os.ftruncate(descriptor, size)
    header = np.zeros((), dtype("hl_node_header"))
    header["magic"] = constants()["HL_NODE_MAGIC"]
    header["version"] = constants()["HL_NODE_VERSION"]
    header["size"] = size
    header["layout_hash"] = load_layout("node").hash
    header["names_hash"] = names_hash
    header["name_count"] = name_count
    header["device_count"] = capacity.devices
    header["process_capacity"] = capacity.processes
    header["container_capacity"] = capacity.containers
    header["fault_capacity"] = capacity.faults
    header["interval_capacity"] = capacity.intervals
    header["created_ns"] = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    for field, offset in offsets.items():
        header[field] = offset
    os.pwrite(descriptor, header.tobytes(), 0)
    return NodeFile(path, mmap.mmap(descriptor, size), descriptor)


def open_node_file(path: str | os.PathLike[str], *, writable: bool = False, name: Path | None = None) -> NodeFile:
    """Map an existing node file. :class:`NodeFileError` (one line: file, cause, mend) when it cannot be used; ``name``
    stands for the file there."""
    place = name or Path(path)
    mend = "give the `node` file of a run directory made by this version, or repeat the run"
    try:
        descriptor = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
    except OSError as error:
        raise NodeFileError(f"{place}: cannot open node file: {error.strerror}; {mend}") from None
    try:
        cause = _refuse(descriptor)
        if cause:
            raise NodeFileError(f"{place}: {cause}; {mend}")
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        mapping = mmap.mmap(descriptor, os.fstat(descriptor).st_size, access=access)
        return NodeFile(place, mapping, descriptor)
    except BaseException:
        os.close(descriptor)
        raise


def _refuse(descriptor: int) -> str:
    """Why the file is no node file of this version; empty when it is one."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        return "is no regular file"
    kind = dtype("hl_node_header")
    raw = os.pread(descriptor, kind.itemsize, 0)
    if len(raw) < kind.itemsize:
        return f"node file is truncated: {len(raw)} bytes, its header alone has {kind.itemsize}"
    header = np.frombuffer(raw, kind)[0]
    if int(header["magic"]) != constants()["HL_NODE_MAGIC"]:
        return f"is no node file (magic {int(header['magic']):#x})"
    if int(header["version"]) != constants()["HL_NODE_VERSION"]:
        return f"node file has version {int(header['version'])}, this hooklab reads {constants()['HL_NODE_VERSION']}"
    layout_hash = load_layout("node").hash
    if int(header["layout_hash"]) != layout_hash:
        return f"node file has layout {int(header['layout_hash']):016x}, this hooklab reads {layout_hash:016x}"
    if int(header["names_hash"]) != load_hooks().hash:
        return "node file was written with another hook table"
    if int(header["size"]) != status.st_size:
        return f"node file is truncated: {status.st_size} bytes of {int(header['size'])}"
    capacity = Capacity(
        devices=int(header["device_count"]),
        processes=int(header["process_capacity"]),
        containers=int(header["container_capacity"]),
        faults=int(header["fault_capacity"]),
        intervals=int(header["interval_capacity"]),
    )
    offsets, size = _plan(capacity, int(header["name_count"]))
    if size != status.st_size or any(int(header[field]) != offset for field, offset in offsets.items()):
        return "node file contradicts itself: its tables do not fit its size"
    if capacity.devices > constants()["HL_MAX_DEVICES"] or int(header["container_count"]) > capacity.containers:
        return "node file contradicts itself: more devices or containers than it has room for"
    return ""
