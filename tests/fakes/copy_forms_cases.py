"""Cases of cuda_cases.py: every form of every fill and copy does the work of its family: plain and asynchronous, on the
legacy default stream and on one of each thread; the generation with 32-bit addresses refuses."""

from __future__ import annotations

import ctypes as c
from collections.abc import Callable

from copy_cases import Copy2D
from cuda_cases import allocated, at, call, case, current, pointer, say, size, u64

KIB = 1 << 10
DATA = bytes(i * 7 % 251 for i in range(64 * KIB))
LEGACY, PER_THREAD = pointer(1), pointer(2)


def bytes_at(p: int, count: int) -> bytes:
    assert call("cuCtxSynchronize") == 0
    back = (c.c_ubyte * count)()
    assert call("cuMemcpyDtoH_v2", back, u64(p), size(count)) == 0
    return bytes(back)


def put(p: int, data: bytes) -> None:
    assert call("cuMemcpyHtoD_v2", u64(p), data, size(len(data))) == 0


def streams_of(name: str) -> tuple[object, ...]:
    """What an asynchronous form takes besides: the default stream, which is another one for `_ptsz`."""
    return (None,) if "Async" in name else ()


@case
def fills_of_a_line() -> None:
    """
    cuMemsetD8_v2 | 0 True
    cuMemsetD8_v2_ptds | 0 True
    cuMemsetD8Async | 0 True
    cuMemsetD8Async_ptsz | 0 True
    cuMemsetD16_v2 | 0 True
    cuMemsetD16_v2_ptds | 0 True
    cuMemsetD16Async | 0 True
    cuMemsetD16Async_ptsz | 0 True
    cuMemsetD32_v2 | 0 True
    cuMemsetD32_v2_ptds | 0 True
    cuMemsetD32Async | 0 True
    cuMemsetD32Async_ptsz | 0 True
    """
    current()
    p = allocated(64 * KIB).value
    kinds: tuple[tuple[str, int, Callable[[int], object]], ...] = (
        ("D8", 1, c.c_ubyte),
        ("D16", 2, c.c_ushort),
        ("D32", 4, c.c_uint),
    )
    for kind, width, number in kinds:
        value = 0x4A3B2C1D & ((1 << 8 * width) - 1)
        for form in ("_v2", "_v2_ptds", "Async", "Async_ptsz"):
            name = f"cuMemset{kind}{form}"
            put(p, bytes(4096))
            result = call(name, u64(p + 64), number(value), size(100), *streams_of(name))
            right = bytes(64) + value.to_bytes(width, "little") * 100 + bytes(64)
            say(name, result, bytes_at(p, len(right)) == right)


@case
def fills_of_a_plane() -> None:
    """
    cuMemsetD2D8_v2 | 0 True
    cuMemsetD2D8_v2_ptds | 0 True
    cuMemsetD2D8Async | 0 True
    cuMemsetD2D8Async_ptsz | 0 True
    cuMemsetD2D16_v2 | 0 True
    cuMemsetD2D16_v2_ptds | 0 True
    cuMemsetD2D16Async | 0 True
    cuMemsetD2D16Async_ptsz | 0 True
    cuMemsetD2D32_v2 | 0 True
    cuMemsetD2D32_v2_ptds | 0 True
    cuMemsetD2D32Async | 0 True
    cuMemsetD2D32Async_ptsz | 0 True
    """
    current()
    p = allocated(64 * KIB).value
    kinds: tuple[tuple[str, int, Callable[[int], object]], ...] = (
        ("D2D8", 1, c.c_ubyte),
        ("D2D16", 2, c.c_ushort),
        ("D2D32", 4, c.c_uint),
    )
    for kind, width, number in kinds:
        value = 0x4A3B2C1D & ((1 << 8 * width) - 1)
        for form in ("_v2", "_v2_ptds", "Async", "Async_ptsz"):
            name = f"cuMemset{kind}{form}"
            put(p, bytes(4096))
            result = call(name, u64(p), size(256), number(value), size(20), size(3), *streams_of(name))
            right = (value.to_bytes(width, "little") * 20).ljust(256, b"\0") * 3 + bytes(256)
            say(name, result, bytes_at(p, len(right)) == right)


