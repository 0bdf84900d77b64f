"""Cases of cuda_cases.py: older generations of a call beside its newest, and small questions that few programs ask."""

from __future__ import annotations

import ctypes as c
import os

from cuda_cases import PTX, allocated, at, call, case, current, pointer, say, size, start, u64
from green_cases import Resource
from memory_cases import FLOAT, Array2D
from sharing_cases import handle_of


def vadd_in(module: c.c_void_p) -> c.c_void_p:
    function = pointer()
    assert call("cuModuleLoadData", at(module), PTX) == 0
    assert call("cuModuleGetFunction", at(function), module, b"vadd") == 0
    return function


@case
def older_contexts() -> None:
    """
    cuCtxPushCurrent | 0 True
    cuCtxPopCurrent | 0 True True
    cuCtxAttach | 0 True
    cuCtxAttach with flags | 1
    cuCtxDetach | 0
    cuCtxDestroy | 0
    cuCtxGetId | 0 True
    of another context | 0 True
    cuCtxSetCacheConfig | 0
    cuCtxGetCacheConfig | 0 2
    cache 9 | 1
    cuCtxSetSharedMemConfig | 0
    cuCtxGetSharedMemConfig | 0 True
    cuCtxResetPersistingL2Cache | 0
    cuCtxGetDevResource | 0 1 True
    cuCtxSynchronize_v2 | 0
    """
    primary = current()
    context, popped, now = pointer(), pointer(), pointer()
    assert call("cuCtxCreate_v2", at(context), 0, 0) == 0
    assert call("cuCtxPopCurrent_v2", at(popped)) == 0
    result = call("cuCtxPushCurrent", context)
    call("cuCtxGetCurrent", at(now))
    say("cuCtxPushCurrent", result, now.value == context.value)
    result = call("cuCtxPopCurrent", at(popped))
    call("cuCtxGetCurrent", at(now))
    say("cuCtxPopCurrent", result, popped.value == context.value, now.value == primary.value)
    call("cuCtxPushCurrent_v2", context)
    say("cuCtxAttach", call("cuCtxAttach", at(popped), 0), popped.value == context.value)
    say("cuCtxAttach with flags", call("cuCtxAttach", at(popped), 1))
    say("cuCtxDetach", call("cuCtxDetach", context))
    say("cuCtxDestroy", call("cuCtxDestroy", context))
    call("cuCtxSetCurrent", primary)
    one, two, kind = u64(), u64(), c.c_int(77)
    say("cuCtxGetId", call("cuCtxGetId", primary, at(one)), one.value > 0)
    call("cuCtxCreate_v2", at(context), 0, 0)
    say("of another context", call("cuCtxGetId", context, at(two)), two.value > one.value)
    say("cuCtxSetCacheConfig", call("cuCtxSetCacheConfig", 2))
    say("cuCtxGetCacheConfig", call("cuCtxGetCacheConfig", at(kind)), kind.value)
    say("cache 9", call("cuCtxSetCacheConfig", 9))
    say("cuCtxSetSharedMemConfig", call("cuCtxSetSharedMemConfig", 2))
    say("cuCtxGetSharedMemConfig", call("cuCtxGetSharedMemConfig", at(kind)), kind.value in (1, 2))
    say("cuCtxResetPersistingL2Cache", call("cuCtxResetPersistingL2Cache"))
    resource = (c.c_uint * 64)()
    result = call("cuCtxGetDevResource", primary, resource, 1)
    say("cuCtxGetDevResource", result, resource[0], max(resource) > 1)
    say("cuCtxSynchronize_v2", call("cuCtxSynchronize_v2", primary))


