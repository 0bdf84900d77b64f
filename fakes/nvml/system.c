/* The host: versions, and the chassis that no fake node has. */
#include "frame.h"

NVML_BODY(nvmlSystemGetDriverVersion, (char *version, unsigned int length), (version, length)) {
    return hl_nvml_text(hl_node.header->driver_string, sizeof hl_node.header->driver_string, version, length);
}

static nvmlReturn_t cuda_version(int *version) {
    if (!version) return NVML_ERROR_INVALID_ARGUMENT;
    *version = hl_node.header->driver_version;
    return NVML_SUCCESS;
}

NVML_BODY(nvmlSystemGetCudaDriverVersion, (int *version), (version)) { return cuda_version(version); }
NVML_BODY(nvmlSystemGetCudaDriverVersion_v2, (int *version), (version)) { return cuda_version(version); }

NVML_BODY(nvmlUnitGetCount, (unsigned int *count), (count)) {
    if (!count) return NVML_ERROR_INVALID_ARGUMENT;
    *count = 0;
    return NVML_SUCCESS;
}
