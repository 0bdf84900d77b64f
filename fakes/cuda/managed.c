/* What can be said of managed memory: prefetching, discarding, advice, and what was said of a range.
 *
 * Advice changes nothing that is done here; it is remembered for the whole allocation, so that a question about it is
 * answered. Invariant: `hints` holds living allocations only, by buffer id, under the lock. */
#include <stdlib.h>
#include <string.h>

#include "fake.h"
#include "graph.h"

struct hint {
    uint64_t id;
    int read_mostly, preferred, prefetched; /* ordinals, CU_DEVICE_CPU, CU_DEVICE_INVALID */
    uint32_t accessed;                      /* one bit an ordinal, the host's above them */
    struct hint *next;
};

enum { HOST_BIT = 31, RANGE_ATTRIBUTES = 9 };

static struct hint *hints;

static struct hint *hint_of(const struct alloc *a, int make) {
    struct hint *h = hints;
    while (h && h->id != a->id) h = h->next;
    if (h || !make || !(h = calloc(1, sizeof *h))) return h;
    *h = (struct hint){a->id, 0, CU_DEVICE_INVALID, CU_DEVICE_INVALID, 0, hints};
    hints = h;
    return h;
}

void hints_end(const struct alloc *a) {
    for (struct hint **link = &hints, *h; (h = *link); link = &h->next)
        if (h->id == a->id) {
            *link = h->next;
            free(h);
            return;
        }
}

/* Under the lock: the managed allocation that holds all of a range; NULL none. */
static struct alloc *managed_at(CUdeviceptr at, size_t bytes, uint64_t *offset) {
    struct alloc *a = memory_at(at, offset);
    return a && a->kind == HL_KIND_MANAGED && bytes && bytes <= a->bytes - (*offset - a->offset) ? a : NULL;
}

/* A place as a device: its ordinal, or CU_DEVICE_CPU. -3: no place of this machine. */
static int place(const CUmemLocation *where) {
    if (where->type == CU_MEM_LOCATION_TYPE_DEVICE) return visible_device(where->id) ? where->id : -3;
    return where->type == CU_MEM_LOCATION_TYPE_HOST || where->type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
                   where->type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT
               ? CU_DEVICE_CPU
               : -3;
}

