/* Which process this is outside its PID namespace: the join key between what NVML reports and our slot.
 *
 * Three tiers, asked in order until one answers: the broker (a socket whose server the kernel tells who connected), a
 * procfs of the first PID namespace that the operator mounted, and an experiment with NVML. A tier that does not answer
 * says why (HL_REASON_*, layout history.toml). None ever guesses: a wrong PID is worse than none.
 *
 * broker.c and procfs.c know neither CUDA nor the rest of the preload library; tests compile them by themselves. */
#ifndef HOOKLAB_IDENTITY_H
#define HOOKLAB_IDENTITY_H
#include "hl_layout_history.h"

#include <stddef.h>
#include <stdint.h>

/* -- broker.c -- HL_REASON_ANSWERED and *pid, or why not and 0. At most HL_BROKER_PATIENCE_MS altogether. */
enum { HL_BROKER_PATIENCE_MS = 500 };
int hl_broker_ask(uint32_t *pid);
/* One connected stream: the request, the response, judged. For tests with a socket pair; deadline on CLOCK_MONOTONIC. */
int hl_broker_converse(int fd, uint64_t deadline_ns, uint32_t *pid);

/* -- procfs.c -- */
enum hl_nstgid { /* what a status text says; the Python parser has the same names and numbers */
                 HL_NSTGID_OK = 0,
                 HL_NSTGID_NULL = 1,
                 HL_NSTGID_NO_ROOM = 2,
                 HL_NSTGID_NO_FIELD = 3,
                 HL_NSTGID_EMPTY = 4,
                 HL_NSTGID_NOT_POSITIVE = 5,
                 HL_NSTGID_OVERFLOW = 6,
                 HL_NSTGID_JUNK = 7,
                 HL_NSTGID_TOO_DEEP = 8,
};
enum { HL_NSTGID_LEVELS = 33 }; /* the kernel nests 32 deep below the first */
/* The PIDs of the NStgid line of a status text, outermost first. On any error *count is 0 and nothing was written that
 * may be used. */
enum hl_nstgid hl_nstgid_parse(const char *text, size_t length, uint32_t *pids, size_t room, size_t *count);
int hl_procfs_ask(const char *root, uint32_t *pid); /* as hl_broker_ask; root is where the procfs is mounted */

/* -- probe.c -- as hl_broker_ask, on a CUDA device whose driver is initialised. */
int hl_probe_ask(int device, uint32_t *pid);
/* Bytes that NVML reports for this process on a device, 0 if it is not listed there or nothing can be asked. host_pid as
 * far as it is known, 0 unknown. */
uint64_t hl_probe_bytes(int device, uint32_t host_pid);
void hl_probe_fork_child(void);

/* -- tiers.c -- */
/* This process's PID in the machine's first namespace, 0 = unknown so far. Asks the tiers if nobody has, or if the last attempt failed
 * long enough ago; then it may take a while. Call it inside a frame, never while cuInit is under way. */
uint32_t hl_identity_host_pid(int device);
void hl_identity_context_made(int device); /* asks if something here needs the join key */
void hl_identity_fork_child(void);

/* -- reasons.c -- */
const char *hl_reason_text(int reason);
#endif
