/* See accounts.h. Invariants: between setting undo_valid and clearing it only the holder of account_lock writes the three
 * totals of that device; every store order below is what a reader of a dead holder's words relies on. */
#define _GNU_SOURCE
#include "accounts.h"

#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "history.h"
#include "hl_layout_node.h"
#include "nodelock.h"

typedef struct hl_node_header header_t;

static struct hl_node_device *device_at(void *base, uint32_t index) {
    return (struct hl_node_device *)((char *)base + ((header_t *)base)->device_offset) + index;
}

static struct hl_node_process *process_at(void *base, uint32_t slot) {
    return (struct hl_node_process *)((char *)base + ((header_t *)base)->process_offset) + slot;
}

static struct hl_node_container *container_at(void *base, int32_t index) {
    if (index < 0 || (uint32_t)index >= ((header_t *)base)->container_capacity) return NULL;
    return (struct hl_node_container *)((char *)base + ((header_t *)base)->container_offset) + index;
}

static struct hl_node_fault *fault_at(void *base, uint32_t index) {
    return (struct hl_node_fault *)((char *)base + ((header_t *)base)->fault_offset) + index;
}

static long futex(uint32_t *word, int op, uint32_t value, const struct timespec *timeout) {
    return syscall(SYS_futex, word, op, value, timeout, NULL, 0);
}

static inline uint64_t load(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_RELAXED); }
static inline void store(uint64_t *word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_RELAXED); }

static uint64_t process_sum(const struct hl_node_process_device *held) {
    uint64_t sum = 0;
    for (int kind = 0; kind < HL_KINDS; kind++) sum += load(&held->bytes[kind]);
    return sum;
}

/* Under the lock. delta is two's complement. */
static void change(struct hl_node_device *d, struct hl_node_container *c, uint32_t ordinal, struct hl_node_process *p,
                   uint32_t slot, uint32_t kind, uint64_t delta, struct hl_accounts_after *after) {
    struct hl_node_process_device *held = &p->device[ordinal];
    store(&d->undo_used, load(&d->used));
    store(&d->undo_process_bytes, load(&held->bytes[kind]));
    d->undo_kind = kind;
    d->undo_slot = slot;
    d->undo_container = c ? p->container : -1;
    if (c) store(&d->undo_container_used, load(&c->used[ordinal]));
    __atomic_store_n(&d->undo_valid, 1, __ATOMIC_RELEASE);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    uint64_t device_used = d->undo_used + delta, container_used = 0;
    store(&held->bytes[kind], d->undo_process_bytes + delta);
    if (c) {
        container_used = d->undo_container_used + delta;
        store(&c->used[ordinal], container_used);
    }
    store(&d->used, device_used);
    __atomic_store_n(&d->undo_valid, 0, __ATOMIC_RELEASE);
    /* Peaks only ever rise and are display values: they need no undo. */
    uint64_t process_used = process_sum(held);
    if (device_used > load(&d->peak)) store(&d->peak, device_used);
    if (c && container_used > load(&c->peak[ordinal])) store(&c->peak[ordinal], container_used);
    if (process_used > load(&held->peak)) store(&held->peak, process_used);
    if (after) {
        after->device_used = device_used;
        after->container_used = container_used;
        after->process_used = process_used;
        if (after->time_ns) after->time_ns = hl_now_ns();
    }
}

int hl_accounts_take(void *base, uint32_t slot, uint32_t device, uint32_t kind, uint64_t bytes,
                     struct hl_accounts_after *after) {
    struct hl_node_device *d = device_at(base, device);
    struct hl_node_process *p = process_at(base, slot);
    hl_node_lock(&d->account_lock, slot + 1);
    uint64_t used = load(&d->used), room = d->total_bytes - d->host_bytes;
    if (used > room || bytes > room - used) {
        hl_node_unlock(&d->account_lock);
        return -1;
    }
    change(d, container_at(base, p->container), device, p, slot, kind, bytes, after);
    hl_node_unlock(&d->account_lock);
    return 0;
}

