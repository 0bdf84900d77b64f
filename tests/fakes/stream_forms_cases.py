"""Cases of cuda_cases.py: every form of what is done in a stream, with the legacy default stream and with one of each
thread; older and newer generations of the same call."""

from __future__ import annotations

import ctypes as c

from batch_cases import Attributes, Box, Operand, Plain, list64, managed, own_stream
from cuda_cases import allocated, at, call, case, current, pointer, say, size, u64, vadd_of
from memory_cases import Location
from stream_memory_cases import MemOp, word
from tensor_cases import Config


def forms(name: str) -> tuple[str, str]:
    return name, f"{name}_ptsz"


def captured(s: c.c_void_p) -> tuple[int, int]:
    """Ends a capture: (result, number of nodes)."""
    graph, n = pointer(), size(77)
    result = call("cuStreamEndCapture", s, at(graph))
    if graph.value:
        call("cuGraphGetNodes", graph, None, at(n))
    return result, n.value


@case
def asked_of_a_stream() -> None:
    """
    cuStreamGetFlags | 0 1
    cuStreamGetFlags_ptsz | 0 1
    cuStreamGetPriority | 0 -2
    cuStreamGetPriority_ptsz | 0 -2
    cuStreamGetId | 0 True
    cuStreamGetId_ptsz | 0 True
    cuStreamGetCtx | 0 True
    cuStreamGetCtx_ptsz | 0 True
    cuStreamGetCtx_v2 | 0 True True
    cuStreamGetCtx_v2_ptsz | 0 True True
    cuStreamGetDevice | 0 0
    cuStreamGetDevice_ptsz | 0 0
    cuStreamQuery | 0
    cuStreamQuery_ptsz | 0
    cuStreamSynchronize | 0
    cuStreamSynchronize_ptsz | 0
    cuStreamIsCapturing | 0 0
    cuStreamIsCapturing_ptsz | 0 0
    cuStreamSetAttribute | 0
    cuStreamGetAttribute | 0 2
    cuStreamCopyAttributes | 0 0 2
    cuStreamSetAttribute_ptsz | 0
    cuStreamGetAttribute_ptsz | 0 4
    cuStreamCopyAttributes_ptsz | 0 0 4
    priority of the copy | -2
    of the default streams | True
    """
    context = current()
    s, other = pointer(), own_stream()
    assert call("cuStreamCreateWithPriority", at(s), 1, -2) == 0
    v, flags, known, found, green = c.c_int(7), c.c_uint(7), u64(7), pointer(), pointer(7)
    assert call("cuStreamGetId", s, at(known)) == 0
    for name in forms("cuStreamGetFlags"):
        flags.value = 7
        say(name, call(name, s, at(flags)), flags.value)
    for name in forms("cuStreamGetPriority"):
        v.value = 7
        say(name, call(name, s, at(v)), v.value)
    for name in forms("cuStreamGetId"):
        i = u64(7)
        say(name, call(name, s, at(i)), i.value == known.value)
    for name in forms("cuStreamGetCtx"):
        found.value = None
        say(name, call(name, s, at(found)), found.value == context.value)
    for name in forms("cuStreamGetCtx_v2"):
        found.value, green.value = None, 7
        say(name, call(name, s, at(found), at(green)), found.value == context.value, green.value is None)
    for name in forms("cuStreamGetDevice"):
        v.value = 7
        say(name, call(name, s, at(v)), v.value)
    for base in ("cuStreamQuery", "cuStreamSynchronize"):
        for name in forms(base):
            say(name, call(name, s))
    for name in forms("cuStreamIsCapturing"):
        v.value = 7
        say(name, call(name, s, at(v)), v.value)
    policy = 3  # CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY
    for form, value in (("", 2), ("_ptsz", 4)):
        attribute = (c.c_int * 16)(value)
        say(f"cuStreamSetAttribute{form}", call(f"cuStreamSetAttribute{form}", s, policy, attribute))
        seen = (c.c_int * 16)()
        say(f"cuStreamGetAttribute{form}", call(f"cuStreamGetAttribute{form}", s, policy, seen), seen[0])
        seen = (c.c_int * 16)()
        results = call(f"cuStreamCopyAttributes{form}", other, s), call("cuStreamGetAttribute", other, policy, seen)
        say(f"cuStreamCopyAttributes{form}", *results, seen[0])
    call("cuStreamGetPriority", other, at(v))
    say("priority of the copy", v.value)
    legacy, own = u64(), u64()
    call("cuStreamGetId", None, at(legacy))
    call("cuStreamGetId_ptsz", None, at(own))
    say("of the default streams", legacy.value != own.value)


