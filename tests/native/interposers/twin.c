/* A small faithful interposer, and by macros a planted fault in it, one a build:
 *
 *   NO_RESOLVER     no generation of cuGetProcAddress is hooked
 *   V1_ONLY         only the first one is
 *   RESOLVER_LEAK   the resolver asked for itself gives the driver's
 *   NEXT_FORWARDED  RTLD_NEXT goes to libc untouched
 *   NO_DLVSYM       dlvsym is not hooked
 *   SHIFTED         the entry of cuMemAlloc_v2 holds the driver's cuMemFree_v2
 *   V2_V1_ARGS      nvmlDeviceGetFanSpeed_v2 has the arguments of its first version
 *   NO_PTSZ         the per-thread variants are not hooked
 *   WIDE_PREFIX     every name that begins with "cu" is looked up in this library
 *   SELF_BY_PATH    the driver is opened by a path that is not there, and the null handle means every library
 *   ABSENT          a name that no driver here has is answered
 *   HIDDEN          built with hidden visibility
 *   NO_NVML         the NVML half is behind a macro that nobody sets
 *   NEWEST          the resolver gives the newest variant whatever version is asked
 *   ALLOCATES       a lookup allocates
 *   HANGS           a lookup of cuMemFreeAsync never ends
 *   DROPPED         cuMemFree_v2 does not reach the driver and says that it did
 *   INVENTS         the resolver answers where the driver says that the version is too old
 *
 * Without any of them it hooks its names on every route: the real answer first, the hook only for what the driver has,
 * the driver's own lookups untouched, RTLD_NEXT of foreign names with its caller (a jump: compile with -O2). */
#include "../../../shim/preload/tables.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#ifdef HIDDEN
#define EXPORT
#else
#define EXPORT __attribute__((visibility("default")))
#endif
typedef unsigned long long number;

static const struct link_map *mapped(const char *stem, struct hl_object *object) {
    for (const struct link_map *map = _r_debug.r_map; map; map = map->l_next)
        if (hl_object_read(object, map->l_addr, map->l_ld) && hl_soname_is(object->soname, stem)) return map;
    return NULL;
}

static void *defined(const char *stem, const char *name) {
    struct hl_object object;
    return mapped(stem, &object) ? hl_object_symbol(&object, name) : NULL;
}

static const char *library(const char *name) { return name[0] == 'c' ? "libcuda.so" : "libnvidia-ml.so"; }

static void *real(const char *name) {
#ifdef SELF_BY_PATH
    static void *handle;
    static int opened;
    if (!opened++) handle = dlopen("/usr/local/nowhere/libcuda.so.1", RTLD_LAZY);
    if (!strcmp(name, "cuMemAlloc_v2")) return dlsym(handle, name);
#endif
#ifdef SHIFTED
    if (!strcmp(name, "cuMemAlloc_v2")) name = "cuMemFree_v2";
#endif
    return defined(library(name), name);
}

