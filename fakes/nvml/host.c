/* What surrounds the cards: topology, affinity, excluded cards, a chassis that no node has, and settings, which belong to
 * the machine's administrator: a process in a container is refused, and so is everybody here. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "frame.h"

#define NVML_ZERO(name)                                                                                                \
    NVML_BODY(name, (unsigned int *count), (count)) {                                                                  \
        if (!count) return NVML_ERROR_INVALID_ARGUMENT;                                                                \
        *count = 0;                                                                                                    \
        return NVML_SUCCESS;                                                                                           \
    }
NVML_ZERO(nvmlGetExcludedDeviceCount)
NVML_ZERO(nvmlGetBlacklistDeviceCount)

/* No device is excluded and there is no unit: every index and every handle is wrong. */
NVML_BODY(nvmlGetExcludedDeviceInfoByIndex, (unsigned int index, nvmlExcludedDeviceInfo_t *info), (index, info)) {
    (void)index, (void)info;
    return NVML_ERROR_INVALID_ARGUMENT;
}
NVML_BODY(nvmlGetBlacklistDeviceInfoByIndex, (unsigned int index, nvmlExcludedDeviceInfo_t *info), (index, info)) {
    (void)index, (void)info;
    return NVML_ERROR_INVALID_ARGUMENT;
}
NVML_BODY(nvmlUnitGetHandleByIndex, (unsigned int index, nvmlUnit_t *unit), (index, unit)) {
    (void)index, (void)unit;
    return NVML_ERROR_INVALID_ARGUMENT;
}
#define NO_UNIT(name, type)                                                                                            \
    NVML_BODY(name, (nvmlUnit_t unit, type value), (unit, value)) {                                                    \
        (void)unit, (void)value;                                                                                       \
        return NVML_ERROR_INVALID_ARGUMENT;                                                                            \
    }
NO_UNIT(nvmlUnitGetFanSpeedInfo, nvmlUnitFanSpeeds_t *)
NO_UNIT(nvmlUnitGetLedState, nvmlLedState_t *)
NO_UNIT(nvmlUnitGetPsuInfo, nvmlPSUInfo_t *)
NO_UNIT(nvmlUnitGetUnitInfo, nvmlUnitInfo_t *)
NO_UNIT(nvmlUnitSetLedState, nvmlLedColor_t)
NVML_BODY(nvmlUnitGetDevices, (nvmlUnit_t unit, unsigned int *count, nvmlDevice_t *devices), (unit, count, devices)) {
    (void)unit, (void)count, (void)devices;
    return NVML_ERROR_INVALID_ARGUMENT;
}
NVML_BODY(nvmlUnitGetTemperature, (nvmlUnit_t unit, unsigned int type, unsigned int *value), (unit, type, value)) {
    (void)unit, (void)type, (void)value;
    return NVML_ERROR_INVALID_ARGUMENT;
}

NVML_BODY(nvmlSystemGetHicVersion, (unsigned int *count, nvmlHwbcEntry_t *entries), (count, entries)) {
    (void)entries;
    if (!count) return NVML_ERROR_INVALID_ARGUMENT;
    *count = 0;
    return NVML_SUCCESS;
}

