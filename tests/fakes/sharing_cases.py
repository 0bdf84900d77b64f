"""Cases of cuda_cases.py: memory and events between processes. The other process is a child forked before cuInit."""

from __future__ import annotations

import ctypes as c
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cuda_cases import MIB, at, call, case, current, free, pointer, say, size, u64
from memory_cases import BLOCK, Handle64, Location, Prop, accessible, made, mapped, reserved


def handle_of(p: int) -> tuple[int, Handle64]:
    h = Handle64()
    return call("cuIpcGetMemHandle", at(h), u64(p)), h


@case
def ipc() -> None:
    """
    base | 0
    sub pointer | 0 True
    base twice | 0 True
    async pointer | 1
    0 | 1
    garbage | 1
    managed | 1
    open one's own | 201
    small neighbours | 512 False
    other: open | 0
    other: free memory | 0
    other: base | 0 True
    other: range | 4194304
    other: cuMemFree | 1
    other: open again | 0 True
    other: close | 0
    other: bytes | True
    """
    sys.stdout.flush()
    ours, theirs = socket.socketpair()
    child = os.fork()  # before cuInit: it starts afresh
    if child == 0:
        ours.close()
        other(theirs)
    theirs.close()
    current()
    p, small, q = u64(), u64(), u64()
    call("cuMemAlloc_v2", at(p), size(4 * MIB))
    result, one = handle_of(p.value)
    say("base", result)
    result, two = handle_of(p.value + 4096)
    say("sub pointer", result, bytes(one.bytes) == bytes(two.bytes))
    result, two = handle_of(p.value)
    say("base twice", result, bytes(one.bytes) == bytes(two.bytes))
    call("cuMemAllocAsync", at(q), size(MIB), None)
    say("async pointer", handle_of(q.value)[0])
    say("0", handle_of(0)[0])
    say("garbage", handle_of(0x1234)[0])
    call("cuMemAllocManaged", at(q), size(MIB), 1)
    say("managed", handle_of(q.value)[0])
    say("open one's own", call("cuIpcOpenMemHandle_v2", at(q), one, 1))
    call("cuMemAlloc_v2", at(small), size(1))
    call("cuMemAlloc_v2", at(q), size(1))
    same = bytes(handle_of(small.value)[1].bytes) == bytes(handle_of(q.value)[1].bytes)
    say("small neighbours", q.value - small.value, same)
    call("cuMemsetD8_v2", p, 42, size(4 * MIB))
    call("cuCtxSynchronize")
    ours.sendall(bytes(one.bytes))
    sys.stdout.flush()
    os.waitpid(child, 0)


def other(link: socket.socket) -> None:
    handle = Handle64.from_buffer_copy(link.recv(64))
    current()
    p, again, base, extent = u64(), u64(), u64(), size(0)
    before = free()
    say("other: open", call("cuIpcOpenMemHandle_v2", at(p), handle, 1))
    say("other: free memory", before - free())
    result = call("cuMemGetAddressRange_v2", at(base), at(extent), p)
    say("other: base", result, base.value == p.value)
    say("other: range", extent.value)
    say("other: cuMemFree", call("cuMemFree_v2", p))
    say("other: open again", call("cuIpcOpenMemHandle_v2", at(again), handle, 1), again.value == p.value)
    back = (c.c_ubyte * 4096)()
    call("cuMemcpyDtoH_v2", back, u64(p.value + MIB), size(4096))
    say("other: close", call("cuIpcCloseMemHandle", p))
    say("other: bytes", set(back) == {42})
    sys.stdout.flush()
    os._exit(0)


