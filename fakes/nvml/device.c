/* What a device is: names, identity, bus, and the settings of a card that nobody changed. Numbers come from the node's
 * profile; power, clocks and temperature follow the busy share of the last sample linearly (a model, not a measurement). */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "frame.h"

enum { HOT_C = 35 }; /* above idle at full load */

nvmlReturn_t hl_nvml_text(const char *text, size_t capacity, char *out, unsigned length) {
    size_t bytes = strnlen(text, capacity);
    if (!out) return NVML_ERROR_INVALID_ARGUMENT;
    if (length < bytes + 1) return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(out, text, bytes);
    out[bytes] = 0;
    return NVML_SUCCESS;
}

void hl_nvml_uuid_text(const struct hl_node_device *device, char out[NVML_DEVICE_UUID_BUFFER_SIZE]) {
    static const char digits[] = "0123456789abcdef";
    char *at = out;
    memcpy(at, device->parent ? "MIG-" : "GPU-", 4);
    at += 4;
    for (int i = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10) *at++ = '-';
        *at++ = digits[device->uuid[i] >> 4];
        *at++ = digits[device->uuid[i] & 15];
    }
    *at = 0;
}

void hl_nvml_bus_text(const struct hl_node_device *device, int digits, char *out, size_t length) {
    snprintf(out, length, "%0*X:%02X:%02X.0", digits, device->pci_domain, device->pci_bus & 0xFF,
             device->pci_device & 0x1F);
}

NVML_BODY(nvmlDeviceGetName, (nvmlDevice_t handle, char *name, unsigned int length), (handle, name, length)) {
    NVML_ANY_DEVICE(device, handle);
    return hl_nvml_text(device->name, sizeof device->name, name, length);
}

NVML_BODY(nvmlDeviceGetUUID, (nvmlDevice_t handle, char *uuid, unsigned int length), (handle, uuid, length)) {
    NVML_ANY_DEVICE(device, handle);
    char text[NVML_DEVICE_UUID_BUFFER_SIZE];
    hl_nvml_uuid_text(device, text);
    return hl_nvml_text(text, sizeof text, uuid, length);
}

NVML_BODY(nvmlDeviceGetSerial, (nvmlDevice_t handle, char *serial, unsigned int length), (handle, serial, length)) {
    NVML_DEVICE(device, handle);
    if (device->brand == NVML_BRAND_GEFORCE) /* consumer boards carry none */
        return NVML_ERROR_NOT_SUPPORTED;
    return hl_nvml_text(device->serial, sizeof device->serial, serial, length);
}

NVML_BODY(nvmlDeviceGetVbiosVersion, (nvmlDevice_t handle, char *version, unsigned int length),
          (handle, version, length)) {
    NVML_DEVICE(device, handle);
    return hl_nvml_text(device->vbios, sizeof device->vbios, version, length);
}

/* The oldest two records end before busId: writing there would run past an old client's struct. */
static void fill_pci(const struct hl_node_device *device, nvmlPciInfo_t *pci, int version) {
    hl_nvml_bus_text(device, 4, pci->busIdLegacy, sizeof pci->busIdLegacy);
    pci->domain = device->pci_domain;
    pci->bus = device->pci_bus;
    pci->device = device->pci_device;
    pci->pciDeviceId = device->pci_device_id;
    if (version >= 2) pci->pciSubSystemId = device->pci_subsystem_id;
    if (version >= 3) hl_nvml_bus_text(device, 8, pci->busId, sizeof pci->busId);
}

#define PCI_INFO(name, version)                                                                                        \
    NVML_BODY(name, (nvmlDevice_t handle, nvmlPciInfo_t * pci), (handle, pci)) {                                       \
        NVML_DEVICE(device, handle);                                                                                   \
        if (!pci) return NVML_ERROR_INVALID_ARGUMENT;                                                                  \
        fill_pci(device, pci, version);                                                                                \
        return NVML_SUCCESS;                                                                                           \
    }
PCI_INFO(nvmlDeviceGetPciInfo, 1)
PCI_INFO(nvmlDeviceGetPciInfo_v2, 2)
PCI_INFO(nvmlDeviceGetPciInfo_v3, 3)

