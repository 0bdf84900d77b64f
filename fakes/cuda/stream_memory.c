/* Streams that write values into memory and wait for values there.
 *
 * What was queued before is waited for in the calling thread, as with copies. A value that is not there yet is waited for
 * by a thread of the stream's; later copies and executed kernels of that stream wait for it in the calling thread. */
#include <stdlib.h>
#include <string.h>

#include "fake.h"
#include "graph.h"

enum { OPERATIONS_MAX = 256, WAIT_FLUSH = 1 << 30 };

struct work {
    struct ctx *ctx;
    unsigned count, next;
    CUstreamBatchMemOpParams op[];
};

static int is_wait(int operation) {
    return operation == CU_STREAM_MEM_OP_WAIT_VALUE_32 || operation == CU_STREAM_MEM_OP_WAIT_VALUE_64;
}

static unsigned width(int operation) {
    switch (operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
    case CU_STREAM_MEM_OP_WRITE_VALUE_32: return 4;
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
    case CU_STREAM_MEM_OP_WRITE_VALUE_64: return 8;
    default: return 0;
    }
}

CUresult memory_ops_judge(const CUstreamBatchMemOpParams *op, unsigned count, unsigned flags) {
    if (!op || count > OPERATIONS_MAX || flags) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; i++) {
        int operation = (int)op[i].operation;
        unsigned bytes = width(operation), how = is_wait(operation) ? op[i].waitValue.flags : op[i].writeValue.flags;
        char *at;
        if (!bytes) {
            if (operation == CU_STREAM_MEM_OP_BARRIER) continue;
            return operation == CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES ? CUDA_ERROR_NOT_SUPPORTED /* no such device */
                                                                     : CUDA_ERROR_INVALID_VALUE;
        }
        if (is_wait(operation) ? (how & ~(unsigned)WAIT_FLUSH) > CU_STREAM_WAIT_VALUE_NOR
                               : how > CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER)
            return CUDA_ERROR_INVALID_VALUE;
        if (how & WAIT_FLUSH) return CUDA_ERROR_NOT_SUPPORTED;
        if (op[i].waitValue.address % bytes || memory_resolve(op[i].waitValue.address, bytes, 'r', 0, &at))
            return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

static int holds(const CUstreamBatchMemOpParams *op, const char *at) {
    int wide = op->operation == CU_STREAM_MEM_OP_WAIT_VALUE_64;
    uint64_t seen = wide ? __atomic_load_n((const uint64_t *)(const void *)at, __ATOMIC_ACQUIRE)
                         : __atomic_load_n((const uint32_t *)(const void *)at, __ATOMIC_ACQUIRE),
             value = wide ? op->waitValue.value64 : op->waitValue.value;
    switch (op->waitValue.flags) {
    case CU_STREAM_WAIT_VALUE_GEQ: /* cyclic, as documented */
        return wide ? (int64_t)(seen - value) >= 0 : (int32_t)((uint32_t)seen - (uint32_t)value) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ: return seen == value;
    case CU_STREAM_WAIT_VALUE_AND: return (seen & value) != 0;
    default: return wide ? ~(seen | value) != 0 : (uint32_t)~(seen | value) != 0;
    }
}

/* Goes on from where it stopped; 1: all is done, or memory went away under it, which is the context's error. */
static int step(void *data) {
    struct work *w = data;
    for (; w->next < w->count; w->next++) {
        const CUstreamBatchMemOpParams *op = &w->op[w->next];
        unsigned bytes = width((int)op->operation);
        int wait = is_wait((int)op->operation);
        char *at;
        if (!bytes) continue;
        if (memory_resolve(op->waitValue.address, bytes, wait ? 'r' : 'w', 0, &at)) {
            ctx_fault(w->ctx);
            return 1;
        }
        if (wait && !holds(op, at)) return 0;
        if (!wait && bytes == 4) __atomic_store_n((uint32_t *)(void *)at, op->writeValue.value, __ATOMIC_RELEASE);
        if (!wait && bytes == 8) __atomic_store_n((uint64_t *)(void *)at, op->writeValue.value64, __ATOMIC_RELEASE);
    }
    return 1;
}

CUresult memory_ops_run(struct ctx *ctx, struct stream *s, const CUstreamBatchMemOpParams *op, unsigned count) {
    struct work *w = malloc(sizeof *w + count * sizeof *op);
    if (!w) return CUDA_ERROR_OUT_OF_MEMORY;
    w->ctx = ctx;
    w->count = count;
    w->next = 0;
    memcpy(w->op, op, count * sizeof *op);
    stream_wait(s);
    CUresult result = CUDA_SUCCESS;
    if (!step(w) && (result = stream_block(s, step, w)) == CUDA_SUCCESS) return result;
    free(w);
    return result ? result : ctx_trouble(ctx);
}

static CUresult batch(CUstream handle, unsigned count, const CUstreamBatchMemOpParams *op, unsigned flags,
                      int default_stream) {
    struct ctx *ctx;
    CUresult result = need_ctx(&ctx);
    if (result) return result;
    struct stream *s = stream_of(ctx, handle, default_stream);
    if ((result = memory_ops_judge(op, count, flags)) != CUDA_SUCCESS) return result;
    if (capturing()) {
        struct capture *c;
        if ((result = stream_use(ctx, s, &c)) != CUDA_SUCCESS) return result;
        if (c) return memory_ops_capture(ctx, c, s, op, count);
    }
    return memory_ops_run(ctx, s, op, count);
}
PAIR(cuStreamBatchMemOp_v2, cuStreamBatchMemOp_v2_ptsz,
     (CUstream stream, unsigned int count, CUstreamBatchMemOpParams *op, unsigned int flags),
     batch(stream, count, op, flags, DEFAULT_STREAM))

static CUresult one(CUstream stream, int operation, CUdeviceptr at, uint64_t value, unsigned flags,
                    int default_stream) {
    CUstreamBatchMemOpParams op = {
        .waitValue = {.operation = (CUstreamBatchMemOpType)operation, .address = at, .flags = flags}};
    if (width(operation) == 8) op.waitValue.value64 = value;
    else op.waitValue.value = (cuuint32_t)value;
    return batch(stream, 1, &op, 0, default_stream);
}
#define VALUE(NAME, OPERATION, TYPE)                                                                                   \
    PAIR(NAME##_v2, NAME##_v2_ptsz, (CUstream stream, CUdeviceptr at, TYPE value, unsigned int flags),                 \
         one(stream, CU_STREAM_MEM_OP_##OPERATION, at, value, flags, DEFAULT_STREAM))                                  \
    PAIR(NAME, NAME##_ptsz, (CUstream stream, CUdeviceptr at, TYPE value, unsigned int flags),                         \
         ((void)at, (void)value, (void)flags, first_version(stream, DEFAULT_STREAM)))

/* The first version of these calls wants a driver that was loaded with them switched on: no device here has that. */
static CUresult first_version(CUstream stream, int default_stream) {
    struct ctx *ctx;
    CUresult result = need_ctx(&ctx);
    if (result) return result;
    (void)stream_of(ctx, stream, default_stream);
    return CUDA_ERROR_NOT_SUPPORTED;
}
VALUE(cuStreamWaitValue32, WAIT_VALUE_32, cuuint32_t)
VALUE(cuStreamWriteValue32, WRITE_VALUE_32, cuuint32_t)
VALUE(cuStreamWaitValue64, WAIT_VALUE_64, cuuint64_t)
VALUE(cuStreamWriteValue64, WRITE_VALUE_64, cuuint64_t)
PAIR(cuStreamBatchMemOp, cuStreamBatchMemOp_ptsz,
     (CUstream stream, unsigned int count, CUstreamBatchMemOpParams *op, unsigned int flags),
     ((void)count, (void)op, (void)flags, first_version(stream, DEFAULT_STREAM)))
