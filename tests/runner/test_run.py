"""The runner itself: order of starts, barriers, ends, time limits, interruptions, bad input. The processes are plain
programs that meet over files and pipes; no test waits by sleeping."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from lab.checks.history import load
from lab.runner import execute, rundir
from lab.runner.execute import Cancel, Interrupted, run_scenario
from lab.runner.guest import GuestError, interposer_path, library_problem, parse_size
from lab.scenario.load import loads
from lab.scenario.model import Scenario

HANG = [sys.executable, "-c", "import threading; print('up', flush=True); threading.Event().wait()"]


def scenario(processes: list[dict[str, Any]], **more: Any) -> Scenario:
    containers = {"box": {"interposer": "none", "processes": processes}}
    return loads(json.dumps({"name": "test", "containers": containers, "expect": [], **more}))[0]


def info(directory: Path) -> dict[str, Any]:
    return dict(json.loads((directory / "run.json").read_text()))


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_statuses_are_raw_wait_statuses(tmp_path: Path) -> None:
    directory = run_scenario(
        scenario(
            [
                {"name": "good", "run": ["true"]},
                {"name": "seven", "run": ["sh", "-c", "exit 7"], "expect_exit": 7},
                {"name": "killed", "run": ["sh", "-c", "kill -9 $$"], "expect_exit": "SIGKILL"},
                {"name": "absent", "run": ["no-such-program-anywhere"], "expect_exit": 127},
            ]
        ),
        out=tmp_path,
    )
    assert [entry["status"] for entry in info(directory)["processes"]] == [0, 7 << 8, 9, 127 << 8]
    history = load(directory / "history")
    assert sorted(int(record["a"]) for record in history.of("EXIT")) == [0, 9, 7 << 8, 127 << 8]
    assert len(history.of("SPAWN")) == 4
    assert "no-such-program-anywhere" in (directory / "stderr" / "box-absent.txt").read_text()


def test_after_waits_for_the_whole_group(tmp_path: Path) -> None:
    directory = run_scenario(
        scenario(
            [
                {"name": "late", "run": ["true"], "start": {"after": "early"}},
                {"name": "early", "count": 3, "run": ["true"]},
            ]
        ),
        out=tmp_path,
    )
    history = load(directory / "history")
    late = int(history.of("SPAWN")["time_ns"][history.of("SPAWN")["process"] == 0][0])
    ends = history.of("EXIT")
    assert all(int(end["time_ns"]) < late for end in ends[ends["process"] != 0])


def test_start_barrier_holds_any_program(tmp_path: Path) -> None:
    directory = run_scenario(scenario([{"name": "p", "count": 4, "run": ["true"], "start": "barrier"}]), out=tmp_path)
    history = load(directory / "history")
    released = history.of("BARRIER")
    assert [int(record["a"]) for record in released] == [4]
    moment = int(released["time_ns"][0])
    assert all(int(record["time_ns"]) < moment for record in history.of("SPAWN"))
    assert all(int(record["time_ns"]) > moment for record in history.of("EXIT"))


def test_timeout_kills_and_says_where(tmp_path: Path) -> None:
    directory = run_scenario(scenario([{"name": "hung", "run": HANG}], timeout="2s"), out=tmp_path)
    said = info(directory)
    assert said["timed_out"] is True
    (process,) = said["processes"]
    assert process["status"] == signal.SIGKILL
    assert not is_alive(process["pid"])
    assert "thread" in process["backtrace"]
    assert "waits in" in process["backtrace"]
    assert (directory / "backtrace" / "hung.txt").read_text().startswith("process ")


def test_strays_are_ended(tmp_path: Path) -> None:
    code = (
        "import os, sys, threading\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    print(os.getpid(), flush=True)\n"
        "    threading.Event().wait()\n"
        "os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG)\n"
    )
    directory = run_scenario(scenario([{"name": "parent", "run": [sys.executable, "-c", code]}]), out=tmp_path)
    text = (directory / "stdout" / "box-parent.txt").read_text()
    if text:  # the parent may end before its child has said its number; then it was ended before it could
        assert not is_alive(int(text))
    assert not [
        entry
        for entry in os.listdir("/proc")
        if entry.isdigit() and str(directory / "history").encode() in _environment(entry)
    ]


def _environment(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def test_cancel_from_another_thread(tmp_path: Path) -> None:
    cancel = Cancel()
    started: list[str] = []

    def on_progress(text: str) -> None:
        started.append(text)
        cancel.set()

    with pytest.raises(Interrupted) as caught:
        run_scenario(scenario([{"name": "hung", "run": HANG}]), out=tmp_path, progress=on_progress, cancel=cancel)
    cancel.close()
    assert "hung started" in started[0]
    said = info(caught.value.directory)
    assert said["interrupted"] is True
    assert not is_alive(said["processes"][0]["pid"])


def test_control_c_leaves_the_directory_and_no_process(tmp_path: Path) -> None:
    fifo = tmp_path / "up"
    os.mkfifo(fifo)
    file = tmp_path / "hang.yaml"
    file.write_text(
        json.dumps(
            {
                "name": "hang",
                "containers": {
                    "box": {
                        "interposer": "none",
                        "processes": [
                            {"name": "hung", "run": ["sh", "-c", f"echo $$ >{fifo}; exec cat {tmp_path}/never"]}
                        ],
                    }
                },
                "expect": [],
            }
        )
    )
    os.mkfifo(tmp_path / "never")
    code = "import sys; from lab.cli import main; sys.exit(main())"
    runner = subprocess.Popen(
        [sys.executable, "-P", "-c", code, "run", str(file), "--out", str(tmp_path / "runs")],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    guest = int(fifo.read_text())
    runner.send_signal(signal.SIGINT)
    _, error = runner.communicate(timeout=60)
    assert runner.returncode == 130, error
    assert "Traceback" not in error
    (directory,) = (tmp_path / "runs").iterdir()
    assert info(directory)["interrupted"] is True
    assert not is_alive(guest)
    assert len(load(directory / "history").of("EXIT")) == 1


def test_a_failure_in_the_middle_ends_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("planted")

    pids: list[int] = []
    original = execute.start_guest

    def start(*arguments: Any, **options: Any) -> Any:
        guest = original(*arguments, **options)
        pids.append(guest.pid)
        return guest

    monkeypatch.setattr(execute, "start_guest", start)
    monkeypatch.setattr(execute._Run, "_hear", broken)
    with pytest.raises(RuntimeError, match="planted"):
        run_scenario(scenario([{"name": "p", "run": HANG, "start": "barrier"}]), out=tmp_path)
    assert pids
    assert not any(map(is_alive, pids))
    (directory,) = tmp_path.iterdir()
    assert info(directory)["failure"] == "planted"


def test_unwritable_place_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(GuestError) as caught:
        run_scenario(scenario([{"name": "p", "run": ["true"]}]), out=tmp_path / "file" / "runs")
    assert "\n" not in str(caught.value)
    assert "--out" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "No such file"), (b"text", "not an ELF file"), (b"\x7fELF", "not an ELF file"), ("arm", "EM_AARCH64")],
)
def test_bad_interposer_is_one_line(tmp_path: Path, native: Path, content: bytes | str | None, words: str) -> None:
    path = tmp_path / "lib.so"
    if content == "arm":
        data = bytearray((native / "libhooklab-region.so").read_bytes())
        data[18:20] = (183).to_bytes(2, "little")
        path.write_bytes(data)
    elif isinstance(content, bytes):
        path.write_bytes(content)
    with pytest.raises(GuestError) as caught:
        interposer_path(str(path))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_program_is_no_interposer(native: Path, compile_c: Any) -> None:
    assert library_problem(native / "libhooklab-region.so") == ""
    program = compile_c("int main(void) { return 0; }\n", "-no-pie", name="program")
    assert "not a shared library" in library_problem(program)
    program = compile_c("int main(void) { return 0; }\n", "-fPIE", "-pie", name="pie-program")
    assert "the loader refuses it" in library_problem(program)


def test_a_library_that_the_loader_would_leave_out(compile_c: Any, tmp_path: Path) -> None:
    """The loader starts no process under the first, and every process without the second: both would look like runs."""
    needed = compile_c("int needed;\n", "-shared", "-fPIC", "-Wl,-soname,libneeded-here.so", name="libneeded-here.so")
    user = "extern int needed;\nint *use(void);\nint *use(void) { return &needed; }\n"
    lacking = compile_c(user, "-shared", "-fPIC", extra=[needed], name="lacking.so")
    assert "libneeded-here.so" in library_problem(lacking)
    spaced = tmp_path / "a name" / "lib.so"  # LD_PRELOAD is a list parted by spaces and colons
    spaced.parent.mkdir()
    spaced.write_bytes(needed.read_bytes())
    assert "the loader refuses it" in library_problem(spaced)


def test_bad_interposer_stops_before_anything_is_made(tmp_path: Path) -> None:
    containers = {"box": {"processes": [{"name": "p", "run": ["true"]}]}}
    bad = loads(
        json.dumps(
            {"name": "x", "containers": containers, "expect": [], "options": {"interposer": str(tmp_path / "none.so")}}
        )
    )[0]
    with pytest.raises(GuestError):
        run_scenario(bad, out=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("text", "value"), [("4GiB", 4 << 30), ("4096m", 4 << 30), ("1024", 1024), ("2k", 2048), ("1 TiB", 1 << 40)]
)
def test_sizes(text: str, value: int) -> None:
    assert parse_size(text) == value


def test_two_runs_at_once_share_nothing(tmp_path: Path) -> None:
    directories: list[Path] = []

    def run() -> None:
        directories.append(run_scenario(scenario([{"name": "p", "run": ["true"]}]), out=tmp_path))

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(directories)) == 3
    assert all(info(directory)["processes"][0]["status"] == 0 for directory in directories)


def test_without_namespaces_runs_are_plain_and_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute, "probe_isolation", lambda: "planted: forbidden here")
    containers = {
        "box": {
            "pid_namespace": "private",
            "limits": {"memory": "1GiB"},
            "processes": [{"name": "p", "run": ["env"]}],
        }
    }
    directory = run_scenario(
        loads(json.dumps({"name": "plain", "containers": containers, "expect": []}))[0], out=tmp_path
    )
    variables = (directory / "stdout" / "box-p.txt").read_text()
    assert "LD_PRELOAD=" in variables
    assert "LD_LIBRARY_PATH=" in variables
    (missing,) = info(directory)["unknown"]
    assert "private PID namespace" in missing["what"]
    assert missing["why"] == "planted: forbidden here"


def test_a_real_run_without_a_driver_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.util.find_library", lambda _: None)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    with pytest.raises(GuestError, match=r"no libcuda\.so\.1"):
        run_scenario(scenario([{"name": "p", "run": ["true"]}]), out=tmp_path / "runs", on="real")
    assert not (tmp_path / "runs").exists()


def test_a_real_run_has_no_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "libcuda.so.1").write_bytes(b"")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    directory = run_scenario(scenario([{"name": "p", "run": ["env"]}]), out=tmp_path / "runs", on="real")
    variables = (directory / "stdout" / "box-p.txt").read_text()
    assert "HOOKLAB_NODE" not in variables
    assert f"LD_LIBRARY_PATH={tmp_path}\n" in variables
    assert info(directory)["evidence"] == "real-gpu"
    assert not (directory / "node").exists()


def test_a_real_run_names_the_machines_own_card(tmp_path: Path) -> None:
    (tmp_path / "gpus" / "0000:01:00.0").mkdir(parents=True)
    (tmp_path / "gpus" / "0000:01:00.0" / "information").write_text("Model: \t\t NVIDIA H200\nIRQ: 1\n")
    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Release\n")
    assert rundir.real_devices(tmp_path) == {"gpus": "NVIDIA H200", "driver": "580.159.04"}
    assert rundir.real_devices(tmp_path / "absent") == {"gpus": "unknown", "driver": "unknown"}


HAMI_WRITER = """
import os, sys
from lab.spec import load_layout
import numpy as np
layout = load_layout("hami-1.2")
region = np.zeros(1, layout.dtype("hl_hami_region"))
for name in ("magic", "major", "minor"):
    region[name] = layout.constants[f"HL_HAMI_{name.upper()}"]
slots = region["procs"][0]
slots["pid"][0] = 4242
slots["used"]["total"][0][0] = int(sys.argv[1])
region["proc_count"] = 1
open(os.environ["CUDA_DEVICE_MEMORY_SHARED_CACHE"], "wb").write(region.tobytes() + bytes(1))
"""


def test_a_foreign_ledger_is_read_through_its_dialect(tmp_path: Path, native: Path) -> None:
    containers = {
        "box": {
            "interposer": str(native / "libhooklab-region.so"),  # any library: what matters is who reads the file
            "dialect": "hami",
            "processes": [{"name": "p", "run": [sys.executable, "-c", HAMI_WRITER, "5000000"]}],
        }
    }
    directory = run_scenario(
        loads(json.dumps({"name": "hami", "containers": containers, "expect": []}))[0], out=tmp_path
    )
    assert (directory / "stderr" / "box-p.txt").read_text() == ""
    (end,) = load(directory / "history").of("LEDGER_END")
    assert (int(end["a"]), int(end["b"])) == (5_000_000, 1)
    assert (directory / "region-box").stat().st_size == 2_008_953