NVML_BODY(nvmlDeviceGetCudaComputeCapability, (nvmlDevice_t handle, int *major, int *minor), (handle, major, minor)) {
    NVML_DEVICE(device, handle);
    if (!major || !minor) return NVML_ERROR_INVALID_ARGUMENT;
    *major = device->cc_major;
    *minor = device->cc_minor;
    return NVML_SUCCESS;
}

NVML_NUMBER_OF(NVML_ANY_DEVICE, nvmlDeviceGetIndex, unsigned int,
               device->parent ? device->mig_index : device - hl_node.devices)
NVML_NUMBER(nvmlDeviceGetMinorNumber, unsigned int, device->minor_number)
NVML_NUMBER(nvmlDeviceGetBoardId, unsigned int, device->pci_domain << 16 | device->pci_bus << 8)
NVML_NUMBER(nvmlDeviceGetMultiGpuBoard, unsigned int, 0)
NVML_NUMBER(nvmlDeviceGetBrand, nvmlBrandType_t, device->brand)
NVML_NUMBER(nvmlDeviceGetArchitecture, nvmlDeviceArchitecture_t, device->architecture)
NVML_NUMBER(nvmlDeviceGetMemoryBusWidth, unsigned int, device->bus_width_bits)
NVML_NUMBER(nvmlDeviceGetBusType, nvmlBusType_t, NVML_BUS_TYPE_PCIE)
NVML_NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned int, device->pcie_generation)
NVML_NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned int, device->pcie_generation)
NVML_NUMBER(nvmlDeviceGetGpuMaxPcieLinkGeneration, unsigned int, device->pcie_generation)
NVML_NUMBER(nvmlDeviceGetCurrPcieLinkWidth, unsigned int, device->pcie_width)
NVML_NUMBER(nvmlDeviceGetMaxPcieLinkWidth, unsigned int, device->pcie_width)
NVML_NUMBER(nvmlDeviceGetPcieReplayCounter, unsigned int, 0)
NVML_NUMBER(nvmlDeviceGetPersistenceMode, nvmlEnableState_t, NVML_FEATURE_ENABLED)
NVML_NUMBER(nvmlDeviceGetAccountingMode, nvmlEnableState_t, NVML_FEATURE_DISABLED)
NVML_NUMBER(nvmlDeviceGetDisplayMode, nvmlEnableState_t, NVML_FEATURE_DISABLED)
NVML_NUMBER(nvmlDeviceGetDisplayActive, nvmlEnableState_t, NVML_FEATURE_DISABLED)
NVML_NUMBER(nvmlDeviceGetVirtualizationMode, nvmlGpuVirtualizationMode_t, NVML_GPU_VIRTUALIZATION_MODE_NONE)
NVML_NUMBER(nvmlDeviceGetPowerManagementMode, nvmlEnableState_t, NVML_FEATURE_ENABLED)
NVML_NUMBER(nvmlDeviceGetNumFans, unsigned int, device->fan_count)

/* What a card says only while it is whole. */
NVML_BODY(nvmlDeviceGetNumGpuCores, (nvmlDevice_t handle, unsigned int *cores), (handle, cores)) {
    NVML_DEVICE(device, handle);
    if (!cores) return NVML_ERROR_INVALID_ARGUMENT;
    if (device->mig) return NVML_ERROR_NOT_SUPPORTED;
    *cores = device->sm_count * device->cores_per_sm;
    return NVML_SUCCESS;
}

/* Of a card that is cut, each MIG device has a mode of its own. */
NVML_BODY(nvmlDeviceGetComputeMode, (nvmlDevice_t handle, nvmlComputeMode_t *mode), (handle, mode)) {
    NVML_ANY_DEVICE(device, handle);
    if (!mode) return NVML_ERROR_INVALID_ARGUMENT;
    if (device->mig) return NVML_ERROR_NOT_SUPPORTED;
    *mode = NVML_COMPUTEMODE_DEFAULT;
    return NVML_SUCCESS;
}

