/* The state of a healthy card: no memory error was ever counted, no page retired, no row remapped, nobody encodes or
 * captures frames; clocks, thresholds and link speeds that a profile gives; accounting switched off. */
#include <string.h>

#include "frame.h"

enum { CLOCK_STEP_MHZ = 15, ACCOUNTING_BUFFER = 4000, POWER_PARTS = 7, LOWEST_PARTS = 2 };

int hl_nvml_remaps_rows(const struct hl_node_device *device) { return device->architecture >= NVML_DEVICE_ARCH_AMPERE; }

/* ---- memory errors ------------------------------------------------------------------------------------------- */

NVML_BODY(nvmlDeviceGetMemoryErrorCounter,
          (nvmlDevice_t handle, nvmlMemoryErrorType_t type, nvmlEccCounterType_t counter, nvmlMemoryLocation_t where,
           unsigned long long *value),
          (handle, type, counter, where, value)) {
    NVML_DEVICE(device, handle);
    if (!value || (unsigned)type >= NVML_MEMORY_ERROR_TYPE_COUNT || (unsigned)counter >= NVML_ECC_COUNTER_TYPE_COUNT ||
        (unsigned)where >= NVML_MEMORY_LOCATION_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!device->ecc) return NVML_ERROR_NOT_SUPPORTED;
    *value = 0;
    return NVML_SUCCESS;
}

NVML_BODY(nvmlDeviceGetDetailedEccErrors,
          (nvmlDevice_t handle, nvmlMemoryErrorType_t type, nvmlEccCounterType_t counter, nvmlEccErrorCounts_t *counts),
          (handle, type, counter, counts)) {
    NVML_DEVICE(device, handle);
    if (!counts || (unsigned)type >= NVML_MEMORY_ERROR_TYPE_COUNT || (unsigned)counter >= NVML_ECC_COUNTER_TYPE_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!device->ecc) return NVML_ERROR_NOT_SUPPORTED;
    memset(counts, 0, sizeof *counts);
    return NVML_SUCCESS;
}

NVML_NUMBER(nvmlDeviceGetDefaultEccMode, nvmlEnableState_t, device->ecc ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED)

/* Cards that remap rows retire no pages, and the other way round. */
static nvmlReturn_t retired(const struct hl_node_device *device, unsigned cause, unsigned int *count) {
    if (!count || cause >= NVML_PAGE_RETIREMENT_CAUSE_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
    if (hl_nvml_remaps_rows(device) || !device->ecc) return NVML_ERROR_NOT_SUPPORTED;
    *count = 0;
    return NVML_SUCCESS;
}

NVML_BODY(nvmlDeviceGetRetiredPages,
          (nvmlDevice_t handle, nvmlPageRetirementCause_t cause, unsigned int *count, unsigned long long *addresses),
          (handle, cause, count, addresses)) {
    NVML_DEVICE(device, handle);
    (void)addresses;
    return retired(device, (unsigned)cause, count);
}

NVML_BODY(nvmlDeviceGetRetiredPages_v2,
          (nvmlDevice_t handle, nvmlPageRetirementCause_t cause, unsigned int *count, unsigned long long *addresses,
           unsigned long long *times),
          (handle, cause, count, addresses, times)) {
    NVML_DEVICE(device, handle);
    (void)addresses, (void)times;
    return retired(device, (unsigned)cause, count);
}

NVML_BODY(nvmlDeviceGetRetiredPagesPendingStatus, (nvmlDevice_t handle, nvmlEnableState_t *pending),
          (handle, pending)) {
    NVML_DEVICE(device, handle);
    if (!pending) return NVML_ERROR_INVALID_ARGUMENT;
    if (hl_nvml_remaps_rows(device) || !device->ecc) return NVML_ERROR_NOT_SUPPORTED;
    *pending = NVML_FEATURE_DISABLED;
    return NVML_SUCCESS;
}

NVML_BODY(nvmlDeviceGetRemappedRows,
          (nvmlDevice_t handle, unsigned int *correctable, unsigned int *uncorrectable, unsigned int *pending,
           unsigned int *failed),
          (handle, correctable, uncorrectable, pending, failed)) {
    NVML_DEVICE(device, handle);
    if (!correctable || !uncorrectable || !pending || !failed) return NVML_ERROR_INVALID_ARGUMENT;
    if (!hl_nvml_remaps_rows(device) || !device->ecc) return NVML_ERROR_NOT_SUPPORTED;
    *correctable = *uncorrectable = *pending = *failed = 0;
    return NVML_SUCCESS;
}

/* ---- encoders and frame capture ------------------------------------------------------------------------------ */

NVML_BODY(nvmlDeviceGetEncoderStats,
          (nvmlDevice_t handle, unsigned int *sessions, unsigned int *rate, unsigned int *latency),
          (handle, sessions, rate, latency)) {
    NVML_DEVICE(device, handle);
    if (!sessions || !rate || !latency) return NVML_ERROR_INVALID_ARGUMENT;
    *sessions = *rate = *latency = 0;
    return NVML_SUCCESS;
}

NVML_BODY(nvmlDeviceGetFBCStats, (nvmlDevice_t handle, nvmlFBCStats_t *stats), (handle, stats)) {
    NVML_DEVICE(device, handle);
    if (!stats) return NVML_ERROR_INVALID_ARGUMENT;
    memset(stats, 0, sizeof *stats);
    return NVML_SUCCESS;
}

#define NOBODY(name, type)                                                                                             \
    NVML_BODY(name, (nvmlDevice_t handle, unsigned int *count, type *sessions), (handle, count, sessions)) {           \
        NVML_DEVICE(device, handle);                                                                                   \
        (void)sessions;                                                                                                \
        if (!count) return NVML_ERROR_INVALID_ARGUMENT;                                                                \
        *count = 0;                                                                                                    \
        return NVML_SUCCESS;                                                                                           \
    }
NOBODY(nvmlDeviceGetEncoderSessions, nvmlEncoderSessionInfo_t)
NOBODY(nvmlDeviceGetFBCSessions, nvmlFBCSessionInfo_t)

/* ---- clocks, power, temperature, link ------------------------------------------------------------------------- */

/* Highest first; the count protocol of every list of NVML. */
static nvmlReturn_t clocks(unsigned highest, unsigned lowest, unsigned step, unsigned int *count, unsigned int *out) {
    unsigned wanted = (highest - lowest) / step + 1;
    if (!count) return NVML_ERROR_INVALID_ARGUMENT;
    unsigned room = out ? *count : 0;
    *count = wanted;
    if (room < wanted) return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < wanted; i++) out[i] = highest - i * step;
    return NVML_SUCCESS;
}

