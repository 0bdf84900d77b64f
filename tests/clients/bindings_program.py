"""cuda.bindings.driver: start, query, allocate, copy, load hand-written PTX, launch vadd, check the sum.

Prints one JSON line. With a limit of memory, `--fill MIB` allocates blocks of that size until the driver refuses; then
NVIDIA's own runtime, which the package has inside, is asked for as much as its first call.
"""

import ctypes
import json
import sys

from cuda.bindings import __version__, runtime
from cuda.bindings import driver as cu

PTX = b"""
.version 7.0
.target sm_52
.address_size 64
.visible .entry vadd(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n)
{
    .reg .pred %p<2>;
    .reg .f32 %f<4>;
    .reg .b32 %r<6>;
    .reg .b64 %rd<11>;
    ld.param.u64 %rd1, [a];
    ld.param.u64 %rd2, [b];
    ld.param.u64 %rd3, [c];
    ld.param.u32 %r2, [n];
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %ctaid.x;
    mov.u32 %r5, %tid.x;
    mad.lo.s32 %r1, %r3, %r4, %r5;
    setp.ge.u32 %p1, %r1, %r2;
    @%p1 bra DONE;
    cvta.to.global.u64 %rd4, %rd1;
    cvta.to.global.u64 %rd5, %rd2;
    cvta.to.global.u64 %rd6, %rd3;
    mul.wide.u32 %rd7, %r1, 4;
    add.s64 %rd8, %rd4, %rd7;
    add.s64 %rd9, %rd5, %rd7;
    add.s64 %rd10, %rd6, %rd7;
    ld.global.f32 %f1, [%rd8];
    ld.global.f32 %f2, [%rd9];
    add.f32 %f3, %f1, %f2;
    st.global.f32 [%rd10], %f3;
DONE:
    ret;
}
"""
N = 10_000


def ok(result: tuple):
    error, *values = result
    if error != cu.CUresult.CUDA_SUCCESS:
        raise SystemExit(f"bindings_program: {error!r}")
    return values[0] if len(values) == 1 else values


def vadd() -> bool:
    a, b, c = (cu.CUdeviceptr(ok(cu.cuMemAlloc(4 * N))) for _ in range(3))
    x, y, z = ((ctypes.c_float * N)() for _ in range(3))
    for i in range(N):
        x[i], y[i] = i, 2 * i + 0.5
    ok(cu.cuMemcpyHtoD(a, ctypes.addressof(x), 4 * N))
    ok(cu.cuMemcpyHtoD(b, ctypes.addressof(y), 4 * N))
    module = ok(cu.cuModuleLoadData(PTX))
    function = ok(cu.cuModuleGetFunction(module, b"vadd"))
    stream = ok(cu.cuStreamCreate(0))
    arguments = ((int(a), int(b), int(c), N), (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint32))
    ok(cu.cuLaunchKernel(function, (N + 255) // 256, 1, 1, 256, 1, 1, 0, stream, arguments, 0))
    ok(cu.cuStreamSynchronize(stream))
    ok(cu.cuMemcpyDtoH(ctypes.addressof(z), c, 4 * N))
    for pointer in (a, b, c):
        ok(cu.cuMemFree(pointer))
    ok(cu.cuStreamDestroy(stream))
    ok(cu.cuModuleUnload(module))
    return all(z[i] == x[i] + y[i] for i in range(N))


def fill(mib: int) -> dict[str, object]:
    blocks = 0
    while True:
        error, _ = cu.cuMemAlloc(mib << 20)
        if error != cu.CUresult.CUDA_SUCCESS:
            return {"blocks": blocks, "error": error.name}
        blocks += 1


def main() -> None:
    ok(cu.cuInit(0))
    device = ok(cu.cuDeviceGet(0))
    context = ok(cu.cuDevicePrimaryCtxRetain(device))
    ok(cu.cuCtxSetCurrent(context))
    free, total = ok(cu.cuMemGetInfo())
    report: dict[str, object] = {
        "bindings": __version__,
        "count": ok(cu.cuDeviceGetCount()),
        "name": ok(cu.cuDeviceGetName(96, device)).split(b"\0")[0].decode(),
        "driver": ok(cu.cuDriverGetVersion()),
        "device_total": ok(cu.cuDeviceTotalMem(device)),
        "total": total,
        "free": free,
        "vadd": vadd(),
    }
    if len(sys.argv) == 3 and sys.argv[1] == "--fill":
        report["fill"] = fill(int(sys.argv[2]))
        report["runtime"] = [runtime.cudaGetDeviceCount()[0].name, runtime.cudaMalloc(1 << 20)[0].name]
    print(json.dumps(report))


main()
