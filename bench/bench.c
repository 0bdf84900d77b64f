/* Times driver calls from inside one process, a batch at a time and on demand, so that a bare and an interposed process can
 * be measured in turn. It knows nothing of interposers: the difference of two processes is what an interposer adds.
 *
 * Usage: hooklab-bench [--live N,N,...], or --burst ... (worker.c), --load ... (load.c)
 * It prints a JSON object a line: what can be timed once only ("once"), then what it can time ("figure"), then `ready`.
 * Each line on standard input is the number of a figure; the answer is the time of one call of a batch, in ns. At the end
 * of its input it ends. Calls go through relocations, as those of a compiled program do. Time is CLOCK_MONOTONIC. */
#define _GNU_SOURCE
#include "worker.h"

#include <cuda.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_FIGURES = 64, MAX_CALLS = 2000, SMALL = 512 };

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
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

static int ascending(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Each launch by itself: what the median one costs, whatever a few among them have to do for all. */
static double launch_median(const struct context *c, int calls) {
    uint64_t ns[MAX_CALLS];
    for (int i = 0; i < calls; i++) {
        uint64_t start = now_ns();
        check(cuLaunchKernel(c->function, 1, 1, 1, 32, 1, 1, 0, c->stream, NULL, NULL), "cuLaunchKernel");
        ns[i] = now_ns() - start;
    }
    qsort(ns, (size_t)calls, sizeof *ns, ascending);
    return (double)ns[calls / 2];
}

static void lookup(const struct context *c, int calls) {
    (void)c;
    void *entry;
    for (int i = 0; i < calls; i++)
        check(cuGetProcAddress_v2("cuMemAlloc", &entry, 12000, 0, NULL), "cuGetProcAddress_v2");
}

struct figure {
    const char *name;
    body_fn body;
    int calls;
    long live;
    double (*median)(const struct context *, int calls); /* instead of body: it takes the time by itself */
};

/* One batch. What it queued is waited for outside its time: a launch is charged its submission, not its kernel. A few calls
 * before it bring caches and the GPU back from whoever had them meanwhile. */
static double batch(const struct figure *f, const struct context *c) {
    if (f->median) f->median(c, f->calls / 10);
    else f->body(c, f->calls / 10);
    check(cuStreamSynchronize(c->stream), "cuStreamSynchronize");
    uint64_t start = now_ns();
    double ns = f->median ? f->median(c, f->calls) : 0;
    if (!f->median) {
        f->body(c, f->calls);
        ns = (double)(now_ns() - start) / f->calls;
    }
    check(cuStreamSynchronize(c->stream), "cuStreamSynchronize");
    return ns;
}

static void once(const char *name, uint64_t ns) {
    printf("{\"once\": \"%s\", \"live\": 0, \"ns\": %llu}\n", name, (unsigned long long)ns);
}

/* Ascending counts of live allocations, each a figure; -1 where they are none. */
static int live_figures(struct figure *figures, int count, const char *text) {
    long before = 0;
    for (const char *at = text; *at;) {
        char *end;
        long want = strtol(at, &end, 10);
        if (end == at || want < before || count == MAX_FIGURES) return -1;
        figures[count++] = (struct figure){"cuMemAlloc_v2+cuMemFree_v2", alloc_free, 1000, want, NULL};
        before = want;
        at = *end ? end + 1 : end;
    }
    return count;
}

/* Serves batches until the input ends. What is live is only ever more: figures are asked for in their order. */
static int serve(const struct figure *figures, int count, const struct context *c) {
    char line[32];
    long live = 0;
    CUdeviceptr *held = NULL;
    while (fgets(line, sizeof line, stdin)) {
        int number = atoi(line);
        if (number < 0 || number >= count) {
            fprintf(stderr, "hooklab-bench: no figure %d\n", number);
            return 2;
        }
        const struct figure *f = &figures[number];
        if (f->live > live) {
            CUdeviceptr *more = realloc(held, (size_t)f->live * sizeof *held);
            if (!more) return 1;
            held = more;
            for (; live < f->live; live++) check(cuMemAlloc_v2(&held[live], SMALL), "cuMemAlloc_v2");
        }
        printf("%.1f\n", batch(f, c));
        fflush(stdout);
    }
    for (long i = 0; i < live; i++) check(cuMemFree_v2(held[i]), "cuMemFree_v2");
    free(held);
    return 0;
}

static const char ptx[] = ".version 7.0\n.target sm_52\n.address_size 64\n"
                          ".visible .entry hooklab_bench_empty()\n{\n    ret;\n}\n";

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "--burst")) return worker_main(argc, argv);
    if (argc > 1 && !strcmp(argv[1], "--load")) return load_main(argc, argv);
    const char *levels = "0,1000,10000,100000";
    for (int i = 1; i + 1 < argc; i += 2)
        if (!strcmp(argv[i], "--live")) levels = argv[i + 1];
    struct figure figures[MAX_FIGURES] = {{"cuMemGetInfo_v2", memory_info, 2000, 0, NULL},
                                          {"cuLaunchKernel", launch, 500, 0, NULL},
                                          {"cuLaunchKernel, median launch", NULL, 500, 0, launch_median},
                                          {"cuGetProcAddress_v2", lookup, 2000, 0, NULL},
                                          {"cuMemAllocAsync+cuMemFreeAsync", alloc_free_async, 1000, 0, NULL}};
    int count = live_figures(figures, 5, levels);
    if (count < 0) {
        fprintf(stderr, "hooklab-bench: --live takes ascending counts, e.g. 0,1000\n");
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

    for (int i = 0; i < count; i++) printf("{\"figure\": \"%s\", \"live\": %ld}\n", figures[i].name, figures[i].live);
    printf("ready\n");
    fflush(stdout);
    int status = serve(figures, count, &c);
    if (status) return status;
    check(cuMemFree_v2(first), "cuMemFree_v2");
    check(cuModuleUnload(module), "cuModuleUnload");
    check(cuDevicePrimaryCtxRelease_v2(device), "cuDevicePrimaryCtxRelease_v2");
    return 0;
}
