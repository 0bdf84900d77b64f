/* The launch entries: what each costs and on which stream, then the limiter, then the driver.
 *
 * Invariants: without a core limit an entry is two loads, a branch each and a jump to the driver; the thread is not even
 * marked. Under one, the driver's answer is what the caller gets; a launch that it refuses costs nothing. A launch over
 * several devices is paced on each of them before it starts. Graphs cost what their executable cost before; a host
 * function takes no GPU time and passes, but what it launches is never held back. */
#include "pacing.h"

#include <errno.h>
#include <stdlib.h>

/* The driver's entry, when there is nothing to do but to go there; NULL: look closer. */
static inline void *straight(int id) {
    void *real = __atomic_load_n(&hl_real_table[id], __ATOMIC_ACQUIRE);
    bool unlimited = __atomic_load_n(&hl_pacing, __ATOMIC_RELAXED) == HL_PACE_UNLIMITED;
    return HL_LIKELY(unlimited && !__atomic_load_n(&hl_suspended, __ATOMIC_RELAXED)) ? real : NULL;
}

static uint64_t product(uint64_t x, uint64_t y, uint64_t z) {
    unsigned __int128 all = (unsigned __int128)x * y * z; /* 2^31 x 2^16 x 2^16 fits 64 bits, nonsense may not */
    return all > INT64_MAX / 8 ? INT64_MAX / 8 : (uint64_t)all;
}

#define PACED(call)                                                                                                    \
    struct hl_pace pace;                                                                                               \
    bool paced = hl_pace_enter(&pace, &launch);                                                                        \
    CUresult result = paced ? (call) : HL_PASS_ON(call);                                                               \
    if (paced) hl_pace_leave(&pace, result);                                                                           \
    if (HL_UNLIKELY(hl_hidden_on) && result == CUDA_SUCCESS) hl_hidden_launched(launch.object);                        \
    return result

/* name, entry class, stream class, parameters, arguments, and how to describe the launch. The paced half is a function of
 * its own, so that the free half needs no stack. */
#define ENTRY_IF(name, free, call, entry_class, parameters, arguments, ...)                                            \
    static __attribute__((noinline)) CUresult paced_##name parameters {                                                \
        HL_BEGIN(name, CUDA_ERROR_NOT_FOUND);                                                                          \
        struct hl_launch launch = {.entry = entry_class, .id = HL_##name, __VA_ARGS__};                                \
        PACED(call);                                                                                                   \
    }                                                                                                                  \
    HL_EXPORT CUresult CUDAAPI name parameters {                                                                       \
        __typeof__(&name) driver = straight(HL_##name);                                                                \
        if (HL_LIKELY(driver != NULL && (free))) return driver arguments;                                              \
        return paced_##name arguments;                                                                                 \
    }
#define ENTRY(name, entry_class, parameters, arguments, ...)                                                           \
    ENTRY_IF(name, true, real arguments, entry_class, parameters, arguments, __VA_ARGS__)

#define KERNEL(name, ptsz)                                                                                             \
    ENTRY(name, HL_ENTRY_KERNEL,                                                                                       \
          (CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,          \
           unsigned int bz, unsigned int shared, CUstream stream, void **params, void **extra),                        \
          (f, gx, gy, gz, bx, by, bz, shared, stream, params, extra), .object = f, .blocks = product(gx, gy, gz),      \
          .threads = product(bx, by, bz), .stream = stream, .per_thread = ptsz)
KERNEL(cuLaunchKernel, false)
KERNEL(cuLaunchKernel_ptsz, true)

#define COOPERATIVE(name, ptsz)                                                                                        \
    ENTRY(name, HL_ENTRY_COOPERATIVE,                                                                                  \
          (CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,          \
           unsigned int bz, unsigned int shared, CUstream stream, void **params),                                      \
          (f, gx, gy, gz, bx, by, bz, shared, stream, params), .object = f, .blocks = product(gx, gy, gz),             \
          .threads = product(bx, by, bz), .stream = stream, .per_thread = ptsz)
COOPERATIVE(cuLaunchCooperativeKernel, false)
COOPERATIVE(cuLaunchCooperativeKernel_ptsz, true)

/* A configuration that is not there is the driver's to refuse. */
#define EX(name, ptsz)                                                                                                 \
    ENTRY(name, HL_ENTRY_EX, (const CUlaunchConfig *config, CUfunction f, void **params, void **extra),                \
          (config, f, params, extra), .object = f,                                                                     \
          .blocks = config ? product(config->gridDimX, config->gridDimY, config->gridDimZ) : 1,                        \
          .threads = config ? product(config->blockDimX, config->blockDimY, config->blockDimZ) : 1,                    \
          .stream = config ? config->hStream : NULL, .per_thread = ptsz)
EX(cuLaunchKernelEx, false)
EX(cuLaunchKernelEx_ptsz, true)

/* The old entries: the shape of the block lies in the function. */
ENTRY(cuLaunch, HL_ENTRY_OLD, (CUfunction f), (f), .object = f, .blocks = 1, .threads = 1)
ENTRY(cuLaunchGrid, HL_ENTRY_OLD, (CUfunction f, int width, int height), (f, width, height), .object = f,
      .blocks = product((unsigned)width, (unsigned)height, 1), .threads = 1)
ENTRY(cuLaunchGridAsync, HL_ENTRY_OLD, (CUfunction f, int width, int height, CUstream stream),
      (f, width, height, stream), .object = f, .blocks = product((unsigned)width, (unsigned)height, 1), .threads = 1,
      .stream = stream)

/* How many blocks a graph holds is not known here: for a policy that counts blocks it costs one. One that allocates is
 * charged on its way (graphs.c). */
#define GRAPH(name, ptsz)                                                                                              \
    ENTRY_IF(name, !__atomic_load_n(&hl_graph_memory, __ATOMIC_RELAXED), hl_graph_launch(real, graph, stream),         \
             HL_ENTRY_GRAPH, (CUgraphExec graph, CUstream stream), (graph, stream), .object = graph, .blocks = 1,      \
             .threads = 0, .stream = stream, .per_thread = ptsz)
GRAPH(cuGraphLaunch, false)
GRAPH(cuGraphLaunch_ptsz, true)

/* ---- several devices at once ---- */

enum { TOGETHER = 16 };

static CUresult paced_multi(__typeof__(&cuLaunchCooperativeKernelMultiDevice) real, CUDA_LAUNCH_PARAMS *list,
                            unsigned int count, unsigned int flags) {
    __typeof__(&cuStreamGetCtx) owner = HL_REAL(cuStreamGetCtx);
    __typeof__(&cuCtxPushCurrent_v2) push = HL_REAL(cuCtxPushCurrent_v2);
    __typeof__(&cuCtxPopCurrent_v2) pop = HL_REAL(cuCtxPopCurrent_v2);
    if (!list || !count || count > TOGETHER || !owner || !push || !pop) return HL_PASS_ON(real(list, count, flags));
    struct hl_pace pace[TOGETHER];
    CUcontext context[TOGETHER] = {NULL}, popped;
    for (unsigned i = 0; i < count; i++) {
        const CUDA_LAUNCH_PARAMS *one = &list[i];
        struct hl_launch launch = {.entry = HL_ENTRY_MULTI,
                                   .id = HL_cuLaunchCooperativeKernelMultiDevice,
                                   .object = one->function,
                                   .blocks = product(one->gridDimX, one->gridDimY, one->gridDimZ),
                                   .threads = product(one->blockDimX, one->blockDimY, one->blockDimZ),
                                   .stream = one->hStream};
        if (owner(one->hStream, &context[i]) != CUDA_SUCCESS || push(context[i]) != CUDA_SUCCESS) {
            context[i] = NULL;
            continue;
        }
        if (hl_pace_enter(&pace[i], &launch)) hl_leave(); /* the next one enters again */
        else context[i] = (pop(&popped), NULL);
        if (context[i]) pop(&popped);
    }
    CUresult result = HL_PASS_ON(real(list, count, flags));
    for (unsigned i = 0; i < count; i++) {
        if (!context[i]) continue;
        bool pushed = push(context[i]) == CUDA_SUCCESS, entered = hl_enter();
        hl_pace_leave(&pace[i], result);
        if (!entered) hl_depth = 1;
        if (pushed) pop(&popped);
    }
    return result;
}

HL_EXPORT CUresult CUDAAPI cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *launchParamsList,
                                                                unsigned int numDevices, unsigned int flags) {
    __typeof__(&cuLaunchCooperativeKernelMultiDevice) driver = straight(HL_cuLaunchCooperativeKernelMultiDevice);
    if (HL_LIKELY(driver != NULL)) return driver(launchParamsList, numDevices, flags);
    HL_BEGIN(cuLaunchCooperativeKernelMultiDevice, CUDA_ERROR_NOT_FOUND);
    return paced_multi(real, launchParamsList, numDevices, flags);
}

