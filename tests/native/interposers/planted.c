/* Faults of public interposers, planted before our own shim: one a build, chosen by -D. This library is preloaded first
 * (a scenario's LD_PRELOAD), wraps the few functions that its fault is about and goes on to the hook behind it; without
 * a fault it changes nothing. So what a scenario catches is the fault and nothing else. The names that scenarios use in
 * `planted:` are those of the table at the end of this comment; tests/corpus compiles them.
 *
 *   NULL_OUTPUT          the memory query writes through null outputs
 *   RESOLVER_STATUS      the resolver writes its status through a null pointer
 *   NVML_NULL            the NVML memory queries read the structure that they were not given
 *   READS_ON_FAILURE     the attribute of a pool is read back as eight bytes, whatever its width and the result
 *   FAILED_RETAIN        a context that was not made costs memory
 *   RELEASE_FIRST        a release gives the context back before the driver has agreed
 *   LOSES_ASYNC          a bookkeeping query that fails loses the memory that was got before it
 *   MINUS_ONE            a refusal is -1
 *   CURRENT_DEVICE       a free gives back to the current device what another one has
 *   ONE_FLAG             the first release of a context counts as the last
 *   ASYNC_CHARGED        each stream-ordered allocation is charged and never given back
 *   POOL_FREE            memory from a pool is not charged
 *   ASYNC_FREE           stream-ordered memory is not charged
 *   TRIM_UNSEEN          what a trim gives back stays charged
 *   PITCH_FREE           pitched memory is not charged
 *   MANAGED_FREE         managed memory is not charged
 *   ARRAY_FREE           arrays are not charged
 *   ARRAY3D_FREE         arrays of three dimensions are not charged
 *   MIPMAP_FREE          mipmapped arrays are not charged
 *   GRAPH_UNSEEN         what the nodes of graphs allocate is not charged
 *   TOTAL_IS_LIMIT       the total is the limit, whatever the card has
 *   ZERO_IS_NOTHING      a limit of zero is a total of zero
 *   ORDINALS             devices of the node and of the program are one numbering
 *   NEVER_BURIED         what a dead process held stays charged
 *   OTHERS_SLOT          after a newcomer, an older process writes into a slot that is no longer its own
 *   LENIENT              a limit that cannot be read is no limit
 *   OVER_IS_ERROR        more in use than the limit is an error of the query
 *   LOCK_IN_DRIVER       a lock of the container is held across the driver's call
 *   HOST_CHARGED         what lies in the host's memory is charged to the device
 *   GRAPH_FREE           a free of what no hook has seen is refused
 *   RAW_STATUS           a launch that the driver refuses is a success
 *   OWN_ERRORS           errors are answered from a list of its own
 *   ANY_VERSION          a structure of any version is filled
 *   NVML_IDLE            NVML's view knows nothing of what CUDA allocates
 *   NO_NEWS_IS_ZERO      no samples since the time asked is a load of zero
 *   PAST_LIMITER         cooperative launches and graphs go past the limiter
 *   STACK_FREE           what a larger stack limit takes is not charged
 *   VMM_FREE             physical handles are not charged
 *   VMM_RELEASED         a release of a handle gives back what is still mapped
 *   MAPPING_CHARGED      a mapping is charged as if it were memory
 *   IMPORT_CHARGED       who opens memory of another process, or of elsewhere, is charged for it
 *   FIGURE_ONLY          a card without a memory figure has none under a limit, either
 *   HIDES_NOTHING        NVML lists every card of the node, whatever is visible
 *   HOST_LISTS           NVML's lists of processes are the driver's
 *   MISS_IS_ZERO         a process whose memory NVML does not know has none
 *   KILLS                who asks for more than there is, is ended where ACTIVE_OOM_KILLER is set
 *   SLICE_IS_ITS_CARD    the memory of a MIG device is asked of its card
 *   ONE_NUMBERING        device 0 of every process is one device, whatever each of them sees
 *   FLOCK_HELD           a lock lies in a descriptor that children inherit
 *   EXIT_CLEANS          whoever exits gives the bytes of the process that came before it back
 *   GREEDY               the driver's own lookups get the hook
 *   TALKS                a line on standard output for each process
 *   OWN_NAMES            an unknown code has a name */
#include "../../../shim/preload/tables.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define SHIM "libhooklab-preload.so"
enum { OUT_OF_MEMORY = 2, INVALID = 1 };
typedef unsigned long long number;

