/* Device, managed and pinned memory: allocation, freeing, sizes, what a pointer is. */
#include "fake.h"

#include "foreign.h"
#include "graph.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PITCH = 512, HOST_FLAGS = 7, REGISTER_FLAGS = 15 };

static struct host *hosts;
static uint64_t next_host_id = 1;

static CUdeviceptr pointer_of(const struct alloc *a) {
    if (a->data) return a->offset;
    return (CUdeviceptr)(uintptr_t)(a->kind == HL_KIND_MANAGED ? arena.data_base : arena.device_base) + a->offset;
}

struct alloc *memory_at(CUdeviceptr pointer, uint64_t *offset) {
    int window = arena_offset(pointer, offset);
    if (!window) {
        *offset = pointer;
        return foreign_at(pointer);
    }
    struct alloc *a = arena_at(*offset);
    /* Each window shows its own kind of memory: the other's addresses are nobody's. */
    return a && !a->hidden && (a->kind == HL_KIND_MANAGED) == (window == 2) ? a : NULL;
}

/* Newest first: what is freed is most often what was allocated last. */
static void link_alloc(struct ctx *ctx, struct alloc *a) {
    a->ctx = ctx;
    a->previous = NULL;
    a->next = ctx->allocs;
    if (a->next) a->next->previous = a;
    ctx->allocs = a;
}

