"""Charges and frees: every family is booked as it is held, refused at the limit, given back when it ends."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lab.node.faults import Fault

pytestmark = pytest.mark.sanitize
HOSTS = Path(__file__).parents[1] / "native" / "shim"
MIB, GIB = 1 << 20, 1 << 30
CONTEXT = 512 * MIB
LIMIT = {"CUDA_DEVICE_MEMORY_LIMIT": "4g", "HOOKLAB_CONTEXT_BYTES": str(CONTEXT)}
KINDS = ["sync", "managed", "pitched", "async", "async-ptsz", "pool", "pool-ptsz"]


# Who may free what: a free of the other kind is the driver's to allow, and the books must follow it.
FREES = [(kind, kind if "async" in kind else "async" if "pool" in kind else "sync") for kind in KINDS]
FREES += [("async", "sync"), ("pool", "sync"), ("sync", "async"), ("pitched", "async-ptsz")]


@pytest.mark.parametrize(("kind", "how"), FREES)
def test_a_family_is_charged_and_given_back(lab, kind: str, how: str) -> None:
    script = f"""
assert start() == 0
base = used()
big, small = alloc(3 * MIB, {kind!r}), alloc(8192, {kind!r})
say([big[0], small[0], used() - base])
say([free(big[1], {how!r}), free(small[1], {how!r}), used() - base])
"""
    ended = lab.guest(script, **LIMIT)
    assert (ended.status, ended.err) == (0, "")
    pooled = kind.startswith(("async", "pool"))  # one step of a pool, kept after a free that does not wait
    held = 32 * MIB if pooled else 4 * MIB + 8192 if kind == "managed" else 6 * MIB
    assert ended.said == [[0, 0, held], [0, 0, held if pooled and how != "sync" else 0]]


@pytest.mark.parametrize("kind", KINDS)
def test_the_limit_refuses_and_leaves_zero(lab, kind: str) -> None:
    script = f"""
assert start() == 0
got = [alloc(512 * MIB, {kind!r}) for _ in range(7)]
say([result for result, _ in got])
say(alloc(2 * MIB, {kind!r}))
say(list(info()))
say(free(got[0][1], "sync" if {kind!r} in ("sync", "managed", "pitched") else "async"))
say(alloc(512 * MIB, {kind!r})[0])
"""
    ended = lab.guest(script, **LIMIT)
    assert (ended.status, ended.err) == (0, "")
    assert ended.said == [[0] * 7, [2, 0], [0, 0, 4 * GIB], 0, 0]
    assert lab.node.snapshot().containers[0].peak[0] <= 4 * GIB


def test_without_the_shim_the_same_program_gets_more(lab) -> None:
    ended = lab.guest("start(); say([alloc(GIB)[0] for _ in range(8)])", preload=[], **LIMIT)
    assert ended.said == [[0] * 8]


def test_what_the_driver_refuses_reaches_it(lab) -> None:
    script = """
assert start() == 0
base = used()
say([CUDA.cuMemAlloc_v2(None, ctypes.c_size_t(MIB)), CUDA.cuMemAlloc_v2(None, ctypes.c_size_t(1 << 62)), alloc(0)[0]])
say([CUDA.cuMemAllocPitch_v2(None, None, ctypes.c_size_t(64), ctypes.c_size_t(64), 4), used() - base])
"""
    ended = lab.guest(script, **LIMIT)
    assert (ended.status, ended.err) == (0, "")
    assert ended.said == [[1, 1, 1], [1, 0]]
    assert lab.calls("cuMemAlloc_v2") == 3
    assert lab.calls("cuMemAllocPitch_v2") == 1


def test_before_init_and_without_a_context_the_driver_answers(lab) -> None:
    ended = lab.guest("say([alloc(MIB), init(), alloc(MIB)])", **LIMIT)
    assert ended.said == [[[3, 0], 0, [201, 0]]]


def test_an_unknown_pointer_reaches_the_driver(lab) -> None:
    script = """
assert start() == 0
pair = alloc(4 * MIB)
base = used()
say([free(0), free(12345), free(pair[1] + 512), free(pair[1] + 512, "async"), used() - base])
say([free(pair[1]), free(pair[1]), base - used()])
"""
    ended = lab.guest(script, **LIMIT)
    assert (ended.status, ended.err) == (0, "")
    assert ended.said == [[0, 1, 1, 1, 0], [0, 1, 4 * MIB]]
    assert lab.calls("cuMemFree_v2") == 5


def test_a_failed_free_is_put_back(lab) -> None:
    lab.node.plan(Fault(name="cuMemFree_v2", action="return", call=1, code=700))
    script = """
