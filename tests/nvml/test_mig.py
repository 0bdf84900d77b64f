"""A card that is cut: what NVML tells of it and of its MIG devices, what CUDA sees, and whose memory is whose."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.node.model import busy_ns
from lab.node.server import NodeServer
from lab.spec.profile import load_profile, node_uuids

OK, INVALID, UNSUPPORTED, NO_PERMISSION, NOT_FOUND, IS_LOST = 0, 2, 3, 4, 6, 15
ANY = 0xFFFFFFFF
MIB = 1 << 20
CARD = "NVIDIA A100-SXM4-40GB"
TOTAL, RESERVED = 42949672960, 42949672960 - 42298834944
BIG, MIDDLE, SMALL = 20096 * MIB, 9984 * MIB, 4864 * MIB
CONTEXTS = [436207616 * sms // 108 for sms in (42, 28, 14)]
CARD_UUID, *MIGS = node_uuids(0, [load_profile("a100-40g-mig")])[0]

pytestmark = pytest.mark.sanitize


class Guest:
    """A process of mig_guest.py."""

    def __init__(self, environment: dict[str, str]) -> None:
        pipe = subprocess.PIPE
        command = [sys.executable, "-S", str(Path(__file__).with_name("mig_guest.py"))]
        self.process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True, bufsize=1)
        self.started = self.ask("start")

    def ask(self, *words: object) -> Any:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(words) + "\n")
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def guests(guest_environment: Callable[..., dict[str, str]]) -> Iterator[Callable[..., Guest]]:
    """`guests(node, CUDA_VISIBLE_DEVICES=...)`: processes that end with the test."""
    started: list[Guest] = []

    def start(node: NodeServer, *preload: str, **variables: str) -> Guest:
        started.append(Guest(guest_environment(*preload, **node.environment, **variables)))
        return started[-1]

    yield start
    for guest in started:
        guest.close()


@pytest.fixture
def node(make_node: Callable[..., NodeServer]) -> NodeServer:
    return make_node(gpus=["a100-40g-mig"])


def test_a_cut_card(node: NodeServer, guests: Callable[..., Guest]) -> None:
    seen = guests(node).ask("told", 0)
    assert seen == {
        "name": [OK, CARD],
        "uuid": [OK, CARD_UUID],
        "mode": [OK, 1, 1],
        "numbers": {
            "nvmlDeviceGetIndex": [OK, 0],
            "nvmlDeviceIsMigDeviceHandle": [OK, 0],
            "nvmlDeviceGetMaxMigDeviceCount": [OK, 7],
            "nvmlDeviceGetGpuInstanceId": [UNSUPPORTED, ANY],
            "nvmlDeviceGetComputeInstanceId": [UNSUPPORTED, ANY],
            "nvmlDeviceGetNumGpuCores": [UNSUPPORTED, ANY],
            "nvmlDeviceGetComputeMode": [UNSUPPORTED, ANY],
            "nvmlDeviceGetPowerUsage": [OK, 50_000],
            "nvmlDeviceGetMinorNumber": [OK, 0],
        },
        "parent": [INVALID, False],
        "memory": [OK, TOTAL, TOTAL - RESERVED, RESERVED],
        "attributes": [UNSUPPORTED] + [0] * 9,
        "utilisation": UNSUPPORTED,
        "by process": UNSUPPORTED,
    }


def test_its_mig_devices(node: NodeServer, guests: Callable[..., Guest]) -> None:
    guest = guests(node)
    expected = [
        ("3g.20gb", 2, BIG, [42, 3, 2, 0, 0, 0, 3, 3, 20096]),
        ("2g.10gb", 3, MIDDLE, [28, 2, 1, 0, 0, 0, 2, 2, 9984]),
        ("1g.5gb", 9, SMALL, [14, 1, 0, 0, 0, 0, 1, 1, 4864]),
    ]
    for index, (kind, instance, size, attributes) in enumerate(expected):
        seen = guest.ask("told", [0, index])
        assert seen == guest.ask("told", MIGS[index]), "the UUID names the same device"
        assert seen["name"] == [OK, f"{CARD} MIG {kind}"]
        assert seen["uuid"] == [OK, MIGS[index]]
        assert seen["memory"] == [OK, size, size, 0]
        assert seen["attributes"] == [OK, *attributes]
        assert seen["parent"] == [OK, True]
        assert seen["mode"][0] == seen["utilisation"] == seen["by process"] == UNSUPPORTED
        assert seen["numbers"] == {
            "nvmlDeviceGetIndex": [OK, index],
            "nvmlDeviceIsMigDeviceHandle": [OK, 1],
            "nvmlDeviceGetMaxMigDeviceCount": [UNSUPPORTED, ANY],
            "nvmlDeviceGetGpuInstanceId": [OK, instance],
            "nvmlDeviceGetComputeInstanceId": [OK, 0],
            "nvmlDeviceGetNumGpuCores": [UNSUPPORTED, ANY],
            "nvmlDeviceGetComputeMode": [OK, 0],
            "nvmlDeviceGetPowerUsage": [UNSUPPORTED, ANY],
            "nvmlDeviceGetMinorNumber": [UNSUPPORTED, ANY],
        }
    assert [guest.ask("told", [0, index]) for index in (3, 6, 7)] == [NOT_FOUND, NOT_FOUND, INVALID]


def test_what_is_no_uuid_of_a_mig_device(node: NodeServer, guests: Callable[..., Guest]) -> None:
    """Neither the bare number, nor the card's kind before it, nor a piece of it, names an instance or its card."""
    guest = guests(node)
    bare = MIGS[2].removeprefix("MIG-")
    for text in (bare, f"GPU-{bare}", MIGS[2][:20], f"MIG-{CARD_UUID}/9/0", MIGS[2].upper()):
        assert guest.ask("told", text) == NOT_FOUND


