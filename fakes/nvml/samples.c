/* Utilisation, from the busy intervals that fake drivers write to the node file.
 *
 * The model (measured on one real card): a sample every 200 ms, visible 5 ms later, as the profile says, about 14 s of them
 * kept; one whole sample is credited to ONE process even where several shared it. Who gets it is drawn by their shares with a number that
 * depends on device and sample only, so long averages are right, short ones scatter, and every reader sees the same. Who
 * has worked stays named, with 0 %. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "frame.h"
#include "history.h"
#include "turns.h"

enum { KEPT = 72, USERS = 256 };
static const uint64_t slack_ns = 1000000000;

struct span { /* samples: number i covers [i * period, (i + 1) * period) of CLOCK_MONOTONIC, from offset on */
    uint64_t offset, period, first, count;
};

struct sums {
    uint64_t total[KEPT]; /* busy ns by sample, counted from span.first */
    unsigned users;
    uint32_t slot[USERS];
    uint64_t busy[KEPT][USERS];
};

static uint64_t sample_period(uint32_t index) {
    uint64_t scaled = hl_scaled(hl_node.devices[index].sample_period_ns);
    return scaled > 1000000 ? scaled : 1000000;
}

/* Wall clock minus monotonic clock, fixed at first use: a sample must have the same stamp at every query. */
static int64_t wall_offset(void) {
    static int64_t offset;
    int64_t known = __atomic_load_n(&offset, __ATOMIC_ACQUIRE);
    if (known) return known;
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    int64_t fresh = (int64_t)wall.tv_sec * 1000000000 + wall.tv_nsec - (int64_t)hl_now_ns(), none = 0;
    return __atomic_compare_exchange_n(&offset, &none, fresh, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE) ? fresh : none;
}

static unsigned long long stamp_us(const struct span *span, uint64_t i) {
    return (unsigned long long)(((int64_t)((span->first + i + 1) * span->period) + wall_offset()) / 1000);
}

/* The samples that are visible now and newer than `last_seen_us` (0: all that are kept). */
static struct span visible(uint32_t index, unsigned long long last_seen_us) {
    struct span span = {.period = sample_period(index)};
    uint64_t now = hl_now_ns(), delay = hl_scaled(hl_node.devices[index].sample_lag_ns);
    uint64_t end = now > delay ? (now - delay) / span.period : 0;
    span.first = end > KEPT ? end - KEPT : 0;
    span.count = end - span.first;
    while (span.count && stamp_us(&span, 0) <= last_seen_us) {
        span.first++;
        span.count--;
    }
    return span;
}

static unsigned user_of(struct sums *sums, uint32_t slot) {
    unsigned i = 0;
    while (i < sums->users && sums->slot[i] != slot) i++;
    if (i == sums->users && i < USERS) {
        sums->slot[i] = slot;
        sums->users++;
    }
    return i;
}

static void add(struct sums *sums, const struct span *span, const struct hl_node_interval *interval) {
    uint64_t start = span->offset + span->first * span->period, end = start + span->count * span->period;
    uint64_t from = interval->start_ns > start ? interval->start_ns : start,
             to = interval->end_ns < end ? interval->end_ns : end;
    /* A slot that was reused since names somebody else: the time stays the device's, nobody's by PID. */
    int known = interval->slot < hl_node.header->process_capacity &&
                hl_node.processes[interval->slot].start_ns <= interval->start_ns;
    unsigned user = known && from < to ? user_of(sums, interval->slot) : USERS;
    while (from < to) {
        uint64_t i = (from - start) / span->period, edge = start + (i + 1) * span->period;
        uint64_t part = (to < edge ? to : edge) - from;
        sums->total[i] += part;
        if (user < USERS) sums->busy[i][user] += part;
        from += part;
    }
}

/* Newest first, until entries end well before the span: their order is that of their starts. */
static void scan(uint32_t index, const struct span *span, struct sums *sums) {
    struct hl_node_device *device = &hl_node.devices[index];
    struct hl_node_interval *ring = hl_node_intervals(index);
    (void)hl_turns_look(hl_node.base, hl_node.slot + 1, index, hl_now_ns());
    uint64_t capacity = hl_node.header->interval_capacity,
             head = __atomic_load_n(&device->interval_head, __ATOMIC_ACQUIRE);
    uint64_t start = span->offset + span->first * span->period, oldest = head > capacity ? head - capacity : 0;
    for (uint64_t position = head; position > oldest; position--) {
        struct hl_node_interval *entry = &ring[(position - 1) % capacity];
        if (__atomic_load_n(&entry->sequence, __ATOMIC_ACQUIRE) != position) continue;
        struct hl_node_interval copy = {.start_ns = __atomic_load_n(&entry->start_ns, __ATOMIC_RELAXED),
                                        .end_ns = __atomic_load_n(&entry->end_ns, __ATOMIC_RELAXED),
                                        .slot = __atomic_load_n(&entry->slot, __ATOMIC_RELAXED)};
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        if (__atomic_load_n(&entry->sequence, __ATOMIC_RELAXED) != position) continue;
        if (copy.end_ns + slack_ns < start) break;
        add(sums, span, &copy);
    }
    for (uint64_t i = 0; i < span->count; i++)
        if (sums->total[i] > span->period) sums->total[i] = span->period;
}

