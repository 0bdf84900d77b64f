"""Launches under a core limit where life is not plain: forks, contexts that end, kills, callbacks, captures, several
devices, giant kernels and grids, no samples, no NVML, no identity."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from lab.policy.pacing import _words as w
from lab.policy.pacing.duty import GRANTED, QUANTUM
from lab.spec import load_layout

REGION = load_layout("hooklab-1").constants
SATURATED = "for _ in range(3): good(gpu.launch(50 * MS))\n"  # far more than the credit to begin with
START = "good(CUDA.cuInit(0))\ngpu = Gpu()\n"


def paced(slot: Any, entry: str = "KERNEL") -> int:
    return int(slot["paced"][REGION[f"HL_ENTRY_{entry}"]])


def unpaced(slot: Any, entry: str = "KERNEL") -> int:
    return int(slot["unpaced"][REGION[f"HL_ENTRY_{entry}"]])


def why(slot: Any) -> dict[str, int]:
    """Launches that passed beside the limiter, by reason."""
    reasons = {name.removeprefix("HL_UNPACED_").lower(): value for name, value in REGION.items() if "_UNPACED_" in name}
    return {name: int(slot["unpaced_why"][at]) for name, at in reasons.items() if int(slot["unpaced_why"][at])}


def is_on(slot: Any) -> bool:
    return int(slot["pacing_state"]) == REGION["HL_PACING_ON"]


# ---- forks ----


def test_a_child_that_initialises_is_paced_afresh(lab: Any) -> None:
    told = lab.tell(
        "child = os.fork()\n" + START + "for _ in range(3): good(gpu.launch(20 * MS)); gpu.sync()\n"
        "good(gpu.launch(MS))\n"
        "if child: os.waitpid(child, 0)\n"
        "else: os._exit(0)\n"
        "look('both')\n",
        CUDA_DEVICE_SM_LIMIT="30",
    )
    slots = told.looks["both"].slots
    assert len(slots) == 2
    for slot in slots.values():
        assert is_on(slot)
        assert paced(slot) == 4
        assert not why(slot)
        assert slot["leases"]
    device = told.looks["both"].devices[0]
    assert 120_000_000 * 0.9 <= device["measured"] <= 120_000_000 * 1.5  # the work of both, in one bucket


def test_a_child_of_a_paced_parent_starts_with_nothing(lab: Any) -> None:
    told = lab.tell(
        START + "for _ in range(2): good(gpu.launch(20 * MS))\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    say(gpu.launch(20 * MS))\n"
        "    look('child')\n"
        "    os._exit(0)\n"
        "os.waitpid(child, 0)\n"
        "good(gpu.launch(20 * MS))\n"
        "gpu.sync()\n"
        "look('parent')\n",
        CUDA_DEVICE_SM_LIMIT="30",
    )
    assert told.said == [3]  # the driver's own word: the child has not initialised it
    child = told.looks["child"].own
    assert int(child["pacing_state"]) == REGION["HL_PACING_IDLE"]  # a limit applies to it, too
    assert not child["paced"].any()
    assert not child["slept"]
    assert paced(told.looks["parent"].own) == 3


def test_a_fork_while_another_thread_waits_ends(lab: Any) -> None:
    told = lab.tell(
        START + SATURATED + "waits = threading.Thread(target=lambda: (gpu.use(), gpu.launch(50 * MS)))\n"
        "waits.start()\n"
        "for _ in range(5):\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        gpu.launch(MS)\n"
        "        os._exit(7)\n"
        "    say(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "waits.join()\n"
        "look('end')\n",
        CUDA_DEVICE_SM_LIMIT="30",
    )
    assert told.said == [7] * 5
    assert paced(told.looks["end"].own) == 4


# ---- contexts that end ----


@pytest.mark.parametrize(
    "end",
    ["good(CUDA.cuDevicePrimaryCtxReset_v2(0))", "gpu.sync(); good(CUDA.cuDevicePrimaryCtxRelease_v2(0))"],
    ids=["reset", "release"],
)
def test_after_the_end_of_a_context_launches_are_paced_on(lab: Any, end: str) -> None:
    told = lab.tell(
        "good(CUDA.cuInit(0))\n"
        "for _ in range(3):\n"
        "    gpu = Gpu()\n"
        "    for _ in range(3): good(gpu.launch(20 * MS))\n"
        f"    {end}\n"
        "gpu = Gpu()\n"
        "good(gpu.launch(MS))\n"
        "gpu.sync()\n"
        "for _ in range(3): good(gpu.launch(20 * MS)); gpu.sync()\n"
        "good(gpu.launch(MS))\n"
        "look('end')\n",
        CUDA_DEVICE_SM_LIMIT="50",
    )
    slot = told.looks["end"].own
    assert is_on(slot)
    assert paced(slot) == 14
    assert not why(slot)
    assert slot["waits"]
    assert 0 <= int(slot["in_flight"][0].astype("int64")) < 30_000_000  # of the last two launches at most


def test_destroyed_contexts_leave_nothing_in_flight(lab: Any) -> None:
    told = lab.tell(
        "good(CUDA.cuInit(0))\n"
        "for _ in range(20):\n"
        "    gpu = Gpu(own=True)\n"
        "    good(gpu.launch(2 * MS))\n"
        "    good(gpu.launch(2 * MS))\n"
        "    good(CUDA.cuCtxDestroy_v2(gpu.context))\n"
        "look('end')\n",
        CUDA_DEVICE_SM_LIMIT="50",
    )
    slot, device = told.looks["end"].own, told.looks["end"].devices[0]
    assert paced(slot) == 40
    assert not int(slot["in_flight"][0])
    assert device["measured"]


# ---- a process that is killed while it waits ----


def test_a_kill_in_mid_wait_gives_the_bucket_back(lab: Any) -> None:
    limit = {"CUDA_DEVICE_SM_LIMIT": "20", "HOOKLAB_BOARD": "off"}
    with lab.start(START + "while True: good(gpu.launch(5 * MS))\n", **limit) as guest:
        patience = time.monotonic() + 30
        while time.monotonic() < patience:  # until it has waited, and has work in flight or a lease in hand
            time.sleep(0.01)
            if (lab.folder / "region").exists():
                slot = lab.look(guest.pid).slots.get(guest.pid)
                if slot is not None and int(slot["waits"]) >= 5:
                    break
        else:
            pytest.fail("it never waited")
        guest.send_signal(signal.SIGKILL)
        guest.communicate(timeout=30)
    told = lab.tell(
        START + "for _ in range(60): good(gpu.launch(5 * MS))\ngpu.sync()\nlook('end')\n",
        **limit,
    )
    look = told.looks["end"]
    assert paced(look.own) == 60
    policy, device = look.devices[0]["policy"], look.devices[0]
    pending = int(policy[GRANTED]) - int(device["charged"]) - int(device["returned"])
    assert pending <= 4 * (QUANTUM + 5_000_000)  # what the killed one had does not stay pending for ever
    with_state = [slot for slot in look.slots.values() if int(slot["state"]) == REGION["HL_SLOT_LIVE"]]
    assert [int(slot["pid"]) for slot in with_state] == [look.pid]  # and what it had in flight went with its slot


# ---- callbacks and captures ----


def test_nobody_sleeps_in_a_host_function(lab: Any) -> None:
    told = lab.tell(
        START + SATURATED + "look('before')\n"
        "answers = []\n"
        "called = CALLBACK(lambda _: answers.append(gpu.launch(50 * MS)))\n"
        "good(CUDA.cuLaunchHostFunc(gpu.stream, called, None))\n"
        "gpu.sync()\n"
        "say(len(answers))\n"
        "look('after')\n",
        CUDA_DEVICE_SM_LIMIT="10",
    )
    before, after = told.looks["before"].own, told.looks["after"].own
    assert told.said == [1]
    assert (int(after["waits"]), int(after["slept"])) == (int(before["waits"]), int(before["slept"]))
    assert why(after) == {"callback": 1, "host": 1}
    assert (unpaced(after), unpaced(after, "HOST")) == (1, 1)


def test_nobody_sleeps_in_a_capture(lab: Any) -> None:
    told = lab.tell(
        START + SATURATED + "look('before')\n"
        "graph = ctypes.c_void_p()\n"
        "good(CUDA.cuStreamBeginCapture_v2(gpu.stream, RELAXED))\n"
        "for _ in range(3): good(gpu.launch(50 * MS))\n"
        "good(CUDA.cuStreamEndCapture(gpu.stream, ctypes.byref(graph)))\n"
        "look('after')\n",
        CUDA_DEVICE_SM_LIMIT="10",
    )
    before, after = told.looks["before"].own, told.looks["after"].own
    assert (int(after["waits"]), int(after["slept"])) == (int(before["waits"]), int(before["slept"]))
    assert why(after) == {"capture": 3}
    assert paced(after) == 3


# ---- several devices ----

TOGETHER = (
    "good(CUDA.cuInit(0))\n"
    "gpus = [Gpu(0), Gpu(1)]\n"
    "def together(ns, blocks=1):\n"
    "    held = [gpu.parameters(ns) for gpu in gpus]\n"
    "    rows = [Together(gpu.function, blocks, 1, 1, 32, 1, 1, 0, gpu.stream, ctypes.cast(one,\n"
    "            ctypes.POINTER(ctypes.c_void_p))) for gpu, one in zip(gpus, held)]\n"
    "    return CUDA.cuLaunchCooperativeKernelMultiDevice((Together * 2)(*rows), 2, 0)\n"
)


def test_a_launch_on_two_devices_is_paced_on_each(two_cards: Any) -> None:
    told = two_cards.tell(
        TOGETHER + "for _ in range(4): good(together(20 * MS))\n"
        "for gpu in gpus: gpu.use(); gpu.sync()\n"
        "good(together(20 * MS))\n"
        "look('end')\n",
        CUDA_DEVICE_SM_LIMIT="30",
    )
    look = told.looks["end"]
    assert paced(look.own, "MULTI") == 10
    assert not why(look.own)
    assert look.own["waits"]
    for device in look.devices[:2]:
        assert device["measured"] >= 60_000_000


def test_a_card_has_one_bucket_whatever_number_it_has(two_cards: Any) -> None:
    """Two processes see the cards in another order: what each launches on its device 0 is another card's work."""
    work = START + "for _ in range(3): good(gpu.launch(20 * MS)); gpu.sync()\ngood(gpu.launch(MS))\nlook('end')\n"
    limit = {"CUDA_DEVICE_SM_LIMIT": "50", "GPU_CORE_UTILIZATION_POLICY": "typo"}
    others: list[Any] = []
    first = two_cards.tell(
        work,
        seen=lambda *_: others.append(two_cards.tell(work, CUDA_VISIBLE_DEVICES="1,0", **limit)),
        CUDA_VISIBLE_DEVICES="0,1",
        **limit,
    )
    (second,) = others
    before, after = first.looks["end"].devices, second.looks["end"].devices
    assert [int(device["measured"]) > 50_000_000 for device in before[:2]] == [True, False]
    assert int(after[0]["measured"]) == int(before[0]["measured"])
    assert int(after[1]["measured"]) > 50_000_000
    assert paced(second.looks["end"].own) == 4
    assert second.err.count("GPU_CORE_UTILIZATION_POLICY") == 1  # a line is a line


