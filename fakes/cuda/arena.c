/* See arena.h. Blocks and units are numbered per device; a free run of blocks and a free extent of units are kept in
 * segregated lists (power of two with eight steps between), so that both are found in constant time. */
#define _GNU_SOURCE
#include "arena.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "call.h"

enum { SCAN = 3, RECORDS = 512, DIRTY = 1, POPULATED = 2, CHARGED = 4, COVERED = 2, FREE = 0x80000000u };

struct unit {      /* meaningful at the first and the last unit of an extent only */
    uint32_t size; /* first: units of the extent | FREE */
    uint32_t back; /* last: the same */
    union {
        struct {
            uint32_t next, previous; /* first of a free extent: list, unit number + 1 */
        };
        struct alloc *record; /* first of a used extent */
    };
};

struct cut { /* a block that a heap cut into units */
    struct cut *spare;
    uint64_t starts[UNITS_PER_BLOCK / 64]; /* bit: a used extent starts here */
    struct unit unit[UNITS_PER_BLOCK];
};

struct block {
    struct cut *cut;
    union {
        struct {
            uint32_t next, previous; /* first of a free run */
        };
        struct alloc *record; /* first of a run of its own */
        struct heap *heap;    /* first of a heap's region */
    };
    uint32_t size; /* first: blocks of the run | FREE */
    uint32_t back; /* last: the same */
    uint8_t flags, is_region;
};

struct device {
    struct block *block;
    uint64_t *starts;     /* bit: a used run starts at this block */
    uint32_t blocks, top; /* blocks from top on were never used or are free again */
    uint32_t head[CLASSES];
    uint64_t bitmap[CLASSES / 64];
};

struct arena arena;
static struct device devices[HL_MAX_DEVICES];
static int memory_fd = -1;
static struct cut *spare_cuts;
static struct alloc *spare_records;
static uint64_t next_id = 1;

/* ---- records -------------------------------------------------------------------------------------------- */

static struct alloc *record_new(void) {
    struct alloc *r = spare_records;
    if (!r) {
        r = calloc(RECORDS, sizeof *r);
        if (!r) return NULL;
        for (int i = RECORDS - 1; i > 0; i--) {
            r[i].next = spare_records;
            spare_records = &r[i];
        }
    } else {
        spare_records = r->next;
    }
    memset(r, 0, sizeof *r);
    r->id = next_id++;
    return r;
}

static void record_free(struct alloc *r) {
    r->next = spare_records;
    spare_records = r;
}

struct alloc *arena_record(void) { return record_new(); }
void arena_record_free(struct alloc *r) { record_free(r); }

/* ---- size classes --------------------------------------------------------------------------------------- */

static inline uint32_t class_of(uint32_t n) {
    if (n < 16) return n;
    uint32_t log = 31 - (uint32_t)__builtin_clz(n);
    return (log - 2) * 8 + ((n >> (log - 3)) & 7);
}

static int next_class(const uint64_t *bitmap, uint32_t from) {
    for (uint32_t word = from / 64; word < CLASSES / 64; word++) {
        uint64_t bits = bitmap[word];
        if (word == from / 64) bits &= ~0ull << (from % 64);
        if (bits) return (int)(word * 64 + (uint32_t)__builtin_ctzll(bits));
    }
    return -1;
}

/* ---- runs of blocks ------------------------------------------------------------------------------------- */

static void run_link(struct device *d, uint32_t at, uint32_t n) {
    struct block *b = &d->block[at];
    uint32_t class = class_of(n);
    b->size = n | FREE;
    d->block[at + n - 1].back = n | FREE;
    b->previous = 0;
    b->next = d->head[class];
    if (b->next) d->block[b->next - 1].previous = at + 1;
    d->head[class] = at + 1;
    d->bitmap[class / 64] |= 1ull << (class % 64);
}

static void run_unlink(struct device *d, uint32_t at, uint32_t n) {
    struct block *b = &d->block[at];
    uint32_t class = class_of(n);
    if (b->next) d->block[b->next - 1].previous = b->previous;
    if (b->previous) d->block[b->previous - 1].next = b->next;
    else if (!(d->head[class] = b->next)) d->bitmap[class / 64] &= ~(1ull << (class % 64));
}

static void run_used(struct device *d, uint32_t at, uint32_t n) {
    d->block[at].size = n;
    d->block[at + n - 1].back = n;
    d->starts[at / 64] |= 1ull << (at % 64);
}

