/* The limiter: every launch under a core limit is charged, held back while its container has no credit or too much work
 * in flight, and counted; a launch that passes beside it is counted with the reason. Never silently off.
 *
 *   running (HL_BEGIN) > post-init done > recent launch marked > limiter > driver
 *
 * The common launch is decided here in C: tokens are left from the last lease, the stream's bracket is open, the work in
 * flight is below the bound. Only what that cannot decide goes the slow way: completions are taken, NVML is looked at
 * when it is time, the policy is asked for a lease, the thread sleeps.
 *
 * Invariants: without a core limit hl_pacing says so after pre-init and nothing here runs. A launch is never held back
 * in a capturing stream, inside a host function or inside the engine. A launch that alone is larger than the bound goes
 * when nothing else is in flight. Tokens of an idle process go back. */
#include "pacing.h"

#include "config.h"
#include "history.h"
#include "hl_layout_history.h"
#include "ledger.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum {
    BOUND_NS = 8000000,   /* in flight, estimated */
    MOST_LAUNCHES = 512,  /* in flight */
    BRACKET_NS = 1000000, /* between two timed events */
    LEASE_NS = 50000000,  /* then unspent tokens go back */
    NAP_LEAST_NS = 300000,
    NAP_MOST_NS = 5000000,
    WAIT_MOST_NS = 50000000,
    UNKNOWN_NS = 50000, /* a launch that was never measured, where nothing waits for that */

    FAULT_NS = 100000000, /* launches pass so long after the policy failed */
    TOLD = 16,            /* launches whose stages go into the history */
    SAY_NS = 100000000    /* state in the history */
};

int hl_pacing;
__thread unsigned hl_in_callback;
struct hl_pacer hl_pacers[HL_DEVICES];

static struct hl_region_slot nobody; /* counters of a process without books */
static struct hl_region_slot *slot = &nobody;
static const struct hl_region_header *header;
static bool forced, monitored;
static uint32_t told;
static uint64_t said;

struct hl_region_slot *hl_pace_slot(void) { return slot; }

static void bump(uint64_t *word) { __atomic_fetch_add(word, 1, __ATOMIC_RELAXED); }

static void state(uint32_t what) {
    if (HL_UNLIKELY(slot->pacing_state != what)) __atomic_store_n(&slot->pacing_state, what, __ATOMIC_RELAXED);
}

/* ---- life ---- */

static const char default_policy[] = "hybrid";

static bool is_set(const char *text, const char *value) { return text && !strcmp(text, value); }

const char *hl_pacing_wanted(void) {
    const char *name = hl_config("HOOKLAB_PACING");
    if (__atomic_load_n(&hl_pacing, __ATOMIC_RELAXED) != HL_PACE_LIMITED) return NULL;
    return name && *name ? name : "default";
}

void hl_pacing_prepare(void) {
    const char *policy = hl_config("GPU_CORE_UTILIZATION_POLICY");
    bool limited = false, books = hl_books_usable();
    struct hl_region_slot *own = books ? hl_ledger_slot() : NULL;
    slot = own ? own : &nobody;
    header = books ? hl_ledger_header() : NULL;
    forced = is_set(policy, "force");
    static int said_policy; /* prepared again when devices get rows of their own */
    if (policy && *policy && !forced && !is_set(policy, "default") && !is_set(policy, "disable") && !said_policy++)
        hl_log(0, "GPU_CORE_UTILIZATION_POLICY: \"%.64s\" is not default, force or disable; default is used", policy);
    for (int device = 0; device < HL_DEVICES; device++) {
        struct hl_pacer *pacer = &hl_pacers[device];
        pacer->device = device;
        pacer->row = books ? hl_ledger_device(device) : NULL;
        uint64_t percent = pacer->row ? pacer->row->sm_limit : hl_limits.cores[device];
        pacer->limited = percent > 0 && percent < 100;
        limited |= pacer->limited;
    }
    const char *name = hl_config("HOOKLAB_PACING");
    if (limited) snprintf(slot->pacing_policy, sizeof slot->pacing_policy, "%s", name && *name ? name : default_policy);
    bool off = is_set(policy, "disable");
    slot->pacing_state = !limited ? HL_PACING_NONE : off ? HL_PACING_OFF : books ? HL_PACING_IDLE : HL_PACING_BLIND;
    monitored = books && hl_ledger_has_monitor();
    int free = monitored ? HL_PACE_GATED : hl_hidden_on ? HL_PACE_SEEN : HL_PACE_UNLIMITED;
    int how = limited && !off ? HL_PACE_LIMITED : free;
    __atomic_store_n(&hl_pacing, how, __ATOMIC_RELEASE);
}

