"""What a real driver answers, case by case, and a way to ask any libcuda.so.1 the same.

Each case runs in a process of its own. Its docstring is the expectation, a line a fact: what was asked | what came
back (the result code first, then outputs). The lines were measured on a real GPU (H200, driver 580), except that
memory sizes are written relative to the card. `python cuda_cases.py CASE` prints what is seen; `--check` compares all
cases, so that the file can be taken to a machine with a GPU as it is. Standard library only.
"""

from __future__ import annotations

import ctypes as c
import importlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable

CASES: dict[str, Callable[[], None]] = {}
ASSUMED: set[str] = set()  # cases that no real driver was asked yet: what documentation says
FAKE_ONLY: set[str] = set()  # cases that a real driver cannot be asked
MIB = 1 << 20
PTX = rb"""
.version 7.0
.target sm_52
.address_size 64
.global .align 4 .u32 counter;
.const .align 8 .b8 table[32];
.visible .entry vadd(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n)
{
 .reg .pred %p<2>; .reg .f32 %f<4>; .reg .b32 %r<6>; .reg .b64 %rd<11>;
 ld.param.u64 %rd1,[a]; ld.param.u64 %rd2,[b]; ld.param.u64 %rd3,[c]; ld.param.u32 %r2,[n];
 mov.u32 %r3,%ntid.x; mov.u32 %r4,%ctaid.x; mov.u32 %r5,%tid.x; mad.lo.s32 %r1,%r3,%r4,%r5;
 setp.ge.u32 %p1,%r1,%r2; @%p1 bra DONE;
 cvta.to.global.u64 %rd4,%rd1; cvta.to.global.u64 %rd5,%rd2; cvta.to.global.u64 %rd6,%rd3;
 mul.wide.u32 %rd7,%r1,4; add.s64 %rd8,%rd4,%rd7; add.s64 %rd9,%rd5,%rd7; add.s64 %rd10,%rd6,%rd7;
 ld.global.f32 %f1,[%rd8]; ld.global.f32 %f2,[%rd9]; add.f32 %f3,%f1,%f2; st.global.f32 [%rd10],%f3;
DONE: ret;
}
.visible .entry other(.param .u8 x, .param .align 16 .b8 s[24], .param .f64 d) { ret; }
"""
HEAD = b".version 7.0\n.target sm_52\n.address_size 64\n"
_library: c.CDLL | None = None


def call(name: str, *arguments: object) -> int:
    global _library
    if _library is None:
        _library = c.CDLL("libcuda.so.1")
    return int(getattr(_library, name)(*arguments))


def say(what: str, *seen: object) -> None:
    print(f"{what} | {' '.join(str(value) for value in seen)}", flush=True)


def case(function: Callable[[], None]) -> Callable[[], None]:
    CASES[function.__name__] = function
    return function


def u64(value: int = 0) -> c.c_uint64:
    return c.c_uint64(value)


def pointer(value: int | None = None) -> c.c_void_p:
    return c.c_void_p(value)


def size(value: int) -> c.c_size_t:
    return c.c_size_t(value)


at = c.byref


def start() -> None:
    assert call("cuInit", 0) == 0


def current() -> c.c_void_p:
    """A retained primary context, made current."""
    start()
    context = pointer()
    assert call("cuDevicePrimaryCtxRetain", at(context), 0) == 0
    assert call("cuCtxSetCurrent", context) == 0
    return context


def free() -> int:
    bytes_free, total = size(0), size(0)
    assert call("cuMemGetInfo_v2", at(bytes_free), at(total)) == 0
    return bytes_free.value


def total() -> int:
    bytes_total = size(0)
    assert call("cuMemGetInfo_v2", None, at(bytes_total)) == 0
    return bytes_total.value


def allocated(bytes_wanted: int) -> c.c_uint64:
    p = u64(7)
    assert call("cuMemAlloc_v2", at(p), size(bytes_wanted)) == 0
    return p


@case
def devices() -> None:
    """
    cuDeviceGet before init | 3
    cuDeviceGetCount before init | 3 77
    cuDriverGetVersion before init | 0 13000
    cuDriverGetVersion NULL | 1
    cuInit flags 1 | 1
    cuInit | 0
    cuInit again | 0
    count | 0 1
    count NULL | 1
    cuDeviceGet 0 | 0 0
    cuDeviceGet 1 | 101 77
    cuDeviceGet -1 | 101 77
    cuDeviceGet 1000 | 101 77
    cuDeviceTotalMem 1 | 101 0
    cuDeviceTotalMem -1 | 101 0
    cuDeviceTotalMem NULL | 1
    attribute 1 | 0 1024
    attribute 39 | 0 2048
    attribute 102 | 0 1
    attribute 115 | 0 1
    attribute 9999 | 1 77
    attribute 0 | 1 77
    attribute NULL | 1
    attribute of device 1 | 101 77
    every attribute of the header | 147
    name in 1 | 0 0
    name in 5 | 0 NVID
    name NULL | 1
    name of device 1 | 101
    uuid v1 is v2 | 0 0 True
    pci in 12 | 1
    pci in 13 | 0
    by pci | 0 0
    by pci junk | 1
    by pci of nobody | 101
    peer of itself | 0 0
    peer of nobody | 101
    p2p of itself | 101
    """
    n, d, v = c.c_int(77), c.c_int(77), c.c_int(77)
    say("cuDeviceGet before init", call("cuDeviceGet", at(d), 0))
    say("cuDeviceGetCount before init", call("cuDeviceGetCount", at(n)), n.value)
    say("cuDriverGetVersion before init", call("cuDriverGetVersion", at(n)), n.value)
    say("cuDriverGetVersion NULL", call("cuDriverGetVersion", None))
    say("cuInit flags 1", call("cuInit", 1))
    say("cuInit", call("cuInit", 0))
    say("cuInit again", call("cuInit", 0))
    say("count", call("cuDeviceGetCount", at(n)), n.value)
    say("count NULL", call("cuDeviceGetCount", None))
    for ordinal in (0, 1, -1, 1000):
        d.value = 77
        say(f"cuDeviceGet {ordinal}", call("cuDeviceGet", at(d), ordinal), d.value)
    for ordinal in (1, -1):
        bytes_total = size(77)
        say(f"cuDeviceTotalMem {ordinal}", call("cuDeviceTotalMem_v2", at(bytes_total), ordinal), bytes_total.value)
    say("cuDeviceTotalMem NULL", call("cuDeviceTotalMem_v2", None, 0))
    for which in (1, 39, 102, 115, 9999, 0):
        v.value = 77
        say(f"attribute {which}", call("cuDeviceGetAttribute", at(v), which, 0), v.value)
    say("attribute NULL", call("cuDeviceGetAttribute", None, 1, 0))
    v.value = 77
    say("attribute of device 1", call("cuDeviceGetAttribute", at(v), 1, 1), v.value)
    say("every attribute of the header", sum(call("cuDeviceGetAttribute", at(v), i, 0) == 0 for i in range(1, 148)))
    text = c.create_string_buffer(b"Z" * 64, 64)
    say("name in 1", call("cuDeviceGetName", text, 1, 0), text.raw[0])
    say("name in 5", call("cuDeviceGetName", text, 5, 0), text.value.decode())
    say("name NULL", call("cuDeviceGetName", None, 5, 0))
    say("name of device 1", call("cuDeviceGetName", text, 5, 1))
    one, two = c.create_string_buffer(16), c.create_string_buffer(16)
    results = call("cuDeviceGetUuid", one, 0), call("cuDeviceGetUuid_v2", two, 0)
    say("uuid v1 is v2", *results, one.raw == two.raw)
    for length in (12, 13):
        say(f"pci in {length}", call("cuDeviceGetPCIBusId", text, length, 0))
    d.value = 77
    say("by pci", call("cuDeviceGetByPCIBusId", at(d), text), d.value)
    say("by pci junk", call("cuDeviceGetByPCIBusId", at(d), b"junk"))
    say("by pci of nobody", call("cuDeviceGetByPCIBusId", at(d), b"0000:ff:00.0"))
    v.value = 77
    say("peer of itself", call("cuDeviceCanAccessPeer", at(v), 0, 0), v.value)
    say("peer of nobody", call("cuDeviceCanAccessPeer", at(v), 0, 1))
    say("p2p of itself", call("cuDeviceGetP2PAttribute", at(v), 1, 0, 0))


@case
def errors() -> None:
    """
    name of 1 before init | 0 CUDA_ERROR_INVALID_VALUE
    name of 720 | 0 CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE
    text of 0 | 0 no error
    text of 100 | 0 no CUDA-capable device is detected
    name of 12345 | 1 None
    text of -1 | 1 None
    """
    for what, function, code in (
        ("name of 1 before init", "cuGetErrorName", 1),
        ("name of 720", "cuGetErrorName", 720),
        ("text of 0", "cuGetErrorString", 0),
        ("text of 100", "cuGetErrorString", 100),
        ("name of 12345", "cuGetErrorName", 12345),
        ("text of -1", "cuGetErrorString", -1),
    ):
        text = c.c_char_p(b"untouched")
        result = call(function, code, at(text))
        say(what, result, text.value.decode() if text.value else None)


@case
def uninitialised() -> None:
    """
    memory info | 3 0 0
    alloc | 3 0
    alloc of 0 | 3 0
    free of 0 | 3
    free of garbage | 3
    current | 3
    set current | 3
    pop | 3
    event | 3
    module | 3
    library | 3
    link | 3
    synchronize | 3
    stream query | 3
    pinned | 3
    copy | 3
    pool | 3
    primary state | 3
    launch | 3
    export table | 1
    """
    s, p, f, t = pointer(5), u64(7), size(7), size(7)
    say("memory info", call("cuMemGetInfo_v2", at(f), at(t)), f.value, t.value)
    say("alloc", call("cuMemAlloc_v2", at(p), size(64)), p.value)
    p.value = 7
    say("alloc of 0", call("cuMemAlloc_v2", at(p), size(0)), p.value)
    say("free of 0", call("cuMemFree_v2", u64(0)))
    say("free of garbage", call("cuMemFree_v2", u64(0x1000)))
    say("current", call("cuCtxGetCurrent", at(s)))
    say("set current", call("cuCtxSetCurrent", None))
    say("pop", call("cuCtxPopCurrent_v2", at(s)))
    say("event", call("cuEventCreate", at(s), 0))
    say("module", call("cuModuleLoadData", at(s), PTX))
    say("library", call("cuLibraryLoadData", at(s), PTX, None, None, 0, None, None, 0))
    say("link", call("cuLinkCreate_v2", 0, None, None, at(s)))
    say("synchronize", call("cuCtxSynchronize"))
    say("stream query", call("cuStreamQuery", None))
    say("pinned", call("cuMemHostAlloc", at(s), size(64), 0))
    say("copy", call("cuMemcpyHtoD_v2", u64(0), at(s), size(8)))
    say("pool", call("cuDeviceGetDefaultMemPool", at(s), 0))
    say("primary state", call("cuDevicePrimaryCtxGetState", 0, at(f), at(t)))
    say("launch", call("cuLaunchKernel", None, 1, 1, 1, 1, 1, 1, 0, None, None, None))
    say("export table", call("cuGetExportTable", at(s), b"0123456789abcdef"))