/* Block number of n free blocks in a row, or -1. */
static int64_t run_take(struct device *d, uint32_t n) {
    uint32_t class = class_of(n), tries = 0;
    for (uint32_t at = d->head[class]; at && tries < SCAN; at = d->block[at - 1].next, tries++)
        if ((d->block[at - 1].size & ~FREE) >= n) {
            class = at - 1;
            goto found;
        }
    int larger = next_class(d->bitmap, class + 1);
    if (larger < 0) {
        if (n > d->blocks - d->top) return -1;
        uint32_t at = d->top;
        d->top += n;
        run_used(d, at, n);
        return at;
    }
    class = d->head[larger] - 1;
found:;
    uint32_t at = class, size = d->block[at].size & ~FREE;
    run_unlink(d, at, size);
    if (size > n) run_link(d, at + n, size - n);
    run_used(d, at, n);
    return at;
}

static void run_give(struct device *d, uint32_t at, uint32_t n) {
    d->starts[at / 64] &= ~(1ull << (at % 64));
    if (at > 0 && (d->block[at - 1].back & FREE)) {
        uint32_t before = d->block[at - 1].back & ~FREE;
        run_unlink(d, at - before, before);
        at -= before;
        n += before;
    }
    if (at + n == d->top) {
        d->top = at;
        return;
    }
    if (d->block[at + n].size & FREE) {
        uint32_t after = d->block[at + n].size & ~FREE;
        run_unlink(d, at + n, after);
        n += after;
    }
    run_link(d, at, n);
}

/* Frees the pages behind a range of written memory, so that it reads as zeros again. */
static void punch(uint64_t offset, uint64_t bytes) {
    if (fallocate(memory_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)bytes))
        memset(arena.data_base + offset, 0, bytes);
}

/* Clears what was written in whole blocks and forgets their state. Returns how many were populated. */
static uint64_t wipe_blocks(uint32_t device, uint32_t at, uint32_t n) {
    struct device *d = &devices[device];
    uint64_t base = (uint64_t)device * arena.span, populated = 0;
    for (uint32_t i = at; i < at + n;) {
        uint32_t end = i;
        while (end < at + n && (d->block[end].flags & DIRTY)) end++;
        if (end > i) punch(base + (uint64_t)i * BLOCK, (uint64_t)(end - i) * BLOCK);
        for (uint32_t k = i; k < end; k++) d->block[k].flags &= (uint8_t)~DIRTY;
        i = end > i ? end : i + 1;
    }
    for (uint32_t i = at; i < at + n; i++) {
        populated += (d->block[i].flags & POPULATED) != 0;
        d->block[i].flags = 0;
    }
    return populated;
}

/* ---- extents of units ----------------------------------------------------------------------------------- */

