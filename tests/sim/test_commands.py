"""`burst --on sim`, `pacing --on sim` and scenarios in virtual time from the command line."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

POD = """apiVersion: apps/v1
kind: Deployment
spec:
  replicas: 20
  template:
    spec:
      containers:
      - name: side
      - name: model
        resources: {limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 4096, nvidia.com/gpucores: 25}}
"""


def test_the_platform_engineers_question(hooklab, tmp_path: Path) -> None:
    done = hooklab("burst", "--on", "sim", "--workers", 300, "--gpu", "a100-80g", "--memory", "4GiB", "--cores", 25)
    assert done.returncode == 0, done.stderr
    for said in (
        "evidence simulated",
        "fits: 9 of 300 processes",
        "the cards hold 194 contexts",
        "19 such containers fit",
        "4 containers of 25 % fit",
        "identity timeouts': 847",
        "baseline, 300: 0 gave up at the identity gate and run without their core limit, silently: 0 of 300 unpaced",
        "fitted",
        "assumed",
    ):
        assert said in done.stdout, done.stdout
    assert "not asked" not in done.stdout


def test_who_runs_unpaced(hooklab) -> None:
    done = hooklab("burst", "--on", "sim", "--workers", 500, "--cores", 25, "--json")
    document = json.loads(done.stdout)
    assert document["evidence"] == "simulated"
    assert document["runs"][0]["counts"]["run unpaced"] == document["runs"][0]["counts"]["identity gave up"] > 0
    assert {constant["tag"] for constant in document["constants"]} <= {"measured", "fitted", "public", "assumed"}
    gave_up = document["runs"][0]["counts"]["identity gave up"]
    done = hooklab("burst", "--on", "sim", "--workers", 500, "--cores", 25)
    assert f"{gave_up} of 500 unpaced" in done.stdout


def test_pods_csv_and_plots(hooklab, tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_text(POD)
    done = hooklab("burst", "--on", "sim", "--pod", "pod.yaml", "--csv", "w.csv", "--plot", "w.png")
    assert done.returncode == 0, done.stderr
    assert "fits: 9 of 20 processes" in done.stdout
    rows = list(csv.DictReader((tmp_path / "w.csv").open()))
    assert len(rows) == 20
    assert all(int(row["identity_exit"]) <= int(row["worker_exit"]) for row in rows)
    assert (tmp_path / "w.png").read_bytes().startswith(b"\x89PNG")
    (tmp_path / "pod.yaml").write_text("kind: Pod\nspec: {containers: []}\n")
    done = hooklab("burst", "--on", "sim", "--pod", "pod.yaml")
    assert (done.returncode, done.stderr) == (2, "hooklab: pod.yaml: no container with a limit nvidia.com/gpu\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("burst", "--on", "sim", "--condition", "nope"), "no condition 'nope'"),
        (("burst", "--on", "sim", "--control", "no_probe"), "controls test the machine"),
        (("burst", "--on", "sim", "--gpu", "h9"), "no GPU profile 'h9'"),
        (("burst", "--on", "sim", "--memory", "4XB"), "--memory"),
        (("burst", "--on", "fake", "--fit"), "--fit belongs to --on sim"),
        (("pacing", "--on", "sim", "hybird"), "no controller 'hybird'"),
        (("pacing", "--on", "sim", "--patterns", "asinc"), "no pattern 'asinc'"),
        (("pacing", "--on", "sim", "--neighbours", "30"), "targets of tenants"),
        (("pacing", "--on", "sim", "--interposer", "/x.so"), "no model of /x.so"),
        (("run", "--on", "sim", "@quickstart"), "plays scenarios with `simulate`"),
        (("run", "--on", "real", "@startup/four-workers"), "in virtual time only"),
    ],
)
def test_mistakes_are_one_line(hooklab, arguments: tuple[str, ...], said: str) -> None:
    done = hooklab(*arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_leaderboard(hooklab, tmp_path: Path) -> None:
    options = ("--on", "sim", "--sms", "188", "--seeds", 2, "--seconds", 5, "--patterns", "sync", "--neighbours", "")
    done = hooklab("pacing", "hybrid", "delta-hami", *options, "--csv", "p.csv", "--plot", "p.png", "--fail-above", 5)
    assert done.returncode == 1
    assert "delta-hami misses sync 30" in done.stderr
    assert "hybrid misses" not in done.stderr
    assert "evidence simulated" in done.stdout
    assert len((tmp_path / "p.csv").read_text().splitlines()) == 1 + 2 * 2 * 8
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    done = hooklab("pacing", "hybrid", *options, "--json", "--fail-above", 5)
    assert done.returncode == 0
    (line,) = json.loads(done.stdout)["leaderboard"]
    assert line["mae"]["mean"] <= 1


def test_memory_policies_are_graded(hooklab, tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(
        "class Blind:\n def admit(self, *given): return 0\n"
        "class Mean:\n"
        " def admit(self, device, size, kind, used, limit, shared): return 2 * (used + size > limit // 2)\n"
    )
    done = hooklab("pacing", "--grade", "memory", "p.py:Blind", "p.py:Mean", "--json")
    assert done.returncode == 1
    blind, mean = json.loads(done.stdout)["grades"]
    assert blind["overshoot"] > 1 << 30
    assert mean["overshoot"] == 0
    assert mean["refused_though_fitting"] > mean["starvation"] > 3
    done = hooklab("pacing", "--grade", "memory")
    assert done.returncode == 0
    assert "overshoot 0 bytes, 0 refused though they fitted, longest starvation 0" in done.stdout


def test_a_simulated_run_is_a_directory(hooklab, tmp_path: Path) -> None:
    done = hooklab("run", "--on", "sim", "@startup/four-workers", "--out", "runs")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "simulated" in done.stdout
    (directory,) = (tmp_path / "runs").iterdir()
    assert hooklab("report", directory).returncode == 0
    again = hooklab("run", directory, "--out", "again")
    assert again.returncode == 0, again.stdout + again.stderr


def test_a_scenario_cannot_be_both(hooklab, tmp_path: Path) -> None:
    text = "name: t\nsimulate: {phases: {workers: 1, plan: [{name: a}]}}\nexpect:\n  - ledger_empty\n"
    (tmp_path / "t.yaml").write_text(text)
    done = hooklab("run", "t.yaml")
    assert done.returncode == 2
    assert "ledger_empty is an expectation of processes" in done.stderr
    (tmp_path / "t.yaml").write_text("name: t\nexpect: []\n")
    assert "containers" in hooklab("run", "t.yaml").stderr


@pytest.mark.parametrize("where", ["sim", "fake"])
def test_a_controller_that_is_none_is_said_before_anything_is_played(hooklab, where: str) -> None:
    done = hooklab("pacing", "nosuch", "--on", where)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert "no controller 'nosuch'" in line
