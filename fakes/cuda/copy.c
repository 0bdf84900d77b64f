/* Copies and fills. Work is done in the calling thread at once; an asynchronous call differs only in what it waits for.
 * Bounds are those of the allocation as it was asked for, to the byte. */
#include "array.h"
#include "fake.h"
#include "graph.h"

#include <string.h>

enum { STRICT, PAGEABLE, COPY_UNIT = 1 << 20 };

static CUresult queue(CUstream handle, int default_stream, struct ctx **ctx, struct stream **stream) {
    CUresult result = need_ctx(ctx);
    if (result) return result;
    *stream = stream_of(*ctx, handle, default_stream);
    return *stream ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static void took(struct ctx *ctx, uint64_t bytes) {
    if (physical(ctx->device)->latency_ns[HL_LATENCY_COPY_PER_MIB])
        hl_latency_units(ctx->device, HL_LATENCY_COPY_PER_MIB, bytes * 1000000 / COPY_UNIT);
}

static CUresult capture_copy(struct ctx *ctx, struct capture *c, struct stream *stream, const CUDA_MEMCPY3D *what) {
    CUresult result = copy_judge(what);
    if (result) return result;
    struct node *n = capture_add(c, stream, CU_GRAPH_NODE_TYPE_MEMCPY);
    if (!n) return CUDA_ERROR_OUT_OF_MEMORY;
    n->copy.what = *what;
    n->copy.ctx = ctx;
    return CUDA_SUCCESS;
}

static CUresult capture_flat(struct ctx *ctx, struct capture *c, struct stream *stream, CUdeviceptr to, int to_kind,
                             CUdeviceptr from, int from_kind, size_t bytes) {
    CUDA_MEMCPY3D what = {.srcMemoryType = from_kind == STRICT ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_UNIFIED,
                          .srcDevice = from,
                          .srcPitch = bytes,
                          .dstMemoryType = to_kind == STRICT ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_UNIFIED,
                          .dstDevice = to,
                          .dstPitch = bytes,
                          .WidthInBytes = bytes,
                          .Height = 1,
                          .Depth = 1};
    return capture_copy(ctx, c, stream, &what);
}

static CUresult copy(CUdeviceptr to, int to_kind, CUdeviceptr from, int from_kind, size_t bytes, CUstream handle,
                     int default_stream) {
    struct ctx *ctx;
    struct stream *stream;
    CUresult result = queue(handle, default_stream, &ctx, &stream);
    if (result) return result;
    if (bytes == 0) return CUDA_SUCCESS;
    char *d, *s;
    if (capturing()) {
        struct capture *c;
        if ((result = stream_use(ctx, stream, &c)) != CUDA_SUCCESS) return result;
        if (c) return capture_flat(ctx, c, stream, to, to_kind, from, from_kind, bytes);
    }
    if (memory_resolve(from, bytes, 'r', from_kind, &s) || memory_resolve(to, bytes, 'w', to_kind, &d))
        return CUDA_ERROR_INVALID_VALUE;
    stream_wait(stream); /* what was queued before comes first */
    memmove(d, s, bytes);
    took(ctx, bytes);
    return ctx_trouble(ctx);
}

CUresult copy_flat(struct ctx *ctx, struct stream *stream, CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    char *d, *s;
    if (memory_resolve(from, bytes, 'r', PAGEABLE, &s) || memory_resolve(to, bytes, 'w', PAGEABLE, &d))
        return CUDA_ERROR_INVALID_VALUE;
    stream_wait(stream);
    memmove(d, s, bytes);
    took(ctx, bytes);
    return ctx_trouble(ctx);
}

#define H(P) ((CUdeviceptr)(uintptr_t)(P))
#define COPY(NAME, DS, PARAMETERS, TO, TO_KIND, FROM, FROM_KIND, STREAM)                                               \
    API NAME PARAMETERS;                                                                                               \
    API NAME PARAMETERS {                                                                                              \
        ENTER(NAME);                                                                                                   \
        LEAVE(copy(TO, TO_KIND, FROM, FROM_KIND, bytes, STREAM, DS), bytes, TO);                                       \
    }
#define COPY2(NAME, SUFFIX, ...) COPY(NAME, 1, __VA_ARGS__) COPY(NAME##SUFFIX, 2, __VA_ARGS__)

COPY2(cuMemcpyHtoD_v2, _ptds, (CUdeviceptr to, const void *from, size_t bytes), to, STRICT, H(from), PAGEABLE, NULL)
COPY2(cuMemcpyDtoH_v2, _ptds, (void *to, CUdeviceptr from, size_t bytes), H(to), PAGEABLE, from, STRICT, NULL)
COPY2(cuMemcpyDtoD_v2, _ptds, (CUdeviceptr to, CUdeviceptr from, size_t bytes), to, STRICT, from, STRICT, NULL)
COPY2(cuMemcpy, _ptds, (CUdeviceptr to, CUdeviceptr from, size_t bytes), to, PAGEABLE, from, PAGEABLE, NULL)
COPY2(cuMemcpyHtoDAsync_v2, _ptsz, (CUdeviceptr to, const void *from, size_t bytes, CUstream stream), to, STRICT,
      H(from), PAGEABLE, stream)
COPY2(cuMemcpyDtoHAsync_v2, _ptsz, (void *to, CUdeviceptr from, size_t bytes, CUstream stream), H(to), PAGEABLE, from,
      STRICT, stream)
COPY2(cuMemcpyDtoDAsync_v2, _ptsz, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream), to, STRICT, from,
      STRICT, stream)
