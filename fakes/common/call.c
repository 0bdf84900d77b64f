/* See call.h: the slow side of a call (faults and history), modelled time, physical memory. */
#define _GNU_SOURCE
#include "call.h"

#include <errno.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "accounts.h"
#include "history.h"
#include "hl_fake_stubs.h"
#include "hl_layout_history.h"

uint8_t (*hl_fake_device)(void);
__thread struct hl_outputs hl_outputs;

/* Turns the bits of the outputs from byte `first` (of all of them) on. */
static void spoil(size_t first) {
    size_t at = 0;
    for (int i = 0; i < hl_outputs.count; i++)
        for (size_t byte = 0; byte < hl_outputs.place[i].bytes; byte++, at++)
            if (at >= first) hl_outputs.place[i].at[byte] ^= 0xFF;
}

static size_t output_bytes(void) {
    size_t all = 0;
    for (int i = 0; i < hl_outputs.count; i++) all += hl_outputs.place[i].bytes;
    return all;
}

static void record(uint8_t event, const struct hl_call *call, int32_t result, uint32_t extra, uint64_t a, uint64_t b,
                   uint64_t c) {
    struct hl_event e = {.event = event,
                         .source = HL_SOURCE_FAKE,
                         .route = HL_ROUTE_NONE,
                         .device = hl_fake_device ? hl_fake_device() : 0xFF,
                         .name = call->name,
                         .step = 0xFFFF,
                         .result = result,
                         .extra = extra,
                         .a = a,
                         .b = b,
                         .c = c};
    hl_history_add(&e);
}

/* Acts out one fault. 1 = the call's result is forced to call->code. */
static int act(struct hl_call *call, uint32_t index, uint64_t number) {
    struct hl_node_fault *f = &hl_node.faults[index];
    __atomic_fetch_add(&f->fired, 1, __ATOMIC_RELAXED);
    /* Written first: a killed process cannot say afterwards that it was killed on purpose. */
    record(HL_EVENT_FAULT, call, f->action == HL_ACTION_RETURN ? f->code : 0, 0, index, number, f->action);
    switch (f->action) {
    case HL_ACTION_RETURN: call->code = f->code; return 1;
    case HL_ACTION_DELAY: hl_sleep_until(hl_now_ns() + hl_scaled(f->delay_ns)); return 0;
    case HL_ACTION_KILL: kill(getpid(), f->signal ? (int)f->signal : SIGKILL); return 0;
    case HL_ACTION_STOP: kill(getpid(), SIGSTOP); return 0;
    case HL_ACTION_HOLD: hl_hold(hl_node.base, hl_node.slot, index); return 0;
    case HL_ACTION_WRONG: spoil(0); return 0;
    case HL_ACTION_TORN: spoil(output_bytes() / 2); return 0;
    case HL_ACTION_MEET: (void)hl_meet(hl_node.base, hl_node.slot, index); return 0;
    case HL_ACTION_LOST: /* code = the card that falls off the bus, its instances with it */
        for (uint32_t row = 0; row < hl_node.header->device_count; row++)
            if ((int32_t)row == f->code || (int32_t)hl_node.devices[row].parent == f->code + 1)
                __atomic_store_n(&hl_node.devices[row].lost, 1, __ATOMIC_RELEASE);
        return 0;
    default: return 0;
    }
}

static int due(const struct hl_node_fault *f, uint64_t number) {
    switch (f->mode) {
    case HL_FAULT_NTH: return number == f->call;
    case HL_FAULT_EVERY: return f->call != 0 && number % f->call == 0;
    case HL_FAULT_FROM: return number >= f->call;
    default: return 0;
    }
}