@case
def shared_vmm() -> None:
    """
    not exportable | 1
    export | 0
    export with a fabric type | 1
    properties | 0 1 1
    other: import | 0
    other: free memory | 0
    other: same bytes | True
    other: release | 0
    other: unmap | 0
    other: import of junk | 999
    event without the flag | 400
    event | 0
    other: event | 0
    other: it is done | 0
    """
    sys.stdout.flush()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    child = os.fork()
    if child == 0:
        ours.close()
        importer(theirs)
    theirs.close()
    current()
    p, fd = reserved(BLOCK), c.c_int(-1)
    export = "cuMemExportToShareableHandle"
    plain = made(BLOCK)
    say("not exportable", call(export, at(fd), plain, 1, u64(0)))
    h = made(BLOCK, handles=1)
    say("export", call(export, at(fd), h, 1, u64(0)))
    say("export with a fabric type", call(export, at(c.c_int()), h, 8, u64(0)))
    seen = Prop()
    result = call("cuMemGetAllocationPropertiesFromHandle", at(seen), h)
    say("properties", result, seen.handles, seen.location.type)
    mapped(p.value, BLOCK, h)
    accessible(p.value, BLOCK)
    call("cuMemsetD8_v2", p, 42, size(BLOCK))
    event, handle = pointer(), Handle64()
    call("cuEventCreate", at(event), 2)
    say("event without the flag", call("cuIpcGetEventHandle", at(handle), event))
    call("cuEventCreate", at(event), 6)
    say("event", call("cuIpcGetEventHandle", at(handle), event))
    call("cuEventRecord", event, None)
    call("cuCtxSynchronize")
    sys.stdout.flush()
    socket.send_fds(ours, [bytes(handle.bytes)], [fd.value])
    os.waitpid(child, 0)


def importer(link: socket.socket) -> None:
    message, fds, _, _ = socket.recv_fds(link, 64, 1)
    current()
    h, p = u64(7), reserved(BLOCK)
    before = free()
    say("other: import", call("cuMemImportFromShareableHandle", at(h), pointer(fds[0]), 1))
    mapped(p.value, BLOCK, h)
    accessible(p.value, BLOCK)
    back = (c.c_ubyte * 4096)()
    call("cuMemcpyDtoH_v2", back, p, size(4096))
    say("other: free memory", before - free())
    say("other: same bytes", set(back) == {42})
    say("other: release", call("cuMemRelease", h))
    say("other: unmap", call("cuMemUnmap", p, size(BLOCK)))
    with open(os.devnull) as nothing:
        result = call("cuMemImportFromShareableHandle", at(h), pointer(nothing.fileno()), 1)
    say("other: import of junk", result)
    event = pointer()
    say("other: event", call("cuIpcOpenEventHandle", at(event), Handle64.from_buffer_copy(message)))
    say("other: it is done", call("cuEventQuery", event))
    sys.stdout.flush()
    os._exit(0)


@contextmanager
def process(program: Callable[[socket.socket], None]) -> Iterator[tuple[socket.socket, int]]:
    """Another process that runs the program with its end of a connection: (ours, its PID). Killed at the end."""
    sys.stdout.flush()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    child = os.fork()
    if child == 0:
        ours.close()
        program(theirs)
        os._exit(0)
    theirs.close()
    ours.settimeout(60)
    yield ours, child
    end(child)


def end(child: int) -> None:
    """Kills it and waits; nothing to do the second time."""
    try:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    except (ProcessLookupError, ChildProcessError):
        pass


def end_with_context(child: int) -> int:
    """Kills a process that has a context, and waits for it to come back (some 100 ms later): what is free then."""
    before = free()
    end(child)
    limit = time.monotonic() + 5
    while free() < before + 256 * MIB and time.monotonic() < limit:
        time.sleep(0.01)
    time.sleep(0.2)  # and for whatever else comes back
    return free()


def maker(link: socket.socket) -> None:
    """Makes 64 MiB to be shared by descriptor and 32 MiB to be shared by handle; frees them when told."""
    current()
    fd, p = c.c_int(-1), u64()
    h = made(64 * MIB, handles=1)
    assert call("cuMemExportToShareableHandle", at(fd), h, 1, u64(0)) == 0
    assert call("cuMemAlloc_v2", at(p), size(32 * MIB)) == 0
    call("cuMemsetD8_v2", p, 7, size(32 * MIB))
    call("cuCtxSynchronize")
    socket.send_fds(link, [bytes(handle_of(p.value)[1].bytes)], [fd.value])
    os.close(fd.value)
    link.recv(1)
    link.send(bytes([call("cuMemRelease", h), call("cuMemFree_v2", p)]))
    link.recv(1)


