"""Who waits for a region's lock sleeps in the kernel's own queue, and a death hands the lock on: no polling, no
back-off, no deadline that a slow file system could miss."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

OWNER = """
import fcntl, struct, sys
file = open(sys.argv[1], "r+b")
fcntl.fcntl(file, fcntl.F_OFD_SETLKW, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 1, 0))
print("held", flush=True)
sys.stdin.read()
"""


def waiters(file: Path) -> int:
    """How many wait for a lock on a file, as the kernel lists them."""
    inode = str(file.stat().st_ino)
    lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return sum(words[1] == "->" and words[-3].split(":")[-1] == inode for words in lines)


@pytest.mark.report("B102", plants="an owner that dies with the lock")
def test_a_dead_owner_hands_the_lock_on_at_once(place: Any) -> None:
    life = place.start("init", "wait", "alloc", "view", HOOKLAB_REGION_LOCK="file")
    assert life.heard("init")[0] == 0
    life.heard("waiting")
    command = [sys.executable, "-c", OWNER, str(place.region)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout
        assert owner.stdout.readline() == "held\n"
        assert waiters(place.region) == 0
        life.say()
        deadline = time.monotonic() + 30
        while not waiters(place.region):
            assert time.monotonic() < deadline, "nobody waits in the kernel: the waiter polls, or never asked"
            os.sched_yield()
        assert waiters(place.region) == 1
        owner.kill()
    assert life.heard("alloc")[0] == 0
    assert life.heard("view")[0] == 1024 - 64 - 64
    assert life.ended() == 0
    place.zero()
