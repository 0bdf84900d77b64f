"""Cases of cuda_cases.py: what a node of a graph holds, how it is asked for and changed, in the graph and in an
executable; older and newer generations of the same call."""

from __future__ import annotations

import ctypes as c
import os

from cuda_cases import FAKE_ONLY, allocated, at, call, case, current, pointer, say, size, u64
from graph_cases import CALLBACK, Copy, Host, Kernel, Memset, empty_graph, stream, vadd, values_of
from stream_memory_cases import SemaphoreDesc, word


class Node(c.Structure):
    """The parameters of any node: its type and what that type has."""

    _fields_ = (("type", c.c_int), ("reserved", c.c_int * 3), ("of", c.c_ubyte * 232), ("pad", c.c_ubyte * 8))


def node_of(kind: int, params: c.Structure) -> Node:
    whole = Node(kind)
    c.memmove(at(whole, Node.of.offset), at(params), c.sizeof(params))
    return whole


def instance(g: c.c_void_p) -> c.c_void_p:
    exec_ = pointer()
    assert call("cuGraphInstantiateWithFlags", at(exec_), g, u64(0)) == 0
    return exec_


def run(exec_: c.c_void_p) -> None:
    assert call("cuGraphLaunch", exec_, None) == 0
    assert call("cuCtxSynchronize") == 0


@case
def kernel_nodes() -> None:
    """
    cuGraphAddKernelNode | 0
    cuGraphAddKernelNode_v2 | 0
    cuGraphKernelNodeGetParams | 0 True 1 32
    cuGraphKernelNodeGetParams_v2 | 0 True 1 32
    cuGraphKernelNodeSetParams | 0 2
    cuGraphKernelNodeSetParams_v2 | 0 3
    cuGraphExecKernelNodeSetParams | 0 3
    cuGraphExecKernelNodeSetParams_v2 | 0 3
    to a grid of zero | 1
    of another type | 1
    cuGraphKernelNodeSetAttribute | 0
    cuGraphKernelNodeGetAttribute | 0 1
    cuGraphKernelNodeCopyAttributes | 0 1
    launched | 0 0
    """
    current()
    g, function = empty_graph(), vadd()
    zero, none = u64(), c.c_uint(0)
    values = values_of(zero, zero, zero, none)

    def params(grid: int) -> Kernel:
        shape = (c.c_uint * 3)(grid, 1, 1), (c.c_uint * 3)(32, 1, 1)
        return Kernel(function.value, *shape, 0, c.cast(values, c.c_void_p), None, None, None)

    old, new, other = pointer(), pointer(), pointer()
    say("cuGraphAddKernelNode", call("cuGraphAddKernelNode", at(old), g, None, size(0), at(params(1))))
    say("cuGraphAddKernelNode_v2", call("cuGraphAddKernelNode_v2", at(new), g, at(old), size(1), at(params(1))))
    call("cuGraphAddEmptyNode", at(other), g, None, size(0))

    def grid_of(node: c.c_void_p) -> int:
        seen = Kernel()
        assert call("cuGraphKernelNodeGetParams_v2", node, at(seen)) == 0
        return int(seen.grid[0])

    for form in ("", "_v2"):
        name, seen = f"cuGraphKernelNodeGetParams{form}", Kernel()
        say(name, call(name, old, at(seen)), seen.function == function.value, seen.grid[0], seen.block[0])
    for form, grid in (("", 2), ("_v2", 3)):
        name = f"cuGraphKernelNodeSetParams{form}"
        say(name, call(name, old, at(params(grid))), grid_of(old))
    exec_ = instance(g)
    for form in ("", "_v2"):  # the node of the graph stays what it is
        name = f"cuGraphExecKernelNodeSetParams{form}"
        say(name, call(name, exec_, old, at(params(5))), grid_of(old))
    say("to a grid of zero", call("cuGraphKernelNodeSetParams_v2", old, at(params(0))))
    say("of another type", call("cuGraphKernelNodeSetParams_v2", other, at(params(1))))
    cooperative, value = 2, (c.c_int * 16)(1)
    say("cuGraphKernelNodeSetAttribute", call("cuGraphKernelNodeSetAttribute", old, cooperative, value))
    seen_value = (c.c_int * 16)(7)
    result = call("cuGraphKernelNodeGetAttribute", old, cooperative, seen_value)
    say("cuGraphKernelNodeGetAttribute", result, seen_value[0])
    seen_value = (c.c_int * 16)(7)
    result = call("cuGraphKernelNodeCopyAttributes", new, old)
    call("cuGraphKernelNodeGetAttribute", new, cooperative, seen_value)
    say("cuGraphKernelNodeCopyAttributes", result, seen_value[0])
    say("launched", call("cuGraphLaunch", exec_, None), call("cuCtxSynchronize"))


