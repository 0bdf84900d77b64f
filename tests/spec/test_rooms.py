"""Who may import whom: the order of the rooms in docs/design.md, read from the sources, not from what happens to run.

Imports inside functions count too: they are late, not free.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import lab

PACKAGE = Path(lab.__file__).parent
LEAVES = frozenset({"native"})  # lab/native.py: where the built parts are; imports nothing of ours
BELOW = {
    "spec": set(),
    "policy": set(),
    "native": set(),
    "codegen": {"spec", "policy"},  # policy: its sources are frozen into the engine
    "region": {"spec"},
    "identity": {"spec", "policy"},
    "bridge": {"spec", "policy"},
    "node": {"spec"},
    "sim": {"spec", "policy"},
    "scenario": {"spec"},
    "checks": {"spec", "region", "scenario"},
    "runner": {"spec", "policy", "region", "identity", "bridge", "node", "sim", "scenario", "codegen"},
    "report": {"spec", "checks", "scenario"},
    "hooks": {"spec", "node", "runner"},
    "guests": set(),  # run in processes under test
}
EVERYTHING = frozenset({"cli", "testing"})


def room_of(path: Path, package: Path) -> str:
    """'spec' for lab/spec/x.py; 'native' for lab/native.py; '' for lab/__init__.py."""
    parts = path.relative_to(package).with_suffix("").parts
    return "" if parts == ("__init__",) else parts[0]


def imports(source: str, module: tuple[str, ...]) -> set[str]:
    """Rooms of `lab` that a module's text imports; `module` is its dotted name from lab on, for relative imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(module[: len(module) - node.level]) if node.level else ""
            base = ".".join(part for part in (base, node.module or "") if part)
            names = [f"{base}.{alias.name}" for alias in node.names] if base == "lab" else [base]
        for name in names:
            parts = name.split(".")
            if parts[0] == "lab" and len(parts) > 1:
                found.add(parts[1])
    return found


def violations(package: Path) -> list[str]:
    """Every import against the order, one line each."""
    bad = []
    for path in sorted(package.rglob("*.py")):
        room = room_of(path, package)
        if room.startswith("_") or room in EVERYTHING:
            continue
        module = ("lab", *path.relative_to(package).with_suffix("").parts)
        for used in sorted(imports(path.read_text(encoding="utf-8"), module)):
            if used in LEAVES or used == room or used.startswith("__"):
                continue
            if used not in BELOW.get(room, set()):
                bad.append(f"{path.relative_to(package)} imports lab.{used}")
    return bad


def test_rooms_import_only_what_lies_below() -> None:
    assert violations(PACKAGE) == []


def test_every_room_has_a_place_in_the_order() -> None:
    rooms = {room_of(path, PACKAGE) for path in PACKAGE.rglob("*.py")}
    assert {room for room in rooms if room and not room.startswith("_")} <= {*BELOW, *EVERYTHING}


def test_the_order_has_no_circle() -> None:
    done: set[str] = set()
    while len(done) < len(BELOW):
        ready = {room for room, below in BELOW.items() if below <= done} - done
        assert ready, f"circle among {sorted(set(BELOW) - done)}"
        done |= ready


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("spec/x.py", "import lab.node.server\n"),
        ("policy/x.py", "from lab import spec\n"),
        ("policy/x.py", "from lab.spec import load_hooks\n"),
        ("node/x.py", "def late():\n    from lab.runner.run import play\n    return play\n"),
        ("checks/deep/x.py", "from ...runner import run\n"),
        ("__init__.py", "from lab import cli\n"),
        ("native.py", "import lab.spec\n"),
    ],
)
def test_a_planted_import_is_seen(tmp_path: Path, file: str, text: str) -> None:
    planted = tmp_path / "lab" / file
    planted.parent.mkdir(parents=True)
    planted.write_text(text)
    assert len(violations(tmp_path / "lab")) == 1


def test_what_is_allowed_is_not_reported(tmp_path: Path) -> None:
    planted = tmp_path / "lab" / "runner" / "x.py"
    planted.parent.mkdir(parents=True)
    planted.write_text(
        "import os\nimport lab\nfrom lab import __version__, native\nfrom lab.node import server\nfrom . import y\n"
    )
    assert violations(tmp_path / "lab") == []


def test_importing_lab_is_light() -> None:
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
