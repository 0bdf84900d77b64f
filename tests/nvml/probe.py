"""A bare NVML client: one case of calls in a fresh process, what it saw as JSON on stdout. Needs no package.

Buffers are filled beforehand, so that "untouched" can be told from "set".
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

FILL = 0xEE
U32, U64, PTR = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p

nvml = ctypes.CDLL("libnvidia-ml.so.1")


def call(name: str, *arguments: Any) -> int:
    return int(getattr(nvml, name)(*arguments))


def handle(index: int = 0) -> ctypes.c_void_p:
    device = PTR()
    assert call("nvmlDeviceGetHandleByIndex_v2", U32(index), ctypes.byref(device)) == 0
    return device


def number(name: str, *arguments: Any, kind: Any = U32) -> tuple[int, int]:
    value = kind(77)
    return call(name, *arguments, ctypes.byref(value)), value.value


def text(name: str, *arguments: Any, size: int = 96) -> tuple[int, str]:
    buffer = ctypes.create_string_buffer(b"\x07" * (size - 1), size)
    return call(name, *arguments, buffer, U32(size)), buffer.value.decode()


def filled(size: int) -> Any:
    return (ctypes.c_ubyte * size)(*([FILL] * size))


def word(buffer: Any, at: int, kind: Any = U64) -> int:
    return int(kind.from_buffer(buffer, at).value)


def before_init() -> Any:
    return {
        "count": number("nvmlDeviceGetCount_v2"),
        "handle": call("nvmlDeviceGetHandleByIndex_v2", U32(0), ctypes.byref(PTR())),
        "driver": text("nvmlSystemGetDriverVersion")[0],
        "cuda": number("nvmlSystemGetCudaDriverVersion"),
        "shutdown": call("nvmlShutdown"),
    }


def init_counts() -> Any:
    steps = [call("nvmlInit_v2"), call("nvmlInit"), call("nvmlShutdown"), number("nvmlDeviceGetCount_v2")]
    steps += [call("nvmlShutdown"), number("nvmlDeviceGetCount")[0], call("nvmlShutdown")]
    return [*steps, call("nvmlInitWithFlags", U32(0)), call("nvmlInitWithFlags", U32(1))]


def system() -> Any:
    call("nvmlInit_v2")
    return {
        "driver": text("nvmlSystemGetDriverVersion"),
        "nvml": text("nvmlSystemGetNVMLVersion"),
        "cuda": number("nvmlSystemGetCudaDriverVersion"),
        "cuda2": number("nvmlSystemGetCudaDriverVersion_v2"),
        "short": text("nvmlSystemGetDriverVersion", size=4),
        "units": number("nvmlUnitGetCount"),
    }


def handles() -> Any:
    call("nvmlInit_v2")
    seen = {}
    for index in (0, 1, 2, 100, 0xFFFFFFFF):
        for name in ("nvmlDeviceGetHandleByIndex", "nvmlDeviceGetHandleByIndex_v2"):
            device = PTR(7)
            result = call(name, U32(index), ctypes.byref(device))
            seen[f"{name} {index}"] = (result, device.value == 7)
    found = PTR()
    uuid = text("nvmlDeviceGetUUID", handle(1))[1]
    return {
        "by_index": seen,
        "null": call("nvmlDeviceGetHandleByIndex_v2", U32(0), None),
        "junk": call("nvmlDeviceGetHandleByUUID", b"junk", ctypes.byref(found)),
        "wellformed": call(
            "nvmlDeviceGetHandleByUUID", b"GPU-00000000-0000-0000-0000-000000000000", ctypes.byref(found)
        ),
        "uuid": (call("nvmlDeviceGetHandleByUUID", uuid.encode(), ctypes.byref(found)), found.value == handle(1).value),
        "bus": (
            call("nvmlDeviceGetHandleByPciBusId_v2", b"00000000:02:00.0", ctypes.byref(found)),
            found.value == handle(1).value,
        ),
        "short_bus": call("nvmlDeviceGetHandleByPciBusId_v2", b"0000:02:00.0", ctypes.byref(found)),
        "no_bus": call("nvmlDeviceGetHandleByPciBusId_v2", b"0000:77:00.0", ctypes.byref(found)),
    }


def identity() -> Any:
    call("nvmlInit_v2")
    device = handle()
    pci = {}
    for name in ("nvmlDeviceGetPciInfo", "nvmlDeviceGetPciInfo_v2", "nvmlDeviceGetPciInfo_v3"):
        buffer = filled(68)
        result = call(name, device, ctypes.byref(buffer))
        raw = bytes(buffer)
        texts = (raw[:16].split(b"\0")[0].decode(), raw[36:].split(b"\0")[0].decode("latin-1"))
        pci[name] = (result, *texts, word(buffer, 28, U32), raw[36:] == bytes([FILL]) * 32, word(buffer, 32, U32))
    return {
        "name": text("nvmlDeviceGetName", device),
        "uuid": text("nvmlDeviceGetUUID", device),
        "short": text("nvmlDeviceGetUUID", device, size=20)[0],
        "pci": pci,
        "numbers": {
            name: number(name, device)
            for name in (
                "nvmlDeviceGetIndex",
                "nvmlDeviceGetMinorNumber",
                "nvmlDeviceGetBrand",
                "nvmlDeviceGetArchitecture",
                "nvmlDeviceGetMemoryBusWidth",
                "nvmlDeviceGetNumGpuCores",
                "nvmlDeviceGetPersistenceMode",
                "nvmlDeviceGetAccountingMode",
                "nvmlDeviceGetComputeMode",
                "nvmlDeviceGetMaxPcieLinkGeneration",
                "nvmlDeviceGetMaxPcieLinkWidth",
                "nvmlDeviceGetEnforcedPowerLimit",
                "nvmlDeviceGetPowerUsage",
                "nvmlDeviceGetFanSpeed",
                "nvmlDeviceGetMaxMigDeviceCount",
            )
        },
        "mig": (
            call("nvmlDeviceGetMigMode", device, *(ctypes.byref(mode) for mode in MIG)),
            MIG[0].value,
            MIG[1].value,
        ),
        "temperature": number("nvmlDeviceGetTemperature", device, U32(0)),
        "clock": number("nvmlDeviceGetMaxClockInfo", device, U32(1)),
        "unsupported": call("nvmlDeviceGetTotalEnergyConsumption", device, ctypes.byref(U64())),
    }


MIG = (U32(77), U32(77))


def memory() -> Any:
    call("nvmlInit_v2")
    device = handle()
    first = filled(24)
    seen: dict[str, Any] = {"v1": (call("nvmlDeviceGetMemoryInfo", device, ctypes.byref(first)),)}
    seen["v1"] += tuple(word(first, 8 * i) for i in range(3))
    for version in (0x2000028, 0, 1, 0x1000028, 0x2000020, 0xFFFFFFFF):
        second = filled(40)
        U32.from_buffer(second).value = version
        result = call("nvmlDeviceGetMemoryInfo_v2", device, ctypes.byref(second))
        untouched = bytes(second)[8:] == bytes([FILL]) * 32
        seen[f"v2 {version:#x}"] = (result, untouched, *(word(second, 8 * i) for i in range(1, 5)))
    seen["null"] = (call("nvmlDeviceGetMemoryInfo", device, None), call("nvmlDeviceGetMemoryInfo", None, first))
    bar = filled(24)
    seen["bar1"] = (call("nvmlDeviceGetBAR1MemoryInfo", device, ctypes.byref(bar)), word(bar, 0), word(bar, 16))
    return seen


LISTS = {"nvmlDeviceGetComputeRunningProcesses": 16, "nvmlDeviceGetComputeRunningProcesses_v2": 24}
LISTS |= {"nvmlDeviceGetComputeRunningProcesses_v3": 24}
EMPTY = ("nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v3")


def processes() -> Any:
    call("nvmlInit_v2")
    device = handle()
    seen: dict[str, Any] = {}
    for name in (*LISTS, *EMPTY):
        stride = LISTS.get(name, 24)
        rows = []
        for room, given in ((0, False), (0, True), (1, True), (2, True), (100, True), (100, False)):
            count, buffer = U32(room), filled(100 * 24)
            result = call(name, device, ctypes.byref(count), ctypes.byref(buffer) if given else None)
            touched = next((i for i in range(len(buffer), 0, -1) if buffer[i - 1] != FILL), 0)
            found = [(word(buffer, stride * i, U32), word(buffer, stride * i + 8)) for i in range(touched // stride)]
            instances = [word(buffer, 16 + 4 * i, U32) for i in range(2)] if stride == 24 and touched else []
            rows.append((room, given, result, count.value, touched, found, instances))
        seen[name] = rows
    seen["null count"] = call(EMPTY[0], device, None, None)
    detail = (U32 * 6)(*([0] * 6))
    detail[0] = 24 | 1 << 24
    seen["detail"] = (call("nvmlDeviceGetRunningProcessDetailList", device, ctypes.byref(detail)), detail[2])
    return seen


def errors() -> Any:
    """Two event sets, one of them made later; errors of the card come meanwhile."""
    call("nvmlInit_v2")
    device, sets, data = handle(), [PTR(), PTR()], filled(32)

    def register(events: ctypes.c_void_p) -> None:
        assert call("nvmlEventSetCreate", ctypes.byref(events)) == 0
        assert call("nvmlDeviceRegisterEvents", device, U64(8), events) == 0

    def heard(events: ctypes.c_void_p) -> list[int]:
        codes = []
        while call("nvmlEventSetWait_v2", events, ctypes.byref(data), U32(1)) == 0:
            codes.append(word(data, 16))
        return codes

    register(sets[0])
    print("ready", flush=True)
    sys.stdin.readline()
    register(sets[1])
    seen = [heard(events) for events in sets]
    print("ready", flush=True)
    sys.stdin.readline()
    return [*seen, *(heard(events) for events in sets)]


def metrics() -> Any:
    """The share of time in which a kernel ran, over 40 ms that have just passed: (result, percent)."""
    call("nvmlInit_v2")
    asked = (ctypes.c_ubyte * (24 + 40))()
    (U32 * 2).from_buffer(asked)[:] = [1, 1]
    U32.from_buffer(asked, 24).value = 1
    for place in (8, 16):
        sample = PTR()
        assert call("nvmlGpmSampleAlloc", ctypes.byref(sample)) == 0
        PTR.from_buffer(asked, place).value = sample.value
        until = time.monotonic() + 0.04
        while place == 16 and time.monotonic() < until:
            pass
        assert call("nvmlGpmSampleGet", handle(), sample) in (0, 3)
    result = call("nvmlGpmMetricsGet", ctypes.byref(asked))
    return result, ctypes.c_double.from_buffer(asked, 32).value


def details() -> Any:
    """Rows of the detail list."""
    call("nvmlInit_v2")
    rows, head = filled(32 * 8), (U32 * 6)(24 | 1 << 24, 0, 8)
    PTR.from_buffer(head, 16).value = ctypes.addressof(rows)
    assert call("nvmlDeviceGetRunningProcessDetailList", handle(), ctypes.byref(head)) == 0
    return [(word(rows, 32 * i, U32), word(rows, 32 * i + 8)) for i in range(head[2])]


def loads() -> Any:
    """Rows of the newer form of utilisation by process."""
    call("nvmlInit_v2")
    rows, head = filled(40 * 100), (U64 * 3)(24 | 1 << 24 | 100 << 32, 0, 0)
    head[2] = ctypes.addressof(rows)
    if call("nvmlDeviceGetProcessesUtilizationInfo", handle(), ctypes.byref(head)):
        return []
    return [(word(rows, 40 * i + 8, U32), word(rows, 40 * i + 12, U32)) for i in range(head[0] >> 32)]


def named(pid: str) -> Any:
    call("nvmlInit_v2")
    return text("nvmlSystemGetProcessName", U32(int(pid)), size=256)


def utilisation(before_us: str = "0") -> Any:
    call("nvmlInit_v2")
    device = handle()
    since = U64(0 if before_us == "0" else time.time_ns() // 1000 - int(before_us))

    def ask(room: int, given: bool, seen: ctypes.c_uint64) -> tuple[int, int, list[tuple[int, int, int]]]:
        count, buffer = U32(room), filled(32 * 128)
        result = call(
            "nvmlDeviceGetProcessUtilization",
            device,
            ctypes.byref(buffer) if given else None,
            ctypes.byref(count),
            seen,
        )
        rows = count.value if result == 0 else 0
        return (
            result,
            count.value,
            [
                (word(buffer, 32 * i, U32), word(buffer, 32 * i + 16, U32), word(buffer, 32 * i + 8))
                for i in range(rows)
            ],
        )

    rates = (U32 * 2)(77, 77)
    return {
        "size": ask(0, False, U64(0)),
        "one": ask(1, True, U64(0)),
        "buffer": ask(0, True, U64(0)),
        "null": ask(100, False, U64(0)),
        "many": ask(100, True, since),
        "now": ask(100, True, U64(time.time_ns() // 1000)),
        "no count": call("nvmlDeviceGetProcessUtilization", device, None, None, U64(0)),
        "rates": (call("nvmlDeviceGetUtilizationRates", device, ctypes.byref(rates)), rates[0], rates[1]),
        "wall_us": time.time_ns() // 1000,
    }


def forked() -> Any:
    call("nvmlInit_v2")
    read, write = os.pipe()
    if os.fork() == 0:
        seen = [number("nvmlDeviceGetCount_v2"), call("nvmlDeviceGetHandleByIndex_v2", U32(0), ctypes.byref(PTR()))]
        seen += [call("nvmlInit_v2"), number("nvmlDeviceGetCount_v2")]
        os.write(write, json.dumps(seen).encode())
        os._exit(0)
    os.close(write)
    child = json.loads(os.read(read, 4096))
    os.wait()
    return {"child": child, "parent": number("nvmlDeviceGetCount_v2")}


def lost() -> Any:
    """Say "ready", wait for a line, look again: the device falls off the bus meanwhile."""
    call("nvmlInit_v2")
    device, events = handle(), PTR()
    seen: dict[str, Any] = {"create": call("nvmlEventSetCreate", ctypes.byref(events))}
    seen["register"] = call("nvmlDeviceRegisterEvents", device, U64(8), events)
    seen["bad register"] = call("nvmlDeviceRegisterEvents", device, U64(1 << 40), events)
    data = filled(32)
    seen["quiet"] = call("nvmlEventSetWait_v2", events, ctypes.byref(data), U32(1))
    print("ready", flush=True)
    sys.stdin.readline()
    seen["event"] = (
        call("nvmlEventSetWait_v2", events, ctypes.byref(data), U32(10_000)),
        word(data, 8),
        word(data, 16),
    )
    seen["again"] = call("nvmlEventSetWait_v2", events, ctypes.byref(data), U32(1))
    seen["name"] = text("nvmlDeviceGetName", device)[0]
    seen["free"] = call("nvmlEventSetFree", events)
    return seen


def inits(times: str) -> Any:
    return [call("nvmlInit_v2") for _ in range(int(times))]


def counts(times: str) -> Any:
    call("nvmlInit_v2")
    return [number("nvmlDeviceGetCount_v2") for _ in range(int(times))]


def bad_handle() -> Any:
    call("nvmlInit_v2")
    return call("nvmlDeviceGetMemoryInfo", PTR(0x10), ctypes.byref(filled(24)))


def alone() -> Any:
    return call("nvmlInit_v2"), call("nvmlInit_v2")


def error_text(code: str) -> Any:
    nvml.nvmlErrorString.restype = ctypes.c_char_p
    return nvml.nvmlErrorString(int(code)).decode()


if __name__ == "__main__":
    case: Callable[..., Any] = globals()[sys.argv[1]]
    print(json.dumps(case(*sys.argv[2:])))
