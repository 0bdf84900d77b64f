/* Launches: checks, modelled time on the device's queue, and the few kernels whose meaning is known.
 *
 * A kernel takes the time of its waves of threads; when it has them is the schedule's business (turns.h). `vadd`
 * and `mail` (by name and parameter list) do their work when they are submitted; a kernel that waits for the GPU's clock
 * takes as long as its argument says; every other kernel only takes time and is reported as not executed. */
#include "fake.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "bridge.h"
#include "graph.h"
#include "history.h"
#include "hl_layout_history.h"
#include "module.h"
#include "turns.h"

enum {
    THREADS_MAX = 1024,
    BLOCK_Z_MAX = 64,
    GRID_YZ_MAX = 65535,
    GRID_X_MAX = 2147483647,
    WAVE_NS = 2000,
    RESERVED_SHARED = 1024,
    WARP = 32
};

static const char sentence[] = "the little gpu man says you've got mail";

static unsigned blocks_per_sm(const struct hl_node_device *d, const struct entry *e, uint64_t threads,
                              uint64_t shared) {
    if (threads > e->max_threads || threads == 0) return 0;
    uint64_t warps = (threads + WARP - 1) / WARP, most = d->blocks_per_sm;
    uint64_t by_threads = d->threads_per_sm / WARP / warps;
    uint64_t registers = ((uint64_t)e->registers * WARP + 255) / 256 * 256 * warps;
    uint64_t by_registers = registers ? d->registers_per_sm / registers : most;
    /* Beyond 48 KiB the kernel must have opted in; the block itself reserves a kilobyte since compute capability 8. */
    uint64_t block_shared = (shared + e->shared + 127) / 128 * 128 + (d->cc_major >= 8 ? RESERVED_SHARED : 0);
    uint64_t by_shared = shared + e->shared ? d->shared_bytes_per_sm / block_shared : most;
    if (by_threads < most) most = by_threads;
    if (by_registers < most) most = by_registers;
    return (unsigned)(by_shared < most ? by_shared : most);
}

static inline uint64_t waves_ns(const struct hl_node_device *d, const struct shape *s) {
    uint64_t blocks = (uint64_t)s->grid[0] * s->grid[1] * s->grid[2],
             threads = (uint64_t)s->block[0] * s->block[1] * s->block[2];
    unsigned __int128 all = (unsigned __int128)blocks * threads; /* 2^31 x 2^16 x 2^16 x 2^10 does not fit 64 bits */
    uint64_t resident = (uint64_t)d->sm_count * d->threads_per_sm;
    unsigned __int128 waves = all <= resident ? 1 : (all + resident - 1) / resident;
    return waves > UINT64_MAX / WAVE_NS / 4 ? UINT64_MAX / 4 : (uint64_t)waves * WAVE_NS;
}

/* ---- kernels that are known ------------------------------------------------------------------------------- */

/* Every page of the range is mapped in this process. */
static int is_mapped(CUdeviceptr at, uint64_t bytes) {
    enum { PAGE = 4096, AT_ONCE = 256 };
    unsigned char pages[AT_ONCE];
    for (uint64_t page = at / PAGE * PAGE; page < at + bytes; page += PAGE * AT_ONCE) {
        uint64_t left = at + bytes - page;
        if (mincore((void *)(uintptr_t)page, left < PAGE * AT_ONCE ? left : PAGE * AT_ONCE, pages)) return 0;
    }
    return at != 0 && at + bytes >= at;
}

/* Bytes a kernel reads or writes; an address that is not the program's is an error of the kernel, not of its launch. A
 * device whose memory is the host's reaches whatever the program has. */
static char *touch(struct ctx *ctx, CUdeviceptr at, uint64_t bytes, int access) {
    char *out;
    uint64_t offset;
    fake_lock();
    struct alloc *a = memory_at(at, &offset);
    int foreign = a && !a->data && a->device != ctx->device && a->kind != HL_KIND_MANAGED &&
                  !(ctx->peers & 1u << a->device); /* another device's memory, and it is no peer */
    fake_unlock();
    int anywhere = physical(ctx->device)->integrated && is_mapped(at, bytes);
    if (!foreign && memory_resolve(at, bytes, access, anywhere, &out) == CUDA_SUCCESS) return out;
    ctx_fault(ctx);
    return NULL;
}