def test_kinds_of_gpu_instances(node: NodeServer, guests: Callable[..., Guest]) -> None:
    seen = guests(node).ask("instances", 0)
    assert seen["0"] == {
        "kind": [19, 0, 1, 7, 14, 1, 0, 0, 0, 0, 4864],
        "name": [OK, "MIG 1g.5gb", True],
        "size": [OK, 7],
        "places": [[start, 1] for start in range(7)],
        "left": [OK, 1],  # slice 3 is free, and one of seven compute slices
        "instances": [OK, 1],
    }
    assert seen["9"]["places"] == [[0, 2], [2, 2], [4, 2], [6, 2]]
    assert seen["2"] == {
        "kind": [9, 0, 3, 2, 42, 3, 2, 0, 0, 0, 20096],
        "name": [OK, "MIG 3g.20gb", True],
        "size": [OK, 2],
        "places": [[0, 4], [4, 4]],
        "left": [OK, 0],
        "instances": [OK, 1],
    }
    assert seen["4"]["kind"] == [0, 0, 7, 1, 98, 7, 5, 0, 1, 1, 40448]
    forms = {form for form, kind in seen.items() if isinstance(kind, dict)}
    assert forms == {"0", "1", "2", "3", "4", "7", "9"}
    assert {form: seen[form] for form in ("5", "17", "18")} == {"5": UNSUPPORTED, "17": UNSUPPORTED, "18": INVALID}


def test_a_gpu_instance_and_its_compute_instance(node: NodeServer, guests: Callable[..., Guest]) -> None:
    guest = guests(node)
    assert guest.ask("instance", 0, 1) == NOT_FOUND
    assert guest.ask("instance", 0, 2) == {
        "info": [OK, True, 2, 9, 4, 4],
        "compute": [[0, 1, 3, 14], [1, 2, 1, 28], [2, 3, 1, 42], 3, 3, 3, 3, 3, 3, INVALID],
        "full": [OK, 1],
        "by id": [OK, NOT_FOUND],
        "same": True,
        "compute info": [OK, True, 0, 2, 0, 3],
        "first version": [True, 0, 2, 77, 77],
        "room": [OK, 0],
        "changes": [NO_PERMISSION] * 5,
    }


