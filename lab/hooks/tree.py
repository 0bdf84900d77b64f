"""A HAMi-family source tree: the four representations of its hooks, read by a C parser and set side by side.

1. the table of names and real pointers (`{.name = "cuInit"}` in an initialiser), by library;
2. the enumeration that numbers them (`CUDA_OVERRIDE_ENUM(cuInit)`);
3. the list of wrappers that dlsym answers with (`DLSYM_HOOK_FUNC(cuInit)`);
4. the wrappers' definitions.

Table and enumeration must agree in order: a slip makes one wrapper call another function. Every name of the table
needs a definition and a dlsym entry, unless it is optional or its library answers dlsym with its own export.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from lab.hooks._c import Definition, Token, definitions, strip_extern_c, tokens
from lab.hooks.model import Finding
from lab.hooks.project import Tree
from lab.spec import load_signatures

LIBRARIES = ("cuda", "nvml")


class TreeError(Exception):
    """No such tree, or one without any hooks; one line."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A name at a place of a list."""

    name: str
    where: str
    """file:line, relative to the tree."""
    conditions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Representations:
    """The four lists of one library, in file order."""

    table: tuple[Entry, ...]
    enumeration: tuple[Entry, ...]
    dlsym: tuple[Entry, ...]
    wrappers: tuple[Entry, ...]


@dataclass(frozen=True)
class Inventory:
    """Every function definition of the tree."""

    groups: Mapping[str, int]
    """Definitions by file, relative to the tree."""
    definitions: int
    unique: int
    repeated: Mapping[str, int]
    """Names that are defined more than once (under different conditions, or static)."""


@dataclass(frozen=True)
class TreeReport:
    """What a tree says."""

    root: Path
    lists: Mapping[str, Representations]
    inventory: Inventory
    findings: tuple[Finding, ...]

    @property
    def hooks(self) -> frozenset[str]:
        """Names with a wrapper."""
        return frozenset(entry.name for lists in self.lists.values() for entry in lists.wrappers)


def library_of(name: str) -> str:
    """cuda, nvml, or nothing for a name that is neither's."""
    if name.startswith("nvml") and name[4:5].isupper():
        return "nvml"
    return "cuda" if name.startswith("cu") and name[2:3].isupper() else ""


def read_tree(root: Path, how: Tree) -> TreeReport:
    """Reads and checks a tree. TreeError when there is nothing to read."""
    if not root.is_dir():
        raise TreeError(f"{root}: no such folder; give the root of the project's sources")
    files = sorted({path for pattern in how.sources for path in root.glob(pattern) if path.is_file()})
    if not files:
        raise TreeError(f"{root}: no source matches {', '.join(how.sources)}; say where they are in [tree] sources")
    table: list[Entry] = []
    enumeration: list[Entry] = []
    dlsym: list[Entry] = []
    wrappers: list[Entry] = []
    every: list[tuple[str, Definition]] = []
    shifted: list[Finding] = []
    for path in files:
        file = str(path.relative_to(root))
        found = strip_extern_c(list(tokens(path.read_text(encoding="utf-8", errors="replace"))))
        table += _table(found, file)
        enumeration += _calls(found, file, how.enumerators, inside_enum=True)
        dlsym += _calls(found, file, how.dlsym, inside_enum=False)
        if path.suffix == ".c":
            for definition in definitions(found):
                every.append((file, definition))
                if library_of(definition.name) and not definition.static:
                    wrappers.append(Entry(definition.name, f"{file}:{definition.line}", definition.conditions))
                    shifted += _prototype(definition, file) + _forwards(definition, file, how)
    if not table and not wrappers:
        raise TreeError(
            f"{root}: no table of driver names and no wrapper found; describe the tree in a project's [tree]"
        )
    lists = {
        library: Representations(
            *(tuple(e for e in one if library_of(e.name) == library) for one in (table, enumeration, dlsym, wrappers))
        )
        for library in LIBRARIES
    }
    findings = [finding for library in LIBRARIES for finding in _check(library, lists[library], how)]
    return TreeReport(root, lists, _inventory(every), tuple(findings + shifted))


def _table(found: list[Token], file: str) -> Iterable[Entry]:
    """`{.name = "cu..."` and `{"cu...",` inside an initialiser."""
    for at, token in enumerate(found):
        if token.kind != "text" or not library_of(token.text) or not token.text.isidentifier():
            continue
        before = [one.text for one in found[max(0, at - 4) : at]]
        if before[-3:] == [".", "name", "="] and "{" in before:
            yield Entry(token.text, f"{file}:{token.line}", token.conditions)


def _calls(found: list[Token], file: str, macros: Iterable[str], *, inside_enum: bool) -> Iterable[Entry]:
    """Names in calls of the macros; for enumerations only inside an enum's braces."""
    wanted, braces, enum_at = set(macros), 0, -1
    pending = False
    for at, token in enumerate(found):
        if token.text == "enum" and token.kind == "word":
            pending = True
        elif token.kind == "sign" and token.text == "{":
            braces += 1
            if pending:
                enum_at, pending = braces, False
        elif token.kind == "sign" and token.text == "}":
            if braces == enum_at:
                enum_at = -1
            braces -= 1
        elif token.text == ";":
            pending = False
        in_place = enum_at >= 0 if inside_enum else braces > 0
        if token.text in wanted and in_place and at + 2 < len(found) and found[at + 1].text == "(":
            name = found[at + 2]
            if library_of(name.text):
                yield Entry(name.text, f"{file}:{name.line}", name.conditions)


