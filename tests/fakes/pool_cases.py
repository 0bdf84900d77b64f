"""Cases of cuda_cases.py: Stream-ordered memory."""

from __future__ import annotations

import ctypes as c

from cuda_cases import MIB, at, call, case, current, free, pointer, say, size, u64


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
def host_pool() -> None:
    """
    create | 0
    allocate | 0 took 0
    pool | reserved 33554432 high 33554432 used 1048576 usedhigh 1048576 threshold 0 took 0
    the host writes, a copy reads | 0 True
    more than it may hold | 2 0
    free | 0
    free again | 1
    destroy | 0
    """
    current()
    before, pool, p, q = free(), pointer(), u64(7), u64(7)
    say("create", call("cuMemPoolCreate", at(pool), at(PoolProps(1, 0, 2, 0, None, 64 * MIB))))
    result = call("cuMemAllocFromPoolAsync", at(p), size(MIB), pool, None)
    call("cuCtxSynchronize")
    say("allocate", result, "took", before - free())
    say("pool", pool_state(pool, before))
    access = (c.c_int * 3)(1, 0, 3)
    call("cuMemPoolSetAccess", pool, access, size(1))
    c.memset(p.value or 0, 7, 4096)
    back = (c.c_ubyte * 4096)()
    say("the host writes, a copy reads", call("cuMemcpy", u64(c.addressof(back)), p, size(4096)), set(back) == {7})
    say("more than it may hold", call("cuMemAllocFromPoolAsync", at(q), size(65 * MIB), pool, None), q.value)
    say("free", call("cuMemFreeAsync", p, None))
    say("free again", call("cuMemFreeAsync", p, None))
    call("cuCtxSynchronize")
    say("destroy", call("cuMemPoolDestroy", pool))
