/* Contexts: what one costs is charged before the driver makes it and given back, with everything that was allocated in
 * it and not freed, when it ends.
 *
 * Invariants: calls that make or end a context take turns in this process (no lock is held meanwhile; a waiting call
 * waits for the driver's call before it, as it would inside the driver). So the first retain of a primary context is
 * charged once, and a handle that the driver uses again is not mistaken for the context that had it before. The books
 * know a context by its handle with the lowest bit set, which no allocation's address has. */
#include "preload.h"

#include "config.h"
#include "identity.h"
#include "hl_layout_history.h"
#include "ledger.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool busy;                     /* somebody has the turn */
static CUcontext primary[HL_DEVICES]; /* retained and not yet ended; whoever has the turn writes */
static uint64_t ends;                 /* contexts that ended in this process */

void hl_context_fork_child(void) {
    pthread_mutex_init(&gate, NULL);
    pthread_cond_init(&changed, NULL);
    busy = false;
    for (int device = 0; device < HL_DEVICES; device++) primary[device] = NULL;
}

uint64_t hl_context_ends(void) { return __atomic_load_n(&ends, __ATOMIC_ACQUIRE); }

static void take_turn(void) {
    pthread_mutex_lock(&gate);
    while (busy) pthread_cond_wait(&changed, &gate);
    busy = true;
    pthread_mutex_unlock(&gate);
}

static void give_turn(void) {
    pthread_mutex_lock(&gate);
    busy = false;
    pthread_cond_signal(&changed);
    pthread_mutex_unlock(&gate);
}

static uint64_t learned[HL_DEVICES]; /* what the first context took by NVML's word; whoever has the turn writes */
static bool learning;                /* HOOKLAB_CONTEXT_BYTES=learn, or HOOKLAB_HIDDEN=observed */

/* The profile's figure, given by whoever started us; without it a context costs nothing in the books (see
 * limitations), or with `learn` (and unset, where hidden memory is observed) what NVML reported for the first one of this
 * process on the device. */
static uint64_t given_cost(void) {
    static int known;
    static uint64_t bytes;
    if (__atomic_load_n(&known, __ATOMIC_ACQUIRE)) return bytes;
    uint64_t value = 0;
    const char *text = hl_config("HOOKLAB_CONTEXT_BYTES");
    if (text && *text ? !strcmp(text, "learn") : hl_hidden_on) {
        learning = true;
    } else if (hl_parse_size(text, &value) < 0) {
        hl_log(0,
               "HOOKLAB_CONTEXT_BYTES: \"%.64s\" is not a size (digits, then k, m, g or t) or `learn`; contexts are "
               "not charged",
               text);
        value = 0;
    }
    bytes = value;
    __atomic_store_n(&known, 1, __ATOMIC_RELEASE);
    return value;
}

uint64_t hl_context_cost(int device) {
    uint64_t given = given_cost();
    return given || device < 0 || device >= HL_DEVICES ? given : learned[device];
}

static bool open_frame(void) {
    if (HL_UNLIKELY(hl_depth) || !hl_ready() || !hl_enter()) return HL_PASS_ON(false);
    take_turn();
    return true;
}

static CUresult close_frame(CUresult result) {
    give_turn();
    hl_leave();
    return result;
}

static enum hl_admission admit(struct hl_ticket *ticket, CUdevice device, CUresult *code) {
    if (device < 0 || device >= hl_devices_count() || !hl_context_cost(device))
        return HL_PASS; /* the driver says what is wrong with it */
    return hl_charge_begin(ticket, device, hl_context_cost(device), HL_KIND_CONTEXT, code);
}

static uint64_t key(CUcontext context) { return (uint64_t)(uintptr_t)context | HL_TAG_CONTEXT; }

/* The first context is made before its cost can be known: charged afterwards, and refused afterwards where it does not
 * fit. Only while nothing of ours lies on the device, so that all that NVML reports is the context. */
