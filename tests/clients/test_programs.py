"""cuda.bindings, cuda.core, numba-cuda, nvidia-ml-py and nvitop, unmodified: under a limit of 4 GiB each sees 4 GiB,
and without an interposer the same programs see the card. A lab that could not tell the two apart would pass neither."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
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


def test_bindings(play: Callable[..., Any], interposer: str) -> None:
    report, _ = play("bindings_program.py", "--fill", "256")
    assert report["name"] == "NVIDIA A100-SXM4-80GB"
    assert report["vadd"] is True
    assert report["total"] == report["device_total"] == expected_total(interposer)
    assert report["free"] == expected_total(interposer) - CONTEXT
    assert report["fill"]["error"] == "CUDA_ERROR_OUT_OF_MEMORY"
    # Refused at the limit and only there: the last block that fits was given.
    assert report["fill"]["blocks"] == report["free"] // (256 << 20)


def test_core(play: Callable[..., Any], interposer: str) -> None:
    report, said = play("core_program.py")
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
    for form in ("v1", "v2"):
        memory = report[form]
        assert memory["total"] == total
        assert memory["free"] + memory["used"] <= total
        assert memory["used"] < 1 * GIB  # nobody holds anything: at most what the driver keeps for itself


def test_numba(play: Callable[..., Any], interposer: str) -> None:
    report, said = play("numba_program.py")
    assert report["detected"]
    assert report["round_trip"]
    assert report["total"] == expected_total(interposer)
    # Accepted and timed, never a stale result that looks right: its data is what was there, and hooklab says so.
    assert report["unchanged"]
    assert not report["executed"]
    assert re.search(r"\b1 kernel launches? only took time", said)


def test_nvitop(hooklab: Callable[..., Any], interposer: str) -> None:
    options = ("--gpu", "a100-80g", "--memory", "4GiB", "--interposer", interposer)
    done = hooklab("exec", *options, "--", sys.executable, "-m", "nvitop", "--once", "--no-unicode", timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    total = re.search(r"/ ([0-9.]+)(MiB|GiB) \|", done.stdout)
    assert total, done.stdout
    assert total.group(0) == ("/ 4096MiB |" if interposer == "builtin" else "/ 80.00GiB |")


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
