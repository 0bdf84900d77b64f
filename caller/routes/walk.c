/* The walk itself: the file, the lookups, the driver's start, the calls. */
#include "walk.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

extern __attribute__((weak)) int cuInit(unsigned);
extern __attribute__((weak)) int cuDevicePrimaryCtxRetain(void **, int);
extern __attribute__((weak)) int cuCtxSetCurrent(void *);
extern __attribute__((weak)) int nvmlInit_v2(void);

static struct hl_routes_header *open_file(const char *file, unsigned count) {
    size_t size = sizeof(struct hl_routes_header) + count * sizeof(struct hl_routes_row) +
                  WALK_LEDGER * sizeof(struct hl_routes_ledger);
    int fd = open(file, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0 || ftruncate(fd, (off_t)size)) return NULL;
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return at == MAP_FAILED ? NULL : at;
}

static struct hl_echo *recorder(void *handle) {
    struct hl_echo *echo = handle ? dlsym(handle, "hl_echo") : NULL;
    if (!echo || echo->version != HL_ECHO_STUB) return NULL;
    echo->thread = (uint64_t)pthread_self();
    echo->answer = HL_CALL_ANSWER;
    walk_junk(echo);
    return echo;
}

void walk_init(struct walk *walk) {
    struct hl_routes_header *header = walk->header;
    void *context = NULL;
    header->init_result = cuInit ? cuInit(0) : -1;
    header->context_result = cuDevicePrimaryCtxRetain ? cuDevicePrimaryCtxRetain(&context, 0) : -1;
    if (!header->context_result && cuCtxSetCurrent) cuCtxSetCurrent(context);
    header->nvml_result = nvmlInit_v2 ? nvmlInit_v2() : -1;
}

/* A wrapper that finds itself runs out of stack: soon, not after eight megabytes. */
static void shorten_stack(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_STACK, &limit) || limit.rlim_cur <= (1 << 20)) return;
    limit.rlim_cur = 1 << 20;
    setrlimit(RLIMIT_STACK, &limit);
}

int hl_walk(const char *file, int host, unsigned first, const volatile unsigned *allocations) {
    unsigned count = walk_cases(NULL);
    shorten_stack();
    struct walk walk = {.host = host, .allocations = allocations};
    walk.header = open_file(file, count);
    if (!walk.header) {
        fprintf(stderr, "hooklab-routes: %s cannot be written\n", file);
        return 2;
    }
    walk.rows = (struct hl_routes_row *)(walk.header + 1);
    walk.handle[0] = dlopen("libcuda.so.1", RTLD_LAZY);
    walk.handle[1] = dlopen("libnvidia-ml.so.1", RTLD_LAZY);
    for (int library = 0; library < 2; library++) walk.echo[library] = recorder(walk.handle[library]);
    struct hl_routes_header *header = walk.header;
    bool again = header->magic == HL_ROUTES_MAGIC; /* going on after a crash: what is known is kept */
    if (!again) {
        walk_cases(walk.rows);
        *header = (struct hl_routes_header){.layout_hash = HL_ROUTES_HASH, .rows = count, .host = (uint32_t)host};
        header->counts_allocations = allocations != NULL;
        header->magic = HL_ROUTES_MAGIC;
    }
    header->phase = 1;
    if (!again && walk.handle[0]) dlsym(walk.handle[0], "cuInit"); /* what a first lookup sets up counts for no case */
    for (header->row = 0; header->row < count; header->row++) {
        struct hl_routes_row *row = &walk.rows[header->row];
        if (row->state == HL_STATE_LOOKING) continue; /* died here before */
        if (row->state >= HL_STATE_CALLING && header->row < first) continue;
        struct hl_routes_row fresh = {
            .name = row->name, .route = row->route, .flags = row->flags, .version = row->version};
        *row = fresh;
        walk_look(&walk, row);
    }
    walk_foreign(&walk);
    header->phase = 2;
    walk_init(&walk);
    header->phase = 3;
    for (header->row = first; header->row < count; header->row++) walk_call(&walk, &walk.rows[header->row]);
    if (first >= count) walk_ledger(&walk, (struct hl_routes_ledger *)(walk.rows + count));
    header->phase = 4;
    header->finished = 1;
    return 0;
}
