/* A small interposer that asks the driver for its free memory after each allocation, as interposers that keep books by
 * observation do, and one planted fault, chosen by -DFAULT=..., that shows only when a driver call fails. Without it,
 * the clean twin: what cannot be booked is undone. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

#define CLEAN 0
#define LEAKS 1         /* an allocation that cannot be booked is refused and not undone */
#define WRITES 2        /* a refused allocation leaves the pointer of an undone one */
#define MINUS_ONE 3     /* what fails ends with -1 */
#define FREE_SUCCEEDS 4 /* a free that the driver refuses is reported as done */
#define CRASHES 5       /* uses what a failed query left */
#define HANGS 6         /* tries a refused free for ever */
#ifndef FAULT
#define FAULT CLEAN
#endif

typedef unsigned long long pointer_t;

static void *real(const char *name) {
    static void *driver;
    if (!driver) driver = dlopen("libcuda.so.1", RTLD_LAZY);
    return dlsym(driver, name);
}

static int book(size_t bytes) {
    int (*query)(size_t *, size_t *) = (__typeof__(query))real("cuMemGetInfo_v2");
    size_t left = 0, total = 0;
    int result = query(&left, &total);
    if (FAULT == CRASHES) return bytes / total > 1;
    return result;
}

int cuMemAlloc_v2(pointer_t *pointer, size_t bytes);
int cuMemAlloc_v2(pointer_t *pointer, size_t bytes) {
    int (*allocate)(pointer_t *, size_t) = (__typeof__(allocate))real("cuMemAlloc_v2");
    int (*release)(pointer_t) = (__typeof__(release))real("cuMemFree_v2");
    pointer_t made = 0;
    int result = allocate(&made, bytes);
    if (result) return FAULT == MINUS_ONE ? -1 : result;
    if (FAULT == WRITES) *pointer = made;
    result = book(bytes);
    if (result) {
        if (FAULT != LEAKS) (void)release(made);
        return result;
    }
    *pointer = made;
    return 0;
}

int cuMemFree_v2(pointer_t pointer);
int cuMemFree_v2(pointer_t pointer) {
    int (*release)(pointer_t) = (__typeof__(release))real("cuMemFree_v2");
    int result = release(pointer);
    while (FAULT == HANGS && result) {
        for (volatile int i = 0; i < 1000; i++) {}
        result = 1;
    }
    return FAULT == FREE_SUCCEEDS ? 0 : result;
}
