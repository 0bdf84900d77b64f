/* Changes the accounts of a fake node (device.used, container.used, the bytes of a process) so that they stay right when
 * their writer is killed anywhere.
 *
 * One lock word a device, in the node file. It names its holder by process slot and is taken by a single CAS, so the node
 * server always knows who died holding it. The holder writes the old values to the undo words before it changes anything;
 * the server restores them (hl_accounts_bury). No driver call, no sleep and no history record happens under the lock.
 * A holder that is stopped (SIGSTOP) inside the few instructions holds up other allocations of that device until it goes on.
 */
#ifndef HOOKLAB_ACCOUNTS_H
#define HOOKLAB_ACCOUNTS_H
#include <stdint.h>

struct hl_accounts_after { /* values right after the change, from inside the lock */
    uint64_t device_used, container_used, process_used;
};

/* base = start of the node file. take: 0, or -1 when the device has not that many bytes left (nothing changed).
 * slot = the caller's process slot. `after` may be NULL. */
int hl_accounts_take(void *base, uint32_t slot, uint32_t device, uint32_t kind, uint64_t bytes, struct hl_accounts_after *after);
void hl_accounts_give(void *base, uint32_t slot, uint32_t device, uint32_t kind, uint64_t bytes, struct hl_accounts_after *after);

/* Server, after the last connection of a slot is gone: undoes a torn change, gives back everything the slot holds and
 * zeroes its bytes and context counts. Returns the bytes given back, all devices. Idempotent. */
uint64_t hl_accounts_bury(void *base, uint32_t slot);

/* Meeting points of planned faults. arrive: 1 = this arrival opened the round, 0 = wait while fault.open == *round. */
int hl_meet_arrive(void *base, uint32_t slot, uint32_t fault, uint32_t *round);
void hl_meet_wait(void *base, uint32_t slot, uint32_t fault, uint32_t round);
void hl_meet_open(void *base, uint32_t fault);  /* server: lets the waiters of the current round go */
void hl_meet_leave(void *base, uint32_t slot);  /* server: takes a dead waiter's arrival back */

/* Server: adds the calls of an ended process to the node-wide counts and zeroes its row. */
void hl_calls_fold(void *base, uint32_t slot);
#endif
