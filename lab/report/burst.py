"""What a start-up burst showed: figures from the raw records of ``burst.json`` (schema hooklab.burst/1).

Every percentile is nearest rank over all workers that were started; one that failed counts as never finished, so that
failing the slow tail makes a figure worse, never better. None in a figure means: that rank did not finish.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.report.model import ReportError

SCHEMA = "hooklab.burst/1"
NEVER = math.inf
RANKS = (50, 95, 99, 100)
SEGMENTS = {  # (from, to) -> what passes between them
    ("worker_enter", "wrapper_enter"): "to the wrapper",
    ("wrapper_enter", "region_enter"): "before the region",
    ("worker_enter", "region_enter"): "before the region",
    ("region_enter", "region_acquired"): "waiting for the region",
    ("region_acquired", "region_released"): "holding the region",
    ("region_released", "real_enter"): "to the driver",
    ("wrapper_enter", "real_enter"): "before the driver",
    ("worker_enter", "real_enter"): "before the driver",
    ("real_enter", "real_exit"): "driver's cuInit",
    ("real_exit", "identity_enter"): "waiting for identity",
    ("identity_enter", "identity_exit"): "identity",
    ("identity_exit", "postinit_exit"): "after identity",
    ("identity_exit", "worker_exit"): "after identity",
    ("real_exit", "postinit_exit"): "post-init",
    ("real_exit", "wrapper_exit"): "post-init",
    ("real_exit", "worker_exit"): "after the driver",
    ("postinit_exit", "wrapper_exit"): "leaving",
    ("wrapper_exit", "worker_exit"): "leaving",
    ("worker_enter", "worker_exit"): "cuInit, undivided",
}
INSIDE = tuple(dict.fromkeys(name for pair in SEGMENTS for name in pair))


@dataclass(frozen=True, kw_only=True)
class Summary:
    """One burst. Times in ns; ``percentiles`` by rank in percent, None where that rank never finished."""

    workers: int
    ok: int
    failed: Mapping[str, int]
    percentiles: Mapping[int, int | None]
    mean_ns: float | None
    summed_ns: int
    wall_ns: int
    release_p99_ns: int | None
    alloc_failed: int


@dataclass(frozen=True, kw_only=True)
class Row:
    """All repetitions of one burst. ``p99_ns`` etc. are means over repetitions (None when one never finished);
    ``variation`` is the sample coefficient of variation of p99, None for a single one."""

    condition: str
    interposer: str
    workers: int
    repeats: int
    ok: int
    failed: Mapping[str, int]
    percentiles: Mapping[int, float | None]
    mean_ns: float | None
    summed_ns: float
    wall_ns: float
    release_p99_ns: float | None
    variation: float | None
    alloc_failed: int
    counts: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class Line:
    """p99 against workers: least squares (ns, ns a worker, R squared) and the slopes between neighbouring counts."""

    condition: str
    interposer: str
    intercept_ns: float
    slope_ns: float
    r_squared: float
    slopes: tuple[tuple[int, int, float], ...]


@dataclass(frozen=True, kw_only=True)
class ControlResult:
    """What a control showed: ``figure_ns`` = with - without; ``measured`` is its sign, ``?`` when it cannot be told."""

    name: str
    theory: str
    interposer: str
    workers: int
    predicted: str
    measured: str
    figure_ns: float | None
    base_ns: float | None

    @property
    def outcome(self) -> str:
        """holds, loses or unknown."""
        if self.measured == "?":
            return "unknown"
        return "holds" if self.measured == self.predicted else "loses"


def load_burst(directory: str | Path) -> dict[str, Any]:
    """The document of a burst's run directory. ReportError in one line."""
    path = Path(directory) / "burst.json"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ReportError(f"{path}: {error.strerror}; give the run directory of a burst") from None
    except ValueError as error:
        raise ReportError(f"{path}: not JSON ({error}); the run directory is damaged") from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise ReportError(f"{path}: not written by this version ({SCHEMA})")
    return document


def is_burst(directory: str | Path) -> bool:
    """Whether a run directory is one of a burst."""
    return (Path(directory) / "burst.json").is_file()


def nearest_rank(values: Sequence[float], percent: float) -> float:
    """The ceil(percent/100 * n)-th smallest of ``values`` (NEVER for one that did not finish)."""
    if not values:
        return NEVER
    return sorted(values)[max(1, math.ceil(percent * len(values) / 100)) - 1]


def latencies(raw: Iterable[Mapping[str, Any]]) -> list[float]:
    """cuInit of every worker in ns, NEVER for one that failed."""
    return [float(one["cuinit_ns"]) if one["ok"] and one["cuinit_ns"] is not None else NEVER for one in raw]


def _finite(value: float) -> int | None:
    return None if math.isinf(value) else round(value)


