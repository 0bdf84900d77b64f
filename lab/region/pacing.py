"""What the limiters of a container say of themselves: state, target and achieved share, who was paced and who not.

Read from the region file without any lock; numbers of one moment may be a launch apart.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from lab.region._file import Region
from lab.spec import load_layout

_CONSTANTS = load_layout("hooklab-1").constants


def _names(prefix: str) -> dict[int, str]:
    return {
        value: name.removeprefix(prefix).lower()
        for name, value in _CONSTANTS.items()
        if name.startswith(prefix) and isinstance(value, int)
    }


STATES = _names("HL_PACING_")
ENTRIES = _names("HL_ENTRY_")
REASONS = _names("HL_UNPACED_")


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
    pid: int
    state: str
    policy: str
    instead: bool
    """Of one that HOOKLAB_PACING asked for and that cannot be used."""
    identity_tier: int
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

    def lines(self) -> list[str]:
        """The same in words, one fact a line."""
        if self.state == "none":
            return ["none applies to this process: no device has a CUDA_DEVICE_SM_LIMIT of 1 to 99"]
        instead = " (what HOOKLAB_PACING asks for cannot be used)" if self.instead else ""
        tier = self.identity_tier or "unknown"
        said = [f"{self.state}; policy {self.policy or 'unknown'}{instead}; identity tier {tier}"]
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


def read_pacing(path: str | os.PathLike[str]) -> tuple[ProcessPacing, ...]:
    """Every living process of a region file. RegionError when it is none of ours."""
    now = time.monotonic_ns()
    with Region.open(Path(path)) as region:
        devices = tuple(_device(region, number, now) for number in range(16) if int(region.devices[number]["sm_limit"]))
        return tuple(_process(region, process.slot, process.pid, devices) for process in region.processes())


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


def _process(region: Region, slot: int, pid: int, devices: tuple[DevicePacing, ...]) -> ProcessPacing:
    row = region.slots[slot]

    def counts(field: str, names: dict[int, str]) -> dict[str, int]:
        return {names.get(i, str(i)): int(value) for i, value in enumerate(row[field]) if int(value)}

    return ProcessPacing(
        slot=slot,
        pid=pid,
        state=STATES.get(int(row["pacing_state"]), "unknown"),
        policy=bytes(row["pacing_policy"]).split(b"\0")[0].decode(errors="replace"),
        instead=bool(row["pacing_instead"]),
        identity_tier=int(row["identity_tier"]),
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
