/* Contexts: primary and own, the thread's stack, flags. A context takes its modelled device memory while it is
 * alive; ending it frees everything it holds. */
#include "fake.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "foreign.h"
#include "graph.h"
#include "module.h"

enum { FLAG_MASK = 0xff };

/* ---- the thread's stack: fake_current is its top, the rest lies in `below` ------------------------------ */

struct stack {
    struct ctx **below;
    unsigned depth, room; /* entries under the top */
    unsigned has_top;     /* 1 when there is a top entry (which may be NULL) */
};
static __thread struct stack stack __attribute__((tls_model("initial-exec")));
static pthread_key_t stack_key;
static pthread_once_t stack_once = PTHREAD_ONCE_INIT;

static void make_key(void) { (void)pthread_key_create(&stack_key, free); }

static int stack_push(struct ctx *ctx) {
    if (stack.has_top) {
        if (stack.depth == stack.room) {
            unsigned room = stack.room ? stack.room * 2 : 8;
            struct ctx **more = realloc(stack.below, room * sizeof *more);
            if (!more) return -1;
            stack.below = more;
            stack.room = room;
            pthread_once(&stack_once, make_key);
            pthread_setspecific(stack_key, more); /* freed when the thread ends */
        }
        stack.below[stack.depth++] = fake_current;
    }
    fake_current = ctx;
    stack.has_top = ctx != NULL;
    return 0;
}

static struct ctx *stack_pop(void) {
    struct ctx *top = fake_current;
    fake_current = stack.depth ? stack.below[--stack.depth] : NULL;
    stack.has_top = fake_current != NULL;
    return top;
}

static void stack_set(struct ctx *ctx) {
    if (!ctx) {
        if (stack.has_top) (void)stack_pop();
        return;
    }
    fake_current = ctx;
    stack.has_top = 1;
}

/* ---- birth and end --------------------------------------------------------------------------------------- */

void ctx_fault(struct ctx *ctx) {
    int before = 0;
    if (__atomic_compare_exchange_n(&ctx->sticky, &before, CUDA_ERROR_ILLEGAL_ADDRESS, 0, __ATOMIC_RELEASE,
                                    __ATOMIC_RELAXED))
        hl_xid(ctx->device, HL_XID_MEMORY_FAULT);
}

