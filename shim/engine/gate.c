/* One thread at a time enters the interpreter; threads, forks, signals and cancellation meet it here only.
 *
 * Invariants: a thread that waits for or holds `front` has depth 1. The interpreter's lock is taken by the holder of
 * `front` only, so it is never contended. Lock order: boot, front. A thread's state lives from its first call to its
 * key destructor, except the main one, which lives for ever; after the destructor the thread gets no new one.
 * An adaptive mutex, because a call is shorter than a sleep.
 */
#define _GNU_SOURCE
#include "gate.h"
#include "engine.h"
#include "fault.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

#define LOCAL static __thread __attribute__((tls_model("initial-exec")))

static pthread_mutex_t front = PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP;
static pthread_mutex_t boot = PTHREAD_MUTEX_INITIALIZER;
static pthread_key_t key;
static PyInterpreterState *interpreter;
static PyThreadState *main_state;
static atomic_int open_gate; /* the interpreter runs and may be entered */

LOCAL PyThreadState *state;
LOCAL volatile sig_atomic_t depth;
LOCAL volatile sig_atomic_t gone; /* the key destructor has run */

static void silent(const char *line) { (void)line; }
static void (*log_line)(const char *) = silent;

void hl_gate_log_to(void (*log)(const char *)) { log_line = log; }

void hl_gate_log(const char *line) { log_line(line); }

void hl_gate_boot_lock(void) { pthread_mutex_lock(&boot); }

void hl_gate_boot_unlock(void) { pthread_mutex_unlock(&boot); }

int64_t hl_gate_begin(struct hl_visit *visit) {
    if (__builtin_expect(depth || gone, 0)) return HL_ENGINE_REENTRY;
    visit->error = errno;
    visit->log = 0;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &visit->cancel);
    depth = 1;
    atomic_signal_fence(memory_order_seq_cst);
    return 0;
}

void hl_gate_end(struct hl_visit *visit) {
    atomic_signal_fence(memory_order_seq_cst);
    depth = 0;
    errno = visit->error;
    pthread_setcancelstate(visit->cancel, NULL);
}

static PyThreadState *attach(void) {
    PyThreadState *mine = state;
    if (__builtin_expect(!mine, 0)) {
        mine = PY(PyThreadState_New)(interpreter);
        if (!mine) return NULL;
        if (!gone) {
            state = mine;
            pthread_setspecific(key, mine); /* without memory for it the state is only not given back */
        }
    }
    PY(PyEval_RestoreThread)(mine);
    return mine;
}

int64_t hl_gate_lock(void) {
    pthread_mutex_lock(&front);
    if (__builtin_expect(attach() != NULL, 1)) return 0;
    hl_fault_say("no memory for a thread state");
    int log = hl_fault_add();
    pthread_mutex_unlock(&front);
    if (log) log_line("no memory for a thread state");
    return HL_ENGINE_FAULT;
}

void hl_gate_unlock(struct hl_visit *visit) {
    PY(PyEval_SaveThread)();
    if (__builtin_expect(visit->log, 0)) { /* the log is the host's code: call it with no lock held */
        char line[HL_REASON_BYTES];
        memcpy(line, hl_fault_reason(), sizeof line);
        pthread_mutex_unlock(&front);
        log_line(line);
        return;
    }
    pthread_mutex_unlock(&front);
}

static void discard(PyThreadState *mine) { /* attached: both locks are held */
    PY(PyThreadState_Clear)(mine);
    PY(PyThreadState_DeleteCurrent)();
}

static void thread_ends(void *value) {
    PyThreadState *mine = value;
    depth = 1;
    if (mine != main_state) {
        pthread_mutex_lock(&front);
        PY(PyEval_RestoreThread)(mine);
        discard(mine);
        pthread_mutex_unlock(&front);
    }
    state = NULL;
    gone = 1;
    depth = 0;
}

/* Fork: the child gets an interpreter that no other thread is inside of, or none at all. A fork from within a call (a
 * signal handler) needs nothing: the forking thread itself is the one inside, and goes on in the child. */
LOCAL PyThreadState *forking;
LOCAL volatile sig_atomic_t fork_held;

static void fork_prepare(void) {
    if (depth) return;
    depth = 1;
    fork_held = 1;
    pthread_mutex_lock(&boot);
    pthread_mutex_lock(&front);
    forking = atomic_load_explicit(&open_gate, memory_order_acquire) ? attach() : NULL;
    if (forking) PY(PyOS_BeforeFork)();
}

static void fork_done(int child) {
    if (!fork_held) return;
    PyThreadState *mine = forking;
    if (mine && child) {
        /* Drops the states of all other threads, the main one included. The one that is left becomes the main one: an
         * interpreter that has had states and has none cannot make another. */
        PY(PyOS_AfterFork_Child)();
        main_state = mine;
        PY(PyEval_SaveThread)();
    } else if (mine) {
        PY(PyOS_AfterFork_Parent)();
        if (mine == state) PY(PyEval_SaveThread)();
        else discard(mine); /* made for this fork by a thread past its key destructor */
    }
    forking = NULL;
    pthread_mutex_unlock(&front);
    pthread_mutex_unlock(&boot);
    fork_held = 0;
    depth = 0;
}

static void fork_parent(void) { fork_done(0); }

static void fork_child(void) { fork_done(1); }

__attribute__((constructor)) static void watch_forks(void) {
    /* Here and not at boot, so that a fork beside a boot waits for its end. They touch the interpreter once it runs. */
    if (pthread_atfork(fork_prepare, fork_parent, fork_child)) hl_fault_say("no memory for fork handlers");
}

int hl_gate_open(PyInterpreterState *main_interpreter, PyThreadState *main) {
    int error = pthread_key_create(&key, thread_ends);
    if (error) return error;
    interpreter = main_interpreter;
    main_state = state = main;
    pthread_setspecific(key, main);
    atomic_store_explicit(&open_gate, 1, memory_order_release);
    return 0;
}
