"""What the limiters of a container say of themselves: state, target and achieved share, who was paced and who not.

Read from the region file without any lock; numbers of one moment may be a launch apart. A slot keeps what its process
wrote when that has ended, until another process takes it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from lab.region._file import Region
from lab.spec import load_layout
from lab.spec.mapped import taken

_CONSTANTS = load_layout("hooklab-1").constants


def _names(prefix: str, layout: str = "hooklab-1") -> dict[int, str]:
    return {
        value: name.removeprefix(prefix).lower()
        for name, value in load_layout(layout).constants.items()
        if name.startswith(prefix) and isinstance(value, int)
    }


STATES = _names("HL_PACING_")
ENTRIES = _names("HL_ENTRY_")
REASONS = _names("HL_UNPACED_")
TIERS = _names("HL_TIER_", "history")
FAILED = ("fault", "absent", "blind", "switched")
"""States in which a limit is not kept although one is set."""


@dataclass(frozen=True, slots=True)
class DevicePacing:
    """One device of the container. Percent; `sample_age_s` None: no sample yet."""

    device: int
    target: int
    achieved: float | None
    """In the last whole second of activity; None before there was one."""
    achieved_age_s: float | None
    sample_age_s: float | None
    sample_usable: bool
    neighbours: int


@dataclass(frozen=True, slots=True)
class ProcessPacing:
    """One process."""

    slot: int
    generation: int
    """Of the slot when it was taken: tells it from all others of the region."""
    pid: int
    """In its own namespace."""
    pid_namespace: int
    comm: str
    state: str
    policy: str
    instead: bool
    """Of one that HOOKLAB_PACING asked for and that cannot be used."""
    identity: str
    """Who told its host PID: `broker`, `procfs`, `probe`; empty while it is unknown."""
    paced: dict[str, int]
    unpaced: dict[str, int]
    unpaced_why: dict[str, int]
    slept_s: float
    waits: int
    longest_s: float
    leases: int
    dropped: int
    measured_s: float
    devices: tuple[DevicePacing, ...]

    @property
    def unlimited(self) -> bool:
        """A limit is set, and launches that it is meant for have passed beside it, or do so now."""
        passed = {reason: count for reason, count in self.unpaced_why.items() if reason not in ("host", "capture")}
        return self.state in FAILED or (self.state not in ("none", "off") and bool(passed))

    def as_json(self) -> dict[str, Any]:
        """For run.json and reports."""
        return asdict(self)

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Self:
        """The other way round."""
        values = {name: row[name] for name in cls.__dataclass_fields__}
        return cls(**{**values, "devices": tuple(DevicePacing(**device) for device in row["devices"])})

    def lines(self) -> list[str]:
        """The same in words, one fact a line."""
        if self.state == "none":
            return ["none applies to this process: no device has a CUDA_DEVICE_SM_LIMIT of 1 to 99"]
        instead = " (what HOOKLAB_PACING asks for cannot be used)" if self.instead else ""
        said = [f"{self.state}; policy {self.policy or 'unknown'}{instead}; identity tier {self.identity or 'unknown'}"]
        for device in self.devices:
            achieved = "not measured yet" if device.achieved is None else f"{device.achieved:.1f} %"
            age = "" if device.achieved_age_s is None else f" ({device.achieved_age_s:.1f} s ago)"
            sample = "none" if device.sample_age_s is None else f"{device.sample_age_s:.1f} s old"
            usable = "" if device.sample_usable else ", not usable: NVML or the host PIDs are unknown"
            said.append(
                f"device {device.device}: target {device.target} %, container achieved {achieved}{age}; "
                f"NVML sample {sample}{usable}; {device.neighbours} neighbours"
            )
        said.append(f"paced: {_counts(self.paced)}; unpaced: {_counts(self.unpaced)}")
        if self.unpaced_why:
            said.append(f"unpaced because: {_counts(self.unpaced_why)}")
        said.append(
            f"slept {self.slept_s:.3f} s in {self.waits} launches, longest {self.longest_s:.3f} s; "
            f"{self.leases} leases; own kernels took {self.measured_s:.3f} s; {self.dropped} measurements given up"
        )
        return said


def read_pacing(path: str | os.PathLike[str], *, ended: bool = False) -> tuple[ProcessPacing, ...]:
    """Every living process of a region file; with `ended` also those whose slot nobody has taken since.

    RegionError when it is none of ours.
    """
    with Region.open(Path(path)) as region:
        devices = _devices(region)
        used = taken(region.slots["generation"] if ended else region.slots["state"])
        return tuple(from_slot(region.slots[slot], devices, slot=int(slot)) for slot in used)


def read_devices(path: str | os.PathLike[str]) -> tuple[DevicePacing, ...]:
    """The devices alone. RegionError when the file is no region of ours."""
    with Region.open(Path(path)) as region:
        return _devices(region)


def _devices(region: Region) -> tuple[DevicePacing, ...]:
    """Those with a core limit on which something was launched; before that the first one only: a limit of all devices
    is one of all ordinals, and nobody says here how many devices there are."""
    now = time.monotonic_ns()
    limited = [number for number in range(len(region.devices)) if int(region.devices[number]["sm_limit"])]
    used = [number for number in limited if int(region.devices[number]["first_launch"])]
    return tuple(_device(region, number, now) for number in used or limited[:1])


def _device(region: Region, number: int, now: int) -> DevicePacing:
    row = region.devices[number]

    def age(field: str) -> float | None:
        return max(0, now - int(row[field])) / 1e9 if int(row[field]) else None

    return DevicePacing(
        device=number,
        target=int(row["sm_limit"]),
        achieved=int(row["achieved"]) / 100 if int(row["achieved_at"]) else None,
        achieved_age_s=age("achieved_at"),
        sample_age_s=age("sample_time"),
        sample_usable=bool(int(row["sample_flags"]) & _CONSTANTS["HL_SAMPLE_USABLE"]),
        neighbours=int(row["neighbours"]),
    )


def from_slot(row: Any, devices: tuple[DevicePacing, ...], *, slot: int = -1) -> ProcessPacing:
    """What one record hl_region_slot says."""

    def counts(field: str, names: dict[int, str]) -> dict[str, int]:
        return {names.get(i, str(i)): int(value) for i, value in enumerate(row[field]) if int(value)}

    return ProcessPacing(
        slot=slot,
        generation=int(row["generation"]),
        pid=int(row["pid"]),
        pid_namespace=int(row["pid_namespace"]),
        comm=bytes(row["comm"]).split(b"\0")[0].decode(errors="replace"),
        state=STATES.get(int(row["pacing_state"]), "unknown"),
        policy=bytes(row["pacing_policy"]).split(b"\0")[0].decode(errors="replace"),
        instead=bool(row["pacing_instead"]),
        identity=TIERS.get(int(row["identity_tier"]), "another") if row["host_pid"] else "",
        paced=counts("paced", ENTRIES),
        unpaced=counts("unpaced", ENTRIES),
        unpaced_why=counts("unpaced_why", REASONS),
        slept_s=int(row["slept"]) / 1e9,
        waits=int(row["waits"]),
        longest_s=int(row["longest"]) / 1e9,
        leases=int(row["leases"]),
        dropped=int(row["dropped"]),
        measured_s=int(row["own_measured"]) / 1e9,
        devices=devices,
    )


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{value} {name}" for name, value in counts.items()) or "none"