static enum hl_admission learn(struct hl_ticket *ticket, CUdevice device) {
    CUresult code = CUDA_SUCCESS;
    uint64_t bytes = hl_ledger_live() ? 0 : hl_probe_bytes(device, hl_identity_host_pid(device));
    if (!bytes) return HL_PASS; /* not known yet: the next context tries again */
    learned[device] = bytes;
    return hl_charge_begin(ticket, device, bytes, HL_KIND_CONTEXT, &code);
}

/* false: over the limit after all (double-check, or learned); the caller ends the context. */
static bool record(enum hl_admission admission, struct hl_ticket *ticket, CUresult result, CUcontext context,
                   CUdevice device) {
    int saved = errno;
    bool kept = true;
    if (result == CUDA_SUCCESS) {
        hl_identity_context_made(device);
        if (learning && device >= 0 && device < HL_DEVICES && !learned[device]) admission = learn(ticket, device);
        kept = admission != HL_REFUSED;
    }
    if (admission == HL_ADMITTED) {
        if (result == CUDA_SUCCESS)
            kept = !hl_ledger_settle(ticket, key(context), (uint64_t)(uintptr_t)context, ticket->bytes);
        else hl_ledger_cancel(ticket);
    }
    errno = saved;
    return kept;
}

static void ended(CUcontext context) {
    int saved = errno;
    __atomic_add_fetch(&ends, 1, __ATOMIC_ACQ_REL);
    hl_measure_context_ended(context);
    if (hl_books_usable()) hl_ledger_release_context((uint64_t)(uintptr_t)context);
    if (hl_meters_used) hl_meters_look();
    for (int device = 0; hl_hidden_on && device < hl_devices_count(); device++) hl_hidden_context_changed(device);
    errno = saved;
}

HL_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev) {
    HL_BEGIN(cuDevicePrimaryCtxRetain, CUDA_ERROR_NOT_FOUND);
    if (!pctx || !open_frame()) return HL_PASS_ON(real(pctx, dev));
    bool first = dev >= 0 && dev < HL_DEVICES && !primary[dev];
    struct hl_ticket ticket;
    CUresult code = CUDA_SUCCESS;
    enum hl_admission admission = first || dev >= HL_DEVICES ? admit(&ticket, dev, &code) : HL_PASS;
    if (admission == HL_REFUSED) {
        *pctx = NULL;
        return close_frame(code);
    }
    CUresult result = real(pctx, dev);
    if (!record(admission, &ticket, result, *pctx, dev)) {
        __typeof__(&cuDevicePrimaryCtxRelease_v2) release = HL_REAL(cuDevicePrimaryCtxRelease_v2);
        if (!release) release = HL_REAL(cuDevicePrimaryCtxRelease);
        if (release) release(dev);
        *pctx = NULL;
        return close_frame(CUDA_ERROR_OUT_OF_MEMORY);
    }
    if (first && result == CUDA_SUCCESS) {
        primary[dev] = *pctx;
        hl_hidden_context_changed(dev);
    }
    return close_frame(result);
}

/* Ended when the driver says that nobody holds it, and after a reset in any case. */
static void primary_released(CUdevice device, bool reset) {
    if (device < 0 || device >= HL_DEVICES || !primary[device]) return;
    __typeof__(&cuDevicePrimaryCtxGetState) state = HL_REAL(cuDevicePrimaryCtxGetState);
    unsigned flags = 0;
    int active = 1;
    if (!reset && (!state || state(device, &flags, &active) != CUDA_SUCCESS || active)) return;
    ended(primary[device]);
    primary[device] = NULL;
}

#define PRIMARY_END(name, reset)                                                                                       \
    HL_EXPORT CUresult CUDAAPI name(CUdevice dev) {                                                                    \
        HL_BEGIN(name, CUDA_ERROR_NOT_FOUND);                                                                          \
        if (!open_frame()) return HL_PASS_ON(real(dev));                                                               \
        CUresult result = real(dev);                                                                                   \
        if (result == CUDA_SUCCESS) primary_released(dev, reset);                                                      \
        return close_frame(result);                                                                                    \
    }