@case
def copies_of_a_line() -> None:
    """
    cuMemcpyHtoD_v2 | 0 True
    cuMemcpyHtoD_v2_ptds | 0 True
    cuMemcpyHtoDAsync_v2 | 0 True
    cuMemcpyHtoDAsync_v2_ptsz | 0 True
    cuMemcpyDtoH_v2 | 0 True
    cuMemcpyDtoH_v2_ptds | 0 True
    cuMemcpyDtoHAsync_v2 | 0 True
    cuMemcpyDtoHAsync_v2_ptsz | 0 True
    cuMemcpyDtoD_v2 | 0 True
    cuMemcpyDtoD_v2_ptds | 0 True
    cuMemcpyDtoDAsync_v2 | 0 True
    cuMemcpyDtoDAsync_v2_ptsz | 0 True
    cuMemcpy | 0 True
    cuMemcpy_ptds | 0 True
    cuMemcpyAsync | 0 True
    cuMemcpyAsync_ptsz | 0 True
    cuMemcpyPeer | 0 True
    cuMemcpyPeer_ptds | 0 True
    cuMemcpyPeerAsync | 0 True
    cuMemcpyPeerAsync_ptsz | 0 True
    """
    context = current()
    p, q = allocated(64 * KIB).value, allocated(64 * KIB).value
    names = [
        f"cuMemcpy{way}{form}"
        for way in ("HtoD", "DtoH", "DtoD")
        for form in ("_v2", "_v2_ptds", "Async_v2", "Async_v2_ptsz")
    ]
    names += [f"cuMemcpy{form}" for form in ("", "_ptds", "Async", "Async_ptsz")]
    names += [f"cuMemcpyPeer{form}" for form in ("", "_ptds", "Async", "Async_ptsz")]
    for turn, name in enumerate(names):
        data = DATA[turn : turn + 1000]
        host = (c.c_ubyte * 1000)(*data)
        put(p, data)
        put(q, bytes(1000))
        here, more = pointer(c.addressof(host)), streams_of(name)
        if "HtoD" in name:
            result, seen = call(name, u64(q), here, size(1000), *more), bytes_at(q, 1000)
        elif "DtoH" in name:
            c.memset(host, 0, 1000)
            result = call(name, here, u64(p), size(1000), *more)
            assert call("cuCtxSynchronize") == 0
            seen = bytes(host)
        elif "Peer" in name:
            result = call(name, u64(q), context, u64(p), context, size(1000), *more)
            seen = bytes_at(q, 1000)
        else:
            result, seen = call(name, u64(q), u64(p), size(1000), *more), bytes_at(q, 1000)
        say(name, result, seen == data)


