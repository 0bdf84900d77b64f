"""cuda.bindings holds memory; nvidia-ml-py here and gpustat and nvitop beside it say who does. Prints one JSON line."""

import json
import os
import subprocess
import sys

import pynvml
from cuda.bindings import driver

SIZE = 256 << 20


def checked(answer: tuple) -> object:
    assert answer[0] == 0, answer
    return answer[1] if len(answer) > 1 else None


checked(driver.cuInit(0))
context = checked(driver.cuDevicePrimaryCtxRetain(0))
checked(driver.cuCtxSetCurrent(context))
memory = checked(driver.cuMemAlloc(SIZE))

pynvml.nvmlInit()
device = pynvml.nvmlDeviceGetHandleByIndex(0)
users = [[user.pid, user.usedGpuMemory] for user in pynvml.nvmlDeviceGetComputeRunningProcesses(device)]
named = [pynvml.nvmlSystemGetProcessName(pid) for pid, _ in users]
gpustat = json.loads(
    subprocess.run([sys.executable, "-m", "gpustat", "--json"], capture_output=True, check=True).stdout
)
nvitop = [sys.executable, "-m", "nvitop", "--once", "--no-unicode"]
table = subprocess.run(nvitop, capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "120"}).stdout
report = {
    "pid": os.getpid(),
    "nvidia-ml-py": users,
    "named": ["python" in name for name in named],
    "gpustat": [[user["pid"], user["gpu_memory_usage"]] for user in gpustat["gpus"][0]["processes"]],
    "nvitop": [line for line in table.splitlines() if f" {os.getpid()} C" in line],
}
print(json.dumps(report))
