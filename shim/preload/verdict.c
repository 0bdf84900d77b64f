/* Verdicts: asks the engine, and answers for it when it cannot.
 *
 * Invariants: the engine is opened on the first decision and by every thread that finds it not yet published, holding
 * no lock of ours: a once around dlopen would deadlock with a thread inside a constructor that calls CUDA. Booting
 * happens inside the engine, once, without the loader. A process that charges nothing, or charges without a limit and
 * without a policy of the user's, never opens it: then the answer is always yes.
 *
 * Without a verdict: a policy that raised refuses; an engine that is absent refuses where a limit or a user's policy
 * asks for decisions that nobody can take; a call from inside the engine gets the plain rule used + size <= limit. */
#include "preload.h"

#include "config.h"
#include "engine.h"
#include "history.h"
#include "hl_layout_history.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { BOOTED = 1, FAULT = 2, ABSENT = 3 };

static const struct hl_engine_api *published; /* booted; release/acquire */
static int given_up;                          /* absent for good in this process image */
static int said[4];                           /* one line, one event a kind */

static void tell(int what, uint64_t ns, const char *why) {
    struct hl_event event = {.event = HL_EVENT_ENGINE,
                             .source = HL_SOURCE_SHIM,
                             .device = 0xFF,
                             .name = 0xFFFF,
                             .step = 0xFFFF,
                             .a = (uint64_t)what,
                             .b = ns};
    bool first = !__atomic_exchange_n(&said[what], 1, __ATOMIC_RELAXED);
    if (first || what == FAULT) hl_history_add(&event); /* every fault counts */
    if (first && what == FAULT)
        hl_log(0, "the policy failed: %.300s; charges without a verdict are refused, launches pass", why);
    if (first && what == ABSENT)
        hl_log(0, "no policy engine: %.300s; charges under a limit or a policy are refused, launches pass", why);
}

/* Beside our own file, wherever the container mounted it. */
static bool engine_path(char *path, size_t size) {
    const char *configured = hl_config("HOOKLAB_ENGINE_LIB");
    if (configured && *configured) return snprintf(path, size, "%s", configured) < (int)size;
    Dl_info info;
    if (!dladdr((void *)&engine_path, &info) || !info.dli_fname) return false;
    const char *slash = strrchr(info.dli_fname, '/');
    int folder = slash ? (int)(slash - info.dli_fname + 1) : 0;
    return snprintf(path, size, "%.*slibhooklab-engine.so", folder, info.dli_fname) < (int)size;
}

static const struct hl_engine_api *open_engine(char *why, size_t size) {
    char path[4096];
    if (!engine_path(path, sizeof path)) {
        snprintf(why, size, "its path is unknown; set HOOKLAB_ENGINE_LIB");
        return NULL;
    }
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        const char *error = dlerror();
        snprintf(why, size, "%.300s; set HOOKLAB_ENGINE_LIB to the engine of this build", error ? error : path);
        return NULL;
    }
    hl_engine_fn entry = (hl_engine_fn)hl_libc_dlsym()(handle, "hl_engine");
    const struct hl_engine_api *api = entry ? entry() : NULL;
    if (!api || api->abi != HL_ENGINE_ABI || api->size < sizeof *api) {
        snprintf(why, size, "%.300s is not an engine of this version; set HOOKLAB_ENGINE_LIB to the one of this build",
                 path);
        return NULL;
    }
    return api;
}

const struct hl_engine_api *hl_engine_of_process(void) {
    const struct hl_engine_api *api = __atomic_load_n(&published, __ATOMIC_ACQUIRE);
    if (HL_LIKELY(api != NULL)) return api;
    if (__atomic_load_n(&given_up, __ATOMIC_ACQUIRE)) return NULL;
    char why[512] = "";
    api = open_engine(why, sizeof why);
    const struct hl_engine_config config = {.policy = hl_policy(), .pacing = hl_pacing_wanted(), .log = hl_log_error};
    if (api && api->boot(&config)) {
        snprintf(why, sizeof why, "%s", api->reason());
        api = NULL;
    }
    if (!api) {
        __atomic_store_n(&given_up, 1, __ATOMIC_RELEASE);
        tell(ABSENT, 0, why);
        return NULL;
    }
    tell(BOOTED, api->boot_ns(), "");
    __atomic_store_n(&published, api, __ATOMIC_RELEASE);
    return api;
}

void hl_engine_failed(const struct hl_engine_api *api) { tell(FAULT, 0, api->reason()); }

static int32_t decide(int device, uint64_t size, int kind, uint64_t used, uint64_t limit, uint64_t others) {
    if (!limit && !hl_policy()) return CUDA_SUCCESS;
    const struct hl_engine_api *api = hl_engine_of_process();
    if (!api) return CUDA_ERROR_OUT_OF_MEMORY;
    int64_t verdict = api->admit(device, size, kind, used, limit, others);
    if (verdict == HL_ENGINE_REENTRY)
        return limit && (size > limit || used > limit - size) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
    if (verdict == HL_ENGINE_FAULT) {
        tell(FAULT, 0, api->reason());
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (verdict == HL_ENGINE_ABSENT) {
        tell(ABSENT, 0, api->reason());
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return (int32_t)verdict;
}

int32_t hl_verdict(int device, uint64_t size, int kind, uint64_t used, uint64_t limit, uint64_t others) {
    int saved = errno;
    int32_t verdict = decide(device, size, kind, used, limit, others); /* the ledger writes it to the history */
    errno = saved;
    return verdict;
}