@case
def copies_of_an_array() -> None:
    """
    cuMemcpyDtoA_v2 | 0 True
    cuMemcpyDtoA_v2_ptds | 0 True
    cuMemcpyAtoD_v2 | 0 True
    cuMemcpyAtoD_v2_ptds | 0 True
    cuMemcpyHtoA_v2 | 0 True
    cuMemcpyHtoA_v2_ptds | 0 True
    cuMemcpyHtoAAsync_v2 | 0 True
    cuMemcpyHtoAAsync_v2_ptsz | 0 True
    cuMemcpyAtoH_v2 | 0 True
    cuMemcpyAtoH_v2_ptds | 0 True
    cuMemcpyAtoHAsync_v2 | 0 True
    cuMemcpyAtoHAsync_v2_ptsz | 0 True
    cuMemcpyAtoA_v2 | 0 True
    cuMemcpyAtoA_v2_ptds | 0 True
    """
    current()
    one, two = line_array(), line_array()
    p = allocated(64 * KIB).value
    plain, asynchronous = ("_v2", "_v2_ptds"), ("Async_v2", "Async_v2_ptsz")
    names = [f"cuMemcpy{way}{form}" for way in ("DtoA", "AtoD") for form in plain]
    names += [f"cuMemcpy{way}{form}" for way in ("HtoA", "AtoH") for form in plain + asynchronous]
    names += [f"cuMemcpyAtoA{form}" for form in plain]
    for turn, name in enumerate(names):
        data = DATA[turn : turn + 500]
        host = (c.c_ubyte * 500)(*data)
        here, more = pointer(c.addressof(host)), streams_of(name)
        for array in (one, two):
            assert call("cuMemcpyHtoA_v2", array, size(0), bytes(1024), size(1024)) == 0
        put(p, data)
        if "toA" in name:
            source = {"D": (u64(p),), "H": (here,), "A": (one, size(0))}[name[8]]
            if name[8] == "A":
                assert call("cuMemcpyHtoA_v2", one, size(0), here, size(500)) == 0
            result = call(name, two, size(16), *source, size(500), *more)
            seen = in_array(two)[16:516]
        else:
            assert call("cuMemcpyHtoA_v2", one, size(16), here, size(500)) == 0
            c.memset(host, 0, 500)
            put(p, bytes(500))
            target = u64(p) if "toD" in name else here
            result = call(name, target, one, size(16), size(500), *more)
            seen = bytes_at(p, 500) if "toD" in name else bytes(host)
        say(name, result, seen == data)


class LineArray(c.Structure):
    _fields_ = (("width", c.c_size_t), ("height", c.c_size_t), ("format", c.c_int), ("channels", c.c_uint))


def line_array(width: int = 1024, height: int = 0) -> c.c_void_p:
    array = pointer()
    assert call("cuArrayCreate_v2", at(array), at(LineArray(width, height, 1, 1))) == 0
    return array


def in_array(array: c.c_void_p) -> bytes:
    assert call("cuCtxSynchronize") == 0
    back = (c.c_ubyte * 1024)()
    assert call("cuMemcpyAtoH_v2", back, array, size(0), size(1024)) == 0
    return bytes(back)


@case
def copies_of_a_plane() -> None:
    """
    cuMemcpy2D_v2 | 0 True
    cuMemcpy2D_v2_ptds | 0 True
    cuMemcpy2DUnaligned_v2 | 0 True
    cuMemcpy2DUnaligned_v2_ptds | 0 True
    cuMemcpy2DAsync_v2 | 0 True
    cuMemcpy2DAsync_v2_ptsz | 0 True
    """
    current()
    p, q = allocated(64 * KIB).value, allocated(64 * KIB).value
    for turn, form in enumerate(("_v2", "_v2_ptds", "Unaligned_v2", "Unaligned_v2_ptds", "Async_v2", "Async_v2_ptsz")):
        name = f"cuMemcpy2D{form}"
        data = DATA[turn : turn + 4 * 128]
        put(p, data)
        put(q, bytes(4096))
        how = Copy2D(
            src_x=8, src_y=1, src_type=2, src_device=p, src_pitch=128,
            dst_x=4, dst_y=2, dst_type=2, dst_device=q, dst_pitch=256, width=60, height=3,
        )  # fmt: skip
        result = call(name, at(how), *streams_of(name))
        rows = [data[128 * y + 8 : 128 * y + 68] for y in (1, 2, 3)]
        right = bytes(2 * 256) + b"".join((bytes(4) + row).ljust(256, b"\0") for row in rows)
        say(name, result, bytes_at(q, len(right)) == right)


class Copy3D(c.Structure):
    """With contexts at the ends of both sides, as the peer forms have them; other forms call them reserved."""

    _fields_ = (
        *(
            (f"{side}_{name}", kind)
            for side in ("src", "dst")
            for name, kind in (
                ("x", c.c_size_t),
                ("y", c.c_size_t),
                ("z", c.c_size_t),
                ("lod", c.c_size_t),
                ("type", c.c_uint),
                ("host", c.c_void_p),
                ("device", c.c_uint64),
                ("array", c.c_void_p),
                ("context", c.c_void_p),
                ("pitch", c.c_size_t),
                ("height", c.c_size_t),
            )
        ),
        ("width", c.c_size_t),
        ("rows", c.c_size_t),
        ("depth", c.c_size_t),
    )