COPY2(cuMemcpyAsync, _ptsz, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream), to, PAGEABLE, from,
      PAGEABLE, stream)
COPY2(cuMemcpyPeer, _ptds, (CUdeviceptr to, CUcontext to_ctx, CUdeviceptr from, CUcontext from_ctx, size_t bytes),
      ((void)to_ctx, to), STRICT, ((void)from_ctx, from), STRICT, NULL)
COPY2(cuMemcpyPeerAsync, _ptsz,
      (CUdeviceptr to, CUcontext to_ctx, CUdeviceptr from, CUcontext from_ctx, size_t bytes, CUstream stream),
      ((void)to_ctx, to), STRICT, ((void)from_ctx, from), STRICT, stream)

/* ---- two and three dimensions ----------------------------------------------------------------------------- */

struct side {
    CUmemorytype type;
    CUdeviceptr at; /* or the array */
    size_t x, y, z, pitch, height;
};

static CUresult locate(const struct side *s, size_t width, size_t rows, size_t depth, int access, char **out,
                       size_t *pitch, size_t *slice) {
    if (s->type == CU_MEMORYTYPE_ARRAY) {
        struct array *a = array_of((CUarray)(uintptr_t)s->at);
        if (!a) return CUDA_ERROR_INVALID_HANDLE;
        const CUDA_ARRAY3D_DESCRIPTOR *d = &a->desc;
        size_t height = d->Height ? d->Height : 1, layers = d->Depth ? d->Depth : 1;
        if (s->x > d->Width * a->element || width > d->Width * a->element - s->x || s->x % a->element ||
            width % a->element || s->y > height || rows > height - s->y || s->z > layers || depth > layers - s->z)
            return CUDA_ERROR_INVALID_VALUE;
        *pitch = a->pitch;
        *slice = a->slice;
        uint64_t start = a->offset + s->z * a->slice + s->y * a->pitch + s->x;
        fake_lock();
        if (access == 'w') arena_written(start, (depth - 1) * a->slice + (rows - 1) * a->pitch + width);
        fake_unlock();
        *out = arena.data_base + start;
        return CUDA_SUCCESS;
    }
    if (s->type != CU_MEMORYTYPE_HOST && s->type != CU_MEMORYTYPE_DEVICE && s->type != CU_MEMORYTYPE_UNIFIED)
        return CUDA_ERROR_INVALID_VALUE;
    *pitch = s->pitch ? s->pitch : rows <= 1 && depth <= 1 ? s->x + width : 0;
    *slice = *pitch * (s->height ? s->height : s->y + rows);
    if (*pitch < s->x + width || (depth > 1 && s->height && s->height < s->y + rows)) return CUDA_ERROR_INVALID_VALUE;
    size_t start = s->x + s->y * *pitch + s->z * *slice;
    size_t bytes = (depth - 1) * *slice + (rows - 1) * *pitch + width;
    return memory_resolve(s->at + start, bytes, access, s->type == CU_MEMORYTYPE_DEVICE ? STRICT : PAGEABLE, out);
}

