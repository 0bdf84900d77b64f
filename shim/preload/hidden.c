/* Memory that the driver takes by itself: with a module, with the first launch of a function. No call says how much; what is
 * booked is what NVML says of this process beyond the books, by its own row, so that neighbours do not blur it.
 *
 * HOOKLAB_HIDDEN=observed switches it on. Looked at after a module was loaded or unloaded and after the first launch of a
 * function or graph; never at an allocation or a free. Invariants: a look counts only while no charge of this process is
 * under way and its books stand still around it; a process with managed memory is not looked at, because what it touches
 * cannot be told from what the driver takes. What NVML counts beyond the books when a context was made or ended (it counts
 * contexts in its own way) is no growth. The books take up the whole difference at each look, so that a look which another
 * thread's call disturbed is set right by the next. A module that does not fit is unloaded and refused; what the driver keeps
 * of it all the same, and what a launch took, is booked, over the limit or not. One look at a time; its mutex is held over
 * calls of the driver and of the ledger, of which none comes back here. */
#include "preload.h"

#include "config.h"
#include "hl_layout_history.h"
#include "identity.h"
#include "ledger.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

enum { SEEN = 4096, PROBES = 8, ATTEMPTS = 4 };

uint32_t hl_hidden_on;
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static struct {
    bool known;
    int64_t beyond;         /* what NVML counts that is neither in the books nor hidden */
} base[HL_DEVICES];         /* `turn` held */
static uint64_t seen[SEEN]; /* functions and graphs that were launched, by handle */

void hl_hidden_prepare(void) {
    const char *how = hl_config("HOOKLAB_HIDDEN");
    bool observed = how && !strcmp(how, "observed");
    if (how && *how && !observed && strcmp(how, "off"))
        hl_log(0, "HOOKLAB_HIDDEN: \"%.64s\" is not observed or off; off is used", how);
    if (observed && hl_books_usable() && hl_ledger_has_monitor()) {
        hl_log(0, "HOOKLAB_HIDDEN: a region of layout hami-1.2 has no room for it; off is used");
        observed = false;
    }
    hl_hidden_on = observed && hl_books_usable();
}

void hl_hidden_fork_child(void) {
    pthread_mutex_init(&turn, NULL);
    memset(base, 0, sizeof base);
    memset(seen, 0, sizeof seen);
    hl_hidden_on = 0;
}

/* What the books say of this process; false while a charge is under way or where NVML's figure means something else. */
static bool booked(int device, uint64_t *held) {
    uint64_t managed = 0;
    return hl_ledger_mine(device, HL_KIND_MANAGED, held, &managed) && !managed;
}

/* How much NVML counts beyond the books. */
static bool beyond(int device, int64_t *gap) {
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        uint64_t before, after;
        if (!booked(device, &before)) continue;
        uint64_t bytes = hl_probe_bytes(device, hl_identity_host_pid(device));
        if (!bytes) return false; /* not listed, or nobody knows who we are outside */
        if (!booked(device, &after) || after != before) continue;
        *gap = (int64_t)(bytes - before);
        return true;
    }
    return false;
}

/* NVML stays open for as long as the process lives: to open it takes longer than a look by three orders of magnitude. */
static void keep_open(void) {
    static bool tried;
    __typeof__(&nvmlInit_v2) start = HL_REAL(nvmlInit_v2);
    if (!tried && start) start();
    tried = true;
}

/* false: refused, nothing was booked. */
static bool charge(CUcontext context, int device, uint64_t bytes, bool may_refuse) {
    uint64_t key = (uint64_t)(uintptr_t)context | HL_TAG_HIDDEN;
    struct hl_ticket ticket;
    CUresult code = CUDA_SUCCESS;
    enum hl_admission admission = hl_charge_begin(&ticket, device, bytes, HL_KIND_OTHER, &code);
    bool fits = admission == HL_ADMITTED && !hl_ledger_extend(&ticket, key, (uint64_t)(uintptr_t)context, bytes);
    if (fits || admission == HL_PASS) return true;
    if (may_refuse) return false;
    hl_ledger_grow(key, (uint64_t)(uintptr_t)context, device, HL_KIND_OTHER, bytes);
    return true;
}

/* The books take up what NVML counts now. false: it does not fit and `may_refuse`. */
static bool look(bool may_refuse) {
    CUcontext context;
    int device = -1;
    int64_t gap = 0;
    bool granted = true;
    if (!hl_current(&context, &device) || device < 0 || device >= HL_DEVICES) return true;
    pthread_mutex_lock(&turn);
    if (hl_meters_used) hl_meters_look();
    if (beyond(device, &gap)) {
        if (!base[device].known) base[device].beyond = gap;
        base[device].known = true;
        int64_t more = gap - base[device].beyond;
        if (more > 0) granted = charge(context, device, (uint64_t)more, may_refuse);
        if (more < 0) hl_ledger_shrink((uint64_t)(uintptr_t)context | HL_TAG_HIDDEN, (uint64_t)-more);
    }
    pthread_mutex_unlock(&turn);
    return granted;
}

