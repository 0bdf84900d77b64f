"""What a real driver answers, case by case, and a way to ask any libcuda.so.1 the same.

Each case runs in a process of its own. Its docstring is the expectation, a line a fact: what was asked | what came
back (the result code first, then outputs). The lines were measured on a real GPU (H200, driver 580), except that
memory sizes are written relative to the card. A case that no card was asked yet is named in ASSUMED: it says what the
fake does from documentation. `python cuda_cases.py CASE` prints what is seen; `--check` compares all cases and counts
the differences of assumed ones apart: take this file and those of FAMILIES to a machine with a GPU as they are.
Standard library only.
"""

from __future__ import annotations

import ctypes as c
import functools
import importlib
import os
import subprocess
import sys
import time
from collections.abc import Callable

CASES: dict[str, Callable[[], None]] = {}
FAMILIES = (  # the files of cases, beside this one
    "device_cases", "context_cases", "alloc_cases", "pool_cases", "copy_cases", "stream_cases", "module_cases",
    "launch_cases", "resolver_cases", "memory_cases", "graph_cases", "batch_cases", "stream_memory_cases",
    "texture_cases", "green_cases", "sharing_cases", "tensor_cases", "copy_forms_cases", "stream_forms_cases",
    "graph_forms_cases", "older_cases", "nvml_cases",
)  # fmt: skip
HELPERS: dict[str, Callable[[], object]] = {}  # what a case runs in a process of its own
ASSUMED: set[str] = set()  # cases that no real driver was asked yet: what documentation says
# On a real driver these read freed memory: mostly a fault, now and then not.
LUCK = {"launch_into_destroyed_stream", "launch_of_unloaded_module", "stream_destroyed_twice"}
FAKE_ONLY: set[str] = set()  # cases that a real driver cannot be asked
MIB = 1 << 20
PTX = rb"""
.version 7.0
.target sm_52
.address_size 64
.global .align 4 .u32 counter;
.const .align 8 .b8 table[32];
.visible .entry vadd(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n)
{
 .reg .pred %p<2>; .reg .f32 %f<4>; .reg .b32 %r<6>; .reg .b64 %rd<11>;
 ld.param.u64 %rd1,[a]; ld.param.u64 %rd2,[b]; ld.param.u64 %rd3,[c]; ld.param.u32 %r2,[n];
 mov.u32 %r3,%ntid.x; mov.u32 %r4,%ctaid.x; mov.u32 %r5,%tid.x; mad.lo.s32 %r1,%r3,%r4,%r5;
 setp.ge.u32 %p1,%r1,%r2; @%p1 bra DONE;
 cvta.to.global.u64 %rd4,%rd1; cvta.to.global.u64 %rd5,%rd2; cvta.to.global.u64 %rd6,%rd3;
 mul.wide.u32 %rd7,%r1,4; add.s64 %rd8,%rd4,%rd7; add.s64 %rd9,%rd5,%rd7; add.s64 %rd10,%rd6,%rd7;
 ld.global.f32 %f1,[%rd8]; ld.global.f32 %f2,[%rd9]; add.f32 %f3,%f1,%f2; st.global.f32 [%rd10],%f3;
DONE: ret;
}
.visible .entry other(.param .u8 x, .param .align 16 .b8 s[24], .param .f64 d) { ret; }
"""
HEAD = b".version 7.0\n.target sm_52\n.address_size 64\n"
PROGRAM = os.path.abspath(__file__)


@functools.cache
def library() -> c.CDLL:
    return c.CDLL("libcuda.so.1")


def call(name: str, *arguments: object) -> int:
    return int(getattr(library(), name)(*arguments))


def say(what: str, *seen: object) -> None:
    print(f"{what} | {' '.join(str(value) for value in seen)}", flush=True)


def case(function: Callable[[], None]) -> Callable[[], None]:
    assert function.__name__ not in CASES, f"two cases {function.__name__}"
    CASES[function.__name__] = function
    return function