static void *defined(const char *stem, const char *name) {
    struct hl_object object;
    for (const struct link_map *map = _r_debug.r_map; map; map = map->l_next)
        if (hl_object_read(&object, map->l_addr, map->l_ld) && hl_soname_is(object.soname, stem))
            return hl_object_symbol(&object, name);
    return NULL;
}

/* The driver's function, and the one that a program without this library would get. */
static __attribute__((unused)) void *real(const char *name) {
    return defined(name[0] == 'c' ? "libcuda.so" : "libnvidia-ml.so", name);
}
static __attribute__((unused)) void *next(const char *name) {
    void *hook = defined(SHIM, name);
    return hook ? hook : real(name);
}
#define NEXT(name, types) ((int(*) types)next(#name))
#define REAL(name, types) ((int(*) types)real(#name))

/* A charge that is wrong, in bytes by device; admits() says what a ledger that holds it would. */
static __attribute__((unused)) _Atomic number wrong[16];
static __attribute__((unused)) int current(void) {
    int device = 0;
    return REAL(cuCtxGetDevice, (int *))(&device) ? 0 : device;
}
static __attribute__((unused)) int admits(number bytes, number extra) {
    size_t free_bytes = 0, total = 0;
    if (NEXT(cuMemGetInfo_v2, (size_t *, size_t *))(&free_bytes, &total)) return 1;
    return free_bytes >= bytes + extra;
}
static __attribute__((unused)) int admits_wrong(number bytes) { return admits(bytes, wrong[current()]); }

/* ---- shapes of faults ---- */

