"""`hooklab run @gpu`: what it says without a GPU, what its figures may be, and the way of a run on a real driver.

The machine's own driver is stood in for by the fake in LD_LIBRARY_PATH and a node of its own: the runner knows of
neither, finds NVML by the loader as on a GPU machine, and makes neither node nor faults.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lab import native
from lab.checks import RunData, judge
from lab.checks.history import empty
from lab.node.server import NodeServer
from lab.scenario.load import load

pytestmark = pytest.mark.usefixtures("native")
Cli = Callable[..., subprocess.CompletedProcess[str]]
GIB = 1 << 30
TORCH = {
    "total": 4 * GIB,
    "free": 3_742_367_744,  # real-gpu, docs/evidence
    "wrong": 0,
    "spoilt": 0,
    "refused_by_torch": 1,
    "refused_at": 13 << 28,
    "nvml_total": 4 * GIB,
    "nvml_used": 4_106_223_616,
    "again": 2 * GIB,
}
WORKERS = {"batches": 24, "wrong": 0, "trained": 1}


def statuses(name: str, figures: dict[str, Any]) -> dict[str, list[str]]:
    (scenario,) = load(native.scenarios_dir() / f"gpu/{name}.yaml")
    process = {"index": 0, "status": 0, "reported": figures}
    run = RunData(empty(), {"evidence": "real-gpu", "processes": [process]})
    found: dict[str, list[str]] = {}
    for verdict in judge(scenario, run):
        found.setdefault(verdict.check, []).append(verdict.status)
    return found


@pytest.mark.parametrize(("name", "figures"), [("torch-limit", TORCH), ("torch-workers", WORKERS)])
def test_right_figures_are_valid(name: str, figures: dict[str, Any]) -> None:
    assert set(statuses(name, figures)["reported"]) == {"valid"}


@pytest.mark.parametrize(
    ("name", "figures", "wrong"),
    [
        ("torch-limit", TORCH, {"total": 80 * GIB}),  # the card shows through
        ("torch-limit", TORCH, {"nvml_total": 80 * GIB}),
        ("torch-limit", TORCH, {"refused_by_torch": 0}),  # never refused, or by another error
        ("torch-limit", TORCH, {"refused_at": 17 << 28}),  # past the limit
        ("torch-limit", TORCH, {"refused_at": 5 << 28}),  # long before it
        ("torch-limit", TORCH, {"wrong": 1}),
        ("torch-limit", TORCH, {"spoilt": 1}),
        ("torch-limit", TORCH, {"nvml_used": 1 << 20}),
        ("torch-limit", TORCH, {"again": 0}),  # leaked
        ("torch-limit", TORCH, {"again": None}),  # died before
        ("torch-workers", WORKERS, {"batches": 8}),
        ("torch-workers", WORKERS, {"wrong": 2}),
    ],
)
def test_wrong_figures_are_invalid(name: str, figures: dict[str, Any], wrong: dict[str, Any]) -> None:
    assert "invalid" in statuses(name, figures | wrong)["reported"]


BOUNDS = {
    "cuInit": (100_000_000, 5_000_001),
    "cuLaunchKernel": (3_000, 51),
    "cuMemAlloc_v2+cuMemFree_v2": (1_800, 1_001),
    "cuMemAllocAsync+cuMemFreeAsync": (1_000, 801),
    "cuGetProcAddress_v2": (25, 151),
}


def test_each_bound_on_overhead_is_held() -> None:
    (scenario,) = load(native.scenarios_dir() / "gpu/overhead-calls.yaml")

    def judged(extra: dict[str, int]) -> dict[str, str]:
        rows = [
            {"call": call, "live": 0, "bare_ns": bare, "added_ns": most - 1 + extra.get(call, 0), "failed": 0}
            for call, (bare, most) in BOUNDS.items()
        ]
        run = RunData(empty(), {"evidence": "real-gpu", "measured": rows})
        return {verdict.subject: verdict.status for verdict in judge(scenario, run)}

    assert judged({}) == dict.fromkeys(BOUNDS, "valid")
    for call in BOUNDS:
        assert judged({call: 1}) == dict.fromkeys(BOUNDS, "valid") | {call: "invalid"}


def test_what_cannot_run_here_is_unknown_with_its_reason(hooklab: Cli, tmp_path: Path) -> None:
    done = hooklab("run", "@torch", "--junit", tmp_path / "junit.xml")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "needs torch: expected is possible here; seen PyTorch's CUDA builds stop at" in done.stdout
    assert "3 runs: 3 unknown" in done.stdout
    cases = ET.parse(tmp_path / "junit.xml").getroot().iter("testcase")
    assert all(case.find("skipped") is not None for case in cases)
    assert hooklab("run", "@torch", "--allow-unknown").returncode == 0


def test_a_measured_run_says_that_a_fake_is_not_judged(hooklab: Cli, tmp_path: Path) -> None:
    text = (native.scenarios_dir() / "gpu/overhead-calls.yaml").read_text()
    small = text.replace("rounds: 6, batches: 60", "rounds: 1, batches: 2")
    (tmp_path / "small.yaml").write_text(small)
    done = hooklab("run", "small.yaml", "--json", "--out", "runs")
    assert done.returncode == 3, done.stderr
    (run,) = json.loads(done.stdout)["runs"]
    assert {one["status"] for one in run["verdicts"]} == {"unknown"}
    assert all("only a real GPU's figures are judged" in one["seen"] for one in run["verdicts"])
    assert hooklab("run", run["directory"]).returncode == 3


@pytest.fixture
def stand_in(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a machine whose own driver is a fake one."""
    folder = tmp_path / "machine"
    with NodeServer(gpus=["h200-141g"], containers=["tenant"], directory=folder) as node:
        yield {"LD_LIBRARY_PATH": str(native.path("fake/libcuda.so.1").parent), "HOOKLAB_NODE": str(node.socket_path)}


