"""Cases of cuda_cases.py: tensor maps, clusters, core dump attributes, logs and notices."""

from __future__ import annotations

import ctypes as c
import os
import socket
import tempfile

from cuda_cases import ASSUMED, LUCK, MIB, allocated, at, call, case, current, pointer, say, size, start, u64, vadd_of

FLOAT32, BFLOAT16, UINT8 = 7, 9, 0


def room() -> c.Array[c.c_ubyte]:
    """128 bytes on a multiple of 64; what was read of them before must stay where a call is refused."""
    whole = (c.c_ubyte * 256)()
    whole._keep = whole  # type: ignore[attr-defined]
    return (c.c_ubyte * 128).from_buffer(whole, -c.addressof(whole) % 64)


def tiled(address: int, **changed: object) -> tuple[int, bytes]:
    """A map of 1024 × 512 floats in boxes of 32 × 64."""
    made = room()
    what = {
        "type": FLOAT32, "rank": 2, "dims": (1024, 512), "strides": (4096,), "box": (32, 64), "steps": (1, 1),
        "interleave": 0, "swizzle": 0, "l2": 0, "fill": 0, "out": c.addressof(made),
    } | changed  # fmt: skip
    result = call(
        "cuTensorMapEncodeTiled",
        pointer(what["out"]),  # type: ignore[arg-type]
        what["type"],
        what["rank"],
        pointer(address),
        (c.c_uint64 * 5)(*what["dims"]),  # type: ignore[misc]
        (c.c_uint64 * 4)(*what["strides"]),  # type: ignore[misc]
        (c.c_uint32 * 5)(*what["box"]),  # type: ignore[misc]
        (c.c_uint32 * 5)(*what["steps"]),  # type: ignore[misc]
        *(what[name] for name in ("interleave", "swizzle", "l2", "fill")),
    )
    return result, bytes(made)


@case
def tensor_maps() -> None:
    """
    plain | 0 True
    the same again | True
    another address | 0 True
    replaced | 0 True
    replace with a crooked one | 1
    five dimensions | 0
    rank 0 | 1
    rank 6 | 1
    crooked address | 1
    NULL address | 0
    crooked map | 0
    NULL map | 1
    no such type | 1
    dimension 0 | 1
    dimension 2^31 + 1 | 0
    crooked stride | 1
    stride 2^40 | 1
    box 0 | 1
    box 257 | 1
    box of 4 bytes | 1
    step 0 | 1
    step 9 | 1
    first step of none | 1
    interleaved plane | 1
    interleaved space | 0
    32 B without its swizzle | 0
    32 B | 0
    wider than its swizzle | 1
    as wide as its swizzle | 0
    NaN fill | 0
    NaN fill of integers | 1
    """
    current()
    p = allocated(4 * MIB).value
    result, first = tiled(p)
    say("plain", result, any(first))
    say("the same again", tiled(p)[1] == first)
    result, second = tiled(p + 128)
    say("another address", result, second != first)
    made = room()
    c.memmove(made, first, 128)
    say("replaced", call("cuTensorMapReplaceAddress", made, pointer(p + 128)), bytes(made) == second)
    say("replace with a crooked one", call("cuTensorMapReplaceAddress", made, pointer(p + 8)))
    space = {"dims": (64, 8, 8, 4, 2), "strides": (256, 2048, 16384, 65536), "steps": (1,) * 5}
    say("five dimensions", tiled(p, rank=5, box=(16, 2, 2, 2, 1), **space)[0])
    say("rank 0", tiled(p, rank=0)[0])
    say("rank 6", tiled(p, rank=6, box=(16, 2, 2, 2, 1), **space)[0])
    say("crooked address", tiled(p + 8)[0])
    say("NULL address", tiled(0)[0])
    say("crooked map", tiled(p, out=c.addressof(made) + 16)[0])
    say("NULL map", tiled(p, out=None)[0])
    say("no such type", tiled(p, type=77)[0])
    say("dimension 0", tiled(p, dims=(1024, 0))[0])
    say("dimension 2^31 + 1", tiled(p, dims=(1024, (1 << 31) + 1))[0])
    say("crooked stride", tiled(p, strides=(4104,))[0])
    say("stride 2^40", tiled(p, strides=(1 << 40,))[0])
    say("box 0", tiled(p, box=(32, 0))[0])
    say("box 257", tiled(p, box=(32, 257))[0])
    say("box of 4 bytes", tiled(p, box=(1, 64))[0])
    say("step 0", tiled(p, steps=(1, 0))[0])
    say("step 9", tiled(p, steps=(1, 9))[0])
    say("first step of none", tiled(p, steps=(0, 1))[0])
    say("interleaved plane", tiled(p, interleave=1)[0])
    cube = {"rank": 3, "dims": (64, 8, 8), "strides": (256, 2048), "box": (16, 2, 2), "steps": (1, 1, 1)}
    say("interleaved space", tiled(p, interleave=1, **cube)[0])
    say("32 B without its swizzle", tiled(p, interleave=2, **cube)[0])
    say("32 B", tiled(p, interleave=2, swizzle=1, **cube)[0])
    say("wider than its swizzle", tiled(p, swizzle=2)[0])
    say("as wide as its swizzle", tiled(p, swizzle=3)[0])
    say("NaN fill", tiled(p, fill=1)[0])
    say("NaN fill of integers", tiled(p, fill=1, type=UINT8, box=(32, 64))[0])


