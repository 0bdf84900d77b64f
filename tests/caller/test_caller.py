"""The step player on the bare fake driver. Strategy: a program goes in as text, the records that it left come out; what
a record must say is written here by hand. Planted: a library that corrupts copies must be seen by reads, launches and
the random step, or their checks check nothing."""

from __future__ import annotations

import errno
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lab.checks.history import constants, load
from lab.node.server import NodeServer
from lab.runner.recorder import Recorder
from lab.scenario.vocabulary import skipped
from lab.spec import load_hooks

pytestmark = pytest.mark.sanitize
ROUTES = ("link", "dlsym", "default", "next", "dlvsym", "getproc", "getproc1")
MIB = 1 << 20
CUDA_ERROR_INVALID_VALUE = 1
CUDA_ERROR_NOT_INITIALIZED = 3
CUDA_ERROR_INVALID_CONTEXT = 201


@dataclass(frozen=True)
class Played:
    """How a program went: exit code, stderr, and its STEP_END records."""

    code: int
    error: str
    ends: Any
    begins: Any

    def end(self, step: int) -> Any:
        """The only end record of a step."""
        (record,) = self.ends[self.ends["step"] == step]
        return record

    def results(self) -> list[tuple[int, int]]:
        return [(int(record["step"]), int(record["result"])) for record in self.ends]


Play = Callable[..., Played]


@pytest.fixture(scope="module")
def node() -> Iterator[NodeServer]:
    with NodeServer(gpus=["a100-80g"], containers=["box"]) as server:
        yield server


