/* Arrays and mipmapped arrays. Their bytes lie in rows of a multiple of 64 and, from two dimensions on, eight rows at a
 * time, which is what the measured sizes of a real card fit; they are taken from the device like any allocation but are
 * nobody's pointer. A program reaches them by copies only. */
#include "array.h"

#include <stdlib.h>
#include <string.h>

enum {
    MAGIC_ARRAY = 0x41525231,
    ROW = 64,
    ROWS = 8,
    WIDTH_1D = 131072,
    WIDTH_2D = 131072,
    HEIGHT_2D = 65536,
    SIDE_3D = 16384,
    LAYERS = 2048,
    LAYERED = 0x01,
    CUBEMAP = 0x04,
    SPARSE = 0x40,
    DEFERRED = 0x80,
};

unsigned array_channel_bytes(CUarray_format format) {
    switch ((int)format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8: return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF: return 2;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT: return 4;
    default: return 0;
    }
}

static CUresult judge(const CUDA_ARRAY3D_DESCRIPTOR *d) {
    if (!d || d->Width == 0 || !array_channel_bytes(d->Format)) return CUDA_ERROR_INVALID_VALUE;
    if (d->NumChannels != 1 && d->NumChannels != 2 && d->NumChannels != 4) return CUDA_ERROR_INVALID_VALUE;
    if (d->Flags & SPARSE) return CUDA_ERROR_NOT_SUPPORTED;
    int layered = (d->Flags & LAYERED) != 0, cube = (d->Flags & CUBEMAP) != 0;
    if (cube && (d->Width != d->Height || d->Depth == 0 || d->Depth % 6 || (!layered && d->Depth != 6)))
        return CUDA_ERROR_INVALID_VALUE;
    if (layered && (d->Depth == 0 || d->Depth > LAYERS)) return CUDA_ERROR_INVALID_VALUE;
    if (d->Depth && !layered && !cube)
        return d->Height == 0 || d->Width > SIDE_3D || d->Height > SIDE_3D || d->Depth > SIDE_3D
                   ? CUDA_ERROR_INVALID_VALUE
                   : CUDA_SUCCESS;
    if (d->Height == 0) return d->Width > WIDTH_1D ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    return d->Width > WIDTH_2D || d->Height > HEIGHT_2D ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static uint64_t at_least_one(size_t n) { return n ? n : 1; }

/* Fills element, pitch and slice; returns the bytes. */
static uint64_t shape(struct array *a) {
    const CUDA_ARRAY3D_DESCRIPTOR *d = &a->desc;
    a->element = array_channel_bytes(d->Format) * d->NumChannels;
    a->pitch = (d->Width * a->element + ROW - 1) / ROW * ROW;
    uint64_t rows = at_least_one(d->Height);
    if (rows > 1) rows = (rows + ROWS - 1) / ROWS * ROWS;
    a->slice = a->pitch * rows;
    return a->slice * at_least_one(d->Depth);
}

static CUresult take(struct ctx *ctx, struct array *a, uint64_t bytes) {
    if (bytes > physical(ctx->device)->total_bytes) return CUDA_ERROR_OUT_OF_MEMORY;
    fake_lock();
    a->memory = bytes < BLOCK ? heap_alloc(&ctx->sync, bytes) : run_alloc(ctx->device, HL_KIND_OTHER, bytes, 1);
    if (a->memory) {
        a->memory->hidden = 1;
        a->offset = a->memory->offset;
    }
    fake_unlock();
    if (physical(ctx->device)->latency_ns[HL_LATENCY_ALLOC]) hl_latency(ctx->device, HL_LATENCY_ALLOC);
    return a->memory ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static void adopt(struct ctx *ctx, struct array *a) {
    a->magic = MAGIC_ARRAY;
    a->ctx = ctx;
    fake_lock();
    a->next = ctx->arrays;
    ctx->arrays = a;
    fake_unlock();
}

CUresult array_create(struct ctx *ctx, const CUDA_ARRAY3D_DESCRIPTOR *desc, struct array **out) {
    CUresult result = judge(desc);
    if (result) return result;
    struct array *a = calloc(1, sizeof *a);
    if (!a) return CUDA_ERROR_OUT_OF_MEMORY;
    a->desc = *desc;
    uint64_t bytes = shape(a);
    if (!(desc->Flags & DEFERRED) && (result = take(ctx, a, bytes)) != CUDA_SUCCESS) {
        free(a);
        return result;
    }
    adopt(ctx, a);
    *out = a;
    return CUDA_SUCCESS;
}

/* Under the lock. The structure stays as a corpse. */
static void end(struct array *a) {
    a->magic = MAGIC_DEAD;
    for (unsigned i = 0; i < a->level_count; i++) a->levels[i].magic = MAGIC_DEAD;
    if (a->memory) arena_free(a->memory);
    a->memory = NULL;
}

CUresult array_destroy(struct array *a) {
    fake_lock();
    struct array **link = &a->ctx->arrays;
    while (*link && *link != a) link = &(*link)->next;
    if (*link) *link = a->next;
    end(a);
    fake_unlock();
    return CUDA_SUCCESS;
}

void arrays_end(struct ctx *ctx) {
    for (struct array *a = ctx->arrays, *next; a; a = next) {
        next = a->next;
        end(a);
    }
    ctx->arrays = NULL;
}

static struct array *living(const void *handle) {
    struct array *a = (struct array *)(uintptr_t)handle;
    return a && a->magic == MAGIC_ARRAY ? a : NULL;
}

struct array *array_of(CUarray handle) {
    struct array *a = living(handle);
    if (!a || a->level_count) return NULL;
    return (a->parent ? a->parent : a)->memory ? a : NULL;
}

struct array *mipmap_of(CUmipmappedArray handle) {
    struct array *m = living(handle);
    return m && m->level_count ? m : NULL;
}

/* ---- arrays ----------------------------------------------------------------------------------------------- */

static CUresult create(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *desc) {
    struct ctx *ctx;
    CUresult result = need_ctx(&ctx);
    if (result) return result;
    struct array *a;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    result = array_create(ctx, desc, &a);
    if (result == CUDA_SUCCESS) *out = (CUarray)(void *)a;
    return result;
}
ENTRY(cuArray3DCreate_v2, (CUarray * array, const CUDA_ARRAY3D_DESCRIPTOR *desc), create(array, desc))

static CUresult create_flat(CUarray *out, const CUDA_ARRAY_DESCRIPTOR *d) {
    CUDA_ARRAY3D_DESCRIPTOR whole = {0};
    if (d) whole = (CUDA_ARRAY3D_DESCRIPTOR){d->Width, d->Height, 0, d->Format, d->NumChannels, 0};
    return create(out, d ? &whole : NULL);
}
ENTRY(cuArrayCreate_v2, (CUarray * array, const CUDA_ARRAY_DESCRIPTOR *desc), create_flat(array, desc))

ENTRY(cuArray3DCreate, (CUarray * array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *desc),
      ((void)array, (void)desc, old_generation()))
ENTRY(cuArrayCreate, (CUarray * array, const CUDA_ARRAY_DESCRIPTOR_v1 *desc),
      ((void)array, (void)desc, old_generation()))

static CUresult known(CUarray handle, const void *out, struct array **a) {
    CUresult result = need_init();
    if (result) return result;
    *a = living(handle);
    if (!*a || (*a)->level_count) return CUDA_ERROR_INVALID_HANDLE;
    return out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult describe(CUDA_ARRAY3D_DESCRIPTOR *out, CUarray handle) {
    struct array *a;
    CUresult result = known(handle, out, &a);
    if (result == CUDA_SUCCESS) *out = a->desc;
    return result;
}
ENTRY(cuArray3DGetDescriptor_v2, (CUDA_ARRAY3D_DESCRIPTOR * desc, CUarray array), describe(desc, array))

#define DESCRIBE(NAME, TYPE, ...)                                                                                      \
    static CUresult describe_##NAME(TYPE *out, CUarray handle) {                                                       \
        struct array *a;                                                                                               \
        CUresult result = known(handle, out, &a);                                                                      \
        if (result == CUDA_SUCCESS) *out = (TYPE){__VA_ARGS__};                                                        \
        return result;                                                                                                 \
    }                                                                                                                  \
    ENTRY(NAME, (TYPE * desc, CUarray array), describe_##NAME(desc, array))
DESCRIBE(cuArrayGetDescriptor_v2, CUDA_ARRAY_DESCRIPTOR, a->desc.Width, a->desc.Height, a->desc.Format,
         a->desc.NumChannels)
DESCRIBE(cuArrayGetDescriptor, CUDA_ARRAY_DESCRIPTOR_v1, (unsigned)a->desc.Width, (unsigned)a->desc.Height,
         a->desc.Format, a->desc.NumChannels)
DESCRIBE(cuArray3DGetDescriptor, CUDA_ARRAY3D_DESCRIPTOR_v1, (unsigned)a->desc.Width, (unsigned)a->desc.Height,
         (unsigned)a->desc.Depth, a->desc.Format, a->desc.NumChannels, a->desc.Flags)

/* As measured: a level may be destroyed, which its mipmap does not notice, and what was destroyed before has lost its
 * context. */
static CUresult destroy(CUarray handle) {
    CUresult result = need_init();
    if (result) return result;
    const struct array *corpse = (const struct array *)(const void *)handle;
    if (corpse && corpse->magic == MAGIC_DEAD) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    struct array *a = living(handle);
    if (!a || a->level_count) return CUDA_ERROR_INVALID_HANDLE;
    return a->parent ? CUDA_SUCCESS : array_destroy(a);
}
ENTRY(cuArrayDestroy, (CUarray array), destroy(array))

/* Only an array without memory of its own has requirements: the rest is refused and *out left alone, as measured. */
static CUresult requirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, const void *handle, CUdevice device, int mipmap) {
    CUresult result = need_init();
    if (result) return result;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    struct array *a = living(handle);
    if (!visible_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    if (!a || a->parent || (a->level_count != 0) != mipmap || !(a->desc.Flags & DEFERRED))
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t bytes = 0;
    for (unsigned i = 0; i < a->level_count; i++) bytes += shape(&a->levels[i]);
    if (!mipmap) bytes = shape(a);
    memset(out, 0, sizeof *out);
    out->alignment = 65536;
    out->size = (bytes + out->alignment - 1) / out->alignment * out->alignment;
    return CUDA_SUCCESS;
}
ENTRY(cuArrayGetMemoryRequirements, (CUDA_ARRAY_MEMORY_REQUIREMENTS * out, CUarray array, CUdevice device),
      requirements(out, array, device, 0))
ENTRY(cuMipmappedArrayGetMemoryRequirements,
      (CUDA_ARRAY_MEMORY_REQUIREMENTS * out, CUmipmappedArray mipmap, CUdevice device),
      requirements(out, mipmap, device, 1))

/* No array here is sparse or has planes. */
static CUresult sparse(CUDA_ARRAY_SPARSE_PROPERTIES *out, const void *handle) {
    CUresult result = need_init();
    if (result) return result;
    if (!living(handle)) return CUDA_ERROR_INVALID_HANDLE;
    (void)out;
    return CUDA_ERROR_INVALID_VALUE;
}
ENTRY(cuArrayGetSparseProperties, (CUDA_ARRAY_SPARSE_PROPERTIES * out, CUarray array), sparse(out, array))
ENTRY(cuMipmappedArrayGetSparseProperties, (CUDA_ARRAY_SPARSE_PROPERTIES * out, CUmipmappedArray mipmap),
      sparse(out, mipmap))

static CUresult plane(CUarray *out, CUarray handle) {
    struct array *a;
    CUresult result = known(handle, out, &a);
    return result ? result : CUDA_ERROR_INVALID_VALUE;
}
ENTRY(cuArrayGetPlane, (CUarray * out, CUarray array, unsigned int index), ((void)index, plane(out, array)))

/* ---- mipmaps ---------------------------------------------------------------------------------------------- */

static size_t halved(size_t n, unsigned level) { return n == 0 ? 0 : n >> level ? n >> level : 1; }

static CUresult mipmap_create(CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned wanted) {
    struct ctx *ctx;
    CUresult result = need_ctx(&ctx);
    if (result) return result;
    if (!out || wanted == 0) return CUDA_ERROR_INVALID_VALUE;
    if ((result = judge(desc)) != CUDA_SUCCESS) return result;
    int is_flat = (desc->Flags & (LAYERED | CUBEMAP)) != 0;
    size_t longest = desc->Width > desc->Height ? desc->Width : desc->Height;
    if (!is_flat && desc->Depth > longest) longest = desc->Depth;
    unsigned most = 1;
    while (longest >> most) most++;
    if (wanted > most) wanted = most; /* clamped to the full chain, as documented */
    struct array *m = calloc(1, sizeof *m);
    if (m) m->levels = calloc(wanted, sizeof *m->levels);
    if (!m || !m->levels) {
        free(m);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    m->desc = *desc;
    m->level_count = wanted;
    uint64_t bytes = 0;
    for (unsigned i = 0; i < wanted; i++) {
        struct array *level = &m->levels[i];
        level->desc = *desc;
        level->desc.Width = halved(desc->Width, i);
        level->desc.Height = halved(desc->Height, i);
        if (!is_flat) level->desc.Depth = halved(desc->Depth, i);
        level->magic = MAGIC_ARRAY;
        level->ctx = ctx;
        level->parent = m;
        level->offset = bytes;
        bytes += shape(level);
    }
    if (!(desc->Flags & DEFERRED) && (result = take(ctx, m, bytes)) != CUDA_SUCCESS) {
        free(m->levels);
        free(m);
        return result;
    }
    for (unsigned i = 0; i < wanted; i++) m->levels[i].offset += m->offset;
    adopt(ctx, m);
    *out = (CUmipmappedArray)(void *)m;
    return CUDA_SUCCESS;
}
ENTRY(cuMipmappedArrayCreate, (CUmipmappedArray * mipmap, const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned int levels),
      mipmap_create(mipmap, desc, levels))

static CUresult mipmap_destroy(CUmipmappedArray handle) {
    CUresult result = need_init();
    if (result) return result;
    struct array *m = mipmap_of(handle);
    if (!m) return CUDA_ERROR_INVALID_HANDLE;
    return array_destroy(m);
}
ENTRY(cuMipmappedArrayDestroy, (CUmipmappedArray mipmap), mipmap_destroy(mipmap))

static CUresult mipmap_level(CUarray *out, CUmipmappedArray handle, unsigned level) {
    CUresult result = need_init();
    if (result) return result;
    struct array *m = mipmap_of(handle);
    if (!m) return CUDA_ERROR_INVALID_HANDLE;
    if (!out || level >= m->level_count) return CUDA_ERROR_INVALID_VALUE;
    *out = (CUarray)(void *)&m->levels[level];
    return CUDA_SUCCESS;
}
ENTRY(cuMipmappedArrayGetLevel, (CUarray * array, CUmipmappedArray mipmap, unsigned int level),
      mipmap_level(array, mipmap, level))