NVML_BODY(nvmlDeviceGetSupportedMemoryClocks, (nvmlDevice_t handle, unsigned int *count, unsigned int *mhz),
          (handle, count, mhz)) {
    NVML_DEVICE(device, handle);
    return clocks(device->memory_clock_khz / 1000, device->memory_clock_khz / 1000, CLOCK_STEP_MHZ, count, mhz);
}

NVML_BODY(nvmlDeviceGetSupportedGraphicsClocks,
          (nvmlDevice_t handle, unsigned int memory_mhz, unsigned int *count, unsigned int *mhz),
          (handle, memory_mhz, count, mhz)) {
    NVML_DEVICE(device, handle);
    if (!count) return NVML_ERROR_INVALID_ARGUMENT;
    if (memory_mhz != device->memory_clock_khz / 1000) return NVML_ERROR_NOT_FOUND;
    return clocks(device->clock_khz / 1000, device->idle_clock_khz / 1000, CLOCK_STEP_MHZ, count, mhz);
}

static nvmlReturn_t highest(const struct hl_node_device *device, nvmlClockType_t type, unsigned int *mhz) {
    if (!mhz || (unsigned)type >= NVML_CLOCK_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
    *mhz = (type == NVML_CLOCK_MEM ? device->memory_clock_khz : device->clock_khz) / 1000;
    return NVML_SUCCESS;
}
#define HIGHEST(name)                                                                                                  \
    NVML_BODY(name, (nvmlDevice_t handle, nvmlClockType_t type, unsigned int *mhz), (handle, type, mhz)) {             \
        NVML_DEVICE(device, handle);                                                                                   \
        return highest(device, type, mhz);                                                                             \
    }
HIGHEST(nvmlDeviceGetApplicationsClock)
HIGHEST(nvmlDeviceGetDefaultApplicationsClock)
HIGHEST(nvmlDeviceGetMaxCustomerBoostClock)

static const unsigned long long reasons = nvmlClocksEventReasonGpuIdle |
                                          nvmlClocksEventReasonApplicationsClocksSetting |
                                          nvmlClocksEventReasonSwPowerCap | nvmlClocksThrottleReasonHwSlowdown;
NVML_NUMBER(nvmlDeviceGetSupportedClocksEventReasons, unsigned long long, reasons)
NVML_NUMBER(nvmlDeviceGetSupportedClocksThrottleReasons, unsigned long long, reasons)

NVML_BODY(nvmlDeviceGetSupportedPerformanceStates, (nvmlDevice_t handle, nvmlPstates_t *states, unsigned int bytes),
          (handle, states, bytes)) {
    NVML_DEVICE(device, handle);
    unsigned room = bytes / sizeof *states;
    if (!states || room == 0) return NVML_ERROR_INVALID_ARGUMENT;
    int consumer = device->brand == NVML_BRAND_GEFORCE;
    if (room < 1u + (unsigned)consumer) return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < room; i++) states[i] = NVML_PSTATE_UNKNOWN;
    states[0] = NVML_PSTATE_0;
    if (consumer) states[1] = NVML_PSTATE_8;
    return NVML_SUCCESS;
}