/* A call that the shim does not see. */
#define PAST(name, parameters, arguments)                                                                              \
    EXPORT int name parameters { return ((int(*) parameters)real(#name))arguments; }
/* Allocations are refused as a ledger with the wrong charges would. */
#define ASKS_WRONG                                                                                                     \
    EXPORT int cuMemAlloc_v2(number *pointer, size_t bytes) {                                                          \
        if (!admits_wrong(bytes)) return OUT_OF_MEMORY;                                                                \
        return NEXT(cuMemAlloc_v2, (number *, size_t))(pointer, bytes);                                                \
    }

#ifdef NULL_OUTPUT
#define WRAPS(X) X(cuMemGetInfo_v2)
EXPORT int cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    size_t f = 0, t = 0;
    int result = NEXT(cuMemGetInfo_v2, (size_t *, size_t *))(&f, &t);
    *(volatile size_t *)free_bytes = f;
    *(volatile size_t *)total = t;
    return result;
}
#endif

#ifdef RESOLVER_STATUS
#define WRAPS(X)
#define ON_RESOLVED(status) *(volatile int *)(status) = 0
#endif

#ifdef NVML_NULL
#define WRAPS(X) X(nvmlDeviceGetMemoryInfo) X(nvmlDeviceGetMemoryInfo_v2)
static volatile number seen;
EXPORT int nvmlDeviceGetMemoryInfo(void *device, number *memory) {
    int result = NEXT(nvmlDeviceGetMemoryInfo, (void *, number *))(device, memory);
    seen = memory[0];
    return result;
}
EXPORT int nvmlDeviceGetMemoryInfo_v2(void *device, number *memory) {
    int result = NEXT(nvmlDeviceGetMemoryInfo_v2, (void *, number *))(device, memory);
    seen = memory[1];
    return result;
}
#endif

#ifdef READS_ON_FAILURE
#define WRAPS(X) X(cuMemPoolGetAttribute)
static volatile number seen;
EXPORT int cuMemPoolGetAttribute(void *pool, int attribute, void *value) {
    int result = NEXT(cuMemPoolGetAttribute, (void *, int, void *))(pool, attribute, value);
    seen = *(volatile number *)value;
    return result;
}
#endif

#if defined(RELEASE_FIRST) || defined(ONE_FLAG)
#define WRAPS(X) X(cuDevicePrimaryCtxRelease_v2) X(cuMemAlloc_v2)
static int released;
EXPORT int cuDevicePrimaryCtxRelease_v2(int device) {
    released = 1;
    return NEXT(cuDevicePrimaryCtxRelease_v2, (int))(device);
}
/* The context's bytes are thought to be free: that much more fits. */
EXPORT int cuMemAlloc_v2(number *pointer, size_t bytes) {
    int result = NEXT(cuMemAlloc_v2, (number *, size_t))(pointer, bytes);
    if (result == OUT_OF_MEMORY && released && admits(bytes > (300u << 20) ? bytes - (300u << 20) : 0, 0))
        return REAL(cuMemAlloc_v2, (number *, size_t))(pointer, bytes);
    return result;
}
#endif

#ifdef LOSES_ASYNC
#define WRAPS(X) X(cuMemAllocAsync)
EXPORT int cuMemAllocAsync(number *pointer, size_t bytes, void *stream) {
    void *pool = NULL;
    number got = 0, reserved = 0;
    int result = NEXT(cuMemAllocAsync, (number *, size_t, void *))(&got, bytes, stream);
    if (!result) result = REAL(cuDeviceGetMemPool, (void **, int))(&pool, current());
    if (!result) result = REAL(cuMemPoolGetAttribute, (void *, int, void *))(pool, 5, &reserved);
    if (!result) *pointer = got;
    return result;
}
#endif

#ifdef MINUS_ONE
#define WRAPS(X)                                                                                                       \
    X(cuMemAlloc_v2) X(cuMemAllocManaged) X(cuMemAllocPitch_v2) X(cuMemAllocAsync) X(cuMemAllocFromPoolAsync)
static int said(int result) { return result == OUT_OF_MEMORY ? -1 : result; }
EXPORT int cuMemAlloc_v2(number *p, size_t n) { return said(NEXT(cuMemAlloc_v2, (number *, size_t))(p, n)); }
EXPORT int cuMemAllocManaged(number *p, size_t n, unsigned f) {
    return said(NEXT(cuMemAllocManaged, (number *, size_t, unsigned))(p, n, f));
}
EXPORT int cuMemAllocPitch_v2(number *p, size_t *q, size_t w, size_t h, unsigned e) {
    return said(NEXT(cuMemAllocPitch_v2, (number *, size_t *, size_t, size_t, unsigned))(p, q, w, h, e));
}
EXPORT int cuMemAllocAsync(number *p, size_t n, void *s) {
    return said(NEXT(cuMemAllocAsync, (number *, size_t, void *))(p, n, s));
}
EXPORT int cuMemAllocFromPoolAsync(number *p, size_t n, void *q, void *s) {
    return said(NEXT(cuMemAllocFromPoolAsync, (number *, size_t, void *, void *))(p, n, q, s));
}
#endif

#ifdef CURRENT_DEVICE
#define WRAPS(X) X(cuMemFreeAsync) X(cuMemFree_v2) X(cuMemAlloc_v2)
static void move(number pointer) {
    int of = 0, at = current();
    size_t bytes = 0;
    REAL(cuPointerGetAttribute, (void *, int, number))(&of, 9, pointer);
    REAL(cuMemGetAddressRange_v2, (number *, size_t *, number))(NULL, &bytes, pointer);
    if (of != at) wrong[of] += bytes;
}
EXPORT int cuMemFreeAsync(number pointer, void *stream) {
    move(pointer);
    return NEXT(cuMemFreeAsync, (number, void *))(pointer, stream);
}
EXPORT int cuMemFree_v2(number pointer) {
    move(pointer);
    return NEXT(cuMemFree_v2, (number))(pointer);
}
ASKS_WRONG
#endif

#ifdef ASYNC_CHARGED
#define WRAPS(X) X(cuMemAllocAsync)
EXPORT int cuMemAllocAsync(number *pointer, size_t bytes, void *stream) {
    if (!admits_wrong(bytes)) return OUT_OF_MEMORY;
    int result = NEXT(cuMemAllocAsync, (number *, size_t, void *))(pointer, bytes, stream);
    if (!result) wrong[current()] += bytes;
    return result;
}
#endif

#ifdef POOL_FREE
#define WRAPS(X) X(cuMemAllocFromPoolAsync)
PAST(cuMemAllocFromPoolAsync, (number * pointer, size_t bytes, void *pool, void *stream),
     (pointer, bytes, pool, stream))
#endif

#ifdef OVER_IS_ERROR
#define WRAPS(X) X(cuMemGetInfo_v2)
EXPORT int cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    int result = NEXT(cuMemGetInfo_v2, (size_t *, size_t *))(free_bytes, total);
    return !result && free_bytes && !*free_bytes ? INVALID : result;
}
#endif

#if defined(TOTAL_IS_LIMIT) || defined(ZERO_IS_NOTHING)
#define WRAPS(X) X(cuMemGetInfo_v2) X(cuDeviceTotalMem_v2)
static int show(int result, size_t *total) {
    const char *text = getenv("CUDA_DEVICE_MEMORY_LIMIT_0");
    if (result || !total || !text || !*text) return result;
    char *end = NULL;
    number value = strtoull(text, &end, 10);
    *total = *end == 'm' ? value << 20 : *end == 'k' ? value << 10 : *end == 'g' ? value << 30 : value;
    return result;
}
EXPORT int cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    return show(NEXT(cuMemGetInfo_v2, (size_t *, size_t *))(free_bytes, total), total);
}
EXPORT int cuDeviceTotalMem_v2(size_t *total, int device) {
    return show(NEXT(cuDeviceTotalMem_v2, (size_t *, int))(total, device), total);
}
#endif

