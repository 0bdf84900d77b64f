"""Cases of cuda_cases.py: streams that wait for values in memory, semaphores, conditions; and their graph nodes."""

from __future__ import annotations

import ctypes as c
import os

from batch_cases import own_stream
from cuda_cases import FAKE_ONLY, allocated, at, call, case, current, pointer, say, size, u64


class MemOp(c.Structure):
    _fields_ = (
        ("operation", c.c_int),
        ("address", c.c_uint64),
        ("value", c.c_uint64),
        ("flags", c.c_uint),
        ("alias", c.c_uint64),
        ("pad", c.c_uint64),
    )


class BatchNode(c.Structure):
    _fields_ = (("context", c.c_void_p), ("count", c.c_uint), ("ops", c.c_void_p), ("flags", c.c_uint))


class Conditional(c.Structure):
    _fields_ = (
        ("handle", c.c_uint64),
        ("kind", c.c_int),
        ("count", c.c_uint),
        ("bodies", c.POINTER(c.c_void_p)),
        ("context", c.c_void_p),
    )


class NodeParams(c.Structure):
    _fields_ = (("type", c.c_int), ("reserved", c.c_int * 3), ("of", Conditional), ("pad", c.c_ubyte * 224))


class SemaphoreDesc(c.Structure):
    _fields_ = (
        ("type", c.c_int),
        ("fd", c.c_uint64),  # of a union with two pointers
        ("more", c.c_uint64),
        ("flags", c.c_uint),
        ("reserved", c.c_uint * 16),
    )


def word(p: int) -> int:
    out = c.c_uint(7)
    assert call("cuMemcpyDtoH_v2", at(out), u64(p), size(4)) == 0
    return out.value


def pinned() -> tuple[c.Array[c.c_uint], int]:
    host, p = pointer(), u64()
    assert call("cuMemHostAlloc", at(host), size(4096), 2) == 0
    assert call("cuMemHostGetDevicePointer_v2", at(p), host, 0) == 0
    return (c.c_uint * 8).from_address(host.value or 0), p.value


@case
def stream_values() -> None:
    """
    write 32 | 0 42
    write 64 | 0 7 9
    wait, there already | 0 0
    wait, not there | 0
    the stream | 600
    after the host wrote | 0 0
    and, there | 0 0
    wait for another stream | 0 600
    after its write | 0 0
    batch | 0 5
    batch of nothing | 0
    batch with flags | 1
    unaligned | 1
    nobody's memory | 1
    pageable memory | 1
    wait flags 4 | 1
    write flags 2 | 1
    operation 9 | 1
    the first version | 801
    """
    current()
    s, other = own_stream(), own_stream()
    p = allocated(64).value
    host, seen = pinned()
    result = call("cuStreamWriteValue32_v2", s, u64(p), 42, 0)
    call("cuStreamSynchronize", s)
    say("write 32", result, word(p))
    result = call("cuStreamWriteValue64_v2", s, u64(p + 8), u64(9 << 32 | 7), 0)
    call("cuStreamSynchronize", s)
    say("write 64", result, word(p + 8), word(p + 12))
    wait = "cuStreamWaitValue32_v2"
    say("wait, there already", call(wait, s, u64(p), 40, 0), call("cuStreamSynchronize", s))
    host[0] = 0
    say("wait, not there", call(wait, s, u64(seen), 1, 1))
    say("the stream", call("cuStreamQuery", s))
    host[0] = 1
    say("after the host wrote", call("cuStreamSynchronize", s), call("cuStreamQuery", s))
    say("and, there", call(wait, s, u64(seen), 3, 2), call("cuStreamSynchronize", s))
    call("cuMemsetD8_v2", u64(p), 0, size(64))
    say("wait for another stream", call(wait, s, u64(p), 1, 0), call("cuStreamQuery", s))
    call("cuStreamWriteValue32_v2", other, u64(p), 1, 0)
    say("after its write", call("cuStreamSynchronize", s), call("cuStreamQuery", s))
    ops = (MemOp * 2)(MemOp(2, p, 5), MemOp(1, p, 5, 1))
    result = call("cuStreamBatchMemOp_v2", s, 2, ops, 0)
    call("cuStreamSynchronize", s)
    say("batch", result, word(p))
    say("batch of nothing", call("cuStreamBatchMemOp_v2", s, 0, ops, 0))
    say("batch with flags", call("cuStreamBatchMemOp_v2", s, 2, ops, 1))
    say("unaligned", call("cuStreamWriteValue32_v2", s, u64(p + 2), 1, 0))
    say("nobody's memory", call("cuStreamWriteValue32_v2", s, u64(0x1000), 1, 0))
    say("pageable memory", call("cuStreamWriteValue32_v2", s, u64(c.addressof(c.c_uint())), 1, 0))
    say("wait flags 4", call(wait, s, u64(p), 1, 4))
    say("write flags 2", call("cuStreamWriteValue32_v2", s, u64(p), 1, 2))
    say("operation 9", call("cuStreamBatchMemOp_v2", s, 1, at(MemOp(9, p, 5)), 0))
    say("the first version", call("cuStreamWriteValue32", s, u64(p), 1, 0))