def summarise(run: Mapping[str, Any]) -> Summary:
    """The figures of one burst."""
    raw = run["raw"]
    times = latencies(raw)
    done = [value for value in times if not math.isinf(value)]
    failed: dict[str, int] = {}
    for one in raw:
        if not one["ok"]:
            failed[one["reason"] or "no result"] = failed.get(one["reason"] or "no result", 0) + 1
    offsets = [float(one["phases"].get("worker_enter", NEVER)) for one in raw]
    return Summary(
        workers=len(raw),
        ok=len(done),
        failed=failed,
        percentiles={rank: _finite(nearest_rank(times, rank)) for rank in RANKS},
        mean_ns=sum(done) / len(done) if len(done) == len(times) and done else None,
        summed_ns=round(sum(done)),
        wall_ns=run["wall_ns"],
        release_p99_ns=_finite(nearest_rank(offsets, 99)),
        alloc_failed=sum(1 for one in raw if one.get("alloc")),
    )


def _mean(values: Sequence[float | int | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def _groups(document: Mapping[str, Any]) -> dict[tuple[str, str, int], list[Mapping[str, Any]]]:
    groups: dict[tuple[str, str, int], list[Mapping[str, Any]]] = {}
    for run in document["runs"]:
        groups.setdefault((run["condition"], run["interposer"], run["workers"]), []).append(run)
    return dict(sorted(groups.items()))


def rows(document: Mapping[str, Any]) -> list[Row]:
    """One row a condition, interposer and number of workers."""
    found = []
    for (condition, interposer, workers), runs in _groups(document).items():
        each = [summarise(run) for run in runs]
        p99 = [one.percentiles[99] for one in each]
        known = [value for value in p99 if value is not None]
        failed: dict[str, int] = {}
        counts: dict[str, int] = {}
        for one, run in zip(each, runs, strict=True):
            for reason, number in one.failed.items():
                failed[reason] = failed.get(reason, 0) + number
            for name, number in run.get("counts", {}).items():
                counts[name] = counts.get(name, 0) + number
            for worker in run["raw"] if document.get("evidence") != "simulated" else ():
                path = f"identity {worker.get('identity') or 'not asked'}"
                counts[path] = counts.get(path, 0) + 1
        found.append(
            Row(
                condition=condition,
                interposer=interposer,
                workers=workers,
                repeats=len(runs),
                ok=sum(one.ok for one in each),
                failed=failed,
                percentiles={rank: _mean([one.percentiles[rank] for one in each]) for rank in RANKS},
                mean_ns=_mean([one.mean_ns for one in each]),
                summed_ns=sum(one.summed_ns for one in each) / len(each),
                wall_ns=sum(one.wall_ns for one in each) / len(each),
                release_p99_ns=_mean([one.release_p99_ns for one in each]),
                variation=statistics.stdev(known) / statistics.mean(known)
                if len(known) == len(p99) > 1 and statistics.mean(known)
                else None,
                alloc_failed=sum(one.alloc_failed for one in each),
                counts=counts,
            )
        )
    return found


def lines(table: Iterable[Row]) -> list[Line]:
    """How p99 grows with the number of workers, for every condition seen at three counts or more."""
    series: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for row in table:
        p99 = row.percentiles[99]
        if p99 is not None:
            series.setdefault((row.condition, row.interposer), []).append((row.workers, p99))
    return [
        _line(condition, interposer, sorted(points))
        for (condition, interposer), points in series.items()
        if len(points) > 2
    ]


def _line(condition: str, interposer: str, points: Sequence[tuple[int, float]]) -> Line:
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    intercept = mean_y - slope * mean_x
    total = sum((y - mean_y) ** 2 for _, y in points)
    rest = sum((y - intercept - slope * x) ** 2 for x, y in points)
    return Line(
        condition=condition,
        interposer=interposer,
        intercept_ns=intercept,
        slope_ns=slope,
        r_squared=1 - rest / total if total else 1.0,
        slopes=tuple((x0, x1, (y1 - y0) / (x1 - x0)) for (x0, y0), (x1, y1) in itertools.pairwise(points)),
    )


def composition(run: Mapping[str, Any]) -> dict[int, dict[str, int]]:
    """For the p50, p95, p99 and slowest worker of one burst: ns by segment of its cuInit. Ranks that never finished
    are left out. The segments of a worker add up to the time between its entry and its return."""
    raw = [one for one in run["raw"] if one["ok"]]
    times = sorted(((one["cuinit_ns"], one["worker"], one) for one in raw), key=lambda item: item[:2])
    everyone = len(run["raw"])
    found = {}
    for rank in RANKS:
        at = max(1, math.ceil(rank * everyone / 100)) - 1
        if at < len(times):
            found[rank] = segments(times[at][2]["phases"])
    return found


def inside(phases: Mapping[str, int]) -> list[tuple[int, int, str]]:
    """(time, order, phase) of what lies within one worker's cuInit, sorted; what is done lazily later is not of it."""
    end = phases.get("worker_exit", NEVER)
    return sorted((phases[name], INSIDE.index(name), name) for name in INSIDE if name in phases and phases[name] <= end)


def segments(phases: Mapping[str, int]) -> dict[str, int]:
    """Ns by segment between neighbouring phases of one worker's cuInit."""
    known = inside(phases)
    found: dict[str, int] = {}
    for (begin, _, first), (end, _, second) in itertools.pairwise(known):
        name = SEGMENTS.get((first, second), f"{first} to {second}")
        found[name] = found.get(name, 0) + end - begin
    return found


# -- controls --------------------------------------------------------------------------------------------------------

KILLED = "killed by SIGKILL"
SAME = 0.10  # of the base: less than that is no difference


def controls(document: Mapping[str, Any]) -> list[ControlResult]:
    """Every control of the document, by interposer and number of workers."""
    groups = _groups(document)
    found = []
    for control in document.get("controls", ()):
        places = {(interposer, workers) for name, interposer, workers in groups if name in control["conditions"]}
        if any(interposer != "none" for interposer, _ in places):  # then none only lends its runs
            places = {place for place in places if place[0] != "none"}
        for interposer, workers in sorted(places):
            runs = [
                groups.get((name, interposer, workers)) or groups.get((name, "none", workers), [])
                for name in control["conditions"]
            ]
            base, figure = _figure(control["figure"], runs)
            found.append(
                ControlResult(
                    name=control["name"],
                    theory=control["theory"],
                    interposer=interposer,
                    workers=workers,
                    predicted=control["predicted"],
                    measured=_sign(base, figure),
                    figure_ns=None if figure is None or math.isinf(figure) else figure,
                    base_ns=None if base is None or math.isinf(base) else base,
                )
            )
    return found


def _sign(base: float | None, figure: float | None) -> str:
    if base is None or figure is None or math.isnan(figure):
        return "?"
    if math.isinf(figure):
        return "+" if figure > 0 else "-"
    if abs(figure) <= SAME * base:
        return "0"
    return "+" if figure > 0 else "-"


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _parts(runs: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    return [float(ns) for run in runs for one in run["raw"] for part, ns in one.get("parts", ()) if part == name]


def _difference(before: float | None, after: float | None) -> tuple[float | None, float | None]:
    return before, None if before is None or after is None else after - before


def _figure(kind: str, runs: Sequence[Sequence[Mapping[str, Any]]]) -> tuple[float | None, float | None]:
    """(what it is compared with, with - without) in ns."""
    first, last = runs[0], runs[-1]
    if kind == "context_minus_nvml":
        context = [_median(_parts(first, name)) for name in ("retain", "release")]
        nvml = [
            _median(_parts(first, "nvml_init")),
            _median(_parts(first, "snapshot")),
            _median(_parts(first, "snapshot")),
        ]
        if None in context or None in nvml:
            return None, None
        return _difference(sum(value for value in nvml if value), sum(value for value in context if value))
    if kind == "nested_minus_first":
        return _difference(_median(_parts(first, "retain")), _median(_parts(first, "retain_nested")))
    if kind == "retain_with_holder":
        return _difference(_median(_parts(first, "retain")), _median(_parts(last, "retain")))
    if kind == "slowest":  # of those that nobody killed
        groups = [
            [[one for one in run["raw"] if KILLED not in one["reason"]] for run in group] for group in (first, last)
        ]
    else:
        groups = [[run["raw"] for run in group] for group in (first, last)]
    rank = 99 if kind == "p99" else 100
    before, after = (_median([nearest_rank(latencies(raw), rank) for raw in group]) for group in groups)
    return _difference(before, after)


# -- comparison ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Change:
    """One row of two documents. ``ratio`` is B/A of p99, None where it says nothing; ``words`` why."""

    condition: str
    interposer: str
    workers: int
    first: Row | None
    second: Row | None
    ratio: float | None
    words: str


def compare(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[Change]:
    """Rows of A beside those of B. Never a ratio across evidence classes, nor where more workers fail than before."""
    mine = {(row.condition, row.interposer, row.workers): row for row in rows(first)}
    theirs = {(row.condition, row.interposer, row.workers): row for row in rows(second)}
    mixed = first["evidence"] != second["evidence"]
    found = []
    for key in sorted(mine.keys() | theirs.keys()):
        one, other = mine.get(key), theirs.get(key)
        ratio, words = None, ""
        if one is None or other is None:
            words = f"only in {'B' if one is None else 'A'}"
        elif mixed:
            words = f"evidence differs: {first['evidence']} and {second['evidence']}"
        else:
            ratio, words = _ratio(one, other)
        found.append(
            Change(
                condition=key[0],
                interposer=key[1],
                workers=key[2],
                first=one,
                second=other,
                ratio=ratio,
                words=words,
            )
        )
    return found


def _ratio(one: Row, other: Row) -> tuple[float | None, str]:
    share, other_share = (1 - row.ok / (row.workers * row.repeats) for row in (one, other))
    before, after = one.percentiles[99], other.percentiles[99]
    if other_share > share:
        return None, f"worse: {other_share:.1%} of the workers fail, {share:.1%} before"
    if after is None:
        return None, "p99 never finishes in both" if before is None else "worse: p99 never finishes"
    if before is None:
        return None, "better: p99 finishes now"
    return after / before if before else None, ""
