/* Memory of graph allocation nodes: addresses from the start, bytes when the node runs. Physical memory is taken in steps
 * of 32 MiB a device, as measured, and kept until a trim. Until then all of it counts as used, what was freed too. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "foreign.h"
#include "graph.h"

struct graph_memory {
    uint32_t device, holders;
    uint64_t address, bytes, room;
    char *view;
    struct alloc *live; /* while it is allocated */
    struct graph_memory *next;
};

struct account {
    uint64_t live; /* bytes of living allocations */
    uint64_t reserved, reserved_high, used_high;
};

static struct account accounts[HL_MAX_DEVICES];
static struct graph_memory *all;

struct graph_memory *graph_memory_new(struct ctx *ctx, uint64_t bytes, CUdeviceptr *address) {
    struct graph_memory *m = calloc(1, sizeof *m);
    if (!m) return NULL;
    m->room = (bytes + BLOCK - 1) / BLOCK * BLOCK;
    void *base = m->room < bytes ? MAP_FAILED : address_reserve(m->room, BLOCK);
    m->view = base == MAP_FAILED
                  ? MAP_FAILED
                  : mmap(NULL, m->room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (m->view == MAP_FAILED) {
        if (base != MAP_FAILED) munmap(base, m->room);
        free(m);
        return NULL;
    }
    m->device = ctx->device;
    m->holders = 1;
    m->address = (uintptr_t)base;
    m->bytes = bytes;
    *address = m->address;
    fake_lock();
    m->next = all;
    all = m;
    fake_unlock();
    return m;
}

void graph_memory_hold(struct graph_memory *m) { __atomic_fetch_add(&m->holders, 1, __ATOMIC_RELAXED); }

/* Under the lock. */
static void destroy(struct graph_memory *m) {
    struct graph_memory **link = &all;
    while (*link != m) link = &(*link)->next;
    *link = m->next;
    munmap((void *)(uintptr_t)m->address, m->room);
    munmap(m->view, m->room);
    free(m);
}

static void end_live(struct graph_memory *m) {
    foreign_remove(m->live);
    m->live = NULL;
    accounts[m->device].live -= m->bytes;
    (void)madvise(m->view, m->room, MADV_DONTNEED); /* reads as zeros again */
}

void graph_memory_drop(struct graph_memory *m) {
    fake_lock();
    if (--m->holders == 0 && !m->live) destroy(m);
    fake_unlock();
}

CUresult graph_memory_take(struct graph_memory *m) {
    struct account *a = &accounts[m->device];
    CUresult result = CUDA_SUCCESS;
    fake_lock();
    uint64_t wanted = (a->live + m->bytes + POOL_STEP - 1) / POOL_STEP * POOL_STEP;
    if (m->live) result = CUDA_ERROR_INVALID_VALUE;
    else if (wanted > a->reserved && hl_phys_take(m->device, HL_KIND_ASYNC, wanted - a->reserved))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    else if (!(m->live = foreign_add(m->address, m->bytes, m->view, m->device, HL_KIND_ASYNC)))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS) {
        m->live->special = SPECIAL_GRAPH;
        a->live += m->bytes;
        if (wanted > a->reserved) a->reserved = wanted;
        if (a->reserved > a->used_high) a->used_high = a->reserved;
        if (a->reserved > a->reserved_high) a->reserved_high = a->reserved;
    }
    fake_unlock();
    return result;
}

int graph_memory_is_live(const struct graph_memory *m) { return m->live != NULL; }

int graph_memory_end(struct alloc *alloc) {
    for (struct graph_memory *m = all; m; m = m->next)
        if (m->live == alloc) {
            end_live(m);
            if (m->holders == 0) destroy(m);
            return 1;
        }
    return 0;
}

CUresult graph_memory_free(CUdeviceptr address) {
    fake_lock();
    struct alloc *a = foreign_at(address);
    int ended = a && a->special == SPECIAL_GRAPH && a->offset == address && graph_memory_end(a);
    fake_unlock();
    return ended ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- what a device keeps for graphs ------------------------------------------------------------------------- */

static CUresult get_attribute(CUdevice device, int which, void *out) {
    CUresult result = need_init();
    if (result) return result;
    struct visible *v = visible_device(device);
    if (!v) return CUDA_ERROR_INVALID_DEVICE;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    const struct account *a = &accounts[v->physical];
    switch (which) {
    case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT:
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT: memcpy(out, &a->reserved, 8); break;
    case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH: memcpy(out, &a->used_high, 8); break;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH: memcpy(out, &a->reserved_high, 8); break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}
ENTRY(cuDeviceGetGraphMemAttribute, (CUdevice device, CUgraphMem_attribute which, void *value),
      get_attribute(device, (int)which, value))

/* High marks may only be reset. */
static CUresult set_attribute(CUdevice device, int which, const void *value) {
    CUresult result = need_init();
    if (result) return result;
    struct visible *v = visible_device(device);
    if (!v) return CUDA_ERROR_INVALID_DEVICE;
    uint64_t wanted = 1;
    if (value) memcpy(&wanted, value, 8);
    struct account *a = &accounts[v->physical];
    if (wanted) return CUDA_ERROR_INVALID_VALUE;
    if (which == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH) a->used_high = a->reserved;
    else if (which == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH) a->reserved_high = a->reserved;
    else return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}
ENTRY(cuDeviceSetGraphMemAttribute, (CUdevice device, CUgraphMem_attribute which, void *value),
      set_attribute(device, (int)which, value))

static CUresult trim(CUdevice device) {
    CUresult result = need_init();
    if (result) return result;
    struct visible *v = visible_device(device);
    if (!v) return CUDA_ERROR_INVALID_DEVICE;
    struct account *a = &accounts[v->physical];
    fake_lock();
    uint64_t needed = (a->live + POOL_STEP - 1) / POOL_STEP * POOL_STEP;
    if (a->reserved > needed) {
        hl_phys_give(v->physical, HL_KIND_ASYNC, a->reserved - needed);
        a->reserved = needed;
    }
    fake_unlock();
    return CUDA_SUCCESS;
}
ENTRY(cuDeviceGraphMemTrim, (CUdevice device), trim(device))
