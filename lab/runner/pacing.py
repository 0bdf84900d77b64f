"""Grades controllers of compute time with real processes: on a fake node, or on a real GPU.

Each tenant is a `hooklab-bench --load` process with its own region and core limit. What it got is told by a clock that
the controller does not see: the fake node's busy intervals, or on a real GPU stamps that the kernel writes (work done,
in the time that it takes alone), never the controller's own events.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lab import native
from lab.policy.pacing.duty import CORRECTION, ONE
from lab.runner.guest import interposer_path
from lab.spec import Profile, load_profile

PATTERNS = (
    "async",
    "short",
    "sync",
    "long",
    "burst",
    "modest",
    "mixed",
    "changing",
    "giant",
    "ex",
    "cooperative",
    "graph",
)
SAID = (
    "own_measured_ns",
    "own_samples_ns",
    "samples",
    "sample_flags",
    "correction",
    "slept_ns",
    "waits",
    "run_p50_ns",
    "pause_p50_ns",
)
SKIPPED_S = 3
"""Seconds after the start of the last tenant that are not graded, as in simulation; shorter runs skip one."""


class PacingError(Exception):
    """A run gave no figures. One line with the reason."""


@dataclass(frozen=True, slots=True)
class Graded:
    """One tenant: mean share over the graded time and each second's, percent; times of its launch calls, ns."""

    target: int
    achieved: float
    windows: tuple[float, ...]
    launches: int
    launch: Mapping[str, int]
    cpu_percent: float
    said: Mapping[str, Any] = field(default_factory=dict)
    """What the limiter itself says; empty for a foreign one."""

    def settled_s(self) -> int | None:
        """The second from which five windows in a row are within 5 points, None if there is none.

        The seconds that are not graded are counted in: it is no earlier than SKIPPED_S.
        """
        good = [abs(window - self.target) <= 5 for window in self.windows]
        return next((SKIPPED_S + first for first in range(len(good) - 4) if all(good[first : first + 5])), None)

    def as_json(self) -> dict[str, Any]:
        """As one of `tenants`."""
        errors = [abs(window - self.target) for window in self.windows]
        return {
            "target": self.target,
            "achieved": round(self.achieved, 3),
            "mae": round(statistics.fmean(errors), 3) if errors else None,
            "long_run_error": round(abs(self.achieved - self.target), 3),
            "windows": [round(window, 3) for window in self.windows],
            "settled_s": self.settled_s(),
            "launches": self.launches,
            "launch_wait_p50_ns": self.launch.get("launch_p50_ns"),
            "launch_wait_p99_ns": self.launch.get("launch_p99_ns"),
            "launch_wait_max_ns": self.launch.get("launch_max_ns"),
            "cpu_percent": round(self.cpu_percent, 3),
            **self.said,
        }


def run_pacing(
    *,
    policies: Sequence[str],
    targets: Sequence[int] = (30,),
    patterns: Sequence[str] = ("async",),
    neighbours: Sequence[str] = ("",),
    gpu: str = "h200-141g",
    sms: Sequence[int] = (),
    switch_ns: int | None = None,
    window_s: float = 10.0,
    seed: int = 1,
    on: str = "fake",
    interposer: str = "builtin",
    progress: Callable[[str], None] | None = None,
) -> list[dict[str, Any]]:
    """One row for each policy, pattern and target (alone), or for each policy, pattern and list such as "30/70".

    A pattern such as "sync+async" is of the tenants in turn; nobody is alone with it. `sms`, `switch_ns`: on the fake,
    instead of the profile's number of SMs (a row each) and time of a switch between processes. `window_s`: how long
    each is graded, seconds, in windows of one second. With a foreign `interposer` the policies' names are only labels.
    PacingError when a process fails.
    """
    unknown = [name for pattern in patterns for name in pattern.split("+") if name not in PATTERNS]
    if unknown:
        raise PacingError(f"pattern {unknown[0]}: known are {', '.join(PATTERNS)}")
    groups = [[target] for target in targets] if "" in neighbours else []
    groups += [_targets(text) for text in neighbours if text]
    if on == "real" and (sms or switch_ns is not None):
        raise PacingError("SMs and switches of a real GPU cannot be chosen")
    ps = _calibrate() if on == "real" else 0
    rows = []
    for policy, pattern, group, card in itertools.product(policies, patterns, groups, _cards(gpu, sms, switch_ns)):
        if "+" in pattern and len(group) == 1:
            continue
        count = 0 if on == "real" else card.number("compute.sm_count")
        if progress:
            progress(f"{policy}, {pattern}, {'/'.join(map(str, group))} %{f', {count} SMs' if sms else ''}")
        tenants = _play(policy, pattern, group, card, window_s, seed, on, interposer, ps)
        rows.append(_row(policy, pattern, tenants, count, seed, on))
    return rows


