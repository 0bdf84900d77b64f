/* Changes the accounts of a fake node (device.used, container.used, the bytes of a process) so that they stay right when
 * their writer is killed anywhere.
 *
 * One lock (nodelock.h) a device, in the node file. The holder writes the old values to the undo words before it changes
 * anything; the server restores them (hl_accounts_undo). A holder that is stopped (SIGSTOP) inside
 * the few instructions holds up other allocations of that device until it goes on. */
#ifndef HOOKLAB_ACCOUNTS_H
#define HOOKLAB_ACCOUNTS_H
#include <stdint.h>

struct hl_accounts_after { /* values right after the change, from inside the lock */
    uint64_t device_used, container_used, process_used;
    uint64_t
        time_ns; /* in: 0 = not wanted; out: the moment, so that the times of a device's changes are in their order */
};

/* base = start of the node file. take: 0, or -1 when the device has not that many bytes left (nothing changed).
 * slot = the caller's process slot. `after` may be NULL. */
int hl_accounts_take(void *base, uint32_t slot, uint32_t device, uint32_t kind, uint64_t bytes,
                     struct hl_accounts_after *after);
void hl_accounts_give(void *base, uint32_t slot, uint32_t device, uint32_t kind, uint64_t bytes,
                      struct hl_accounts_after *after);

/* Server, when the last connection of a slot is gone: undoes the torn change of a dead holder and opens its lock. At once,
 * also where the memory comes back later: everybody else waits for that lock. */
void hl_accounts_undo(void *base, uint32_t slot);
/* Server: gives back what the dead slot holds beyond keep[device * HL_KINDS + kind] (NULL: nothing is kept) and zeroes its
 * context counts. 0, or -1 when another holder keeps a lock just now: try again later, never wait here (that holder may be
 * dead itself, its notice still unread). Idempotent. `given` (may be NULL) gets the bytes given back by this call. */
int hl_accounts_bury(void *base, uint32_t slot, const uint64_t *keep, uint64_t *given);
/* Server: gives bytes of a living process back that it disowned. 0, or -1 as above. */
int hl_accounts_take_back(void *base, uint32_t slot, uint32_t device, uint32_t kind, uint64_t bytes);

/* Meeting points of planned faults. A thread waits until as many are there as the fault says, or the server lets them go.
 * Each that waits has a word of its own in the header, so that a process that dies takes its threads' arrivals with it and
 * nothing else. Where all words are in use, a caller goes on at once. 1 = this arrival made the number full. */
int hl_meet(void *base, uint32_t slot, uint32_t fault);
/* Server: lets the waiters of this round go, if it is still the current one: callers that fill it open it themselves. */
void hl_meet_open(void *base, uint32_t fault, uint32_t round);
/* Stops the process (SIGSTOP) until the server has opened the fault and let it go on. */
void hl_hold(void *base, uint32_t slot, uint32_t fault);
void hl_meet_leave(void *base, uint32_t slot); /* server: forgets the arrivals of a dead process */

/* Server: adds the calls of an ended process to the node-wide counts and zeroes its row. */
void hl_calls_fold(void *base, uint32_t slot);
#endif
