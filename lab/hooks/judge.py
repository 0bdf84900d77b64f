"""What a walk under an interposer means, beside the same walk without one. Pure: records in, cells and findings out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lab.hooks import model
from lab.hooks.model import Cell, Decision, Finding
from lab.spec import FOREIGN, HookTable, load_layout

Decide = Callable[[str], Decision]
DRIVERS = ("libcuda.so", "libnvidia-ml.so")


class Judge:
    """Judges walks of one interposer. `own`: its path as the loader knows it."""

    def __init__(self, table: HookTable, decide: Decide, own: str) -> None:
        self.names = [hook.name for hook in table.hooks]
        self.decide = decide
        self.own = own
        self.known = load_layout("routes").constants
        self.agreed = 0

    def walk(self, bare: Any, seen: Any) -> list[Cell]:
        """Cells of one host; both are `lab.hooks.walk.Walk`."""
        host = model.HOSTS[seen.host]
        out = seen.host in (self.known["HL_HOST_PLUGIN_DEEP"], self.known["HL_HOST_NAMESPACE"])
        objects = [self._whose(path) for path in seen.objects]
        cells = []
        columns = (
            "name",
            "route",
            "flags",
            "version",
            "state",
            "owner",
            "object",
            "symbol",
            "lookup",
            "reached",
            "shifted",
            "result",
            "stopped",
        )
        ours = zip(*(seen.rows[column].tolist() for column in columns), strict=True)
        theirs = zip(*(bare.rows[column].tolist() for column in ("owner", "symbol")), strict=True)
        for index, (row, (owner, symbol)) in enumerate(zip(ours, theirs, strict=True)):
            truth = self.names[symbol] if owner == self.known["HL_OWNER_DRIVER"] else ""
            verdict = self._row(index, row, truth, seen, objects)
            if verdict is None:
                self.agreed += 1
                continue
            kind, note = verdict
            if (
                out
                and kind in (model.ESCAPE, model.GAP, model.PASSES, model.WRONG)
                and row[5] != self.known["HL_OWNER_OBJECT"]
            ):
                kind, note = model.OUT, "the driver answers: no preloaded library is asked here"
            cells.append(Cell(truth or self.names[row[0]], model.ROUTES[row[1]], row[3], row[2], host, kind, note))
        return cells

    def _row(
        self, index: int, row: tuple[int, ...], truth: str, seen: Any, objects: Sequence[str]
    ) -> tuple[str, str] | None:
        _, route, _, _, state, owner, place, symbol, _, reached, shifted, result, stopped = row
        known = self.known
        if index in seen.hung:
            return model.HANG, "the lookup stood still" if state == known[
                "HL_STATE_LOOKING"
            ] else "the call stood still"
        if index in seen.crashed:
            what = "lookup" if state == known["HL_STATE_LOOKING"] else "call"
            return model.CRASH, f"the {what} ended with {seen.crashed[index]}"
        if owner == known["HL_OWNER_NONE"]:
            return (model.WRONG, "not found; the driver has it") if truth else None
        if owner == known["HL_OWNER_DRIVER"]:
            return self._driver(truth, self.names[symbol])
        whose = objects[place] if owner == known["HL_OWNER_OBJECT"] else "own"
        if whose == "driver":
            return model.ESCAPE, "a pointer into the driver behind the recording one"
        if whose == "other":
            return model.ESCAPE, f"answered by {seen.objects[place]}"
        if not truth:
            if route == known["HL_WALK_LINK"] or (whose == "own" and seen.host == known["HL_HOST_PLUGIN_DEEP"]):
                return None  # its own export stands in for a name that no driver here has; the loader alone is asked
            return model.WRONG, "invented: the driver has no such name here"
        if state == known["HL_STATE_FOUND"]:
            return model.HOOKED, f"not called: {seen.broken}" if seen.broken else "not called"
        return self._called(truth, reached, shifted, result, stopped)

    def _driver(self, truth: str, given: str) -> tuple[str, str]:
        if given != truth:
            return model.WRONG, f"the driver's {given}; the driver alone gives {truth or 'nothing'}"
        decision = self.decide(truth)
        if decision.hook:
            return model.ESCAPE, "the driver's own pointer"
        if decision.reason:
            return model.PASSES, decision.reason
        return model.GAP, "not hooked, and nobody decided that it passes"

    def _called(self, truth: str, reached: int, shifted: int, result: int, stopped: int) -> tuple[str, str]:
        if stopped:
            return model.HOOKED, f"stopped before the driver with {result}"
        arrived = self.names[reached]
        if arrived != truth:
            return model.WRONG, f"reached {arrived}"
        if shifted:
            places = ", ".join(str(bit + 1) for bit in range(16) if shifted >> bit & 1)
            return model.WRONG, f"argument {places} arrived changed"
        if result != self.known["HL_CALL_ANSWER"]:
            return model.HOOKED, f"answered {result} for the driver's {self.known['HL_CALL_ANSWER']}"
        return model.HOOKED, ""

    def _whose(self, path: str) -> str:
        if path == self.own or Path(path).name == Path(self.own).name:
            return "own"
        return "driver" if Path(path).name.startswith(DRIVERS) else "other"


def answered(walks: Sequence[Any], own: str, table: HookTable) -> set[str]:
    """Names that an interposer answered for on any route of any host: what it hooks, whatever it says."""
    known = load_layout("routes").constants
    found: set[str] = set()
    for seen in walks:
        places = {place for place, path in enumerate(seen.objects) if Path(path).name == Path(own).name}
        mask = (seen.rows["owner"] == known["HL_OWNER_OBJECT"]) & (seen.rows["symbol"] != known["HL_NO_NAME"])
        for place, symbol in zip(seen.rows["object"][mask].tolist(), seen.rows["symbol"][mask].tolist(), strict=True):
            if place in places:
                found.add(table.hooks[symbol].name)
    return found


def lookups(bare: Any, seen: Any, table: HookTable) -> list[Finding]:
    """Broken rules of lookups: allocation, recursion, driver calls made by a lookup."""
    host = model.HOSTS[seen.host]
    found = []
    known = load_layout("routes").constants
    finished = seen.rows["state"] >= known["HL_STATE_FOUND"]
    answered_bare = bare.rows["owner"] != known["HL_OWNER_NONE"]  # one that fails has the loader write its message
    rules = (
        (
            "lookup-allocates",
            (seen.rows["allocations"] > bare.rows["allocations"]) & finished & answered_bare,
            "a lookup allocates nothing",
        ),
        (
            "lookup-recursion",
            (seen.rows["asked"] > 2 * bare.rows["asked"]) & finished,
            "the driver's resolver is asked at most twice",
        ),
        (
            "lookup-calls-driver",
            (seen.rows["before"] > bare.rows["before"]) & finished,
            "a lookup calls no driver function",
        ),
    )
    for kind, mask, rule in rules:
        if not int(seen.header["counts_allocations"]) and kind == "lookup-allocates":
            continue
        rows = seen.rows[mask]
        if len(rows):
            first = rows[0]
            example = f"{table.hooks[int(first['name'])].name} by {model.ROUTES[int(first['route'])]}"
            found.append(Finding(kind, host, f"{rule}; broken {len(rows)} times, first {example}"))
    wrong = int(seen.header["foreign_wrong"]) & ~int(bare.header["foreign_wrong"])
    if wrong:
        taken = ", ".join(name for bit, name in enumerate(FOREIGN) if wrong >> bit & 1)
        found.append(Finding("prefix-too-wide", host, f"names of other libraries are taken from them: {taken}"))
    if seen.broken:
        found.append(Finding("walk-broken", host, seen.broken))
    for name in ("init_result", "nvml_result"):
        if int(seen.header[name]) != int(bare.header[name]):
            call = "cuInit" if name == "init_result" else "nvmlInit_v2"
            text = f"{call} gives {int(seen.header[name])}, without it {int(bare.header[name])}"
            found.append(Finding("init-differs", host, text))
    return found


def ledger(rows: Any, table: HookTable) -> list[model.Taken]:
    """What each route's allocation took from the view."""
    known = load_layout("routes").constants
    found = []
    for row in rows:
        if not int(row["done"]):
            continue
        good = int(row["allocate_result"]) == 0 and int(row["free_result"]) == 0
        found.append(
            model.Taken(
                table.hooks[int(row["allocate"])].name,
                table.hooks[int(row["free"])].name,
                model.ROUTES[int(row["route"])],
                int(row["taken"]) if good else None,
                int(row["left"]) if good else None,
            )
        )
    assert known["HL_WALK_ROUTES"] == len(model.ROUTES)
    return found


