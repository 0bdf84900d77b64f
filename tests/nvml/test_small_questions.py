"""Questions with one small answer, each by its name: an idle H200's answer, and a refusal of no device or place.

Monitors ask these in passing. Settings of the card are refused to a container; older names answer as newer ones.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from lab.node.server import NodeServer

OK, INVALID, UNSUPPORTED, NO_PERMISSION, NOT_FOUND = 0, 2, 3, 4, 6
pytestmark = pytest.mark.sanitize

PRELUDE = """
import ctypes as c, json, sys
nvml = c.CDLL("libnvidia-ml.so.1")
at, u = c.byref, c.c_uint
def call(name, *arguments): return getattr(nvml, name)(*arguments)
assert call("nvmlInit_v2") == 0
d, e = c.c_void_p(), c.c_void_p()
for index, place in enumerate((d, e)): call("nvmlDeviceGetHandleByIndex_v2", index, at(place))
said = {}
def say(what, *values): said[what] = list(values)
"""
# Of a device, with what is asked for besides; the value is the H200 profile's, or that of a card without the thing.
ONE_NUMBER: dict[str, tuple[tuple[int, ...], int]] = {
    "nvmlDeviceGetBoardId": ((), 0x100),
    "nvmlDeviceGetBusType": ((), 2),  # PCIe
    "nvmlDeviceGetClockInfo": ((1,), 345),
    "nvmlDeviceGetClock": ((1, 0), 345),
    "nvmlDeviceGetDefaultApplicationsClock": ((1,), 1980),
    "nvmlDeviceGetMaxCustomerBoostClock": ((1,), 1980),
    "nvmlDeviceGetCurrPcieLinkGeneration": ((), 5),
    "nvmlDeviceGetCurrPcieLinkWidth": ((), 16),
    "nvmlDeviceGetGpuMaxPcieLinkGeneration": ((), 5),
    "nvmlDeviceGetPcieLinkMaxSpeed": ((), 5),
    "nvmlDeviceGetPcieReplayCounter": ((), 0),
    "nvmlDeviceGetPcieThroughput": ((0,), 0),
    "nvmlDeviceGetDisplayActive": ((), 0),
    "nvmlDeviceGetDisplayMode": ((), 0),
    "nvmlDeviceGetIrqNum": ((), 64),
    "nvmlDeviceGetMultiGpuBoard": ((), 0),
    "nvmlDeviceGetPerformanceState": ((), 0),
    "nvmlDeviceGetPowerState": ((), 0),
    "nvmlDeviceGetPowerSource": ((), 0),
    "nvmlDeviceGetPowerManagementMode": ((), 1),
    "nvmlDeviceGetPowerManagementLimit": ((), 700_000),
    "nvmlDeviceGetPowerManagementDefaultLimit": ((), 700_000),
    "nvmlDeviceGetVirtualizationMode": ((), 0),
}
WIDE: dict[str, tuple[tuple[int, ...], int]] = {
    "nvmlDeviceGetCurrentClocksEventReasons": ((), 1),  # idle
    "nvmlDeviceGetCurrentClocksThrottleReasons": ((), 1),
    "nvmlDeviceGetSupportedClocksEventReasons": ((), 15),
    "nvmlDeviceGetSupportedClocksThrottleReasons": ((), 15),
    "nvmlDeviceGetSupportedEventTypes": ((), 4 | 8 | 16),  # states, errors, clocks
    "nvmlDeviceGetTotalEccErrors": ((0, 0), 0),
}


@pytest.fixture
def told(guest_environment: Callable[..., dict[str, str]]) -> Any:
    def run(program: str, *gpus: str) -> dict[str, Any]:
        with NodeServer(gpus=gpus or ("h200-141g", "h200-141g")) as node:
            done = subprocess.run(
                [sys.executable, "-S", "-c", PRELUDE + program + "\nprint(json.dumps(said))"],
                env=guest_environment(**node.environment),
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    return run


def test_one_number(told: Any) -> None:
    program = f"""
for kind, names in ((u, {ONE_NUMBER!r}), (c.c_ulonglong, {WIDE!r})):
    for name, (asked, _) in names.items():
        value = kind(77)
        results = call(name, d, *asked, at(value)), value.value
        value.value = 77
        say(name, *results, call(name, d, *asked, None), call(name, None, *asked, at(value)), value.value)
"""
    wanted = {name: [OK, value, INVALID, INVALID, 77] for name, (_, value) in {**ONE_NUMBER, **WIDE}.items()}
    assert told(program) == wanted


def test_several_numbers(told: Any) -> None:
    seen = told(
        """
v, w, x, y = u(77), u(77), u(77), u(77)
say("capability", call("nvmlDeviceGetCudaComputeCapability", d, at(v), at(w)), v.value, w.value)
for name in ("nvmlDeviceGetDecoderUtilization", "nvmlDeviceGetEncoderUtilization", "nvmlDeviceGetJpgUtilization",
             "nvmlDeviceGetOfaUtilization"):
    v.value = w.value = 77
    say(name, call(name, d, at(v), at(w)), v.value, w.value > 0)
