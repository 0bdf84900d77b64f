"""Cases of cuda_cases.py: virtual memory management, arrays, external memory, peers."""

from __future__ import annotations

import ctypes as c
import os

from cuda_cases import FAKE_ONLY, MIB, at, call, case, current, free, pointer, say, size, start, u64

BLOCK = 2 * MIB


class Location(c.Structure):
    _fields_ = (("type", c.c_int), ("id", c.c_int))


class Prop(c.Structure):
    _fields_ = (
        ("type", c.c_int),
        ("handles", c.c_int),
        ("location", Location),
        ("win32", c.c_void_p),
        ("flags", c.c_ubyte * 8),
    )


class Access(c.Structure):
    _fields_ = (("location", Location), ("flags", c.c_int))


class Array3D(c.Structure):
    _fields_ = (
        ("width", c.c_size_t),
        ("height", c.c_size_t),
        ("depth", c.c_size_t),
        ("format", c.c_int),
        ("channels", c.c_uint),
        ("flags", c.c_uint),
    )


class Array2D(c.Structure):
    _fields_ = (("width", c.c_size_t), ("height", c.c_size_t), ("format", c.c_int), ("channels", c.c_uint))


class Requirements(c.Structure):
    _fields_ = (("size", c.c_size_t), ("alignment", c.c_size_t), ("reserved", c.c_uint * 4))


class Handle64(c.Structure):
    _fields_ = (("bytes", c.c_ubyte * 64),)


class External(c.Structure):
    _fields_ = (
        ("type", c.c_int),
        ("fd", c.c_uint64),
        ("name", c.c_uint64),
        ("size", c.c_uint64),
        ("flags", c.c_uint),
        ("reserved", c.c_uint * 16),
    )


class Buffer(c.Structure):
    _fields_ = (("offset", c.c_uint64), ("size", c.c_uint64), ("flags", c.c_uint), ("reserved", c.c_uint * 16))


FLOAT = 0x20


def prop(kind: int = 1, device: int = 0, handles: int = 0) -> Prop:
    return Prop(1, handles, Location(kind, device), None, (c.c_ubyte * 8)())


def made(bytes_wanted: int, handles: int = 0) -> c.c_uint64:
    h = u64(7)
    assert call("cuMemCreate", at(h), size(bytes_wanted), at(prop(handles=handles)), u64(0)) == 0
    return h


def reserved(bytes_wanted: int, alignment: int = 0) -> c.c_uint64:
    p = u64(7)
    assert call("cuMemAddressReserve", at(p), size(bytes_wanted), size(alignment), u64(0), u64(0)) == 0
    return p


def mapped(p: int, bytes_wanted: int, handle: c.c_uint64) -> int:
    return call("cuMemMap", u64(p), size(bytes_wanted), size(0), handle, u64(0))


def accessible(p: int, bytes_wanted: int, flags: int = 3, device: int = 0) -> int:
    return call("cuMemSetAccess", u64(p), size(bytes_wanted), at(Access(Location(1, device), flags)), size(1))


