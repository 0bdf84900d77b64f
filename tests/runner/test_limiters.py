"""The report of a run says of every process under a core limit why it was, or was not, limited."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SPIN = "{launch: {kernel: spin, duration: 2ms, count: %d}}"
TEXT = f"""\
name: who was limited
containers:
  tenant:
    limits: {{cores: 30}}
    processes:
      - {{name: paced, steps: [init, {SPIN % 40}]}}
      - {{name: forks, steps: [{{fork: {{steps: [init, {SPIN % 3}]}}}}]}}
      - {{name: idle, steps: [init]}}
      - {{name: stranger, run: ["true"]}}
      - {{name: typo, environment: {{HOOKLAB_PACING: no-such}}, steps: [init, {SPIN % 20}]}}
      - {{name: switched-off, environment: {{GPU_CORE_UTILIZATION_POLICY: disable}}, steps: [init, {SPIN % 4}]}}
      - {{name: engineless, environment: {{HOOKLAB_ENGINE_LIB: /nowhere.so}}, steps: [init, {SPIN % 4}]}}
      - {{name: late, start: {{after: paced}}, steps: [init, {SPIN % 4}]}}
  doomed: # alone, so that nobody takes its slot before it is read
    limits: {{cores: 30}}
    processes:
      - {{name: killed, steps: [init, {SPIN % 20}, {{signal: SIGKILL}}], expect_exit: SIGKILL}}
  free:
    processes:
      - {{name: unlimited, steps: [init, {SPIN % 4}]}}
"""


def hooklab(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "lab.cli", *map(str, words)]
    environment = os.environ | {"COLUMNS": "240"}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)


@pytest.fixture(scope="module")
def reported(native: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """The run of TEXT as JSON, and what `hooklab report` shows of it."""
    folder = tmp_path_factory.mktemp("limiters")
    (folder / "x.yaml").write_text(TEXT)
    done = hooklab("run", folder / "x.yaml", "--out", folder / "runs", "--json")
    (run,) = json.loads(done.stdout)["runs"]
    wrong = [verdict["check"] for verdict in run["verdicts"] if verdict["status"] != "valid"]
    assert wrong == ["engine"], run["verdicts"]  # one process has none
    return run, hooklab("report", run["directory"]).stdout


@pytest.fixture
def rows(reported: tuple[dict[str, Any], str]) -> dict[str, dict[str, Any]]:
    """By process; the forked child as ``child``."""
    return {row["process"] or "child": row for row in reported[0]["pacing"]}


def test_every_process_under_a_limit_is_there(rows: dict[str, dict[str, Any]]) -> None:
    names = {"paced", "killed", "forks", "child", "idle", "stranger", "typo", "switched-off", "engineless", "late"}
    assert rows.keys() == names
    assert {row["container"] for row in rows.values()} == {"tenant", "doomed"}
    assert {row["evidence"] for row in rows.values()} == {"fake-driver"}


def test_states(rows: dict[str, dict[str, Any]]) -> None:
    said = {name: row["state"] for name, row in rows.items()}
    on = dict.fromkeys(("paced", "killed", "child", "typo", "late"), "on")
    others = {"idle": "idle", "forks": "unseen", "stranger": "unseen", "switched-off": "off", "engineless": "absent"}
    assert said == on | others


def test_counts_and_times(rows: dict[str, dict[str, Any]]) -> None:
    paced = {"paced": 40, "killed": 20, "child": 3, "typo": 20, "late": 4}
    assert {name: row["paced"] for name, row in rows.items() if row.get("paced")} == {
        name: {"kernel": count} for name, count in paced.items()
    }
    assert rows["engineless"]["unpaced"] == {"kernel": 4}
    assert rows["engineless"]["unpaced_why"] == {"absent": 4}
    assert not rows["switched-off"]["unpaced"]
    row = rows["paced"]
    assert 0 < row["longest_s"] <= row["slept_s"]
    assert row["waits"] >= 1
    (device,) = row["devices"]
    assert (device["device"], device["target"]) == (0, 30)
    assert device["achieved"] is None or 0 <= device["achieved"] <= 100
    assert rows["typo"]["policy"] == "hybrid"
    assert [name for name, row in rows.items() if row.get("instead")] == ["typo"]


def test_people_are_told(reported: tuple[dict[str, Any], str]) -> None:
    shown = reported[1]
    assert "core limits (fake-driver)" in shown
    assert "core limit of engineless: launches beside it: 4 absent" in shown
    assert "core limit of typo: what HOOKLAB_PACING asks for cannot be used: hybrid applies" in shown
    assert "core limit of stranger: its state is unknown: it never opened its container's region" in shown
    assert "unlimited" not in shown.split("core limits")[1].split("environment")[0]


def test_of_a_single_command(native: Path, tmp_path: Path) -> None:
    load = [str(native / "hooklab-bench"), "--load", "pattern=async", "seconds=0.1"]
    done = hooklab("exec", "-q", "--cores", "30", "--out", tmp_path / "run", "--", *load)
    assert done.returncode == 0, done.stderr
    (place,) = [path.parent for path in tmp_path.rglob("run.json")]
    (row,) = json.loads((place / "run.json").read_text())["pacing"]["rows"]
    assert (row["state"], row["policy"], row["comm"]) == ("on", "hybrid", "hooklab-bench")
