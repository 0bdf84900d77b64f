/* Real allocations over every route: what the view says is used must change by the same amount whichever way the two
 * functions were found. The view itself is always asked through the relocation. */
#include "walk.h"

#include "hl_table.h"

#include <stddef.h>
#include <string.h>

enum { BYTES = 4 << 20, WIDTH = 4096, ROWS = 1024 };

extern __attribute__((weak)) int cuMemGetInfo_v2(size_t *, size_t *);
extern __attribute__((weak)) int cuCtxSynchronize(void);

static const struct pair {
    uint16_t allocate, free;
} pairs[] = {
    {HL_cuMemAlloc_v2, HL_cuMemFree_v2},
    {HL_cuMemAllocManaged, HL_cuMemFree_v2},
    {HL_cuMemAllocPitch_v2, HL_cuMemFree_v2},
    {HL_cuMemAllocAsync, HL_cuMemFreeAsync},
    {HL_cuMemAllocAsync_ptsz, HL_cuMemFreeAsync_ptsz},
};

static const struct {
    const char *base;
    int since;
} names[HL_NAME_COUNT] = {
#define X(name, lib, action, fake, running, since, base) [HL_##name] = {base, since},
    HL_TABLE(X)
#undef X
};

static int64_t used(void) {
    size_t free = 0, total = 0;
    if (cuCtxSynchronize) cuCtxSynchronize();
    return cuMemGetInfo_v2 && !cuMemGetInfo_v2(&free, &total) ? (int64_t)total - (int64_t)free : 0;
}

static void *find(struct walk *walk, unsigned name, int route, uint8_t *owner) {
    const char *text = hl_name_text[name];
    struct hl_routes_row row = {.name = (uint16_t)name, .route = (uint8_t)route, .version = names[name].since};
    row.flags = strstr(text, "_ptsz") || strstr(text, "_ptds") ? 2 : 0;
    walk_look(walk, &row);
    *owner = row.owner;
    return (void *)(uintptr_t)row.pointer;
}

static int allocate(unsigned name, void *function, unsigned long long *pointer) {
    size_t pitch = 0;
    switch (name) {
    case HL_cuMemAllocManaged: return ((int (*)(unsigned long long *, size_t, unsigned))function)(pointer, BYTES, 1);
    case HL_cuMemAllocPitch_v2:
        return ((int (*)(unsigned long long *, size_t *, size_t, size_t, unsigned))function)(pointer, &pitch, WIDTH,
                                                                                             ROWS, 4);
    case HL_cuMemAlloc_v2: return ((int (*)(unsigned long long *, size_t))function)(pointer, BYTES);
    default: return ((int (*)(unsigned long long *, size_t, void *))function)(pointer, BYTES, NULL);
    }
}

static int give_back(unsigned name, void *function, unsigned long long pointer) {
    if (name == HL_cuMemFree_v2) return ((int (*)(unsigned long long))function)(pointer);
    return ((int (*)(unsigned long long, void *))function)(pointer, NULL);
}

void walk_ledger(struct walk *walk, struct hl_routes_ledger *rows) {
    for (unsigned at = 0; at < sizeof pairs / sizeof *pairs; at++)
        for (int route = HL_WALK_LINK; route < HL_WALK_ROUTES; route++) {
            struct hl_routes_ledger *row = &rows[walk->header->ledger_rows++];
            uint8_t owner = 0;
            unsigned long long pointer = 0;
            *row = (struct hl_routes_ledger){.allocate = pairs[at].allocate, .free = pairs[at].free};
            row->route = (uint8_t)route;
            row->bytes = BYTES;
            row->allocate_result = row->free_result = -1;
            void *first = find(walk, row->allocate, route, &row->owner), *second = find(walk, row->free, route, &owner);
            if (!first || !second) continue;
            int64_t before = used();
            row->allocate_result = allocate(row->allocate, first, &pointer);
            row->taken = used() - before;
            if (!row->allocate_result) row->free_result = give_back(row->free, second, pointer);
            row->left = used() - before;
            row->done = 1;
        }
}
