"""cuda.bindings 12 and 13, cuda.core, numba-cuda, nvidia-ml-py, gpustat and nvitop, unmodified: under a limit of 4 GiB
each sees 4 GiB, and without an interposer the same programs see the card. A lab that could not tell the two apart would
pass neither. What they call has behaviour, to the last name."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from lab.spec.profile import device_uuid, uuid_text

pytestmark = pytest.mark.clients

HERE = Path(__file__).parent
GIB = 1 << 30
CARD = 84_987_740_160  # what CUDA reports of an A100 of 80 GB
NVML_CARD = 81920 << 20  # what NVML reports of it
CONTEXT = 436_207_616
RESERVED = NVML_CARD - CARD  # the driver's own, which the first form of NVML's query counts as used
OLDER = "HOOKLAB_BINDINGS_12"  # names the folder that has cuda-bindings 12 and nothing else


@pytest.fixture(params=[pytest.param("13"), pytest.param("12", marks=pytest.mark.bindings12)])
def bindings(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The generation of cuda.bindings that a program finds: the installed one, or that of the folder."""
    if request.param == "12":
        path = os.pathsep.join(filter(None, (os.environ[OLDER], os.environ.get("PYTHONPATH"))))
        monkeypatch.setenv("PYTHONPATH", path)
    return str(request.param)