static CUresult prefetch_range(CUdeviceptr at, size_t bytes, int device) {
    uint64_t offset;
    fake_lock();
    struct alloc *a = managed_at(at, bytes, &offset);
    if (a && device != CU_DEVICE_CPU) arena_populate(a, offset, bytes);
    struct hint *h = a ? hint_of(a, 1) : NULL;
    if (h) h->prefetched = device;
    fake_unlock();
    return a ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult prefetch(CUdeviceptr at, size_t bytes, int device, CUstream handle, int default_stream) {
    struct ctx *ctx;
    CUresult result = need_ctx(&ctx);
    if (result) return result;
    (void)stream_of(ctx, handle, default_stream);
    if (device != CU_DEVICE_CPU && !visible_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    return prefetch_range(at, bytes, device);
}
PAIR(cuMemPrefetchAsync, cuMemPrefetchAsync_ptsz, (CUdeviceptr at, size_t bytes, CUdevice device, CUstream stream),
     prefetch(at, bytes, device, stream, DEFAULT_STREAM))
PAIR(cuMemPrefetchAsync_v2, cuMemPrefetchAsync_v2_ptsz,
     (CUdeviceptr at, size_t bytes, CUmemLocation where_to, unsigned flags, CUstream stream),
     flags ? CUDA_ERROR_INVALID_VALUE
           : prefetch(at, bytes, where_to.type == CU_MEM_LOCATION_TYPE_DEVICE ? where_to.id : CU_DEVICE_CPU, stream,
                      DEFAULT_STREAM))

/* ---- several ranges at once --------------------------------------------------------------------------------- */

struct batch {
    CUdeviceptr *at;
    size_t *bytes, count;
    CUmemLocation *places;
    size_t *first, place_count; /* first[i]: the first range that places[i] is for */
};

/* Judged as a whole before anything is done. */
static CUresult batch_judge(const struct batch *b, unsigned long long flags, CUstream stream, int default_stream,
                            int has_places, struct stream **out) {
    struct ctx *ctx;
    CUresult result = need_ctx(&ctx);
    if (result) return result;
    if (!b->at || !b->bytes || b->count == 0 || flags) return CUDA_ERROR_INVALID_VALUE;
    if (has_places && (!b->places || !b->first || b->place_count == 0 || b->place_count > b->count || b->first[0]))
        return CUDA_ERROR_INVALID_VALUE;
    *out = stream_of(ctx, stream, default_stream);
    if (*out == &ctx->legacy) return CUDA_ERROR_INVALID_VALUE; /* documented: not the legacy stream */
    for (size_t i = 0; has_places && i < b->place_count; i++) {
        if ((i && b->first[i] <= b->first[i - 1]) || b->first[i] >= b->count) return CUDA_ERROR_INVALID_VALUE;
        if (place(&b->places[i]) == -3) return CUDA_ERROR_INVALID_VALUE; /* no 101, measured */
    }
    if (capturing() && (*out)->capture) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    fake_lock();
    for (size_t i = 0; i < b->count && result == CUDA_SUCCESS; i++) {
        uint64_t offset;
        if (!managed_at(b->at[i], b->bytes[i], &offset)) result = CUDA_ERROR_INVALID_VALUE;
    }
    fake_unlock();
    return result;
}

static CUresult batch_run(const struct batch *b, unsigned long long flags, CUstream stream, int default_stream,
                          int discards, int prefetches) {
    struct stream *s;
    CUresult result = batch_judge(b, flags, stream, default_stream, prefetches, &s);
    if (result) return result;
    stream_wait(s);
    for (size_t i = 0, which = 0; i < b->count && result == CUDA_SUCCESS; i++) {
        char *data;
        while (prefetches && which + 1 < b->place_count && b->first[which + 1] <= i) which++;
        /* What was discarded reads as anything: zeros here. */
        if (discards && (result = memory_resolve(b->at[i], b->bytes[i], 'w', 0, &data)) == CUDA_SUCCESS)
            arena_zero((uint64_t)(data - arena.data_base), b->bytes[i]);
        if (result == CUDA_SUCCESS && prefetches)
            result = prefetch_range(b->at[i], b->bytes[i], place(&b->places[which]));
    }
    return result;
}
#define WITH_PLACES                                                                                                    \
    (CUdeviceptr * at, size_t *bytes, size_t count, CUmemLocation *places, size_t *first, size_t place_count,          \
     unsigned long long flags, CUstream stream)
PAIR(cuMemPrefetchBatchAsync, cuMemPrefetchBatchAsync_ptsz, WITH_PLACES,
     batch_run(&(struct batch){at, bytes, count, places, first, place_count}, flags, stream, DEFAULT_STREAM, 0, 1))
PAIR(cuMemDiscardAndPrefetchBatchAsync, cuMemDiscardAndPrefetchBatchAsync_ptsz, WITH_PLACES,
     batch_run(&(struct batch){at, bytes, count, places, first, place_count}, flags, stream, DEFAULT_STREAM, 1, 1))
PAIR(cuMemDiscardBatchAsync, cuMemDiscardBatchAsync_ptsz,
     (CUdeviceptr * at, size_t *bytes, size_t count, unsigned long long flags, CUstream stream),
     batch_run(&(struct batch){at, bytes, count, NULL, NULL, 0}, flags, stream, DEFAULT_STREAM, 1, 0))

/* ---- advice --------------------------------------------------------------------------------------------------- */

static void remember(struct hint *h, int advice, int device) {
    uint32_t bit = 1u << (device == CU_DEVICE_CPU ? HOST_BIT : device);
    switch (advice) {
    case CU_MEM_ADVISE_SET_READ_MOSTLY: h->read_mostly = 1; return;
    case CU_MEM_ADVISE_UNSET_READ_MOSTLY: h->read_mostly = 0; return;
    case CU_MEM_ADVISE_SET_PREFERRED_LOCATION: h->preferred = device; return;
    case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION: h->preferred = CU_DEVICE_INVALID; return;
    case CU_MEM_ADVISE_SET_ACCESSED_BY: h->accessed |= bit; return;
    default: h->accessed &= ~bit;
    }
}

static CUresult advise(CUdeviceptr at, size_t bytes, int advice, CUdevice device) {
    struct ctx *ctx;
    CUresult result = need_ctx(&ctx);
    if (result) return result;
    if (advice < CU_MEM_ADVISE_SET_READ_MOSTLY || advice > CU_MEM_ADVISE_UNSET_ACCESSED_BY)
        return CUDA_ERROR_INVALID_VALUE;
    int about_device =
        advice >= CU_MEM_ADVISE_SET_PREFERRED_LOCATION && advice != CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION;
    if (about_device && device != CU_DEVICE_CPU && !visible_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    uint64_t offset;
    fake_lock();
    struct alloc *a = managed_at(at, bytes, &offset);
    struct hint *h = a ? hint_of(a, 1) : NULL;
    if (h) remember(h, advice, about_device ? device : 0);
    fake_unlock();
    return !a ? CUDA_ERROR_INVALID_VALUE : h ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
ENTRY(cuMemAdvise, (CUdeviceptr at, size_t bytes, CUmem_advise advice, CUdevice device),
      advise(at, bytes, (int)advice, device))
ENTRY(cuMemAdvise_v2, (CUdeviceptr at, size_t bytes, CUmem_advise advice, CUmemLocation where_to),
      advise(at, bytes, (int)advice, where_to.type == CU_MEM_LOCATION_TYPE_DEVICE ? where_to.id : CU_DEVICE_CPU))

static int location_type(int device) {
    return device == CU_DEVICE_INVALID ? CU_MEM_LOCATION_TYPE_INVALID
           : device == CU_DEVICE_CPU   ? CU_MEM_LOCATION_TYPE_HOST
                                       : CU_MEM_LOCATION_TYPE_DEVICE;
}

/* Under the lock. `which` is one of the header's; sizes are judged before. */
static void range_value(const struct alloc *a, int which, int *out, size_t count) {
    const struct hint *h = hint_of(a, 0);
    int preferred = h ? h->preferred : CU_DEVICE_INVALID, prefetched = h ? h->prefetched : CU_DEVICE_INVALID;
    switch (which) {
    case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY: *out = h && h->read_mostly; return;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION: *out = preferred; return;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION: *out = prefetched; return;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE: *out = location_type(preferred); return;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID: *out = preferred < 0 ? 0 : preferred; return;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE: *out = location_type(prefetched); return;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID: *out = prefetched < 0 ? 0 : prefetched; return;
    default: break;
    }
    size_t found = 0; /* ACCESSED_BY: a list */
    for (int i = 0; h && i < HOST_BIT + 1 && found < count; i++)
        if (h->accessed & 1u << i) out[found++] = i == HOST_BIT ? CU_DEVICE_CPU : i;
    while (found < count) out[found++] = CU_DEVICE_INVALID;
}

static CUresult range_attributes(void **data, const size_t *sizes, const CUmem_range_attribute *which, size_t count,
                                 CUdeviceptr at, size_t bytes) {
    struct ctx *ctx;
    CUresult result = need_ctx(&ctx);
    if (result) return result;
    if (!data || !sizes || !which || count == 0) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        int list = which[i] == CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY;
        if (!data[i] || (int)which[i] < 1 || (int)which[i] >= RANGE_ATTRIBUTES || sizes[i] % sizeof(int) ||
            (list ? sizes[i] == 0 : sizes[i] != sizeof(int)))
            return CUDA_ERROR_INVALID_VALUE;
    }
    uint64_t offset;
    fake_lock();
    const struct alloc *a = managed_at(at, bytes, &offset);
    for (size_t i = 0; a && i < count; i++) range_value(a, (int)which[i], data[i], sizes[i] / sizeof(int));
    fake_unlock();
    return a ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
ENTRY(cuMemRangeGetAttribute, (void *data, size_t size, CUmem_range_attribute which, CUdeviceptr at, size_t bytes),
      range_attributes(&data, &size, &which, 1, at, bytes))
ENTRY(cuMemRangeGetAttributes,
      (void **data, size_t *sizes, CUmem_range_attribute *which, size_t count, CUdeviceptr at, size_t bytes),
      range_attributes(data, sizes, which, count, at, bytes))
