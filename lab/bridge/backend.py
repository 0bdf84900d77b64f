"""What executes a job: a backend is handed good jobs only, one at a time, and gives the whole output or raises."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from lab.bridge.records import Job


class BackendError(RuntimeError):
    """The launch failed; `code` is the CUresult."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True, slots=True)
class Result:
    """What a launch left: the output, and the kernel's own nanoseconds."""

    output: bytes | bytearray | memoryview
    kernel_ns: int


class Backend(Protocol):
    """A device. `name` is at most 63 bytes."""

    name: str

    def run(self, job: Job, data: bytes) -> Result:
        """Launches a good job with at least one element. `BackendError` for what CUDA refuses; MemoryError passes."""

    def close(self) -> None:
        """Gives the device back."""
