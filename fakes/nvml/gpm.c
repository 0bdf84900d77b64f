/* Performance metrics between two samples (Hopper and later). Of some hundred metrics one is modelled, the share of time in
 * which a kernel ran; every other says so in its own row.
 *
 * A sample is a moment of a device: what was counted between two of them is read off the busy intervals when it is asked
 * for, so samples further apart than those are kept count too little. */
#include <stdlib.h>

#include "frame.h"
#include "history.h"

struct nvmlGpmSample_st {
    const struct hl_node_device *device; /* NULL: nothing was read into it */
    uint64_t time_ns;
};

static int has_metrics(const struct hl_node_device *device) { return device->architecture >= NVML_DEVICE_ARCH_HOPPER; }

NVML_BODY(nvmlGpmQueryDeviceSupport, (nvmlDevice_t handle, nvmlGpmSupport_t *support), (handle, support)) {
    NVML_ANY_DEVICE(device, handle);
    if (!support) return NVML_ERROR_INVALID_ARGUMENT;
    if (support->version != NVML_GPM_SUPPORT_VERSION) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    support->isSupportedDevice = (unsigned)has_metrics(device);
    return NVML_SUCCESS;
}

NVML_BODY(nvmlGpmSampleAlloc, (nvmlGpmSample_t * sample), (sample)) {
    if (!sample) return NVML_ERROR_INVALID_ARGUMENT;
    nvmlGpmSample_t made = calloc(1, sizeof *made);
    if (!made) return NVML_ERROR_MEMORY;
    *sample = made;
    return NVML_SUCCESS;
}

NVML_BODY(nvmlGpmSampleFree, (nvmlGpmSample_t sample), (sample)) {
    free(sample);
    return NVML_SUCCESS;
}

NVML_BODY(nvmlGpmSampleGet, (nvmlDevice_t handle, nvmlGpmSample_t sample), (handle, sample)) {
    NVML_ANY_DEVICE(device, handle);
    if (!sample) return NVML_ERROR_INVALID_ARGUMENT;
    if (!has_metrics(device)) return NVML_ERROR_NOT_SUPPORTED;
    sample->device = device;
    sample->time_ns = hl_now_ns();
    return NVML_SUCCESS;
}

static nvmlReturn_t measure(nvmlGpmMetric_t *metric, const struct nvmlGpmSample_st *from,
                            const struct nvmlGpmSample_st *to) {
    static char name[] = "Graphics Util", unit[] = "%";
    if (metric->metricId == 0 || metric->metricId >= NVML_GPM_METRIC_MAX) return NVML_ERROR_INVALID_ARGUMENT;
    if (metric->metricId != NVML_GPM_METRIC_GRAPHICS_UTIL) return NVML_ERROR_NOT_SUPPORTED;
    uint32_t row = (uint32_t)(from->device - hl_node.devices);
    metric->value = hl_nvml_busy_between(row, from->time_ns, to->time_ns) / 100.0;
    metric->metricInfo.shortName = metric->metricInfo.longName = name;
    metric->metricInfo.unit = unit;
    return NVML_SUCCESS;
}

NVML_BODY(nvmlGpmMetricsGet, (nvmlGpmMetricsGet_t * asked), (asked)) {
    if (!asked) return NVML_ERROR_INVALID_ARGUMENT;
    if (asked->version != NVML_GPM_METRICS_GET_VERSION) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    const struct nvmlGpmSample_st *from = asked->sample1, *to = asked->sample2;
    if (!from || !to || asked->numMetrics > NVML_GPM_METRIC_MAX) return NVML_ERROR_INVALID_ARGUMENT;
    if (!from->device || from->device != to->device || from->time_ns >= to->time_ns) return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned i = 0; i < asked->numMetrics; i++)
        asked->metrics[i].nvmlReturn = measure(&asked->metrics[i], from, to);
    return NVML_SUCCESS;
}

NVML_BODY(nvmlGpmQueryIfStreamingEnabled, (nvmlDevice_t handle, unsigned int *state), (handle, state)) {
    NVML_DEVICE(device, handle);
    if (!state) return NVML_ERROR_INVALID_ARGUMENT;
    if (!has_metrics(device)) return NVML_ERROR_NOT_SUPPORTED;
    *state = NVML_FEATURE_DISABLED;
    return NVML_SUCCESS;
}

NVML_BODY(nvmlGpmSetStreamingEnabled, (nvmlDevice_t handle, unsigned int state), (handle, state)) {
    NVML_DEVICE(device, handle);
    if (state > NVML_FEATURE_ENABLED) return NVML_ERROR_INVALID_ARGUMENT;
    return has_metrics(device) ? NVML_ERROR_NO_PERMISSION : NVML_ERROR_NOT_SUPPORTED;
}
