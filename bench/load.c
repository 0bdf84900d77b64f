/* A load on the GPU in a known pattern, and how long its launches took: `hooklab-bench --load key=value ...`
 *
 *   pattern   async, short, sync, long, burst, modest, mixed, changing, giant: what facts of other limiters were measured
 *             with; ex, cooperative, graph: async through another entry, a graph of five kernels at a time
 *   seconds   how long (default 5)   seed   of the sizes and pauses
 *   ps        real GPU: picoseconds that an iteration of the kernel takes when it is alone; 0 = measure it and print it
 *   real      1: the kernel works for iterations and writes the GPU's clock, so that what it got can be told apart from
 *             the time slices of others; 0: the fake takes its argument for its time
 *
 * Prints one JSON object: launches, times of the launch call in ns (median, p99, longest), and with real=1 the work done in
 * each 100 ms by the GPU's clock and how long it ran and paused in turn. It knows nothing of interposers. */
#define _GNU_SOURCE
#include "worker.h"

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LOGGED = 1 << 20, SIZES = 16, CELL_NS = 100000000, BLOCKS = 264, THREADS = 32, KEPT = 1 << 20 };

static const char fake_image[] = ".version 6.0\n.target sm_50\n.address_size 64\n"
                                 ".visible .entry work(.param .u64 duration)\n{\n"
                                 " .reg .pred %p<2>; .reg .b64 %d<5>;\n"
                                 " ld.param.u64 %d1, [duration];\n mov.u64 %d2, %globaltimer;\n"
                                 "AGAIN:\n mov.u64 %d3, %globaltimer;\n sub.u64 %d4, %d3, %d2;\n"
                                 " setp.lt.u64 %p1, %d4, %d1;\n @%p1 bra AGAIN;\n ret;\n}\n";

/* Iterations of dependent work; the first thread of the grid writes when it began and ended. A warp a block: with more, the
 * first one gets ahead of the others and its time is not the kernel's. */
static const char real_image[] =
    ".version 6.0\n.target sm_50\n.address_size 64\n"
    ".visible .entry work(.param .u64 turns, .param .u64 log)\n{\n"
    " .reg .pred %p<4>; .reg .b32 %r<8>; .reg .b64 %d<12>;\n"
    " ld.param.u64 %d1, [turns];\n ld.param.u64 %d2, [log];\n cvta.to.global.u64 %d2, %d2;\n"
    " mov.u64 %d3, %globaltimer;\n mov.u64 %d4, 0;\n mov.u64 %d5, %clock64;\n"
    "AGAIN:\n mul.lo.u64 %d5, %d5, 6364136223846793005;\n add.u64 %d5, %d5, 1442695040888963407;\n"
    " add.u64 %d4, %d4, 1;\n setp.lt.u64 %p1, %d4, %d1;\n @%p1 bra AGAIN;\n"
    " mov.u32 %r1, %ctaid.x;\n mov.u32 %r2, %tid.x;\n or.b32 %r3, %r1, %r2;\n setp.ne.u32 %p2, %r3, 0;\n"
    " setp.eq.u64 %p3, %d5, 1;\n @%p3 st.global.u64 [%d2+8], %d5;\n @%p2 bra DONE;\n"
    " atom.global.add.u64 %d6, [%d2], 1;\n and.b64 %d6, %d6, 1048575;\n mul.lo.u64 %d7, %d6, 24;\n"
    " add.u64 %d8, %d2, %d7;\n mov.u64 %d9, %globaltimer;\n"
    " st.global.u64 [%d8+16], %d3;\n st.global.u64 [%d8+24], %d9;\n st.global.u64 [%d8+32], %d1;\n"
    "DONE:\n ret;\n}\n";

struct load {
    const char *pattern;
    double seconds;
    uint64_t seed, ps;
    int real;
    CUfunction function;
    CUstream stream;
    CUdeviceptr log;
    CUgraphExec graph;
    uint64_t launches, began, until;
    uint32_t *took; /* ns of each launch call, saturated; the first KEPT */
};

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

