"""Cases of cuda_cases.py: texture and surface objects, texture references, pools by place, small ones."""

from __future__ import annotations

import ctypes as c

from cuda_cases import PTX, allocated, at, call, case, current, pointer, say, size, u64
from memory_cases import FLOAT, Array2D, Location


class Resource(c.Structure):
    _fields_ = (("type", c.c_int), ("of", c.c_uint64 * 16), ("flags", c.c_uint))


class Texture(c.Structure):
    _fields_ = (
        ("address", c.c_int * 3),
        ("filter", c.c_int),
        ("flags", c.c_uint),
        ("anisotropy", c.c_uint),
        ("mipmap", c.c_int),
        ("levels", c.c_float * 3),
        ("border", c.c_float * 4),
        ("reserved", c.c_int * 12),
    )


class View(c.Structure):
    _fields_ = (("format", c.c_int), ("extent", c.c_size_t * 3), ("range", c.c_uint * 4), ("reserved", c.c_uint * 16))


class Multicast(c.Structure):
    _fields_ = (("devices", c.c_uint), ("size", c.c_size_t), ("handles", c.c_uint64), ("flags", c.c_uint64))


def of_array(array: c.c_void_p) -> Resource:
    return Resource(0, (c.c_uint64 * 16)(array.value or 0))


def linear(p: int, length: int, channels: int = 1) -> Resource:
    return Resource(2, (c.c_uint64 * 16)(p, channels << 32 | FLOAT, length))


def flat_array() -> c.c_void_p:
    a = pointer()
    assert call("cuArrayCreate_v2", at(a), at(Array2D(64, 64, FLOAT, 1))) == 0
    return a


@case
def texture_objects() -> None:
    """
    of an array | 0 True
    its resource | 0 True
    its texture | 0 1
    its view | 0
    of memory | 0
    of memory of nobody | 0
    of three channels | 1
    no resource | 1
    no texture | 1
    no such type | 1
    address mode 4 | 1
    filter mode 2 | 1
    destroyed | 0
    destroyed again | 0
    surface of an array | 0 True
    its resource as a surface | 0 True
    surface of memory | 1
    surface destroyed | 0
    surface destroyed again | 0
    """
    current()
    array, p, t = flat_array(), allocated(4096).value, u64()
    how = Texture((c.c_int * 3)(1, 1, 1))

    def made(resource: object, texture: object = at(how)) -> int:
        return call("cuTexObjectCreate", at(t), resource, texture, None)

    say("of an array", made(at(of_array(array))), t.value != 0)
    first, seen, texture = u64(t.value), Resource(7), Texture()
    result = call("cuTexObjectGetResourceDesc", at(seen), first)
    say("its resource", result, (seen.type, seen.of[0]) == (0, array.value))
    say("its texture", call("cuTexObjectGetTextureDesc", at(texture), first), texture.address[0])
    say("its view", call("cuTexObjectGetResourceViewDesc", at(View()), first))
    say("of memory", made(at(linear(p, 4096))))
    say("of memory of nobody", made(at(linear(0x200000, 4096))))
    say("of three channels", made(at(linear(p, 4096, 3))))
    say("no resource", made(None))
    say("no texture", made(at(of_array(array)), None))
    say("no such type", made(at(Resource(9))))
    say("address mode 4", made(at(of_array(array)), at(Texture((c.c_int * 3)(4, 1, 1)))))
    say("filter mode 2", made(at(of_array(array)), at(Texture((c.c_int * 3)(1, 1, 1), 2))))
    say("destroyed", call("cuTexObjectDestroy", first))
    say("destroyed again", call("cuTexObjectDestroy", first))
    surface = u64()
    say("surface of an array", call("cuSurfObjectCreate", at(surface), at(of_array(array))), surface.value != 0)
    result = call("cuSurfObjectGetResourceDesc", at(seen), surface)
    say("its resource as a surface", result, seen.of[0] == array.value)
    say("surface of memory", call("cuSurfObjectCreate", at(u64()), at(linear(p, 4096))))
    say("surface destroyed", call("cuSurfObjectDestroy", surface))
    say("surface destroyed again", call("cuSurfObjectDestroy", surface))