def _cards(gpu: str, sms: Sequence[int], switch_ns: int | None) -> list[Profile]:
    switch = {} if switch_ns is None else {"sharing.switch_ns": switch_ns, "sharing.idle_switch_ns": switch_ns}
    numbers = [{**switch, "compute.sm_count": count} for count in sms] or [switch]
    return [load_profile(gpu).changed(one, source="chosen for this run") for one in numbers]


def _targets(text: str) -> list[int]:
    try:
        found = [int(part) for part in text.split("/")]
    except ValueError:
        raise PacingError(f"neighbours {text}: write targets in percent with / between them, as 30/70") from None
    if not all(0 < target <= 100 for target in found):
        raise PacingError(f"neighbours {text}: targets are 1 to 100 percent")
    return found


def _row(policy: str, pattern: str, tenants: Sequence[Graded], sms: int, seed: int, on: str) -> dict[str, Any]:
    shares = [tenant.achieved / tenant.target for tenant in tenants]
    squares = sum(share * share for share in shares)
    return {
        "policy": policy,
        "target": tenants[0].target if len(tenants) == 1 else None,
        "pattern": pattern,
        "neighbours": "/".join(str(tenant.target) for tenant in tenants) if len(tenants) > 1 else "",
        "sm_count": sms,
        "evidence": "real-gpu" if on == "real" else "fake-driver",
        "seed": seed,
        "tenants": [tenant.as_json() for tenant in tenants],
        "jain": round(sum(shares) ** 2 / (len(shares) * squares), 4) if squares else 0.0,
        "lost": round(max(0.0, min(100, sum(t.target for t in tenants)) - sum(t.achieved for t in tenants)), 3),
    }


def _environment(policy: str, target: int, region: Path, interposer: str) -> dict[str, str]:
    environment = {
        "CUDA_DEVICE_SM_LIMIT": str(target),
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(region),
        "HOOKLAB_BOARD": str(region.with_name("board")),
        "HOOKLAB_REGION_LOCK": "robust",
        "HOOKLAB_HOST_NAMESPACE": str(os.stat("/proc/self/ns/pid").st_ino),
        "HOOKLAB_PACING": policy,
    }
    path = interposer_path(interposer)
    if path is not None:
        environment["LD_PRELOAD"] = str(path)
    return environment


def _clean() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith(("HOOKLAB_", "CUDA_DEVICE_", "LD_"))}


def _command(pattern: str, seconds: float, seed: int, ps: int) -> list[str]:
    keys = [f"pattern={pattern}", f"seconds={seconds}", f"seed={seed}"]
    return [str(native.path("hooklab-bench")), "--load", *keys, *([f"ps={ps}", "real=1"] if ps else [])]


def _play(
    policy: str,
    pattern: str,
    targets: Sequence[int],
    card: Profile,
    window_s: float,
    seed: int,
    on: str,
    interposer: str,
    ps: int,
) -> list[Graded]:
    from lab.node.server import NodeServer

    skipped = SKIPPED_S if window_s >= 5 else 1
    seconds = window_s + skipped + 0.5
    with tempfile.TemporaryDirectory(prefix="hooklab-pacing-") as folder:
        if on == "real":
            ended = _run(policy, pattern, targets, seconds, seed, interposer, ps, _clean(), Path(folder))
            return [_grade_real(t, report, skipped, window_s) for t, report in zip(targets, ended, strict=True)]
        with NodeServer(gpus=[card], history_level=0) as node:
            base = _clean() | node.environment | {"LD_LIBRARY_PATH": str(native.path("fake/libcuda.so.1").parent)}
            ended = _run(policy, pattern, targets, seconds, seed, interposer, ps, base, Path(folder))
            ring = node.file.intervals[0].copy()
            begun = max(int(report["began_ns"]) for report in ended) + skipped * 1_000_000_000
            slots = _slots(node.file, [int(report["pid"]) for report in ended])
            return [
                _grade(target, report, ring[ring["slot"] == slot], begun, window_s)
                for target, report, slot in zip(targets, ended, slots, strict=True)
            ]