void hl_accounts_give(void *base, uint32_t slot, uint32_t device, uint32_t kind, uint64_t bytes,
                      struct hl_accounts_after *after) {
    struct hl_node_device *d = device_at(base, device);
    struct hl_node_process *p = process_at(base, slot);
    hl_node_lock(&d->account_lock, slot + 1);
    change(d, container_at(base, p->container), device, p, slot, kind, 0 - bytes, after);
    hl_node_unlock(&d->account_lock);
}

void hl_accounts_undo(void *base, uint32_t slot) {
    uint32_t count = ((header_t *)base)->device_count;
    for (uint32_t i = 0; i < count && i < HL_MAX_DEVICES; i++) {
        struct hl_node_device *d = device_at(base, i);
        uint32_t word = __atomic_load_n(&d->account_lock, __ATOMIC_ACQUIRE);
        if ((word & ~(uint32_t)HL_ACCOUNT_WAITERS) != slot + 1) continue;
        if (__atomic_load_n(&d->undo_valid, __ATOMIC_ACQUIRE)) {
            store(&d->used, d->undo_used);
            store(&process_at(base, d->undo_slot)->device[i].bytes[d->undo_kind], d->undo_process_bytes);
            struct hl_node_container *torn = container_at(base, d->undo_container);
            if (torn) store(&torn->used[i], d->undo_container_used);
            __atomic_store_n(&d->undo_valid, 0, __ATOMIC_RELEASE);
        }
        hl_node_unlock(&d->account_lock);
    }
}

int hl_accounts_bury(void *base, uint32_t slot, const uint64_t *keep, uint64_t *given) {
    struct hl_node_process *p = process_at(base, slot);
    struct hl_node_container *c = container_at(base, p->container);
    uint32_t count = ((header_t *)base)->device_count;
    uint64_t total = 0;
    int busy = 0;
    for (uint32_t i = 0; i < count && i < HL_MAX_DEVICES; i++) {
        struct hl_node_device *d = device_at(base, i);
        struct hl_node_process_device *held = &p->device[i];
        uint64_t left[HL_KINDS], sum = 0;
        for (int kind = 0; kind < HL_KINDS; kind++) {
            uint64_t bytes = load(&held->bytes[kind]), kept = keep ? keep[i * HL_KINDS + (uint32_t)kind] : 0;
            left[kind] = bytes < kept ? bytes : kept;
            sum += bytes - left[kind];
        }
        if (sum == 0) {
            __atomic_store_n(&held->context_count, 0, __ATOMIC_RELAXED);
            continue;
        }
        if (!hl_node_try_lock(&d->account_lock, (uint32_t)HL_ACCOUNT_SERVER)) {
            busy = -1;
            continue;
        }
        store(&d->used, load(&d->used) - sum);
        if (c) store(&c->used[i], load(&c->used[i]) - sum);
        for (int kind = 0; kind < HL_KINDS; kind++) store(&held->bytes[kind], left[kind]);
        __atomic_store_n(&held->context_count, 0, __ATOMIC_RELAXED);
        hl_node_unlock(&d->account_lock);
        total += sum;
    }
    if (given) *given = total;
    return busy;
}

int hl_accounts_take_back(void *base, uint32_t slot, uint32_t device, uint32_t kind, uint64_t bytes) {
    struct hl_node_device *d = device_at(base, device);
    struct hl_node_process *p = process_at(base, slot);
    struct hl_node_container *c = container_at(base, p->container);
    if (!hl_node_try_lock(&d->account_lock, (uint32_t)HL_ACCOUNT_SERVER)) return -1;
    uint64_t held = load(&p->device[device].bytes[kind]);
    if (bytes > held) bytes = held;
    store(&d->used, load(&d->used) - bytes);
    if (c) store(&c->used[device], load(&c->used[device]) - bytes);
    store(&p->device[device].bytes[kind], held - bytes);
    hl_node_unlock(&d->account_lock);
    return 0;
}

