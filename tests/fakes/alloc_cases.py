"""Cases of cuda_cases.py: Device, pitched, managed and pinned memory, and what a pointer is."""

from __future__ import annotations

import ctypes as c
import threading

from cuda_cases import MIB, allocated, at, call, case, current, free, pointer, say, size, total, u64


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
