"""`execute: bridge`: kernels of clients of the fake driver become jobs, and what daemons do wrong shows.

The daemons are ours with a planted fault, over plain files, in a thread of the test; the clients know of no bridge.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.bridge.backend import BackendError, Result
from lab.bridge.cpu import CpuBackend
from lab.bridge.daemon import Daemon
from lab.bridge.files import PlainFiles
from lab.bridge.records import BAD_JOB, TRANSPORT_ERROR, Done, Job
from lab.checks.history import load
from lab.report.model import RunReport, report_run
from lab.runner.execute import run_scenario
from lab.scenario.load import loads

pytestmark = pytest.mark.usefixtures("native")
EXPECT = ["{values: {step: vadd, verified: 1}}", "{bridged: {kernel: vadd, count: 1, wrong: 0}}"]


def play(out: Path, files: Path | None, *, steps: str = "", expect: list[str] = EXPECT, **bridge: str) -> RunReport:
    options = [f"{key}: {value}" for key, value in bridge.items()] + ([f"files: {files}"] if files else [])
    steps = steps or "[init, {launch: {kernel: vadd, n: 1000, as: vadd}}, {sync: {as: done}}]"
    text = f"""
name: over the bridge
node: {{execute: bridge, bridge: {{{", ".join(options)}}}}}
containers:
  c: {{limits: {{memory: 4GiB}}, processes: [{{name: p, steps: {steps}}}]}}
