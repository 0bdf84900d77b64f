/* Memory of a device as NVML sees it: the whole card, reserved bytes included. free is what CUDA calls free; version 1
 * counts the reserved bytes as used, version 2 names them. */
#include "frame.h"

static uint64_t free_bytes(const struct hl_node_device *device) {
    uint64_t taken = device->nvml_reserved_bytes + __atomic_load_n(&device->used, __ATOMIC_ACQUIRE);
    return taken < device->nvml_total_bytes ? device->nvml_total_bytes - taken : 0;
}

NVML_BODY(nvmlDeviceGetMemoryInfo, (nvmlDevice_t handle, nvmlMemory_t *memory), (handle, memory)) {
    NVML_DEVICE(device, handle);
    if (!memory) return NVML_ERROR_INVALID_ARGUMENT;
    hl_latency((uint32_t)(device - hl_node.devices), HL_LATENCY_NVML_QUERY);
    memory->total = device->nvml_total_bytes;
    memory->free = free_bytes(device);
    memory->used = memory->total - memory->free;
    return NVML_SUCCESS;
}

NVML_BODY(nvmlDeviceGetMemoryInfo_v2, (nvmlDevice_t handle, nvmlMemory_v2_t *memory), (handle, memory)) {
    NVML_DEVICE(device, handle);
    if (!memory) return NVML_ERROR_INVALID_ARGUMENT;
    if (memory->version != nvmlMemory_v2)
        return NVML_ERROR_FUNCTION_NOT_FOUND; /* what the real library answers, outputs untouched */
    hl_latency((uint32_t)(device - hl_node.devices), HL_LATENCY_NVML_QUERY);
    memory->total = device->nvml_total_bytes;
    memory->reserved = device->nvml_reserved_bytes;
    memory->free = free_bytes(device);
    memory->used = memory->total - memory->reserved - memory->free;
    return NVML_SUCCESS;
}

NVML_BODY(nvmlDeviceGetBAR1MemoryInfo, (nvmlDevice_t handle, nvmlBAR1Memory_t *memory), (handle, memory)) {
    NVML_DEVICE(device, handle);
    if (!memory) return NVML_ERROR_INVALID_ARGUMENT;
    /* Measured once, with one context: what is in use is mapped, and 1.7 MB more. */
    uint64_t mapped = __atomic_load_n(&device->used, __ATOMIC_ACQUIRE) + 1769472;
    memory->bar1Total = device->bar1_bytes;
    memory->bar1Used = mapped < device->bar1_bytes ? mapped : device->bar1_bytes;
    memory->bar1Free = memory->bar1Total - memory->bar1Used;
    return NVML_SUCCESS;
}
