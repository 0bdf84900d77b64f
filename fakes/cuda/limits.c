/* Limits of a context and the memory they take without any allocation call: local memory (stacks) for every thread that can
 * be resident, the printf buffer, the device heap. All of it is of kind OTHER and goes with the context.
 *
 * Measured: a larger stack is taken at once; a larger heap is not. The heap and the printf buffer are taken when a module
 * that uses them is loaded, and cannot be changed from then on; a kernel whose own variables need more local memory than
 * there is gets it at its launch, and it stays (documented). */
#include <string.h>

#include "fake.h"

enum { STACK_DEFAULT = 1024 };

void limits_begin(struct ctx *ctx) {
    static const size_t limit[LIMITS] = {STACK_DEFAULT, 8650752, 8388608, 2, 2048, 128, 0, 0, 0, 0, 0, 0};
    memcpy(ctx->limit, limit, sizeof limit);
    ctx->local = STACK_DEFAULT;
    ctx->launched = 0;
    ctx->local_bytes = ctx->fifo_bytes = ctx->heap_bytes = 0;
}

/* Makes a part of the context's memory `wanted` bytes, in blocks. 0, or -1: the device is full. */
static int resize(const struct ctx *ctx, uint64_t *part, uint64_t wanted) {
    wanted = (wanted + BLOCK - 1) / BLOCK * BLOCK;
    if (wanted > *part && hl_phys_take(ctx->device, HL_KIND_OTHER, wanted - *part)) return -1;
    if (wanted < *part) hl_phys_give(ctx->device, HL_KIND_OTHER, *part - wanted);
    *part = wanted;
    return 0;
}

void limits_end(struct ctx *ctx) {
    (void)resize(ctx, &ctx->local_bytes, 0);
    (void)resize(ctx, &ctx->fifo_bytes, 0);
    (void)resize(ctx, &ctx->heap_bytes, 0);
}

/* Measured: 16 KiB of stack take 4,152,360,960 bytes on a device of 132 x 2048 threads, beyond what the default of 1 KiB
 * already has. */
static CUresult set_local(struct ctx *ctx, size_t each) {
    const struct hl_node_device *d = physical(ctx->device);
    uint64_t threads = (uint64_t)d->sm_count * d->threads_per_sm,
             more = each > STACK_DEFAULT ? each - STACK_DEFAULT : 0;
    if (more > d->total_bytes / threads) return CUDA_ERROR_OUT_OF_MEMORY;
    fake_lock();
    int full = resize(ctx, &ctx->local_bytes, more * threads);
    if (!full) ctx->local = each > STACK_DEFAULT ? each : STACK_DEFAULT;
    fake_unlock();
    return full ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult limits_grow(struct ctx *ctx, uint64_t local) {
    CUresult result = set_local(ctx, local);
    if (result == CUDA_SUCCESS) ctx->launched = local;
    return result;
}

CUresult limits_module(struct ctx *ctx, unsigned uses) {
    if ((uses & USES_PRINTF) && !ctx->fifo_bytes &&
        resize(ctx, &ctx->fifo_bytes, ctx->limit[CU_LIMIT_PRINTF_FIFO_SIZE]))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if ((uses & USES_HEAP) && !ctx->heap_bytes && resize(ctx, &ctx->heap_bytes, ctx->limit[CU_LIMIT_MALLOC_HEAP_SIZE]))
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED;
    return CUDA_SUCCESS;
}

static CUresult known(CUlimit limit) {
    if ((unsigned)limit >= LIMITS) return CUDA_ERROR_INVALID_VALUE;
    return limit == CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH || limit > CU_LIMIT_PERSISTING_L2_CACHE_SIZE
               ? CUDA_ERROR_UNSUPPORTED_LIMIT
               : CUDA_SUCCESS;
}

static CUresult get_limit(size_t *out, CUlimit limit) {
    struct ctx *ctx;
    CUresult result = need_ctx(&ctx);
    if (result) return result;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    if ((result = known(limit)) == CUDA_SUCCESS) *out = ctx->limit[limit];
    return result;
}
ENTRY(cuCtxGetLimit, (size_t *value, CUlimit limit), get_limit(value, limit))

static CUresult set_limit(CUlimit limit, size_t value) {
    struct ctx *ctx;
    CUresult result = need_ctx(&ctx);
    if (result == CUDA_SUCCESS) result = known(limit);
    if (result == CUDA_SUCCESS && limit == CU_LIMIT_STACK_SIZE)
        result = set_local(ctx, value > ctx->launched ? value : ctx->launched);
    if ((limit == CU_LIMIT_PRINTF_FIFO_SIZE && result == CUDA_SUCCESS && ctx->fifo_bytes) ||
        (limit == CU_LIMIT_MALLOC_HEAP_SIZE && result == CUDA_SUCCESS && ctx->heap_bytes))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) ctx->limit[limit] = value;
    return result;
}
ENTRY(cuCtxSetLimit, (CUlimit limit, size_t value), set_limit(limit, value))
