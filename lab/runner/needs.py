"""What a scenario needs of the machine (`needs:`): asked before anything is made, so that what cannot run is not tried.

Each answer is a reason in one line, empty when the need is met. Nothing here loads a driver into this process.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Iterable

from lab.runner.container import probe_isolation

_PATIENCE_S = 120.0


def missing(needs: Iterable[str], *, on: str) -> list[dict[str, str]]:
    """``{"what", "why"}`` of each need that this machine does not meet."""
    found = ((need, _REASONS[need](on)) for need in needs)
    return [{"what": f"needs {need}", "why": why} for need, why in found if why]


def _real_gpu(on: str) -> str:
    return "" if on == "real" else f"the driver below is {on}; run with --on real on a machine with a GPU"


def _torch(on: str) -> str:
    if on != "real":
        return "PyTorch's CUDA builds stop at a vendor authenticity check on the fake driver; run with --on real"
    return _torch_of(sys.executable)


@functools.cache
def _torch_of(python: str) -> str:
    code = "import torch; print(torch.version.cuda or 'none', torch.cuda.is_available())"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"PyTorch could not be asked for: {error}"
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return f"{python} cannot import torch: {lines[-1] if lines else f'exit {done.returncode}'}"
    cuda, available = done.stdout.split()[-2:]
    if cuda == "none":
        return f"the PyTorch of {python} is built without CUDA"
    return "" if available == "True" else f"the PyTorch of {python} (CUDA {cuda}) sees no usable GPU"


def _containers(_on: str) -> str:
    return probe_isolation()


def _broker(on: str) -> str:
    if os.geteuid():
        return "a broker that clients trust runs as root"
    return _containers(on)


_REASONS = {"real-gpu": _real_gpu, "torch": _torch, "containers": _containers, "broker": _broker}
