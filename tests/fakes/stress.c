/* Threads that allocate, fill, check and free at random over all families of memory. What it holds true: fresh memory
 * reads as zeros, no two allocations share a byte, what was written stays, and a failed call is a full card. Prints one
 * line: operations, refusals, wrong answers. With a third argument the process kills itself after so many operations. */
#include <cuda.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LIVE = 64, PROBE = 4096 };

struct live {
    CUdeviceptr at;
    size_t bytes;
    unsigned char mark;
    int kind;
};

static CUcontext context;
static unsigned long operations, refused, wrong, kill_after;
static unsigned seed;

static unsigned next(unsigned *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static void say(const char *what, unsigned long value) {
    __atomic_fetch_add(&wrong, 1, __ATOMIC_RELAXED);
    fprintf(stderr, "stress: %s (%lu)\n", what, value);
}

static int all(const unsigned char *bytes, size_t count, unsigned char value) {
    for (size_t i = 0; i < count; i++)
        if (bytes[i] != value) return 0;
    return 1;
}

/* Both ends: where a neighbour would show. */
static void expect(const struct live *l, unsigned char value, const char *what) {
    unsigned char buffer[PROBE];
    size_t n = l->bytes < PROBE ? l->bytes : PROBE;
    for (int end = 0; end < 2; end++) {
        memset(buffer, ~value, n);
        if (cuMemcpyDtoH_v2(buffer, l->at + (end ? l->bytes - n : 0), n)) say("copy failed", l->bytes);
        else if (!all(buffer, n, value)) say(what, l->bytes);
    }
}

static void begin(struct live *l, unsigned *state) {
    size_t small = 1 + next(state) % 20000, large = 1 + next(state) % (5u << 20), pitch = 0;
    l->kind = (int)(next(state) % 5);
    l->bytes = next(state) % 8 ? small : large;
    l->mark = (unsigned char)(1 + next(state) % 255);
    CUresult r;
    if (l->kind == 0) r = cuMemAllocAsync(&l->at, l->bytes, 0);
    else if (l->kind == 1) r = cuMemAllocManaged(&l->at, l->bytes, CU_MEM_ATTACH_GLOBAL);
    else if (l->kind == 2) {
        r = cuMemAllocPitch_v2(&l->at, &pitch, 100, 1 + l->bytes / 512, 4);
        l->bytes = pitch * (1 + l->bytes / 512);
    } else r = cuMemAlloc_v2(&l->at, l->bytes);
    if (r) {
        if (r != CUDA_ERROR_OUT_OF_MEMORY) say("allocation", (unsigned long)r);
        __atomic_fetch_add(&refused, 1, __ATOMIC_RELAXED);
        l->at = 0;
        return;
    }
    expect(l, 0, "fresh memory is not zero");
    if (l->kind == 1 && next(state) % 2) memset((void *)l->at, l->mark, l->bytes);
    else if (cuMemsetD8_v2(l->at, l->mark, l->bytes)) say("memset", l->bytes);
}

static void end(struct live *l) {
    expect(l, l->mark, "memory changed");
    CUresult r = l->kind == 0 ? cuMemFreeAsync(l->at, 0) : cuMemFree_v2(l->at);
    if (r) say("free", (unsigned long)r);
    l->at = 0;
}

static void *work(void *argument) {
    unsigned state = seed + (unsigned)(size_t)argument * 7919u;
    struct live live[LIVE] = {{0}};
    if (cuCtxSetCurrent(context)) say("set current", 0);
    for (unsigned long i = 0; i < operations; i++) {
        struct live *l = &live[next(&state) % LIVE];
        if (l->at) end(l);
        else begin(l, &state);
        if (kill_after && i == kill_after) kill(getpid(), SIGKILL);
        if (next(&state) % 64 == 0 && cuCtxSynchronize()) say("synchronize", i);
    }
    for (int i = 0; i < LIVE; i++)
        if (live[i].at) end(&live[i]);
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t threads[4];
    operations = argc > 1 ? strtoul(argv[1], NULL, 10) : 1000;
    seed = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : 1;
    kill_after = argc > 3 ? strtoul(argv[3], NULL, 10) : 0;
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) return 2;
    size_t before = 0, after = 0;
    cuMemGetInfo_v2(&before, NULL);
    for (size_t i = 0; i < 4; i++)
        if (pthread_create(&threads[i], NULL, work, (void *)(i + 1))) return 2;
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    cuCtxSynchronize();
    cuMemGetInfo_v2(&after, NULL);
    printf("%lu %lu %lu %ld\n", 4 * operations, refused, wrong, (long)before - (long)after);
    return wrong != 0;
}
