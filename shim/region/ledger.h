/* The ledger of one process inside its container's shared region: the books. It decides nothing itself; verdicts
 * come from the engine through the callback given to hl_ledger_open. No lock is held across a verdict or across a
 * driver call.
 *
 * Life of a charge:   reserve ──> (driver call) ──> settle | cancel
 * Life of an uncharge: detach ──> (driver call) ──> credit | reattach
 *
 * What the driver hands out by itself is one entry. What it takes in larger pieces (a block of 2 MiB for several small
 * allocations, a pool's steps) is booked by the piece: small allocations share their block's entry, and a pool's bytes
 * have no entry at all: whoever reads them off the driver keeps them (keep, book, give).
 */
#ifndef HOOKLAB_LEDGER_H
#define HOOKLAB_LEDGER_H
#include <stddef.h>
#include <stdint.h>

/* What is no allocation's address is entered under its handle with one of these in the low bits, which no address has. */
enum {
    HL_TAG_CONTEXT = 1,
    HL_TAG_GRAPH = 2,
    HL_TAG_BLOCK = 3,
    HL_TAG_HIDDEN = 4,
    HL_TAG_ARRAY = 5,
    HL_TAG_STACK = 6,
    HL_TAG_MAPPING = 7
};
#define HL_TAG_PHYSICAL (UINT64_C(1) << 63) /* handles of physical memory may be any number */

enum hl_memory_mode { HL_MODE_RESERVE = 0, HL_MODE_DOUBLE_CHECK = 1 };

/* HL_LAYOUT_HAMI: the file is kept by HAMi's protocol, always in double-check mode (see hami.h). */
enum hl_region_layout { HL_LAYOUT_HOOKLAB = 0, HL_LAYOUT_HAMI = 1 };

struct hl_ledger_config {
    enum hl_region_layout layout;
    const char *path;   /* region file; created if absent; NULL = private anonymous region (one process, still works) */
    uint64_t limit[16]; /* bytes by device ordinal; 0 = none; used only when this process creates the region */
    uint64_t sm_limit[16];
    enum hl_memory_mode mode;
    int robust; /* 1 = the runner guarantees one PID namespace per region: robust mutex; 0 = file locks */
    /* 0 admit, else the CUresult to refuse with. Called with no lock held. */
    int32_t (*verdict)(int device, uint64_t size, int kind, uint64_t used, uint64_t limit, uint64_t others);
    void (*log)(const char *line);
};

struct hl_ticket { /* one charge under way; lives on the caller's stack */
    int device, kind;
    uint64_t bytes;  /* what was reserved */
    uint64_t before; /* container bytes in use when admitted */
    uint64_t token;  /* internal */
};

struct hl_entry { /* one live allocation */
    uint64_t pointer, bytes, context;
    int device, kind;
    uint32_t
        size; /* of one that shares a block with others: what it fills of it. Then `bytes`, booked for it alone, is 0 */
    uint32_t count; /* of a block: how many share it; of a note: its maker's */
    uint64_t token; /* internal */
};

/* Opens or creates the region and takes a slot. Idempotent, thread-safe. 0 or -errno (-ENOSPC: no free slot,
 * -EPROTO: foreign layout, -EXDEV: robust region of another PID namespace); *why then points to one line. */
int hl_ledger_open(const struct hl_ledger_config *config, const char **why);
int hl_ledger_is_open(void);
/* 0 reserved, else the CUresult to refuse with; 304 (operating system) when the books cannot be kept. A refusal is
 * given only after the dead were buried and the policy was asked again without their bytes. */
int32_t hl_ledger_reserve(int device, uint64_t bytes, int kind, struct hl_ticket *ticket);
/* After the driver succeeded. `bytes` may differ from the reservation (what the driver really took): more of it is
 * asked for again. In double-check mode the re-check happens here. Non-zero = over the limit, nothing recorded and the
 * reservation gone: free it and refuse. */
int32_t hl_ledger_settle(struct hl_ticket *ticket, uint64_t pointer, uint64_t context, uint64_t bytes);
void hl_ledger_cancel(struct hl_ticket *ticket);
/* A ticket that has reserved nothing: for what will most likely take nothing. False: there are no books. */
int hl_ledger_ticket(int device, int kind, struct hl_ticket *ticket);
/* As settle, for an allocation below HL_BLOCK of which the driver backs whole blocks by address: the first one in a block
 * is charged with all of it, the last one gives it back. */
enum { HL_BLOCK = 2 << 20 };
int32_t hl_ledger_settle_small(struct hl_ticket *ticket, uint64_t pointer, uint64_t context, uint64_t bytes);
/* Bytes that small allocations of a context could have without another block, if they are in one piece. */
uint64_t hl_ledger_room(uint64_t context);
/* As settle, without an entry: these bytes are used until they are given back by hl_ledger_give. */
int32_t hl_ledger_keep(struct hl_ticket *ticket, uint64_t bytes);
void hl_ledger_give(int device, uint64_t bytes, int kind);
void hl_ledger_book(int device, uint64_t bytes, int kind); /* what was taken without asking, over the limit or not */
/* An allocation that nothing is booked for, so that its free is known: `owner` instead of a context, `count` as wanted
 * (entry.count; not 0). 0 or -ENOMEM. */