@case
def tensor_maps_of_images() -> None:
    """
    image | 0 True
    plane | 1
    corner out of range | 1
    empty box | 1
    257 channels | 1
    1025 pixels | 1
    wide form | 0
    without a context | 201
    """
    current()
    p = allocated(4 * MIB).value
    dims, strides = (c.c_uint64 * 5)(64, 32, 32, 4), (c.c_uint64 * 4)(128, 4096, 131072)
    steps = (c.c_uint32 * 5)(1, 1, 1, 1, 1)

    def image(
        low: tuple[int, ...], high: tuple[int, ...], *, rank: int = 4, channels: int = 64, pixels: int = 128
    ) -> int:
        corners = (c.c_int * 3)(*low), (c.c_int * 3)(*high)
        ask = "cuTensorMapEncodeIm2col"
        what = (made, BFLOAT16, rank, pointer(p), dims, strides, *corners, channels, pixels, steps, 0, 3, 0, 0)
        return call(ask, *what)

    made = room()
    say("image", image((-1, -1), (-1, -1)), any(made))
    say("plane", image((-1,), (-1,), rank=2))
    say("corner out of range", image((-129, 0), (0, 0)))
    say("empty box", image((16, 0), (-16, 0)))
    say("257 channels", image((-1, -1), (-1, -1), channels=257))
    say("1025 pixels", image((-1, -1), (-1, -1), pixels=1025))
    wide = (made, BFLOAT16, 4, pointer(p), dims, strides, -1, -1, 64, 128, steps, 0, 0, 3, 0, 0)
    say("wide form", call("cuTensorMapEncodeIm2colWide", *wide))
    call("cuCtxSetCurrent", None)
    say("without a context", tiled(p)[0])


class Attribute(c.Structure):
    _fields_ = (("id", c.c_int), ("pad", c.c_int), ("value", c.c_uint * 16))


class Config(c.Structure):
    _fields_ = (
        ("grid", c.c_uint * 3),
        ("block", c.c_uint * 3),
        ("shared", c.c_uint),
        ("stream", c.c_void_p),
        ("attributes", c.c_void_p),
        ("count", c.c_uint),
    )


@case
def clusters() -> None:
    """
    largest | 0 8
    of two blocks | 0 True
    of none | 0
    of sixteen | 912
    NULL | 1
    """
    function, _ = vadd_of(current())
    cluster = Attribute(4, 0, (c.c_uint * 16)(2, 1, 1))
    config = Config((c.c_uint * 3)(64, 1, 1), (c.c_uint * 3)(256, 1, 1), 0, None, c.addressof(cluster), 1)
    most, count = c.c_int(-1), c.c_int(-1)
    say("largest", call("cuOccupancyMaxPotentialClusterSize", at(most), function, at(config)), most.value)
    result = call("cuOccupancyMaxActiveClusters", at(count), function, at(config))
    say("of two blocks", result, count.value > 0)
    config.count = 0
    say("of none", call("cuOccupancyMaxActiveClusters", at(count), function, at(config)))
    config.count, cluster.value[0] = 1, 16
    say("of sixteen", call("cuOccupancyMaxActiveClusters", at(count), function, at(config)))
    say("NULL", call("cuOccupancyMaxActiveClusters", None, function, at(config)))


def dumped(which: int, scope: str = "Global", room: int = 1024) -> tuple[int, bytes]:
    value, length = (c.c_char * 1024)(), size(room)
    result = call(f"cuCoredumpGetAttribute{scope}", which, value, at(length))
    return result, bytes(value[: length.value]) if result == 0 else b""