def uneven(taken: Sequence[model.Taken]) -> list[Finding]:
    """Allocations whose cost in the view depends on how the function was found, or stays after the free."""
    by_name: dict[str, list[model.Taken]] = defaultdict(list)
    for one in taken:
        by_name[one.allocate].append(one)
    found = []
    for name, ones in by_name.items():
        worked = [one for one in ones if one.taken is not None]
        if len({one.taken for one in worked}) > 1:
            text = ", ".join(f"{one.route} {one.taken}" for one in worked)
            found.append(Finding("ledger-uneven", name, f"takes different amounts by route: {text}"))
        left = [one.route for one in worked if one.left]
        if left:
            found.append(Finding("ledger-left", name, f"still counted after its free by {', '.join(left)}"))
        failed = [one.route for one in ones if one.taken is None]
        if failed:
            found.append(Finding("ledger-failed", name, f"allocation or free failed by {', '.join(failed)}"))
    return found


def agreement(fake: Any, other: Any, table: HookTable) -> list[Finding]:
    """Where two drivers without an interposer answer a lookup differently (rows of the same cases)."""
    found = []
    names = [hook.name for hook in table.hooks]
    for mine, theirs in zip(fake.rows, other.rows, strict=True):
        a, b = (names[int(row["symbol"])] if int(row["owner"]) == 1 else "nothing" for row in (mine, theirs))
        codes = tuple((int(row["lookup"]), int(row["status"])) for row in (mine, theirs))
        if a != b or codes[0] != codes[1]:
            name, route, version, flags = (int(mine[key]) for key in ("name", "route", "version", "flags"))
            case = f"{names[name]} by {model.ROUTES[route]} version {version} flags {flags}"
            found.append(Finding("drivers-differ", case, f"fake {a} {codes[0]}, real {b} {codes[1]}"))
    return found
