"""JUnit XML: a test suite for each run, a test case for each verdict; unknown is skipped, with its reason."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence

from lab.checks import INVALID, UNKNOWN
from lab.report.baseline import Entry, key
from lab.report.model import RunReport


def text(
    reports: Sequence[RunReport], *, errors: Sequence[str] = (), baseline: Mapping[str, Entry] | None = None
) -> str:
    """The XML document. What a baseline expects is skipped, naming the report."""
    root = ET.Element("testsuites", name="hooklab")
    for report in reports:
        entry = (baseline or {}).get(report.id)
        expected = [entry is not None and key(verdict) in entry.checks for verdict in report.verdicts]
        statuses = [
            UNKNOWN if known else verdict.status for verdict, known in zip(report.verdicts, expected, strict=True)
        ]
        suite = ET.SubElement(
            root,
            "testsuite",
            name=clean(report.id),
            tests=str(len(statuses)),
            failures=str(statuses.count(INVALID)),
            errors="0",
            skipped=str(statuses.count(UNKNOWN)),
            time=f"{(report.duration_ns or 0) / 1e9:.3f}",
        )
        properties = ET.SubElement(suite, "properties")
        for name, value in (("evidence", report.evidence), ("seed", report.scenario.seed)):
            ET.SubElement(properties, "property", name=name, value=str(value))
        for verdict, known in zip(report.verdicts, expected, strict=True):
            file, _, line = verdict.where.partition(":")
            case = ET.SubElement(
                suite,
                "testcase",
                classname=clean(report.id),
                name=clean(f"{verdict.check} {verdict.subject}"),
                file=clean(file),
            )
            if line.partition(":")[0].isdigit():
                case.set("line", line.partition(":")[0])
            said = f"{verdict.where}: expected {verdict.expected}; seen {verdict.seen}"
            if known and entry is not None:
                ET.SubElement(case, "skipped", message=clean(f"expected ({entry.report}): {said}"))
            elif verdict.status == INVALID:
                failure = ET.SubElement(case, "failure", message=clean(said), type=verdict.check)
                failure.text = clean("\n".join((said, *verdict.details)))
            elif verdict.status == UNKNOWN:
                ET.SubElement(case, "skipped", message=clean(f"unknown: {said}"))
        if report.directory is not None:
            ET.SubElement(suite, "system-out").text = clean(f"run directory: {report.directory}")
    if errors:
        suite = ET.SubElement(root, "testsuite", name="runs", tests=str(len(errors)), errors=str(len(errors)))
        for number, error in enumerate(errors):
            case = ET.SubElement(suite, "testcase", classname="runs", name=f"run {number}")
            ET.SubElement(case, "error", message=clean(error))
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


_UNSAID = re.compile("[^\\t\\n\\r\\x20-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]")


def clean(value: str) -> str:
    """Without the characters that XML 1.0 cannot carry."""
    return _UNSAID.sub("?", value)
