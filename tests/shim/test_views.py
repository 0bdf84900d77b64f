"""What a tenant sees: its limit and what is left of it, through CUDA and NVML alike."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.sanitize
MIB, GIB = 1 << 20, 1 << 30
CONTEXT = 512 * MIB
LIMIT = {"CUDA_DEVICE_MEMORY_LIMIT": "4g", "HOOKLAB_CONTEXT_BYTES": str(CONTEXT)}


def test_cuda_and_nvml_agree(lab) -> None:
    script = """
assert start() == 0
alloc(100 * MIB)
total = ctypes.c_size_t()
CUDA.cuDeviceTotalMem_v2(ctypes.byref(total), 0)
say([list(info()), total.value])
results, memory = nvml()
say([results, memory.total, memory.free, memory.used])
results, memory = nvml(version=ctypes.sizeof(Memory2) | 2 << 24)
say([results, memory.total, memory.free, memory.used])
"""
    ended = lab.guest(script, **LIMIT)
    free = 4 * GIB - CONTEXT - 100 * MIB
    assert (ended.status, ended.err) == (0, "")
    assert ended.said[0] == [[0, free, 4 * GIB], 4 * GIB]
    assert ended.said[1] == ended.said[2] == [[0, 0, 0], 4 * GIB, free, 4 * GIB - free]


def test_a_process_that_only_uses_nvml(lab) -> None:
    script = "results, memory = nvml(); say([results, memory.total, memory.free])"
    assert lab.guest(script, **LIMIT).said == [[[0, 0, 0], 4 * GIB, 4 * GIB]]
    assert lab.phases() == [(thread, name) for thread, name in lab.phases() if not name.startswith(("REAL", "WRAPPER"))]


@pytest.mark.parametrize("visible", ["0", "unset"])
def test_an_nvml_process_names_devices_as_cuda_would(lab, visible: str) -> None:
    script = "results, memory = nvml(); say(memory.total)"
    ended = lab.guest(
        script, CUDA_VISIBLE_DEVICES=visible, CUDA_DEVICE_MEMORY_LIMIT_0="2g", CUDA_DEVICE_MEMORY_LIMIT="6g"
    )
    assert ended.said == [2 * GIB]


def test_a_device_that_cuda_does_not_see_is_shown_as_it_is(lab) -> None:
    card = lab.guest("say(nvml()[1].total)", preload=[]).said
    hidden = {"CUDA_VISIBLE_DEVICES": "-1", "HOOKLAB_NVML_DEVICES": "all"}
    assert lab.guest("say(nvml()[1].total)", **hidden, **LIMIT).said == card != [4 * GIB]


@pytest.mark.report("B32")
def test_every_output_is_optional(lab) -> None:
    script = """
assert start() == 0
left, total = ctypes.c_size_t(), ctypes.c_size_t()
say([CUDA.cuMemGetInfo_v2(None, None), CUDA.cuMemGetInfo_v2(ctypes.byref(left), None)])
say([CUDA.cuMemGetInfo_v2(None, ctypes.byref(total)), left.value, total.value])
say(CUDA.cuDeviceTotalMem_v2(None, 0))
"""
    ended = lab.guest(script, **LIMIT)
    assert ended.status == 0
    assert ended.said == [[0, 0], [0, 4 * GIB - CONTEXT, 4 * GIB], 1]


def test_errors_are_the_drivers(lab) -> None:
    script = """
say([list(info()), init(), list(info())])
total = ctypes.c_size_t(7)
say([CUDA.cuDeviceTotalMem_v2(ctypes.byref(total), 99), total.value])
results, memory = nvml(version=0)
say([results[2], memory.total])
"""
    bare, shown = lab.guest(script, preload=[]), lab.guest(script, **LIMIT)
    assert (bare.status, shown.status) == (0, 0)
    assert shown.said == bare.said
    assert shown.said[0] == [[3, 0, 0], 0, [201, 0, 0]]


@pytest.mark.parametrize("limits", [{}, {"CUDA_DEVICE_MEMORY_LIMIT": ""}, {"CUDA_DEVICE_MEMORY_LIMIT_3": "1g"}])
def test_without_a_limit_the_card_is_seen(lab, limits: dict[str, str]) -> None:
    script = "start(); say([info()[2], nvml()[1].total])"
    assert lab.guest(script, **limits).said == lab.guest(script, preload=[]).said


def test_no_more_is_free_than_there_is(lab) -> None:
    script = """
assert start() == 0
card = info()[1]
say(card)
"""
    free = lab.guest(script, preload=[]).said[0]
    taken = (free - 1 * GIB) // (2 * MIB) * 2 * MIB  # whole blocks
    taker = f"""
import subprocess
assert start() == 0
mine = alloc({taken})
assert mine[0] == 0
environment = dict(os.environ, LD_PRELOAD={lab.environment()["LD_PRELOAD"]!r}, CUDA_DEVICE_MEMORY_LIMIT="60g",
                   HOOKLAB_CONTEXT_BYTES={str(CONTEXT)!r}, HOOKLAB_PROCESS="1")
inner = "start(); say(list(info()))"
subprocess.run([sys.executable, "-I", "-S", sys.argv[0], inner], env=environment, check=True)
"""
    ended = lab.guest(taker, preload=[])
    result, left, total = ended.said[0]
    assert (result, total) == (0, 60 * GIB)
    assert left == free - taken - CONTEXT
