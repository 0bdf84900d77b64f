"""NVML lists the cards that CUDA sees: count, numbers, and every way to find a card, before cuInit and after it."""

from __future__ import annotations

from typing import Any

import pytest

from lab.spec.profile import device_uuid, uuid_text

pytestmark = pytest.mark.sanitize
LIMIT = {"CUDA_DEVICE_MEMORY_LIMIT": "4g"}
INVALID, NOT_FOUND, LOST, FILL = 2, 6, 15, 7
A100, T4, H100 = range(3)  # in NVML's order; CUDA's is H100, A100, T4
UUIDS = [uuid_text(device_uuid(0, index)) for index in range(3)]

LOOK = f"""
NVML = ctypes.CDLL("libnvidia-ml.so.1")
UUIDS = {UUIDS!r}

def find(name, *mark):
    device = ctypes.c_void_p({FILL})
    result = getattr(NVML, name)(*mark, ctypes.byref(device))
    return result if result == 0 or device.value == {FILL} else "touched", device

def text(name, device):
    buffer = ctypes.create_string_buffer(96)
    return getattr(NVML, name)(device, buffer, 96) or buffer.value.decode()

def number(name, *given):
    value = ctypes.c_uint({FILL})
    result = getattr(NVML, name)(*given, ctypes.byref(value))
    return value.value if result == 0 else -result

class Uuid(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint), ("type", ctypes.c_uint), ("value", ctypes.c_char * 44)]

def look():
    counts = [number("nvmlDeviceGetCount"), number("nvmlDeviceGetCount_v2")]
    found = []
    for form in ("", "_v2"):
        handles = [find("nvmlDeviceGetHandleByIndex" + form, i) for i in range(4)]
        found.append([UUIDS.index(text("nvmlDeviceGetUUID", d)) if r == 0 else -r for r, d in handles])
    handles = [device for result, device in handles if result == 0]
    marks = [
        [find("nvmlDeviceGetHandleByUUID", uuid.encode())[0] for uuid in UUIDS],
        [find("nvmlDeviceGetHandleByUUIDV", ctypes.byref(Uuid(ctypes.sizeof(Uuid) | 1 << 24, 1, uuid.encode())))[0]
         for uuid in UUIDS],
        [find(f"nvmlDeviceGetHandleByPciBusId{{form}}", b"00000000:%02X:00.0" % (i + 1))[0]
         for form in ("", "_v2") for i in range(3)],
        [find("nvmlDeviceGetHandleBySerial", serial)[0] for serial in SERIALS],
    ]
    return {{"counts": counts, "found": found, "numbers": [number("nvmlDeviceGetIndex", d) for d in handles],
            "marks": marks}}
"""
BEFORE, AFTER = "NVML.nvmlInit_v2(); say(look())", "assert init() == 0; NVML.nvmlInit_v2(); say(look())"


def seen(lab: Any, script: str, **variables: str) -> list[Any]:
    serials = [bytes(device["serial"]).rstrip(b"\0") for device in lab.node.file.devices[:3]]
    prelude = f"SERIALS = {serials!r}\n"
    ended = lab.guest(prelude + LOOK + script, **{**LIMIT, **variables})
    assert (ended.status, ended.err) == (0, "")
    return list(ended.said)


def expected(shown: list[int]) -> dict[str, Any]:
    """What a program sees of whom NVML shows these cards, by the driver's own index."""
    row = [*shown, *([-INVALID] * (4 - len(shown)))]
    marks = [0 if card in shown else NOT_FOUND for card in range(3)]
    numbers = list(range(len(shown)))
    return {
        "counts": [len(shown)] * 2,
        "found": [row, row],
        "numbers": numbers,
        "marks": [marks, marks, marks * 2, marks],
    }


@pytest.mark.parametrize(
    ("visible", "guessed", "shown"),
    [  # before cuInit numbers are taken in NVML's order, after it the driver has said which they are
        ("unset", [A100, T4, H100], [A100, T4, H100]),
        ("0", [A100], [H100]),
        ("2,0", [A100, H100], [T4, H100]),
        (f"{UUIDS[T4]},{UUIDS[A100]}", [A100, T4], [A100, T4]),
        (UUIDS[H100][:12].upper().replace("GPU", "gpu"), [H100], [H100]),
        (" 1 ,junk,0", [T4], [A100]),
        (f"1,{UUIDS[A100]}", [T4], [A100]),
    ],
)
def test_what_cuda_sees(several: Any, visible: str, guessed: list[int], shown: list[int]) -> None:
    assert seen(several, BEFORE, CUDA_VISIBLE_DEVICES=visible) == [expected(guessed)]
    assert seen(several, AFTER, CUDA_VISIBLE_DEVICES=visible) == [expected(shown)]


