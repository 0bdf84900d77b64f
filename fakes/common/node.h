/* The connection of a fake driver library to its node: the mapped node file, this process's slot in it, and (CUDA) the
 * device-memory file. One copy of this state per fake library.
 *
 * Invariants: before attach every pointer of hl_node leads to zeroed private memory, so that the hot paths need no test
 * for NULL; the connection's end is the node's death notice, so the descriptor never leaves this process (close-on-exec,
 * closed in a forked child); nothing here prints to stdout or ends the process. */
#ifndef HOOKLAB_NODE_H
#define HOOKLAB_NODE_H
#include <stddef.h>
#include <stdint.h>

#include "hl_layout_node.h"
#include "hl_names.h"

struct hl_node_view {
    struct hl_node_header *header;
    struct hl_node_device *devices;
    struct hl_node_container *containers;
    struct hl_node_process *processes; /* all slots */
    struct hl_node_process *process;   /* this one */
    struct hl_node_fault *faults;
    uint32_t *calls;      /* this process: calls by name id */
    uint64_t *node_calls; /* ended processes of the node: calls by name id */
    void *base;           /* the node file, NULL before attach */
    uint32_t slot, host_pid;
    int32_t container; /* index, -1 unknown */
    int32_t index;     /* process index in the run, -1 unknown */
    int memory_fd;     /* CUDA: device memory, -1 otherwise */
    uint64_t memory_bytes;
};

extern struct hl_node_view hl_node;

/* kind: HL_REQUEST_ATTACH_*. Idempotent and thread-safe. 0 or an errno; a failure prints one line on stderr (once a
 * process) and may be tried again. */
int hl_node_attach(uint32_t kind);
int hl_node_attached(void);
/* Memory between processes (the node's server keeps the list of who holds what). A share is named by its maker's slot and
 * generation and a number of the maker's. All return 0 or an errno, and wait for the server. */
struct hl_share {
    uint32_t slot;
    uint64_t generation, number;
};
enum { HL_SHARE_MEMORY_FILE = 0 }; /* the number of the memory file itself, of which nothing is held */
/* Makes [offset, offset + bytes) of this process's device memory one that others may hold. file: of its own (own_file), or
 * the memory file. */
int hl_node_share(uint64_t number, uint32_t device, uint32_t kind, uint64_t offset, uint64_t bytes, int file,
                  int own_file);
int hl_node_paper(const struct hl_share *share, int *paper); /* a new descriptor that stands for it */
/* Opens a share by its name, or (paper >= 0) by a descriptor that stands for it: its file, and its name in *share. */
int hl_node_hold(struct hl_share *share, int paper, int *file);
void hl_node_let_go(const struct hl_share *share); /* once for each hold */
/* The maker frees a share of its own. EBUSY: others hold it, and the node gives `bytes` of the accounts back in its time. */
int hl_node_disown(uint64_t number, uint64_t bytes);
int hl_node_share_held(uint64_t number); /* EBUSY: others hold it */
/* A close of a descriptor is no driver call: waits until the server has seen those that this process made. Nothing to do in a
 * process that never had such a descriptor to do with. 1 = it asked. */
int hl_node_settle_papers(void);
/* Has the kernel that a file describes (hl_node_run, HL_RUN_DATA) run elsewhere; waits until it is done. 0 or an errno. */
int hl_node_run_elsewhere(int file);
/* Called in a forked child after the connection is closed and hl_node leads to private memory again. `was_attached` tells
 * whether the parent was. One callback a library. */
void hl_node_on_fork(void (*child)(int was_attached));

static inline struct hl_node_interval *hl_node_intervals(uint32_t device) {
    struct hl_node_header *h = hl_node.header;
    return (struct hl_node_interval *)(void *)((char *)hl_node.base + h->interval_offset) +
           (size_t)device * h->interval_capacity;
}
#endif
