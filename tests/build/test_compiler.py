"""Incremental compiling: nothing is rebuilt needlessly, nothing stale is kept."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lab.codegen import compiler as cc
from lab.codegen.failure import BuildError


@pytest.fixture
def tool(tmp_path: Path) -> cc.Compiler:
    return cc.find(tmp_path / "probe")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "value.h").write_text("#define VALUE 1\n")
    path = tmp_path / "unit.c"
    path.write_text('#include "value.h"\nint value(void);\nint value(void) { return VALUE; }\n')
    return path


def compile_one(tool: cc.Compiler, source: Path, *flags: str) -> Path:
    return cc.compile_all(tool, [(source, "unit")], flags, source.parent / "objects")[0]


def age(*paths: Path) -> None:
    """Make files older than anything written from now on."""
    for path in paths:
        os.utime(path, ns=(1, 1))


def test_unchanged_is_not_compiled_again(tool: cc.Compiler, source: Path) -> None:
    age(source, source.parent / "value.h")
    made = compile_one(tool, source).stat().st_mtime_ns
    assert compile_one(tool, source).stat().st_mtime_ns == made


def test_a_changed_header_is_seen(tool: cc.Compiler, source: Path) -> None:
    age(source, source.parent / "value.h")
    before = compile_one(tool, source).read_bytes()
    (source.parent / "value.h").write_text("#define VALUE 2\n")
    assert compile_one(tool, source).read_bytes() != before


def test_other_flags_are_seen(tool: cc.Compiler, source: Path) -> None:
    age(source, source.parent / "value.h")
    before = compile_one(tool, source).read_bytes()
    assert compile_one(tool, source, "-DOTHER", "-g").read_bytes() != before


def test_a_header_that_is_gone_is_seen(tool: cc.Compiler, source: Path) -> None:
    compile_one(tool, source)
    (source.parent / "value.h").unlink()
    with pytest.raises(BuildError, match=r"unit\.c does not compile: .*value\.h"):
        compile_one(tool, source)


def test_a_failed_compile_leaves_nothing_to_trust(tool: cc.Compiler, source: Path) -> None:
    age(source, source.parent / "value.h")
    compile_one(tool, source)
    good = source.read_text()
    source.write_text("broken\n")
    with pytest.raises(BuildError, match="does not compile"):
        compile_one(tool, source)
    source.write_text(good.replace("VALUE;", "VALUE + 5;"))
    age(source)  # a clock that runs backwards must not make the old object look fresh
    object_file = compile_one(tool, source)
    assert object_file.stat().st_mtime_ns > 1
    assert (object_file.with_suffix(".cmd")).is_file()
