/* A small memory limiter with one planted fault, chosen by -DFAULT=...; without it, the clean twin. Its faults are those
 * seen in public interposers. It reserves before the driver's call, in a file with one row a process (the limit's
 * variables as in naive.c), and takes the rows of dead processes out when it would refuse. */
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define CLEAN 0
#define NULL_OUTPUT 1        /* the memory query writes through a NULL pointer */
#define WRITES_ON_FAILURE 2  /* a refused allocation leaves a pointer behind */
#define UNKNOWN_FREE 3       /* a free of what it does not know never reaches the driver */
#define POOL_UNACCOUNTED 4   /* allocations from a pool are not charged */
#define ASYNC_MINUS_ONE 5    /* a refused stream-ordered allocation returns -1 */
#define TOTAL_ZERO 6         /* without a limit the total reads 0 */
#define PITCH_UNDERCOUNT 7   /* charges width x height, not pitch x height */
#define NEXT_NULL 8          /* the second look-up through RTLD_NEXT finds nothing */
#define DEAD_BYTES 9         /* a dead process's bytes stay charged */
#define FREED_EARLY 10       /* a free that the driver refuses is credited all the same */
#define SIZE_ZERO_CHARGED 11 /* a failed allocation stays charged */
#define QUERY_LEAKS 12       /* when the question about a new stream-ordered allocation fails, it is nobody's */
#ifndef FAULT
#define FAULT CLEAN
#endif

enum { SUCCESS = 0, OUT_OF_MEMORY = 2, LIVE = 4096, ROWS = 64 };
typedef unsigned long long pointer_t;
typedef void *(*dlsym_t)(void *, const char *);

static dlsym_t looker(void) {
    static dlsym_t ask;
    static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.2.5", "GLIBC_2.17"};
    for (int i = 0; !ask && i < 3; i++) ask = (dlsym_t)dlvsym(RTLD_NEXT, "dlsym", versions[i]);
    return ask;
}

static void *real(const char *name) {
    static void *driver;
    if (!driver) driver = dlopen("libcuda.so.1", RTLD_LAZY);
    return driver ? looker()(driver, name) : NULL;
}

static uint64_t limit(void) {
    const char *text = getenv("CUDA_DEVICE_MEMORY_LIMIT");
    return text && *text ? strtoull(text, NULL, 10) : UINT64_MAX;
}

struct row {
    int64_t pid;
    uint64_t bytes;
};

