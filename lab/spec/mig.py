"""MIG: the kinds of GPU instances that a card can be cut into, and how one profile's card is cut.

A kind is one row of ``[[gpu_instance]]`` in a card's profile; a cut is text such as ``3g.20gb@4``: the kind and its
first memory slice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SLICES = 8  # memory slices of a card
KINDS = 8  # HL_INSTANCE_PROFILES
KIND_NUMBERS = (
    "kind",
    "id",
    "slices",
    "memory_slices",
    "memory_mib",
    "sm_count",
    "copy_engines",
    "decoders",
    "encoders",
    "jpegs",
    "ofas",
    "count",
)
_KEYS = {"name", *KIND_NUMBERS, "starts", "evidence", "source"}


class MigError(ValueError):
    """Kinds or cuts that do not hold together; the text says which and why."""


@dataclass(frozen=True, kw_only=True)
class InstanceKind:
    """One kind of GPU instance: what NVML tells of it. ``kind`` is NVML's number of the slice form, ``id`` the card's
    own; ``starts`` the memory slices (0 to 7) at which one can begin."""

    name: str
    kind: int
    id: int
    slices: int
    memory_slices: int
    memory_mib: int
    sm_count: int
    copy_engines: int
    decoders: int
    encoders: int
    jpegs: int
    ofas: int
    count: int
    starts: tuple[int, ...]
    evidence: str
    source: str

    @property
    def memory_bytes(self) -> int:
        """Device memory of an instance."""
        return self.memory_mib << 20


@dataclass(frozen=True, kw_only=True)
class Cut:
    """One GPU instance of a card, with its one compute instance. ``index``: its number among the card's MIG devices."""

    index: int
    kind: InstanceKind
    start: int

    @property
    def gpu_instance(self) -> int:
        """Its id: the place in the tree of halves (whole card 0, halves 1 and 2, quarters 3 to 6, eighths from 7), as
        the listings in the vendor's guide show; the guide does not say so."""
        return SLICES // self.kind.memory_slices - 1 + self.start // self.kind.memory_slices

    @property
    def compute_instance(self) -> int:
        """Always the first one: it takes the whole GPU instance."""
        return 0


def parse_kinds(rows: Sequence[Mapping[str, Any]], *, evidence: Sequence[str]) -> tuple[InstanceKind, ...]:
    """The ``[[gpu_instance]]`` rows of a profile. :class:`MigError` names row and key."""
    kinds = []
    for row in rows:
        where = f"gpu_instance {row.get('name', '?')}"
        for key in sorted(_KEYS ^ set(row)):
            raise MigError(f"{where}: {'missing' if key in _KEYS else 'unknown'} key {key}")
        if row["evidence"] not in evidence:
            raise MigError(f"{where}: evidence {row['evidence']!r} is none of {', '.join(evidence)}")
        numbers = {key: row[key] for key in KIND_NUMBERS}
        wrong = next((key for key, value in numbers.items() if type(value) is not int or value < 0), None)
        if wrong:
            raise MigError(f"{where}: {wrong} must be a number, is {numbers[wrong]!r}")
        starts = tuple(row["starts"])
        size = numbers["memory_slices"]
        if size not in (1, 2, 4, 8) or any(start % size or not 0 <= start <= SLICES - size for start in starts):
            raise MigError(f"{where}: instances of {size} memory slices cannot begin at {list(starts)}")
        kinds.append(
            InstanceKind(name=row["name"], starts=starts, evidence=row["evidence"], source=row["source"], **numbers)
        )
    if len(kinds) > KINDS:
        raise MigError(f"{len(kinds)} kinds of GPU instances: a node has room for {KINDS}")
    return tuple(kinds)


def parse_cuts(kinds: Sequence[InstanceKind], cuts: Sequence[str]) -> tuple[Cut, ...]:
    """How a card is cut, in the order of its MIG devices: that of the instances' ids. :class:`MigError` where a kind is
    unknown, cannot lie there, or takes what another has."""
    by_name = {kind.name: kind for kind in kinds}
    taken = [""] * SLICES
    compute = 0
    found = []
    for text in cuts:
        name, at, start = text.partition("@")
        kind = by_name.get(name)
        if kind is None:
            raise MigError(f"cut {text!r}: no such kind of instance; known: {', '.join(by_name) or 'none'}")
        if not at or not start.isdigit() or int(start) not in kind.starts:
            raise MigError(f"cut {text!r}: {name} begins at memory slice {', '.join(map(str, kind.starts))}")
        for memory_slice in range(int(start), int(start) + kind.memory_slices):
            if taken[memory_slice]:
                raise MigError(f"cut {text!r}: memory slice {memory_slice} is taken by {taken[memory_slice]!r}")
            taken[memory_slice] = text
        compute += kind.slices
        found.append(Cut(index=0, kind=kind, start=int(start)))
    if compute > SLICES - 1:
        raise MigError(f"cuts take {compute} compute slices: a card has {SLICES - 1}")
    found.sort(key=lambda cut: cut.gpu_instance)
    return tuple(Cut(index=index, kind=cut.kind, start=cut.start) for index, cut in enumerate(found))


def mig_uuid(seed: int, card: int, cut: Cut) -> bytes:
    """16 bytes that identify an instance of card ``card`` of a node made from ``seed`` (UUID version 5 form, as the
    driver's)."""
    text = f"hooklab mig {seed} {card} {cut.gpu_instance} {cut.compute_instance}"
    raw = bytearray(hashlib.sha256(text.encode()).digest()[:16])
    raw[6] = raw[6] & 0x0F | 0x50
    raw[8] = raw[8] & 0x3F | 0x80
    return bytes(raw)