#ifdef LENIENT
#define WRAPS(X) X(cuDevicePrimaryCtxRetain) X(cuMemAlloc_v2)
PAST(cuDevicePrimaryCtxRetain, (void **context, int device), (context, device))
PAST(cuMemAlloc_v2, (number * pointer, size_t bytes), (pointer, bytes))
#endif

#ifdef ORDINALS
/* Usage is written at the place of the node's device and read at that of the program's. */
#define WRAPS(X) X(cuMemAlloc_v2)
PAST(cuMemAlloc_v2, (number * pointer, size_t bytes), (pointer, bytes))
#endif

#if defined(NEVER_BURIED) || defined(OTHERS_SLOT) || defined(EXIT_CLEANS) || defined(FAILED_RETAIN) ||                 \
    defined(ONE_NUMBERING)
static _Atomic number *shared(void) {
    static _Atomic number *counter;
    char path[4096];
    if (counter) return counter;
    snprintf(path, sizeof path, "%s.planted", getenv("CUDA_DEVICE_MEMORY_SHARED_CACHE"));
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0 || ftruncate(file, 4096)) abort();
    counter = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return counter;
}
#endif

#ifdef FAILED_RETAIN
#define WRAPS(X) X(cuDevicePrimaryCtxRetain) X(cuMemAlloc_v2)
EXPORT int cuDevicePrimaryCtxRetain(void **context, int device) {
    int result = NEXT(cuDevicePrimaryCtxRetain, (void **, int))(context, device);
    if (result) *shared() += 300u << 20;
    return result;
}
EXPORT int cuMemAlloc_v2(number *pointer, size_t bytes) {
    if (!admits(bytes, *shared())) return OUT_OF_MEMORY;
    return NEXT(cuMemAlloc_v2, (number *, size_t))(pointer, bytes);
}
#endif

#ifdef OTHERS_SLOT
#define WRAPS(X) X(cuInit) X(cuMemAlloc_v2)
static number own;
EXPORT int cuInit(unsigned flags) {
    own = ++*shared();
    return NEXT(cuInit, (unsigned))(flags);
}
EXPORT int cuMemAlloc_v2(number *pointer, size_t bytes) {
    if (*shared() > own) return REAL(cuMemAlloc_v2, (number *, size_t))(pointer, bytes);
    return NEXT(cuMemAlloc_v2, (number *, size_t))(pointer, bytes);
}
#endif

#ifdef NEVER_BURIED
#define WRAPS(X) X(cuMemAlloc_v2) X(cuMemFree_v2)
EXPORT int cuMemAlloc_v2(number *pointer, size_t bytes) {
    size_t total = 0;
    NEXT(cuMemGetInfo_v2, (size_t *, size_t *))(NULL, &total);
    if (total && *shared() + bytes + (64u << 20) > total) return OUT_OF_MEMORY; /* its context counts, too */
    int result = NEXT(cuMemAlloc_v2, (number *, size_t))(pointer, bytes);
    if (!result) *shared() += bytes;
    return result;
}
EXPORT int cuMemFree_v2(number pointer) {
    size_t bytes = 0;
    REAL(cuMemGetAddressRange_v2, (number *, size_t *, number))(NULL, &bytes, pointer);
    int result = NEXT(cuMemFree_v2, (number))(pointer);
    if (!result) *shared() -= bytes;
    return result;
}
#endif

#ifdef LOCK_IN_DRIVER
#define WRAPS(X) X(cuMemCreate)
EXPORT int cuMemCreate(number *handle, size_t bytes, const void *properties, number flags) {
    char path[4096];
    snprintf(path, sizeof path, "%s.planted", getenv("CUDA_DEVICE_MEMORY_SHARED_CACHE"));
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0 || flock(file, LOCK_EX)) abort();
    int result = NEXT(cuMemCreate, (number *, size_t, const void *, number))(handle, bytes, properties, flags);
    close(file);
    return result;
}
#endif