static CUresult run_vadd(struct ctx *ctx, const struct shape *s, const unsigned char *p, const struct entry *e,
                         uint64_t threads, uint64_t *ns) {
    CUdeviceptr a, b, c;
    uint32_t n;
    memcpy(&a, p + e->parameter[0].offset, 8);
    memcpy(&b, p + e->parameter[1].offset, 8);
    memcpy(&c, p + e->parameter[2].offset, 8);
    memcpy(&n, p + e->parameter[3].offset, 4);
    uint64_t count = n < threads ? n : threads;
    if (count == 0) return CUDA_SUCCESS;
    char *x = touch(ctx, a, count * 4, 'r'), *y = touch(ctx, b, count * 4, 'r'), *z = touch(ctx, c, count * 4, 'w');
    if (!x || !y || !z) return CUDA_SUCCESS;
    if (bridge_wanted()) return bridge_run(ctx, HL_RUN_VADD, s, count, &(struct bridge_data){x, y, z}, ns);
    for (uint64_t i = 0; i < count; i++) {
        float l, r;
        memcpy(&l, x + 4 * i, 4);
        memcpy(&r, y + 4 * i, 4);
        l += r;
        memcpy(z + 4 * i, &l, 4);
    }
    return CUDA_SUCCESS;
}

static CUresult run_mail(struct ctx *ctx, const struct shape *s, const unsigned char *p, const struct entry *e,
                         uint64_t threads, uint64_t *ns) {
    CUdeviceptr out;
    uint32_t n;
    memcpy(&out, p + e->parameter[0].offset, 8);
    memcpy(&n, p + e->parameter[1].offset, 4);
    uint64_t count = n < threads ? n : threads;
    char *to = count ? touch(ctx, out, count, 'w') : NULL;
    if (to && bridge_wanted()) return bridge_run(ctx, HL_RUN_MAIL, s, count, &(struct bridge_data){.out = to}, ns);
    for (uint64_t i = 0; to && i < count; i++) to[i] = sentence[i % (sizeof sentence - 1)];
    return CUDA_SUCCESS;
}

/* fill(out, value, n): n words; copy(to, from, n): n words. A thread a word, along x. */
static void run_fill(struct ctx *ctx, const unsigned char *p, const struct entry *e, uint64_t threads) {
    CUdeviceptr out;
    uint32_t value, n;
    memcpy(&out, p + e->parameter[0].offset, 8);
    memcpy(&value, p + e->parameter[1].offset, 4);
    memcpy(&n, p + e->parameter[2].offset, 4);
    uint64_t count = n < threads ? n : threads;
    char *to = count ? touch(ctx, out, count * 4, 'w') : NULL;
    for (uint64_t i = 0; to && i < count; i++) memcpy(to + 4 * i, &value, 4);
}

static void run_copy(struct ctx *ctx, const unsigned char *p, const struct entry *e, uint64_t threads) {
    CUdeviceptr to, from;
    uint32_t n;
    memcpy(&to, p + e->parameter[0].offset, 8);
    memcpy(&from, p + e->parameter[1].offset, 8);
    memcpy(&n, p + e->parameter[2].offset, 4);
    uint64_t count = n < threads ? n : threads;
    if (count == 0) return;
    char *s = touch(ctx, from, count * 4, 'r'), *d = touch(ctx, to, count * 4, 'w');
    if (s && d) memmove(d, s, count * 4);
}

/* ---- launching -------------------------------------------------------------------------------------------- */

static CUresult gather(const struct entry *e, void **params, void **extra, unsigned char *buffer) {
    if (params) {
        for (uint32_t i = 0; i < e->count; i++)
            memcpy(buffer + e->parameter[i].offset, params[i], e->parameter[i].size);
        return CUDA_SUCCESS;
    }
    if (!extra) return e->count ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    const void *from = NULL;
    size_t bytes = 0;
    for (void **at = extra; at[0] != CU_LAUNCH_PARAM_END; at += 2) {
        if (at[0] == CU_LAUNCH_PARAM_BUFFER_POINTER) from = at[1];
        else if (at[0] == CU_LAUNCH_PARAM_BUFFER_SIZE) bytes = *(size_t *)at[1];
        else return CUDA_ERROR_INVALID_VALUE;
    }
    if (from) memcpy(buffer, from, bytes < e->bytes ? bytes : e->bytes);
    return CUDA_SUCCESS;
}

