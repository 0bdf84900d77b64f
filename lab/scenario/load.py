"""Scenario files into scenarios: all mistakes of a file at once, each with file:line:col, sorted by position."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from pathlib import Path as FilePath
from typing import Any

from lab.scenario.model import Position, Scenario
from lab.scenario.sweep import Variant, expand
from lab.scenario.tree import Path, Problem, Tree, get, read_tree


class ScenarioError(ValueError):
    """A file that cannot be run; ``problems`` is sorted by position, ``str()`` has one line for each."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(sorted(set(problems), key=lambda problem: (problem.file, problem)))
        super().__init__("\n".join(str(problem) for problem in self.problems))


@dataclass(frozen=True, kw_only=True)
class Overrides:
    """What the command line says instead of the file; None leaves the file's value. Units as in the file."""

    gpu: str | None = None  # profiles separated by commas
    driver: str | None = None
    memory: str | None = None  # of every container
    cores: int | None = None
    interposer: str | None = None
    dialect: str | None = None
    policy: str | None = None
    memory_mode: str | None = None
    seed: int | None = None
    timeout: str | None = None
    context: str | None = None

    def apply(self, tree: Tree) -> dict[Path, str]:
        """Puts the values into the tree; returns the option that set each path."""
        options: dict[Path, str] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None:
                continue
            for path in _TARGETS[field.name](tree):
                if _set(tree.value, path, value.split(",") if field.name == "gpu" else value):
                    options[path] = f"--{field.name.replace('_', '-')}"
        return options


def _every_container(key: str) -> Callable[[Tree], list[Path]]:
    def paths(tree: Tree) -> list[Path]:
        containers = tree.value.get("containers")
        return [("containers", name, "limits", key) for name in containers] if isinstance(containers, dict) else []

    return paths


def _at(*path: str) -> Callable[[Tree], list[Path]]:
    return lambda _tree: [path]


_TARGETS: dict[str, Callable[[Tree], list[Path]]] = {
    "gpu": _at("node", "gpus"),
    "driver": _at("node", "driver"),
    "context": _at("node", "context"),
    "memory": _every_container("memory"),
    "cores": _every_container("cores"),
    "interposer": _at("options", "interposer"),
    "dialect": _at("options", "dialect"),
    "policy": _at("options", "policy"),
    "memory_mode": _at("options", "memory_mode"),
    "seed": _at("seed"),
    "timeout": _at("timeout"),
}


def _set(value: Any, path: Path, new: Any) -> bool:
    for part in path[:-1]:
        if not isinstance(value, dict):
            return False
        if value.get(part) is None:
            value[part] = {}
        value = value[part]
    if not isinstance(value, dict):
        return False
    value[path[-1]] = new
    return True


def load(path: str | FilePath, *, overrides: Overrides | None = None) -> list[Scenario]:
    """Every run of a scenario file, sweeps expanded; ScenarioError has everything that is wrong."""
    file = str(path)
    try:
        text = FilePath(path).read_bytes().decode("utf-8")
    except OSError as error:
        raise ScenarioError([Problem(0, 0, error.strerror or str(error), file)]) from None
    except UnicodeDecodeError as error:
        raise ScenarioError([Problem(0, 0, f"not UTF-8 text (byte {error.start})", file)]) from None
    return loads(text, file, overrides=overrides)


def loads(text: str, file: str = "<text>", *, overrides: Overrides | None = None) -> list[Scenario]:
    """The same for a text; ``file`` is what errors call it."""
    tree = read_tree(text, file)
    problems = list(tree.problems)
    if tree.value is not None and not isinstance(tree.value, dict):
        problems.append(tree.problem((), "a scenario is a mapping with name, containers, expect, ..."))
    if not isinstance(tree.value, dict):
        raise ScenarioError(problems)
    options = overrides.apply(tree) if overrides is not None else {}
    found: list[Scenario] = []
    for variant in expand(tree, problems):
        scenario = _validate(tree, variant, options, problems)
        if scenario is not None:
            found.append(scenario)
    if problems:
        raise ScenarioError(problems)
    return found


def yaml_text(tree: Any, *, flow: bool | None) -> str:
    """YAML of plain values in the order given. ``flow``: False = a line for each value, None = the leaves inline."""
    from ruamel.yaml import YAML

    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = flow
    yaml.width = 120
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # typed as None there
    stream = io.StringIO()
    yaml.dump(tree, stream)
    return stream.getvalue()


def dump(scenario: Scenario) -> str:
    """The YAML text of this one run: no sweep left, the id as its name. It loads again to an equal run."""
    return yaml_text({**scenario.raw, "name": scenario.id}, flow=False)


