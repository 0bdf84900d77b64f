/* Event sets. One event exists: a device that falls off the bus (a planned fault) is an Xid 79 for those who registered
 * for critical Xids, once a set and device. Everything else is a wait that times out. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <time.h>

#include "frame.h"
#include "history.h"

enum { XID_OFF_THE_BUS = 79, POLL_NS = 10000000 };

struct nvmlEventSet_st {
    unsigned long long types[HL_MAX_DEVICES];
    uint32_t told; /* devices whose loss was reported, one bit each */
};

static const unsigned long long supported = nvmlEventTypeXidCriticalError | nvmlEventTypeClock | nvmlEventTypePState;

NVML_BODY(nvmlEventSetCreate, (nvmlEventSet_t * set), (set)) {
    if (!set) return NVML_ERROR_INVALID_ARGUMENT;
    nvmlEventSet_t made = calloc(1, sizeof *made);
    if (!made) return NVML_ERROR_MEMORY;
    *set = made;
    return NVML_SUCCESS;
}

NVML_BODY(nvmlEventSetFree, (nvmlEventSet_t set), (set)) {
    if (!set) return NVML_ERROR_INVALID_ARGUMENT;
    free(set);
    return NVML_SUCCESS;
}

NVML_NUMBER(nvmlDeviceGetSupportedEventTypes, unsigned long long, supported)

NVML_BODY(nvmlDeviceRegisterEvents, (nvmlDevice_t handle, unsigned long long types, nvmlEventSet_t set),
          (handle, types, set)) {
    NVML_DEVICE(device, handle);
    if (!set) return NVML_ERROR_INVALID_ARGUMENT;
    if (types & ~supported) return NVML_ERROR_NOT_SUPPORTED;
    __atomic_fetch_or(&set->types[handle->index], types, __ATOMIC_RELAXED);
    return NVML_SUCCESS;
}

static nvmlReturn_t wait_event(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms, int version) {
    if (!set || !data) return NVML_ERROR_INVALID_ARGUMENT;
    uint64_t end = hl_now_ns() + (uint64_t)timeout_ms * 1000000;
    for (;;) {
        for (uint32_t i = 0; i < hl_node.header->card_count; i++) {
            uint32_t bit = 1u << i;
            if (!(set->types[i] & nvmlEventTypeXidCriticalError) ||
                !__atomic_load_n(&hl_node.devices[i].lost, __ATOMIC_ACQUIRE))
                continue;
            if (__atomic_fetch_or(&set->told, bit, __ATOMIC_RELAXED) & bit) continue;
            data->device = &hl_nvml_handles[i];
            data->eventType = nvmlEventTypeXidCriticalError;
            data->eventData = XID_OFF_THE_BUS;
            if (version >= 2) data->gpuInstanceId = data->computeInstanceId = 0xFFFFFFFFu;
            return NVML_SUCCESS;
        }
        uint64_t now = hl_now_ns();
        if (now >= end) return NVML_ERROR_TIMEOUT;
        uint64_t rest = end - now;
        struct timespec nap = {0, rest < POLL_NS ? (long)rest : POLL_NS};
        nanosleep(&nap, NULL);
    }
}

NVML_BODY(nvmlEventSetWait, (nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms),
          (set, data, timeout_ms)) {
    return wait_event(set, data, timeout_ms, 1);
}

NVML_BODY(nvmlEventSetWait_v2, (nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms),
          (set, data, timeout_ms)) {
    return wait_event(set, data, timeout_ms, 2);
}