/* A card can be held down to about two sevenths of its limit: 200 of 700 W on the one that was looked at. */
unsigned hl_nvml_least_power_mw(const struct hl_node_device *device) {
    return device->power_limit_mw / POWER_PARTS * LOWEST_PARTS;
}

NVML_BODY(nvmlDeviceGetPowerManagementLimitConstraints, (nvmlDevice_t handle, unsigned int *least, unsigned int *most),
          (handle, least, most)) {
    NVML_DEVICE(device, handle);
    if (!least || !most) return NVML_ERROR_INVALID_ARGUMENT;
    *least = hl_nvml_least_power_mw(device);
    *most = device->power_limit_mw;
    return NVML_SUCCESS;
}

NVML_BODY(nvmlDeviceGetTemperatureThreshold,
          (nvmlDevice_t handle, nvmlTemperatureThresholds_t which, unsigned int *celsius), (handle, which, celsius)) {
    static const unsigned degrees[] = {92, 89, 95, 87};
    NVML_DEVICE(device, handle);
    if (!celsius || (unsigned)which >= NVML_TEMPERATURE_THRESHOLD_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
    if ((unsigned)which > NVML_TEMPERATURE_THRESHOLD_GPU_MAX) return NVML_ERROR_NOT_SUPPORTED;
    *celsius = degrees[which];
    return NVML_SUCCESS;
}

NVML_NUMBER(nvmlDeviceGetPcieSpeed, unsigned int,
            device->pcie_generation < 3 ? 2500u * device->pcie_generation : 1000u << device->pcie_generation)
NVML_NUMBER(nvmlDeviceGetPcieLinkMaxSpeed, unsigned int, device->pcie_generation)
NVML_NUMBER(nvmlDeviceGetPowerSource, nvmlPowerSource_t, NVML_POWER_SOURCE_AC)

NVML_BODY(nvmlDeviceGetGspFirmwareVersion, (nvmlDevice_t handle, char *version), (handle, version)) {
    NVML_DEVICE(device, handle);
    return hl_nvml_text(hl_node.header->driver_string, sizeof hl_node.header->driver_string, version,
                        NVML_GSP_FIRMWARE_VERSION_BUF_SIZE);
}

NVML_BODY(nvmlDeviceGetGspFirmwareMode, (nvmlDevice_t handle, unsigned int *on, unsigned int *by_default),
          (handle, on, by_default)) {
    NVML_DEVICE(device, handle);
    if (!on || !by_default) return NVML_ERROR_INVALID_ARGUMENT;
    *on = *by_default = 1;
    return NVML_SUCCESS;
}

NVML_BODY(nvmlDeviceGetPciInfoExt, (nvmlDevice_t handle, nvmlPciInfoExt_t *pci), (handle, pci)) {
    enum { DISPLAY_CONTROLLER = 3, THREE_D = 2 };
    NVML_DEVICE(device, handle);
    if (!pci) return NVML_ERROR_INVALID_ARGUMENT;
    if (pci->version != nvmlPciInfoExt_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    pci->domain = device->pci_domain;
    pci->bus = device->pci_bus;
    pci->device = device->pci_device;
    pci->pciDeviceId = device->pci_device_id;
    pci->pciSubSystemId = device->pci_subsystem_id;
    pci->baseClass = DISPLAY_CONTROLLER;
    pci->subClass = device->brand == NVML_BRAND_GEFORCE ? 0 : THREE_D;
    hl_nvml_bus_text(device, 8, pci->busId, sizeof pci->busId);
    return NVML_SUCCESS;
}

/* ---- accounting, switched off --------------------------------------------------------------------------------- */

NVML_NUMBER(nvmlDeviceGetAccountingBufferSize, unsigned int, ACCOUNTING_BUFFER)

NVML_BODY(nvmlDeviceGetAccountingPids, (nvmlDevice_t handle, unsigned int *count, unsigned int *pids),
          (handle, count, pids)) {
    NVML_DEVICE(device, handle);
    if (!count || (*count && !pids)) return NVML_ERROR_INVALID_ARGUMENT;
    *count = 0;
    return NVML_SUCCESS;
}

NVML_BODY(nvmlDeviceGetAccountingStats, (nvmlDevice_t handle, unsigned int pid, nvmlAccountingStats_t *stats),
          (handle, pid, stats)) {
    NVML_DEVICE(device, handle);
    (void)pid;
    return stats ? NVML_ERROR_NOT_FOUND : NVML_ERROR_INVALID_ARGUMENT;
}