static CUresult make(struct ctx *ctx, uint64_t bytes, uint32_t kind, CUdeviceptr *out) {
    int managed = kind == HL_KIND_MANAGED;
    if (bytes > (managed ? arena.span : physical(ctx->device)->total_bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    fake_lock();
    lent_settle();
    struct alloc *a = bytes < BLOCK ? heap_alloc(managed ? &ctx->managed : &ctx->sync, bytes)
                                    : run_alloc(ctx->device, kind, bytes, !managed);
    if (a) {
        link_alloc(ctx, a);
        a->kind = (uint8_t)kind;
        if (managed) arena_written(a->offset, bytes); /* the host writes without asking us */
    }
    fake_unlock();
    if (!a) return CUDA_ERROR_OUT_OF_MEMORY;
    *out = pointer_of(a);
    return CUDA_SUCCESS;
}

CUresult memory_new(struct ctx *ctx, uint64_t bytes, uint32_t kind, CUdeviceptr *out) {
    if (capturing() && capture_unsafe()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    CUresult result = make(ctx, bytes, kind, out);
    if (physical(ctx->device)->latency_ns[HL_LATENCY_ALLOC]) hl_latency(ctx->device, HL_LATENCY_ALLOC);
    return result;
}

void memory_end(struct alloc *a) {
    if (a->kind == HL_KIND_MANAGED) hints_end(a);
    if (a->pool) {
        pool_freed(a);
    } else if (a->ctx) {
        if (a->previous) a->previous->next = a->next;
        else a->ctx->allocs = a->next;
        if (a->next) a->next->previous = a->previous;
    }
    if (__builtin_expect(a->special == SPECIAL_LENT, 0) && lent_end(a)) return;
    arena_free(a);
}

static CUresult allocate(CUdeviceptr *out, size_t bytes) {
    struct ctx *ctx;
    if (out) *out = 0;
    CUresult result = need_ctx(&ctx);
    if (__builtin_expect(result, 0)) return result;
    if (!out || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    return memory_new(ctx, bytes, HL_KIND_SYNC, out);
}

API cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) {
    struct hl_call call;
    if (hl_fake_enter(&call, HL_cuMemAlloc_v2)) {
        if (pointer) *pointer = 0;
        return (CUresult)hl_fake_refuse(&call);
    }
    CUresult result = allocate(pointer, bytes);
    hl_output(pointer, sizeof *pointer);
    LEAVE(result, bytes, result ? 0 : *pointer);
}

ENTRY(cuMemAlloc, (CUdeviceptr_v1 * pointer, unsigned int bytes), ((void)pointer, (void)bytes, old_generation()))

static CUresult pitched(CUdeviceptr *out, size_t *pitch, size_t width, size_t height, unsigned element) {
    struct ctx *ctx;
    if (out) *out = 0;
    CUresult result = need_ctx(&ctx);
    if (result) return result;
    if (pitch) *pitch = 0;
    if (!out || !pitch || width == 0 || height == 0) return CUDA_ERROR_INVALID_VALUE;
    if (element != 4 && element != 8 && element != 16) return CUDA_ERROR_INVALID_VALUE;
    size_t row = (width + PITCH - 1) / PITCH * PITCH, bytes;
    if (row < width) return CUDA_ERROR_INVALID_VALUE;
    *pitch = row; /* written before the product is looked at, as measured */
    if (__builtin_mul_overflow(row, height, &bytes)) return CUDA_ERROR_INVALID_VALUE;
    return memory_new(ctx, bytes, HL_KIND_PITCHED, out);
}

API cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned int element) {
    ENTER(cuMemAllocPitch_v2);
    CUresult result = pitched(pointer, pitch, width, height, element);
    LEAVE(result, result ? 0 : *pitch * height, result ? 0 : *pointer);
}

ENTRY(cuMemAllocPitch,
      (CUdeviceptr_v1 * pointer, unsigned int *pitch, unsigned int width, unsigned int height, unsigned int element),
      ((void)pointer, (void)pitch, (void)width, (void)height, (void)element, old_generation()))

/* Takes no device memory yet: blocks become physical when device work first touches them. */
static CUresult managed(CUdeviceptr *out, size_t bytes, unsigned flags) {
    struct ctx *ctx;
    if (out) *out = 0;
    CUresult result = need_ctx(&ctx);
    if (result) return result;
    if (!out || bytes == 0 || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
        return CUDA_ERROR_INVALID_VALUE;
    return memory_new(ctx, bytes, HL_KIND_MANAGED, out);
}

API cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned int flags) {
    ENTER(cuMemAllocManaged);
    CUresult result = managed(pointer, bytes, flags);
    LEAVE(result, bytes, result ? 0 : *pointer);
}

static int host_pooled_end(CUdeviceptr pointer);

CUresult memory_free(CUdeviceptr pointer, struct freed *freed) {
    uint64_t offset;
    fake_lock();
    lent_settle();
    struct alloc *a = memory_at(pointer, &offset);
    if (__builtin_expect(!a || a->offset != offset || a->kind == HL_KIND_MODULE || a->data, 0)) {
        int ended = a ? a->data && a->offset == offset && imported_end(a) : host_pooled_end(pointer);
        fake_unlock();
        *freed = (struct freed){0};
        return ended ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    }
    *freed = (struct freed){.bytes = a->bytes, .ours = 1, .device = a->device, .pooled = a->pool != NULL};
    memory_end(a);
    fake_unlock();
    return CUDA_SUCCESS;
}

static CUresult release(CUdeviceptr pointer, uint64_t *bytes) {
    CUresult result = need_init();
    if (__builtin_expect(result, 0)) return result;
    struct ctx *current = fake_current;
    if (current && (result = ctx_trouble(current)) != CUDA_SUCCESS) return result;
    if (pointer == 0) return CUDA_SUCCESS;
    if (capturing() && capture_unsafe()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    struct freed freed;
    result = memory_free(pointer, &freed);
    *bytes = freed.bytes;
    if (result || !freed.ours) return result;
    if (freed.pooled) pools_settle(freed.device); /* a synchronous free waits for the device */
    if (physical(freed.device)->latency_ns[HL_LATENCY_FREE]) hl_latency(freed.device, HL_LATENCY_FREE);
    return CUDA_SUCCESS;
}

API cuMemFree_v2(CUdeviceptr pointer) {
    ENTER(cuMemFree_v2);
    uint64_t bytes = 0;
    CUresult result = release(pointer, &bytes);
    LEAVE(result, bytes, pointer);
}
ENTRY(cuMemFree, (CUdeviceptr_v1 pointer), ((void)pointer, old_generation()))

static inline CUresult info(size_t *free_bytes, size_t *total) {
    struct ctx *ctx;
    CUresult result = need_ctx(&ctx);
    if (__builtin_expect(result, 0)) {
        if (free_bytes) *free_bytes = 0;
        if (total) *total = 0;
        return result;
    }
    const struct hl_node_device *d = physical(ctx->device);
    lent_look();
    uint64_t used = __atomic_load_n(&d->used, __ATOMIC_RELAXED);
    if (free_bytes) *free_bytes = d->total_bytes - d->host_bytes - used;
    if (total) *total = d->total_bytes;
    hl_output(free_bytes, sizeof *free_bytes);
    hl_output(total, sizeof *total);
    return CUDA_SUCCESS;
}

API cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    ENTER(cuMemGetInfo_v2);
    CUresult result = info(free_bytes, total);
    LEAVE(result, result || !total ? 0 : *total, result || !free_bytes ? 0 : *free_bytes);
}
ENTRY(cuMemGetInfo, (unsigned int *free_bytes, unsigned int *total), ((void)free_bytes, (void)total, old_generation()))

/* ---- what a pointer is ----------------------------------------------------------------------------------- */

struct host *host_at(uint64_t pointer) {
    for (struct host *h = hosts; h; h = h->next)
        if (pointer - (uint64_t)(uintptr_t)h->at < h->bytes) return h;
    return NULL;
}

static CUresult range(CUdeviceptr *base, size_t *size, CUdeviceptr pointer) {
    struct ctx *ctx;
    CUresult result = need_ctx(&ctx);
    if (result) return result;
    uint64_t offset;
    fake_lock();
    struct alloc *a = memory_at(pointer, &offset);
    struct host *h = a ? NULL : host_at(pointer);
    if (a || h) {
        if (base) *base = a ? pointer_of(a) : (CUdeviceptr)(uintptr_t)h->at;
        if (size) *size = a ? a->bytes : h->bytes;
    }
    fake_unlock();
    return a || h ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
ENTRY(cuMemGetAddressRange_v2, (CUdeviceptr * base, size_t *size, CUdeviceptr pointer), range(base, size, pointer))

ENTRY(cuMemGetAddressRange, (CUdeviceptr_v1 * base, unsigned int *size, CUdeviceptr_v1 pointer),
      ((void)base, (void)size, (void)pointer, old_generation()))

/* Under the lock. size[which] is how many bytes the attribute has; a pointer that is nobody's leaves the output alone. */
static CUresult attribute(void *out, int which, CUdeviceptr pointer) {
    uint64_t offset = 0;
    struct alloc *a = memory_at(pointer, &offset);
    struct host *h = a ? NULL : host_at(pointer);
    if (!a && !h) return CUDA_ERROR_INVALID_VALUE;
    struct ctx *owner = a ? a->ctx : h->ctx;
    int is_managed = a && a->kind == HL_KIND_MANAGED, is_device = a && !is_managed, is_pool = a && a->pool;
    uint64_t start = a ? pointer_of(a) : (uint64_t)(uintptr_t)h->at, wide = 0;
    uint32_t narrow = 0;
    size_t size = sizeof narrow;
    CUresult result = CUDA_SUCCESS;
#define WIDE(VALUE) (wide = (uint64_t)(VALUE), size = sizeof wide)
    switch (which) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: WIDE((uintptr_t)(is_pool ? NULL : owner)); break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: narrow = a ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: WIDE(pointer); break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        WIDE(is_device ? 0 : pointer);
        result = is_device ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
        break;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: narrow = a && a->memops ? a->memops - 1u : (uint32_t)is_managed; break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: WIDE(a ? a->id : h->id); break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: narrow = (uint32_t)is_managed; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        narrow = (uint32_t)(a ? ordinal_of(a->device) : ordinal_of(h->ctx->device));
        break;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: narrow = is_device && !is_pool && !a->data; break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: WIDE(start); break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: WIDE(a ? a->bytes : h->bytes); break;
    case CU_POINTER_ATTRIBUTE_MAPPED: narrow = 1; break;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES: WIDE(0); break;
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE: narrow = is_device && !is_pool; break;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS: narrow = CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE; break;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: WIDE((uintptr_t)(a ? a->pool : NULL)); break;
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
        WIDE(a && a->data    ? a->bytes
             : is_pool       ? (uint64_t)POOL_STEP
             : a && !a->heap ? (uint64_t)a->units * BLOCK
                             : (uint64_t)BLOCK);
        break;
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        WIDE(a && !a->data ? pointer_of(a) - (a->offset - arena_run_base(a->offset)) : start);
        break;
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID: WIDE(a ? a->id : h->id); break;
    case 21: narrow = is_device && !is_pool; break; /* IS_HW_DECOMPRESS_CAPABLE, absent from older headers */
    default: return CUDA_ERROR_INVALID_VALUE;
    }
#undef WIDE
    memcpy(out, size == sizeof wide ? (void *)&wide : (void *)&narrow, size);
    return result;
}

static CUresult pointer_attribute(void *out, int which, CUdeviceptr pointer) {
    CUresult result = need_init();
    if (result) return result;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    fake_lock();
    result = attribute(out, which, pointer);
    fake_unlock();
    return result;
}
ENTRY(cuPointerGetAttribute, (void *data, CUpointer_attribute which, CUdeviceptr pointer),
      pointer_attribute(data, (int)which, pointer))

/* The plural form succeeds for any pointer: what does not apply reads as zero, the device as -2. */
static CUresult pointer_attributes(unsigned count, CUpointer_attribute *which, void **data, CUdeviceptr pointer) {
    CUresult result = need_init();
    if (result) return result;
    if (count == 0 || !which || !data) return CUDA_ERROR_INVALID_VALUE;
    uint64_t offset;
    fake_lock();
    int foreign = !memory_at(pointer, &offset) && !host_at(pointer);
    for (unsigned i = 0; i < count; i++) {
        int w = (int)which[i];
        if (!foreign) {
            (void)attribute(data[i], w, pointer);
            continue;
        }
        int narrow = w == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL ? -2 : 0;
        int is_wide = w == 1 || w == 3 || w == 4 || w == 7 || w == 11 || w == 12 || w == 14 || (w >= 17 && w <= 20);
        memset(data[i], 0, is_wide ? 8 : 4);
        if (!is_wide) memcpy(data[i], &narrow, sizeof narrow);
    }
    fake_unlock();
    return CUDA_SUCCESS;
}
ENTRY(cuPointerGetAttributes, (unsigned int count, CUpointer_attribute *which, void **data, CUdeviceptr pointer),
      pointer_attributes(count, which, data, pointer))

static CUresult pointer_set(const void *value, int which, CUdeviceptr pointer) {
    struct ctx *ctx;
    CUresult result = need_ctx(&ctx);
    if (result) return result;
    if (!value || which != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) return CUDA_ERROR_INVALID_VALUE;
    uint64_t offset;
    fake_lock();
    struct alloc *ours = memory_at(pointer, &offset);
    if (ours) ours->memops = *(const unsigned *)value ? 2 : 1;
    fake_unlock();
    return ours ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
ENTRY(cuPointerSetAttribute, (const void *value, CUpointer_attribute which, CUdeviceptr pointer),
      pointer_set(value, (int)which, pointer))

/* Memory outside the arena; a range may lie in several mappings that follow each other. */
static CUresult resolve_foreign(struct alloc *a, uint64_t pointer, uint64_t bytes, int access, char **out) {
    uint16_t device = fake_current ? (uint16_t)(1u << fake_current->device) : 0xFFFF;
    *out = a->data + (pointer - a->offset);
    for (uint64_t end = pointer + bytes;;) {
        if (a->special == SPECIAL_MAPPED && !((access == 'w' ? a->writable : a->readable) & device))
            return CUDA_ERROR_INVALID_VALUE;
        if (end <= a->offset + a->bytes) return CUDA_SUCCESS;
        if (a->special != SPECIAL_MAPPED || !(a = foreign_after(a))) return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult memory_resolve(CUdeviceptr pointer, uint64_t bytes, int access, int pageable, char **out) {
    uint64_t offset;
    if (arena_offset(pointer, &offset)) {
        fake_lock();
        struct alloc *a = memory_at(pointer, &offset);
        int fits = a && bytes <= a->bytes - (offset - a->offset);
        if (fits && access == 'w') arena_written(offset, bytes);
        if (fits && a->kind == HL_KIND_MANAGED) arena_populate(a, offset, bytes);
        fake_unlock();
        *out = arena.data_base + offset;
        return fits ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    }
    fake_lock();
    struct alloc *a = foreign_at(pointer);
    if (a) {
        CUresult result = resolve_foreign(a, pointer, bytes, access, out);
        fake_unlock();
        return result;
    }
    *out = (char *)(uintptr_t)pointer;
    if (pageable) {
        fake_unlock();
        return pointer ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    }
    struct host *h = host_at(pointer);
    int fits = h && bytes <= h->bytes - (pointer - (uint64_t)(uintptr_t)h->at);
    fake_unlock();
    return fits ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- pinned host memory ---------------------------------------------------------------------------------- */

static void host_link(struct host *h) {
    fake_lock();
    h->id = next_host_id++ | 1ull << 32;
    h->next = hosts;
    hosts = h;
    fake_unlock();
}

static CUresult host_alloc(void **out, size_t bytes, unsigned flags) {
    struct ctx *ctx;
    if (out) *out = NULL;
    CUresult result = need_ctx(&ctx);
    if (result) return result;
    if (!out || flags > HOST_FLAGS) return CUDA_ERROR_INVALID_VALUE;
    if (bytes == 0) return CUDA_SUCCESS;
    struct host *h = calloc(1, sizeof *h);
    void *at = h ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) : MAP_FAILED;
    if (at == MAP_FAILED) {
        free(h);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *h = (struct host){.at = at, .bytes = bytes, .ctx = ctx, .flags = flags | CU_MEMHOSTALLOC_DEVICEMAP};
    host_link(h);
    *out = at;
    return CUDA_SUCCESS;
}
ENTRY(cuMemHostAlloc, (void **pointer, size_t bytes, unsigned int flags), host_alloc(pointer, bytes, flags))
ENTRY(cuMemAllocHost_v2, (void **pointer, size_t bytes), host_alloc(pointer, bytes, 0))
ENTRY(cuMemAllocHost, (void **pointer, unsigned int bytes), ((void)pointer, (void)bytes, old_generation()))

struct host *host_pooled(struct ctx *ctx, struct pool *pool, uint64_t bytes) {
    struct host *h = calloc(1, sizeof *h);
    void *at = h ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) : MAP_FAILED;
    if (at == MAP_FAILED) {
        free(h);
        return NULL;
    }
    *h = (struct host){.at = at, .bytes = bytes, .ctx = ctx, .flags = CU_MEMHOSTALLOC_DEVICEMAP, .pool = pool};
    host_link(h);
    return h;
}

/* Under the lock: a free of what a pool of the host gave out. 1 = it was. */
static int host_pooled_end(CUdeviceptr pointer) {
    struct host **link = &hosts;
    while (*link && ((uintptr_t)(*link)->at != pointer || !(*link)->pool)) link = &(*link)->next;
    struct host *h = *link;
    if (!h) return 0;
    *link = h->next;
    munmap(h->at, h->bytes);
    pool_host_freed(h->pool, h->bytes);
    free(h);
    return 1;
}

static CUresult host_end(void *pointer, int registered) {
    CUresult result = need_init();
    if (result) return result;
    if (!pointer) return registered ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    fake_lock();
    struct host **link = &hosts;
    while (*link && ((*link)->at != pointer || (*link)->registered != registered || (*link)->pool))
        link = &(*link)->next;
    struct host *h = *link;
    if (h) *link = h->next;
    fake_unlock();
    if (!h) return registered ? CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED : CUDA_ERROR_INVALID_VALUE;
    if (!registered) munmap(h->at, h->bytes);
    free(h);
    return CUDA_SUCCESS;
}
ENTRY(cuMemFreeHost, (void *pointer), host_end(pointer, 0))
ENTRY(cuMemHostUnregister, (void *pointer), host_end(pointer, 1))

static CUresult host_register(void *pointer, size_t bytes, unsigned flags) {
    struct ctx *ctx;
    CUresult result = need_ctx(&ctx);
    if (result) return result;
    if (!pointer || bytes == 0 || flags > REGISTER_FLAGS) return CUDA_ERROR_INVALID_VALUE;
    fake_lock();
    uint64_t low = (uint64_t)(uintptr_t)pointer, clash = host_at(low) != NULL || host_at(low + bytes - 1) != NULL;
    fake_unlock();
    if (clash) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    struct host *h = calloc(1, sizeof *h);
    if (!h) return CUDA_ERROR_OUT_OF_MEMORY;
    *h = (struct host){.at = pointer, .bytes = bytes, .ctx = ctx, .flags = CU_MEMHOSTALLOC_DEVICEMAP, .registered = 1};
    host_link(h);
    return CUDA_SUCCESS;
}
ENTRY(cuMemHostRegister, (void *pointer, size_t bytes, unsigned int flags), host_register(pointer, bytes, flags))
ENTRY(cuMemHostRegister_v2, (void *pointer, size_t bytes, unsigned int flags), host_register(pointer, bytes, flags))

static CUresult host_pointer(CUdeviceptr *out, void *pointer, unsigned flags) {
    struct ctx *ctx;
    CUresult result = need_ctx(&ctx);
    if (result) return result;
    fake_lock();
    struct host *h = host_at((uint64_t)(uintptr_t)pointer);
    fake_unlock();
    if (!out || flags || !h) return CUDA_ERROR_INVALID_VALUE;
    *out = (CUdeviceptr)(uintptr_t)pointer;
    return CUDA_SUCCESS;
}
ENTRY(cuMemHostGetDevicePointer_v2, (CUdeviceptr * out, void *pointer, unsigned int flags),
      host_pointer(out, pointer, flags))

ENTRY(cuMemHostGetDevicePointer, (CUdeviceptr_v1 * out, void *pointer, unsigned int flags),
      ((void)out, (void)pointer, (void)flags, old_generation()))

static CUresult host_flags(unsigned *out, void *pointer) {
    struct ctx *ctx;
    CUresult result = need_ctx(&ctx);
    if (result) return result;
    fake_lock();
    struct host *h = host_at((uint64_t)(uintptr_t)pointer);
    if (out && h) *out = h->flags;
    fake_unlock();
    return out && h ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
ENTRY(cuMemHostGetFlags, (unsigned int *flags, void *pointer), host_flags(flags, pointer))
