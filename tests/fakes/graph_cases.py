"""Cases of cuda_cases.py: stream capture and graphs."""

from __future__ import annotations

import ctypes as c

from cuda_cases import MIB, PTX, allocated, at, call, case, current, free, pointer, say, size, u64


class Kernel(c.Structure):
    _fields_ = (
        ("function", c.c_void_p),
        ("grid", c.c_uint * 3),
        ("block", c.c_uint * 3),
        ("shared", c.c_uint),
        ("params", c.c_void_p),
        ("extra", c.c_void_p),
        ("kernel", c.c_void_p),
        ("context", c.c_void_p),
    )


class Memset(c.Structure):
    _fields_ = (
        ("to", c.c_uint64),
        ("pitch", c.c_size_t),
        ("value", c.c_uint),
        ("element", c.c_uint),
        ("width", c.c_size_t),
        ("height", c.c_size_t),
    )


class Host(c.Structure):
    _fields_ = (("function", c.c_void_p), ("data", c.c_void_p))


class Side(c.Structure):
    _fields_ = (
        ("x", c.c_size_t),
        ("y", c.c_size_t),
        ("z", c.c_size_t),
        ("lod", c.c_size_t),
        ("type", c.c_int),
        ("host", c.c_void_p),
        ("device", c.c_uint64),
        ("array", c.c_void_p),
        ("reserved", c.c_void_p),
        ("pitch", c.c_size_t),
        ("height", c.c_size_t),
    )


class Copy(c.Structure):
    _fields_ = (
        ("source", Side),
        ("target", Side),
        ("width", c.c_size_t),
        ("height", c.c_size_t),
        ("depth", c.c_size_t),
    )


class UpdateInfo(c.Structure):
    _fields_ = (("result", c.c_int), ("node", c.c_void_p), ("source", c.c_void_p))


CALLBACK = c.CFUNCTYPE(None, c.c_void_p)
GLOBAL, THREAD, RELAXED = 0, 1, 2


def vadd() -> c.c_void_p:
    module, function = pointer(), pointer()
    assert call("cuModuleLoadData", at(module), PTX) == 0
    assert call("cuModuleGetFunction", at(function), module, b"vadd") == 0
    return function


def stream(flags: int = 0) -> c.c_void_p:
    s = pointer()
    assert call("cuStreamCreate", at(s), flags) == 0
    return s


def empty_graph() -> c.c_void_p:
    g = pointer()
    assert call("cuGraphCreate", at(g), 0) == 0
    return g


def values_of(*values: object) -> object:
    return (c.c_void_p * len(values))(*map(c.addressof, values))  # type: ignore[arg-type]


def launched(function: c.c_void_p, where: c.c_void_p | None, grid: int = 1) -> int:
    zero = u64()
    params = values_of(zero, zero, zero, c.c_uint(0))
    return call("cuLaunchKernel", function, grid, 1, 1, 32, 1, 1, 0, where, params, None)


def state(s: c.c_void_p) -> int:
    status = c.c_int(77)
    assert call("cuStreamIsCapturing", s, at(status)) == 0
    return status.value


