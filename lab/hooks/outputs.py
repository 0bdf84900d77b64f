"""The matrix for machines: CSV, SARIF 2.1.0 and JUnit XML; and for reading: HTML and the committed Markdown."""

from __future__ import annotations

import csv
import html
import io
import json
import xml.etree.ElementTree as ET
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import lab
from lab.hooks import model
from lab.hooks.baseline import Difference
from lab.hooks.model import FAULTS, OUT, PASSES, ROUTES, VERDICTS, Cell, Finding, Matrix

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_RULES = {
    model.GAP: "Nobody hooks the name and nobody decided that it passes",
    model.ESCAPE: "A hooked name is the driver's own on this route",
    model.WRONG: "The answer reaches another function, or with other arguments, than the driver's own answer would",
    model.CRASH: "The process died in the lookup or the call",
    model.HANG: "The lookup or the call never ended",
}
_MARKS = {
    "hooked": "H",
    PASSES: "·",
    OUT: "o",
    model.GAP: "G",
    model.ESCAPE: "E",
    model.WRONG: "W",
    model.CRASH: "C",
    model.HANG: "X",
}
_COLOURS = {"hooked": "#c8e6c9", PASSES: "#eceff1", OUT: "#e1d5f0", model.GAP: "#ffe0b2", model.ESCAPE: "#ffab91",
            model.WRONG: "#ef9a9a", model.CRASH: "#e57373", model.HANG: "#e57373"}  # fmt: skip