@case
def older_primary_contexts() -> None:
    """
    cuDevicePrimaryCtxSetFlags | 0 4
    cuDevicePrimaryCtxRelease | 0 0
    once too often | 0
    cuDevicePrimaryCtxReset | 0 0
    cuEventDestroy | 0
    and then | 709
    """
    start()
    context, flags, active, event = pointer(), c.c_uint(77), c.c_int(77), pointer()

    def is_active() -> int:
        call("cuDevicePrimaryCtxGetState", 0, at(flags), at(active))
        return active.value

    result = call("cuDevicePrimaryCtxSetFlags", 0, 4)
    is_active()
    say("cuDevicePrimaryCtxSetFlags", result, flags.value)
    call("cuDevicePrimaryCtxRetain", at(context), 0)
    say("cuDevicePrimaryCtxRelease", call("cuDevicePrimaryCtxRelease", 0), is_active())
    say("once too often", call("cuDevicePrimaryCtxRelease", 0))
    call("cuDevicePrimaryCtxRetain", at(context), 0)
    say("cuDevicePrimaryCtxReset", call("cuDevicePrimaryCtxReset", 0), is_active())
    call("cuDevicePrimaryCtxRetain", at(context), 0)
    call("cuCtxSetCurrent", context)
    call("cuEventCreate", at(event), 0)
    say("cuEventDestroy", call("cuEventDestroy", event))
    say("and then", call("cuEventQuery", event))


@case
def older_devices() -> None:
    """
    cuDeviceComputeCapability | 0 True
    cuDeviceGetProperties | 0 True True True
    cuDeviceGetExecAffinitySupport | 0 True
    cuDeviceGetTexture1DLinearMaxWidth | 0 True
    of three channels | 1
    """
    current()
    major, minor, n = c.c_int(77), c.c_int(77), c.c_int(77)

    def attribute(which: int) -> int:
        assert call("cuDeviceGetAttribute", at(n), which, 0) == 0
        return n.value

    result = call("cuDeviceComputeCapability", at(major), at(minor), 0)
    say("cuDeviceComputeCapability", result, (major.value, minor.value) == (attribute(75), attribute(76)))
    properties = (c.c_int * 14)()  # threads of a block, its shape, a grid's, shared and constant memory, a warp ...
    result = call("cuDeviceGetProperties", properties, 0)
    say(
        "cuDeviceGetProperties",
        result,
        properties[0] == attribute(1),
        list(properties[1:4]) == [attribute(which) for which in (2, 3, 4)],
        properties[9] == attribute(10),
    )
    result = call("cuDeviceGetExecAffinitySupport", at(n), 0, 0)
    say("cuDeviceGetExecAffinitySupport", result, n.value in (0, 1))
    widest = size(0)
    name = "cuDeviceGetTexture1DLinearMaxWidth"
    say(name, call(name, at(widest), FLOAT, 1, 0), widest.value > 1 << 20)
    say("of three channels", call(name, at(widest), FLOAT, 3, 0))


@case
def older_memory() -> None:
    """
    cuMemAllocHost_v2 | 0 True
    cuMemHostRegister | 0
    cuPointerSetAttribute | 0 1
    set what cannot be set | 1
    """
    current()
    p, kind = pointer(), c.c_int(77)
    result = call("cuMemAllocHost_v2", at(p), size(4096))
    call("cuPointerGetAttribute", at(kind), 2, u64(p.value or 0))
    say("cuMemAllocHost_v2", result, kind.value == 1)
    room = (c.c_ubyte * 16384)()
    aligned = pointer((c.addressof(room) + 4095) & ~4095)
    say("cuMemHostRegister", call("cuMemHostRegister", aligned, size(4096), 2))
    where, on = allocated(4096), c.c_int(1)
    result = call("cuPointerSetAttribute", at(on), 6, where)  # CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
    seen = c.c_int(77)
    call("cuPointerGetAttribute", at(seen), 6, where)
    say("cuPointerSetAttribute", result, seen.value)
    say("set what cannot be set", call("cuPointerSetAttribute", at(on), 2, where))


@case
def short_memory() -> None:
    """
    cuMemAlloc | 201
    cuMemFree | 201
    cuMemGetInfo | 201
    cuMemGetAddressRange | 201
    cuMemAllocPitch | 201
    cuMemAllocHost | 201
    cuMemHostGetDevicePointer | 201
    """
    current()
    short, room = c.c_uint(7), c.create_string_buffer(4096)
    say("cuMemAlloc", call("cuMemAlloc", at(short), c.c_uint(64)))
    say("cuMemFree", call("cuMemFree", c.c_uint(0x1000)))
    say("cuMemGetInfo", call("cuMemGetInfo", at(c.c_uint(7)), at(c.c_uint(7))))
    say("cuMemGetAddressRange", call("cuMemGetAddressRange", at(c.c_uint(7)), at(c.c_uint(7)), c.c_uint(0x1000)))
    say("cuMemAllocPitch", call("cuMemAllocPitch", at(short), at(c.c_uint(7)), c.c_uint(64), c.c_uint(4), 4))
    say("cuMemAllocHost", call("cuMemAllocHost", at(pointer()), c.c_uint(4096)))
    say("cuMemHostGetDevicePointer", call("cuMemHostGetDevicePointer", at(short), room, 0))


