/* See meters.h. Invariants: no lock is held across a driver or a ledger call; the mutex guards a few words. A slot is used
 * again only when nothing is booked for it. A read that fails leaves what is booked, plus what the call had reserved. */
#include "meters.h"

#include "hl_layout_history.h"

#include <pthread.h>
#include <string.h>

uint32_t hl_meters_used;
static struct hl_meter meters[HL_METERS];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

void hl_meters_fork_child(void) {
    pthread_mutex_init(&mutex, NULL);
    memset(meters, 0, hl_meters_used * sizeof *meters);
    hl_meters_used = 0;
}

struct hl_meter *hl_meter_find(uint64_t key) {
    uint32_t used = __atomic_load_n(&hl_meters_used, __ATOMIC_ACQUIRE);
    for (uint32_t i = 0; i < used; i++)
        if (__atomic_load_n(&meters[i].key, __ATOMIC_ACQUIRE) == key) return &meters[i];
    return NULL;
}

struct hl_meter *hl_meter_watch(uint64_t key, int device) {
    struct hl_meter *found = hl_meter_find(key);
    if (found) return found;
    pthread_mutex_lock(&mutex);
    found = hl_meter_find(key);
    for (uint32_t i = 0; !found && i < HL_METERS; i++)
        if (!meters[i].key) {
            found = &meters[i];
            uint32_t version = found->version + 1; /* who still reads for the one before must not book here */
            *found = (struct hl_meter){.device = device, .version = version};
            __atomic_store_n(&found->key, key, __ATOMIC_RELEASE);
            if (i >= hl_meters_used) __atomic_store_n(&hl_meters_used, i + 1, __ATOMIC_RELEASE);
        }
    pthread_mutex_unlock(&mutex);
    if (!found)
        hl_log(0, "more than %d memory pools at once: what further ones hold is charged by the allocation", HL_METERS);
    return found;
}

void hl_meter_flies(struct hl_meter *meter, int more) {
    __atomic_fetch_add(&meter->flying, (uint32_t)more, __ATOMIC_ACQ_REL);
}

uint64_t hl_meter_room(const struct hl_meter *meter) {
    uint64_t booked = __atomic_load_n(&meter->booked, __ATOMIC_RELAXED);
    uint64_t filled = __atomic_load_n(&meter->filled, __ATOMIC_RELAXED);
    return booked > filled ? booked - filled : 0;
}

static bool read_graph(int device, uint64_t *bytes) {
    __typeof__(&cuDeviceGetGraphMemAttribute) ask = HL_REAL(cuDeviceGetGraphMemAttribute);
    return ask && ask(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, bytes) == CUDA_SUCCESS;
}

static bool read_pool(const struct hl_meter *meter, uint64_t key, uint64_t *bytes) {
    if (__atomic_load_n(&meter->finished, __ATOMIC_ACQUIRE)) {
        *bytes = 0;
        return !__atomic_load_n(&meter->live, __ATOMIC_ACQUIRE); /* with the last allocation the rest goes, too */
    }
    __typeof__(&cuMemPoolGetAttribute) ask = HL_REAL(cuMemPoolGetAttribute);
    return ask && ask((CUmemoryPool)(uintptr_t)key, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, bytes) == CUDA_SUCCESS;
}

