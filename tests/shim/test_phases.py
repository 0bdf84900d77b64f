"""cuInit's phases: their order, once a process, retried after a failure, anew after fork and exec."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from lab.node.faults import Fault

pytestmark = pytest.mark.sanitize
HOSTS = Path(__file__).parents[1] / "native" / "shim"
LIMIT = {"CUDA_DEVICE_MEMORY_LIMIT": "4g", "HOOKLAB_CONTEXT_BYTES": str(512 << 20)}
ORDER = [
    "WRAPPER_ENTER",
    "PREINIT_ENTER",
    "ATTACHED",
    "PREINIT_EXIT",
    "REAL_ENTER",
    "REAL_EXIT",
    "POSTINIT_ENTER",
    "POSTINIT_EXIT",
    "WRAPPER_EXIT",
]

Phases = Sequence[tuple[int, str]]


def problems(phases: Phases) -> list[str]:
    """What breaks the order in one process image, whose threads may interleave."""
    names = [name for _, name in phases]
    found = [f"{name} {names.count(name)} times" for name in ORDER[1:4] + ORDER[6:8] if names.count(name) > 1]
    for thread in {thread for thread, _ in phases}:
        own = [name for at, name in phases if at == thread]
        ranks = [ORDER.index(name) for name in own]
        starts = [index for index, name in enumerate(own) if name == "WRAPPER_ENTER"] + [len(own)]
        for start, end in pairwise(starts):
            if ranks[start:end] != sorted(ranks[start:end]):
                found.append(f"thread {thread}: {own[start:end]}")
            if not {"REAL_ENTER", "REAL_EXIT", "WRAPPER_EXIT"} <= set(own[start:end]):
                found.append(f"thread {thread}: incomplete {own[start:end]}")
    if "REAL_ENTER" in names and "PREINIT_EXIT" in names[names.index("REAL_ENTER") :]:
        found.append("a real call before pre-init was over")
    if "POSTINIT_ENTER" in names and "REAL_EXIT" not in names[: names.index("POSTINIT_ENTER")]:
        found.append("post-init before any real call was over")
    return found


def test_the_order_in_one_thread(lab) -> None:
    ended = lab.guest("say(init())", **LIMIT)
    assert (ended.status, ended.said, ended.err) == (0, [0], "")
    assert [name for _, name in lab.phases()] == ORDER


def test_sixty_four_threads_initialise_once(lab, compile_c: Callable[..., Path], native: Path) -> None:
    crowd = compile_c(HOSTS / "crowd.c", f"-L{native}/fake", "-l:libcuda.so.1", name="crowd")
    ended = lab.run([crowd, "64"], **LIMIT)
    assert (ended.status, ended.said, ended.err) == (0, [[0] * 64], "")
    phases = lab.phases()
    assert problems(phases) == []
    names = [name for _, name in phases]
    counts = {name: names.count(name) for name in ORDER}
    assert counts == {name: 64 if name.startswith(("WRAPPER", "REAL")) else 1 for name in ORDER}
    assert lab.calls("cuInit") == 64


def test_a_failed_init_runs_no_post_init_and_may_be_tried_again(lab) -> None:
    lab.node.plan(Fault(name="cuInit", action="return", call=1, code=999))
    ended = lab.guest("say([init(), init(), init()])", **LIMIT)
    assert (ended.status, ended.said, ended.err) == (0, [[999, 0, 0]], "")
    names = [name for _, name in lab.phases()]
    first = names.index("WRAPPER_EXIT")
    assert "POSTINIT_ENTER" not in names[:first]
    assert names[first + 1 :].count("POSTINIT_ENTER") == 1
    assert names.count("PREINIT_ENTER") == 1


def test_a_fork_child_of_an_uninitialised_parent_starts_anew(lab) -> None:
    script = """
nvml()  # the parent's pre-init is over, its region open
child = os.fork()
result = start()
pair = alloc(MIB)
say([result, pair[0]])
if child == 0: os._exit(0)
os.waitpid(child, 0)
"""
    ended = lab.guest(script, **LIMIT)
    assert (ended.status, ended.err) == (0, "")
    assert ended.said == [[0, 0], [0, 0]]
    pids = {int(record["pid"]) for record in lab.records("PHASE")}
    assert len(pids) == 2
    names = {pid: [name for _, name in lab.phases(pid)] for pid in pids}
    child = next(pid for pid in pids if "FORK_CHILD" in names[pid])
    assert names[child] == ["FORK_CHILD", *ORDER]
    (parent,) = pids - {child}
    assert names[parent].count("PREINIT_ENTER") == 1


def test_a_fork_child_of_an_initialised_parent_gets_the_drivers_answer(lab) -> None:
    script = """
assert start() == 0
pair = alloc(4 * MIB)
before = used()
child = os.fork()
if child == 0:
    say(["child", init(), free(pair[1])])
    os._exit(0)
os.waitpid(child, 0)
say(["parent", used() - before, free(pair[1]), before - used()])
"""
    ended = lab.guest(script, **LIMIT)
    assert (ended.status, ended.err) == (0, "")
    assert ended.said == [["child", 3, 3], ["parent", 0, 0, 4 << 20]]
    child = next(int(r["pid"]) for r in lab.records("PHASE") if int(r["a"]) == 13)
    assert "POSTINIT_ENTER" not in [name for _, name in lab.phases(child)]


def test_an_exec_is_a_fresh_image(lab) -> None:
    script = """
assert start() == 0
alloc(MIB)
again = "say([start(), alloc(MIB)[0], used()])"
os.execv(sys.executable, [sys.executable, "-I", "-S", sys.argv[0], again])
"""
    ended = lab.guest(script, **LIMIT)
    assert (ended.status, ended.err) == (0, "")
    assert ended.said == [[0, 0, (512 << 20) + (2 << 20)]]
    names = [name for _, name in lab.phases()]
    assert names == ORDER * 2


@pytest.mark.parametrize(
    "wrong",
    [
        [*ORDER, *ORDER],
        [*ORDER[:4], *ORDER[6:8], *ORDER[4:6], ORDER[8]],
        [ORDER[0], *ORDER[4:6], *ORDER[1:4], *ORDER[6:]],
        ORDER[:5],
    ],
    ids=["twice", "post-init first", "pre-init late", "unfinished"],
)
def test_a_wrong_order_is_seen(wrong: list[str]) -> None:
    assert problems([(1, name) for name in ORDER]) == []
    assert problems([(1, name) for name in wrong])


def test_forks_among_busy_threads(lab, compile_c: Callable[..., Path], native: Path) -> None:
    forks = compile_c(HOSTS / "forks.c", f"-L{native}/fake", "-l:libcuda.so.1", name="forks")
    ended = lab.run([forks], **LIMIT)
    assert (ended.status, ended.said, ended.err) == (0, [[40, 0, 512 << 20]], "")