@case
def without_context() -> None:
    """
    memory info | 201 0 0
    alloc | 201 0
    alloc of 0 | 201 0
    free of 0 | 0
    get device | 201 77
    current | 0 None
    cuEventCreate | 201
    cuStreamCreate | 201
    cuModuleLoadData | 201
    cuCtxSynchronize | 201
    cuStreamQuery | 201
    cuMemHostAlloc | 201
    cuMemAllocManaged | 201
    cuMemAllocPitch_v2 | 201
    cuMemAllocAsync | 201
    cuMemcpyHtoD_v2 | 201
    cuMemsetD8_v2 | 201
    cuLibraryLoadData | 0
    cuLinkCreate_v2 | 201
    cuDeviceGetDefaultMemPool | 0
    cuCtxPopCurrent_v2 | 201
    cuCtxPushCurrent_v2 | 1
    cuCtxGetLimit | 201
    cuCtxGetFlags | 201
    cuCtxGetApiVersion | 201
    cuPointerGetAttribute | 1
    cuMemGetAddressRange_v2 | 201
    cuMemFreeHost | 1
    cuMemFreeAsync | 201
    cuCtxDestroy_v2 | 1
    cuCtxSetCurrent | 0
    cuMemHostRegister_v2 | 201
    cuStreamIsCapturing | 201
    cuFuncGetAttribute | 400
    cuModuleUnload | 400
    cuEventDestroy_v2 | 400
    cuStreamDestroy_v2 | 400
    cuLaunchKernel | 201
    """
    start()
    s, p, d, f, t = pointer(5), u64(7), c.c_int(77), size(7), size(7)
    say("memory info", call("cuMemGetInfo_v2", at(f), at(t)), f.value, t.value)
    say("alloc", call("cuMemAlloc_v2", at(p), size(64)), p.value)
    say("alloc of 0", call("cuMemAlloc_v2", at(p), size(0)), p.value)
    say("free of 0", call("cuMemFree_v2", u64(0)))
    say("get device", call("cuCtxGetDevice", at(d)), d.value)
    say("current", call("cuCtxGetCurrent", at(s)), s.value)
    s.value = 5
    calls: tuple[tuple[str, tuple[object, ...]], ...] = (
        ("cuEventCreate", (at(s), 0)),
        ("cuStreamCreate", (at(s), 0)),
        ("cuModuleLoadData", (at(s), PTX)),
        ("cuCtxSynchronize", ()),
        ("cuStreamQuery", (None,)),
        ("cuMemHostAlloc", (at(s), size(64), 0)),
        ("cuMemAllocManaged", (at(p), size(64), 1)),
        ("cuMemAllocPitch_v2", (at(p), at(f), size(64), size(1), 4)),
        ("cuMemAllocAsync", (at(p), size(64), None)),
        ("cuMemcpyHtoD_v2", (u64(0), at(s), size(8))),
        ("cuMemsetD8_v2", (u64(0), 0, size(1))),
        ("cuLibraryLoadData", (at(s), PTX, None, None, 0, None, None, 0)),
        ("cuLinkCreate_v2", (0, None, None, at(s))),
        ("cuDeviceGetDefaultMemPool", (at(s), 0)),
        ("cuCtxPopCurrent_v2", (at(s),)),
        ("cuCtxPushCurrent_v2", (None,)),
        ("cuCtxGetLimit", (at(f), 0)),
        ("cuCtxGetFlags", (at(f),)),
        ("cuCtxGetApiVersion", (None, at(f))),
        ("cuPointerGetAttribute", (at(f), 2, u64(0x1000))),
        ("cuMemGetAddressRange_v2", (at(p), at(f), u64(0x1000))),
        ("cuMemFreeHost", (pointer(0x1000),)),
        ("cuMemFreeAsync", (u64(0), None)),
        ("cuCtxDestroy_v2", (None,)),
        ("cuCtxSetCurrent", (None,)),
        ("cuMemHostRegister_v2", (at(s), size(8), 0)),
        ("cuStreamIsCapturing", (None, at(s))),
        ("cuFuncGetAttribute", (at(s), 0, None)),
        ("cuModuleUnload", (None,)),
        ("cuEventDestroy_v2", (None,)),
        ("cuStreamDestroy_v2", (None,)),
        ("cuLaunchKernel", (None, 1, 1, 1, 1, 1, 1, 0, None, None, None)),
    )
    for name, arguments in calls:
        say(name, call(name, *arguments))


@case
def memory_info() -> None:
    """
    free alone | 0 True
    total alone | 0 True
    nothing | 0
    """
    current()
    f, t = size(7), size(7)
    say("free alone", call("cuMemGetInfo_v2", at(f), None), f.value > 0)
    say("total alone", call("cuMemGetInfo_v2", None, at(t)), t.value > f.value)
    say("nothing", call("cuMemGetInfo_v2", None, None))


@case
def alloc() -> None:
    """
    0 bytes | 1 0
    NULL | 1
    NULL, 0 bytes | 1
    NULL, huge | 1
    1 B | 0 2097152
    1 B second | 0 distance 512 took 0
    range of 1 B | 0 1 0
    1048576 | 0 took 0
    1048577 | 0 took 2097152
    2097152 | 0 took 2097152
    2097153 | 0 took 4194304
    34603008 | 0 took 35651584
    268435456 | 0 took 268435456
    free + 1 GiB | 2 0
    exactly free | 2
    SIZE_MAX | 2 0
    1 << 62 | 2
    works after failures | 0
    on a thread without context | 201 0
    memory info on a thread without context | 201
    device on a thread without context | 201 7
    free of 0 on a thread without context | 0
    free on a thread without context | 0
    """
    current()
    p, q, n = u64(7), u64(7), size(0)
    say("0 bytes", call("cuMemAlloc_v2", at(p), size(0)), p.value)
    say("NULL", call("cuMemAlloc_v2", None, size(4096)))
    say("NULL, 0 bytes", call("cuMemAlloc_v2", None, size(0)))
    say("NULL, huge", call("cuMemAlloc_v2", None, size(1 << 50)))
    before = free()
    say("1 B", call("cuMemAlloc_v2", at(p), size(1)), before - free())
    before = free()
    result = call("cuMemAlloc_v2", at(q), size(1))
    say("1 B second", result, "distance", q.value - p.value, "took", before - free())
    say("range of 1 B", call("cuMemGetAddressRange_v2", at(q), at(n), p), n.value, q.value - p.value)
    for wanted in (1048576, 1048577, 2097152, 2097153, 34603008, 268435456):
        before = free()
        say(str(wanted), call("cuMemAlloc_v2", at(q), size(wanted)), "took", before - free())
    q.value = 7
    say("free + 1 GiB", call("cuMemAlloc_v2", at(q), size(free() + (1 << 30))), q.value)
    say("exactly free", call("cuMemAlloc_v2", at(q), size(free() + 1)))
    q.value = 7
    say("SIZE_MAX", call("cuMemAlloc_v2", at(q), size((1 << 64) - 1)), q.value)
    say("1 << 62", call("cuMemAlloc_v2", at(q), size(1 << 62)))
    say("works after failures", call("cuMemAlloc_v2", at(q), size(1 << 20)))

    def other() -> None:
        r, d, f = u64(7), c.c_int(7), size(0)
        say("on a thread without context", call("cuMemAlloc_v2", at(r), size(64)), r.value)
        say("memory info on a thread without context", call("cuMemGetInfo_v2", at(f), at(f)))
        say("device on a thread without context", call("cuCtxGetDevice", at(d)), d.value)
        say("free of 0 on a thread without context", call("cuMemFree_v2", u64(0)))
        say("free on a thread without context", call("cuMemFree_v2", q))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()


@case
def frees() -> None:
    """
    0 | 0
    interior 256 | 1
    interior 1 | 1
    right | 0
    again | 1
    64 MiB | 0
    64 MiB again | 1
    garbage | 1
    all ones | 1
    host | 1
    stream-ordered | 0
    stream-ordered again | 1
    managed | 0
    all back | True
    """
    current()
    before = free()
    p = allocated(1000)
    say("0", call("cuMemFree_v2", u64(0)))
    say("interior 256", call("cuMemFree_v2", u64(p.value + 256)))
    say("interior 1", call("cuMemFree_v2", u64(p.value + 1)))
    say("right", call("cuMemFree_v2", p))
    say("again", call("cuMemFree_v2", p))
    p = allocated(64 * MIB)
    say("64 MiB", call("cuMemFree_v2", p))
    say("64 MiB again", call("cuMemFree_v2", p))
    say("garbage", call("cuMemFree_v2", u64(0x1234)))
    say("all ones", call("cuMemFree_v2", u64((1 << 64) - 1)))
    host = c.create_string_buffer(16)
    say("host", call("cuMemFree_v2", u64(c.addressof(host))))
    call("cuMemAllocAsync", at(p), size(MIB), None)
    say("stream-ordered", call("cuMemFree_v2", p))
    say("stream-ordered again", call("cuMemFree_v2", p))
    call("cuMemAllocManaged", at(p), size(MIB), 1)
    say("managed", call("cuMemFree_v2", p))
    call("cuCtxSynchronize")
    say("all back", free() == before)


@case
def frees_in_order() -> None:
    """
    0 | 0
    of cuMemAlloc | 0
    cuMemFree after | 1
    alloc of 0 | 0 0
    NULL | 1
    interior | 1
    right | 0
    again | 1
    again after synchronisation | 1
    free + 1 GiB | 2 0
    SIZE_MAX | 2
    garbage | 1
    """
    current()
    p = allocated(1000)
    say("0", call("cuMemFreeAsync", u64(0), None))
    say("of cuMemAlloc", call("cuMemFreeAsync", p, None))
    call("cuCtxSynchronize")
    say("cuMemFree after", call("cuMemFree_v2", p))
    p.value = 7
    say("alloc of 0", call("cuMemAllocAsync", at(p), size(0), None), p.value)
    say("NULL", call("cuMemAllocAsync", None, size(64), None))
    assert call("cuMemAllocAsync", at(p), size(MIB), None) == 0
    say("interior", call("cuMemFreeAsync", u64(p.value + 256), None))
    say("right", call("cuMemFreeAsync", p, None))
    say("again", call("cuMemFreeAsync", p, None))
    call("cuCtxSynchronize")
    say("again after synchronisation", call("cuMemFreeAsync", p, None))
    q = u64(7)
    say("free + 1 GiB", call("cuMemAllocAsync", at(q), size(free() + (1 << 30)), None), q.value)
    say("SIZE_MAX", call("cuMemAllocAsync", at(q), size((1 << 64) - 1), None))
    say("garbage", call("cuMemFreeAsync", u64(0x1234), None))


