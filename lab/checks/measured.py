"""Expectations of `measure`. The figures are in run.json: ``measured``, rows as `bench calls --json` has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lab.checks.model import INVALID, UNKNOWN, VALID, RunData, Verdict, bounds_text, within, worst
from lab.scenario.model import Expectation, Scenario
from lab.scenario.units import format_duration


def _rows(run: RunData) -> list[Mapping[str, Any]]:
    return [row for row in run.info.get("measured") or () if isinstance(row, Mapping)]


def _nanoseconds(value: float) -> str:
    return f"{'-' if value < 0 else ''}{format_duration(abs(round(value)))}"


def _plain(value: float) -> str:
    return f"{value:,.12g}"


def added(expectation: Expectation, _scenario: Scenario, run: RunData) -> Verdict:
    """What the interposer adds stays within bounds, in every row of the figure.

    Only a real GPU's figures are judged: what a fake takes says nothing of an interposer's share in a real call. Where
    bare against bare (the control) differs by more than the bound, noise hides the answer.
    """
    wanted = expectation.arguments
    hidden = False
    statuses: list[str] = []
    said: list[str] = []
    for row in _rows(run):
        if row["call"] != wanted["figure"] or wanted.get("live", row["live"]) != row["live"]:
            continue
        share = 100 / row["bare_ns"] if row["bare_ns"] else float("inf")
        percent = row["added_ns"] * share
        control = row.get("control_ns")
        for key, unit in (("ns", 1), ("percent", share)):
            if key not in wanted:
                continue
            if control is not None and wanted[key][1] is not None and abs(control * unit) > wanted[key][1]:
                hidden = True
                statuses.append(UNKNOWN)
            else:
                statuses.append(VALID if within(row["added_ns"] * unit, wanted[key]) else INVALID)
        noise = "" if control is None else f", control {_nanoseconds(control)}"
        lost = f", {row['failed']} without figures" if row["failed"] else ""
        live = f" at {row['live']} live" if row["live"] else ""
        ratio = f"{_nanoseconds(row['bare_ns'])} + {_nanoseconds(row['added_ns'])} ({percent:+.2f} %)"
        said.append(f"{ratio}{live}{noise}{lost}")
    status = worst(statuses) if run.evidence == "real-gpu" else UNKNOWN
    if hidden:
        said.append("the control is beyond the bound: noise hides the answer")
    if said and run.evidence != "real-gpu":
        said.append("only a real GPU's figures are judged")
    bounds = [
        f"{bounds_text(wanted[key], _plain)} {unit}" for key, unit in (("ns", "ns"), ("percent", "%")) if key in wanted
    ]
    return Verdict(
        status=status,
        check="added",
        subject=str(wanted["figure"]),
        expected=f"adds {', '.join(bounds)}",
        seen="; ".join(said) or "no such figure was measured",
        where=str(expectation.where),
        evidence=run.evidence,
    )
