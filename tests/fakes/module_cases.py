"""Cases of cuda_cases.py: Modules, libraries, kernels, links."""

from __future__ import annotations

import ctypes as c

from cuda_cases import HEAD, MIB, PTX, at, call, case, current, no_parameters, pointer, say, size, start, u64


@case
def launch_of_unloaded_module() -> None:
    """
    died | 11
    """
    current()
    m, function = pointer(), pointer()
    call("cuModuleLoadData", at(m), PTX)
    call("cuModuleGetFunction", at(function), m, b"vadd")
    call("cuModuleUnload", m)
    call("cuLaunchKernel", function, 1, 1, 1, 32, 1, 1, 0, None, no_parameters(), None)


@case
def modules() -> None:
    """
    load | 0
    function | 0
    the same again | True
    no such function | 500
    function NULL | 1
    function, no name | 1
    function, empty name | 1
    function of no module | 400
    global | 0 4
    constant | 0 32
    no such global | 500 0
    functions | 0 2
    attributes | 1024 0 32 0 52 0 -1
    attribute 16 | 1 77
    set attribute 0 | 1
    dynamic shared memory 100000 | 0 100000
    dynamic shared memory -1 | 1
    dynamic shared memory 1 MiB | 1
    carveout 101 | 1
    carveout -1 | 0
    name | 0 vadd
    module | 0 True
    parameters | 0:8 8:8 16:8 24:4
    parameter 4 | 1 77
    parameters of the other | 0:1 16:24 40:8
    loading mode | 0 2
    junk | 200
    empty | 200
    header only | 0
    no such instruction | 218
    version 99 | 222
    sm_999 | 218
    truncated ELF | 200
    fat binary without parts | 209
    NULL image | 1
    NULL module | 1
    comment first | 0
    no file | 301
    not an image | 200
    unload | 0
    unload again | 400
    unload garbage | 400
    """
    current()
    m, function, again, p, n, v = pointer(), pointer(), pointer(), u64(7), size(7), c.c_int(77)
    say("load", call("cuModuleLoadData", at(m), PTX))
    say("function", call("cuModuleGetFunction", at(function), m, b"vadd"))
    call("cuModuleGetFunction", at(again), m, b"vadd")
    say("the same again", again.value == function.value)
    say("no such function", call("cuModuleGetFunction", at(again), m, b"nope"))
    say("function NULL", call("cuModuleGetFunction", None, m, b"vadd"))
    say("function, no name", call("cuModuleGetFunction", at(again), m, None))
    say("function, empty name", call("cuModuleGetFunction", at(again), m, b""))
    say("function of no module", call("cuModuleGetFunction", at(again), None, b"vadd"))
    say("global", call("cuModuleGetGlobal_v2", at(p), at(n), m, b"counter"), n.value)
    say("constant", call("cuModuleGetGlobal_v2", at(p), at(n), m, b"table"), n.value)
    say("no such global", call("cuModuleGetGlobal_v2", at(p), at(n), m, b"nope"), p.value)
    say("functions", call("cuModuleGetFunctionCount", at(v), m), v.value)
    values = []
    for which in (0, 1, 2, 3, 5, 7, 9):
        call("cuFuncGetAttribute", at(v), which, function)
        values.append(v.value)
    say("attributes", *values)
    v.value = 77
    say("attribute 16", call("cuFuncGetAttribute", at(v), 16, function), v.value)
    say("set attribute 0", call("cuFuncSetAttribute", function, 0, 1))
    result = call("cuFuncSetAttribute", function, 8, 100000)
    call("cuFuncGetAttribute", at(v), 8, function)
    say("dynamic shared memory 100000", result, v.value)
    say("dynamic shared memory -1", call("cuFuncSetAttribute", function, 8, -1))
    say("dynamic shared memory 1 MiB", call("cuFuncSetAttribute", function, 8, MIB))
    say("carveout 101", call("cuFuncSetAttribute", function, 9, 101))
    say("carveout -1", call("cuFuncSetAttribute", function, 9, -1))
    text = c.c_char_p()
    say("name", call("cuFuncGetName", at(text), function), (text.value or b"").decode())
    result = call("cuFuncGetModule", at(again), function)
    say("module", result, again.value == m.value)

    def layout(of: c.c_void_p, count: int) -> str:
        parts = []
        for index in range(count):
            offset, bytes_of = size(77), size(77)
            assert call("cuFuncGetParamInfo", of, size(index), at(offset), at(bytes_of)) == 0
            parts.append(f"{offset.value}:{bytes_of.value}")
        return " ".join(parts)

    say("parameters", layout(function, 4))
    offset = size(77)
    say("parameter 4", call("cuFuncGetParamInfo", function, size(4), at(offset), at(n)), offset.value)
    other = pointer()
    call("cuModuleGetFunction", at(other), m, b"other")
    say("parameters of the other", layout(other, 3))
    say("loading mode", call("cuModuleGetLoadingMode", at(v)), v.value)
    for what, image in (
        ("junk", b"hello this is junk"),
        ("empty", b""),
        ("header only", HEAD),
        ("no such instruction", HEAD + b".visible .entry x(){ bogus; }"),
        ("version 99", b".version 99.0\n.target sm_52\n.address_size 64\n"),
        ("sm_999", b".version 8.0\n.target sm_999\n.address_size 64\n"),
        ("truncated ELF", b"\x7fELF" + b"\0" * 100),
        ("fat binary without parts", b"\x50\xed\x55\xba\x01\x00\x10\x00" + b"\0" * 64),
    ):
        say(what, call("cuModuleLoadData", at(again), image))
    say("NULL image", call("cuModuleLoadData", at(again), None))
    say("NULL module", call("cuModuleLoadData", None, PTX))
    say("comment first", call("cuModuleLoadData", at(again), b"// a comment\n" + PTX))
    say("no file", call("cuModuleLoad", at(again), b"/nonexistent"))
    say("not an image", call("cuModuleLoad", at(again), b"/etc/passwd"))
    say("unload", call("cuModuleUnload", m))
    say("unload again", call("cuModuleUnload", m))
    say("unload garbage", call("cuModuleUnload", (c.c_uint64 * 512)()))


