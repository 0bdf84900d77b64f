"""When the shim asks the policy engine, and what it answers when the engine cannot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.sanitize
HOSTS = Path(__file__).parents[1] / "native" / "shim"
LIMIT = {"CUDA_DEVICE_MEMORY_LIMIT": "4g", "HOOKLAB_CONTEXT_BYTES": str(512 << 20)}
MAPPED = "say('libhooklab-engine' in open('/proc/self/maps').read())"


def test_an_init_boots_nothing_and_a_charge_does(lab) -> None:
    ended = lab.guest(f"init(); {MAPPED}; retain(); {MAPPED}", **LIMIT)
    assert (ended.status, ended.said, ended.err) == (0, [False, True], "")
    (booted,) = lab.records("ENGINE")
    assert int(booted["a"]) == 1
    assert int(booted["b"]) > 0


@pytest.mark.parametrize("variables", [{}, {"CUDA_DEVICE_MEMORY_SHARED_CACHE": "unset"}])
def test_without_a_limit_and_a_policy_the_engine_is_never_opened(lab, variables: dict[str, str]) -> None:
    ended = lab.guest(f"start(); say(alloc(MIB)[0]); {MAPPED}", **variables)
    assert (ended.status, ended.said, ended.err) == (0, [0, False], "")


def policy(folder: Path, body: str) -> str:
    file = folder / "mine.py"
    file.write_text(f"class Mine:\n    def admit(self, device, size, kind, used, limit, shared):\n        {body}\n")
    return f"{file}:Mine"


def test_a_users_policy_decides(lab, tmp_path: Path) -> None:
    mine = policy(tmp_path, "return 2 if kind == 1 and size > 2 << 20 else 0")
    ended = lab.guest(
        "start(); say([alloc(MIB)[0], alloc(4 * MIB), alloc(4 * MIB, 'managed')[0]])", HOOKLAB_POLICY=mine
    )
    assert (ended.status, ended.said, ended.err) == (0, [[0, [2, 0], 0]], "")


def test_a_policy_that_raises_refuses_charges_and_nothing_else(lab, tmp_path: Path) -> None:
    mine = policy(tmp_path, "return 1 // 0")
    script = "say([init(), retain()[0], alloc(MIB), nvml()[0]])"
    ended = lab.guest(script, HOOKLAB_POLICY=mine, **LIMIT)
    assert (ended.status, ended.said) == (0, [[0, 2, [201, 0], [0, 0, 0]]])
    assert ended.err.count("hooklab: the policy failed") == 1
    assert 2 in [int(record["a"]) for record in lab.records("ENGINE")]


def test_an_absent_engine_refuses_under_a_limit(lab) -> None:
    script = "say([init(), retain()[0], create()[0], nvml()[0]])"
    ended = lab.guest(script, HOOKLAB_ENGINE_LIB="/nowhere/engine.so", **LIMIT)
    assert (ended.status, ended.said) == (0, [[0, 2, 2, [0, 0, 0]]])
    assert ended.err.count("\n") == 1
    assert "no policy engine" in ended.err
    assert "/nowhere/engine.so" in ended.err
    assert [int(record["a"]) for record in lab.records("ENGINE")] == [3]


def test_an_absent_engine_is_nobodys_business_without_a_limit(lab) -> None:
    ended = lab.guest("start(); say(alloc(MIB)[0])", HOOKLAB_ENGINE_LIB="/nowhere/engine.so")
    assert (ended.status, ended.said, ended.err) == (0, [0], "")


def test_a_constructor_that_allocates_while_another_thread_boots(
    lab, compile_c: Callable[..., Path], native: Path
) -> None:
    link = (f"-L{native}/fake", "-l:libcuda.so.1")
    library = compile_c(HOSTS / "constructor.c", "-shared", "-fPIC", "-w", name="libconstructor.so")
    host = compile_c(HOSTS / "constructor.c", "-DHOST", "-w", "-rdynamic", *link, name="constructor")
    for _ in range(5):
        variables = {
            "CUDA_DEVICE_MEMORY_LIMIT": "4g"
        }  # the context costs nothing: the allocations are the first verdicts
        ended = lab.run([host, library], timeout=30, **variables)
        assert (ended.status, ended.said, ended.err) == (0, [[0, 0]], "")
