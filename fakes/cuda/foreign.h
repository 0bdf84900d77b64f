/* Device memory outside the arena: mapped virtual memory, memory of other processes, external memory, graph memory.
 *
 * Such memory has an address range of its own (reserved and never accessible, so that a host that dereferences it
 * faults) and a host view of its bytes somewhere else. Its record is a struct alloc whose `data` is that view and whose
 * `offset` is the address itself. Invariant: ranges do not overlap; all of this under the driver's lock. */
#ifndef HOOKLAB_FOREIGN_H
#define HOOKLAB_FOREIGN_H
#include "fake.h"

/* Reserves `bytes` of addresses on a multiple of `alignment`; MAP_FAILED: none. */
void *address_reserve(uint64_t bytes, uint64_t alignment);

/* kind: HL_KIND_*; freeable: cuMemFree ends it. NULL: no memory for the record. */
struct alloc *foreign_add(uint64_t base, uint64_t bytes, char *data, uint32_t device, uint32_t kind);
void foreign_remove(struct alloc *alloc); /* forgets the record; mappings are the caller's business */
struct alloc *foreign_at(uint64_t pointer);
struct alloc *foreign_after(const struct alloc *alloc); /* the next one when it follows without a gap */
int foreign_overlaps(uint64_t base, uint64_t bytes);

/* lent.c: this process's own memory in others' hands. */
int lent_new(struct alloc *alloc); /* others may hold it from now on; 0 or an errno */
int lent_end(struct alloc *alloc); /* the program freed it; 1: others hold it, it stays for now */
void lent_settle_slow(void);
void lent_heap_ends(struct heap *heap); /* its context ends; everything else in it is freed */
extern uint32_t lent_kept;              /* freed pieces that others held */
static inline void lent_settle(void) {
    if (__builtin_expect(__atomic_load_n(&lent_kept, __ATOMIC_RELAXED) != 0, 0)) lent_settle_slow();
}
void lent_look(void); /* not under the lock: what is free is asked for */

/* ipc.c: an external buffer or an imported pool pointer that cuMemFree ends. 1 = it was one. */
int imported_end(struct alloc *alloc);
void imported_pool_ends(const struct pool *pool); /* under the lock: what it held of its maker's */
int graph_memory_end(struct alloc *alloc);        /* graph_memory.c: the same for what a graph allocated */
#endif
