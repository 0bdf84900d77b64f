"""Threads and processes that race for one container's tokens are never granted more than there are."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import limiter_rig as rig

ALLOWANCE = 20_000
PROCESSES, THREADS = 4, 4
BULK = 64  # granted at a time


def race(program: Path, folder: Path, *plant: str, killed: int = 0) -> dict[str, int]:
    words = [str(program), str(folder / "region"), str(PROCESSES), str(THREADS), str(ALLOWANCE), str(killed)]
    done = subprocess.run([*words, *plant], capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def program(compile_c: Callable[..., Path], root: Path) -> Path:
    return rig.build_race(compile_c, root)


def kept(found: dict[str, int]) -> int:
    """Tokens that are accounted for."""
    return found["spent"] + found["held"] + found["left"] + found["back"]


def test_no_token_is_granted_twice_and_none_is_lost(program: Path, tmp_path: Path) -> None:
    found = race(program, tmp_path)
    assert kept(found) == ALLOWANCE, found
    assert found["conflicts"] > 0, found  # it was a race
    assert found["launches"] > found["leases"], found  # and most launches did not have to ask


def test_the_killed_take_their_lease_with_them_and_no_more(program: Path, tmp_path: Path) -> None:
    found = race(program, tmp_path, killed=2)
    # What a thread spent when its process was killed may not have been written down yet: 7 for each.
    assert ALLOWANCE - 2 * (BULK * 2 + 7 * THREADS) <= kept(found) <= ALLOWANCE, found


def test_a_racy_bucket_is_caught(program: Path, tmp_path: Path) -> None:
    found = race(program, tmp_path, "overwrites")
    assert kept(found) > ALLOWANCE, found


@pytest.mark.full
def test_the_race_detector_finds_nothing(compile_c: Callable[..., Path], root: Path, tmp_path: Path) -> None:
    program = rig.build_race(compile_c, root, "-fsanitize=thread", "-Wno-tsan")
    words = [
        "setarch",
        "-R",
        str(program),
        str(tmp_path / "region"),
        "2",
        "4",
        "20000",
        "0",
    ]  # it wants fixed addresses
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert "data race" not in done.stderr, done.stderr
    assert done.returncode == 0, done.stderr
    assert kept(json.loads(done.stdout)) == 20_000