@case
def copy_and_host_nodes() -> None:
    """
    cuGraphMemcpyNodeGetParams | 0 True 64
    cuGraphMemcpyNodeSetParams | 0 32
    launched | 0 True
    cuGraphExecMemcpyNodeSetParams | 0 32
    launched then | 0 True
    cuGraphHostNodeGetParams | 0 True
    cuGraphHostNodeSetParams | 0
    ran | [5]
    cuGraphExecHostNodeSetParams | 0
    ran then | [9]
    the graph's own | 5
    """
    context = current()
    g, node, p = empty_graph(), pointer(), allocated(64).value
    data, out = bytes(range(1, 65)), c.create_string_buffer(64)
    call("cuMemcpyHtoD_v2", u64(p), data, size(64))

    def copy_of(width: int) -> Copy:
        what = Copy()
        what.source.type, what.source.device, what.source.pitch = 2, p, 64
        what.target.type, what.target.host, what.target.pitch = 1, c.addressof(out), 64
        what.width, what.height, what.depth = width, 1, 1
        return what

    call("cuGraphAddMemcpyNode", at(node), g, None, size(0), at(copy_of(64)), context)
    seen = Copy()
    result = call("cuGraphMemcpyNodeGetParams", node, at(seen))
    say("cuGraphMemcpyNodeGetParams", result, seen.source.device == p, seen.width)
    result = call("cuGraphMemcpyNodeSetParams", node, at(copy_of(32)))
    call("cuGraphMemcpyNodeGetParams", node, at(seen))
    say("cuGraphMemcpyNodeSetParams", result, seen.width)
    exec_ = instance(g)
    run(exec_)
    say("launched", 0, out.raw == data[:32] + bytes(32))
    result = call("cuGraphExecMemcpyNodeSetParams", exec_, node, at(copy_of(48)), context)
    call("cuGraphMemcpyNodeGetParams", node, at(seen))
    say("cuGraphExecMemcpyNodeSetParams", result, seen.width)
    run(exec_)
    say("launched then", 0, out.raw == data[:48] + bytes(16))
    told: list[int] = []
    back = CALLBACK(told.append)

    def host_of(value: int) -> Host:
        return Host(c.cast(back, c.c_void_p), value)

    g = empty_graph()
    call("cuGraphAddHostNode", at(node), g, None, size(0), at(host_of(3)))
    own = Host()
    say("cuGraphHostNodeGetParams", call("cuGraphHostNodeGetParams", node, at(own)), own.data == 3)
    say("cuGraphHostNodeSetParams", call("cuGraphHostNodeSetParams", node, at(host_of(5))))
    exec_ = instance(g)
    run(exec_)
    say("ran", told)
    told.clear()
    say("cuGraphExecHostNodeSetParams", call("cuGraphExecHostNodeSetParams", exec_, node, at(host_of(9))))
    run(exec_)
    say("ran then", told)
    call("cuGraphHostNodeGetParams", node, at(own))
    say("the graph's own", own.data)