class Imports:
    """What a maker made, opened here."""

    def __init__(self, data: bytes, fd: int) -> None:
        self.fd, self.handle, self.p = fd, u64(), u64()
        self.ipc = Handle64.from_buffer_copy(data)
        self.results = [call("cuMemImportFromShareableHandle", at(self.handle), pointer(self.fd), 1)]
        self.va = reserved(64 * MIB)
        result = mapped(self.va.value, 64 * MIB, self.handle) or accessible(self.va.value, 64 * MIB)
        self.results += [result, call("cuIpcOpenMemHandle_v2", at(self.p), self.ipc, 1)]

    def let_go(self) -> None:
        call("cuMemUnmap", self.va, size(64 * MIB))
        call("cuMemRelease", self.handle)
        call("cuIpcCloseMemHandle", self.p)
        os.close(self.fd)

    def bytes_are(self, value: int) -> bool:
        back = (c.c_ubyte * 4096)()
        call("cuMemcpyDtoH_v2", back, u64(self.p.value + MIB), size(4096))
        return set(back) == {value}


def opened(link: socket.socket) -> tuple[Imports, int]:
    """With a context of this process: what the maker made, and how much less is free by opening it."""
    current()
    link.settimeout(60)
    message = socket.recv_fds(link, 64, 1)
    before = free()
    imports = Imports(message[0], message[1][0])
    return imports, before - free()


@case
def makers_death() -> None:
    """
    imported | 0 0 0
    taken by opening | 0
    held after the maker's death | 100663296
    mapping still works | 0
    held after letting go | 0
    """
    with process(maker) as (link, child):
        imports, taken = opened(link)
        say("imported", *imports.results)
        say("taken by opening", taken)
        after = end_with_context(child)
        call("cuMemsetD8_v2", imports.va, 1, size(4096))
        works = call("cuCtxSynchronize")
        imports.let_go()
        say("held after the maker's death", free() - after)
        say("mapping still works", works)
        say("held after letting go", 0 if free() >= after else after - free())


@case
def maker_frees() -> None:
    """
    freed by the maker | 0 0
    given back by that | 0
    its bytes | True
    given back by closing the handle | 33554432
    a stale handle | 1
    given back by letting the mapping go | 0
    given back by closing the descriptor | 67108864
    """
    with process(maker) as (link, _):
        imports, _ = opened(link)
        before = free()
        link.send(b"f")
        say("freed by the maker", *link.recv(2))
        say("given back by that", free() - before)
        say("its bytes", imports.bytes_are(7))
        call("cuIpcCloseMemHandle", imports.p)
        closed = free()
        say("given back by closing the handle", closed - before)
        say("a stale handle", call("cuIpcOpenMemHandle_v2", at(u64()), imports.ipc, 1))
        call("cuMemUnmap", imports.va, size(64 * MIB))
        call("cuMemRelease", imports.handle)
        say("given back by letting the mapping go", free() - closed)
        os.close(imports.fd)
        say("given back by closing the descriptor", free() - closed)


def opener(link: socket.socket) -> None:
    """Told so, makes a context and opens what it is sent, and waits to be killed."""
    link.recv(1)
    imports, _ = opened(link)
    link.send(bytes(imports.results))
    link.recv(1)


@case
def importers_death() -> None:
    """
    imported | 0 0 0
    given back by freeing | 0
    held until the importer's death | 100663296
    """
    with process(opener) as (link, child):
        current()
        fd, p = c.c_int(-1), u64()
        h = made(64 * MIB, handles=1)
        assert call("cuMemExportToShareableHandle", at(fd), h, 1, u64(0)) == 0
        call("cuMemAlloc_v2", at(p), size(32 * MIB))
        alone = free()
        link.send(b"o")
        socket.send_fds(link, [bytes(handle_of(p.value)[1].bytes)], [fd.value])
        os.close(fd.value)
        say("imported", *link.recv(3))
        before = free()
        call("cuMemRelease", h)
        call("cuMemFree_v2", p)
        say("given back by freeing", free() - before)
        say("held until the importer's death", end_with_context(child) - alone)


class Pool(c.Structure):
    _fields_ = (
        ("type", c.c_int),
        ("handles", c.c_int),
        ("location", Location),
        ("win32", c.c_void_p),
        ("most", c.c_size_t),
        ("usage", c.c_ushort),
        ("reserved", c.c_ubyte * 54),
    )