def test_a_device_without_a_limit_is_counted(two_cards: Any) -> None:
    told = two_cards.tell(
        TOGETHER + "for _ in range(3): good(together(MS))\nlook('end')\n",
        CUDA_DEVICE_SM_LIMIT_1="30",
    )
    slot = told.looks["end"].own
    assert paced(slot, "MULTI") == 3
    assert why(slot) == {"device": 3}


def test_a_launch_that_the_driver_refuses_costs_nothing(lab: Any) -> None:
    told = lab.tell(
        START + "good(gpu.launch(MS)); gpu.sync(); good(gpu.launch(MS)); gpu.sync()\n"
        "look('before')\n"
        "say([gpu.launch(50 * MS, block=(4096, 1, 1)) for _ in range(50)])\n"
        "look('after')\n",
        CUDA_DEVICE_SM_LIMIT="10",
    )
    assert set(told.said[0]) != {0}
    assert 0 not in told.said[0]
    before, after = told.looks["before"], told.looks["after"]
    assert paced(after.own) == paced(before.own) == 2
    assert int(after.own["waits"]) == int(before.own["waits"])  # fifty of 50 ms would have to wait
    assert int(after.own["in_flight"][0]) == 0


# ---- giants ----


def test_giant_kernels_are_paced_in_the_long_run(lab: Any) -> None:
    told = lab.tell(
        START + "for _ in range(3): good(gpu.launch(400 * MS)); gpu.sync()\ngood(gpu.launch(MS))\nlook('end')\n",
        CUDA_DEVICE_SM_LIMIT="60",
    )
    look = told.looks["end"]
    assert (paced(look.own), why(look.own)) == (4, {})
    assert 1_190_000_000 <= look.devices[0]["measured"] < 1_300_000_000
    assert look.own["waits"]


