"""What the machine's own NVML says of processes: the physical truth of a run on a real GPU.

Loaded by hand in the runner's process, outside of all containers, under no interposer. No setting of a card is changed.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Collection
from typing import Self

_INSUFFICIENT_SIZE = 7
_NOT_AVAILABLE = 2**64 - 1


class _Process(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class NvmlError(Exception):
    """NVML cannot be asked here; one line."""


class Nvml:
    """A session with NVML; use as a context manager. Every method raises NvmlError."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError as error:
            raise NvmlError(f"no NVML on this machine ({error})") from None
        self._check("nvmlInit_v2")
        count = ctypes.c_uint()
        self._check("nvmlDeviceGetCount_v2", ctypes.byref(count))
        self._devices = [self._handle(index) for index in range(count.value)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._library.nvmlShutdown()

    def _handle(self, index: int) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        self._check("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
        return handle

    def _call(self, name: str, *arguments: object) -> int:
        try:
            return int(getattr(self._library, name)(*arguments))
        except AttributeError:
            raise NvmlError(f"this machine's NVML has no {name}") from None

    def _check(self, name: str, *arguments: object) -> None:
        code = self._call(name, *arguments)
        if code:
            raise NvmlError(f"{name} failed with NVML code {code}")

    def held(self) -> dict[int, dict[int, int]]:
        """PID as NVML tells it -> bytes by NVML's index of the device, of every process with a context."""
        found: dict[int, dict[int, int]] = {}
        for index, device in enumerate(self._devices):
            for entry in self._running(device):
                if entry.used == _NOT_AVAILABLE:
                    raise NvmlError("this driver does not say what a process holds")
                found.setdefault(entry.pid, {})[index] = entry.used
        return found

    def _running(self, device: ctypes.c_void_p) -> list[_Process]:
        room = 64
        while True:
            entries, count = (_Process * room)(), ctypes.c_uint(room)
            code = self._call("nvmlDeviceGetComputeRunningProcesses_v3", device, ctypes.byref(count), entries)
            if code == 0:
                return list(entries[: count.value])
            if code != _INSUFFICIENT_SIZE:
                raise NvmlError(f"nvmlDeviceGetComputeRunningProcesses_v3 failed with NVML code {code}")
            room = max(2 * room, count.value + 16)

    def wait_gone(self, pids: Collection[int], *, patience_s: float) -> dict[int, dict[int, int]]:
        """Bytes that these processes still hold once the driver has let go of them, or the time is over."""
        deadline = time.monotonic() + patience_s
        while True:
            left = {pid: size for pid, size in self.held().items() if pid in pids}
            if not left or time.monotonic() >= deadline:
                return left
            time.sleep(0.02)  # the driver tells nobody when it has taken a process apart