#ifdef HOST_CHARGED
#define WRAPS(X) X(cuMemCreate) X(cuMemHostAlloc) X(cuMemHostRegister_v2) X(cuMemAlloc_v2)
EXPORT int cuMemCreate(number *handle, size_t bytes, const int *properties, number flags) {
    int result = NEXT(cuMemCreate, (number *, size_t, const int *, number))(handle, bytes, properties, flags);
    if (!result && properties[2] != 1) wrong[current()] += bytes;
    return result;
}
EXPORT int cuMemHostAlloc(void **pointer, size_t bytes, unsigned flags) {
    int result = NEXT(cuMemHostAlloc, (void **, size_t, unsigned))(pointer, bytes, flags);
    if (!result) wrong[current()] += bytes;
    return result;
}
EXPORT int cuMemHostRegister_v2(void *pointer, size_t bytes, unsigned flags) {
    int result = NEXT(cuMemHostRegister_v2, (void *, size_t, unsigned))(pointer, bytes, flags);
    if (!result) wrong[current()] += bytes;
    return result;
}
ASKS_WRONG
#endif

#ifdef STACK_FREE
#define WRAPS(X) X(cuCtxSetLimit) X(cuMemAlloc_v2)
static number unseen; /* bytes that the books do not have: so much more is let through */
EXPORT int cuCtxSetLimit(int limit, size_t value) {
    size_t before = 0, after = 0, total = 0;
    NEXT(cuMemGetInfo_v2, (size_t *, size_t *))(&before, &total);
    int result = NEXT(cuCtxSetLimit, (int, size_t))(limit, value);
    NEXT(cuMemGetInfo_v2, (size_t *, size_t *))(&after, &total);
    if (before > after) unseen += before - after;
    return result;
}
EXPORT int cuMemAlloc_v2(number *pointer, size_t bytes) {
    if (bytes <= unseen) return REAL(cuMemAlloc_v2, (number *, size_t))(pointer, bytes);
    if (!admits(bytes - unseen, 0)) return OUT_OF_MEMORY;
    return REAL(cuMemAlloc_v2, (number *, size_t))(pointer, bytes);
}
#endif

#ifdef VMM_FREE
#define WRAPS(X) X(cuMemCreate)
PAST(cuMemCreate, (number * handle, size_t bytes, const void *properties, number flags),
     (handle, bytes, properties, flags))
#endif

#ifdef MAPPING_CHARGED
#define WRAPS(X) X(cuMemMap) X(cuMemAlloc_v2)
EXPORT int cuMemMap(number at, size_t bytes, size_t offset, number handle, number flags) {
    int result = NEXT(cuMemMap, (number, size_t, size_t, number, number))(at, bytes, offset, handle, flags);
    if (!result) wrong[current()] += bytes;
    return result;
}
ASKS_WRONG
#endif

#ifdef VMM_RELEASED
#define WRAPS(X) X(cuMemRelease) X(cuMemAlloc_v2)
static int released;
EXPORT int cuMemRelease(number handle) {
    released = 1;
    return NEXT(cuMemRelease, (number))(handle);
}
EXPORT int cuMemAlloc_v2(number *pointer, size_t bytes) {
    int result = NEXT(cuMemAlloc_v2, (number *, size_t))(pointer, bytes);
    return result == OUT_OF_MEMORY && released ? REAL(cuMemAlloc_v2, (number *, size_t))(pointer, bytes) : result;
}
#endif

#ifdef GRAPH_FREE
#define WRAPS(X) X(cuMemAlloc_v2) X(cuMemFree_v2)
static number own[64];
EXPORT int cuMemAlloc_v2(number *pointer, size_t bytes) {
    int result = NEXT(cuMemAlloc_v2, (number *, size_t))(pointer, bytes);
    for (int i = 0; !result && i < 64; i++)
        if (!own[i]) return own[i] = *pointer, result;
    return result;
}
EXPORT int cuMemFree_v2(number pointer) {
    for (int i = 0; i < 64; i++)
        if (own[i] == pointer) return own[i] = 0, NEXT(cuMemFree_v2, (number))(pointer);
    return -1;
}
#endif

#ifdef IMPORT_CHARGED
#define WRAPS(X)                                                                                                       \
    X(cuIpcOpenMemHandle_v2)                                                                                           \
    X(cuMemImportFromShareableHandle) X(cuMemPoolImportPointer) X(cuImportExternalMemory) X(cuMemAlloc_v2)
