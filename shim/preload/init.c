/* The life of the guest: pre-init once a process, cuInit's phases in order, a fresh start in a fork child.
 *
 *   wrapper enter > [pre-init] > real cuInit > [post-init, only after a success] > wrapper exit
 *
 * Invariants: pre-init (configuration, region) runs before the first real cuInit of the process and once, however many
 * threads come; a process that never calls cuInit runs it when a view first needs it. Post-init runs once, after the
 * first cuInit that the driver granted: a refused one leaves nothing behind and may be tried again. A child of fork is
 * a new process: both run again in it. An exec gives a fresh image and needs nothing. */
#include "preload.h"

#include "history.h"
#include "hl_layout_history.h"
#include "identity.h"
#include "ledger.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

static pthread_once_t handlers = PTHREAD_ONCE_INIT; /* fork handlers are inherited: never again */
static pthread_once_t before, after;                /* PTHREAD_ONCE_INIT is zero on Linux; a fork child sets it again */
static int prepared;                                /* release/acquire: 0 not yet, 1 pass everything, 2 keep books */

void hl_phase(uint64_t phase, int result) {
    if (!hl_history_on()) return;
    struct hl_event event = {.event = HL_EVENT_PHASE,
                             .source = HL_SOURCE_SHIM,
                             .device = 0xFF,
                             .name = HL_cuInit,
                             .step = 0xFFFF,
                             .result = result,
                             .a = phase};
    hl_history_add(&event);
}

static void fork_child(void) {
    static const pthread_once_t fresh = PTHREAD_ONCE_INIT;
    before = fresh;
    after = fresh;
    hl_depth = 0; /* the thread that forked may have been inside a wrapper: its call does not go on in the child */
    __atomic_store_n(&prepared, 0, __ATOMIC_RELEASE);
    hl_ledger_fork_child();
    hl_running_fork_child();
    hl_books_forget();
    hl_pacing_fork_child();
    hl_history_fork_child();
    hl_context_fork_child();
    hl_meters_fork_child();
    hl_hidden_fork_child();
    hl_pools_forget();
    hl_identity_fork_child();
    hl_devices_forget();
    hl_phase(HL_PHASE_FORK_CHILD, 0);
}

static void install_handlers(void) { pthread_atfork(hl_ledger_fork_prepare, hl_ledger_fork_parent, fork_child); }

static void pre_init(void) {
    hl_phase(HL_PHASE_PREINIT_ENTER, 0);
    bool wanted = hl_books_open();
    if (hl_books_usable()) {
        hl_phase(HL_PHASE_ATTACHED, 0);
        hl_running_watch();
    }
    hl_hidden_prepare();
    hl_pacing_prepare();
    __atomic_store_n(&prepared, wanted ? 2 : 1, __ATOMIC_RELEASE);
    hl_phase(HL_PHASE_PREINIT_EXIT, 0);
}

static void post_init(void) {
    hl_phase(HL_PHASE_POSTINIT_ENTER, 0);
    hl_devices_learn();
    hl_books_devices();
    hl_phase(HL_PHASE_POSTINIT_EXIT, 0);
}

bool hl_ready(void) {
    int now = __atomic_load_n(&prepared, __ATOMIC_ACQUIRE);
    if (HL_UNLIKELY(!now)) {
        int saved = errno;
        bool entered = hl_enter(); /* a signal handler that calls CUDA meanwhile must not wait for its own thread */
        pthread_once(&handlers, install_handlers);
        pthread_once(&before, pre_init);
        if (entered) hl_leave();
        errno = saved;
        now = __atomic_load_n(&prepared, __ATOMIC_ACQUIRE);
    }
    return now == 2;
}

HL_EXPORT CUresult CUDAAPI cuInit(unsigned int Flags) {
    HL_BEGIN(cuInit, CUDA_ERROR_NOT_FOUND);
    if (!hl_enter()) return HL_PASS_ON(real(Flags));
    int saved = errno;
    pthread_once(&handlers, install_handlers);
    hl_phase(HL_PHASE_WRAPPER_ENTER, 0);
    hl_ready();
    hl_phase(HL_PHASE_REAL_ENTER, 0);
    errno = saved;
    CUresult result = real(Flags);
    saved = errno;
    hl_phase(HL_PHASE_REAL_EXIT, (int)result);
    if (result == CUDA_SUCCESS) pthread_once(&after, post_init);
    hl_phase(HL_PHASE_WRAPPER_EXIT, (int)result);
    errno = saved;
    hl_leave();
    return result;
}