int hl_fake_enter_slow(struct hl_call *call) {
    int keep = errno, forced = 0;
    call->start = hl_now_ns();
    uint32_t count = hl_node.header->fault_count;
    for (uint32_t i = 0; i < count; i++) {
        struct hl_node_fault *f = &hl_node.faults[i];
        if (f->name != call->name || !__atomic_load_n(&f->active, __ATOMIC_ACQUIRE)) continue;
        if ((f->process >= 0 && f->process != hl_node.index) ||
            (f->container >= 0 && f->container != hl_node.container))
            continue;
        uint64_t number =
            f->scope == HL_SCOPE_PROCESS ? call->number : __atomic_add_fetch(&f->counter, 1, __ATOMIC_SEQ_CST);
        if (!due(f, number)) continue;
        if (f->when == HL_WHEN_BEFORE) {
            forced |= act(call, i, number);
        } else if (call->after_count < HL_AFTER_MAX) {
            hl_outputs.wanted |= f->action == HL_ACTION_WRONG || f->action == HL_ACTION_TORN;
            call->after[call->after_count] = (uint16_t)i;
            call->after_number[call->after_count++] = number;
        }
    }
    errno = keep;
    return forced;
}

int32_t hl_fake_leave_slow(struct hl_call *call, int32_t result, uint64_t a, uint64_t b) {
    int keep = errno;
    for (uint32_t i = 0; i < call->after_count; i++)
        if (act(call, call->after[i], call->after_number[i])) result = call->code;
    if (call->after_count) hl_outputs.wanted = hl_outputs.count = 0;
    uint32_t level = hl_node.header->history_level;
    if (level > 1 || (level == 1 && result != 0))
        record(HL_EVENT_CALL, call, result, 0, a, b, call->armed ? hl_now_ns() - call->start : 0);
    errno = keep;
    return result;
}

void hl_fake_unsupported(unsigned name) {
    enum { CUDA_NOT_SUPPORTED = 801, NVML_NOT_SUPPORTED = 3 };
    struct hl_call call;
    __atomic_fetch_add(&hl_node.process->unsupported, 1, __ATOMIC_RELAXED);
    (void)hl_fake_enter(&call, (uint16_t)name);
    (void)hl_fake_leave(&call, hl_fake_first == 0 ? CUDA_NOT_SUPPORTED : NVML_NOT_SUPPORTED, 0, 0);
}

uint64_t hl_scaled(uint64_t modelled_ns) {
    uint64_t scale = hl_node.header->time_scale_ppm;
    return scale == 1000000 ? modelled_ns : (uint64_t)((unsigned __int128)modelled_ns * scale / 1000000);
}

void hl_sleep_until(uint64_t mono_ns) {
    enum { SPIN_NS = 60000 }; /* a sleep overshoots by about this much: short work burns the CPU, as a driver does */
    for (;;) {
        uint64_t now = hl_now_ns();
        if (now >= mono_ns) return;
        if (mono_ns - now <= SPIN_NS) continue;
        uint64_t target = mono_ns - SPIN_NS;
        struct timespec until = {(time_t)(target / 1000000000u), (long)(target % 1000000000u)};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
    }
}

/* How many share the driver's serialised work: living processes, or contexts of the device, those being made included. */
static uint64_t crowd(uint32_t device, uint32_t which) {
    uint64_t found = 0;
    for (uint32_t i = 0; i < hl_node.header->process_capacity; i++) {
        const struct hl_node_process *p = &hl_node.processes[i];
        if (__atomic_load_n(&p->state, __ATOMIC_RELAXED) == HL_PROCESS_LIVE)
            found += which == HL_LATENCY_INIT ? 1 : __atomic_load_n(&p->device[device].context_count, __ATOMIC_RELAXED);
    }
    return found;
}

/* Takes `ns` of the resource that the real driver serialises, from `since` on, and sleeps to the end of it, which it
 * returns: a sleep that took too long does not move the next turn. */