static CUresult move_box(struct ctx *ctx, struct stream *stream, const struct side *to, const struct side *from,
                         size_t width, size_t rows, size_t depth) {
    char *d, *s;
    size_t d_pitch, d_slice, s_pitch, s_slice;
    CUresult result = locate(from, width, rows, depth, 'r', &s, &s_pitch, &s_slice);
    if (result == CUDA_SUCCESS) result = locate(to, width, rows, depth, 'w', &d, &d_pitch, &d_slice);
    if (result) return result;
    stream_wait(stream);
    for (size_t z = 0; z < depth; z++)
        for (size_t y = 0; y < rows; y++) memmove(d + z * d_slice + y * d_pitch, s + z * s_slice + y * s_pitch, width);
    took(ctx, width * rows * depth);
    return ctx_trouble(ctx);
}

static CUDA_MEMCPY3D described(const struct side *to, const struct side *from, size_t width, size_t rows,
                               size_t depth) {
    return (CUDA_MEMCPY3D){.srcXInBytes = from->x,
                           .srcY = from->y,
                           .srcZ = from->z,
                           .srcMemoryType = from->type,
                           .srcHost = (void *)(uintptr_t)from->at,
                           .srcDevice = from->at,
                           .srcArray = (CUarray)(uintptr_t)from->at,
                           .srcPitch = from->pitch,
                           .srcHeight = from->height,
                           .dstXInBytes = to->x,
                           .dstY = to->y,
                           .dstZ = to->z,
                           .dstMemoryType = to->type,
                           .dstHost = (void *)(uintptr_t)to->at,
                           .dstDevice = to->at,
                           .dstArray = (CUarray)(uintptr_t)to->at,
                           .dstPitch = to->pitch,
                           .dstHeight = to->height,
                           .WidthInBytes = width,
                           .Height = rows,
                           .Depth = depth};
}

static CUresult box(const struct side *to, const struct side *from, size_t width, size_t rows, size_t depth,
                    CUstream handle, int default_stream) {
    struct ctx *ctx;
    struct stream *stream;
    CUresult result = queue(handle, default_stream, &ctx, &stream);
    if (result) return result;
    if (width == 0 || rows == 0 || depth == 0) return CUDA_SUCCESS;
    if ((from->type == CU_MEMORYTYPE_HOST && !from->at) || (to->type == CU_MEMORYTYPE_HOST && !to->at))
        return CUDA_ERROR_INVALID_VALUE;
    if (capturing()) {
        struct capture *c;
        if ((result = stream_use(ctx, stream, &c)) != CUDA_SUCCESS) return result;
        CUDA_MEMCPY3D what = described(to, from, width, rows, depth);
        if (c) return capture_copy(ctx, c, stream, &what);
    }
    return move_box(ctx, stream, to, from, width, rows, depth);
}

static CUdeviceptr where(CUmemorytype type, const void *host, CUdeviceptr device, CUarray array) {
    return type == CU_MEMORYTYPE_HOST    ? (CUdeviceptr)(uintptr_t)host
           : type == CU_MEMORYTYPE_ARRAY ? (CUdeviceptr)(uintptr_t)array
                                         : device;
}

