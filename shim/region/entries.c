/* The live allocations of this process (see entries.h): one hash table, the entries of a context chained.
 *
 * Invariants: nodes are named by index and live in one mapping that only grows, freed nodes are used again last in, first
 * out, so that a program that allocates and frees stays in cache however much it holds; a table cell carries a tag of the
 * pointer, so that a probe that passes other pointers touches no node of theirs; cells are at most half full; removal
 * shifts the cells behind it back, so there are no graves and no clean-up. Memory comes from mmap: the host's allocator
 * may be the one that is calling us. All under one mutex, held for tens of nanoseconds. */
#define _GNU_SOURCE
#include "entries.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

struct node {
    struct hl_entry entry;
    uint32_t next, previous; /* in its context; next also chains the free nodes; index + 1, 0 = none */
};
struct cell {
    uint32_t tag, node; /* node: index + 1, 0 = empty */
};
struct chain { /* the entries of one context */
    uint64_t context;
    uint32_t head, used;
    uint64_t room; /* in blocks that small allocations share */
};

enum { FIRST_CELLS = 1024, FIRST_CHAINS = 64 };

static pthread_mutex_t mutex = PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP;
static struct node *nodes;
static uint32_t node_room, node_next, node_free; /* never used ones start at node_next */
static struct cell *cells;
static uint32_t cell_room, live; /* cell_room: a power of two */
static struct chain *chains;
static uint32_t chain_room, chain_live; /* chain_room: a power of two */

static uint64_t mix(uint64_t value) {
    value ^= value >> 32;
    value *= 0x9e3779b97f4a7c15u;
    value ^= value >> 29;
    value *= 0xbf58476d1ce4e5b9u;
    return value ^ value >> 32;
}

