"""A rig whose daemon is a fork of the test's own process: no interpreter to start, so that many can be judged."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lab.bridge.rig import Rig


class Fork:
    """As much of subprocess.Popen as a rig uses."""

    def __init__(self, body: Callable[[], int], log: Path) -> None:
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            code = 111
            try:
                os.setsid()
                descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
                os.dup2(descriptor, 1)
                os.dup2(descriptor, 2)
                sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - pytest's own is elsewhere
                code = body()
                sys.stdout.flush()
            except BaseException as error:
                os.write(2, f"{type(error).__name__}: {error}\n".encode())
            finally:
                os._exit(code)

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def wait(self, timeout: float = 60) -> int:
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                os.kill(self.pid, 9)
            time.sleep(0.001)
        assert self.returncode is not None
        return self.returncode


class ForkRig(Rig):
    """`body(paths)` is the daemon's main function."""

    def __init__(self, folder: Path, body: Callable[[dict[str, str]], int], **options: Any) -> None:
        self.body = body
        super().__init__(folder, "fork {job} {in} {out} {done}", **options)

    def spawn(self, prepare: Callable[[], None]) -> Any:
        paths = {role: str(path) for role, path in self.path.items()}

        def body() -> int:
            prepare()
            return self.body(paths)

        return Fork(body, self.log)
