/* Device memory of this process that others may hold: what it exported (IPC handles, pointers of shared pools), and what of
 * that it freed while they held it.
 *
 * The node's server knows who holds what. A freed piece that is held stays where it is, unseen by the program: its bytes
 * remain, its addresses are given to nobody. A run of blocks of its own goes back to the device from the server's hand, when
 * the last holder lets go; a piece of a shared block does when this process next has to do with memory (the server counts
 * in hl_node_process.returned). All of this under the driver's lock. */
#include <errno.h>
#include <stdlib.h>

#include "foreign.h"

uint32_t lent_kept;
static struct alloc *kept;
static uint64_t seen;

int lent_new(struct alloc *a) {
    if (a->special == SPECIAL_LENT) return 0;
    uint64_t step = a->pool ? POOL_STEP : BLOCK, base = arena_run_base(a->offset), inside = a->offset - base;
    uint64_t first = inside / step * step, end = (inside + a->bytes + step - 1) / step * step;
    int code = hl_node_share(a->id, a->device, a->heap ? a->heap->kind : a->kind, base + first, end - first,
                             hl_node.memory_fd, 0);
    if (code == 0) a->special = SPECIAL_LENT;
    return code;
}

int lent_end(struct alloc *a) {
    if (a->pool) { /* its place is the pool's, which uses it again; who imported the pool keeps what it has seen of it */
        (void)hl_node_disown(a->id, 0);
        return 0;
    }
    uint64_t own = arena_charge(a);
    if (hl_node_disown(a->id, own) != EBUSY) return 0;
    if (own) arena_uncharge(a);
    a->hidden = 1;
    a->next = kept;
    kept = a;
    __atomic_store_n(&lent_kept, lent_kept + 1, __ATOMIC_RELAXED);
    return 1;
}

/* The heap of a context that is no more, after the last piece in it. */
static void heap_left(struct heap *heap) {
    if (!heap || !heap->adopted) return;
    for (const struct alloc *a = kept; a; a = a->next)
        if (a->heap == heap) return;
    free(heap);
}

void lent_settle_slow(void) {
    uint64_t returned = __atomic_load_n(&hl_node.process->returned, __ATOMIC_ACQUIRE);
    if (returned == seen) return;
    seen = returned;
    for (struct alloc **link = &kept, *a; (a = *link);) {
        if (hl_node_share_held(a->id) == EBUSY) {
            link = &a->next;
            continue;
        }
        *link = a->next;
        __atomic_store_n(&lent_kept, lent_kept - 1, __ATOMIC_RELAXED);
        struct heap *heap = a->heap;
        arena_free(a);
        heap_left(heap);
    }
}

void lent_look(void) {
    if (__builtin_expect(__atomic_load_n(&lent_kept, __ATOMIC_RELAXED) != 0, 0)) {
        fake_lock();
        lent_settle_slow();
        fake_unlock();
    }
    (void)hl_node_settle_papers();
}

void lent_heap_ends(struct heap *heap) {
    struct heap *copy = NULL;
    for (struct alloc *a = kept; a; a = a->next) {
        if (a->heap != heap) continue;
        if (!copy && !(copy = malloc(sizeof *copy))) abort(); /* what lies in it must go somewhere */
        a->heap = copy;
    }
    if (!copy) return;
    *copy = *heap;
    copy->adopted = 1;
}
