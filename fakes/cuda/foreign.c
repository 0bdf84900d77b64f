/* See foreign.h: a sorted table of ranges, found by bisection. */
#include "foreign.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static struct alloc **table;
static size_t count, room;

void *address_reserve(uint64_t bytes, uint64_t alignment) {
    uint64_t slack = alignment > 4096 ? alignment : 0;
    if (bytes + slack < bytes) return MAP_FAILED;
    char *at = mmap(NULL, bytes + slack, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED || !slack) return at;
    char *aligned = (char *)(((uintptr_t)at + alignment - 1) / alignment * alignment);
    if (aligned > at) munmap(at, (size_t)(aligned - at));
    if (aligned < at + slack) munmap(aligned + bytes, (size_t)(at + slack - aligned));
    return aligned;
}

/* Index of the first range that starts above `pointer`. */
static size_t above(uint64_t pointer) {
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (table[middle]->offset <= pointer) low = middle + 1;
        else high = middle;
    }
    return low;
}

struct alloc *foreign_add(uint64_t base, uint64_t bytes, char *data, uint32_t device, uint32_t kind) {
    if (count == room) {
        size_t more = room ? room * 2 : 64;
        struct alloc **grown = realloc(table, more * sizeof *grown);
        if (!grown) return NULL;
        table = grown;
        room = more;
    }
    struct alloc *a = arena_record();
    if (!a) return NULL;
    a->offset = base;
    a->bytes = bytes;
    a->data = data;
    a->device = (uint8_t)device;
    a->kind = (uint8_t)kind;
    size_t at = above(base);
    memmove(table + at + 1, table + at, (count - at) * sizeof *table);
    table[at] = a;
    __atomic_store_n(&count, count + 1, __ATOMIC_RELEASE);
    return a;
}

void foreign_remove(struct alloc *a) {
    size_t at = above(a->offset);
    if (!at || table[at - 1] != a) return;
    memmove(table + at - 1, table + at, (count - at) * sizeof *table);
    count--;
    arena_record_free(a);
}

struct alloc *foreign_at(uint64_t pointer) {
    if (__builtin_expect(!count, 1)) return NULL;
    size_t at = above(pointer);
    return at && pointer - table[at - 1]->offset < table[at - 1]->bytes ? table[at - 1] : NULL;
}

struct alloc *foreign_after(const struct alloc *a) {
    size_t at = above(a->offset);
    return at < count && table[at]->offset == a->offset + a->bytes && table[at]->data == a->data + a->bytes ? table[at]
                                                                                                            : NULL;
}

int foreign_overlaps(uint64_t base, uint64_t bytes) {
    size_t at = above(base);
    if (at && base - table[at - 1]->offset < table[at - 1]->bytes) return 1;
    return at < count && table[at]->offset - base < bytes;
}
