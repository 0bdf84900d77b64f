"""Cases of cuda_cases.py: Copies and fills."""

from __future__ import annotations

import ctypes as c
import os

from cuda_cases import MIB, allocated, at, call, case, current, pointer, say, size, u64


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