static CUresult check(const struct function *f, const struct shape *s) {
    uint64_t threads = (uint64_t)s->block[0] * s->block[1] * s->block[2];
    if (s->grid[0] == 0 || s->grid[1] == 0 || s->grid[2] == 0 || threads == 0 || threads > f->entry->max_threads)
        return CUDA_ERROR_INVALID_VALUE;
    if (s->block[0] > THREADS_MAX || s->block[1] > THREADS_MAX || s->block[2] > BLOCK_Z_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    if (s->grid[0] > GRID_X_MAX || s->grid[1] > GRID_YZ_MAX || s->grid[2] > GRID_YZ_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    return s->shared > (unsigned)f->settings.dynamic_shared ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static void not_executed(const struct ctx *ctx, const struct entry *e, uint16_t name, uint64_t ns) {
    __atomic_fetch_add(&hl_node.process->not_executed, 1, __ATOMIC_RELAXED);
    if (__builtin_expect(hl_node.header->history_level == 0, 1)) return;
    struct hl_event event = {.event = HL_EVENT_NOT_EXECUTED,
                             .source = HL_SOURCE_FAKE,
                             .route = HL_ROUTE_NONE,
                             .device = (uint8_t)ctx->device,
                             .name = name,
                             .step = 0xFFFF,
                             .a = e->hash,
                             .b = ns};
    hl_history_add(&event);
}

/* Does what the kernel of a known meaning does, from its packed parameters; *ns becomes how long it takes. */
static CUresult execute(struct ctx *ctx, const struct entry *e, const struct shape *s, const unsigned char *values,
                        struct stream *queue, uint64_t *ns) {
    unsigned __int128 all = (unsigned __int128)s->grid[0] * s->block[0]; /* these kernels count along x */
    uint64_t along_x = all > UINT32_MAX ? UINT32_MAX : (uint64_t)all;
    if (e->behaviour != DOES_SPIN && __atomic_load_n(&queue->pending, __ATOMIC_ACQUIRE))
        stream_wait(queue); /* host work before it */
    if (e->behaviour == DOES_VADD) return run_vadd(ctx, s, values, e, along_x, ns);
    if (e->behaviour == DOES_MAIL) return run_mail(ctx, s, values, e, along_x, ns);
    if (e->behaviour == DOES_MAIL_ALL) return run_mail(ctx, s, values, e, UINT64_MAX, ns); /* threads stride over it */
    if (e->behaviour == DOES_FILL) run_fill(ctx, values, e, along_x);
    else if (e->behaviour == DOES_COPY) run_copy(ctx, values, e, along_x);
    else memcpy(ns, values, sizeof *ns);
    return CUDA_SUCCESS;
}

/* SMs that the kernel fills, at most all. */
static uint32_t width(const struct hl_node_device *d, const struct entry *e, const struct shape *s) {
    uint64_t blocks = (uint64_t)s->grid[0] * s->grid[1] * s->grid[2],
             threads = (uint64_t)s->block[0] * s->block[1] * s->block[2];
    uint64_t each = blocks_per_sm(d, e, threads, s->shared);
    if (each == 0 || blocks / each >= d->sm_count) return d->sm_count;
    return (uint32_t)((blocks + each - 1) / each);
}

/* Queues the kernel; *past: what of this process is over. Returns the moment of its end. */
static uint64_t submitted(struct ctx *ctx, struct stream *queue, const struct entry *e, const struct shape *s,
                          uint64_t ns, uint64_t *past) {
    const struct hl_node_device *d = physical(ctx->device);
    struct hl_work work = {.ns = hl_scaled(ns), .after = stream_start(queue)};
    if (__builtin_expect(d->sharing == HL_SHARING_CONCURRENT, 0)) work.sms = width(d, e, s);
    uint64_t end = hl_turns_submit(hl_node.base, hl_node.slot, ctx->device, &work, hl_now_ns(), past);
    stream_work(queue, end);
    return end;
}

/* A context queues so many launches; the next call waits until the oldest of them has ended. */
static void wait_for_room(struct ctx *ctx, uint64_t end, uint64_t past) {
    /* No locked operation here: two threads at once may share a place, which makes the queue one launch longer. */
    uint32_t next = __atomic_load_n(&ctx->queue_next, __ATOMIC_RELAXED), place = next % QUEUE_DEPTH;
    __atomic_store_n(&ctx->queue_next, next + 1, __ATOMIC_RELAXED);
    uint64_t before = __atomic_load_n(&ctx->queued[place], __ATOMIC_RELAXED);
    __atomic_store_n(&ctx->queued[place], end, __ATOMIC_RELAXED);
    if (__builtin_expect(before > past, 0)) moment_wait(before);
}

static CUresult too_large(const struct ctx *ctx, const struct entry *e, const struct shape *s) {
    const struct hl_node_device *d = physical(ctx->device);
    uint64_t blocks = (uint64_t)s->grid[0] * s->grid[1] * s->grid[2],
             threads = (uint64_t)s->block[0] * s->block[1] * s->block[2];
    return blocks > (uint64_t)blocks_per_sm(d, e, threads, s->shared) * d->sm_count
               ? CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE
               : CUDA_SUCCESS;
}

static CUresult parameters_given(const struct entry *e, void **params, void **extra) {
    return !params == !extra && (extra ? extra[0] != CU_LAUNCH_PARAM_END : e->count != 0) ? CUDA_ERROR_INVALID_VALUE
                                                                                          : CUDA_SUCCESS;
}

/* While something captures: 0 with *taken = 1 when the launch became a node. */
static CUresult captured(struct ctx *ctx, struct stream *queue, CUfunction handle, const struct shape *s, void **params,
                         void **extra, int cooperative, int *taken) {
    struct capture *c;
    CUresult result = stream_use(ctx, queue, &c);
    if (result || !c) return result;
    struct node *n = capture_add(c, queue, CU_GRAPH_NODE_TYPE_KERNEL);
    if (!n) return CUDA_ERROR_OUT_OF_MEMORY;
    *taken = 1;
    result = kernel_prepare(ctx, n, handle, s, params, extra, cooperative);
    if (result) capture_undo(c, queue, n);
    return result;
}

/* Whether the launch is one that the device could do. A capture does not survive one that it could not: assumed,
 * and what was measured (the graph of it has no nodes to count) fits. */
static CUresult judge(struct ctx *ctx, const struct function *f, const struct shape *s, struct stream *queue,
                      void **params, void **extra, int cooperative) {
    CUresult result = check(f, s);
    if (result == CUDA_SUCCESS && cooperative) result = too_large(ctx, f->entry, s);
    if (result == CUDA_SUCCESS) result = parameters_given(f->entry, params, extra);
    if (__builtin_expect(result, 0) && capturing()) (void)capture_forbids(queue);
    return result;
}

static CUresult launch(struct hl_call *call, CUfunction handle, const struct shape *s, CUstream stream, void **params,
                       void **extra, int cooperative, int default_stream) {
    struct ctx *ctx;
    struct function *f;
    CUresult result = need_ctx(&ctx);
    if (__builtin_expect(result, 0)) return result;
    if ((result = function_of(ctx, handle, &f)) != CUDA_SUCCESS) return result;
    const struct hl_node_device *d = physical(ctx->device);
    const struct entry *e = f->entry;
    struct stream *queue = stream_of(ctx, stream, default_stream);
    if ((result = judge(ctx, f, s, queue, params, extra, cooperative)) != CUDA_SUCCESS) return result;
    if (capturing()) {
        int taken = 0;
        result = captured(ctx, queue, handle, s, params, extra, cooperative, &taken);
        if (result || taken) return result;
    }
    if ((result = limits_fit(ctx, e->local, e->uses)) != CUDA_SUCCESS) return result;
    uint64_t ns = waves_ns(d, s);
    if (d->latency_ns[HL_LATENCY_LAUNCH]) hl_latency(ctx->device, HL_LATENCY_LAUNCH);
    if (e->behaviour == DOES_NOTHING_KNOWN) {
        not_executed(ctx, e, call->name, ns);
    } else {
        unsigned char buffer[4096] = {0};
        if (e->bytes > sizeof buffer || (result = gather(e, params, extra, buffer)) != CUDA_SUCCESS)
            return result ? result : CUDA_ERROR_INVALID_VALUE;
        if ((result = execute(ctx, e, s, buffer, queue, &ns)) != CUDA_SUCCESS) return result;
    }
    uint64_t past, end = submitted(ctx, queue, e, s, ns, &past);
    wait_for_room(ctx, end, past);
    return CUDA_SUCCESS;
}

/* ---- kernels in graphs ------------------------------------------------------------------------------------- */

CUresult kernel_prepare(struct ctx *ctx, struct node *n, CUfunction handle, const struct shape *s, void **params,
                        void **extra, int cooperative) {
    struct function *f;
    CUresult result = function_of(ctx, handle, &f);
    if (result == CUDA_SUCCESS) result = check(f, s);
    if (result == CUDA_SUCCESS) result = parameters_given(f->entry, params, extra);
    if (result == CUDA_SUCCESS && cooperative) result = too_large(ctx, f->entry, s);
    if (result) return result;
    const struct entry *e = f->entry;
    unsigned char *values = calloc(1, e->bytes ? e->bytes : 1);
    void **pointers = calloc(e->count ? e->count : 1, sizeof *pointers);
    result = values && pointers ? gather(e, params, extra, values) : CUDA_ERROR_OUT_OF_MEMORY;
    if (result) {
        free(values);
        free(pointers);
        return result;
    }
    for (uint32_t i = 0; i < e->count; i++) pointers[i] = values + e->parameter[i].offset;
    free(n->kernel.values);
    free(n->kernel.pointers);
    n->kernel.handle = handle;
    n->kernel.ctx = ctx;
    n->kernel.shape = *s;
    n->kernel.values = values;
    n->kernel.pointers = pointers;
    n->kernel.cooperative = cooperative;
    return CUDA_SUCCESS;
}

CUresult kernel_run(struct ctx *ctx, struct node *n, struct stream *queue) {
    struct function *f;
    CUresult result = function_of(ctx, n->kernel.handle, &f);
    if (result) return result;
    const struct entry *e = f->entry;
    if ((result = limits_fit(ctx, e->local, e->uses)) != CUDA_SUCCESS) return result;
    uint64_t ns = waves_ns(physical(ctx->device), &n->kernel.shape);
    if (e->behaviour == DOES_NOTHING_KNOWN) not_executed(ctx, e, HL_cuGraphLaunch, ns);
    else result = execute(ctx, e, &n->kernel.shape, n->kernel.values, queue, &ns);
    if (result) return result;
    (void)submitted(ctx, queue, e, &n->kernel.shape, ns, NULL);
    return CUDA_SUCCESS;
}

#define LAUNCH(NAME, DS)                                                                                               \
    API NAME(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,        \
             unsigned int bz, unsigned int shared, CUstream stream, void **params, void **extra);                      \
    API NAME(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,        \
             unsigned int bz, unsigned int shared, CUstream stream, void **params, void **extra) {                     \
        ENTER(NAME);                                                                                                   \
        struct shape s = {{gx, gy, gz}, {bx, by, bz}, shared};                                                         \
        LEAVE(launch(&call, f, &s, stream, params, extra, 0, DS), (uint64_t)gx * gy * gz, (uintptr_t)f);               \
    }
LAUNCH(cuLaunchKernel, 1)
LAUNCH(cuLaunchKernel_ptsz, 2)

#define COOPERATIVE(NAME, DS)                                                                                          \
    API NAME(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,        \
             unsigned int bz, unsigned int shared, CUstream stream, void **params);                                    \
    API NAME(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,        \
             unsigned int bz, unsigned int shared, CUstream stream, void **params) {                                   \
        ENTER(NAME);                                                                                                   \
        struct shape s = {{gx, gy, gz}, {bx, by, bz}, shared};                                                         \
        LEAVE(launch(&call, f, &s, stream, params, NULL, 1, DS), (uint64_t)gx * gy * gz, (uintptr_t)f);                \
    }
COOPERATIVE(cuLaunchCooperativeKernel, 1)
COOPERATIVE(cuLaunchCooperativeKernel_ptsz, 2)

static CUresult launch_ex(struct hl_call *call, const CUlaunchConfig *c, CUfunction f, void **params, void **extra,
                          int default_stream) {
    CUresult result = need_init();
    if (result) return result;
    if (!c || (c->numAttrs && !c->attrs)) return CUDA_ERROR_INVALID_VALUE;
    int cooperative = 0;
    for (unsigned i = 0; i < c->numAttrs; i++)
        if (c->attrs[i].id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) cooperative = c->attrs[i].value.cooperative;
    struct shape s = {
        {c->gridDimX, c->gridDimY, c->gridDimZ}, {c->blockDimX, c->blockDimY, c->blockDimZ}, c->sharedMemBytes};
    return launch(call, f, &s, c->hStream, params, extra, cooperative, default_stream);
}
#define LAUNCH_EX(NAME, DS)                                                                                            \
    API NAME(const CUlaunchConfig *config, CUfunction f, void **params, void **extra);                                 \
    API NAME(const CUlaunchConfig *config, CUfunction f, void **params, void **extra) {                                \
        ENTER(NAME);                                                                                                   \
        LEAVE(launch_ex(&call, config, f, params, extra, DS), 0, (uintptr_t)f);                                        \
    }
LAUNCH_EX(cuLaunchKernelEx, 1)
LAUNCH_EX(cuLaunchKernelEx_ptsz, 2)

/* Several devices at once: each launch is judged by itself first. Deprecated, and grids may not wait for each other. */
static CUresult multi_device(struct hl_call *call, CUDA_LAUNCH_PARAMS *list, unsigned count, unsigned flags) {
    struct ctx *ctx;
    CUresult result = need_ctx(&ctx);
    if (result) return result;
    if (!list || count == 0 || flags > 3) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; i++) {
        uintptr_t value = (uintptr_t)list[i].hStream;
        if (value <= 2) return CUDA_ERROR_INVALID_VALUE; /* the default streams are not for this */
        for (unsigned k = 0; k < i; k++)
            if (stream_of(ctx, list[k].hStream, 1)->ctx->device == stream_of(ctx, list[i].hStream, 1)->ctx->device)
                return CUDA_ERROR_INVALID_DEVICE;
    }
    for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++) {
        const CUDA_LAUNCH_PARAMS *p = &list[i];
        struct shape s = {
            {p->gridDimX, p->gridDimY, p->gridDimZ}, {p->blockDimX, p->blockDimY, p->blockDimZ}, p->sharedMemBytes};
        struct ctx *keep = fake_current;
        fake_current = stream_of(ctx, p->hStream, 1)->ctx;
        result = launch(call, p->function, &s, p->hStream, p->kernelParams, NULL, 1, 1);
        fake_current = keep;
    }
    return result;
}
API cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned int count, unsigned int flags) {
    ENTER(cuLaunchCooperativeKernelMultiDevice);
    LEAVE(multi_device(&call, list, count, flags), count, 0);
}

