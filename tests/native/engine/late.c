/* The boot order: one thread boots while another is inside a constructor that calls the engine. "good" opens the engine
 * first, holding no lock, and boots then; "bad" does both inside one pthread_once, which deadlocks: SIGALRM ends it. */
#define _GNU_SOURCE
#include "thin.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static int bad;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void open_and_boot(void) {
    /* as a wrapper that opens the engine lazily would: the policy's pipe stands for any time spent before the dlopen */
    FILE *pipe = fopen(getenv("LATE_PIPE"), "r");
    CHECK(pipe);
    while (fgetc(pipe) != EOF) {}
    fclose(pipe);
    thin_boot();
}

EXPORT int64_t late_call(void) {
    if (bad) pthread_once(&once, open_and_boot);
    return thin_admit(10);
}

static pthread_barrier_t barrier;

static void *booting(void *unused) {
    (void)unused;
    if (!bad) thin_engine();
    pthread_barrier_wait(&barrier);
    CHECK(late_call() == 0);
    return NULL;
}

int main(int count, char **arguments) {
    pthread_t thread;
    CHECK(count > 2);
    bad = !strcmp(arguments[1], "bad");
    alarm(bad ? 2 : 60);
    pthread_barrier_init(&barrier, NULL, 2);
    CHECK(!pthread_create(&thread, NULL, booting, NULL));
    pthread_barrier_wait(&barrier);
    void *library = dlopen(arguments[2], RTLD_NOW);
    if (!library) dprintf(2, "%s\n", dlerror());
    CHECK(library);
    pthread_join(thread, NULL);
    CHECK(*(int64_t *)dlsym(library, "late_answer") == 0);
    return 0;
}
