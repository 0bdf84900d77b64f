/* Event sets. Two things happen on the fake, both critical Xids: a device falls off the bus (a planned fault; 79, once a set
 * and device), and a kernel faults (31). A set hears what comes after it has registered; eight errors of a card are kept, of
 * more the oldest are lost. Everything else is a wait that times out. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <time.h>

#include "frame.h"
#include "history.h"

enum { POLL_NS = 10000000 };

struct nvmlEventSet_st {
    unsigned long long types[HL_MAX_DEVICES];
    uint64_t heard[HL_MAX_DEVICES]; /* errors of the card that were told, or came before it was asked about */
    uint32_t told;                  /* devices whose loss was reported, one bit each */
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
    if (~__atomic_load_n(&set->types[handle->index], __ATOMIC_RELAXED) & types & nvmlEventTypeXidCriticalError)
        __atomic_store_n(&set->heard[handle->index], __atomic_load_n(&device->xid_count, __ATOMIC_ACQUIRE),
                         __ATOMIC_RELEASE);
    __atomic_fetch_or(&set->types[handle->index], types, __ATOMIC_RELEASE);
    return NVML_SUCCESS;
}

/* The next error of a card that the set has not heard of; 0: none (of which one is told to one waiter only). */
static uint32_t next_error(nvmlEventSet_t set, uint32_t index) {
    enum { KEPT = sizeof hl_node.devices->xid / sizeof hl_node.devices->xid[0] };
    struct hl_node_device *device = &hl_node.devices[index];
    uint64_t heard = __atomic_load_n(&set->heard[index], __ATOMIC_ACQUIRE);
    for (;;) {
        uint64_t count = __atomic_load_n(&device->xid_count, __ATOMIC_ACQUIRE);
        if (heard >= count) return 0;
        uint64_t number = count - heard > KEPT ? count - KEPT : heard;
        uint64_t entry = __atomic_load_n(&device->xid[number % KEPT], __ATOMIC_ACQUIRE);
        if (entry >> 32 <= number) return 0; /* counted, not written yet */
        if (entry >> 32 != number + 1) continue;
        if (__atomic_compare_exchange_n(&set->heard[index], &heard, number + 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
            return (uint32_t)entry;
    }
}

static uint32_t next_xid(nvmlEventSet_t set, uint32_t index) {
    uint32_t bit = 1u << index;
    if (!(set->types[index] & nvmlEventTypeXidCriticalError)) return 0;
    uint32_t code = next_error(set, index);
    if (code || !__atomic_load_n(&hl_node.devices[index].lost, __ATOMIC_ACQUIRE)) return code;
    return __atomic_fetch_or(&set->told, bit, __ATOMIC_RELAXED) & bit ? 0 : HL_XID_OFF_THE_BUS;
}

static nvmlReturn_t wait_event(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms, int version) {
    if (!set || !data) return NVML_ERROR_INVALID_ARGUMENT;
    uint64_t end = hl_now_ns() + (uint64_t)timeout_ms * 1000000;
    for (;;) {
        for (uint32_t i = 0; i < hl_node.header->card_count; i++) {
            uint32_t code = next_xid(set, i);
            if (!code) continue;
            data->device = &hl_nvml_handles[i];
            data->eventType = nvmlEventTypeXidCriticalError;
            data->eventData = code;
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
