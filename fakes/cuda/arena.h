/* Where device memory is: the address space of each device, cut into 2 MiB blocks, and heaps that cut runs of blocks into
 * 512 B units. Knows addresses and physical blocks, nothing of CUDA. The caller holds the driver's lock.
 *
 * Offsets count from the start of the process's memory file; device i owns [i * span, (i + 1) * span). A device pointer is
 * arena.device_base + offset: that window is reserved and never accessible, so that a host that dereferences a device
 * pointer faults, as on a real GPU. The bytes are at arena.data_base + offset, where managed memory is handed out.
 *
 * Invariants: memory handed out reads as zeros (a block that was ever written is cleared when what lies in it is freed);
 * extents tile their region; every extent's first and last unit carry its size, so neighbours merge in O(1). */
#ifndef HOOKLAB_ARENA_H
#define HOOKLAB_ARENA_H
#include <stddef.h>
#include <stdint.h>

enum {
    UNIT = 512,
    BLOCK = 2 << 20,
    UNITS_PER_BLOCK = BLOCK / UNIT,
    POOL_STEP = 32 << 20, /* a pool takes physical memory in these */
    CLASSES = 256,
};

struct ctx;
struct pool;

/* What foreign memory is; LENT is the process's own, which others may hold. */
enum { SPECIAL_NONE, SPECIAL_MAPPED, SPECIAL_IPC, SPECIAL_IMPORTED, SPECIAL_GRAPH, SPECIAL_LENT };

struct alloc { /* one live allocation */
    uint64_t offset, bytes;
    uint64_t id;     /* buffer id */
    struct ctx *ctx; /* owner; NULL for pool memory */
    struct pool *pool;
    struct heap *heap;             /* NULL: a run of blocks of its own */
    struct alloc *next, *previous; /* of the owner */
    char *data;                    /* memory outside the arena (foreign.h): its host view; `offset` is its address */
    uint32_t units;                /* heap extent, or blocks of the run */
    uint8_t device, kind, hidden;  /* hidden: the driver's own (module code, arrays), not a user's pointer */
    uint8_t special;               /* SPECIAL_* */
    uint16_t readable, writable;   /* SPECIAL_MAPPED: devices with access, one bit each */
    uint8_t memops;                /* attribute SYNC_MEMOPS as it was set: its value + 1, 0: never set */
};

struct heap {
    uint64_t bitmap[CLASSES / 64];
    uint32_t head[CLASSES]; /* first free extent (unit number + 1), 0 none */
    uint32_t region_blocks; /* blocks asked of the device at a time */
    uint8_t device, kind;
    uint8_t charged; /* 1: every region is physical memory of `kind` */
    uint8_t keep;    /* 1: empty regions stay */
    uint8_t covered; /* 1: the next region costs nothing (the context's own memory has room for it) */
    uint8_t adopted; /* 1: its context is no more (lent.c) */
};

struct arena {
    char *device_base, *data_base;
    uint64_t bytes, span;
};
extern struct arena arena;

int arena_open(int memory_fd, uint64_t bytes, uint32_t devices); /* 0 or errno */

void heap_init(struct heap *heap, uint32_t device, uint32_t kind, uint32_t region_blocks, int charged, int keep);
void heap_close(struct heap *heap); /* gives back the empty regions of a heap with keep */

/* NULL: no room. The record's ctx, pool and list are the caller's business. */
struct alloc *heap_alloc(struct heap *heap, uint64_t bytes);
struct alloc *run_alloc(uint32_t device, uint32_t kind, uint64_t bytes, int charged);
void arena_free(struct alloc *alloc);
uint64_t arena_charge(const struct alloc *alloc); /* physical bytes of a charged run of its own; 0: it is none */
void arena_uncharge(struct alloc *alloc);         /* they are given back elsewhere */

struct alloc *arena_record(void); /* an empty record with a fresh id, or NULL */
void arena_record_free(struct alloc *alloc);
struct alloc *arena_at(uint64_t offset);   /* whose memory this byte is; NULL nobody's */
uint64_t arena_run_base(uint64_t offset);  /* offset of the block this byte is in */
uint64_t arena_run_bytes(uint64_t offset); /* length of the run of blocks this byte is in */
void arena_zero(uint64_t offset, uint64_t bytes);
void arena_written(uint64_t offset, uint64_t bytes);
/* Managed memory: device work touches [offset, offset + bytes): takes physical blocks that are not there yet. */
void arena_populate(const struct alloc *alloc, uint64_t offset, uint64_t bytes);

/* A pointer of this process's windows to its offset: 1 device window, 2 data window, 0 neither. */
static inline int arena_offset(uint64_t pointer, uint64_t *offset) {
    uint64_t device = pointer - (uint64_t)(uintptr_t)arena.device_base,
             data = pointer - (uint64_t)(uintptr_t)arena.data_base;
    if (device < arena.bytes) {
        *offset = device;
        return 1;
    }
    if (data < arena.bytes) {
        *offset = data;
        return 2;
    }
    return 0;
}
#endif