def test_a_card_that_is_not_cut(make_node: Callable[..., NodeServer], guests: Callable[..., Guest]) -> None:
    """It knows what it could be cut into; a card of another kind does not know the question."""
    guest = guests(make_node(gpus=["a100-40g", "t4-16g"]))
    seen = guest.ask("told", 0)
    assert (seen["mode"], seen["numbers"]["nvmlDeviceGetMaxMigDeviceCount"]) == ([OK, 0, 0], [OK, 0])
    assert (seen["utilisation"], seen["numbers"]["nvmlDeviceGetComputeMode"]) == (OK, [OK, 0])
    kinds = guest.ask("instances", 0)
    assert kinds["0"]["kind"] == [19, 0, 1, 7, 14, 1, 0, 0, 0, 0, 4864]
    assert (kinds["0"]["name"][0], kinds["0"]["left"][0], kinds["0"]["instances"][0]) == (UNSUPPORTED,) * 3
    assert guest.ask("instance", 0, 2) == UNSUPPORTED
    assert guest.ask("told", 1)["mode"][0] == UNSUPPORTED
    assert set(guest.ask("instances", 1).values()) == {UNSUPPORTED, INVALID}


SEEN = {index: [f"{CARD} MIG {kind}", MIGS[index]] for index, kind in enumerate(("3g.20gb", "2g.10gb", "1g.5gb"))}