@case
def done_in_a_stream() -> None:
    """
    cuEventRecord | 0 0
    cuEventRecord_ptsz | 0 0
    cuEventRecordWithFlags | 0 0
    cuEventRecordWithFlags_ptsz | 0 0
    cuStreamWaitEvent | 0 0
    cuStreamWaitEvent_ptsz | 0 0
    cuEventElapsedTime | 0 True
    cuEventElapsedTime_v2 | 0 True
    cuStreamAddCallback | 0 0 [(True, 0, 5)]
    cuStreamAddCallback_ptsz | 0 0 [(True, 0, 5)]
    cuLaunchHostFunc | 0 0 [5]
    cuLaunchHostFunc_ptsz | 0 0 [5]
    cuStreamAttachMemAsync | 0 1
    cuStreamAttachMemAsync_ptsz | 0 1
    cuMemPrefetchAsync | 0 0
    cuMemPrefetchAsync_ptsz | 0 0
    cuMemPrefetchAsync_v2 | 0 0
    cuMemPrefetchAsync_v2_ptsz | 0 0
    cuMemPrefetchBatchAsync | 0 0
    cuMemPrefetchBatchAsync_ptsz | 0 0
    cuMemDiscardBatchAsync | 0
    cuMemDiscardBatchAsync_ptsz | 0
    cuMemDiscardAndPrefetchBatchAsync | 0 0
    cuMemDiscardAndPrefetchBatchAsync_ptsz | 0 0
    """
    current()
    s, a, b = own_stream(), pointer(), pointer()
    call("cuEventCreate", at(a), 0)
    call("cuEventCreate", at(b), 0)
    for name in forms("cuEventRecord"):
        say(name, call(name, a, s), call("cuEventSynchronize", a))
    for name in forms("cuEventRecordWithFlags"):
        say(name, call(name, b, s, 0), call("cuEventSynchronize", b))
    for name in forms("cuStreamWaitEvent"):
        say(name, call(name, s, b, 0), call("cuStreamSynchronize", s))
    for name in ("cuEventElapsedTime", "cuEventElapsedTime_v2"):
        t = c.c_float(-7)
        say(name, call(name, at(t), a, b), t.value >= 0)
    told: list[object] = []
    back = c.CFUNCTYPE(None, c.c_void_p, c.c_int, c.c_void_p)(
        lambda where, result, data: told.append((where == s.value, result, data))
    )
    for name in forms("cuStreamAddCallback"):
        told.clear()
        say(name, call(name, s, back, pointer(5), 0), call("cuStreamSynchronize", s), told)
    function = c.CFUNCTYPE(None, c.c_void_p)(told.append)
    for name in forms("cuLaunchHostFunc"):
        told.clear()
        say(name, call(name, s, function, pointer(5)), call("cuStreamSynchronize", s), told)
    p = managed(1 << 20)
    for name in forms("cuStreamAttachMemAsync"):  # to any stream; then to nobody's
        say(name, call(name, s, u64(p), size(0), 1), call(name, s, u64(p), size(0), 8))
    first, card, host = (c.c_size_t * 1)(0), Location(1, 0), Location(2, 0)

    def place() -> int:
        n = c.c_int(7)
        assert call("cuStreamSynchronize", s) == 0
        assert call("cuMemRangeGetAttribute", at(n), size(4), 4, u64(p), size(1 << 20)) == 0
        return n.value

    def away() -> None:
        assert call("cuMemPrefetchAsync_v2", u64(p), size(1 << 20), host, 0, s) == 0
        assert place() == -1

    for name in forms("cuMemPrefetchAsync"):
        away()
        say(name, call(name, u64(p), size(1 << 20), 0, s), place())
    for name in forms("cuMemPrefetchAsync_v2"):
        away()
        say(name, call(name, u64(p), size(1 << 20), card, 0, s), place())
    ranges, sizes = list64(p), list64(1 << 20)
    to_the_card = (at(card), first, size(1))
    for name in forms("cuMemPrefetchBatchAsync"):
        away()
        say(name, call(name, ranges, sizes, size(1), *to_the_card, u64(0), s), place())
    for name in forms("cuMemDiscardBatchAsync"):
        say(name, call(name, ranges, sizes, size(1), u64(0), s))
    for name in forms("cuMemDiscardAndPrefetchBatchAsync"):
        away()
        say(name, call(name, ranges, sizes, size(1), *to_the_card, u64(0), s), place())


