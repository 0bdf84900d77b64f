"""A guest that does what it is told: every family of device memory, one command a line of standard input (JSON), one
answer a line of standard output: [result, ...]. Objects are named by the one who commands. ctypes, the dlsym route."""

import ctypes
import json
import os
import sys

CUDA = ctypes.CDLL("libcuda.so.1")
u64, size_t, handle = ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p
BLOCK = 2 << 20


class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class AllocationProp(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", Location),
        ("win32", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    ]


class PoolProps(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", Location),
        ("win32", ctypes.c_void_p),
        ("max_size", size_t),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 54),
    ]


class Array3D(ctypes.Structure):
    _fields_ = [
        ("width", size_t),
        ("height", size_t),
        ("depth", size_t),
        ("format", ctypes.c_int),
        ("channels", ctypes.c_uint),
        ("flags", ctypes.c_uint),
    ]


class AllocNode(ctypes.Structure):
    _fields_ = [
        ("props", PoolProps),
        ("access", ctypes.c_void_p),
        ("access_count", size_t),
        ("bytes", size_t),
        ("pointer", u64),
    ]


objects = {}
contexts = {}


def context_of(device):
    if device not in contexts:
        made = handle()
        result = CUDA.cuDevicePrimaryCtxRetain(ctypes.byref(made), device)
        if result:
            return result
        contexts[device] = made
    return CUDA.cuCtxSetCurrent(contexts[device])


def put(name, result, value):
    if not result:
        objects[name] = value
    return [result]


