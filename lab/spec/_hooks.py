"""The hook table: `hooks.toml` as frozen records, ids, and the resolver's answers that follow from them.

Invariants: every name is unique; ids are positions in the sorted list of all cu* names followed by the sorted nvml*
names; a base answers one name a version and stream class.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from lab.spec._toml import HERE, SpecError, check_keys, fnv1a, read

Action = Literal["charge", "uncharge", "view", "pace", "resolve", "lifecycle", "pass"]
Fake = Literal["real", "unsupported", "absent"]
Kind = Literal["func", "data"]
Stream = Literal["", "ptds", "ptsz"]

ACTIONS = ("charge", "uncharge", "view", "pace", "resolve", "lifecycle", "pass")
FAKES = ("real", "unsupported", "absent")
HEADERS = ("cuda", "nvml", "gl", "profiler", "none")
# Names that begin like a driver's and belong to other libraries: an interposer leaves them alone.
FOREIGN = (
    "cublasCreate_v2",
    "cudnnCreate",
    "cufftPlan1d",
    "curl_easy_init",
    "custom",
    "nvtxMarkA",
    "nvmlike",
    "dlsyms",
)
PREFIXES = {"cuda": "cu", "nvml": "nvml"}
GROUP_KEYS = frozenset({"lacks", "reason"})
WAITS = frozenset({"charge", "pace"})  # what a suspended process does not begin, unless a line says otherwise
LINE_KEYS = frozenset({"action", "base", "bytes", "fake", "header", "kind", "reason", "running", "since"})

FOUND, UNKNOWN, TOO_OLD = 0, 1, 2  # what the resolver says: CUdriverProcAddressQueryResult


@dataclass(frozen=True, slots=True)
class Hook:
    """One symbol of a driver library."""

    name: str
    id: int
    library: str
    """cuda or nvml."""
    family: str
    action: Action
    reason: str
    """Why it passes; empty for hooked names."""
    fake: Fake
    lacks: str
    """Why the fake has no behaviour for it; empty where it has, for data, and for what it does not export."""
    base: str
    """Name the resolver knows it by; empty: the resolver does not know it."""
    since: int
    """First CUDA version at which the resolver hands it out; 0 without a base."""
    kind: Kind
    bytes: int
    """Size of a data symbol; 0 for functions."""
    header: str
    running: bool
    """A suspended process must wait here; otherwise being initialised is enough."""

    @property
    def stream(self) -> Stream:
        """Per-thread default stream class by suffix; empty for the legacy class."""
        suffix = self.name[-5:]
        return cast(Stream, suffix[1:]) if suffix in ("_ptds", "_ptsz") else ""

    @property
    def hooked(self) -> bool:
        """Whether the shim exports it."""
        return self.action != "pass"


@dataclass(frozen=True, slots=True)
class Steps:
    """What the resolver answers for one base: (first version, name), ascending."""

    legacy: tuple[tuple[int, str], ...]
    per_thread: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class HookTable:
    """All hooks by id."""

    hooks: tuple[Hook, ...]

    @functools.cached_property
    def by_name(self) -> Mapping[str, Hook]:
        return {hook.name: hook for hook in self.hooks}

    @functools.cached_property
    def hash(self) -> int:
        """Identity of the id assignment; processes with another one must not share files."""
        return fnv1a("\n".join(hook.name for hook in self.hooks))

    @property
    def cuda_count(self) -> int:
        """Ids below it are cu*, from it on nvml*."""
        return sum(hook.library == "cuda" for hook in self.hooks)

    def __getitem__(self, name: str) -> Hook:
        return self.by_name[name]

    def __len__(self) -> int:
        return len(self.hooks)

    def resolver(self, *, absent: bool = False) -> dict[str, Steps]:
        """Steps by base, sorted; names that the default driver lacks only with `absent`.

        Where a base has per-thread variants, the per-thread class knows only them; where it has none, both classes
        answer alike.
        """
        groups: dict[str, list[Hook]] = {}
        for hook in self.hooks:
            if hook.base and (absent or hook.fake != "absent"):
                groups.setdefault(hook.base, []).append(hook)
        result = {}
        for base in sorted(groups):
            legacy = sorted((hook.since, hook.name) for hook in groups[base] if not hook.stream)
            thread = sorted((hook.since, hook.name) for hook in groups[base] if hook.stream)
            result[base] = Steps(tuple(legacy), tuple(thread or legacy))
        return result

    def resolve(self, base: str, version: int, flags: int = 0) -> tuple[int, str | None]:
        """The default driver's answer: (status, name). Flags 0, 1 are legacy, 2, 3 per-thread; version -1 newest."""
        steps = self._resolver.get(base)
        if steps is None:
            return UNKNOWN, None
        answer = None
        for first, name in steps.per_thread if flags & 2 else steps.legacy:
            if version == -1 or first <= version:
                answer = name
        return (FOUND, answer) if answer else (TOO_OLD, None)

    @functools.cached_property
    def _resolver(self) -> dict[str, Steps]:
        return self.resolver()


