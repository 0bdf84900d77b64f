"""The GPU backend: hand-written PTX through cuda.bindings (extra `bridge`), on the device's primary context.

Invariants: the output buffer is zero before each launch, so that nothing of an earlier job is ever handed out; after an
error that ends a context (a lost device, a fault) the context is given up and the next job gets a new one. Everything
runs on the default stream; `kernel_ns` is the time between two events around the kernel alone.
"""

from __future__ import annotations

import ctypes
from typing import Any

from cuda.bindings import driver as cu

from lab.bridge.backend import BackendError, Result
from lab.bridge.records import MAIL, SENTENCE, Job

PTX = """
.version 7.0
.target sm_52
.address_size 64

.global .align 1 .b8 sentence[LENGTH] = {BYTES};

// out[i] = sentence[i % LENGTH] for every i < n; the threads along x stride over the output.
.visible .entry mail_kernel(.param .u64 out, .param .u32 n)
{
    .reg .pred %p<2>;
    .reg .b16 %h<2>;
    .reg .b32 %r<7>;
    .reg .b64 %l<10>;
    ld.param.u64 %l1, [out];
    ld.param.u32 %r1, [n];
    cvta.to.global.u64 %l1, %l1;
    cvt.u64.u32 %l2, %r1;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %tid.x;
    cvt.u64.u32 %l3, %r4;
    mad.wide.u32 %l4, %r2, %r3, %l3;
    mov.u32 %r5, %nctaid.x;
    mul.wide.u32 %l5, %r2, %r5;
    mov.u64 %l6, sentence;
STRIDE:
    setp.ge.u64 %p1, %l4, %l2;
    @%p1 bra END;
    cvt.u32.u64 %r6, %l4;
    rem.u32 %r6, %r6, LENGTH;
    cvt.u64.u32 %l7, %r6;
    add.u64 %l8, %l6, %l7;
    ld.global.u8 %h1, [%l8];
    add.u64 %l9, %l1, %l4;
    st.global.u8 [%l9], %h1;
    add.u64 %l4, %l4, %l5;
    bra STRIDE;
END:
    ret;
}

// c[i] = a[i] + b[i]; one thread an element along x.
.visible .entry vadd(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n)
{
    .reg .pred %p<2>;
    .reg .f32 %f<4>;
    .reg .b32 %r<5>;
    .reg .b64 %l<10>;
    ld.param.u64 %l1, [a];
    ld.param.u64 %l2, [b];
    ld.param.u64 %l3, [c];
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %tid.x;
    cvt.u64.u32 %l4, %r4;
    mad.wide.u32 %l5, %r2, %r3, %l4;
    cvt.u64.u32 %l6, %r1;
    setp.ge.u64 %p1, %l5, %l6;
    @%p1 bra END;
    shl.b64 %l7, %l5, 2;
    cvta.to.global.u64 %l1, %l1;
    cvta.to.global.u64 %l2, %l2;
    cvta.to.global.u64 %l3, %l3;
    add.u64 %l8, %l1, %l7;
    ld.global.f32 %f1, [%l8];
    add.u64 %l8, %l2, %l7;
    ld.global.f32 %f2, [%l8];
    add.f32 %f3, %f1, %f2;
    add.u64 %l9, %l3, %l7;
    st.global.f32 [%l9], %f3;
END:
    ret;
}
""".replace("LENGTH", str(len(SENTENCE))).replace("BYTES", ", ".join(map(str, SENTENCE)))

_ENDS_NOTHING = frozenset({1, 2, 101, 200, 218, 222, 300, 301, 400, 500, 701, 801})
"""CUresults after which the context is as good as before; any other gives it up."""
_STEP = 1 << 20