@case
def graphs() -> None:
    """
    graph add node | 0
    graph instantiate | 0
    graph launch | 0
    sync | 0
    graph add node grid 0 | 1
    launch in capture | 0
    cuMemAlloc during capture RELAXED | 0
    cuMemAlloc during GLOBAL capture | 900
    is capturing | 0 2
    cuMemGetInfo during GLOBAL capture | 0
    cuCtxSynchronize during GLOBAL capture | 900
    end | 901 None
    allocAsync in capture | 0 True
    end of that | 0
    instantiate graph with alloc | 0
    launch graph with alloc | 0 33554432
    graph mem reserved | 0 33554432
    """
    current()
    function, g, node, exec_ = vadd(), empty_graph(), pointer(), pointer()
    zero = u64()
    params = values_of(zero, zero, zero, c.c_uint(0))

    def kernel(grid: int) -> Kernel:
        return Kernel(function, (grid, 1, 1), (32, 1, 1), 0, c.cast(params, c.c_void_p), None, None, None)  # type: ignore[arg-type]

    say("graph add node", call("cuGraphAddKernelNode_v2", at(node), g, None, size(0), at(kernel(1))))
    say("graph instantiate", call("cuGraphInstantiateWithFlags", at(exec_), g, u64(0)))
    say("graph launch", call("cuGraphLaunch", exec_, None))
    say("sync", call("cuCtxSynchronize"))
    say("graph add node grid 0", call("cuGraphAddKernelNode_v2", at(node), g, None, size(0), at(kernel(0))))
    s, p, status, f, t = stream(), u64(), c.c_int(77), size(0), size(0)
    call("cuStreamBeginCapture_v2", s, RELAXED)
    say("launch in capture", launched(function, s))
    say("cuMemAlloc during capture RELAXED", call("cuMemAlloc_v2", at(p), size(64)))
    call("cuStreamEndCapture", s, at(g))
    call("cuStreamBeginCapture_v2", s, GLOBAL)
    say("cuMemAlloc during GLOBAL capture", call("cuMemAlloc_v2", at(p), size(64)))
    result = call("cuStreamIsCapturing", s, at(status))
    say("is capturing", result, status.value)
    say("cuMemGetInfo during GLOBAL capture", call("cuMemGetInfo_v2", at(f), at(t)))
    say("cuCtxSynchronize during GLOBAL capture", call("cuCtxSynchronize"))
    result = call("cuStreamEndCapture", s, at(g))
    say("end", result, g.value)
    call("cuStreamBeginCapture_v2", s, RELAXED)
    result = call("cuMemAllocAsync", at(p), size(MIB), s)
    say("allocAsync in capture", result, p.value != 0)
    say("end of that", call("cuStreamEndCapture", s, at(g)))
    say("instantiate graph with alloc", call("cuGraphInstantiateWithFlags", at(exec_), g, u64(0)))
    before = free()
    result = call("cuGraphLaunch", exec_, s)
    call("cuStreamSynchronize", s)
    say("launch graph with alloc", result, before - free())
    reserved = u64()
    result = call("cuDeviceGetGraphMemAttribute", 0, 2, at(reserved))
    say("graph mem reserved", result, reserved.value)


