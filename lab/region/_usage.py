"""What each process holds according to the ledger file of any interposer whose dialect says how it reads."""

from __future__ import annotations

import os
from pathlib import Path

from lab.region._file import RegionError
from lab.spec import LedgerDialect, LedgerRow, load_layout

HAMI = "hami-1.2"
VGPUM = "vgpu-manager-1"


def read_usage(path: str | os.PathLike[str], *, ledger: LedgerDialect) -> tuple[LedgerRow, ...]:
    """The taken slots of a ledger file in the layout of a dialect. RegionError with one line when it cannot be read."""
    file = Path(path)
    try:
        data = file.read_bytes()
    except OSError as error:
        raise RegionError(
            f"{file}: the ledger cannot be read: {error.strerror}; give the path of a ledger file"
        ) from None
    if ledger.layout == HAMI:
        _validate_hami(file, data)
    if ledger.layout == VGPUM:
        _validate_vgpu_manager(file, data)
    try:
        return ledger.rows(data)
    except ValueError as error:
        raise RegionError(f"{file}: {error}; choose the dialect that the file was written in") from None


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


def _validate_vgpu_manager(file: Path, data: bytes) -> None:
    known = load_layout(VGPUM).constants
    magic, version = (int.from_bytes(data[at : at + 4], "little") for at in (0, 4))
    if (magic, version) != (known["HL_VGPUM_MAGIC"], known["HL_VGPUM_VERSION"]):
        raise RegionError(
            f"{file}: magic {magic:#x} and version {version} are not those of vgpu-manager's vmem_node.config"
            f" ({known['HL_VGPUM_MAGIC']:#x}, {known['HL_VGPUM_VERSION']}); choose another dialect"
        )