assert start() == 0
base = used()
pair = alloc(4 * MIB)
say([free(pair[1]), used() - base, free(pair[1]), used() - base])
"""
    ended = lab.guest(script, **LIMIT)
    assert ended.said == [[700, 4 * MIB, 0, 0]]


def test_a_failed_allocation_charges_nothing(lab) -> None:
    lab.node.plan(Fault(name="cuMemAlloc_v2", action="return", call=1, code=2))
    ended = lab.guest("start(); base = used(); say([alloc(MIB)[0], used() - base, alloc(MIB)[0]])", **LIMIT)
    assert ended.said == [[2, 0, 0]]


def test_a_context_is_charged_once_and_takes_its_memory_with_it(lab) -> None:
    script = """
assert start() == 0
base = used()
retain()
say(used() - base)
result, own = create()
say([result, used() - base])
alloc(64 * MIB), alloc(32 * MIB, "async")
say(used() - base)
say([CUDA.cuCtxDestroy_v2(own), retain()[0], used() - base])
"""
    ended = lab.guest(script, **LIMIT)
    assert (ended.status, ended.err) == (0, "")
    assert ended.said == [0, [0, CONTEXT], CONTEXT + 96 * MIB, [0, 0, 32 * MIB]]  # a pool is the device's


@pytest.mark.parametrize("end", ["cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxReset_v2"])
def test_the_end_of_a_primary_context(lab, end: str) -> None:
    script = f"""
assert start() == 0
alloc(64 * MIB)
before = used()
say(CUDA.{end}(0))
say([retain()[0], before - used()])
"""
    ended = lab.guest(script, **LIMIT)
    assert (ended.status, ended.err) == (0, "")
    assert ended.said == [0, [0, 64 * MIB]]


def test_a_context_beyond_the_limit_is_refused_before_the_driver_makes_it(lab) -> None:
    script = "say([init(), retain()[0], create()[0]])"
    ended = lab.guest(script, CUDA_DEVICE_MEMORY_LIMIT="256m", HOOKLAB_CONTEXT_BYTES=str(CONTEXT))
    assert (ended.status, ended.said) == (0, [[0, 2, 2]])
    assert lab.calls("cuDevicePrimaryCtxRetain") == 0
    assert lab.node.snapshot().devices[0].peak == 0


@pytest.mark.report("B47")
def test_threads_retaining_at_once_charge_one_context(lab) -> None:
    script = """
assert init() == 0
gate = threading.Barrier(8)
def body():
    gate.wait()
    assert retain()[0] == 0
threads = [threading.Thread(target=body) for _ in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
retain()
say(used())
"""
    assert lab.guest(script, **LIMIT).said == [CONTEXT]


def race(lab, preload: list[Path], mode: str) -> list[int]:
    """Results of two processes that are both inside the driver's allocation at once."""
    lab.node.plan(Fault(name="cuMemAlloc_v2", action="meet", call=1, meet=2))
    lab.node.expect(process=0, container=0)
    lab.node.expect(process=1, container=0)
    # Who got memory holds it until told; who was refused ends: the other's meeting then knows that nobody else comes.
    script = "start(); result = alloc(2400 * MIB)[0]; say(result); result or sys.stdin.read()"
    command = [sys.executable, "-I", "-S", HOSTS / "cuda_guest.py", script]
    racers = []
    for process in range(2):
        environment = lab.environment(preload=preload, HOOKLAB_PROCESS=str(process), HOOKLAB_MEMORY_MODE=mode, **LIMIT)
        racers.append(
            subprocess.Popen(
                list(map(str, command)), env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        )

    def result(process: int) -> int:
        racer = racers[process]
        assert racer.stdout
        answer = int(racer.stdout.readline())
        if answer:
            racer.wait(timeout=60)
            lab.node.ended(process=process)
        return answer

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(result, range(2)))
    for racer in racers:
        racer.communicate(timeout=60)
    return sorted(results)


def test_reserve_never_exceeds_the_limit(lab) -> None:
    assert race(lab, [lab.shim], "reserve") == [0, 2]
    assert lab.node.snapshot().containers[0].peak[0] <= 4 * GIB


def test_double_check_takes_one_back(lab) -> None:
    assert race(lab, [lab.shim], "double-check") == [0, 2]
    assert lab.node.snapshot().containers[0].peak[0] > 4 * GIB  # both were inside the driver: that is what it costs
    assert lab.calls("cuMemFree_v2") == 1


def test_a_naive_interposer_is_caught_above_the_limit(lab, compile_c) -> None:
    naive = compile_c(HOSTS.parent / "interposers" / "naive.c", "-shared", "-fPIC", "-w", name="libnaive.so")
    assert race(lab, [naive], "reserve") == [0, 0]
    assert lab.node.snapshot().containers[0].peak[0] > 4 * GIB