static uint64_t mix(uint64_t x) { /* a well-mixed 64-bit number of x */
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

/* Who gets sample i: users' index, USERS for nobody known. */
static unsigned winner(const struct sums *sums, uint32_t index, const struct span *span, uint64_t i) {
    uint64_t known = 0;
    for (unsigned user = 0; user < sums->users; user++) known += sums->busy[i][user];
    if (known == 0) return USERS;
    uint64_t draw = mix((span->first + i) * HL_MAX_DEVICES + index) % known;
    for (unsigned user = 0; user < sums->users; user++) {
        if (draw < sums->busy[i][user]) return user;
        draw -= sums->busy[i][user];
    }
    return USERS;
}

struct load {
    uint32_t pid;
    unsigned percent;
    unsigned long long stamp;
};

/* A process is named from the first sample of its first work until it ends, with 0 % when it rests (measured). */
static int has_worked(uint32_t index, uint32_t slot, const struct span *span) {
    const struct hl_node_process *process = &hl_node.processes[slot];
    uint64_t end = span->offset + (span->first + span->count) * span->period;
    return __atomic_load_n(&process->state, __ATOMIC_ACQUIRE) == HL_PROCESS_LIVE && process->start_ns &&
           hl_turns_worked(hl_node.base, slot, index, process->start_ns, end);
}

/* Mean load by process over the samples newer than last_seen, at most `room` processes. */
static int loads(uint32_t index, unsigned long long last_seen, struct load *out, unsigned room, unsigned *found) {
    struct span span = visible(index, last_seen);
    struct sums *sums = calloc(1, sizeof *sums);
    uint64_t credit[USERS + 1] = {0}, whole = span.count * span.period;
    *found = 0;
    if (!sums) return -1;
    scan(index, &span, sums);
    for (uint64_t i = 0; i < span.count; i++) credit[winner(sums, index, &span, i)] += sums->total[i];
    for (uint32_t slot = 0; whole && slot < hl_node.header->process_capacity; slot++)
        if (has_worked(index, slot, &span)) (void)user_of(sums, slot);
    for (unsigned user = 0; user < sums->users && *found < room; user++) {
        unsigned percent = (unsigned)((credit[user] * 100 + whole / 2) / whole);
        uint32_t pid = hl_nvml_pid(&hl_node.processes[sums->slot[user]]);
        if (pid == 0 || (percent == 0 && !has_worked(index, sums->slot[user], &span))) continue;
        out[*found] = (struct load){pid, percent, stamp_us(&span, span.count - 1)};
        ++*found;
    }
    free(sums);
    return 0;
}

/* Busy share of the first sample of a span, parts in ten thousand. */
static unsigned busy_row(uint32_t index, const struct span *span) {
    struct sums *sums = span->count ? calloc(1, sizeof *sums) : NULL;
    if (!sums) return 0;
    scan(index, span, sums);
    unsigned parts = (unsigned)(sums->total[0] * 10000 / span->period);
    free(sums);
    return parts;
}

static unsigned busy_in(uint32_t index, const struct span *span) {
    const struct hl_node_device *device = &hl_node.devices[index];
    if (!device->mig) return busy_row(index, span);
    unsigned sum = 0;
    for (uint32_t row = hl_node.header->card_count; row < hl_node.header->device_count; row++)
        if (hl_nvml_part_of(row, device)) sum += busy_row(row, span) * hl_node.devices[row].sm_count;
    return sum / device->sm_count;
}

unsigned hl_nvml_busy(uint32_t index) {
    struct span span = visible(index, 0);
    if (span.count) span.first += span.count - 1;
    span.count = span.count != 0;
    return busy_in(index, &span) / 100;
}

unsigned hl_nvml_busy_between(uint32_t index, uint64_t from_ns, uint64_t to_ns) {
    struct span span = {.offset = from_ns, .period = to_ns - from_ns, .count = 1};
    return to_ns > from_ns ? busy_in(index, &span) : 0;
}

/* Utilisation of any kind is not told of a card that is cut, nor of its MIG devices. */
#define WHOLE_CARD(device)                                                                                             \
    if ((device)->mig) return NVML_ERROR_NOT_SUPPORTED

enum { QUERY_FACTOR_PPM = 66500000 }; /* this query takes 1.33 ms where the others take 20 us */

NVML_BODY(nvmlDeviceGetProcessUtilization,
          (nvmlDevice_t handle, nvmlProcessUtilizationSample_t *samples, unsigned int *count,
           unsigned long long last_seen),
          (handle, samples, count, last_seen)) {
    NVML_DEVICE(device, handle);
    if (!count) return NVML_ERROR_INVALID_ARGUMENT;
    WHOLE_CARD(device);
    if (!samples || *count < KEPT) { /* room for all that are kept is asked for, however few there are */
        *count = KEPT;
        return NVML_ERROR_INSUFFICIENT_SIZE;
    }
    hl_latency_units(handle->index, HL_LATENCY_NVML_QUERY, QUERY_FACTOR_PPM);
    struct load list[KEPT];
    unsigned found;
    if (loads(handle->index, last_seen, list, KEPT, &found)) return NVML_ERROR_MEMORY;
    if (found == 0) return NVML_ERROR_NOT_FOUND;
    for (unsigned i = 0; i < found; i++)
        samples[i] =
            (nvmlProcessUtilizationSample_t){.pid = list[i].pid, .timeStamp = list[i].stamp, .smUtil = list[i].percent};
    *count = found;
    hl_output(samples, found * sizeof *samples);
    return NVML_SUCCESS;
}

NVML_BODY(nvmlDeviceGetProcessesUtilizationInfo, (nvmlDevice_t handle, nvmlProcessesUtilizationInfo_t *info),
          (handle, info)) {
    NVML_DEVICE(device, handle);
    if (!info) return NVML_ERROR_INVALID_ARGUMENT;
    WHOLE_CARD(device);
    if (info->version != nvmlProcessesUtilizationInfo_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (!info->procUtilArray || info->processSamplesCount < KEPT) {
        info->processSamplesCount = KEPT;
        return NVML_ERROR_INSUFFICIENT_SIZE;
    }
    hl_latency_units(handle->index, HL_LATENCY_NVML_QUERY, QUERY_FACTOR_PPM);
    struct load list[KEPT];
    unsigned found;
    if (loads(handle->index, info->lastSeenTimeStamp, list, KEPT, &found)) return NVML_ERROR_MEMORY;
    if (found == 0) return NVML_ERROR_NOT_FOUND;
    for (unsigned i = 0; i < found; i++)
        info->procUtilArray[i] = (nvmlProcessUtilizationInfo_v1_t){
            .pid = list[i].pid, .timeStamp = list[i].stamp, .smUtil = list[i].percent};
    info->processSamplesCount = found;
    return NVML_SUCCESS;
}

NVML_BODY(nvmlDeviceGetUtilizationRates, (nvmlDevice_t handle, nvmlUtilization_t *rates), (handle, rates)) {
    NVML_DEVICE(device, handle);
    if (!rates) return NVML_ERROR_INVALID_ARGUMENT;
    WHOLE_CARD(device);
    hl_latency(handle->index, HL_LATENCY_NVML_QUERY);
    rates->gpu = hl_nvml_busy(handle->index);
    rates->memory = 0; /* kernels of the fake move no bytes */
    hl_output(rates, sizeof *rates);
    return NVML_SUCCESS;
}

/* Encoders and decoders are never busy; they are sampled as often as the rest. */
static nvmlReturn_t idle_engine(nvmlDevice_t handle, unsigned *percent, unsigned *period_us) {
    NVML_DEVICE(device, handle);
    if (!percent || !period_us) return NVML_ERROR_INVALID_ARGUMENT;
    WHOLE_CARD(device);
    *percent = 0;
    *period_us = (unsigned)(sample_period(handle->index) / 1000);
    return NVML_SUCCESS;
}

#define ENGINE(name)                                                                                                   \
    NVML_BODY(name, (nvmlDevice_t handle, unsigned int *percent, unsigned int *period), (handle, percent, period)) {   \
        return idle_engine(handle, percent, period);                                                                   \
    }
ENGINE(nvmlDeviceGetEncoderUtilization)
ENGINE(nvmlDeviceGetDecoderUtilization)
ENGINE(nvmlDeviceGetJpgUtilization)
ENGINE(nvmlDeviceGetOfaUtilization)

NVML_BODY(nvmlDeviceGetSamples,
          (nvmlDevice_t handle, nvmlSamplingType_t type, unsigned long long last_seen, nvmlValueType_t *value_type,
           unsigned int *count, nvmlSample_t *samples),
          (handle, type, last_seen, value_type, count, samples)) {
    NVML_DEVICE(device, handle);
    if (!value_type || !count || (unsigned)type >= NVML_SAMPLINGTYPE_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
    WHOLE_CARD(device);
    if (type != NVML_GPU_UTILIZATION_SAMPLES && type != NVML_MEMORY_UTILIZATION_SAMPLES)
        return NVML_ERROR_NOT_SUPPORTED;
    *value_type = NVML_VALUE_TYPE_UNSIGNED_INT;
    if (!samples) {
        *count = KEPT;
        return NVML_SUCCESS;
    }
    if (*count < KEPT) return NVML_ERROR_INSUFFICIENT_SIZE;
    struct span span = visible(handle->index, last_seen);
    if (span.count == 0) return NVML_ERROR_NOT_FOUND;
    struct sums *sums = calloc(1, sizeof *sums);
    if (!sums) return NVML_ERROR_MEMORY;
    scan(handle->index, &span, sums);
    for (uint64_t i = 0; i < span.count; i++) {
        samples[i].timeStamp = stamp_us(&span, i);
        samples[i].sampleValue.ullVal = 0;
        if (type == NVML_GPU_UTILIZATION_SAMPLES)
            samples[i].sampleValue.uiVal = (unsigned)(sums->total[i] * 100 / span.period);
    }
    *count = (unsigned)span.count;
    free(sums);
    return NVML_SUCCESS;
}