/* ---- the old way: state in the function ------------------------------------------------------------------- */

static CUresult old_function(CUfunction handle, struct ctx **ctx, struct function **f) {
    CUresult result = need_ctx(ctx);
    return result ? result : function_of(*ctx, handle, f);
}

static CUresult old_launch(struct hl_call *call, CUfunction handle, unsigned x, unsigned y, CUstream stream) {
    struct ctx *ctx;
    struct function *f;
    CUresult result = old_function(handle, &ctx, &f);
    if (result) return result;
    struct shape s = {{x, y, 1}, {f->block[0], f->block[1], f->block[2]}, (unsigned)f->old_shared};
    size_t bytes = sizeof f->old_params;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, f->old_params, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                     CU_LAUNCH_PARAM_END};
    return launch(call, handle, &s, stream, NULL, extra, 0, 1);
}
API cuLaunch(CUfunction f) {
    ENTER(cuLaunch);
    LEAVE(old_launch(&call, f, 1, 1, NULL), 1, (uintptr_t)f);
}
API cuLaunchGrid(CUfunction f, int width, int height) {
    ENTER(cuLaunchGrid);
    LEAVE(old_launch(&call, f, (unsigned)width, (unsigned)height, NULL), (uint64_t)width * (uint64_t)height,
          (uintptr_t)f);
}
API cuLaunchGridAsync(CUfunction f, int width, int height, CUstream stream) {
    ENTER(cuLaunchGridAsync);
    LEAVE(old_launch(&call, f, (unsigned)width, (unsigned)height, stream), (uint64_t)width * (uint64_t)height,
          (uintptr_t)f);
}

