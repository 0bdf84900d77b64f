/* The limiter of one process over a made-up driver and clock, for tests that step it: launches run on a stack of their
 * own and come back to the caller whenever the limiter sleeps, asks the policy, or is done.
 *
 * The files of the limiter and of the region are the product's. Replaced are the clock, the sleep (both virtual), the
 * driver (one stream on which kernels run one after another, and events), NVML's sample (as told) and the engine (the
 * caller answers). A copy of this library under another name is another process to the region: its own descriptor, slot
 * and presence byte. Everything runs on one thread. */
#include "engine.h"
#include "history.h"
#include "ledger.h"
#include "pacing.h"
#include "region.h"
#include "rig.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

static uint64_t faults;
void hl_engine_failed(const struct hl_engine_api *api) { (void)api, faults++; }

/* ---- the clock ---- */

static uint64_t clock_ns;
uint64_t hl_pace_now(void) { return clock_ns; }
uint64_t hl_pace_true_now(void) { return clock_ns; }
uint64_t __wrap_hl_now_ns(void);
uint64_t __wrap_hl_now_ns(void) { return clock_ns; }

/* Planted: an answer counts although somebody else's was committed meanwhile. */
static bool overwrites;
int __real_hl_share_commit(int device, const struct hl_share *share);
int __wrap_hl_share_commit(int device, const struct hl_share *share);
int __wrap_hl_share_commit(int device, const struct hl_share *share) {
    struct hl_share now, late = *share;
    if (overwrites && hl_share_read(device, &now)) return -1;
    if (overwrites) late.version = now.version;
    return __real_hl_share_commit(device, overwrites ? &late : share);
}

/* ---- coming back to the caller ---- */

static ucontext_t outside, inside;
static _Alignas(64) char stack[256 << 10];
static struct talk talk;
static int64_t answered;

static int64_t say(struct talk what) {
    talk = what;
    swapcontext(&inside, &outside);
    return answered;
}

void hl_pace_nap(uint64_t ns) { say((struct talk){.what = NAPS, .ns = ns}); }

static int64_t lease(int device, int64_t cost, uint64_t now, void *words, size_t bytes) {
    (void)device, (void)bytes;
    return say((struct talk){.what = LEASES, .cost = cost, .now = now, .words = words});
}

static int64_t observe(int device, uint64_t busy, uint64_t window, uint64_t now, void *words, size_t bytes) {
    (void)device, (void)bytes;
    return say((struct talk){.what = OBSERVES, .busy = busy, .window = window, .now = now, .words = words});
}

static uint32_t features;
static uint32_t told_features(void) { return features; }
static const struct hl_engine_api api = {.lease = lease, .observe = observe, .features = told_features};
const struct hl_engine_api *hl_engine_of_process(void) { return &api; }

static struct hl_sample next;
void hl_sample_take(int device, bool board, uint64_t cut, struct hl_sample *sample) {
    (void)device, (void)board, (void)cut;
    *sample = next;
    next.fresh = false;
}

/* ---- the driver: one stream ---- */

static uint64_t drained;
struct event {
    uint64_t at;
};