static CUresult copy2d(const CUDA_MEMCPY2D *c, CUstream stream, int default_stream) {
    if (!c) return need_init() ? CUDA_ERROR_NOT_INITIALIZED : CUDA_ERROR_INVALID_VALUE;
    struct side to = {c->dstMemoryType,
                      where(c->dstMemoryType, c->dstHost, c->dstDevice, c->dstArray),
                      c->dstXInBytes,
                      c->dstY,
                      0,
                      c->dstPitch,
                      0};
    struct side from = {c->srcMemoryType,
                        where(c->srcMemoryType, c->srcHost, c->srcDevice, c->srcArray),
                        c->srcXInBytes,
                        c->srcY,
                        0,
                        c->srcPitch,
                        0};
    return box(&to, &from, c->WidthInBytes, c->Height, 1, stream, default_stream);
}
PAIR(cuMemcpy2D_v2, cuMemcpy2D_v2_ptds, (const CUDA_MEMCPY2D *c), copy2d(c, NULL, DEFAULT_STREAM))
PAIR(cuMemcpy2DUnaligned_v2, cuMemcpy2DUnaligned_v2_ptds, (const CUDA_MEMCPY2D *c), copy2d(c, NULL, DEFAULT_STREAM))
PAIR(cuMemcpy2DAsync_v2, cuMemcpy2DAsync_v2_ptsz, (const CUDA_MEMCPY2D *c, CUstream stream),
     copy2d(c, stream, DEFAULT_STREAM))

static void sides(const CUDA_MEMCPY3D *c, struct side *to, struct side *from) {
    *to = (struct side){c->dstMemoryType, where(c->dstMemoryType, c->dstHost, c->dstDevice, c->dstArray),
                        c->dstXInBytes,   c->dstY,
                        c->dstZ,          c->dstPitch,
                        c->dstHeight};
    *from = (struct side){c->srcMemoryType, where(c->srcMemoryType, c->srcHost, c->srcDevice, c->srcArray),
                          c->srcXInBytes,   c->srcY,
                          c->srcZ,          c->srcPitch,
                          c->srcHeight};
}

static CUresult copy3d(const CUDA_MEMCPY3D *c, CUstream stream, int default_stream) {
    if (!c) return need_init() ? CUDA_ERROR_NOT_INITIALIZED : CUDA_ERROR_INVALID_VALUE;
    struct side to, from;
    sides(c, &to, &from);
    return box(&to, &from, c->WidthInBytes, c->Height, c->Depth, stream, default_stream);
}

