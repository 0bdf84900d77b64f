"""Cases of cuda_cases.py: several copies, prefetches and discards at once, and what was said of managed memory."""

from __future__ import annotations

import ctypes as c

from cuda_cases import ASSUMED, allocated, at, call, case, current, pointer, say, size, u64
from memory_cases import FLOAT, Array2D, Location

FAILED = (1 << 64) - 1


class Attributes(c.Structure):
    _fields_ = (("order", c.c_int), ("source", Location), ("target", Location), ("flags", c.c_uint))


class Plain(c.Structure):
    _fields_ = (("pointer", c.c_uint64), ("row", c.c_size_t), ("layer", c.c_size_t), ("hint", Location))


class Operand(c.Structure):
    _fields_ = (("type", c.c_int), ("pointer", Plain))


class Box(c.Structure):
    _fields_ = (
        ("source", Operand),
        ("target", Operand),
        ("extent", c.c_size_t * 3),
        ("order", c.c_int),
        ("flags", c.c_uint),
    )


def own_stream() -> c.c_void_p:
    s = pointer()
    assert call("cuStreamCreate", at(s), 1) == 0
    return s


def list64(*values: int) -> c.Array[c.c_uint64]:
    return (c.c_uint64 * len(values))(*values)


def managed(bytes_wanted: int) -> int:
    p = u64()
    assert call("cuMemAllocManaged", at(p), size(bytes_wanted), 1) == 0
    return p.value


@case
def batch_copies() -> None:
    """
    two copies | 0 True
    host to device | 0 True
    on the default stream | 1
    no copies | 1
    no attributes | 1
    more attributes than copies | 1
    attributes from 1 on | 1
    order 0 | 1
    order 4 | 1
    a copy of nothing | 1
    beyond the end | 1
    the old form | 0 18446744073709551615
    while capturing | 900
    its end | 0
    """
    current()
    s = own_stream()
    a, b, d = allocated(4096).value, allocated(4096).value, allocated(8192).value
    call("cuMemsetD8_v2", u64(a), 1, size(4096))
    call("cuMemsetD8_v2", u64(b), 2, size(4096))
    back = (c.c_ubyte * 8192)()
    how, first = (Attributes * 2)(), (c.c_size_t * 2)(0, 1)
    how[0].order = how[1].order = 1
    new = "cuMemcpyBatchAsync_v2"

    def both(*, sizes: tuple[int, int] = (4096, 4096), count: int = 2, attributes: int = 1, where: object = s) -> int:
        targets, sources = list64(d, d + 4096), list64(a, b)
        return call(new, targets, sources, list64(*sizes), size(count), how, first, size(attributes), where)

    result = both()
    call("cuStreamSynchronize", s)
    call("cuMemcpyDtoH_v2", back, u64(d), size(8192))
    say("two copies", result, set(back[:4096]) == {1} and set(back[4096:]) == {2})
    source = (c.c_ubyte * 4096)(*[7] * 4096)
    result = call(new, list64(d), list64(c.addressof(source)), list64(4096), size(1), how, first, size(1), s)
    call("cuStreamSynchronize", s)
    call("cuMemcpyDtoH_v2", back, u64(d), size(4096))
    say("host to device", result, set(back[:4096]) == {7})
    say("on the default stream", both(where=None))
    say("no copies", both(count=0))
    say("no attributes", both(attributes=0))
    say("more attributes than copies", both(attributes=3))
    first[0] = 1
    say("attributes from 1 on", both())
    first[0] = 0
    for order in (0, 4):
        how[0].order = order
        say(f"order {order}", both())
    how[0].order = 1
    say("a copy of nothing", both(sizes=(4096, 0)))
    say("beyond the end", both(sizes=(4096, 1 << 30)))
    failed = size(7)
    result = call("cuMemcpyBatchAsync", list64(d), list64(a), list64(4096), size(1), how, first, size(1), at(failed), s)
    say("the old form", result, failed.value)
    call("cuStreamSynchronize", s)
    call("cuStreamBeginCapture_v2", s, 2)
    say("while capturing", both())
    say("its end", call("cuStreamEndCapture", s, at(pointer())))


