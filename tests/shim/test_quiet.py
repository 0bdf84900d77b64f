"""Threads allocate, free, make and end contexts at random: when all is quiet the books say what the driver holds."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.sanitize
MIB, GIB = 1 << 20, 1 << 30
CONTEXT = 512 * MIB
# Whole blocks only: below 2 MiB and for pools the books are declared to differ from what the driver holds.
SCRIPT = """
import random
assert init() == 0
THREADS, STEPS = 6, 1000
refused = [0] * THREADS

def body(index):
    chance = random.Random(SEED + index)
    primary = retain()[1]
    live, contexts = [], []
    for _ in range(STEPS):
        dice = chance.random()
        if dice < 0.05 and len(contexts) < 2:
            CUDA.cuCtxSetCurrent(primary)
            result, context = create()
            assert result in (0, 2)
            if result == 0:
                contexts.append(context)
            refused[index] += result == 2
            CUDA.cuCtxSetCurrent(primary)
        elif dice < 0.1 and contexts:
            gone = contexts.pop()
            assert CUDA.cuCtxDestroy_v2(gone) == 0
            live = [pair for pair in live if pair[0] is not gone]
        elif dice < 0.6 or not live:
            where = chance.choice([primary, *contexts])
            CUDA.cuCtxSetCurrent(where)
            result, pointer = alloc(chance.randrange(1, 40) * 2 * MIB, chance.choice(["sync", "pitched"]))
            assert (result, pointer) == (2, 0) or (result == 0 and pointer), (result, pointer)
            if result == 0:
                live.append((where, pointer))
            refused[index] += result == 2
        else:
            where, pointer = live.pop(chance.randrange(len(live)))
            CUDA.cuCtxSetCurrent(where)
            assert free(pointer, chance.choice(["sync", "async"])) == 0

failed = []
def guarded(index):
    try:
        body(index)
    except BaseException as error:
        failed.append(repr(error))

threads = [threading.Thread(target=guarded, args=(index,)) for index in range(THREADS)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
retain()
say([failed, sum(refused) > 0, used()])
os._exit(0)
"""


@pytest.mark.parametrize("mode", ["reserve", "double-check"])
def test_at_a_quiet_moment_books_and_driver_agree(lab, seed: int, mode: str) -> None:
    ended = lab.guest(
        SCRIPT.replace("SEED", str(seed)),
        HOOKLAB_MEMORY_MODE=mode,
        HOOKLAB_CONTEXT_BYTES=str(CONTEXT),
        CUDA_DEVICE_MEMORY_LIMIT="6g",
    )
    assert (ended.status, ended.err) == (0, "")
    failed, refused, used = ended.said[0]
    assert failed == []
    assert refused
    assert used == int(lab.records("PHYS")[-1]["b"]) > 0
    physical = [int(record["b"]) for record in lab.records("PHYS")]
    if mode == "reserve":
        assert max(physical) <= 6 * GIB


def test_books_that_are_wrong_about_one_thing_are_seen(lab, seed: int) -> None:
    ended = lab.guest(
        SCRIPT.replace("SEED", str(seed)),
        HOOKLAB_CONTEXT_BYTES=str(CONTEXT // 2),
        CUDA_DEVICE_MEMORY_LIMIT="6g",
    )
    assert ended.said[0][2] != int(lab.records("PHYS")[-1]["b"])