static struct unit *unit_at(struct device *d, uint32_t u) {
    struct block *b = &d->block[u / UNITS_PER_BLOCK];
    if (__builtin_expect(!b->cut, 0)) {
        struct cut *cut = spare_cuts;
        if (cut) {
            spare_cuts = cut->spare;
            memset(cut->starts, 0, sizeof cut->starts);
        } else {
            cut = mmap(NULL, sizeof *cut, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (cut == MAP_FAILED) {
                fputs("hooklab fake driver: the host has no memory left for its tables\n", stderr);
                abort(); /* in the middle of a change: nothing that could be answered would be true */
            }
        }
        b->cut = cut;
    }
    return &b->cut->unit[u % UNITS_PER_BLOCK];
}

static void extent_link(struct heap *h, struct device *d, uint32_t u, uint32_t n) {
    struct unit *first = unit_at(d, u);
    uint32_t class = class_of(n);
    first->size = n | FREE;
    unit_at(d, u + n - 1)->back = n | FREE;
    first->previous = 0;
    first->next = h->head[class];
    if (first->next) unit_at(d, first->next - 1)->previous = u + 1;
    h->head[class] = u + 1;
    h->bitmap[class / 64] |= 1ull << (class % 64);
}

static void extent_unlink(struct heap *h, struct device *d, uint32_t u, uint32_t n) {
    struct unit *first = unit_at(d, u);
    uint32_t class = class_of(n);
    if (first->next) unit_at(d, first->next - 1)->previous = first->previous;
    if (first->previous) unit_at(d, first->previous - 1)->next = first->next;
    else if (!(h->head[class] = first->next)) h->bitmap[class / 64] &= ~(1ull << (class % 64));
}

static int region_new(struct heap *h, uint32_t units) {
    struct device *d = &devices[h->device];
    uint32_t blocks = (units + UNITS_PER_BLOCK - 1) / UNITS_PER_BLOCK;
    if (blocks < h->region_blocks) blocks = h->region_blocks;
    int pays = h->charged && !(h->covered && blocks == h->region_blocks);
    if (pays && hl_phys_take(h->device, h->kind, (uint64_t)blocks * BLOCK)) return -1;
    int64_t at = run_take(d, blocks);
    if (at < 0) {
        if (pays) hl_phys_give(h->device, h->kind, (uint64_t)blocks * BLOCK);
        return -1;
    }
    d->block[at].is_region = h->charged && !pays ? COVERED : 1;
    if (h->charged && !pays) h->covered = 0;
    d->block[at].heap = h;
    extent_link(h, d, (uint32_t)at * UNITS_PER_BLOCK, blocks * UNITS_PER_BLOCK);
    return 0;
}

static void region_end(struct heap *h, struct device *d, uint32_t block, uint32_t blocks) {
    int covered = d->block[block].is_region == COVERED;
    uint64_t populated = wipe_blocks(h->device, block, blocks);
    for (uint32_t i = block; i < block + blocks; i++) {
        if (d->block[i].cut) {
            d->block[i].cut->spare = spare_cuts;
            spare_cuts = d->block[i].cut;
            d->block[i].cut = NULL;
        }
        d->block[i].is_region = 0;
    }
    run_give(d, block, blocks);
    if (covered) h->covered = 1;
    else if (h->charged) hl_phys_give(h->device, h->kind, (uint64_t)blocks * BLOCK);
    else if (populated) hl_phys_give(h->device, h->kind, populated * BLOCK);
}

/* The extent [u, u + n) is free and maximal. 1 = it was a whole region and was given back. */
static int region_is_empty(struct device *d, uint32_t u, uint32_t n) {
    return u % UNITS_PER_BLOCK == 0 && d->block[u / UNITS_PER_BLOCK].is_region &&
           (uint64_t)d->block[u / UNITS_PER_BLOCK].size * UNITS_PER_BLOCK == n;
}

void heap_init(struct heap *h, uint32_t device, uint32_t kind, uint32_t region_blocks, int charged, int keep) {
    memset(h, 0, sizeof *h);
    h->device = (uint8_t)device;
    h->kind = (uint8_t)kind;
    h->region_blocks = region_blocks;
    h->charged = (uint8_t)charged;
    h->keep = (uint8_t)keep;
}

void heap_close(struct heap *h) {
    struct device *d = &devices[h->device];
    for (uint32_t class = 0; class < CLASSES; class++)
        for (uint32_t at = h->head[class], next; at; at = next) {
            uint32_t u = at - 1, n = unit_at(d, u)->size & ~FREE;
            next = unit_at(d, u)->next;
            if (region_is_empty(d, u, n)) {
                extent_unlink(h, d, u, n);
                region_end(h, d, u / UNITS_PER_BLOCK, n / UNITS_PER_BLOCK);
            }
        }
}

struct alloc *heap_alloc(struct heap *h, uint64_t bytes) {
    struct device *d = &devices[h->device];
    uint64_t wanted = (bytes + UNIT - 1) / UNIT;
    if (wanted == 0 || wanted > arena.span / UNIT) return NULL;
    uint32_t n = (uint32_t)wanted, u;
    struct alloc *r = record_new();
    if (!r) return NULL;
    for (int attempt = 0;; attempt++) {
        uint32_t class = class_of(n), tries = 0;
        for (uint32_t at = h->head[class]; at && tries < SCAN; at = unit_at(d, at - 1)->next, tries++)
            if ((unit_at(d, at - 1)->size & ~FREE) >= n) {
                u = at - 1;
                goto found;
            }
        int larger = next_class(h->bitmap, class + 1);
        if (larger >= 0) {
            u = h->head[larger] - 1;
            break;
        }
        if (attempt || region_new(h, n)) {
            record_free(r);
            return NULL;
        }
    }
found:;
    struct unit *first = unit_at(d, u);
    uint32_t size = first->size & ~FREE;
    extent_unlink(h, d, u, size);
    if (size > n) extent_link(h, d, u + n, size - n);
    first->size = n;
    unit_at(d, u + n - 1)->back = n;
    first->record = r;
    d->block[u / UNITS_PER_BLOCK].cut->starts[u % UNITS_PER_BLOCK / 64] |= 1ull << (u % 64);
    r->offset = (uint64_t)h->device * arena.span + (uint64_t)u * UNIT;
    r->bytes = bytes;
    r->heap = h;
    r->units = n;
    r->device = h->device;
    r->kind = h->kind;
    return r;
}

static void heap_free(struct alloc *r) {
    struct heap *h = r->heap;
    struct device *d = &devices[h->device];
    uint64_t inside = r->offset - (uint64_t)h->device * arena.span;
    uint32_t u = (uint32_t)(inside / UNIT), n = r->units;
    uint32_t first_block = u / UNITS_PER_BLOCK, last_block = (u + n - 1) / UNITS_PER_BLOCK;
    d->block[first_block].cut->starts[u % UNITS_PER_BLOCK / 64] &= ~(1ull << (u % 64));
    int dirty = 0;
    for (uint32_t i = first_block; i <= last_block; i++) dirty |= d->block[i].flags & DIRTY;
    if (dirty) { arena_zero(r->offset, (uint64_t)n * UNIT); }
    /* A region's first block says so: never merge over its ends. */
    int at_start = u % UNITS_PER_BLOCK == 0 && d->block[first_block].is_region;
    if (!at_start) {
        uint32_t back = unit_at(d, u - 1)->back;
        if (back & FREE) {
            uint32_t before = back & ~FREE;
            extent_unlink(h, d, u - before, before);
            u -= before;
            n += before;
        }
    }
    uint32_t after = u + n;
    int at_end =
        after % UNITS_PER_BLOCK == 0 && (after / UNITS_PER_BLOCK >= d->top || !d->block[after / UNITS_PER_BLOCK].cut ||
                                         d->block[after / UNITS_PER_BLOCK].is_region);
    if (!at_end) {
        uint32_t size = unit_at(d, after)->size;
        if (size & FREE) {
            extent_unlink(h, d, after, size & ~FREE);
            n += size & ~FREE;
        }
    }
    if (!h->keep && region_is_empty(d, u, n)) region_end(h, d, u / UNITS_PER_BLOCK, n / UNITS_PER_BLOCK);
    else extent_link(h, d, u, n);
    record_free(r);
}

struct alloc *run_alloc(uint32_t device, uint32_t kind, uint64_t bytes, int charged) {
    struct device *d = &devices[device];
    if (bytes == 0 || bytes > arena.span) return NULL;
    uint32_t n = (uint32_t)((bytes + BLOCK - 1) / BLOCK);
    struct alloc *r = record_new();
    if (!r) return NULL;
    if (charged && hl_phys_take(device, kind, (uint64_t)n * BLOCK)) {
        record_free(r);
        return NULL;
    }
    int64_t at = run_take(d, n);
    if (at < 0) {
        if (charged) hl_phys_give(device, kind, (uint64_t)n * BLOCK);
        record_free(r);
        return NULL;
    }
    d->block[at].is_region = 0;
    d->block[at].record = r;
    if (charged) d->block[at].flags |= CHARGED;
    r->offset = (uint64_t)device * arena.span + (uint64_t)at * BLOCK;
    r->bytes = bytes;
    r->units = n;
    r->device = (uint8_t)device;
    r->kind = (uint8_t)kind;
    return r;
}

void arena_free(struct alloc *r) {
    if (r->heap) {
        heap_free(r);
        return;
    }
    struct device *d = &devices[r->device];
    uint32_t at = (uint32_t)((r->offset - (uint64_t)r->device * arena.span) / BLOCK);
    int charged = d->block[at].flags & CHARGED;
    uint64_t populated = wipe_blocks(r->device, at, r->units);
    run_give(d, at, r->units);
    if (charged) hl_phys_give(r->device, r->kind, (uint64_t)r->units * BLOCK);
    else if (populated) hl_phys_give(r->device, r->kind, populated * BLOCK);
    record_free(r);
}

static struct block *run_of(const struct alloc *r) {
    return &devices[r->device].block[(r->offset - (uint64_t)r->device * arena.span) / BLOCK];
}

uint64_t arena_charge(const struct alloc *r) {
    return !r->heap && (run_of(r)->flags & CHARGED) ? (uint64_t)r->units * BLOCK : 0;
}

void arena_uncharge(struct alloc *r) { run_of(r)->flags &= (uint8_t)~CHARGED; }

/* ---- looking up ----------------------------------------------------------------------------------------- */

static int64_t bit_at_or_below(const uint64_t *bits, uint32_t at) {
    int64_t word = at / 64;
    uint64_t seen = bits[word] & (~0ull >> (63 - at % 64));
    while (!seen && --word >= 0) seen = bits[word];
    return seen ? word * 64 + 63 - __builtin_clzll(seen) : -1;
}

struct alloc *arena_at(uint64_t offset) {
    uint64_t device = arena.span ? offset / arena.span : HL_MAX_DEVICES;
    if (device >= HL_MAX_DEVICES || !devices[device].block) return NULL;
    struct device *d = &devices[device];
    uint64_t inside = offset - device * arena.span;
    uint32_t block = (uint32_t)(inside / BLOCK);
    if (block >= d->top) return NULL;
    int64_t first = bit_at_or_below(d->starts, block);
    if (first < 0 || (uint64_t)first + d->block[first].size <= block) return NULL;
    struct alloc *r = NULL;
    if (!d->block[first].is_region) {
        r = d->block[first].record;
    } else {
        uint32_t unit = (uint32_t)(inside / UNIT);
        for (int64_t b = block; b >= first && !r; b--) {
            const struct cut *cut = d->block[b].cut;
            int64_t start =
                cut ? bit_at_or_below(cut->starts, b == block ? unit % UNITS_PER_BLOCK : UNITS_PER_BLOCK - 1) : -1;
            if (start >= 0) r = cut->unit[start].record;
        }
    }
    return r && offset - r->offset < r->bytes ? r : NULL;
}

uint64_t arena_run_base(uint64_t offset) {
    uint64_t device = offset / arena.span, inside = offset - device * arena.span;
    int64_t first = bit_at_or_below(devices[device].starts, (uint32_t)(inside / BLOCK));
    return device * arena.span + (uint64_t)(first < 0 ? 0 : first) * BLOCK;
}

uint64_t arena_run_bytes(uint64_t offset) {
    uint64_t device = offset / arena.span, inside = offset - device * arena.span;
    int64_t first = bit_at_or_below(devices[device].starts, (uint32_t)(inside / BLOCK));
    return first < 0 ? 0 : (uint64_t)devices[device].block[first].size * BLOCK;
}

void arena_zero(uint64_t offset, uint64_t bytes) {
    uint64_t low = (offset + 4095) & ~4095ull, high = (offset + bytes) & ~4095ull;
    if (high <= low || high - low < 65536) {
        memset(arena.data_base + offset, 0, bytes);
        return;
    }
    memset(arena.data_base + offset, 0, low - offset);
    punch(low, high - low);
    memset(arena.data_base + high, 0, offset + bytes - high);
}

void arena_written(uint64_t offset, uint64_t bytes) {
    if (bytes == 0) return;
    uint64_t device = offset / arena.span, low = (offset - device * arena.span) / BLOCK;
    uint64_t high = (offset + bytes - 1 - device * arena.span) / BLOCK;
    for (uint64_t i = low; i <= high; i++) devices[device].block[i].flags |= DIRTY;
}

void arena_populate(const struct alloc *r, uint64_t offset, uint64_t bytes) {
    struct device *d = &devices[r->device];
    if (bytes == 0) return;
    uint64_t base = (uint64_t)r->device * arena.span, low = (offset - base) / BLOCK,
             high = (offset + bytes - 1 - base) / BLOCK;
    for (uint64_t i = low; i <= high; i++)
        /* A full device is no error here: the real one leaves the page on the host. */
        if (!(d->block[i].flags & POPULATED) && hl_phys_take(r->device, r->kind, BLOCK) == 0)
            d->block[i].flags |= POPULATED;
}

int arena_open(int fd, uint64_t bytes, uint32_t count) {
    uint64_t span = count ? bytes / count / BLOCK * BLOCK : 0;
    if (span == 0) return EINVAL;
    if (span / UNIT > 0x7fffffffu)
        span = (0x7fffffffull * UNIT) / BLOCK * BLOCK; /* unit numbers are 31 bits: 1 TiB a device */
    bytes = span * count;
    char *device = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    char *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    int code = errno;
    if (device == MAP_FAILED || data == MAP_FAILED) return code;
    /* A core dump of the host must not be as large as the card. */
    (void)madvise(device, bytes, MADV_DONTDUMP);
    (void)madvise(data, bytes, MADV_DONTDUMP);
    for (uint32_t i = 0; i < count; i++) {
        struct device *d = &devices[i];
        d->blocks = (uint32_t)(span / BLOCK);
        size_t table = (size_t)(d->blocks + 1) * sizeof *d->block, bits = (size_t)(d->blocks / 64 + 1) * 8;
        char *at = mmap(NULL, table + bits, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED) return errno;
        d->block = (struct block *)(void *)at;
        d->starts = (uint64_t *)(void *)(at + table);
    }
    memory_fd = fd;
    arena.device_base = device;
    arena.data_base = data;
    arena.span = span;
    arena.bytes = bytes;
    return 0;
}
