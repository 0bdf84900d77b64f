/* Leases and ticks: asks the pacing policy about the container's shared words and makes its answer count.
 *
 * Invariants: the policy sees a copy of the words; its answer counts only when the copy it saw is still current, else it
 * is asked again, so no two processes are granted the same tokens. No lock is held while it thinks. A tick (NVML looked
 * at, policy told) is one process's turn at a time, claimed by its time in the region. */
#include "pacing.h"

#include "engine.h"
#include "hl_layout_history.h"
#include "ledger.h"

#include <string.h>

enum { TICK_NS = 120000000, WINDOW_NS = 1000000000, TRIES = 16 };

/* 0 where the driver does not say. The same for every process, so a race writes the same. */
static uint64_t attribute(int device, CUdevice_attribute which, uint32_t *kept) {
    int value = 0;
    uint32_t known = __atomic_load_n(kept, __ATOMIC_RELAXED);
    if (known) return known;
    __typeof__(&cuDeviceGetAttribute) ask = HL_REAL(cuDeviceGetAttribute);
    if (!ask || ask(&value, which, device) != CUDA_SUCCESS || value <= 0) return 0;
    __atomic_store_n(kept, (uint32_t)value, __ATOMIC_RELAXED);
    return (uint64_t)value;
}

static void add_size(int device, struct hl_share *share) {
    static uint32_t processors[HL_DEVICES], threads[HL_DEVICES];
    share->words[1] = attribute(device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &processors[device]);
    share->words[2] = attribute(device, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, &threads[device]);
}

bool hl_lease_features(struct hl_pacer *pacer) {
    const struct hl_engine_api *api = hl_engine_of_process();
    if (!api) return false;
    uint32_t features = api->features();
    pthread_mutex_lock(&pacer->mutex);
    pacer->blocks = features & HL_ENGINE_PACES_BLOCKS;
    pacer->bounded = features & HL_ENGINE_PACES_BOUNDED;
    pacer->known = true;
    pthread_mutex_unlock(&pacer->mutex);
    if (features & HL_ENGINE_PACES_INSTEAD) hl_pace_instead();
    return true;
}

static enum hl_lease failed(const struct hl_engine_api *api, int64_t answer) {
    if (answer == HL_ENGINE_REENTRY) return HL_LEASE_REENTRY;
    if (answer == HL_ENGINE_ABSENT) return HL_LEASE_ABSENT;
    hl_engine_failed(api);
    return HL_LEASE_FAULT;
}

enum hl_lease hl_lease_ask(struct hl_pacer *pacer, int64_t need, uint64_t now, int64_t *answer) {
    const struct hl_engine_api *api = hl_engine_of_process();
    if (!api) return HL_LEASE_ABSENT;
    struct hl_share share;
    for (int tries = 0; tries < TRIES; tries++) {
        if (hl_share_read(pacer->device, &share)) return HL_LEASE_BLIND;
        add_size(pacer->device, &share);
        *answer = api->lease(pacer->device, need, now, share.words, sizeof share.words);
        if (*answer <= HL_ENGINE_REENTRY) return failed(api, *answer);
        int done = hl_share_commit(pacer->device, &share);
        if (done < 0) return HL_LEASE_BLIND;
        if (done) {
            if (*answer < 0) return HL_LEASE_WAIT;
            __atomic_fetch_add(&hl_pace_slot()->leases, 1, __ATOMIC_RELAXED);
            return HL_LEASE_GRANTED;
        }
        __atomic_fetch_add(&hl_pace_slot()->conflicts, 1, __ATOMIC_RELAXED);
    }
    *answer = -100000; /* the others get on; this one comes back a little later */
    return HL_LEASE_WAIT;
}

static void note(struct hl_region_device *row, const struct hl_sample *sample, uint64_t now) {
    if (hl_share_lock()) return;
    row->sample_flags = (sample->usable ? HL_SAMPLE_USABLE : 0) | (sample->known ? HL_SAMPLE_KNOWN : 0) |
                        (sample->exact ? HL_SAMPLE_EXACT : 0);
    __atomic_store_n(&row->board_cut, sample->cut, __ATOMIC_RELAXED);
    row->neighbours = sample->neighbours;
    uint64_t measured = __atomic_load_n(&row->measured, __ATOMIC_RELAXED);
    if (sample->fresh) {
        row->sample_sequence++;
        row->sample_time = sample->time;
        row->sample_own = sample->own;
        row->sample_all = sample->all;
        row->sample_window = sample->window;
        row->sample_own_ns += sample->own_ns;
        row->sample_measured = sample->exact ? row->sample_measured + sample->raw : measured;
    }
    if (!row->window_start) {
        row->window_start = now;
        row->window_measured = measured;
    } else if (now - row->window_start >= WINDOW_NS) {
        row->achieved = (measured - row->window_measured) * 10000 / (now - row->window_start);
        row->achieved_at = now;
        row->window_start = now;
        row->window_measured = measured;
    }
    row->ticks++;
    hl_share_unlock();
}

void hl_lease_tick(struct hl_pacer *pacer, uint64_t now) {
    struct hl_region_device *row = pacer->row;
    uint64_t last = __atomic_load_n(&row->tick, __ATOMIC_RELAXED);
    if (now < last + TICK_NS ||
        !__atomic_compare_exchange_n(&row->tick, &last, now, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        return;
    struct hl_sample sample = {0};
    hl_sample_take(pacer->device, !pacer->blocks, __atomic_load_n(&row->board_cut, __ATOMIC_RELAXED), &sample);
    hl_share_bury();
    note(row, &sample, now);
    const struct hl_engine_api *api = hl_engine_of_process();
    if (!api || !(api->features() & HL_ENGINE_HAS_OBSERVE)) return;
    struct hl_share share;
    for (int tries = 0; tries < TRIES; tries++) {
        if (hl_share_read(pacer->device, &share)) return;
        add_size(pacer->device, &share);
        uint64_t window = sample.usable ? share.words[12] : 0, busy = window * share.words[10] / 10000;
        int64_t answer = api->observe(pacer->device, busy, window, now, share.words, sizeof share.words);
        if (answer <= HL_ENGINE_REENTRY) {
            if (answer == HL_ENGINE_FAULT) hl_engine_failed(api);
            return;
        }
        if (hl_share_commit(pacer->device, &share)) return;
    }
}