@case
def older_modules() -> None:
    """
    cuModuleLoadDataEx | 0
    cuModuleLoadFatBinary of text | 0
    cuModuleEnumerateFunctions | 0 2
    cuModuleGetGlobal | 201
    cuFuncIsLoaded | 0 True
    cuFuncLoad | 0
    loaded then | 0 1
    cuFuncSetCacheConfig | 0
    cache 9 | 1
    cuFuncSetSharedMemConfig | 0
    banks 9 | 1
    cuKernelSetCacheConfig | 0
    cuKernelSetAttribute | 0 4096
    cuLinkCreate | 0
    cuLinkAddData | 0
    cuLinkAddFile | 0
    no file | 301
    """
    current()
    module, other, function, n = pointer(), pointer(), pointer(), c.c_int(77)
    say("cuModuleLoadDataEx", call("cuModuleLoadDataEx", at(module), PTX, 0, None, None))
    say("cuModuleLoadFatBinary of text", call("cuModuleLoadFatBinary", at(other), PTX))
    call("cuModuleGetFunction", at(function), module, b"vadd")
    functions, count = (c.c_void_p * 2)(), c.c_uint(77)
    call("cuModuleGetFunctionCount", at(count), module)
    result = call("cuModuleEnumerateFunctions", functions, 2, module)
    say("cuModuleEnumerateFunctions", result, len({*functions} - {None}))
    say("cuModuleGetGlobal", call("cuModuleGetGlobal", at(c.c_uint(7)), at(c.c_uint(7)), module, b"counter"))
    say("cuFuncIsLoaded", call("cuFuncIsLoaded", at(n), function), n.value in (0, 1))
    say("cuFuncLoad", call("cuFuncLoad", function))
    say("loaded then", call("cuFuncIsLoaded", at(n), function), n.value)
    say("cuFuncSetCacheConfig", call("cuFuncSetCacheConfig", function, 1))
    say("cache 9", call("cuFuncSetCacheConfig", function, 9))
    say("cuFuncSetSharedMemConfig", call("cuFuncSetSharedMemConfig", function, 1))
    say("banks 9", call("cuFuncSetSharedMemConfig", function, 9))
    library, kernel = pointer(), pointer()
    call("cuLibraryLoadData", at(library), PTX, None, None, 0, None, None, 0)
    call("cuLibraryGetKernel", at(kernel), library, b"vadd")
    say("cuKernelSetCacheConfig", call("cuKernelSetCacheConfig", kernel, 1, 0))
    result = call("cuKernelSetAttribute", 8, 4096, kernel, 0)  # most dynamic shared memory
    call("cuKernelGetAttribute", at(n), 8, kernel, 0)
    say("cuKernelSetAttribute", result, n.value)
    state, path = pointer(), f"/tmp/hooklab-link-{os.getpid()}.ptx"
    with open(path, "wb") as file:
        file.write(PTX)
    say("cuLinkCreate", call("cuLinkCreate", 0, None, None, at(state)))
    say("cuLinkAddData", call("cuLinkAddData", state, 1, PTX, size(len(PTX) + 1), b"x.ptx", 0, None, None))
    call("cuLinkDestroy", state)
    call("cuLinkCreate", 0, None, None, at(state))
    say("cuLinkAddFile", call("cuLinkAddFile", state, 1, path.encode(), 0, None, None))
    os.unlink(path)
    say("no file", call("cuLinkAddFile", state, 1, path.encode(), 0, None, None))


