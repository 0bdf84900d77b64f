"""`execute: bridge`: kernels of a run's fake driver become jobs of the CUDA bridge.

This is the module's side: in memory with a daemon of our own in a thread (CPU), or over plain files that a daemon
elsewhere serves (a folder with `job`, `in`, `out` and `done`), and so perhaps a real GPU. What came of a job becomes
the CUresult that a driver with the GPU would have given:

* status 1 (a job that cannot be): the launch fails with CUDA_ERROR_INVALID_VALUE;
* status 2 (a CUDA error): that error; errors that end a context come with the next synchronisation and stay;
* status 3, or no sense in the answer: CUDA_ERROR_EXTERNAL_DEVICE, and no answer in time: CUDA_ERROR_LAUNCH_TIMEOUT,
  both with the next synchronisation, and they stay;
* elements that the daemon itself found wrong are data: the launch succeeds, the record of the job counts them.
"""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any, Self

from lab.bridge.cpu import CpuBackend
from lab.bridge.daemon import Daemon
from lab.bridge.files import READ_ROLES, WRITE_ROLES
from lab.bridge.module import FileModule, Module, ModuleError, Ticket
from lab.bridge.records import BAD_JOB, CUDA_ERROR
from lab.node.elsewhere import Outcome, Work
from lab.node.layout import constants
from lab.runner.guest import GuestError

INVALID_VALUE, LAUNCH_TIMEOUT, EXTERNAL_DEVICE, UNKNOWN = 1, 702, 911, 999
ENDS_CONTEXT = frozenset({214, 220, 226, 227, 700, 702, 710, 714, 715, 716, 717, 718, 719, 911})
"""CUresults that end a context: ECC, NVLink, contained and illegal accesses, time-outs, asserts, traps."""


class Bridge:
    """Runs kernels of any number of processes, one after another; called from the server's threads."""

    def __init__(self, *, files: str | None, timeout_ns: int) -> None:
        self._timeout_s = timeout_ns / 1e9
        self._stop, self._submitted = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self.devices: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self._module: Module
        if files is None:
            self._module = Module()
            self._daemon = Daemon(self._module, CpuBackend())
            self._thread = threading.Thread(target=self._serve, name="bridge-daemon")
            return
        folder = Path(files)
        if not folder.is_dir():
            raise GuestError(f"node.bridge.files: {files}: no such folder; a daemon serves job, in, out and done in it")
        try:
            self._module = FileModule({role: folder / role for role in (*READ_ROLES, *WRITE_ROLES)})
        except OSError as error:
            raise GuestError(f"node.bridge.files: {error}") from None

    def __enter__(self) -> Self:
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._submitted.set()
        if self._thread is not None:
            self._thread.join()

    def _serve(self) -> None:
        while not self._stop.is_set():
            self._submitted.clear()
            if self._daemon.poll() is None:
                self._submitted.wait()

    def __call__(self, work: Work) -> Outcome:
        """Submit, wait, translate. Never raises: what goes wrong is an outcome."""
        shape: dict[str, Any] = {"grid": work.grid, "block": work.block, "shared": work.shared}
        try:
            if work.opcode == constants()["HL_RUN_VADD"]:
                ticket = self._module.vadd(work.data, **shape)
            else:
                ticket = self._module.mail(work.n, **shape)
            self._submitted.set()
            self._module.wait(ticket, timeout_s=self._timeout_s)
        except (ModuleError, OSError) as error:
            self._note(failure=str(error))
            late = isinstance(error, ModuleError)
            return Outcome(LAUNCH_TIMEOUT if late else EXTERNAL_DEVICE, deferred=True)
        return self._outcome(ticket)

    def _outcome(self, ticket: Ticket) -> Outcome:
        done = ticket.done
        facts: dict[str, Any] = {"seq": ticket.job.seq, "status": ticket.status}
        if done is not None:
            facts |= {"bad": done.bad, "kernel_ns": done.kernel_ns}
        if ticket.ok:
            self._note(device=done.device if done is not None else "")
            return Outcome(0, output=ticket.output or b"", **facts)
        self._note(failure=ticket.failure or "failed")
        if ticket.status == BAD_JOB:
            return Outcome(INVALID_VALUE, **facts)
        if ticket.status == CUDA_ERROR:
            code = ticket.err_code or UNKNOWN
            return Outcome(code, deferred=code in ENDS_CONTEXT, **facts)
        return Outcome(EXTERNAL_DEVICE, deferred=True, **facts)  # transport, or an answer without its output

    def _note(self, *, device: str = "", failure: str = "") -> None:
        with self._lock:
            if device:
                self.devices[device] += 1
            if failure:
                self.failures[failure] += 1

    def notes(self) -> list[str]:
        """What the report says of the bridge: who ran how many kernels, and what failed."""
        with self._lock:
            said = [
                f"{count} kernels were run over the bridge by {name}" for name, count in sorted(self.devices.items())
            ]
            return said + [f"bridge, {count} times: {text}" for text, count in sorted(self.failures.items())]
