/* Tensor maps: what a driver asks of a description is asked here, and a map is made that is opaque, the same for the same
 * description. Nothing reads through one: no kernel that is executed uses tensor memory access. The rules are the documented
 * ones but for what an H200 lets pass: a NULL address, a map at any address, dimensions above 2^31, 32 B without a swizzle. */
#include "fake.h"

#include <string.h>

enum { MAX_RANK = 5, FIRST_PACKED = 13, PACKED_4_ALIGN_8 = 13, BLACKWELL = 10 };

struct region { /* what all three forms have in common */
    int type, interleave, swizzle, l2, fill;
    uint32_t rank;
    const void *address;
    const cuuint64_t *dims, *strides;
    const cuuint32_t *steps;
};

struct map { /* the 128 bytes */
    uint64_t address, dims[MAX_RANK], strides[MAX_RANK - 1];
    uint32_t what, box[MAX_RANK];
    uint16_t steps[MAX_RANK], corners;
};
_Static_assert(sizeof(struct map) <= sizeof(CUtensorMap), "a map has 128 bytes");

static unsigned element_bytes(int type) {
    static const uint8_t bytes[FIRST_PACKED] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};
    return type < FIRST_PACKED ? bytes[type] : 1;
}

static int is_float(int type) {
    return type >= CU_TENSOR_MAP_DATA_TYPE_FLOAT16 && type <= CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ;
}

/* Packed values that are spread to 16 bytes each. */
static int is_spread(int type) { return type > PACKED_4_ALIGN_8; }

static unsigned span_of(int swizzle) { return swizzle == 0 ? 0 : swizzle < 3 ? 16u << swizzle : 128; }

/* 1: as documented. inner: elements of the box along dimension zero. */
static int fits(const struct ctx *ctx, const CUtensorMap *out, const struct region *r, uint32_t inner) {
    int none = r->interleave == CU_TENSOR_MAP_INTERLEAVE_NONE, wide = r->interleave == CU_TENSOR_MAP_INTERLEAVE_32B;
    unsigned last = physical(ctx->device)->cc_major >= BLACKWELL ? 15 : FIRST_PACKED - 1;
    uint64_t align = wide || is_spread(r->type) ? 32 : 16, bytes = (uint64_t)inner * element_bytes(r->type);
    if (!out || !r->dims || !r->steps) return 0;
    if ((unsigned)r->type > last || (unsigned)r->interleave > 2 || (unsigned)r->swizzle > 6 || (unsigned)r->l2 > 3 ||
        (unsigned)r->fill > 1)
        return 0;
    if (r->rank == 0 || r->rank > MAX_RANK || (!none && r->rank < 3) || (r->rank > 1 && !r->strides)) return 0;
    if ((uintptr_t)r->address % align || (r->fill && !is_float(r->type)) || (is_spread(r->type) && !none)) return 0;
    if ((is_spread(r->type) && r->dims[0] % 128) || (r->type == PACKED_4_ALIGN_8 && r->dims[0] % 2)) return 0;
    for (uint32_t i = 0; i < r->rank; i++) {
        if (r->dims[i] == 0 || r->dims[i] > 1ull << 32 || r->steps[i] == 0 || r->steps[i] > 8) return 0;
        if (i + 1 < r->rank && (r->strides[i] % align || r->strides[i] >= 1ull << 40)) return 0;
    }
    if (inner == 0 || inner > 256 || (is_spread(r->type) && inner != 128)) return 0;
    if (none && r->type < FIRST_PACKED && bytes % 16) return 0;
    return !none || !r->swizzle || r->type >= FIRST_PACKED || bytes <= span_of(r->swizzle);
}

static void make(CUtensorMap *out, const struct region *r, uint32_t form, const uint32_t *box, uint32_t count) {
    struct map map = {.address = (uintptr_t)r->address,
                      .what = form | (uint32_t)r->type << 4 | r->rank << 8 | (uint32_t)r->interleave << 12 |
                              (uint32_t)r->swizzle << 16 | (uint32_t)r->l2 << 20 | (uint32_t)r->fill << 24};
    for (uint32_t i = 0; i < r->rank; i++) {
        map.dims[i] = r->dims[i];
        map.steps[i] = (uint16_t)r->steps[i];
        if (i + 1 < r->rank) map.strides[i] = r->strides[i];
    }
    memcpy(map.box, box, count * sizeof *box);
    memset(out, 0, sizeof *out);
    memcpy(out, &map, sizeof map);
}

