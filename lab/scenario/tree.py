"""YAML text into a plain tree of Python values plus the position of every key and value.

Invariant: every path of the tree (a tuple of keys and indices) has a position, so an error about a value can always
name its line and column. Duplicate keys, unknown tags and recursion are collected as problems, not raised one by one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from lab.scenario.model import Position

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One thing wrong with a file, with its position (line 0: the file as a whole); sorts by position."""

    line: int
    column: int
    text: str
    file: str = ""

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        return f"{where}: {self.text}"


@dataclass
class Tree:
    """The plain value of a file and where its parts stand (1-based)."""

    file: str
    value: Any = None
    keys: dict[Path, tuple[int, int]] = field(default_factory=dict)
    values: dict[Path, tuple[int, int]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def position(self, path: Path, *, key: bool = False) -> Position:
        """Position of the value at ``path`` (of its key when ``key``), or of the nearest part above it."""
        while True:
            place = self.keys.get(path) if key else None
            place = place or self.values.get(path)
            if place is not None or not path:
                line, column = place or (1, 1)
                return Position(self.file, line, column)
            path = path[:-1]

    def problem(self, path: Path, text: str, *, key: bool = False) -> Problem:
        """A Problem at the position of ``path``."""
        place = self.position(path, key=key)
        return Problem(place.line, place.column, text, self.file)


def read_tree(text: str, file: str) -> Tree:
    """Parses YAML 1.2 text. Syntax errors end the reading and are the only problem then."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    tree = Tree(file)
    try:
        root = YAML(typ="safe", pure=True).compose(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
        what = " ".join(str(part) for part in (error.context, error.problem) if part)
        tree.problems.append(Problem(line, column, f"not valid YAML: {' '.join(what.split())}", file))
        return tree
    except YAMLError as error:
        tree.problems.append(Problem(1, 1, f"not valid YAML: {' '.join(str(error).split())}", file))
        return tree
    if root is None:
        tree.problems.append(Problem(1, 1, "the file is empty; a scenario has name, containers, ...", file))
        return tree
    tree.value = _build(root, (), tree, ())
    return tree


def walk(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every (path, value) of a plain tree, parents first."""
    yield path, value
    if isinstance(value, dict):
        for key, child in value.items():
            yield from walk(child, (*path, key))
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from walk(child, (*path, index))


def get(value: Any, path: Path) -> Any:
    """The value at ``path``; None when there is none."""
    for part in path:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def _build(node: Any, path: Path, tree: Tree, above: tuple[int, ...]) -> Any:
    from ruamel.yaml.nodes import MappingNode, SequenceNode

    tree.values[path] = (node.start_mark.line + 1, node.start_mark.column + 1)
    if id(node) in above:
        tree.problems.append(tree.problem(path, "an alias that contains itself"))
        return None
    above = (*above, id(node))
    if isinstance(node, MappingNode):
        mapping: dict[str | int, Any] = {}
        for key_node, value_node in node.value:
            place = (key_node.start_mark.line + 1, key_node.start_mark.column + 1)
            key = _scalar(key_node) if not isinstance(key_node, (MappingNode, SequenceNode)) else None
            if not isinstance(key, (str, int)) or isinstance(key, bool):
                tree.problems.append(Problem(*place, "a key must be a name or a number", tree.file))
                continue
            if key in mapping:
                tree.problems.append(Problem(*place, f"key {key!r} appears twice", tree.file))
                continue
            tree.keys[(*path, key)] = place
            mapping[key] = _build(value_node, (*path, key), tree, above)
        return mapping
    if isinstance(node, SequenceNode):
        return [_build(child, (*path, index), tree, above) for index, child in enumerate(node.value)]
    return _scalar(node)


_INT = re.compile(r"[-+]?(?:0x[0-9a-fA-F]+|0o[0-7]+|[0-9]+)")


def _scalar(node: Any) -> Any:
    text: str = node.value
    kind = str(node.ctag if hasattr(node, "ctag") else node.tag).rsplit(":", 1)[-1].lstrip("!")
    if kind == "null":
        return None
    if kind == "bool":
        return text.lower() == "true"
    if kind == "int" and _INT.fullmatch(text):
        sign = -1 if text.startswith("-") else 1
        digits = text.lstrip("+-")
        base = {"0x": 16, "0o": 8}.get(digits[:2], 10)
        if len(digits) > 40:  # int() itself refuses very long numbers with an exception
            return text
        return sign * int(digits[2:] if base != 10 else digits, base)
    if kind == "float":
        try:
            return float(text)
        except ValueError:
            return text
    return text