@case
def event_nodes() -> None:
    """
    cuGraphAddEventRecordNode | 0
    cuGraphAddEventWaitNode | 0
    cuGraphEventRecordNodeGetEvent | 0 True
    cuGraphEventWaitNodeGetEvent | 0 True
    cuGraphEventRecordNodeSetEvent | 0 True
    cuGraphEventWaitNodeSetEvent | 0 True
    cuGraphExecEventRecordNodeSetEvent | 0
    cuGraphExecEventWaitNodeSetEvent | 0
    recorded | False True
    no event | 1
    of another type | 1
    """
    current()
    g, record, wait = empty_graph(), pointer(), pointer()
    first, second, third, found = (pointer() for _ in range(4))
    for event in (first, second, third):
        call("cuEventCreate", at(event), 0)
    say("cuGraphAddEventRecordNode", call("cuGraphAddEventRecordNode", at(record), g, None, size(0), first))
    say("cuGraphAddEventWaitNode", call("cuGraphAddEventWaitNode", at(wait), g, at(record), size(1), first))
    for kind, node in (("Record", record), ("Wait", wait)):
        result = call(f"cuGraphEvent{kind}NodeGetEvent", node, at(found))
        say(f"cuGraphEvent{kind}NodeGetEvent", result, found.value == first.value)
    for kind, node in (("Record", record), ("Wait", wait)):
        result = call(f"cuGraphEvent{kind}NodeSetEvent", node, second)
        call(f"cuGraphEvent{kind}NodeGetEvent", node, at(found))
        say(f"cuGraphEvent{kind}NodeSetEvent", result, found.value == second.value)
    exec_ = instance(g)
    for kind, node in (("Record", record), ("Wait", wait)):
        name = f"cuGraphExecEvent{kind}NodeSetEvent"
        say(name, call(name, exec_, node, third))
    run(exec_)
    elapsed = c.c_float(0)
    call("cuEventRecord", first, None)
    call("cuCtxSynchronize")
    seen = [call("cuEventElapsedTime", at(elapsed), event, first) == 0 for event in (second, third)]
    say("recorded", *seen)
    say("no event", call("cuGraphEventRecordNodeSetEvent", record, None))
    say("of another type", call("cuGraphEventRecordNodeSetEvent", wait, first))


@case
def child_and_memory_nodes() -> None:
    """
    cuGraphChildGraphNodeGetGraph | 0 True 1
    cuGraphExecChildGraphNodeSetParams | 0
    launched | 9
    cuGraphMemAllocNodeGetParams | 0 1048576 True
    cuGraphMemFreeNodeGetParams | 0 True
    """
    context = current()
    p = allocated(64).value

    def inner(value: int) -> c.c_void_p:
        g = empty_graph()
        call("cuGraphAddMemsetNode", at(pointer()), g, None, size(0), at(Memset(p, 0, value, 4, 1, 1)), context)
        return g

    g, node, child, n = empty_graph(), pointer(), inner(7), size(77)
    call("cuGraphAddChildGraphNode", at(node), g, None, size(0), child)
    own = pointer()
    result = call("cuGraphChildGraphNodeGetGraph", node, at(own))
    call("cuGraphGetNodes", own, None, at(n))
    say("cuGraphChildGraphNodeGetGraph", result, own.value != child.value, n.value)
    exec_ = instance(g)
    say("cuGraphExecChildGraphNodeSetParams", call("cuGraphExecChildGraphNodeSetParams", exec_, node, inner(9)))
    run(exec_)
    say("launched", word(p))

    class Properties(c.Structure):
        _fields_ = (
            ("type", c.c_int), ("handles", c.c_int), ("place", c.c_int), ("id", c.c_int), ("security", c.c_void_p),
            ("most", c.c_size_t), ("usage", c.c_ushort), ("reserved", c.c_ubyte * 54),
        )  # fmt: skip

    class Allocate(c.Structure):
        _fields_ = (
            ("pool", Properties), ("access", c.c_void_p), ("count", c.c_size_t), ("bytes", c.c_size_t),
            ("pointer", c.c_uint64),
        )  # fmt: skip

    g, take, give = empty_graph(), pointer(), pointer()
    what = Allocate(Properties(1, 0, 1, 0), None, 0, 1 << 20)
    assert call("cuGraphAddMemAllocNode", at(take), g, None, size(0), at(what)) == 0
    assert call("cuGraphAddMemFreeNode", at(give), g, at(take), size(1), u64(what.pointer)) == 0
    seen, freed = Allocate(), u64()
    result = call("cuGraphMemAllocNodeGetParams", take, at(seen))
    say("cuGraphMemAllocNodeGetParams", result, seen.bytes, seen.pointer == what.pointer)
    result = call("cuGraphMemFreeNodeGetParams", give, at(freed))
    say("cuGraphMemFreeNodeGetParams", result, freed.value == what.pointer)


