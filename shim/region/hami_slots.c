/* Membership and totals of a region of layout hami-1.2, by HAMi's protocol and with its faults (see hami.h). */
#define _GNU_SOURCE
#include "config.h"
#include "hami.h"
#include "hl_layout_history.h"
#include "points.h"

#include <errno.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { PATIENCE_MS = 10000, TRIES = 30, DEAD_AT_ONCE = 10, SPINS = 20 };

static sem_t *lock_of(const struct hl_hami *hami) { return (sem_t *)(void *)hami->map->lock; }
static int is_dead(int32_t pid) { return kill(pid, 0) && errno == ESRCH; }

/* One wait, ms. HOOKLAB_HAMI_WAIT_MS shortens it where a run shows what happens after it. */
static long patience(void) {
    const char *text = hl_config("HOOKLAB_HAMI_WAIT_MS");
    long asked = text ? atol(text) : 0;
    return asked > 0 ? asked : PATIENCE_MS;
}

int hl_hami_lock(struct hl_hami *hami) {
    HL_POINT(BEFORE_LOCK);
    for (int tries = 0; tries <= TRIES;) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        long ms = patience();
        until.tv_sec += ms / 1000;
        until.tv_nsec += ms % 1000 * 1000000;
        if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
        if (!sem_timedwait(lock_of(hami), &until)) {
            HL_POINT(LOCKED);
            __atomic_store_n(&hami->map->owner_pid, (uint64_t)hami->pid, __ATOMIC_SEQ_CST);
            HL_POINT(OWNED);
            return 0;
        }
        if (errno != ETIMEDOUT) continue;
        uint64_t owner = __atomic_load_n(&hami->map->owner_pid, __ATOMIC_ACQUIRE);
        if (!owner) tries++; /* died before it said who it is: nobody can be found dead */
        else if (is_dead((int32_t)owner) &&
                 __atomic_compare_exchange_n(&hami->map->owner_pid, &owner, 0, 0, __ATOMIC_RELEASE, __ATOMIC_ACQUIRE))
            sem_post(lock_of(hami));
    }
    return -ETIMEDOUT;
}

void hl_hami_unlock(struct hl_hami *hami) {
    __atomic_store_n(&hami->map->owner_pid, 0, __ATOMIC_SEQ_CST);
    sem_post(lock_of(hami));
}