/* Which devices have it: those that say so, from compute capability 9.0 on. */
static CUresult supported(struct ctx **ctx) {
    CUresult result = need_ctx(ctx);
    if (result) return result;
    return physical((*ctx)->device)->cc_major >= 9 ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult tiled(CUtensorMap *out, const struct region *r, const cuuint32_t *box) {
    struct ctx *ctx;
    CUresult result = supported(&ctx);
    if (result) return result;
    if (!box || !fits(ctx, out, r, box[0])) return CUDA_ERROR_INVALID_VALUE;
    for (uint32_t i = 0; i < r->rank; i++)
        if (box[i] == 0 || box[i] > 256) return CUDA_ERROR_INVALID_VALUE;
    make(out, r, 1, box, r->rank);
    return CUDA_SUCCESS;
}

/* Corners in the order of the dimensions between the channels and the batch. */
static CUresult im2col(CUtensorMap *out, const struct region *r, const int *low, const int *high, uint32_t corners,
                       uint32_t channels, uint32_t pixels) {
    static const int limit[4] = {0, 32768, 128, 16};
    struct ctx *ctx;
    CUresult result = supported(&ctx);
    if (result) return result;
    if (r->rank < 3 || !low || !high || corners > 3 || !fits(ctx, out, r, channels) || pixels > 1024)
        return CUDA_ERROR_INVALID_VALUE;
    uint32_t box[MAX_RANK] = {channels, pixels};
    for (uint32_t i = 0; i < corners; i++) {
        int most = limit[corners];
        if (low[i] < -most || low[i] >= most || high[i] < -most || high[i] >= most) return CUDA_ERROR_INVALID_VALUE;
        /* Upper corners count from the far end. */
        if ((int64_t)r->dims[i + 1] + high[i] - low[i] <= 0) return CUDA_ERROR_INVALID_VALUE;
        box[2 + i] = (uint32_t)(uint16_t)low[i] | (uint32_t)(uint16_t)high[i] << 16;
    }
    make(out, r, corners == r->rank - 2 ? 2 : 3, box, MAX_RANK);
    return CUDA_SUCCESS;
}

static CUresult wide(CUtensorMap *out, const struct region *r, int low, int high, uint32_t channels, uint32_t pixels,
                     int mode) {
    struct ctx *ctx;
    CUresult result = supported(&ctx);
    if (result) return result;
    if ((unsigned)mode > 1 || r->swizzle < CU_TENSOR_MAP_SWIZZLE_64B ||
        r->swizzle > CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B)
        return CUDA_ERROR_INVALID_VALUE;
    return im2col(out, r, &low, &high, 1, channels, mode ? 0 : pixels);
}

#define COMMON                                                                                                         \
    CUtensorMap *out, CUtensorMapDataType type, cuuint32_t rank, void *address, const cuuint64_t *dims,                \
        const cuuint64_t *strides
#define TAIL CUtensorMapSwizzle swizzle, CUtensorMapL2promotion l2, CUtensorMapFloatOOBfill fill
#define REGION                                                                                                         \
    (&(struct region){.type = (int)type,                                                                               \
                      .interleave = (int)interleave,                                                                   \
                      .swizzle = (int)swizzle,                                                                         \
                      .l2 = (int)l2,                                                                                   \
                      .fill = (int)fill,                                                                               \
                      .rank = rank,                                                                                    \
                      .address = address,                                                                              \
                      .dims = dims,                                                                                    \
                      .strides = strides,                                                                              \
                      .steps = steps})
ENTRY(cuTensorMapEncodeTiled,
      (COMMON, const cuuint32_t *box, const cuuint32_t *steps, CUtensorMapInterleave interleave, TAIL),
      tiled(out, REGION, box))
ENTRY(cuTensorMapEncodeIm2col,
      (COMMON, const int *low, const int *high, cuuint32_t channels, cuuint32_t pixels, const cuuint32_t *steps,
       CUtensorMapInterleave interleave, TAIL),
      im2col(out, REGION, low, high, rank - 2, channels, pixels))
ENTRY(cuTensorMapEncodeIm2colWide,
      (COMMON, int low, int high, cuuint32_t channels, cuuint32_t pixels, const cuuint32_t *steps,
       CUtensorMapInterleave interleave, CUtensorMapIm2ColWideMode mode, TAIL),
      wide(out, REGION, low, high, channels, pixels, (int)mode))

static CUresult replace(CUtensorMap *out, const void *address) {
    struct ctx *ctx;
    CUresult result = supported(&ctx);
    if (result) return result;
    uint64_t to = (uintptr_t)address;
    if (!out || !address || to % 16) return CUDA_ERROR_INVALID_VALUE;
    memcpy((char *)out + offsetof(struct map, address), &to, sizeof to);
    return CUDA_SUCCESS;
}
ENTRY(cuTensorMapReplaceAddress, (CUtensorMap * out, void *address), replace(out, address))
