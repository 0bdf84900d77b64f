/* Limits of a context and the memory they take without any allocation call: local memory (stacks) for every thread that can
 * be resident, the device's own functions, the device heap. It is of kind OTHER and goes with the context.
 *
 * Measured on an H200: a larger stack is taken at once, a smaller one given back, below the default too (the context then
 * holds less). A kernel whose variables need more local memory than there is raises the limit at its launch. A module that
 * prints takes 64 MiB, one that allocates 76 MiB, whatever the limits are; the heap itself comes with the first launch of a
 * kernel of such a module, and its size cannot be changed from then on. */
#include <string.h>

#include "fake.h"

enum { STACK_DEFAULT = 1024, STACK_STEP = 16, STACK_MOST = 512 << 10 };

void limits_begin(struct ctx *ctx) {
    static const size_t limit[LIMITS] = {STACK_DEFAULT, 8650752, 8388608, 2, 2048, 128, 0, 0, 0, 0, 0, 0};
    memcpy(ctx->limit, limit, sizeof limit);
    ctx->local = STACK_DEFAULT;
    ctx->local_bytes = 0;
    ctx->functions_bytes = 0;
    ctx->loaded = ctx->ran = 0;
}

uint64_t limits_end(struct ctx *ctx) {
    uint64_t other = ctx->functions_bytes + (ctx->local_bytes > 0 ? (uint64_t)ctx->local_bytes : 0);
    if (other) hl_phys_give(ctx->device, HL_KIND_OTHER, other);
    ctx->functions_bytes = 0;
    return ctx->local_bytes < 0 ? (uint64_t)-ctx->local_bytes : 0;
}

/* Moves one kind's part of the local memory. 0, or -1: the device is full. */
static int move(const struct ctx *ctx, uint32_t kind, int64_t from, int64_t to) {
    if (to > from) return hl_phys_take(ctx->device, kind, (uint64_t)(to - from));
    if (to < from) hl_phys_give(ctx->device, kind, (uint64_t)(from - to));
    return 0;
}

static int64_t less(int64_t bytes) { return bytes < 0 ? bytes : 0; }
static int64_t more(int64_t bytes) { return bytes > 0 ? bytes : 0; }

/* Measured: 16 KiB of stack take 4,152,360,960 bytes on a device of 132 x 2048 threads, beyond what the default of 1 KiB
 * already has. */
static CUresult set_local(struct ctx *ctx, size_t each) {
    const struct hl_node_device *d = physical(ctx->device);
    each = (each + STACK_STEP - 1) / STACK_STEP * STACK_STEP;
    if (each > STACK_MOST) return CUDA_ERROR_INVALID_VALUE;
    int64_t wanted = ((int64_t)each - STACK_DEFAULT) * (int64_t)((uint64_t)d->sm_count * d->threads_per_sm);
    wanted = wanted > 0 ? (wanted + BLOCK - 1) / BLOCK * BLOCK : wanted / BLOCK * BLOCK;
    /* A small card's context has room for fewer threads' stacks than the rule says. */
    if (-wanted > (int64_t)(d->context_bytes / 2)) wanted = -(int64_t)(d->context_bytes / 2 / BLOCK * BLOCK);
    fake_lock();
    int64_t held = ctx->local_bytes;
    int full = move(ctx, HL_KIND_CONTEXT, less(held), less(wanted));
    if (!full && move(ctx, HL_KIND_OTHER, more(held), more(wanted))) {
        (void)move(ctx, HL_KIND_CONTEXT, less(wanted), less(held));
        full = 1;
    }
    if (!full) {
        ctx->local_bytes = wanted;
        ctx->local = ctx->limit[CU_LIMIT_STACK_SIZE] = each;
    }
    fake_unlock();
    return full ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static int take(struct ctx *ctx, uint64_t bytes) {
    if (hl_phys_take(ctx->device, HL_KIND_OTHER, bytes)) return -1;
    ctx->functions_bytes += bytes;
    return 0;
}

CUresult limits_module(struct ctx *ctx, unsigned uses) {
    const struct hl_node_device *d = physical(ctx->device);
    unsigned fresh = uses & ~ctx->loaded;
    if ((fresh & USES_PRINTF) && take(ctx, d->printing_bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    ctx->loaded |= fresh & USES_PRINTF;
    if ((fresh & USES_HEAP) && take(ctx, d->allocating_bytes)) return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED;
    ctx->loaded |= fresh;
    return CUDA_SUCCESS;
}

CUresult limits_launch(struct ctx *ctx, uint64_t local, unsigned uses) {
    CUresult result = local > ctx->local ? set_local(ctx, local) : CUDA_SUCCESS;
    if (result) return result;
    fake_lock();
    unsigned fresh = uses & ~ctx->ran;
    uint64_t heap = (ctx->limit[CU_LIMIT_MALLOC_HEAP_SIZE] + BLOCK - 1) / BLOCK * BLOCK + BLOCK;
    if ((fresh & USES_HEAP) && take(ctx, heap)) result = CUDA_ERROR_OUT_OF_MEMORY;
    else ctx->ran |= fresh;
    fake_unlock();
    return result;
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
    if (result) return result;
    if (limit == CU_LIMIT_STACK_SIZE) return set_local(ctx, value);
    if ((limit == CU_LIMIT_PRINTF_FIFO_SIZE && (ctx->ran & USES_PRINTF)) ||
        (limit == CU_LIMIT_MALLOC_HEAP_SIZE && (ctx->ran & USES_HEAP)))
        return CUDA_ERROR_INVALID_VALUE;
    ctx->limit[limit] = value;
    return CUDA_SUCCESS;
}
ENTRY(cuCtxSetLimit, (CUlimit limit, size_t value), set_limit(limit, value))