@case
def batch_boxes() -> None:
    """
    linear to array and back | 0 0 True
    no boxes | 1
    flags 1 | 1
    order 0 | 1
    no such operand | 1
    died | 11
    """
    current()
    s, array = own_stream(), pointer()
    call("cuArrayCreate_v2", at(array), at(Array2D(16, 16, FLOAT, 1)))
    a, b = allocated(1024).value, allocated(1024).value
    data = (c.c_ubyte * 1024)(*[i % 251 for i in range(1024)])
    call("cuMemcpyHtoD_v2", u64(a), data, size(1024))

    class InArray(c.Structure):
        _fields_ = (("array", c.c_void_p), ("offset", c.c_size_t * 3))

    def linear(p: int) -> Operand:
        return Operand(1, Plain(p, 16, 16, Location(1, 0)))

    def in_array(handle: c.c_void_p) -> Operand:
        o = Operand(2)
        c.memmove(at(o, Operand.pointer.offset), at(InArray(handle.value)), c.sizeof(InArray))
        return o

    def asked(source: Operand, target: Operand, *, count: int = 1, flags: int = 0, order: int = 1) -> int:
        box = Box(source, target, (16, 16, 1), order, 0)
        return call("cuMemcpy3DBatchAsync_v2", size(count), at(box), u64(flags), s)

    there = asked(linear(a), in_array(array))
    again = asked(in_array(array), linear(b))
    call("cuStreamSynchronize", s)
    back = (c.c_ubyte * 1024)()
    call("cuMemcpyDtoH_v2", back, u64(b), size(1024))
    say("linear to array and back", there, again, bytes(back) == bytes(data))
    say("no boxes", asked(linear(a), linear(b), count=0))
    say("flags 1", asked(linear(a), linear(b), flags=1))
    say("order 0", asked(linear(a), linear(b), order=0))
    say("no such operand", asked(Operand(3), linear(b)))
    call("cuArrayDestroy", array)
    asked(in_array(pointer(0)), linear(b))


@case
def batch_prefetches() -> None:
    """
    prefetch two | 0
    last prefetch | 0 0
    prefetch to the host | 0
    then | 0 -1
    discard | 0
    discard and prefetch | 0
    on the default stream | 1
    no ranges | 1
    flags 1 | 1
    no places | 1
    device 5 | 1
    device memory | 1
    """
    current()
    s, p, n = own_stream(), managed(4 << 20), c.c_int(7)
    own = allocated(1 << 20).value
    half, first = 2 << 20, (c.c_size_t * 1)(0)
    card, host = Location(1, 0), Location(2, 0)

    def asked(
        name: str, *ranges: int, place: Location = card, places: int = 1, flags: int = 0, where: object = s
    ) -> int:
        sizes = list64(*[half] * len(ranges))
        more = () if name == "Discard" else (at(place), first, size(places))
        return call(f"cuMem{name}BatchAsync", list64(*ranges), sizes, size(len(ranges)), *more, u64(flags), where)

    def last() -> tuple[int, int]:
        return call("cuMemRangeGetAttribute", at(n), size(4), 4, u64(p), size(4 << 20)), n.value

    say("prefetch two", asked("Prefetch", p, p + half))
    call("cuStreamSynchronize", s)
    say("last prefetch", *last())
    say("prefetch to the host", asked("Prefetch", p, p + half, place=host))
    call("cuStreamSynchronize", s)
    say("then", *last())
    say("discard", asked("Discard", p))
    say("discard and prefetch", asked("DiscardAndPrefetch", p, p + half))
    call("cuStreamSynchronize", s)
    say("on the default stream", asked("Prefetch", p, where=None))
    say("no ranges", asked("Prefetch"))
    say("flags 1", asked("Prefetch", p, flags=1))
    say("no places", asked("Prefetch", p, places=0))
    say("device 5", asked("Prefetch", p, place=Location(1, 5)))
    say("device memory", asked("Prefetch", own))