@case
def nodes_by_their_type() -> None:
    """
    cuGraphAddNode | 0 2
    cuGraphAddNode_v2 | 0 2
    cuGraphNodeSetParams | 0 9
    launched | 9
    cuGraphExecNodeSetParams | 0
    launched then | 11
    of another type | 1
    """
    context = current()
    g, node, other, p, kind = empty_graph(), pointer(), pointer(), allocated(64).value, c.c_int(77)

    class Fill(c.Structure):
        _fields_ = (*Memset._fields_, ("context", c.c_void_p))

    def fill(value: int) -> Node:
        return node_of(2, Fill(p, 0, value, 4, 1, 1, context.value))

    result = call("cuGraphAddNode", at(other), g, None, size(0), at(fill(5)))
    call("cuGraphNodeGetType", other, at(kind))
    say("cuGraphAddNode", result, kind.value)
    result = call("cuGraphAddNode_v2", at(node), g, at(other), None, size(1), at(fill(7)))
    call("cuGraphNodeGetType", node, at(kind))
    say("cuGraphAddNode_v2", result, kind.value)
    seen = Memset()
    result = call("cuGraphNodeSetParams", node, at(fill(9)))
    call("cuGraphMemsetNodeGetParams", node, at(seen))
    say("cuGraphNodeSetParams", result, seen.value)
    exec_ = instance(g)
    run(exec_)
    say("launched", word(p))
    say("cuGraphExecNodeSetParams", call("cuGraphExecNodeSetParams", exec_, node, at(fill(11))))
    run(exec_)
    say("launched then", word(p))
    empty = pointer()
    call("cuGraphAddEmptyNode", at(empty), g, None, size(0))
    say("of another type", call("cuGraphNodeSetParams", empty, at(fill(1))))


@case
def edges_with_data() -> None:
    """
    cuGraphAddDependencies_v2 | 0
    cuGraphGetEdges_v2 | 0 1 True True
    cuGraphNodeGetDependencies_v2 | 0 1 True
    cuGraphNodeGetDependentNodes_v2 | 0 1 True
    cuGraphRemoveDependencies_v2 | 0 0
    """
    current()
    g, a, b, n = empty_graph(), pointer(), pointer(), size(77)
    call("cuGraphAddEmptyNode", at(a), g, None, size(0))
    call("cuGraphAddEmptyNode", at(b), g, None, size(0))
    data = (c.c_ubyte * 8)()
    say("cuGraphAddDependencies_v2", call("cuGraphAddDependencies_v2", g, at(a), at(b), data, size(1)))
    source, target, n.value = pointer(), pointer(), 1
    result = call("cuGraphGetEdges_v2", g, at(source), at(target), data, at(n))
    say("cuGraphGetEdges_v2", result, n.value, source.value == a.value, target.value == b.value)
    for name, node, other in (
        ("cuGraphNodeGetDependencies_v2", b, a),
        ("cuGraphNodeGetDependentNodes_v2", a, b),
    ):
        n.value, source.value = 1, None
        say(name, call(name, node, at(source), data, at(n)), n.value, source.value == other.value)
    result = call("cuGraphRemoveDependencies_v2", g, at(a), at(b), data, size(1))
    call("cuGraphGetEdges", g, None, None, at(n))
    say("cuGraphRemoveDependencies_v2", result, n.value)


@case
def instances_and_updates() -> None:
    """
    cuGraphInstantiate | 0 0
    cuGraphExecGetFlags | 0 0
    flags of one with auto free | 0 1
    cuGraphExecUpdate | 0 0
    launched | 9
    from another shape | 910
    cuGraphDebugDotPrint | 0 True True
    nowhere | 1
    """
    context = current()
    p = allocated(64).value

    def filling(value: int) -> c.c_void_p:
        g = empty_graph()
        call("cuGraphAddMemsetNode", at(pointer()), g, None, size(0), at(Memset(p, 0, value, 4, 1, 1)), context)
        return g

    g, exec_, auto, flags = filling(7), pointer(), pointer(), u64(77)
    failed = pointer(0)
    result = call("cuGraphInstantiate", at(exec_), g, at(failed), None, size(0))
    say("cuGraphInstantiate", result, failed.value or 0)
    say("cuGraphExecGetFlags", call("cuGraphExecGetFlags", exec_, at(flags)), flags.value)
    call("cuGraphInstantiateWithFlags", at(auto), g, u64(1))
    say("flags of one with auto free", call("cuGraphExecGetFlags", auto, at(flags)), flags.value)
    how = c.c_int(77)
    say("cuGraphExecUpdate", call("cuGraphExecUpdate", exec_, filling(9), at(failed), at(how)), how.value)
    run(exec_)
    say("launched", word(p))
    say("from another shape", call("cuGraphExecUpdate", exec_, empty_graph(), at(failed), at(how)))
    path = f"/tmp/hooklab-dot-{os.getpid()}"
    result = call("cuGraphDebugDotPrint", g, path.encode(), 0)
    with open(path, encoding="utf-8") as file:
        text = file.read()
    os.unlink(path)
    say("cuGraphDebugDotPrint", result, "digraph" in text, "MEMSET" in text.upper())
    say("nowhere", call("cuGraphDebugDotPrint", g, None, 0))