def alloc(name, kind, size, device, pool=None):
    pointer, pitch = u64(0xBAD), size_t()
    where = ctypes.byref(pointer)
    if kind == "sync":
        result = CUDA.cuMemAlloc_v2(where, size_t(size))
    elif kind == "managed":
        result = CUDA.cuMemAllocManaged(where, size_t(size), 1)
    elif kind == "pitched":
        rows = size_t(max(size // 1000, 1))
        result = CUDA.cuMemAllocPitch_v2(where, ctypes.byref(pitch), size_t(1000), rows, 4)
    elif pool:
        entry = CUDA.cuMemAllocFromPoolAsync if kind == "async" else CUDA.cuMemAllocFromPoolAsync_ptsz
        result = entry(where, size_t(size), objects[pool], None)
    else:
        entry = CUDA.cuMemAllocAsync if kind == "async" else CUDA.cuMemAllocAsync_ptsz
        result = entry(where, size_t(size), None)
    if result and pointer.value:
        return [result, f"left {pointer.value:#x}"]
    return put(name, result, pointer)


def free(name, how):
    pointer = objects[name]
    if how == "sync":
        result = CUDA.cuMemFree_v2(pointer)
    else:
        result = (CUDA.cuMemFreeAsync if how == "async" else CUDA.cuMemFreeAsync_ptsz)(pointer, None)
    if not result:
        del objects[name]
    return [result]


def drop(call, name):
    result = call(objects[name])
    if not result:
        del objects[name]
    return [result]


def array(name, width, height, depth, levels=0):
    wanted, made = Array3D(width, height, depth, 32, 4, 0), handle()
    if levels:
        result = CUDA.cuMipmappedArrayCreate(ctypes.byref(made), ctypes.byref(wanted), levels)
    else:
        result = CUDA.cuArray3DCreate_v2(ctypes.byref(made), ctypes.byref(wanted))
    return put(name, result, made)


def physical(name, size, device, on_host=False):
    made = u64()
    prop = AllocationProp(1, 0, Location(2 if on_host else 1, device))
    return put(name, CUDA.cuMemCreate(ctypes.byref(made), size_t(size), ctypes.byref(prop), u64(0)), made)


def map_at(name, physical_name, size):
    """Reserves, maps; the name then is of (address, size)."""
    at = u64()
    result = CUDA.cuMemAddressReserve(ctypes.byref(at), size_t(size), size_t(0), u64(0), u64(0))
    if result:
        return [result]
    result = CUDA.cuMemMap(at, size_t(size), size_t(0), objects[physical_name], u64(0))
    if result:
        CUDA.cuMemAddressFree(at, size_t(size))
    return put(name, result, (at, size))


def unmap(name):
    at, size = objects[name]
    result = CUDA.cuMemUnmap(at, size_t(size))
    if not result:
        CUDA.cuMemAddressFree(at, size_t(size))
        del objects[name]
    return [result]


def retain(name, mapping):
    made = u64()
    return put(name, CUDA.cuMemRetainAllocationHandle(ctypes.byref(made), handle(objects[mapping][0].value)), made)


def pool(name, device, max_size=0, on_host=False):
    made, props = handle(), PoolProps(1, 0, Location(2 if on_host else 1, device), None, max_size)
    return put(name, CUDA.cuMemPoolCreate(ctypes.byref(made), ctypes.byref(props)), made)


def default_pool(name, device):
    made = handle()
    return put(name, CUDA.cuDeviceGetDefaultMemPool(ctypes.byref(made), device), made)


def threshold(name, value):
    return [CUDA.cuMemPoolSetAttribute(objects[name], 4, ctypes.byref(u64(value)))]


def graph(name, sizes, device, frees):
    """An executable graph of allocation nodes, each freed again where `frees`."""
    made, executable = handle(), handle()
    result, last = CUDA.cuGraphCreate(ctypes.byref(made), 0), None
    for size in sizes:
        if result:
            break
        node = handle()
        params = AllocNode(PoolProps(1, 0, Location(1, device)), None, 0, size)
        before = ctypes.byref(last) if last else None
        result = CUDA.cuGraphAddMemAllocNode(
            ctypes.byref(node), made, before, size_t(int(bool(last))), ctypes.byref(params)
        )
        last = node
        if frees and not result:
            gone = handle()
            result = CUDA.cuGraphAddMemFreeNode(
                ctypes.byref(gone), made, ctypes.byref(last), size_t(1), u64(params.pointer)
            )
            last = gone
    if not result:
        result = CUDA.cuGraphInstantiateWithFlags(ctypes.byref(executable), made, u64(1))
    if made:
        CUDA.cuGraphDestroy(made)
    return put(name, result, executable)


def captured(name, size, free_too):
    """The same by a capture of stream-ordered calls."""
    stream, made, executable, pointer = handle(), handle(), handle(), u64()
    result = CUDA.cuStreamCreate(ctypes.byref(stream), 1) or CUDA.cuStreamBeginCapture_v2(stream, 0)
    if result:
        return [result]
    inner = CUDA.cuMemAllocAsync(ctypes.byref(pointer), size_t(size), stream)
    if not inner and free_too:
        inner = CUDA.cuMemFreeAsync(pointer, stream)
    result = CUDA.cuStreamEndCapture(stream, ctypes.byref(made)) or inner
    if not result:
        result = CUDA.cuGraphInstantiateWithFlags(ctypes.byref(executable), made, u64(1))
    if made:
        CUDA.cuGraphDestroy(made)
    CUDA.cuStreamDestroy_v2(stream)
    return put(name, result, executable)


def launch(name):
    return [CUDA.cuGraphLaunch(objects[name], None) or CUDA.cuStreamSynchronize(None)]


def own_context(name, device):
    made = handle()
    result = CUDA.cuCtxCreate_v2(ctypes.byref(made), 0, device)
    if not result:
        CUDA.cuCtxPopCurrent_v2(ctypes.byref(handle()))
    return put(name, result, made)


def enter(name):
    return [CUDA.cuCtxSetCurrent(objects[name])]


def reset(device):
    contexts.pop(device, None)
    return [CUDA.cuDevicePrimaryCtxReset_v2(device)]


def release_primary(device):
    contexts.pop(device, None)
    return [CUDA.cuDevicePrimaryCtxRelease_v2(device)]


def share(name):
    told = (ctypes.c_char * 64)()
    result = CUDA.cuIpcGetMemHandle(ctypes.byref(told), objects[name])
    return [result, told.raw.hex()]


class Told(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 64)]


def open_shared(name, told):
    CUDA.cuIpcOpenMemHandle_v2.argtypes = [ctypes.c_void_p, Told, ctypes.c_uint]
    pointer, taken = u64(), Told()
    ctypes.memmove(ctypes.byref(taken), bytes.fromhex(told), 64)
    return put(name, CUDA.cuIpcOpenMemHandle_v2(ctypes.byref(pointer), taken, 1), pointer)


def host(name, size):
    pointer = handle()
    return put(name, CUDA.cuMemHostAlloc(ctypes.byref(pointer), size_t(size), 0), pointer)


def info():
    left, total = size_t(), size_t()
    return [CUDA.cuMemGetInfo_v2(ctypes.byref(left), ctypes.byref(total)), left.value, total.value]


class External(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("pad", ctypes.c_int),
        ("fd", ctypes.c_int),
        ("rest", ctypes.c_ubyte * 12),
        ("size", u64),
        ("more", ctypes.c_uint * 17),
    ]


def external(name, size):
    file = os.memfd_create("external")
    os.truncate(file, size)
    made, told = handle(), External(1, 0, file, (ctypes.c_ubyte * 12)(), size)
    return put(name, CUDA.cuImportExternalMemory(ctypes.byref(made), ctypes.byref(told)), made)


HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"
CALLED = """
.extern .func (.param .b64 r) {name} (.param .b64 a);
.visible .entry entry()
{{
 .reg .b64 %rd<4>; mov.u64 %rd1, 64;
 {{ .param .b64 p0; .param .b64 q; st.param.b64 [p0+0], %rd1; call.uni (q), {name}, (p0); ld.param.b64 %rd2, [q+0]; }}
 ret;
}}
"""
SOURCES = {
    "plain": ".visible .entry entry() { ret; }\n",
    "prints": CALLED.format(name="vprintf"),
    "allocates": CALLED.format(name="malloc"),
    "local": ".visible .entry entry()\n{\n .local .align 4 .b8 own[16384];\n ret;\n}\n",
    "large": ".visible .global .align 8 .b8 table[6291456];\n.visible .entry entry() { ret; }\n",
}


def module(name, what):
    made = handle(0xBAD)
    result = CUDA.cuModuleLoadData(ctypes.byref(made), (HEAD + SOURCES[what]).encode())
    return [*put(name, result, made), made.value]


def library(name, what):
    made = handle()
    image = (HEAD + SOURCES[what]).encode()
    return put(name, CUDA.cuLibraryLoadData(ctypes.byref(made), image, None, None, 0, None, None, 0), made)


def run(name, of_library=False):
    function = handle()
    if of_library:
        kernel = handle()
        result = CUDA.cuLibraryGetKernel(ctypes.byref(kernel), objects[name], b"entry")
        result = result or CUDA.cuKernelGetFunction(ctypes.byref(function), kernel)
    else:
        result = CUDA.cuModuleGetFunction(ctypes.byref(function), objects[name], b"entry")
    return [result or CUDA.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, None, None) or CUDA.cuCtxSynchronize()]