@case
def managed_ranges() -> None:
    """
    attribute 1 before | 0 0
    attribute 2 before | 0 -2
    attribute 4 before | 0 -2
    accessed by before | 0 -2 -2
    attribute 1 after advice | 0 1
    attribute 2 after advice | 0 0
    accessed by after advice | 0 0 -2
    attribute 5 after advice | 0 1
    attribute 6 after advice | 0 0
    advice taken back | 0 -2
    several | 0 1 -2
    attribute 0 | 1
    wrong size | 1
    device memory | 1
    beyond the end | 1
    """
    current()
    p, n = managed(1 << 20), c.c_int(7)

    def asked(which: int, of: int = p, length: int = 1 << 20, width: int = 4) -> tuple[int, int]:
        return call("cuMemRangeGetAttribute", at(n), size(width), which, u64(of), size(length)), n.value

    def users() -> tuple[int, ...]:
        found = (c.c_int * 2)(7, 7)
        return call("cuMemRangeGetAttribute", found, size(8), 3, u64(p), size(1 << 20)), *found

    for which in (1, 2, 4):
        say(f"attribute {which} before", *asked(which))
    say("accessed by before", *users())
    for advice in (1, 3, 5):
        call("cuMemAdvise", u64(p), size(1 << 20), advice, 0)
    for which in (1, 2):
        say(f"attribute {which} after advice", *asked(which))
    say("accessed by after advice", *users())
    for which in (5, 6):
        say(f"attribute {which} after advice", *asked(which))
    call("cuMemAdvise", u64(p), size(1 << 20), 4, 0)
    say("advice taken back", *asked(2))
    one, two = c.c_int(7), c.c_int(7)
    data, sizes = (c.c_void_p * 2)(c.addressof(one), c.addressof(two)), (c.c_size_t * 2)(4, 4)
    result = call("cuMemRangeGetAttributes", data, sizes, (c.c_int * 2)(1, 2), size(2), u64(p), size(1 << 20))
    say("several", result, one.value, two.value)
    say("attribute 0", asked(0)[0])
    say("wrong size", asked(1, width=8)[0])
    say("device memory", asked(1, of=allocated(4096).value, length=4096)[0])
    say("beyond the end", asked(1, length=2 << 20)[0])


@case
def managed_parts() -> None:
    """
    read mostly: halves, all, middle | 1 0 0 0
    preferred: halves, all | 0 -1 -2
    accessed by: halves, all | 0 -2 -2
    prefetched: halves, all | 0 -2 -2
    taken back in the middle: quarters, all | 1 0 0 0 0
    the same again everywhere | 1
    """
    current()
    half = 4 << 20
    p, n = managed(2 * half), c.c_int(7)

    def asked(which: int, at_byte: int, length: int) -> int:
        assert call("cuMemRangeGetAttribute", at(n), size(4), which, u64(p + at_byte), size(length)) == 0
        return n.value

    def advise(advice: int, at_byte: int, length: int, device: int = 0) -> None:
        assert call("cuMemAdvise", u64(p + at_byte), size(length), advice, device) == 0

    def halves(which: int) -> tuple[int, ...]:
        return asked(which, 0, half), asked(which, half, half), asked(which, 0, 2 * half)

    advise(1, 0, half)
    say("read mostly: halves, all, middle", *halves(1), asked(1, half // 2, half))
    advise(3, 0, half)
    advise(3, half, half, -1)
    say("preferred: halves, all", *halves(2))
    advise(5, 0, half)
    say("accessed by: halves, all", *halves(3))
    assert call("cuMemPrefetchAsync", u64(p), size(half), 0, None) == 0
    call("cuCtxSynchronize")
    say("prefetched: halves, all", *halves(4))
    advise(1, 0, half)
    advise(2, half // 2, half)
    quarters = [asked(1, quarter * half // 2, half // 2) for quarter in range(4)]
    say("taken back in the middle: quarters, all", *quarters, asked(1, 0, 2 * half))
    advise(1, 0, 2 * half)
    say("the same again everywhere", asked(1, 0, 2 * half))


ASSUMED |= {"managed_parts"}