@case
def values_in_a_stream() -> None:
    """
    cuStreamWriteValue32_v2 | 0 42
    cuStreamWriteValue32_v2_ptsz | 0 42
    cuStreamWriteValue64_v2 | 0 9
    cuStreamWriteValue64_v2_ptsz | 0 9
    cuStreamWaitValue32_v2 | 0 0 600 0
    cuStreamWaitValue32_v2_ptsz | 0 0 600 0
    cuStreamWaitValue64_v2 | 0 0 600 0
    cuStreamWaitValue64_v2_ptsz | 0 0 600 0
    cuStreamBatchMemOp_v2 | 0 5
    cuStreamBatchMemOp_v2_ptsz | 0 5
    cuStreamWriteValue32 | 801
    cuStreamWriteValue32_ptsz | 801
    cuStreamWriteValue64 | 801
    cuStreamWriteValue64_ptsz | 801
    cuStreamWaitValue32 | 801
    cuStreamWaitValue32_ptsz | 801
    cuStreamWaitValue64 | 801
    cuStreamWaitValue64_ptsz | 801
    cuStreamBatchMemOp | 801
    cuStreamBatchMemOp_ptsz | 801
    """
    current()
    s, other, p = own_stream(), own_stream(), allocated(64).value

    def cleared() -> None:
        assert call("cuMemsetD8_v2", u64(p), 0, size(64)) == 0

    def value(bits: int, number: int) -> object:
        return c.c_uint(number) if bits == 32 else u64(number)

    for bits, number in ((32, 42), (64, 9)):
        for name in forms(f"cuStreamWriteValue{bits}_v2"):
            cleared()
            result = call(name, s, u64(p), value(bits, number), 0)
            call("cuStreamSynchronize", s)
            say(name, result, word(p))
    for bits in (32, 64):
        for name in forms(f"cuStreamWaitValue{bits}_v2"):
            cleared()
            met = call(name, s, u64(p), value(bits, 0), 1), call("cuStreamSynchronize", s)
            assert call(name, s, u64(p), value(bits, 3), 0) == 0
            open_ = call("cuStreamQuery", s)
            call(f"cuStreamWriteValue{bits}_v2", other, u64(p), value(bits, 3), 0)
            say(name, *met, open_, call("cuStreamSynchronize", s))
    for name in forms("cuStreamBatchMemOp_v2"):
        cleared()
        ops = (MemOp * 2)(MemOp(2, p, 5), MemOp(1, p, 5, 1))
        result = call(name, s, 2, ops, 0)
        call("cuStreamSynchronize", s)
        say(name, result, word(p))
    for way in ("Write", "Wait"):
        for bits in (32, 64):
            for name in forms(f"cuStream{way}Value{bits}"):
                say(name, call(name, s, u64(p), value(bits, 1), 0))
    for name in forms("cuStreamBatchMemOp"):
        say(name, call(name, s, 1, at(MemOp(2, p, 5)), 0))


