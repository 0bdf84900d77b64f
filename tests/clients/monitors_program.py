"""gpustat, nvitop and nvidia-ml-py beside a process that holds 256 MiB: what each says of the card and of that process.

Prints one JSON line. The process is this one; the monitors run in processes of their own, as people run them.
"""

import json
import os
import subprocess
import sys

import pynvml
from cuda.bindings import driver as cu

HELD = 256 << 20


def ok(result: tuple):
    error, *values = result
    if error != cu.CUresult.CUDA_SUCCESS:
        raise SystemExit(f"monitors_program: {error!r}")
    return values[0] if values else None


def said(*command: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, check=True, timeout=60
    ).stdout


def nvml() -> dict[str, object]:
    pynvml.nvmlInit()
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    memory = pynvml.nvmlDeviceGetMemoryInfo(device)
    processes = pynvml.nvmlDeviceGetComputeRunningProcesses(device)
    pynvml.nvmlShutdown()
    return {
        "total": memory.total,
        "used": memory.used,
        "processes": [[process.pid == os.getpid(), process.usedGpuMemory] for process in processes],
    }


def gpustat() -> dict[str, object]:
    (gpu,) = json.loads(said("gpustat", "--json"))["gpus"]
    return {
        "name": gpu["name"],
        "total": gpu["memory.total"],
        "used": gpu["memory.used"],
        "processes": [[process["pid"] == os.getpid(), process["gpu_memory_usage"]] for process in gpu["processes"]],
    }


def main() -> None:
    ok(cu.cuInit(0))
    ok(cu.cuCtxSetCurrent(ok(cu.cuDevicePrimaryCtxRetain(ok(cu.cuDeviceGet(0))))))
    ok(cu.cuMemAlloc(HELD))
    lines = said("nvitop", "--once", "--no-unicode").splitlines()
    print(json.dumps({"nvml": nvml(), "gpustat": gpustat(), "nvitop": lines}))


main()
