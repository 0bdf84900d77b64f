"""`hooklab doctor --pid`: what a process really runs under is read from the process, and whatever escapes is named."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from lab import native as natives
from lab.node.server import NodeServer
from lab.runner import proc
from lab.runner.container import probe_isolation
from lab.runner.doctor import Finding, examine_process
from lab.spec import load_hooks

CALLED = ("cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuMemAlloc_v2")  # by the program
Start = Callable[..., subprocess.Popen[str]]
Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def shim(native: Path) -> Path:
    return native / "libhooklab-preload.so"


def of(findings: list[Finding], subject: str) -> list[Finding]:
    return [finding for finding in findings if finding.subject == subject]


def worst(findings: list[Finding]) -> str:
    states = {finding.state for finding in findings}
    return next(state for state in ("bad", "warn", "ok") if state in states)


def test_an_interposed_process(start: Start, shim: Path) -> None:
    guest = start(shim)
    found = examine_process(guest.pid)
    assert worst(found) == "ok", found
    assert [finding.seen for finding in of(found, "interposer")] == [str(shim)]
    assert of(found, "revision")[0].seen == f"{natives.build_info()['revision'] or 'unknown'} (the installed build)"
    counts = Counter("driver" if load_hooks()[name].action == "pass" else "interposer" for name in CALLED)
    assert [finding.seen for finding in of(found, "references of doctor-guest")] == [
        f"{counts[kind]} to {kind}" for kind in ("driver", "interposer")
    ]
    assert any(finding.seen.endswith("libcuda.so.1 (fake)") for finding in of(found, "driver"))
    assert of(found, "engine")[0].seen.startswith("not loaded")


def test_without_an_interposer(start: Start, hooklab: Cli) -> None:
    guest = start(None)
    found = examine_process(guest.pid)
    assert of(found, "interposer") == [
        Finding("interposer", "none mapped", "bad", "start the process under hooklab exec or set LD_PRELOAD")
    ]
    assert all(finding.seen.endswith("to driver") for finding in of(found, "references of doctor-guest"))
    done = hooklab("doctor", "--pid", guest.pid, "--json")
    document = json.loads(done.stdout)
    assert (done.returncode, document["schema"], document["healthy"]) == (1, "hooklab.doctor/1", False)
    assert {"subject", "seen", "state", "mend"} == set(document["process"][0])


def test_what_was_bound_past_the_interposer_is_an_escape(
    start: Start, shim: Path, plugin: Callable[..., Path], hooklab: Cli
) -> None:
    library = plugin("-Wl,-z,now", name="escapes.so")
    guest = start(shim, library)
    escapes = of(examine_process(guest.pid), "escape")
    assert {finding.seen.split()[0] for finding in escapes} == {"cuInit", "dlsym"}
    for finding in escapes:
        assert (finding.state, str(library) in finding.seen) == ("bad", True)
    done = hooklab("doctor", "--pid", guest.pid, env={"COLUMNS": "60"})
    assert done.returncode == 1
    assert "escape" in done.stdout
    assert "\u2026" not in done.stdout  # nothing is cut short, however narrow the terminal


def test_names_are_never_taken_for_colours(start: Start, shim: Path, hooklab: Cli, tmp_path: Path) -> None:
    region = tmp_path / "[red]region"
    guest = start(shim, CUDA_DEVICE_MEMORY_SHARED_CACHE=str(region))
    done = hooklab("doctor", "--pid", guest.pid)
    assert "[red]region" in done.stdout.replace("\n", "")


def test_a_reference_that_is_not_bound_yet_is_no_escape(start: Start, shim: Path, plugin: Callable[..., Path]) -> None:
    library = plugin("-Wl,-z,lazy", name="lazy.so")
    guest = start(None, library)  # RTLD_NOW binds all the same
    assert not any("not bound yet" in finding.seen for finding in examine_process(guest.pid))
    guest = start(f"{shim}:{library}", LD_BIND_NOW="")
    found = examine_process(guest.pid)
    assert [finding.seen for finding in of(found, "references of lazy.so")] == ["2 to not bound yet"]
    assert of(found, "escape") == []


@pytest.mark.parametrize("replaced", [True, False])
def test_a_library_that_was_replaced_under_its_process(
    replaced: bool, start: Start, shim: Path, tmp_path: Path
) -> None:
    copy = tmp_path / shim.name
    shutil.copy(shim, copy)
    shutil.copy(shim.with_name("build.json"), tmp_path)
    guest = start(copy)
    assert worst(examine_process(guest.pid)) == "ok"
    copy.unlink()
    if replaced:
        copy.write_text("something else")
    (finding, *_) = of(examine_process(guest.pid), "interposer")
    if os.geteuid() == 0:  # only root may read what is mapped and no longer there
        assert (finding.state, finding.seen) == ("warn", f"{copy}, replaced or removed on disk since")
        assert "restart" in finding.mend
    else:
        assert finding.state in ("warn", "bad")


def test_another_build_says_its_own_revision(start: Start, shim: Path, tmp_path: Path) -> None:
    copy = tmp_path / shim.name
    shutil.copy(shim, copy)
    with copy.open("ab") as stream:
        stream.write(b"\0")  # no part of any segment: it loads all the same
    guest = start(copy)
    (finding,) = of(examine_process(guest.pid), "revision")
    assert (finding.state, finding.seen) == ("warn", "another build than the installed one")
    (tmp_path / "build.json").write_text('{"revision": "abc"}')
    (finding,) = of(examine_process(guest.pid), "revision")
    assert (finding.state, finding.seen) == ("warn", "abc (another build than the installed one)")


def test_a_foreign_interposer(start: Start, compile_c: Callable[..., Path], root: Path) -> None:
    naive = compile_c(root / "tests/native/interposers/naive.c", "-shared", "-fPIC", "-ldl", name="naive.so")
    found = examine_process(start(naive).pid)
    assert of(found, "revision")[0].seen == "not ours: a foreign interposer"
    assert {finding.seen.split(" ", 1)[1] for finding in of(found, "references of doctor-guest")} == {
        "to interposer",
        "to driver",
    }
    assert of(found, "escape") == []  # what it does not export cannot go past it


def test_region_and_engine_of_a_process_that_allocated(start: Start, shim: Path, tmp_path: Path) -> None:
    region = tmp_path / "region"
    with NodeServer(gpus=["t4-16g"]) as node:
        variables = {
            "HOOKLAB_NODE": str(node.socket_path),
            "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(region),
            "CUDA_DEVICE_MEMORY_LIMIT": "1g",
            "HOOKLAB_REGION_LOCK": "file",
        }
        guest = start(shim, "allocate", **variables)
        found = examine_process(guest.pid)
        assert worst(found) == "ok", found
        assert of(found, "region")[0].seen == f"{region}: 1 live processes"
        assert of(found, "engine")[0].seen == "booted"
        damaged = tmp_path / "damaged"
        damaged.write_bytes(region.read_bytes()[:100])
    idle = start(shim, CUDA_DEVICE_MEMORY_SHARED_CACHE=str(damaged))
    (finding,) = of(examine_process(idle.pid), "region")
    assert (finding.state, str(damaged) in finding.seen) == ("bad", True)
    idle = start(shim, CUDA_DEVICE_MEMORY_SHARED_CACHE=str(tmp_path / "none"))
    assert "does not exist yet" in of(examine_process(idle.pid), "region")[0].seen
    assert "is not set" in of(examine_process(start(shim).pid), "region")[0].seen


@pytest.mark.skipif(bool(probe_isolation()), reason="this machine allows no containers")
def test_inside_a_container_with_a_cleared_environment(program: Path) -> None:
    """The process knows nothing of limits and regions by itself: its container's own file does."""
    inner = ["env", "-i", str(program), "allocate"]
    command = [sys.executable, "-P", "-m", "lab.cli", "exec", "-q", "--container", "--memory", "1GiB", "--", *inner]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as outer:
        assert outer.stdout is not None
        assert outer.stdin is not None
        assert outer.stdout.readline() == "ready\n"
        (pid,) = [int(link.parent.name) for link in Path("/proc").glob("[0-9]*/exe") if _leads_to(link, program)]
        found = examine_process(pid)
        outer.stdin.close()
        assert outer.wait() == 0
    assert worst(found) == "ok", found
    assert of(found, "interposer")[0].seen.startswith("/usr/local/vgpu/")
    assert of(found, "revision")[0].seen.endswith("(the installed build)")
    assert of(found, "region")[0].seen.endswith(": 1 live processes")


def _leads_to(link: Path, program: Path) -> bool:
    try:
        return os.readlink(link) == str(program)
    except OSError:
        return False


@pytest.mark.parametrize("pid", ["0", "-4", "4194305", "x"])
def test_what_is_no_process(pid: str, hooklab: Cli) -> None:
    done = hooklab("doctor", "--pid", pid)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert pid in line


def test_a_process_of_somebody_else(start: Start, shim: Path) -> None:
    guest = start(shim)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # as nobody, where we are root; else a process that the kernel keeps from us
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setresuid(65534, 65534, 65534)
            try:
                proc.mappings(guest.pid if os.geteuid() == 65534 else 1)
                said = "read"
            except proc.ProcessError as error:
                said = str(error)
            os.write(writing, said.encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as stream:
        said = stream.read()
    os.waitpid(child, 0)
    assert said.endswith("run as its owner or as root"), said
    assert "\n" not in said


def test_a_process_that_has_ended_is_one_line(start: Start, shim: Path) -> None:
    guest = start(shim)
    guest.kill()
    guest.wait()
    with pytest.raises(proc.ProcessError, match=r"not found; give the PID of a running process"):
        examine_process(guest.pid)