@case
def libraries() -> None:
    """
    load without context | 0
    kernel | 0
    no such kernel | 500
    kernels | 0 2
    all kernels | 0 True
    function without context | 201
    name | 0 vadd
    parameter without context | 201
    attribute | 0 1024
    library | 0 True
    module without context | 201
    function | 0
    module | 0
    global | 0 4
    no such global | 500
    not managed | 500
    not unified | 1
    launch of a kernel | 0 0
    launch of a function | 0
    launch without parameters | 1
    unload | 0
    junk loads | 0
    kernel of junk | 200
    kernels of junk | 0 0
    bad PTX loads | 0
    kernel of bad PTX | 218
    NULL | 1
    no file | 301
    unload NULL | 400
    """
    start()
    lib, kernel, n, arr = pointer(), pointer(), c.c_uint(7), (c.c_void_p * 4)()
    text, v, z, o = c.c_char_p(), c.c_int(7), size(7), size(7)
    say("load without context", call("cuLibraryLoadData", at(lib), PTX, None, None, 0, None, None, 0))
    say("kernel", call("cuLibraryGetKernel", at(kernel), lib, b"vadd"))
    say("no such kernel", call("cuLibraryGetKernel", at(pointer()), lib, b"nope"))
    say("kernels", call("cuLibraryGetKernelCount", at(n), lib), n.value)
    result = call("cuLibraryEnumerateKernels", arr, 4, lib)
    say("all kernels", result, kernel.value in list(arr))
    function, module, other = pointer(), pointer(), pointer()
    say("function without context", call("cuKernelGetFunction", at(function), kernel))
    say("name", call("cuKernelGetName", at(text), kernel), (text.value or b"").decode())
    say("parameter without context", call("cuKernelGetParamInfo", kernel, size(3), at(o), at(z)))
    say("attribute", call("cuKernelGetAttribute", at(v), 0, kernel, 0), v.value)
    result = call("cuKernelGetLibrary", at(other), kernel)
    say("library", result, other.value == lib.value)
    say("module without context", call("cuLibraryGetModule", at(module), lib))
    current()
    say("function", call("cuKernelGetFunction", at(function), kernel))
    say("module", call("cuLibraryGetModule", at(module), lib))
    p = u64()
    say("global", call("cuLibraryGetGlobal", at(p), at(z), lib, b"counter"), z.value)
    say("no such global", call("cuLibraryGetGlobal", at(p), at(z), lib, b"nope"))
    say("not managed", call("cuLibraryGetManaged", at(p), at(z), lib, b"counter"))
    say("not unified", call("cuLibraryGetUnifiedFunction", at(other), lib, b"vadd"))
    launch = (1, 1, 1, 32, 1, 1, 0, None)
    results = call("cuLaunchKernel", kernel, *launch, no_parameters(), None), call("cuCtxSynchronize")
    say("launch of a kernel", *results)
    say("launch of a function", call("cuLaunchKernel", function, *launch, no_parameters(), None))
    say("launch without parameters", call("cuLaunchKernel", function, *launch, None, None))
    call("cuCtxSynchronize")
    say("unload", call("cuLibraryUnload", lib))
    say("junk loads", call("cuLibraryLoadData", at(lib), b"junk junk", None, None, 0, None, None, 0))
    say("kernel of junk", call("cuLibraryGetKernel", at(kernel), lib, b"vadd"))
    say("kernels of junk", call("cuLibraryGetKernelCount", at(n), lib), n.value)
    bad = HEAD + b".visible .entry x(){ bogus; }"
    say("bad PTX loads", call("cuLibraryLoadData", at(lib), bad, None, None, 0, None, None, 0))
    say("kernel of bad PTX", call("cuLibraryGetKernel", at(kernel), lib, b"x"))
    say("NULL", call("cuLibraryLoadData", at(lib), None, None, None, 0, None, None, 0))
    say("no file", call("cuLibraryLoadFromFile", at(lib), b"/nonexistent", None, None, 0, None, None, 0))
    say("unload NULL", call("cuLibraryUnload", None))