@case
def capture_rules() -> None:
    """
    begin on the default stream | 900
    begin with mode 3 | 1
    end without a capture | 401
    begin | 0 1
    begin again | 401
    launch on the default stream | 906
    which breaks it | 901
    a non-blocking one stands it | 0 1
    query of it | 900
    which breaks that | 901
    synchronize of it | 900 2
    fork to another stream | 0 1
    end on the wrong stream | 903
    unjoined | 904
    joined | 0 3
    event of a capture that ended: query | 1
    event of a capture that ended: synchronize | 1
    edges | 0 3
    mode exchange | 0 0
    alloc under a relaxed thread | 0
    thread-local allocation | 900
    copy and fill | 0 0 0
    types | 1 2
    host function | 0 3
    bad launch leaves no graph | 1 1
    callback | 900
    """
    current()
    function, s, other, g = vadd(), stream(), stream(), pointer(7)
    say("begin on the default stream", call("cuStreamBeginCapture_v2", None, GLOBAL))
    say("begin with mode 3", call("cuStreamBeginCapture_v2", s, 3))
    say("end without a capture", call("cuStreamEndCapture", s, at(g)))
    say("begin", call("cuStreamBeginCapture_v2", s, RELAXED), state(s))
    say("begin again", call("cuStreamBeginCapture_v2", s, RELAXED))
    say("launch on the default stream", launched(function, None))
    say("which breaks it", call("cuStreamEndCapture", s, at(g)))
    quiet = stream(1)
    call("cuStreamBeginCapture_v2", quiet, RELAXED)
    say("a non-blocking one stands it", launched(function, None), state(quiet))
    say("query of it", call("cuStreamQuery", quiet))
    say("which breaks that", call("cuStreamEndCapture", quiet, at(g)))
    call("cuStreamBeginCapture_v2", s, RELAXED)
    say("synchronize of it", call("cuStreamSynchronize", s), state(s))
    call("cuStreamEndCapture", s, at(g))
    event, back = pointer(), pointer()
    call("cuEventCreate", at(event), 2)
    call("cuEventCreate", at(back), 2)
    call("cuStreamBeginCapture_v2", s, RELAXED)
    launched(function, s)
    call("cuEventRecord", event, s)
    say("fork to another stream", call("cuStreamWaitEvent", other, event, 0), state(other))
    launched(function, other)
    say("end on the wrong stream", call("cuStreamEndCapture", other, at(g)))
    call("cuStreamEndCapture", s, at(g))
    for join in (False, True):
        call("cuStreamBeginCapture_v2", s, RELAXED)
        launched(function, s)
        call("cuEventRecord", event, s)
        call("cuStreamWaitEvent", other, event, 0)
        launched(function, other)
        if join:
            call("cuEventRecord", back, other)
            call("cuStreamWaitEvent", s, back, 0)
            launched(function, s)
        result = call("cuStreamEndCapture", s, at(g))
        if not join:
            say("unjoined", result)
    n = size(0)
    call("cuGraphGetNodes", g, None, at(n))
    say("joined", result, n.value)
    say("event of a capture that ended: query", call("cuEventQuery", event))
    say("event of a capture that ended: synchronize", call("cuEventSynchronize", event))
    result = call("cuGraphGetEdges", g, None, None, at(n))
    say("edges", result, n.value)
    mode = c.c_int(RELAXED)
    result = call("cuThreadExchangeStreamCaptureMode", at(mode))
    say("mode exchange", result, mode.value)
    p = u64()
    call("cuStreamBeginCapture_v2", s, GLOBAL)
    say("alloc under a relaxed thread", call("cuMemAlloc_v2", at(p), size(4096)))
    call("cuStreamEndCapture", s, at(g))
    call("cuThreadExchangeStreamCaptureMode", at(mode))
    call("cuStreamBeginCapture_v2", s, THREAD)
    say("thread-local allocation", call("cuMemAlloc_v2", at(u64()), size(64)))
    call("cuStreamEndCapture", s, at(g))
    data = c.create_string_buffer(64)
    call("cuStreamBeginCapture_v2", s, RELAXED)
    one = call("cuMemcpyHtoDAsync_v2", p, data, size(64), s)
    two = call("cuMemsetD8Async", p, 1, size(64), s)
    say("copy and fill", one, two, call("cuStreamEndCapture", s, at(g)))
    nodes, kind, kinds = (c.c_void_p * 2)(), c.c_int(77), []
    n.value = 2
    call("cuGraphGetNodes", g, nodes, at(n))
    for node in nodes:
        call("cuGraphNodeGetType", pointer(node), at(kind))
        kinds.append(kind.value)
    say("types", *kinds)
    call("cuStreamBeginCapture_v2", s, RELAXED)
    result = call("cuLaunchHostFunc", s, CALLBACK(lambda _: None), None)
    call("cuStreamEndCapture", s, at(g))
    n.value = 1
    call("cuGraphGetNodes", g, nodes, at(n))
    call("cuGraphNodeGetType", pointer(nodes[0]), at(kind))
    say("host function", result, kind.value)
    call("cuStreamBeginCapture_v2", s, RELAXED)
    result = launched(function, s, 0)
    call("cuStreamEndCapture", s, at(g))
    # Read as: the capture broke, and the count of no graph's nodes stays as it was. graph_questions asks more plainly.
    call("cuGraphGetNodes", g, None, at(n))
    say("bad launch leaves no graph", result, n.value)
    call("cuStreamBeginCapture_v2", s, RELAXED)
    say("callback", call("cuStreamAddCallback", s, CALLBACK(lambda _: None), None, 0))
    call("cuStreamEndCapture", s, at(g))