/* ---- host functions ---- */

struct wrapped {
    CUhostFn function;
    void *data;
};

static void CUDA_CB call_wrapped(void *data) {
    struct wrapped wrapped = *(struct wrapped *)data;
    free(data);
    hl_in_callback++;
    wrapped.function(wrapped.data);
    hl_in_callback--;
}

/* Wrapped only where it runs once: a captured one runs as often as its graph. */
static CUresult host_function(__typeof__(&cuLaunchHostFunc) real, CUstream stream, CUhostFn function, void *data,
                              bool per_thread) {
    if (hl_depth || !hl_ready() || __atomic_load_n(&hl_pacing, __ATOMIC_ACQUIRE) != HL_PACE_LIMITED || !hl_enter())
        return HL_PASS_ON(real(stream, function, data));
    int saved = errno;
    struct wrapped *wrapped = NULL;
    bool captures = hl_stream_captures(stream, per_thread);
    if (function && !captures) wrapped = malloc(sizeof *wrapped);
    errno = saved;
    if (wrapped) *wrapped = (struct wrapped){function, data};
    CUresult result = wrapped ? real(stream, call_wrapped, wrapped) : real(stream, function, data);
    if (result != CUDA_SUCCESS) free(wrapped);
    else hl_pace_unpaced(HL_ENTRY_HOST, captures ? HL_UNPACED_CAPTURE : HL_UNPACED_HOST);
    hl_leave();
    return result;
}

#define HOST(name, ptsz)                                                                                               \
    HL_EXPORT CUresult CUDAAPI name(CUstream stream, CUhostFn function, void *data) {                                  \
        __typeof__(&name) driver = straight(HL_##name);                                                                \
        if (HL_LIKELY(driver != NULL)) return driver(stream, function, data);                                          \
        HL_BEGIN(name, CUDA_ERROR_NOT_FOUND);                                                                          \
        return host_function(real, stream, function, data, ptsz);                                                      \
    }
HOST(cuLaunchHostFunc, false)
HOST(cuLaunchHostFunc_ptsz, true)
