"""docs/coverage.md says of every name what the hook table says, and names only tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

from lab.codegen import coverage
from lab.spec import load_hooks

ROW = re.compile(r"^\| `(\w+)` \| ([^|]+) \| (.*) \|$", re.MULTILINE)


def test_the_page_agrees_with_the_table(root: Path) -> None:
    rows = ROW.findall((root / "docs" / "coverage.md").read_text(encoding="utf-8"))
    wanted = {hook.name: coverage.behaviour(hook) for hook in load_hooks().hooks}
    assert {name: behaviour for name, behaviour, _ in rows} == wanted, "write it anew: python -m lab.codegen coverage"
    named = {file for *_, files in rows if files != "–" for file in files.split(", ")}
    assert [file for file in sorted(named) if not (root / "tests" / file).is_file()] == []


def test_a_changed_behaviour_is_seen(root: Path, tmp_path: Path) -> None:
    """The planted failure: one line of the page with another behaviour."""
    page = (root / "docs" / "coverage.md").read_text(encoding="utf-8")
    wrong = page.replace("| `cuMemAlloc_v2` | yes |", "| `cuMemAlloc_v2` | NOT_SUPPORTED |")
    assert wrong != page
    assert dict(row[:2] for row in ROW.findall(wrong))["cuMemAlloc_v2"] != "yes"


def test_tests_are_found_by_name(tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text('call("cuMemAlloc_v2")\n# cuda nvmlike\n')
    assert coverage.tests_by_name(tmp_path) == {"cuMemAlloc_v2": {"test_x.py"}}


def test_enough_has_behaviour() -> None:
    real = [hook for hook in load_hooks().hooks if hook.fake == "real"]
    assert sum(hook.library == "cuda" for hook in real) >= 300
    assert sum(hook.library == "nvml" for hook in real) >= 150


def test_every_name_with_behaviour_is_named_by_a_test(root: Path) -> None:
    named = coverage.tests_by_name(root / "tests")
    real = [hook for hook in load_hooks().hooks if hook.fake == "real" and hook.kind == "func"]
    assert [hook.name for hook in real if not named.get(hook.name)] == []


def test_every_other_name_has_its_reason() -> None:
    others = [hook for hook in load_hooks().hooks if hook.fake == "unsupported" and hook.kind == "func"]
    assert [hook.name for hook in others if not hook.lacks] == []