void hl_hidden_context_changed(int device) {
    if (HL_LIKELY(!hl_hidden_on) || device < 0 || device >= HL_DEVICES) return;
    pthread_mutex_lock(&turn);
    keep_open();
    base[device].known = beyond(device, &base[device].beyond);
    pthread_mutex_unlock(&turn);
}

/* ---- first launches ---- */

/* true: this handle was not there yet. Where it finds no room it counts as known: the next look sees what it took. */
static bool first_time(uint64_t handle) {
    uint64_t at = (handle >> 4) * UINT64_C(0x9E3779B97F4A7C15) >> 52;
    for (int i = 0; i < PROBES; i++) {
        uint64_t *place = &seen[(at + (uint64_t)i) % SEEN], empty = 0;
        uint64_t there = __atomic_load_n(place, __ATOMIC_RELAXED);
        if (there == handle) return false;
        if (!there && __atomic_compare_exchange_n(place, &empty, handle, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
            return true;
        if (empty == handle) return false;
    }
    return false;
}

void hl_hidden_launched(const void *object) {
    if (!object || !first_time((uint64_t)(uintptr_t)object) || !hl_books_usable() || !hl_enter()) return;
    int saved = errno;
    look(false);
    errno = saved;
    hl_leave();
}

/* ---- modules ---- */

static bool frame(void) {
    return HL_UNLIKELY(hl_hidden_on) && !hl_depth && hl_ready() && hl_books_usable() && hl_enter();
}

static CUresult loaded(CUresult result, CUmodule *module) {
    int saved = errno;
    if (result == CUDA_SUCCESS && !look(true)) {
        __typeof__(&cuModuleUnload) unload = HL_REAL(cuModuleUnload);
        if (unload) unload(*module);
        *module = NULL;
        look(false); /* what the driver keeps of it */
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    errno = saved;
    hl_leave();
    return result;
}

#define LOAD(name, parameters, arguments)                                                                              \
    HL_EXPORT CUresult CUDAAPI name parameters {                                                                       \
        HL_BEGIN(name, CUDA_ERROR_NOT_FOUND);                                                                          \
        if (HL_LIKELY(!frame())) return HL_PASS_ON(real arguments);                                                    \
        return loaded(real arguments, module);                                                                         \
    }
LOAD(cuModuleLoad, (CUmodule * module, const char *file), (module, file))
LOAD(cuModuleLoadData, (CUmodule * module, const void *image), (module, image))
LOAD(cuModuleLoadDataEx,
     (CUmodule * module, const void *image, unsigned int count, CUjit_option *options, void **values),
     (module, image, count, options, values))
LOAD(cuModuleLoadFatBinary, (CUmodule * module, const void *image), (module, image))

/* Handles of its functions may be given out again. */
static CUresult unloaded(CUresult result) {
    int saved = errno;
    if (result == CUDA_SUCCESS) {
        for (int i = 0; i < SEEN; i++) __atomic_store_n(&seen[i], 0, __ATOMIC_RELAXED);
        look(false);
    }
    errno = saved;
    hl_leave();
    return result;
}

#define UNLOAD(name, type)                                                                                             \
    HL_EXPORT CUresult CUDAAPI name(type what) {                                                                       \
        HL_BEGIN(name, CUDA_ERROR_NOT_FOUND);                                                                          \
        if (HL_LIKELY(!frame())) return HL_PASS_ON(real(what));                                                        \
        return unloaded(real(what));                                                                                   \
    }
UNLOAD(cuModuleUnload, CUmodule)
UNLOAD(cuLibraryUnload, CUlibrary)

/* ---- memory of other processes, which is its holder's when its maker has let go ---- */

void hl_hidden_look(void) {
    if (HL_LIKELY(!hl_hidden_on)) return;
    int saved = errno;
    look(false);
    errno = saved;
}

HL_EXPORT CUresult CUDAAPI cuIpcCloseMemHandle(CUdeviceptr dptr) {
    HL_BEGIN(cuIpcCloseMemHandle, CUDA_ERROR_NOT_FOUND);
    if (HL_LIKELY(!frame())) return HL_PASS_ON(real(dptr));
    CUresult result = real(dptr);
    if (result == CUDA_SUCCESS) hl_hidden_look();
    hl_leave();
    return result;
}