@case
def graph_memory_operations() -> None:
    """
    add | 0
    type | 0 12
    ask | 0 1 2
    add with nothing to do | 0
    change | 0
    launched | 0 0 6
    changed in the executable | 0
    launched again | 0 0 8
    captured | 0 0 1
    its type | 0 12
    """
    context = current()
    graph, node, exe, s, p = pointer(), pointer(), pointer(), own_stream(), allocated(64).value
    call("cuGraphCreate", at(graph), 0)

    def params(value: int, count: int = 1) -> BatchNode:
        op = (MemOp * 1)(MemOp(2, p, value))
        kept.append(op)
        return BatchNode(context.value, count, c.addressof(op), 0)

    kept: list[object] = []
    say("add", call("cuGraphAddBatchMemOpNode", at(node), graph, None, size(0), at(params(5))))
    kind = c.c_int(7)
    say("type", call("cuGraphNodeGetType", node, at(kind)), kind.value)
    seen = BatchNode()
    result = call("cuGraphBatchMemOpNodeGetParams", node, at(seen))
    say("ask", result, seen.count, MemOp.from_address(seen.ops).operation)
    ask = "cuGraphAddBatchMemOpNode"
    say("add with nothing to do", call(ask, at(pointer()), graph, None, size(0), at(params(5, 0))))
    say("change", call("cuGraphBatchMemOpNodeSetParams", node, at(params(6))))
    call("cuGraphInstantiateWithFlags", at(exe), graph, u64(0))
    say("launched", call("cuGraphLaunch", exe, s), call("cuStreamSynchronize", s), word(p))
    say("changed in the executable", call("cuGraphExecBatchMemOpNodeSetParams", exe, node, at(params(8))))
    say("launched again", call("cuGraphLaunch", exe, s), call("cuStreamSynchronize", s), word(p))
    call("cuStreamBeginCapture_v2", s, 2)
    result, n = call("cuStreamWriteValue32_v2", s, u64(p), 3, 0), size(0)
    found = pointer()
    end = call("cuStreamEndCapture", s, at(found))
    call("cuGraphGetNodes", found, None, at(n))
    say("captured", result, end, n.value)
    n.value = 1
    call("cuGraphGetNodes", found, at(node), at(n))
    say("its type", call("cuGraphNodeGetType", node, at(kind)), kind.value)