@pytest.mark.parametrize("visible", ["", "-1", "3", "junk", "1,1", f"{UUIDS[T4]},{UUIDS[T4][:9]}", "GPU-", "GPU-zz"])
def test_who_sees_no_device(several: Any, visible: str) -> None:
    """CUDA has no device then, and says so in cuInit."""
    refused = "assert init() != 0; NVML.nvmlInit_v2(); say(look())"
    assert seen(several, BEFORE, CUDA_VISIBLE_DEVICES=visible) == [expected([])]
    assert seen(several, refused, CUDA_VISIBLE_DEVICES=visible) == [expected([])]


def test_the_first_look_is_before_cuinit(several: Any) -> None:
    """What was a guess is put right by the driver's word, in a child of fork, too."""
    script = """
NVML.nvmlInit_v2(); say(look())
assert init() == 0; say(look())
sys.stdout.flush()
if os.fork() == 0:
    NVML.nvmlInit_v2(); say(look()); os._exit(0)
os.wait()
"""
    assert seen(several, script, CUDA_VISIBLE_DEVICES="0") == [expected([A100]), expected([H100]), expected([A100])]


@pytest.mark.parametrize(
    "variables",
    [{"HOOKLAB_NVML_DEVICES": "all"}, {"CUDA_DEVICE_MEMORY_LIMIT": "", "CUDA_DEVICE_MEMORY_SHARED_CACHE": "unset"}],
)
def test_who_wants_every_card_sees_it(several: Any, variables: dict[str, str]) -> None:
    whole = [expected([A100, T4, H100])]
    assert seen(several, BEFORE, CUDA_VISIBLE_DEVICES="1", **variables) == whole
    assert seen(several, AFTER, CUDA_VISIBLE_DEVICES="1", **variables) == whole


def test_another_word_is_said_once(several: Any) -> None:
    ended = several.guest("nvml(); nvml(); say(1)", HOOKLAB_NVML_DEVICES="some", **LIMIT)
    assert ended.err.count("\n") == 1
    assert "HOOKLAB_NVML_DEVICES" in ended.err


def test_errors_are_the_drivers(several: Any) -> None:
    script = """
say([number("nvmlDeviceGetCount_v2"), find("nvmlDeviceGetHandleByIndex_v2", 0)[0],
     find("nvmlDeviceGetHandleByUUID", UUIDS[0].encode())[0]])
NVML.nvmlInit_v2()
say([NVML.nvmlDeviceGetCount_v2(None), NVML.nvmlDeviceGetHandleByIndex_v2(0, None),
     NVML.nvmlDeviceGetHandleByUUID(UUIDS[0].encode(), None), NVML.nvmlDeviceGetHandleByUUID(UUIDS[1].encode(), None),
     find("nvmlDeviceGetHandleByUUID", None)[0], NVML.nvmlDeviceGetIndex(None, None)])
"""
    bare = several.guest("SERIALS = []\n" + LOOK + script, preload=[]).said
    assert seen(several, script, CUDA_VISIBLE_DEVICES="1") == bare
    assert bare[0] == [-1, 1, 1]


LISTS = """
NVML.nvmlInit_v2()
_, own = find("nvmlDeviceGetHandleByIndex_v2", 0)
for name, *given in (("nvmlDeviceGetTopologyNearestGpus", own, 40), ("nvmlSystemGetTopologyGpuSet", 0)):
    for room, buffer in ((0, False), (1, True), (2, True), (9, True), (1, False)):
        count, devices = ctypes.c_uint(room), (ctypes.c_void_p * 9)(*[7] * 9)
        result = getattr(NVML, name)(*given, ctypes.byref(count), devices if buffer else None)
        filled = [UUIDS.index(text("nvmlDeviceGetUUID", ctypes.c_void_p(d))) for d in devices if d != 7]
        say([result, count.value, filled])
    say(getattr(NVML, name)(*given, None, None))
"""


def test_topology_names_visible_cards_only(several: Any) -> None:
    said = seen(several, LISTS, CUDA_VISIBLE_DEVICES=f"{UUIDS[T4]},{UUIDS[H100]}")
    near, of_processor = said[:6], said[6:]
    assert near == [[0, 1, []], [0, 1, [H100]], [0, 1, [H100]], [0, 1, [H100]], [INVALID, 1, []], INVALID]
    both = [T4, H100]
    assert of_processor == [[0, 2, []], [0, 1, [T4]], [0, 2, both], [0, 2, both], [INVALID, 1, []], INVALID]


@pytest.mark.parametrize("lost", [A100, T4])
@pytest.mark.parametrize("script", [BEFORE, AFTER])
def test_a_lost_card_stays_what_it_was(several: Any, script: str, lost: int) -> None:
    """A program that comes after the loss still counts the card, and is told that it is lost; or never hears of it."""
    visible = f"{UUIDS[T4]},{UUIDS[H100]}"
    whole = expected([T4, H100])
    several.node.file.devices[lost]["lost"] = 1
    (said,) = several.guest("SERIALS = []\n" + LOOK + script, CUDA_VISIBLE_DEVICES=visible, **LIMIT).said
    assert said["counts"] == [2, 2]
    assert said["found"][1] == ([-LOST, H100, -INVALID, -INVALID] if lost == T4 else whole["found"][1])