@case
def links() -> None:
    """
    create | 0
    add | 0
    add junk | 200
    complete | 0 True
    load the result | 0
    function | 0
    destroy | 0
    complete without input | 0
    add junk as a binary | 200
    add of type 99 | 1
    no file | 301
    NULL | 1
    """
    current()
    s, out, n, m, function = pointer(), pointer(), size(0), pointer(), pointer()
    say("create", call("cuLinkCreate_v2", 0, None, None, at(s)))
    say("add", call("cuLinkAddData_v2", s, 1, PTX, size(len(PTX) + 1), b"x.ptx", 0, None, None))
    say("add junk", call("cuLinkAddData_v2", s, 1, b"junk", size(5), b"x.ptx", 0, None, None))
    say("complete", call("cuLinkComplete", s, at(out), at(n)), n.value > 0)
    say("load the result", call("cuModuleLoadData", at(m), out))
    say("function", call("cuModuleGetFunction", at(function), m, b"vadd"))
    say("destroy", call("cuLinkDestroy", s))
    call("cuLinkCreate_v2", 0, None, None, at(s))
    say("complete without input", call("cuLinkComplete", s, at(out), at(n)))
    call("cuLinkDestroy", s)
    call("cuLinkCreate_v2", 0, None, None, at(s))
    say("add junk as a binary", call("cuLinkAddData_v2", s, 0, b"junkjunk", size(8), b"c", 0, None, None))
    say("add of type 99", call("cuLinkAddData_v2", s, 99, b"junkjunk", size(8), b"c", 0, None, None))
    say("no file", call("cuLinkAddFile_v2", s, 1, b"/nonexistent", 0, None, None))
    say("NULL", call("cuLinkCreate_v2", 0, None, None, None))
