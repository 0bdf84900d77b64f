"""Controllers of compute time against each other: one leaderboard for the simulator, the fake and a real GPU.

A row is one run: ``{"policy", "target", "pattern", "neighbours", "sm_count", "evidence", "seed", "tenants": [{"target",
"achieved", "mae", "long_run_error", "windows", "settled_s", "launch_wait_p50_ns", "launch_wait_p99_ns",
"launch_wait_max_ns", "latency_p99_ns" (may be absent)}], "jain", "lost"}``. Shares and errors are in points, percent of
the GPU; ``windows`` are seconds. Rows of different evidence never share a line.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

Row = Mapping[str, Any]
_T95 = (
    12.71,
    4.30,
    3.18,
    2.78,
    2.57,
    2.45,
    2.36,
    2.31,
    2.26,
    2.23,
    2.20,
    2.18,
    2.16,
    2.14,
    2.13,
    2.12,
    2.11,
    2.10,
    2.09,
)


@dataclass(frozen=True)
class Figure:
    """A mean over seeds and half the width of its 95 % interval (None for a single one: nothing can be said)."""

    mean: float
    half: float | None

    def __str__(self) -> str:
        return f"{self.mean:.1f}" if self.half is None else f"{self.mean:.1f} ±{self.half:.1f}"


def figure(values: Sequence[float]) -> Figure:
    """Student's interval over `values`, at least one."""
    count = len(values)
    mean = math.fsum(values) / count
    if count < 2:
        return Figure(mean, None)
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    return Figure(mean, (_T95[count - 2] if count - 2 < len(_T95) else 1.96) * spread / math.sqrt(count))


@dataclass(frozen=True, kw_only=True)
class Line:
    """One controller in one case: means over seeds, of the worst tenant, on the worst of the GPUs tried."""

    case: str
    policy: str
    evidence: str
    mae: Figure
    worst_sms: int
    long_run: Figure
    jain: float | None  # the lowest; None for a tenant alone
    settled_s: float | None  # mean over the runs that settled
    unsettled: int
    runs: int
    wait_p50_ns: int  # the longest of all runs, as the two below
    wait_p99_ns: int
    wait_max_ns: int
    latency_p99_ns: int | None
    lost: float


def case_of(row: Row) -> str:
    """``async 30`` or ``async 30/70``."""
    return f"{row['pattern']} {row['neighbours'] or row['target']}"


def leaderboard(rows: Sequence[Row]) -> list[Line]:
    """By case in the order first seen; within a case the best controller first."""
    grouped: dict[tuple[str, str, str], dict[int, list[Row]]] = {}
    for row in rows:
        key = (case_of(row), str(row["evidence"]), str(row["policy"]))
        grouped.setdefault(key, {}).setdefault(int(row["sm_count"]), []).append(row)
    cases = list(dict.fromkeys(key[0] for key in grouped))
    found = [_line(case, evidence, policy, by_sms) for (case, evidence, policy), by_sms in grouped.items()]
    return sorted(found, key=lambda line: (cases.index(line.case), line.evidence, line.mae.mean))


def _worst(row: Row, key: str) -> float:
    return max(float(tenant[key]) for tenant in row["tenants"])


def _line(case: str, evidence: str, policy: str, by_sms: Mapping[int, Sequence[Row]]) -> Line:
    every = [row for group in by_sms.values() for row in group]
    errors = {sms: figure([_worst(row, "mae") for row in group]) for sms, group in by_sms.items()}
    worst = max(errors, key=lambda sms: errors[sms].mean)
    long_run = [figure([_worst(row, "long_run_error") for row in group]) for group in by_sms.values()]
    times = [[tenant["settled_s"] for tenant in row["tenants"]] for row in every]
    settled = [max(found) for found in times if all(time is not None for time in found)]
    tenants = [tenant for row in every for tenant in row["tenants"]]
    latencies = [tenant["latency_p99_ns"] for tenant in tenants if tenant.get("latency_p99_ns") is not None]
    alone = len(every[0]["tenants"]) == 1
    return Line(
        case=case,
        policy=policy,
        evidence=evidence,
        mae=errors[worst],
        worst_sms=worst,
        long_run=max(long_run, key=lambda one: one.mean),
        jain=None if alone else min(math.fsum(r["jain"] for r in group) / len(group) for group in by_sms.values()),
        settled_s=math.fsum(settled) / len(settled) if settled else None,
        unsettled=len(every) - len(settled),
        runs=len(every),
        wait_p50_ns=max(tenant["launch_wait_p50_ns"] for tenant in tenants),
        wait_p99_ns=max(tenant["launch_wait_p99_ns"] for tenant in tenants),
        wait_max_ns=max(tenant["launch_wait_max_ns"] for tenant in tenants),
        latency_p99_ns=max(latencies, default=None),
        lost=max(math.fsum(row["lost"] for row in group) / len(group) for group in by_sms.values()),
    )


def show(console: Console, rows: Sequence[Row]) -> None:
    """The leaderboard as a table."""
    lines = leaderboard(rows)
    if not lines:
        return
    evidence = ", ".join(dict.fromkeys(line.evidence for line in lines))
    table = Table(title=f"pacing, evidence {evidence}", box=None, title_justify="left", pad_edge=False)
    table.add_column("case", no_wrap=True)
    table.add_column("controller", no_wrap=True)
    for name in (
        "MAE",
        "at SMs",
        "long run",
        "Jain",
        "settled",
        "never",
        "wait p50",
        "wait p99",
        "wait max",
        "latency p99",
        "lost",
    ):
        table.add_column(name, justify="right")
    before = ""
    for line in lines:
        table.add_row(
            "" if line.case == before else escape(line.case),
            escape(line.policy),
            str(line.mae),
            str(line.worst_sms),
            str(line.long_run),
            "" if line.jain is None else f"{line.jain:.3f}",
            "" if line.settled_s is None else f"{line.settled_s:.1f} s",
            f"{line.unsettled}/{line.runs}",
            _ms(line.wait_p50_ns),
            _ms(line.wait_p99_ns),
            _ms(line.wait_max_ns),
            "" if line.latency_p99_ns is None else _ms(line.latency_p99_ns),
            f"{line.lost:.1f}",
        )
        before = line.case
    console.print(table)
    console.print(
        "MAE, long run and lost in points (percent of the GPU), worst tenant on the worst GPU, mean over seeds ± half "
        "of the 95 % interval; never: runs that did not settle",
        style="dim",
    )


def _ms(ns: int) -> str:
    return f"{ns / 1e6:,.1f} ms"


def above(rows: Sequence[Row], bound: float) -> list[Line]:
    """The lines whose MAE is above `bound` points."""
    return [line for line in leaderboard(rows) if line.mae.mean > bound]