def _prototype(definition: Definition, file: str) -> list[Finding]:
    """A wrapper with another number of parameters than the vendor's function: arguments get lost."""
    signature = load_signatures().get(definition.name)
    if signature is None:
        return []
    wanted = sum(letter.isalpha() for letter in signature)
    if wanted == definition.parameters:
        return []
    text = f"has {definition.parameters} parameters, the driver's function has {wanted}"
    return [Finding("wrong-prototype", definition.name, text, where=f"{file}:{definition.line}")]


def _forwards(definition: Definition, file: str, how: Tree) -> list[Finding]:
    """A wrapper that calls entries of the table, and its own is not among them: it reaches another function."""
    body = definition.body
    called = [
        body[at + 4].text
        for at in range(len(body) - 4)
        if body[at].text in how.calls and body[at + 1].text == "(" and body[at + 3].text == ","
    ]
    renamed = re.sub(r"_v\d+$", "", definition.name)  # cuda.h renames the plain name to the current variant
    known = definition.name in load_signatures()
    if not known or not called or definition.name in called or renamed in called:
        return []
    text = f"calls the driver's {', '.join(dict.fromkeys(called))}, not its own entry"
    return [Finding("forwards-elsewhere", definition.name, text, where=f"{file}:{definition.line}")]


def _check(library: str, lists: Representations, how: Tree) -> list[Finding]:
    found: list[Finding] = []
    named = {"table": lists.table, "enumeration": lists.enumeration, "dlsym list": lists.dlsym}
    for title, entries in named.items():
        for name, count in Counter(entry.name for entry in entries).items():
            if count > 1 and not _alternatives([entry for entry in entries if entry.name == name]):
                where = next(entry.where for entry in reversed(entries) if entry.name == name)
                found.append(Finding("duplicate", name, f"{count} times in the {library} {title}", where=where))
    if lists.table and lists.enumeration:
        found += _order(library, lists)
    table = {entry.name: entry for entry in lists.table}
    defined = {entry.name for entry in lists.wrappers}
    asked = {entry.name for entry in lists.dlsym}
    numbers = {entry.name for entry in lists.enumeration}
    for name, entry in table.items():
        if lists.enumeration and name not in numbers:
            found.append(Finding("missing", name, f"in the {library} table, not in the enumeration", where=entry.where))
        if name in how.optional:
            continue
        if lists.dlsym and name not in asked:
            found.append(Finding("missing", name, f"in the {library} table, not in the dlsym list", where=entry.where))
        if name not in defined:
            fault = name in asked  # answered with a wrapper that does not exist
            text = f"in the {library} table, no wrapper defined" + (
                "" if fault else ": called by the library only, never hooked"
            )
            found.append(Finding("missing", name, text, fault, entry.where))
    for title, entries in (("enumeration", lists.enumeration), ("dlsym list", lists.dlsym)):
        for entry in entries:
            if lists.table and entry.name not in table and not entry.name.startswith("cuGetProcAddress"):
                found.append(
                    Finding("extra", entry.name, f"in the {library} {title}, not in the table", where=entry.where)
                )
    for entry in lists.wrappers:
        if lists.table and entry.name not in table:
            found.append(Finding("extra", entry.name, f"a {library} wrapper without a table entry", False, entry.where))
    gates = Counter(condition for entry in lists.dlsym for condition in entry.conditions if "defined" in condition)
    for condition, count in gates.items():
        if count == len(lists.dlsym):
            where = lists.dlsym[0].where
            text = (
                f"the whole {library} dlsym list is compiled only under {condition}: see that the shipped build sets it"
            )
            found.append(Finding("conditional", f"{library} dlsym list", text, False, where))
    return found


def _alternatives(entries: list[Entry]) -> bool:
    """Entries under different conditions are one entry in any build."""
    return len({entry.conditions for entry in entries}) == len(entries)


def _order(library: str, lists: Representations) -> list[Finding]:
    """The first place at which table and enumeration part; what follows a missing entry is all shifted by it."""
    numbers = [entry.name for entry in lists.enumeration]
    for index, entry in enumerate(lists.table):
        there = numbers[index] if index < len(numbers) else "nothing"
        if entry.name != there:
            text = f"place {index} of the {library} table is {entry.name}, of the enumeration {there}"
            text += ": from here on a wrapper calls another function"
            return [Finding("order", entry.name, text, where=entry.where)]
    if len(numbers) > len(lists.table):
        extra = lists.enumeration[len(lists.table)]
        text = f"the {library} enumeration goes on behind the table with {extra.name}"
        return [Finding("order", extra.name, text, where=extra.where)]
    return []


def _inventory(every: list[tuple[str, Definition]]) -> Inventory:
    names = Counter(definition.name for _, definition in every)
    return Inventory(
        groups=dict(sorted(Counter(file for file, _ in every).items())),
        definitions=len(every),
        unique=len(names),
        repeated={name: count for name, count in sorted(names.items()) if count > 1},
    )
