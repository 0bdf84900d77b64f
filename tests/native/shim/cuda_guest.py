"""A guest in Python: the CUDA and NVML calls the shim's tests make, over ctypes (the dlsym route).

Run as ``python cuda_guest.py SCRIPT``: the script's `say(value)` prints one JSON line each.
"""

import ctypes
import json
import os
import sys
import threading

__all__ = ["ctypes", "os", "sys", "threading"]

CUDA = ctypes.CDLL("libcuda.so.1")
GIB, MIB = 1 << 30, 1 << 20


def say(value):
    print(json.dumps(value), flush=True)


def new(kind=ctypes.c_uint64, value=0):
    return kind(value)


def init():
    return CUDA.cuInit(0)


def retain(device=0):
    """The primary context of a device, made current. (result, handle)."""
    context = ctypes.c_void_p()
    result = CUDA.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    if not result:
        CUDA.cuCtxSetCurrent(context)
    return result, context


def create(device=0):
    context = ctypes.c_void_p()
    result = CUDA.cuCtxCreate_v2(ctypes.byref(context), 0, device)
    return result, context


def start(device=0):
    result = init()
    return result or retain(device)[0]


def alloc(size, kind="sync"):
    """(result, pointer), the pointer as the call left it."""
    pointer = new(value=0xDEAD)
    where, size = ctypes.byref(pointer), ctypes.c_size_t(size)
    if kind == "sync":
        result = CUDA.cuMemAlloc_v2(where, size)
    elif kind == "managed":
        result = CUDA.cuMemAllocManaged(where, size, 1)
    elif kind == "async":
        result = CUDA.cuMemAllocAsync(where, size, None)
    elif kind == "async-ptsz":
        result = CUDA.cuMemAllocAsync_ptsz(where, size, None)
    elif kind in ("pool", "pool-ptsz"):
        pool = ctypes.c_void_p()
        assert CUDA.cuDeviceGetDefaultMemPool(ctypes.byref(pool), 0) == 0
        entry = CUDA.cuMemAllocFromPoolAsync if kind == "pool" else CUDA.cuMemAllocFromPoolAsync_ptsz
        result = entry(where, size, pool, None)
    elif kind == "pitched":
        pitch = ctypes.c_size_t(0xBAD)
        rows = ctypes.c_size_t(size.value // 4096)
        result = CUDA.cuMemAllocPitch_v2(where, ctypes.byref(pitch), ctypes.c_size_t(4096), rows, 4)
    return result, pointer.value


def free(pointer, kind="sync"):
    pointer = ctypes.c_uint64(pointer)
    if kind == "sync":
        return CUDA.cuMemFree_v2(pointer)
    return getattr(CUDA, "cuMemFreeAsync_ptsz" if kind == "async-ptsz" else "cuMemFreeAsync")(pointer, None)


def info():
    """(result, free, total) of cuMemGetInfo_v2."""
    left, total = ctypes.c_size_t(1), ctypes.c_size_t(1)
    return CUDA.cuMemGetInfo_v2(ctypes.byref(left), ctypes.byref(total)), left.value, total.value


def used():
    result, left, total = info()
    assert result == 0
    return total - left


class Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_uint64), ("free", ctypes.c_uint64), ("used", ctypes.c_uint64)]


class Memory2(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint),
        *((name, ctypes.c_uint64) for name in ("total", "reserved", "free", "used")),
    ]


def nvml(index=0, version=None):
    """(results, memory) of NVML's view of a device; version 2 when given."""
    library = ctypes.CDLL("libnvidia-ml.so.1")
    handle = ctypes.c_void_p()
    results = [library.nvmlInit_v2(), library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle))]
    memory = Memory() if version is None else Memory2(version)
    name = "nvmlDeviceGetMemoryInfo" if version is None else "nvmlDeviceGetMemoryInfo_v2"
    results.append(getattr(library, name)(handle, ctypes.byref(memory)))
    return results, memory


if __name__ == "__main__":
    exec(compile(sys.argv[1], "<guest>", "exec"), globals())