expect: [{", ".join(expect)}]
"""
    (scenario,) = loads(text, "bridge.yaml")
    return report_run(scenario, run_scenario(scenario, out=out))


class Flips(CpuBackend):
    """Gives one wrong element and counts none."""

    def run(self, job: Job, data: bytes) -> Result:
        result = super().run(job, data)
        spoilt = bytearray(result.output)
        spoilt[4] ^= 0x40
        return Result(
            **{**{name: getattr(result, name) for name in Result.__dataclass_fields__}, "output": bytes(spoilt)}
        )


class Fails(CpuBackend):
    code = 700

    def run(self, _job: Job, _data: bytes) -> Result:
        raise BackendError(self.code, "planted")


class _Answers(Daemon):
    """Answers every job with one status and does nothing."""

    status = BAD_JOB

    def _answer(self, job: Job) -> tuple[Done, str]:
        return Done(seq=job.seq, status=self.status, err_code=5), "planted"


class _Broken(_Answers):
    status = TRANSPORT_ERROR


class _Mute(Daemon):
    """Reads jobs and never answers."""

    def poll(self) -> Done | None:
        return None


class _Empty(Daemon):
    """Says ok without output."""

    def _answer(self, job: Job) -> tuple[Done, str]:
        return Done(seq=job.seq, status=0), ""


@contextlib.contextmanager
def serving(folder: Path, kind: type[Daemon] = Daemon, backend: Any = None) -> Iterator[Path]:
    folder.mkdir()
    paths = {role: folder / role for role in ("job", "in", "out", "done")}
    daemon = kind(PlainFiles(paths), backend or CpuBackend())
    stop = threading.Event()

    def serve() -> None:
        while not stop.wait(0.001):
            daemon.poll()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield folder
    finally:
        stop.set()
        thread.join()


def by_check(report: RunReport) -> dict[str, str]:
    return {verdict.check: verdict.status for verdict in report.verdicts if verdict.check != "run"}


def jobs(report: RunReport) -> list[tuple[int, int, int]]:
    """(opcode, n, status) of each job in the history."""
    assert report.directory is not None
    records = load(report.directory / "history").of("BRIDGE")
    return [(int(one["a"]) >> 56, int(one["a"]) & 0xFFFFFFFF, int(one["result"])) for one in records]


def test_a_right_daemon_elsewhere(tmp_path: Path) -> None:
    with serving(tmp_path / "files") as files:
        report = play(tmp_path, files)
    assert set(by_check(report).values()) == {"valid"}, report.verdicts
    assert jobs(report) == [(2, 1000, 0)]
    assert report.notes == ("1 kernels were run over the bridge by CPU (numpy)",)


def test_a_wrong_output_is_seen_by_the_client(tmp_path: Path) -> None:
    """The daemon says ok and nothing bad; the program reads other numbers than it asked for."""
    with serving(tmp_path / "files", backend=Flips()) as files:
        found = by_check(play(tmp_path, files))
    assert found["values"] == "invalid"
    assert found["steps"] == "invalid"


@pytest.mark.parametrize(
    ("kind", "launch", "sync", "status"),
    [
        (_Answers, 1, 0, "bad job"),  # a job that cannot be: the launch itself is refused
        (_Broken, 0, 911, "transport error"),
        (_Empty, 0, 911, "transport error"),
        (_Mute, 0, 702, "none"),
    ],
)
def test_what_a_daemon_does_wrong_becomes_a_result(
    tmp_path: Path, kind: type[Daemon], launch: int, sync: int, status: str
) -> None:
    launched = "{launch: {kernel: vadd, n: 1000, as: vadd, result: any}}"
    steps = f"[init, {launched}, {{sync: {{as: done, result: {sync}}}}}]"
    expect = [f"{{bridged: {{kernel: vadd, status: {status}, count: 1}}}}"]
    with serving(tmp_path / "files", kind) as files:
        report = play(tmp_path, files, steps=steps, expect=expect, timeout="400ms")
        assert by_check(report)["bridged"] == "valid", report.verdicts
        assert by_check(play(tmp_path, files, timeout="400ms"))["bridged"] == "invalid"
    (row,) = [row for row in report.calls if row.step == "vadd"]
    assert row.failures == ({"CUDA_ERROR_INVALID_VALUE": 1} if launch == 1 else row.failures)
    assert any("bridge, 1 times: " in note for note in report.notes)


@pytest.mark.parametrize(("code", "at_once"), [(700, False), (719, False), (2, True), (209, True)])
def test_errors_of_the_gpu_behind_the_bridge(tmp_path: Path, code: int, at_once: bool) -> None:
    """What ends a context comes with the next synchronisation and stays; anything else is the launch's own error."""
    backend = Fails()
    backend.code = code
    later = code if not at_once else 0
    steps = (
        f"[init, {{alloc: {{bytes: 1MiB, as: before}}}}, {{launch: {{kernel: vadd, n: 10, as: vadd, result: any}}}}, "
        f"{{sync: {{as: done, result: {later}}}}}, {{alloc: {{bytes: 1MiB, as: after, result: {later}}}}}]"
    )
    with serving(tmp_path / "files", backend=backend) as files:
        report = play(tmp_path, files, steps=steps, expect=["{bridged: {status: cuda error, count: 1}}"])
    found = by_check(report)
    assert found["bridged"] == "valid"
    assert found["steps"] == "valid", report.verdicts


def test_many_launches_of_many_threads(tmp_path: Path) -> None:
    launches = "{launch: {kernel: vadd, n: 5000, count: 10, as: v}}"
    steps = f"[init, {{parallel: {{threads: 8, steps: [{{context: retain}}, {launches}]}}}}]"
    report = play(tmp_path, None, steps=steps, expect=["{bridged: {kernel: vadd, count: 80, wrong: 0}}"])
    assert set(by_check(report).values()) == {"valid"}, report.verdicts


def test_a_folder_that_is_not_there_is_one_line(tmp_path: Path, hooklab: Any) -> None:
    text = "name: t\nnode: {execute: bridge, bridge: {files: nowhere}}\n"
    text += "containers: {c: {processes: [{name: p, steps: [init]}]}}\n"
    (tmp_path / "t.yaml").write_text(text)
    done = hooklab("run", "t.yaml")
    assert done.returncode == 2
    assert "node.bridge.files: nowhere: no such folder" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    document = json.loads(hooklab("run", "t.yaml", "--json").stdout or "{}")
    assert document == {}