@case
def coredumps() -> None:
    """
    before cuInit | 0
    sizes | 1 1 1 1 1024 1024 4
    no such attribute | 1 1
    enabled | 0 0 1
    host | 0 1 1
    light | 0 0 1
    trigger | 0 0 1
    file into too little | 0 4
    set file | 0 /tmp/here
    a context has what was set | /tmp/here
    set file of the context | 0 /tmp/there /tmp/here
    set pipe of the context | 1
    set flags | 0 0 272
    skip the abort | 0 0
    without a context | 201
    """
    length = size(0)
    say("before cuInit", call("cuCoredumpGetAttributeGlobal", 1, None, at(length)))
    start()
    sizes = []
    for which in range(1, 8):
        call("cuCoredumpGetAttributeGlobal", which, None, at(length))
        sizes.append(length.value)
    say("sizes", *sizes)
    say("no such attribute", dumped(0)[0], dumped(99)[0])
    for which, name in enumerate(("enabled", "host", "light", "trigger"), 1):
        flag, length = c.c_ubyte(7), size(1)
        say(name, call("cuCoredumpGetAttributeGlobal", which, at(flag), at(length)), flag.value, length.value)
    result, text = dumped(5, room=4)
    say("file into too little", result, len(text))

    def set_text(which: int, text: bytes, scope: str = "Global") -> int:
        return call(f"cuCoredumpSetAttribute{scope}", which, text, at(size(len(text) + 1)))

    say("set file", set_text(5, b"/tmp/here"), dumped(5)[1].rstrip(b"\0").decode())
    current()
    say("a context has what was set", dumped(5, "")[1].rstrip(b"\0").decode())
    result = set_text(5, b"/tmp/there", "")
    say("set file of the context", result, dumped(5, "")[1].rstrip(b"\0").decode(), dumped(5)[1].rstrip(b"\0").decode())
    say("set pipe of the context", set_text(6, b"/tmp/pipe", ""))
    flags = c.c_uint(1 << 4 | 1 << 8)
    result = call("cuCoredumpSetAttributeGlobal", 7, at(flags), at(size(4)))
    now = c.c_uint(7)
    say("set flags", result, call("cuCoredumpGetAttributeGlobal", 7, at(now), at(size(4))), now.value)
    flag = c.c_ubyte(7)
    say("skip the abort", call("cuCoredumpGetAttributeGlobal", 2, at(flag), at(size(1))), flag.value)
    call("cuCtxSetCurrent", None)
    say("without a context", dumped(1, "")[0])


@case
def coredump_names() -> None:
    """
    file | True
    pipe | True
    """
    start()
    whose = f"{socket.gethostname()}.{os.getpid()}".encode()
    say("file", dumped(5)[1].rstrip(b"\0") == b"core.cuda." + whose)
    say("pipe", dumped(6)[1].rstrip(b"\0") == b"corepipe.cuda." + whose)


@case
def notices() -> None:
    """
    register | 0
    register nothing | 1
    unregister | 0
    current | 0
    current with a flag | 0
    to memory | 0 0
    to a file | 0 True
    to no file | 1
    budget before cuInit | 3
    budget | 0
    budget of device 7 | 101
    budget of nobody | 1
    end of budget | 0
    """
    heard = c.CFUNCTYPE(None, c.c_void_p, c.c_int, c.c_char_p, c.c_size_t)(lambda *_: None)
    handle, place, buffer, length = pointer(), c.c_uint(7), (c.c_char * 64)(), size(64)
    say("register", call("cuLogsRegisterCallback", heard, None, at(handle)))
    say("register nothing", call("cuLogsRegisterCallback", None, None, at(pointer())))
    say("unregister", call("cuLogsUnregisterCallback", handle))
    say("current", call("cuLogsCurrent", at(place), 0))
    say("current with a flag", call("cuLogsCurrent", at(place), 1))
    say("to memory", call("cuLogsDumpToMemory", at(place), buffer, at(length), 0), length.value)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "log")
        say("to a file", call("cuLogsDumpToFile", at(place), path.encode(), 0), os.path.exists(path))
        say("to no file", call("cuLogsDumpToFile", at(place), f"{folder}/none/log".encode(), 0))
    told = c.CFUNCTYPE(None, c.c_void_p, c.c_void_p, c.c_void_p)(lambda *_: None)
    ask = "cuDeviceRegisterAsyncNotification"
    say("budget before cuInit", call(ask, 0, told, None, at(handle)))
    start()
    say("budget", call(ask, 0, told, None, at(handle)))
    say("budget of device 7", call(ask, 7, told, None, at(handle)))
    say("budget of nobody", call(ask, 0, None, None, at(u64())))
    say("end of budget", call("cuDeviceUnregisterAsyncNotification", 0, handle))


@case
def texture_of_a_launch() -> None:
    """
    set | 1
    set to a unit | 1
    no reference | 400
    no function | 400
    """
    function, _ = vadd_of(current())
    reference = pointer()
    call("cuTexRefCreate", at(reference))
    ask = "cuParamSetTexRef"
    say("set", call(ask, function, -1, reference))
    say("set to a unit", call(ask, function, 0, reference))
    say("no reference", call(ask, function, -1, None))
    say("no function", call(ask, None, -1, reference))


@case
def listener_ended_twice() -> None:
    """
    died | 11
    """
    heard = c.CFUNCTYPE(None, c.c_void_p, c.c_int, c.c_char_p, c.c_size_t)(lambda *_: None)
    handle = pointer()
    call("cuLogsRegisterCallback", heard, None, at(handle))
    call("cuLogsUnregisterCallback", handle)
    call("cuLogsUnregisterCallback", handle)


LUCK |= {"listener_ended_twice"}
ASSUMED |= {"coredump_names"}