SCENARIO = """
name: on a stand-in
containers:
  tenant:
    limits: {{memory: 4GiB}}
    environment: {{HOOKLAB_NODE: "{node}"}}
    processes:
      - name: tenant
        count: 2
        start: barrier
        steps:
          - init
          - alloc: {{bytes: 1GiB, as: x}}
          - barrier: full
          - alloc: {{bytes: 2GiB, as: over}}
          - barrier: refused
          {end}
expect:
  - outcome: {{step: over, oom: 2}}
  - held: {{barrier: full, memory: {{min: 2GiB, max: 4GiB}}}}
  - ledger_empty: {{at: end}}
"""


def on_real(
    tmp_path: Path, hooklab: Cli, machine: dict[str, str], text: str, *options: str
) -> subprocess.CompletedProcess[str]:
    (tmp_path / "real.yaml").write_text(text)
    environment = {**os.environ, **machine}
    code = "import sys; from lab.cli import main; sys.exit(main())"
    command = [
        sys.executable,
        "-P",
        "-c",
        code,
        "run",
        "real.yaml",
        "--on",
        "real",
        "--out",
        "runs",
        "--json",
        *options,
    ]
    return subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("end", ["- free: x", "- signal: SIGKILL"])
def test_a_run_on_a_real_driver(tmp_path: Path, hooklab: Cli, stand_in: dict[str, str], end: str) -> None:
    """The driver's own books, at a barrier and at the end, come from NVML as seen from outside."""
    text = SCENARIO.format(node=stand_in["HOOKLAB_NODE"], end=end)
    if "SIGKILL" in end:
        text = text.replace("        count: 2\n", "        count: 2\n        expect_exit: SIGKILL\n")
    done = on_real(tmp_path, hooklab, stand_in, text)
    (run,) = json.loads(done.stdout)["runs"]
    assert run["evidence"] == "real-gpu"
    seen = {one["check"]: (one["status"], one["seen"]) for one in run["verdicts"] if one["check"] != "run"}
    assert {status for status, _ in seen.values()} == {"valid"}, seen
    held = json.loads((Path(run["directory"]) / "run.json").read_text())["held"]
    assert [one["barrier"] for one in held] == ["full", "refused", None]
    assert held[0]["bytes"] == 2 * (GIB + (518 << 20))
    assert held[-1]["bytes"] == 0


def test_without_an_interposer_a_real_driver_gives_all(tmp_path: Path, hooklab: Cli, stand_in: dict[str, str]) -> None:
    text = SCENARIO.format(node=stand_in["HOOKLAB_NODE"], end="- free: x")
    done = on_real(tmp_path, hooklab, stand_in, text, "--interposer", "none")
    (run,) = json.loads(done.stdout)["runs"]
    assert "invalid" in {one["status"] for one in run["verdicts"] if one["check"] == "outcome"}


def test_memory_that_outlives_its_process_is_waited_for(
    stand_in: dict[str, str], guest_environment: Callable[..., dict[str, str]]
) -> None:
    """Another's memory is not ours; a process that lives on holds its own until the patience ends."""
    holder = textwrap.dedent("""
        import ctypes, sys
        cuda = ctypes.CDLL("libcuda.so.1"); context = ctypes.c_void_p(); pointer = ctypes.c_uint64()
        codes = [cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
                 cuda.cuCtxSetCurrent(context), cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(64 << 20))]
        print(codes, flush=True); sys.stdin.read()
    """)
    asker = textwrap.dedent("""
        import sys
        from lab.runner.nvml import Nvml
        with Nvml() as nvml:
            print(nvml.wait_gone([int(sys.argv[1])], patience_s=0.1), nvml.wait_gone([1], patience_s=0.1))
    """)
    environment = guest_environment() | stand_in | {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    with subprocess.Popen(
        [sys.executable, "-c", holder], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "[0, 0, 0, 0]\n"
        asked = subprocess.run(
            [sys.executable, "-P", "-c", asker, str(process.pid)],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        process.communicate()
    assert asked.stdout == f"{{{process.pid}: {{0: {(64 + 518) << 20}}}}} {{}}\n", asked.stderr