CUresult ctx_trouble(const struct ctx *ctx) {
    if (!__atomic_load_n(&ctx->alive, __ATOMIC_ACQUIRE)) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (ctx->sticky) return (CUresult)ctx->sticky;
    return physical(ctx->device)->lost ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

CUresult context_new(uint32_t device, unsigned flags, unsigned api, int primary, struct ctx *reuse, struct ctx **out) {
    struct ctx *ctx = reuse ? reuse : calloc(1, sizeof *ctx);
    if (!ctx) return CUDA_ERROR_OUT_OF_MEMORY;
    if (physical(device)->lost) return CUDA_ERROR_UNKNOWN;
    if (hl_phys_take(device, HL_KIND_CONTEXT, physical(device)->context_bytes)) {
        if (!reuse) free(ctx);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    fake_lock();
    ctx->magic = MAGIC_CTX;
    ctx->device = device;
    ctx->flags = flags;
    ctx->api = api;
    ctx->primary = primary;
    ctx->attached = 1;
    ctx->sticky = 0;
    ctx->id = fake.next_ctx_id++;
    ctx->allocs = NULL;
    ctx->streams = NULL;
    ctx->modules = NULL;
    ctx->arrays = NULL;
    ctx->peers = 0;
    ctx->cache = CU_FUNC_CACHE_PREFER_NONE;
    limits_begin(ctx);
    heap_init(&ctx->sync, device, HL_KIND_SYNC, 1, 1, 0);
    heap_init(&ctx->managed, device, HL_KIND_MANAGED, 1, 0, 0);
    heap_init(&ctx->module, device, HL_KIND_MODULE, 1, 1, 0);
    ctx->module.covered = 1; /* measured: the first small modules of a context take nothing */
    stream_init(&ctx->legacy, ctx, 0, 0);
    stream_init(&ctx->per_thread, ctx, 0, 0);
    ctx->per_thread.per_thread = 1;
    if (!reuse) {
        ctx->next = fake.contexts;
        fake.contexts = ctx;
    }
    __atomic_store_n(&ctx->alive, 1, __ATOMIC_RELEASE);
    fake_unlock();
    __atomic_fetch_add(&hl_node.process->device[device].context_count, 1, __ATOMIC_RELAXED);
    hl_latency(device, HL_LATENCY_CONTEXT_CREATE);
    *out = ctx;
    return CUDA_SUCCESS;
}

void context_end(struct ctx *ctx) {
    context_wait(ctx);
    fake_lock();
    __atomic_store_n(&ctx->alive, 0, __ATOMIC_RELEASE);
    modules_end(ctx);
    arrays_end(ctx);
    imports_end(ctx);
    while (ctx->allocs) memory_end(ctx->allocs);
    lent_heap_ends(&ctx->sync);
    for (struct stream *s = ctx->streams; s; s = s->next) s->magic = MAGIC_DEAD;
    ctx->streams = NULL;
    uint64_t less = limits_end(ctx);
    fake_unlock();
    hl_phys_give(ctx->device, HL_KIND_CONTEXT, physical(ctx->device)->context_bytes - less);
    __atomic_fetch_sub(&hl_node.process->device[ctx->device].context_count, 1, __ATOMIC_RELAXED);
    hl_latency(ctx->device, HL_LATENCY_CONTEXT_DESTROY);
}

/* A handle from the program: NULL and destroyed ones are told apart, anything else is the program's crash. */
static struct ctx *ctx_of(CUcontext handle) {
    struct ctx *ctx = (struct ctx *)(void *)handle;
    return ctx && ctx->magic == MAGIC_CTX ? ctx : NULL;
}

/* ---- primary contexts ------------------------------------------------------------------------------------ */

static pthread_mutex_t primary_mutex =
    PTHREAD_MUTEX_INITIALIZER; /* creation and end sleep: not under the driver's lock */

static CUresult primary_retain(CUcontext *out, CUdevice device) {
    CUresult result = need_init();
    if (result) return result;
    struct visible *v = visible_device(device);
    if (!v) return CUDA_ERROR_INVALID_DEVICE;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&primary_mutex);
    if (v->primary && v->primary->alive) hl_latency(v->physical, HL_LATENCY_CONTEXT_NESTED);
    else result = context_new(v->physical, v->primary_flags, 3020, 1, v->primary, &v->primary);
    if (result == CUDA_SUCCESS) {
        v->retained++;
        *out = (CUcontext)(void *)v->primary;
    }
    pthread_mutex_unlock(&primary_mutex);
    return result;
}

static CUresult primary_release(CUdevice device) {
    CUresult result = need_init();
    if (result) return result;
    struct visible *v = visible_device(device);
    if (!v) return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&primary_mutex);
    if (v->retained == 0) result = CUDA_ERROR_INVALID_CONTEXT;
    else if (--v->retained == 0 && v->primary->alive) context_end(v->primary);
    pthread_mutex_unlock(&primary_mutex);
    return result;
}

/* Ends the context whatever its count says; the count stays. */
static CUresult primary_reset(CUdevice device) {
    CUresult result = need_init();
    if (result) return result;
    struct visible *v = visible_device(device);
    if (!v) return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&primary_mutex);
    if (v->primary && v->primary->alive) context_end(v->primary);
    pthread_mutex_unlock(&primary_mutex);
    return CUDA_SUCCESS;
}

static int flags_ok(unsigned flags) {
    unsigned schedule = flags & CU_CTX_SCHED_MASK;
    return !(flags & ~(unsigned)FLAG_MASK) && (schedule == 0 || schedule == 1 || schedule == 2 || schedule == 4);
}

static CUresult primary_set_flags(CUdevice device, unsigned flags) {
    CUresult result = need_init();
    if (result) return result;
    struct visible *v = visible_device(device);
    if (!v) return CUDA_ERROR_INVALID_DEVICE;
    if (!flags_ok(flags)) return CUDA_ERROR_INVALID_VALUE;
    v->primary_flags = flags;
    if (v->primary) v->primary->flags = flags;
    return CUDA_SUCCESS;
}

static CUresult primary_state(CUdevice device, unsigned *flags, int *active) {
    CUresult result = need_init();
    if (result) return result;
    struct visible *v = visible_device(device);
    if (!v) return CUDA_ERROR_INVALID_DEVICE;
    if (!flags || !active) return CUDA_ERROR_INVALID_VALUE;
    *flags = v->primary_flags;
    *active = v->primary && v->primary->alive;
    return CUDA_SUCCESS;
}

CUresult context_retain_primary(CUdevice device, struct ctx **out) {
    CUcontext handle;
    CUresult result = primary_retain(&handle, device);
    if (result == CUDA_SUCCESS) *out = (struct ctx *)(void *)handle;
    return result;
}