static CUresult old_shape(CUfunction handle, int x, int y, int z) {
    struct ctx *ctx;
    struct function *f;
    CUresult result = old_function(handle, &ctx, &f);
    if (result) return result;
    if (x <= 0 || y <= 0 || z <= 0) return CUDA_ERROR_INVALID_VALUE;
    f->block[0] = (unsigned)x;
    f->block[1] = (unsigned)y;
    f->block[2] = (unsigned)z;
    return CUDA_SUCCESS;
}
ENTRY(cuFuncSetBlockShape, (CUfunction f, int x, int y, int z), old_shape(f, x, y, z))

static CUresult old_shared(CUfunction handle, unsigned bytes) {
    struct ctx *ctx;
    struct function *f;
    CUresult result = old_function(handle, &ctx, &f);
    if (result == CUDA_SUCCESS) f->old_shared = bytes;
    return result;
}
ENTRY(cuFuncSetSharedSize, (CUfunction f, unsigned int bytes), old_shared(f, bytes))

static CUresult old_param(CUfunction handle, int offset, const void *data, unsigned bytes) {
    struct ctx *ctx;
    struct function *f;
    CUresult result = old_function(handle, &ctx, &f);
    if (result) return result;
    if (offset < 0 || (uint64_t)offset + bytes > sizeof f->old_params || (bytes && !data))
        return CUDA_ERROR_INVALID_VALUE;
    if (bytes) memcpy(f->old_params + offset, data, bytes);
    return CUDA_SUCCESS;
}
ENTRY(cuParamSetSize, (CUfunction f, unsigned int bytes), old_param(f, 0, NULL, 0 * bytes))
ENTRY(cuParamSetv, (CUfunction f, int offset, void *data, unsigned int bytes), old_param(f, offset, data, bytes))
ENTRY(cuParamSeti, (CUfunction f, int offset, unsigned int value), old_param(f, offset, &value, sizeof value))
ENTRY(cuParamSetf, (CUfunction f, int offset, float value), old_param(f, offset, &value, sizeof value))
/* Takes references of a module only, of which no image that is read here has any (measured: 1). */
static CUresult texture_param(CUfunction handle, int unit, CUtexref reference) {
    CUresult result = old_param(handle, 0, NULL, 0);
    if (result) return result;
    return unit == CU_PARAM_TR_DEFAULT && !reference ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
}
ENTRY(cuParamSetTexRef, (CUfunction f, int unit, CUtexref reference), texture_param(f, unit, reference))