def _validate(tree: Tree, variant: Variant, options: dict[Path, str], problems: list[Problem]) -> Scenario | None:
    from pydantic import ValidationError

    from lab.scenario.build import build
    from lab.scenario.crosscheck import crosscheck
    from lab.scenario.schema import ScenarioForm

    def report(path: Path, text: str, *, key: bool = False) -> None:
        for length in range(len(path), 0, -1):
            if path[:length] in options:
                problems.append(Problem(0, 0, text, options[path[:length]]))
                return
        problems.append(tree.problem(variant.moved.get(path, path), text, key=key))

    before = len(problems)
    form = None
    _find_files(variant.raw, FilePath(tree.file).parent)
    try:
        form = ScenarioForm.model_validate(variant.raw)
    except ValidationError as error:
        for path, text, key in explain(variant.raw, error.errors(include_url=False)):
            report(path, text, key=key)
    crosscheck(variant.raw, report)
    if form is None or len(problems) > before or tree.problems:
        return None

    def where(path: Path) -> Position:
        return tree.position(path, key=True)

    return build(form, variant.raw, variant.values, tree.file, where)


def _find_files(raw: dict[Any, Any], folder: FilePath) -> None:
    """Files that a scenario names are looked for beside it: policy, interposer, dialect become absolute paths."""
    containers = raw.get("containers")
    holders = [raw.get("options"), *(containers.values() if isinstance(containers, dict) else ())]
    for holder in holders:
        for key in ("policy", "interposer", "dialect"):
            value = holder.get(key) if isinstance(holder, dict) else None
            if not isinstance(value, str):
                continue
            file, colon, name = value.rpartition(":") if key == "policy" else (value, "", "")
            if file and not file.startswith("/") and "\0" not in file and (folder / file).is_file():
                holder[key] = f"{(folder / file).absolute()}{colon}{name}"


def explain(raw: Any, errors: Iterable[Any]) -> Iterable[tuple[Path, str, bool]]:
    """Pydantic's errors as (path in the file, one line, whether the key is meant)."""
    branched: set[Path] = set()  # unions say one thing per branch; the first says it
    for error in errors:
        kind = error["type"]
        path: Path = ()
        tags: list[Any] = []
        for part in error["loc"]:
            inside = get(raw, path)
            if _holds(inside, part):
                path = (*path, part)
            else:
                tags.append(part)
        value = get(raw, path)
        if kind == "missing":
            yield path, f"missing key {tags[-1]!r}", False
            continue
        if kind == "extra_forbidden":
            yield path, _unknown_key(path), True
            continue
        if tags and "[key]" not in tags:
            if path in branched or _wrong_branch(value, str(tags[0])):
                continue
            branched.add(path)
        yield path, _words(error, value), "[key]" in tags


def _holds(inside: Any, part: Any) -> bool:
    if isinstance(inside, dict):
        return part in inside
    return isinstance(inside, list) and isinstance(part, int) and part < len(inside)


def _wrong_branch(value: Any, tag: str) -> bool:
    """Whether a union's branch was not meant: a mapping's branch for a scalar, or the reverse."""
    mapping = tag.startswith("dict[") or tag[:1].isupper()
    return isinstance(value, dict) != mapping


def _unknown_key(path: Path) -> str:
    from lab.scenario import vocabulary
    from lab.scenario.doc import keys_at

    known = keys_at(path[:-1])
    close = vocabulary.nearest(path[-1], known)
    listing = f"; known: {', '.join(known)}" if known and not close else ""
    return f"unknown key {path[-1]!r}{close}{listing}"


def _words(error: Any, value: Any) -> str:
    kind, context = error["type"], error.get("ctx", {})
    shown = "a mapping" if isinstance(value, dict) else "a list" if isinstance(value, list) else repr(value)
    if kind == "value_error":
        return str(context["error"])
    if kind == "literal_error":
        return f"must be {context['expected']}, not {shown}"
    if kind == "string_pattern_mismatch":
        return f"not a name: {shown}; letters, digits, - and _, at most 48, starting with a letter"
    wanted = {
        "int_type": "a whole number",
        "int_from_float": "a whole number",
        "float_type": "a number",
        "bool_type": "true or false",
        "string_type": "a text (put it in quotes)",
        "list_type": "a list",
        "dict_type": "a mapping",
        "model_type": "a mapping",
        "model_attributes_type": "a mapping",
        "none_required": "empty",
    }
    if kind in wanted:
        return f"must be {wanted[kind]}, not {shown}"
    limits = {"greater_than_equal": "at least {ge}", "less_than_equal": "at most {le}", "greater_than": "above {gt}"}
    if kind in limits:
        return f"must be {limits[kind].format(**context)}, not {shown}"
    if kind in ("too_short", "string_too_short"):
        return "must not be empty"
    return f"{error['msg'][:1].lower()}{error['msg'][1:]}, not {shown}"