@case
def texture_references() -> None:
    """
    create | 0
    format | 0 0 32 2
    address mode | 0 0 2
    address mode of dimension 3 | 1
    filter | 0 0 1
    filter 2 | 0
    flags | 0 0 2
    array before | 1
    array | 0 0 True
    memory | 0 0 True
    memory of nobody | 0
    border | 0 0 0.5
    anisotropy | 0 0 4
    level clamp | 0 0 1.0 2.0
    no reference | 400
    module's | 500
    module's surface | 500
    destroy | 0
    """
    current()
    r, array, p = pointer(), flat_array(), allocated(4096).value
    say("create", call("cuTexRefCreate", at(r)))
    one, two = c.c_int(7), c.c_int(7)
    result = call("cuTexRefSetFormat", r, FLOAT, 2)
    say("format", result, call("cuTexRefGetFormat", at(one), at(two), r), one.value, two.value)
    result = call("cuTexRefSetAddressMode", r, 1, 2)
    say("address mode", result, call("cuTexRefGetAddressMode", at(one), r, 1), one.value)
    say("address mode of dimension 3", call("cuTexRefSetAddressMode", r, 3, 1))
    result = call("cuTexRefSetFilterMode", r, 1)
    say("filter", result, call("cuTexRefGetFilterMode", at(one), r), one.value)
    say("filter 2", call("cuTexRefSetFilterMode", r, 2))
    result = call("cuTexRefSetFlags", r, 2)
    say("flags", result, call("cuTexRefGetFlags", at(one), r), one.value)
    found = pointer()
    say("array before", call("cuTexRefGetArray", at(found), r))
    result = call("cuTexRefSetArray", r, array, 1)
    say("array", result, call("cuTexRefGetArray", at(found), r), found.value == array.value)
    where = u64()
    result = call("cuTexRefSetAddress_v2", at(size(7)), r, u64(p), size(4096))
    say("memory", result, call("cuTexRefGetAddress_v2", at(where), r), where.value == p)
    say("memory of nobody", call("cuTexRefSetAddress_v2", at(size(7)), r, u64(0x200000), size(4096)))
    color = (c.c_float * 4)(0.5, 0, 0, 1)
    seen = (c.c_float * 4)()
    result = call("cuTexRefSetBorderColor", r, color)
    say("border", result, call("cuTexRefGetBorderColor", seen, r), seen[0])
    result = call("cuTexRefSetMaxAnisotropy", r, 4)
    say("anisotropy", result, call("cuTexRefGetMaxAnisotropy", at(one), r), one.value)
    low, high = c.c_float(), c.c_float()
    result = call("cuTexRefSetMipmapLevelClamp", r, c.c_float(1), c.c_float(2))
    say("level clamp", result, call("cuTexRefGetMipmapLevelClamp", at(low), at(high), r), low.value, high.value)
    say("no reference", call("cuTexRefSetFlags", None, 2))
    m = pointer()
    call("cuModuleLoadData", at(m), PTX)
    say("module's", call("cuModuleGetTexRef", at(found), m, b"none"))
    say("module's surface", call("cuModuleGetSurfRef", at(found), m, b"none"))
    say("destroy", call("cuTexRefDestroy", r))


@case
def pools_by_place() -> None:
    """
    the device's default | 0 True
    the device's current | 0 True
    the host's default | 0 True
    the host's current | 0 True
    device 5 | 1
    place 0 | 1
    type 0 | 1
    no place | 1
    set the host's as the device's | 1
    set the device's own | 0
    """
    current()
    pool, other, host = pointer(), pointer(), pointer()
    card, cpu = Location(1, 0), Location(2, 0)
    result = call("cuMemGetDefaultMemPool", at(pool), at(card), 1)
    call("cuDeviceGetDefaultMemPool", at(other), 0)
    say("the device's default", result, pool.value == other.value)
    say("the device's current", call("cuMemGetMemPool", at(pool), at(card), 1), pool.value == other.value)
    result = call("cuMemGetDefaultMemPool", at(host), at(cpu), 1)
    say("the host's default", result, host.value not in (None, pool.value))
    say("the host's current", call("cuMemGetMemPool", at(pool), at(cpu), 1), pool.value == host.value)
    say("device 5", call("cuMemGetMemPool", at(pool), at(Location(1, 5)), 1))
    say("place 0", call("cuMemGetMemPool", at(pool), at(Location(0, 0)), 1))
    say("type 0", call("cuMemGetMemPool", at(pool), at(card), 0))
    say("no place", call("cuMemGetMemPool", at(pool), None, 1))
    say("set the host's as the device's", call("cuMemSetMemPool", at(card), 1, host))
    say("set the device's own", call("cuMemSetMemPool", at(card), 1, other))


@case
def small_ones() -> None:
    """
    multicast granularity | 801
    multicast create | 801
    multicast add | 801
    multicast NULL | 801
    luid | 801
    sync attributes | 801
    execution affinity | 0
    execution affinity of type 7 | 224
    flush writes | 0
    flush writes, scope 1 | 1
    context event | 0 0
    wait for it | 0
    no event | 400
    """
    context = current()
    prop = Multicast(2, 2 << 20, 1, 0)
    say("multicast granularity", call("cuMulticastGetGranularity", at(size(7)), at(prop), 0))
    say("multicast create", call("cuMulticastCreate", at(u64()), at(prop)))
    say("multicast add", call("cuMulticastAddDevice", u64(7), 0))
    say("multicast NULL", call("cuMulticastCreate", at(u64()), None))
    say("luid", call("cuDeviceGetLuid", c.create_string_buffer(8), at(c.c_uint()), 0))
    say("sync attributes", call("cuDeviceGetNvSciSyncAttributes", c.create_string_buffer(64), 0, 1))
    affinity = (c.c_uint * 8)()
    say("execution affinity", call("cuCtxGetExecAffinity", affinity, 0))
    say("execution affinity of type 7", call("cuCtxGetExecAffinity", affinity, 7))
    say("flush writes", call("cuFlushGPUDirectRDMAWrites", 0, 100))
    say("flush writes, scope 1", call("cuFlushGPUDirectRDMAWrites", 0, 1))
    event = pointer()
    call("cuEventCreate", at(event), 0)
    say("context event", call("cuCtxRecordEvent", context, event), call("cuEventSynchronize", event))
    say("wait for it", call("cuCtxWaitEvent", context, event))
    say("no event", call("cuCtxRecordEvent", context, None))
