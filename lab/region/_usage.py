"""What each process holds according to the ledger file of any interposer whose dialect says how it reads."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from lab.region._file import RegionError
from lab.spec import LedgerDialect, load_layout

HAMI = "hami-1.2"


@dataclass(frozen=True, slots=True)
class Usage:
    """One taken slot of a ledger."""

    slot: int
    pid: int
    """As the process sees itself; 0: the layout has no such field."""
    host_pid: int
    """0: unknown."""
    bytes: tuple[int, ...]
    """By device ordinal."""


def read_usage(path: str | os.PathLike[str], *, ledger: LedgerDialect) -> tuple[Usage, ...]:
    """The taken slots of a ledger file in the layout of a dialect. RegionError with one line when it cannot be read."""
    import numpy as np

    file = Path(path)
    try:
        data = file.read_bytes()
    except OSError as error:
        raise RegionError(
            f"{file}: the ledger cannot be read: {error.strerror}; give the path of a ledger file"
        ) from None
    if ledger.layout == HAMI:
        _validate_hami(file, data)
    try:
        rows = ledger.used_by_slot(data)
    except ValueError as error:
        raise RegionError(f"{file}: {error}; choose the dialect that the file was written in") from None
    assert ledger.slots is not None  # used_by_slot has refused else
    layout = load_layout(ledger.layout)
    dtype = layout.dtype(ledger.slots.struct)
    offset = ledger.slots.offset
    if ledger.slots.offset_field:
        offset = int(np.frombuffer(data, layout.dtype(ledger.slots.header), 1)[ledger.slots.offset_field][0])
    records = np.frombuffer(data, dtype, ledger.slots.count, offset)
    names = dtype.names or ()
    return tuple(
        Usage(
            slot=index,
            pid=int(records["pid"][index]) if "pid" in names else 0,
            host_pid=int(records["host_pid"][index]) if "host_pid" in names else 0,
            bytes=row,
        )
        for index, row in sorted(rows.items())
    )


def _validate_hami(file: Path, data: bytes) -> None:
    constants = load_layout(HAMI).constants
    size = load_layout(HAMI).structs["hl_hami_region"].size
    if len(data) < size:
        raise RegionError(
            f"{file}: {len(data)} bytes, a region of HAMi-core 1.2 has {size}; give the file of a process that ran"
        )
    magic, major, minor = (int.from_bytes(data[at : at + 4], "little") for at in (0, 4, 8))
    if magic != constants["HL_HAMI_MAGIC"]:
        raise RegionError(
            f"{file}: magic {magic} is not that of HAMi-core ({constants['HL_HAMI_MAGIC']}); choose another dialect"
        )
    if (major, minor) != (constants["HL_HAMI_MAJOR"], constants["HL_HAMI_MINOR"]):
        raise RegionError(
            f"{file}: layout {major}.{minor} of HAMi-core, this build reads 1.2; use an interposer of that version"
        )
