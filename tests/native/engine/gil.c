/* A library for hosts that are Python: a thread without the host's GIL holds a mutex and calls the engine, while a thread
 * with the GIL waits for that mutex. An engine that needed the host's GIL would deadlock here; gil_hold_and_take does
 * need it and so must. */
#define _GNU_SOURCE
#include "thin.h"
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static atomic_int held, waiting;

static void hold(void) {
    pthread_mutex_lock(&mutex);
    atomic_store(&held, 1);
    while (!atomic_load(&waiting)) sched_yield();
    for (int i = 0; i < 100; i++) sched_yield(); /* the other thread is between its store and its lock */
}

EXPORT int64_t gil_hold_and_call(void) { /* by CDLL */
    hold();
    int64_t answer = thin_admit(10);
    pthread_mutex_unlock(&mutex);
    return answer;
}

EXPORT int64_t gil_hold_and_take(void) { /* by CDLL; the planted failure */
    int (*take)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "PyGILState_Ensure");
    void (*give)(int) = (void (*)(int))dlsym(RTLD_DEFAULT, "PyGILState_Release");
    CHECK(take && give);
    hold();
    give(take());
    pthread_mutex_unlock(&mutex);
    return 0;
}

EXPORT int64_t gil_wait(void) { /* by PyDLL */
    while (!atomic_load(&held)) sched_yield();
    atomic_store(&waiting, 1);
    pthread_mutex_lock(&mutex);
    pthread_mutex_unlock(&mutex);
    return 0;
}
