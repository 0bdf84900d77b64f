"""Cases of cuda_cases.py: cuGetProcAddress and export tables."""

from __future__ import annotations

import ctypes as c
from collections.abc import Iterator
from pathlib import Path

from cuda_cases import PROGRAM, at, call, case, library, pointer, say, u64

TABLE = Path(PROGRAM).parents[1] / "spec/data/resolver-580.159.04.txt"


@case
def resolver() -> None:
    """
    cuMemAlloc 2000 | 0 cuMemAlloc 0
    cuMemAlloc 3020 | 0 cuMemAlloc_v2 0
    cuMemAlloc 12000 | 0 cuMemAlloc_v2 0
    cuMemAlloc -1 | 0 cuMemAlloc_v2 0
    cuMemAlloc 1 | 0 None 2
    cuMemAlloc 13010 | 1 untouched 77
    cuMemAlloc 99999 | 1 untouched 77
    cuMemAlloc_v2 12000 | 0 None 1
    cuNoSuchThing 12000 | 0 None 1
    cuNoSuchThing 14000 | 1 untouched 77
    cumemalloc 12000 | 0 None 1
    cudaMalloc 12000 | 0 None 1
    empty name | 0 None 1
    cuCtxCreate 12050 | 0 cuCtxCreate_v4 0
    cuCtxGetDevice 13000 | 0 cuCtxGetDevice_v2 0
    cuGetProcAddress 12000 | 0 cuGetProcAddress_v2 0
    cuMemcpyHtoD flags 1 | 0 cuMemcpyHtoD_v2 0
    cuMemcpyHtoD flags 2 | 0 cuMemcpyHtoD_v2_ptds 0
    cuMemcpyHtoD flags 3 | 0 cuMemcpyHtoD_v2_ptds 0
    cuLaunchKernel flags 2 | 0 cuLaunchKernel_ptsz 0
    cuMemAlloc flags 2 | 0 cuMemAlloc_v2 0
    cuMemAlloc flags 4 | 1 untouched 77
    cuMemAlloc flags 8 | 1 untouched 77
    no status | 0 cuInit
    no status, unknown | 0 None
    first entry, unknown | 500 untouched
    first entry, 2000 | 0 cuMemAlloc
    first entry, 99999 | 1 untouched
    export table | 1 None
    export table NULL id | 1
    export table NULL | 1
    """
    call("cuDriverGetVersion", at(c.c_int()))
    names = ["cuMemAlloc", "cuMemAlloc_v2", "cuCtxCreate_v4", "cuCtxGetDevice_v2", "cuGetProcAddress_v2"]
    names += ["cuMemcpyHtoD_v2", "cuMemcpyHtoD_v2_ptds", "cuLaunchKernel_ptsz", "cuInit"]
    known = {c.cast(getattr(library(), name), c.c_void_p).value: name for name in names}

    def found(value: int | None) -> str:
        return "untouched" if value == 7 else "None" if value is None else known.get(value, "another")

    for what, name, version, flags in (
        ("cuMemAlloc 2000", b"cuMemAlloc", 2000, 0),
        ("cuMemAlloc 3020", b"cuMemAlloc", 3020, 0),
        ("cuMemAlloc 12000", b"cuMemAlloc", 12000, 0),
        ("cuMemAlloc -1", b"cuMemAlloc", -1, 0),
        ("cuMemAlloc 1", b"cuMemAlloc", 1, 0),
        ("cuMemAlloc 13010", b"cuMemAlloc", 13010, 0),
        ("cuMemAlloc 99999", b"cuMemAlloc", 99999, 0),
        ("cuMemAlloc_v2 12000", b"cuMemAlloc_v2", 12000, 0),
        ("cuNoSuchThing 12000", b"cuNoSuchThing", 12000, 0),
        ("cuNoSuchThing 14000", b"cuNoSuchThing", 14000, 0),
        ("cumemalloc 12000", b"cumemalloc", 12000, 0),
        ("cudaMalloc 12000", b"cudaMalloc", 12000, 0),
        ("empty name", b"", 12000, 0),
        ("cuCtxCreate 12050", b"cuCtxCreate", 12050, 0),
        ("cuCtxGetDevice 13000", b"cuCtxGetDevice", 13000, 0),
        ("cuGetProcAddress 12000", b"cuGetProcAddress", 12000, 0),
        ("cuMemcpyHtoD flags 1", b"cuMemcpyHtoD", 12000, 1),
        ("cuMemcpyHtoD flags 2", b"cuMemcpyHtoD", 12000, 2),
        ("cuMemcpyHtoD flags 3", b"cuMemcpyHtoD", 12000, 3),
        ("cuLaunchKernel flags 2", b"cuLaunchKernel", 12000, 2),
        ("cuMemAlloc flags 2", b"cuMemAlloc", 12000, 2),
        ("cuMemAlloc flags 4", b"cuMemAlloc", 12000, 4),
        ("cuMemAlloc flags 8", b"cuMemAlloc", 12000, 8),
    ):
        function, status = pointer(7), c.c_int(77)
        result = call("cuGetProcAddress_v2", name, at(function), version, u64(flags), at(status))
        say(what, result, found(function.value), status.value)
    for what, name in (("no status", b"cuInit"), ("no status, unknown", b"cuNoSuchThing")):
        function = pointer(7)
        result = call("cuGetProcAddress_v2", name, at(function), 12000, u64(0), None)
        say(what, result, found(function.value))
    for what, name, version in (
        ("first entry, unknown", b"cuNoSuchThing", 12000),
        ("first entry, 2000", b"cuMemAlloc", 2000),
        ("first entry, 99999", b"cuMemAlloc", 99999),
    ):
        function = pointer(7)
        result = call("cuGetProcAddress", name, at(function), version, u64(0))
        say(what, result, found(function.value))
    table = pointer(7)
    say("export table", call("cuGetExportTable", at(table), b"0123456789abcdef"), table.value)
    say("export table NULL id", call("cuGetExportTable", at(table), None))
    say("export table NULL", call("cuGetExportTable", None, b"0123456789abcdef"))