/* The branch of a driver is the part of its version before the first point. */
NVML_BODY(nvmlSystemGetDriverBranch, (nvmlSystemDriverBranchInfo_t * info, unsigned int length), (info, length)) {
    if (!info) return NVML_ERROR_INVALID_ARGUMENT;
    if (info->version != nvmlSystemDriverBranchInfo_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    char text[sizeof hl_node.header->driver_string + 8];
    size_t digits = strcspn(hl_node.header->driver_string, ".");
    snprintf(text, sizeof text, "r%.*s_00", (int)digits, hl_node.header->driver_string);
    if (length > sizeof info->branch) length = sizeof info->branch;
    return hl_nvml_text(text, sizeof text, info->branch, length);
}

/* ---- topology: every card on a host bridge of its own, one NUMA node ---------------------------------------- */

/* Of a card and itself there is no answer (measured). */
NVML_BODY(nvmlDeviceGetTopologyCommonAncestor, (nvmlDevice_t a, nvmlDevice_t b, nvmlGpuTopologyLevel_t *out),
          (a, b, out)) {
    NVML_DEVICE(one, a);
    NVML_DEVICE(two, b);
    if (!out) return NVML_ERROR_INVALID_ARGUMENT;
    if (one == two) return NVML_ERROR_NOT_SUPPORTED;
    *out = NVML_TOPOLOGY_NODE;
    return NVML_SUCCESS;
}

/* Room for none asks for the number; else as many are given as there is room for. */
static nvmlReturn_t list(uint32_t skip, int any, unsigned int *count, nvmlDevice_t *devices) {
    unsigned found = 0, room = *count;
    if (room && !devices) return NVML_ERROR_INVALID_ARGUMENT;
    for (uint32_t i = 0; any && i < hl_node.header->card_count; i++) {
        if (i == skip) continue;
        if (room && found == room) break;
        if (room) devices[found] = &hl_nvml_handles[i];
        found++;
    }
    *count = found;
    return NVML_SUCCESS;
}

NVML_BODY(nvmlDeviceGetTopologyNearestGpus,
          (nvmlDevice_t handle, nvmlGpuTopologyLevel_t level, unsigned int *count, nvmlDevice_t *devices),
          (handle, level, count, devices)) {
    NVML_DEVICE(device, handle);
    if (!count) return NVML_ERROR_INVALID_ARGUMENT;
    return list((uint32_t)(device - hl_node.devices), level == NVML_TOPOLOGY_NODE, count, devices);
}

NVML_BODY(nvmlSystemGetTopologyGpuSet, (unsigned int cpu, unsigned int *count, nvmlDevice_t *devices),
          (cpu, count, devices)) {
    if (!count || cpu >= (unsigned)sysconf(_SC_NPROCESSORS_CONF)) return NVML_ERROR_INVALID_ARGUMENT;
    return list(HL_MAX_DEVICES, 1, count, devices);
}

/* Cards of one model that are no consumer cards reach each other, as the fake libcuda says. */
NVML_BODY(nvmlDeviceGetP2PStatus,
          (nvmlDevice_t a, nvmlDevice_t b, nvmlGpuP2PCapsIndex_t which, nvmlGpuP2PStatus_t *out), (a, b, which, out)) {
    NVML_DEVICE(one, a);
    NVML_DEVICE(two, b);
    if (!out || (unsigned)which >= NVML_P2P_CAPS_INDEX_UNKNOWN) return NVML_ERROR_INVALID_ARGUMENT;
    int alike = one->brand != NVML_BRAND_GEFORCE && strcmp(one->name, two->name) == 0;
    *out = one != two && !alike                  ? NVML_P2P_STATUS_GPU_NOT_SUPPORTED
           : which == NVML_P2P_CAPS_INDEX_NVLINK ? NVML_P2P_STATUS_NOT_SUPPORTED
                                                 : NVML_P2P_STATUS_OK;
    return NVML_SUCCESS;
}

/* ---- affinity: every processor is near ---------------------------------------------------------------------- */

static nvmlReturn_t processors(unsigned int words, unsigned long *set) {
    enum { BITS = 8 * sizeof(unsigned long) };
    if (!set || words == 0) return NVML_ERROR_INVALID_ARGUMENT;
    memset(set, 0, words * sizeof *set);
    long count = sysconf(_SC_NPROCESSORS_CONF);
    for (long i = 0; i < count && i < (long)words * BITS; i++) set[i / BITS] |= 1ul << (i % BITS);
    return NVML_SUCCESS;
}

NVML_BODY(nvmlDeviceGetCpuAffinity, (nvmlDevice_t handle, unsigned int words, unsigned long *set),
          (handle, words, set)) {
    NVML_DEVICE(device, handle);
    return processors(words, set);
}

NVML_BODY(nvmlDeviceGetCpuAffinityWithinScope,
          (nvmlDevice_t handle, unsigned int words, unsigned long *set, nvmlAffinityScope_t scope),
          (handle, words, set, scope)) {
    NVML_DEVICE(device, handle);
    return scope > NVML_AFFINITY_SCOPE_SOCKET ? NVML_ERROR_INVALID_ARGUMENT : processors(words, set);
}

NVML_BODY(nvmlDeviceGetMemoryAffinity,
          (nvmlDevice_t handle, unsigned int words, unsigned long *set, nvmlAffinityScope_t scope),
          (handle, words, set, scope)) {
    NVML_DEVICE(device, handle);
    if (!set || words == 0 || scope > NVML_AFFINITY_SCOPE_SOCKET) return NVML_ERROR_INVALID_ARGUMENT;
    memset(set, 0, words * sizeof *set);
    set[0] = 1;
    return NVML_SUCCESS;
}

static nvmlReturn_t spread(void) {
    cpu_set_t all;
    CPU_ZERO(&all);
    for (long i = 0; i < sysconf(_SC_NPROCESSORS_CONF) && i < CPU_SETSIZE; i++) CPU_SET((size_t)i, &all);
    return sched_setaffinity(0, sizeof all, &all) ? NVML_ERROR_UNKNOWN : NVML_SUCCESS;
}
#define AFFINITY(name)                                                                                                 \
    NVML_BODY(name, (nvmlDevice_t handle), (handle)) {                                                                 \
        NVML_DEVICE(device, handle);                                                                                   \
        return spread();                                                                                               \
    }
AFFINITY(nvmlDeviceSetCpuAffinity)
AFFINITY(nvmlDeviceClearCpuAffinity)

NVML_NUMBER(nvmlDeviceGetNumaNodeId, unsigned int, 0)
NVML_NUMBER(nvmlDeviceGetModuleId, unsigned int, device - hl_node.devices)
NVML_NUMBER(nvmlDeviceGetIrqNum, unsigned int, 64 + (device - hl_node.devices))

/* ---- settings ------------------------------------------------------------------------------------------------ */

#define REFUSED(name)                                                                                                  \
    NVML_BODY(name, (nvmlDevice_t handle), (handle)) {                                                                 \
        NVML_DEVICE(device, handle);                                                                                   \
        return NVML_ERROR_NO_PERMISSION;                                                                               \
    }
#define REFUSED1(name, type)                                                                                           \
    NVML_BODY(name, (nvmlDevice_t handle, type value), (handle, value)) {                                              \
        NVML_DEVICE(device, handle);                                                                                   \
        (void)value;                                                                                                   \
        return NVML_ERROR_NO_PERMISSION;                                                                               \
    }
#define REFUSED2(name)                                                                                                 \
    NVML_BODY(name, (nvmlDevice_t handle, unsigned int one, unsigned int two), (handle, one, two)) {                   \
        NVML_DEVICE(device, handle);                                                                                   \
        (void)one, (void)two;                                                                                          \
        return NVML_ERROR_NO_PERMISSION;                                                                               \
    }
REFUSED(nvmlDeviceResetApplicationsClocks)
REFUSED(nvmlDeviceResetGpuLockedClocks)
REFUSED(nvmlDeviceResetMemoryLockedClocks)
REFUSED(nvmlDeviceClearAccountingPids)
REFUSED1(nvmlDeviceSetPersistenceMode, nvmlEnableState_t)
REFUSED1(nvmlDeviceSetComputeMode, nvmlComputeMode_t)
REFUSED1(nvmlDeviceSetEccMode, nvmlEnableState_t)
REFUSED1(nvmlDeviceClearEccErrorCounts, nvmlEccCounterType_t)
REFUSED1(nvmlDeviceSetPowerManagementLimit, unsigned int)
REFUSED1(nvmlDeviceSetAccountingMode, nvmlEnableState_t)
REFUSED1(nvmlDeviceSetGpuOperationMode, nvmlGpuOperationMode_t)
REFUSED2(nvmlDeviceSetApplicationsClocks)
REFUSED2(nvmlDeviceSetGpuLockedClocks)
REFUSED2(nvmlDeviceSetMemoryLockedClocks)
