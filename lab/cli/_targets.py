"""What the arguments of ``hooklab run`` mean: a file, a folder of files, a run directory, or @NAME of those shipped, by
folder, by file or by a word under `tags:`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from lab import native

SUFFIXES = (".yaml", ".yml")
_REPORTED = re.compile(r"^report:", re.MULTILINE)


class TargetError(ValueError):
    """An argument that means nothing; one line."""


def resolve(arguments: Sequence[str]) -> dict[Path, Path | None]:
    """The scenario files that the arguments mean, in order, each once; and the run directory that each would repeat."""
    found: dict[Path, Path | None] = {}
    for argument in arguments:
        before = Path(argument) if (Path(argument) / "run.json").exists() else None
        for path in _one(argument):
            found.setdefault(path, before)
    return found


def _one(argument: str) -> Iterator[Path]:
    if argument.startswith("@"):
        yield from _shipped(argument)
        return
    path = Path(argument)
    if path.is_dir():
        if (path / "run.json").exists():
            yield path / "scenario.yaml"
            return
        files = sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES and not _in_run(file, path))
        if not files:
            raise TargetError(f"{argument}: no scenario files (*.yaml) and no run.json in this folder")
        yield from files
    elif path.exists():
        yield path
    else:
        raise TargetError(f"{argument}: no such file or folder; shipped scenarios are named @NAME, e.g. @quickstart")


def _in_run(file: Path, top: Path) -> bool:
    """Whether a file is the copy that a run directory below the folder keeps."""
    return any((parent / "run.json").exists() for parent in file.parents if parent.is_relative_to(top))


def _shipped(argument: str) -> Iterator[Path]:
    root = native.scenarios_dir()
    name = argument[1:]
    if name in ("all", "corpus"):  # corpus: those that reproduce public reports
        files = sorted(file for file in root.rglob("*") if file.suffix in SUFFIXES)
        yield from (file for file in files if name == "all" or _REPORTED.search(file.read_text(encoding="utf-8")))
        return
    files = [file for file in sorted(root.rglob("*")) if file.suffix in SUFFIXES]
    matches = [file for file in files if _is(file, root, name) or name in _tags(file)]
    if not matches:
        known = {file.relative_to(root).parts[0].rsplit(".", 1)[0] for file in files}
        known |= {tag for file in files for tag in _tags(file)}
        listing = ", ".join(f"@{word}" for word in ("all", "corpus", *sorted(known)))
        raise TargetError(f"{argument}: no such scenario; shipped are {listing}")
    yield from matches


def _is(file: Path, root: Path, name: str) -> bool:
    relative = file.relative_to(root).with_suffix("")
    return str(relative) == name or relative.name == name or str(relative).startswith(f"{name}/")


def _tags(file: Path) -> list[str]:
    """The words under `tags:`; a file that is no scenario has none."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        found = YAML(typ="safe").load(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, YAMLError):
        return []
    tags = found.get("tags") if isinstance(found, dict) else None
    return [str(tag) for tag in tags] if isinstance(tags, list) else []
