/* Times driver calls from inside one process and prints one JSON object a line. It knows nothing of interposers: the
 * same program runs bare and under any of them, and the difference of two runs is what an interposer adds.
 *
 * Usage: hooklab-bench [--live N,N,...] [--batches N], or --burst ... (worker.c)
 * Every figure is the median over batches of (batch time / calls in the batch), so one preempted batch cannot move it.
 * Calls go through relocations, as those of a compiled program do. Numbers are CLOCK_MONOTONIC nanoseconds.
 */
#define _GNU_SOURCE
#include "worker.h"

#include <cuda.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_BATCHES = 1001, SMALL = 512 };

static int batches = 41;

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void check(CUresult result, const char *what) {
    if (result == CUDA_SUCCESS) return;
    fprintf(stderr, "hooklab-bench: %s failed with CUresult %d\n", what, (int)result);
    exit(1);
}

struct context {
    CUfunction function;
    CUstream stream;
};

typedef void (*body_fn)(const struct context *, int calls);

static void alloc_free(const struct context *c, int calls) {
    (void)c;
    for (int i = 0; i < calls; i++) {
        CUdeviceptr p;
        check(cuMemAlloc_v2(&p, SMALL), "cuMemAlloc_v2");
        check(cuMemFree_v2(p), "cuMemFree_v2");
    }
}

static void alloc_free_async(const struct context *c, int calls) {
    for (int i = 0; i < calls; i++) {
        CUdeviceptr p;
        check(cuMemAllocAsync(&p, SMALL, c->stream), "cuMemAllocAsync");
        check(cuMemFreeAsync(p, c->stream), "cuMemFreeAsync");
    }
}

static void memory_info(const struct context *c, int calls) {
    (void)c;
    size_t free_bytes, total;
    for (int i = 0; i < calls; i++) check(cuMemGetInfo_v2(&free_bytes, &total), "cuMemGetInfo_v2");
}

static void launch(const struct context *c, int calls) {
    for (int i = 0; i < calls; i++)
        check(cuLaunchKernel(c->function, 1, 1, 1, 32, 1, 1, 0, c->stream, NULL, NULL), "cuLaunchKernel");
}

static void lookup(const struct context *c, int calls) {
    (void)c;
    void *entry;
    for (int i = 0; i < calls; i++)
        check(cuGetProcAddress_v2("cuMemAlloc", &entry, 12000, 0, NULL), "cuGetProcAddress_v2");
}

static void measure(const char *name, long live, int calls, body_fn body, const struct context *c) {
    static double ns[MAX_BATCHES];
    body(c, calls); /* warm */
    for (int b = 0; b < batches; b++) {
        /* what a batch queued is waited for outside its time: a launch is charged its submission, not its kernel */
        check(cuStreamSynchronize(c->stream), "cuStreamSynchronize");
        uint64_t start = now_ns();
        body(c, calls);
        ns[b] = (double)(now_ns() - start) / calls;
    }
    qsort(ns, (size_t)batches, sizeof ns[0], ascending);
    printf("{\"call\": \"%s\", \"live\": %ld, \"ns\": %.1f, \"min\": %.1f, \"p90\": %.1f, \"batches\": %d, \"calls\": "
           "%d}\n",
           name, live, ns[batches / 2], ns[0], ns[(batches * 9) / 10], batches, calls);
}

static void once(const char *name, uint64_t ns) {
    printf("{\"call\": \"%s\", \"live\": 0, \"ns\": %llu, \"batches\": 1, \"calls\": 1}\n", name,
           (unsigned long long)ns);
}

static const char ptx[] = ".version 7.0\n.target sm_52\n.address_size 64\n"
                          ".visible .entry hooklab_bench_empty()\n{\n    ret;\n}\n";

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "--burst")) return worker_main(argc, argv);
    if (argc > 1 && !strcmp(argv[1], "--load")) return load_main(argc, argv);
    const char *levels = "0,1000,10000,100000";
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--live")) levels = argv[i + 1];
        else if (!strcmp(argv[i], "--batches")) batches = atoi(argv[i + 1]);
    }
    if (batches < 1 || batches > MAX_BATCHES) {
        fprintf(stderr, "hooklab-bench: --batches takes 1 to %d\n", MAX_BATCHES);
        return 2;
    }
    CUdevice device;
    CUcontext current;
    CUmodule module;
    CUdeviceptr first;
    struct context c = {0};
    uint64_t start = now_ns();
    check(cuInit(0), "cuInit");
    once("cuInit", now_ns() - start);
    check(cuDeviceGet(&device, 0), "cuDeviceGet");
    start = now_ns();
    check(cuDevicePrimaryCtxRetain(&current, device), "cuDevicePrimaryCtxRetain");
    once("cuDevicePrimaryCtxRetain", now_ns() - start);
    check(cuCtxSetCurrent(current), "cuCtxSetCurrent");
    start = now_ns();
    check(cuMemAlloc_v2(&first, SMALL), "cuMemAlloc_v2"); /* keeps one block live, as any real program does */
    once("first cuMemAlloc_v2", now_ns() - start);
    check(cuStreamCreate(&c.stream, 0), "cuStreamCreate");
    check(cuModuleLoadData(&module, ptx), "cuModuleLoadData");
    check(cuModuleGetFunction(&c.function, module, "hooklab_bench_empty"), "cuModuleGetFunction");

    measure("cuMemGetInfo_v2", 0, 2000, memory_info, &c);
    measure("cuLaunchKernel", 0, 500, launch, &c);
    measure("cuGetProcAddress_v2", 0, 2000, lookup, &c);
    measure("cuMemAllocAsync+cuMemFreeAsync", 0, 1000, alloc_free_async, &c);

    long live = 0;
    CUdeviceptr *held = NULL;
    for (const char *at = levels; *at;) {
        char *end;
        long want = strtol(at, &end, 10);
        if (end == at || want < live) {
            fprintf(stderr, "hooklab-bench: --live takes ascending counts, e.g. 0,1000\n");
            return 2;
        }
        held = realloc(held, (size_t)(want + 1) * sizeof *held);
        if (!held) return 1;
        for (; live < want; live++) check(cuMemAlloc_v2(&held[live], SMALL), "cuMemAlloc_v2");
        measure("cuMemAlloc_v2+cuMemFree_v2", live, 1000, alloc_free, &c);
        at = *end ? end + 1 : end;
    }
    for (long i = 0; i < live; i++) check(cuMemFree_v2(held[i]), "cuMemFree_v2");
    free(held);
    check(cuMemFree_v2(first), "cuMemFree_v2");
    check(cuModuleUnload(module), "cuModuleUnload");
    check(cuDevicePrimaryCtxRelease_v2(device), "cuDevicePrimaryCtxRelease_v2");
    return 0;
}