@pytest.fixture(params=["builtin", "none"])
def interposer(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def play(hooklab: Callable[..., Any], interposer: str) -> Callable[..., tuple[dict[str, Any], str]]:
    """Runs one of the programs on a fake A100 under 4 GiB: (its report, what hooklab said)."""

    def run(program: str, *arguments: str) -> tuple[dict[str, Any], str]:
        options = ("--gpu", "a100-80g", "--memory", "4GiB", "--interposer", interposer)
        done = hooklab("exec", *options, "--", sys.executable, HERE / program, *arguments, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout.splitlines()[-1]), done.stderr

    return run


def expected_total(interposer: str) -> int:
    return 4 * GIB if interposer == "builtin" else CARD


def test_bindings(play: Callable[..., Any], interposer: str, bindings: str) -> None:
    report, _ = play("bindings_program.py", "--fill", "256")
    assert report["bindings"].split(".")[0] == bindings
    assert report["name"] == "NVIDIA A100-SXM4-80GB"
    assert report["vadd"] is True
    assert report["total"] == report["device_total"] == expected_total(interposer)
    assert report["free"] == expected_total(interposer) - CONTEXT
    assert report["fill"]["error"] == "CUDA_ERROR_OUT_OF_MEMORY"
    # Refused at the limit and only there: the last block that fits was given.
    assert report["fill"]["blocks"] == report["free"] // (256 << 20)
    # NVIDIA's own runtime needs tables of the driver that the fake does not have: it stops with the driver's answer.
    assert report["runtime"] == ["cudaErrorInvalidValue"] * 2


def test_core(play: Callable[..., Any], interposer: str, bindings: str) -> None:
    report, said = play("core_program.py")
    assert report.pop("bindings").split(".")[0] == bindings
    assert report == {
        "name": "NVIDIA A100-SXM4-80GB",
        "vadd": True,
        "event_done": True,
        "total": 4 * GIB if interposer == "builtin" else NVML_CARD,
        "fits": [3] if interposer == "builtin" else [3, 5],
    }
    assert "not executed" not in said


def test_nvidia_ml_py(play: Callable[..., Any], interposer: str) -> None:
    report, _ = play("nvml_program.py")
    assert (report["name"], report["driver"]) == ("NVIDIA A100-SXM4-80GB", "580.159.04")
    total = 4 * GIB if interposer == "builtin" else NVML_CARD
    own = 0 if interposer == "builtin" else RESERVED  # nobody holds anything
    assert report["v1"] == {"total": total, "free": total - own, "used": own}
    assert report["v2"] == {"total": total, "free": total - own, "used": 0}


@pytest.mark.parametrize(
    "bindings", ["13", pytest.param("12", marks=[pytest.mark.bindings12, pytest.mark.full])], indirect=True
)
def test_numba(play: Callable[..., Any], interposer: str, bindings: str) -> None:
    report, said = play("numba_program.py")
    assert report["bindings"].split(".")[0] == bindings
    assert report["detected"]
    assert report["round_trip"]
    assert report["total"] == expected_total(interposer)
    # Accepted and timed, never a stale result that looks right: its data is what was there, and hooklab says so.
    assert report["unchanged"]
    assert not report["executed"]
    assert re.search(r"\b1 kernel launches? only took time", said)


def test_monitors_beside_a_process(play: Callable[..., Any], interposer: str) -> None:
    """A process holds a context and 256 MiB; nvidia-ml-py, gpustat and nvitop say so to the byte."""
    held = CONTEXT + (256 << 20)
    report, said = play("monitors_program.py")
    limited = interposer == "builtin"
    assert report["nvml"] == {
        "total": 4 * GIB if limited else NVML_CARD,
        "used": held if limited else held + RESERVED,
        "processes": [[True, held]],
    }
    assert report["gpustat"] == {
        "name": "NVIDIA A100-SXM4-80GB",
        "total": 4096 if limited else 81920,
        "used": held >> 20,
        "processes": [[True, held >> 20]],
    }
    text = "\n".join(report["nvitop"])
    assert f"{held >> 20}.0MiB / {'4096MiB' if limited else '80.00GiB'} |" in text
    assert len(re.findall(rf"\b0 +\d+ C +\S+ +{held >> 20}\.0MiB ", text)) == 1
    assert f"peak {held >> 20}MiB" in said


PROGRAMS = {
    "core": ("core_program.py",),
    "numba": ("numba_program.py",),
    "gpustat": ("-m", "gpustat"),
    "nvitop": ("-m", "nvitop", "--once", "--no-unicode"),
}
# What the clients are known to need: names that each must have called, and how many names it calls at least.
NEEDS = {
    "core": (35, {"cuMemAllocFromPoolAsync", "cuMemcpyAsync", "cuLibraryGetKernel", "cuLaunchKernelEx"}),
    "numba": (24, {"cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2", "cuLibraryLoadData", "cuLaunchKernelEx"}),
    "gpustat": (16, {"nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetFanSpeed"}),
    "nvitop": (24, {"nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetPciInfo_v3", "nvmlSystemGetCudaDriverVersion"}),
}


@pytest.mark.parametrize("client", PROGRAMS)
def test_every_name_that_is_called_has_behaviour(hooklab: Callable[..., Any], tmp_path: Path, client: str) -> None:
    called = _called(hooklab, tmp_path, "none", PROGRAMS[client])
    least, names = NEEDS[client]
    assert len(called) >= least
    assert names <= called.keys()


def test_all_lookups_of_bindings_reach_the_driver(
    hooklab: Callable[..., Any], tmp_path: Path, interposer: str, bindings: str
) -> None:
    """Every name is asked for once, with flag 2 for a default stream of each thread, and is there or is left out."""
    variables = {"CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM": "1"}
    called = _called(hooklab, tmp_path, interposer, ("bindings_program.py",), **variables)
    lookups = called["cuGetProcAddress_v2"]
    assert lookups == 483 if bindings == "12" else lookups >= 524
    assert [called.get(name) for name in ("cuLaunchKernel_ptsz", "cuLaunchKernel")] == [1, None]
    assert [called.get(name) for name in ("cuMemcpyHtoD_v2_ptds", "cuMemcpyHtoD_v2")] == [2, None]


def _called(
    hooklab: Callable[..., Any], folder: Path, interposer: str, program: Sequence[str], **environment: str
) -> dict[str, int]:
    """Driver names that a client called, and how often; none of them may be without behaviour."""
    words = [str(HERE / word) if word.endswith(".py") else word for word in program]
    process = {"name": "client", "run": [sys.executable, *words], "environment": environment}
    container = {"interposer": interposer, "limits": {"memory": "4GiB"}, "processes": [process]}
    scenario = {"name": "client", "options": {"history": "calls"}, "containers": {"box": container}}
    (folder / "client.yaml").write_text(json.dumps(scenario))
    done = hooklab("run", folder / "client.yaml", "--out", folder / "runs", timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = (folder / "runs").iterdir()
    told = hooklab("report", "--coverage", "--json", run)
    assert told.returncode == 0, told.stderr
    found = json.loads(told.stdout)
    assert found["without_behaviour"] == {}
    return dict(found["called"])


def test_monitors_see_the_cards_that_cuda_sees(
    hooklab: Callable[..., Any], interposer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the interposer NVML ignores what is visible, as a driver does."""
    uuids = [uuid_text(device_uuid(0, index)) for index in range(2)]
    options = ("--gpu", "a100-80g,t4-16g", "--memory", "4GiB", "--interposer", interposer)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", uuids[1])
    done = hooklab("exec", *options, "--", sys.executable, HERE / "nvml_program.py", timeout=120)
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["cards"] == (uuids[1:] if interposer == "builtin" else uuids)
    assert report["name"] == ("Tesla T4" if interposer == "builtin" else "NVIDIA A100-SXM4-80GB")
    for translates in ([], ["--only-visible"]):  # nvitop reads the variable itself then
        done = hooklab("exec", *options, "--", sys.executable, "-m", "nvitop", "--once", *translates, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Tesla T4" in done.stdout
        assert ("A100-SXM4" in done.stdout) is (interposer == "none" and not translates)


def test_monitors_list_who_holds_memory(play: Callable[..., Any], interposer: str) -> None:
    """The same rows with the interposer and without it: who asks is in the container of whom it asks about."""
    report, _ = play("listed_program.py")
    held = CONTEXT + (256 << 20)
    assert report["nvidia-ml-py"] == [[report["pid"], held]]
    assert report["named"] == [True]
    assert report["gpustat"] == [[report["pid"], held >> 20]]
    (line,) = report["nvitop"]
    assert f" {held >> 20}.0MiB " in line


def test_bridge(play: Callable[..., Any], interposer: str) -> None:
    """The bridge's GPU backend: right bytes and sums, refusals by the driver, a grid too small."""
    report, said = play("bridge_program.py")
    assert report["device"] == "NVIDIA A100-SXM4-80GB"
    assert set(report["mail"]) == {"0", "1", "39", "64", "4096", str(32 << 20)}
    assert all(row == [True, True, 0, 0] for row in report["mail"].values()), report["mail"]
    assert set(report["vadd"]) == {"1", "1000", str((1 << 22) - 1), str(1 << 22)}
    assert all(row == [True, 0, True, True] for row in report["vadd"].values()), report["vadd"]
    assert report["refused"] == {"block": [2, 1, 0], "grid": [2, 1, 0], "shared": [2, 1, 0], "opcode": [1, 9, 0]}
    assert report["small"] == [True, 36, True, True]
    assert report["last"].startswith('CUBB2 seq=16 op=2 n=100 gpu="NVIDIA A100-SXM4-80GB" kernel_ns=')
    assert "not executed" not in said