@case
def vmm() -> None:
    """
    granularity minimum | 0 2097152
    granularity recommended | 0 2097152
    granularity of a shareable one | 0 2097152
    granularity of device 5 | 0 2097152
    granularity of location 0 | 0 2097152
    granularity of location 2 | 0 2097152
    granularity of location 3 | 0 2097152
    granularity of location 4 | 0 2097152
    create 0 | 1 0
    create 1 | 1 0
    create 4096 | 1 0
    create 2097151 | 1 0
    create 2097152 | 0 2097152
    release 2097152 | 0 0
    create 2101248 | 1 0
    create 3145728 | 1 0
    create 4194304 | 0 4194304
    release 4194304 | 0 0
    create 67108864 | 0 67108864
    release 67108864 | 0 0
    release twice | 1
    release 0 | 1
    create at location 0 | 1 0
    create at location 2 | 0 0
    create at location 3 | 0 0
    create at location 4 | 1 0
    create on device 5 | 101
    create with flags 1 | 1
    create more than is free | 2
    reserve | 0
    reserve takes | 0
    map | 0
    release while mapped | 0
    taken after it | 2097152
    cuMemFree of mapped addresses | 1
    unmap | 0
    taken after that | 0
    retain | 0 True
    release a | 0
    release b | 0
    release c | 1
    unmap again | 0
    taken at the end | 0
    """
    current()
    g, h, p = size(7), u64(7), u64(7)
    ask = "cuMemGetAllocationGranularity"
    say("granularity minimum", call(ask, at(g), at(prop()), 0), g.value)
    say("granularity recommended", call(ask, at(g), at(prop()), 1), g.value)
    say("granularity of a shareable one", call(ask, at(g), at(prop(handles=1)), 0), g.value)
    say("granularity of device 5", call(ask, at(g), at(prop(device=5)), 0), g.value)
    for kind in (0, 2, 3, 4):
        say(f"granularity of location {kind}", call(ask, at(g), at(prop(kind)), 0), g.value)
    for wanted in (0, 1, 4096, BLOCK - 1, BLOCK, BLOCK + 4096, 3 * MIB, 2 * BLOCK, 64 * MIB):
        before = free()
        result = call("cuMemCreate", at(h), size(wanted), at(prop()), u64(0))
        say(f"create {wanted}", result, before - free())
        if result == 0:
            say(f"release {wanted}", call("cuMemRelease", h), before - free())
    say("release twice", call("cuMemRelease", h))
    say("release 0", call("cuMemRelease", u64(0)))
    for kind in (0, 2, 3, 4):
        before = free()
        result = call("cuMemCreate", at(h), size(BLOCK), at(prop(kind)), u64(0))
        say(f"create at location {kind}", result, before - free())
        if result == 0:
            call("cuMemRelease", h)
    say("create on device 5", call("cuMemCreate", at(h), size(BLOCK), at(prop(device=5)), u64(0)))
    say("create with flags 1", call("cuMemCreate", at(h), size(BLOCK), at(prop()), u64(1)))
    much = (free() // BLOCK + 512) * BLOCK
    say("create more than is free", call("cuMemCreate", at(h), size(much), at(prop()), u64(0)))
    before = free()
    say("reserve", call("cuMemAddressReserve", at(p), size(64 * MIB), size(0), u64(0), u64(0)))
    say("reserve takes", before - free())
    h = made(BLOCK)
    say("map", mapped(p.value, BLOCK, h))
    say("release while mapped", call("cuMemRelease", h))
    say("taken after it", before - free())
    say("cuMemFree of mapped addresses", call("cuMemFree_v2", p))
    say("unmap", call("cuMemUnmap", p, size(BLOCK)))
    say("taken after that", before - free())
    h, again = made(BLOCK), u64(7)
    mapped(p.value, BLOCK, h)
    say("retain", call("cuMemRetainAllocationHandle", at(again), pointer(p.value)), again.value == h.value)
    say("release a", call("cuMemRelease", h))
    say("release b", call("cuMemRelease", h))
    say("release c", call("cuMemRelease", h))
    say("unmap again", call("cuMemUnmap", p, size(BLOCK)))
    say("taken at the end", before - free())


@case
def vmm_null() -> None:
    """
    no handle | 1
    no prop | 1
    """
    current()
    h = u64(7)
    say("no handle", call("cuMemCreate", None, size(BLOCK), at(prop()), u64(0)))
    say("no prop", call("cuMemCreate", at(h), size(BLOCK), None, u64(0)))


@case
def vmm_without_context() -> None:
    """
    create | 0
    """
    start()
    say("create", call("cuMemCreate", at(u64(7)), size(BLOCK), at(prop()), u64(0)))


@case
def vmm_access() -> None:
    """
    copy before access | 1
    access | 0
    access says | 0 3
    copy across two mappings | 0 True
    range of the second | 0 True 2097152
    pointer's type | 0 2
    read-only | 0
    write to read-only | 1
    read of read-only | 0
    no access | 0
    read without access | 1
    access beyond what is mapped | 1
    access of device 5 | 1
    map over a mapping | 1
    map unaligned | 1
    map beyond the reservation | 1
    map with an offset | 801
    unmap half | 1
    unmap what is not mapped | 0
    free addresses while mapped | 1
    unmap both | 0
    free half of the addresses | 1
    free addresses | 0
    free them again | 1
    reserve unaligned | 1
    reserve with alignment 3 | 1
    reserve at 1 GiB | 0 0
    """
    current()
    p, one, two = reserved(64 * MIB), made(BLOCK), made(BLOCK)
    base = p.value
    mapped(base, BLOCK, one)
    mapped(base + BLOCK, BLOCK, two)
    data = (c.c_ubyte * BLOCK)(*([7] * 1000))
    back = (c.c_ubyte * BLOCK)()
    say("copy before access", call("cuMemcpyHtoD_v2", p, data, size(64)))
    say("access", accessible(base, 2 * BLOCK))
    flags = u64(7)
    say("access says", call("cuMemGetAccess", at(flags), at(Location(1, 0)), p), flags.value)
    middle = u64(base + MIB)
    result = call("cuMemcpyHtoD_v2", middle, data, size(BLOCK))
    call("cuMemcpyDtoH_v2", back, middle, size(BLOCK))
    say("copy across two mappings", result, bytes(back) == bytes(data))
    found, extent, kind = u64(), size(0), c.c_int(77)
    result = call("cuMemGetAddressRange_v2", at(found), at(extent), u64(base + BLOCK + 5))
    say("range of the second", result, found.value == base + BLOCK, extent.value)
    say("pointer's type", call("cuPointerGetAttribute", at(kind), 2, p), kind.value)
    say("read-only", accessible(base, BLOCK, 1))
    say("write to read-only", call("cuMemcpyHtoD_v2", p, data, size(64)))
    say("read of read-only", call("cuMemcpyDtoH_v2", back, p, size(64)))
    say("no access", accessible(base, BLOCK, 0))
    say("read without access", call("cuMemcpyDtoH_v2", back, p, size(64)))
    say("access beyond what is mapped", accessible(base, 3 * BLOCK))
    say("access of device 5", accessible(base, BLOCK, 3, 5))
    say("map over a mapping", mapped(base, BLOCK, two))
    say("map unaligned", mapped(base + 8 * MIB + 4096, BLOCK, two))
    say("map beyond the reservation", mapped(base + 64 * MIB, BLOCK, two))
    say("map with an offset", call("cuMemMap", u64(base + 8 * MIB), size(BLOCK), size(BLOCK), two, u64(0)))
    say("unmap half", call("cuMemUnmap", p, size(MIB)))
    say("unmap what is not mapped", call("cuMemUnmap", u64(base + 8 * MIB), size(BLOCK)))
    say("free addresses while mapped", call("cuMemAddressFree", p, size(64 * MIB)))
    say("unmap both", call("cuMemUnmap", p, size(2 * BLOCK)))
    say("free half of the addresses", call("cuMemAddressFree", p, size(32 * MIB)))
    say("free addresses", call("cuMemAddressFree", p, size(64 * MIB)))
    say("free them again", call("cuMemAddressFree", p, size(64 * MIB)))
    say("reserve unaligned", call("cuMemAddressReserve", at(p), size(MIB), size(0), u64(0), u64(0)))
    say("reserve with alignment 3", call("cuMemAddressReserve", at(p), size(BLOCK), size(3), u64(0), u64(0)))
    p = reserved(BLOCK, 1 << 30)
    say("reserve at 1 GiB", 0, p.value % (1 << 30))


@case
def arrays() -> None:
    """
    1000 x 1000 float4 | 0 16777216
    memory requirements | 1 7 7
    100 x 100 x 100 float | 0 6291456
    mipmap of 1024 x 1024 float4, 11 levels | 0 23068672
    """
    current()
    a = pointer(7)
    before = free()
    result = call("cuArrayCreate_v2", at(a), at(Array2D(1000, 1000, FLOAT, 4)))
    say("1000 x 1000 float4", result, before - free())
    need = Requirements(7, 7)
    result = call("cuArrayGetMemoryRequirements", at(need), a, 0)
    say("memory requirements", result, need.size, need.alignment)
    before = free()
    result = call("cuArray3DCreate_v2", at(a), at(Array3D(100, 100, 100, FLOAT, 1, 0)))
    say("100 x 100 x 100 float", result, before - free())
    before = free()
    result = call("cuMipmappedArrayCreate", at(a), at(Array3D(1024, 1024, 0, FLOAT, 4, 0)), 11)
    say("mipmap of 1024 x 1024 float4, 11 levels", result, before - free())


@case
def arrays_more() -> None:
    """
    no descriptor | 1
    no output | 1
    width 0 | 1
    3 channels | 1
    format 0 | 1
    3D without height | 1
    too wide | 1
    row of 256 floats | 0
    describe | 0 256 0 32 1
    describe 3D | 0 256 0 0 32 1 0
    host to array and back | 0 0 True
    array to array | 0 True
    array to device | 0 True
    copy beyond its end | 1
    level 0 | 0 64 32
    level 3 | 0 8 4
    level 7 | 1
    destroy a level | 0
    destroy mipmap | 0
    destroy array | 0
    destroy array again | 709
    destroy NULL | 400
    all given back | 0
    deferred takes | 0 0
    deferred needs | 0 True True
    """
    current()
    before = free()
    a, b, m, level = pointer(7), pointer(7), pointer(7), pointer(7)
    make = "cuArray3DCreate_v2"
    say("no descriptor", call(make, at(a), None))
    say("no output", call(make, None, at(Array3D(64, 0, 0, FLOAT, 1, 0))))
    for what, desc in (
        ("width 0", Array3D(0, 0, 0, FLOAT, 1, 0)),
        ("3 channels", Array3D(64, 0, 0, FLOAT, 3, 0)),
        ("format 0", Array3D(64, 0, 0, 0, 1, 0)),
        ("3D without height", Array3D(64, 0, 8, FLOAT, 1, 0)),
        ("too wide", Array3D(1 << 20, 0, 0, FLOAT, 1, 0)),
        ("row of 256 floats", Array3D(256, 0, 0, FLOAT, 1, 0)),
    ):
        say(what, call(make, at(a), at(desc)))
    flat, whole = Array2D(), Array3D()
    result = call("cuArrayGetDescriptor_v2", at(flat), a)
    say("describe", result, flat.width, flat.height, flat.format, flat.channels)
    result = call("cuArray3DGetDescriptor_v2", at(whole), a)
    say("describe 3D", result, whole.width, whole.height, whole.depth, whole.format, whole.channels, whole.flags)
    data, back = (c.c_ubyte * 1024)(*(i % 251 for i in range(1024))), (c.c_ubyte * 1024)()
    there = call("cuMemcpyHtoA_v2", a, size(0), data, size(1024))
    say(
        "host to array and back",
        there,
        call("cuMemcpyAtoH_v2", back, a, size(0), size(1024)),
        bytes(back) == bytes(data),
    )
    call(make, at(b), at(Array3D(256, 0, 0, FLOAT, 1, 0)))
    result = call("cuMemcpyAtoA_v2", b, size(0), a, size(512), size(512))
    call("cuMemcpyAtoH_v2", back, b, size(0), size(512))
    say("array to array", result, bytes(back)[:512] == bytes(data)[512:])
    p = u64()
    call("cuMemAlloc_v2", at(p), size(1024))
    result = call("cuMemcpyAtoD_v2", p, a, size(0), size(1024))
    call("cuMemcpyDtoH_v2", back, p, size(1024))
    say("array to device", result, bytes(back) == bytes(data))
    call("cuMemFree_v2", p)
    say("copy beyond its end", call("cuMemcpyHtoA_v2", a, size(512), data, size(1024)))
    call("cuMipmappedArrayCreate", at(m), at(Array3D(64, 32, 0, FLOAT, 1, 0)), 7)
    for i in (0, 3):
        result = call("cuMipmappedArrayGetLevel", at(level), m, i)
        call("cuArray3DGetDescriptor_v2", at(whole), level)
        say(f"level {i}", result, whole.width, whole.height)
    say("level 7", call("cuMipmappedArrayGetLevel", at(level), m, 7))
    say("destroy a level", call("cuArrayDestroy", level))
    say("destroy mipmap", call("cuMipmappedArrayDestroy", m))
    say("destroy array", call("cuArrayDestroy", a))
    say("destroy array again", call("cuArrayDestroy", a))
    call("cuArrayDestroy", b)
    say("destroy NULL", call("cuArrayDestroy", None))
    say("all given back", before - free())
    result = call(make, at(a), at(Array3D(1024, 1024, 0, FLOAT, 4, 0x80)))
    say("deferred takes", result, before - free())
    need = Requirements()
    result = call("cuArrayGetMemoryRequirements", at(need), a, 0)
    say("deferred needs", result, need.size >= 16 * MIB, need.alignment > 0)


@case
def peers() -> None:
    """
    enable itself | 217
    disable what is not enabled | 705
    enable NULL | 201
    """
    context = current()
    say("enable itself", call("cuCtxEnablePeerAccess", context, 0))
    say("disable what is not enabled", call("cuCtxDisablePeerAccess", context))
    say("enable NULL", call("cuCtxEnablePeerAccess", None, 0))


@case
def external_memory() -> None:
    """
    import | 0
    map | 0
    bytes | True
    map beyond the end | 1
    cuMemFree | 0
    cuMemFree again | 1
    destroy | 0
    destroy again | 400
    no such type | 1
    """
    current()
    fd = os.memfd_create("frame")
    os.write(fd, b"x" * 65536)
    memory, p = pointer(7), u64(7)
    say("import", call("cuImportExternalMemory", at(memory), at(External(1, fd, 0, 65536))))
    ask = "cuExternalMemoryGetMappedBuffer"
    say("map", call(ask, at(p), memory, at(Buffer(4096, 8192, 0))))
    back = (c.c_ubyte * 8192)()
    call("cuMemcpyDtoH_v2", back, p, size(8192))
    say("bytes", set(back) == {ord("x")})
    say("map beyond the end", call(ask, at(u64()), memory, at(Buffer(65536, 4096, 0))))
    say("cuMemFree", call("cuMemFree_v2", p))
    say("cuMemFree again", call("cuMemFree_v2", p))
    say("destroy", call("cuDestroyExternalMemory", memory))
    say("destroy again", call("cuDestroyExternalMemory", memory))
    say("no such type", call("cuImportExternalMemory", at(memory), at(External(77, 0, 0, 65536))))


@case
def unmap_questions() -> None:
    """
    half of a mapping | 1
    addresses of nobody | 1
    all, with holes | 0
    given back | 0
    """
    current()
    before, p = free(), reserved(8 * BLOCK)
    h = made(2 * BLOCK)
    mapped(p.value + 2 * BLOCK, 2 * BLOCK, h)
    call("cuMemRelease", h)
    say("half of a mapping", call("cuMemUnmap", u64(p.value + BLOCK), size(2 * BLOCK)))
    # A range that ends behind the reservation was let pass (0) on an H200; how far the driver rounds a reservation up
    # is not known, so it is no fact here.
    say("addresses of nobody", call("cuMemUnmap", u64(BLOCK), size(BLOCK)))
    say("all, with holes", call("cuMemUnmap", p, size(8 * BLOCK)))
    say("given back", before - free())


FAKE_ONLY |= {"external_memory"}  # a memfd is no memory of Vulkan's