static uint64_t take_turn(struct hl_node_device *d, uint64_t since, uint64_t ns) {
    uint64_t busy = __atomic_load_n(&d->init_busy_until, __ATOMIC_RELAXED), end;
    do {
        end = (busy > since ? busy : since) + ns;
    } while (!__atomic_compare_exchange_n(&d->init_busy_until, &busy, end, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    hl_sleep_until(end);
    return end;
}

/* Initialising and making a context: a part side by side, then a part in turns, many small ones, because in a burst all
 * come out at about the same time, as measured; the more there are, the longer each one's turns. */
static void shared_work(uint32_t device, struct hl_node_device *d, uint32_t which, uint64_t ns) {
    enum { TURNS = 16 };
    int init = which == HL_LATENCY_INIT;
    uint64_t more = d->latency_ns[init ? HL_LATENCY_INIT_CROWD : HL_LATENCY_CONTEXT_CROWD];
    uint64_t clients = init ? 0 : d->latency_ns[HL_LATENCY_CONTEXT_CLIENT];
    uint64_t alone = d->latency_ns[init ? HL_LATENCY_INIT_PARALLEL : HL_LATENCY_CONTEXT_PARALLEL];
    uint64_t at = hl_now_ns() + hl_scaled(alone);
    hl_sleep_until(at);
    for (int turn = 0; turn < TURNS; turn++) {
        uint64_t all = ns + (more ? hl_scaled(more * crowd(device, which)) : 0);
        if (clients) all += hl_scaled(clients * crowd(device, HL_LATENCY_INIT));
        at = take_turn(d, at, all / TURNS);
    }
}

void hl_latency_units(uint32_t device, uint32_t which, uint64_t units_ppm) {
    if (!hl_node.devices || device >= hl_node.header->device_count) return;
    struct hl_node_device *d = &hl_node.devices[device];
    uint64_t ns = d->latency_ns[which];
    if (ns == 0 || units_ppm == 0) return;
    int keep = errno;
    ns = hl_scaled((uint64_t)((unsigned __int128)ns * units_ppm / 1000000));
    if (which == HL_LATENCY_INIT || which == HL_LATENCY_CONTEXT_CREATE) shared_work(device, d, which, ns);
    else if (which == HL_LATENCY_CONTEXT_DESTROY) (void)take_turn(d, hl_now_ns(), ns);
    else hl_sleep_until(hl_now_ns() + ns);
    errno = keep;
}

void hl_latency(uint32_t device, uint32_t which) { hl_latency_units(device, which, 1000000); }

void hl_xid(uint32_t device, uint32_t code) {
    if (!hl_node.devices || device >= hl_node.header->device_count) return;
    struct hl_node_device *card = &hl_node.devices[device];
    if (card->parent) card = &hl_node.devices[card->parent - 1]; /* an instance's errors are its card's */
    uint64_t number = __atomic_fetch_add(&card->xid_count, 1, __ATOMIC_ACQ_REL);
    uint64_t *place = &card->xid[number % (sizeof card->xid / sizeof card->xid[0])];
    __atomic_store_n(place, (number + 1) << 32 | code, __ATOMIC_RELEASE);
}

static void record_phys(uint32_t device, uint32_t kind, uint64_t delta, const struct hl_accounts_after *after) {
    if (hl_node.header->history_level == 0) return;
    struct hl_event e = {.time_ns = after->time_ns,
                         .event = HL_EVENT_PHYS,
                         .source = HL_SOURCE_FAKE,
                         .route = HL_ROUTE_NONE,
                         .device = (uint8_t)device,
                         .name = 0xFFFF,
                         .step = 0xFFFF,
                         .extra = kind,
                         .a = delta,
                         .b = after->container_used,
                         .c = after->process_used};
    hl_history_add(&e);
}

int hl_phys_take(uint32_t device, uint32_t kind, uint64_t bytes) {
    struct hl_accounts_after after = {.time_ns = hl_node.header->history_level != 0};
    if (hl_accounts_take(hl_node.base, hl_node.slot, device, kind, bytes, &after) &&
        (!hl_node_settle_papers() || hl_accounts_take(hl_node.base, hl_node.slot, device, kind, bytes, &after)))
        return -1;
    record_phys(device, kind, bytes, &after);
    return 0;
}

void hl_phys_give(uint32_t device, uint32_t kind, uint64_t bytes) {
    struct hl_accounts_after after = {.time_ns = hl_node.header->history_level != 0};
    hl_accounts_give(hl_node.base, hl_node.slot, device, kind, bytes, &after);
    record_phys(device, kind, 0 - bytes, &after);
}