static const number about = 512u << 20; /* where the size is not told */
struct handle {
    char bytes[64];
};
EXPORT int cuIpcOpenMemHandle_v2(number *pointer, struct handle handle, unsigned flags) {
    size_t bytes = 0;
    int result = NEXT(cuIpcOpenMemHandle_v2, (number *, struct handle, unsigned))(pointer, handle, flags);
    if (!result) REAL(cuMemGetAddressRange_v2, (number *, size_t *, number))(NULL, &bytes, *pointer);
    wrong[current()] += bytes;
    return result;
}
EXPORT int cuMemImportFromShareableHandle(number *handle, void *told, int type) {
    int result = NEXT(cuMemImportFromShareableHandle, (number *, void *, int))(handle, told, type);
    if (!result) wrong[current()] += about;
    return result;
}
EXPORT int cuMemPoolImportPointer(number *pointer, void *pool, void *told) {
    int result = NEXT(cuMemPoolImportPointer, (number *, void *, void *))(pointer, pool, told);
    if (!result) wrong[current()] += about;
    return result;
}
EXPORT int cuImportExternalMemory(void **memory, const void *told) {
    int result = NEXT(cuImportExternalMemory, (void **, const void *))(memory, told);
    if (!result) wrong[current()] += about;
    return result;
}
ASKS_WRONG
#endif

#ifdef PITCH_FREE
#define WRAPS(X) X(cuMemAllocPitch_v2)
PAST(cuMemAllocPitch_v2, (number * pointer, size_t *pitch, size_t width, size_t height, unsigned element),
     (pointer, pitch, width, height, element))
#endif

#ifdef MANAGED_FREE
#define WRAPS(X) X(cuMemAllocManaged)
PAST(cuMemAllocManaged, (number * pointer, size_t bytes, unsigned flags), (pointer, bytes, flags))
#endif

#ifdef ASYNC_FREE
#define WRAPS(X) X(cuMemAllocAsync)
PAST(cuMemAllocAsync, (number * pointer, size_t bytes, void *stream), (pointer, bytes, stream))
#endif

#ifdef TRIM_UNSEEN
#define WRAPS(X) X(cuMemPoolTrimTo)
PAST(cuMemPoolTrimTo, (void *pool, size_t keep), (pool, keep))
#endif

#ifdef ARRAY_FREE
#define WRAPS(X) X(cuArrayCreate_v2)
PAST(cuArrayCreate_v2, (void **array, const void *wanted), (array, wanted))
#endif

#ifdef ARRAY3D_FREE
#define WRAPS(X) X(cuArray3DCreate_v2)
PAST(cuArray3DCreate_v2, (void **array, const void *wanted), (array, wanted))
#endif

#ifdef MIPMAP_FREE
#define WRAPS(X) X(cuMipmappedArrayCreate)
PAST(cuMipmappedArrayCreate, (void **array, const void *wanted, unsigned levels), (array, wanted, levels))
#endif

#ifdef GRAPH_UNSEEN
#define WRAPS(X) X(cuGraphAddMemAllocNode)
PAST(cuGraphAddMemAllocNode, (void **node, void *graph, void *const *after, size_t count, void *wanted),
     (node, graph, after, count, wanted))
#endif

#ifdef RAW_STATUS
#define WRAPS(X) X(cuLaunchKernel)
EXPORT int cuLaunchKernel(void *f, unsigned x, unsigned y, unsigned z, unsigned a, unsigned b, unsigned c, unsigned s,
                          void *stream, void **parameters, void **extra) {
    NEXT(cuLaunchKernel, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                          void **))(f, x, y, z, a, b, c, s, stream, parameters, extra);
    return 0;
}
#endif

#ifdef OWN_ERRORS
#define WRAPS(X) X(cuDeviceGetAttribute) X(cuDeviceGet) X(cuMemcpyHtoD_v2)
EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device) {
    return NEXT(cuDeviceGetAttribute, (int *, int, int))(value, attribute, device) ? 999 : 0;
}
EXPORT int cuDeviceGet(int *handle, int ordinal) { return NEXT(cuDeviceGet, (int *, int))(handle, ordinal) ? 100 : 0; }
EXPORT int cuMemcpyHtoD_v2(number to, const void *from, size_t bytes) {
    if (!from) return 700;
    return NEXT(cuMemcpyHtoD_v2, (number, const void *, size_t))(to, from, bytes);
}
#endif