int hl_ledger_note(uint64_t pointer, uint64_t owner, int device, int kind, uint32_t count);
int hl_ledger_find(uint64_t pointer, struct hl_entry *out);   /* 1 found (exact base pointer) */
int hl_ledger_detach(uint64_t pointer, struct hl_entry *out); /* 1 detached, 0 unknown pointer */
void hl_ledger_credit(const struct hl_entry *entry);
void hl_ledger_reattach(const struct hl_entry *entry);
/* References to one entry (entry.count). share: one more; 0 unknown. unshare: one less, before the driver's call: 0 unknown,
 * 1 others are left, 2 it was the last and *out is the entry, detached: credit it, or take it all back (share_again). */
int hl_ledger_share(uint64_t pointer);
int hl_ledger_unshare(uint64_t pointer, struct hl_entry *out);
void hl_ledger_share_again(uint64_t pointer, int unshared, const struct hl_entry *entry);
/* One entry that grows and shrinks. extend: as keep, the bytes then are the entry's, which is made if need be. */
int32_t hl_ledger_extend(struct hl_ticket *ticket, uint64_t pointer, uint64_t context, uint64_t bytes);
void hl_ledger_shrink(uint64_t pointer, uint64_t bytes);
/* As extend, for what was taken without asking, over the limit or not. */
void hl_ledger_grow(uint64_t pointer, uint64_t context, int device, int kind, uint64_t bytes);
/* Releases every entry of a context that the driver freed implicitly. Returns bytes released. */
uint64_t hl_ledger_release_context(uint64_t context);
/* Which row of the books a device has. Numbers are a process's own: two that see different devices give one number to both,
 * so a row belongs to a UUID as soon as a process has seen it. `limit` and `cores` are what this process was told of the
 * device, by_uuid: in its UUID's name, so that it applies whatever the row said before. 0 or -errno (-ENOSPC: all rows are
 * other devices'). In a region of layout hami-1.2 rows are numbers. */
struct hl_ledger_claim {
    const uint8_t *uuid; /* 16 bytes */
    uint64_t limit, cores;
    int by_uuid;
};
int hl_ledger_claim(int device, const struct hl_ledger_claim *claim);
/* The row of a UUID, -1 none: for a process that has claimed nothing, a device number like any other. */
int hl_ledger_row(const uint8_t uuid[16]);
int hl_ledger_is_taken(int row);      /* it is some device's */
uint64_t hl_ledger_used(int device);  /* container, pending included */
uint64_t hl_ledger_limit(int device); /* 0 = none */
uint64_t hl_ledger_live(void);        /* live entries of this process */
/* What this process has booked on a device, and how much of it is of one kind. 0: there are no books, or a charge is under
 * way. */
int hl_ledger_mine(int device, int kind, uint64_t *held, uint64_t *of_kind);
/* Flags of this process's slot (HL_SLOT_*). Async-signal-safe; kept for the slot that is taken later, too. */
void hl_ledger_status(uint32_t set, uint32_t clear);
/* What this process's slot says of its PID outside, and of who said so (HL_TIER_*). */
void hl_ledger_identity(uint32_t host_pid, uint32_t tier);
void *hl_ledger_policy_words(int device, size_t *bytes);

/* What the processes of a container share about time. The policy gets a private copy of its words and its answer counts
 * only if nobody else's was committed meanwhile: racing threads and processes are never granted the same tokens twice. */
struct hl_region_device;
struct hl_region_header;
struct hl_region_slot;
struct hl_share {
    uint64_t words[64], version;
};
enum { HL_SHARE_IN_FLIGHT = 7, HL_SHARE_OWN = 16 };            /* words from here on are the policy's own */
struct hl_region_slot *hl_ledger_slot(void);                   /* this process's; NULL without books */
struct hl_region_device *hl_ledger_device(int device);         /* NULL without books */
const struct hl_region_header *hl_ledger_header(void);         /* NULL without books */
int hl_share_read(int device, struct hl_share *share);         /* 0 or -errno; words 1 and 2 are the reader's */
int hl_share_commit(int device, const struct hl_share *share); /* 1 done, 0 overtaken, or -errno */
void hl_share_in_flight(int device, int64_t ns);               /* so much more is in flight here */
void hl_share_bury(void);                                      /* looks for the dead: what they had in flight goes */
int hl_share_lock(void);                                       /* the region's lock, for a few stores: 0 or -errno */
void hl_share_unlock(void);
/* A monitor outside, in a region of layout hami-1.2. Elsewhere: there is none, launches may go, nothing is written. */
int hl_ledger_has_monitor(void);
int hl_ledger_may_launch(void);   /* 0: it holds launches back for now */
int hl_ledger_switched_off(void); /* it says that nothing is to be paced */
/* The container's processes, and what each holds on a device (none: -1). How many, or -1 without books. */
struct hl_ledger_process {
    uint32_t pid, host_pid; /* in its own PID namespace; in the outermost one, 0 unknown */
    uint64_t pid_namespace, held;
};
int hl_ledger_processes(int device, struct hl_ledger_process *out, int room);
uint64_t hl_pid_namespace(void); /* of this process; 0 unknown */
void hl_ledger_sampled(int device, uint32_t host_pid, const uint64_t *bytes, const uint64_t *percent);
/* Clean end (atexit): gives the slot back if it holds nothing. Bytes still held stay booked until the kernel says that
 * the process is gone, because the driver holds them as long. */
void hl_ledger_close(void);
void hl_ledger_fork_prepare(void);
void hl_ledger_fork_parent(void);
void hl_ledger_fork_child(void);

/* For tools (lab.region). Buries the dead of a region file that this process need not use: how many slots, or -errno with
 * one line in why (bytes of room). From another PID namespace than a robust region's own only once nobody is present. */
int hl_region_reap(const char *path, char *why, size_t room);
#endif