say("ecc", call("nvmlDeviceGetEccMode", d, at(v), at(w)), v.value, w.value)
say("firmware", call("nvmlDeviceGetGspFirmwareMode", d, at(v), at(w)), v.value, w.value)
say("model", call("nvmlDeviceGetDriverModel", d, at(v), at(w)), call("nvmlDeviceGetDriverModel_v2", d, at(v), at(w)))
say("retired", call("nvmlDeviceGetRetiredPagesPendingStatus", d, at(v)))  # rows are remapped instead
say("fans", call("nvmlDeviceGetNumFans", d, at(v)), v.value)
say("boards", call("nvmlDeviceOnSameBoard", d, e, at(v)), v.value, call("nvmlDeviceOnSameBoard", d, d, at(v)), v.value)
text = c.create_string_buffer(64)
say("bios", call("nvmlDeviceGetVbiosVersion", d, text, 64), len(text.value) > 4)
say("bios, no room", call("nvmlDeviceGetVbiosVersion", d, text, 2))
words = (c.c_ulong * 4)()
say("near a node", call("nvmlDeviceGetCpuAffinityWithinScope", d, 4, words, 0), words[0] != 0)
say("near nothing", call("nvmlDeviceGetCpuAffinityWithinScope", d, 4, words, 7))
class Bus(c.Structure):
    _fields_ = [("version", u), ("domain", u), ("bus", u), ("device", u), ("id", u), ("sub", u), ("base", u),
                ("class", u), ("text", c.c_char * 32)]
bus = Bus(c.sizeof(Bus) | 1 << 24)
say("bus", call("nvmlDeviceGetPciInfoExt", d, at(bus)), bus.text.decode(), bus.id >> 16 == bus.id >> 16)
bus.version = 7
say("bus, wrong version", call("nvmlDeviceGetPciInfoExt", d, at(bus)))
class Heat(c.Structure): _fields_ = [("version", u), ("sensor", c.c_int), ("degrees", c.c_int)]
heat = Heat(c.sizeof(Heat) | 1 << 24, 0, -1)
call("nvmlDeviceGetTemperature", d, 0, at(v))
say("heat", call("nvmlDeviceGetTemperatureV", d, at(heat)), heat.degrees == v.value)
counts = (c.c_ulonglong * 4)(7, 7, 7, 7)
say("detailed errors", call("nvmlDeviceGetDetailedEccErrors", d, 0, 0, counts), list(counts))
say("hic", call("nvmlSystemGetHicVersion", at(v), None), v.value)
say("excluded", call("nvmlGetBlacklistDeviceCount", at(v)), v.value, call("nvmlGetBlacklistDeviceInfoByIndex", 0, text))
for name in ("nvmlDeviceGetEncoderSessions", "nvmlDeviceGetFBCSessions"):
    v.value = 0
    say(name, call(name, d, at(v), None), v.value)
say("FBC", call("nvmlDeviceGetFBCStats", d, counts))
"""
    )
    assert seen == {
        "capability": [OK, 9, 0],
        "nvmlDeviceGetDecoderUtilization": [OK, 0, True],
        "nvmlDeviceGetEncoderUtilization": [OK, 0, True],
        "nvmlDeviceGetJpgUtilization": [OK, 0, True],
        "nvmlDeviceGetOfaUtilization": [OK, 0, True],
        "ecc": [OK, 1, 1],
        "firmware": [OK, 1, 1],
        "model": [UNSUPPORTED, UNSUPPORTED],
        "retired": [UNSUPPORTED],
        "fans": [OK, 0],
        "boards": [OK, 0, OK, 1],
        "bios": [OK, True],
        "bios, no room": [7],
        "near a node": [OK, True],
        "near nothing": [INVALID],
        "bus": [OK, "00000000:01:00.0", True],
        "bus, wrong version": [25],
        "heat": [OK, True],
        "detailed errors": [OK, [0, 0, 0, 0]],
        "hic": [OK, 0],
        "excluded": [OK, 0, INVALID],
        "nvmlDeviceGetEncoderSessions": [OK, 0],
        "nvmlDeviceGetFBCSessions": [OK, 0],
        "FBC": [OK],
    }


LISTS = (
    "nvmlDeviceGetGraphicsRunningProcesses",
    "nvmlDeviceGetGraphicsRunningProcesses_v2",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetMPSComputeRunningProcesses",
    "nvmlDeviceGetMPSComputeRunningProcesses_v2",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
)


def test_lists_and_samples(told: Any) -> None:
    seen = told(
        f"LISTS = {LISTS!r}"
        """
n, room = u(0), (c.c_ubyte * 4096)()
for name in LISTS:
    n.value = 10
    say(name, call(name, d, at(n), room), n.value)
