"""The service that an interposer's dialect wants beside the containers: started before them, ended with the run.

It gets the directories that it shares with the containers and nothing else of theirs; it is ready when its socket
takes a connection.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from pathlib import Path
from typing import Self

from lab.runner import plan
from lab.runner.container import Container
from lab.runner.dialects import service_container
from lab.runner.guest import GuestError
from lab.runner.process import Guest, start_guest
from lab.spec import Dialect

_PATIENCE_S = 20.0
_ROUND_MS = 20


class ServiceProcess:
    """A running service; `close` ends it by its PID."""

    def __init__(self, dialect: Dialect, *, library: Path, scratch: Path, log: Path) -> None:
        """GuestError with one line when it cannot be started or does not get ready."""
        assert dialect.service is not None
        self._name = dialect.service.command[0]
        program = library.parent / self._name
        if not os.access(program, os.X_OK):
            raise GuestError(
                f"{program}: no such program; dialect {dialect.name} needs it beside the interposer {library.name}"
            )
        self._container: Container = service_container(dialect, scratch=scratch, keep=[program.parent])
        self._guest: Guest | None = None
        places = {inside: outside for outside, inside in self._container.layout.directories}
        self._socket = places[os.path.dirname(dialect.service.ready)] / os.path.basename(dialect.service.ready)
        try:
            self._container.start({})
            with log.open("wb") as stream:
                self._guest = start_guest(
                    [str(program), *dialect.service.command[1:]],
                    environment=plan.inherited(),
                    scratch=scratch,
                    label="service",
                    enter=self._container.enter_arguments(),
                    cwd="/",
                    stdout=stream,
                    stderr=stream,
                )
            self._wait(log)
        except BaseException:
            self.close()
            raise

    def _wait(self, log: Path) -> None:
        assert self._guest is not None
        deadline = time.monotonic() + _PATIENCE_S
        poll = select.poll()
        poll.register(self._guest.pidfd, select.POLLIN)
        while time.monotonic() < deadline:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, contextlib.suppress(OSError):
                # By way of a descriptor: the path may be longer than an address has room for.
                folder = os.open(self._socket.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    probe.connect(f"/proc/self/fd/{folder}/{self._socket.name}")
                    return
                finally:
                    os.close(folder)
            if poll.poll(_ROUND_MS):
                last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
                raise GuestError(f"the service {self._name} ended at once: {(last or ['it said nothing'])[0]}")
        raise GuestError(f"the service {self._name} does not listen at its socket after {_PATIENCE_S:g} s")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it. More than once is allowed."""
        if self._guest is not None:
            self._guest.kill(signal.SIGKILL)
            self._guest.status()
            self._guest.close()
            self._guest = None
        self._container.stop()


def service_of(dialect: Dialect, library: Path | None, *, scratch: Path, log: Path) -> ServiceProcess | None:
    """The service of a dialect, started; None when it has none or no interposer is there."""
    if dialect.service is None or library is None:
        return None
    return ServiceProcess(dialect, library=library, scratch=scratch, log=log)