/* ---- occupancy -------------------------------------------------------------------------------------------- */

static CUresult resident(int *out, CUfunction handle, int threads, size_t shared, unsigned flags) {
    struct ctx *ctx;
    struct function *f;
    CUresult result = need_ctx(&ctx);
    if (result) return result;
    if (!out || threads <= 0 || flags > 1) return CUDA_ERROR_INVALID_VALUE;
    if ((result = function_of(ctx, handle, &f)) != CUDA_SUCCESS) return result;
    *out = shared > (size_t)f->settings.dynamic_shared
               ? 0
               : (int)blocks_per_sm(physical(ctx->device), f->entry, (uint64_t)threads, shared);
    return CUDA_SUCCESS;
}
ENTRY(cuOccupancyMaxActiveBlocksPerMultiprocessor, (int *blocks, CUfunction f, int threads, size_t shared),
      resident(blocks, f, threads, shared, 0))
ENTRY(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
      (int *blocks, CUfunction f, int threads, size_t shared, unsigned int flags),
      resident(blocks, f, threads, shared, flags))

/* The largest block among those with the most resident threads. */
static CUresult potential(int *grid, int *block, CUfunction handle, CUoccupancyB2DSize size, size_t shared, int limit,
                          unsigned flags) {
    struct ctx *ctx;
    struct function *f;
    CUresult result = need_ctx(&ctx);
    if (result) return result;
    if (!grid || !block || limit < 0 || flags > 1) return CUDA_ERROR_INVALID_VALUE;
    if ((result = function_of(ctx, handle, &f)) != CUDA_SUCCESS) return result;
    int most = (int)f->entry->max_threads, best = 0;
    if (limit && limit < most) most = limit;
    for (int threads = (most + WARP - 1) / WARP * WARP; threads > 0; threads -= WARP) {
        int used = threads < most ? threads : most;
        unsigned n = blocks_per_sm(physical(ctx->device), f->entry, (uint64_t)used, size ? size(used) : shared);
        if ((int)n * used > best) {
            best = (int)n * used;
            *block = used;
            *grid = (int)(n * physical(ctx->device)->sm_count);
        }
    }
    return best ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
ENTRY(cuOccupancyMaxPotentialBlockSize,
      (int *grid, int *block, CUfunction f, CUoccupancyB2DSize size, size_t shared, int limit),
      potential(grid, block, f, size, shared, limit, 0))
ENTRY(cuOccupancyMaxPotentialBlockSizeWithFlags,
      (int *grid, int *block, CUfunction f, CUoccupancyB2DSize size, size_t shared, int limit, unsigned int flags),
      potential(grid, block, f, size, shared, limit, flags))

static CUresult available(size_t *out, CUfunction handle, int blocks, int threads) {
    struct ctx *ctx;
    struct function *f;
    CUresult result = need_ctx(&ctx);
    if (result) return result;
    if (!out || blocks <= 0 || threads <= 0) return CUDA_ERROR_INVALID_VALUE;
    if ((result = function_of(ctx, handle, &f)) != CUDA_SUCCESS) return result;
    const struct hl_node_device *d = physical(ctx->device);
    if ((unsigned)blocks > blocks_per_sm(d, f->entry, (uint64_t)threads, 0)) return CUDA_ERROR_INVALID_VALUE;
    uint64_t each = d->shared_bytes_per_sm / (unsigned)blocks / 128 *
                    128; /* the reserve of a block is not taken off, as measured */
    each = each > f->entry->shared ? each - f->entry->shared : 0;
    *out = each > (uint64_t)f->settings.dynamic_shared ? (size_t)f->settings.dynamic_shared : each;
    return CUDA_SUCCESS;
}
ENTRY(cuOccupancyAvailableDynamicSMemPerBlock, (size_t *shared, CUfunction f, int blocks, int threads),
      available(shared, f, blocks, threads))

/* Clusters: how many multiprocessors share what they need is not known, so all may be filled (assumed). */
static CUresult clusters(int *out, CUfunction handle, const CUlaunchConfig *config, int potential_size) {
    enum { PORTABLE = 8 };
    struct ctx *ctx;
    struct function *f;
    CUresult result = need_ctx(&ctx);
    if (result) return result;
    if (!out || !config || (config->numAttrs && !config->attrs)) return CUDA_ERROR_INVALID_VALUE;
    if ((result = function_of(ctx, handle, &f)) != CUDA_SUCCESS) return result;
    const struct hl_node_device *d = physical(ctx->device);
    if (d->cc_major < 9) return CUDA_ERROR_NOT_SUPPORTED;
    uint64_t threads = (uint64_t)config->blockDimX * config->blockDimY * config->blockDimZ, size = 1;
    if (threads == 0) return CUDA_ERROR_INVALID_VALUE;
    unsigned each = blocks_per_sm(d, f->entry, threads, config->sharedMemBytes);
    if (potential_size) {
        *out = each ? PORTABLE : 0;
        return CUDA_SUCCESS;
    }
    for (unsigned i = 0; i < config->numAttrs; i++)
        if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
            size = (uint64_t)config->attrs[i].value.clusterDim.x * config->attrs[i].value.clusterDim.y *
                   config->attrs[i].value.clusterDim.z;
    if (size == 0) return CUDA_ERROR_INVALID_VALUE;
    if (size > PORTABLE) return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    *out = (int)((uint64_t)each * d->sm_count / size);
    return CUDA_SUCCESS;
}
ENTRY(cuOccupancyMaxActiveClusters, (int *count, CUfunction f, const CUlaunchConfig *config),
      clusters(count, f, config, 0))
ENTRY(cuOccupancyMaxPotentialClusterSize, (int *size, CUfunction f, const CUlaunchConfig *config),
      clusters(size, f, config, 1))
