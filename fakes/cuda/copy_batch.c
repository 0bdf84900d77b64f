/* Several copies in one call. Judged as a whole where documented, then carried out in order; a batch is no graph node. */
#include "array.h"
#include "fake.h"
#include "graph.h"

static CUresult enter(CUstream handle, int default_stream, struct ctx **ctx, struct stream **s) {
    CUresult result = need_ctx(ctx);
    if (result) return result;
    *s = stream_of(*ctx, handle, default_stream);
    if (*s == &(*ctx)->legacy) return CUDA_ERROR_INVALID_VALUE; /* documented: not the legacy stream */
    return capturing() && (*s)->capture ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS; /* and it goes on */
}

static int order_known(CUmemcpySrcAccessOrder order) {
    return order >= CU_MEMCPY_SRC_ACCESS_ORDER_STREAM && order <= CU_MEMCPY_SRC_ACCESS_ORDER_ANY;
}

static CUresult flat(CUdeviceptr *to, CUdeviceptr *from, const size_t *bytes, size_t count,
                     const CUmemcpyAttributes *how, const size_t *first, size_t how_count, size_t *failed,
                     CUstream handle, int default_stream) {
    struct ctx *ctx;
    struct stream *s;
    if (failed) *failed = SIZE_MAX; /* no single copy is to blame */
    CUresult result = enter(handle, default_stream, &ctx, &s);
    if (result) return result;
    if (!to || !from || !bytes || count == 0 || !how || !first || how_count == 0 || how_count > count || first[0])
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < how_count; i++)
        if ((i && first[i] <= first[i - 1]) || first[i] >= count || !order_known(how[i].srcAccessOrder) ||
            how[i].flags > CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE)
            return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
        result = bytes[i] ? copy_flat(ctx, s, to[i], from[i], bytes[i]) : CUDA_ERROR_INVALID_VALUE;
        if (result && failed) *failed = i;
    }
    return result;
}
#define FLAT(NAME, FAILED_PARAMETER, FAILED)                                                                           \
    PAIR(NAME, NAME##_ptsz,                                                                                            \
         (CUdeviceptr * to, CUdeviceptr * from, size_t *bytes, size_t count, CUmemcpyAttributes *how, size_t *first,   \
          size_t how_count FAILED_PARAMETER, CUstream stream),                                                         \
         flat(to, from, bytes, count, how, first, how_count, FAILED, stream, DEFAULT_STREAM))
#define NOTHING
#define FAILED_COMMA , size_t *failed
FLAT(cuMemcpyBatchAsync, FAILED_COMMA, failed)
FLAT(cuMemcpyBatchAsync_v2, NOTHING, NULL)

/* One side of a copy of elements: pointers count rows in elements of one byte, arrays in their own. */
static CUresult side(const CUmemcpy3DOperand *o, CUmemorytype *type, CUdeviceptr *at, CUarray *array, size_t *x,
                     size_t *y, size_t *z, size_t *pitch, size_t *height, size_t *element) {
    if (o->type == CU_MEMCPY_OPERAND_TYPE_POINTER) {
        *type = CU_MEMORYTYPE_UNIFIED;
        *at = o->op.ptr.ptr;
        *pitch = o->op.ptr.rowLength; /* in elements: the caller multiplies */
        *height = o->op.ptr.layerHeight;
        return *at ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    }
    if (o->type != CU_MEMCPY_OPERAND_TYPE_ARRAY) return CUDA_ERROR_INVALID_VALUE;
    if (!o->op.array.array) fake_crash();
    const struct array *a = array_of(o->op.array.array);
    if (!a) return CUDA_ERROR_INVALID_HANDLE;
    *type = CU_MEMORYTYPE_ARRAY;
    *array = o->op.array.array;
    *element = a->element;
    *x = o->op.array.offset.x;
    *y = o->op.array.offset.y;
    *z = o->op.array.offset.z;
    return CUDA_SUCCESS;
}

static CUresult boxed(const CUDA_MEMCPY3D_BATCH_OP *op, CUDA_MEMCPY3D *out) {
    size_t from_element = 0, to_element = 0;
    *out = (CUDA_MEMCPY3D){0};
    CUresult result = side(&op->src, &out->srcMemoryType, &out->srcDevice, &out->srcArray, &out->srcXInBytes,
                           &out->srcY, &out->srcZ, &out->srcPitch, &out->srcHeight, &from_element);
    if (result == CUDA_SUCCESS)
        result = side(&op->dst, &out->dstMemoryType, &out->dstDevice, &out->dstArray, &out->dstXInBytes, &out->dstY,
                      &out->dstZ, &out->dstPitch, &out->dstHeight, &to_element);
    if (result) return result;
    if (from_element && to_element && from_element != to_element) return CUDA_ERROR_INVALID_VALUE;
    size_t element = from_element ? from_element : to_element ? to_element : 1;
    out->srcXInBytes *= element;
    out->dstXInBytes *= element;
    out->WidthInBytes = op->extent.width * element;
    out->srcPitch = out->srcPitch ? out->srcPitch * element : out->WidthInBytes;
    out->dstPitch = out->dstPitch ? out->dstPitch * element : out->WidthInBytes;
    out->Height = op->extent.height;
    out->Depth = op->extent.depth;
    return copy_judge(out);
}

static CUresult boxes(size_t count, const CUDA_MEMCPY3D_BATCH_OP *ops, size_t *failed, unsigned long long flags,
                      CUstream handle, int default_stream) {
    struct ctx *ctx;
    struct stream *s;
    if (failed) *failed = SIZE_MAX;
    CUresult result = enter(handle, default_stream, &ctx, &s);
    if (result) return result;
    if (!ops || count == 0 || flags) return CUDA_ERROR_INVALID_VALUE;
    CUDA_MEMCPY3D what;
    for (size_t i = 0; i < count; i++) {
        result = order_known(ops[i].srcAccessOrder) && ops[i].flags <= CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE
                     ? boxed(&ops[i], &what)
                     : CUDA_ERROR_INVALID_VALUE;
        if (result == CUDA_SUCCESS) continue;
        if (failed) *failed = i;
        return result;
    }
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
        result = boxed(&ops[i], &what);
        if (result == CUDA_SUCCESS) result = copy_run(ctx, &what, s);
        if (result && failed) *failed = i;
    }
    return result;
}
PAIR(cuMemcpy3DBatchAsync, cuMemcpy3DBatchAsync_ptsz,
     (size_t count, CUDA_MEMCPY3D_BATCH_OP *ops, size_t *failed, unsigned long long flags, CUstream stream),
     boxes(count, ops, failed, flags, stream, DEFAULT_STREAM))
PAIR(cuMemcpy3DBatchAsync_v2, cuMemcpy3DBatchAsync_v2_ptsz,
     (size_t count, CUDA_MEMCPY3D_BATCH_OP *ops, unsigned long long flags, CUstream stream),
     boxes(count, ops, NULL, flags, stream, DEFAULT_STREAM))