/* A GPU inside the host's processor has no limit of its own. */
#define POWER_LIMIT(name)                                                                                              \
    NVML_BODY(name, (nvmlDevice_t handle, unsigned int *mw), (handle, mw)) {                                           \
        NVML_DEVICE(device, handle);                                                                                   \
        if (!mw) return NVML_ERROR_INVALID_ARGUMENT;                                                                   \
        if (device->integrated) return NVML_ERROR_NOT_SUPPORTED;                                                       \
        *mw = device->power_limit_mw;                                                                                  \
        return NVML_SUCCESS;                                                                                           \
    }
POWER_LIMIT(nvmlDeviceGetPowerManagementLimit)
POWER_LIMIT(nvmlDeviceGetPowerManagementDefaultLimit)
POWER_LIMIT(nvmlDeviceGetEnforcedPowerLimit)

static uint32_t index_of(const struct hl_node_device *device) { return (uint32_t)(device - hl_node.devices); }

unsigned hl_nvml_power_mw(const struct hl_node_device *device) {
    uint64_t range =
        device->power_limit_mw > device->idle_power_mw ? device->power_limit_mw - device->idle_power_mw : 0;
    return device->idle_power_mw + (unsigned)(range * hl_nvml_busy(index_of(device)) / 100);
}

static unsigned temperature_c(const struct hl_node_device *device) {
    return device->temperature_c + HOT_C * hl_nvml_busy(index_of(device)) / 100;
}

NVML_NUMBER(nvmlDeviceGetPowerUsage, unsigned int, hl_nvml_power_mw(device))
NVML_NUMBER(nvmlDeviceGetPerformanceState, nvmlPstates_t,
            device->brand == NVML_BRAND_GEFORCE && hl_nvml_busy(index_of(device)) == 0 ? NVML_PSTATE_8 : NVML_PSTATE_0)
NVML_NUMBER(nvmlDeviceGetPowerState, nvmlPstates_t,
            device->brand == NVML_BRAND_GEFORCE && hl_nvml_busy(index_of(device)) == 0 ? NVML_PSTATE_8 : NVML_PSTATE_0)
NVML_NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long,
            hl_nvml_busy(index_of(device)) ? nvmlClocksEventReasonNone : nvmlClocksEventReasonGpuIdle)
NVML_NUMBER(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long,
            hl_nvml_busy(index_of(device)) ? nvmlClocksEventReasonNone : nvmlClocksEventReasonGpuIdle)

NVML_BODY(nvmlDeviceGetTemperature, (nvmlDevice_t handle, nvmlTemperatureSensors_t sensor, unsigned int *value),
          (handle, sensor, value)) {
    NVML_DEVICE(device, handle);
    if (!value || sensor != NVML_TEMPERATURE_GPU) return NVML_ERROR_INVALID_ARGUMENT;
    *value = temperature_c(device);
    return NVML_SUCCESS;
}

