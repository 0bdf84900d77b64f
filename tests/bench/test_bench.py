"""`hooklab bench calls`: every row is there, a side that fails is counted and named, and what is slow looks slow."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab.runner.bench import BenchError, BenchOptions, WaitOptions, measure_calls, measure_waiting
from lab.runner.pairs import PairRow

pytestmark = pytest.mark.usefixtures("native")

Cli = Callable[..., subprocess.CompletedProcess[str]]
FAST: dict[str, Any] = {"rounds": 2, "batches": 3, "live": "0,50"}
CALLS = {
    ("cuInit", 0),
    ("cuDevicePrimaryCtxRetain", 0),
    ("first cuMemAlloc_v2", 0),
    ("cuMemGetInfo_v2", 0),
    ("cuLaunchKernel", 0),
    ("cuLaunchKernel, median launch", 0),
    ("cuGetProcAddress_v2", 0),
    ("cuMemAllocAsync+cuMemFreeAsync", 0),
    ("cuMemAlloc_v2+cuMemFree_v2", 0),
    ("cuMemAlloc_v2+cuMemFree_v2", 50),
    ("exec of true", 0),
}
# An interposer with a planted cost: every cuMemGetInfo_v2 asks the driver a hundred times.
SLOW = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
int cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    static int (*real)(size_t *, size_t *);
    int result = 0;
    if (!real) real = (int (*)(size_t *, size_t *))dlsym(RTLD_NEXT, "cuMemGetInfo_v2");
    for (int i = 0; i < 100; i++) result = real(free_bytes, total);
    return result;
}
"""
# One that works in the first process that initialises under it, and aborts in all later ones.
PASSES_ONCE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>
int cuInit(unsigned flags) {
    if (unlink(getenv("BENCH_MARK"))) abort();
    return ((int (*)(unsigned))dlsym(RTLD_NEXT, "cuInit"))(flags);
}
"""
DIES = "#include <stdlib.h>\n__attribute__((constructor)) static void die(void) { abort(); }\n"


@pytest.fixture
def library(compile_c: Callable[..., Path]) -> Callable[[str, str], str]:
    return lambda name, text: str(compile_c(text, "-shared", "-fPIC", name=name))


def row(rows: tuple[PairRow, ...], call: str) -> PairRow:
    return next(one for one in rows if one.call == call)


@pytest.mark.parametrize("interposer", ["builtin", "none"])
def test_every_figure_is_there(interposer: str) -> None:
    result = measure_calls(BenchOptions(interposer=interposer, **FAST))
    assert {(one.call, one.live) for one in result.rows} == CALLS
    assert result.failures == ()
    assert result.evidence == "fake-driver"
    for one in result.rows:
        assert one.failed == 0
        assert one.bare_ns > 0
        assert one.interposed_ns > 0
        assert one.ratio == 1 + one.added_ns / one.bare_ns
        assert math.isfinite(one.control_ns)


def test_a_planted_cost_is_seen(library: Callable[[str, str], str]) -> None:
    """Counted in calls of the driver and not in time: a hundred calls cannot be as quick as one."""
    result = measure_calls(BenchOptions(interposer=library("slow.so", SLOW), **FAST))
    assert row(result.rows, "cuMemGetInfo_v2").ratio > 10
    assert row(result.rows, "cuMemGetInfo_v2").ratio > 3 * row(result.rows, "cuLaunchKernel").ratio


def test_a_foreign_interposer_is_measured(compile_c: Callable[..., Path], root: Path, hooklab: Cli) -> None:
    naive = compile_c(root / "tests/native/interposers/naive.c", "-shared", "-fPIC", "-ldl", name="bench-naive.so")
    done = hooklab("bench", "calls", "--interposer", naive, "--rounds", "1", "--batches", "3", "--live", "0,50")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert f"fake-driver evidence, 1 rounds, interposer {naive}" in done.stdout
    assert len([line for line in done.stdout.splitlines() if line.startswith(" cu")]) == 9


def test_json_has_exactly_the_documented_keys(hooklab: Cli, root: Path) -> None:
    done = hooklab("bench", "calls", "--json", "--rounds", "1", "--batches", "1", "--live", "0")
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    page = (root / "docs/report-schema.md").read_text(encoding="utf-8")
    section = page.split("\n## Costs of calls")[1].split("\n## ")[0]
    keys = {line.split("`")[1] for line in section.splitlines() if line.startswith("| `")}
    assert keys == document.keys() | {f"rows[].{key}" for key in document["rows"][0]}
    assert document["schema"] == "hooklab.bench/1"


def test_a_side_that_fails_now_and_then_is_counted_and_named(
    library: Callable[[str, str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "mark"
    mark.write_text("")
    monkeypatch.setenv("BENCH_MARK", str(mark))
    result = measure_calls(BenchOptions(interposer=library("lapses.so", PASSES_ONCE), **FAST))
    assert result.failures == ("interposed run 2: SIGABRT: it said nothing",)
    assert row(result.rows, "cuInit").failed == 1
    assert row(result.rows, "exec of true").failed == 0
    assert row(result.rows, "cuInit").bare_ns > 0


def test_a_side_that_never_works_is_an_error(library: Callable[[str, str], str], hooklab: Cli) -> None:
    done = hooklab(
        "bench", "calls", "--interposer", library("dies.so", DIES), "--rounds", "2", "--batches", "1", "--live", "0"
    )
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line == "hooklab: bench calls: no interposed run gave figures; interposed run 1: SIGABRT: it said nothing"


def test_a_limit_too_small_to_measure_is_named() -> None:
    with pytest.raises(BenchError, match=r"interposed run 1: exit 1: .*cuMemAlloc.* failed with CUresult 2"):
        measure_calls(BenchOptions(memory="512", rounds=1, batches=1, live="0"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--live", "5,3"], "not ascending counts"),
        (["--live", "0,many"], "not ascending counts"),
        (["--live", ""], "not ascending counts"),
        (["--rounds", "0"], "rounds"),
        (["--batches", "2000"], "batches"),
        (["--gpu", "h9000"], "h9000"),
        (["--memory", "much"], "not a size"),
        (["--dialect", "klingon"], "klingon"),
        (["--interposer", "/no/such.so"], "No such file"),
        (["--on", "moon"], "moon"),
    ],
)
def test_bad_options_are_one_line(options: list[str], words: str, hooklab: Cli) -> None:
    done = hooklab("bench", "calls", "--rounds", "1", "--batches", "1", "--live", "0", *options)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert words in line


@pytest.mark.parametrize(
    ("words", "asked", "said"),
    [
        (["--live", "5,3"], "", "hooklab-bench: --live takes ascending counts, e.g. 0,1000\n"),
        (["--live", "0"], "0\n99\n", "hooklab-bench: no figure 99\n"),
    ],
)
def test_the_program_names_its_usage(
    native: Path, guest_environment: Callable[..., dict[str, str]], words: list[str], asked: str, said: str
) -> None:
    from lab.node.server import NodeServer

    with NodeServer() as node:
        environment = guest_environment() | node.environment | {"LD_LIBRARY_PATH": str(native / "fake")}
        command = [native / "hooklab-bench", *words]
        done = subprocess.run(
            command, env=environment, input=asked, capture_output=True, text=True, check=False, timeout=60
        )
    assert (done.returncode, done.stderr) == (2, said)


def test_a_program_that_hangs_gives_no_figure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is killed after its time, counted, and the other sides' figures stay."""
    from lab.runner import pairs

    monkeypatch.setattr(pairs, "_BATCH_PATIENCE_S", 0.5)
    (tmp_path / "hangs.py").write_text(
        "import os, sys, threading\n"
        'print(\'{"figure": "x", "live": 0}\\nready\', flush=True)\n'
        "for line in sys.stdin:\n"
        "    if os.environ['SIDE'] == 'control': threading.Event().wait()\n"
        "    print(7.0 if os.environ['SIDE'] == 'bare' else 9.0, flush=True)\n"
    )
    rows, failures = pairs.measure(
        [sys.executable, str(tmp_path / "hangs.py")],
        lambda side, _round: {"SIDE": side},
        rounds=range(2),
        batches=3,
        cpus=1,
    )
    assert [(one.call, one.bare_ns, one.interposed_ns, one.added_ns, one.failed) for one in rows] == [("x", 7, 9, 2, 2)]
    assert failures == ("control run 1: it did not answer in time", "control run 2: it did not answer in time")


