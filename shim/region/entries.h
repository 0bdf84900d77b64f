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
void hl_entries_fork_prepare(void);
void hl_entries_fork_parent(void);
void hl_entries_fork_child(int prepared); /* empties it; prepared = hl_entries_fork_prepare ran before the fork */
#endif
