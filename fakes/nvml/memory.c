/* Memory of a device as NVML sees it: the whole card, reserved bytes included. free is what CUDA calls free; version 1
 * counts the reserved bytes as used, version 2 names them. A card that is cut answers for its instances together, a MIG
 * device for itself. A card whose memory is the host's has no figure at all. */
#include "frame.h"

static uint64_t used_bytes(const struct hl_node_device *device) {
    uint64_t sum = 0;
    for (uint32_t row = 0; row < hl_node.header->device_count; row++)
        if (hl_nvml_part_of(row, device)) sum += __atomic_load_n(&hl_node.devices[row].used, __ATOMIC_ACQUIRE);
    return sum;
}

static uint64_t free_bytes(const struct hl_node_device *device) {
    uint64_t taken = device->nvml_reserved_bytes + used_bytes(device);
    return taken < device->nvml_total_bytes ? device->nvml_total_bytes - taken : 0;
}

NVML_BODY(nvmlDeviceGetMemoryInfo, (nvmlDevice_t handle, nvmlMemory_t *memory), (handle, memory)) {
    NVML_ANY_DEVICE(device, handle);
    if (!memory) return NVML_ERROR_INVALID_ARGUMENT;
    if (device->integrated) return NVML_ERROR_NOT_SUPPORTED;
    hl_latency((uint32_t)(device - hl_node.devices), HL_LATENCY_NVML_QUERY);
    memory->total = device->nvml_total_bytes;
    memory->free = free_bytes(device);
    memory->used = memory->total - memory->free;
    hl_output(memory, sizeof *memory);
    return NVML_SUCCESS;
}

NVML_BODY(nvmlDeviceGetMemoryInfo_v2, (nvmlDevice_t handle, nvmlMemory_v2_t *memory), (handle, memory)) {
    NVML_ANY_DEVICE(device, handle);
    if (!memory) return NVML_ERROR_INVALID_ARGUMENT;
    if (memory->version != nvmlMemory_v2)
        return NVML_ERROR_FUNCTION_NOT_FOUND; /* what the real library answers, outputs untouched */
    if (device->integrated) return NVML_ERROR_NOT_SUPPORTED;
    hl_latency((uint32_t)(device - hl_node.devices), HL_LATENCY_NVML_QUERY);
    memory->total = device->nvml_total_bytes;
    memory->reserved = device->nvml_reserved_bytes;
    memory->free = free_bytes(device);
    memory->used = memory->total - memory->reserved - memory->free;
    hl_output(&memory->total, sizeof *memory - offsetof(nvmlMemory_v2_t, total));
    return NVML_SUCCESS;
}

NVML_BODY(nvmlDeviceGetBAR1MemoryInfo, (nvmlDevice_t handle, nvmlBAR1Memory_t *memory), (handle, memory)) {
    NVML_ANY_DEVICE(device, handle);
    if (!memory) return NVML_ERROR_INVALID_ARGUMENT;
    if (device->integrated) return NVML_ERROR_NOT_SUPPORTED;
    /* Measured once, with one context: what is in use is mapped, and 1.7 MB more. */
    uint64_t mapped = used_bytes(device) + 1769472;
    memory->bar1Total = device->bar1_bytes;
    memory->bar1Used = mapped < device->bar1_bytes ? mapped : device->bar1_bytes;
    memory->bar1Free = memory->bar1Total - memory->bar1Used;
    return NVML_SUCCESS;
}
