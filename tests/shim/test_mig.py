"""The shim on cut cards: limits and rows of MIG devices, views before and after cuInit, whose card NVML lists."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.node.faults import Fault
from lab.region import Region
from lab.spec.profile import load_profile, node_uuids

pytestmark = pytest.mark.sanitize
MIB, GIB = 1 << 20, 1 << 30
WHOLE, CUT = "a100-40g", "a100-40g-mig"
(OTHER,), (CARD, *MIGS) = node_uuids(0, [load_profile(WHOLE), load_profile(CUT)])
BIG, MIDDLE, SMALL = (size * MIB for size in (20096, 9984, 4864))
NOT_FOUND, NO_PERMISSION = 6, 4

LOOK = """
NVML = ctypes.CDLL("libnvidia-ml.so.1")
NVML.nvmlInit_v2()

def total(uuid):
    device, memory = ctypes.c_void_p(), (ctypes.c_ulonglong * 3)()
    code = NVML.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(device))
    return -code or [*memory][0] if code or NVML.nvmlDeviceGetMemoryInfo(device, memory) else memory[0]

def cards():
    count, found = ctypes.c_uint(), []
    NVML.nvmlDeviceGetCount_v2(ctypes.byref(count))
    for index in range(count.value):
        device, name = ctypes.c_void_p(), ctypes.create_string_buffer(96)
        NVML.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device))
        NVML.nvmlDeviceGetUUID(device, name, 96)
        found.append(name.value.decode())
    return found
"""


@pytest.fixture
def cut(tmp_path: Path, guest_environment: Callable[..., dict[str, str]], shim: Path, lab: Any) -> Iterator[Any]:
    """A whole card and one that is cut."""
    folder = tmp_path / "cut"
    folder.mkdir()
    made = type(lab)(folder, guest_environment, shim, (WHOLE, CUT))
    with made.node:
        yield made


@pytest.mark.parametrize("initialised", [False, True])
@pytest.mark.parametrize(
    ("visible", "index"), [(MIGS[2], 2), (MIGS[2][:13], 2), (f"MIG-{CARD}/9/0", 2), (MIGS[0], 0), (CARD, 0)]
)
def test_the_own_device_shows_the_limit_and_others_themselves(
    cut: Any, visible: str, index: int, initialised: bool
) -> None:
    sizes = [BIG, MIDDLE, SMALL]
    script = LOOK + ("start()\n" if initialised else "") + f"say([[total(u) for u in {MIGS!r}], cards()])"
    ended = cut.guest(script, CUDA_VISIBLE_DEVICES=visible, CUDA_DEVICE_MEMORY_LIMIT="2g")
    assert (ended.status, ended.err) == (0, "")
    expected = [2 * GIB if number == index else size for number, size in enumerate(sizes)]
    if visible == CARD and not initialised:
        expected = [2 * GIB, MIDDLE, SMALL]
    assert ended.said == [[expected, [CARD]]], "the one card that CUDA sees a part of"


def test_everything_is_listed_where_nothing_is_chosen(cut: Any) -> None:
    ended = cut.guest(LOOK + "say(cards())", CUDA_DEVICE_MEMORY_LIMIT="2g")
    assert (ended.said, ended.err) == ([[OTHER, CARD]], "")


@pytest.mark.report("B90", plants="an error of the look-up is another one, and a piece of a UUID finds the card")
def test_what_the_driver_says_of_a_uuid_is_passed_on(cut: Any) -> None:
    bare = MIGS[2].removeprefix("MIG-")
    script = LOOK + f"say([total({bare!r}), total('GPU-' + {bare!r}), total({MIGS[2]!r})])"
    variables = {"CUDA_VISIBLE_DEVICES": MIGS[2], "CUDA_DEVICE_MEMORY_LIMIT": "2g"}
    assert cut.guest(script, **variables).said == [[-NOT_FOUND, -NOT_FOUND, 2 * GIB]]
    cut.node.plan(Fault(name="nvmlDeviceGetHandleByUUID", action="return", mode="from", call=1, code=NO_PERMISSION))
    assert cut.guest(script, **variables).said == [[-NO_PERMISSION] * 3]


def test_processes_that_see_different_devices_have_rows_of_their_own(cut: Any) -> None:
    """Each calls its device 0: the first takes row 0, the others free ones, each with its limit by UUID."""
    sizes = {MIGS[1]: "1g", MIGS[0]: "3g", OTHER: "5g"}
    limits = {f"CUDA_DEVICE_MEMORY_LIMIT_{uuid}": size for uuid, size in sizes.items()}
    for uuid, size in sizes.items():
        ended = cut.guest("start(); say(info()[2])", CUDA_VISIBLE_DEVICES=uuid, **limits)
        assert (ended.status, ended.said, ended.err) == (0, [int(size[0]) * GIB], "")
    again = cut.guest("start(); say([alloc(2 * GIB)[0], alloc(GIB + MIB)[0]])", CUDA_VISIBLE_DEVICES=MIGS[0], **limits)
    assert again.said == [[0, 2]]


def test_rows_of_the_living_stay_apart(cut: Any, hold: Callable[..., Any]) -> None:
    """While others live in the region, a row is a device's for good; the books show each under its own UUID."""
    held = ((MIGS[2], 256), (MIGS[0], 512), (OTHER, 768))
    for uuid, size in held:
        hold(cut, uuid, size)
    with Region.open(cut.region) as region:
        for (uuid, size), row in zip(held, range(3), strict=True):
            raw = bytes.fromhex(uuid[4:].replace("-", ""))
            assert region.row(raw, 9) == row
            assert int(region.devices["used"][row]) == size * MIB
            assert int(region.devices["limit"][row]) == 2 * GIB
    watch = LOOK + f"say([total({MIGS[2]!r}), total({MIGS[1]!r}), total({OTHER!r})])"
    seen = cut.guest(watch, CUDA_VISIBLE_DEVICES=MIGS[1], CUDA_DEVICE_MEMORY_LIMIT="2g")
    assert seen.said == [[2 * GIB, 2 * GIB, -NOT_FOUND]], "the books know the first, the variable the second"


@pytest.fixture
def hold() -> Iterator[Callable[..., Any]]:
    """`hold(lab, uuid, MiB)`: a process that has that much on the device, until its input ends."""
    started: list[Any] = []

    def start(lab: Any, uuid: str, size: int) -> Any:
        program = str(Path(__file__).parents[1] / "native" / "shim" / "cuda_guest.py")
        script = f"start(); say(alloc({size} * MIB)[0]); import sys; sys.stdin.read()"
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", program, script],
            env=lab.environment(CUDA_VISIBLE_DEVICES=uuid, CUDA_DEVICE_MEMORY_LIMIT="2g"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout.readline() == "0\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("uuid", [MIGS[0], MIGS[2]])
def test_a_context_of_a_mig_device_costs_what_is_learned_of_it(cut: Any, uuid: str) -> None:
    """The probe finds the device by its own kind of UUID: 512 MiB of the fake's context are charged."""
    script = "start(); say([info()[1], info()[2]])"
    ended = cut.guest(script, CUDA_VISIBLE_DEVICES=uuid, CUDA_DEVICE_MEMORY_LIMIT="2g", HOOKLAB_CONTEXT_BYTES="learn")
    assert (ended.status, ended.said, ended.err) == (0, [[2 * GIB - 512 * MIB, 2 * GIB]], "")
