"""`hooklab run` with real runs: JSON, JUnit, several at once, repetition, Ctrl-C, and what cannot be used."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("native")

SMALL = """\
name: small
containers:
  c:
    limits: {memory: 4GiB}
    processes:
      - {name: p, steps: [init, {alloc: {bytes: 1MiB, as: x, route: [link, dlsym]}}]}
expect:
  - outcome: {step: x, ok: 1}
"""
ENDLESS = """\
name: endless
containers:
  c:
    processes:
      - {name: p, count: 2, run: [/bin/sh, -c, "echo begun; exec sleep 600"]}
"""
BAD_LIBRARIES = {"missing.so": "No such file", "text.so": "not an ELF file"}


def test_json_is_all_of_standard_output(hooklab, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SMALL)
    done = hooklab("run", "s.yaml", "--json", "--junit", "j.xml", "--jobs", "2", "--repeat", "2")
    document = json.loads(done.stdout)
    assert done.returncode == {"valid": 0, "unknown": 3}[document["status"]]
    names = [run["scenario"] for run in document["runs"]]
    assert names == [f"small[route={route}] #{n}" for route in ("link", "dlsym") for n in (1, 2)]
    assert [run["seed"] for run in document["runs"]] == [1, 2, 1, 2]
    assert [run["calls"][1]["route"] for run in document["runs"]] == ["link", "link", "dlsym", "dlsym"]
    for run in document["runs"]:
        kept = json.loads((tmp_path / run["directory"] / "verdicts.json").read_text())
        assert kept["runs"] == [run]
    assert len(ET.parse(tmp_path / "j.xml").getroot().findall("testsuite")) == 4


def test_unknown_may_be_allowed(hooklab, tmp_path: Path) -> None:
    text = SMALL + "  - order: {phases: [real_enter]}\n"
    (tmp_path / "s.yaml").write_text(text)
    done = hooklab("run", "s.yaml", "--interposer", "none")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "the interposer reports no phases" in done.stdout
    assert hooklab("run", "s.yaml", "--interposer", "none", "--allow-unknown").returncode == 0


@pytest.mark.parametrize("jobs", ["1", "2"])
@pytest.mark.parametrize(
    ("deaf", "number"), [("", signal.SIGINT), ("", signal.SIGTERM), ("trap '' INT;", signal.SIGINT)], ids=repr
)
def test_ctrl_c_ends_every_process_and_keeps_the_directory(
    jobs: str, deaf: str, number: signal.Signals, tmp_path: Path
) -> None:
    """So does SIGTERM, and Ctrl-C where the job was started in the background by a shell, which begins deaf to it."""
    (tmp_path / "s.yaml").write_text(ENDLESS)
    command = ["sh", "-c", f'{deaf} exec "$@"', "sh", sys.executable, "-m", "lab.cli", "run", "s.yaml"]
    command += ["--repeat", "3", "--jobs", jobs]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as run:
        _wait_for(tmp_path, run, count=int(jobs))
        run.send_signal(number)
        out, err = run.communicate(timeout=60)
    assert run.returncode == 130
    assert out == ""
    (line,) = [line for line in err.splitlines() if line]
    assert line.startswith("hooklab: interrupted; kept: ")
    directories = list((tmp_path / "runs").iterdir())
    assert len(directories) == int(jobs)
    for directory in directories:
        info = json.loads((directory / "run.json").read_text())
        assert info["interrupted"] is True
        for process in info["processes"]:
            assert process["pid"] is None or not Path(f"/proc/{process['pid']}").exists()


def _wait_for(place: Path, run: subprocess.Popen[str], *, count: int) -> None:
    """Until every process of ``count`` runs has said that it has begun (woken by the kernel, not by a clock)."""
    wanted = 2 * count
    while run.poll() is None:
        said = [file for file in place.glob("runs/*/stdout/*.txt") if file.read_text() == "begun\n"]
        if len(said) >= wanted:
            return
        os.sched_yield()
    raise AssertionError(f"ended early: {run.communicate()}")


@pytest.mark.parametrize("name", BAD_LIBRARIES)
def test_an_interposer_that_is_none(name: str, hooklab, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SMALL)
    (tmp_path / "text.so").write_text("not a library at all, only text")
    done = hooklab("run", "s.yaml", "--interposer", f"./{name}")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert BAD_LIBRARIES[name] in line


def test_a_place_that_cannot_be_written(hooklab, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SMALL)
    (tmp_path / "file").write_text("")
    done = hooklab("run", "s.yaml", "--out", tmp_path / "file" / "runs")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert "choose another place with --out" in line


def test_a_policy_that_is_none(hooklab, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SMALL)
    (tmp_path / "p.py").write_text("class Mine:\n    pass\n")
    for policy, part in (
        ("nosuch", "not a policy"),
        ("p.py:Other", "no class Other"),
        ("p.py:Mine", "no method admit"),
    ):
        done = hooklab("run", "s.yaml", "--policy", policy)
        assert (done.returncode, done.stdout) == (2, "")
        (line,) = done.stderr.splitlines()
        assert part in line


def test_a_policy_of_ones_own_decides(hooklab, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SMALL)
    refuse = "class Never:\n    def admit(self, device, size, kind, used, limit, shared):\n        return 2\n"
    (tmp_path / "never.py").write_text(refuse)
    done = hooklab("run", "s.yaml", "--policy", "never.py:Never")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "expected ok: 1; seen oom: 1" in done.stdout


def test_a_run_with_a_policy_of_ones_own_can_be_repeated_elsewhere(hooklab, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    text = SMALL.replace("[link, dlsym]", "link").replace("ok: 1", "oom: 1") + "options: {policy: 'never.py:Never'}\n"
    (tmp_path / "here" / "s.yaml").write_text(text)
    refuse = "class Never:\n    def admit(self, device, size, kind, used, limit, shared):\n        return 2\n"
    (tmp_path / "here" / "never.py").write_text(refuse)
    first = hooklab("run", "here/s.yaml", "--json")
    (run,) = json.loads(first.stdout)["runs"]
    assert {one["check"]: one["status"] for one in run["verdicts"]}["outcome"] == "valid"
    moved = (tmp_path / run["directory"]).rename(tmp_path / "moved")
    (tmp_path / "here" / "never.py").unlink()
    again = hooklab("run", moved, "--json")
    assert again.returncode == first.returncode, again.stdout + again.stderr
    assert json.loads(again.stdout)["runs"][0]["differences"] == []


def test_a_repetition_elsewhere_says_the_same(hooklab, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SMALL.replace("[link, dlsym]", "getproc"))
    first = hooklab("run", "s.yaml", "--json")
    directory = tmp_path / json.loads(first.stdout)["runs"][0]["directory"]
    moved = directory.rename(tmp_path / "moved")
    (tmp_path / "s.yaml").unlink()
    again = hooklab("run", moved, "--json", "--out", "again")
    assert again.returncode == first.returncode, again.stderr
    (run,) = json.loads(again.stdout)["runs"]
    assert (run["repeats"], run["differences"]) == (str(moved), [])
