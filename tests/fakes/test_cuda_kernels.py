"""Images and kernels: what is read from PTX, cubins and fat binaries, what runs, what only takes time and says so."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab.checks.history import load
from lab.node.server import NodeServer
from lab.runner.recorder import Recorder
from lab.spec import load_hooks

pytestmark = pytest.mark.sanitize
MAIL = "the little gpu man says you've got mail"
HEAD = ".version 7.0\n.target sm_52\n.address_size 64\n"


def elf(entries: dict[str, list[tuple[int, int]]], variables: dict[str, int], *, sm: int = 80) -> bytes:
    """A cubin with these entries ((offset, size) of each parameter) and variables, no code."""
    names, strings = b"\0", b"\0"
    sections: list[tuple[int, int, bytes, int]] = [(0, 0, b"", 0)]  # name, type, data, link

    def add(name: str, kind: int, data: bytes, link: int = 0) -> None:
        nonlocal names
        sections.append((len(names), kind, data, link))
        names += name.encode() + b"\0"

    symbols = bytes(24)
    for name, parameters in entries.items():
        symbols += struct.pack("<IBBHQQ", len(strings), 0x12, 0x10, 1, 0, 0)  # global function, marked as an entry
        strings += name.encode() + b"\0"
        info = b"".join(
            struct.pack("<BBHIHHI", 4, 0x17, 12, 0, i, offset, size << 18 | 0x1F000)
            for i, (offset, size) in enumerate(parameters)
        )
        add(f".nv.info.{name}", 0x70000000, struct.pack("<BBH", 3, 0x1B, 255) + info)
    for name, size in variables.items():
        symbols += struct.pack("<IBBHQQ", len(strings), 0x11, 0, 1, 0, size)
        strings += name.encode() + b"\0"
    add(".strtab", 3, strings)
    add(".symtab", 2, symbols, link=len(sections) - 1)
    add(".shstrtab", 3, b"")
    sections[-1] = (*sections[-1][:2], names, 0)
    body, table = b"", b""
    for name_at, kind, data, link in sections:
        table += struct.pack("<IIQQQQIIQQ", name_at, kind, 0, 0, 64 + len(body), len(data), link, 0, 1, 0)
        body += data
    ident = b"\x7fELF" + bytes((2, 1, 1, 0x33, 7)) + bytes(7)
    head = struct.pack(
        "<16sHHIQQQIHHHHHH", ident, 2, 190, 1, 0, 0, 64 + len(body), sm | sm << 16, 64, 56, 0, 64, len(sections),
        len(sections) - 1,
    )  # fmt: skip
    return head + body + table


def fat(*parts: tuple[int, int, bytes]) -> bytes:
    """A fat binary of (kind: 1 PTX, 2 cubin; architecture; data)."""
    body = b""
    for kind, architecture, data in parts:
        data += bytes(-len(data) % 8)
        body += struct.pack("<HHIQIIHHI", kind, 0x101, 64, len(data), 0, 0, 8, 1, architecture) + bytes(32) + data
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


VADD = [(0, 8), (8, 8), (16, 8), (24, 4)]
READ = """
current()
m, f = pointer(), pointer()
with open(os.environ["IMAGE"], "rb") as file:
    image = file.read()
loaded = call("cuModuleLoadData", at(m), image)
n = c.c_uint(7)
if loaded == 0: call("cuModuleGetFunctionCount", at(n), m)
def parameters(name):
    if call("cuModuleGetFunction", at(f), m, name): return None
    found, o, z = [], size(0), size(0)
    while call("cuFuncGetParamInfo", f, size(len(found)), at(o), at(z)) == 0: found.append((o.value, z.value))
    return found