COMMANDS = {
    "init": lambda: [CUDA.cuInit(0)],
    "use": lambda device: [context_of(device)],
    "alloc": alloc,
    "free": free,
    "free_at": lambda pointer: [CUDA.cuMemFree_v2(u64(pointer))],
    "array": array,
    "array_end": lambda name: drop(CUDA.cuArrayDestroy, name),
    "mipmap_end": lambda name: drop(CUDA.cuMipmappedArrayDestroy, name),
    "physical": physical,
    "release": lambda name: drop(CUDA.cuMemRelease, name),
    "map": map_at,
    "unmap": unmap,
    "retain": retain,
    "pool": pool,
    "default_pool": default_pool,
    "pool_end": lambda name: drop(CUDA.cuMemPoolDestroy, name),
    "set_pool": lambda name, device: [CUDA.cuDeviceSetMemPool(device, objects[name])],
    "trim": lambda name, keep: [CUDA.cuMemPoolTrimTo(objects[name], size_t(keep))],
    "threshold": threshold,
    "graph": graph,
    "captured": captured,
    "launch": launch,
    "graph_end": lambda name: drop(CUDA.cuGraphExecDestroy, name),
    "graph_trim": lambda device: [CUDA.cuDeviceGraphMemTrim(device)],
    "stack": lambda size: [CUDA.cuCtxSetLimit(0, size_t(size))],
    "heap": lambda size: [CUDA.cuCtxSetLimit(2, size_t(size))],
    "module": module,
    "module_end": lambda name: drop(CUDA.cuModuleUnload, name),
    "library": library,
    "library_end": lambda name: drop(CUDA.cuLibraryUnload, name),
    "run": run,
    "sync": lambda: [CUDA.cuCtxSynchronize()],
    "own_context": own_context,
    "enter": enter,
    "context_end": lambda name: drop(CUDA.cuCtxDestroy_v2, name),
    "reset": reset,
    "release_primary": release_primary,
    "share": share,
    "open": open_shared,
    "close": lambda name: drop(CUDA.cuIpcCloseMemHandle, name),
    "external": external,
    "host": host,
    "host_end": lambda name: drop(CUDA.cuMemFreeHost, name),
    "info": info,
}

for line in sys.stdin:
    name, *arguments = json.loads(line)
    print(json.dumps(COMMANDS[name](*arguments)), flush=True)
