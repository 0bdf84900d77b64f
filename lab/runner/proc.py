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
    """Those of `names` that an ELF file defines dynamically; empty for anything that is not ELF."""
    with _dynamic(path) as (dynamic, _kind):
        if dynamic is None:
            return frozenset()
        defined = (symbol.name for symbol in dynamic.iter_symbols() if symbol["st_shndx"] != "SHN_UNDEF")
        return names & set(defined)


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
            with _dynamic(file(pid, maps, path)) as (dynamic, kind):
                if dynamic is None:
                    continue
                load_base = 0 if kind == "ET_EXEC" else base
                for slot, name in _slots(dynamic):
                    try:
                        address = struct.unpack("<Q", os.pread(memory, 8, load_base + slot))[0]
                    except (OSError, struct.error):
                        continue
                    target = owner(maps, address)
                    yield Reference(symbol=name, referrer=path, target=target, lazy=target == path)
    finally:
        os.close(memory)


def _slots(dynamic: Any) -> Iterator[tuple[int, str]]:
    for table in dynamic.get_relocation_tables().values():
        for relocation in table.iter_relocations():
            entry = relocation.entry
            if "r_info_sym" not in entry or not entry["r_info_sym"]:
                continue
            name = dynamic.get_symbol(entry["r_info_sym"]).name
            if _REFERENCE.match(name):
                yield entry["r_offset"], name


@contextmanager
def _dynamic(path: Path) -> Iterator[tuple[Any, str]]:
    """The dynamic segment of an ELF file and its type; (None, "") for any other file."""
    from elftools.common.exceptions import ELFError
    from elftools.elf.dynamic import DynamicSegment
    from elftools.elf.elffile import ELFFile

    try:
        stream = path.open("rb")
    except OSError:
        yield None, ""
        return
    with stream:
        try:
            elf = ELFFile(stream)
            found = next((s for s in elf.iter_segments() if isinstance(s, DynamicSegment)), None)
        except (ELFError, OSError):
            found = None
        yield found, elf["e_type"] if found is not None else ""
