"""The ledger's native tests: one process, many processes, deaths at every instruction, colliding ids.

Each program checks itself against an account of its own and says what does not hold; the planted failures show that it
can.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]

UNITS = (
    "entries",
    "life_robust",
    "life_file",
    "life_private",
    "life_double_check",
    "snapshot",
    "rollback",
    "bury_robust",
    "bury_file",
    "dead_robust",
    "dead_file",
    "fork_robust",
    "fork_file",
    "fork_private",
    "fork_bare_robust",
    "fork_bare_file",
    "orphan_robust",
    "orphan_file",
    "closed_robust",
    "closed_file",
    "unopenable",
    "many",
    "threads_robust",
    "threads_file",
    "threads_double_check",
)
PLANTED = {
    "planted_wrong_sum": "",
    "planted_overflow": "address",
    "planted_undefined": "undefined",
    "planted_race": "thread",
}
STEPPED = ("reserve", "settle", "cancel", "credit", "context", "bury", "leave", "enter", "make")
STRIDE = {"context": 97, "bury": 31, "leave": 31, "enter": 5, "make": 5}


@pytest.mark.sanitize
def test_every_unit_is_listed(region_program: Callable[[str], object]) -> None:
    listed = subprocess.run([str(region_program("units"))], capture_output=True, text=True, check=True).stdout.split()
    assert listed == [*UNITS, *PLANTED]


@pytest.mark.report("B101", "B103", "B110")
@pytest.mark.sanitize
@pytest.mark.parametrize("name", UNITS)
def test_unit(passes: Run, name: str) -> None:
    passes("units", name)


@pytest.mark.sanitize
@pytest.mark.parametrize(("name", "seen_by"), PLANTED.items())
def test_planted_failures_are_caught(run_region: Run, sanitizer: str, name: str, seen_by: str) -> None:
    if seen_by in ("", sanitizer):
        done = run_region("units", name)
        assert done.returncode != 0
        assert done.stderr
    elif not sanitizer:
        assert run_region("units", name).returncode == 0  # only its sanitizer can see it


@pytest.mark.report("B99", "B103", "B104")
@pytest.mark.parametrize("lock", ["robust", "file"])
@pytest.mark.parametrize("work", STEPPED)
def test_killed_at_any_instruction(passes: Run, sanitizer: str, lock: str, work: str) -> None:
    stride = STRIDE.get(work, 11) * (20 if sanitizer else 1)
    deaths = int(passes("killsteps", lock, work, stride).stdout.split()[0])
    assert deaths >= (1 if sanitizer else 10)


@pytest.mark.full
@pytest.mark.parametrize("lock", ["robust", "file"])
@pytest.mark.parametrize("work", STEPPED)
def test_killed_at_every_instruction(passes: Run, lock: str, work: str) -> None:
    passes("killsteps", lock, work, 7 if work in ("context", "bury", "leave") else 1, timeout=600)


@pytest.mark.report("B99", plants="a byte lost by a death")
@pytest.mark.parametrize("work", ["reserve", "make"])
def test_a_lost_byte_is_noticed_after_a_death(run_region: Run, work: str) -> None:
    done = run_region("killsteps", "robust", work, 50, "plant")
    assert done.returncode != 0
    assert "expected" in done.stderr


@pytest.mark.report("B45", "B50")
@pytest.mark.sanitize
@pytest.mark.parametrize("mode", ["reserve", "double-check"])
@pytest.mark.parametrize("lock", ["robust", "file", "namespaces"])
def test_stress(passes: Run, sanitizer: str, seed: int, lock: str, mode: str) -> None:
    passes("stress", lock, mode, 16, 4, 200 if sanitizer else 2000, seed)


@pytest.mark.full
@pytest.mark.parametrize("lock", ["robust", "file", "namespaces"])
def test_stress_with_ten_thousand_operations(passes: Run, seed: int, lock: str) -> None:
    for more in range(5):
        passes("stress", lock, "reserve", 16, 4, 10000, seed + more, timeout=600)


@pytest.mark.report("B45", plants="a byte taken from the books")
def test_stress_finds_a_byte_that_nobody_accounts_for(run_region: Run, seed: int) -> None:
    done = run_region("stress", "robust", "reserve", 8, 2, 200, seed, "plant")
    assert done.returncode != 0
    assert "does not hold" in done.stderr or "expected" in done.stderr


def test_sixty_four_processes_make_one_region(passes: Run) -> None:
    passes("crowd", "race", 64)


def test_the_1025th_process_is_an_error_and_not_an_exit(passes: Run) -> None:
    assert "all 1024 slots" in passes("crowd", "full").stderr


@pytest.mark.parametrize("lock", ["robust", "file"])
@pytest.mark.parametrize("cycles", [300, pytest.param(10_000, marks=pytest.mark.full)])
def test_register_and_end_over_and_over(passes: Run, seed: int, lock: str, cycles: int) -> None:
    assert passes("cycles", cycles, lock, seed, timeout=600).stdout.startswith(f"{cycles} cycles")


def test_a_robust_region_belongs_to_one_pid_namespace(passes: Run) -> None:
    passes("crowd", "namespace")


@pytest.mark.report("B104")
def test_a_killed_waiter_hands_no_lock_on(passes: Run) -> None:
    passes("waiters", "file")


@pytest.mark.report("B103", "B104", plants="a robust mutex across PID namespaces")
def test_a_robust_mutex_across_namespaces_does(passes: Run) -> None:
    passes("waiters", "robust-misuse")