@pytest.mark.parametrize("policy", ["hybrid", "duty", "pid", "aimd", "delta-hami", "delta-linear"])
def test_grids_above_2_to_the_31_are_paced(lab: Any, policy: str) -> None:
    """Blocks in all three directions, more than 64 bits of them: counted as very many, never as few or negative."""
    told = lab.tell(
        START + "good(gpu.launch(MS, grid=(2**31 - 1, 65535, 65535)))\nlook('end')\n",
        CUDA_DEVICE_SM_LIMIT="30",
        HOOKLAB_PACING=policy,
    )
    slot = told.looks["end"].own
    assert is_on(slot)
    assert (paced(slot), why(slot)) == (1, {})
    assert slot["leases"] == 1
    assert "policy failed" not in told.err


# ---- nothing to go by ----


def test_the_first_launches_are_limited_before_any_sample(lab: Any) -> None:
    told = lab.tell(
        START + "for _ in range(4): good(gpu.launch(20 * MS))\nlook('end')\n",
        CUDA_DEVICE_SM_LIMIT="20",
        HOOKLAB_BOARD="off",
        HOOKLAB_HOST_NAMESPACE="1",
    )
    look = told.looks["end"]
    assert is_on(look.own)
    assert paced(look.own) == 4
    assert look.own["waits"]
    assert int(look.devices[0]["policy"][w.OWN])  # the bucket runs