@case
def pitched() -> None:
    """
    width 1 | 0 512 512000 took 2097152
    width 33 | 0 512 512000 took 0
    width 100 | 0 512 512000 took 0
    width 511 | 0 512 512000 took 0
    width 512 | 0 512 512000 took 2097152
    width 513 | 0 1024 1024000 took 0
    width 1000 | 0 1024 1024000 took 2097152
    width 4097 | 0 4608 4608000 took 6291456
    width 65536 | 0 65536 65536000 took 67108864
    width 65537 | 0 66048 66048000 took 67108864
    element 1 | 1 0
    element 2 | 1 0
    element 3 | 1 0
    element 4 | 0 512
    element 8 | 0 512
    element 16 | 0 512
    element 32 | 1 0
    width 0 | 1 0 0
    height 0 | 1 0 0
    overflow | 1 0 1099511627776
    NULL pitch | 1
    """
    current()
    p, base, pitch, n = u64(7), u64(), size(7), size(0)
    for width in (1, 33, 100, 511, 512, 513, 1000, 4097, 65536, 65537):
        before = free()
        result = call("cuMemAllocPitch_v2", at(p), at(pitch), size(width), size(1000), 4)
        call("cuMemGetAddressRange_v2", at(base), at(n), p)
        say(f"width {width}", result, pitch.value, n.value, "took", before - free())
    for element in (1, 2, 3, 4, 8, 16, 32):
        pitch.value = 7
        say(f"element {element}", call("cuMemAllocPitch_v2", at(p), at(pitch), size(64), size(4), element), pitch.value)
    for what, width, height in (("width 0", 0, 4), ("height 0", 64, 0), ("overflow", 1 << 40, 1 << 40)):
        p.value = pitch.value = 7
        result = call("cuMemAllocPitch_v2", at(p), at(pitch), size(width), size(height), 4)
        say(what, result, p.value, pitch.value)
    say("NULL pitch", call("cuMemAllocPitch_v2", at(p), None, size(64), size(4), 4))


@case
def managed() -> None:
    """
    64 MiB | 0 took 0
    host can write | 0
    device reads what the host wrote | 0 7
    device work takes memory | True
    0 bytes | 1 0
    flags 0 | 1 0
    flags 2 | 0
    flags 3 | 1
    flags 4 | 1
    NULL | 1
    more than the card | 0
    1 << 50 | 2 0
    two of 1 B | 0 0 512
    prefetch | 0
    prefetch of device memory | 1
    advise | 0
    advise about device memory | 1
    profiler | 0 0
    """
    current()
    before, p, q = free(), u64(7), u64(7)
    say("64 MiB", call("cuMemAllocManaged", at(p), size(64 * MIB), 1), "took", before - free())
    c.memset(p.value, 7, 64 * MIB)
    say("host can write", before - free())
    b = c.c_uint8()
    say("device reads what the host wrote", call("cuMemcpyDtoH_v2", at(b), p, size(1)), b.value)
    call("cuMemsetD8_v2", p, 2, size(64 * MIB))
    call("cuCtxSynchronize")
    say("device work takes memory", before - free() >= 64 * MIB)
    say("0 bytes", call("cuMemAllocManaged", at(q), size(0), 1), q.value)
    q.value = 7
    say("flags 0", call("cuMemAllocManaged", at(q), size(64), 0), q.value)
    for flags in (2, 3, 4):
        say(f"flags {flags}", call("cuMemAllocManaged", at(q), size(64), flags))
    say("NULL", call("cuMemAllocManaged", None, size(64), 1))
    say("more than the card", call("cuMemAllocManaged", at(q), size(total() + (1 << 30)), 1))
    say("1 << 50", call("cuMemAllocManaged", at(q), size(1 << 50), 1), q.value)
    results = call("cuMemAllocManaged", at(p), size(1), 1), call("cuMemAllocManaged", at(q), size(1), 1)
    say("two of 1 B", *results, q.value - p.value)
    own = allocated(64)
    say("prefetch", call("cuMemPrefetchAsync", p, size(1), 0, None))
    say("prefetch of device memory", call("cuMemPrefetchAsync", own, size(1), 0, None))
    say("advise", call("cuMemAdvise", p, size(1), 1, 0))
    say("advise about device memory", call("cuMemAdvise", own, size(1), 1, 0))
    say("profiler", call("cuProfilerStart"), call("cuProfilerStop"))


def pool_state(pool: c.c_void_p, before: int) -> str:
    values = []
    for which in (5, 6, 7, 8, 4):
        v = u64(7)
        assert call("cuMemPoolGetAttribute", pool, which, at(v)) == 0
        values.append("max" if v.value == (1 << 64) - 1 else v.value)
    names = ("reserved", "high", "used", "usedhigh", "threshold")
    return " ".join(f"{name} {value}" for name, value in zip(names, values, strict=True)) + f" took {before - free()}"


@case
def pools() -> None:
    """
    default pool | 0
    current is default | True
    device 1 | 101
    NULL | 1
    start | reserved 0 high 0 used 0 usedhigh 0 threshold 0 took 0
    1 B | reserved 33554432 high 33554432 used 1 usedhigh 1 threshold 0 took 33554432
    + 1 MiB | reserved 33554432 high 33554432 used 1048577 usedhigh 1048577 threshold 0 took 33554432
    + 33 MiB | reserved 67108864 high 67108864 used 35651585 usedhigh 35651585 threshold 0 took 67108864
    33 MiB freed | reserved 67108864 high 67108864 used 1048577 usedhigh 35651585 threshold 0 took 67108864
    synchronised | reserved 33554432 high 67108864 used 1048577 usedhigh 35651585 threshold 0 took 33554432
    all freed | reserved 33554432 high 67108864 used 0 usedhigh 35651585 threshold 0 took 33554432
    all freed, synchronised | reserved 0 high 67108864 used 0 usedhigh 35651585 threshold 0 took 0
    kept by the threshold | reserved 67108864 high 67108864 used 0 usedhigh 41943040 threshold max took 67108864
    trim to 8 MiB | 0
    trimmed | reserved 33554432 high 67108864 used 0 usedhigh 41943040 threshold max took 33554432
    trim to 0 | 0
    trimmed to 0 | reserved 0 high 67108864 used 0 usedhigh 41943040 threshold max took 0
    reset reserved high | 0
    set reserved high | 1
    set reserved | 1
    high after reset | reserved 0 high 0 used 0 usedhigh 41943040 threshold max took 0
    attribute 0 | 1
    attribute 9 | 1
    access | 0 3
    destroy of the default | 1
    destroy of NULL | 1
    from no pool | 1
    """
    current()
    pool, other, p, q, r = pointer(), pointer(), u64(), u64(), u64()
    before = free()
    say("default pool", call("cuDeviceGetDefaultMemPool", at(pool), 0))
    call("cuDeviceGetMemPool", at(other), 0)
    say("current is default", pool.value == other.value)
    say("device 1", call("cuDeviceGetDefaultMemPool", at(other), 1))
    say("NULL", call("cuDeviceGetDefaultMemPool", None, 0))
    say("start", pool_state(pool, before))
    call("cuMemAllocAsync", at(p), size(1), None)
    say("1 B", pool_state(pool, before))
    call("cuMemAllocAsync", at(q), size(MIB), None)
    say("+ 1 MiB", pool_state(pool, before))
    call("cuMemAllocAsync", at(r), size(33 * MIB), None)
    call("cuCtxSynchronize")
    say("+ 33 MiB", pool_state(pool, before))
    call("cuMemFreeAsync", r, None)
    say("33 MiB freed", pool_state(pool, before))
    call("cuCtxSynchronize")
    say("synchronised", pool_state(pool, before))
    call("cuMemFreeAsync", p, None)
    call("cuMemFreeAsync", q, None)
    say("all freed", pool_state(pool, before))
    call("cuStreamSynchronize", None)
    say("all freed, synchronised", pool_state(pool, before))
    threshold, zero, five = u64((1 << 64) - 1), u64(0), u64(5)
    call("cuMemPoolSetAttribute", pool, 4, at(threshold))
    call("cuMemAllocAsync", at(p), size(40 * MIB), None)
    call("cuMemFreeAsync", p, None)
    call("cuCtxSynchronize")
    say("kept by the threshold", pool_state(pool, before))
    say("trim to 8 MiB", call("cuMemPoolTrimTo", pool, size(8 * MIB)))
    say("trimmed", pool_state(pool, before))
    say("trim to 0", call("cuMemPoolTrimTo", pool, size(0)))
    say("trimmed to 0", pool_state(pool, before))
    say("reset reserved high", call("cuMemPoolSetAttribute", pool, 6, at(zero)))
    say("set reserved high", call("cuMemPoolSetAttribute", pool, 6, at(five)))
    say("set reserved", call("cuMemPoolSetAttribute", pool, 5, at(five)))
    say("high after reset", pool_state(pool, before))
    say("attribute 0", call("cuMemPoolGetAttribute", pool, 0, at(p)))
    say("attribute 9", call("cuMemPoolGetAttribute", pool, 9, at(p)))
    flags, where = c.c_uint(7), (c.c_int * 2)(1, 0)
    say("access", call("cuMemPoolGetAccess", at(flags), pool, where), flags.value)
    say("destroy of the default", call("cuMemPoolDestroy", pool))
    say("destroy of NULL", call("cuMemPoolDestroy", None))
    say("from no pool", call("cuMemAllocFromPoolAsync", at(p), size(10), None, None))


class PoolProps(c.Structure):
    _fields_ = (
        ("type", c.c_int), ("handles", c.c_int), ("where", c.c_int), ("device", c.c_int), ("security", c.c_void_p),
        ("max", c.c_size_t), ("usage", c.c_ushort), ("reserved", c.c_ubyte * 54),
    )  # fmt: skip


@case
def own_pool() -> None:
    """
    create | 0
    65 MiB of 64 | 2
    32 MiB | 0
    state | reserved 33554432 high 67108864 used 33554432 usedhigh 33554432 threshold 0 took 33554432
    free | 0
    destroy | 0
    all back | True
    """
    current()
    before, pool, p = free(), pointer(), u64()
    props = PoolProps(type=1, where=1, max=64 * MIB)
    say("create", call("cuMemPoolCreate", at(pool), at(props)))
    say("65 MiB of 64", call("cuMemAllocFromPoolAsync", at(p), size(65 * MIB), pool, None))
    say("32 MiB", call("cuMemAllocFromPoolAsync", at(p), size(32 * MIB), pool, None))
    say("state", pool_state(pool, before))
    say("free", call("cuMemFree_v2", p))
    say("destroy", call("cuMemPoolDestroy", pool))
    call("cuCtxSynchronize")
    say("all back", free() == before)


@case
def pool_steps() -> None:
    """
    four of 20 MiB | 100663296
    two freed, synchronised | 100663296
    + 40 MiB | 134217728
    another freed, not synchronised | 134217728
    queried | 134217728
    synchronised | 134217728
    the last, threshold 40 MiB | 100663296
    """
    current()
    pool, stream, x, v = pointer(), pointer(), u64(), u64()
    call("cuDeviceGetDefaultMemPool", at(pool), 0)
    call("cuStreamCreate", at(stream), 0)

    def reserved(what: str) -> None:
        call("cuMemPoolGetAttribute", pool, 5, at(v))
        say(what, v.value)

    # The measured pool held 300 bytes, so that its first step was never empty.
    for _ in range(3):
        call("cuMemAllocAsync", at(u64()), size(100), stream)
    four = [u64() for _ in range(4)]
    for p in four:
        call("cuMemAllocAsync", at(p), size(20 * MIB), stream)
    reserved("four of 20 MiB")
    call("cuMemFreeAsync", four[0], stream)
    call("cuMemFreeAsync", four[2], stream)
    call("cuStreamSynchronize", stream)
    reserved("two freed, synchronised")
    call("cuMemAllocAsync", at(x), size(40 * MIB), stream)
    reserved("+ 40 MiB")
    call("cuMemFreeAsync", four[1], stream)
    reserved("another freed, not synchronised")
    call("cuMemAllocAsync", at(x), size(1), stream)
    call("cuStreamQuery", stream)
    reserved("queried")
    call("cuStreamSynchronize", stream)
    reserved("synchronised")
    threshold = u64(40 * MIB)
    call("cuMemPoolSetAttribute", pool, 4, at(threshold))
    call("cuMemFreeAsync", four[3], stream)
    call("cuStreamSynchronize", stream)
    reserved("the last, threshold 40 MiB")