static struct row *rows(void) {
    static struct row *all;
    if (all) return all;
    const char *path = getenv("CUDA_DEVICE_MEMORY_SHARED_CACHE");
    int file = open(path ? path : "/tmp/behaviour", O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0 || ftruncate(file, ROWS * sizeof *all)) abort();
    all = mmap(NULL, ROWS * sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (all == MAP_FAILED) abort();
    return all;
}

static struct row *mine(void) {
    static struct row *row;
    for (int i = 0; !row && i < ROWS; i++) {
        int64_t nobody = 0;
        if (__atomic_compare_exchange_n(&rows()[i].pid, &nobody, getpid(), 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
            row = &rows()[i];
    }
    if (!row) abort();
    return row;
}

static uint64_t used(void) {
    uint64_t sum = 0;
    for (int i = 0; i < ROWS; i++) sum += __atomic_load_n(&rows()[i].bytes, __ATOMIC_SEQ_CST);
    return sum;
}

static void bury(void) {
    for (int i = 0; i < ROWS && FAULT != DEAD_BYTES; i++)
        if (rows()[i].pid && kill((pid_t)rows()[i].pid, 0)) {
            rows()[i].bytes = 0;
            rows()[i].pid = 0;
        }
}

static int reserve(uint64_t bytes) {
    for (int attempt = 0; attempt < 2; attempt++) {
        __atomic_add_fetch(&mine()->bytes, bytes, __ATOMIC_SEQ_CST);
        if (used() <= limit()) return 0;
        __atomic_sub_fetch(&mine()->bytes, bytes, __ATOMIC_SEQ_CST);
        bury();
    }
    return -1;
}

static void give(uint64_t bytes) { __atomic_sub_fetch(&mine()->bytes, bytes, __ATOMIC_SEQ_CST); }

static struct {
    pointer_t pointer;
    uint64_t bytes;
} live[LIVE];

static int settle(int result, pointer_t *pointer, uint64_t bytes) {
    if (result != SUCCESS) {
        if (FAULT != SIZE_ZERO_CHARGED) give(bytes);
        return result;
    }
    for (int i = 0; i < LIVE; i++)
        if (!live[i].pointer) {
            live[i].pointer = *pointer;
            live[i].bytes = bytes;
            return result;
        }
    abort();
}

static int refused(pointer_t *pointer, int code) {
    if (pointer) *pointer = FAULT == WRITES_ON_FAILURE ? 0xdead0000 : 0;
    return code;
}

int cuMemAlloc_v2(pointer_t *pointer, size_t bytes) {
    if (reserve(bytes)) return refused(pointer, OUT_OF_MEMORY);
    return settle(((int (*)(pointer_t *, size_t))real("cuMemAlloc_v2"))(pointer, bytes), pointer, bytes);
}

int cuMemAllocPitch_v2(pointer_t *pointer, size_t *pitch, size_t width, size_t height, unsigned element) {
    uint64_t row = FAULT == PITCH_UNDERCOUNT ? width : (width + 511) / 512 * 512;
    if (reserve(row * height)) return refused(pointer, OUT_OF_MEMORY);
    return settle(((int (*)(pointer_t *, size_t *, size_t, size_t, unsigned))real("cuMemAllocPitch_v2"))(
                      pointer, pitch, width, height, element),
                  pointer, row * height);
}

/* What the pool of the device holds now; the answer is a hint, the bytes asked for are charged anyway. */
static int ask_pool(void) {
    enum { RESERVED_HIGH = 6 };
    int device = 0;
    void *pool = NULL;
    uint64_t high = 0;
    int result = ((int (*)(int *))real("cuCtxGetDevice"))(&device);
    if (result == SUCCESS) result = ((int (*)(void **, int))real("cuDeviceGetMemPool"))(&pool, device);
    return result ? result : ((int (*)(void *, int, void *))real("cuMemPoolGetAttribute"))(pool, RESERVED_HIGH, &high);
}

int cuMemAllocAsync(pointer_t *pointer, size_t bytes, void *stream) {
    if (reserve(bytes)) return refused(pointer, FAULT == ASYNC_MINUS_ONE ? -1 : OUT_OF_MEMORY);
    int result = ((int (*)(pointer_t *, size_t, void *))real("cuMemAllocAsync"))(pointer, bytes, stream);
    int asked = result == SUCCESS ? ask_pool() : SUCCESS;
    if (asked != SUCCESS && FAULT == QUERY_LEAKS) {
        give(bytes);
        return refused(pointer, asked);
    }
    return settle(result, pointer, bytes);
}

int cuMemAllocFromPoolAsync(pointer_t *pointer, size_t bytes, void *pool, void *stream) {
    int (*next)(pointer_t *, size_t, void *, void *) =
        (int (*)(pointer_t *, size_t, void *, void *))real("cuMemAllocFromPoolAsync");
    if (FAULT == POOL_UNACCOUNTED) return next(pointer, bytes, pool, stream);
    if (reserve(bytes)) return refused(pointer, OUT_OF_MEMORY);
    return settle(next(pointer, bytes, pool, stream), pointer, bytes);
}

int cuMemFree_v2(pointer_t pointer) {
    int at = 0;
    while (at < LIVE && live[at].pointer != pointer) at++;
    int known = pointer && at < LIVE;
    if (!known && pointer && FAULT == UNKNOWN_FREE) return SUCCESS;
    int result = ((int (*)(pointer_t))real("cuMemFree_v2"))(pointer);
    if (known && (result == SUCCESS || FAULT == FREED_EARLY)) {
        give(live[at].bytes);
        live[at].pointer = 0;
    }
    return result;
}

int cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    size_t f = 0, t = 0;
    int result = ((int (*)(size_t *, size_t *))real("cuMemGetInfo_v2"))(&f, &t);
    uint64_t most = limit(), taken = used();
    if (FAULT == TOTAL_ZERO && most == UINT64_MAX) t = 0;
    if (most != UINT64_MAX && result == SUCCESS) {
        if (t > most) t = most;
        if (f > most - (taken < most ? taken : most)) f = most - (taken < most ? taken : most);
    }
    if (free_bytes || FAULT == NULL_OUTPUT) *(volatile size_t *)free_bytes = f;
    if (total) *total = t;
    return result;
}

#define HOOKS(X)                                                                                                       \
    X(cuMemAlloc_v2)                                                                                                   \
    X(cuMemAllocPitch_v2) X(cuMemAllocAsync) X(cuMemAllocFromPoolAsync) X(cuMemFree_v2) X(cuMemGetInfo_v2)

void *dlsym(void *restrict handle, const char *restrict name) {
    static int nexts;
#define ONE(NAME)                                                                                                      \
    if (!strcmp(name, #NAME)) return (void *)&NAME;
    if (handle != RTLD_NEXT) { HOOKS(ONE) }
    if (handle == RTLD_NEXT && !strncmp(name, "cu", 2)) {
        if (nexts++ && FAULT == NEXT_NULL) return NULL;
        return real(name);
    }
    void *volatile found = looker()(handle, name);
    return found;
}