NVML_BODY(nvmlDeviceGetTemperatureV, (nvmlDevice_t handle, nvmlTemperature_t *value), (handle, value)) {
    NVML_DEVICE(device, handle);
    if (!value) return NVML_ERROR_INVALID_ARGUMENT;
    if (value->sensorType != NVML_TEMPERATURE_GPU) return NVML_ERROR_INVALID_ARGUMENT;
    if (value->version != nvmlTemperature_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    value->temperature = (int)temperature_c(device);
    return NVML_SUCCESS;
}

static nvmlReturn_t fan_speed(const struct hl_node_device *device, unsigned int fan, unsigned int *value) {
    if (!value) return NVML_ERROR_INVALID_ARGUMENT;
    if (device->fan_count == 0) return NVML_ERROR_NOT_SUPPORTED;
    if (fan >= device->fan_count) return NVML_ERROR_INVALID_ARGUMENT;
    *value = hl_nvml_busy(index_of(device)) * 6 / 10;
    return NVML_SUCCESS;
}

NVML_BODY(nvmlDeviceGetFanSpeed, (nvmlDevice_t handle, unsigned int *value), (handle, value)) {
    NVML_DEVICE(device, handle);
    return fan_speed(device, 0, value);
}

NVML_BODY(nvmlDeviceGetFanSpeed_v2, (nvmlDevice_t handle, unsigned int fan, unsigned int *value),
          (handle, fan, value)) {
    NVML_DEVICE(device, handle);
    return fan_speed(device, fan, value);
}

static nvmlReturn_t clock_mhz(const struct hl_node_device *device, nvmlClockType_t type, int highest,
                              unsigned int *value) {
    if (!value || (unsigned)type >= NVML_CLOCK_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
    if (type == NVML_CLOCK_MEM) {
        *value = device->memory_clock_khz / 1000;
        return NVML_SUCCESS;
    }
    *value = (highest || hl_nvml_busy(index_of(device)) ? device->clock_khz : device->idle_clock_khz) / 1000;
    return NVML_SUCCESS;
}

NVML_BODY(nvmlDeviceGetClockInfo, (nvmlDevice_t handle, nvmlClockType_t type, unsigned int *value),
          (handle, type, value)) {
    NVML_DEVICE(device, handle);
    return clock_mhz(device, type, 0, value);
}

NVML_BODY(nvmlDeviceGetMaxClockInfo, (nvmlDevice_t handle, nvmlClockType_t type, unsigned int *value),
          (handle, type, value)) {
    NVML_DEVICE(device, handle);
    return clock_mhz(device, type, 1, value);
}

NVML_BODY(nvmlDeviceGetClock, (nvmlDevice_t handle, nvmlClockType_t type, nvmlClockId_t id, unsigned int *value),
          (handle, type, id, value)) {
    NVML_DEVICE(device, handle);
    if ((unsigned)id >= NVML_CLOCK_ID_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
    return clock_mhz(device, type, id != NVML_CLOCK_ID_CURRENT, value);
}

NVML_BODY(nvmlDeviceGetEccMode, (nvmlDevice_t handle, nvmlEnableState_t *now, nvmlEnableState_t *pending),
          (handle, now, pending)) {
    NVML_DEVICE(device, handle);
    if (!now || !pending) return NVML_ERROR_INVALID_ARGUMENT;
    *now = *pending = device->ecc ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
    return NVML_SUCCESS;
}

NVML_BODY(nvmlDeviceGetTotalEccErrors,
          (nvmlDevice_t handle, nvmlMemoryErrorType_t type, nvmlEccCounterType_t counter, unsigned long long *value),
          (handle, type, counter, value)) {
    NVML_DEVICE(device, handle);
    if (!value || (unsigned)type >= NVML_MEMORY_ERROR_TYPE_COUNT || (unsigned)counter >= NVML_ECC_COUNTER_TYPE_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!device->ecc) return NVML_ERROR_NOT_SUPPORTED;
    *value = 0;
    return NVML_SUCCESS;
}

NVML_BODY(nvmlDeviceGetPcieThroughput, (nvmlDevice_t handle, nvmlPcieUtilCounter_t counter, unsigned int *value),
          (handle, counter, value)) {
    NVML_DEVICE(device, handle);
    if (!value || (unsigned)counter >= NVML_PCIE_UTIL_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
    *value = 0; /* copies are not put on the fake's bus */
    return NVML_SUCCESS;
}

NVML_BODY(nvmlDeviceOnSameBoard, (nvmlDevice_t one, nvmlDevice_t two, int *same), (one, two, same)) {
    NVML_DEVICE(first, one);
    NVML_DEVICE(second, two);
    if (!same) return NVML_ERROR_INVALID_ARGUMENT;
    *same = first == second;
    return NVML_SUCCESS;
}

/* Driver models are Windows': the real library says so on Linux. */
#define DRIVER_MODEL(name)                                                                                             \
    NVML_BODY(name, (nvmlDevice_t handle, nvmlDriverModel_t * now, nvmlDriverModel_t * pending),                       \
              (handle, now, pending)) {                                                                                \
        NVML_DEVICE(device, handle);                                                                                   \
        return now && pending ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT;                                \
    }
DRIVER_MODEL(nvmlDeviceGetDriverModel)
DRIVER_MODEL(nvmlDeviceGetDriverModel_v2)