def _slots(file: Any, pids: Sequence[int]) -> list[int]:
    by_pid = {int(row["host_pid"]): index for index, row in enumerate(file.processes) if row["host_pid"]}
    return [by_pid[pid] for pid in pids]


def _run(
    policy: str,
    pattern: str,
    targets: Sequence[int],
    seconds: float,
    seed: int,
    interposer: str,
    ps: int,
    base: Mapping[str, str],
    folder: Path,
) -> list[dict[str, Any]]:
    running = []
    for number, target in enumerate(targets):
        environment = {**base, **_environment(policy, target, folder / f"region-{number}", interposer)}
        parts = pattern.split("+")
        command = _command(parts[number % len(parts)], seconds, seed + number, ps)
        running.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
    ended: list[dict[str, Any]] = []
    for process in running:
        try:
            out, err = process.communicate(timeout=seconds * 4 + 60)
        except subprocess.TimeoutExpired:
            for other in running:
                other.kill()
            raise PacingError(f"{policy}, {pattern}: not ended {seconds * 4 + 60:.0f} s after its start") from None
        if process.returncode:
            lines = err.strip().splitlines() or ["it said nothing"]
            raise PacingError(f"{policy}, {pattern}: exit {process.returncode}: {lines[-1]}")
        ended.append({**json.loads(out.splitlines()[-1]), "pid": process.pid, **_said(folder / f"region-{len(ended)}")})
    return ended


def _said(region: Path) -> dict[str, Any]:
    """What the limiter itself measured: GPU-ns of its container, how its samples were made; empty without a region."""
    if not region.exists():
        return {}
    from lab.region import Region

    with Region.open(region) as opened:
        device = opened.devices[0]
        return {
            "own_measured_ns": int(device["measured"]),
            "own_samples_ns": int(device["sample_own_ns"]),
            "samples": int(device["sample_sequence"]),
            "sample_flags": int(device["sample_flags"]),
            "correction": int(device["policy"][CORRECTION]) / ONE,
            "slept_ns": int(opened.slots["slept"].sum()),
            "waits": int(opened.slots["waits"].sum()),
        }


def _grade(target: int, report: Mapping[str, Any], ring: npt.NDArray[Any], start: int, window_s: float) -> Graded:
    second = 1_000_000_000
    first, last = ring["start_ns"].astype(np.int64), ring["end_ns"].astype(np.int64)
    windows = []
    for number in range(int(window_s)):
        low, high = start + number * second, start + (number + 1) * second
        busy = int((last.clip(low, high) - first.clip(low, high)).clip(0).sum())
        windows.append(busy * 100 / second)
    return _graded(target, report, windows)


def _grade_real(target: int, report: Mapping[str, Any], skipped: int, window_s: float) -> Graded:
    per_second = 1_000_000_000 // int(report["cell_ns"])
    cells = report["cells"][skipped * per_second :]
    count = min(int(window_s), len(cells) // per_second)
    sums = [sum(cells[n * per_second : (n + 1) * per_second]) for n in range(count)]
    return _graded(target, report, [value * 100 / 1e9 for value in sums])


def _graded(target: int, report: Mapping[str, Any], windows: Sequence[float]) -> Graded:
    if not windows:
        raise PacingError("nothing to grade: the run ended before its first window")
    wall = int(report["ended_ns"]) - int(report["began_ns"])
    launch = {key: int(report[key]) for key in ("launch_p50_ns", "launch_p99_ns", "launch_max_ns") if key in report}
    return Graded(
        target=target,
        achieved=statistics.fmean(windows),
        windows=tuple(windows),
        launches=int(report["launches"]),
        launch=launch,
        cpu_percent=int(report["cpu_ns"]) * 100 / wall,
        said={key: report[key] for key in SAID if key in report},
    )


def _calibrate() -> int:
    """Picoseconds that one turn of the kernel takes on the real GPU alone, without any interposer."""
    command = [str(native.path("hooklab-bench")), "--load", "real=1", "ps=0"]
    done = subprocess.run(command, env=_clean(), capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise PacingError(
            f"the kernel cannot be timed: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}"
        )
    return int(json.loads(done.stdout.splitlines()[-1])["ps"])