PRIMARY_END(cuDevicePrimaryCtxRelease, false)
PRIMARY_END(cuDevicePrimaryCtxRelease_v2, false)
PRIMARY_END(cuDevicePrimaryCtxReset, true)
PRIMARY_END(cuDevicePrimaryCtxReset_v2, true)

#define CREATE(name, dev, call)                                                                                        \
    HL_BEGIN(name, CUDA_ERROR_NOT_FOUND);                                                                              \
    if (!pctx || !open_frame()) return HL_PASS_ON(call);                                                               \
    struct hl_ticket ticket;                                                                                           \
    CUresult code = CUDA_SUCCESS;                                                                                      \
    enum hl_admission admission = admit(&ticket, dev, &code);                                                          \
    if (admission == HL_REFUSED) {                                                                                     \
        *pctx = NULL;                                                                                                  \
        return close_frame(code);                                                                                      \
    }                                                                                                                  \
    CUresult result = call;                                                                                            \
    if (!record(admission, &ticket, result, *pctx, dev)) {                                                             \
        __typeof__(&cuCtxDestroy_v2) destroy = HL_REAL(cuCtxDestroy_v2);                                               \
        if (destroy) destroy(*pctx);                                                                                   \
        *pctx = NULL;                                                                                                  \
        result = CUDA_ERROR_OUT_OF_MEMORY;                                                                             \
    }                                                                                                                  \
    if (result == CUDA_SUCCESS) hl_hidden_context_changed(dev);                                                        \
    return close_frame(result)

HL_EXPORT CUresult CUDAAPI cuCtxCreate(CUcontext *pctx, unsigned int flags, CUdevice dev) {
    CREATE(cuCtxCreate, dev, real(pctx, flags, dev));
}

HL_EXPORT CUresult CUDAAPI cuCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev) {
    CREATE(cuCtxCreate_v2, dev, real(pctx, flags, dev));
}

HL_EXPORT CUresult CUDAAPI cuCtxCreate_v3(CUcontext *pctx, CUexecAffinityParam *paramsArray, int numParams,
                                          unsigned int flags, CUdevice dev) {
    CREATE(cuCtxCreate_v3, dev, real(pctx, paramsArray, numParams, flags, dev));
}

HL_EXPORT CUresult CUDAAPI cuCtxCreate_v4(CUcontext *pctx, CUctxCreateParams *ctxCreateParams, unsigned int flags,
                                          CUdevice dev) {
    CREATE(cuCtxCreate_v4, dev, real(pctx, ctxCreateParams, flags, dev));
}

#define DESTROY(name)                                                                                                  \
    HL_EXPORT CUresult CUDAAPI name(CUcontext ctx) {                                                                   \
        HL_BEGIN(name, CUDA_ERROR_NOT_FOUND);                                                                          \
        if (!ctx || !open_frame()) return HL_PASS_ON(real(ctx));                                                       \
        CUresult result = real(ctx);                                                                                   \
        if (result == CUDA_SUCCESS) ended(ctx);                                                                        \
        return close_frame(result);                                                                                    \
    }
DESTROY(cuCtxDestroy)
DESTROY(cuCtxDestroy_v2)

/* Drops one use of a context; it ends with the last, which the driver tells by no longer knowing it. */
HL_EXPORT CUresult CUDAAPI cuCtxDetach(CUcontext ctx) {
    HL_BEGIN(cuCtxDetach, CUDA_ERROR_NOT_FOUND);
    if (!ctx || !open_frame()) return HL_PASS_ON(real(ctx));
    CUresult result = real(ctx);
    __typeof__(&cuCtxGetApiVersion) version = HL_REAL(cuCtxGetApiVersion);
    unsigned number = 0;
    if (result == CUDA_SUCCESS && version && version(ctx, &number) != CUDA_SUCCESS) ended(ctx);
    return close_frame(result);
}
