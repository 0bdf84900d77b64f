/* Values by field number: what the functions of the other files say of the same thing. A number that means something which
 * the fake has not says "not supported" in its own row, one that means nothing "invalid argument" (assumed). */
#include <time.h>

#include "frame.h"

static long long wall_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (long long)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static nvmlReturn_t number(nvmlFieldValue_t *field, unsigned value) {
    field->valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
    field->value.uiVal = value;
    return NVML_SUCCESS;
}

static nvmlReturn_t counter(nvmlFieldValue_t *field, unsigned long long value) {
    field->valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
    field->value.ullVal = value;
    return NVML_SUCCESS;
}

static nvmlReturn_t read_field(const struct hl_node_device *device, nvmlFieldValue_t *field) {
    int remaps = hl_nvml_remaps_rows(device);
    switch (field->fieldId) {
    case NVML_FI_DEV_ECC_CURRENT:
    case NVML_FI_DEV_ECC_PENDING: return counter(field, device->ecc);
    case NVML_FI_DEV_ECC_SBE_VOL_TOTAL:
    case NVML_FI_DEV_ECC_DBE_VOL_TOTAL:
    case NVML_FI_DEV_ECC_SBE_AGG_TOTAL:
    case NVML_FI_DEV_ECC_DBE_AGG_TOTAL: return device->ecc ? counter(field, 0) : NVML_ERROR_NOT_SUPPORTED;
    case NVML_FI_DEV_RETIRED_SBE:
    case NVML_FI_DEV_RETIRED_DBE:
    case NVML_FI_DEV_RETIRED_PENDING:
    case NVML_FI_DEV_RETIRED_PENDING_SBE:
    case NVML_FI_DEV_RETIRED_PENDING_DBE: return device->ecc && !remaps ? counter(field, 0) : NVML_ERROR_NOT_SUPPORTED;
    case NVML_FI_DEV_REMAPPED_COR:
    case NVML_FI_DEV_REMAPPED_UNC:
    case NVML_FI_DEV_REMAPPED_PENDING:
    case NVML_FI_DEV_REMAPPED_FAILURE: return device->ecc && remaps ? counter(field, 0) : NVML_ERROR_NOT_SUPPORTED;
    case NVML_FI_DEV_PCIE_REPLAY_COUNTER:
    case NVML_FI_DEV_PCIE_REPLAY_ROLLOVER_COUNTER: return number(field, 0);
    case NVML_FI_DEV_POWER_AVERAGE:
    case NVML_FI_DEV_POWER_INSTANT: return number(field, hl_nvml_power_mw(device));
    case NVML_FI_DEV_POWER_MIN_LIMIT: return number(field, hl_nvml_least_power_mw(device));
    case NVML_FI_DEV_POWER_MAX_LIMIT:
    case NVML_FI_DEV_POWER_DEFAULT_LIMIT:
    case NVML_FI_DEV_POWER_CURRENT_LIMIT:
    case NVML_FI_DEV_POWER_REQUESTED_LIMIT: return number(field, device->power_limit_mw);
    default:
        return field->fieldId == 0 || field->fieldId >= NVML_FI_MAX ? NVML_ERROR_INVALID_ARGUMENT
                                                                    : NVML_ERROR_NOT_SUPPORTED;
    }
}

NVML_BODY(nvmlDeviceGetFieldValues, (nvmlDevice_t handle, int count, nvmlFieldValue_t *values),
          (handle, count, values)) {
    NVML_DEVICE(device, handle);
    if (!values || count <= 0) return NVML_ERROR_INVALID_ARGUMENT;
    for (int i = 0; i < count; i++) {
        values[i].timestamp = wall_us();
        values[i].latencyUsec = 0;
        values[i].nvmlReturn = read_field(device, &values[i]);
    }
    return NVML_SUCCESS;
}

NVML_BODY(nvmlDeviceClearFieldValues, (nvmlDevice_t handle, int count, nvmlFieldValue_t *values),
          (handle, count, values)) {
    if (count == 0) return NVML_SUCCESS; /* whatever the rest is */
    NVML_DEVICE(device, handle);
    if (!values || count < 0) return NVML_ERROR_INVALID_ARGUMENT;
    for (int i = 0; i < count; i++) values[i].nvmlReturn = NVML_ERROR_INVALID_ARGUMENT; /* none of them is cleared so */
    return NVML_SUCCESS;
}
