"""`hooklab exec`: a program keeps its exit status, streams and signals, and gets its limits; nothing of it is left."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.runner.container import probe_isolation

Cli = Callable[..., subprocess.CompletedProcess[str]]
FORMS = [
    pytest.param([], id="plain"),
    pytest.param(
        ["--container"],
        id="container",
        marks=pytest.mark.skipif(bool(probe_isolation()), reason="this machine allows no containers"),
    ),
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("text", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -15 $$", 143)])
def test_exit_status_is_the_programs(hooklab: Cli, form: list[str], text: str, code: int) -> None:
    assert hooklab("exec", *form, "--", "sh", "-c", text).returncode == code


@pytest.mark.parametrize("form", FORMS)
def test_streams_and_evidence(hooklab: Cli, form: list[str]) -> None:
    done = hooklab("exec", "--memory", "4GiB", *form, "--", "sh", "-c", "echo out; echo err >&2")
    assert done.stdout == "out\n"
    error, evidence = done.stderr.splitlines()
    assert error == "err"
    assert evidence.startswith("hooklab: evidence fake-driver: a100-80g, interposer builtin, limit 4GiB")
    quiet = hooklab("exec", "--quiet", *form, "--", "true")
    assert (quiet.stdout, quiet.stderr) == ("", "")


@pytest.mark.parametrize("form", FORMS)
def test_limits_reach_the_program(hooklab: Cli, form: list[str]) -> None:
    done = hooklab("exec", "-q", "--gpu", "t4-16g,t4-16g", "--memory", "4GiB", "--cores", "30", *form, "--", "env")
    variables = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    assert variables["CUDA_DEVICE_MEMORY_LIMIT_0"] == variables["CUDA_DEVICE_MEMORY_LIMIT_1"] == str(4 << 30)
    assert variables["CUDA_DEVICE_SM_LIMIT"] == "30"
    assert ("LD_PRELOAD" in variables) == (form == [])
    assert not Path(variables["HOOKLAB_NODE"]).exists()


@pytest.mark.parametrize("form", FORMS)
def test_files_that_the_command_names_are_there(hooklab: Cli, tmp_path: Path, form: list[str]) -> None:
    script = tmp_path / "folder" / "script.sh"
    script.parent.mkdir()
    script.write_text("echo here\n")
    assert hooklab("exec", "-q", *form, "--", "sh", script).stdout == "here\n"
    assert hooklab("exec", "-q", *form, "--", "sh", "folder/script.sh").stdout == "here\n"


def test_no_interposer_preloads_nothing(hooklab: Cli) -> None:
    done = hooklab("exec", "-q", "--interposer", "none", "--", "env")
    assert "LD_PRELOAD" not in done.stdout
    assert "LD_LIBRARY_PATH" in done.stdout


def test_a_missing_program(hooklab: Cli) -> None:
    done = hooklab("exec", "-q", "--", "no-such-program-anywhere")
    assert done.returncode == 127
    assert done.stderr.splitlines() == ["hooklab-box: no-such-program-anywhere: No such file or directory"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--gpu", "h9000"], "h9000"),
        (["--memory", "much"], "not a size"),
        (["--dialect", "klingon"], "klingon"),
        (["--interposer", "/no/such.so"], "No such file"),
        (["--driver", "1"], "1"),
        (["--policy", "nosuch"], "not a policy"),
    ],
)
def test_bad_options_are_one_line(hooklab: Cli, options: list[str], words: str) -> None:
    done = hooklab("exec", *options, "--", "true")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert words in line


def test_out_keeps_a_run_directory(hooklab: Cli, tmp_path: Path) -> None:
    done = hooklab("exec", "--out", tmp_path / "runs", "--", "sh", "-c", "exit 4")
    (directory,) = (tmp_path / "runs").iterdir()
    assert str(directory) in done.stderr
    info = json.loads((directory / "run.json").read_text())
    assert info["processes"][0]["status"] == 4 << 8
    assert info["command"] == ["sh", "-c", "exit 4"]
    assert (directory / "node").stat().st_size > 0
    assert (directory / "history").stat().st_size == 4096 + 2 * 64


def _opened(fifo: Path) -> int:
    """A descriptor of the fifo with something to read: unlike a plain open it does not wait for ever for a program that
    failed to start."""
    descriptor = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    assert select.select([descriptor], [], [], 60)[0], "the program never spoke"
    os.set_blocking(descriptor, True)
    return descriptor


def test_a_termination_is_passed_on(tmp_path: Path) -> None:
    fifo = tmp_path / "up"
    os.mkfifo(fifo)
    code = "import sys; from lab.cli import main; sys.exit(main())"
    text = f"trap 'exit 9' TERM; echo up >{fifo}; while :; do read x <{fifo}; done"
    runner = subprocess.Popen([sys.executable, "-P", "-c", code, "exec", "-q", "--", "sh", "-c", text])
    with open(_opened(fifo), closefd=True) as stream:
        assert stream.readline() == "up\n"
    runner.send_signal(signal.SIGTERM)
    assert runner.wait(timeout=60) == 9


def test_a_killed_runner_leaves_no_program(tmp_path: Path) -> None:
    fifo = tmp_path / "up"
    os.mkfifo(fifo)
    code = "import sys; from lab.cli import main; sys.exit(main())"
    command = ["exec", "-q", "--", "sh", "-c", f"exec 3>{fifo}; echo up >&3; read x"]
    runner = subprocess.Popen([sys.executable, "-P", "-c", code, *command], stdin=subprocess.PIPE)
    with open(_opened(fifo), closefd=True) as stream:
        assert stream.readline() == "up\n"
        runner.kill()
        assert stream.read() == ""  # its end comes when the program, which holds the other end, is gone
    runner.wait()