@case
def graph_conditions() -> None:
    """
    handle | 0
    flags 2 | 1
    node | 0 True
    type | 0 13
    body is empty | 0 0
    the handle again | 1
    if with three bodies | 1
    while with two bodies | 1
    no handle | 1
    executable with handles that no node has | 1
    condition holds | 0 0 9
    condition does not hold | 0 0 0
    else | 0 0 9
    """
    context = current()
    p, s = allocated(64).value, own_stream()

    class Memset(c.Structure):
        _fields_ = (
            ("to", c.c_uint64),
            ("pitch", c.c_size_t),
            ("value", c.c_uint),
            ("element", c.c_uint),
            ("width", c.c_size_t),
            ("height", c.c_size_t),
        )

    def handle_of(graph: c.c_void_p, value: int, flags: int = 1) -> tuple[int, c.c_uint64]:
        h = u64()
        return call("cuGraphConditionalHandleCreate", at(h), graph, context, value, flags), h

    def add(graph: c.c_void_p, handle: c.c_uint64, kind: int = 0, count: int = 1) -> tuple[int, NodeParams, c.c_void_p]:
        node, params = pointer(), NodeParams(13)
        params.of = Conditional(handle.value, kind, count, None, context.value)
        return call("cuGraphAddNode_v2", at(node), graph, None, None, size(0), at(params)), params, node

    def made(value: int, bodies: int = 1, where: int = 0) -> c.c_void_p:
        """A graph that writes 9 in one body of an if."""
        graph = pointer()
        call("cuGraphCreate", at(graph), 0)
        _, params, _ = add(graph, handle_of(graph, value)[1], 0, bodies)
        body = pointer(params.of.bodies[where])
        assert (
            call("cuGraphAddMemsetNode", at(pointer()), body, None, size(0), at(Memset(p, 0, 9, 4, 1, 1)), context) == 0
        )
        return graph

    def launched(graph: c.c_void_p) -> tuple[int, int, int]:
        exe = pointer()
        call("cuMemsetD8_v2", u64(p), 0, size(64))
        assert call("cuGraphInstantiateWithFlags", at(exe), graph, u64(0)) == 0
        return call("cuGraphLaunch", exe, s), call("cuStreamSynchronize", s), word(p)

    graph = pointer()
    call("cuGraphCreate", at(graph), 0)
    result, h = handle_of(graph, 1)
    say("handle", result)
    say("flags 2", handle_of(graph, 1, 2)[0])
    result, params, node = add(graph, h)
    say("node", result, bool(params.of.bodies and params.of.bodies[0]))
    kind, n = c.c_int(7), size(7)
    say("type", call("cuGraphNodeGetType", node, at(kind)), kind.value)
    say("body is empty", call("cuGraphGetNodes", pointer(params.of.bodies[0]), None, at(n)), n.value)
    say("the handle again", add(graph, h)[0])
    say("if with three bodies", add(graph, handle_of(graph, 1)[1], 0, 3)[0])
    say("while with two bodies", add(graph, handle_of(graph, 1)[1], 1, 2)[0])
    say("no handle", add(graph, u64(0))[0])
    empty = pointer()
    call("cuGraphAddEmptyNode", at(empty), pointer(params.of.bodies[0]), None, size(0))
    say("executable with handles that no node has", call("cuGraphInstantiateWithFlags", at(pointer()), graph, u64(0)))
    say("condition holds", *launched(made(1)))
    say("condition does not hold", *launched(made(0)))
    say("else", *launched(made(0, bodies=2, where=1)))


@case
def external_semaphores() -> None:
    """
    import | 0
    signal and wait | 0 0 0
    wait, not signalled | 0 600
    after the other side signalled | 0 0
    no semaphore | 400
    none at all | 1
    no such type | 1
    a file | 999
    graph nodes | 0 0
    launched | 0 0
    destroy | 0
    destroy again | 400
    """
    current()
    s, fd = own_stream(), os.eventfd(0)
    semaphore = pointer()
    say("import", call("cuImportExternalSemaphore", at(semaphore), at(SemaphoreDesc(1, os.dup(fd)))))
    params = (c.c_ubyte * 512)()
    signal, wait = "cuSignalExternalSemaphoresAsync", "cuWaitExternalSemaphoresAsync"
    results = call(signal, at(semaphore), params, 1, s), call(wait, at(semaphore), params, 1, s)
    say("signal and wait", *results, call("cuStreamSynchronize", s))
    say("wait, not signalled", call(wait, at(semaphore), params, 1, s), call("cuStreamQuery", s))
    os.eventfd_write(fd, 1)
    say("after the other side signalled", call("cuStreamSynchronize", s), call("cuStreamQuery", s))
    say("no semaphore", call(signal, at(pointer(0)), params, 1, s))
    say("none at all", call(signal, at(semaphore), params, 0, s))
    say("no such type", call("cuImportExternalSemaphore", at(pointer()), at(SemaphoreDesc(77, fd))))
    say("a file", call("cuImportExternalSemaphore", at(pointer()), at(SemaphoreDesc(1, 0))))

    class SemaphoreNode(c.Structure):
        _fields_ = (("list", c.c_void_p), ("params", c.c_void_p), ("count", c.c_uint))

    graph, first, exe = pointer(), pointer(), pointer()
    call("cuGraphCreate", at(graph), 0)
    node = SemaphoreNode(c.addressof(semaphore), c.addressof(params), 1)
    results = (
        call("cuGraphAddExternalSemaphoresSignalNode", at(first), graph, None, size(0), at(node)),
        call("cuGraphAddExternalSemaphoresWaitNode", at(pointer()), graph, at(first), size(1), at(node)),
    )
    say("graph nodes", *results)
    call("cuGraphInstantiateWithFlags", at(exe), graph, u64(0))
    say("launched", call("cuGraphLaunch", exe, s), call("cuStreamSynchronize", s))
    say("destroy", call("cuDestroyExternalSemaphore", semaphore))
    say("destroy again", call("cuDestroyExternalSemaphore", semaphore))


FAKE_ONLY |= {"external_semaphores"}  # an eventfd is no semaphore of Vulkan's