@case
def copies_of_a_box() -> None:
    """
    cuMemcpy3D_v2 | 0 True
    cuMemcpy3D_v2_ptds | 0 True
    cuMemcpy3DAsync_v2 | 0 True
    cuMemcpy3DAsync_v2_ptsz | 0 True
    cuMemcpy3DPeer | 0 True
    cuMemcpy3DPeer_ptds | 0 True
    cuMemcpy3DPeerAsync | 0 True
    cuMemcpy3DPeerAsync_ptsz | 0 True
    """
    context = current()
    p, q = allocated(64 * KIB).value, allocated(64 * KIB).value
    forms = ("_v2", "_v2_ptds", "Async_v2", "Async_v2_ptsz", "Peer", "Peer_ptds", "PeerAsync", "PeerAsync_ptsz")
    for turn, form in enumerate(forms):
        name = f"cuMemcpy3D{form}"
        data = DATA[turn : turn + 3 * 4 * 64]  # three layers of four rows of 64
        put(p, data)
        put(q, bytes(4096))
        owner = context if "Peer" in name else None
        how = Copy3D(
            src_x=3, src_y=1, src_z=1, src_type=2, src_device=p, src_pitch=64, src_height=4, src_context=owner,
            dst_x=5, dst_type=2, dst_device=q, dst_pitch=128, dst_height=2, dst_context=owner,
            width=40, rows=2, depth=2,
        )  # fmt: skip
        result = call(name, at(how), *streams_of(name))
        rows = [data[64 * (4 * z + y) + 3 : 64 * (4 * z + y) + 43] for z in (1, 2) for y in (1, 2)]
        right = b"".join((bytes(5) + row).ljust(128, b"\0") for row in rows)
        say(name, result, bytes_at(q, len(right)) == right)


@case
def copies_with_short_addresses() -> None:
    """
    cuMemcpyHtoD | 201
    cuMemcpyHtoDAsync | 201
    cuMemcpyDtoH | 201
    cuMemcpyDtoHAsync | 201
    cuMemcpyDtoD | 201
    cuMemcpyDtoDAsync | 201
    cuMemcpyDtoA | 201
    cuMemcpyAtoD | 201
    cuMemcpy2D | 201
    cuMemcpy2DUnaligned | 201
    cuMemcpy2DAsync | 201
    cuMemcpy3D | 201
    cuMemcpy3DAsync | 201
    cuMemsetD8 | 201
    cuMemsetD16 | 201
    cuMemsetD32 | 201
    cuMemsetD2D8 | 201
    cuMemsetD2D16 | 201
    cuMemsetD2D32 | 201
    nothing was written | True
    """
    current()
    p, array = allocated(64 * KIB).value, line_array()
    put(p, DATA[:4096])
    short, n, host = c.c_uint(p & 0xFFFFFFFF), c.c_uint(100), (c.c_ubyte * 4096)()
    short_of_nobody = c.c_uint(0x1000)
    arguments: dict[str, tuple[object, ...]] = {
        "cuMemcpyHtoD": (short, host, n),
        "cuMemcpyHtoDAsync": (short, host, n, None),
        "cuMemcpyDtoH": (host, short, n),
        "cuMemcpyDtoHAsync": (host, short, n, None),
        "cuMemcpyDtoD": (short_of_nobody, short, n),
        "cuMemcpyDtoDAsync": (short_of_nobody, short, n, None),
        "cuMemcpyDtoA": (array, c.c_uint(0), short, n),
        "cuMemcpyAtoD": (short, array, c.c_uint(0), n),
    }
    for form in ("", "Unaligned", "Async"):
        name = f"cuMemcpy2D{form}"
        flat = Short2D(
            src_type=1, src_host=c.addressof(host), src_pitch=64,
            dst_type=2, dst_device=short.value, dst_pitch=64, width=32, height=2,
        )  # fmt: skip
        arguments[name] = (at(flat), *streams_of(name))
    for form in ("", "Async"):
        name = f"cuMemcpy3D{form}"
        deep = Short3D(
            src_type=1, src_host=c.addressof(host), src_pitch=64, src_height=2,
            dst_type=2, dst_device=short.value, dst_pitch=64, dst_height=2, width=32, rows=2, depth=1,
        )  # fmt: skip
        arguments[name] = (at(deep), *streams_of(name))
    for bits in (8, 16, 32):
        arguments[f"cuMemsetD{bits}"] = (short, c.c_uint(1), n)
    for bits in (8, 16, 32):
        arguments[f"cuMemsetD2D{bits}"] = (short, c.c_uint(256), c.c_uint(1), c.c_uint(10), c.c_uint(2))
    for name, given in arguments.items():
        say(name, call(name, *given))
    say("nothing was written", bytes_at(p, 4096) == DATA[:4096])


