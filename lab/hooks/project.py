"""What a project means to hook and to pass: a small TOML beside its sources, or our own hook table.

    hooks = ["cuMemAlloc_v2", "cuLaunch*"]       # what the library promises to intercept
    dialect = "hami"                             # how limits reach it

    [passes]                                     # everything else that is a decision, with its reason
    "cuGraph*" = "graphs are counted at launch"

    [tree]                                       # only where the HAMi family's habits do not fit
    sources = ["src/**/*.c", "src/**/*.h"]
    enumerators = ["CUDA_OVERRIDE_ENUM"]
    dlsym = ["DLSYM_HOOK_FUNC"]

Patterns are those of a shell. Without `[passes]`, a name passes by decision where our own table says so.
"""

from __future__ import annotations

import fnmatch
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab.hooks.model import Decision
from lab.spec import HookTable

KEYS = frozenset({"hooks", "dialect", "passes", "tree"})
TREE_KEYS = frozenset({"sources", "enumerators", "dlsym", "calls", "optional"})


class ProjectError(Exception):
    """A project file that breaks a rule; one line with its name, the thing and the mend."""


@dataclass(frozen=True)
class Tree:
    """How to read a source tree."""

    sources: tuple[str, ...] = ("src/**/*.c", "src/**/*.h")
    enumerators: tuple[str, ...] = ("CUDA_OVERRIDE_ENUM", "NVML_OVERRIDE_ENUM")
    dlsym: tuple[str, ...] = ("DLSYM_HOOK_FUNC",)
    calls: tuple[str, ...] = ("CUDA_OVERRIDE_CALL", "NVML_OVERRIDE_CALL")
    """Macros of (table, name, arguments ...) by which a wrapper calls the driver."""
    optional: tuple[str, ...] = ("cuGetExportTable",)
    """Names that need neither a dlsym entry nor a wrapper."""


@dataclass(frozen=True)
class Project:
    """A project's promises."""

    hooks: tuple[str, ...] = ()
    passes: Mapping[str, str] = field(default_factory=dict)
    dialect: str | None = None
    tree: Tree = field(default_factory=Tree)

    def declared(self, names: Collection[str]) -> set[str]:
        """Those of the names that the project promises to hook."""
        return {name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in self.hooks)}

    def reason(self, name: str) -> str:
        """Why a name passes, in the project's words; empty without a word."""
        return next((text for pattern, text in self.passes.items() if fnmatch.fnmatchcase(name, pattern)), "")


def load_project(path: Path) -> Project:
    """Reads a project file. ProjectError says what is wrong with it."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ProjectError(f"{path}: {error.strerror}; give the project's TOML file") from None
    except tomllib.TOMLDecodeError as error:
        raise ProjectError(f"{path}: not TOML: {error}") from None
    _keys(path, "", data, KEYS)
    tree = data.get("tree", {})
    _keys(path, "[tree] ", tree, TREE_KEYS)
    passes = data.get("passes", {})
    for pattern, reason in passes.items():
        if not isinstance(reason, str) or not reason:
            raise ProjectError(f"{path}: [passes] {pattern}: a decision needs its reason; write a text")
    kept: dict[str, Any] = {key: _texts(path, f"[tree] {key}", value) for key, value in tree.items()}
    return Project(_texts(path, "hooks", data.get("hooks", [])), passes, data.get("dialect"), Tree(**kept))


def _texts(path: Path, thing: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise ProjectError(f'{path}: {thing}: not a list of texts; write ["...", ...]')
    return tuple(value)


def _keys(path: Path, where: str, table: Any, known: frozenset[str]) -> None:
    if not isinstance(table, dict):
        raise ProjectError(f"{path}: {where.strip()}: not a table")
    for key in table:
        if key not in known:
            raise ProjectError(f"{path}: {where}{key}: unknown; known are {', '.join(sorted(known))}")


def decisions(table: HookTable, project: Project, *, own: bool, hooked: Collection[str]) -> dict[str, Decision]:
    """The decision about every name of the table. `own`: our shim, judged by our table alone."""
    declared = project.declared([hook.name for hook in table.hooks])
    found = {}
    for hook in table.hooks:
        if own:
            found[hook.name] = Decision(hook.hooked, hook.reason)
            continue
        hooks = hook.name in hooked or hook.name in declared
        reason = "" if hooks else project.reason(hook.name) or ("" if project.passes else hook.reason)
        found[hook.name] = Decision(hooks, reason)
    return found
