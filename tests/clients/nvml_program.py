"""nvidia-ml-py: which cards there are, and what both forms of the memory query say of one. Prints one JSON line."""

import json

import pynvml

pynvml.nvmlInit()
device = pynvml.nvmlDeviceGetHandleByIndex(0)
count = pynvml.nvmlDeviceGetCount()
cards = [pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(index)) for index in range(count)]
report: dict[str, object] = {
    "cards": cards,
    "name": pynvml.nvmlDeviceGetName(device),
    "driver": pynvml.nvmlSystemGetDriverVersion(),
}
for form, version in (("v1", None), ("v2", pynvml.nvmlMemory_v2)):
    memory = pynvml.nvmlDeviceGetMemoryInfo(device, version=version)
    report[form] = {"total": memory.total, "free": memory.free, "used": memory.used}
pynvml.nvmlShutdown()
print(json.dumps(report))
