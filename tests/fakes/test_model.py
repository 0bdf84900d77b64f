"""Random legal and illegal calls against a model of the driver: codes, bytes in use and contents must agree.

The model knows nothing of addresses. It says what each call answers, how many bytes the device holds afterwards, and
which byte every allocation is full of.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.node.faults import Fault
from lab.node.server import NodeServer

HERE = Path(__file__).parent
BLOCK, STEP = 2 << 20, 32 << 20
STEPS_FULL = 50_000

WORDS = ("alloc", "free", "async", "async_free", "double", "garbage", "fill", "check", "create", "map", "unmap")
WORDS += ("release", "reserve", "unreserve", "sync", "array", "array_end", "over", "zero")
WORDS += ("begin", "note", "note", "end", "forbidden", "launch", "node", "drop")
ILLEGAL_STATE, UNSUPPORTED, INVALIDATED = 401, 900, 901


Fill = tuple[list[int], int]  # an allocation and the byte that it is filled with


class Model:
    """What the driver should answer. A step is (word, number); ``want`` is (code, bytes in use, byte seen or -1)."""

    def __init__(self) -> None:
        self.runs: list[list[int]] = []  # live allocations of whole blocks: [bytes, fill]
        self.handles: list[list[int]] = []  # [bytes, references, mappings]
        self.ranges: list[int | None] = []  # reservations of 4 blocks: the handle that is mapped
        self.arrays: list[int] = []
        self.pooled: list[int] = []
        self.reserved = self.used = 0
        self.capture: list[Fill] | None = None
        self.broken = False
        self.graphs: list[list[Fill]] = []

    def want(self, word: str, n: int) -> tuple[int, int, int]:
        code, seen = getattr(self, word)(n)
        return code, self.used, seen

    def alloc(self, n: int) -> tuple[int, int]:
        size = (1 + n % 8) * BLOCK
        self.runs.append([size, 0])
        self.used += size
        return 0, -1

    def free(self, n: int) -> tuple[int, int]:
        if not self.runs:
            return 0, -1  # a free of 0
        self.used -= self.runs.pop(n % len(self.runs))[0]
        return 0, -1

    def double(self, _: int) -> tuple[int, int]:
        return 1, -1

    def garbage(self, _: int) -> tuple[int, int]:
        return 1, -1

    def over(self, _: int) -> tuple[int, int]:
        return 2, -1

    def zero(self, _: int) -> tuple[int, int]:
        return 1, -1

    def fill(self, n: int) -> tuple[int, int]:
        if not self.runs:
            return 1, -1
        self.runs[n % len(self.runs)][1] = n % 251
        return 0, -1

    def check(self, n: int) -> tuple[int, int]:
        if not self.runs:
            return 1, -1
        return 0, self.runs[n % len(self.runs)][1]

    def _async(self, _: int) -> tuple[int, int]:
        self.pooled.append(1)
        if self.reserved == 0:  # all that is asked for fits one step
            self.reserved = STEP
            self.used += STEP
        return 0, -1

    def async_free(self, n: int) -> tuple[int, int]:
        if self.pooled:
            self.pooled.pop(n % len(self.pooled))
        return 0, -1

    def sync(self, _: int) -> tuple[int, int]:
        if not self.pooled:
            self.used -= self.reserved
            self.reserved = 0
        return 0, -1

    def create(self, n: int) -> tuple[int, int]:
        if n % 5 == 0:
            return 1, -1  # not whole blocks
        self.handles.append([BLOCK * (1 + n % 3), 1, 0])
        self.used += BLOCK * (1 + n % 3)
        return 0, -1

    def _settle(self, handle: list[int]) -> None:
        if handle[1] == 0 and handle[2] == 0:
            self.used -= handle[0]

    def release(self, n: int) -> tuple[int, int]:
        if not self.handles:
            return 1, -1
        handle = self.handles[n % len(self.handles)]
        if handle[1] == 0:
            return 1, -1
        handle[1] = 0
        self._settle(handle)
        return 0, -1

    def reserve(self, _: int) -> tuple[int, int]:
        self.ranges.append(None)
        return 0, -1

    def unreserve(self, n: int) -> tuple[int, int]:
        if not self.ranges:
            return 1, -1
        at = n % len(self.ranges)
        if self.ranges[at] is not None:
            return 1, -1
        self.ranges.pop(at)
        return 0, -1

    def map(self, n: int) -> tuple[int, int]:
        if not self.ranges or not self.handles:
            return 1, -1
        at, which = n % len(self.ranges), n % len(self.handles)
        if self.ranges[at] is not None or self.handles[which][1] == 0:
            return 1, -1
        self.ranges[at] = which
        self.handles[which][2] += 1
        return 0, -1

    def unmap(self, n: int) -> tuple[int, int]:
        if not self.ranges:
            return 1, -1
        at = n % len(self.ranges)
        if self.ranges[at] is None:
            return 0, -1  # reserved addresses where nothing is mapped
        handle = self.handles[self.ranges[at] or 0]
        self.ranges[at] = None
        handle[2] -= 1
        self._settle(handle)
        return 0, -1

    def array(self, _: int) -> tuple[int, int]:
        self.arrays.append(4 * BLOCK)
        self.used += 4 * BLOCK
        return 0, -1

    def array_end(self, n: int) -> tuple[int, int]:
        if not self.arrays:
            return 400, -1
        self.used -= self.arrays.pop(n % len(self.arrays))
        return 0, -1

    def begin(self, _: int) -> tuple[int, int]:
        if self.capture is not None:
            return ILLEGAL_STATE, -1
        self.capture, self.broken = [], False
        return 0, -1

    def note(self, n: int) -> tuple[int, int]:
        if not self.runs:
            return 0, 0 if self.capture is None else 2 if self.broken else 1
        run = self.runs[n % len(self.runs)]
        if self.capture is None:
            run[1] = n % 251
        elif self.broken:
            return INVALIDATED, -1
        else:
            self.capture.append((run, n % 251))
        return 0, -1

    def end(self, _: int) -> tuple[int, int]:
        capture, self.capture = self.capture, None
        if capture is None:
            return ILLEGAL_STATE, -1
        if self.broken:
            return INVALIDATED, -1
        self.graphs.append(capture)
        return 0, len(capture)

    def forbidden(self, _: int) -> tuple[int, int]:
        if self.capture is None:
            self.sync(0)
            return 0, -1
        self.broken = True
        return UNSUPPORTED, -1

    def launch(self, n: int) -> tuple[int, int]:
        ready = [graph for graph in self.graphs if all(any(run is one for one in self.runs) for run, _ in graph)]
        if not ready:
            return 1, -1
        for run, byte in ready[n % len(ready)]:
            run[1] = byte
        self.sync(0)
        return 0, -1

    def node(self, n: int) -> tuple[int, int]:
        if not self.graphs:
            return 1, -1
        if not self.runs:
            return 0, -1
        if n % 4 == 0:
            return 1, -1
        self.graphs[n % len(self.graphs)].append((self.runs[n % len(self.runs)], n % 251))
        return 0, -1

    def drop(self, n: int) -> tuple[int, int]:
        if not self.graphs:
            return 1, -1
        self.graphs.pop(n % len(self.graphs))
        return 0, -1


setattr(Model, "async", Model._async)


def play(node: NodeServer, environment: Callable[..., dict[str, str]], steps: list[tuple[str, int]]) -> list[Any]:
    variables = {**node.environment, "PYTHONPATH": os.fspath(HERE)}
    done = subprocess.run(
        [sys.executable, HERE / "model_guest.py"],
        env=environment(**variables),
        input=json.dumps(steps),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, f"died with {done.returncode}: {done.stderr}"
    return [tuple(answer) for answer in json.loads(done.stdout)]


def agree(node: NodeServer, environment: Callable[..., dict[str, str]], steps: list[tuple[str, int]]) -> None:
    model = Model()
    wanted = [model.want(word, n) for word, n in steps]
    seen = play(node, environment, steps)
    for i, (step, want, answer) in enumerate(zip(steps, wanted, seen, strict=True)):
        assert answer == want, f"step {i} {step} after {steps[max(0, i - 5) : i]}"
    node.wait_live(0)
    assert node.snapshot().devices[0].used == 0


@pytest.fixture(scope="module")
def card() -> Any:
    with NodeServer(gpus=["h200-141g"]) as node:
        yield node


def sequences(seed: int, count: int) -> list[tuple[str, int]]:
    rng = random.Random(seed)
    return [(rng.choice(WORDS), rng.randrange(1000)) for _ in range(count)]


@pytest.mark.sanitize
def test_long_sequences_agree_with_the_model(
    card: NodeServer, guest_environment: Callable[..., dict[str, str]], seed: int
) -> None:
    for part in range(3):
        agree(card, guest_environment, sequences(seed + part, 600))


def killed(node: NodeServer, environment: Callable[..., dict[str, str]], rng: random.Random) -> str:
    """A guest that dies inside a driver call chosen by chance: nothing of it stays. The call and its number."""
    names = ("cuMemAlloc_v2", "cuMemFree_v2", "cuMemAllocAsync", "cuMemFreeAsync", "cuMemCreate", "cuMemMap")
    names += ("cuMemUnmap", "cuMemRelease", "cuArrayCreate_v2", "cuArrayDestroy", "cuMemsetD8_v2", "cuGraphLaunch")
    names += ("cuStreamEndCapture", "cuCtxSynchronize", "cuDevicePrimaryCtxRetain", "cuInit")
    name, when = rng.choice(names), rng.choice(("before", "after"))
    number = 1 if name in ("cuDevicePrimaryCtxRetain", "cuInit") else rng.randrange(1, 8)
    index = node.plan(Fault(name=name, action="kill", call=number, when=when))  # type: ignore[arg-type]
    try:
        with pytest.raises(AssertionError, match="died"):
            play(node, environment, sequences(rng.randrange(1 << 30), 500))
        assert node.fired(index) == 1
    finally:
        node.withdraw(index)
    node.wait_live(0)
    assert node.snapshot().devices[0].used == 0
    return f"{name} {number} {when}"


@pytest.mark.sanitize
def test_the_node_survives_kills_inside_calls(
    card: NodeServer, guest_environment: Callable[..., dict[str, str]], seed: int
) -> None:
    rng = random.Random(seed)
    for _ in range(5):
        killed(card, guest_environment, rng)
    agree(card, guest_environment, sequences(seed, 200))


@pytest.mark.full
def test_the_node_survives_kills_anywhere(
    card: NodeServer, guest_environment: Callable[..., dict[str, str]], seed: int
) -> None:
    """Inside a hundred calls, and from outside at no point in particular while a neighbour goes on."""
    rng = random.Random(seed)
    for part in range(100):
        killed(card, guest_environment, rng)
        variables = guest_environment(**card.environment, PYTHONPATH=os.fspath(HERE))
        with subprocess.Popen([sys.executable, HERE / "model_guest.py"], env=variables, stdin=subprocess.PIPE) as guest:
            assert guest.stdin
            guest.stdin.write(json.dumps(sequences(seed + part, 5000)).encode())
            guest.stdin.close()
            calls = card.snapshot().calls.get("cuMemAlloc_v2", 0) + rng.randrange(1, 200)
            card.wait_for(lambda now, calls=calls: now.calls.get("cuMemAlloc_v2", 0) >= calls)
            guest.kill()
        card.wait_live(0)
        assert card.snapshot().devices[0].used == 0
    agree(card, guest_environment, sequences(seed, 1000))


@pytest.mark.full
def test_fifty_thousand_steps(card: NodeServer, guest_environment: Callable[..., dict[str, str]], seed: int) -> None:
    for part in range(50):
        agree(card, guest_environment, sequences(seed + 100 + part, STEPS_FULL // 50))


@pytest.mark.full
@given(steps=st.lists(st.tuples(st.sampled_from(WORDS), st.integers(0, 999)), min_size=1, max_size=60))
def test_short_sequences_shrink(
    card: NodeServer, guest_environment: Callable[..., dict[str, str]], steps: list[tuple[str, int]]
) -> None:
    agree(card, guest_environment, steps)


def test_a_wrong_model_is_noticed(card: NodeServer, guest_environment: Callable[..., dict[str, str]]) -> None:
    """The planted failure: a step whose answer the model does not expect."""
    steps = [("alloc", 1), ("free", 0)]
    seen = play(card, guest_environment, steps)
    model = Model()
    assert [model.want(word, n) for word, n in (("alloc", 2), ("free", 0))] != seen
    assert play(card, guest_environment, [("garbage", 1)]) == [(1, 0, -1)]
