"""One symbol's whole story: what it is, what was decided, what the file says, and what every route did."""

from __future__ import annotations

import difflib
from collections import defaultdict

from lab.hooks.model import FAULTS, HOSTS, ROUTES, Cell, Matrix
from lab.spec import HookTable, load_signatures


class ExplainError(Exception):
    """A name that no table knows; one line with what is near."""


def explain(matrix: Matrix, name: str, table: HookTable) -> list[str]:
    """Lines of text, ready to print."""
    if name not in table.by_name:
        near = difflib.get_close_matches(name, table.by_name, n=3)
        raise ExplainError(f"--explain {name}: no such driver name" + (f"; near are {', '.join(near)}" if near else ""))
    hook = table[name]
    signature = load_signatures().get(name)
    lines = [
        name,
        f"  library     {'libcuda.so.1' if hook.library == 'cuda' else 'libnvidia-ml.so.1'}, family {hook.family}",
    ]
    lines.append(f"  arguments   {_arguments(signature)}")
    if hook.base:
        steps = table.resolver(absent=True)[hook.base]
        chain = steps.per_thread if hook.stream else steps.legacy
        lines.append(f"  resolver    {hook.base}: " + ", ".join(f"{one} from {since}" for since, one in chain))
    else:
        lines.append("  resolver    does not know it")
    lines.append(f"  driver      {'exports it' if hook.fake != 'absent' else 'lacks it (580.159.04)'}")
    decided = matrix.decisions[name]
    meant = "to be hooked" if decided.hook else f"passes: {decided.reason}" if decided.reason else "nobody decided"
    lines.append(f"  decision    {meant}" + (f" ({hook.action})" if decided.hook and hook.hooked else ""))
    lines.append(
        f"  {matrix.interposer} "
        + (f"exports it ({matrix.exports[name]})" if name in matrix.exports else "does not export it")
    )
    lines += _story([cell for cell in matrix.cells if cell.name == name])
    for one in matrix.ledger:
        if name in (one.allocate, one.free):
            took = "failed" if one.taken is None else f"takes {one.taken}, leaves {one.left} bytes"
            lines.append(f"  ledger      {one.allocate} and {one.free} by {one.route}: {took}")
    lines += [f"  finding     {finding.kind}: {finding.text}" for finding in matrix.findings if finding.subject == name]
    return lines


def _arguments(signature: str | None) -> str:
    if signature is None:
        return "no vendor header declares it; nothing is compared"
    words = {"i": "32-bit", "l": "64-bit", "p": "pointer", "h": "handle", "f": "float", "d": "double"}
    parts: list[str] = []
    digits = ""
    for letter in signature + " ":
        if letter.isdigit():
            digits += letter
            continue
        if digits:
            parts[-1] = f"structure of {digits} bytes"
            digits = ""
        if letter.strip():
            parts.append(words.get(letter, "structure"))
    return ", ".join(parts) or "none"


def _story(cells: list[Cell]) -> list[str]:
    """Verdicts by route, hosts and cases joined where they agree."""
    if not cells:
        return ["  routes      the driver has it on none of them, and neither has the interposer"]
    lines = []
    for route in ROUTES[1:]:
        groups: dict[tuple[str, str], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        for cell in cells:
            if cell.route == route:
                case = f"{cell.version}/{cell.flags}" if cell.version else ""
                groups[cell.verdict, cell.note][cell.host].append(case)
        for (verdict, note), hosts in groups.items():
            where = ", ".join(host for host in HOSTS if host in hosts)
            versions = sorted({case for found in hosts.values() for case in found if case})
            at = f" at {' '.join(versions)}" if versions else ""
            mark = "!" if verdict in FAULTS else " "
            lines.append(f" {mark}{route:<11} {verdict}{f' ({note})' if note else ''}: {where}{at}")
    return lines