class GpuBackend:
    """One device, by its CUDA ordinal. `BackendError` when there is none, or CUDA cannot be started."""

    def __init__(self, ordinal: int = 0) -> None:
        self._ordinal = ordinal
        self._open: _Context | None = None
        _call(cu.cuInit(0), "cuInit")
        count = _call(cu.cuDeviceGetCount(), "cuDeviceGetCount")
        if ordinal >= count:
            raise BackendError(101, f"device {ordinal}: CUDA shows {count}; give a lower number")
        device = _call(cu.cuDeviceGet(ordinal), "cuDeviceGet")
        name: bytes = _call(cu.cuDeviceGetName(64, device), "cuDeviceGetName")
        self.name = name.split(b"\0")[0].decode("utf-8", "replace")
        self._open = _Context(device)

    def run(self, job: Job, data: bytes) -> Result:
        """As `Backend.run`."""
        try:
            if self._open is None:
                self._open = _Context(_call(cu.cuDeviceGet(self._ordinal), "cuDeviceGet"))
            return self._open.run(job, data)
        except BackendError as error:
            if error.code not in _ENDS_NOTHING:
                self.close()
            raise

    def close(self) -> None:
        """Gives the context back; errors of a device that is gone are no news."""
        if self._open is not None:
            self._open.close()
            self._open = None


class _Context:
    """The primary context with the module, two events, and buffers that grow to the largest job."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._buffers: dict[str, tuple[Any, int]] = {}
        context = _call(cu.cuDevicePrimaryCtxRetain(device), "cuDevicePrimaryCtxRetain")
        try:
            _call(cu.cuCtxSetCurrent(context), "cuCtxSetCurrent")
            module = _call(cu.cuModuleLoadData(PTX.encode() + b"\0"), "cuModuleLoadData")
            self._mail = _call(cu.cuModuleGetFunction(module, b"mail_kernel"), "cuModuleGetFunction")
            self._vadd = _call(cu.cuModuleGetFunction(module, b"vadd"), "cuModuleGetFunction")
            self._begin, self._end = (_call(cu.cuEventCreate(0), "cuEventCreate") for _ in range(2))
        except BackendError:
            self.close()
            raise

    def run(self, job: Job, data: bytes) -> Result:
        output = bytearray(job.out_bytes)
        out = self._buffer("out", job.out_bytes)
        _call(cu.cuMemsetD8Async(out, 0, job.out_bytes, 0), "cuMemsetD8Async")
        function, values, kinds = self._mail, [int(out), job.n], [ctypes.c_uint64, ctypes.c_uint32]
        if job.opcode != MAIL:
            source = self._buffer("in", job.in_bytes)
            _call(cu.cuMemcpyHtoD(source, data, job.in_bytes), "cuMemcpyHtoD")
            function = self._vadd
            values = [int(source), int(source) + 4 * job.n, *values]
            kinds = [ctypes.c_uint64, ctypes.c_uint64, *kinds]
        grid, block = job.shape
        _call(cu.cuEventRecord(self._begin, 0), "cuEventRecord")
        _call(
            cu.cuLaunchKernel(function, *grid, *block, job.shared, 0, (tuple(values), tuple(kinds)), 0),
            "cuLaunchKernel",
        )
        _call(cu.cuEventRecord(self._end, 0), "cuEventRecord")
        _call(cu.cuEventSynchronize(self._end), "cuEventSynchronize")
        elapsed = _call(cu.cuEventElapsedTime(self._begin, self._end), "cuEventElapsedTime")
        view = (ctypes.c_char * job.out_bytes).from_buffer(output)
        _call(cu.cuMemcpyDtoH(ctypes.addressof(view), out, job.out_bytes), "cuMemcpyDtoH")
        del view
        return Result(output, round(elapsed * 1e6))

    def _buffer(self, role: str, size: int) -> Any:
        """Device memory of at least `size` bytes, kept for later jobs."""
        pointer, has = self._buffers.get(role, (None, 0))
        if has >= size:
            return pointer
        if pointer is not None:
            del self._buffers[role]
            _call(cu.cuMemFree(pointer), "cuMemFree")
        size = -(-size // _STEP) * _STEP
        self._buffers[role] = (_call(cu.cuMemAlloc(size), "cuMemAlloc"), size)
        return self._buffers[role][0]

    def close(self) -> None:
        """The primary context goes with everything in it, whatever state it is in."""
        cu.cuDevicePrimaryCtxReset(self._device)
        cu.cuDevicePrimaryCtxRelease(self._device)


def _call(answer: tuple[Any, ...], name: str) -> Any:
    """The value of a driver call, or `BackendError` with its CUresult."""
    code, *values = answer
    if int(code) != 0:
        raise BackendError(int(code), f"{name}: {getattr(code, 'name', f'CUresult {int(code)}')}")
    return values[0] if len(values) == 1 else values or None
