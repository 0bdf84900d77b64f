"""Plays the steps of test_model.py on the driver and tells (code, bytes in use, byte seen or -1) of each."""

from __future__ import annotations

import ctypes as c
import json
import sys

from cuda_cases import at, call, current, free, pointer, size, u64
from graph_cases import Memset
from memory_cases import FLOAT, Array2D, prop

BLOCK = 2 << 20


class Player:
    def __init__(self) -> None:
        current()
        self.start = free()
        self.runs: list[tuple[int, int, int]] = []  # address, bytes, a number of its own
        self.numbers = 0
        self.captures, self.launches = pointer(), pointer()
        for stream in (self.captures, self.launches):
            call("cuStreamCreate", at(stream), 1)
        self.noted: list[int] = []  # the allocations that the capture under way fills
        self.graphs: list[tuple[c.c_void_p, list[int]]] = []
        self.pooled: list[int] = []
        self.handles: list[int] = []
        self.sizes: list[int] = []
        self.ranges: list[list[int]] = []  # [address, mapped bytes]
        self.arrays: list[int | None] = []
        self.gone = 0x1234

    def play(self, word: str, n: int) -> tuple[int, int, int]:
        seen = -1
        result = getattr(self, "do_" + word)(n)
        if isinstance(result, tuple):
            result, seen = result
        return result, self.start - free(), seen

    def do_alloc(self, n: int) -> int:
        p, wanted = u64(), (1 + n % 8) * BLOCK
        result = call("cuMemAlloc_v2", at(p), size(wanted))
        if result == 0:
            self.numbers += 1
            self.runs.append((p.value, wanted, self.numbers))
        return result

    def do_free(self, n: int) -> int:
        if not self.runs:
            return call("cuMemFree_v2", u64(0))
        self.gone, _, _ = self.runs.pop(n % len(self.runs))
        return call("cuMemFree_v2", u64(self.gone))

    def do_double(self, _: int) -> int:
        taken = [p for p, _, _ in self.runs] + self.pooled  # the address may be somebody else's by now
        return call("cuMemFree_v2", u64(self.gone + 1 if self.gone in taken else self.gone))

    def do_garbage(self, n: int) -> int:
        return call("cuMemFree_v2", u64(0x1000 + n))

    def do_over(self, n: int) -> int:
        return call("cuMemAlloc_v2", at(u64()), size((1 << 50) + n))

    def do_zero(self, _: int) -> int:
        return call("cuMemAlloc_v2", at(u64()), size(0))

    def do_fill(self, n: int) -> int:
        if not self.runs:
            return call("cuMemsetD8_v2", u64(0x1000), 1, size(8))
        p, wanted, _ = self.runs[n % len(self.runs)]
        return call("cuMemsetD8_v2", u64(p), n % 251, size(wanted))

    def do_check(self, n: int) -> int | tuple[int, int]:
        out = (c.c_ubyte * 4096)()
        if not self.runs:
            return call("cuMemcpyDtoH_v2", out, u64(0x1000), size(8))
        p, wanted, _ = self.runs[n % len(self.runs)]
        result = call("cuMemcpyDtoH_v2", out, u64(p + n * 997 % (wanted - 4096)), size(4096))
        values = set(out)
        return result, values.pop() if len(values) == 1 else 999

    def do_async(self, n: int) -> int:
        p = u64()
        result = call("cuMemAllocAsync", at(p), size(512 + n), None)
        self.pooled.append(p.value)
        return result

    def do_async_free(self, n: int) -> int:
        p = self.pooled.pop(n % len(self.pooled)) if self.pooled else 0
        return call("cuMemFreeAsync", u64(p), None)

    def do_sync(self, _: int) -> int:
        return call("cuCtxSynchronize")

    def do_create(self, n: int) -> int:
        h, wanted = u64(), BLOCK * (1 + n % 3)
        result = call("cuMemCreate", at(h), size(wanted + (4096 if n % 5 == 0 else 0)), at(prop()), u64(0))
        if result == 0:
            self.handles.append(h.value)
            self.sizes.append(wanted)
        return result

    def do_release(self, n: int) -> int:
        return call("cuMemRelease", u64(self.handles[n % len(self.handles)] if self.handles else n))

    def do_reserve(self, _: int) -> int:
        p = u64()
        result = call("cuMemAddressReserve", at(p), size(4 * BLOCK), size(0), u64(0), u64(0))
        self.ranges.append([p.value, 0])
        return result

    def do_unreserve(self, n: int) -> int:
        if not self.ranges:
            return call("cuMemAddressFree", u64(BLOCK), size(4 * BLOCK))
        index = n % len(self.ranges)
        result = call("cuMemAddressFree", u64(self.ranges[index][0]), size(4 * BLOCK))
        if result == 0:
            self.ranges.pop(index)
        return result

    def do_map(self, n: int) -> int:
        if not self.ranges or not self.handles:
            return call("cuMemMap", u64(BLOCK), size(BLOCK), size(0), u64(0), u64(0))
        where, which = self.ranges[n % len(self.ranges)], n % len(self.handles)
        wanted = self.sizes[which]
        result = call("cuMemMap", u64(where[0]), size(wanted), size(0), u64(self.handles[which]), u64(0))
        if result == 0:
            where[1] = wanted
        return result

    def do_unmap(self, n: int) -> int:
        if not self.ranges:
            return call("cuMemUnmap", u64(BLOCK), size(BLOCK))
        where = self.ranges[n % len(self.ranges)]
        result = call("cuMemUnmap", u64(where[0]), size(where[1] or BLOCK))
        if result == 0:
            where[1] = 0
        return result

    def do_array(self, _: int) -> int:
        a = pointer()
        result = call("cuArrayCreate_v2", at(a), at(Array2D(1024, 1024, FLOAT, 2)))
        self.arrays.append(a.value)
        return result

    def do_array_end(self, n: int) -> int:
        return call("cuArrayDestroy", pointer(self.arrays.pop(n % len(self.arrays)) if self.arrays else None))

    def do_begin(self, _: int) -> int:
        result = call("cuStreamBeginCapture_v2", self.captures, 2)
        if result == 0:
            self.noted = []
        return result

    def do_note(self, n: int) -> int | tuple[int, int]:
        """A fill on the capturing stream, which is a node while it captures and is done at once otherwise."""
        if not self.runs:
            state = c.c_int(7)
            return call("cuStreamIsCapturing", self.captures, at(state)), state.value
        p, wanted, number = self.runs[n % len(self.runs)]
        self.noted.append(number)
        return call("cuMemsetD8Async", u64(p), n % 251, size(wanted), self.captures)

    def do_end(self, _: int) -> int | tuple[int, int]:
        graph, count = pointer(), size(0)
        result = call("cuStreamEndCapture", self.captures, at(graph))
        noted, self.noted = self.noted, []
        if result:
            return result
        self.graphs.append((graph, noted))
        return call("cuGraphGetNodes", graph, None, at(count)), count.value

    def do_forbidden(self, _: int) -> int:
        """Waiting for a stream that captures breaks its capture."""
        return call("cuStreamSynchronize", self.captures)

    def do_launch(self, n: int) -> int:
        """A graph of which everything still lives; its bytes are checked by later steps."""
        living = {number for _, _, number in self.runs}
        ready = [graph for graph, noted in self.graphs if living.issuperset(noted)]
        if not ready:
            return call("cuGraphLaunch", None, self.launches)
        exe = pointer()
        result = call("cuGraphInstantiateWithFlags", at(exe), ready[n % len(ready)], u64(0))
        result = result or call("cuGraphLaunch", exe, self.launches) or call("cuStreamSynchronize", self.launches)
        return result or call("cuGraphExecDestroy", exe)

    def do_node(self, n: int) -> int:
        """An explicit node in a graph, right or of an impossible width."""
        if not self.graphs:
            return call("cuGraphDestroy", None)
        graph, noted = self.graphs[n % len(self.graphs)]
        if not self.runs:
            return call("cuGraphAddEmptyNode", at(pointer()), graph, None, size(0))
        p, wanted, number = self.runs[n % len(self.runs)]
        fill = Memset(p, 0, n % 251, 3 if n % 4 == 0 else 1, wanted, 1)
        result = call("cuGraphAddMemsetNode", at(pointer()), graph, None, size(0), at(fill), None)
        if result == 0:
            noted.append(number)
        return result

    def do_drop(self, n: int) -> int:
        graph = self.graphs.pop(n % len(self.graphs))[0] if self.graphs else None
        return call("cuGraphDestroy", graph)


player = Player()
json.dump([player.play(word, n) for word, n in json.load(sys.stdin)], sys.stdout)
