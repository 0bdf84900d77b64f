"""Sizes and durations as people write them. Strict: a unit is wanted, a rest is an error, nothing is rounded."""

from __future__ import annotations

import re
from decimal import Decimal

SIZE_UNITS = {
    "B": 1,
    "bytes": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
DURATION_UNITS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9}
MAX_SIZE = 2**63 - 1
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")


def parse_size(value: object) -> int:
    """Bytes of ``4GiB``, ``512 MiB``, ``1.5GB`` or a whole number of bytes; ValueError says what is wrong."""
    if isinstance(value, int) and not isinstance(value, bool):
        if 0 <= value <= MAX_SIZE:
            return value
        raise ValueError(f"a size is between 0 and 2^63-1 bytes, not {value}")
    return _parse(value, SIZE_UNITS, "size", "4GiB")


def parse_duration(value: object) -> int:
    """Nanoseconds of ``5ms``, ``2 s``, ``1.5us``; a bare number other than 0 is an error."""
    if isinstance(value, int) and not isinstance(value, bool):
        if value == 0:
            return 0
        raise ValueError(f"a duration needs a unit ({', '.join(DURATION_UNITS)}), e.g. {abs(value)}ms")
    return _parse(value, DURATION_UNITS, "duration", "5ms")


def format_size(size: int) -> str:
    """The shortest exact spelling with a binary unit: ``4GiB``, ``2400MiB``, ``513B``."""
    sign, size = ("-", -size) if size < 0 else ("", size)
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size and size % SIZE_UNITS[unit] == 0:
            return f"{sign}{size // SIZE_UNITS[unit]}{unit}"
    return f"{sign}{size}B"


def say_size(size: int) -> str:
    """A size for people: exact where a binary unit says it in whole numbers from MiB up, else MiB and the bytes."""
    if abs(size) < SIZE_UNITS["MiB"] or size % SIZE_UNITS["MiB"] == 0:
        return format_size(size)
    return f"{size / SIZE_UNITS['MiB']:.1f}MiB ({size:,} bytes)"


def format_duration(ns: float) -> str:
    """A duration for people, three significant digits: ``17.3 ms``."""
    for unit in ("s", "ms", "us"):
        if abs(ns) >= DURATION_UNITS[unit]:
            return f"{ns / DURATION_UNITS[unit]:.3g} {unit}"
    return f"{ns:.0f} ns"


def _parse(value: object, units: dict[str, int], what: str, example: str) -> int:
    if not isinstance(value, str):
        raise ValueError(f"not a {what}: {value!r}; write it like {example}")
    match = _QUANTITY.fullmatch(value.strip())
    if match is None:
        raise ValueError(f"not a {what}: {value!r}; write it like {example}")
    number, unit = match.groups()
    if unit not in units:
        said = f"unknown unit {unit!r}" if unit else "no unit"
        raise ValueError(f"{said} in {what} {value!r}; units are {', '.join(units)}")
    exact = Decimal(number) * units[unit]
    if exact != exact.to_integral_value():
        raise ValueError(f"{what} {value!r} is not a whole number of {'bytes' if units is SIZE_UNITS else 'ns'}")
    if exact > MAX_SIZE:
        raise ValueError(f"{what} {value!r} is too large")
    return int(exact)