@case
def primary() -> None:
    """
    before init | 3
    fresh | 0 0 0
    retain | 0
    retained | 0 0 1
    retain again | 0 True
    release | 0
    after one release | 0 0 1
    last release | 0
    released | 0 0 0
    one release too many | 201
    retain after release | 0 True
    alloc | 0
    reset | 0
    after reset | 0 0 0
    alloc after reset | 709 0
    current after reset | 0 True
    device after reset | 0 0
    release after reset | 0
    retain after reset | 0 True
    after that | 0 0 1
    alloc in the old current | 0
    set flags while active | 0
    flags | 0 4 1
    flags 3 | 1
    flags 0x1000 | 1
    device 1 | 101
    retain NULL | 1
    state NULL | 1
    """
    flags, active, context, again, p, d = c.c_uint(7), c.c_int(7), pointer(), pointer(), u64(7), c.c_int(7)

    def state(what: str) -> None:
        result = call("cuDevicePrimaryCtxGetState", 0, at(flags), at(active))
        say(what, result, *(() if result else (flags.value, active.value)))

    state("before init")
    start()
    state("fresh")
    say("retain", call("cuDevicePrimaryCtxRetain", at(context), 0))
    state("retained")
    result = call("cuDevicePrimaryCtxRetain", at(again), 0)
    say("retain again", result, context.value == again.value)
    say("release", call("cuDevicePrimaryCtxRelease_v2", 0))
    state("after one release")
    say("last release", call("cuDevicePrimaryCtxRelease_v2", 0))
    state("released")
    say("one release too many", call("cuDevicePrimaryCtxRelease_v2", 0))
    result = call("cuDevicePrimaryCtxRetain", at(again), 0)
    say("retain after release", result, context.value == again.value)
    call("cuCtxSetCurrent", again)
    say("alloc", call("cuMemAlloc_v2", at(p), size(MIB)))
    say("reset", call("cuDevicePrimaryCtxReset_v2", 0))
    state("after reset")
    say("alloc after reset", call("cuMemAlloc_v2", at(p), size(MIB)), p.value)
    now = pointer()
    result = call("cuCtxGetCurrent", at(now))
    say("current after reset", result, now.value == context.value)
    say("device after reset", call("cuCtxGetDevice", at(d)), d.value)
    say("release after reset", call("cuDevicePrimaryCtxRelease_v2", 0))
    result = call("cuDevicePrimaryCtxRetain", at(again), 0)
    say("retain after reset", result, context.value == again.value)
    state("after that")
    say("alloc in the old current", call("cuMemAlloc_v2", at(p), size(MIB)))
    say("set flags while active", call("cuDevicePrimaryCtxSetFlags_v2", 0, 4))
    state("flags")
    say("flags 3", call("cuDevicePrimaryCtxSetFlags_v2", 0, 3))
    say("flags 0x1000", call("cuDevicePrimaryCtxSetFlags_v2", 0, 0x1000))
    say("device 1", call("cuDevicePrimaryCtxRetain", at(again), 1))
    say("retain NULL", call("cuDevicePrimaryCtxRetain", None, 0))
    say("state NULL", call("cuDevicePrimaryCtxGetState", 0, None, None))


@case
def primary_released() -> None:
    """
    alloc | 709 0
    device | 0 0
    current | 0 True
    synchronize | 709
    memory info | 709 0
    free of an old pointer | 709
    set current | 0
    push | 0
    reset | 0
    destroy | 201
    flags | 0
    event | 709
    stream query | 709
    launch | 709
    """
    context = current()
    p, d, now, n = allocated(MIB), c.c_int(7), pointer(), size(7)
    old = u64(p.value)
    call("cuDevicePrimaryCtxRelease_v2", 0)
    say("alloc", call("cuMemAlloc_v2", at(p), size(64)), p.value)
    say("device", call("cuCtxGetDevice", at(d)), d.value)
    result = call("cuCtxGetCurrent", at(now))
    say("current", result, now.value == context.value)
    say("synchronize", call("cuCtxSynchronize"))
    say("memory info", call("cuMemGetInfo_v2", at(n), at(n)), n.value)
    say("free of an old pointer", call("cuMemFree_v2", old))
    say("set current", call("cuCtxSetCurrent", context))
    say("push", call("cuCtxPushCurrent_v2", context))
    say("reset", call("cuDevicePrimaryCtxReset_v2", 0))
    say("destroy", call("cuCtxDestroy_v2", context))
    say("flags", call("cuCtxGetFlags", at(n)))
    say("event", call("cuEventCreate", at(now), 0))
    say("stream query", call("cuStreamQuery", None))
    say("launch", call("cuLaunchKernel", None, 1, 1, 1, 1, 1, 1, 0, None, None, None))


@case
def contexts() -> None:
    """
    two | 0 0
    flags 0x4000 | 1
    flags 3 | 1
    NULL | 1
    device 1 | 101
    pop | 0 True
    free in another context | 0
    free again | 1
    push | 0
    copy in another context | 0
    destroy | 0
    free of what it held | 1
    copy to what it held | 1
    destroy again | 709
    current | 0 True
    destroy the current | 0
    the one before is current | 0 True
    all back | True
    """
    start()
    under, a, b, now = pointer(), pointer(), pointer(), pointer()
    call("cuCtxCreate_v2", at(under), 0, 0)
    before = free()
    say("two", call("cuCtxCreate_v2", at(a), 0, 0), call("cuCtxCreate_v2", at(b), 0, 0))
    say("flags 0x4000", call("cuCtxCreate_v2", at(now), 0x4000, 0))
    say("flags 3", call("cuCtxCreate_v2", at(now), 3, 0))
    say("NULL", call("cuCtxCreate_v2", None, 0, 0))
    say("device 1", call("cuCtxCreate_v2", at(now), 0, 1))
    p = allocated(MIB)
    result = call("cuCtxPopCurrent_v2", at(now))
    say("pop", result, now.value == b.value)
    say("free in another context", call("cuMemFree_v2", p))
    say("free again", call("cuMemFree_v2", p))
    say("push", call("cuCtxPushCurrent_v2", b))
    p = allocated(MIB)
    call("cuCtxPopCurrent_v2", at(now))
    say("copy in another context", call("cuMemcpyHtoD_v2", p, b"12345678", size(8)))
    say("destroy", call("cuCtxDestroy_v2", b))
    say("free of what it held", call("cuMemFree_v2", p))
    say("copy to what it held", call("cuMemcpyHtoD_v2", p, b"12345678", size(8)))
    say("destroy again", call("cuCtxDestroy_v2", b))
    result = call("cuCtxGetCurrent", at(now))
    say("current", result, now.value == a.value)
    say("destroy the current", call("cuCtxDestroy_v2", a))
    result = call("cuCtxGetCurrent", at(now))
    say("the one before is current", result, now.value == under.value)
    say("all back", free() == before)