static CUresult get_current(CUcontext *context) { return *context = (CUcontext)(uintptr_t)64, CUDA_SUCCESS; }
static CUresult create(CUevent *event, unsigned flags) {
    (void)flags;
    *event = calloc(1, sizeof(struct event));
    return *event ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
static CUresult destroy(CUevent event) { return free(event), CUDA_SUCCESS; }
static CUresult record(CUevent event, CUstream stream) {
    (void)stream;
    ((struct event *)event)->at = drained > clock_ns ? drained : clock_ns;
    return CUDA_SUCCESS;
}
static CUresult query(CUevent event) {
    return ((struct event *)event)->at <= clock_ns ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
static CUresult elapsed(float *ms, CUevent from, CUevent to) {
    *ms = (float)((double)(((struct event *)to)->at - ((struct event *)from)->at) / 1e6);
    return CUDA_SUCCESS;
}
static CUresult attribute(int *value, CUdevice_attribute which, CUdevice device) {
    (void)device;
    *value = which == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT ? 108 : 2048;
    return CUDA_SUCCESS;
}

/* ---- what the tests call ---- */

static struct {
    uint64_t key, blocks, ns;
    int result;
} wanted;

static struct hl_region *entered;
int __real_hl_region_enter(struct hl_region *region);
int __wrap_hl_region_enter(struct hl_region *region);
int __wrap_hl_region_enter(struct hl_region *region) {
    entered = region;
    return __real_hl_region_enter(region);
}

/* 0, or what is wrong with the region. `policy`: HL_ENGINE_PACES_*. */
RIG int rig_open(const char *region, int robust, int percent, uint32_t policy, uint64_t now) {
    clock_ns = now;
    features = policy | HL_ENGINE_HAS_LEASE | HL_ENGINE_HAS_OBSERVE;
    hl_real_table[HL_cuCtxGetCurrent] = get_current;
    hl_real_table[HL_cuEventCreate] = create;
    hl_real_table[HL_cuEventDestroy_v2] = destroy;
    hl_real_table[HL_cuEventRecord] = record;
    hl_real_table[HL_cuEventQuery] = query;
    hl_real_table[HL_cuEventElapsedTime] = elapsed;
    hl_real_table[HL_cuDeviceGetAttribute] = attribute;
    struct hl_ledger_config config = {.path = region, .robust = robust};
    config.sm_limit[0] = (uint64_t)percent;
    const char *why = "";
    int problem = hl_ledger_open(&config, &why);
    if (problem || !hl_ledger_slot()) return problem ? problem : -1; /* asking for the slot takes it */
    hl_pacing_prepare();
    return problem;
}

RIG void rig_clock(uint64_t now) { clock_ns = now; }

/* The next look at NVML finds this. */
RIG void rig_sample(int usable, int fresh, uint64_t own, uint64_t all, uint64_t window, uint64_t neighbours) {
    next = (struct hl_sample){.usable = usable,
                              .known = usable,
                              .fresh = fresh,
                              .time = clock_ns,
                              .own = own,
                              .all = all,
                              .window = window,
                              .own_ns = window / 10000 * own,
                              .neighbours = neighbours};
}

static void body(void) {
    struct hl_launch launch = {.entry = HL_ENTRY_KERNEL,
                               .id = HL_cuLaunchKernel,
                               .object = (void *)(uintptr_t)(wanted.key * 64),
                               .blocks = wanted.blocks,
                               .threads = 128};
    struct hl_pace pace;
    bool paced = hl_pace_enter(&pace, &launch);
    if (!wanted.result) drained = (drained > clock_ns ? drained : clock_ns) + wanted.ns;
    if (paced) hl_pace_leave(&pace, wanted.result);
    talk = (struct talk){.what = paced ? WENT : PASSED};
}

static void step(struct talk *out) {
    swapcontext(&outside, &inside);
    *out = talk;
}

/* Begins a launch that will take `ns` on the GPU, or that the driver refuses with `result`. */
RIG void rig_launch(uint64_t key, uint64_t blocks, uint64_t ns, int result, struct talk *out) {
    wanted.key = key, wanted.blocks = blocks, wanted.ns = ns, wanted.result = result;
    getcontext(&inside);
    inside.uc_stack.ss_sp = stack;
    inside.uc_stack.ss_size = sizeof stack;
    inside.uc_link = &outside;
    makecontext(&inside, body, 0);
    step(out);
}

RIG void rig_go_on(int64_t answer, struct talk *out) {
    answered = answer;
    step(out);
}

/* tokens, end of the lease, ns, launches and strangers in flight, faults */
RIG void rig_state(int64_t *out) {
    const struct hl_pacer *pacer = &hl_pacers[0];
    int64_t state[] = {pacer->tokens,   (int64_t)pacer->lease_end, (int64_t)pacer->in_flight,
                       pacer->launches, pacer->strangers,          (int64_t)faults};
    memcpy(out, state, sizeof state);
}

/* ns and samples of a kernel's estimate */
RIG void rig_estimate(uint64_t key, uint64_t blocks, uint64_t *out) {
    struct hl_launch launch = {.object = (void *)(uintptr_t)(key * 64), .blocks = blocks, .threads = 128};
    const struct hl_estimate *estimate = hl_estimate_of(&launch);
    out[0] = estimate->ns;
    out[1] = estimate->samples;
}

/* The container's words as the next policy call would see them. */
RIG int rig_words(uint64_t *out) {
    struct hl_share share;
    int problem = hl_share_read(0, &share);
    const struct hl_region_device *row = hl_ledger_device(0);
    uint64_t first[] = {row->sm_limit,
                        108,
                        2048,
                        row->sample_flags,
                        row->measured,
                        row->charged,
                        row->returned,
                        share.words[HL_SHARE_IN_FLIGHT],
                        row->sample_sequence,
                        row->sample_time,
                        row->sample_own,
                        row->sample_all,
                        row->sample_window,
                        row->neighbours,
                        row->sample_own_ns,
                        row->sample_measured};
    memcpy(out, share.words, sizeof share.words);
    memcpy(out, first, sizeof first);
    return problem;
}

/* A clean end, between launches: tokens go back, the slot is free. */
RIG void rig_close(void) {
    hl_pacing_close();
    hl_ledger_close();
}

/* As the kernel ends a process: its presence goes, the books stay as they are. */
RIG void rig_kill(void) {
    if (entered->presence) munmap(entered->presence, 1);
    entered->presence = NULL;
}

/* Before the library is unloaded. */
RIG void rig_forget(void) { hl_region_unmap(entered); }

/* Another process has taken the sample. */
RIG void rig_seen(void) { next.fresh = false; }

RIG void rig_plant(void) { overwrites = true; }
