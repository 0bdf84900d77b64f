/* The live allocations of this process: base pointer -> entry. Private to this folder. */
#ifndef HOOKLAB_ENTRIES_H
#define HOOKLAB_ENTRIES_H
#include "ledger.h"

enum { HL_ENTRY_DEVICES = 16, HL_ENTRY_KINDS = 8 };

/* 0, or -ENOMEM. An entry that already has this pointer is replaced: 1, and *old is what it was. */
int hl_entries_insert(const struct hl_entry *entry, struct hl_entry *old);
int hl_entries_find(uint64_t pointer, struct hl_entry *out);   /* 1 found */
int hl_entries_remove(uint64_t pointer, struct hl_entry *out); /* 1 removed */
/* Removes every entry of a context, adding its bytes to sums[device][kind]; how many. Linear in the entries removed. */
uint64_t hl_entries_remove_context(uint64_t context, uint64_t sums[HL_ENTRY_DEVICES][HL_ENTRY_KINDS]);
uint64_t hl_entries_count(void);
/* Blocks that small allocations share, by address; their entries are in the context's list, too.
 * join: 1 entered in its block, 0 the block has no entry (nothing changed), -ENOMEM. `old`: as insert; .pointer 0 = none.
 * found: enters block and allocation: 1; 0 when the block has an entry by now, and the allocation joined it; -ENOMEM.
 * leave: 1 when it was the last of its block, and *block is that entry, removed. */
int hl_entries_join(const struct hl_entry *entry, struct hl_entry *old);
int hl_entries_found(const struct hl_entry *block, const struct hl_entry *entry, struct hl_entry *old);
int hl_entries_leave(const struct hl_entry *entry, struct hl_entry *block);
uint64_t hl_entries_room(uint64_t context);
int hl_entries_count_on(uint64_t pointer, int more, struct hl_entry *out); /* 1 changed, 2 fell to 0: removed to *out */
int hl_entries_resize(uint64_t pointer, int64_t more); /* 1 changed; an entry that fell to 0 bytes is removed */
static inline uint64_t hl_entries_block(uint64_t pointer) { return pointer / HL_BLOCK * HL_BLOCK + HL_TAG_BLOCK; }
void hl_entries_fork_prepare(void);
void hl_entries_fork_parent(void);
void hl_entries_fork_child(int prepared); /* empties it; prepared = hl_entries_fork_prepare ran before the fork */
#endif
