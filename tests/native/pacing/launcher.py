"""A guest that launches what it is told to, over ctypes (the dlsym route).

Run as ``python launcher.py SCRIPT``. `look(name)` says that somebody may look at the region now and waits until he has.
"""

import ctypes
import json
import os
import signal
import sys
import threading

__all__ = ["os", "signal", "threading"]

CUDA = ctypes.CDLL("libcuda.so.1")
MS = 1_000_000
WORK = b""".version 6.0
.target sm_50
.address_size 64
.visible .entry work(.param .u64 duration)
{
 .reg .pred %p<2>; .reg .b64 %d<5>;
 ld.param.u64 %d1, [duration];
 mov.u64 %d2, %globaltimer;
AGAIN:
 mov.u64 %d3, %globaltimer;
 sub.u64 %d4, %d3, %d2;
 setp.lt.u64 %p1, %d4, %d1;
 @%p1 bra AGAIN;
 ret;
}
"""
CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
GLOBAL, THREAD, RELAXED = 0, 1, 2  # capture modes


class Together(ctypes.Structure):
    """CUDA_LAUNCH_PARAMS"""

    _fields_ = [
        ("function", ctypes.c_void_p),
        *((name, ctypes.c_uint) for name in ("gx", "gy", "gz", "bx", "by", "bz", "shared")),
        ("stream", ctypes.c_void_p),
        ("params", ctypes.POINTER(ctypes.c_void_p)),
    ]


def say(value):
    print(json.dumps(value), flush=True)


def look(name):
    say({"look": name, "pid": os.getpid()})
    sys.stdin.readline()


def good(result):
    assert result == 0, result


class Gpu:
    """A device with a context, the kernel and a stream."""

    def __init__(self, device=0, *, own=False):
        self.device, self.context = device, ctypes.c_void_p()
        if own:
            good(CUDA.cuCtxCreate_v2(ctypes.byref(self.context), 0, device))
        else:
            good(CUDA.cuDevicePrimaryCtxRetain(ctypes.byref(self.context), device))
        self.use()
        module, self.function, self.stream = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        good(CUDA.cuModuleLoadData(ctypes.byref(module), WORK))
        good(CUDA.cuModuleGetFunction(ctypes.byref(self.function), module, b"work"))
        good(CUDA.cuStreamCreate(ctypes.byref(self.stream), 1))

    def use(self):
        good(CUDA.cuCtxSetCurrent(self.context))

    def parameters(self, ns):
        self.duration = ctypes.c_uint64(ns)
        return (ctypes.c_void_p * 1)(ctypes.addressof(self.duration))

    def launch(self, ns, grid=(1, 1, 1), block=(32, 1, 1)):
        """The driver's answer."""
        sizes = (ctypes.c_uint(size) for size in (*grid, *block, 0))
        return CUDA.cuLaunchKernel(self.function, *sizes, self.stream, self.parameters(ns), None)

    def sync(self):
        good(CUDA.cuStreamSynchronize(self.stream))


if __name__ == "__main__":
    exec(compile(sys.argv[1], "<guest>", "exec"), globals())