CUresult context_release_primary(CUdevice device) { return primary_release(device); }

API cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice device) {
    ENTER(cuDevicePrimaryCtxRetain);
    CUresult result = primary_retain(ctx, device);
    LEAVE(result, device, result ? 0 : (uintptr_t)*ctx);
}
/* The older one does not mind a release too many. */
static CUresult primary_release_v1(CUdevice device) {
    CUresult result = primary_release(device);
    return result == CUDA_ERROR_INVALID_CONTEXT ? CUDA_SUCCESS : result;
}
ENTRY(cuDevicePrimaryCtxRelease, (CUdevice device), primary_release_v1(device))
ENTRY(cuDevicePrimaryCtxRelease_v2, (CUdevice device), primary_release(device))
ENTRY(cuDevicePrimaryCtxReset, (CUdevice device), primary_reset(device))
ENTRY(cuDevicePrimaryCtxReset_v2, (CUdevice device), primary_reset(device))
ENTRY(cuDevicePrimaryCtxSetFlags, (CUdevice device, unsigned int flags), primary_set_flags(device, flags))
ENTRY(cuDevicePrimaryCtxSetFlags_v2, (CUdevice device, unsigned int flags), primary_set_flags(device, flags))
ENTRY(cuDevicePrimaryCtxGetState, (CUdevice device, unsigned int *flags, int *active),
      primary_state(device, flags, active))

/* ---- contexts of one's own ------------------------------------------------------------------------------- */

static CUresult create(CUcontext *out, unsigned flags, CUdevice device, unsigned api) {
    CUresult result = need_init();
    if (result) return result;
    if (!out || !flags_ok(flags)) return CUDA_ERROR_INVALID_VALUE;
    struct visible *v = visible_device(device);
    if (!v) return CUDA_ERROR_INVALID_DEVICE;
    struct ctx *ctx;
    result = context_new(v->physical, flags, api, 0, NULL, &ctx);
    if (result) return result;
    if (stack_push(ctx)) return CUDA_ERROR_OUT_OF_MEMORY;
    *out = (CUcontext)(void *)ctx;
    return CUDA_SUCCESS;
}

ENTRY(cuCtxCreate, (CUcontext * ctx, unsigned int flags, CUdevice device), create(ctx, flags, device, 3010))
ENTRY(cuCtxCreate_v2, (CUcontext * ctx, unsigned int flags, CUdevice device), create(ctx, flags, device, 3020))

API cuCtxCreate_v3(CUcontext *ctx, CUexecAffinityParam *affinity, int count, unsigned int flags, CUdevice device);
API cuCtxCreate_v3(CUcontext *ctx, CUexecAffinityParam *affinity, int count, unsigned int flags, CUdevice device) {
    ENTER(cuCtxCreate_v3);
    /* Execution affinity needs MPS, which no fake device has. */
    CUresult result = affinity && count ? CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY : create(ctx, flags, device, 3020);
    LEAVE(result, 0, 0);
}

API cuCtxCreate_v4(CUcontext *ctx, CUctxCreateParams *parameters, unsigned int flags, CUdevice device) {
    ENTER(cuCtxCreate_v4);
    CUresult result = parameters && parameters->execAffinityParams ? CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY
                      : parameters && parameters->cigParams        ? CUDA_ERROR_NOT_SUPPORTED
                                                                   : create(ctx, flags, device, 3020);
    LEAVE(result, 0, 0);
}

