/* The layout hami-1.2 as a live ledger: a process that shares a region file with HAMi-core (or is compared with it) keeps
 * its books by HAMi's own protocol, faults included. What it promises and what it does not:
 *
 *   - publication: everything before the magic word, which is stored last with release; making is behind a POSIX lock.
 *   - membership: a semaphore, with the owner's PID beside it. A waiter that times out gives the lock of a dead owner back,
 *     once. An owner that dies before its PID is written is never found: everybody waits for ever.
 *   - live slots are the first proc_count. Removing one moves the last into its place; only the remover's own pointer is
 *     repaired, so another process whose slot was moved goes on writing into the old place.
 *   - totals: two increments of a sequence number around the adds. That marks a writer only while there is one: two writers
 *     make it even in the middle. A writer that dies in between leaves it odd, and every reader waits for ever.
 *   - admission is a check, the driver's call and a check again: two processes may pass together.
 *   - who is alive is what kill(pid, 0) says in this PID namespace.
 * Other than HAMi, it never ends its host: a full table and a lock that cannot be had are errors. */
#ifndef HOOKLAB_HAMI_H
#define HOOKLAB_HAMI_H
#include "hl_layout_hami_1_2.h"

#include <stddef.h>
#include <stdint.h>

struct hl_hami {
    struct hl_hami_region *map; /* NULL = not open */
    struct hl_hami_slot *mine;
    int32_t pid;
    uint64_t kernel_said; /* when this process last wrote last_kernel_time, s */
};

/* 0 or -errno and one line in why (room bytes). Limits are used when this process makes the region. */
int hl_hami_open(struct hl_hami *hami, const char *path, const uint64_t *limit, const uint64_t *cores, char *why,
                 size_t room);
int hl_hami_register(struct hl_hami *hami);                /* 0, -ENOSPC, -ETIMEDOUT */
uint64_t hl_hami_used(const struct hl_hami *, int device); /* all slots; waits while a sequence number is odd */
uint64_t hl_hami_mine(const struct hl_hami *, int device);
void hl_hami_add(struct hl_hami *hami, int device, uint64_t bytes, int kind); /* two's complement */
int hl_hami_clear(struct hl_hami *hami, int dead_too); /* compaction, lock not taken; 1 = changed */
void hl_hami_status(struct hl_hami *hami, int suspended);
void hl_hami_leave(struct hl_hami *hami);
int hl_hami_lock(struct hl_hami *hami); /* 0 or -ETIMEDOUT */
void hl_hami_unlock(struct hl_hami *hami);
/* hami_monitor.c */
int hl_hami_may_launch(struct hl_hami *hami); /* 0: a monitor holds launches back; says that there is a launch */
int hl_hami_switched_off(const struct hl_hami *hami);
struct hl_ledger_process;
int hl_hami_processes(const struct hl_hami *hami, int device, struct hl_ledger_process *out, int room); /* how many */
/* What NVML says of the process with this host PID; NULL: nothing. */
void hl_hami_sampled(struct hl_hami *hami, int device, uint32_t host_pid, const uint64_t *bytes,
                     const uint64_t *percent);
/* For tools: gives back what the dead hold, their lock too, and makes sequence numbers of the dead even. How many slots,
 * or -errno and one line in why. From within the PID namespace whose PIDs the file holds. */
int hl_hami_repair(const char *path, char *why, size_t room);
#endif