def test_without_nvml_launches_are_limited(lab: Any, native: Path, tmp_path: Path) -> None:
    only = tmp_path / "only"
    only.mkdir()
    (only / "libcuda.so.1").symlink_to(native / "fake" / "libcuda.so.1")
    told = lab.tell(
        START + "for _ in range(6): good(gpu.launch(20 * MS))\nlook('end')\n",
        CUDA_DEVICE_SM_LIMIT="30",
        HOOKLAB_BOARD="off",
        LD_LIBRARY_PATH=str(only),
    )
    look = told.looks["end"]
    assert is_on(look.own)
    assert (paced(look.own), why(look.own)) == (6, {})
    assert look.own["waits"]
    assert int(look.devices[0]["ticks"]) > 0  # it was looked for
    assert int(look.devices[0]["sample_flags"]) == 0
    assert int(look.devices[0]["sample_sequence"]) == 0


def test_monitors_pids_are_the_processes_own_or_unknown(lab: Any) -> None:
    """NVML counts in this namespace: the sample is of these processes, and it is known whose it is."""
    seconds = "import time\nuntil = time.monotonic() + 0.8\nwhile time.monotonic() < until: good(gpu.launch(2 * MS))\n"
    told = lab.tell(START + seconds + "look('end')\n", CUDA_DEVICE_SM_LIMIT="50", HOOKLAB_BOARD="off")
    device = told.looks["end"].devices[0]
    assert int(device["sample_flags"]) == REGION["HL_SAMPLE_USABLE"] | REGION["HL_SAMPLE_KNOWN"]
    assert int(device["neighbours"]) == 0
    assert os.getpid() not in told.looks["end"].slots
