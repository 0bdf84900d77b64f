"""JUnit XML: a test suite for each run, a test case for each verdict; unknown is skipped, with its reason."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence

from lab.checks import INVALID, UNKNOWN
from lab.report.model import RunReport


def text(reports: Sequence[RunReport], *, errors: Sequence[str] = ()) -> str:
    """The XML document."""
    root = ET.Element("testsuites", name="hooklab")
    for report in reports:
        statuses = [verdict.status for verdict in report.verdicts]
        suite = ET.SubElement(
            root,
            "testsuite",
            name=_clean(report.id),
            tests=str(len(statuses)),
            failures=str(statuses.count(INVALID)),
            errors="0",
            skipped=str(statuses.count(UNKNOWN)),
            time=f"{(report.duration_ns or 0) / 1e9:.3f}",
        )
        properties = ET.SubElement(suite, "properties")
        for name, value in (("evidence", report.evidence), ("seed", report.scenario.seed)):
            ET.SubElement(properties, "property", name=name, value=str(value))
        for verdict in report.verdicts:
            file, _, line = verdict.where.partition(":")
            case = ET.SubElement(
                suite,
                "testcase",
                classname=_clean(report.id),
                name=_clean(f"{verdict.check} {verdict.subject}"),
                file=_clean(file),
            )
            if line.partition(":")[0].isdigit():
                case.set("line", line.partition(":")[0])
            said = f"{verdict.where}: expected {verdict.expected}; seen {verdict.seen}"
            if verdict.status == INVALID:
                failure = ET.SubElement(case, "failure", message=_clean(said), type=verdict.check)
                failure.text = _clean("\n".join((said, *verdict.details)))
            elif verdict.status == UNKNOWN:
                ET.SubElement(case, "skipped", message=_clean(f"unknown: {said}"))
        if report.directory is not None:
            ET.SubElement(suite, "system-out").text = _clean(f"run directory: {report.directory}")
    if errors:
        suite = ET.SubElement(root, "testsuite", name="runs", tests=str(len(errors)), errors=str(len(errors)))
        for number, error in enumerate(errors):
            case = ET.SubElement(suite, "testcase", classname="runs", name=f"run {number}")
            ET.SubElement(case, "error", message=_clean(error))
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


_UNSAID = re.compile("[^\\t\\n\\r\\x20-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]")


def _clean(value: str) -> str:
    """Without the characters that XML 1.0 cannot carry."""
    return _UNSAID.sub("?", value)