@pytest.fixture
def play(node: NodeServer, native: Path, guest_environment: Any, tmp_path: Path) -> Play:
    """`play("init", "alloc bytes=1 as=x", preload=...)`: numbers the steps and plays them."""

    def run(*steps: str, preload: Path | None = None, channel: int | None = None) -> Played:
        lines, number = ["hooklab-program 1"], 0
        for step in steps:
            if step == "end" or step.startswith("set "):
                lines.append(step)
                continue
            lines.append(f"step {number} {step}")
            number += 1
        program = tmp_path / "program"
        program.write_text("\n".join(lines) + "\n")
        recorder = Recorder(tmp_path / "history", capacity=100_000)
        variables = {"HOOKLAB_HISTORY": str(recorder.path), "HOOKLAB_CONTAINER": "0", "HOOKLAB_PROCESS": "7"}
        if channel is not None:
            variables["HOOKLAB_CONTROL_FD"] = str(channel)
        done = subprocess.run(
            [str(native / "hooklab-caller"), str(program)],
            env=guest_environment(*([preload] if preload else []), **node.environment, **variables),
            pass_fds=[channel] if channel is not None else [],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        recorder.close()
        history = load(recorder.path)
        recorder.path.unlink()
        return Played(done.returncode, done.stderr, history.of("STEP_END"), history.of("STEP_BEGIN"))

    return run


@pytest.mark.parametrize("route", ROUTES)
def test_every_route_reaches_the_driver(play: Play, route: str) -> None:
    played = play(
        f"set route={route}",
        "init",
        f"alloc bytes={3 * MIB} as=x",
        "memset what=x value=165",
        "read what=x",
        "write what=x",
        "read what=x",
        f"alloc bytes={MIB} as=y kind=managed",
        "copy from=x to=y",
        "read what=y",
        "alloc width=1000 height=10 as=p",
        f"alloc bytes={MIB} as=a kind=async",
        "launch kernel=vadd n=1000",
        "launch kernel=mail",
        "view api=cuda",
        "view api=total",
        "view api=nvml",
        "view api=nvml2",
        "free what=x",
        "free what=y",
        "free what=p",
        "free what=a",
        "sync",
    )
    assert played.error == ""
    assert played.code == 0
    assert played.results() == [(step, 0) for step in range(22)]
    number = constants()[f"HL_ROUTE_{route.upper()}"]
    assert set(played.ends["route"]) == {number}
    assert set(played.ends["process"]) == {7}
    for step in (3, 5, 8):
        assert played.end(step)["b"] == 0, f"step {step} read wrong bytes"
    assert played.end(11)["a"] == 1  # vadd verified
    assert played.end(12)["a"] == 1
    assert int(played.end(1)["name"]) == load_hooks()["cuMemAlloc_v2"].id
    assert int(played.end(9)["a"]) >= 10_000  # what a pitched allocation takes, not what was asked
    total, used = int(played.end(13)["a"]), int(played.end(13)["c"])
    assert total == int(played.end(14)["a"])
    assert 0 < used < total


@pytest.mark.parametrize("route", ["getproc", "getproc1"])
def test_an_old_abi_is_not_called(play: Play, route: str) -> None:
    played = play("init", f"alloc bytes=1 as=x route={route} version=2000")
    assert int(played.end(1)["result"]) == 500
    assert "another ABI" in played.error
    assert played.code == 0


def test_lookups_say_who_owns_the_answer(play: Play, compile_c: Any) -> None:
    hook = compile_c("int cuMemAlloc_v2(void) { return 77; }\n", "-shared", "-fPIC", name="hook.so")
    names = ("lookup name=cuMemAlloc_v2 route=default", "lookup name=cuNoSuchName route=dlsym")
    resolver = ("lookup name=cuMemAlloc route=getproc", "lookup name=cuNoSuchName route=getproc")
    too_old = ("lookup name=cuMemAllocAsync route=getproc version=3000",)
    bare = play(*names, *resolver, *too_old)
    assert [(int(end["a"]), int(end["c"]), int(end["extra"])) for end in bare.ends] == [
        (1, 0, 1),
        (0, 0, 0),
        (1, 0, 1),
        (0, 1, 0),
        (0, 2, 0),
    ]
    hooked = play(*names, preload=hook)
    assert int(hooked.end(0)["extra"]) == 2


def test_counts_refusals_and_skips(play: Play) -> None:
    played = play(
        "init",
        f"alloc bytes={30 << 30} as=big count=3",
        f"alloc bytes={90 << 30} as=huge",
        "write what=huge",
        "free what=huge",
        "free what=big",
        "free pointer=12345",
    )
    assert [result for step, result in played.results() if step == 1] == [0, 0, 2]
    assert len(played.begins[played.begins["step"] == 1]) == 1
    assert [int(played.end(step)["result"]) for step in (2, 3, 4, 5, 6)] == [2, skipped(), skipped(), 0, 1]
    assert int(played.end(2)["b"]) == 0


def test_nothing_is_retained_before_init_or_for_an_own_context(play: Play) -> None:
    assert play("alloc bytes=1 as=x").results() == [(0, 3)]
    own = play("init", "context op=create as=mine", "alloc bytes=1 as=x", "context op=pop", "alloc bytes=1 as=y")
    assert own.results() == [(0, 0), (1, 0), (2, 0), (3, 0), (4, 201)]


def test_primary_context_steps(play: Play) -> None:
    played = play("init", "context op=retain", "alloc bytes=1 as=x", "context op=release", "context op=release")
    assert played.results() == [(0, 0), (1, 0), (2, 0), (3, 0), (4, 201)]


def test_modules(play: Play) -> None:
    played = play(
        "init", "module op=load as=m", "launch kernel=vadd n=5", "module op=unload what=m", "module op=unload what=m"
    )
    assert played.results() == [(0, 0), (1, 0), (2, 0), (3, 0), (4, skipped())]


def test_other_kernels_are_said_to_be_unverifiable(play: Play) -> None:
    played = play("init", "launch kernel=anything count=3 duration=1000")
    assert [(int(end["result"]), int(end["a"])) for end in played.ends[played.ends["step"] == 1]] == [(0, 2)] * 3


def test_a_tag_of_its_own_is_asked_of_the_driver(play: Play) -> None:
    played = play("lookup name=cuInit route=dlvsym symbol_version=libcuda.so.1", "lookup name=cuInit route=dlvsym")
    assert [int(end["a"]) for end in played.ends] == [0, 1]


CORRUPT = """
#include <dlfcn.h>
#include <stddef.h>
typedef int (*copy)(void *, unsigned long long, size_t);
int cuMemcpyDtoH_v2(void *to, unsigned long long from, size_t size);
int cuMemcpyDtoH_v2(void *to, unsigned long long from, size_t size) {
    int result = ((copy)dlsym(RTLD_NEXT, "cuMemcpyDtoH_v2"))(to, from, size);
    if (size) ((unsigned char *)to)[size / 2] ^= 0x40;
    return result;
}
"""


def test_corruption_is_seen(play: Play, compile_c: Any) -> None:
    """The planted failure: every copy back has one wrong bit."""
    library = compile_c(CORRUPT, "-shared", "-fPIC", name="corrupt.so")
    played = play(
        "init",
        "alloc bytes=4096 as=x",
        "write what=x",
        "read what=x",
        "launch kernel=vadd n=100",
        "launch kernel=mail",
        "random operations=40 min=16 max=4096",
        preload=library,
    )
    assert int(played.end(3)["b"]) == 1
    assert [int(played.end(4)[field]) for field in ("result", "a", "b")] == [0, 0, 1]
    assert int(played.end(5)["a"]) == 0
    assert int(played.end(6)["b"]) > 0
    assert "lost its contents" in played.error


def test_random_keeps_its_truth_and_gives_everything_back(play: Play, node: NodeServer) -> None:
    steps = ("init", "random threads=4 operations=200 min=1 max=3000000 live=8 seed=5 kinds=sync,managed,async,pitched")
    first = play(*steps)
    end = first.end(1)
    assert first.error == ""
    assert [int(end[field]) for field in ("result", "a", "b", "c", "extra")] == [0, 800, 0, 0, 4]
    node.wait_live(0)
    assert node.snapshot().used() == 0


def test_random_counts_refusals(play: Play) -> None:
    end = play("init", f"random threads=2 operations=100 min={20 << 30} max={30 << 30} live=8 seed=1").end(1)
    assert int(end["result"]) == 0
    assert int(end["b"]) == 0
    assert int(end["c"]) > 0


def test_fork_plays_the_nested_steps_in_the_child(play: Play) -> None:
    played = play("fork wait=1", "init", "exit code=9", "end", "init")
    assert played.code == 0
    assert int(played.end(0)["b"]) == 9 << 8
    child = int(played.end(1)["pid"])
    assert child == int(played.end(2)["pid"]) != int(played.end(3)["pid"])
    assert child == int(played.end(0)["a"])


def test_exec_goes_on_in_the_new_image(play: Play) -> None:
    played = play("init", "exec clear_environment=0", "init", "alloc bytes=1 as=x", "end")
    assert played.results() == [(0, 0), (1, 0), (2, 0), (3, 0)]
    assert len(set(played.ends["pid"])) == 1


def test_exec_with_a_cleared_environment_loses_the_driver(play: Play) -> None:
    """Outside a container nothing but variables leads to the fake: the new image cannot even be loaded."""
    played = play("exec clear_environment=1", "init", "end")
    assert played.code == 127
    assert "libcuda.so.1" in played.error
    assert played.results() == []


def test_parallel_threads_have_names_of_their_own(play: Play) -> None:
    played = play(
        "init",
        f"alloc bytes={MIB} as=shared",
        "parallel threads=8",
        f"alloc bytes={MIB} as=x",
        "write what=x",
        "read what=x",
        "free what=x",
        "end",
        "free what=shared",
    )
    assert played.code == 0
    assert set(played.ends["result"]) == {0}
    for step in (3, 4, 5, 6):
        mine = played.ends[played.ends["step"] == step]
        assert len(mine) == len(np.unique(mine["tid"])) == 8
    assert set(played.ends[played.ends["step"] == 5]["b"]) == {0}  # each reads what it wrote


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV])
def test_signals_end_the_process_with_a_record(play: Play, number: int) -> None:
    played = play(f"signal signal={int(number)}", "init")
    assert played.code == -number
    assert played.results() == [(0, 0)]
    assert ("signal 11 in step 0" in played.error) == (number == signal.SIGSEGV)