/* What a node can be told at once: kinds of memory and what is nowhere. */
CUresult copy_judge(const CUDA_MEMCPY3D *c) {
    struct side side[2];
    sides(c, &side[0], &side[1]);
    if (c->WidthInBytes == 0 || c->Height == 0 || c->Depth == 0) return CUDA_ERROR_INVALID_VALUE;
    for (int i = 0; i < 2; i++)
        if (side[i].type < CU_MEMORYTYPE_HOST || side[i].type > CU_MEMORYTYPE_UNIFIED || !side[i].at)
            return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

CUresult copy_run(struct ctx *ctx, const CUDA_MEMCPY3D *c, struct stream *stream) {
    struct side to, from;
    sides(c, &to, &from);
    return move_box(ctx, stream, &to, &from, c->WidthInBytes, c->Height, c->Depth);
}
PAIR(cuMemcpy3D_v2, cuMemcpy3D_v2_ptds, (const CUDA_MEMCPY3D *c), copy3d(c, NULL, DEFAULT_STREAM))
PAIR(cuMemcpy3DAsync_v2, cuMemcpy3DAsync_v2_ptsz, (const CUDA_MEMCPY3D *c, CUstream stream),
     copy3d(c, stream, DEFAULT_STREAM))

ENTRY(cuMemcpy2D, (const CUDA_MEMCPY2D_v1 *c), ((void)c, old_generation()))
ENTRY(cuMemcpy2DUnaligned, (const CUDA_MEMCPY2D_v1 *c), ((void)c, old_generation()))
ENTRY(cuMemcpy2DAsync, (const CUDA_MEMCPY2D_v1 *c, CUstream stream), ((void)c, (void)stream, old_generation()))

ENTRY(cuMemcpy3D, (const CUDA_MEMCPY3D_v1 *c), ((void)c, old_generation()))
ENTRY(cuMemcpy3DAsync, (const CUDA_MEMCPY3D_v1 *c, CUstream stream), ((void)c, (void)stream, old_generation()))

static CUresult copy3d_peer(const CUDA_MEMCPY3D_PEER *c, CUstream stream, int default_stream) {
    if (!c) return copy3d(NULL, stream, default_stream);
    CUDA_MEMCPY3D plain = {.srcXInBytes = c->srcXInBytes,
                           .srcY = c->srcY,
                           .srcZ = c->srcZ,
                           .srcLOD = c->srcLOD,
                           .srcMemoryType = c->srcMemoryType,
                           .srcHost = c->srcHost,
                           .srcDevice = c->srcDevice,
                           .srcArray = c->srcArray,
                           .srcPitch = c->srcPitch,
                           .srcHeight = c->srcHeight,
                           .dstXInBytes = c->dstXInBytes,
                           .dstY = c->dstY,
                           .dstZ = c->dstZ,
                           .dstLOD = c->dstLOD,
                           .dstMemoryType = c->dstMemoryType,
                           .dstHost = c->dstHost,
                           .dstDevice = c->dstDevice,
                           .dstArray = c->dstArray,
                           .dstPitch = c->dstPitch,
                           .dstHeight = c->dstHeight,
                           .WidthInBytes = c->WidthInBytes,
                           .Height = c->Height,
                           .Depth = c->Depth};
    return copy3d(&plain, stream, default_stream);
}
PAIR(cuMemcpy3DPeer, cuMemcpy3DPeer_ptds, (const CUDA_MEMCPY3D_PEER *c), copy3d_peer(c, NULL, DEFAULT_STREAM))
PAIR(cuMemcpy3DPeerAsync, cuMemcpy3DPeerAsync_ptsz, (const CUDA_MEMCPY3D_PEER *c, CUstream stream),
     copy3d_peer(c, stream, DEFAULT_STREAM))

/* One dimension, arrays: an offset in bytes into the first row and on into the next ones. */
static CUresult along(CUarray handle, size_t offset, int to_array, CUmemorytype type, CUdeviceptr at, size_t bytes,
                      CUstream stream, int default_stream) {
    struct ctx *ctx;
    struct stream *s;
    CUresult result = queue(stream, default_stream, &ctx, &s);
    if (result) return result;
    struct array *a = array_of(handle);
    if (!a) return CUDA_ERROR_INVALID_HANDLE;
    size_t row = a->desc.Width * a->element;
    while (bytes) {
        size_t x = offset % row, part = row - x < bytes ? row - x : bytes;
        struct side array = {CU_MEMORYTYPE_ARRAY, (CUdeviceptr)(uintptr_t)handle, x, offset / row, 0, 0, 0};
        struct side other = {type, at, 0, 0, 0, 0, 0};
        result = to_array ? box(&array, &other, part, 1, 1, stream, default_stream)
                          : box(&other, &array, part, 1, 1, stream, default_stream);
        if (result) return result;
        bytes -= part;
        offset += part;
        at += part;
    }
    return CUDA_SUCCESS;
}

static CUresult between(CUarray to, size_t to_offset, CUarray from, size_t from_offset, size_t bytes, int ds) {
    struct array *a = array_of(to), *b = array_of(from);
    if (need_init()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!a || !b) return CUDA_ERROR_INVALID_HANDLE;
    size_t to_row = a->desc.Width * a->element, from_row = b->desc.Width * b->element;
    while (bytes) {
        size_t part = bytes, left = to_row - to_offset % to_row;
        if (part > left) part = left;
        if (part > from_row - from_offset % from_row) part = from_row - from_offset % from_row;
        struct side d = {
            CU_MEMORYTYPE_ARRAY, (CUdeviceptr)(uintptr_t)to, to_offset % to_row, to_offset / to_row, 0, 0, 0};
        struct side s = {
            CU_MEMORYTYPE_ARRAY, (CUdeviceptr)(uintptr_t)from, from_offset % from_row, from_offset / from_row, 0, 0, 0};
        CUresult result = box(&d, &s, part, 1, 1, NULL, ds);
        if (result) return result;
        bytes -= part;
        to_offset += part;
        from_offset += part;
    }
    return CUDA_SUCCESS;
}

PAIR(cuMemcpyHtoA_v2, cuMemcpyHtoA_v2_ptds, (CUarray to, size_t offset, const void *from, size_t bytes),
     along(to, offset, 1, CU_MEMORYTYPE_HOST, H(from), bytes, NULL, DEFAULT_STREAM))
PAIR(cuMemcpyHtoAAsync_v2, cuMemcpyHtoAAsync_v2_ptsz,
     (CUarray to, size_t offset, const void *from, size_t bytes, CUstream stream),
     along(to, offset, 1, CU_MEMORYTYPE_HOST, H(from), bytes, stream, DEFAULT_STREAM))
PAIR(cuMemcpyAtoH_v2, cuMemcpyAtoH_v2_ptds, (void *to, CUarray from, size_t offset, size_t bytes),
     along(from, offset, 0, CU_MEMORYTYPE_HOST, H(to), bytes, NULL, DEFAULT_STREAM))
PAIR(cuMemcpyAtoHAsync_v2, cuMemcpyAtoHAsync_v2_ptsz,
     (void *to, CUarray from, size_t offset, size_t bytes, CUstream stream),
     along(from, offset, 0, CU_MEMORYTYPE_HOST, H(to), bytes, stream, DEFAULT_STREAM))
PAIR(cuMemcpyDtoA_v2, cuMemcpyDtoA_v2_ptds, (CUarray to, size_t offset, CUdeviceptr from, size_t bytes),
     along(to, offset, 1, CU_MEMORYTYPE_DEVICE, from, bytes, NULL, DEFAULT_STREAM))
PAIR(cuMemcpyAtoD_v2, cuMemcpyAtoD_v2_ptds, (CUdeviceptr to, CUarray from, size_t offset, size_t bytes),
     along(from, offset, 0, CU_MEMORYTYPE_DEVICE, to, bytes, NULL, DEFAULT_STREAM))
PAIR(cuMemcpyAtoA_v2, cuMemcpyAtoA_v2_ptds,
     (CUarray to, size_t to_offset, CUarray from, size_t from_offset, size_t bytes),
     between(to, to_offset, from, from_offset, bytes, DEFAULT_STREAM))
ENTRY(cuMemcpyHtoA, (CUarray to, unsigned int offset, const void *from, unsigned int bytes),
      ((void)to, (void)offset, (void)from, (void)bytes, old_generation()))
ENTRY(cuMemcpyHtoAAsync, (CUarray to, unsigned int offset, const void *from, unsigned int bytes, CUstream stream),
      ((void)to, (void)offset, (void)from, (void)bytes, (void)stream, old_generation()))
ENTRY(cuMemcpyAtoH, (void *to, CUarray from, unsigned int offset, unsigned int bytes),
      ((void)to, (void)from, (void)offset, (void)bytes, old_generation()))
ENTRY(cuMemcpyAtoHAsync, (void *to, CUarray from, unsigned int offset, unsigned int bytes, CUstream stream),
      ((void)to, (void)from, (void)offset, (void)bytes, (void)stream, old_generation()))
ENTRY(cuMemcpyDtoA, (CUarray to, unsigned int offset, CUdeviceptr_v1 from, unsigned int bytes),
      ((void)to, (void)offset, (void)from, (void)bytes, old_generation()))
ENTRY(cuMemcpyAtoD, (CUdeviceptr_v1 to, CUarray from, unsigned int offset, unsigned int bytes),
      ((void)to, (void)from, (void)offset, (void)bytes, old_generation()))
ENTRY(cuMemcpyAtoA, (CUarray to, unsigned int to_offset, CUarray from, unsigned int from_offset, unsigned int bytes),
      ((void)to, (void)to_offset, (void)from, (void)from_offset, (void)bytes, old_generation()))
ENTRY(cuMemcpyHtoD, (CUdeviceptr_v1 to, const void *from, unsigned int bytes),
      ((void)to, (void)from, (void)bytes, old_generation()))
ENTRY(cuMemcpyDtoH, (void *to, CUdeviceptr_v1 from, unsigned int bytes),
      ((void)to, (void)from, (void)bytes, old_generation()))
ENTRY(cuMemcpyDtoD, (CUdeviceptr_v1 to, CUdeviceptr_v1 from, unsigned int bytes),
      ((void)to, (void)from, (void)bytes, old_generation()))
ENTRY(cuMemcpyHtoDAsync, (CUdeviceptr_v1 to, const void *from, unsigned int bytes, CUstream stream),
      ((void)to, (void)from, (void)bytes, (void)stream, old_generation()))
ENTRY(cuMemcpyDtoHAsync, (void *to, CUdeviceptr_v1 from, unsigned int bytes, CUstream stream),
      ((void)to, (void)from, (void)bytes, (void)stream, old_generation()))
ENTRY(cuMemcpyDtoDAsync, (CUdeviceptr_v1 to, CUdeviceptr_v1 from, unsigned int bytes, CUstream stream),
      ((void)to, (void)from, (void)bytes, (void)stream, old_generation()))

/* ---- fills ------------------------------------------------------------------------------------------------ */

static void fill(char *at, uint32_t value, size_t size, size_t count) {
    if (size == 1) {
        memset(at, (int)(value & 0xff), count);
    } else if (size == 2) {
        uint16_t v = (uint16_t)value;
        for (size_t i = 0; i < count; i++) memcpy(at + 2 * i, &v, 2);
    } else {
        for (size_t i = 0; i < count; i++) memcpy(at + 4 * i, &value, 4);
    }
}

static CUresult extent(CUdeviceptr to, size_t pitch, size_t size, size_t width, size_t rows, size_t *row,
                       size_t *bytes) {
    if (size == 0 || to % size) return CUDA_ERROR_INVALID_VALUE;
    if (width == 0 || rows == 0) return CUDA_SUCCESS;
    if (__builtin_mul_overflow(width, size, row) || (rows > 1 && (pitch < *row || pitch % size)))
        return CUDA_ERROR_INVALID_VALUE;
    if (__builtin_mul_overflow(rows - 1, pitch, bytes) || __builtin_add_overflow(*bytes, *row, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

static CUresult fill_rows(struct ctx *ctx, struct stream *stream, CUdeviceptr to, size_t pitch, uint32_t value,
                          size_t size, size_t width, size_t rows) {
    size_t row = 0, bytes = 0;
    CUresult result = extent(to, pitch, size, width, rows, &row, &bytes);
    if (result || bytes == 0) return result;
    char *at;
    if (memory_resolve(to, bytes, 'w', STRICT, &at)) return CUDA_ERROR_INVALID_VALUE;
    stream_wait(stream);
    uint64_t offset = (uint64_t)(at - arena.data_base);
    if (value == 0 && rows == 1 && offset < arena.bytes)
        arena_zero(offset, row); /* keeps clean pages clean: gigabytes of zeros cost nothing */
    else
        for (size_t y = 0; y < rows; y++) fill(at + y * pitch, value, size, width);
    took(ctx, bytes);
    return ctx_trouble(ctx);
}

static CUresult set(CUdeviceptr to, size_t pitch, uint32_t value, size_t size, size_t width, size_t rows,
                    CUstream handle, int default_stream) {
    struct ctx *ctx;
    struct stream *stream;
    CUresult result = queue(handle, default_stream, &ctx, &stream);
    if (result) return result;
    if (capturing()) {
        struct capture *c;
        if ((result = stream_use(ctx, stream, &c)) != CUDA_SUCCESS) return result;
        CUDA_MEMSET_NODE_PARAMS what = {to, pitch, value, (unsigned)size, width, rows};
        if (c && (result = fill_judge(&what)) != CUDA_SUCCESS) return result;
        struct node *n = c ? capture_add(c, stream, CU_GRAPH_NODE_TYPE_MEMSET) : NULL;
        if (n) {
            n->fill.what = what;
            n->fill.ctx = ctx;
        }
        if (c) return n ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    return fill_rows(ctx, stream, to, pitch, value, size, width, rows);
}

CUresult fill_judge(const CUDA_MEMSET_NODE_PARAMS *p) {
    size_t row = 0, bytes = 0;
    if (p->elementSize != 1 && p->elementSize != 2 && p->elementSize != 4) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = extent(p->dst, p->pitch, p->elementSize, p->width, p->height, &row, &bytes);
    return result || bytes == 0 || !p->dst ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult fill_run(struct ctx *ctx, const CUDA_MEMSET_NODE_PARAMS *p, struct stream *stream) {
    return fill_rows(ctx, stream, p->dst, p->pitch, p->value, p->elementSize, p->width, p->height);
}

#define SET(NAME, TYPE, SIZE)                                                                                          \
    PAIR(cuMemsetD##NAME##_v2, cuMemsetD##NAME##_v2_ptds, (CUdeviceptr to, TYPE value, size_t count),                  \
         set(to, 0, value, SIZE, count, 1, NULL, DEFAULT_STREAM))                                                      \
    PAIR(cuMemsetD##NAME##Async, cuMemsetD##NAME##Async_ptsz,                                                          \
         (CUdeviceptr to, TYPE value, size_t count, CUstream stream),                                                  \
         set(to, 0, value, SIZE, count, 1, stream, DEFAULT_STREAM))                                                    \
    PAIR(cuMemsetD2D##NAME##_v2, cuMemsetD2D##NAME##_v2_ptds,                                                          \
         (CUdeviceptr to, size_t pitch, TYPE value, size_t width, size_t rows),                                        \
         set(to, pitch, value, SIZE, width, rows, NULL, DEFAULT_STREAM))                                               \
    PAIR(cuMemsetD2D##NAME##Async, cuMemsetD2D##NAME##Async_ptsz,                                                      \
         (CUdeviceptr to, size_t pitch, TYPE value, size_t width, size_t rows, CUstream stream),                       \
         set(to, pitch, value, SIZE, width, rows, stream, DEFAULT_STREAM))
SET(8, unsigned char, 1)
SET(16, unsigned short, 2)
SET(32, unsigned int, 4)

#define SET32(NAME, TYPE)                                                                                              \
    ENTRY(cuMemsetD##NAME, (CUdeviceptr_v1 to, TYPE value, unsigned int count),                                        \
          ((void)to, (void)value, (void)count, old_generation()))                                                      \
    ENTRY(cuMemsetD2D##NAME,                                                                                           \
          (CUdeviceptr_v1 to, unsigned int pitch, TYPE value, unsigned int width, unsigned int rows),                  \
          ((void)to, (void)pitch, (void)value, (void)width, (void)rows, old_generation()))
SET32(8, unsigned char)
SET32(16, unsigned short)
SET32(32, unsigned int)
