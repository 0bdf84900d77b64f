"""Cases of cuda_cases.py: Calls before cuInit and without a context, contexts, limits, fork."""

from __future__ import annotations

import ctypes as c
import os
import sys

from cuda_cases import HEAD, MIB, PTX, allocated, at, call, case, current, free, pointer, say, size, start, u64


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


PRINTS = b"""
.extern .func (.param .b32 r) vprintf (.param .b64 f, .param .b64 a);
.global .align 1 .b8 text[4] = {72, 105, 10, 0};
.visible .entry prints()
{
 .reg .b64 %rd<4>; .reg .b32 %r<2>;
 mov.u64 %rd1, text; cvta.global.u64 %rd2, %rd1; mov.u64 %rd3, 0;
 {
 .param .b64 p0; .param .b64 p1; .param .b32 q;
 st.param.b64 [p0+0], %rd2; st.param.b64 [p1+0], %rd3;
 call.uni (q), vprintf, (p0, p1);
 ld.param.b32 %r1, [q+0];
 }
 ret;
}
"""
ALLOCATES = b"""
.extern .func (.param .b64 r) malloc (.param .b64 n);
.visible .entry allocates()
{
 .reg .b64 %rd<4>;
 mov.u64 %rd1, 64;
 {
 .param .b64 p0; .param .b64 q;
 st.param.b64 [p0+0], %rd1;
 call.uni (q), malloc, (p0);
 ld.param.b64 %rd2, [q+0];
 }
 ret;
}
"""
LOCAL = b"""
.visible .entry local(.param .u64 out, .param .u32 i)
{
 .local .align 4 .b8 own[16384];
 .reg .b64 %rd<8>; .reg .b32 %r<8>; .reg .pred %p<2>;
 ld.param.u64 %rd1, [out]; ld.param.u32 %r1, [i]; mov.u64 %rd2, own; mov.u32 %r2, 0;
L: mul.wide.u32 %rd3, %r2, 4; add.s64 %rd4, %rd2, %rd3; st.local.u32 [%rd4], %r2;
 add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, 4096; @%p1 bra L;
 mul.wide.u32 %rd5, %r1, 4; add.s64 %rd6, %rd2, %rd5; ld.local.u32 %r3, [%rd6];
 cvta.to.global.u64 %rd7, %rd1; st.global.u32 [%rd7], %r3;
 ret;
}
"""


def loaded(source: bytes, name: bytes) -> tuple[int, c.c_void_p]:
    m, function = pointer(), pointer()
    result = call("cuModuleLoadData", at(m), HEAD + source)
    call("cuModuleGetFunction", at(function), m, name)
    return result, function


def ran(function: c.c_void_p, *values: object) -> tuple[int, int]:
    packed = (c.c_void_p * 4)(*(c.addressof(value) for value in values))  # type: ignore[arg-type]
    result = call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, None, packed if values else None, None)
    return result, call("cuCtxSynchronize")


def resident_threads() -> int:
    sms, threads = c.c_int(), c.c_int()
    call("cuDeviceGetAttribute", at(sms), 16, 0)
    call("cuDeviceGetAttribute", at(threads), 39, 0)
    return sms.value * threads.value


@case
def taken_by_modules() -> None:
    """
    plain module | 0 took 0
    plain module: launch | 0 0 took 0
    second plain module | 0 took 0
    module that prints | 0 took 67108864
    module that prints: launch | 0 0 took 0
    another that prints | 0 took 0
    printf buffer afterwards | 1
    module that allocates | 0 took 79691776
    module that allocates: launch | 0 0 took 10485760
    heap afterwards | 1
    """
    current()
    before = free()

    def took() -> str:
        nonlocal before
        was, before = before, free()
        return f"took {was - before}"

    for what, source, name in (
        ("plain module", b".visible .entry nothing() { ret; }", b"nothing"),
        ("second plain module", b".visible .entry nothing() { ret; }", b"nothing"),
        ("module that prints", PRINTS, b"prints"),
        ("another that prints", PRINTS, b"prints"),
        ("module that allocates", ALLOCATES, b"allocates"),
    ):
        result, function = loaded(source, name)
        say(what, result, took())
        if what not in ("second plain module", "another that prints"):
            say(f"{what}: launch", *ran(function), took())
        if what == "another that prints":
            say("printf buffer afterwards", call("cuCtxSetLimit", 1, size(16 * MIB)))
    say("heap afterwards", call("cuCtxSetLimit", 2, size(16 * MIB)))


@case
def taken_by_limits() -> None:
    """
    printf buffer 64 MiB | 0 took 0 now 67108864
    printf buffer 64 MiB: module | 0 took 67108864
    heap 64 MiB | 0 took 0 now 67108864
    heap 64 MiB: module | 0 took 79691776
    stack 2 KiB | 0 per thread 1024 now 2048
    stack 512 | 0 per thread -512 now 512
    stack 1000 | 0 now 1008
    stack 1 GiB | 1 now 1008
    """
    current()
    threads, value = resident_threads(), size(0)
    for what, limit, source, name in (
        ("printf buffer 64 MiB", 1, PRINTS, b"prints"),
        ("heap 64 MiB", 2, ALLOCATES, b"allocates"),
    ):
        before = free()
        result = call("cuCtxSetLimit", limit, size(64 * MIB))
        took, before = before - free(), free()
        call("cuCtxGetLimit", at(value), limit)
        say(what, result, "took", took, "now", value.value)
        result, _ = loaded(source, name)
        say(f"{what}: module", result, "took", before - free())
    before = free()
    for what, wanted in (("2 KiB", 2048), ("512", 512), ("1000", 1000), ("1 GiB", 1 << 30)):
        result = call("cuCtxSetLimit", 0, size(wanted))
        call("cuCtxGetLimit", at(value), 0)
        more = ("per thread", (before - free()) // threads) if wanted in (2048, 512) else ()
        say(f"stack {what}", result, *more, "now", value.value)


@case
def taken_by_launches() -> None:
    """
    load | 0 took 0
    local bytes | 0 16384
    first launch | 0 0 per thread 15360
    second launch | 0 0 per thread 0
    stack limit | 0 16384
    stack 2 KiB | 0 per thread -14336
    unloaded | 0 took 0
    """
    current()
    threads, value, before = resident_threads(), size(0), free()
    result, function = loaded(LOCAL, b"local")
    say("load", result, "took", before - free())
    n = c.c_int()
    say("local bytes", call("cuFuncGetAttribute", at(n), 3, function), n.value)
    p, i = allocated(4), c.c_uint(7)
    before = free()
    for what in ("first launch", "second launch"):
        results = ran(function, p, i)
        say(what, *results, "per thread", (before - free()) // threads)
        before = free()
    say("stack limit", call("cuCtxGetLimit", at(value), 0), value.value)
    say("stack 2 KiB", call("cuCtxSetLimit", 0, size(2048)), "per thread", (before - free()) // threads)
    before, m = free(), pointer()
    call("cuFuncGetModule", at(m), function)
    say("unloaded", call("cuModuleUnload", m), "took", before - free())