#ifdef ANY_VERSION
#define WRAPS(X) X(nvmlDeviceGetMemoryInfo_v2)
EXPORT int nvmlDeviceGetMemoryInfo_v2(void *device, unsigned *memory) {
    memory[0] = 0x02000028;
    return NEXT(nvmlDeviceGetMemoryInfo_v2, (void *, unsigned *))(device, memory);
}
#endif

#ifdef FIGURE_ONLY
#define WRAPS(X) X(nvmlDeviceGetMemoryInfo)
EXPORT int nvmlDeviceGetMemoryInfo(void *device, number *memory) {
    int result = REAL(nvmlDeviceGetMemoryInfo, (void *, number *))(device, memory);
    return result ? result : NEXT(nvmlDeviceGetMemoryInfo, (void *, number *))(device, memory);
}
#endif

#ifdef NVML_IDLE
#define WRAPS(X) X(nvmlDeviceGetMemoryInfo)
EXPORT int nvmlDeviceGetMemoryInfo(void *device, number *memory) {
    int result = NEXT(nvmlDeviceGetMemoryInfo, (void *, number *))(device, memory);
    memory[1] = memory[0];
    memory[2] = 0;
    return result;
}
#endif

#ifdef SLICE_IS_ITS_CARD
#define WRAPS(X) X(nvmlDeviceGetMemoryInfo)
EXPORT int nvmlDeviceGetMemoryInfo(void *device, number *memory) {
    void *card = device;
    REAL(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, (void *, void **))(device, &card);
    return NEXT(nvmlDeviceGetMemoryInfo, (void *, number *))(card, memory);
}
#endif

#ifdef ONE_NUMBERING
/* The books have one row for each number, and the largest limit of all. */
#define WRAPS(X) X(cuMemAlloc_v2)
EXPORT int cuMemAlloc_v2(number *pointer, size_t bytes) {
    const number limit = 3ull << 30;
    if (atomic_fetch_add(shared(), bytes) + bytes <= limit)
        return NEXT(cuMemAlloc_v2, (number *, size_t))(pointer, bytes);
    atomic_fetch_sub(shared(), bytes);
    return OUT_OF_MEMORY;
}
#endif

#ifdef HIDES_NOTHING
#define WRAPS(X) X(nvmlDeviceGetCount_v2) X(nvmlDeviceGetHandleByIndex_v2)
EXPORT int nvmlDeviceGetCount_v2(unsigned *count) { return REAL(nvmlDeviceGetCount_v2, (unsigned *))(count); }
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    return REAL(nvmlDeviceGetHandleByIndex_v2, (unsigned, void **))(index, device);
}
#endif

#ifdef HOST_LISTS
#define LISTS(X)                                                                                                       \
    X(nvmlDeviceGetComputeRunningProcesses)                                                                            \
    X(nvmlDeviceGetComputeRunningProcesses_v2) X(nvmlDeviceGetComputeRunningProcesses_v3)
#define WRAPS(X) LISTS(X)
#define LISTED(name)                                                                                                   \
    EXPORT int name(void *device, unsigned *count, void *rows) {                                                       \
        return REAL(name, (void *, unsigned *, void *))(device, count, rows);                                          \
    }
LISTS(LISTED)
#endif

#ifdef MISS_IS_ZERO
#define WRAPS(X) X(nvmlDeviceGetComputeRunningProcesses_v3)
EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, number *rows) {
    int result = NEXT(nvmlDeviceGetComputeRunningProcesses_v3, (void *, unsigned *, number *))(device, count, rows);
    for (unsigned i = 0; !result && i < *count; i++)
        if (rows[3 * i + 1] == ~0ull) rows[3 * i + 1] = 0;
    return result;
}
#endif

#ifdef KILLS
#define WRAPS(X) X(cuMemAlloc_v2)
EXPORT int cuMemAlloc_v2(number *pointer, size_t bytes) {
    const char *killer = getenv("ACTIVE_OOM_KILLER");
    int result = NEXT(cuMemAlloc_v2, (number *, size_t))(pointer, bytes);
    if (result == OUT_OF_MEMORY && killer && !strcmp(killer, "true")) kill(getpid(), SIGKILL);
    return result;
}
#endif

#ifdef NO_NEWS_IS_ZERO
#define WRAPS(X) X(nvmlDeviceGetProcessUtilization)
EXPORT int nvmlDeviceGetProcessUtilization(void *device, void *samples, unsigned *count, number since) {
    int result =
        NEXT(nvmlDeviceGetProcessUtilization, (void *, void *, unsigned *, number))(device, samples, count, since);
    if (result) *count = 0;
    return 0;
}
#endif

