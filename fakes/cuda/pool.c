/* Stream-ordered memory: pools. A pool owns address space and backs it with physical memory in steps of 32 MiB; a step
 * stays backed while anything lies in it, and after that until a synchronisation or a trim lets the pool give it back
 * (down to its release threshold). Work is done when it is submitted here, so freed memory can be used again at once. */
#include "fake.h"

#include "foreign.h"
#include "graph.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct region {
    uint64_t base;
    uint32_t steps;
    struct region *next;
    struct step {
        uint32_t live; /* allocations that touch it */
        uint32_t backed;
    } step[];
};

struct pool {
    uint32_t magic, device;
    int is_default, destroyed, on_host;
    int shared, file;          /* made with a handle type; imported: its exporter's memory, else -1 */
    uint32_t live, idle_steps; /* allocations; backed steps that nothing lies in */
    uint32_t reuse[3];
    uint64_t max_bytes, threshold, reserved, reserved_high, used, used_high;
    struct heap heap;
    struct region *regions;
    struct pool *next;
};

static struct pool *pools;

/* Under the lock from here to the entries. */

static struct pool *pool_new(uint32_t device, int is_default) {
    struct pool *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    p->magic = MAGIC_POOL;
    p->device = device;
    p->is_default = is_default;
    p->file = -1;
    p->reuse[0] = p->reuse[1] = p->reuse[2] = 1;
    uint64_t quarter = physical(device)->total_bytes / 4 / POOL_STEP * (POOL_STEP / BLOCK);
    heap_init(&p->heap, device, HL_KIND_ASYNC, quarter ? (uint32_t)quarter : POOL_STEP / BLOCK, 0, 1);
    p->next = pools;
    pools = p;
    return p;
}

static struct pool *default_pool(struct visible *v) {
    if (!v->default_pool) {
        v->default_pool = pool_new(v->physical, 1);
        if (!v->pool) v->pool = v->default_pool;
    }
    return v->default_pool;
}

static struct region *region_of(struct pool *p, uint64_t offset) {
    for (struct region *r = p->regions; r; r = r->next)
        if (offset - r->base < (uint64_t)r->steps * POOL_STEP) return r;
    uint32_t steps = (uint32_t)((arena_run_bytes(offset) + POOL_STEP - 1) / POOL_STEP);
    struct region *r = calloc(1, sizeof *r + steps * sizeof r->step[0]);
    if (!r) return NULL;
    r->base = arena_run_base(offset);
    r->steps = steps;
    r->next = p->regions;
    p->regions = r;
    return r;
}

static void give_back(struct pool *p, uint64_t keep) {
    for (struct region *r = p->regions; r && p->idle_steps; r = r->next)
        for (uint32_t i = r->steps; i-- && p->idle_steps;)
            if (r->step[i].backed && r->step[i].live == 0) {
                if (p->reserved - POOL_STEP < keep) return;
                r->step[i].backed = 0;
                p->reserved -= POOL_STEP;
                p->idle_steps--;
                hl_phys_give(p->device, HL_KIND_ASYNC, POOL_STEP);
            }
}

static void span_of(const struct region *r, const struct alloc *a, uint32_t *first, uint32_t *last) {
    *first = (uint32_t)((a->offset - r->base) / POOL_STEP);
    *last = (uint32_t)((a->offset - r->base + (uint64_t)a->units * UNIT - 1) / POOL_STEP);
}