@case
def captures_by_every_form() -> None:
    """
    cuStreamBeginCapture | 0 0 1
    cuStreamBeginCapture_ptsz | 0 0 1
    cuStreamBeginCapture_v2 | 0 0 1
    cuStreamBeginCapture_v2_ptsz | 0 0 1
    cuStreamBeginCaptureToGraph | 0 True 2
    cuStreamBeginCaptureToGraph_ptsz | 0 True 2
    cuStreamEndCapture | 0 True
    cuStreamEndCapture_ptsz | 0 True
    cuStreamGetCaptureInfo | 0 1 True
    cuStreamGetCaptureInfo_ptsz | 0 1 True
    cuStreamGetCaptureInfo_v2 | 0 1 True True 1
    cuStreamGetCaptureInfo_v2_ptsz | 0 1 True True 1
    cuStreamGetCaptureInfo_v3 | 0 1 True True 1
    cuStreamGetCaptureInfo_v3_ptsz | 0 1 True True 1
    cuStreamUpdateCaptureDependencies | 0 0 1
    cuStreamUpdateCaptureDependencies_ptsz | 0 0 1
    cuStreamUpdateCaptureDependencies_v2 | 0 0 1
    cuStreamUpdateCaptureDependencies_v2_ptsz | 0 0 1
    """
    current()
    s, p, graph = own_stream(), allocated(64).value, pointer()

    def fill() -> int:
        return call("cuMemsetD8Async", u64(p), 1, size(8), s)

    for base, more in (("cuStreamBeginCapture", ()), ("cuStreamBeginCapture_v2", (2,))):
        for name in forms(base):
            result = call(name, s, *more)
            fill()
            say(name, result, *captured(s))
    for name in forms("cuStreamBeginCaptureToGraph"):
        call("cuGraphCreate", at(graph), 0)
        node, seen, n = pointer(), pointer(), size(77)
        call("cuGraphAddEmptyNode", at(node), graph, None, size(0))
        result = call(name, s, graph, at(node), None, size(1), 2)
        fill()
        call("cuStreamEndCapture", s, at(seen))
        call("cuGraphGetNodes", graph, None, at(n))
        say(name, result, seen.value == graph.value, n.value)
    for name in forms("cuStreamEndCapture"):
        call("cuStreamBeginCapture_v2", s, 2)
        graph.value = None
        say(name, call(name, s, at(graph)), bool(graph.value))
    call("cuStreamBeginCapture_v2", s, 2)
    fill()
    status, own, deps, n = c.c_int(7), u64(0), pointer(), size(77)
    for name in forms("cuStreamGetCaptureInfo"):
        status.value = 7
        say(name, call(name, s, at(status), at(own)), status.value, own.value > 0)
    for base, edges in (("cuStreamGetCaptureInfo_v2", ()), ("cuStreamGetCaptureInfo_v3", (None,))):
        for name in forms(base):
            status.value, n.value, graph.value = 7, 77, None
            result = call(name, s, at(status), at(own), at(graph), at(deps), *edges, at(n))
            say(name, result, status.value, own.value > 0, bool(graph.value), n.value)
    empty, none = pointer(), None
    for base, edges in (("cuStreamUpdateCaptureDependencies", ()), ("cuStreamUpdateCaptureDependencies_v2", (none,))):
        for name in forms(base):
            call("cuGraphAddEmptyNode", at(empty), graph, None, size(0))
            results = call(name, s, at(empty), *edges, size(1), 0), call(name, s, at(empty), *edges, size(1), 1)
            call("cuStreamGetCaptureInfo_v2", s, at(status), at(own), at(graph), at(deps), at(n))
            say(name, *results, n.value)
    captured(s)