@case
def objects_of_graphs() -> None:
    """
    cuUserObjectRetain | 0
    cuUserObjectRelease | 0 []
    cuGraphRetainUserObject | 0
    cuGraphReleaseUserObject | 0 []
    the last one | 0 [5]
    """
    current()
    told: list[int] = []
    back, thing, g = CALLBACK(told.append), pointer(), empty_graph()
    assert call("cuUserObjectCreate", at(thing), pointer(5), back, 1, 1) == 0
    say("cuUserObjectRetain", call("cuUserObjectRetain", thing, 2))
    say("cuUserObjectRelease", call("cuUserObjectRelease", thing, 1), told)
    say("cuGraphRetainUserObject", call("cuGraphRetainUserObject", g, thing, 1, 0))
    say("cuGraphReleaseUserObject", call("cuGraphReleaseUserObject", g, thing, 1), told)
    say("the last one", call("cuUserObjectRelease", thing, 2), told)


@case
def semaphore_nodes() -> None:
    """
    cuGraphExternalSemaphoresSignalNodeGetParams | 0 1 True
    cuGraphExternalSemaphoresSignalNodeSetParams | 0
    cuGraphExecExternalSemaphoresSignalNodeSetParams | 0
    cuGraphExternalSemaphoresWaitNodeGetParams | 0 1 True
    cuGraphExternalSemaphoresWaitNodeSetParams | 0
    cuGraphExecExternalSemaphoresWaitNodeSetParams | 0
    cuSignalExternalSemaphoresAsync_ptsz | 0 1
    cuWaitExternalSemaphoresAsync_ptsz | 0 0
    """
    current()
    s, fd, semaphore = stream(), os.eventfd(0, os.EFD_NONBLOCK), pointer()
    assert call("cuImportExternalSemaphore", at(semaphore), at(SemaphoreDesc(1, os.dup(fd)))) == 0
    params = (c.c_ubyte * 512)()

    class SemaphoreNode(c.Structure):
        _fields_ = (("list", c.c_void_p), ("params", c.c_void_p), ("count", c.c_uint))

    what = SemaphoreNode(c.addressof(semaphore), c.addressof(params), 1)
    for way in ("Signal", "Wait"):
        g, node, seen = empty_graph(), pointer(), SemaphoreNode()
        assert call(f"cuGraphAddExternalSemaphores{way}Node", at(node), g, None, size(0), at(what)) == 0
        name = f"cuGraphExternalSemaphores{way}NodeGetParams"
        result = call(name, node, at(seen))
        same = c.c_void_p.from_address(seen.list).value == semaphore.value
        say(name, result, seen.count, same)
        name = f"cuGraphExternalSemaphores{way}NodeSetParams"
        say(name, call(name, node, at(what)))
        name = f"cuGraphExecExternalSemaphores{way}NodeSetParams"
        say(name, call(name, instance(g), node, at(what)))

    def count() -> int:
        assert call("cuStreamSynchronize", s) == 0
        try:
            value = os.eventfd_read(fd)
        except BlockingIOError:
            return 0
        os.eventfd_write(fd, value)
        return value

    name = "cuSignalExternalSemaphoresAsync_ptsz"
    say(name, call(name, at(semaphore), params, 1, s), count())
    name = "cuWaitExternalSemaphoresAsync_ptsz"
    say(name, call(name, at(semaphore), params, 1, s), count())


FAKE_ONLY |= {"semaphore_nodes"}  # an eventfd is no semaphore of Vulkan's
