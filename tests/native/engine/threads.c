/* Threads against one engine: "together" boots from 16 threads at once, "short N" starts N threads one after another and
 * looks at the memory, "short-leak N" does so with a leak of its own (it must be seen), "keys" calls from key destructors,
 * "cancel" cancels a thread inside, "small" calls from the smallest stack. */
#define _GNU_SOURCE
#include "thin.h"
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static pthread_barrier_t barrier;

static void *first_call(void *unused) {
    (void)unused;
    thin_engine();
    pthread_barrier_wait(&barrier);
    CHECK(thin_admit(10) == 0);
    for (int i = 0; i < 2000; i++) {
        CHECK(thin_admit(1000000) == 0);
        CHECK(thin_admit(1000001) == 2);
    }
    return NULL;
}

static void together(void) {
    pthread_t threads[16];
    pthread_barrier_init(&barrier, NULL, 16);
    for (int i = 0; i < 16; i++) CHECK(!pthread_create(&threads[i], NULL, first_call, NULL));
    for (int i = 0; i < 16; i++) pthread_join(threads[i], NULL);
}

static int leaking;
static void *volatile leak; /* volatile: else the compiler sees that nothing needs it */

static void *one_call(void *unused) {
    (void)unused;
    if (leaking) memset(leak = malloc(4096), 1, 4096);
    CHECK(thin_admit(10) == 0);
    return NULL;
}

static long resident(void) { /* pages */
    long size = 0, pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%ld %ld", &size, &pages) == 2);
    fclose(file);
    return pages;
}

static void run_thread(void *(*body)(void *), const pthread_attr_t *attributes) {
    pthread_t thread;
    CHECK(!pthread_create(&thread, attributes, body, NULL));
    pthread_join(thread, NULL);
}

static void short_threads(int count) {
    for (int i = 0; i < 100; i++) run_thread(one_call, NULL); /* warm: arenas, caches */
    long before = resident();
    for (int i = 0; i < count; i++) run_thread(one_call, NULL);
    long grown = (resident() - before) * sysconf(_SC_PAGESIZE);
    if (grown > 200L * count) dprintf(2, "grew by %ld bytes over %d threads\n", grown, count);
    CHECK(grown <= 200L * count);
}

static pthread_key_t early, late;
static int64_t early_answer = 1, late_answer = 1;

static void from_early(void *unused) {
    (void)unused;
    early_answer = thin_engine()->admit(0, 10, 1, 0, 100, 0);
}

static void from_late(void *unused) {
    (void)unused;
    late_answer = thin_engine()->admit(0, 10, 1, 0, 100, 0);
}

static void *keyed(void *unused) {
    (void)unused;
    CHECK(thin_admit(10) == 0);
    pthread_setspecific(early, &early);
    pthread_setspecific(late, &late);
    return NULL;
}

static void keys(void) { /* keys are destroyed in the order in which they were made; the engine makes its own at boot */
    pthread_key_create(&early, from_early);
    CHECK(thin_boot() == 0);
    pthread_key_create(&late, from_late);
    run_thread(keyed, NULL);
    CHECK(early_answer == 0);
    CHECK(late_answer == HL_ENGINE_REENTRY);
    CHECK(thin_admit(10) == 0);
}

static volatile int survived;

static void *cancelled(void *type) {
    pthread_setcanceltype(*(int *)type, NULL);
    CHECK(thin_linger() == 7);
    survived = 1; /* with deferred cancellation nothing in between is a cancellation point */
    for (;;) pthread_testcancel();
}

static void cancel(void) {
    int types[] = {PTHREAD_CANCEL_DEFERRED, PTHREAD_CANCEL_ASYNCHRONOUS};
    CHECK(thin_boot() == 0);
    for (int i = 0; i < 2; i++) {
        pthread_t thread;
        void *result;
        thin_words[INSIDE] = 0;
        survived = 0;
        CHECK(!pthread_create(&thread, NULL, cancelled, &types[i]));
        thin_wait_inside();
        pthread_cancel(thread);
        thin_words[LEAVE] = 1;
        pthread_join(thread, &result);
        CHECK(result == PTHREAD_CANCELED);
        if (i == 0) CHECK(survived);
        CHECK(thin_admit(10) == 0);
    }
}

static void *on_small_stack(void *unused) {
    (void)unused;
    CHECK(thin_admit(10) == 0);
    CHECK(thin_admit(1000001) == 2);
    return NULL;
}

static void small(void) {
    pthread_attr_t attributes;
    CHECK(thin_boot() == 0);
    pthread_attr_init(&attributes);
    CHECK(!pthread_attr_setstacksize(&attributes, 64 * 1024));
    run_thread(on_small_stack, &attributes);
}

int main(int count, char **arguments) {
    CHECK(count > 1);
    const char *mode = arguments[1];
    if (!strcmp(mode, "together")) together();
    else if (!strcmp(mode, "keys")) keys();
    else if (!strcmp(mode, "cancel")) cancel();
    else if (!strcmp(mode, "small")) small();
    else {
        CHECK(count > 2);
        leaking = !strcmp(mode, "short-leak");
        CHECK(leaking || !strcmp(mode, "short"));
        short_threads(atoi(arguments[2]));
    }
    return 0;
}