static CUresult take(struct pool *p, uint64_t bytes, CUdeviceptr *out) {
    if (bytes > physical(p->device)->total_bytes) return CUDA_ERROR_OUT_OF_MEMORY;
    if (p->max_bytes && bytes > p->max_bytes) {
        /* It grows as far as it may before it finds that it may not. */
        if (p->max_bytes / POOL_STEP * POOL_STEP > p->reserved_high)
            p->reserved_high = p->max_bytes / POOL_STEP * POOL_STEP;
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct alloc *a = heap_alloc(&p->heap, bytes);
    struct region *r = a ? region_of(p, a->offset) : NULL;
    if (!r) goto full;
    uint32_t first, last, missing = 0;
    span_of(r, a, &first, &last);
    for (uint32_t i = first; i <= last; i++) missing += !r->step[i].backed;
    uint64_t more = (uint64_t)missing * POOL_STEP;
    if (p->max_bytes && p->reserved + more > p->max_bytes) goto full;
    if (more && hl_phys_take(p->device, HL_KIND_ASYNC, more)) {
        for (struct pool *other = pools; other;
             other = other->next) /* what no one uses is given up before anyone fails */
            if (other->device == p->device && other != p) give_back(other, 0);
        if (hl_phys_take(p->device, HL_KIND_ASYNC, more)) goto full;
    }
    for (uint32_t i = first; i <= last; i++) {
        p->idle_steps -= r->step[i].backed && r->step[i].live == 0;
        r->step[i].backed = 1;
        r->step[i].live++;
    }
    p->reserved += more;
    p->used += bytes;
    if (p->reserved > p->reserved_high) p->reserved_high = p->reserved;
    if (p->used > p->used_high) p->used_high = p->used;
    p->live++;
    a->pool = p;
    *out = (CUdeviceptr)(uintptr_t)arena.device_base + a->offset;
    return CUDA_SUCCESS;
full:
    if (a) arena_free(a);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static void pool_end(struct pool *p) {
    give_back(p, 0);
    heap_close(&p->heap);
    struct pool **link = &pools;
    while (*link != p) link = &(*link)->next;
    *link = p->next;
    while (p->regions) {
        struct region *r = p->regions;
        p->regions = r->next;
        free(r);
    }
    p->magic = MAGIC_DEAD;
    if (p->file >= 0) {
        imported_pool_ends(p);
        close(p->file);
    }
}

void pool_freed(struct alloc *a) {
    struct pool *p = a->pool;
    struct region *r = region_of(p, a->offset);
    uint32_t first, last;
    span_of(r, a, &first, &last);
    for (uint32_t i = first; i <= last; i++) p->idle_steps += --r->step[i].live == 0;
    p->used -= a->bytes;
    p->live--;
}

void pools_settle(uint32_t device) {
    if (!__atomic_load_n(&pools, __ATOMIC_RELAXED)) return;
    fake_lock();
    for (struct pool *p = pools, *next; p; p = next) {
        next = p->next;
        if (p->device != device) continue;
        if (p->destroyed && p->live == 0) pool_end(p);
        else if (p->idle_steps && p->reserved > p->threshold) give_back(p, p->threshold);
    }
    fake_unlock();
}

/* ---- allocation ------------------------------------------------------------------------------------------- */

static struct pool *pool_of(CUmemoryPool handle) {
    struct pool *p = (struct pool *)(void *)handle;
    return p && p->magic == MAGIC_POOL && !p->destroyed ? p : NULL;
}

/* Memory of the host, which no device accounts for; the pool's own steps are as those of a device. Not under the lock. */
static CUresult take_host(struct ctx *ctx, struct pool *p, uint64_t bytes, CUdeviceptr *out) {
    struct host *h = p->max_bytes && p->used + bytes > p->max_bytes ? NULL : host_pooled(ctx, p, bytes);
    if (!h) return CUDA_ERROR_OUT_OF_MEMORY;
    fake_lock();
    p->live++;
    p->used += bytes;
    p->reserved = (p->used + POOL_STEP - 1) / POOL_STEP * POOL_STEP;
    if (p->reserved > p->reserved_high) p->reserved_high = p->reserved;
    if (p->used > p->used_high) p->used_high = p->used;
    fake_unlock();
    *out = (CUdeviceptr)(uintptr_t)h->at;
    return CUDA_SUCCESS;
}

void pool_host_freed(struct pool *p, uint64_t bytes) {
    p->live--;
    p->used -= bytes;
    p->reserved = (p->used + POOL_STEP - 1) / POOL_STEP * POOL_STEP;
    if (p->destroyed && p->live == 0) pool_end(p);
}

static CUresult capture_alloc(struct ctx *ctx, struct capture *c, struct stream *s, size_t bytes, CUdeviceptr *out) {
    struct node *n = capture_add(c, s, CU_GRAPH_NODE_TYPE_MEM_ALLOC);
    if (!n) return CUDA_ERROR_OUT_OF_MEMORY;
    n->alloc.what = (CUDA_MEM_ALLOC_NODE_PARAMS){
        .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = ordinal_of(ctx->device)}},
        .bytesize = bytes};
    n->alloc.memory = graph_memory_new(ctx, bytes, &n->alloc.what.dptr);
    if (!n->alloc.memory) {
        capture_undo(c, s, n);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = n->alloc.what.dptr;
    return CUDA_SUCCESS;
}

static CUresult allocate(CUdeviceptr *out, size_t bytes, CUmemoryPool handle, int own_pool, CUstream stream,
                         int default_stream) {
    struct ctx *ctx;
    if (out) *out = 0;
    CUresult result = need_ctx(&ctx);
    if (result) return result;
    if (!out || (own_pool && !pool_of(handle))) return CUDA_ERROR_INVALID_VALUE;
    struct stream *s = stream_of(ctx, stream, default_stream);
    if (bytes == 0) return CUDA_SUCCESS;
    if (capturing()) {
        struct capture *c;
        if ((result = stream_use(ctx, s, &c)) != CUDA_SUCCESS) return result;
        if (c) return capture_alloc(ctx, c, s, bytes, out);
    }
    fake_lock();
    lent_settle();
    struct visible *v = visible_device(ordinal_of(ctx->device));
    struct pool *p = own_pool ? pool_of(handle) : v->pool ? v->pool : default_pool(v);
    result = !p             ? CUDA_ERROR_OUT_OF_MEMORY
             : p->file >= 0 ? CUDA_ERROR_NOT_PERMITTED /* an imported pool gives nothing out */
             : p->on_host   ? CUDA_SUCCESS
                            : take(p, bytes, out);
    fake_unlock();
    if (result == CUDA_SUCCESS && p->on_host) return take_host(ctx, p, bytes, out);
    if (physical(ctx->device)->latency_ns[HL_LATENCY_ALLOC])
        hl_latency_units(ctx->device, HL_LATENCY_ALLOC, 31250); /* 1 of 32 us */
    return result;
}

#define ALLOCATION(NAME, POOL_PARAMETER, POOL_ARGUMENT, OWN, DEFAULT_STREAM)                                           \
    API NAME(CUdeviceptr *pointer, size_t bytes POOL_PARAMETER, CUstream stream);                                      \
    API NAME(CUdeviceptr *pointer, size_t bytes POOL_PARAMETER, CUstream stream) {                                     \
        ENTER(NAME);                                                                                                   \
        CUresult result = allocate(pointer, bytes, POOL_ARGUMENT, OWN, stream, DEFAULT_STREAM);                        \
        LEAVE(result, bytes, result ? 0 : *pointer);                                                                   \
    }
#define NOTHING
#define POOL_COMMA , CUmemoryPool pool
ALLOCATION(cuMemAllocAsync, NOTHING, NULL, 0, 1)
ALLOCATION(cuMemAllocAsync_ptsz, NOTHING, NULL, 0, 2)
ALLOCATION(cuMemAllocFromPoolAsync, POOL_COMMA, pool, 1, 1)
ALLOCATION(cuMemAllocFromPoolAsync_ptsz, POOL_COMMA, pool, 1, 2)

static CUresult release(CUdeviceptr pointer, CUstream stream, int default_stream) {
    struct ctx *ctx;
    CUresult result = need_ctx(&ctx);
    if (result) return result;
    struct stream *s = stream_of(ctx, stream, default_stream);
    if (pointer == 0) return CUDA_SUCCESS;
    if (capturing()) {
        struct capture *c;
        if ((result = stream_use(ctx, s, &c)) != CUDA_SUCCESS) return result;
        struct node *n = c ? capture_add(c, s, CU_GRAPH_NODE_TYPE_MEM_FREE) : NULL;
        if (n) n->free = pointer;
        if (c) return n ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct freed freed;
    return memory_free(pointer, &freed);
}
PAIR_VALUES(cuMemFreeAsync, cuMemFreeAsync_ptsz, (CUdeviceptr pointer, CUstream stream),
            release(pointer, stream, DEFAULT_STREAM), 0, pointer)

/* ---- pools ------------------------------------------------------------------------------------------------ */

static CUresult device_pool(CUmemoryPool *out, CUdevice device, int current) {
    CUresult result = need_init();
    if (result) return result;
    struct visible *v = visible_device(device);
    if (!v) return CUDA_ERROR_INVALID_DEVICE;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    fake_lock();
    struct pool *p = default_pool(v);
    if (p && current) p = v->pool;
    fake_unlock();
    *out = (CUmemoryPool)(void *)p;
    return p ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
ENTRY(cuDeviceGetDefaultMemPool, (CUmemoryPool * pool, CUdevice device), device_pool(pool, device, 0))
ENTRY(cuDeviceGetMemPool, (CUmemoryPool * pool, CUdevice device), device_pool(pool, device, 1))

static CUresult set_pool(CUdevice device, CUmemoryPool handle) {
    CUresult result = need_init();
    if (result) return result;
    struct visible *v = visible_device(device);
    struct pool *p = pool_of(handle);
    if (!v) return CUDA_ERROR_INVALID_DEVICE;
    if (!p || p->device != v->physical || p->on_host) return CUDA_ERROR_INVALID_VALUE;
    v->pool = p;
    return CUDA_SUCCESS;
}
ENTRY(cuDeviceSetMemPool, (CUdevice device, CUmemoryPool pool), set_pool(device, pool))

/* The same by place. The pools of the host have their device's number only as where they are kept. */
static CUresult place_of(const CUmemLocation *where, int type, struct visible **v, int *on_host) {
    CUresult result = need_init();
    if (result) return result;
    if (!where || (type != CU_MEM_ALLOCATION_TYPE_PINNED && type != 2 /* managed, newer headers */))
        return CUDA_ERROR_INVALID_VALUE;
    *on_host = where->type == CU_MEM_LOCATION_TYPE_HOST || where->type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
    if (!*on_host && where->type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_NOT_SUPPORTED;
    *v = visible_device(*on_host ? 0 : where->id);
    return *v ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; /* no 101, measured */
}

static struct pool *host_default, *host_current; /* under the lock */

static CUresult place_pool(CUmemoryPool *out, const CUmemLocation *where, int type, int current) {
    struct visible *v = NULL;
    int on_host;
    CUresult result = place_of(where, type, &v, &on_host);
    if (result) return result;
    if (!on_host) return device_pool(out, where->id, current);
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    fake_lock();
    if (!host_default && (host_default = pool_new(v->physical, 1)) != NULL) host_default->on_host = 1;
    struct pool *p = current && host_current ? host_current : host_default;
    fake_unlock();
    *out = (CUmemoryPool)(void *)p;
    return p ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
ENTRY(cuMemGetDefaultMemPool, (CUmemoryPool * pool, CUmemLocation *where, CUmemAllocationType type),
      place_pool(pool, where, (int)type, 0))
ENTRY(cuMemGetMemPool, (CUmemoryPool * pool, CUmemLocation *where, CUmemAllocationType type),
      place_pool(pool, where, (int)type, 1))

static CUresult set_place_pool(const CUmemLocation *where, int type, CUmemoryPool handle) {
    struct visible *v = NULL;
    int on_host;
    CUresult result = place_of(where, type, &v, &on_host);
    if (result) return result;
    if (!on_host) return set_pool(where->id, handle);
    struct pool *p = pool_of(handle);
    if (!p || !p->on_host) return CUDA_ERROR_INVALID_VALUE;
    host_current = p;
    return CUDA_SUCCESS;
}
ENTRY(cuMemSetMemPool, (CUmemLocation * where, CUmemAllocationType type, CUmemoryPool pool),
      set_place_pool(where, (int)type, pool))

static CUresult create(CUmemoryPool *out, const CUmemPoolProps *wanted) {
    CUresult result = need_init();
    if (result) return result;
    if (!out || !wanted || wanted->allocType != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
    int on_host =
        wanted->location.type == CU_MEM_LOCATION_TYPE_HOST || wanted->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
    if (!on_host && wanted->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
    struct visible *v = visible_device(on_host ? 0 : wanted->location.id);
    if (!v) return CUDA_ERROR_INVALID_DEVICE;
    fake_lock();
    struct pool *p = pool_new(v->physical, 0);
    if (p) {
        p->max_bytes = wanted->maxSize;
        p->on_host = on_host;
        p->shared = wanted->handleTypes != CU_MEM_HANDLE_TYPE_NONE;
    }
    fake_unlock();
    *out = (CUmemoryPool)(void *)p;
    return p ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
ENTRY(cuMemPoolCreate, (CUmemoryPool * pool, const CUmemPoolProps *props), create(pool, props))

/* What still lies in it stays usable; the memory goes back with the last free. */
static CUresult destroy(CUmemoryPool handle) {
    CUresult result = need_init();
    if (result) return result;
    struct pool *p = pool_of(handle);
    if (!p || p->is_default) return CUDA_ERROR_INVALID_VALUE;
    fake_lock();
    for (int i = 0; i < fake.count; i++)
        if (fake.visible[i].pool == p) fake.visible[i].pool = fake.visible[i].default_pool;
    if (host_current == p) host_current = NULL;
    p->destroyed = 1;
    if (p->live == 0) pool_end(p);
    fake_unlock();
    return CUDA_SUCCESS;
}
ENTRY(cuMemPoolDestroy, (CUmemoryPool pool), destroy(pool))

static CUresult trim(CUmemoryPool handle, size_t keep) {
    CUresult result = need_init();
    if (result) return result;
    struct pool *p = pool_of(handle);
    if (!p) return CUDA_ERROR_INVALID_VALUE;
    fake_lock();
    give_back(p, keep);
    fake_unlock();
    return CUDA_SUCCESS;
}
ENTRY(cuMemPoolTrimTo, (CUmemoryPool pool, size_t keep), trim(pool, keep))

static CUresult get_attribute(CUmemoryPool handle, int which, void *out) {
    CUresult result = need_init();
    if (result) return result;
    struct pool *p = pool_of(handle);
    if (!p || !out) return CUDA_ERROR_INVALID_VALUE;
    fake_lock();
    switch (which) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        memcpy(out, &p->reuse[which - 1], sizeof p->reuse[0]);
        break;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: memcpy(out, &p->threshold, 8); break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: memcpy(out, &p->reserved, 8); break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: memcpy(out, &p->reserved_high, 8); break;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: memcpy(out, &p->used, 8); break;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH: memcpy(out, &p->used_high, 8); break;
    default: result = CUDA_ERROR_INVALID_VALUE;
    }
    fake_unlock();
    return result;
}
ENTRY(cuMemPoolGetAttribute, (CUmemoryPool pool, CUmemPool_attribute which, void *value),
      get_attribute(pool, (int)which, value))

static CUresult set_attribute(CUmemoryPool handle, int which, const void *value) {
    CUresult result = need_init();
    if (result) return result;
    struct pool *p = pool_of(handle);
    if (!p || !value) return CUDA_ERROR_INVALID_VALUE;
    uint64_t wide = 0;
    fake_lock();
    switch (which) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        memcpy(&p->reuse[which - 1], value, sizeof p->reuse[0]);
        break;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: memcpy(&p->threshold, value, 8); break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH: /* may only be reset */
        memcpy(&wide, value, 8);
        if (wide) result = CUDA_ERROR_INVALID_VALUE;
        else if (which == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) p->reserved_high = p->reserved;
        else p->used_high = p->used;
        break;
    default: result = CUDA_ERROR_INVALID_VALUE;
    }
    fake_unlock();
    return result;
}
ENTRY(cuMemPoolSetAttribute, (CUmemoryPool pool, CUmemPool_attribute which, void *value),
      set_attribute(pool, (int)which, value))

static CUresult get_access(CUmemAccess_flags *out, CUmemoryPool handle, const CUmemLocation *where) {
    CUresult result = need_init();
    if (result) return result;
    struct pool *p = pool_of(handle);
    if (!out || !p || !where) return CUDA_ERROR_INVALID_VALUE;
    struct visible *v = where->type == CU_MEM_LOCATION_TYPE_DEVICE ? visible_device(where->id) : NULL;
    *out = v && v->physical == p->device ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
}
ENTRY(cuMemPoolGetAccess, (CUmemAccess_flags * flags, CUmemoryPool pool, CUmemLocation *where),
      get_access(flags, pool, where))

static CUresult set_access(CUmemoryPool handle, const CUmemAccessDesc *map, size_t count) {
    CUresult result = need_init();
    if (result) return result;
    struct pool *p = pool_of(handle);
    if (!p || (count && !map)) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        struct visible *v =
            map[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE ? visible_device(map[i].location.id) : NULL;
        if (!v) return CUDA_ERROR_INVALID_DEVICE;
        if (v->physical != p->device && map[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE)
            if (!peer_possible(v->physical, p->device)) return CUDA_ERROR_INVALID_DEVICE;
    }
    return CUDA_SUCCESS;
}
ENTRY(cuMemPoolSetAccess, (CUmemoryPool pool, const CUmemAccessDesc *map, size_t count), set_access(pool, map, count))

/* ---- between processes ------------------------------------------------------------------------------------- */

int pool_is_shared(const struct pool *p) { return p->shared; }

int pool_imported_file(CUmemoryPool handle) {
    struct pool *p = pool_of(handle);
    return p ? p->file : -1;
}

static CUresult export_pool(void *out, CUmemoryPool handle, int type, unsigned long long flags) {
    CUresult result = need_init();
    if (result) return result;
    struct pool *p = pool_of(handle);
    if (!out || !p || !p->shared || p->file >= 0 || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_INVALID_VALUE;
    int fd;
    struct hl_share share = {hl_node.slot, hl_node.process->generation, HL_SHARE_MEMORY_FILE};
    if (hl_node_share(share.number, 0, 0, 0, 0, hl_node.memory_fd, 0) || hl_node_paper(&share, &fd))
        return CUDA_ERROR_OPERATING_SYSTEM;
    memcpy(out, &fd, sizeof fd);
    return CUDA_SUCCESS;
}
ENTRY(cuMemPoolExportToShareableHandle,
      (void *shareable, CUmemoryPool pool, CUmemAllocationHandleType type, unsigned long long flags),
      export_pool(shareable, pool, (int)type, flags))

static CUresult import_pool(CUmemoryPool *out, void *shareable, int type, unsigned long long flags) {
    CUresult result = need_init();
    if (result) return result;
    int theirs = (int)(intptr_t)shareable, fd;
    struct hl_share share;
    if (!out || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || theirs < 0 ||
        hl_node_hold(&share, theirs, &fd))
        return CUDA_ERROR_INVALID_VALUE;
    if (share.number != HL_SHARE_MEMORY_FILE) { /* a handle of virtual memory */
        hl_node_let_go(&share);
        close(fd);
        return CUDA_ERROR_INVALID_VALUE;
    }
    fake_lock();
    struct pool *p = pool_new(fake.visible[0].physical, 0);
    if (p) p->file = fd;
    fake_unlock();
    if (!p) close(fd);
    *out = (CUmemoryPool)(void *)p;
    return p ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
ENTRY(cuMemPoolImportFromShareableHandle,
      (CUmemoryPool * pool, void *shareable, CUmemAllocationHandleType type, unsigned long long flags),
      import_pool(pool, shareable, (int)type, flags))