@case
def graph_nodes() -> None:
    """
    create | 0
    create with flags | 1
    create nowhere | 1
    fill | 0
    copy | 0
    host function | 0
    empty | 0
    edges | 0 3
    roots | 0 1
    dependencies | 0 1
    dependents | 0 1
    edge twice | 1
    edge to itself | 1
    a dependency twice | 1
    what the fill is | 0 True 7
    changed | 0
    wrong type | 1
    instantiate a cycle | 1
    cycle gone | 0
    instantiate | 0
    launch | 0
    its result | 9
    host function ran | True
    clone | 0 4
    find in clone | 0 2
    not in clone | 1
    exec's own value | 0 5
    switched off | 0 0
    its result then | 5
    a copy switched off too | 0 0
    update | 0 0
    result after it | 3
    update from another shape | 910 2
    child graph | 0
    launch with a child | 0
    destroy a node | 0 4
    launch of a destroyed one | 1
    destroy twice | 1
    user object | 0 0 0
    destructor ran | True
    """
    current()
    g, node = pointer(), pointer()
    say("create", call("cuGraphCreate", at(g), 0))
    say("create with flags", call("cuGraphCreate", at(node), 1))
    say("create nowhere", call("cuGraphCreate", None, 0))
    p, ran = allocated(64), []
    host = CALLBACK(lambda _: ran.append(1))
    out = c.create_string_buffer(64)

    def fill_of(value: int) -> Memset:
        return Memset(p.value, 64, value, 1, 64, 1)

    fill, copy, function, nothing = pointer(), pointer(), pointer(), pointer()
    say("fill", call("cuGraphAddMemsetNode", at(fill), g, None, size(0), at(fill_of(7)), None))
    what = Copy()
    what.source.type, what.source.device, what.source.pitch = 2, p.value, 64
    what.target.type, what.target.host, what.target.pitch = 1, c.addressof(out), 64
    what.width, what.height, what.depth = 64, 1, 1
    say("copy", call("cuGraphAddMemcpyNode", at(copy), g, at(fill), size(1), at(what), None))
    calls = Host(c.cast(host, c.c_void_p), None)
    say("host function", call("cuGraphAddHostNode", at(function), g, at(copy), size(1), at(calls)))
    say("empty", call("cuGraphAddEmptyNode", at(nothing), g, at(function), size(1)))
    n = size(0)
    for what_for, ask, extra in (
        ("edges", "cuGraphGetEdges", (None,)),
        ("roots", "cuGraphGetRootNodes", ()),
    ):
        say(what_for, call(ask, g, None, *extra, at(n)), n.value)
    say("dependencies", call("cuGraphNodeGetDependencies", copy, None, at(n)), n.value)
    say("dependents", call("cuGraphNodeGetDependentNodes", copy, None, at(n)), n.value)
    say("edge twice", call("cuGraphAddDependencies", g, at(fill), at(copy), size(1)))
    say("edge to itself", call("cuGraphAddDependencies", g, at(fill), at(fill), size(1)))
    twice = (c.c_void_p * 2)(fill.value, fill.value)
    say("a dependency twice", call("cuGraphAddEmptyNode", at(node), g, twice, size(2)))
    seen = Memset()
    result = call("cuGraphMemsetNodeGetParams", fill, at(seen))
    say("what the fill is", result, seen.to == p.value, seen.value)
    say("changed", call("cuGraphMemsetNodeSetParams", fill, at(fill_of(9))))
    say("wrong type", call("cuGraphMemsetNodeSetParams", copy, at(fill_of(9))))
    exec_ = pointer()
    call("cuGraphAddDependencies", g, at(nothing), at(fill), size(1))
    say("instantiate a cycle", call("cuGraphInstantiateWithFlags", at(exec_), g, u64(0)))
    say("cycle gone", call("cuGraphRemoveDependencies", g, at(nothing), at(fill), size(1)))
    say("instantiate", call("cuGraphInstantiateWithFlags", at(exec_), g, u64(0)))
    say("launch", call("cuGraphLaunch", exec_, None))
    call("cuCtxSynchronize")
    say("its result", out.raw[0])
    say("host function ran", ran == [1])
    twin = pointer()
    result = call("cuGraphClone", at(twin), g)
    call("cuGraphGetNodes", twin, None, at(n))
    say("clone", result, n.value)
    kind = c.c_int(77)
    result = call("cuGraphNodeFindInClone", at(node), fill, twin)
    call("cuGraphNodeGetType", node, at(kind))
    say("find in clone", result, kind.value)
    say("not in clone", call("cuGraphNodeFindInClone", at(pointer()), fill, empty_graph()))
    result = call("cuGraphExecMemsetNodeSetParams", exec_, fill, at(fill_of(5)), None)
    call("cuGraphLaunch", exec_, None)
    call("cuCtxSynchronize")
    say("exec's own value", result, out.raw[0])
    on = c.c_uint(77)
    result = call("cuGraphNodeSetEnabled", exec_, fill, 0)
    call("cuGraphNodeGetEnabled", exec_, fill, at(on))
    say("switched off", result, on.value)
    call("cuMemsetD8_v2", p, 5, size(64))
    call("cuGraphLaunch", exec_, None)
    call("cuCtxSynchronize")
    say("its result then", out.raw[0])
    result = call("cuGraphNodeSetEnabled", exec_, copy, 0)
    call("cuGraphNodeGetEnabled", exec_, copy, at(on))
    say("a copy switched off too", result, on.value)
    call("cuGraphMemsetNodeSetParams", fill, at(fill_of(3)))
    info = UpdateInfo(77)
    call("cuGraphInstantiateWithFlags", at(exec_), twin, u64(0))
    say("update", call("cuGraphExecUpdate_v2", exec_, g, at(info)), info.result)
    call("cuGraphLaunch", exec_, None)
    call("cuCtxSynchronize")
    say("result after it", out.raw[0])
    say("update from another shape", call("cuGraphExecUpdate_v2", exec_, empty_graph(), at(info)), info.result)
    parent = empty_graph()
    say("child graph", call("cuGraphAddChildGraphNode", at(node), parent, None, size(0), g))
    whole = pointer()
    call("cuGraphInstantiateWithFlags", at(whole), parent, u64(0))
    say("launch with a child", call("cuGraphLaunch", whole, None))
    call("cuCtxSynchronize")
    result = call("cuGraphDestroyNode", nothing)
    call("cuGraphGetNodes", g, None, at(n))
    say("destroy a node", result, n.value + 1)
    call("cuGraphDestroy", g)
    # A node of the destroyed graph is not asked for: a real driver answers from freed memory (0 was seen).
    call("cuGraphExecDestroy", whole)
    say("launch of a destroyed one", call("cuGraphLaunch", whole, None))
    say("destroy twice", call("cuGraphDestroy", g))
    thing, gone = pointer(), []
    end = CALLBACK(lambda _: gone.append(1))
    made = call("cuUserObjectCreate", at(thing), None, end, 1, 1)
    kept = call("cuGraphRetainUserObject", parent, thing, 1, 1)
    say("user object", made, kept, call("cuGraphDestroy", parent))
    say("destructor ran", gone == [1])