def measured() -> Iterator[tuple[str, int, int, str]]:
    """(base, version, flags, answer) at every step of the recorded answers: a symbol, or "?" and the status."""
    for line in TABLE.read_text().splitlines():
        if line.startswith("#"):
            continue
        base, legacy, thread = (part.strip() for part in line.split("|"))
        for flags, cell in ((0, legacy), (1, legacy), (2, legacy if thread == "=" else thread)):
            for step in cell.split():
                version, _, answer = step.partition(":")
                yield base, int(version), flags, answer


@case
def resolver_table() -> None:
    """
    asked | 3151
    otherwise | 0
    """
    call("cuDriverGetVersion", at(c.c_int()))
    asked, otherwise = 0, []
    for base, version, flags, wanted in measured():
        function, status = pointer(7), c.c_int(77)
        result = call("cuGetProcAddress_v2", base.encode(), at(function), version, u64(flags), at(status))
        asked += 1
        if wanted.startswith("?"):
            right = (result, function.value, status.value) == (0, None, int(wanted[1:]))
        else:
            symbol = c.cast(getattr(library(), wanted), c.c_void_p).value
            right = (result, function.value, status.value) == (0, symbol, 0)
        if not right:
            otherwise.append(f"{base} {version} {flags}: {result} {status.value}")
    say("asked", asked)
    say("otherwise", len(otherwise), *otherwise[:10])


@case
def resolver_null_pointer() -> None:
    """
    died | 11
    """
    call("cuGetProcAddress_v2", b"cuInit", None, 12000, u64(0), None)


@case
def resolver_null_name() -> None:
    """
    died | 11
    """
    call("cuGetProcAddress_v2", None, at(pointer()), 12000, u64(0), None)
