"""One process of a run: started through hooklab-box, watched by a pidfd, ended by its PID."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from lab import native
from lab.runner.guest import GuestError

_REPORT_PATIENCE_S = 30.0


class Guest:
    """A started process. ``pid`` is its number in our PID namespace (that of the node server: the host's)."""

    def __init__(self, popen: subprocess.Popen[bytes], pid: int, channel: socket.socket | None) -> None:
        self.popen = popen
        self.pid = pid
        self.channel = channel
        self.pidfd = os.pidfd_open(popen.pid)
        self.received = b""

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal to the guest itself."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def status(self) -> int:
        """The raw wait status; the process must have ended or be about to."""
        code = self.popen.wait()
        return -code if code < 0 else code << 8

    def close(self) -> None:
        """Give the descriptors back."""
        os.close(self.pidfd)
        if self.channel is not None:
            self.channel.close()
            self.channel = None


def start_guest(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    scratch: Path,
    label: str,
    enter: Sequence[str] = (),
    cwd: str | None = None,
    control: bool = False,
    hold: bool = False,
    stdin: int | IO[Any] | None = subprocess.DEVNULL,
    stdout: int | IO[Any] | None = None,
    stderr: int | IO[Any] | None = None,
    own_session: bool = True,
) -> Guest:
    """Start ``command`` with exactly ``environment``.

    ``control``: it gets HOOKLAB_CONTROL_FD and talks to us itself. ``hold``: hooklab-box says ready and waits for our
    word before it executes the command. ``enter``: :meth:`Container.enter_arguments`.
    """
    variables = dict(environment)
    ours, theirs = socket.socketpair() if control or hold else (None, None)
    reading, writing = os.pipe()
    passed = [writing]
    arguments = [str(native.path("hooklab-box")), "enter", "--report", str(writing), *enter]
    if theirs is not None:
        passed.append(theirs.fileno())
        if hold:
            arguments += ["--hold", str(theirs.fileno())]
        else:
            variables["HOOKLAB_CONTROL_FD"] = str(theirs.fileno())
    file = scratch / f"environment-{label}"
    file.write_bytes(b"".join(os.fsencode(f"{key}={value}") + b"\0" for key, value in variables.items()))
    arguments += ["--environment", str(file)]
    if cwd is not None:
        arguments += ["--cwd", cwd]
    try:
        popen = subprocess.Popen(
            [*arguments, "--", *command],
            stdin=stdin, stdout=stdout, stderr=stderr,
            pass_fds=passed, start_new_session=own_session, env={},
        )  # fmt: skip
    except OSError as error:
        os.close(reading)
        if ours is not None:
            ours.close()
        raise GuestError(f"{label}: cannot start: {error.strerror}") from None
    finally:
        os.close(writing)
        if theirs is not None:
            theirs.close()
    pid = _reported_pid(reading) or popen.pid
    return Guest(popen, pid, ours)


def _reported_pid(descriptor: int) -> int | None:
    """What hooklab-box said; None when it ended before it could (its exit status then tells)."""
    with os.fdopen(descriptor, "rb") as report:
        if not select.select([report], [], [], _REPORT_PATIENCE_S)[0]:
            return None
        words = report.readline().split()
    return int(words[1]) if len(words) == 2 and words[0] == b"pid" else None


def end_strays(token: str) -> list[int]:
    """Kill every process whose environment holds ``token`` (a value no other run has); their PIDs.

    A guest's children that left its session are found so; the caller ends the guests themselves by PID.
    """
    found = []
    needle = os.fsencode(token)
    for entry in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            text = Path(f"/proc/{entry}/environ").read_bytes()
        except OSError:
            continue
        if needle in text:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(int(entry), signal.SIGKILL)
                found.append(int(entry))
    return found