class Short2D(c.Structure):
    _fields_ = (
        *(
            (f"{side}_{name}", kind)
            for side in ("src", "dst")
            for name, kind in (
                ("x", c.c_uint),
                ("y", c.c_uint),
                ("type", c.c_uint),
                ("host", c.c_void_p),
                ("device", c.c_uint),
                ("array", c.c_void_p),
                ("pitch", c.c_uint),
            )
        ),
        ("width", c.c_uint),
        ("height", c.c_uint),
    )


class Short3D(c.Structure):
    _fields_ = (
        *(
            (f"{side}_{name}", kind)
            for side in ("src", "dst")
            for name, kind in (
                ("x", c.c_uint),
                ("y", c.c_uint),
                ("z", c.c_uint),
                ("lod", c.c_uint),
                ("type", c.c_uint),
                ("host", c.c_void_p),
                ("device", c.c_uint),
                ("array", c.c_void_p),
                ("reserved", c.c_void_p),
                ("pitch", c.c_uint),
                ("height", c.c_uint),
            )
        ),
        ("width", c.c_uint),
        ("rows", c.c_uint),
        ("depth", c.c_uint),
    )


@case
def arrays_with_short_descriptions() -> None:
    """
    cuArrayCreate | 201
    cuArray3DCreate | 201
    cuArrayGetDescriptor of none | 400
    cuArray3DGetDescriptor of none | 400
    cuMemcpyHtoA | 201
    cuMemcpyHtoAAsync | 201
    cuMemcpyAtoH | 201
    cuMemcpyAtoHAsync | 201
    cuMemcpyAtoA | 201
    """
    current()
    seen = (c.c_uint * 8)()
    flat, deep = (c.c_uint * 4)(16, 8, 1, 1), (c.c_uint * 6)(16, 8, 4, 1, 1, 0)
    say("cuArrayCreate", call("cuArrayCreate", at(pointer()), flat))
    say("cuArray3DCreate", call("cuArray3DCreate", at(pointer()), deep))
    say("cuArrayGetDescriptor of none", call("cuArrayGetDescriptor", seen, None))
    say("cuArray3DGetDescriptor of none", call("cuArray3DGetDescriptor", seen, None))
    one, two, n, nowhere = line_array(), line_array(), c.c_uint(64), c.c_uint(0)
    host = (c.c_ubyte * 64)(*DATA[:64])
    say("cuMemcpyHtoA", call("cuMemcpyHtoA", one, nowhere, host, n))
    say("cuMemcpyHtoAAsync", call("cuMemcpyHtoAAsync", one, nowhere, host, n, None))
    say("cuMemcpyAtoH", call("cuMemcpyAtoH", host, one, nowhere, n))
    say("cuMemcpyAtoHAsync", call("cuMemcpyAtoHAsync", host, one, nowhere, n, None))
    say("cuMemcpyAtoA", call("cuMemcpyAtoA", two, nowhere, one, nowhere, n))
