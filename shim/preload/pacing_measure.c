/* How long kernels take: an estimate for every (function, grid), corrected by events around stretches of work.
 *
 * A bracket is two events on the user's own stream. What lies between them is the kernels' time only while the stream
 * does not run dry inside; so a bracket is opened in front of a launch and ended
 *   - behind that very launch, when the stream is idle (the first event is then stamped at once), or
 *   - behind about a millisecond of launches while the stream is believed to stay busy.
 * A bracket in which the stream may have run dry is given up. Short kernels on an idle stream are measured one in about a
 * millisecond; between the measurements their estimate counts. So a timed event record is paid by the millisecond.
 *
 * Several streams: their brackets are united. A bracket adds only what lies behind the latest end seen so far.
 *
 * For the board each bracket is placed in the host's time: behind the latest end by the time between the events, never
 * before its first event was recorded plus what it took, never after it was seen to be over. The second and third mend
 * what the first carries on, and where the clocks drift.
 *
 * Invariants: nothing is recorded into a capturing stream; questions to the driver are asked in relaxed capture mode, so
 * that they do not break a capture of this thread or another. Events of a context that ended are forgotten, not touched. */
#include "pacing.h"

#include "history.h"
#include "hl_layout_board.h"

#include "ledger.h"

#include <string.h>

enum { ESTIMATES = 2048, PROBES = 8, FIRST_NS = 8000000, LEAST_NS = 500 };
static const uint64_t most_ns = UINT64_C(1) << 42;

static struct hl_estimate estimates[ESTIMATES];