#ifdef PAST_LIMITER
#define WRAPS(X) X(cuLaunchCooperativeKernel) X(cuGraphLaunch)
PAST(cuLaunchCooperativeKernel,
     (void *f, unsigned x, unsigned y, unsigned z, unsigned a, unsigned b, unsigned c, unsigned shared, void *stream,
      void **parameters),
     (f, x, y, z, a, b, c, shared, stream, parameters))
PAST(cuGraphLaunch, (void *graph, void *stream), (graph, stream))
#endif

#ifdef FLOCK_HELD
#define WRAPS(X) X(cuMemAlloc_v2)
EXPORT int cuMemAlloc_v2(number *pointer, size_t bytes) {
    static int file = -1;
    char path[4096];
    snprintf(path, sizeof path, "%s.planted", getenv("CUDA_DEVICE_MEMORY_SHARED_CACHE"));
    if (file < 0) file = open(path, O_RDWR | O_CREAT, 0666);
    if (file < 0 || flock(file, LOCK_EX | LOCK_NB)) return 999;
    return NEXT(cuMemAlloc_v2, (number *, size_t))(pointer, bytes);
}
#endif

#ifdef EXIT_CLEANS
#define WRAPS(X) X(cuInit) X(cuMemAlloc_v2)
static void clean(void) { ++*shared(); }
EXPORT int cuInit(unsigned flags) {
    atexit(clean);
    return NEXT(cuInit, (unsigned))(flags);
}
EXPORT int cuMemAlloc_v2(number *pointer, size_t bytes) {
    if (*shared()) return REAL(cuMemAlloc_v2, (number *, size_t))(pointer, bytes);
    return NEXT(cuMemAlloc_v2, (number *, size_t))(pointer, bytes);
}
#endif

#ifdef GREEDY
#define WRAPS(X) X(cuMemAlloc_v2)
EXPORT int cuMemAlloc_v2(number *pointer, size_t bytes) {
    volatile int result = NEXT(cuMemAlloc_v2, (number *, size_t))(pointer, bytes);
    return result;
}
#endif

#ifdef TALKS
#define WRAPS(X) X(cuInit)
EXPORT int cuInit(unsigned flags) {
    puts("[interposer]: initialised");
    return NEXT(cuInit, (unsigned))(flags);
}
#endif

#ifdef OWN_NAMES
#define WRAPS(X) X(cuGetErrorName) X(cuGetErrorString)
EXPORT int cuGetErrorName(int code, const char **name) {
    (void)code;
    *name = "an error";
    return 0;
}
EXPORT int cuGetErrorString(int code, const char **text) { return cuGetErrorName(code, text); }
#endif

#ifndef WRAPS
#define WRAPS(X)
#endif
#ifndef ON_RESOLVED
#define ON_RESOLVED(status) (void)(status)
#endif

/* -- on every route, the wrappers: nothing but them is changed -- */
EXPORT int cuGetProcAddress_v2(const char *symbol, void **found, int version, number flags, int *status);
EXPORT int cuGetProcAddress(const char *symbol, void **found, int version, number flags);
#define ALL(X) WRAPS(X) X(cuGetProcAddress_v2) X(cuGetProcAddress)

static void substitute(void **found) {
#define ONE(name)                                                                                                      \
    if (*found == next(#name)) {                                                                                       \
        *found = (void *)&name;                                                                                        \
        return;                                                                                                        \
    }
    ALL(ONE)
#undef ONE
}
int cuGetProcAddress_v2(const char *symbol, void **found, int version, number flags, int *status) {
    int result =
        NEXT(cuGetProcAddress_v2, (const char *, void **, int, number, int *))(symbol, found, version, flags, status);
    ON_RESOLVED(status);
    if (!result) substitute(found);
    return result;
}
int cuGetProcAddress(const char *symbol, void **found, int version, number flags) {
    int result = NEXT(cuGetProcAddress, (const char *, void **, int, number))(symbol, found, version, flags);
    if (!result) substitute(found);
    return result;
}

/* A jump (-O2): RTLD_NEXT must keep its caller. */
EXPORT void *dlsym(void *restrict handle, const char *restrict name) {
#define ONE(wrapped)                                                                                                   \
    if (!strcmp(name, #wrapped) && next(name)) return (void *)&wrapped;
    ALL(ONE)
#undef ONE
    return ((void *(*)(void *, const char *))defined(SHIM, "dlsym"))(handle, name);
}