static CUresult destroy(CUcontext handle) {
    CUresult result = need_init();
    if (result) return result;
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    struct ctx *ctx = ctx_of(handle);
    if (!ctx || ctx->primary) return CUDA_ERROR_INVALID_CONTEXT;
    int one = 1;
    if (!__atomic_compare_exchange_n(&ctx->alive, &one, 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    context_end(ctx);
    if (fake_current == ctx) (void)stack_pop();
    return CUDA_SUCCESS;
}
ENTRY(cuCtxDestroy, (CUcontext ctx), destroy(ctx))
ENTRY(cuCtxDestroy_v2, (CUcontext ctx), destroy(ctx))

static CUresult attach(CUcontext *out, unsigned flags) {
    struct ctx *ctx;
    CUresult result = need_ctx(&ctx);
    if (result) return result;
    if (!out || flags) return CUDA_ERROR_INVALID_VALUE;
    ctx->attached++;
    *out = (CUcontext)(void *)ctx;
    return CUDA_SUCCESS;
}
ENTRY(cuCtxAttach, (CUcontext * ctx, unsigned int flags), attach(ctx, flags))

static CUresult detach(CUcontext handle) {
    CUresult result = need_init();
    if (result) return result;
    struct ctx *ctx = ctx_of(handle);
    if (!ctx || ctx != fake_current) return CUDA_ERROR_INVALID_CONTEXT;
    if (--ctx->attached) return CUDA_SUCCESS;
    return destroy(handle);
}
ENTRY(cuCtxDetach, (CUcontext ctx), detach(ctx))

/* ---- current --------------------------------------------------------------------------------------------- */

CUresult context_push(struct ctx *ctx) { return stack_push(ctx) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS; }

static CUresult push(CUcontext handle) {
    CUresult result = need_init();
    if (result) return result;
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    struct ctx *ctx = ctx_of(handle);
    return ctx ? context_push(ctx) : CUDA_ERROR_INVALID_CONTEXT;
}
ENTRY(cuCtxPushCurrent, (CUcontext ctx), push(ctx))
ENTRY(cuCtxPushCurrent_v2, (CUcontext ctx), push(ctx))

static CUresult pop(CUcontext *out) {
    CUresult result = need_init();
    if (result) return result;
    if (!fake_current) return CUDA_ERROR_INVALID_CONTEXT;
    struct ctx *top = stack_pop();
    if (out) *out = (CUcontext)(void *)top;
    return CUDA_SUCCESS;
}
ENTRY(cuCtxPopCurrent, (CUcontext * ctx), pop(ctx))
ENTRY(cuCtxPopCurrent_v2, (CUcontext * ctx), pop(ctx))

static CUresult set_current(CUcontext handle) {
    CUresult result = need_init();
    if (result) return result;
    struct ctx *ctx = ctx_of(handle);
    if (handle && !ctx) return CUDA_ERROR_INVALID_CONTEXT;
    stack_set(ctx);
    return CUDA_SUCCESS;
}
ENTRY(cuCtxSetCurrent, (CUcontext ctx), set_current(ctx))

static CUresult get_current(CUcontext *out) {
    CUresult result = need_init();
    if (result) return result;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = (CUcontext)(void *)fake_current;
    return CUDA_SUCCESS;
}
ENTRY(cuCtxGetCurrent, (CUcontext * ctx), get_current(ctx))

/* Asks about a context, dead or not; NULL means the current one. */
static CUresult some_ctx(CUcontext handle, struct ctx **out) {
    CUresult result = need_init();
    if (result) return result;
    if (!handle && !fake_current) return CUDA_ERROR_INVALID_CONTEXT;
    *out = handle ? ctx_of(handle) : fake_current;
    return *out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

static CUresult get_device(CUdevice *out, CUcontext handle) {
    struct ctx *ctx;
    CUresult result = some_ctx(handle, &ctx);
    if (result) return result;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = ordinal_of(ctx->device);
    return CUDA_SUCCESS;
}
ENTRY(cuCtxGetDevice, (CUdevice * device), get_device(device, NULL))
ENTRY(cuCtxGetDevice_v2, (CUdevice * device, CUcontext ctx), get_device(device, ctx))

static CUresult synchronize(CUcontext handle) {
    struct ctx *ctx;
    CUresult result = some_ctx(handle, &ctx);
    if (result == CUDA_SUCCESS) result = ctx_trouble(ctx);
    if (result == CUDA_SUCCESS && capturing()) result = capture_unsafe();
    if (result) return result;
    context_wait(ctx);
    pools_settle(ctx->device);
    return ctx_trouble(ctx); /* an error of the work itself shows here */
}
ENTRY(cuCtxSynchronize, (void), synchronize(NULL))
ENTRY(cuCtxSynchronize_v2, (CUcontext ctx), synchronize(ctx))

static CUresult get_id(CUcontext handle, unsigned long long *out) {
    struct ctx *ctx;
    CUresult result = some_ctx(handle, &ctx);
    if (result) return result;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = ctx->id;
    return CUDA_SUCCESS;
}
ENTRY(cuCtxGetId, (CUcontext ctx, unsigned long long *id), get_id(ctx, id))

static CUresult get_api(CUcontext handle, unsigned *out) {
    struct ctx *ctx;
    CUresult result = some_ctx(handle, &ctx);
    if (result) return result;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = ctx->api;
    return CUDA_SUCCESS;
}
ENTRY(cuCtxGetApiVersion, (CUcontext ctx, unsigned int *version), get_api(ctx, version))

static CUresult get_flags(unsigned *out) {
    struct ctx *ctx;
    CUresult result = some_ctx(NULL, &ctx);
    if (result) return result;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = ctx->flags;
    return CUDA_SUCCESS;
}
ENTRY(cuCtxGetFlags, (unsigned int *flags), get_flags(flags))

static CUresult set_flags(unsigned flags) {
    struct ctx *ctx;
    CUresult result = need_ctx(&ctx);
    if (result) return result;
    if (!flags_ok(flags)) return CUDA_ERROR_INVALID_VALUE;
    ctx->flags = flags;
    return CUDA_SUCCESS;
}
ENTRY(cuCtxSetFlags, (unsigned int flags), set_flags(flags))

static CUresult priority_range(int *least, int *greatest) {
    struct ctx *ctx;
    CUresult result = need_ctx(&ctx);
    if (result) return result;
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return CUDA_SUCCESS;
}
ENTRY(cuCtxGetStreamPriorityRange, (int *least, int *greatest), priority_range(least, greatest))

/* ---- peers ----------------------------------------------------------------------------------------------- */

static CUresult peer(CUcontext handle, unsigned flags, int enable) {
    struct ctx *ctx;
    CUresult result = need_ctx(&ctx);
    if (result) return result;
    struct ctx *other = ctx_of(handle);
    if (!other) return CUDA_ERROR_INVALID_CONTEXT;
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    uint32_t bit = 1u << other->device;
    if (!enable) {
        if (!(ctx->peers & bit)) return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
        ctx->peers &= ~bit;
        return CUDA_SUCCESS;
    }
    if (other->device == ctx->device || !peer_possible(ctx->device, other->device))
        return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    if (ctx->peers & bit) return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    ctx->peers |= bit;
    return CUDA_SUCCESS;
}
ENTRY(cuCtxEnablePeerAccess, (CUcontext ctx, unsigned int flags), peer(ctx, flags, 1))
ENTRY(cuCtxDisablePeerAccess, (CUcontext ctx), peer(ctx, 0, 0))

/* ---- settings --------------------------------------------------------------------------------------------- */

static CUresult cache_config(CUfunc_cache *get, int set) {
    struct ctx *ctx;
    CUresult result = need_ctx(&ctx);
    if (result) return result;
    if (!get && (set < 0 || set > 3)) return CUDA_ERROR_INVALID_VALUE;
    if (get) *get = ctx->cache;
    else ctx->cache = (CUfunc_cache)set;
    return CUDA_SUCCESS;
}
ENTRY(cuCtxGetCacheConfig, (CUfunc_cache * config), config ? cache_config(config, 0) : CUDA_ERROR_INVALID_VALUE)
ENTRY(cuCtxSetCacheConfig, (CUfunc_cache config), cache_config(NULL, (int)config))

static CUresult shared_config(CUsharedconfig *get, int set) {
    struct ctx *ctx;
    CUresult result = need_ctx(&ctx);
    if (result) return result;
    if (get) *get = CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE; /* fixed on every device that the profiles know */
    else if (set < 0 || set > 2) return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}
ENTRY(cuCtxGetSharedMemConfig, (CUsharedconfig * config), config ? shared_config(config, 0) : CUDA_ERROR_INVALID_VALUE)
ENTRY(cuCtxSetSharedMemConfig, (CUsharedconfig config), shared_config(NULL, (int)config))

static CUresult reset_l2(void) {
    struct ctx *ctx;
    return need_ctx(&ctx);
}
ENTRY(cuCtxResetPersistingL2Cache, (void), reset_l2())

/* Without MPS a context has all multiprocessors. */
static CUresult get_affinity(CUexecAffinityParam *out, int type) {
    struct ctx *ctx;
    CUresult result = need_ctx(&ctx);
    if (result) return result;
    if (type != CU_EXEC_AFFINITY_TYPE_SM_COUNT) return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    out->type = CU_EXEC_AFFINITY_TYPE_SM_COUNT;
    out->param.smCount.val = physical(ctx->device)->sm_count;
    return CUDA_SUCCESS;
}
ENTRY(cuCtxGetExecAffinity, (CUexecAffinityParam * out, CUexecAffinityType type), get_affinity(out, (int)type))

/* ---- profiling: there is nothing to start or stop, and the real calls succeed without a profiler, too ---- */

static CUresult profile(void) {
    struct ctx *ctx;
    return need_ctx(&ctx);
}
ENTRY(cuProfilerStart, (void), profile())
ENTRY(cuProfilerStop, (void), profile())
