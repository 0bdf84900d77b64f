"""Coverage of a run: what was called, with and without behaviour, and what was not reached."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.runner.coverage import CoverageError, read_coverage

SCENARIO = """
name: what is called
node: {gpus: [a100-40g]}
containers:
  one:
    processes:
      - name: asker
        run:
          - python3
          - -c
          - "import ctypes as c; d = c.CDLL('libcuda.so.1'); d.cuInit(0); d.cuInit(0); d.cuGLInit()"
"""


@pytest.fixture
def run(tmp_path: Path, hooklab: Callable[..., subprocess.CompletedProcess[str]]) -> Path:
    file = tmp_path / "scenario.yaml"
    file.write_text(SCENARIO)
    done = hooklab("run", str(file), "--out", str(tmp_path / "runs"))
    assert done.returncode in (0, 3), done.stderr
    (directory,) = (tmp_path / "runs").iterdir()
    return directory


def test_calls_are_counted_by_name(run: Path) -> None:
    found = read_coverage(run)
    called = {hook.name: count for hook, count in found.called.items()}
    assert called["cuInit"] == 2
    assert called["cuGLInit"] == 1
    assert [hook.name for hook in found.without_behaviour] == ["cuGLInit"]
    unreached = {hook.name for hook in found.unreached}
    assert "cuMemAlloc_v2" in unreached
    assert "cuInit" not in unreached


def test_the_command_says_so(run: Path, hooklab: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = hooklab("report", "--coverage", "--json", str(run))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["without_behaviour"] == {"cuGLInit": 1}
    words = hooklab("report", "--coverage", str(run)).stdout
    assert "cuGLInit  (no behaviour)" in words


def test_a_run_without_a_node_has_no_counts(tmp_path: Path) -> None:
    with pytest.raises(CoverageError, match="no node file"):
        read_coverage(tmp_path)