@case
def launches_by_every_form() -> None:
    """
    cuLaunchKernel | 0 0
    cuLaunchKernel_ptsz | 0 0
    cuLaunchKernelEx | 0 0
    cuLaunchKernelEx_ptsz | 0 0
    cuLaunchCooperativeKernel | 0 0
    cuLaunchCooperativeKernel_ptsz | 0 0
    cuLaunchCooperativeKernelMultiDevice | 0 0
    cuGraphInstantiateWithParams | 0 0
    cuGraphUpload | 0 0
    cuGraphLaunch | 0 0
    cuGraphInstantiateWithParams_ptsz | 0 0
    cuGraphUpload_ptsz | 0 0
    cuGraphLaunch_ptsz | 0 0
    """
    function, parameters = vadd_of(current())
    s, graph, exe = own_stream(), pointer(), pointer()

    class OfOne(c.Structure):
        _fields_ = (
            ("function", c.c_void_p),
            ("grid", c.c_uint * 3),
            ("block", c.c_uint * 3),
            ("shared", c.c_uint),
            ("stream", c.c_void_p),
            ("parameters", c.c_void_p),
        )

    class Instantiate(c.Structure):
        _fields_ = (("flags", c.c_uint64), ("stream", c.c_void_p), ("error", c.c_void_p), ("result", c.c_int))

    shape, one = (1, 1, 1, 32, 1, 1), ((1, 1, 1), (32, 1, 1))
    for name in forms("cuLaunchKernel"):
        say(name, call(name, function, *shape, 0, s, parameters, None), call("cuStreamSynchronize", s))
    config = Config((c.c_uint * 3)(*one[0]), (c.c_uint * 3)(*one[1]), 0, s.value)
    for name in forms("cuLaunchKernelEx"):
        say(name, call(name, at(config), function, parameters, None), call("cuStreamSynchronize", s))
    for name in forms("cuLaunchCooperativeKernel"):
        say(name, call(name, function, *shape, 0, s, parameters), call("cuStreamSynchronize", s))
    each = OfOne(function.value, (c.c_uint * 3)(*one[0]), (c.c_uint * 3)(*one[1]), 0, s.value, c.addressof(parameters))
    name = "cuLaunchCooperativeKernelMultiDevice"
    say(name, call(name, at(each), 1, 0), call("cuStreamSynchronize", s))
    call("cuGraphCreate", at(graph), 0)
    call("cuGraphAddEmptyNode", at(pointer()), graph, None, size(0))
    for form in ("", "_ptsz"):
        how = Instantiate(0, s.value)
        name = f"cuGraphInstantiateWithParams{form}"
        say(name, call(name, at(exe), graph, at(how)), how.result)
        for base in ("cuGraphUpload", "cuGraphLaunch"):
            say(f"{base}{form}", call(f"{base}{form}", exe, s), call("cuStreamSynchronize", s))


@case
def batches_by_every_form() -> None:
    """
    cuMemcpyBatchAsync | 0 True
    cuMemcpyBatchAsync_ptsz | 0 True
    cuMemcpyBatchAsync_v2 | 0 True
    cuMemcpyBatchAsync_v2_ptsz | 0 True
    cuMemcpy3DBatchAsync | 0 True
    cuMemcpy3DBatchAsync_ptsz | 0 True
    cuMemcpy3DBatchAsync_v2 | 0 True
    cuMemcpy3DBatchAsync_v2_ptsz | 0 True
    """
    current()
    s, p, q = own_stream(), allocated(1024).value, allocated(1024).value
    data = bytes(i % 251 for i in range(1024))
    assert call("cuMemcpyHtoD_v2", u64(p), data, size(1024)) == 0
    how, first, failed = (Attributes * 1)(), (c.c_size_t * 1)(0), at(size(7))
    how[0].order = 1

    def arrived() -> bool:
        assert call("cuStreamSynchronize", s) == 0
        back = (c.c_ubyte * 1024)()
        assert call("cuMemcpyDtoH_v2", back, u64(q), size(1024)) == 0
        return bytes(back) == data

    box = Box(
        Operand(1, Plain(p, 32, 32, Location(1, 0))), Operand(1, Plain(q, 32, 32, Location(1, 0))), (32, 32, 1), 1, 0
    )
    for base, old in (("cuMemcpyBatchAsync", (failed,)), ("cuMemcpyBatchAsync_v2", ())):
        for name in forms(base):
            assert call("cuMemsetD8_v2", u64(q), 0, size(1024)) == 0
            ranges = list64(q), list64(p), list64(1024), size(1)
            say(name, call(name, *ranges, how, first, size(1), *old, s), arrived())
    for base, old in (("cuMemcpy3DBatchAsync", (failed,)), ("cuMemcpy3DBatchAsync_v2", ())):
        for name in forms(base):
            assert call("cuMemsetD8_v2", u64(q), 0, size(1024)) == 0
            say(name, call(name, size(1), at(box), *old, u64(0), s), arrived())