@case
def oldest_launches() -> None:
    """
    cuParamSetSize | 0
    cuParamSetv | 0 0 0
    cuParamSeti | 0
    cuFuncSetBlockShape | 0
    cuFuncSetSharedSize | 0
    cuLaunchGridAsync | 0 0
    its sums | True
    cuParamSetf | 0
    """
    current()
    module, n = pointer(), 32
    function = vadd_in(module)
    a, b, out = (allocated(4 * n) for _ in range(3))
    one, two, back = (c.c_float * n)(*range(n)), (c.c_float * n)(*[0.5] * n), (c.c_float * n)()
    call("cuMemcpyHtoD_v2", a, one, size(4 * n))
    call("cuMemcpyHtoD_v2", b, two, size(4 * n))
    say("cuParamSetSize", call("cuParamSetSize", function, 28))
    say("cuParamSetv", *(call("cuParamSetv", function, 8 * i, at(p), 8) for i, p in enumerate((a, b, out))))
    say("cuParamSeti", call("cuParamSeti", function, 24, n))
    say("cuFuncSetBlockShape", call("cuFuncSetBlockShape", function, n, 1, 1))
    say("cuFuncSetSharedSize", call("cuFuncSetSharedSize", function, 0))
    say("cuLaunchGridAsync", call("cuLaunchGridAsync", function, 1, 1, None), call("cuCtxSynchronize"))
    call("cuMemcpyDtoH_v2", back, out, size(4 * n))
    say("its sums", list(back) == [i + 0.5 for i in range(n)])
    say("cuParamSetf", call("cuParamSetf", function, 24, c.c_float(1.0)))


@case
def small_arrays() -> None:
    """
    cuArrayGetPlane | 1
    cuArrayGetSparseProperties | 1
    cuMipmappedArrayGetSparseProperties | 1
    cuMipmappedArrayGetMemoryRequirements | 1
    """
    current()
    array, mipmaps, plane = pointer(), pointer(), pointer()
    assert call("cuArrayCreate_v2", at(array), at(Array2D(64, 64, FLOAT, 1))) == 0

    class Array3D(c.Structure):
        _fields_ = (
            ("width", c.c_size_t), ("height", c.c_size_t), ("depth", c.c_size_t), ("format", c.c_int),
            ("channels", c.c_uint), ("flags", c.c_uint),
        )  # fmt: skip

    assert call("cuMipmappedArrayCreate", at(mipmaps), at(Array3D(64, 64, 0, FLOAT, 1, 0)), 3) == 0
    say("cuArrayGetPlane", call("cuArrayGetPlane", at(plane), array, 0))
    properties = (c.c_ubyte * 64)()
    say("cuArrayGetSparseProperties", call("cuArrayGetSparseProperties", properties, array))
    say("cuMipmappedArrayGetSparseProperties", call("cuMipmappedArrayGetSparseProperties", properties, mipmaps))
    say("cuMipmappedArrayGetMemoryRequirements", call("cuMipmappedArrayGetMemoryRequirements", properties, mipmaps, 0))


@case
def older_references() -> None:
    """
    cuTexRefSetAddress | 201
    cuTexRefGetAddress | 201
    cuTexRefSetAddress2D | 201
    cuTexRefSetAddress2D_v2 | 0
    cuTexRefSetAddress2D_v3 | 0
    cuTexRefSetMipmapFilterMode | 0
    cuTexRefGetMipmapFilterMode | 0 1
    cuTexRefSetMipmapLevelBias | 0
    cuTexRefGetMipmapLevelBias | 0 0.5
    cuTexRefSetMipmappedArray | 0
    cuTexRefGetMipmappedArray | 0 True
    cuSurfRefSetArray of none | 400
    cuSurfRefGetArray of none | 400
    """
    current()
    reference, mode, bias, found = pointer(), c.c_int(77), c.c_float(77), pointer()
    assert call("cuTexRefCreate", at(reference)) == 0
    p, flat = allocated(1 << 16), Array2D(64, 64, FLOAT, 1)
    short = c.c_uint(p.value & 0xFFFFFFFF)
    say("cuTexRefSetAddress", call("cuTexRefSetAddress", at(c.c_uint(7)), reference, short, c.c_uint(64)))
    say("cuTexRefGetAddress", call("cuTexRefGetAddress", at(c.c_uint(7)), reference))
    short_array = (c.c_uint * 4)(64, 64, FLOAT, 1)
    say("cuTexRefSetAddress2D", call("cuTexRefSetAddress2D", reference, short_array, short, c.c_uint(256)))
    for form in ("_v2", "_v3"):
        name = f"cuTexRefSetAddress2D{form}"
        say(name, call(name, reference, at(flat), p, size(256)))
    say("cuTexRefSetMipmapFilterMode", call("cuTexRefSetMipmapFilterMode", reference, 1))
    say("cuTexRefGetMipmapFilterMode", call("cuTexRefGetMipmapFilterMode", at(mode), reference), mode.value)
    say("cuTexRefSetMipmapLevelBias", call("cuTexRefSetMipmapLevelBias", reference, c.c_float(0.5)))
    say("cuTexRefGetMipmapLevelBias", call("cuTexRefGetMipmapLevelBias", at(bias), reference), bias.value)

    class Array3D(c.Structure):
        _fields_ = (
            ("width", c.c_size_t), ("height", c.c_size_t), ("depth", c.c_size_t), ("format", c.c_int),
            ("channels", c.c_uint), ("flags", c.c_uint),
        )  # fmt: skip

    mipmaps = pointer()
    assert call("cuMipmappedArrayCreate", at(mipmaps), at(Array3D(64, 64, 0, FLOAT, 1, 0)), 3) == 0
    say("cuTexRefSetMipmappedArray", call("cuTexRefSetMipmappedArray", reference, mipmaps, 1))
    result = call("cuTexRefGetMipmappedArray", at(found), reference)
    say("cuTexRefGetMipmappedArray", result, found.value == mipmaps.value)
    say("cuSurfRefSetArray of none", call("cuSurfRefSetArray", None, mipmaps, 0))
    say("cuSurfRefGetArray of none", call("cuSurfRefGetArray", at(found), None))


