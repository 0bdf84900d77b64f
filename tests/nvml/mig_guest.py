"""A process on a cut card, without any package: what both fake drivers tell it, as JSON, a line for each command."""

from __future__ import annotations

import ctypes as c
import json
import sys
from typing import Any

cuda, nvml = c.CDLL("libcuda.so.1"), c.CDLL("libnvidia-ml.so.1")
context = c.c_void_p()
at = c.byref
ABSENT = 0xFFFFFFFF


class Memory(c.Structure):
    _fields_ = (("total", c.c_ulonglong), ("free", c.c_ulonglong), ("used", c.c_ulonglong))


class Row(c.Structure):
    _fields_ = (("pid", c.c_uint), ("bytes", c.c_ulonglong), ("gi", c.c_uint), ("ci", c.c_uint))


def numbers(names: str) -> Any:
    return tuple((name, c.c_uint) for name in names.split())


KIND = (*numbers("id p2p slices count sm copy decoders encoders jpegs ofas"), ("mib", c.c_ulonglong))


class Kind(c.Structure):
    _fields_ = KIND


class KindV(c.Structure):
    _fields_ = (("version", c.c_uint), *KIND, ("name", c.c_char * 96))


class Info(c.Structure):
    _fields_ = (("device", c.c_void_p), *numbers("id profile start size"))


class ComputeInfo(c.Structure):
    _fields_ = (("device", c.c_void_p), ("gi", c.c_void_p), *numbers("id profile start size"))


class Attributes(c.Structure):
    _fields_ = (*numbers("sm copy decoders encoders jpegs ofas gi ci"), ("mib", c.c_ulonglong))


def values(record: Any) -> list[int]:
    return [getattr(record, name) for name, _ in record._fields_]


def start() -> Any:
    return [nvml.nvmlInit_v2(), cuda.cuInit(0)]


def handle(by: Any) -> Any:
    """The card of an index, the MIG device of a pair, or what a UUID names: (code, handle)."""
    found = c.c_void_p()
    if isinstance(by, int):
        return nvml.nvmlDeviceGetHandleByIndex_v2(by, at(found)), found
    if isinstance(by, str):
        return nvml.nvmlDeviceGetHandleByUUID(by.encode(), at(found)), found
    card = handle(by[0])[1]
    return nvml.nvmlDeviceGetMigDeviceHandleByIndex(card, by[1], at(found)), found


def number(name: str, device: Any) -> Any:
    value = c.c_uint(ABSENT)
    return [getattr(nvml, name)(device, at(value)), value.value]


def text(name: str, device: Any) -> Any:
    out = c.create_string_buffer(96)
    return [getattr(nvml, name)(device, out, 96), out.value.decode()]


def told(by: Any) -> Any:
    """What NVML says of a device."""
    code, device = handle(by)
    if code:
        return code
    mode, pending, memory, attributes = c.c_uint(9), c.c_uint(9), Memory(), Attributes()
    parent, pair = c.c_void_p(), (c.c_uint * 2)()
    return {
        "name": text("nvmlDeviceGetName", device),
        "uuid": text("nvmlDeviceGetUUID", device),
        "mode": [nvml.nvmlDeviceGetMigMode(device, at(mode), at(pending)), mode.value, pending.value],
        "numbers": {
            name: number(name, device)
            for name in (
                "nvmlDeviceGetIndex",
                "nvmlDeviceIsMigDeviceHandle",
                "nvmlDeviceGetMaxMigDeviceCount",
                "nvmlDeviceGetGpuInstanceId",
                "nvmlDeviceGetComputeInstanceId",
                "nvmlDeviceGetNumGpuCores",
                "nvmlDeviceGetComputeMode",
                "nvmlDeviceGetPowerUsage",
                "nvmlDeviceGetMinorNumber",
            )
        },
        "parent": [
            nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device, at(parent)),
            parent.value == handle(0)[1].value,
        ],
        "memory": [nvml.nvmlDeviceGetMemoryInfo(device, at(memory)), *values(memory)],
        "attributes": [nvml.nvmlDeviceGetAttributes_v2(device, at(attributes)), *values(attributes)],
        "utilisation": nvml.nvmlDeviceGetUtilizationRates(device, at(pair)),
        "by process": nvml.nvmlDeviceGetProcessUtilization(device, None, at(c.c_uint()), c.c_ulonglong()),
    }


def processes(by: Any) -> Any:
    """Bytes and instance ids by PID."""
    rows, count = (Row * 64)(), c.c_uint(64)
    code = nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle(by)[1], at(count), rows)
    return [code, [values(row) for row in rows[: count.value]]]


