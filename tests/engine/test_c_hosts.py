"""The engine in hosts that are C programs: threads, forks, signals, cancellation, exit, what it must leave alone."""

import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Host = Callable[[str], Path]
Run = Callable[..., Any]


@pytest.mark.sanitize
def test_a_guest_leaves_its_host_as_it_was(engine: Path, host: Host, run: Run, faulty: str) -> None:
    result = run([host("guest")], engine=engine, policy=faulty)
    assert (result.out, result.err) == ("", "")


@pytest.mark.sanitize
@pytest.mark.parametrize("mode", ["together", "keys", "small"])
def test_threads(engine: Path, host: Host, run: Run, mode: str) -> None:
    run([host("threads"), mode], engine=engine)


def test_a_cancelled_thread_ends_after_its_call(engine: Path, host: Host, run: Run, faulty: str) -> None:
    run([host("threads"), "cancel"], engine=engine, policy=faulty)


def test_short_threads_leave_nothing_behind(engine: Path, host: Host, run: Run) -> None:
    run([host("threads"), "short", "5000"], engine=engine)


def test_a_leak_per_thread_is_seen(engine: Path, host: Host, run: Run) -> None:
    result = run([host("threads"), "short-leak", "1000"], engine=engine, status=99)
    assert "grew by" in result.err


@pytest.mark.sanitize
def test_fork_storm(engine: Path, host: Host, run: Run) -> None:
    run([host("forks"), "storm", "50"], engine=engine)


@pytest.mark.full
def test_long_fork_storm(engine: Path, host: Host, run: Run) -> None:
    run([host("forks"), "storm", "150"], engine=engine, timeout=180)


@pytest.mark.sanitize
def test_forks_beside_a_boot(engine: Path, host: Host, run: Run) -> None:
    run([host("forks"), "boot", "24"], engine=engine)


@pytest.mark.sanitize
@pytest.mark.parametrize("mode", ["inside", "waiting", "late"])
def test_forks_at_awkward_moments(engine: Path, host: Host, run: Run, faulty: str, mode: str) -> None:
    run([host("forks"), mode], engine=engine, policy=faulty)


@pytest.mark.sanitize
@pytest.mark.parametrize("mode", ["handler", "idle", "log"])
def test_reentry(engine: Path, host: Host, run: Run, faulty: str, mode: str) -> None:
    run([host("signals"), mode], engine=engine, policy=faulty)


@pytest.mark.sanitize
def test_exit_while_a_thread_is_inside(engine: Path, host: Host, run: Run, faulty: str) -> None:
    run([host("signals"), "exit"], engine=engine, policy=faulty, status=23)


def _late(mode: str, status: int, engine: Path, host: Host, run: Run, tmp_path: Path) -> None:
    pipe = tmp_path / "policy.py"
    os.mkfifo(pipe)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    command = [host("late"), mode, host("latecomer")]
    run(command, engine=engine, policy=f"{pipe}:Late", environment={"LATE_PIPE": str(pipe)}, status=status)


def test_boot_beside_a_constructor_that_calls(engine: Path, host: Host, run: Run, tmp_path: Path) -> None:
    _late("good", 0, engine, host, run, tmp_path)


def test_the_wrong_boot_order_deadlocks(engine: Path, host: Host, run: Run, tmp_path: Path) -> None:
    _late("bad", -signal.SIGALRM, engine, host, run, tmp_path)


HOSTILE = {
    "PYTHONHOME": "/nonexistent",
    "PYTHONPATH": "/nonexistent/modules",
    "PYTHONSTARTUP": "/nonexistent/startup.py",
    "PYTHONMALLOC": "debug",
    "PYTHONUTF8": "0",
    "PYTHONIOENCODING": "cp037",
    "PYTHONDEVMODE": "1",
    "PYTHONVERBOSE": "3",
    "PYTHONINSPECT": "1",
    "PYTHONHASHSEED": "nonsense",
    "PYTHONPLATLIBDIR": "nowhere",
    "LC_ALL": "nowhere.ISO-8859-1",
}


def test_hostile_environment_without_a_disk(engine: Path, host: Host, run: Run, faulty: str) -> None:
    for policy in ("", faulty):
        result = run([host("nodisk")], engine=engine, policy=policy, environment=HOSTILE)
        assert result.out == ""
        # The second is the name that the interpreter is told it was started by.
        assert set(result.err.splitlines()) <= {"refused /etc/passwd", "refused /nonexistent/hooklab-engine"}


def test_the_disk_is_really_missing(engine: Path, host: Host, run: Run, tmp_path: Path) -> None:
    policy = tmp_path / "policy.py"
    policy.write_text("import json\n")
    result = run([host("nodisk")], engine=engine, policy=f"{policy}:P", status=3)
    assert "refused /etc/passwd" in result.err
    assert "a policy cannot import json" in result.err


def test_closed_standard_streams(engine: Path, host: Host, run: Run, faulty: str) -> None:
    for policy in ("", faulty):
        result = run([host("threads"), "small"], engine=engine, policy=policy, closed=True)
        assert (result.out, result.err) == ("", "")