def test_a_core_limit_is_the_interposed_side_s(compile_c: Callable[..., Path], tmp_path: Path) -> None:
    told = tmp_path / "told"
    text = f"""
#include <stdio.h>
#include <stdlib.h>
__attribute__((constructor)) static void tell(void) {{
    FILE *file = fopen("{told}", "a");
    if (file) fprintf(file, "%s\\n", getenv("CUDA_DEVICE_SM_LIMIT") ? getenv("CUDA_DEVICE_SM_LIMIT") : "none");
    if (file) fclose(file);
}}
"""
    library = compile_c(text, "-shared", "-fPIC", name="tells.so")
    measure_calls(BenchOptions(interposer=str(library), cores=50, rounds=1, batches=1, live="0"))
    assert told.read_text().split().count("50") == 1
    told.unlink()
    measure_calls(BenchOptions(interposer=str(library), rounds=1, batches=1, live="0"))
    assert "50" not in told.read_text()


def test_waiting_is_sleeping(tmp_path: Path) -> None:
    spins = tmp_path / "spins.py"
    spins.write_text(
        "class Spins:\n"
        "    def admit(self, device, size, kind, used, limit, shared): return 0\n"
        "    def lease(self, device, cost, now, shared):\n"
        "        if not shared[20]: shared[20] = now\n"
        "        if now - shared[20] < 1_000_000_000: return -1\n"
        "        return cost\n"
        "    def observe(self, device, busy, window, now, shared): return 0\n"
    )
    sleeps = measure_waiting(WaitOptions(patterns=["long"], seconds=1))
    burns = measure_waiting(WaitOptions(patterns=["long"], seconds=1, policy=f"{spins}:Spins"))
    assert (sleeps["schema"], sleeps["evidence"]) == ("hooklab.bench.waiting/1", "fake-driver")
    (row,), (planted,) = sleeps["rows"], burns["rows"]
    assert row["waits"] > 0
    assert row["waited_percent"] > 50
    assert planted["cpu_percent"] > 2 * row["cpu_percent"]
    with pytest.raises(BenchError, match="known are"):
        measure_waiting(WaitOptions(patterns=["waltz"]))