MEMORY_V2 = 0x02000028  # nvmlMemory_v2_t: size 40, version 2


def test_a_call_passes_what_is_written_and_keeps_what_came_back(play: Play) -> None:
    played = play(
        "init",
        "context op=retain",
        f"call name=cuMemAlloc_v2 with=ox:0,n{MIB}",
        "call name=cuMemGetAddressRange_v2 with=obase:0,osize:0,rx+4096",
        "call name=cuMemFree_v2 with=rx",
        "call name=cuDeviceGetAttribute with=obad:7,n99999,n0",
        "call name=cuMemGetInfo_v2 with=n0,n0",
        "call name=nvmlInit_v2",
        "call name=nvmlDeviceGetHandleByIndex_v2 with=n0,odevice:0",
        f"call name=nvmlDeviceGetMemoryInfo_v2 with=rdevice,b:40:4@0={MEMORY_V2}:total@8/used@32",
    )
    assert played.error == ""
    assert played.results() == [(step, 1 if step == 5 else 0) for step in range(10)]
    assert (int(played.end(3)["a"]), int(played.end(3)["b"])) == (int(played.end(2)["a"]), MIB)
    assert int(played.end(5)["a"]) == 7  # what lay there before
    assert int(played.end(9)["a"]) == 80 << 30
    assert {int(played.end(step)["name"]) for step in (2, 9)} == {
        load_hooks()[name].id for name in ("cuMemAlloc_v2", "nvmlDeviceGetMemoryInfo_v2")
    }