/* The words of one commit: what changed hands. False: somebody else committed since the read. */
struct commit {
    uint64_t give, own, more;
};
static bool commit(struct hl_meter *meter, uint32_t version, uint64_t now, uint64_t have, bool asks,
                   struct commit *out) {
    *out = (struct commit){0};
    pthread_mutex_lock(&mutex);
    bool first = meter->version == version;
    if (first) {
        if (now <= meter->booked) {
            out->give = meter->booked - now;
        } else {
            uint64_t grown = now - meter->booked, rest;
            out->own = grown < have ? grown : have;
            rest = grown - out->own;
            if (meter->flying > (asks ? 1u : 0u)) rest = 0; /* theirs: they look when their calls have returned */
            if (asks) out->more = rest;
            else out->own += rest;
        }
        meter->booked += out->own - out->give;
        meter->version++;
        if (meter->finished && !meter->live && !meter->booked) __atomic_store_n(&meter->key, 0, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&mutex);
    return first;
}

static void take_off(struct hl_meter *meter, uint64_t bytes) {
    pthread_mutex_lock(&mutex);
    meter->booked -= bytes;
    meter->version++;
    pthread_mutex_unlock(&mutex);
}

int32_t hl_meter_settle(struct hl_meter *meter, struct hl_ticket *ticket) {
    struct hl_ticket more;
    for (;;) {
        uint32_t version = __atomic_load_n(&meter->version, __ATOMIC_ACQUIRE);
        uint64_t key = __atomic_load_n(&meter->key, __ATOMIC_ACQUIRE), now = 0, have = ticket ? ticket->bytes : 0;
        int device = meter->device;
        bool graph = key & HL_METER_GRAPH;
        if (!key) return ticket ? hl_ledger_keep(ticket, 0) : 0;
        if (!(graph ? read_graph(device, &now) : read_pool(meter, key, &now)))
            now = __atomic_load_n(&meter->booked, __ATOMIC_RELAXED) + have;
        struct commit change;
        if (!commit(meter, version, now, have, ticket != NULL, &change)) continue;
        if (change.give) hl_ledger_give(device, change.give, HL_KIND_ASYNC);
        if (!ticket) {
            hl_ledger_book(device, change.own, HL_KIND_ASYNC);
            return 0;
        }
        int32_t refused = hl_ledger_keep(ticket, change.own);
        if (refused) take_off(meter, change.own);
        if (refused || !change.more) return refused;
        refused = hl_ledger_reserve(device, change.more, HL_KIND_ASYNC, &more);
        if (refused) return refused;
        ticket = &more;
    }
}

void hl_meter_finish(struct hl_meter *meter) {
    __atomic_store_n(&meter->finished, true, __ATOMIC_RELEASE);
    hl_meter_settle(meter, NULL);
}

void hl_meter_end(struct hl_meter *meter) {
    __atomic_store_n(&meter->live, 0, __ATOMIC_RELEASE);
    hl_meter_finish(meter);
}

void hl_meters_look(void) {
    uint32_t used = __atomic_load_n(&hl_meters_used, __ATOMIC_ACQUIRE);
    for (uint32_t i = 0; i < used; i++) {
        uint64_t key = __atomic_load_n(&meters[i].key, __ATOMIC_ACQUIRE);
        if (!key || meters[i].device < 0) continue;
        if ((key & HL_METER_GRAPH) || __atomic_load_n(&meters[i].booked, __ATOMIC_RELAXED))
            hl_meter_settle(&meters[i], NULL);
    }
}

bool hl_meters_reclaim(int device) {
    __typeof__(&cuMemPoolTrimTo) trim = HL_REAL(cuMemPoolTrimTo);
    uint32_t used = __atomic_load_n(&hl_meters_used, __ATOMIC_ACQUIRE);
    bool back = false;
    for (uint32_t i = 0; trim && i < used; i++) {
        uint64_t key = __atomic_load_n(&meters[i].key, __ATOMIC_ACQUIRE);
        uint64_t before = __atomic_load_n(&meters[i].booked, __ATOMIC_RELAXED);
        if (!key || (key & HL_METER_GRAPH) || meters[i].device != device || !before || meters[i].finished) continue;
        if (!hl_meter_room(&meters[i]) || trim((CUmemoryPool)(uintptr_t)key, 0) != CUDA_SUCCESS) continue;
        hl_meter_settle(&meters[i], NULL);
        back |= __atomic_load_n(&meters[i].booked, __ATOMIC_RELAXED) < before;
    }
    return back;
}
