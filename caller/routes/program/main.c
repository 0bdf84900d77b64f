/* hooklab-routes FILE HOST FIRST: the walk as a program that is linked against the driver. It counts the allocations of
 * the whole process by standing in front of the C library's. */
#include "../walk.h"

#include <stdio.h>
#include <stdlib.h>

static volatile unsigned allocations;

#ifndef __SANITIZE_ADDRESS__
extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
__attribute__((visibility("default"))) void *malloc(size_t size) {
    allocations++;
    return __libc_malloc(size);
}
__attribute__((visibility("default"))) void *calloc(size_t count, size_t size) {
    allocations++;
    return __libc_calloc(count, size);
}
__attribute__((visibility("default"))) void *realloc(void *old, size_t size) {
    allocations++;
    return __libc_realloc(old, size);
}
#endif

int main(int argc, char **argv) {
    if (argc != 4) return fprintf(stderr, "usage: hooklab-routes FILE HOST FIRST\n"), 2;
    return hl_walk(argv[1], atoi(argv[2]), (unsigned)strtoul(argv[3], NULL, 10), &allocations);
}
