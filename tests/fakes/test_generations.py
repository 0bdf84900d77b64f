"""Driver generations: each fake libcuda.so.1 has the names of its own generation only, and resolves as it would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.node.server import NodeServer
from lab.spec import driver_names, load_driver, load_hooks

HERE = Path(__file__).parent


def exported(library: Path) -> set[str]:
    done = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True)
    return {line.split()[2].partition("@")[0] for line in done.stdout.splitlines() if line.split()[1] in "TDB"}


@pytest.mark.report("B121")
@pytest.mark.parametrize("name", driver_names())
def test_exports_are_those_of_the_generation(name: str, native: Path) -> None:
    driver, hooks = load_driver(name), [hook for hook in load_hooks().hooks if hook.library == "cuda"]
    wanted = {hook.name for hook in hooks if hook.fake != "absent" and hook.since <= driver.cuda}
    wanted |= {hook.name for hook in hooks if hook.fake == "absent" and 13000 < hook.since <= driver.cuda}
    assert exported(native / driver.folder / "libcuda.so.1") == wanted


@pytest.mark.report("B121", plants="another generation")
def test_generations_differ(native: Path) -> None:
    """The planted failure of the test above: were all libraries alike, this would say so."""
    names = {name: exported(native / load_driver(name).folder / "libcuda.so.1") for name in driver_names()}
    assert "cuCtxCreate_v4" not in names["550"]
    assert "cuCtxCreate_v4" in names["575"]
    assert "cuMemcpyBatchAsync" not in names["550"]
    assert "cuMemcpyBatchAsync" in names["570"]
    assert "cuCtxGetDevice_v2" not in names["575"]
    assert names["535"] < names["550"] < names["570"] <= names["575"] < names["580"] == names["580-two-stage"]
    assert names["580"] < names["590"]


ASK = """
import ctypes as c, json, os
driver = c.CDLL("libcuda.so.1")
second = os.path.join(os.environ["LD_LIBRARY_PATH"], "libcuda.so.1.1")  # what the resolver of a second stage gives out
answers = c.CDLL(second) if os.path.exists(second) else driver
version = c.c_int()
driver.cuDriverGetVersion(c.byref(version))
def ask(name, at, flags=0):
    p, status = c.c_void_p(7), c.c_int(77)
    code = driver.cuGetProcAddress_v2(name.encode(), c.byref(p), at, c.c_uint64(flags), c.byref(status))
    known = {c.cast(getattr(answers, n), c.c_void_p).value: n for n in NAMES if hasattr(answers, n)}
    return [code, status.value, known.get(p.value, p.value)]
NAMES = ["cuCtxCreate_v2", "cuCtxCreate_v3", "cuCtxCreate_v4", "cuMemAdvise", "cuMemAdvise_v2", "cuMemcpyBatchAsync",
         "cuMemcpyBatchAsync_v2", "cuMemAlloc_v2", "cuCtxGetDevice", "cuCtxGetDevice_v2"]
v = version.value
print(json.dumps({"version": v, "newest": ask("cuCtxCreate", -1), "advise": ask("cuMemAdvise", v),
    "batch": ask("cuMemcpyBatchAsync", v), "device": ask("cuCtxGetDevice", -1), "above": ask("cuMemAlloc", v + 10),
    "has": hasattr(driver, "cuMemcpyBatchAsync")}))
"""


@pytest.mark.parametrize("name", driver_names())
def test_resolver_speaks_as_its_generation(
    name: str, native: Path, guest_environment: Callable[..., dict[str, str]]
) -> None:
    driver = load_driver(name)
    with NodeServer(gpus=["a100-40g"], driver=name) as node:
        environment = guest_environment(**node.environment)
        environment["LD_LIBRARY_PATH"] = os.fspath(native / driver.folder)
        done = subprocess.run([sys.executable, "-c", ASK], env=environment, capture_output=True, text=True, check=True)
    seen, cuda = json.loads(done.stdout), driver.cuda
    assert seen["version"] == cuda
    newest = "cuCtxCreate_v4" if cuda >= 12050 else "cuCtxCreate_v3"
    assert seen["newest"] == [0, 0, newest]
    assert seen["advise"] == [0, 0, "cuMemAdvise_v2" if cuda >= 12020 else "cuMemAdvise"]
    assert seen["device"] == [0, 0, "cuCtxGetDevice_v2" if cuda >= 13000 else "cuCtxGetDevice"]
    batch = "cuMemcpyBatchAsync_v2" if cuda >= 13000 else "cuMemcpyBatchAsync"
    assert seen["batch"] == ([0, 0, batch] if cuda >= 12080 else [0, 1, None])
    assert seen["above"] == [1, 77, 7]
    assert seen["has"] == (cuda >= 12080)


@pytest.mark.parametrize("case", ["alloc", "launches", "graphs", "vmm", "forked", "forked_before_init"])
def test_two_stages_answer_as_one(
    case: str, native: Path, guest_environment: Callable[..., dict[str, str]], cases: object
) -> None:
    with NodeServer(gpus=["h200-141g"], driver="580-two-stage") as node:
        environment = guest_environment(**node.environment)
        environment["LD_LIBRARY_PATH"] = os.fspath(native / "fake-580-two-stage")
        assert cases.seen(case, environment) == cases.expected(case)  # type: ignore[attr-defined]


@pytest.mark.report("B24")
def test_an_interposer_over_two_stages_hooks_the_program_only(
    native: Path, guest_environment: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    """The first library looks every name up in the second: were it given hooks, the limit would be charged twice."""
    program = (
        "from cuda_cases import *\ncurrent(); p = u64()\nprint(call('cuMemAlloc_v2', at(p), size(3 << 30)), free())"
    )
    with NodeServer(gpus=["a100-40g"], driver="580-two-stage", containers=["one"]) as node:
        environment = guest_environment(
            native / "libhooklab-preload.so",
            **node.environment,
            CUDA_DEVICE_MEMORY_LIMIT="4g",
            CUDA_DEVICE_MEMORY_SHARED_CACHE=os.fspath(tmp_path / "region"),
            HOOKLAB_CONTAINER="0",
            HOOKLAB_PROCESS="0",
            PYTHONPATH=os.fspath(HERE),
        )
        environment["LD_LIBRARY_PATH"] = os.fspath(native / "fake-580-two-stage")
        done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.stdout.split() == ["0", str(1 << 30)], done.stderr