@case
def limits() -> None:
    """
    0 | 0 1024
    1 | 0 8650752
    2 | 0 8388608
    3 | 215 77
    NULL | 1
    malloc heap 512 MiB | 0 took 0
    stack 16 KiB | 0 per thread 15360
    priorities | 0 0 -5
    priorities NULL | 0
    """
    current()
    value = size(77)
    for which in (0, 1, 2, 3):
        value.value = 77
        say(str(which), call("cuCtxGetLimit", at(value), which), value.value)
    say("NULL", call("cuCtxGetLimit", None, 0))
    before = free()
    say("malloc heap 512 MiB", call("cuCtxSetLimit", 2, size(512 * MIB)), "took", before - free())
    sms, threads = c.c_int(), c.c_int()
    call("cuDeviceGetAttribute", at(sms), 16, 0)
    call("cuDeviceGetAttribute", at(threads), 39, 0)
    result = call("cuCtxSetLimit", 0, size(16 << 10))
    say("stack 16 KiB", result, "per thread", (before - free()) // (sms.value * threads.value))
    least, greatest = c.c_int(7), c.c_int(7)
    say("priorities", call("cuCtxGetStreamPriorityRange", at(least), at(greatest)), least.value, greatest.value)
    say("priorities NULL", call("cuCtxGetStreamPriorityRange", None, None))


ATTRIBUTES = (2, 6, 8, 9, 10, 12, 13, 14, 15, 16, 18, 21)


def described(p: int) -> str:
    values = []
    for which in ATTRIBUTES:
        raw = (c.c_uint8 * 8)()
        result = call("cuPointerGetAttribute", raw, which, u64(p))
        values.append("x" if result else str(int.from_bytes(bytes(raw), "little")))
    return " ".join(values)


@case
def pointers() -> None:
    """
    device | 2 0 0 0 1 1000 1 0 1 3 2097152 1
    inside | 2 0 0 0 1 1000 1 0 1 3 2097152 1
    one past the end | x x x x x x x x x x x x
    managed | 2 1 1 0 0 1000 1 0 0 3 2097152 0
    pinned | 1 0 0 0 0 1000 1 0 0 3 2097152 0
    stream-ordered | 2 0 0 0 0 1000 1 0 0 3 33554432 0
    garbage | x x x x x x x x x x x x
    host | x x x x x x x x x x x x
    0 | x x x x x x x x x x x x
    host pointer of device memory | 1 0
    context | 0 True
    context of pool memory | 0 None
    range inside | 0 0 1000
    range, no outputs | 0
    range past the end | 500
    range of garbage | 500
    range of pinned | 0 0 1000
    range of managed | 0 1000
    range of host | 500
    several | 0 [2, 0]
    several of garbage | 0 [0, 4294967294]
    """
    context = current()
    p, m, a, h = allocated(1000), u64(), u64(), pointer()
    call("cuMemAllocManaged", at(m), size(1000), 1)
    call("cuMemHostAlloc", at(h), size(1000), 0)
    call("cuMemAllocAsync", at(a), size(1000), None)
    host = c.create_string_buffer(100)
    say("device", described(p.value))
    say("inside", described(p.value + 100))
    say("one past the end", described(p.value + 1000))
    say("managed", described(m.value))
    say("pinned", described(h.value or 0))
    say("stream-ordered", described(a.value))
    say("garbage", described(0x1234))
    say("host", described(c.addressof(host)))
    say("0", described(0))
    wide, handle = u64(7), pointer(7)
    say("host pointer of device memory", call("cuPointerGetAttribute", at(wide), 4, p), wide.value)
    result = call("cuPointerGetAttribute", at(handle), 1, p)
    say("context", result, handle.value == context.value)
    say("context of pool memory", call("cuPointerGetAttribute", at(handle), 1, a), handle.value)
    base, n = u64(), size(0)
    result = call("cuMemGetAddressRange_v2", at(base), at(n), u64(p.value + 100))
    say("range inside", result, base.value - p.value, n.value)
    say("range, no outputs", call("cuMemGetAddressRange_v2", None, None, p))
    say("range past the end", call("cuMemGetAddressRange_v2", at(base), at(n), u64(p.value + 1000)))
    say("range of garbage", call("cuMemGetAddressRange_v2", at(base), at(n), u64(0x1234)))
    result = call("cuMemGetAddressRange_v2", at(base), at(n), u64(h.value or 0))
    say("range of pinned", result, base.value - (h.value or 0), n.value)
    say("range of managed", call("cuMemGetAddressRange_v2", at(base), at(n), m), n.value)
    say("range of host", call("cuMemGetAddressRange_v2", at(base), at(n), u64(c.addressof(host))))
    which, outputs = (c.c_int * 2)(2, 9), [c.c_uint(7), c.c_uint(7)]
    where = (c.c_void_p * 2)(*map(c.addressof, outputs))
    say("several", call("cuPointerGetAttributes", 2, which, where, p), [o.value for o in outputs])
    say("several of garbage", call("cuPointerGetAttributes", 2, which, where, u64(0x1234)), [o.value for o in outputs])


@case
def host_memory() -> None:
    """
    64 MiB take no device memory | 0 0
    0 bytes | 0 None
    flags 16 | 1
    NULL | 1
    too much | 2
    device pointer | 0 True
    device pointer inside | 0 10
    device pointer, flags | 1
    device pointer of host memory | 1
    flags | 0 2
    flags of host memory | 1
    free inside | 1
    free NULL | 0
    free host memory | 1
    free | 0
    free again | 1
    free device memory | 1
    register | 0
    register again | 712
    unregister | 0
    unregister again | 713
    register 0 bytes | 1
    register NULL | 1
    register unaligned | 0
    """
    current()
    before, h, x, flags, p = free(), pointer(), u64(7), c.c_uint(7), allocated(64)
    before = free()
    say("64 MiB take no device memory", call("cuMemHostAlloc", at(h), size(64 * MIB), 0), before - free())
    other = pointer(7)
    say("0 bytes", call("cuMemHostAlloc", at(other), size(0), 0), other.value)
    say("flags 16", call("cuMemHostAlloc", at(other), size(8), 16))
    say("NULL", call("cuMemHostAlloc", None, size(8), 0))
    say("too much", call("cuMemHostAlloc", at(other), size(1 << 60), 0))
    host = c.create_string_buffer(1 << 16)
    result = call("cuMemHostGetDevicePointer_v2", at(x), h, 0)
    say("device pointer", result, x.value == h.value)
    result = call("cuMemHostGetDevicePointer_v2", at(x), pointer((h.value or 0) + 10), 0)
    say("device pointer inside", result, x.value - (h.value or 0))
    say("device pointer, flags", call("cuMemHostGetDevicePointer_v2", at(x), h, 1))
    say("device pointer of host memory", call("cuMemHostGetDevicePointer_v2", at(x), host, 0))
    say("flags", call("cuMemHostGetFlags", at(flags), h), flags.value)
    say("flags of host memory", call("cuMemHostGetFlags", at(flags), host))
    say("free inside", call("cuMemFreeHost", pointer((h.value or 0) + 8)))
    say("free NULL", call("cuMemFreeHost", None))
    say("free host memory", call("cuMemFreeHost", host))
    say("free", call("cuMemFreeHost", h))
    say("free again", call("cuMemFreeHost", h))
    say("free device memory", call("cuMemFreeHost", pointer(p.value)))
    page = pointer((c.addressof(host) + 4095) & ~4095)
    say("register", call("cuMemHostRegister_v2", page, size(4096), 0))
    say("register again", call("cuMemHostRegister_v2", page, size(4096), 0))
    say("unregister", call("cuMemHostUnregister", page))
    say("unregister again", call("cuMemHostUnregister", page))
    say("register 0 bytes", call("cuMemHostRegister_v2", page, size(0), 0))
    say("register NULL", call("cuMemHostRegister_v2", None, size(10), 0))
    say("register unaligned", call("cuMemHostRegister_v2", pointer((page.value or 0) + 10), size(10), 0))


class Copy2D(c.Structure):
    _fields_ = (
        *(
            (f"{side}_{name}", kind)
            for side in ("src", "dst")
            for name, kind in (
                ("x", c.c_size_t),
                ("y", c.c_size_t),
                ("type", c.c_uint),
                ("host", c.c_void_p),
                ("device", c.c_uint64),
                ("array", c.c_void_p),
                ("pitch", c.c_size_t),
            )
        ),
        ("width", c.c_size_t),
        ("height", c.c_size_t),
    )


@case
def copies() -> None:
    """
    to the last byte | 0
    one byte more | 1
    whole block | 1
    inside, to the end | 0
    inside, over the end | 1
    nothing to nowhere | 0
    from NULL | 1
    to garbage | 1
    to 0 | 1
    from garbage | 1
    to host memory | 1
    from device memory | 0
    between devices | 0
    unified | 0 0 0
    asynchronous | 0 0 0
    asynchronous to garbage | 1
    round trip | True
    memset | 0 1
    memset garbage | 1
    memset nothing | 0
    memset host memory | 1
    memset 16 unaligned | 1
    memset 32 unaligned | 1
    memset 32 | 0 True
    memset 2D | 0
    memset 2D, pitch too small | 1
    memset 2D, width 0 | 0
    memset 2D over the end | 1
    2D | 0
    2D, width 0 | 0
    2D, pitch too small | 1
    2D, one row, no pitch | 0
    2D, type 0 | 1
    2D, type 9 | 1
    2D, no host | 1
    2D, to garbage | 1
    2D, unified | 0
    2D, past the pitch | 1
    2D over the end | 1
    """
    current()
    p, q = allocated(1000), allocated(1000)
    h, back = c.create_string_buffer(os.urandom(4096), 4096), c.create_string_buffer(4096)
    here = c.addressof(h)
    say("to the last byte", call("cuMemcpyHtoD_v2", p, h, size(1000)))
    say("one byte more", call("cuMemcpyHtoD_v2", p, h, size(1001)))
    say("whole block", call("cuMemcpyHtoD_v2", p, c.create_string_buffer(2 * MIB), size(2 * MIB)))
    say("inside, to the end", call("cuMemcpyHtoD_v2", u64(p.value + 500), c.byref(h, 500), size(500)))
    say("inside, over the end", call("cuMemcpyHtoD_v2", u64(p.value + 500), h, size(501)))
    say("nothing to nowhere", call("cuMemcpyHtoD_v2", u64(0x1234), None, size(0)))
    say("from NULL", call("cuMemcpyHtoD_v2", p, None, size(8)))
    say("to garbage", call("cuMemcpyHtoD_v2", u64(0x1234), h, size(8)))
    say("to 0", call("cuMemcpyHtoD_v2", u64(0), h, size(8)))
    say("from garbage", call("cuMemcpyDtoH_v2", back, u64(0x1234), size(8)))
    say("to host memory", call("cuMemcpyHtoD_v2", u64(here), h, size(8)))
    say("from device memory", call("cuMemcpyHtoD_v2", q, pointer(p.value), size(8)))
    say("between devices", call("cuMemcpyDtoD_v2", q, p, size(1000)))
    results = (
        call("cuMemcpy", u64(c.addressof(back)), u64(here), size(100)),
        call("cuMemcpy", q, u64(here), size(100)),
        call("cuMemcpy", u64(c.addressof(back)), q, size(100)),
    )
    say("unified", *results)
    results = (
        call("cuMemcpyHtoDAsync_v2", p, h, size(1000), None),
        call("cuMemcpyAsync", q, p, size(1000), None),
        call("cuMemcpyDtoHAsync_v2", back, q, size(1000), None),
    )
    say("asynchronous", *results)
    say("asynchronous to garbage", call("cuMemcpyHtoDAsync_v2", u64(0x1234), h, size(8), None))
    call("cuCtxSynchronize")
    say("round trip", back.raw[:1000] == h.raw[:1000])
    say("memset", call("cuMemsetD8_v2", p, 1, size(1000)), call("cuMemsetD8_v2", p, 1, size(1001)))
    say("memset garbage", call("cuMemsetD8_v2", u64(0x12), 1, size(1)))
    say("memset nothing", call("cuMemsetD8_v2", u64(0), 1, size(0)))
    say("memset host memory", call("cuMemsetD8_v2", u64(here), 1, size(1)))
    say("memset 16 unaligned", call("cuMemsetD16_v2", u64(p.value + 1), 1, size(1)))
    say("memset 32 unaligned", call("cuMemsetD32_v2", u64(p.value + 2), 1, size(1)))
    result = call("cuMemsetD32_v2", p, 0x01020304, size(250))
    call("cuMemcpyDtoH_v2", back, p, size(1000))
    say("memset 32", result, back.raw[:1000] == bytes((4, 3, 2, 1)) * 250)
    say("memset 2D", call("cuMemsetD2D8_v2", p, size(100), 1, size(50), size(10)))
    say("memset 2D, pitch too small", call("cuMemsetD2D8_v2", p, size(10), 1, size(50), size(10)))
    say("memset 2D, width 0", call("cuMemsetD2D8_v2", p, size(100), 1, size(0), size(10)))
    say("memset 2D over the end", call("cuMemsetD2D8_v2", p, size(100), 1, size(50), size(100000)))

    def plane(what: str, **changes: object) -> None:
        values: dict[str, object] = {
            "src_type": 1, "src_host": here, "src_pitch": 100, "dst_type": 2, "dst_device": p.value, "dst_pitch": 100,
            "width": 50, "height": 5,
        }  # fmt: skip
        say(what, call("cuMemcpy2D_v2", at(Copy2D(**{**values, **changes}))))

    plane("2D")
    plane("2D, width 0", width=0)
    plane("2D, pitch too small", dst_pitch=10)
    plane("2D, one row, no pitch", height=1, dst_pitch=0, src_pitch=0)
    plane("2D, type 0", dst_type=0)
    plane("2D, type 9", dst_type=9)
    plane("2D, no host", src_host=None)
    plane("2D, to garbage", dst_device=0x1234)
    plane("2D, unified", dst_type=4)
    plane("2D, past the pitch", dst_x=60)
    plane("2D over the end", height=1000)


@case
def streams() -> None:
    """
    create | 0
    flags 2 | 1
    NULL | 1
    priority 1 | 0 0
    priority -5 | 0 -5
    priority -6 | 0 -5
    flags of the default | 0 0
    context | 0 True
    id of the default | 0 7
    id of the legacy | 0 7
    device | 0 0
    query | 0 0 0 0
    synchronize | 0 0 0
    capturing | 0 0
    capturing NULL | 1
    capture info | 0 0 77
    destroy the default | 400
    destroy the legacy | 400
    destroy | 0
    host function | 0 0 [5]
    no host function | 1
    """
    context = current()
    s, other, v, w, i = pointer(), pointer(), c.c_int(7), c.c_uint(7), u64(7)
    say("create", call("cuStreamCreate", at(s), 0))
    say("flags 2", call("cuStreamCreate", at(other), 2))
    say("NULL", call("cuStreamCreate", None, 0))
    for priority in (1, -5, -6):
        result = call("cuStreamCreateWithPriority", at(other), 1, priority)
        call("cuStreamGetPriority", other, at(v))
        say(f"priority {priority}", result, v.value)
    say("flags of the default", call("cuStreamGetFlags", None, at(w)), w.value)
    result = call("cuStreamGetCtx", s, at(other))
    say("context", result, other.value == context.value)
    say("id of the default", call("cuStreamGetId", None, at(i)), i.value)
    say("id of the legacy", call("cuStreamGetId", pointer(1), at(i)), i.value)
    say("device", call("cuStreamGetDevice", s, at(v)), v.value)
    say("query", *(call("cuStreamQuery", handle) for handle in (s, None, pointer(1), pointer(2))))
    say("synchronize", *(call("cuStreamSynchronize", handle) for handle in (s, pointer(1), pointer(2))))
    v.value = 77
    say("capturing", call("cuStreamIsCapturing", s, at(v)), v.value)
    say("capturing NULL", call("cuStreamIsCapturing", s, None))
    i.value = 77
    say("capture info", call("cuStreamGetCaptureInfo_v2", s, at(v), at(i), None, None, None), v.value, i.value)
    say("destroy the default", call("cuStreamDestroy_v2", None))
    say("destroy the legacy", call("cuStreamDestroy_v2", pointer(1)))
    say("destroy", call("cuStreamDestroy_v2", s))
    got: list[int] = []
    function = c.CFUNCTYPE(None, c.c_void_p)(lambda data: got.append(data))
    results = call("cuLaunchHostFunc", None, function, pointer(5)), call("cuStreamSynchronize", None)
    say("host function", *results, got)
    say("no host function", call("cuLaunchHostFunc", None, None, None))


@case
def events() -> None:
    """
    flags | 0 0 0 0 1 1 0 0 1
    NULL | 1
    query, not recorded | 0
    synchronize, not recorded | 0
    elapsed, not recorded | 400
    wait for one not recorded | 0
    record | 0
    elapsed, one recorded | 400
    elapsed | 0 True
    elapsed, the other way | 0 True
    elapsed without timing | 400
    no event | 400 400 400 400 400
    record external | 401
    record flags 2 | 1
    wait external | 401
    wait flags 2 | 1
    destroy | 0
    query a destroyed one | 709
    destroy again | 709
    """
    current()
    s, a, b, untimed, t = pointer(), pointer(), pointer(), pointer(), c.c_float(7)
    call("cuStreamCreate", at(s), 0)
    say("flags", *(call("cuEventCreate", at(a), flags) for flags in range(9)))
    say("NULL", call("cuEventCreate", None, 0))
    call("cuEventCreate", at(a), 0)
    call("cuEventCreate", at(b), 0)
    call("cuEventCreate", at(untimed), 2)
    say("query, not recorded", call("cuEventQuery", a))
    say("synchronize, not recorded", call("cuEventSynchronize", a))
    say("elapsed, not recorded", call("cuEventElapsedTime", at(t), a, b))
    say("wait for one not recorded", call("cuStreamWaitEvent", s, a, 0))
    say("record", call("cuEventRecord", a, s))
    call("cuEventRecord", untimed, s)
    say("elapsed, one recorded", call("cuEventElapsedTime", at(t), a, b))
    call("cuEventRecord", b, s)
    call("cuStreamSynchronize", s)
    say("elapsed", call("cuEventElapsedTime", at(t), a, b), t.value >= 0)
    say("elapsed, the other way", call("cuEventElapsedTime", at(t), b, a), t.value <= 0)
    say("elapsed without timing", call("cuEventElapsedTime", at(t), a, untimed))
    results = (
        call("cuEventRecord", None, s),
        call("cuEventQuery", None),
        call("cuEventSynchronize", None),
        call("cuEventDestroy_v2", None),
        call("cuStreamWaitEvent", s, None, 0),
    )
    say("no event", *results)
    say("record external", call("cuEventRecordWithFlags", a, s, 1))
    say("record flags 2", call("cuEventRecordWithFlags", a, s, 2))
    say("wait external", call("cuStreamWaitEvent", s, a, 1))
    say("wait flags 2", call("cuStreamWaitEvent", s, a, 2))
    say("destroy", call("cuEventDestroy_v2", b))
    say("query a destroyed one", call("cuEventQuery", b))
    say("destroy again", call("cuEventDestroy_v2", b))


@case
def stream_destroyed_twice() -> None:
    """
    died | 11
    """
    current()
    s = pointer()
    call("cuStreamCreate", at(s), 0)
    call("cuStreamDestroy_v2", s)
    call("cuStreamDestroy_v2", s)


@case
def launch_into_destroyed_stream() -> None:
    """
    died | 11
    """
    function, parameters = vadd_of(current())
    s = pointer()
    call("cuStreamCreate", at(s), 0)
    call("cuStreamDestroy_v2", s)
    call("cuLaunchKernel", function, 1, 1, 1, 32, 1, 1, 0, s, parameters, None)


@case
def launch_of_unloaded_module() -> None:
    """
    died | 11
    """
    current()
    m, function = pointer(), pointer()
    call("cuModuleLoadData", at(m), PTX)
    call("cuModuleGetFunction", at(function), m, b"vadd")
    call("cuModuleUnload", m)
    call("cuLaunchKernel", function, 1, 1, 1, 32, 1, 1, 0, None, no_parameters(), None)


_kept: list[object] = []


def no_parameters() -> c.Array[c.c_void_p]:
    """Three null pointers and a length of 0 for vadd."""
    values = (u64(0), u64(0), u64(0), c.c_uint(0))
    _kept.append(values)
    return (c.c_void_p * 4)(*map(c.addressof, values))


def vadd_of(_context: c.c_void_p) -> tuple[c.c_void_p, c.Array[c.c_void_p]]:
    m, function = pointer(), pointer()
    assert call("cuModuleLoadData", at(m), PTX) == 0
    assert call("cuModuleGetFunction", at(function), m, b"vadd") == 0
    return function, no_parameters()


@case
def modules() -> None:
    """
    load | 0
    function | 0
    the same again | True
    no such function | 500
    function NULL | 1
    function, no name | 1
    function, empty name | 1
    function of no module | 400
    global | 0 4
    constant | 0 32
    no such global | 500 0
    functions | 0 2
    attributes | 1024 0 32 0 52 0 -1
    attribute 16 | 1 77
    set attribute 0 | 1
    dynamic shared memory 100000 | 0 100000
    dynamic shared memory -1 | 1
    dynamic shared memory 1 MiB | 1
    carveout 101 | 1
    carveout -1 | 0
    name | 0 vadd
    module | 0 True
    parameters | 0:8 8:8 16:8 24:4
    parameter 4 | 1 77
    parameters of the other | 0:1 16:24 40:8
    loading mode | 0 2
    junk | 200
    empty | 200
    header only | 0
    no such instruction | 218
    version 99 | 222
    sm_999 | 218
    truncated ELF | 200
    fat binary without parts | 209
    NULL image | 1
    NULL module | 1
    comment first | 0
    no file | 301
    not an image | 200
    unload | 0
    unload again | 400
    unload garbage | 400
    """
    current()
    m, function, again, p, n, v = pointer(), pointer(), pointer(), u64(7), size(7), c.c_int(77)
    say("load", call("cuModuleLoadData", at(m), PTX))
    say("function", call("cuModuleGetFunction", at(function), m, b"vadd"))
    call("cuModuleGetFunction", at(again), m, b"vadd")
    say("the same again", again.value == function.value)
    say("no such function", call("cuModuleGetFunction", at(again), m, b"nope"))
    say("function NULL", call("cuModuleGetFunction", None, m, b"vadd"))
    say("function, no name", call("cuModuleGetFunction", at(again), m, None))
    say("function, empty name", call("cuModuleGetFunction", at(again), m, b""))
    say("function of no module", call("cuModuleGetFunction", at(again), None, b"vadd"))
    say("global", call("cuModuleGetGlobal_v2", at(p), at(n), m, b"counter"), n.value)
    say("constant", call("cuModuleGetGlobal_v2", at(p), at(n), m, b"table"), n.value)
    say("no such global", call("cuModuleGetGlobal_v2", at(p), at(n), m, b"nope"), p.value)
    say("functions", call("cuModuleGetFunctionCount", at(v), m), v.value)
    values = []
    for which in (0, 1, 2, 3, 5, 7, 9):
        call("cuFuncGetAttribute", at(v), which, function)
        values.append(v.value)
    say("attributes", *values)
    v.value = 77
    say("attribute 16", call("cuFuncGetAttribute", at(v), 16, function), v.value)
    say("set attribute 0", call("cuFuncSetAttribute", function, 0, 1))
    result = call("cuFuncSetAttribute", function, 8, 100000)
    call("cuFuncGetAttribute", at(v), 8, function)
    say("dynamic shared memory 100000", result, v.value)
    say("dynamic shared memory -1", call("cuFuncSetAttribute", function, 8, -1))
    say("dynamic shared memory 1 MiB", call("cuFuncSetAttribute", function, 8, MIB))
    say("carveout 101", call("cuFuncSetAttribute", function, 9, 101))
    say("carveout -1", call("cuFuncSetAttribute", function, 9, -1))
    text = c.c_char_p()
    say("name", call("cuFuncGetName", at(text), function), (text.value or b"").decode())
    result = call("cuFuncGetModule", at(again), function)
    say("module", result, again.value == m.value)

    def layout(of: c.c_void_p, count: int) -> str:
        parts = []
        for index in range(count):
            offset, bytes_of = size(77), size(77)
            assert call("cuFuncGetParamInfo", of, size(index), at(offset), at(bytes_of)) == 0
            parts.append(f"{offset.value}:{bytes_of.value}")
        return " ".join(parts)

    say("parameters", layout(function, 4))
    offset = size(77)
    say("parameter 4", call("cuFuncGetParamInfo", function, size(4), at(offset), at(n)), offset.value)
    other = pointer()
    call("cuModuleGetFunction", at(other), m, b"other")
    say("parameters of the other", layout(other, 3))
    say("loading mode", call("cuModuleGetLoadingMode", at(v)), v.value)
    for what, image in (
        ("junk", b"hello this is junk"),
        ("empty", b""),
        ("header only", HEAD),
        ("no such instruction", HEAD + b".visible .entry x(){ bogus; }"),
        ("version 99", b".version 99.0\n.target sm_52\n.address_size 64\n"),
        ("sm_999", b".version 8.0\n.target sm_999\n.address_size 64\n"),
        ("truncated ELF", b"\x7fELF" + b"\0" * 100),
        ("fat binary without parts", b"\x50\xed\x55\xba\x01\x00\x10\x00" + b"\0" * 64),
    ):
        say(what, call("cuModuleLoadData", at(again), image))
    say("NULL image", call("cuModuleLoadData", at(again), None))
    say("NULL module", call("cuModuleLoadData", None, PTX))
    say("comment first", call("cuModuleLoadData", at(again), b"// a comment\n" + PTX))
    say("no file", call("cuModuleLoad", at(again), b"/nonexistent"))
    say("not an image", call("cuModuleLoad", at(again), b"/etc/passwd"))
    say("unload", call("cuModuleUnload", m))
    say("unload again", call("cuModuleUnload", m))
    say("unload garbage", call("cuModuleUnload", (c.c_uint64 * 512)()))


@case
def libraries() -> None:
    """
    load without context | 0
    kernel | 0
    no such kernel | 500
    kernels | 0 2
    all kernels | 0 True
    function without context | 201
    name | 0 vadd
    parameter without context | 201
    attribute | 0 1024
    library | 0 True
    module without context | 201
    function | 0
    module | 0
    global | 0 4
    no such global | 500
    not managed | 500
    not unified | 1
    launch of a kernel | 0 0
    launch of a function | 0
    launch without parameters | 1
    unload | 0
    junk loads | 0
    kernel of junk | 200
    kernels of junk | 0 0
    bad PTX loads | 0
    kernel of bad PTX | 218
    NULL | 1
    no file | 301
    unload NULL | 400
    """
    start()
    lib, kernel, n, arr = pointer(), pointer(), c.c_uint(7), (c.c_void_p * 4)()
    text, v, z, o = c.c_char_p(), c.c_int(7), size(7), size(7)
    say("load without context", call("cuLibraryLoadData", at(lib), PTX, None, None, 0, None, None, 0))
    say("kernel", call("cuLibraryGetKernel", at(kernel), lib, b"vadd"))
    say("no such kernel", call("cuLibraryGetKernel", at(pointer()), lib, b"nope"))
    say("kernels", call("cuLibraryGetKernelCount", at(n), lib), n.value)
    result = call("cuLibraryEnumerateKernels", arr, 4, lib)
    say("all kernels", result, kernel.value in list(arr))
    function, module, other = pointer(), pointer(), pointer()
    say("function without context", call("cuKernelGetFunction", at(function), kernel))
    say("name", call("cuKernelGetName", at(text), kernel), (text.value or b"").decode())
    say("parameter without context", call("cuKernelGetParamInfo", kernel, size(3), at(o), at(z)))
    say("attribute", call("cuKernelGetAttribute", at(v), 0, kernel, 0), v.value)
    result = call("cuKernelGetLibrary", at(other), kernel)
    say("library", result, other.value == lib.value)
    say("module without context", call("cuLibraryGetModule", at(module), lib))
    current()
    say("function", call("cuKernelGetFunction", at(function), kernel))
    say("module", call("cuLibraryGetModule", at(module), lib))
    p = u64()
    say("global", call("cuLibraryGetGlobal", at(p), at(z), lib, b"counter"), z.value)
    say("no such global", call("cuLibraryGetGlobal", at(p), at(z), lib, b"nope"))
    say("not managed", call("cuLibraryGetManaged", at(p), at(z), lib, b"counter"))
    say("not unified", call("cuLibraryGetUnifiedFunction", at(other), lib, b"vadd"))
    launch = (1, 1, 1, 32, 1, 1, 0, None)
    results = call("cuLaunchKernel", kernel, *launch, no_parameters(), None), call("cuCtxSynchronize")
    say("launch of a kernel", *results)
    say("launch of a function", call("cuLaunchKernel", function, *launch, no_parameters(), None))
    say("launch without parameters", call("cuLaunchKernel", function, *launch, None, None))
    call("cuCtxSynchronize")
    say("unload", call("cuLibraryUnload", lib))
    say("junk loads", call("cuLibraryLoadData", at(lib), b"junk junk", None, None, 0, None, None, 0))
    say("kernel of junk", call("cuLibraryGetKernel", at(kernel), lib, b"vadd"))
    say("kernels of junk", call("cuLibraryGetKernelCount", at(n), lib), n.value)
    bad = HEAD + b".visible .entry x(){ bogus; }"
    say("bad PTX loads", call("cuLibraryLoadData", at(lib), bad, None, None, 0, None, None, 0))
    say("kernel of bad PTX", call("cuLibraryGetKernel", at(kernel), lib, b"x"))
    say("NULL", call("cuLibraryLoadData", at(lib), None, None, None, 0, None, None, 0))
    say("no file", call("cuLibraryLoadFromFile", at(lib), b"/nonexistent", None, None, 0, None, None, 0))
    say("unload NULL", call("cuLibraryUnload", None))


@case
def links() -> None:
    """
    create | 0
    add | 0
    add junk | 200
    complete | 0 True
    load the result | 0
    function | 0
    destroy | 0
    complete without input | 0
    add junk as a binary | 200
    add of type 99 | 1
    no file | 301
    NULL | 1
    """
    current()
    s, out, n, m, function = pointer(), pointer(), size(0), pointer(), pointer()
    say("create", call("cuLinkCreate_v2", 0, None, None, at(s)))
    say("add", call("cuLinkAddData_v2", s, 1, PTX, size(len(PTX) + 1), b"x.ptx", 0, None, None))
    say("add junk", call("cuLinkAddData_v2", s, 1, b"junk", size(5), b"x.ptx", 0, None, None))
    say("complete", call("cuLinkComplete", s, at(out), at(n)), n.value > 0)
    say("load the result", call("cuModuleLoadData", at(m), out))
    say("function", call("cuModuleGetFunction", at(function), m, b"vadd"))
    say("destroy", call("cuLinkDestroy", s))
    call("cuLinkCreate_v2", 0, None, None, at(s))
    say("complete without input", call("cuLinkComplete", s, at(out), at(n)))
    call("cuLinkDestroy", s)
    call("cuLinkCreate_v2", 0, None, None, at(s))
    say("add junk as a binary", call("cuLinkAddData_v2", s, 0, b"junkjunk", size(8), b"c", 0, None, None))
    say("add of type 99", call("cuLinkAddData_v2", s, 99, b"junkjunk", size(8), b"c", 0, None, None))
    say("no file", call("cuLinkAddFile_v2", s, 1, b"/nonexistent", 0, None, None))
    say("NULL", call("cuLinkCreate_v2", 0, None, None, None))


@case
def launches() -> None:
    """
    1 x 32 | 0
    grid 0 | 1
    block 0 | 1
    block 1025 | 1
    block z 65 | 1
    block 32 x 32 x 2 | 1
    grid y 65535 | 0
    grid y 65536 | 1
    grid z 65536 | 1
    grid x 2^31 | 1
    shared 48 KiB | 0
    shared 48 KiB + 1 | 1
    shared 1 GiB | 1
    parameters and extra | 1
    parameters and empty extra | 0
    extra | 0
    no parameters | 1
    no function | 400
    garbage function | 400
    per-thread variant | 0
    cooperative 1 x 32 | 0
    cooperative, too large | 720
    old launch | 0
    old block shape | 0
    old launch after it | 0
    old grid | 0
    synchronize | 0
    vadd | True
    """
    function, nothing = vadd_of(current())

    def launch(*dimensions: int, shared: int = 0, params: object = nothing, extra: object = None) -> int:
        return call("cuLaunchKernel", function, *dimensions, shared, None, params, extra)

    say("1 x 32", launch(1, 1, 1, 32, 1, 1))
    say("grid 0", launch(0, 1, 1, 32, 1, 1))
    say("block 0", launch(1, 1, 1, 0, 1, 1))
    say("block 1025", launch(1, 1, 1, 1025, 1, 1))
    say("block z 65", launch(1, 1, 1, 1, 1, 65))
    say("block 32 x 32 x 2", launch(1, 1, 1, 32, 32, 2))
    say("grid y 65535", launch(1, 65535, 1, 1, 1, 1))
    say("grid y 65536", launch(1, 65536, 1, 1, 1, 1))
    say("grid z 65536", launch(1, 1, 65536, 1, 1, 1))
    say("grid x 2^31", launch(1 << 31, 1, 1, 1, 1, 1))
    say("shared 48 KiB", launch(1, 1, 1, 32, 1, 1, shared=49152))
    say("shared 48 KiB + 1", launch(1, 1, 1, 32, 1, 1, shared=49153))
    say("shared 1 GiB", launch(1, 1, 1, 32, 1, 1, shared=1 << 30))
    buffer, n = (c.c_uint8 * 28)(), size(28)
    extra = (c.c_void_p * 5)(1, c.addressof(buffer), 2, c.addressof(n), 0)
    say("parameters and extra", launch(1, 1, 1, 32, 1, 1, extra=extra))
    say("parameters and empty extra", launch(1, 1, 1, 32, 1, 1, extra=(c.c_void_p * 1)(0)))
    say("extra", launch(1, 1, 1, 32, 1, 1, params=None, extra=extra))
    say("no parameters", launch(1, 1, 1, 32, 1, 1, params=None))
    say("no function", call("cuLaunchKernel", None, 1, 1, 1, 32, 1, 1, 0, None, nothing, None))
    say("garbage function", call("cuLaunchKernel", (c.c_uint64 * 512)(), 1, 1, 1, 32, 1, 1, 0, None, nothing, None))
    say("per-thread variant", call("cuLaunchKernel_ptsz", function, 1, 1, 1, 32, 1, 1, 0, None, nothing, None))
    say("cooperative 1 x 32", call("cuLaunchCooperativeKernel", function, 1, 1, 1, 32, 1, 1, 0, None, nothing))
    say("cooperative, too large", call("cuLaunchCooperativeKernel", function, 100000, 1, 1, 32, 1, 1, 0, None, nothing))
    say("old launch", call("cuLaunch", function))
    say("old block shape", call("cuFuncSetBlockShape", function, 32, 1, 1))
    say("old launch after it", call("cuLaunch", function))
    say("old grid", call("cuLaunchGrid", function, 2, 1))
    say("synchronize", call("cuCtxSynchronize"))
    count = 1000
    x, y, z = ((c.c_float * count)() for _ in range(3))
    for i in range(count):
        x[i], y[i] = i, 0.5 * i
    a, b, out = (allocated(4 * count) for _ in range(3))
    call("cuMemcpyHtoD_v2", a, x, size(4 * count))
    call("cuMemcpyHtoD_v2", b, y, size(4 * count))
    values = (a, b, out, c.c_uint(count))
    call("cuLaunchKernel", function, 4, 1, 1, 256, 1, 1, 0, None, (c.c_void_p * 4)(*map(c.addressof, values)), None)
    call("cuMemcpyDtoH_v2", z, out, size(4 * count))
    say("vadd", all(z[i] == 1.5 * i for i in range(count)))


@case
def occupancy() -> None:
    """
    by threads | 32 32 16 8 4 2 0 16
    0 threads | 1
    -1 threads | 1
    with flags 1 | 0 8
    with flags 4 | 1
    NULL | 1
    no function | 400
    best block | 0 1024
    best block of at most 128 | 0 128
    best block of at most 1000 | 0 512
    """
    function, _ = vadd_of(current())
    b, x, y = c.c_int(77), c.c_int(), c.c_int()
    ask = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
    values = []
    for threads in (32, 64, 128, 256, 512, 1024, 1025, 100):
        call(ask, at(b), function, threads, size(0))
        values.append(b.value)
    say("by threads", *values)
    say("0 threads", call(ask, at(b), function, 0, size(0)))
    say("-1 threads", call(ask, at(b), function, -1, size(0)))
    say("with flags 1", call(f"{ask}WithFlags", at(b), function, 256, size(0), 1), b.value)
    say("with flags 4", call(f"{ask}WithFlags", at(b), function, 256, size(0), 4))
    say("NULL", call(ask, None, function, 32, size(0)))
    say("no function", call(ask, at(b), None, 32, size(0)))
    best = "cuOccupancyMaxPotentialBlockSize"
    say("best block", call(best, at(x), at(y), function, None, size(0), 0), y.value)
    for limit in (128, 1000):
        result = call(best, at(x), at(y), function, None, size(0), limit)
        say(f"best block of at most {limit}", result, y.value)


@case
def forked() -> None:
    """
    cuInit | 3
    cuMemAlloc | 3 0
    cuMemFree | 3
    memory info | 3 0
    current | 3 untouched
    device | 3 7
    count | 3 7
    version | 0 13000
    retain | 3
    resolver | 0 True
    parent | 0 0
    """
    current()
    p = allocated(MIB)
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        q, n, d, s, t = u64(7), size(7), c.c_int(7), pointer(7), c.c_int(7)
        say("cuInit", call("cuInit", 0))
        say("cuMemAlloc", call("cuMemAlloc_v2", at(q), size(64)), q.value)
        say("cuMemFree", call("cuMemFree_v2", p))
        say("memory info", call("cuMemGetInfo_v2", at(n), at(n)), n.value)
        say("current", call("cuCtxGetCurrent", at(s)), "untouched" if s.value == 7 else s.value)
        say("device", call("cuCtxGetDevice", at(d)), d.value)
        say("count", call("cuDeviceGetCount", at(d)), d.value)
        say("version", call("cuDriverGetVersion", at(t)), t.value)
        say("retain", call("cuDevicePrimaryCtxRetain", at(s), 0))
        found = pointer()
        result = call("cuGetProcAddress_v2", b"cuMemAlloc", at(found), 12000, u64(0), None)
        say("resolver", result, bool(found.value))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    say("parent", status, call("cuMemFree_v2", p))


@case
def forked_before_init() -> None:
    """
    child | 0 0
    parent | 0 0
    """
    n = c.c_int(7)
    call("cuDriverGetVersion", at(n))
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        start()
        p = u64()
        current()
        say("child", call("cuMemAlloc_v2", at(p), size(MIB)), call("cuMemFree_v2", p))
        os._exit(0)
    os.waitpid(child, 0)
    p = u64()
    current()
    say("parent", call("cuMemAlloc_v2", at(p), size(MIB)), call("cuMemFree_v2", p))


@case
def resolver() -> None:
    """
    cuMemAlloc 2000 | 0 cuMemAlloc 0
    cuMemAlloc 3020 | 0 cuMemAlloc_v2 0
    cuMemAlloc 12000 | 0 cuMemAlloc_v2 0
    cuMemAlloc -1 | 0 cuMemAlloc_v2 0
    cuMemAlloc 1 | 0 None 2
    cuMemAlloc 13010 | 1 untouched 77
    cuMemAlloc 99999 | 1 untouched 77
    cuMemAlloc_v2 12000 | 0 None 1
    cuNoSuchThing 12000 | 0 None 1
    cuNoSuchThing 14000 | 1 untouched 77
    cumemalloc 12000 | 0 None 1
    cudaMalloc 12000 | 0 None 1
    empty name | 0 None 1
    cuCtxCreate 12050 | 0 cuCtxCreate_v4 0
    cuCtxGetDevice 13000 | 0 cuCtxGetDevice_v2 0
    cuGetProcAddress 12000 | 0 cuGetProcAddress_v2 0
    cuMemcpyHtoD flags 1 | 0 cuMemcpyHtoD_v2 0
    cuMemcpyHtoD flags 2 | 0 cuMemcpyHtoD_v2_ptds 0
    cuMemcpyHtoD flags 3 | 0 cuMemcpyHtoD_v2_ptds 0
    cuLaunchKernel flags 2 | 0 cuLaunchKernel_ptsz 0
    cuMemAlloc flags 2 | 0 cuMemAlloc_v2 0
    cuMemAlloc flags 4 | 1 untouched 77
    cuMemAlloc flags 8 | 1 untouched 77
    no status | 0 cuInit
    no status, unknown | 0 None
    first entry, unknown | 500 untouched
    first entry, 2000 | 0 cuMemAlloc
    first entry, 99999 | 1 untouched
    export table | 1 None
    export table NULL id | 1
    export table NULL | 1
    """
    call("cuDriverGetVersion", at(c.c_int()))
    assert _library is not None
    names = ["cuMemAlloc", "cuMemAlloc_v2", "cuCtxCreate_v4", "cuCtxGetDevice_v2", "cuGetProcAddress_v2"]
    names += ["cuMemcpyHtoD_v2", "cuMemcpyHtoD_v2_ptds", "cuLaunchKernel_ptsz", "cuInit"]
    known = {c.cast(getattr(_library, name), c.c_void_p).value: name for name in names}

    def found(value: int | None) -> str:
        return "untouched" if value == 7 else "None" if value is None else known.get(value, "another")

    for what, name, version, flags in (
        ("cuMemAlloc 2000", b"cuMemAlloc", 2000, 0),
        ("cuMemAlloc 3020", b"cuMemAlloc", 3020, 0),
        ("cuMemAlloc 12000", b"cuMemAlloc", 12000, 0),
        ("cuMemAlloc -1", b"cuMemAlloc", -1, 0),
        ("cuMemAlloc 1", b"cuMemAlloc", 1, 0),
        ("cuMemAlloc 13010", b"cuMemAlloc", 13010, 0),
        ("cuMemAlloc 99999", b"cuMemAlloc", 99999, 0),
        ("cuMemAlloc_v2 12000", b"cuMemAlloc_v2", 12000, 0),
        ("cuNoSuchThing 12000", b"cuNoSuchThing", 12000, 0),
        ("cuNoSuchThing 14000", b"cuNoSuchThing", 14000, 0),
        ("cumemalloc 12000", b"cumemalloc", 12000, 0),
        ("cudaMalloc 12000", b"cudaMalloc", 12000, 0),
        ("empty name", b"", 12000, 0),
        ("cuCtxCreate 12050", b"cuCtxCreate", 12050, 0),
        ("cuCtxGetDevice 13000", b"cuCtxGetDevice", 13000, 0),
        ("cuGetProcAddress 12000", b"cuGetProcAddress", 12000, 0),
        ("cuMemcpyHtoD flags 1", b"cuMemcpyHtoD", 12000, 1),
        ("cuMemcpyHtoD flags 2", b"cuMemcpyHtoD", 12000, 2),
        ("cuMemcpyHtoD flags 3", b"cuMemcpyHtoD", 12000, 3),
        ("cuLaunchKernel flags 2", b"cuLaunchKernel", 12000, 2),
        ("cuMemAlloc flags 2", b"cuMemAlloc", 12000, 2),
        ("cuMemAlloc flags 4", b"cuMemAlloc", 12000, 4),
        ("cuMemAlloc flags 8", b"cuMemAlloc", 12000, 8),
    ):
        function, status = pointer(7), c.c_int(77)
        result = call("cuGetProcAddress_v2", name, at(function), version, u64(flags), at(status))
        say(what, result, found(function.value), status.value)
    for what, name in (("no status", b"cuInit"), ("no status, unknown", b"cuNoSuchThing")):
        function = pointer(7)
        result = call("cuGetProcAddress_v2", name, at(function), 12000, u64(0), None)
        say(what, result, found(function.value))
    for what, name, version in (
        ("first entry, unknown", b"cuNoSuchThing", 12000),
        ("first entry, 2000", b"cuMemAlloc", 2000),
        ("first entry, 99999", b"cuMemAlloc", 99999),
    ):
        function = pointer(7)
        result = call("cuGetProcAddress", name, at(function), version, u64(0))
        say(what, result, found(function.value))
    table = pointer(7)
    say("export table", call("cuGetExportTable", at(table), b"0123456789abcdef"), table.value)
    say("export table NULL id", call("cuGetExportTable", at(table), None))
    say("export table NULL", call("cuGetExportTable", None, b"0123456789abcdef"))


@case
def resolver_null_pointer() -> None:
    """
    died | 11
    """
    call("cuGetProcAddress_v2", b"cuInit", None, 12000, u64(0), None)


@case
def resolver_null_name() -> None:
    """
    died | 11
    """
    call("cuGetProcAddress_v2", None, at(pointer()), 12000, u64(0), None)


VISIBLE = {
    "0": "0 1", "GPU-+8hex": "0 1", "GPU-+2hex": "0 1", "full": "0 1", "GPU-": "100", "bare": "100", "upper": "0 1",
    "-1": "100", "": "100", "0,0": "101", "junk": "100", "1": "100", "0,1": "0 1", "1,0": "100", "0,junk": "0 1",
    "junk,0": "100", "0,-1": "0 1", "-1,0": "100", " 0": "0 1", "0 ": "0 1", "00": "0 1", "+0": "0 1", "0x0": "0 1",
    "0junk": "0 1", "NoDevFiles": "100", "none": "100", "all": "100", "void": "100", "full,full": "101",
    "0,full": "0 1", "MIG-x": "100", ",": "100", "0,": "0 1", "GPU-wrong": "100",
}  # fmt: skip


def uuid_text() -> str:
    start()
    raw = c.create_string_buffer(16)
    call("cuDeviceGetUuid_v2", raw, 0)
    h = raw.raw.hex()
    return f"GPU-{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"


@case
def visible_devices() -> None:
    """ """
    child = subprocess.run([sys.executable, __file__, "_uuid"], capture_output=True, text=True, check=True)
    full = child.stdout.strip()
    # bare: from its first letter on, because leading digits are read as an ordinal ("0junk"), which some cards have
    for key in VISIBLE:
        value = {
            "GPU-+8hex": full[:12], "GPU-+2hex": full[:6], "upper": full.upper(),
            "bare": full[4:].lstrip("0123456789-"),
            "full,full": f"{full},{full}", "0,full": f"0,{full}", "full": full,
            "GPU-wrong": "GPU-" + "".join("f" if digit != "f" else "0" for digit in full[4:12]),
        }.get(key, key)  # fmt: skip
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": value}
        done = subprocess.run([sys.executable, __file__, "_count"], capture_output=True, text=True, env=environment)
        say(repr(key), done.stdout.strip())


visible_devices.__doc__ = "\n".join(f"    {key!r} | {value}" for key, value in VISIBLE.items())


def count() -> None:
    result, n = call("cuInit", 0), c.c_int(7)
    seen = call("cuDeviceGetCount", at(n))
    print(f"{result} {n.value}" if result == 0 and seen == 0 else result if seen == 3 else f"{result} but count {seen}")


def expected(name: str) -> dict[str, str]:
    lines = (CASES[name].__doc__ or "").strip("\n").splitlines()
    return dict(line.strip("\n").lstrip().split(" | ", 1) for line in lines if " | " in line)


def seen(name: str, environment: dict[str, str] | None = None) -> dict[str, str]:
    """What the driver of this environment answers; `died` is the signal that ended the case."""
    done = subprocess.run(
        [sys.executable, __file__, name], capture_output=True, text=True, env=environment, timeout=120, check=False
    )
    answers = dict(line.split(" | ", 1) for line in done.stdout.splitlines() if " | " in line)
    if done.returncode:
        answers["died"] = str(-done.returncode) if done.returncode < 0 else done.stderr.strip().splitlines()[-1]
    return answers


# On a real driver these read freed memory: mostly a fault, now and then not.
LUCK = {"launch_into_destroyed_stream", "launch_of_unloaded_module", "stream_destroyed_twice"}


def check() -> int:
    wrong = assumed = 0
    for name in sorted(CASES.keys() - LUCK - FAKE_ONLY):
        answers, wanted = seen(name), expected(name)
        for what in {**wanted, **answers}:
            if answers.get(what) != wanted.get(what):
                wrong += name not in ASSUMED
                assumed += name in ASSUMED
                how = "assumed" if name in ASSUMED else "expected"
                print(f"{name} | {what}: {how} {wanted.get(what)}, seen {answers.get(what)}")
    facts = [len(expected(name)) for name in sorted(CASES.keys() - LUCK - FAKE_ONLY - ASSUMED)]
    print(f"{sum(facts)} facts, {wrong} wrong; of what was assumed, {assumed} wrong")
    return 1 if wrong else 0


sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.modules["cuda_cases"] = sys.modules[__name__]
for more in ("memory_cases", "graph_cases"):
    importlib.import_module(more)

if __name__ == "__main__":
    what = sys.argv[1]
    if what == "--check":
        sys.exit(check())
    elif what == "_uuid":
        print(uuid_text())
    elif what == "_count":
        count()
    else:
        CASES[what]()
