"""The recipes of docs/ci.md as they stand, on a tiny interposer: every command is accepted and gives a verdict."""

from __future__ import annotations

import re
import shlex
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("native")


def commands(root: Path) -> list[list[str]]:
    text = (root / "docs/ci.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    return [shlex.split(line) for block in blocks for line in block.splitlines()]


def test_every_recipe_for_machines_without_a_gpu(
    root: Path, tmp_path: Path, compile_c: Callable[..., Path], hooklab: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    naive = compile_c(root / "tests/native/interposers/naive.c", "-shared", "-fPIC", "-ldl", name="ci-naive.so")
    played = 0
    for words in commands(root):
        assert words[0] == "hooklab"
        if (
            "real" in words or "@gpu" in words or "@memory" in words
        ):  # @gpu and @memory are played file by file elsewhere
            continue
        done = hooklab(*(str(naive) if word == "$INTERPOSER" else word for word in words[1:]))
        assert done.returncode in (0, 1, 3), done.stdout + done.stderr
        played += 1
    assert played == 2
    assert list(ET.parse(tmp_path / "interposer.xml").getroot().iter("failure"))  # it limits nothing, and that shows