def u64(value: int = 0) -> c.c_uint64:
    return c.c_uint64(value)


def pointer(value: int | None = None) -> c.c_void_p:
    return c.c_void_p(value)


def size(value: int) -> c.c_size_t:
    return c.c_size_t(value)


at = c.byref


def start() -> None:
    assert call("cuInit", 0) == 0


def current() -> c.c_void_p:
    """A retained primary context, made current."""
    start()
    context = pointer()
    assert call("cuDevicePrimaryCtxRetain", at(context), 0) == 0
    assert call("cuCtxSetCurrent", context) == 0
    return context


def free() -> int:
    bytes_free, total = size(0), size(0)
    assert call("cuMemGetInfo_v2", at(bytes_free), at(total)) == 0
    return bytes_free.value


def total() -> int:
    bytes_total = size(0)
    assert call("cuMemGetInfo_v2", None, at(bytes_total)) == 0
    return bytes_total.value


def allocated(bytes_wanted: int) -> c.c_uint64:
    p = u64(7)
    assert call("cuMemAlloc_v2", at(p), size(bytes_wanted)) == 0
    return p


_kept: list[object] = []


def no_parameters() -> c.Array[c.c_void_p]:
    """Three null pointers and a length of 0 for vadd."""
    values = (u64(0), u64(0), u64(0), c.c_uint(0))
    _kept.append(values)
    return (c.c_void_p * 4)(*map(c.addressof, values))


def vadd_of(_context: c.c_void_p) -> tuple[c.c_void_p, c.Array[c.c_void_p]]:
    m, function = pointer(), pointer()
    assert call("cuModuleLoadData", at(m), PTX) == 0
    assert call("cuModuleGetFunction", at(function), m, b"vadd") == 0
    return function, no_parameters()


def hang() -> None:
    """A case as it must not be: for the test of how one is played."""
    say("before", call("cuInit", 0))
    time.sleep(3600)


HELPERS["hang"] = hang


def expected(name: str) -> dict[str, str]:
    lines = (CASES[name].__doc__ or "").strip("\n").splitlines()
    return dict(line.strip("\n").lstrip().split(" | ", 1) for line in lines if " | " in line)


def seen(name: str, environment: dict[str, str] | None = None, limit: float = 120) -> dict[str, str]:
    """What the driver of this environment answers; `died` is the signal that ended the case, or "hangs"."""
    case_of = subprocess.Popen(
        [sys.executable, PROGRAM, name], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    hangs = False
    try:
        out, err = case_of.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        hangs = True
        case_of.kill()
        out, err = case_of.communicate()
    answers = dict(line.split(" | ", 1) for line in out.splitlines() if " | " in line)
    if hangs:
        answers["died"] = "hangs"
    elif case_of.returncode:
        answers["died"] = str(-case_of.returncode) if case_of.returncode < 0 else err.strip().splitlines()[-1]
    return answers


def check() -> int:
    wrong = assumed = 0
    for name in sorted(CASES.keys() - LUCK - FAKE_ONLY):
        answers, wanted = seen(name), expected(name)
        for what in {**wanted, **answers}:
            if answers.get(what) != wanted.get(what):
                wrong += name not in ASSUMED
                assumed += name in ASSUMED
                how = "assumed" if name in ASSUMED else "expected"
                print(f"{name} | {what}: {how} {wanted.get(what)}, seen {answers.get(what)}")
    facts = [len(expected(name)) for name in sorted(CASES.keys() - LUCK - FAKE_ONLY - ASSUMED)]
    print(f"{sum(facts)} facts, {wrong} wrong; of what was assumed, {assumed} wrong")
    return 1 if wrong else 0


sys.path.insert(0, os.path.dirname(PROGRAM))
sys.modules["cuda_cases"] = sys.modules[__name__]
for more in FAMILIES:
    importlib.import_module(more)

if __name__ == "__main__":
    what = sys.argv[1]
    if what == "--check":
        sys.exit(check())
    (CASES | HELPERS)[what]()
