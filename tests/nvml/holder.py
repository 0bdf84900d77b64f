"""A process that uses both fake drivers without any package: takes commands on stdin, answers a JSON line each."""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry burn()
{
    ret;
}
"""

cuda = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
blocks: list[ctypes.c_uint64] = []
opened: list[ctypes.c_uint64] = []


def call(name: str, *arguments: Any) -> int:
    return int(getattr(cuda, name)(*arguments))


def retain() -> Any:
    return [call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0), call("cuCtxSetCurrent", context)]


def release() -> Any:
    return call("cuDevicePrimaryCtxRelease_v2", 0)


def allocate(size: str) -> Any:
    blocks.append(ctypes.c_uint64())
    return call("cuMemAlloc_v2", ctypes.byref(blocks[-1]), ctypes.c_size_t(int(size)))


def free() -> Any:
    return call("cuMemFree_v2", blocks.pop())


class Handle(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_ubyte * 64),)


def export() -> Any:
    """The handle of the newest block, for `open`."""
    handle = Handle()
    return [call("cuIpcGetMemHandle", ctypes.byref(handle), blocks[-1]), bytes(handle.bytes).hex()]


def open_block(text: str) -> Any:
    opened.append(ctypes.c_uint64())
    return call("cuIpcOpenMemHandle_v2", ctypes.byref(opened[-1]), Handle.from_buffer_copy(bytes.fromhex(text)), 1)


def close_block() -> Any:
    return call("cuIpcCloseMemHandle", opened.pop())


def info() -> Any:
    free_bytes, total = ctypes.c_size_t(), ctypes.c_size_t()
    result = call("cuMemGetInfo_v2", ctypes.byref(free_bytes), ctypes.byref(total))
    return [result, free_bytes.value, total.value]


def uuid() -> Any:
    raw = (ctypes.c_ubyte * 16)()
    return [call("cuDeviceGetUuid_v2", ctypes.byref(raw), 0), bytes(raw).hex()]


def nvml() -> Any:
    """Use the other library, too."""
    library = ctypes.CDLL("libnvidia-ml.so.1")
    return int(library.nvmlInit_v2())


def listed() -> Any:
    """Bytes by PID, as this process itself is told."""
    library = ctypes.CDLL("libnvidia-ml.so.1")
    device, count, rows = ctypes.c_void_p(), ctypes.c_uint(64), (ctypes.c_ubyte * (24 * 64))()
    results = [library.nvmlInit_v2(), library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device))]
    results.append(library.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(count), ctypes.byref(rows)))
    whole = bytes(rows)
    found = [(whole[24 * i : 24 * i + 4], whole[24 * i + 8 : 24 * i + 16]) for i in range(count.value)]
    return [max(results), [[int.from_bytes(word, "little") for word in row] for row in found]]


def named(pid: str) -> Any:
    library = ctypes.CDLL("libnvidia-ml.so.1")
    name = ctypes.create_string_buffer(256)
    return [library.nvmlSystemGetProcessName(ctypes.c_uint(int(pid)), name, 256), name.value.decode()]


def burn(launches: str) -> Any:
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    results = [call("cuModuleLoadData", ctypes.byref(module), PTX)]
    results.append(call("cuModuleGetFunction", ctypes.byref(function), module, b"burn"))
    for _ in range(int(launches)):
        shape = (1 << 20, 1, 1, 1024, 1, 1, 0)
        results.append(call("cuLaunchKernel", function, *map(ctypes.c_uint, shape), None, None, None))
    return max(results)


if __name__ == "__main__":
    print(json.dumps(call("cuInit", 0)), flush=True)
    for line in sys.stdin:
        name, *arguments = line.split()
        print(json.dumps(globals()[name](*arguments)), flush=True)
