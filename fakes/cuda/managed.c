/* What can be said of managed memory: prefetching, discarding, advice, and what was said of a range.
 *
 * Advice changes nothing that is done here; it is remembered by pages, so that a question about it is answered. Invariant:
 * `hints` holds living allocations only, by buffer id, under the lock; the pieces of one do not overlap, and of pages that
 * are in none nothing was said. */
#include <stdlib.h>
#include <string.h>

#include "fake.h"
#include "graph.h"

struct said {
    int read_mostly, preferred, prefetched; /* ordinals, CU_DEVICE_CPU, CU_DEVICE_INVALID */
    uint32_t accessed;                      /* one bit an ordinal, the host's above them */
};

struct hint {
    uint64_t id, from, to; /* offsets, whole pages */
    struct said said;
    struct hint *next;
};

enum { HOST_BIT = 31, RANGE_ATTRIBUTES = 9, PAGE = 4096 };

static struct hint *hints;
static const struct said nothing = {0, CU_DEVICE_INVALID, CU_DEVICE_INVALID, 0};

static struct hint *piece_new(uint64_t id, uint64_t from, uint64_t to, struct said said) {
    struct hint *h = calloc(1, sizeof *h);
    if (!h) return NULL;
    *h = (struct hint){id, from, to, said, hints};
    hints = h;
    return h;
}

/* The piece that this page is in; NULL none, and then *next is where one begins, or stays as it is. */
static struct hint *piece_at(uint64_t id, uint64_t at, uint64_t *next) {
    for (struct hint *h = hints; h; h = h->next) {
        if (h->id != id) continue;
        if (at >= h->from && at < h->to) return h;
        if (h->from > at && h->from < *next) *next = h->from;
    }
    return NULL;
}

static void pages_of(uint64_t offset, uint64_t bytes, uint64_t *from, uint64_t *to) {
    *from = offset / PAGE * PAGE;
    *to = (offset + bytes + PAGE - 1) / PAGE * PAGE;
}

/* Changes what was said of a range, piece by piece. 0, or -1 without memory: a part may be changed then. */
static int say(const struct alloc *a, uint64_t offset, uint64_t bytes, void (*change)(struct said *, int, int),
               int what, int device) {
    uint64_t from, to;
    pages_of(offset, bytes, &from, &to);
    while (from < to) {
        uint64_t end = to;
        struct hint *h = piece_at(a->id, from, &end);
        if (!h && !(h = piece_new(a->id, from, end, nothing))) return -1;
        if (h->from < from) { /* the part before it stays as it was */
            if (!piece_new(a->id, h->from, from, h->said)) return -1;
            h->from = from;
        }
        if (h->to > to) {
            if (!piece_new(a->id, to, h->to, h->said)) return -1;
            h->to = to;
        }
        change(&h->said, what, device);
        from = h->to;
    }
    return 0;
}

/* What holds for all of a range: places that are not the same everywhere are none. */
static struct said said_of(const struct alloc *a, uint64_t offset, uint64_t bytes) {
    uint64_t from, to;
    pages_of(offset, bytes, &from, &to);
    struct said all = nothing;
    for (int first = 1; from < to; first = 0) {
        uint64_t end = to;
        const struct hint *h = piece_at(a->id, from, &end);
        struct said here = h ? h->said : nothing;
        if (first) all = here;
        all.read_mostly &= here.read_mostly;
        all.accessed &= here.accessed;
        if (all.preferred != here.preferred) all.preferred = CU_DEVICE_INVALID;
        if (all.prefetched != here.prefetched) all.prefetched = CU_DEVICE_INVALID;
        from = h ? h->to : end;
    }
    return all;
}

void hints_end(const struct alloc *a) {
    for (struct hint **link = &hints, *h; (h = *link);) {
        if (h->id != a->id) {
            link = &h->next;
            continue;
        }
        *link = h->next;
        free(h);
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

static void prefetched(struct said *said, int what, int device) {
    (void)what;
    said->prefetched = device;
}

static CUresult prefetch_range(CUdeviceptr at, size_t bytes, int device) {
    uint64_t offset;
    fake_lock();
    struct alloc *a = managed_at(at, bytes, &offset);
    if (a && device != CU_DEVICE_CPU) arena_populate(a, offset, bytes);
    if (a) (void)say(a, offset, bytes, prefetched, 0, device);
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

static void remember(struct said *h, int advice, int device) {
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
    int full = a && say(a, offset, bytes, remember, advice, about_device ? device : 0);
    fake_unlock();
    return !a ? CUDA_ERROR_INVALID_VALUE : full ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
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
static void range_value(const struct said *said, int which, int *out, size_t count) {
    int preferred = said->preferred, prefetched = said->prefetched;
    switch (which) {
    case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY: *out = said->read_mostly; return;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION: *out = preferred; return;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION: *out = prefetched; return;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE: *out = location_type(preferred); return;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID: *out = preferred < 0 ? 0 : preferred; return;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE: *out = location_type(prefetched); return;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID: *out = prefetched < 0 ? 0 : prefetched; return;
    default: break;
    }
    size_t found = 0; /* ACCESSED_BY: a list */
    for (int i = 0; i < HOST_BIT + 1 && found < count; i++)
        if (said->accessed & 1u << i) out[found++] = i == HOST_BIT ? CU_DEVICE_CPU : i;
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
    struct said said = a ? said_of(a, offset, bytes) : nothing;
    for (size_t i = 0; a && i < count; i++) range_value(&said, (int)which[i], data[i], sizes[i] / sizeof(int));
    fake_unlock();
    return a ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
ENTRY(cuMemRangeGetAttribute, (void *data, size_t size, CUmem_range_attribute which, CUdeviceptr at, size_t bytes),
      range_attributes(&data, &size, &which, 1, at, bytes))
ENTRY(cuMemRangeGetAttributes,
      (void **data, size_t *sizes, CUmem_range_attribute *which, size_t count, CUdeviceptr at, size_t bytes),
      range_attributes(data, sizes, which, count, at, bytes))
