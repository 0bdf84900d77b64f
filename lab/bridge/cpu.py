"""The CPU backend: numpy in the GPU's place, with the GPU's results and refusals.

Invariants: elements that no thread of the launch reaches are zero; a shape that every GPU refuses is
CUDA_ERROR_INVALID_VALUE here, too.
"""

from __future__ import annotations

import time

import numpy as np

from lab.bridge.backend import BackendError, Result
from lab.bridge.records import MAIL, Job, mail_text

INVALID_VALUE = 1
GRID_MAX, BLOCK_MAX = (0x7FFFFFFF, 65535, 65535), (1024, 1024, 64)
BLOCK_THREADS_MAX, SHARED_MAX = 1024, 48 << 10


class CpuBackend:
    """No GPU is touched."""

    name = "CPU (numpy)"

    def run(self, job: Job, data: bytes) -> Result:
        """As `Backend.run`; `kernel_ns` is the arithmetic's wall time."""
        grid, block = job.shape
        reason = _refusal(job)
        if reason:
            raise BackendError(INVALID_VALUE, f"CUDA_ERROR_INVALID_VALUE: {reason}")
        began = time.monotonic_ns()
        if job.opcode == MAIL:  # its threads stride over the output: any grid reaches all of it
            return Result(mail_text(job.n), time.monotonic_ns() - began)
        inputs = np.frombuffer(data, "<f4")
        reached = min(job.n, grid[0] * block[0])
        output = np.zeros(job.n, "<f4")
        with np.errstate(all="ignore"):
            np.add(inputs[:reached], inputs[job.n : job.n + reached], out=output[:reached])
        return Result(output.tobytes(), time.monotonic_ns() - began)

    def close(self) -> None:
        """Nothing to give back."""


def _refusal(job: Job) -> str:
    """Why every GPU refuses the launch; empty if none does for that reason."""
    grid, block = job.shape
    for axis, length, most in zip("xyz", grid, GRID_MAX, strict=True):
        if length > most:
            return f"grid.{axis} {length} is over {most}"
    for axis, length, most in zip("xyz", block, BLOCK_MAX, strict=True):
        if length > most:
            return f"block.{axis} {length} is over {most}"
    threads = block[0] * block[1] * block[2]
    if threads > BLOCK_THREADS_MAX:
        return f"{threads} threads in a block are over {BLOCK_THREADS_MAX}"
    return f"{job.shared} bytes of shared memory are over {SHARED_MAX}" if job.shared > SHARED_MAX else ""
