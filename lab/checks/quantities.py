"""The four quantities of memory, by process and device, and why they differ.

* physical: what the driver holds for the process
* limit: what its container may hold on the device
* ledger: what the interposer has booked for it
* observed: what NVML reports of it, which counts a context as NVML does

The runner takes them at the quiet points of a run (barriers, the end); each container's peak is read from the history.
A gap between physical and ledger is explained by the kinds of memory that it is made of and by what the card's profile
says of the memory that a driver takes by itself; what nothing explains is said to be so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from lab.checks.history import NONE16, Records, constants, event
from lab.checks.model import RunData
from lab.scenario.model import Scenario
from lab.spec import load_profile

MIB = 1 << 20
POOL_STEP = 32 * MIB
HEAP_DEFAULT = 10 * MIB  # 8 MiB and a block, as the first launch of a kernel that allocates takes it
PLAIN = ("sync", "pitched")  # small allocations of all plain families share blocks: compared in one sum
ALL_DEVICES = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What the profile of a device says of memory that no allocation call asks for; bytes, 0 = unknown."""

    context_bytes: int = 0
    context_extra: int = 0
    """NVML's figure of a context minus CUDA's."""
    printing_bytes: int = 0
    """Taken with the first module that prints."""
    allocating_bytes: int = 0
    """Taken with the first module that allocates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantities:
    """One process (or, where all have ended, a whole container) on one device; bytes. None: not known here."""

    at: str
    """The moment: `peak`, `barrier NAME`, `end`, `now`."""
    container: str
    process: str
    """Its label in the run; empty: the container."""
    device: int
    """`ALL_DEVICES`: the program numbers them in its own way, so that only sums can be compared."""
    host_pid: int
    physical: int | None
    limit: int
    """0: none."""
    ledger: int | None
    observed: int | None
    gaps: tuple[str, ...]
    """Why physical and ledger differ, one text a kind; empty where they agree or one of them is not known."""
    evidence: str = "fake-driver"

    @property
    def gap(self) -> int | None:
        """Physical minus ledger."""
        return None if self.physical is None or self.ledger is None else self.physical - self.ledger


def from_rows(
    rows: Iterable[Mapping[str, Any]], cards: Iterable[Mapping[str, Any]], *, evidence: str = "fake-driver"
) -> tuple[Quantities, ...]:
    """Rows as `lab.runner.quantities` writes them: ``physical`` by kind or null, ``ledger`` by kind, a sum, or null."""
    known = [Card(**card) for card in cards]
    found = []
    for row in rows:
        device, held, booked = int(row["device"]), row["physical"], row["ledger"]
        card = known[device] if 0 <= device < len(known) else Card()
        found.append(
            Quantities(
                at=str(row["at"]),
                container=str(row["container"]),
                process=str(row["process"]),
                device=device,
                host_pid=int(row["host_pid"]),
                physical=None if held is None else sum(held.values()),
                limit=int(row["limit"]),
                ledger=sum(booked.values()) if isinstance(booked, Mapping) else booked,
                observed=row["observed"],
                gaps=() if held is None or booked is None else tuple(explain(held, booked, card)),
                evidence=evidence,
            )
        )
    return tuple(found)


# ---- why ----


def explain(held: Mapping[str, int], booked: Mapping[str, int] | int, card: Card) -> Iterator[str]:
    """One text for each kind of memory in which ledger and driver differ. A ledger that knows no kinds is compared in
    its sum, and the kinds that make up the difference are named where they can be told."""
    if not isinstance(booked, Mapping):
        yield from _explain_sum(held, booked, card)
        return
    kinds = sorted({*held, *booked} - {*PLAIN})
    sums = {"sync": (sum(held.get(k, 0) for k in PLAIN), sum(booked.get(k, 0) for k in PLAIN))}
    sums |= {kind: (held.get(kind, 0), booked.get(kind, 0)) for kind in kinds}
    for kind, (there, counted) in sums.items():
        if there > counted:
            yield f"{kind}: {_mib(there - counted)} held and not booked ({_why_held(kind, there - counted, card)})"
        elif there < counted:
            yield f"{kind}: {_mib(counted - there)} booked and not held ({_why_booked(kind)})"


def _why_held(kind: str, size: int, card: Card) -> str:
    if kind == "context":
        each = card.context_bytes
        count = size // each if each and size % each == 0 else 0
        what = f"{count} of {_mib(each)} each, " if count else ""
        return f"context: {what}booked as HOOKLAB_CONTEXT_BYTES says"
    if kind == "other":
        return " + ".join(_hidden(size, card))
    return {
        "module": "module: code and variables of loaded modules",
        "async": "pool idle: a pool holds whole steps of 32 MiB, and keeps them after a free",
        "vmm": "physical memory that no handle in the books stands for, as an import has it",
        "managed": "managed memory is not booked here (CUDA_OVERSUBSCRIBE)",
    }.get(kind, "allocated past the interposer, or a block of 2 MiB counted by the byte")


def _why_booked(kind: str) -> str:
    return {
        "managed": "managed memory is booked when it is asked for, held when it is touched",
        "async": "a pool gave memory back that nobody has looked at since",
        "context": "HOOKLAB_CONTEXT_BYTES is more than a context takes here",
        "pending": "reserved, the driver call is under way",
        "vmm": "given up by the driver, not by the books",
    }.get(kind, "freed past the interposer")


def _hidden(size: int, card: Card) -> list[str]:
    """What the driver takes by itself, by the figures of the profile: the largest combination that fits."""
    known = [
        ("printf buffer, with the first module that prints", card.printing_bytes),
        ("device functions, with the first module that allocates", card.allocating_bytes),
        ("device heap, at the first launch that allocates", HEAP_DEFAULT),
    ]
    known = [(name, each) for name, each in known if each]
    best: tuple[tuple[str, int], ...] = ()
    for number in range(1, len(known) + 1):
        for some in combinations(known, number):
            total = sum(each for _, each in some)
            if total <= size and total > sum(each for _, each in best):
                best = some
    rest = size - sum(each for _, each in best)
    said = [f"{name}: {_mib(each)}" for name, each in best]
    if rest:
        said.append(
            f"local memory of a kernel's first launch, a larger heap or arrays that share a block: {_mib(rest)}"
        )
    return said


def _explain_sum(held: Mapping[str, int], booked: int, card: Card) -> Iterator[str]:
    gap = sum(held.values()) - booked
    if not gap:
        return
    if gap < 0:
        yield f"{_mib(-gap)} booked and not held (the ledger tells no kinds)"
        return
    kinds = [(kind, size) for kind, size in sorted(held.items()) if size]
    for number in range(1, len(kinds) + 1):
        for some in combinations(kinds, number):
            if sum(size for _, size in some) == gap:
                for kind, size in some:
                    yield f"{kind}: {_mib(size)} held and not booked ({_why_held(kind, size, card)})"
                return
    parts = ", ".join(f"{kind} {_mib(size)}" for kind, size in kinds)
    yield f"{_mib(gap)} held and not booked: no kind alone explains it; the driver holds {parts}"


def _mib(size: int) -> str:
    return f"{size / MIB:,.1f} MiB"


# ---- peaks ----


def peaks(scenario: Scenario, run: RunData) -> tuple[Quantities, ...]:
    """Each process at the moment at which its container held most on a device, from the records of driver and shim.

    The moment is the last one before the driver's sum falls again, so that a call under way has settled. A program that
    numbers the devices in its own way is left out: its ledger speaks of others than the driver.
    """
    changes, ledger = run.history.of("PHYS"), run.history.of("LEDGER")
    rows: list[dict[str, Any]] = []
    for container in scenario.containers:
        if renumbers(scenario, container.environment, *(one.environment for one in container.processes)):
            continue
        mine = changes[changes["container"] == container.index]
        told = ledger[ledger["container"] == container.index]
        for device in sorted(set(mine["device"].tolist())):
            held = mine[mine["device"] == device]
            moment = _last_of_the_peak(held)
            before = told[(told["device"] == device) & (told["time_ns"] < moment)]
            limit = container.memory_limit(device) or 0
            for row in _at(held[held["time_ns"] < moment], before if told.size else None, scenario, run, moment):
                rows.append({"at": "peak", "container": container.name, "device": device, "limit": limit, **row})
    cards = run.info.get("cards") or ()
    for row in rows:  # what NVML would say then, by its rule: bytes, and its own figure of a context
        card = Card(**cards[row["device"]]) if row["device"] < len(cards) else Card()
        contexts = round(row["physical"].get("context", 0) / card.context_bytes) if card.context_bytes else 0
        row["observed"] = max(0, sum(row["physical"].values()) + contexts * card.context_extra)
    return from_rows(rows, cards, evidence=run.evidence)


def renumbers(scenario: Scenario, *environments: Mapping[str, str]) -> bool:
    """Whether a program's device numbers may be others than the node's: of a cut card it numbers the parts."""
    chosen = any({"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"} & set(one) for one in environments)
    return chosen or any(load_profile(gpu).cuts is not None for gpu in scenario.node.gpus)


def _last_of_the_peak(held: Records) -> int:
    used = held["b"].astype(np.int64)
    top = int(used.argmax())
    lower = np.flatnonzero(used[top:] < used[top])
    return int(held["time_ns"][top + int(lower[0])]) if lower.size else 2**63


def _at(held: Records, told: Records | None, scenario: Scenario, run: RunData, moment: int) -> Iterator[dict[str, Any]]:
    exits = run.history.of("EXIT")
    gone = set(exits[exits["time_ns"] < moment]["process"].tolist()) if moment < 2**63 else set()
    indices = set(held["process"].tolist()) | (set(told["process"].tolist()) if told is not None else set())
    labels = {instance.index: instance.label for instance in scenario.instances()}
    for index in sorted(indices - gone - {NONE16}):
        mine = held[held["process"] == index]
        physical = _by_kind(mine)
        booked = None if told is None else _by_kind(told[told["process"] == index])
        if any(physical.values()) or booked:
            yield {
                "process": labels.get(index, str(index)),
                "host_pid": int(mine["pid"][-1]) if mine.size else 0,
                "physical": physical,
                "ledger": booked,
            }


def _by_kind(records: Records) -> dict[str, int]:
    names = {int(n): k.removeprefix("HL_KIND_").lower() for k, n in constants().items() if k.startswith("HL_KIND_")}
    deltas = records["a"].astype(np.int64)
    found = {
        names.get(kind, "other"): int(deltas[records["extra"] == kind].sum()) for kind in set(records["extra"].tolist())
    }
    return {kind: size for kind, size in found.items() if size}


# ---- over time, for a picture ----


def timeline(run: RunData, container: int, device: int) -> dict[str, list[tuple[int, int]]]:
    """``physical`` and ``ledger`` of a container on a device: (ns since the first record, bytes) at each change."""
    records = run.history.records
    start = int(records["time_ns"][0]) if records.size else 0
    found: dict[str, list[tuple[int, int]]] = {}
    for name in ("PHYS", "LEDGER"):
        mine = records[
            (records["event"] == event(name)) & (records["container"] == container) & (records["device"] == device)
        ]
        if name == "LEDGER":
            mine = mine[mine["a"] != 0]
        points = zip(mine["time_ns"].tolist(), mine["b"].astype(np.int64).tolist(), strict=True)
        found["physical" if name == "PHYS" else "ledger"] = [(time - start, max(0, size)) for time, size in points]
    return found