@case
def graph_allocations() -> None:
    """
    launch | 0 33554432
    launch while it lives | 1
    used | 33554432
    its bytes are there | 0
    free | 0 33554432
    reserved still | 33554432
    launch again | 0
    free async | 0
    trim | 0 33554432
    reset to 1 | 1
    reset of a high mark | 0 0
    set of a current value | 1
    once more, with auto free: still the first | 0 1
    free in the graph | 0 0
    clone with an allocation | 801
    """
    current()
    s, p, g, exec_ = stream(), u64(), pointer(), pointer()
    call("cuStreamBeginCapture_v2", s, RELAXED)
    call("cuMemAllocAsync", at(p), size(MIB), s)
    call("cuStreamEndCapture", s, at(g))
    call("cuGraphInstantiateWithFlags", at(exec_), g, u64(0))
    before = free()

    def attribute(which: int) -> int:
        value = u64(77)
        call("cuDeviceGetGraphMemAttribute", 0, which, at(value))
        return value.value

    def launch(what: c.c_void_p) -> int:
        result = call("cuGraphLaunch", what, s)
        call("cuStreamSynchronize", s)
        return result

    say("launch", launch(exec_), before - free())
    say("launch while it lives", launch(exec_))
    say("used", attribute(0))
    say("its bytes are there", call("cuMemsetD8_v2", p, 1, size(MIB)))
    say("free", call("cuMemFree_v2", p), attribute(0))
    say("reserved still", attribute(2))
    say("launch again", launch(exec_))
    say("free async", call("cuMemFreeAsync", p, s))
    call("cuStreamSynchronize", s)
    kept = free()
    result = call("cuDeviceGraphMemTrim", 0)
    say("trim", result, free() - kept)
    say("reset to 1", call("cuDeviceSetGraphMemAttribute", 0, 1, at(u64(1))))
    say("reset of a high mark", call("cuDeviceSetGraphMemAttribute", 0, 1, at(u64(0))), attribute(1))
    say("set of a current value", call("cuDeviceSetGraphMemAttribute", 0, 0, at(u64(0))))
    call("cuGraphInstantiateWithFlags", at(exec_), g, u64(1))  # refused: one instance at a time
    say("once more, with auto free: still the first", launch(exec_), launch(exec_))
    call("cuMemFree_v2", p)
    call("cuStreamBeginCapture_v2", s, RELAXED)
    call("cuMemAllocAsync", at(p), size(MIB), s)
    call("cuMemFreeAsync", p, s)
    call("cuStreamEndCapture", s, at(g))
    call("cuGraphInstantiateWithFlags", at(exec_), g, u64(0))
    say("free in the graph", launch(exec_), launch(exec_))
    say("clone with an allocation", call("cuGraphClone", at(pointer()), g))


