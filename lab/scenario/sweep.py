"""Sweeps: one file, several runs. A list where one value is wanted, and ``$name`` of ``sweep:``, make one run for each
combination, in the order written, with a readable id (``race[memory_mode=reserve,x.route=dlsym]``)."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lab.scenario.tree import Path, Problem, Tree, get, walk

KEYS = ("route", "kind", "api", "bytes", "memory_mode", "driver", "pid_namespace")
MAX_RUNS = 4096
_NAME = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")
_FREE_TEXT = ("environment", "run", "doc", "sweep")


@dataclass(frozen=True)
class Axis:
    """One thing that varies: where its values go and where each value stands in the file."""

    label: str
    targets: tuple[Path, ...]
    values: tuple[Any, ...]
    sources: tuple[Path, ...]


@dataclass(frozen=True)
class Variant:
    """One combination: its plain tree (no sweep left), the values by axis, and where replaced values stand."""

    raw: dict[Any, Any]
    values: dict[str, str]
    moved: dict[Path, Path]


def expand(tree: Tree, problems: list[Problem]) -> Iterator[Variant]:
    """Every combination of a tree whose root is a mapping."""
    axes = _axes(tree, problems)
    runs = 1
    for axis in axes:
        runs *= len(axis.values)
    if runs > MAX_RUNS:
        problems.append(tree.problem((), f"the sweep makes {runs} runs; at most {MAX_RUNS} are allowed"))
        axes = []
    for choice in itertools.product(*(range(len(axis.values)) for axis in axes)):
        raw = _copy(tree.value)
        raw.pop("sweep", None)
        moved: dict[Path, Path] = {}
        values: dict[str, str] = {}
        for axis, index in zip(axes, choice, strict=True):
            values[axis.label] = str(axis.values[index])
            for target in axis.targets:
                _put(raw, target, axis.values[index])
                moved[target] = axis.sources[index]
        yield Variant(raw, values, moved)


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(child) for key, child in value.items()}
    return [_copy(child) for child in value] if isinstance(value, list) else value


def _put(raw: Any, path: Path, value: Any) -> None:
    get(raw, path[:-1])[path[-1]] = value


def _axes(tree: Tree, problems: list[Problem]) -> list[Axis]:
    named: dict[str, list[Any]] = {}
    sweep = tree.value.get("sweep", {})
    if isinstance(sweep, dict):
        named = {str(name): values for name, values in sweep.items() if isinstance(values, list)}
    targets: dict[str, list[Path]] = {name: [] for name in named}
    listed: list[tuple[Path, list[Any]]] = []
    for path, value in walk(tree.value):
        free = any(part in _FREE_TEXT for part in path)
        if isinstance(value, str) and (match := _NAME.fullmatch(value)) and "sweep" not in path:
            if match[1] in targets:
                targets[match[1]].append(path)
            elif not free:
                problems.append(tree.problem(path, f"{value} is not in sweep"))
        elif isinstance(value, list) and path and path[-1] in KEYS and not free:
            listed.append((path, value))
    axes: list[Axis] = []
    for name, paths in targets.items():
        source: Path = ("sweep", name)
        if not paths:
            unused = f"sweep value {name!r} is never used; write ${name} somewhere"
            problems.append(tree.problem(source, unused, key=True))
        if _usable(tree, source, named[name], problems):
            sources = tuple((*source, index) for index in range(len(named[name])))
            axes.append(Axis(name, tuple(paths), tuple(named[name]), sources))
    keys = [path[-1] for path, _ in listed]
    for path, values in listed:
        if _usable(tree, path, values, problems):
            label = str(path[-1]) if keys.count(path[-1]) == 1 else _label(tree, path)
            axes.append(Axis(label, (path,), tuple(values), tuple((*path, index) for index in range(len(values)))))
    return axes


def _usable(tree: Tree, path: Path, values: list[Any], problems: list[Problem]) -> bool:
    if not values:
        problems.append(tree.problem(path, "an empty list makes no run"))
        return False
    for index, value in enumerate(values):
        if isinstance(value, (dict, list)):
            problems.append(tree.problem((*path, index), "a swept value must be a single value"))
            return False
    return True


def _label(tree: Tree, path: Path) -> str:
    """``x.route`` by the step's ``as``; else ``process/3/alloc.route``."""
    label = get(tree.value, (*path[:-1], "as"))
    if isinstance(label, str):
        return f"{label}.{path[-1]}"
    short = [str(part) for part in path[:-1] if part not in ("containers", "processes", "steps")]
    return f"{'/'.join(short)}.{path[-1]}"