@pytest.mark.parametrize("route", ["dlsym", "default", "next", "getproc"])
def test_a_call_finds_any_name_on_its_route(play: Play, route: str) -> None:
    played = play("init", f"call name=cuMemPoolTrimTo with=n0,n0 route={route}")
    assert played.error == ""
    assert played.end(1)["result"] == CUDA_ERROR_INVALID_VALUE
    assert int(played.end(1)["route"]) == constants()[f"HL_ROUTE_{route.upper()}"]


def test_a_buffer_ends_at_an_inaccessible_page(play: Play) -> None:
    short = f"call name=nvmlDeviceGetMemoryInfo_v2 with=rdevice,b:32:4@0={MEMORY_V2}:"
    handle = "call name=nvmlDeviceGetHandleByIndex_v2 with=n0,odevice:0"
    played = play("call name=nvmlInit_v2", handle, short)
    assert played.code == -signal.SIGSEGV
    assert "signal 11 in step 2" in played.error


def test_a_buffer_by_value_and_what_was_never_got(play: Play) -> None:
    """An IPC handle of 64 bytes goes by value; a process cannot open its own: 201 with a real driver, too."""
    played = play(
        "init",
        "context op=retain",
        f"call name=cuMemAlloc_v2 with=ox:0,n{4 * MIB}",
        "call name=cuIpcGetMemHandle with=bhandle:64::,rx",
        "call name=cuIpcOpenMemHandle_v2 with=oy:0,vhandle,n1",
        "call name=cuMemFree_v2 with=rnothing",
        "call name=cuMemFree_v2 with=vx",
    )
    assert played.results() == [
        (0, 0),
        (1, 0),
        (2, 0),
        (3, 0),
        (4, CUDA_ERROR_INVALID_CONTEXT),
        (5, skipped()),
        (6, skipped()),
    ]


def test_what_one_gives_another_takes(play: Play) -> None:
    """Another process opens the buffer by its handle; what was never given is skipped."""
    maker = play(
        "init",
        "context op=retain",
        f"call name=cuMemAlloc_v2 with=ox:0,n{4 * MIB}",
        "call name=cuIpcGetMemHandle with=bhandle:64::,rx",
        "give what=handle",
        "give what=x",
        "give what=nothing",
    )
    assert maker.results() == [*[(step, 0) for step in range(6)], (6, skipped())]
    taker = play("take what=x", "take what=handle", "call name=cuMemFree_v2 with=rx", "take what=nothing")
    assert taker.results() == [(0, 0), (1, 0), (2, CUDA_ERROR_NOT_INITIALIZED), (3, skipped())]


def test_repeat_plays_its_steps_again(play: Play) -> None:
    steps = (f"call name=cuMemAllocAsync with=op:0,n{MIB},n0", "call name=cuMemFreeAsync with=rp,n0")
    played = play("init", "context op=retain", "repeat count=3", *steps, "end", "sync")
    assert played.results() == [(0, 0), (1, 0), *[(3, 0), (4, 0)] * 3, (2, 0), (5, 0)]


def test_exit_steps(play: Play) -> None:
    assert play("exit code=3", "init").code == 3
    assert play("exit code=4 quick=1", "init").code == 4


def test_a_barrier_without_a_runner_is_an_error(play: Play) -> None:
    assert play("barrier name=x").results() == [(0, errno.ENOTCONN)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nonsense\n", "not a step program"),
        ("hooklab-program 1\nstep 0 fork\n", "without its `end`"),
        ("hooklab-program 1\nend\n", "without a step to end"),
        ("hooklab-program 1\njump\n", "expected `step`"),
        ("hooklab-program 1\nstep 0 dance\n", "no operation dance"),
        ("hooklab-program 1\nstep 0 init route=air\n", "no route air"),
        ("hooklab-program 1\nstep 0 init novalue\n", "KEY=VALUE"),
    ],
)
def test_a_bad_program_is_one_line(native: Path, guest_environment: Any, tmp_path: Path, text: str, words: str) -> None:
    program = tmp_path / "program"
    program.write_text(text)
    done = subprocess.run(
        [str(native / "hooklab-caller"), str(program)],
        env=guest_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
