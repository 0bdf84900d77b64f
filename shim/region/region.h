/* One mapped region file (layout hooklab-1): how it is made, checked, locked and kept free of the dead. Private to this
 * folder; the ledger (ledger.h) is what the shim sees.
 *
 * Who may touch what:
 *   - slot[].device[].held and device[].used change only under the region lock; used + pending is the breakdown of held
 *     and is moved by its owner without it.
 *   - Under the lock held changes before device[].used, and a death repaired is counted (repairs) after device[].used
 *     fell and before the slot is freed: who sees the slot free also sees that there was a repair.
 *   - lock_holder is non-zero exactly while somebody is inside; found non-zero on entry, its owner died there and all
 *     totals are recomputed from held. So SIGKILL at any instruction leaves a state that the next one repairs.
 *   - With a robust mutex, whoever touches the mutex is present (holds its presence byte) or holds the gate.
 *
 * Three open file descriptions of one file, because what a description locks lives as long as its last reference:
 *   data      mapped, descriptor closed; never locks anything, so children may inherit the mapping
 *   presence  locks HL_PRESENCE_BYTE + slot; kept only by a PROT_NONE mapping that forks do not copy (MADV_DONTFORK), with
 *             its descriptor closed: it ends exactly with this process's memory, whatever the host closes or forks
 *   fd        the gate, the file lock and questions about others; close-on-exec, replaced in a fork child
 */
#ifndef HOOKLAB_REGION_H
#define HOOKLAB_REGION_H
#include "hl_layout_hooklab_1.h"
#include "ledger.h"
#include "points.h"

#include <pthread.h>
#include <stdint.h>
#include <sys/types.h>

enum { HL_REGION_DEVICES = 16, HL_REGION_KINDS = 8, HL_NO_SLOT = -1 };

struct hl_region {
    struct hl_region_header *header; /* NULL = not mapped */
    struct hl_region_device *device;
    struct hl_region_slot *slot;
    void *presence; /* NULL = not present */
    int fd;         /* -1: private memory of one process */
    dev_t file_device;
    ino_t file_inode;
    pthread_mutex_t local; /* the in-process half of HL_LOCK_FILE */
    char path[1024];
};

struct hl_region_new { /* what a region that does not exist yet shall be */
    int create, robust;
    const uint64_t *limit, *sm_limit; /* [HL_REGION_DEVICES], NULL = none */
};

enum { HL_WHY_BYTES = 1400 };

/* region_file.c: 0 or -errno, then why (HL_WHY_BYTES) holds one line. On success the gate is held. */
int hl_region_open(struct hl_region *region, const char *path, const struct hl_region_new *fresh, char *why);
void hl_region_unmap(struct hl_region *region);
int hl_region_is_remote(const struct hl_region *region); /* on a file system of another machine */
/* A new description of the mapped file, close-on-exec and high up; or -errno. */
int hl_region_describe(const struct hl_region *region);
int hl_region_fork_child(struct hl_region *region); /* drops what belongs to the parent; 0 or -errno */
int hl_region_gate_close(struct hl_region *region); /* waits; 0 or -errno */
void hl_region_gate_open(struct hl_region *region);

/* A sequence point of a region that is shared; private memory has none. */
#define HL_REGION_POINT(region, name)                                                                                  \
    do {                                                                                                               \
        if (__builtin_expect(hl_points_planned != 0, 0) && (region)->fd >= 0) HL_POINT(name);                          \
    } while (0)

/* lock.c: 0 or -errno (the descriptor was closed under us and the file cannot be opened again). */
int hl_region_lock(struct hl_region *region, int slot);
void hl_region_unlock(struct hl_region *region);
int hl_region_lock_init(struct hl_region *region);
int hl_region_file_lock(struct hl_region *region, int command, int type, off_t start, off_t length, int *held);

/* slots.c */
int hl_region_enter(struct hl_region *region);                       /* slot index or -ENOSPC, -errno; lock not held */
int hl_region_leave(struct hl_region *region, int slot);             /* 1 given back, 0 it still holds bytes */
int hl_region_sweep(struct hl_region *region, int self, int device); /* reaps the dead, -1 = any device; how many */
int hl_region_bury_all(struct hl_region *region);                    /* caller has shown that nobody is present */
int hl_region_nobody_present(struct hl_region *region);
void hl_region_recompute(struct hl_region *region); /* lock held */
#endif