class Value(c.Union): _fields_ = [("d", c.c_double), ("u", u), ("ull", c.c_ulonglong)]
say("no fields", call("nvmlDeviceGetFieldValues", d, 0, room), call("nvmlDeviceGetFieldValues", d, 1, None))
class Sample(c.Structure): _fields_ = [("stamp", c.c_ulonglong), ("value", Value)]
kind, n = c.c_int(77), u(0)
say("how many", call("nvmlDeviceGetSamples", d, 1, c.c_ulonglong(0), at(kind), at(n), None), n.value > 0)
samples = (Sample * n.value)()
result = call("nvmlDeviceGetSamples", d, 1, c.c_ulonglong(0), at(kind), at(n), samples)
stamps = [sample.stamp for sample in samples[: n.value]]
say("samples", result, kind.value, stamps == sorted(set(stamps)), {sample.value.u for sample in samples} == {0})
"""
    )
    assert seen == {
        **{name: [OK, 0] for name in LISTS},
        "no fields": [INVALID, INVALID],
        "how many": [OK, True],
        "samples": [OK, 1, True, True],
    }


SETTINGS = {
    "nvmlDeviceSetApplicationsClocks": (3201, 1980),
    "nvmlDeviceResetApplicationsClocks": (),
    "nvmlDeviceSetMemoryLockedClocks": (1, 2),
    "nvmlDeviceResetMemoryLockedClocks": (),
    "nvmlDeviceSetGpuOperationMode": (0,),
    "nvmlDeviceClearEccErrorCounts": (0,),
    "nvmlDeviceClearAccountingPids": (),
}
UNITS = ("nvmlUnitGetFanSpeedInfo", "nvmlUnitGetLedState", "nvmlUnitGetPsuInfo")


def test_what_a_container_may_not_set_and_what_no_card_has(told: Any) -> None:
    """Settings are the administrator's; no node has units (S-class chassis), so that every handle of one is wrong."""
    program = f"""
for name, values in {SETTINGS!r}.items():
    say(name, call(name, d, *values), call(name, None, *values))
room, n, events = (c.c_ubyte * 4096)(), u(8), c.c_void_p()
for what in {UNITS!r}:
    say(what, call(what, None, room))
say("temperature", call("nvmlUnitGetTemperature", None, 0, at(n)))
say("devices", call("nvmlUnitGetDevices", None, at(n), room))
say("led", call("nvmlUnitSetLedState", None, 0))
call("nvmlEventSetCreate", at(events))
say("older wait", call("nvmlEventSetWait", events, room, 1))
"""
    assert told(program) == {
        **{name: [NO_PERMISSION, INVALID] for name in SETTINGS},
        **{what: [INVALID] for what in UNITS},
        "temperature": [INVALID],
        "devices": [INVALID],
        "led": [INVALID],
        "older wait": [10],
    }


def test_the_rest_of_a_cut_card(told: Any) -> None:
    """Older and longer forms of what test_mig.py asks; a container makes no instances."""
    seen = told(
        """
numbers = "id p2p slices count sm copy decoders encoders jpegs ofas".split()
class Kind(c.Structure):
    _fields_ = [("version", u), *((name, u) for name in numbers), ("mib", c.c_ulonglong), ("name", c.c_char * 96)]
one, two = Kind(c.sizeof(Kind) | 2 << 24), Kind(c.sizeof(Kind) | 2 << 24)
say("by form", call("nvmlDeviceGetGpuInstanceProfileInfoV", d, 0, at(one)), one.slices)
result = call("nvmlDeviceGetGpuInstanceProfileInfoByIdV", d, one.id, at(two))
say("by id", result, two.name.decode() == one.name.decode() != "", two.mib == one.mib)
n, places = u(77), (c.c_uint * 32)()
ask = "nvmlDeviceGetGpuInstancePossiblePlacements"
result = call(ask, d, one.id, places, at(n))
say("placements", result, n.value == one.count > 0, call(ask, d, one.id, None, at(n)))
made, instance = c.c_void_p(), c.c_void_p()
say("make", call("nvmlDeviceCreateGpuInstanceWithPlacement", d, one.id, places, at(made)), made.value)
found = (c.c_void_p * 8)()
for form in range(11):
    if call("nvmlDeviceGetGpuInstanceProfileInfoV", d, form, at(two)) == 0:
        n.value = 8
        if call("nvmlDeviceGetGpuInstances", d, two.id, found, at(n)) == 0 and n.value: instance.value = found[0]
say("an instance", bool(instance.value))
inner = Kind(c.sizeof(Kind) | 2 << 24)
room = (c.c_ubyte * 512)()
u.from_buffer(room).value = 7
say("wrong version", call("nvmlGpuInstanceGetComputeInstanceProfileInfoV", instance, 0, 0, room))
ask = "nvmlGpuInstanceGetComputeInstancePossiblePlacements"
say("inner placements", call(ask, instance, 0, places, at(n)), n.value > 0, call(ask, instance, 99, places, at(n)))
name = "nvmlGpuInstanceCreateComputeInstanceWithPlacement"
say("make inside", call(name, instance, 0, places, at(made)), made.value, call(name, instance, 0, None, at(made)))
""",
        "a100-40g-mig",
    )
    assert seen == {
        "by form": [OK, 1],
        "by id": [OK, True, True],
        "placements": [OK, True, INVALID],
        "make": [NO_PERMISSION, None],
        "an instance": [True],
        "wrong version": [INVALID],
        "inner placements": [OK, True, UNSUPPORTED],
        "make inside": [NO_PERMISSION, None, INVALID],
    }