void hl_pace_instead(void) {
    memset(slot->pacing_policy, 0, sizeof slot->pacing_policy);
    memcpy(slot->pacing_policy, default_policy, sizeof default_policy);
    __atomic_store_n(&slot->pacing_instead, 1, __ATOMIC_RELAXED);
}

static uint64_t sum(const uint64_t *words) {
    uint64_t total = 0;
    for (int i = 0; i < 8; i++) total += __atomic_load_n(&words[i], __ATOMIC_RELAXED);
    return total;
}

static void say(uint64_t now, bool last) {
    if (!hl_history_on()) return;
    uint64_t before = __atomic_load_n(&said, __ATOMIC_RELAXED);
    if (!last && now - before < SAY_NS) return;
    if (!__atomic_compare_exchange_n(&said, &before, now, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) return;
    struct hl_event event = {.event = HL_EVENT_PACING,
                             .source = HL_SOURCE_SHIM,
                             .device = 0xFF,
                             .name = 0xFFFF,
                             .step = 0xFFFF,
                             .result = (int32_t)slot->pacing_state,
                             .extra = (uint32_t)sum(slot->unpaced),
                             .a = slot->own_measured,
                             .b = slot->slept,
                             .c = sum(slot->paced)};
    hl_history_add(&event);
}

/* M: tokens that nobody spends go back to the container. */
static void give_back(struct hl_pacer *pacer) {
    if (pacer->tokens > 0) __atomic_fetch_add(&pacer->row->returned, (uint64_t)pacer->tokens, __ATOMIC_RELAXED);
    pacer->tokens = 0;
}

/* What this process's slot says, for whoever looks when the slot is another's. */
static void last_words(void) {
    static const size_t parts[][2] = {
        {0, offsetof(struct hl_region_slot, device)},
        {offsetof(struct hl_region_slot, pacing_state), offsetof(struct hl_region_slot, in_flight)},
    };
    if (slot->pacing_state == HL_PACING_NONE || !hl_history_on()) return;
    for (size_t part = 0; part < 2; part++)
        for (size_t at = parts[part][0]; at < parts[part][1]; at += 24) {
            struct hl_event event = {.event = HL_EVENT_LIMITER,
                                     .source = HL_SOURCE_SHIM,
                                     .device = 0xFF,
                                     .name = 0xFFFF,
                                     .step = 0xFFFF,
                                     .extra = (uint32_t)at};
            memcpy(&event.a, (const char *)slot + at, sizeof event.a);
            memcpy(&event.b, (const char *)slot + at + 8, sizeof event.b);
            memcpy(&event.c, (const char *)slot + at + 16, sizeof event.c);
            hl_history_add(&event);
        }
}

void hl_pacing_close(void) {
    last_words();
    if (__atomic_load_n(&hl_pacing, __ATOMIC_ACQUIRE) != HL_PACE_LIMITED) return;
    say(hl_now_ns(), true);
    hl_board_leave();
    for (int device = 0; device < HL_DEVICES; device++) {
        struct hl_pacer *pacer = &hl_pacers[device];
        if (!pacer->limited || !pacer->row || pthread_mutex_trylock(&pacer->mutex)) continue;
        give_back(pacer);
        pthread_mutex_unlock(&pacer->mutex);
    }
    __atomic_store_n(&hl_pacing, HL_PACE_UNLIMITED, __ATOMIC_RELEASE);
    slot = &nobody; /* the row may soon be another process's */
}

void hl_pacing_fork_child(void) { /* events, leases and counts are the parent's */
    memset(hl_pacers, 0, sizeof hl_pacers);
    hl_board_fork_child();
    slot = &nobody;
    header = NULL;
    told = 0;
    hl_in_callback = 0;
    __atomic_store_n(&hl_pacing, HL_PACE_UNREAD, __ATOMIC_RELEASE);
}

/* ---- counting ---- */

void hl_pace_unpaced(int entry, int why) {
    bump(&slot->unpaced[entry]);
    bump(&slot->unpaced_why[why]);
}

static bool pass(const struct hl_launch *launch, int why) {
    hl_pace_unpaced(launch->entry, why);
    hl_leave();
    return false;
}

static void stage(const struct hl_launch *launch, int device, uint64_t which) {
    struct hl_event event = {.event = HL_EVENT_LAUNCH,
                             .source = HL_SOURCE_SHIM,
                             .device = (uint8_t)device,
                             .name = (uint16_t)launch->id,
                             .step = 0xFFFF,
                             .a = which};
    hl_history_add(&event);
}

/* ---- the common launch ---- */

static uint32_t samples_of(const struct hl_estimate *estimate) {
    return __atomic_load_n(&estimate->samples, __ATOMIC_RELAXED);
}

/* M */
static uint64_t price(const struct hl_pacer *pacer, const struct hl_launch *launch, uint64_t ns) {
    return pacer->blocks ? launch->blocks : ns;
}

/* M. A function that was never measured goes alone; a long one may follow short ones, so that the GPU does not run dry. */
static bool has_room(const struct hl_pacer *pacer, uint64_t ns, bool stranger) {
    if (!pacer->bounded || !pacer->launches) return true;
    if (!stranger && ns > BOUND_NS / 2) ns = BOUND_NS / 2;
    return pacer->in_flight + ns <= BOUND_NS && pacer->launches < MOST_LAUNCHES && !(stranger && pacer->strangers);
}

/* M. The mutex is the device's, the counter all devices'. */
static void count(uint64_t *word, uint64_t more) {
    if (HL_LIKELY(hl_devices_count() == 1))
        __atomic_store_n(word, __atomic_load_n(word, __ATOMIC_RELAXED) + more, __ATOMIC_RELAXED);
    else __atomic_fetch_add(word, more, __ATOMIC_RELAXED);
}

/* M */
static void spend(struct hl_pace *pace, uint64_t ns, int64_t tokens, int entry) {
    pace->pacer->tokens -= tokens;
    pace->charged = ns;
    pace->tokens = tokens;
    pace->entry = entry;
    count(&slot->paced[entry], 1);
}

static bool quick(struct hl_pace *pace, struct hl_pacer *pacer, const struct hl_launch *launch, CUcontext context,
                  uint64_t now) {
    struct hl_estimate *estimate = pace->estimate;
    uint64_t ns = __atomic_load_n(&estimate->ns, __ATOMIC_RELAXED);
    bool go = false;
    pthread_mutex_lock(&pacer->mutex);
    uint64_t cost = price(pacer, launch, ns);
    if (HL_UNLIKELY(now >= pacer->lease_end)) give_back(pacer);
    struct hl_lane *lane = pacer->recent;
    if (HL_LIKELY(lane && pacer->tokens > 0 && cost <= (uint64_t)pacer->tokens && samples_of(estimate) &&
                  lane->stream == launch->stream && lane->per_thread == launch->per_thread && lane->used &&
                  (!pacer->many || lane->context == context) && has_room(pacer, ns, false))) {
        if (lane->open) {
            go = now < lane->drain && lane->work.charged + ns < BRACKET_NS;
        } else if (now >= lane->drain && lane->unmeasured + ns < BRACKET_NS) {
            hl_lane_settle_lazy(pacer, lane);
            go = true;
        }
    }
    if (HL_LIKELY(go)) {
        pace->pacer = pacer;
        pace->lane = lane;
        spend(pace, ns, (int64_t)cost, launch->entry);
        hl_lane_charge(pacer, lane, estimate, ns, now);
    }
    pthread_mutex_unlock(&pacer->mutex);
    return go;
}

/* ---- the slow way ---- */

/* M: settles what has drained, and tells when something in flight should land. */
static uint64_t next_landing(struct hl_pacer *pacer, uint64_t now) {
    uint64_t next = UINT64_MAX;
    for (uint32_t i = 0; i < pacer->closed; i++)
        if (pacer->bracket[i].expected < next) next = pacer->bracket[i].expected;
    for (int i = 0; i < HL_LANES; i++) {
        struct hl_lane *lane = &pacer->lane[i];
        if (!lane->used) continue;
        if (now >= lane->drain) {
            hl_lane_settle_lazy(pacer, lane);
            if (!lane->launching) hl_lane_discard(pacer, lane);
        } else if ((lane->open || lane->lazy_launches) && lane->drain < next) {
            next = lane->drain;
        }
    }
    if (next == UINT64_MAX && !pacer->closed) { /* nothing is known to be in flight */
        bool launching = false;
        for (int i = 0; i < HL_LANES; i++) launching |= pacer->lane[i].used && pacer->lane[i].launching;
        if (!launching) pacer->in_flight = pacer->launches = pacer->strangers = 0;
    }
    uint64_t wait = next > now && next != UINT64_MAX ? next - now : 0;
    return wait < NAP_LEAST_NS ? NAP_LEAST_NS : wait > NAP_MOST_NS ? NAP_MOST_NS : wait;
}

enum gate { GATE_OPEN, GATE_PASS };

struct waiting {
    uint64_t began; /* 0: not waited yet */
    uint64_t leases;
};

/* With GATE_OPEN the mutex is held and the tokens are there. */
static enum gate gate(struct hl_pacer *pacer, const struct hl_launch *launch, struct hl_estimate *estimate,
                      CUcontext context, struct waiting *waiting, int *why) {
    for (;;) {
        hl_measure_poll(pacer);
        uint64_t now = hl_pace_true_now();
        if (now < pacer->pass_until) {
            *why = HL_UNPACED_FAULT;
            return GATE_PASS;
        }
        hl_lease_tick(pacer, now);
        pthread_mutex_lock(&pacer->mutex);
        uint64_t ns = __atomic_load_n(&estimate->ns, __ATOMIC_RELAXED), cost = price(pacer, launch, ns);
        if (cost > INT64_MAX / 4) cost = INT64_MAX / 4;
        if (now >= pacer->lease_end) give_back(pacer);
        if (!has_room(pacer, ns, !samples_of(estimate))) {
            uint64_t wait = next_landing(pacer, now);
            bool room = has_room(pacer, ns, !samples_of(estimate));
            pthread_mutex_unlock(&pacer->mutex);
            if (room) continue;
            if (!waiting->began) waiting->began = now;
            hl_lanes_close(pacer, context, now);
            hl_pace_nap(wait);
            continue;
        }
        if (pacer->tokens > 0 && (uint64_t)pacer->tokens >= cost) return GATE_OPEN;
        int64_t need = (int64_t)cost - pacer->tokens, answer = 0;
        pthread_mutex_unlock(&pacer->mutex);
        enum hl_lease lease = hl_lease_ask(pacer, need > 0 ? need : 1, now, &answer);
        if (lease == HL_LEASE_GRANTED) {
            state(HL_PACING_ON);
            pthread_mutex_lock(&pacer->mutex);
            pacer->tokens += answer;
            pacer->lease_end = now + LEASE_NS;
            bool enough = (uint64_t)pacer->tokens >= cost;
            if (enough) return GATE_OPEN;
            pthread_mutex_unlock(&pacer->mutex);
            waiting->leases++;
            continue;
        }
        if (lease == HL_LEASE_WAIT) {
            state(HL_PACING_ON);
            if (!waiting->began) waiting->began = now;
            hl_lanes_close(pacer, context, now);
            uint64_t wait = (uint64_t)-answer;

            hl_pace_nap(wait > WAIT_MOST_NS ? WAIT_MOST_NS : wait);
            waiting->leases++;
            continue;
        }
        if (lease == HL_LEASE_FAULT) {
            state(HL_PACING_FAULT);
            pacer->pass_until = now + FAULT_NS;
        } else if (lease == HL_LEASE_ABSENT) {
            state(HL_PACING_ABSENT);
        } else if (lease == HL_LEASE_BLIND) {
            state(HL_PACING_BLIND);
        }
        *why = lease == HL_LEASE_FAULT     ? HL_UNPACED_FAULT
               : lease == HL_LEASE_ABSENT  ? HL_UNPACED_ABSENT
               : lease == HL_LEASE_REENTRY ? HL_UNPACED_CALLBACK
                                           : HL_UNPACED_BLIND;
        return GATE_PASS;
    }
}

static void waited(const struct hl_launch *launch, const struct hl_pacer *pacer, const struct waiting *waiting,
                   uint64_t cost) {
    if (!waiting->began) return;
    uint64_t ns = hl_now_ns() - waiting->began;
    __atomic_fetch_add(&slot->slept, ns, __ATOMIC_RELAXED);
    bump(&slot->waits);
    if (ns > slot->longest) __atomic_store_n(&slot->longest, ns, __ATOMIC_RELAXED);
    if (!hl_history_on()) return;
    struct hl_event event = {.event = HL_EVENT_PACE,
                             .source = HL_SOURCE_SHIM,
                             .device = (uint8_t)pacer->device,
                             .name = (uint16_t)launch->id,
                             .step = 0xFFFF,
                             .extra = (uint32_t)waiting->leases,
                             .a = ns,
                             .b = cost,
                             .c = pacer->in_flight};
    hl_history_add(&event);
}

static bool slow(struct hl_pace *pace, struct hl_pacer *pacer, const struct hl_launch *launch) {
    int why = HL_UNPACED_BLIND;
    if (!pacer->row) return pass(launch, why);
    if (!pacer->known && !hl_lease_features(pacer)) {
        state(HL_PACING_ABSENT);
        return pass(launch, HL_UNPACED_ABSENT);
    }
    CUcontext context = NULL;
    __typeof__(&cuCtxGetCurrent) current = HL_REAL(cuCtxGetCurrent);
    if (!current || current(&context) != CUDA_SUCCESS || !context) return pass(launch, why); /* the driver says why */
    if (hl_stream_captures(launch->stream, launch->per_thread)) return pass(launch, HL_UNPACED_CAPTURE);
    if (!pacer->asked_board) {
        pacer->asked_board = true;
        pacer->board = hl_board_take(pacer->device);
    }
    if (!pacer->context) pacer->context = context;
    if (pacer->context != context) pacer->many = true;
    uint64_t none = 0;
    __atomic_compare_exchange_n(&pacer->row->first_launch, &none, hl_now_ns(), 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);

    struct waiting waiting = {0};
    struct hl_estimate *estimate = pace->estimate;
    enum gate answer = gate(pacer, launch, estimate, context, &waiting, &why);
    if (answer == GATE_PASS) {
        waited(launch, pacer, &waiting, 0);
        return pass(launch, why);
    }
    /* M */
    uint64_t ns = __atomic_load_n(&estimate->ns, __ATOMIC_RELAXED), cost = price(pacer, launch, ns);
    if (cost > INT64_MAX / 4) cost = INT64_MAX / 4;
    pace->pacer = pacer;
    if (!pacer->bounded && !samples_of(estimate) && ns > UNKNOWN_NS)
        ns = UNKNOWN_NS; /* nothing waits for a first measure */
    spend(pace, ns, (int64_t)cost, launch->entry);
    uint64_t now = hl_now_ns();
    struct hl_lane *lane = hl_lane_of(pacer, launch, context);
    bool begin = false, idle = false;
    if (lane) {
        lane->launching++;
        pace->slow = true;
        idle = now >= lane->drain;
        if (idle) { /* idle, as far as we know: what an open bracket saw may hold a pause */
            hl_lane_settle_lazy(pacer, lane);
            if (lane->launching == 1) hl_lane_discard(pacer, lane);
            begin = pace->close = !lane->open && (samples_of(estimate) < 2 || lane->unmeasured + ns >= BRACKET_NS);
        } else {
            begin = !lane->open;
            pace->close = samples_of(estimate) < 2 || (lane->open ? lane->work.charged : 0) + ns >= BRACKET_NS;
        }
        begin = begin && pacer->closed < HL_BRACKETS;
    }
    pthread_mutex_unlock(&pacer->mutex);
    waited(launch, pacer, &waiting, cost);
    if (begin) {
        begin = hl_lane_begin(pacer, lane);
        if (begin && idle) pace->before = hl_now_ns();
    }
    pthread_mutex_lock(&pacer->mutex);
    pace->lane = lane;
    if (lane) {
        hl_lane_charge(pacer, lane, estimate, ns, now);
        pace->stranger = !samples_of(estimate) && lane->open;
        if (pace->stranger) {
            lane->work.strangers++;
            pacer->strangers++;
        }
    } else { /* more streams than lanes: the estimate counts */
        __atomic_fetch_add(&pacer->row->charged, ns, __ATOMIC_RELAXED);
        __atomic_fetch_add(&pacer->row->measured, ns, __ATOMIC_RELAXED);
        __atomic_fetch_add(&slot->own_measured, ns, __ATOMIC_RELAXED);
    }
    pthread_mutex_unlock(&pacer->mutex);
    say(now, false);
    return true;
}

static int device_now(void) {
    if (HL_LIKELY(hl_devices_count() == 1)) return 0;
    CUdevice device = -1;
    __typeof__(&cuCtxGetDevice) ask = HL_REAL(cuCtxGetDevice);
    return ask && ask(&device) == CUDA_SUCCESS ? device : -1;
}

bool hl_pace_enter(struct hl_pace *pace, const struct hl_launch *launch) {
    if (HL_UNLIKELY(hl_depth)) return false;
    if (HL_UNLIKELY(__atomic_load_n(&hl_pacing, __ATOMIC_ACQUIRE) != HL_PACE_LIMITED)) {
        hl_ready();
        int how = __atomic_load_n(&hl_pacing, __ATOMIC_ACQUIRE);
        if (how == HL_PACE_GATED && hl_devices_count()) hl_gate_wait(launch);
        if (how != HL_PACE_LIMITED) return false;
    }
    if (!hl_enter()) return false;
    int device = device_now();
    if (HL_UNLIKELY(device < 0)) { /* no cuInit or no context: the driver says so */
        hl_leave();
        return false;
    }
    struct hl_pacer *pacer = device < HL_DEVICES ? &hl_pacers[device] : NULL;
    if (HL_UNLIKELY(!pacer || !pacer->limited)) return pass(launch, HL_UNPACED_DEVICE);
    if (HL_UNLIKELY(hl_in_callback)) return pass(launch, HL_UNPACED_CALLBACK);
    if (HL_UNLIKELY(monitored)) hl_gate_wait(launch);
    if (HL_UNLIKELY((monitored ? hl_ledger_switched_off()
                               : header && __atomic_load_n(&header->pacing_switch, __ATOMIC_RELAXED)) &&
                    !forced)) {
        state(HL_PACING_SWITCHED);
        return pass(launch, HL_UNPACED_SWITCHED);
    }
    bool tell = HL_UNLIKELY(__atomic_load_n(&told, __ATOMIC_RELAXED) < TOLD) &&
                __atomic_fetch_add(&told, 1, __ATOMIC_RELAXED) < TOLD && hl_history_on();
    uint64_t now = hl_pace_now();
    if (tell) {
        stage(launch, device, HL_STAGE_RUNNING);
        stage(launch, device, HL_STAGE_READY);
    }
    if (HL_LIKELY(pacer->row != NULL)) __atomic_store_n(&pacer->row->recent_launch, now, __ATOMIC_RELAXED);
    if (tell) stage(launch, device, HL_STAGE_RECENT);
    CUcontext context = NULL;
    if (HL_UNLIKELY(pacer->many) && HL_REAL(cuCtxGetCurrent)) HL_REAL(cuCtxGetCurrent)(&context);
    pace->estimate = hl_estimate_of(launch);
    pace->slow = pace->close = pace->stranger = false;
    pace->before = 0;
    if (!quick(pace, pacer, launch, context, now)) {
        int saved = errno;
        bool paced = slow(pace, pacer, launch);
        errno = saved;
        if (!paced) return false;
    }
    if (tell) stage(launch, device, HL_STAGE_LIMITER);
    return true;
}

/* The driver refused it: nothing runs. */
static void undo(struct hl_pace *pace) {
    struct hl_pacer *pacer = pace->pacer;
    struct hl_lane *lane = pace->lane;
    pthread_mutex_lock(&pacer->mutex);
    pacer->tokens += pace->tokens;
    count(&slot->paced[pace->entry], UINT64_MAX);
    if (lane && lane->used) {
        hl_lane_refused(pacer, lane, pace->charged, pace->stranger);
        pace->close = false;
    }
    pthread_mutex_unlock(&pacer->mutex);
}

void hl_pace_leave(struct hl_pace *pace, CUresult result) {
    struct hl_pacer *pacer = pace->pacer;
    if (HL_UNLIKELY(pace->slow || result != CUDA_SUCCESS)) {
        int saved = errno;
        uint64_t gap = pace->before ? hl_now_ns() - pace->before : 0;
        if (result != CUDA_SUCCESS) undo(pace);
        if (pace->slow && pace->lane) {
            pthread_mutex_lock(&pacer->mutex);
            if (pace->lane->launching) pace->lane->launching--;
            pthread_mutex_unlock(&pacer->mutex);
            if (pace->close) hl_lane_end(pacer, pace->lane, gap);
        }
        errno = saved;
    }
    hl_leave();
}