@case
def small_occupancy() -> None:
    """
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags | 0 True
    with flags 9 | 1
    cuOccupancyMaxPotentialBlockSizeWithFlags | 0 True True
    cuOccupancyAvailableDynamicSMemPerBlock | 0 True
    """
    current()
    function, n, blocks, threads, room = vadd_in(pointer()), c.c_int(77), c.c_int(77), c.c_int(77), size(0)
    plain = c.c_int(77)
    call("cuOccupancyMaxActiveBlocksPerMultiprocessor", at(plain), function, 256, size(0))
    name = "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags"
    say(name, call(name, at(n), function, 256, size(0), 0), n.value == plain.value > 0)
    say("with flags 9", call(name, at(n), function, 256, size(0), 9))
    name = "cuOccupancyMaxPotentialBlockSizeWithFlags"
    result = call(name, at(blocks), at(threads), function, None, size(0), 0, 0)
    say(name, result, blocks.value > 0, threads.value % 32 == 0)
    name = "cuOccupancyAvailableDynamicSMemPerBlock"
    say(name, call(name, at(room), function, 1, 256), room.value > 1 << 14)


@case
def small_rest() -> None:
    """
    cuMulticastBindMem | 801
    cuMulticastBindAddr | 801
    cuMulticastUnbind | 801
    cuGreenCtxGetId | 0 True
    cuIpcOpenMemHandle of one's own | True
    """
    current()
    p = allocated(2 << 20)
    say("cuMulticastBindMem", call("cuMulticastBindMem", u64(7), size(0), u64(7), size(0), size(2 << 20), u64(0)))
    say("cuMulticastBindAddr", call("cuMulticastBindAddr", u64(7), size(0), p, size(2 << 20), u64(0)))
    say("cuMulticastUnbind", call("cuMulticastUnbind", u64(7), 0, size(0), size(2 << 20)))
    part, parts, desc, green, own = Resource(), c.c_uint(1), pointer(), pointer(), u64()
    whole = Resource()
    assert call("cuDeviceGetDevResource", 0, at(whole), 1) == 0
    assert call("cuDevSmResourceSplitByCount", at(part), at(parts), at(whole), None, 0, 16) == 0
    assert call("cuDevResourceGenerateDesc", at(desc), at(part), 1) == 0
    assert call("cuGreenCtxCreate", at(green), desc, 0, 1) == 0
    say("cuGreenCtxGetId", call("cuGreenCtxGetId", green, at(own)), own.value > 0)
    _, handle = handle_of(p.value)
    one, two = (call(name, at(u64()), handle, 1) for name in ("cuIpcOpenMemHandle", "cuIpcOpenMemHandle_v2"))
    say("cuIpcOpenMemHandle of one's own", one == two != 0)
