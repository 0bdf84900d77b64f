"""What a conformance test found: one verdict a clause of the protocol; as a table's rows, as JSON, as JUnit XML. Pure.

Verdicts: `valid` and `invalid` speak of the protocol's text; `unspecified` tells what was seen where the text is silent
and judges nothing; `unknown` could not be seen here; `out of scope` is left out on purpose.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

VALID, INVALID, UNSPECIFIED, UNKNOWN, OUT = "valid", "invalid", "unspecified", "unknown", "out of scope"
SCHEMA = "hooklab.bridge-conform/1"


@dataclass(frozen=True, slots=True)
class Finding:
    """One clause."""

    clause: str
    text: str
    verdict: str
    seen: str = ""


class FaultError(Exception):
    """The clause is broken; the text says how."""


class UnspecifiedError(Exception):
    """The protocol is silent; the text says what was seen."""


class UnseenError(Exception):
    """It cannot be seen here; the text says why."""


def exit_code(findings: Sequence[Finding], *, allow_unknown: bool = False) -> int:
    """0 valid, 1 invalid, 3 unknown."""
    verdicts = {finding.verdict for finding in findings}
    return 1 if INVALID in verdicts else 3 if UNKNOWN in verdicts and not allow_unknown else 0


def as_json(subject: str, findings: Sequence[Finding]) -> dict[str, Any]:
    """The documented JSON form."""
    rows = [{"clause": item.clause, "text": item.text, "verdict": item.verdict, "seen": item.seen} for item in findings]
    return {"schema": SCHEMA, "subject": subject, "findings": rows}


def as_junit(subject: str, findings: Sequence[Finding]) -> str:
    """JUnit XML: a test case a clause; what is neither valid nor invalid is skipped, with what was seen."""
    verdicts = [finding.verdict for finding in findings]
    skipped = sum(verdict not in (VALID, INVALID) for verdict in verdicts)
    suite = ET.Element(
        "testsuite",
        name=_clean(f"bridge conform {subject}"),
        tests=str(len(findings)),
        failures=str(verdicts.count(INVALID)),
        errors="0",
        skipped=str(skipped),
    )
    for item in findings:
        case = ET.SubElement(suite, "testcase", classname="bridge", name=_clean(f"{item.clause}: {item.text}"))
        if item.verdict == INVALID:
            ET.SubElement(case, "failure", message=_clean(item.seen), type=item.clause)
        elif item.verdict != VALID:
            ET.SubElement(case, "skipped", message=_clean(f"{item.verdict}: {item.seen}"))
    ET.indent(suite)
    return ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


_UNSAID = re.compile("[^\\t\\n\\r\\x20-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]")


def _clean(value: str) -> str:
    """Without the characters that XML 1.0 cannot carry."""
    return _UNSAID.sub("?", value)
