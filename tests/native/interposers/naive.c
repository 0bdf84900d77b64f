/* A naive interposer, planted so that the lab can be seen to catch it: it checks the limit before the driver's call,
 * counts after it, in a shared file of its own, and holds nothing in between. Two processes that meet inside the
 * driver both pass the check.
 *
 * It answers on relocation and dlsym and through the resolver, for cuMemAlloc_v2 and cuMemFree_v2, and reads
 * CUDA_DEVICE_MEMORY_LIMIT (or _0) and CUDA_DEVICE_MEMORY_SHARED_CACHE (its counter lies in that name plus ".naive"). */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SUCCESS = 0, OUT_OF_MEMORY = 2, LIVE = 65536 };
typedef unsigned long long pointer_t;

static void *real(const char *name) {
    static void *(*ask)(void *, const char *);
    static void *driver;
    if (!ask) ask = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
    if (!ask) ask = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    if (!ask) ask = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.17");
    if (!driver) driver = dlopen("libcuda.so.1", RTLD_LAZY);
    return ask && driver ? ask(driver, name) : NULL;
}

static uint64_t limit(void) {
    const char *text = getenv("CUDA_DEVICE_MEMORY_LIMIT_0");
    if (!text || !*text) text = getenv("CUDA_DEVICE_MEMORY_LIMIT");
    if (!text || !*text) return UINT64_MAX;
    char *end = NULL;
    uint64_t value = strtoull(text, &end, 10);
    switch (*end | 0x20) {
    case 'k': return value << 10;
    case 'm': return value << 20;
    case 'g': return value << 30;
    default: return value;
    }
}

static uint64_t *used(void) {
    static uint64_t *counter;
    if (counter) return counter;
    char path[4096] = "/tmp/naive";
    const char *base = getenv("CUDA_DEVICE_MEMORY_SHARED_CACHE");
    if (base && strlen(base) < sizeof path - 8) strcpy(path, base);
    strcat(path, ".naive");
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0 || ftruncate(file, 4096)) abort();
    counter = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (counter == MAP_FAILED) abort();
    return counter;
}

static struct {
    pointer_t pointer;
    uint64_t bytes;
} live[LIVE];

int cuMemAlloc_v2(pointer_t *pointer, size_t bytes) {
    if (__atomic_load_n(used(), __ATOMIC_SEQ_CST) + bytes > limit()) return OUT_OF_MEMORY;
    int result = ((int (*)(pointer_t *, size_t))real("cuMemAlloc_v2"))(pointer, bytes);
    if (result != SUCCESS) return result;
    __atomic_add_fetch(used(), bytes, __ATOMIC_SEQ_CST);
    for (unsigned at = 0; at < LIVE; at++) {
        pointer_t none = 0;
        if (!__atomic_compare_exchange_n(&live[at].pointer, &none, *pointer, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
            continue;
        live[at].bytes = bytes;
        break;
    }
    return SUCCESS;
}

int cuMemFree_v2(pointer_t pointer) {
    for (unsigned at = 0; pointer && at < LIVE; at++) {
        if (__atomic_load_n(&live[at].pointer, __ATOMIC_SEQ_CST) != pointer) continue;
        __atomic_sub_fetch(used(), live[at].bytes, __ATOMIC_SEQ_CST);
        __atomic_store_n(&live[at].pointer, 0, __ATOMIC_SEQ_CST);
        break;
    }
    return ((int (*)(pointer_t))real("cuMemFree_v2"))(pointer);
}

static void *ours(const char *name) {
    if (!strcmp(name, "cuMemAlloc") || !strcmp(name, "cuMemAlloc_v2")) return (void *)&cuMemAlloc_v2;
    if (!strcmp(name, "cuMemFree") || !strcmp(name, "cuMemFree_v2")) return (void *)&cuMemFree_v2;
    return NULL;
}

int cuGetProcAddress_v2(const char *name, void **pointer, int version, unsigned long long flags, int *status) {
    int result = ((int (*)(const char *, void **, int, unsigned long long, int *))real("cuGetProcAddress_v2"))(
        name, pointer, version, flags, status);
    if (result == SUCCESS && *pointer && ours(name)) *pointer = ours(name);
    return result;
}

void *dlsym(void *restrict handle, const char *restrict name) {
    if (!strncmp(name, "cu", 2)) {
        if (!strcmp(name, "cuGetProcAddress_v2")) return (void *)&cuGetProcAddress_v2;
        size_t length = strlen(name);
        if (length > 3 && !strcmp(name + length - 3, "_v2") && ours(name)) return ours(name);
    }
    static void *(*ask)(void *, const char *);
    if (!ask) ask = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
    if (!ask) ask = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    if (!ask) ask = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.17");
    void *volatile found = ask ? ask(handle, name) : NULL;
    return found;
}