static uint64_t draw(struct load *load) { /* splitmix64 */
    uint64_t z = load->seed += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* Five kernels of 200 us, captured once: the capture itself runs nothing. */
static CUgraphExec graph_of(struct load *load) {
    CUgraph graph;
    CUgraphExec exec;
    uint64_t value = load->real ? 200000 * 1000 / load->ps : 200000;
    void *arguments[] = {&value, &load->log};
    check(cuStreamBeginCapture_v2(load->stream, CU_STREAM_CAPTURE_MODE_GLOBAL), "cuStreamBeginCapture_v2");
    for (int i = 0; i < 5; i++)
        check(cuLaunchKernel(load->function, BLOCKS, 1, 1, THREADS, 1, 1, 0, load->stream, arguments, NULL),
              "cuLaunchKernel");
    check(cuStreamEndCapture(load->stream, &graph), "cuStreamEndCapture");
    check(cuGraphInstantiateWithFlags(&exec, graph, 0), "cuGraphInstantiateWithFlags");
    return exec;
}

static void launch(struct load *load, uint64_t ns, unsigned blocks) {
    uint64_t value = load->real ? ns * 1000 / load->ps : ns;
    void *arguments[] = {&value, &load->log};
    if (!strcmp(load->pattern, "graph") && !load->graph) load->graph = graph_of(load);
    uint64_t start = now_ns();
    if (load->graph) {
        check(cuGraphLaunch(load->graph, load->stream), "cuGraphLaunch");
    } else if (!strcmp(load->pattern, "ex")) {
        CUlaunchConfig config = {.gridDimX = blocks,
                                 .gridDimY = 1,
                                 .gridDimZ = 1,
                                 .blockDimX = THREADS,
                                 .blockDimY = 1,
                                 .blockDimZ = 1,
                                 .hStream = load->stream};
        check(cuLaunchKernelEx(&config, load->function, arguments, NULL), "cuLaunchKernelEx");
    } else if (!strcmp(load->pattern, "cooperative")) {
        check(cuLaunchCooperativeKernel(load->function, blocks, 1, 1, THREADS, 1, 1, 0, load->stream, arguments),
              "cuLaunchCooperativeKernel");
    } else {
        check(cuLaunchKernel(load->function, blocks, 1, 1, THREADS, 1, 1, 0, load->stream, arguments, NULL),
              "cuLaunchKernel");
    }
    uint64_t took = now_ns() - start;
    if (load->launches < KEPT) load->took[load->launches] = took > UINT32_MAX ? UINT32_MAX : (uint32_t)took;
    load->launches++;
}

static void wait_all(struct load *load) { check(cuStreamSynchronize(load->stream), "cuStreamSynchronize"); }

static void pause_ns(uint64_t ns) {
    struct timespec t = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
    nanosleep(&t, NULL);
}

static int going(const struct load *load) { return now_ns() < load->until; }

static void play(struct load *load) {
    const char *p = load->pattern;
    uint64_t sizes[SIZES];
    for (int i = 0; i < SIZES; i++) { /* 20 us to 50 ms in equal ratios */
        double size = 20000;
        for (int j = 0; j < i; j++) size *= 1.6848; /* 2500^(1/15) */
        sizes[i] = (uint64_t)size;
    }
    while (going(load)) {
        if (!strcmp(p, "short")) {
            launch(load, 20000, BLOCKS);
        } else if (!strcmp(p, "sync") || !strcmp(p, "long")) {
            launch(load, *p == 's' ? 1000000 : 20000000, BLOCKS);
            wait_all(load);
        } else if (!strcmp(p, "burst")) {
            for (int i = 0; i < 50 && going(load); i++) launch(load, 1000000, BLOCKS);
            wait_all(load);
            pause_ns(25000000 + draw(load) % 50000000);
        } else if (!strcmp(p, "modest")) {
            launch(load, 1000000, BLOCKS);
            wait_all(load);
            pause_ns(9000000);
        } else if (!strcmp(p, "mixed")) {
            unsigned which = (unsigned)(draw(load) % SIZES);
            launch(load, sizes[which], BLOCKS + which);
        } else if (!strcmp(p, "changing")) {
            int phase = (int)((now_ns() - load->began) / 4000000000u) % 2;
            launch(load, phase ? 5000000 : 100000, phase ? BLOCKS / 4 : BLOCKS);
        } else if (!strcmp(p, "giant")) {
            launch(load, 2000000000, BLOCKS);
            wait_all(load);
        } else { /* async, ex, cooperative */
            launch(load, 200000, BLOCKS);
        }
    }
    wait_all(load);
}

static int ascending(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static int by_start(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* How long this process ran between pauses, and the pauses: with a neighbour that always has work, their time slices. A
 * kernel that took much longer than it takes alone was interrupted once, which ends a run somewhere inside it. */
static void print_turns(const struct load *load, uint64_t *log, uint64_t kept) {
    enum { PAUSE_NS = 300000 };
    uint32_t *run = calloc(kept + 1, sizeof *run), *pause = calloc(2 * kept + 1, sizeof *pause);
    uint64_t runs = 0, pauses = 0;
    double running = 0;
    if (!run || !pause) exit(1);
    qsort(log, kept, 24, by_start);
    for (uint64_t i = 0; i < kept; i++) {
        double alone = (double)log[3 * i + 2] * (double)load->ps / 1000, span = (double)(log[3 * i + 1] - log[3 * i]);
        bool paused = i && log[3 * i] > log[3 * i - 2] + PAUSE_NS, inside = span > alone + PAUSE_NS;
        if (paused) pause[pauses++] = (uint32_t)(log[3 * i] - log[3 * i - 2]);
        if (inside) pause[pauses++] = (uint32_t)(span - alone);
        if ((paused || inside) && running > 0) {
            run[runs++] = (uint32_t)(running + (inside ? alone / 2 : 0));
            running = inside ? -alone / 2 : 0;
        }
        running += alone;
    }
    qsort(run, runs, sizeof *run, ascending);
    qsort(pause, pauses, sizeof *pause, ascending);
    printf(", \"runs\": %llu, \"pauses\": %llu", (unsigned long long)runs, (unsigned long long)pauses);
    if (runs)
        printf(", \"run_p10_ns\": %u, \"run_p50_ns\": %u, \"run_p90_ns\": %u", run[runs / 10], run[runs / 2],
               run[runs * 9 / 10]);
    if (pauses)
        printf(", \"pause_p10_ns\": %u, \"pause_p50_ns\": %u, \"pause_p90_ns\": %u", pause[pauses / 10],
               pause[pauses / 2], pause[pauses * 9 / 10]);
    free(run);
    free(pause);
}

/* Work that ended in each cell of 100 ms of the GPU's clock, in ns that it takes alone. */
static void print_cells(struct load *load) {
    uint64_t count = 0, *log = calloc(LOGGED, 24);
    check(cuMemcpyDtoH_v2(&count, load->log, sizeof count), "cuMemcpyDtoH_v2");
    uint64_t kept = count < LOGGED ? count : LOGGED, first = UINT64_MAX, last = 0;
    if (!log) exit(1);
    if (kept) check(cuMemcpyDtoH_v2(log, load->log + 16, kept * 24), "cuMemcpyDtoH_v2");
    for (uint64_t i = 0; i < kept; i++) {
        if (log[3 * i] < first) first = log[3 * i];
        if (log[3 * i + 1] > last) last = log[3 * i + 1];
    }
    size_t cells = kept ? (size_t)((last - first) / CELL_NS + 1) : 0;
    double *work = calloc(cells + 1, sizeof *work);
    if (!work) exit(1);
    for (uint64_t i = 0; i < kept; i++) { /* spread over the time that it ran */
        uint64_t from = log[3 * i] - first, to = log[3 * i + 1] - first;
        double alone = (double)log[3 * i + 2] * (double)load->ps / 1000, span = (double)(to - from) + 1;
        for (uint64_t cell = from / CELL_NS; cell <= to / CELL_NS && cell < cells; cell++) {
            uint64_t a = cell * CELL_NS > from ? cell * CELL_NS : from;
            uint64_t b = (cell + 1) * CELL_NS < to ? (cell + 1) * CELL_NS : to;
            work[cell] += alone * ((double)(b - a) + 1) / span;
        }
    }
    print_turns(load, log, kept);
    printf(", \"gpu_first_ns\": %llu, \"cell_ns\": %d, \"cells\": [", (unsigned long long)first, CELL_NS);
    for (size_t i = 0; i < cells; i++) printf("%s%.0f", i ? ", " : "", work[i]);
    printf("]");
}

static uint64_t calibrate(struct load *load) {
    uint64_t stamps[4];
    load->ps = 1000;
    double best = 0;
    for (int i = 0; i < 5; i++) {
        launch(load, 5000000, BLOCKS);
        wait_all(load);
        check(cuMemcpyDtoH_v2(stamps, load->log + 16 + 24 * (uint64_t)i, 24), "cuMemcpyDtoH_v2");
        double ps = (double)(stamps[1] - stamps[0]) * 1000 / (double)stamps[2];
        if (i && (best == 0 || ps < best)) best = ps;
    }
    return (uint64_t)(best + 0.5);
}

int load_main(int argc, char **argv) {
    struct load load = {.pattern = "async", .seconds = 5, .seed = 1};
    for (int i = 2; i < argc; i++) {
        char *value = strchr(argv[i], '=');
        if (!value) return fprintf(stderr, "hooklab-bench: %s: write key=value\n", argv[i]), 2;
        *value++ = 0;
        if (!strcmp(argv[i], "pattern")) load.pattern = value;
        else if (!strcmp(argv[i], "seconds")) load.seconds = atof(value);
        else if (!strcmp(argv[i], "seed")) load.seed = strtoull(value, NULL, 10);
        else if (!strcmp(argv[i], "ps")) load.ps = strtoull(value, NULL, 10);
        else if (!strcmp(argv[i], "real")) load.real = atoi(value);
        else return fprintf(stderr, "hooklab-bench: no key %s of --load\n", argv[i]), 2;
    }
    CUdevice device;
    CUcontext context;
    CUmodule module;
    load.took = calloc(KEPT, sizeof *load.took);
    if (!load.took) return 1;
    check(cuInit(0), "cuInit");
    check(cuDeviceGet(&device, 0), "cuDeviceGet");
    check(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    check(cuStreamCreate(&load.stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    check(cuModuleLoadData(&module, load.real ? real_image : fake_image), "cuModuleLoadData");
    check(cuModuleGetFunction(&load.function, module, "work"), "cuModuleGetFunction");
    if (load.real) {
        check(cuMemAlloc_v2(&load.log, 16 + (size_t)LOGGED * 24 + 64), "cuMemAlloc_v2");
        check(cuMemsetD8_v2(load.log, 0, 16 + (size_t)LOGGED * 24 + 64), "cuMemsetD8_v2");
        if (!load.ps) {
            printf("{\"ps\": %llu}\n", (unsigned long long)calibrate(&load));
            return 0;
        }
    }
    load.began = now_ns();
    load.until = load.began + (uint64_t)(load.seconds * 1e9);
    struct timespec cpu, before;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    play(&load);
    uint64_t ended = now_ns();
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
    uint64_t kept = load.launches < KEPT ? load.launches : KEPT;
    qsort(load.took, kept, sizeof *load.took, ascending);
    printf("{\"pattern\": \"%s\", \"launches\": %llu, \"began_ns\": %llu, \"ended_ns\": %llu, \"cpu_ns\": %llu",
           load.pattern, (unsigned long long)load.launches, (unsigned long long)load.began, (unsigned long long)ended,
           (unsigned long long)(cpu.tv_sec - before.tv_sec) * 1000000000u + (unsigned long long)cpu.tv_nsec -
               (unsigned long long)before.tv_nsec);
    if (kept)
        printf(", \"launch_p50_ns\": %u, \"launch_p99_ns\": %u, \"launch_max_ns\": %u", load.took[kept / 2],
               load.took[kept * 99 / 100], load.took[kept - 1]);
    if (load.real) print_cells(&load);
    printf("}\n");
    return 0;
}