@case
def graph_questions() -> None:
    """
    event of a running capture: query | 907
    bad launch in a capture | 1
    breaks it | 901 None
    second instance of a graph with memory | 801
    instance with auto free after the first is gone | 0
    launches of it | 0 0
    """
    current()
    s, event, g, p = stream(), pointer(), pointer(7), u64()
    call("cuEventCreate", at(event), 2)
    call("cuStreamBeginCapture_v2", s, RELAXED)
    call("cuEventRecord", event, s)
    say("event of a running capture: query", call("cuEventQuery", event))
    call("cuStreamEndCapture", s, at(g))
    function = vadd()
    call("cuStreamBeginCapture_v2", s, RELAXED)
    say("bad launch in a capture", launched(function, s, 0))
    result = call("cuStreamEndCapture", s, at(g))
    say("breaks it", result, g.value)
    call("cuStreamBeginCapture_v2", s, RELAXED)
    call("cuMemAllocAsync", at(p), size(MIB), s)
    call("cuStreamEndCapture", s, at(g))
    first, second = pointer(), pointer()
    call("cuGraphInstantiateWithFlags", at(first), g, u64(0))
    say("second instance of a graph with memory", call("cuGraphInstantiateWithFlags", at(second), g, u64(1)))
    call("cuGraphExecDestroy", first)
    result = call("cuGraphInstantiateWithFlags", at(second), g, u64(1))
    say("instance with auto free after the first is gone", result)
    one = call("cuGraphLaunch", second, s)
    say("launches of it", one, call("cuGraphLaunch", second, s))
    call("cuStreamSynchronize", s)
