"""Functions of the fake drivers that tell what they write for their caller, so that a planned fault can spoil it."""

SPOILT = (  # those whose bodies call hl_output (fakes/common/call.h)
    "cuDeviceGetCount",
    "cuDeviceTotalMem_v2",
    "cuMemAlloc_v2",
    "cuMemGetInfo_v2",
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetComputeRunningProcesses_v2",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetProcessUtilization",
    "nvmlDeviceGetUtilizationRates",
)