@pytest.mark.parametrize(
    ("visible", "index"),
    [
        (None, 0),  # the first MIG device stands for its card, alone
        ("0", 0),
        ("0,1", 0),
        (CARD_UUID, 0),
        (MIGS[0], 0),
        (MIGS[2], 2),
        (f"{MIGS[2]},{MIGS[1]}", 2),  # one only, the first that is named
        (f" {MIGS[1]} ", 1),
        (MIGS[1].lower(), 1),
        (MIGS[1][:12], 1),
        (f"MIG-{CARD_UUID}/9/0", 2),  # the form of drivers before 470
        (f"MIG-{CARD_UUID}/2/0", 0),
        (f"MIG-{CARD_UUID}/9/1", None),
        (f"MIG-{CARD_UUID}/5/0", None),
        (f"MIG-{CARD_UUID}/9", None),
        (MIGS[1].removeprefix("MIG-"), None),
        (f"GPU-{MIGS[1].removeprefix('MIG-')}", None),
        (f"MIG-{CARD_UUID.removeprefix('GPU-')}", None),
        ("MIG-", None),
        ("1", None),
        (f"{MIGS[0]},{MIGS[0]}", "repeated"),
    ],
)
def test_what_cuda_sees(
    node: NodeServer, guests: Callable[..., Guest], visible: str | None, index: int | str | None
) -> None:
    guest = guests(node, **({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}))
    if not isinstance(index, int):
        assert guest.started == [0, 101 if index == "repeated" else 100]
        return
    assert guest.started == [0, 0]
    code, devices = guest.ask("visible")
    assert code == 0
    ((name, uuid, card, total, numbers),) = devices
    assert [name, uuid] == [SEEN[index][0], MIGS[index].removeprefix("MIG-").replace("-", "")]
    assert card == CARD_UUID.removeprefix("GPU-").replace("-", "")
    assert total == (BIG, MIDDLE, SMALL)[index]
    eighths, sms, copies = ((4, 42, 3), (2, 28, 2), (1, 14, 1))[index]
    assert numbers == [sms, 41943040 * eighths // 8, 5120 * eighths // 8, copies, 1, 0, 0, 0, 0, 0]


def test_cards_beside_a_cut_one(make_node: Callable[..., NodeServer], guests: Callable[..., Guest]) -> None:
    """A process that sees a MIG device sees nothing else; one that names whole cards sees those."""
    node = make_node(gpus=["a100-40g", "a100-40g-mig"])
    (first,), (second, *migs) = node_uuids(0, node.profiles)

    def names(**variables: str) -> list[str]:
        return [row[0] for row in guests(node, **variables).ask("visible")[1]]

    assert names() == [f"{CARD} MIG 3g.20gb"]
    assert names(CUDA_VISIBLE_DEVICES="0") == names(CUDA_VISIBLE_DEVICES=first) == [CARD]
    assert names(CUDA_VISIBLE_DEVICES="1") == names(CUDA_VISIBLE_DEVICES=second) == [f"{CARD} MIG 3g.20gb"]
    assert names(CUDA_VISIBLE_DEVICES=f"{first},{migs[1]}") == [f"{CARD} MIG 2g.10gb"]
    guest = guests(node)
    assert (guest.ask("told", 2), guest.ask("told", [0, 0])) == (INVALID, NOT_FOUND)
    assert guest.ask("told", [1, 2])["uuid"] == [OK, migs[2]]


def test_whose_memory_is_whose(node: NodeServer, guests: Callable[..., Guest]) -> None:
    """An instance is full when it is full, whatever its neighbours have left; the card shows the sum, and each process
    with its instance."""
    small, big, watcher = (guests(node, CUDA_VISIBLE_DEVICES=uuid) for uuid in (MIGS[2], MIGS[0], MIGS[1]))
    assert small.ask("retain") == big.ask("retain") == [0, 0]
    room = SMALL - CONTEXTS[2]
    assert small.ask("info") == [0, room, SMALL]
    assert small.ask("allocate", SMALL) == 2
    assert (small.ask("allocate", 4096 * MIB), small.ask("allocate", 1024 * MIB)) == (0, 2)
    assert big.ask("allocate", 16384 * MIB) == 0
    mine, theirs = CONTEXTS[2] + 4096 * MIB, CONTEXTS[0] + 16384 * MIB
    assert watcher.ask("told", [0, 2])["memory"] == [OK, SMALL, SMALL - mine, mine]
    assert watcher.ask("told", [0, 1])["memory"] == [OK, MIDDLE, MIDDLE, 0]
    used = mine + theirs + RESERVED
    assert watcher.ask("told", 0)["memory"] == [OK, TOTAL, TOTAL - used, used]
    rows = [[big.process.pid, theirs, 2, 0], [small.process.pid, mine, 9, 0]]
    assert watcher.ask("processes", 0) == [OK, rows]
    assert watcher.ask("processes", [0, 0]) == [OK, rows[:1]]
    assert watcher.ask("processes", [0, 1]) == [OK, []]
    assert watcher.ask("processes", MIGS[2]) == [OK, rows[1:]]
    small.close()
    big.close()
    node.wait_live(1)
    assert watcher.ask("told", 0)["memory"] == [OK, TOTAL, TOTAL - RESERVED, RESERVED]


def test_a_kernel_takes_as_long_as_its_instance_is_small(node: NodeServer, guests: Callable[..., Guest]) -> None:
    """1,024 blocks of which two fit on a multiprocessor: 13 waves on 42 of them, 19 on 28, 37 on 14."""
    waves = []
    for row, uuid in enumerate(MIGS, start=1):
        guest = guests(node, CUDA_VISIBLE_DEVICES=uuid)
        assert guest.ask("retain") == [0, 0]
        assert guest.ask("burn") == 0
        waves.append(busy_ns(node.file, row, start_ns=0, end_ns=1 << 62))
        assert busy_ns(node.file, 0, start_ns=0, end_ns=1 << 62) == 0
    assert [time / waves[0] * 13 for time in waves] == [13, 19, 37]


def test_a_lost_card_takes_its_instances_with_it(node: NodeServer, guests: Callable[..., Guest]) -> None:
    from lab.node.faults import Fault

    node.plan(Fault(name="cuMemGetInfo_v2", action="lost", call=1, code=0))
    guest = guests(node, CUDA_VISIBLE_DEVICES=MIGS[1])
    assert guest.ask("retain") == [0, 0]
    guest.ask("info")
    assert guest.ask("allocate", MIB) != 0
    assert [guest.ask("told", by) for by in (0, MIGS[1], MIGS[0])] == [IS_LOST] * 3
