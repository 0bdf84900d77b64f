"""Cases of cuda_cases.py: Launches and occupancy."""

from __future__ import annotations

import ctypes as c

from cuda_cases import allocated, at, call, case, current, say, size, vadd_of


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