static uint64_t mark_of(uint32_t round, uint32_t fault, uint32_t slot) {
    return (uint64_t)round << 32 | (uint64_t)(fault + 1) << 16 | (slot + 1);
}

/* How many wait in this round: who they are is not looked at. */
static uint32_t waiting(void *base, uint32_t fault, uint32_t round) {
    uint32_t found = 0;
    for (int i = 0; i < HL_MEET_MAX; i++)
        found +=
            __atomic_load_n(&((header_t *)base)->waiters[i], __ATOMIC_SEQ_CST) >> 16 == mark_of(round, fault, 0) >> 16;
    return found;
}

/* A word of one's own in the round that is on at that moment. From then on the caller counts, and has come: whoever opens
 * that round lets it go, even before it looks again. */
static uint64_t *claim(void *base, uint32_t slot, uint32_t index, uint32_t *round) {
    struct hl_node_fault *fault = fault_at(base, index);
    for (int i = 0; i < HL_MEET_MAX; i++) {
        uint64_t *word = &((header_t *)base)->waiters[i], none = 0;
        if (__atomic_load_n(word, __ATOMIC_RELAXED) != 0) continue;
        *round = __atomic_load_n(&fault->open, __ATOMIC_SEQ_CST);
        if (__atomic_compare_exchange_n(word, &none, mark_of(*round, index, slot), 0, __ATOMIC_SEQ_CST,
                                        __ATOMIC_RELAXED))
            return word;
    }
    return NULL;
}

/* 1 = this call ended the round. */
static int open_round(struct hl_node_fault *fault, uint32_t round) {
    if (!__atomic_compare_exchange_n(&fault->open, &round, round + 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) return 0;
    futex(&fault->open, FUTEX_WAKE, INT_MAX, NULL);
    return 1;
}

int hl_meet(void *base, uint32_t slot, uint32_t index) {
    struct hl_node_fault *fault = fault_at(base, index);
    uint32_t round;
    uint64_t *word = claim(base, slot, index, &round);
    if (!word) return 0;
    int last = waiting(base, index, round) >= fault->meet && open_round(fault, round);
    while (__atomic_load_n(&fault->open, __ATOMIC_ACQUIRE) == round) futex(&fault->open, FUTEX_WAIT, round, NULL);
    __atomic_store_n(word, 0, __ATOMIC_SEQ_CST);
    return last;
}

void hl_hold(void *base, uint32_t slot, uint32_t index) {
    uint32_t round;
    uint64_t *word = claim(base, slot, index, &round);
    while (__atomic_load_n(&fault_at(base, index)->open, __ATOMIC_ACQUIRE) == 0) kill(getpid(), SIGSTOP);
    if (word) __atomic_store_n(word, 0, __ATOMIC_SEQ_CST);
}

void hl_meet_open(void *base, uint32_t index, uint32_t round) { (void)open_round(fault_at(base, index), round); }

void hl_meet_leave(void *base, uint32_t slot) {
    for (int i = 0; i < HL_MEET_MAX; i++) {
        uint64_t *word = &((header_t *)base)->waiters[i];
        if ((__atomic_load_n(word, __ATOMIC_SEQ_CST) & 0xFFFF) == slot + 1) __atomic_store_n(word, 0, __ATOMIC_SEQ_CST);
    }
}

void hl_calls_fold(void *base, uint32_t slot) {
    header_t *h = base;
    uint64_t *total = (uint64_t *)(void *)((char *)base + h->call_offset);
    uint32_t *row = (uint32_t *)(void *)((char *)base + h->process_call_offset) + (size_t)slot * h->name_count;
    for (uint32_t name = 0; name < h->name_count; name++) {
        uint32_t calls = __atomic_exchange_n(&row[name], 0, __ATOMIC_RELAXED);
        if (calls) __atomic_fetch_add(&total[name], calls, __ATOMIC_RELAXED);
    }
}