@functools.cache
def load_hooks(path: Path | None = None) -> HookTable:
    """The hook table of this hooklab, or of another file of the same form."""
    path = path or HERE / "hooks.toml"
    rows: dict[str, dict[str, Any]] = {}
    for library, families in read(path).items():
        if library not in PREFIXES or not isinstance(families, dict):
            raise SpecError(f"{path}: [{library}]: not a library; write [cuda.FAMILY] or [nvml.FAMILY]")
        for family, group in families.items():
            _read_group(path, library, family, group, rows)
    names = sorted(rows, key=lambda name: (rows[name]["library"], name))
    table = HookTable(tuple(Hook(name=name, id=index, **rows[name]) for index, name in enumerate(names)))
    _check_steps(path, table)
    return table


def _read_group(path: Path, library: str, family: str, group: Any, rows: dict[str, dict[str, Any]]) -> None:
    where = f"[{library}.{family}]"
    if not isinstance(group, dict):
        raise SpecError(f"{path}: {where}: not a table; write one line a symbol under it")
    reason = group.get("reason", "")
    for name, line in group.items():
        if name in GROUP_KEYS:
            continue
        if not isinstance(line, dict):
            raise SpecError(f"{path}: {where} {name}: not an inline table; write {name} = {{action = ..., fake = ...}}")
        if name in rows:
            raise SpecError(f"{path}: {where} {name}: listed twice; keep one line")
        rows[name] = row = _read_line(path, library, family, name, line, reason)
        row["lacks"] = group.get("lacks", "") if row["fake"] == "unsupported" and row["kind"] == "func" else ""
        if row["fake"] == "unsupported" and row["kind"] == "func" and not row["lacks"]:
            raise SpecError(f"{path}: {where} {name}: unsupported, and the group does not say why; write lacks = ...")


def _read_line(path: Path, library: str, family: str, name: str, line: dict[str, Any], reason: str) -> dict[str, Any]:
    thing = f"[{library}.{family}] {name}"
    check_keys(path, thing, line, LINE_KEYS)
    if not name.startswith(PREFIXES[library]):
        raise SpecError(f"{path}: {thing}: a name of {library} starts with '{PREFIXES[library]}'; move it")
    row = {
        "library": library,
        "family": family,
        "action": line.get("action", "pass"),
        "fake": line.get("fake", ""),
        "base": line.get("base", ""),
        "since": line.get("since", 0),
        "kind": line.get("kind", "func"),
        "bytes": line.get("bytes", 0),
        "header": line.get("header", library),
        "running": line.get("running", line.get("action") in WAITS),
    }
    for key, allowed in (("action", ACTIONS), ("fake", FAKES), ("kind", ("func", "data")), ("header", HEADERS)):
        if row[key] not in allowed:
            raise SpecError(f"{path}: {thing}: {key} is {row[key]!r}; write one of {', '.join(allowed)}")
    if bool(row["base"]) != bool(row["since"]):
        raise SpecError(f"{path}: {thing}: base and since belong together; write both or none")
    if (row["kind"] == "data") != (row["bytes"] > 0):
        raise SpecError(f"{path}: {thing}: data has bytes, a function has none")
    if row["kind"] == "data" and row["action"] != "pass":
        raise SpecError(f"{path}: {thing}: data cannot be hooked; its action is pass")
    row["reason"] = line.get("reason", reason) if row["action"] == "pass" else ""
    if row["action"] == "pass" and not row["reason"]:
        raise SpecError(f"{path}: {thing}: pass is a decision; give a reason in the line or in its group")
    return row


def _check_steps(path: Path, table: HookTable) -> None:
    for base, steps in table.resolver(absent=True).items():
        for klass in (steps.legacy, steps.per_thread):
            versions = [version for version, _ in klass]
            if len(set(versions)) != len(versions):
                raise SpecError(f"{path}: {base}: two names since the same version: {klass}; mend one 'since'")
