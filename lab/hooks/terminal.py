"""The matrix on a terminal: counts by route, what is wrong with its cause, findings, coverage, a source tree."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lab.hooks.baseline import Difference
from lab.hooks.model import OUT, ROUTES, VERDICTS, Finding, Matrix
from lab.hooks.outputs import grouped, said
from lab.hooks.static import Coverage
from lab.hooks.tree import TreeReport

if TYPE_CHECKING:
    from rich.console import Console

MOST = 20


def show_matrix(console: Console, matrix: Matrix, *, everything: bool = False) -> None:
    """Counts, then each cause once with the names it touches."""
    from rich.table import Table

    console.print(
        f"{matrix.interposer}: {len(matrix.cells):,} cases in {matrix.seconds:.1f} s, evidence {matrix.evidence}, "
        f"driver {matrix.driver}",
        highlight=False,
    )
    counts = Counter((cell.route, cell.verdict) for cell in matrix.cells)
    table = Table(box=None, title="cases by route and verdict", title_justify="left")
    table.add_column("route")
    shown = [verdict for verdict in VERDICTS if matrix.counts()[verdict]]
    for verdict in shown:
        table.add_column(verdict, justify="right")
    for route in ROUTES[1:]:
        table.add_row(route, *(f"{counts[route, verdict]:,}" for verdict in shown))
    table.add_row("all", *(f"{matrix.counts()[verdict]:,}" for verdict in shown))
    console.print(table)
    causes: dict[tuple[str, str, str], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for (verdict, name, route, note), group in grouped(matrix.cells).items():
        causes[verdict, route, note][name].append(said(group))
    ordered = sorted(causes.items(), key=lambda item: (-VERDICTS.index(item[0][0]), -len(item[1]), item[0]))
    for (verdict, route, note), names in ordered[: None if everything else MOST]:
        listed = sorted(names)
        some = ", ".join(listed[:5]) + (f" and {len(listed) - 5} more" if len(listed) > 5 else "")
        console.print(f"{verdict} by {route}: {note}: {some}", highlight=False, soft_wrap=True, markup=False)
    if len(ordered) > MOST and not everything:
        console.print(
            f"... {len(ordered) - MOST} more causes (--all shows them; --csv has every case)", highlight=False
        )
    show_findings(console, matrix.findings)
    reach = Counter(cell.host for cell in matrix.cells if cell.verdict == OUT)
    for host, count in reach.items():
        console.print(f"out of reach: {host}, {count:,} cases", highlight=False)


def show_findings(console: Console, findings: Sequence[Finding]) -> None:
    """Findings, faults first."""
    for finding in sorted(findings, key=lambda one: not one.fault):
        mark = "fault" if finding.fault else "note"
        where = f" [{finding.where}]" if finding.where else ""
        console.print(
            f"{mark}: {finding.kind}, {finding.subject}: {finding.text}{where}",
            highlight=False,
            soft_wrap=True,
            markup=False,
        )


def show_coverage(console: Console, found: Sequence[Coverage]) -> None:
    """One column a surface."""
    from rich.table import Table

    table = Table(box=None, title="exports beside driver surfaces", title_justify="left")
    table.add_column("")
    for one in found:
        table.add_column(one.surface, justify="right")
    kinds = ("covered", "missing", "passing", "optional", "unknown", "pairs", "walked_back", "stranded")
    titles = {
        "missing": "missing",
        "passing": "passes by decision",
        "pairs": "wrong-generation pairs",
        "walked_back": "walked back",
        "optional": "optional",
    }
    for kind in kinds:
        table.add_row(titles.get(kind, kind), *(str(len(getattr(one, kind))) for one in found))
    console.print(table)
    for one in found:
        for title, names in (("missing", one.missing), ("unknown", one.unknown), ("stranded", one.stranded)):
            if names:
                some = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
                console.print(f"{one.surface}: {title}: {some}", highlight=False, soft_wrap=True, markup=False)
        for hooked, other in one.pairs[:MOST]:
            console.print(f"{one.surface}: {hooked} is hooked, {other} is not", highlight=False, markup=False)


def show_tree(console: Console, tree: TreeReport) -> None:
    """Sizes of the representations, inventory by file, findings."""
    from rich.table import Table

    table = Table(box=None, title=f"hook lists of {tree.root.name}", title_justify="left")
    for title in ("library", "table", "enumeration", "dlsym list", "wrappers"):
        table.add_column(title, justify="left" if title == "library" else "right")
    for library, lists in tree.lists.items():
        table.add_row(
            library, *(str(len(one)) for one in (lists.table, lists.enumeration, lists.dlsym, lists.wrappers))
        )
    console.print(table)
    inventory = tree.inventory
    console.print(f"{inventory.definitions} function definitions, {inventory.unique} names", highlight=False)
    for file, count in inventory.groups.items():
        console.print(f"  {count:>5}  {file}", highlight=False, markup=False)
    show_findings(console, tree.findings)


def show_difference(console: Console, difference: Difference) -> None:
    """What changed against the baseline."""
    console.print(
        f"baseline: {difference.expected} expected, {len(difference.new)} lines new, "
        f"{len(difference.repaired)} repaired",
        highlight=False,
    )
    for title, lines in (("new", difference.new), ("repaired", difference.repaired)):
        for line in lines[:MOST]:
            console.print(f"{title}: {line}", highlight=False, soft_wrap=True, markup=False)
        if len(lines) > MOST:
            console.print(f"... {len(lines) - MOST} more {title}", highlight=False)


def faults(findings: Sequence[Finding]) -> int:
    """How many findings are faults."""
    return sum(finding.fault for finding in findings)
