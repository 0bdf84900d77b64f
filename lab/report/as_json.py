"""The JSON report, schema ``hooklab.report/1`` (docs/report-schema.md). Keys are added in later versions of hooklab;
none changes its meaning without a new schema number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import lab
from lab.checks import worst
from lab.report.baseline import Comparison
from lab.report.model import CallRow, RunReport

SCHEMA = "hooklab.report/1"


def document(
    reports: Sequence[RunReport], *, errors: Sequence[str] = (), compared: Comparison | None = None
) -> dict[str, Any]:
    """The whole report. ``errors`` are runs that could not be made, one line each; ``compared``: against a baseline."""
    counts = Counter(report.status for report in reports)
    return {
        "schema": SCHEMA,
        "hooklab": lab.__version__,
        "status": worst(report.status for report in reports),
        "counts": {status: counts.get(status, 0) for status in ("valid", "invalid", "unknown")},
        "runs": [run(report) for report in reports],
        "errors": list(errors),
        "baseline": None if compared is None else _compared(compared),
    }


def _compared(compared: Comparison) -> dict[str, Any]:
    return {
        "expected": [{"scenario": scenario, "report": report} for scenario, report in compared.expected],
        "new": list(compared.new),
        "unknown": list(compared.unknown),
        "stale": list(compared.stale),
        "unreported": compared.unreported,
    }


def run(report: RunReport) -> dict[str, Any]:
    """One run of the report."""
    scenario = report.scenario
    return {
        "scenario": scenario.id,
        "name": scenario.name,
        "doc": scenario.doc,
        "file": scenario.path,
        "sweep": dict(scenario.sweep),
        "report": list(scenario.report),
        "directory": str(report.directory) if report.directory is not None else None,
        "status": report.status,
        "evidence": report.evidence,
        "seed": scenario.seed,
        "duration_ns": report.duration_ns,
        "environment": _plain(report.info.get("environment", {})),
        "options": _plain(report.info.get("options", {})),
        "verdicts": [
            {
                "status": verdict.status,
                "check": verdict.check,
                "subject": verdict.subject,
                "expected": verdict.expected,
                "seen": verdict.seen,
                "where": verdict.where,
                "evidence": verdict.evidence,
                "implied": verdict.implied,
                "details": list(verdict.details),
            }
            for verdict in report.verdicts
        ],
        "calls": [_call(row) for row in report.calls],
        "memory": [
            {
                "container": row.container,
                "device": row.device,
                "peak_bytes": row.peak,
                "limit_bytes": row.limit,
                "evidence": row.evidence,
            }
            for row in report.memory
        ],
        "quantities": [asdict(row) | {"gaps": list(row.gaps)} for row in report.quantities],
        "processes": [{"label": row.label, "container": row.container, "end": row.end} for row in report.processes],
        "pacing": [{**row, "evidence": report.evidence} for row in report.pacing],
        "not_executed": report.not_executed,
        "history": {"records": report.records, "dropped": report.dropped, "uncommitted": report.uncommitted},
        "measured": _plain(report.info.get("measured") or ()),
        "notes": list(report.notes),
        "repeats": str(report.repeats) if report.repeats is not None else None,
        "differences": list(report.differences),
    }


def _call(row: CallRow) -> dict[str, Any]:
    return {
        "step": row.step,
        "function": row.function or None,
        "route": row.route or None,
        "count": row.count,
        "ok": row.ok,
        "failures": dict(row.failures),
        "unfinished": row.unfinished,
        "ns": dict(row.ns) or None,
        "evidence": row.evidence,
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)
