"""A daemon under test: its files, its process, and waiting for it without guesses.

Invariants: files are made with the modes of debugfs (0444, 0200) and are never replaced while the daemon runs, unless a
test asks for that; every wait has an end; every process that was started is ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import shlex
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from lab.bridge.records import RECORD_BYTES, Done, Job
from lab.bridge.watch import Watch

ROLES = ("job", "in", "out", "done")
MODES = {"job": 0o444, "in": 0o444, "out": 0o200, "done": 0o200}
_PR_CAPBSET_DROP, _DAC_OVERRIDE, _DAC_READ_SEARCH = 24, 1, 2


class SilentError(Exception):
    """No done record came in time, or the daemon has ended: one clause."""


class Rig:
    """Four files in an empty `folder`, and a daemon over them. `command` has {job} {in} {out} {done}.

    `patience_s` is how long an answer may take (the first after a start: `start_s`), `idle_s` how long a daemon is
    watched where nothing shows that it looks (several of its polls).
    """

    def __init__(self, folder: Path, command: str, *, patience_s: float, idle_s: float, start_s: float = 60.0) -> None:
        self.folder, self.patience_s, self.idle_s = folder, patience_s, idle_s
        self.start_s = max(patience_s, start_s)
        self.path = {role: folder / role for role in ROLES}
        self.argv = arguments(command, self.path)
        self.watch, self.inputs = Watch(), Watch()  # apart: a busy job file must not push the other's events out
        self.seq = 0
        self.log = folder / "log"
        self.process: subprocess.Popen[bytes] | None = None
        self._descriptor: dict[str, int] = {}
        for role in ROLES:
            self.make(role)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self.watch.close()
        self.inputs.close()
        for descriptor in self._descriptor.values():
            os.close(descriptor)

    # -- files --
    def make(self, role: str) -> None:
        """Makes a file anew; the old one, if any, is removed."""
        self.remove(role)
        path = self.path[role]
        self._descriptor[role] = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.chmod(path, MODES[role])
        (self.inputs if role == "in" else self.watch).add(path)

    def remove(self, role: str) -> None:
        """Removes a file."""
        if role in self._descriptor:
            os.close(self._descriptor.pop(role))
        path = self.path[role]
        if path.is_dir():
            path.rmdir()
        path.unlink(missing_ok=True)

    def put(self, role: str, data: bytes) -> None:
        """Makes the content of a file `data`: first nothing, then all, so that no reader sees a mixture."""
        descriptor, moved = self._descriptor[role], 0
        os.ftruncate(descriptor, 0)
        while moved < len(data):
            moved += os.pwrite(descriptor, data[moved:], moved)

    def get(self, role: str, size: int = 1 << 26) -> bytes:
        """The content of a file."""
        descriptor, found = self._descriptor[role], bytearray()
        while part := os.pread(descriptor, min(size - len(found), 1 << 20), len(found)):
            found += part
        return bytes(found)

    def reads(self) -> int:
        """How often the daemon was seen reading the input; at least that often."""
        self.inputs.catch_up()
        return self.inputs.read[str(self.path["in"])]

    # -- the process --
    def start(self, *, limit_bytes: int = 0, without_privileges: bool = False, wait: bool = True) -> None:
        """Starts the daemon. `limit_bytes`: no file grows longer (RLIMIT_FSIZE). `without_privileges`: modes count,
        for root too. With `wait` it has answered a job when this returns, else `SilentError`."""
        self.stop()

        def prepare() -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            if limit_bytes:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))
            if without_privileges and os.geteuid() == 0:
                libc = ctypes.CDLL(None)
                libc.prctl(_PR_CAPBSET_DROP, _DAC_OVERRIDE, 0, 0, 0)
                libc.prctl(_PR_CAPBSET_DROP, _DAC_READ_SEARCH, 0, 0, 0)

        self.process = self.spawn(prepare)
        if wait:
            self.ask(Job.mail(self.next(), 1), patience_s=self.start_s)

    def spawn(self, prepare: Callable[[], None]) -> subprocess.Popen[bytes]:
        """A process in a session of its own, `prepare` called in it first; both its outputs go to the log."""
        with self.log.open("ab") as log:
            return subprocess.Popen(
                self.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=prepare,
            )

    def stop(self, number: int = signal.SIGTERM) -> int | None:
        """Ends the daemon (and what it started); returns its wait status, None if none ran."""
        if self.process is None:
            return None
        process, self.process = self.process, None
        process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        return process.wait()

    # -- jobs --
    def next(self) -> int:
        """The next seq."""
        self.seq += 1
        return self.seq

    def offer(self, job: Job | bytes, data: bytes = b"") -> None:
        """Puts a job where the daemon looks, its input first."""
        self.put("in", data)
        self.put("job", job if isinstance(job, bytes) else job.pack())

    def ask(self, job: Job, data: bytes = b"", *, patience_s: float | None = None) -> Done:
        """Offers a job and waits for the done record with its seq."""
        self.offer(job, data)
        return self.answer(job.seq, patience_s=patience_s)

    def answer(self, seq: int, *, patience_s: float | None = None) -> Done:
        """Waits for the done record of `seq`. `SilentError` if it does not come or the daemon ends first."""
        last = b""

        def came() -> bool:
            nonlocal last
            last = self.get("done", RECORD_BYTES)
            return self.over or (len(last) == RECORD_BYTES and Done.unpack(last).seq == seq)

        wait = self.patience_s if patience_s is None else patience_s
        self.watch.until(came, wait)
        if len(last) < RECORD_BYTES or Done.unpack(last).seq != seq:
            why = f"the daemon has ended ({self.ending})" if self.over else f"no done record within {wait:g} s"
            raise SilentError(f"seq {seq}: {why}")
        return Done.unpack(last)

    def looked(self, *, at_least: int = 12) -> None:
        """Until the daemon has looked at the job again since now, as far as that can be seen; else for a while."""
        name = str(self.path["job"])
        self.watch.catch_up()
        began = self.watch.opened[name] + self.watch.read[name]
        self.watch.until(
            lambda: self.over or self.watch.opened[name] + self.watch.read[name] - began >= at_least, self.idle_s
        )

    def output_came_late(self) -> bool:
        """Whether the output was written after the done record, as far as that can be seen: a daemon that looks for its
        next job has written all that it will."""
        self.looked(at_least=1)
        out, done = (self.watch.written.get(str(self.path[role]), 0) for role in ("out", "done"))
        return out > done

    @property
    def over(self) -> bool:
        """The daemon has ended by itself."""
        return self.process is None or self.process.poll() is not None

    @property
    def ending(self) -> str:
        """How."""
        code = self.process.returncode if self.process is not None else None
        if code is not None and code < 0:
            return f"signal {signal.Signals(-code).name}"
        return f"exit status {code}"


def arguments(command: str, paths: dict[str, Path], needed: Sequence[str] = ROLES) -> list[str]:
    """A command template as an argument list. ValueError, in one line, when it does not name all files."""
    missing = [role for role in needed if f"{{{role}}}" not in command]
    if missing:
        raise ValueError(f"{command!r} does not name {', '.join(f'{{{role}}}' for role in missing)}")
    found = []
    for word in shlex.split(command):
        for role, path in paths.items():
            word = word.replace(f"{{{role}}}", str(path))
        found.append(word)
    if not found:
        raise ValueError("the command is empty")
    return found
