"""The engine in hosts that are Python themselves, of the engine's version and of others."""

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Host = Callable[[str], Path]
Run = Callable[..., Any]


@pytest.mark.parametrize("mode", ["calls", "gil"])
def test_hosts(python: Path, engine: Path, host: Host, run: Run, script: Path, mode: str) -> None:
    result = run([python, script, host("gil"), mode], engine=engine)
    assert result.out.split()[1] in ("static", "copy")


def test_the_hosts_own_interpreter_would_deadlock(
    engines: Callable[[str], Path], host: Host, run: Run, script: Path
) -> None:
    command = [sys.executable, script, host("gil"), "gil-bad"]
    run(command, engine=engines("static"), status=-signal.SIGALRM)


def test_fork_storm(python: Path, engine: Path, host: Host, run: Run, script: Path) -> None:
    run([python, script, host("gil"), "forks", "10"], engine=engine)


@pytest.mark.full
def test_long_fork_storm(python: Path, engine: Path, host: Host, run: Run, script: Path) -> None:
    run([python, script, host("gil"), "forks", "150"], engine=engine, timeout=300)


def test_child_processes(python: Path, engines: Callable[[str], Path], host: Host, run: Run, script: Path) -> None:
    run([python, script, host("gil"), "spawn"], engine=engines("static"))


def test_exit_while_a_thread_is_inside(
    python: Path, engine: Path, host: Host, run: Run, script: Path, faulty: str
) -> None:
    run([python, script, host("gil"), "exit"], engine=engine, policy=faulty, status=23)