def pool_maker(link: socket.socket) -> None:
    """Shares a pool and 1 MiB of it."""
    current()
    fd, pool, p, data = c.c_int(-1), pointer(), u64(), Handle64()
    assert call("cuMemPoolCreate", at(pool), at(Pool(1, 1, Location(1, 0)))) == 0
    assert call("cuMemPoolExportToShareableHandle", at(fd), pool, 1, u64(0)) == 0
    assert call("cuMemAllocFromPoolAsync", at(p), size(MIB), pool, None) == 0
    call("cuMemsetD8_v2", p, 7, size(MIB))
    call("cuCtxSynchronize")
    assert call("cuMemPoolExportPointer", at(data), p) == 0
    socket.send_fds(link, [bytes(data.bytes)], [fd.value])
    link.recv(1)


@case
def pool_makers_death() -> None:
    """
    imported | 0 0
    taken by importing | 0
    its bytes after the maker's death | True
    given back with the pointer | 0
    """
    with process(pool_maker) as (link, child):
        current()
        data, fds, _, _ = socket.recv_fds(link, 64, 1)
        before, pool, p = free(), pointer(), u64()
        result = call("cuMemPoolImportFromShareableHandle", at(pool), pointer(fds[0]), 1, u64(0))
        os.close(fds[0])
        say("imported", result, call("cuMemPoolImportPointer", at(p), pool, at(Handle64.from_buffer_copy(data))))
        say("taken by importing", before - free())
        after = end_with_context(child)
        back = (c.c_ubyte * 4096)()
        call("cuMemcpyDtoH_v2", back, p, size(4096))
        say("its bytes after the maker's death", set(back) == {7})
        call("cuMemFreeAsync", p, None)
        call("cuCtxSynchronize")
        say("given back with the pointer", free() - after)


def small_maker(link: socket.socket) -> None:
    """Shares one of two small neighbours; frees it, then the other, then ends the context, as told."""
    context = current()
    p, q = u64(), u64()
    call("cuMemAlloc_v2", at(p), size(1000))
    call("cuMemAlloc_v2", at(q), size(1000))
    link.send(bytes(handle_of(p.value)[1].bytes))
    for step in (
        lambda: call("cuMemFree_v2", p),
        lambda: call("cuMemFree_v2", p),
        lambda: call("cuMemFree_v2", q),
        lambda: call("cuDevicePrimaryCtxReset_v2", 0),
        lambda: call("cuDevicePrimaryCtxRetain", at(context), 0) or call("cuMemAlloc_v2", at(q), size(1000)),
        lambda: call("cuMemFree_v2", q),
        lambda: call("cuMemGetInfo_v2", None, None),
    ):
        link.recv(1)
        link.send(bytes([step()]))
    link.recv(1)


@case
def small_neighbours() -> None:
    """
    opened | 0
    freed, freed again | 0 1
    freed its neighbour | 0
    given back by both | 0
    reset | 0
    the block stays | True
    another context | 0 0
    given back by the holder | 2097152
    """
    with process(small_maker) as (link, _):
        current()
        p = u64()
        say("opened", call("cuIpcOpenMemHandle_v2", at(p), Handle64.from_buffer_copy(link.recv(64)), 1))

        def told() -> int:
            link.send(b"g")
            return link.recv(1)[0]

        before = free()
        say("freed, freed again", told(), told())
        say("freed its neighbour", told())
        say("given back by both", free() - before)
        say("reset", told())
        back = (c.c_ubyte * 100)()
        say("the block stays", call("cuMemcpyDtoH_v2", back, p, size(100)) == 0 and set(back) == {0})
        say("another context", told(), told())
        before = free()
        call("cuIpcCloseMemHandle", p)
        told()  # here, and not before, the fake gives a block back that others shared (docs/limitations.md)
        say("given back by the holder", free() - before)


@case
def imported_pools_end() -> None:
    """
    given back with the maker and the pointer | 0
    given back with the pool | 33554432
    """
    with process(pool_maker) as (link, child):
        current()
        data, fds, _, _ = socket.recv_fds(link, 64, 1)
        pool, p = pointer(), u64()
        assert call("cuMemPoolImportFromShareableHandle", at(pool), pointer(fds[0]), 1, u64(0)) == 0
        os.close(fds[0])
        assert call("cuMemPoolImportPointer", at(p), pool, at(Handle64.from_buffer_copy(data))) == 0
        before = end_with_context(child)
        call("cuMemFreeAsync", p, None)
        call("cuCtxSynchronize")
        say("given back with the maker and the pointer", free() - before)
        call("cuMemPoolDestroy", pool)
        call("cuCtxSynchronize")
        say("given back with the pool", free() - before)
