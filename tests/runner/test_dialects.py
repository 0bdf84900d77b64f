"""Dialects at work: what an interposer is told by files, directories and a service reaches it, its ledger is read, and
what it cannot be told is unknown. The interposers are small ones of ours, each with a planted twin.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab.checks.model import Verdict
from lab.report.model import report_run
from lab.runner import plan, service
from lab.runner.blind import blind
from lab.runner.container import probe_isolation
from lab.runner.execute import run_scenario
from lab.runner.guest import GuestError, plain_dialect
from lab.scenario.load import Overrides, loads
from lab.scenario.model import Scenario

contained = pytest.mark.skipif(bool(probe_isolation()), reason=f"this machine: {probe_isolation()}")
Build = Callable[[int, int], Path]
LISTENS = """
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
int main(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "/var/run/nvshare/scheduler.sock"};
    int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 16)) return 1;
    for (;;) close(accept(listener, 0, 0));
}
"""


@pytest.fixture(scope="module")
def build(compile_c: Callable[..., Path], root: Path) -> Build:
    def made(speaks: int, fault: int) -> Path:
        flags = ("-shared", "-fPIC", f"-DSPEAKS={speaks}", f"-DFAULT={fault}", "-ldl")
        source = root / "tests/native/interposers/speaks.c"
        return compile_c(source, *flags, name=f"speaks-{speaks}-{fault}.so")

    return made


def scenario(library: Path, dialect: str, **more: Any) -> Scenario:
    steps = [
        "init",
        {"context": "retain"},
        {"alloc": {"bytes": "48MiB", "as": "fits"}},
        {"alloc": {"bytes": "48MiB", "as": "over"}},
        {"free": "fits"},
    ]
    container = {
        "interposer": str(library),
        "dialect": dialect,
        "limits": {"memory": "64MiB"},
        "processes": [{"name": "one", "steps": steps}],
    }
    expect = [{"outcome": {"step": "over", "oom": 1}}, {"ledger_empty": {"at": "end"}}]
    text = {"name": "dialect", "node": {"context": 0}, "containers": {"box": container}, "expect": expect, **more}
    return loads(json.dumps(text))[0]


def verdicts(model: Scenario, out: Path) -> dict[str, Verdict]:
    return {verdict.check: verdict for verdict in report_run(model, run_scenario(model, out=out)).verdicts}


@contained
def test_a_file_tells_the_limit_and_the_ledger_is_read(build: Build, tmp_path: Path) -> None:
    found = verdicts(scenario(build(1, 0), "vgpu-manager"), tmp_path)
    assert {check: verdict.status for check, verdict in found.items()} == dict.fromkeys(found, "valid")
    assert {"outcome", "ledger_empty", "steps", "exits"} <= set(found)
    assert list(tmp_path.glob("*/region-box")), "the ledger is kept with the run"


@contained
def test_a_limit_that_is_not_kept_and_a_leak_are_seen(build: Build, tmp_path: Path) -> None:
    found = verdicts(scenario(build(1, 1), "vgpu-manager"), tmp_path)
    assert found["outcome"].status == "invalid"
    assert found["ledger_empty"].status == "invalid"
    assert "box: ledger holds 96MiB on device 0, 1 slots" in found["ledger_empty"].seen


@contained
def test_a_service_runs_beside_the_containers_and_limits_are_unknown(
    build: Build, compile_c: Callable[..., Path], tmp_path: Path
) -> None:
    library = tmp_path / "libnvshare.so"
    library.write_bytes(build(2, 0).read_bytes())
    compile_c(LISTENS, name="scheduler").rename(tmp_path / "nvshare-scheduler")
    found = verdicts(scenario(library, "nvshare"), tmp_path / "runs")
    assert found["steps"].status == found["exits"].status == "valid"
    assert found["outcome"].status == "unknown"
    assert "not judged: nvshare has no memory limit" in found["outcome"].seen
    assert found["ledger_empty"].status == "unknown"
    (log,) = (tmp_path / "runs").glob("*/stderr/service-nvshare.txt")
    assert log.read_text() == ""


@contained
@pytest.mark.parametrize(
    ("program", "complaint"),
    [
        (None, "nvshare-scheduler: no such program; dialect nvshare needs it beside the interposer"),
        ("#!/bin/sh\necho it is broken >&2\nexit 1\n", "the service nvshare-scheduler ended at once: it is broken"),
        ("#!/bin/sh\nread never < /dev/zero\n", "does not listen at its socket after 0.3 s"),
    ],
)
def test_a_service_that_fails_is_one_line(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str | None, complaint: str
) -> None:
    if program is not None:
        (tmp_path / "nvshare-scheduler").write_text(program)
        (tmp_path / "nvshare-scheduler").chmod(0o755)
        if "never" in program:
            monkeypatch.setattr(service, "_PATIENCE_S", 0.3)
    library = tmp_path / "libnvshare.so"
    library.write_bytes(build(2, 0).read_bytes())
    with pytest.raises(GuestError) as caught:
        run_scenario(scenario(library, "nvshare"), out=tmp_path / "runs")
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_plain_processes_refuse_what_needs_a_container(build: Build) -> None:
    with pytest.raises(GuestError, match="--dialect nvshare: needs the service nvshare-scheduler, and these are plain"):
        plain_dialect("nvshare", str(build(2, 0)))
    assert plain_dialect("hami", str(build(2, 0))).name == "hami"


def test_sequence_points_of_another_interposer_are_unknown(build: Build, tmp_path: Path) -> None:
    """Another interposer does not die at our points: that it lives, and that nothing fired, is no fault of its own."""
    model = scenario(
        build(2, 0),
        "hami",
        faults=[{"at": "point.exit", "process": "one", "kill": "SIGKILL"}],
        expect=[{"exit": {"process": "one", "signal": "SIGKILL"}}],
    )
    found = verdicts(model, tmp_path)
    for check in ("exit", "faults"):
        assert found[check].status == "unknown", check
        assert "an interposer of dialect hami has no sequence points" in found[check].seen


SPOKEN = {"own": "hooklab", "both": "hami"}


@pytest.mark.parametrize(
    ("overrides", "given"),
    [
        ({}, {"given": "hooklab", "fixed": "hooklab-hami"}),
        ({"dialect": "hami"}, {"given": "hami", "fixed": "hooklab-hami"}),
        ({"interposer": "/lib/other.so"}, {"given": "hami", "fixed": "hami"}),
        ({"interposer": "/lib/other.so", "dialect": "nvshare"}, {"given": "nvshare", "fixed": "nvshare"}),
    ],
)
def test_the_dialect_of_a_run_is_that_of_its_interposer(overrides: dict[str, str], given: dict[str, str]) -> None:
    processes = [{"name": "one", "run": ["true"]}]
    containers = {
        "own": {"interposer": "builtin", "processes": processes},
        "given": {"processes": processes},
        "both": {"interposer": "builtin", "dialect": "hami", "processes": processes},
        "fixed": {"dialect": "hooklab-hami", "processes": processes},
    }
    text = json.dumps({"name": "two", "containers": containers, "expect": []})
    (model,) = loads(text, overrides=Overrides(**overrides))
    spoken = {container.name: plan.dialect_of(model, container).name for container in model.containers}
    assert spoken == SPOKEN | given


@pytest.mark.parametrize(("dialect", "played"), [("hami", True), ("nvshare", False), ("vgpu-manager", False)])
def test_a_scenario_about_a_ledger_file_is_for_those_that_keep_it(build: Build, dialect: str, played: bool) -> None:
    container = {"dialect": "hooklab-hami", "processes": [{"name": "one", "run": ["true"]}]}
    text = json.dumps({"name": "file", "containers": {"box": container}, "expect": []})
    (model,) = loads(text, overrides=Overrides(interposer=str(build(2, 0)), dialect=dialect))
    assert bool(plan.other_layout(model)) is not played
    if not played:
        (entry,) = plan.other_layout(model)
        assert "it is about ledgers of layout hami-1.2" in entry["why"]


@contained
def test_what_is_not_played_is_unknown(build: Build, tmp_path: Path) -> None:
    container = {"dialect": "hooklab-hami", "processes": [{"name": "one", "run": ["false"]}]}
    text = json.dumps({"name": "file", "containers": {"box": container}, "expect": []})
    (model,) = loads(text, overrides=Overrides(interposer=str(build(1, 0)), dialect="vgpu-manager"))
    report = report_run(model, run_scenario(model, out=tmp_path))
    assert report.status == "unknown"
    assert any("layout hami-1.2; those of dialect vgpu-manager" in verdict.seen for verdict in report.verdicts)


@pytest.mark.parametrize(("name", "reads"), [("CUDA_DEVICE_MEMORY_LIMIT_0", False), ("CUDA_MEM_LIMIT_0", True)])
def test_limits_in_words_of_another_dialect(name: str, reads: bool) -> None:
    """What a scenario writes into the environment itself reaches those only who read that variable."""
    container = {"environment": {name: "64m"}, "processes": [{"name": "one", "run": ["true"]}]}
    text = json.dumps({"name": "words", "containers": {"box": container}, "expect": []})
    (model,) = loads(text, overrides=Overrides(interposer="/lib/other.so", dialect="vgpu-manager"))
    whys = [entry["why"] for entry in blind(model) if entry["what"] in ("memory", "settings")]
    said = f"the scenario sets {name}, which an interposer of dialect vgpu-manager does not read"
    assert whys == ([] if reads else [said, said])


@pytest.mark.parametrize("interposer", ["builtin", "/lib/other.so"])
def test_settings_of_the_built_in_interposer_reach_no_other(interposer: str) -> None:
    container = {"environment": {"HOOKLAB_CONTEXT_BYTES": "0"}, "processes": [{"name": "one", "run": ["true"]}]}
    text = json.dumps({"name": "settings", "containers": {"box": container}, "expect": []})
    (model,) = loads(text, overrides=Overrides(interposer=interposer))
    found = {entry["what"]: entry["why"] for entry in blind(model)}
    said = "the scenario sets HOOKLAB_CONTEXT_BYTES, which an interposer of dialect hami does not read"
    whats = ("memory", "resident", "settings")
    assert [found.get(what) for what in whats] == ([None] * 3 if interposer == "builtin" else [said] * 3)


@pytest.mark.parametrize("key", ["GPU-8ab12c34-0000-4000-8000-000000000000", "{uuid:0}"])
def test_limits_by_uuid_reach_only_who_knows_them(key: str) -> None:
    """HAMi has the variable by ordinal, not by UUID: for it the scenario has no limit that it reads."""
    name = f"CUDA_DEVICE_MEMORY_LIMIT_{key}"
    container = {"environment": {name: "64m"}, "processes": [{"name": "one", "run": ["true"]}]}
    text = json.dumps({"name": "words", "containers": {"box": container}, "expect": []})
    assert [entry for entry in blind(loads(text)[0]) if entry["what"] == "memory"] == []
    (model,) = loads(text, overrides=Overrides(interposer="/lib/other.so", dialect="hami"))
    (entry,) = [entry for entry in blind(model) if entry["what"] == "memory"]
    assert entry["why"] == f"the scenario sets {name}, which an interposer of dialect hami does not read"


def test_the_built_in_interposer_is_judged_in_everything() -> None:
    container = {"limits": {"memory": "1GiB", "cores": 30}, "processes": [{"name": "one", "run": ["true"]}]}
    text = json.dumps({"name": "all", "containers": {"box": container}, "expect": []})
    assert blind(loads(text)[0]) == []


@contained
@pytest.mark.parametrize(("limit", "result"), [("64MiB", "oom"), ("128MiB", "ok")])
def test_containers_with_one_ledger_have_limits_of_their_own(
    build: Build, tmp_path: Path, limit: str, result: str
) -> None:
    """The directory of the ledger is shared, that of the limits is not: the last one's are not the first one's."""
    steps = ["init", {"context": "retain"}, {"alloc": {"bytes": "100MiB", "as": "over", "result": result}}]
    more = {"free": "over"} if result == "ok" else "sync"
    first = {"limits": {"memory": limit}, "processes": [{"name": "one", "steps": [*steps, more]}]}
    last = {
        "limits": {"memory": "96MiB"},
        "share_region_with": "first",
        "processes": [{"name": "two", "steps": ["init"]}],
    }
    common = {"interposer": str(build(1, 0)), "dialect": "vgpu-manager"}
    containers = {"first": first | common, "last": last | common}
    model = loads(json.dumps({"name": "both", "node": {"context": 0}, "containers": containers, "expect": []}))[0]
    assert verdicts(model, tmp_path)["steps"].status == "valid"


def test_what_is_measured_bare_cannot_have_a_service(build: Build, tmp_path: Path) -> None:
    text = json.dumps({"name": "cost", "measure": {"calls": {}}, "expect": [{"added": {"figure": "cuInit", "ns": 1}}]})
    (model,) = loads(text, overrides=Overrides(interposer=str(build(2, 0)), dialect="nvshare"))
    report = report_run(model, run_scenario(model, out=tmp_path))
    assert report.status == "unknown"
    assert any("only containers have it" in verdict.seen for verdict in report.verdicts)


@contained
@pytest.mark.parametrize("name", ["libcuda.so", "libnvidia-ml.so"])
def test_a_driver_has_its_links_without_version(tmp_path: Path, name: str) -> None:
    """Some interposers open them; the link is the library itself, not another copy."""
    same = f"import ctypes; a, b = ctypes.CDLL('{name}'), ctypes.CDLL('{name}.1'); assert a._handle == b._handle"
    processes = [{"name": "one", "run": ["python3", "-c", same]}]
    text = {"name": "links", "containers": {"box": {"interposer": "none", "processes": processes}}, "expect": []}
    model = loads(json.dumps(text))[0]
    assert {verdict.status for verdict in verdicts(model, tmp_path).values()} == {"valid"}
