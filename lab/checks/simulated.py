"""Expectations of scenarios in virtual time. The figures are in run.json: ``simulated: {"bursts": [...]}`` with the
latencies of each burst in ns, or ``{"tenants": [...], "jain": ...}`` with shares in percent."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from lab.checks.model import INVALID, UNKNOWN, VALID, RunData, Verdict, bounds_text, within, worst
from lab.scenario.model import Expectation, Scenario
from lab.scenario.units import format_duration

_Range = tuple[float | None, float | None]


def _rank(latencies: list[int], percent: int) -> int:
    return sorted(latencies)[max(1, math.ceil(percent * len(latencies) / 100)) - 1]


_FIGURES: dict[str, Callable[[list[int]], float]] = {
    "p50": lambda found: _rank(found, 50),
    "p99": lambda found: _rank(found, 99),
    "max": max,
    "mean": lambda found: sum(found) / len(found),
}


def _verdict(
    expectation: Expectation, run: RunData, subject: str, told: Iterable[tuple[str, str, str, bool]]
) -> Verdict:
    """`told`: (what, expected, seen, good) of each figure; none is unknown."""
    told = list(told)
    status = worst(VALID if good else INVALID for *_, good in told) if told else UNKNOWN
    shown = [one for one in told if not one[3]] or told
    return Verdict(
        status=status,
        check=expectation.check,
        subject=subject,
        expected=", ".join(f"{what} {expected}" for what, expected, _, _ in shown) or "figures",
        seen=", ".join(f"{what} {seen}" for what, _, seen, _ in shown) or "none in run.json",
        where=str(expectation.where),
        evidence=run.evidence,
    )


def _figures(run: RunData, key: str) -> list[Mapping[str, Any]]:
    found = run.info.get("simulated")
    entries = found.get(key) if isinstance(found, Mapping) else None
    return [entry for entry in entries or () if isinstance(entry, Mapping)]


def start_up(expectation: Expectation, _scenario: Scenario, run: RunData) -> Verdict:
    """Latencies of every burst that the expectation is about."""
    wanted = expectation.arguments
    told: list[tuple[str, str, str, bool]] = []
    for burst in _figures(run, "bursts"):
        if wanted.get("condition", burst["condition"]) != burst["condition"]:
            continue
        if wanted.get("workers", burst["workers"]) != burst["workers"]:
            continue
        latencies = list(burst["latencies"])
        for name, figure in _FIGURES.items():
            if name in wanted:
                value = figure(latencies)
                expected = bounds_text(wanted[name], format_duration)
                told.append((name, expected, format_duration(value), within(value, wanted[name])))
        if "latencies" in wanted:
            expected = ", ".join(format_duration(value) for value in wanted["latencies"])
            seen = ", ".join(format_duration(value) for value in sorted(latencies)[:20])
            told.append(("latencies", expected, seen, sorted(latencies) == list(wanted["latencies"])))
        for name in ("timeouts", "gave_up"):
            if name in wanted:
                value = burst[name]
                told.append((name, bounds_text(wanted[name]), str(value), within(value, wanted[name])))
    subject = " ".join(str(wanted[key]) for key in ("condition", "workers") if key in wanted) or "start-up"
    return _verdict(expectation, run, subject, told)


def share(expectation: Expectation, _scenario: Scenario, run: RunData) -> Verdict:
    """What the tenants that the expectation is about got."""
    wanted = expectation.arguments
    told: list[tuple[str, str, str, bool]] = []
    for number, tenant in enumerate(_figures(run, "tenants")):
        if wanted.get("tenant", number) != number:
            continue
        for name in ("achieved", "mae", "long_run"):
            if name in wanted:
                value = float(tenant[name])
                told.append(
                    (f"{name} of {number}", bounds_text(wanted[name]), f"{value:.2f}", within(value, wanted[name]))
                )
    if "jain" in wanted and _figures(run, "tenants"):
        value = float(run.info["simulated"]["jain"])
        told.append(("jain", bounds_text(wanted["jain"]), f"{value:.4f}", within(value, wanted["jain"])))
    subject = f"tenant {wanted['tenant']}" if "tenant" in wanted else "tenants"
    return _verdict(expectation, run, subject, told)