/* Not a jump: a wrapper that finds itself must run out of stack, not turn for ever. */
#define CALL(name, types, arguments)                                                                                   \
    __extension__({                                                                                                    \
        volatile int got = ((int(*) types)real(#name))arguments;                                                       \
        got;                                                                                                           \
    })

EXPORT int cuMemAlloc(unsigned *pointer, unsigned bytes) {
    return CALL(cuMemAlloc, (unsigned *, unsigned), (pointer, bytes));
}
EXPORT int cuMemAlloc_v2(number *pointer, size_t bytes) {
    return CALL(cuMemAlloc_v2, (number *, size_t), (pointer, bytes));
}
EXPORT int cuMemFree_v2(number pointer) {
#ifdef DROPPED
    return (int)(pointer & 0);
#endif
    return CALL(cuMemFree_v2, (number), (pointer));
}
EXPORT int cuMemAllocAsync(number *pointer, size_t bytes, void *stream) {
    return CALL(cuMemAllocAsync, (number *, size_t, void *), (pointer, bytes, stream));
}
EXPORT int cuMemFreeAsync(number pointer, void *stream) {
    return CALL(cuMemFreeAsync, (number, void *), (pointer, stream));
}
#ifndef NO_PTSZ
EXPORT int cuMemAllocAsync_ptsz(number *pointer, size_t bytes, void *stream) {
    return CALL(cuMemAllocAsync_ptsz, (number *, size_t, void *), (pointer, bytes, stream));
}
EXPORT int cuMemFreeAsync_ptsz(number pointer, void *stream) {
    return CALL(cuMemFreeAsync_ptsz, (number, void *), (pointer, stream));
}
#endif
#ifdef ABSENT
EXPORT int cuCheckpointOperationComplete(void *operation) { return operation != NULL; }
#endif

#ifndef NO_NVML
EXPORT int nvmlDeviceGetMemoryInfo(void *device, void *memory) {
    return CALL(nvmlDeviceGetMemoryInfo, (void *, void *), (device, memory));
}
EXPORT int nvmlDeviceGetMemoryInfo_v2(void *device, void *memory) {
    return CALL(nvmlDeviceGetMemoryInfo_v2, (void *, void *), (device, memory));
}
#ifdef V2_V1_ARGS
EXPORT int nvmlDeviceGetFanSpeed_v2(void *device, unsigned *speed) { /* the register of the third is lost on the way */
    return CALL(nvmlDeviceGetFanSpeed_v2, (void *, unsigned *, void *), (device, speed, (void *)&real));
}
#else
EXPORT int nvmlDeviceGetFanSpeed_v2(void *device, unsigned fan, unsigned *speed) {
    return CALL(nvmlDeviceGetFanSpeed_v2, (void *, unsigned, unsigned *), (device, fan, speed));
}
#endif
#endif

/* Our function for a name: from our own tables, hidden ones by hand. */
static void *wrapper(const char *name);

#ifndef NO_RESOLVER
static const char *const hooked[] = {
    "cuMemAlloc",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemAllocAsync",
    "cuMemFreeAsync",
#ifndef NO_PTSZ
    "cuMemAllocAsync_ptsz",
    "cuMemFreeAsync_ptsz",
#endif
#ifdef ABSENT
    "cuCheckpointOperationComplete",
#endif
#ifndef NO_NVML
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetFanSpeed_v2",
#endif
    "cuGetProcAddress",
#ifndef V1_ONLY
    "cuGetProcAddress_v2",
#endif
};

static void *ours_for(const char *symbol, void *found) {
#ifdef NEWEST
    char newest[64] = "";
    if (strlen(symbol) < 60) strcat(strcpy(newest, symbol), "_v2");
    if (wrapper(newest) && strncmp(symbol, "cuGetProc", 9)) return wrapper(newest);
#endif
#ifdef RESOLVER_LEAK
    if (!strcmp(symbol, "cuGetProcAddress")) return found;
#endif
    (void)symbol;
    for (unsigned at = 0; at < sizeof hooked / sizeof *hooked; at++)
        if (found && defined(library(hooked[at]), hooked[at]) == found) return wrapper(hooked[at]);
    return found;
}

EXPORT int cuGetProcAddress(const char *symbol, void **found, int version, number flags) {
    int result = CALL(cuGetProcAddress, (const char *, void **, int, number), (symbol, found, version, flags));
    if (!result) *found = ours_for(symbol, *found);
    return result;
}
#ifndef V1_ONLY
EXPORT int cuGetProcAddress_v2(const char *symbol, void **found, int version, number flags, int *status) {
    int result =
        CALL(cuGetProcAddress_v2, (const char *, void **, int, number, int *), (symbol, found, version, flags, status));
#ifdef INVENTS
    if (!result && !*found && wrapper(symbol)) *found = wrapper(symbol);
#endif
    if (!result) *found = ours_for(symbol, *found);
    return result;
}
#endif
#endif

static void *wrapper(const char *name) {
#define OURS(function)                                                                                                 \
    if (!strcmp(name, #function)) return (void *)&function
    OURS(cuMemAlloc);
    OURS(cuMemAlloc_v2);
    OURS(cuMemFree_v2);
    OURS(cuMemAllocAsync);
    OURS(cuMemFreeAsync);
#ifndef NO_PTSZ
    OURS(cuMemAllocAsync_ptsz);
    OURS(cuMemFreeAsync_ptsz);
#endif
#ifdef ABSENT
    OURS(cuCheckpointOperationComplete);
#endif
#ifndef NO_NVML
    OURS(nvmlDeviceGetMemoryInfo);
    OURS(nvmlDeviceGetMemoryInfo_v2);
    OURS(nvmlDeviceGetFanSpeed_v2);
#endif
#ifndef NO_RESOLVER
    OURS(cuGetProcAddress);
#ifndef V1_ONLY
    OURS(cuGetProcAddress_v2);
#endif
#endif
    return NULL;
}

/* -- lookups by name -- */
typedef void *(*dlsym_fn)(void *, const char *);
typedef void *(*dlvsym_fn)(void *, const char *, const char *);

static int of_driver(const void *address) {
    Dl_info info;
    if (!address || !dladdr(address, &info)) return 0;
    const char *file = hl_file_name(info.dli_fname);
    return !strncmp(file, "libcuda.so", 10) || !strncmp(file, "libnvidia-", 10);
}

static int ours(void *handle, const char *name, const void *caller, void *(*ask)(void *, const char *, const char *),
                const char *version) {
    Dl_info info;
    if (!wrapper(name) || of_driver(caller)) return 0;
#ifdef ABSENT
    if (!strcmp(name, "cuCheckpointOperationComplete")) return 1;
#endif
#ifdef NEXT_FORWARDED
    if (handle == RTLD_NEXT) return 0;
#endif
    if (handle == RTLD_NEXT && !dladdr(caller, &info)) return 0; /* libc answers nobody there */
    if (handle == RTLD_NEXT || handle == RTLD_DEFAULT) return defined(library(name), name) != NULL;
    return of_driver(ask(handle, name, version));
}

static __attribute__((noinline)) void *by_dlsym(void *handle, const char *name, const char *version) {
    void *volatile found = ((dlsym_fn)defined("libc.so", "dlsym"))(handle, name);
    (void)version;
    return found;
}

EXPORT void *dlsym(void *handle, const char *name) {
#ifdef ALLOCATES
    free(strdup(name));
#endif
#ifdef HANGS
    static volatile int turning = 1;
    while (!strcmp(name, "cuMemFreeAsync") && turning) continue;
#endif
#ifdef WIDE_PREFIX
    if (name[0] == 'c' && name[1] == 'u') return wrapper(name);
#endif
    if (ours(handle, name, __builtin_return_address(0), by_dlsym, NULL)) return wrapper(name);
    return ((dlsym_fn)defined("libc.so", "dlsym"))(handle, name);
}

#ifndef NO_DLVSYM
static __attribute__((noinline)) void *by_dlvsym(void *handle, const char *name, const char *version) {
    void *volatile found = ((dlvsym_fn)defined("libc.so", "dlvsym"))(handle, name, version);
    return found;
}

EXPORT void *dlvsym(void *handle, const char *name, const char *version) {
    if (!strcmp(name, "dlsym") && !of_driver(__builtin_return_address(0))) return (void *)&dlsym;
    if (ours(handle, name, __builtin_return_address(0), by_dlvsym, version)) return wrapper(name);
    return ((dlvsym_fn)defined("libc.so", "dlvsym"))(handle, name, version);
}
#endif