"""


@pytest.fixture
def read(node: NodeServer, play: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """`read(image, expression)`: loads the image, tells (load result, kernels, the expression's value)."""

    def run(image: bytes, expression: str = "None") -> Any:
        path = tmp_path / "image"
        path.write_bytes(image)
        return play(node, f"{READ}\ntell(loaded, n.value, {expression})", IMAGE=str(path))[0]

    return run


def test_cubin(read: Callable[..., Any]) -> None:
    image = elf({"_Z4vaddPKfS0_Pfi": VADD, "other": [(0, 1), (16, 24), (40, 8)]}, {"counter": 4})
    assert read(image, 'parameters(b"other")') == [0, 2, [[0, 1], [16, 24], [40, 8]]]
    variable = '(call("cuModuleGetGlobal_v2", at(u64()), at(z := size(0)), m, b"counter"), z.value)'
    assert read(image, variable) == [0, 2, [0, 4]]


@pytest.mark.parametrize(("sm", "result"), [(80, 0), (86, 209), (75, 209), (90, 209)])
def test_a_cubin_is_for_its_generation(read: Callable[..., Any], sm: int, result: int) -> None:
    assert read(elf({"k": []}, {}, sm=sm))[0] == result


def test_fat_binary(read: Callable[..., Any]) -> None:
    ptx = (HEAD + ".visible .entry from_ptx() { ret; }\n").encode() + b"\0"
    both = fat((1, 52, ptx), (2, 80, elf({"from_cubin": []}, {})))
    assert read(both, '[parameters(b"from_cubin"), parameters(b"from_ptx")]') == [0, 1, [[], None]]
    assert read(fat((1, 52, ptx), (2, 90, elf({"newer": []}, {}, sm=90))), 'parameters(b"from_ptx")') == [0, 1, []]
    assert read(fat((2, 90, elf({"newer": []}, {}, sm=90))))[0] == 209


@pytest.mark.parametrize("cut", range(0, 700, 37))
def test_a_damaged_cubin_is_refused_or_read(read: Callable[..., Any], cut: int) -> None:
    """Truncated anywhere (the file is followed by zeros): an error code, never a crash."""
    image = elf({"k": [(0, 8)]}, {"v": 4})
    assert read(image[:cut] + bytes(4096))[0] in (0, 200, 209, 218)


PTX = [
    (".visible .entry k(.param .u64 .ptr .global .align 4 p) { ret; }", 0),
    (".visible .entry k()\n.maxntid 128, 1, 1\n{ ret; }", 0),
    (".extern .shared .align 16 .b8 s[];\n.visible .entry k() { ret; }", 0),
    (".visible .func (.param .b32 r) f(.param .b32 a) { st.param.b32 [r], 1; ret; }", 0),
    (".visible .entry k() { .reg .b32 %r<2>; { mov.u32 %r1, 1; } ret; }", 0),
    (".visible .entry k() { /* { */ ret; // }\n }", 0),
    (".visible .entry k() { @!%p1 bra X; X: ret; }", 0),
    (".visible .entry k() { st.v2.f32 [%rd1], {%f1, %f2}; ret; }", 0),
    ('.file 1 "a { b.cu"\n.visible .entry k() { .loc 1 1 0\n ret; }', 0),
    (".visible .entry k() { ret; ", 218),
    (".visible .entry k(.param .u64) { ret; }", 218),
    (".visible .entry k() { mov2.u32 %r1, 1; }", 218),
    ("nonsense", 218),
    (".visible .entry", 218),
]


@pytest.mark.parametrize(("text", "result"), PTX, ids=[text[:50] for text, _ in PTX])
def test_ptx(read: Callable[..., Any], text: str, result: int) -> None:
    assert read((HEAD + text).encode() + b"\0")[0] == result


LAUNCH = """
current()
def function(text, name):
    m, f = pointer(), pointer()
    assert call("cuModuleLoadData", at(m), HEAD + text) == 0
    assert call("cuModuleGetFunction", at(f), m, name) == 0
    return f
def launch(f, *values, grid=1, block=64):
    cells = (c.c_void_p * len(values))(*map(c.addressof, values))
    return call("cuLaunchKernel", f, grid, 1, 1, block, 1, 1, 0, None, cells, None)
def read(p, n):
    out = c.create_string_buffer(n)
    assert call("cuMemcpyDtoH_v2", out, p, size(n)) == 0
    return out.raw.decode("latin1")
"""


def test_mail(node: NodeServer, play: Callable[..., Any]) -> None:
    program = LAUNCH + (
        'f = function(b".visible .entry mail(.param .u64 o, .param .u32 n) { ret; }", b"mail")\n'
        "p = allocated(64)\n"
        "tell(launch(f, p, c.c_uint(64)), read(p, 64))\n"
        "q = allocated(64)\n"
        "tell(launch(f, q, c.c_uint(64), block=32), read(q, 64))"
    )
    whole, half = play(node, program)
    assert whole == [0, (MAIL * 2)[:64]]
    assert half == [0, MAIL[:32] + "\0" * 32]  # as many bytes as threads


def test_the_bridge_mail_strides_over_its_output(node: NodeServer, play: Callable[..., Any]) -> None:
    program = LAUNCH + (
        'f = function(b".visible .entry mail_kernel(.param .u64 o, .param .u32 n) { ret; }", b"mail_kernel")\n'
        "p = allocated(256)\n"
        "tell(launch(f, p, c.c_uint(200), block=64), read(p, 256))"
    )
    assert play(node, program) == [[0, (MAIL * 6)[:200] + "\0" * 56]]


def test_a_bad_address_is_an_error_of_the_kernel(node: NodeServer, play: Callable[..., Any]) -> None:
    program = LAUNCH + (
        'f = function(b".visible .entry mail(.param .u64 o, .param .u32 n) { ret; }", b"mail")\n'
        'tell(launch(f, u64(0x1234), c.c_uint(8)), call("cuCtxSynchronize"), call("cuMemAlloc_v2", at(u64()), size(8)))'
    )
    assert play(node, program) == [[0, 700, 700]]


def test_name_and_parameters_decide(node: NodeServer, play: Callable[..., Any]) -> None:
    """A kernel called mail with other parameters is not our mail: it takes time and leaves memory alone."""
    program = LAUNCH + (
        'f = function(b".visible .entry mail(.param .u64 o, .param .u64 n) { ret; }", b"mail")\n'
        "p = allocated(64)\n"
        "tell(launch(f, p, u64(64)), read(p, 64))"
    )
    assert play(node, program) == [[0, "\0" * 64]]


def test_what_is_not_executed_is_on_record(play: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "history"
    Recorder(path, capacity=1000)
    with NodeServer(gpus=["a100-40g"], containers=["tenant"], history_level=2) as server:
        program = LAUNCH + (
            'f = function(b".visible .entry mine(.param .u32 n) { ret; }", b"mine")\n'
            'tell([launch(f, c.c_uint(1)) for _ in range(3)], call("cuCtxSynchronize"), call("cuMemFree_v2", u64(5)))'
        )
        assert play(server, program, HOOKLAB_HISTORY=str(path)) == [[[0, 0, 0], 0, 1]]
    history = load(path)
    skipped = history.of("NOT_EXECUTED")
    assert len(skipped) == 3
    assert (skipped["b"] > 0).all()
    calls = history.of("CALL")
    names = load_hooks()
    of = {name: calls[calls["name"] == names[name].id] for name in ("cuInit", "cuLaunchKernel", "cuMemFree_v2")}
    assert len(of["cuInit"]) == 1
    assert len(of["cuLaunchKernel"]) == 3
    assert list(of["cuMemFree_v2"]["result"]) == [1]
    assert list(of["cuMemFree_v2"]["device"]) == [0]
    assert list(of["cuInit"]["device"]) == [0xFF]  # before there is a context a call is about no device
    physical = history.of("PHYS")
    assert int(physical["b"][-1]) > 0


def test_a_spinning_kernel_takes_its_time(node: NodeServer, play: Callable[..., Any]) -> None:
    """A kernel that waits for the GPU's clock lasts as long as its argument says; the next waits for it."""
    spin = b".visible .entry spin(.param .u64 d) { .reg .b64 %d<3>; mov.u64 %d2, %globaltimer; ret; }"
    program = LAUNCH + (
        f'f = function({spin!r}, b"spin")\n'
        "import time\n"
        "t = time.monotonic_ns()\n"
        "codes = [launch(f, u64(20_000_000)) for _ in range(2)]\n"
        'busy = call("cuStreamQuery", None)\n'
        'tell(codes, busy, call("cuCtxSynchronize"), time.monotonic_ns() - t, call("cuStreamQuery", None))'
    )
    codes, busy, synchronised, took, idle = play(node, program)[0]
    assert (codes, busy, synchronised, idle) == ([0, 0], 600, 0, 0)
    assert took >= 40_000_000
