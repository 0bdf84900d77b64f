"""What a running process shows of itself: mapped objects, and where its driver references really lead.

Reads /proc/PID only; nothing is attached, stopped or written. Paths are opened below /proc/PID/root, so that a
process in another mount namespace is read with its own files.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

_REFERENCE = re.compile(r"^(cu[A-Z]\w+|nvml[A-Z]\w+|dlv?sym)$")


@dataclass(frozen=True, slots=True)
class Mapping:
    """One line of /proc/PID/maps: [start, end) virtual addresses, permissions, path ("" if anonymous)."""

    start: int
    end: int
    permissions: str
    offset: int
    path: str
    deleted: bool


@dataclass(frozen=True, slots=True)
class Reference:
    """One relocated driver symbol: who refers to it and which mapped object the address lies in."""

    symbol: str
    referrer: str
    target: str
    lazy: bool


class ProcessError(Exception):
    """The process ended, or this user may not read it; the text is one line that says which."""


def mappings(pid: int) -> list[Mapping]:
    """All mappings of a process, in address order. Raises ProcessError."""
    try:
        text = Path(f"/proc/{pid}/maps").read_text()
    except (FileNotFoundError, ProcessLookupError):
        raise ProcessError(f"process {pid}: not found; give the PID of a running process") from None
    except PermissionError:
        raise ProcessError(f"process {pid}: /proc/{pid}/maps may not be read; run as its owner or as root") from None
    found = []
    for line in text.splitlines():
        span, permissions, offset, _device, _inode, *rest = line.split(None, 5)
        start, end = (int(part, 16) for part in span.split("-"))
        path = rest[0] if rest else ""
        deleted = path.endswith(" (deleted)")
        found.append(Mapping(start, end, permissions, int(offset, 16), path.removesuffix(" (deleted)"), deleted))
    return found


def environment(pid: int) -> dict[str, str]:
    """The environment the process was started with. Raises ProcessError."""
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        raise ProcessError(f"process {pid}: not found; give the PID of a running process") from None
    except PermissionError:
        raise ProcessError(f"process {pid}: its environment may not be read; run as its owner or as root") from None
    pairs = (entry.split(b"=", 1) for entry in raw.split(b"\0") if b"=" in entry)
    return {os.fsdecode(key): os.fsdecode(value) for key, value in pairs}


def innermost_pid(pid: int) -> int:
    """The PID that a process has in its own PID namespace; `pid` where the kernel does not say."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
    except OSError:
        pass
    return pid


def pid_namespace(pid: int) -> int:
    """The inode of a process's PID namespace; 0 where the kernel does not say."""
    try:
        return os.stat(f"/proc/{pid}/ns/pid").st_ino
    except OSError:
        return 0


def objects(maps: list[Mapping]) -> dict[str, int]:
    """Mapped files by path -> lowest address (the load base of an ELF object)."""
    bases: dict[str, int] = {}
    for mapping in maps:
        if mapping.path.startswith("/") and mapping.path not in bases:
            bases[mapping.path] = mapping.start - mapping.offset
    return bases


def file(pid: int, maps: list[Mapping], path: str) -> Path:
    """Where the bytes of a mapped file can be read: by its path as the process sees it, or, when that path was replaced
    or removed since, through the kernel's link to the mapped file itself (which only root may follow)."""
    now = Path(f"/proc/{pid}/root{path}")
    for mapping in maps:
        if mapping.path == path and mapping.deleted:
            mapped = Path(f"/proc/{pid}/map_files/{mapping.start:x}-{mapping.end:x}")
            return mapped if os.access(mapped, os.R_OK) else now
    return now


def owner(maps: list[Mapping], address: int) -> str:
    """Path of the object an address lies in, "" when it lies in none."""
    for mapping in maps:
        if mapping.start <= address < mapping.end:
            return mapping.path
    return ""


def exports(path: Path, names: frozenset[str]) -> frozenset[str]:
    """Those of `names` that an ELF file defines dynamically; empty for anything that is not ELF of 64 bits.

    Asked of the file's own hash table, as the loader does: libraries of clients have tens of thousands of symbols.
    """
    from elftools.elf.hash import GNUHashTable

    with _dynamic(path) as (dynamic, elf):
        if dynamic is None:
            return frozenset()
        _, offset = dynamic.get_table_offset("DT_GNU_HASH")
        if offset is None:
            defined = (symbol.name for symbol in dynamic.iter_symbols() if symbol["st_shndx"] != "SHN_UNDEF")
            return names & set(defined)
        table = GNUHashTable(elf, offset, dynamic)
        return frozenset(name for name in names if table.get_symbol(name) is not None)


def references(pid: int, maps: list[Mapping]) -> Iterator[Reference]:
    """Every relocated reference to a driver entry or to dlsym in the objects of the process, as it stands now.

    A lazily bound slot that was not called yet still points into its own object and is reported as lazy.
    """
    try:
        memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
    except OSError as error:
        raise ProcessError(
            f"process {pid}: its memory may not be read ({error.strerror}); run as its owner or root"
        ) from None
    try:
        for path, base in objects(maps).items():
            with _dynamic(file(pid, maps, path)) as (dynamic, elf):
                if dynamic is None:
                    continue
                load_base = 0 if elf["e_type"] == "ET_EXEC" else base
                for slot, name in _slots(dynamic, elf):
                    try:
                        address = struct.unpack("<Q", os.pread(memory, 8, load_base + slot))[0]
                    except (OSError, struct.error):
                        continue
                    target = owner(maps, address)
                    yield Reference(symbol=name, referrer=path, target=target, lazy=target == path)
    finally:
        os.close(memory)


_RELOCATION = np.dtype([("offset", "<u8"), ("symbol_type", "<u8"), ("addend", "<i8")])  # Elf64_Rela


def _slots(dynamic: Any, elf: Any) -> Iterator[tuple[int, str]]:
    """Virtual address (before loading) and name of every relocation to a driver function or to dlsym."""
    tags = {tag.entry.d_tag: tag.entry.d_val for tag in dynamic.iter_tags()}
    for start, length in (("DT_RELA", "DT_RELASZ"), ("DT_JMPREL", "DT_PLTRELSZ")):
        if start not in tags or length not in tags:
            continue
        _, offset = dynamic.get_table_offset(start)
        elf.stream.seek(offset)
        data = elf.stream.read(tags[length])
        table = np.frombuffer(data, _RELOCATION, len(data) // _RELOCATION.itemsize)
        symbols = table["symbol_type"] >> 32
        for number in np.unique(symbols[symbols != 0]):
            name = dynamic.get_symbol(int(number)).name
            if _REFERENCE.match(name):
                yield from ((int(slot), name) for slot in table["offset"][symbols == number])


@contextmanager
def _dynamic(path: Path) -> Iterator[tuple[Any, Any]]:
    """The dynamic segment of a 64-bit ELF file and the file; (None, None) for any other."""
    from elftools.common.exceptions import ELFError
    from elftools.elf.dynamic import DynamicSegment
    from elftools.elf.elffile import ELFFile

    try:
        stream = path.open("rb")
    except OSError:
        yield None, None
        return
    with stream:
        try:
            elf = ELFFile(stream)
            found = next((s for s in elf.iter_segments("PT_DYNAMIC") if isinstance(s, DynamicSegment)), None)
        except (ELFError, OSError):
            found = None
        yield (found, elf) if found is not None and elf.elfclass == 64 else (None, None)