static void *map(size_t bytes) {
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

static void unmap(void *at, size_t bytes) {
    if (at) munmap(at, bytes);
}

/* ---- contexts: few, open addressing by the whole key ---- */

static struct chain *find_chain(uint64_t context) {
    if (!chain_room) return NULL;
    for (uint32_t i = (uint32_t)mix(context) & (chain_room - 1); chains[i].used; i = (i + 1) & (chain_room - 1))
        if (chains[i].context == context) return &chains[i];
    return NULL;
}

static struct chain *place_chain(uint64_t context) {
    uint32_t i = (uint32_t)mix(context) & (chain_room - 1);
    while (chains[i].used) i = (i + 1) & (chain_room - 1);
    chains[i] = (struct chain){.context = context, .used = 1};
    return &chains[i];
}

static struct chain *need_chain(uint64_t context) {
    struct chain *found = find_chain(context);
    if (found) return found;
    if (chain_live * 2 >= chain_room) {
        struct chain *old = chains;
        uint32_t old_room = chain_room, room = old_room ? old_room * 2 : FIRST_CHAINS;
        struct chain *bigger = map(room * sizeof *bigger);
        if (!bigger) return NULL;
        chains = bigger;
        chain_room = room;
        for (uint32_t i = 0; i < old_room; i++)
            if (old[i].used) {
                struct chain *moved = place_chain(old[i].context);
                moved->head = old[i].head;
                moved->room = old[i].room;
            }
        unmap(old, old_room * sizeof *old);
    }
    chain_live++;
    return place_chain(context);
}

static void drop_chain(struct chain *gone) {
    uint32_t hole = (uint32_t)(gone - chains), mask = chain_room - 1;
    for (uint32_t i = (hole + 1) & mask; chains[i].used; i = (i + 1) & mask) {
        uint32_t home = (uint32_t)mix(chains[i].context) & mask;
        if (((i - home) & mask) >= ((i - hole) & mask)) {
            chains[hole] = chains[i];
            hole = i;
        }
    }
    chains[hole].used = 0;
    chain_live--;
}

/* ---- pointers ---- */

/* The tag holds the cell's home too, so that moving cells touches no node either. */
static uint32_t tag_of(uint64_t pointer) { return (uint32_t)mix(pointer); }
static uint32_t home_of(uint32_t tag) { return tag & (cell_room - 1); }

static struct cell *find_cell(uint64_t pointer) {
    if (!cell_room) return NULL;
    uint32_t tag = tag_of(pointer);
    for (uint32_t i = home_of(tag); cells[i].node; i = (i + 1) & (cell_room - 1))
        if (cells[i].tag == tag && nodes[cells[i].node - 1].entry.pointer == pointer) return &cells[i];
    return NULL;
}

static void place_cell(uint32_t tag, uint32_t node) {
    uint32_t i = home_of(tag);
    while (cells[i].node) i = (i + 1) & (cell_room - 1);
    cells[i] = (struct cell){.tag = tag, .node = node};
}

static int grow_cells(void) {
    struct cell *old = cells;
    uint32_t old_room = cell_room, room = old_room ? old_room * 2 : FIRST_CELLS;
    struct cell *bigger = room ? map(room * sizeof *bigger) : NULL;
    if (!bigger) return -ENOMEM;
    cells = bigger;
    cell_room = room;
    for (uint32_t i = 0; i < old_room; i++)
        if (old[i].node) place_cell(old[i].tag, old[i].node);
    unmap(old, old_room * sizeof *old);
    return 0;
}

static int grow_nodes(void) {
    uint32_t room = node_room ? node_room * 2 : FIRST_CELLS / 2;
    void *at = !room   ? MAP_FAILED
               : nodes ? mremap(nodes, node_room * sizeof *nodes, room * sizeof *nodes, MREMAP_MAYMOVE)
                       : mmap(NULL, room * sizeof *nodes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return -ENOMEM;
    nodes = at;
    node_room = room;
    return 0;
}

static void remove_cell(struct cell *gone) {
    uint32_t hole = (uint32_t)(gone - cells), mask = cell_room - 1;
    for (uint32_t i = (hole + 1) & mask; cells[i].node; i = (i + 1) & mask) {
        uint32_t home = home_of(cells[i].tag);
        if (((i - home) & mask) >= ((i - hole) & mask)) {
            cells[hole] = cells[i];
            hole = i;
        }
    }
    cells[hole].node = 0;
    live--;
}

static void unchain(uint32_t node) {
    struct node *it = &nodes[node - 1];
    if (it->next) nodes[it->next - 1].previous = it->previous;
    if (it->previous) {
        nodes[it->previous - 1].next = it->next;
        return;
    }
    struct chain *chain = find_chain(it->entry.context);
    chain->head = it->next;
    if (!it->next) drop_chain(chain);
}

static void take_out(struct cell *cell, struct hl_entry *out) {
    uint32_t node = cell->node;
    remove_cell(cell);
    unchain(node);
    *out = nodes[node - 1].entry;
    nodes[node - 1].next = node_free;
    node_free = node;
}

/* All that can fail comes first: an entry is replaced or the table stays as it was. Mutex held. */
static int insert(const struct hl_entry *entry, struct hl_entry *old) {
    int replaced = 0;
    if ((live + 1) * 2 > cell_room && grow_cells()) return -ENOMEM;
    if (!node_free && node_next == node_room && grow_nodes()) return -ENOMEM;
    struct chain *chain = need_chain(entry->context);
    if (!chain) return -ENOMEM;
    struct cell *same = find_cell(entry->pointer);
    if (same) {
        take_out(same, old);
        replaced = 1;
        chain = need_chain(entry->context); /* there is room; the first may have moved or gone */
    }
    uint32_t node = node_free;
    if (node) node_free = nodes[node - 1].next;
    else node = ++node_next;
    nodes[node - 1] = (struct node){.entry = *entry, .next = chain->head};
    if (chain->head) nodes[chain->head - 1].previous = node;
    chain->head = node;
    place_cell(tag_of(entry->pointer), node);
    live++;
    return replaced;
}

int hl_entries_insert(const struct hl_entry *entry, struct hl_entry *old) {
    pthread_mutex_lock(&mutex);
    int replaced = insert(entry, old);
    pthread_mutex_unlock(&mutex);
    return replaced;
}

/* A block's entry, or NULL. Mutex held; the chain of its context exists as long as it does. */
static struct hl_entry *block_of(uint64_t pointer) {
    struct cell *cell = find_cell(hl_entries_block(pointer));
    return cell ? &nodes[cell->node - 1].entry : NULL;
}

static void fill(struct hl_entry *block, int64_t bytes) {
    block->size += (uint32_t)bytes;
    find_chain(block->context)->room -= (uint64_t)bytes;
}

static int join(const struct hl_entry *entry, struct hl_entry *old) {
    int replaced = insert(entry, old);
    if (replaced < 0) return replaced;
    struct hl_entry *block = block_of(entry->pointer);
    block->count++;
    fill(block, entry->size);
    return 1;
}

int hl_entries_join(const struct hl_entry *entry, struct hl_entry *old) {
    old->pointer = 0;
    pthread_mutex_lock(&mutex);
    int joined = block_of(entry->pointer) ? join(entry, old) : 0;
    pthread_mutex_unlock(&mutex);
    return joined;
}

int hl_entries_found(const struct hl_entry *block, const struct hl_entry *entry, struct hl_entry *old) {
    struct hl_entry none;
    old->pointer = 0;
    pthread_mutex_lock(&mutex);
    int found = block_of(entry->pointer) == NULL;
    int problem = found ? insert(block, &none) : 0;
    if (found && !problem) find_chain(block->context)->room += HL_BLOCK;
    if (!problem && join(entry, old) < 0) {
        problem = -ENOMEM;
        if (found) {
            find_chain(block->context)->room -= HL_BLOCK;
            take_out(find_cell(block->pointer), &none);
        }
    }
    pthread_mutex_unlock(&mutex);
    return problem ? problem : found;
}

int hl_entries_leave(const struct hl_entry *entry, struct hl_entry *block) {
    int last = 0;
    pthread_mutex_lock(&mutex);
    struct hl_entry *shared = block_of(entry->pointer);
    if (shared) {
        fill(shared, -(int64_t)entry->size);
        last = --shared->count == 0;
    }
    if (last) {
        find_chain(shared->context)->room -= HL_BLOCK;
        take_out(find_cell(hl_entries_block(entry->pointer)), block);
    }
    pthread_mutex_unlock(&mutex);
    return last;
}

uint64_t hl_entries_room(uint64_t context) {
    pthread_mutex_lock(&mutex);
    const struct chain *chain = find_chain(context);
    uint64_t room = chain ? chain->room : 0;
    pthread_mutex_unlock(&mutex);
    return room;
}

int hl_entries_find(uint64_t pointer, struct hl_entry *out) {
    pthread_mutex_lock(&mutex);
    struct cell *cell = find_cell(pointer);
    if (cell) *out = nodes[cell->node - 1].entry;
    pthread_mutex_unlock(&mutex);
    return cell != NULL;
}

int hl_entries_remove(uint64_t pointer, struct hl_entry *out) {
    pthread_mutex_lock(&mutex);
    struct cell *cell = find_cell(pointer);
    if (cell) take_out(cell, out);
    pthread_mutex_unlock(&mutex);
    return cell != NULL;
}

int hl_entries_count_on(uint64_t pointer, int more, struct hl_entry *out) {
    pthread_mutex_lock(&mutex);
    struct cell *cell = find_cell(pointer);
    int known = cell != NULL;
    if (known && !(nodes[cell->node - 1].entry.count += (uint32_t)more)) {
        take_out(cell, out);
        known = 2;
    }
    pthread_mutex_unlock(&mutex);
    return known;
}

int hl_entries_resize(uint64_t pointer, int64_t more) {
    struct hl_entry gone;
    pthread_mutex_lock(&mutex);
    struct cell *cell = find_cell(pointer);
    if (cell && !(nodes[cell->node - 1].entry.bytes += (uint64_t)more)) take_out(cell, &gone);
    pthread_mutex_unlock(&mutex);
    return cell != NULL;
}

uint64_t hl_entries_remove_context(uint64_t context, uint64_t sums[HL_ENTRY_DEVICES][HL_ENTRY_KINDS]) {
    uint64_t count = 0;
    pthread_mutex_lock(&mutex);
    for (struct chain *chain; (chain = find_chain(context)); count++) {
        struct hl_entry gone;
        take_out(find_cell(nodes[chain->head - 1].entry.pointer), &gone);
        sums[gone.device][gone.kind] += gone.bytes;
    }
    pthread_mutex_unlock(&mutex);
    return count;
}

uint64_t hl_entries_count(void) { return __atomic_load_n(&live, __ATOMIC_RELAXED); }

void hl_entries_fork_prepare(void) { pthread_mutex_lock(&mutex); }
void hl_entries_fork_parent(void) { pthread_mutex_unlock(&mutex); }

void hl_entries_fork_child(int prepared) {
    static const pthread_mutex_t fresh = PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP;
    if (prepared) { /* else another thread may have been changing them when the memory was copied: they are left alone */
        unmap(nodes, node_room * sizeof *nodes);
        unmap(cells, cell_room * sizeof *cells);
        unmap(chains, chain_room * sizeof *chains);
    }
    nodes = NULL;
    cells = NULL;
    chains = NULL;
    node_room = node_next = node_free = cell_room = live = chain_room = chain_live = 0;
    memcpy(&mutex, &fresh, sizeof mutex);
}