def as_csv(matrix: Matrix) -> str:
    """Every cell, one line each."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["name", "route", "version", "flags", "host", "verdict", "note", "evidence"])
    for cell in matrix.cells:
        writer.writerow([*cell, matrix.evidence])
    return stream.getvalue()


def grouped(cells: Iterable[Cell]) -> dict[tuple[str, str, str, str], list[Cell]]:
    """Faulty cells by (verdict, name, route, note)."""
    groups: dict[tuple[str, str, str, str], list[Cell]] = defaultdict(list)
    for cell in cells:
        if cell.verdict in FAULTS:
            groups[cell.verdict, cell.name, cell.route, cell.note].append(cell)
    return dict(groups)


def said(group: Sequence[Cell]) -> str:
    """Hosts and cases of a group in a few words."""
    hosts = ", ".join(host for host in model.HOSTS if any(cell.host == host for cell in group))
    cases = sorted({f"{cell.version}/{cell.flags}" for cell in group if cell.version})
    return hosts + (f" at version/flags {' '.join(cases)}" if cases else "")


def as_sarif(matrix: Matrix, *, tree: Sequence[Finding] = ()) -> str:
    """SARIF: a result a (verdict, name, route, cause), and one a finding; source findings carry their line."""
    rules: dict[str, str] = {f"hooks/{verdict.replace(' ', '-')}": text for verdict, text in _RULES.items()}
    results: list[dict[str, Any]] = []
    for (verdict, name, route, note), group in sorted(grouped(matrix.cells).items()):
        rule = f"hooks/{verdict.replace(' ', '-')}"
        text = f"{name} by {route}: {verdict} ({note}); {said(group)}"
        results.append(_result(rule, "error", text, matrix.interposer, f"{name}/{route}/{note}"))
    for finding in [*matrix.findings, *tree]:
        rule = f"hooks/{finding.kind}"
        rules.setdefault(rule, finding.kind.replace("-", " "))
        text = f"{finding.subject}: {finding.text}"
        result = _result(rule, "error" if finding.fault else "note", text, matrix.interposer, finding.subject)
        file, _, line = finding.where.rpartition(":")
        if file and line.isdigit():
            place = result["locations"][0]["physicalLocation"]
            place["artifactLocation"]["uri"] = file
            place["region"] = {"startLine": int(line)}
        results.append(result)
    run = {
        "tool": {
            "driver": {
                "name": "hooklab hooks",
                "version": lab.__version__,
                "rules": [{"id": rule, "shortDescription": {"text": text}} for rule, text in sorted(rules.items())],
            }
        },
        "properties": {"evidence": matrix.evidence, "counts": matrix.counts()},
        "results": results,
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1) + "\n"


def _result(rule: str, level: str, text: str, file: str, key: str) -> dict[str, Any]:
    return {
        "ruleId": rule,
        "level": level,
        "message": {"text": text},
        "locations": [{"physicalLocation": {"artifactLocation": {"uri": file}}}],
        "partialFingerprints": {"hooklab/1": f"{rule}:{key}"},
    }


def as_junit(matrix: Matrix, *, difference: Difference | None = None) -> str:
    """JUnit: a suite a route, a case a name that fails with all its causes; one suite says what a baseline changed."""
    root = ET.Element("testsuites", name="hooklab hooks")
    by_route: dict[str, dict[str, list[Cell]]] = defaultdict(lambda: defaultdict(list))
    for cell in matrix.cells:
        by_route[cell.route][cell.name].append(cell)
    for route in ROUTES[1:]:
        names = by_route.get(route, {})
        failures = 0
        suite = ET.SubElement(root, "testsuite", name=route, tests=str(len(names)), errors="0")
        properties = ET.SubElement(suite, "properties")
        ET.SubElement(properties, "property", name="evidence", value=matrix.evidence)
        for name, cells in sorted(names.items()):
            case = ET.SubElement(suite, "testcase", classname=f"hooks.{route}", name=name)
            causes = [f"{key[0]} ({key[3]}): {said(group)}" for key, group in grouped(cells).items()]
            if causes:
                failures += 1
                ET.SubElement(case, "failure", message=causes[0], type=min(grouped(cells))[0]).text = "\n".join(causes)
        suite.set("failures", str(failures))
    wrong = [finding for finding in matrix.findings if finding.fault]
    suite = ET.SubElement(
        root, "testsuite", name="findings", tests=str(len(matrix.findings)), failures=str(len(wrong)), errors="0"
    )
    for finding in matrix.findings:
        case = ET.SubElement(suite, "testcase", classname=f"hooks.{finding.kind}", name=finding.subject)
        if finding.fault:
            ET.SubElement(case, "failure", message=finding.text, type=finding.kind)
    if difference is not None:
        lines = [("new", line) for line in difference.new] + [("repaired", line) for line in difference.repaired]
        count = str(len(lines))
        suite = ET.SubElement(
            root, "testsuite", name="baseline", tests=str(max(1, len(lines))), failures=count, errors="0"
        )
        for kind, line in lines:
            case = ET.SubElement(suite, "testcase", classname=f"hooks.baseline.{kind}", name=line)
            ET.SubElement(case, "failure", message=f"{kind}: {line}", type=kind)
        if not lines:
            ET.SubElement(suite, "testcase", classname="hooks.baseline", name="unchanged")
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def as_html(matrix: Matrix) -> str:
    """One page: counts, findings, and name × route with the worst verdict of each, its causes on hover."""
    worst = matrix.worst()
    causes: dict[tuple[str, str], list[str]] = defaultdict(list)
    for (verdict, name, route, note), group in grouped(matrix.cells).items():
        causes[name, route].append(f"{verdict}: {note} – {said(group)}")
    counts = "".join(
        f"<tr><td style='background:{_COLOURS[verdict]}'>{_MARKS[verdict]} {verdict}</td><td>{count:,}</td></tr>"
        for verdict, count in matrix.counts().items()
    )
    findings = "".join(
        f"<li class='{'bad' if finding.fault else ''}'><b>{html.escape(finding.kind)}</b> "
        f"{html.escape(finding.subject)}: {html.escape(finding.text)}</li>"
        for finding in matrix.findings
    )
    rows = []
    for name in sorted({name for name, _ in worst}):
        decided = matrix.decisions.get(name)
        meant = "hook" if decided and decided.hook else (decided.reason if decided and decided.reason else "undecided")
        cells = []
        for route in ROUTES[1:]:
            verdict = worst.get((name, route), "")
            if not verdict:
                cells.append("<td></td>")
                continue
            title = html.escape("\n".join(causes.get((name, route), [verdict])), quote=True)
            cells.append(f"<td style='background:{_COLOURS[verdict]}' title='{title}'>{_MARKS[verdict]}</td>")
        rows.append(f"<tr><td>{html.escape(name)}</td>{''.join(cells)}<td class='why'>{html.escape(meant)}</td></tr>")
    head = "".join(f"<th>{route}</th>" for route in ROUTES[1:])
    return (
        "<!doctype html><html lang='en'><meta charset='utf-8'>"
        f"<title>hooklab hooks: {html.escape(matrix.interposer)}</title>"
        "<style>body{font:14px sans-serif;margin:2em}table{border-collapse:collapse}"
        "td,th{border:1px solid #ccc;padding:2px 6px}"
        "th{position:sticky;top:0;background:#fff}.bad{color:#b71c1c}.why{color:#666}</style>"
        f"<h1>Lookup routes of {html.escape(matrix.interposer)}</h1>"
        f"<p>Evidence: {matrix.evidence}, driver {html.escape(matrix.driver)}; {len(matrix.cells):,} cases judged, "
        f"{matrix.agreed:,} more have no answer with or without it.</p>"
        f"<table>{counts}</table><h2>Findings</h2><ul>{findings}</ul>"
        f"<h2>Worst verdict by name and route</h2><table><tr><th>name</th>{head}<th>decision</th></tr>"
        f"{''.join(rows)}</table></html>\n"
    )


_MADE = "Generated by `hooklab hooks --doc docs/hooks.md`; a test makes it again and compares."
_OUTSIDE = (
    "Out of reach are the hosts that no preloaded library sees: plug-ins opened with `RTLD_DEEPBIND` and other link "
    "namespaces (`dlmopen`)."
)


def _judged(matrix: Matrix) -> str:
    return (
        f"{len(matrix.cells):,} cases (name × route × version × stream flags × host) were judged; in {matrix.agreed:,} "
        "more the driver has no answer, and neither has the interposer."
    )


def as_markdown(matrix: Matrix) -> str:
    """The committed document: no times, no paths, so that it changes only when the matrix does."""
    counts = matrix.counts()
    lines = [
        "# The lookup routes of our own shim",
        "",
        f"{_MADE} Evidence: {matrix.evidence}, driver {matrix.driver}.",
        "",
        _judged(matrix),
        "",
        "| verdict | cases |",
        "|---|---|",
        *(f"| {verdict} | {counts[verdict]:,} |" for verdict in VERDICTS),
        "",
        f"{_OUTSIDE} Routes: {', '.join(ROUTES[1:])}. Hosts: {', '.join(model.HOSTS)}.",
        "",
        "## Findings",
        "",
        *(
            f"* {'**fault** ' if finding.fault else ''}{finding.kind}, {finding.subject}: {finding.text}"
            for finding in matrix.findings
        ),
        "",
        "## Hooked",
        "",
        "One letter a route: H hooked on every host in reach, version and flag; `-` the resolver does not know it.",
        "",
        "| name | " + " | ".join(ROUTES[1:]) + " |",
        "|---|" + "---|" * (len(ROUTES) - 1),
    ]
    worst = matrix.worst()
    hooked = sorted(name for name, decided in matrix.decisions.items() if decided.hook)
    for name in hooked:
        marks = [_MARKS[worst[name, route]] if (name, route) in worst else "-" for route in ROUTES[1:]]
        lines.append(f"| `{name}` | " + " | ".join(marks) + " |")
    lines += ["", "## Passes by decision", ""]
    reasons: dict[str, list[str]] = defaultdict(list)
    for name, decided in sorted(matrix.decisions.items()):
        if not decided.hook:
            reasons[decided.reason].append(name)
    for reason, passing in sorted(reasons.items()):
        lines += [f"* {reason} ({len(passing)}): " + ", ".join(f"`{name}`" for name in passing)]
    taken = Counter((one.allocate, one.taken, one.left) for one in matrix.ledger)
    lines += [
        "",
        "## What an allocation of 4 MiB takes from the view, by route",
        "",
        "| allocation | routes | taken | left after its free |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| `{name}` | {count} | {took} | {left} |" for (name, took, left), count in sorted(taken.items(), key=str)
    ]
    return "\n".join(lines) + "\n"