def instances(by: Any) -> Any:
    """Kinds, instances, room and refused changes of a card."""
    device = handle(by)[1]
    kinds: dict[str, Any] = {}
    for form in range(0x13):
        kind, named = Kind(), KindV(version=c.sizeof(KindV) | 2 << 24)
        code = nvml.nvmlDeviceGetGpuInstanceProfileInfo(device, form, at(kind))
        if code:
            kinds[str(form)] = code
            continue
        places, count, left = (c.c_uint * 32)(), c.c_uint(), c.c_uint(ABSENT)
        gis = (c.c_void_p * 7)()
        v = nvml.nvmlDeviceGetGpuInstanceProfileInfoV(device, form, at(named))
        found = {
            "kind": values(kind),
            "name": [v, named.name.decode(), values(named)[1:-1] == values(kind)],
            "size": [nvml.nvmlDeviceGetGpuInstancePossiblePlacements_v2(device, kind.id, None, at(count)), count.value],
        }
        nvml.nvmlDeviceGetGpuInstancePossiblePlacements_v2(device, kind.id, places, at(count))
        found["places"] = [list(places[2 * i : 2 * i + 2]) for i in range(count.value)]
        found["left"] = [nvml.nvmlDeviceGetGpuInstanceRemainingCapacity(device, kind.id, at(left)), left.value]
        count.value = 7
        found["instances"] = [nvml.nvmlDeviceGetGpuInstances(device, kind.id, gis, at(count)), count.value]
        kinds[str(form)] = found
    return kinds


def instance(by: Any, gi: int) -> Any:
    """One GPU instance and what is in it."""
    device, found, info = handle(by)[1], c.c_void_p(), Info()
    code = nvml.nvmlDeviceGetGpuInstanceById(device, gi, at(found))
    if code:
        return code
    said: dict[str, Any] = {
        "info": [nvml.nvmlGpuInstanceGetInfo(found, at(info)), info.device == device.value, *values(info)[1:]]
    }
    forms = []
    for form in range(10):
        kind = (c.c_uint * 9)()
        code = nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(found, form, 0, kind)
        forms.append(code or list(kind[:4]))
    said["compute"] = forms
    ci, count, cinfo, old = c.c_void_p(), c.c_uint(9), ComputeInfo(), ComputeInfo(start=77, size=77)
    full = next(form for form in reversed(range(10)) if isinstance(forms[form], list))
    cis = (c.c_void_p * 7)()
    said["full"] = [nvml.nvmlGpuInstanceGetComputeInstances(found, full, cis, at(count)), count.value]
    said["by id"] = [
        nvml.nvmlGpuInstanceGetComputeInstanceById(found, 0, at(ci)),
        nvml.nvmlGpuInstanceGetComputeInstanceById(found, 1, at(c.c_void_p())),
    ]
    said["same"] = ci.value == cis[0]
    nvml.nvmlComputeInstanceGetInfo(ci, at(old))
    said["compute info"] = [
        nvml.nvmlComputeInstanceGetInfo_v2(ci, at(cinfo)),
        cinfo.gi == found.value,
        *values(cinfo)[2:],
    ]
    said["first version"] = [old.gi == found.value, *values(old)[2:]]
    said["room"] = [nvml.nvmlGpuInstanceGetComputeInstanceRemainingCapacity(found, 0, at(count)), count.value]
    said["changes"] = [
        nvml.nvmlDeviceCreateGpuInstance(device, 19, at(c.c_void_p())),
        nvml.nvmlGpuInstanceCreateComputeInstance(found, 0, at(c.c_void_p())),
        nvml.nvmlComputeInstanceDestroy(ci),
        nvml.nvmlGpuInstanceDestroy(found),
        nvml.nvmlDeviceSetMigMode(device, 0, at(c.c_int())),
    ]
    return said


def visible() -> Any:
    """The devices that CUDA sees: name, both UUIDs, multiprocessors, memory, cache, PCI bus."""
    count, seen = c.c_int(-1), []
    code = cuda.cuDeviceGetCount(at(count))
    for device in range(max(0, count.value)):
        raw, old, name, total = (c.c_ubyte * 16)(), (c.c_ubyte * 16)(), c.create_string_buffer(96), c.c_size_t()
        cuda.cuDeviceGetUuid_v2(at(raw), device), cuda.cuDeviceGetUuid(at(old), device)
        cuda.cuDeviceGetName(name, 96, device), cuda.cuDeviceTotalMem_v2(at(total), device)
        numbers = []
        for attribute in (16, 38, 37, 40, 33, 18, 88, 100, 101, 86):  # SMs, L2, bus width, copy engines, PCI bus, ...
            value = c.c_int(-1)
            cuda.cuDeviceGetAttribute(at(value), attribute, device)
            numbers.append(value.value)
        seen.append([name.value.decode(), bytes(raw).hex(), bytes(old).hex(), total.value, numbers])
    return [code, seen]


def retain() -> Any:
    return [cuda.cuDevicePrimaryCtxRetain(at(context), 0), cuda.cuCtxSetCurrent(context)]


def allocate(size: int) -> Any:
    return cuda.cuMemAlloc_v2(at(c.c_uint64()), c.c_size_t(size))


def info() -> Any:
    free, total = c.c_size_t(), c.c_size_t()
    return [cuda.cuMemGetInfo_v2(at(free), at(total)), free.value, total.value]


def burn() -> Any:
    """A kernel of a million threads in blocks of 1,024."""
    ptx = b".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry burn()\n{\nret;\n}\n"
    module, function = c.c_void_p(), c.c_void_p()
    codes = [cuda.cuModuleLoadData(at(module), ptx), cuda.cuModuleGetFunction(at(function), module, b"burn")]
    codes.append(cuda.cuLaunchKernel(function, 1024, 1, 1, 1024, 1, 1, 0, None, None, None))
    return max(*codes, cuda.cuCtxSynchronize())


if __name__ == "__main__":
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(globals()[name](*arguments)), flush=True)