static void copy(struct hl_hami_slot *to, const struct hl_hami_slot *from) {
    __atomic_store_n(&to->pid, __atomic_load_n(&from->pid, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
    __atomic_store_n(&to->host_pid, __atomic_load_n(&from->host_pid, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
    __atomic_store_n(&to->sequence, __atomic_load_n(&from->sequence, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
    __atomic_store_n(&to->status, __atomic_load_n(&from->status, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
    for (int d = 0; d < HL_HAMI_DEVICES; d++) {
        const uint64_t *source = &from->used[d].context;
        uint64_t *target = &to->used[d].context;
        for (int word = 0; word < 5; word++) /* context, module, data, other, total */
            __atomic_store_n(&target[word], __atomic_load_n(&source[word], __ATOMIC_RELAXED), __ATOMIC_RELAXED);
        __atomic_store_n(&to->monitor_used[d], __atomic_load_n(&from->monitor_used[d], __ATOMIC_RELAXED),
                         __ATOMIC_RELAXED);
        __atomic_store_n(&to->util[d].sm, __atomic_load_n(&from->util[d].sm, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
        __atomic_store_n(&to->util[d].encoder, __atomic_load_n(&from->util[d].encoder, __ATOMIC_RELAXED),
                         __ATOMIC_RELAXED);
        __atomic_store_n(&to->util[d].decoder, __atomic_load_n(&from->util[d].decoder, __ATOMIC_RELAXED),
                         __ATOMIC_RELAXED);
    }
}

static void reset(struct hl_hami_slot *slot, int32_t pid, int32_t status) {
    __atomic_store_n(&slot->sequence, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&slot->pid, pid, __ATOMIC_RELEASE);
    __atomic_store_n(&slot->host_pid, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&slot->status, status, __ATOMIC_RELEASE);
    for (int d = 0; d < HL_HAMI_DEVICES; d++) {
        __atomic_store_n(&slot->used[d].total, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&slot->used[d].context, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&slot->used[d].module, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&slot->used[d].data, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&slot->util[d].sm, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&slot->monitor_used[d], 0, __ATOMIC_RELAXED);
    }
}

static int bound(const struct hl_hami *hami) {
    int count = __atomic_load_n(&hami->map->proc_count, __ATOMIC_ACQUIRE);
    return count < 0 ? 0 : count < HL_HAMI_SLOTS ? count : HL_HAMI_SLOTS;
}

int hl_hami_clear(struct hl_hami *hami, int dead_too) {
    int changed = 0, dead = 0;
    for (int i = 0; i < bound(hami);) {
        struct hl_hami_slot *slot = &hami->map->procs[i];
        int32_t pid = __atomic_load_n(&slot->pid, __ATOMIC_ACQUIRE);
        int gone = !pid;
        if (!gone && dead_too && dead < DEAD_AT_ONCE && is_dead(pid)) gone = 1, dead++;
        if (!gone) {
            i++;
            continue;
        }
        struct hl_hami_slot *last = &hami->map->procs[__atomic_sub_fetch(&hami->map->proc_count, 1, __ATOMIC_SEQ_CST)];
        HL_POINT(MID_REPAIR);
        copy(slot, last);
        if (hami->mine == last) {
            hami->mine = slot;
            reset(last, 0, 0);
        }
        changed = 1;
    }
    return changed;
}

int hl_hami_register(struct hl_hami *hami) {
    hami->pid = getpid();
    hami->mine = NULL;
    int problem = hl_hami_lock(hami), count = problem ? 0 : bound(hami);
    if (problem) return problem;
    for (int i = 0; i < count && !hami->mine; i++) /* a PID that came round again */
        if (__atomic_load_n(&hami->map->procs[i].pid, __ATOMIC_ACQUIRE) == hami->pid) hami->mine = &hami->map->procs[i];
    if (hami->mine) {
        reset(hami->mine, hami->pid, HL_HAMI_STATUS_RUNNING);
    } else if (count < HL_HAMI_SLOTS) {
        hami->mine = &hami->map->procs[count];
        reset(hami->mine, hami->pid, HL_HAMI_STATUS_RUNNING);
        __atomic_add_fetch(&hami->map->proc_count, 1, __ATOMIC_RELEASE);
    } else {
        problem = -ENOSPC;
    }
    if (!problem) HL_POINT(PUBLISHED);
    hl_hami_clear(hami, 1);
    hl_hami_unlock(hami);
    return problem;
}

/* Only ever as long as somebody else is between two instructions, or for ever. */
static uint64_t even(const struct hl_hami_slot *slot) {
    for (int spins = 0;; spins++) {
        uint64_t sequence = __atomic_load_n(&slot->sequence, __ATOMIC_ACQUIRE);
        if (!(sequence & 1)) return sequence;
        if (spins < SPINS) continue;
        struct timespec nap = {.tv_nsec = 100000};
        nanosleep(&nap, NULL);
    }
}

uint64_t hl_hami_used(const struct hl_hami *hami, int device) {
    uint64_t sum = 0;
    for (int i = 0; i < bound(hami); i++) {
        const struct hl_hami_slot *slot = &hami->map->procs[i];
        uint64_t before, bytes;
        do {
            before = even(slot);
            bytes = __atomic_load_n(&slot->used[device].total, __ATOMIC_ACQUIRE);
        } while (__atomic_load_n(&slot->sequence, __ATOMIC_ACQUIRE) != before);
        sum += bytes;
    }
    return sum;
}

uint64_t hl_hami_mine(const struct hl_hami *hami, int device) {
    return hami->mine ? __atomic_load_n(&hami->mine->used[device].total, __ATOMIC_ACQUIRE) : 0;
}

void hl_hami_add(struct hl_hami *hami, int device, uint64_t bytes, int kind) {
    struct hl_hami_slot *slot = hami->mine;
    if (!slot) return;
    struct hl_hami_memory *used = &slot->used[device];
    uint64_t *part = kind == HL_KIND_CONTEXT ? &used->context : kind == HL_KIND_MODULE ? &used->module : &used->data;
    __atomic_fetch_add(&slot->sequence, 1, __ATOMIC_RELEASE);
    __atomic_fetch_add(&used->total, bytes, __ATOMIC_RELEASE);
    HL_POINT(MID_WRITE);
    __atomic_fetch_add(part, bytes, __ATOMIC_RELEASE);
    __atomic_fetch_add(&slot->sequence, 1, __ATOMIC_RELEASE);
}

void hl_hami_status(struct hl_hami *hami, int suspended) {
    if (!hami->mine) return;
    __atomic_store_n(&hami->mine->status, suspended ? HL_HAMI_STATUS_SUSPENDED : HL_HAMI_STATUS_RUNNING,
                     __ATOMIC_RELEASE);
}

/* The slot is only marked; the next who registers takes it out. */
void hl_hami_leave(struct hl_hami *hami) {
    uint64_t own = (uint64_t)hami->pid;
    if (__atomic_compare_exchange_n(&hami->map->owner_pid, &own, 0, 0, __ATOMIC_RELEASE, __ATOMIC_ACQUIRE))
        sem_post(lock_of(hami));
    if (!hami->mine || __atomic_load_n(&hami->mine->pid, __ATOMIC_ACQUIRE) != hami->pid) return;
    __atomic_store_n(&hami->mine->pid, 0, __ATOMIC_RELEASE);
    __atomic_store_n(&hami->mine->status, 0, __ATOMIC_RELEASE);
    hami->mine = NULL;
}

int hl_hami_repair(const char *path, char *why, size_t room) {
    struct hl_hami hami;
    int problem = hl_hami_open(&hami, path, NULL, NULL, why, room), value = 0, living = 0;
    if (problem) return problem;
    int before = bound(&hami);
    for (int i = 0; i < before; i++) {
        int32_t pid = __atomic_load_n(&hami.map->procs[i].pid, __ATOMIC_ACQUIRE);
        if (pid && !is_dead(pid)) living++;
    }
    uint64_t owner = __atomic_load_n(&hami.map->owner_pid, __ATOMIC_ACQUIRE);
    sem_getvalue(lock_of(&hami), &value);
    if (!value && (owner ? is_dead((int32_t)owner) : !living)) { /* unnamed and nobody lives: it is nobody's */
        __atomic_store_n(&hami.map->owner_pid, 0, __ATOMIC_SEQ_CST);
        sem_post(lock_of(&hami));
    }
    hami.pid = getpid();
    problem = hl_hami_lock(&hami);
    if (problem) {
        snprintf(why, room, "%s: the lock is taken and its holder cannot be named; end all its processes, then repair",
                 path);
    } else {
        while (hl_hami_clear(&hami, 1)) {}
        for (int i = 0; i < HL_HAMI_SLOTS; i++) { /* beyond the live ones: what compaction left standing */
            struct hl_hami_slot *slot = &hami.map->procs[i];
            if (i >= bound(&hami)) reset(slot, 0, 0);
        }
        if (!living) {
            sem_getvalue((sem_t *)(void *)hami.map->postinit_lock, &value);
            if (!value) sem_post((sem_t *)(void *)hami.map->postinit_lock);
        }
        problem = before - bound(&hami);
        hl_hami_unlock(&hami);
    }
    munmap(hami.map, sizeof *hami.map);
    return problem;
}