struct hl_estimate *hl_estimate_of(const struct hl_launch *launch) {
    uint64_t key = ((uint64_t)(uintptr_t)launch->object >> 4) * UINT64_C(0x9e3779b97f4a7c15) ^
                   (launch->blocks * UINT64_C(0xc2b2ae3d27d4eb4f) + launch->threads) * UINT64_C(0x165667b19e3779f9);
    key |= 1;
    unsigned at = (unsigned)(key >> 40) % ESTIMATES;
    for (int probe = 0; probe < PROBES; probe++, at = (at + 1) % ESTIMATES) {
        struct hl_estimate *estimate = &estimates[at];
        uint64_t there = __atomic_load_n(&estimate->key, __ATOMIC_RELAXED);
        if (HL_LIKELY(there == key)) return estimate;
        if (!there && __atomic_compare_exchange_n(&estimate->key, &there, key, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
            __atomic_store_n(&estimate->ns, FIRST_NS, __ATOMIC_RELAXED);
            return estimate;
        }
        if (there == key) return estimate;
    }
    struct hl_estimate *estimate = &estimates[(unsigned)(key >> 40) % ESTIMATES]; /* full here: it starts anew */
    __atomic_store_n(&estimate->key, key, __ATOMIC_RELAXED);
    __atomic_store_n(&estimate->samples, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&estimate->ns, FIRST_NS, __ATOMIC_RELAXED);
    return estimate;
}

/* What one launch took, by a measurement made under whatever estimate held when it was launched. */
static void learn(struct hl_estimate *estimate, double took) {
    uint64_t ns = __atomic_load_n(&estimate->ns, __ATOMIC_RELAXED);
    uint32_t samples = __atomic_load_n(&estimate->samples, __ATOMIC_RELAXED);
    double next = samples ? (double)ns + (took - (double)ns) / 4 : took;
    if (next < LEAST_NS) next = LEAST_NS;
    if (next > (double)most_ns) next = (double)most_ns;
    __atomic_store_n(&estimate->ns, (uint64_t)next, __ATOMIC_RELAXED);
    if (samples < UINT32_MAX) __atomic_store_n(&estimate->samples, samples + 1, __ATOMIC_RELAXED);
}

/* ---- accounts ---- */

/* `end`: when it was over, CLOCK_MONOTONIC. `single`: one launch on an idle stream. */
static void account(struct hl_pacer *pacer, uint64_t charged, uint64_t measured, uint64_t end, bool single) {
    struct hl_region_slot *slot = hl_pace_slot();
    __atomic_fetch_add(&pacer->row->charged, charged, __ATOMIC_RELAXED);
    __atomic_fetch_add(&pacer->row->measured, measured, __ATOMIC_RELAXED);
    __atomic_fetch_add(&slot->own_measured, measured, __ATOMIC_RELAXED);
    if (pacer->board && measured < end)
        hl_board_ran(pacer->board, end - measured, end, single && measured <= HL_BOARD_SLICE_NS);
}

static void landed(struct hl_pacer *pacer, uint64_t ns, uint32_t launches, uint32_t strangers) {
    pacer->in_flight -= ns < pacer->in_flight ? ns : pacer->in_flight;
    pacer->launches -= launches < pacer->launches ? launches : pacer->launches;
    pacer->strangers -= strangers < pacer->strangers ? strangers : pacer->strangers;
    if (!pacer->launches && pacer->board) __atomic_store_n(&pacer->board->since, 0, __ATOMIC_RELEASE);
    hl_share_in_flight(pacer->device, -(int64_t)ns);
}

/* Work that ends by estimate only. */
static void assumed(struct hl_pacer *pacer, uint64_t drain, uint64_t ns, bool single) {
    uint64_t now = hl_pace_now();
    account(pacer, ns, ns, drain && drain < now ? drain : now, single);
}

static void dropped(void) {
    struct hl_region_slot *slot = hl_pace_slot();
    __atomic_fetch_add(&slot->dropped, 1, __ATOMIC_RELAXED);
}

/* ---- events ---- */

struct asking {
    CUstreamCaptureMode mode;
    bool changed;
};

static struct asking relax(void) {
    struct asking asking = {CU_STREAM_CAPTURE_MODE_RELAXED, false};
    __typeof__(&cuThreadExchangeStreamCaptureMode) exchange = HL_REAL(cuThreadExchangeStreamCaptureMode);
    asking.changed = exchange && exchange(&asking.mode) == CUDA_SUCCESS;
    return asking;
}

static void restore(struct asking asking) {
    if (asking.changed) HL_REAL(cuThreadExchangeStreamCaptureMode)(&asking.mode);
}

bool hl_stream_captures(CUstream stream, bool per_thread) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    __typeof__(&cuStreamIsCapturing) ask =
        per_thread ? HL_REAL(cuStreamIsCapturing_ptsz) : HL_REAL(cuStreamIsCapturing);
    if (!ask) return false; /* older than captures */
    return ask(stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

static CUevent take_event(struct hl_pacer *pacer, CUcontext context) {
    CUevent event = NULL;
    pthread_mutex_lock(&pacer->mutex);
    for (uint32_t i = 0; i < pacer->spares && !event; i++)
        if (pacer->spare[i].context == context) {
            event = pacer->spare[i].event;
            pacer->spare[i] = pacer->spare[--pacer->spares];
        }
    pthread_mutex_unlock(&pacer->mutex);
    __typeof__(&cuEventCreate) create = HL_REAL(cuEventCreate);
    if (!event && create && create(&event, CU_EVENT_DEFAULT) != CUDA_SUCCESS) event = NULL;
    return event;
}

/* M; false: no room, the caller destroys it outside the mutex. */
static bool spare_event(struct hl_pacer *pacer, CUcontext context, CUevent event) {
    if (!event) return true;
    if (pacer->spares == HL_EVENTS) return false;
    pacer->spare[pacer->spares].context = context;
    pacer->spare[pacer->spares++].event = event;
    return true;
}

static void give_event(struct hl_pacer *pacer, CUcontext context, CUevent event) {
    pthread_mutex_lock(&pacer->mutex);
    bool kept = spare_event(pacer, context, event);
    pthread_mutex_unlock(&pacer->mutex);
    if (!kept && HL_REAL(cuEventDestroy_v2)) HL_REAL(cuEventDestroy_v2)(event);
}

static bool record(CUevent event, const struct hl_lane *lane) {
    __typeof__(&cuEventRecord) put = lane->per_thread ? HL_REAL(cuEventRecord_ptsz) : HL_REAL(cuEventRecord);
    return event && put && put(event, lane->stream) == CUDA_SUCCESS;
}

/* ---- lanes ---- */

static bool is_lane(const struct hl_pacer *pacer, const struct hl_lane *lane, const struct hl_launch *launch,
                    CUcontext context) {
    return lane->used && lane->stream == launch->stream && lane->per_thread == launch->per_thread &&
           (!pacer->many || lane->context == context);
}

struct hl_lane *hl_lane_of(struct hl_pacer *pacer, const struct hl_launch *launch, CUcontext context) {
    struct hl_lane *lane = pacer->recent;
    if (HL_LIKELY(lane && is_lane(pacer, lane, launch, context))) return lane;
    for (int i = 0; i < HL_LANES; i++)
        if (is_lane(pacer, &pacer->lane[i], launch, context)) return pacer->recent = &pacer->lane[i];
    if (!context) return NULL;
    struct hl_lane *oldest = NULL;
    for (int i = 0; i < HL_LANES; i++) {
        lane = &pacer->lane[i];
        if (!lane->used) {
            oldest = lane;
            break;
        }
        if (!lane->launching && !lane->open && (!oldest || lane->drain < oldest->drain)) oldest = lane;
    }
    if (!oldest) return NULL;
    if (oldest->used) hl_lane_settle_lazy(pacer, oldest);
    *oldest =
        (struct hl_lane){.stream = launch->stream, .context = context, .used = true, .per_thread = launch->per_thread};
    return pacer->recent = oldest;
}

void hl_lane_charge(struct hl_pacer *pacer, struct hl_lane *lane, struct hl_estimate *estimate, uint64_t ns,
                    uint64_t now) {
    pacer->in_flight += ns;
    hl_share_in_flight(pacer->device, (int64_t)ns);
    lane->serial++;
    lane->drain = (lane->drain > now ? lane->drain : now) + ns;
    if (pacer->board) {
        __atomic_store_n(&pacer->board->drain, lane->drain, __ATOMIC_RELAXED);
        if (!pacer->launches) __atomic_store_n(&pacer->board->since, now, __ATOMIC_RELEASE);
    }
    pacer->launches++;
    if (!lane->open) {
        lane->unmeasured += ns;
        lane->lazy += ns;
        lane->lazy_launches++;
        return;
    }
    struct hl_bracket *work = &lane->work;
    work->charged += ns;
    work->launches++;
    uint32_t at = work->keys;
    if (HL_LIKELY(at && work->key[at - 1].estimate == estimate)) {
        work->key[at - 1].charged += ns;
        work->key[at - 1].launches++;
        return;
    }
    for (at = 0; at < work->keys && work->key[at].estimate != estimate; at++) {}
    if (at == HL_KEYS) return; /* counted in the sum, learns nothing */
    if (at == work->keys) {
        work->keys++;
        work->key[at].estimate = estimate;
        work->key[at].charged = work->key[at].launches = 0;
    }
    work->key[at].charged += ns;
    work->key[at].launches++;
}

void hl_lane_refused(struct hl_pacer *pacer, struct hl_lane *lane, uint64_t ns, bool stranger) {
    uint64_t *sum = lane->open ? &lane->work.charged : &lane->lazy;
    uint32_t *launches = lane->open ? &lane->work.launches : &lane->lazy_launches;
    *sum -= ns < *sum ? ns : *sum;
    *launches -= *launches > 0;
    if (!lane->open) lane->unmeasured -= ns < lane->unmeasured ? ns : lane->unmeasured;
    if (lane->open && stranger && lane->work.strangers) lane->work.strangers--;
    else stranger = false;
    lane->drain -= ns < lane->drain ? ns : lane->drain;
    landed(pacer, ns, 1, stranger);
    if (lane->open && !lane->work.launches) hl_lane_discard(pacer, lane);
}

void hl_lane_settle_lazy(struct hl_pacer *pacer, struct hl_lane *lane) {
    if (!lane->lazy_launches) return;
    assumed(pacer, lane->drain, lane->lazy, lane->lazy_launches == 1);
    landed(pacer, lane->lazy, lane->lazy_launches, 0);
    lane->lazy = 0;
    lane->lazy_launches = 0;
}

void hl_lane_discard(struct hl_pacer *pacer, struct hl_lane *lane) {
    if (!lane->open) return;
    struct hl_bracket *work = &lane->work;
    assumed(pacer, lane->drain, work->charged + work->ahead, false);
    landed(pacer, work->charged + work->ahead, work->launches + work->ahead_launches, work->strangers);
    spare_event(pacer, work->context, work->start);
    lane->unmeasured += work->charged;
    lane->open = false;
    *work = (struct hl_bracket){0};
}

bool hl_lane_begin(struct hl_pacer *pacer, struct hl_lane *lane) {
    CUcontext context = lane->context;
    struct asking asking = relax();
    CUevent start = take_event(pacer, context);
    uint64_t begun = hl_now_ns();
    bool recorded = record(start, lane);
    restore(asking);
    if (!recorded) {
        if (start) give_event(pacer, context, start);
        dropped();
        return false;
    }
    pthread_mutex_lock(&pacer->mutex);
    if (lane->open || !lane->used) { /* another thread was quicker, or the context ended */
        bool kept = spare_event(pacer, context, start);
        bool open = lane->open;
        pthread_mutex_unlock(&pacer->mutex);
        if (!kept && HL_REAL(cuEventDestroy_v2)) HL_REAL(cuEventDestroy_v2)(start);
        return open;
    }
    lane->work = (struct hl_bracket){
        .context = context, .start = start, .begun = begun, .ahead = lane->lazy, .ahead_launches = lane->lazy_launches};
    lane->lazy = lane->unmeasured = 0;
    lane->lazy_launches = 0;
    lane->open = true;
    pthread_mutex_unlock(&pacer->mutex);
    return true;
}

void hl_lane_end(struct hl_pacer *pacer, struct hl_lane *lane, uint64_t gap) {
    pthread_mutex_lock(&pacer->mutex);
    if (!lane->open || pacer->closed == HL_BRACKETS) {
        if (lane->open) hl_lane_discard(pacer, lane);
        pthread_mutex_unlock(&pacer->mutex);
        return;
    }
    struct hl_bracket work = lane->work;
    struct hl_lane copy = *lane;
    work.expected = lane->drain;
    work.gap = gap;
    work.lane = lane;
    work.serial = lane->serial;
    lane->open = false;
    lane->work = (struct hl_bracket){0};
    pthread_mutex_unlock(&pacer->mutex);
    struct asking asking = relax();
    work.end = take_event(pacer, work.context);
    bool recorded = record(work.end, &copy);
    restore(asking);
    pthread_mutex_lock(&pacer->mutex);
    if (recorded && pacer->closed < HL_BRACKETS) {
        pacer->bracket[pacer->closed++] = work;
    } else {
        assumed(pacer, work.expected, work.charged + work.ahead, false);
        landed(pacer, work.charged + work.ahead, work.launches + work.ahead_launches, work.strangers);
        spare_event(pacer, work.context, work.start);
        spare_event(pacer, work.context, work.end);
        dropped();
    }
    pthread_mutex_unlock(&pacer->mutex);
}

/* Default streams belong to whatever context is current: only those of the caller's context can be ended here. */
void hl_lanes_close(struct hl_pacer *pacer, CUcontext context, uint64_t now) {
    for (int i = 0; i < HL_LANES; i++) {
        struct hl_lane *lane = &pacer->lane[i];
        pthread_mutex_lock(&pacer->mutex);
        bool ripe = lane->used && lane->open && lane->work.launches && !lane->launching && lane->context == context;
        if (ripe && now >= lane->drain) {
            hl_lane_discard(pacer, lane); /* it may have run dry: the end would come too late */
            ripe = false;
        }
        CUstream stream = lane->stream;
        bool per_thread = lane->per_thread;
        pthread_mutex_unlock(&pacer->mutex);
        if (!ripe) continue;
        if (hl_stream_captures(stream, per_thread)) {
            pthread_mutex_lock(&pacer->mutex);
            hl_lane_discard(pacer, lane);
            pthread_mutex_unlock(&pacer->mutex);
            continue;
        }
        hl_lane_end(pacer, lane, 0);
    }
}

/* ---- completion ---- */

static double elapsed_ns(CUevent from, CUevent to) {
    float ms = 0;
    __typeof__(&cuEventElapsedTime) elapsed = HL_REAL(cuEventElapsedTime_v2);
    if (!elapsed) elapsed = HL_REAL(cuEventElapsedTime);
    return elapsed && elapsed(&ms, from, to) == CUDA_SUCCESS ? (double)ms * 1e6 : -1e18;
}

/* M */
static void completed(struct hl_pacer *pacer, const struct hl_bracket *bracket, double ns, bool later, uint64_t end) {
    if (ns < 0) ns = 0;
    struct hl_lane *lane = bracket->lane;
    if (lane->used && lane->serial == bracket->serial && lane->context == bracket->context) lane->drain = 0;
    double ratio = bracket->charged ? ns / (double)bracket->charged : 1;
    uint64_t measured = (uint64_t)ns, ahead = bracket->ahead;
    if (ratio < 1) ahead = (uint64_t)((double)ahead * ratio); /* estimates hold neighbours' turns, a piece may not */
    bool single = bracket->gap && bracket->launches == 1 && !bracket->ahead;
    account(pacer, bracket->charged + bracket->ahead, measured + ahead, end, single);
    landed(pacer, bracket->charged + bracket->ahead, bracket->launches + bracket->ahead_launches, bracket->strangers);
    struct hl_region_slot *slot = hl_pace_slot();
    __atomic_fetch_add(&slot->brackets, 1, __ATOMIC_RELAXED);
    for (uint32_t i = 0; i < bracket->keys; i++)
        learn(bracket->key[i].estimate, (double)bracket->key[i].charged * ratio / bracket->key[i].launches);
    spare_event(pacer, bracket->context, bracket->start);
    if (later) {
        if (pacer->horizon) spare_event(pacer, pacer->horizon_context, pacer->horizon);
        pacer->horizon = bracket->end;
        pacer->horizon_context = bracket->context;
        pacer->horizon_ns = end;
    } else {
        spare_event(pacer, bracket->context, bracket->end);
    }
}

void hl_measure_poll(struct hl_pacer *pacer) {
    pthread_mutex_lock(&pacer->mutex);
    if (pacer->polling || !pacer->closed) {
        pthread_mutex_unlock(&pacer->mutex);
        return;
    }
    pacer->polling = true;
    __typeof__(&cuEventQuery) query = HL_REAL(cuEventQuery);
    struct asking asking = {CU_STREAM_CAPTURE_MODE_RELAXED, false};
    uint32_t at = 0, waiting = 0;
    while (at < pacer->closed && waiting < 4) {
        struct hl_bracket bracket = pacer->bracket[at];
        CUevent horizon = pacer->horizon_context == bracket.context ? pacer->horizon : NULL;
        pthread_mutex_unlock(&pacer->mutex);
        if (!asking.changed) asking = relax();
        CUresult state = query ? query(bracket.end) : CUDA_ERROR_NOT_FOUND;
        double ns = 0, past = 0;
        if (state == CUDA_SUCCESS) {
            ns = elapsed_ns(bracket.start, bracket.end);
            past = horizon ? elapsed_ns(horizon, bracket.end) : 1e18;
            if (past < -1e17) past = 1e18;
        }
        pthread_mutex_lock(&pacer->mutex);
        if (at >= pacer->closed || pacer->bracket[at].end != bracket.end) break; /* its context ended meanwhile */
        if (state == CUDA_ERROR_NOT_READY) {
            at++;
            waiting++;
            continue;
        }
        memmove(&pacer->bracket[at], &pacer->bracket[at + 1], (pacer->closed - at - 1) * sizeof pacer->bracket[0]);
        pacer->closed--;
        if (state != CUDA_SUCCESS || ns < -1e17) { /* the events are lost; what was estimated counts */
            assumed(pacer, bracket.expected, bracket.charged + bracket.ahead, false);
            landed(pacer, bracket.charged + bracket.ahead, bracket.launches + bracket.ahead_launches,
                   bracket.strangers);
            dropped();
            continue;
        }
        uint64_t seen = hl_now_ns(), least = bracket.begun + (uint64_t)ns, end = seen;
        if (past < 1e17) end = (uint64_t)((int64_t)pacer->horizon_ns + (int64_t)past);
        if (end < least) end = least;
        if (end > seen) end = seen;
        ns -= bracket.gap < ns / 4 ? (double)bracket.gap : ns / 4;
        completed(pacer, &bracket, past < ns ? past : ns, past > 0, end);
    }
    pacer->polling = false;
    pthread_mutex_unlock(&pacer->mutex);
    if (asking.changed) restore(asking);
}

void hl_measure_context_ended(CUcontext context) {
    for (int device = 0; device < HL_DEVICES; device++) {
        struct hl_pacer *pacer = &hl_pacers[device];
        if (!pacer->limited) continue;
        pthread_mutex_lock(&pacer->mutex);
        uint32_t kept = 0;
        for (uint32_t i = 0; i < pacer->closed; i++) {
            const struct hl_bracket *bracket = &pacer->bracket[i];
            if (bracket->context != context) {
                pacer->bracket[kept++] = *bracket;
                continue;
            }
            assumed(pacer, bracket->expected, bracket->charged + bracket->ahead, false);
            landed(pacer, bracket->charged + bracket->ahead, bracket->launches + bracket->ahead_launches,
                   bracket->strangers);
            dropped();
        }
        pacer->closed = kept;
        for (int i = 0; i < HL_LANES; i++) {
            struct hl_lane *lane = &pacer->lane[i];
            if (!lane->used || lane->context != context) continue;
            if (lane->open) dropped();
            hl_lane_discard(pacer, lane);
            hl_lane_settle_lazy(pacer, lane);
            lane->used = false;
        }
        kept = 0;
        for (uint32_t i = 0; i < pacer->spares; i++)
            if (pacer->spare[i].context != context) pacer->spare[kept++] = pacer->spare[i];
        pacer->spares = kept;
        if (pacer->horizon_context == context) {
            pacer->horizon = NULL;
            pacer->horizon_context = NULL;
        }
        if (pacer->context == context) pacer->context = NULL;
        pacer->recent = NULL;
        pthread_mutex_unlock(&pacer->mutex);
    }
}
