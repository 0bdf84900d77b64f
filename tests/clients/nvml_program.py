"""nvidia-ml-py: what both forms of the memory query say. Prints one JSON line."""

import json

import pynvml

pynvml.nvmlInit()
device = pynvml.nvmlDeviceGetHandleByIndex(0)
report: dict[str, object] = {"name": pynvml.nvmlDeviceGetName(device), "driver": pynvml.nvmlSystemGetDriverVersion()}
for form, version in (("v1", None), ("v2", pynvml.nvmlMemory_v2)):
    memory = pynvml.nvmlDeviceGetMemoryInfo(device, version=version)
    report[form] = {"total": memory.total, "free": memory.free, "used": memory.used}
pynvml.nvmlShutdown()
print(json.dumps(report))
