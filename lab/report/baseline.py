"""Expected failures of an interposer: a baseline file, strict in both directions.

    schema: hooklab.baseline/1
    expected:
      - scenario: race[memory_mode=reserve]
        report: HAMi-core#12            # whose fault it is known as; never empty
        strict: false                   # may also hold (a race that is lost now and then); default true
        checks:
          - {check: outcome, subject: step x, status: invalid}

What is not expected fails the run; what is expected and does not happen fails it, too, so that a mended fault leaves
the file. Checks of a named step, process or call are known by that name, others by their own alone: their subject is
whatever was wrong first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.checks import INVALID, UNKNOWN, VALID, Verdict
from lab.report.model import RunReport

SCHEMA = "hooklab.baseline/1"
UNREPORTED = "unreported"
_ENTRY = frozenset({"scenario", "report", "strict", "checks"})
_CHECK = frozenset({"check", "subject", "status"})

_NAMED = frozenset({"outcome", "values", "view", "exit", "calls", "faults_fired"})

Key = tuple[str, str, str]  # check, subject or "", status


class BaselineError(ValueError):
    """A baseline that cannot be used; one line."""


@dataclass(frozen=True)
class Entry:
    """What is expected of one run."""

    scenario: str
    report: str
    checks: frozenset[Key]
    strict: bool = True


@dataclass(frozen=True)
class Comparison:
    """Runs against a baseline."""

    expected: tuple[tuple[str, str], ...]
    """(run, report) of runs that fail as the baseline says."""
    new: tuple[str, ...]
    """One line for each verdict that is worse than the baseline says."""
    unknown: tuple[str, ...]
    """One line for each verdict that is unknown and not expected to be."""
    stale: tuple[str, ...]
    """One line for each expected failure that did not happen."""
    unreported: int = 0
    """Entries in use that name no report."""

    def exit_code(self, *, allow_unknown: bool = False) -> int:
        """1 for anything new or stale, 3 for anything unknown, else 0."""
        if self.new or self.stale:
            return 1
        return 3 if self.unknown and not allow_unknown else 0


def load(path: str | Path) -> dict[str, Entry]:
    """The entries by run; BaselineError names the file and what is wrong."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        data = YAML(typ="safe", pure=True).load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise BaselineError(f"{path}: {error.strerror}; make one with --write-baseline") from None
    except (YAMLError, UnicodeDecodeError) as error:
        raise BaselineError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise BaselineError(f"{path}: not a baseline (its schema must be {SCHEMA})")
    found: dict[str, Entry] = {}
    for number, item in enumerate(data.get("expected") or ()):
        entry = _entry(f"{path}: entry {number}", item)
        if entry.scenario in found:
            raise BaselineError(f"{path}: entry {number}: {entry.scenario!r} is there twice; put its checks together")
        found[entry.scenario] = entry
    return found


def _entry(where: str, item: Any) -> Entry:
    if not isinstance(item, dict) or not {"scenario", "report", "checks"} <= item.keys() <= _ENTRY:
        raise BaselineError(f"{where}: needs scenario, report and checks, and knows strict beside them")
    scenario, report = str(item["scenario"]), str(item["report"] or "").strip()
    if not report:
        raise BaselineError(f"{where}: {scenario}: names no report; write its id, or {UNREPORTED}")
    keys = set()
    for check in item["checks"] or ():
        if not isinstance(check, dict) or not {"check"} <= check.keys() <= _CHECK:
            raise BaselineError(f"{where}: {scenario}: a check has check, subject and status")
        status = str(check.get("status", INVALID))
        if status not in (INVALID, UNKNOWN):
            raise BaselineError(f"{where}: {scenario}: status {status!r}: what is expected is invalid or unknown")
        keys.add((str(check["check"]), str(check.get("subject", "")), status))
    if not keys:
        raise BaselineError(f"{where}: {scenario}: expects no check to fail; remove it")
    return Entry(scenario, report, frozenset(keys), bool(item.get("strict", True)))


def key(verdict: Verdict) -> Key:
    """What a verdict is known as."""
    return verdict.check, verdict.subject if verdict.check in _NAMED else "", verdict.status


def compare(reports: Sequence[RunReport], baseline: Mapping[str, Entry]) -> Comparison:
    """Entries whose run was not made are neither met nor stale."""
    expected: list[tuple[str, str]] = []
    new: list[str] = []
    unknown: list[str] = []
    stale: list[str] = []
    unreported = 0
    for report in reports:
        entry = baseline.get(report.id)
        allowed = entry.checks if entry else frozenset()
        seen = {key(verdict): verdict for verdict in report.verdicts if verdict.status != VALID}
        for name, verdict in seen.items():
            if name not in allowed:
                (new if verdict.status == INVALID else unknown).append(_line(report.id, verdict))
        if entry is None:
            continue
        unreported += entry.report == UNREPORTED
        missing = sorted(allowed - seen.keys())
        if entry.strict:
            stale += [f"{report.id}: {_say(one)} is expected ({entry.report}) and did not happen" for one in missing]
        if seen.keys() & allowed:
            expected.append((report.id, entry.report))
    return Comparison(tuple(expected), tuple(new), tuple(unknown), tuple(stale), unreported)


def _line(run: str, verdict: Verdict) -> str:
    return (
        f"{run}: {verdict.status}: {verdict.check} {verdict.subject}: expected {verdict.expected}; seen {verdict.seen}"
    )


def _say(one: Key) -> str:
    check, subject, status = one
    return f"{check} {subject} {status}".replace("  ", " ")


def text(reports: Sequence[RunReport], *, before: Mapping[str, Entry] | None = None) -> str:
    """A baseline that expects just what these runs did. Report ids come from ``before``, else from the scenario."""
    from lab.scenario.load import yaml_text

    entries = []
    for report in reports:
        failed = sorted({key(verdict) for verdict in report.verdicts if verdict.status != VALID})
        if not failed:
            continue
        old = (before or {}).get(report.id)
        known = old.report if old else ", ".join(report.scenario.report) or UNREPORTED
        entry: dict[str, Any] = {"scenario": report.id, "report": known}
        if old and not old.strict:
            entry["strict"] = False
        entry["checks"] = [
            {"check": check, **({"subject": subject} if subject else {}), "status": status}
            for check, subject, status in failed
        ]
        entries.append(entry)
    return yaml_text({"schema": SCHEMA, "expected": entries}, flow=None)
