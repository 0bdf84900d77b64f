/* The ledger of this process (see ledger.h): charges and uncharges booked in its slot of the region.
 *
 * Invariants:
 *   - Slots are the truth, device.used is a cache of their sum (region.h).
 *   - A charge is committed under the region lock only if no more is in use than the policy saw when it admitted it, so
 *     the limit is not exceeded for a moment; else the policy is asked again. Whoever has to ask again was overtaken by a
 *     commit, so somebody always gets on.
 *   - Before a refusal is given the dead are buried; if any were (by us or, since the policy's snapshot, by another), the
 *     policy is asked again.
 *   - No lock is held across a verdict.
 *   - A fork child owns nothing of its parent: entries, tickets and slot carry an epoch, and what is of another epoch is
 *     dropped. A page that forks find zeroed (MADV_WIPEONFORK) shows a child even when no fork handler ran. */
#define _GNU_SOURCE
#include "ledger.h"

#include "entries.h"
#include "hami.h"
#include "history.h"
#include "hl_layout_history.h"
#include "points.h"
#include "region.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

enum { INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, OPERATING_SYSTEM = 304 }; /* CUresult */

static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER; /* open, attach, close and fork */
static struct hl_region region;
static struct hl_hami hami; /* map: the books are kept in a file of that layout, and `region` is private memory */
static int opened;          /* release/acquire: region and config are set */
static int attached;        /* release/acquire: slot and generation are set */
static int slot;
static uint64_t generation;
static uint64_t epoch = 1;            /* of this process; children count on */
static volatile uint32_t *owner_page; /* 1 in the process that opened, 0 in every copy of its memory */
static int prepared;                  /* hl_ledger_fork_prepare ran: the child may free what it inherited */
static uint32_t status_flags;         /* what the slot shall show */
static char why_line[HL_WHY_BYTES];
static int32_t (*verdict)(int, uint64_t, int, uint64_t, uint64_t, uint64_t);
static void (*log_line)(const char *);
static enum hl_memory_mode mode;

static void say(const char *line) {
    if (log_line) log_line(line);
}

static int rows[HL_REGION_DEVICES]; /* the row of a device, plus 1 (hl_ledger_claim); 0: that of its own number */

static int row(int device) { return rows[device] ? rows[device] - 1 : device; }
static struct hl_region_slot_device *own(int device) { return &region.slot[slot].device[row(device)]; }
static struct hl_region_device *shared(int device) { return &region.device[row(device)]; }
static uint64_t load(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
static void add(uint64_t *word, uint64_t bytes) { __atomic_fetch_add(word, bytes, __ATOMIC_RELAXED); }
static void subtract(uint64_t *word, uint64_t bytes) { __atomic_fetch_sub(word, bytes, __ATOMIC_RELAXED); }

/* Words that only the holder of the region lock writes: plain arithmetic, stores that readers see whole. */
static void set(uint64_t *word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }

/* Taken under the lock, so that the times of LEDGER records stand in the order of the changes. 0 without a history. */
static uint64_t now_if_told(void) { return hl_history_on() ? hl_now_ns() : 0; }

static void event(uint8_t what, int device, int kind, int32_t result, uint64_t a, uint64_t b, uint64_t c,
                  uint64_t when) {
    if (!hl_history_on()) return;
    struct hl_event record = {.event = what,
                              .source = HL_SOURCE_SHIM,
                              .device = (uint8_t)device,
                              .name = 0xFFFF,
                              .step = 0xFFFF,
                              .result = result,
                              .extra = (uint32_t)kind,
                              .a = a,
                              .b = b,
                              .c = c,
                              .time_ns = when};
    hl_history_add(&record);
}

static void phase(uint64_t which) { event(HL_EVENT_PHASE, 0xFF, 0, 0, which, 0, 0, 0); }

/* ---- opening, entering, leaving ---- */

/* `opening` held; the gate too where the lock is robust. */
static int attach(void) {
    int index = hl_region_enter(&region);
    if (index < 0) return index;
    slot = index;
    generation = region.slot[index].generation;
    int problem = hami.map ? hl_hami_register(&hami) : 0;
    if (problem) return problem;
    __atomic_store_n(&attached, 1, __ATOMIC_RELEASE);
    hl_ledger_status(0, 0); /* a handler that ran before could not reach the slot */
    return 0;
}

static int own_page(void) {
    if (!owner_page) {
        void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (page == MAP_FAILED) return -errno;
        if (madvise(page, 4096, MADV_WIPEONFORK))
            say("no MADV_WIPEONFORK: a child made by a bare clone is not told from its parent");
        owner_page = page;
    }
    *owner_page = 1;
    return 0;
}

/* A limit that does not apply is said once: the region keeps the one that its living processes know. */
static void compare_limits(const struct hl_ledger_config *config) {
    char line[256];
    for (int device = 0; device < HL_REGION_DEVICES; device++) {
        uint64_t asked = config->limit[device], kept = load(&region.device[device].limit);
        if (!asked || asked == kept) continue;
        snprintf(line, sizeof line,
                 "device %d: the region's limit of %llu bytes applies, not this process's %llu: others live in it",
                 device, (unsigned long long)kept, (unsigned long long)asked);
        say(line);
    }
}

static int open_locked(const struct hl_ledger_config *config) {
    struct hl_region_new fresh = {
        .create = 1, .robust = config->robust, .limit = config->limit, .sm_limit = config->sm_limit};
    verdict = config->verdict;
    log_line = config->log;
    mode = config->mode;
    int is_hami = config->layout == HL_LAYOUT_HAMI;
    int problem = 0;
    if (is_hami) {
        mode = HL_MODE_DOUBLE_CHECK;
        problem = hl_hami_open(&hami, config->path, config->limit, config->sm_limit, why_line, sizeof why_line);
        fresh = (struct hl_region_new){
            .create = 1, .limit = hami.map ? hami.map->limit : NULL, .sm_limit = config->sm_limit};
    }
    if (!problem) problem = hl_region_open(&region, is_hami ? NULL : config->path, &fresh, why_line);
    if (problem) return problem;
    if (!is_hami) compare_limits(config);
    if (hl_region_is_remote(&region)) {
        char line[1200];
        snprintf(line, sizeof line,
                 "%s lies on a network file system, whose locks may be granted late when their owner dies; give a path "
                 "on a local one",
                 config->path);
        say(line);
    }
    phase(HL_PHASE_REGION_ACQUIRED);
    HL_POINT(GATE);
    problem = own_page();
    if (region.header->lock_kind == HL_LOCK_FILE)
        hl_region_gate_open(&region); /* the gate is the lock that entering takes */
    if (!problem) problem = attach();
    if (problem == -ENOSPC)
        snprintf(why_line, sizeof why_line,
                 "%s: all %d slots of the region are taken by living processes; "
                 "let some end or give another path",
                 config->path ? config->path : "private region", HL_REGION_SLOTS);
    else if (problem)
        snprintf(why_line, sizeof why_line, "%s: no slot of the region can be taken: %s",
                 config->path ? config->path : "private region", strerror(-problem));
    if (problem) hl_region_unmap(&region);
    else hl_region_gate_open(&region);
    return problem;
}

int hl_ledger_open(const struct hl_ledger_config *config, const char **why) {
    int saved = errno, problem = 0;
    pthread_mutex_lock(&opening);
    if (!opened) {
        hl_points_read();
        phase(HL_PHASE_REGION_ENTER);
        problem = open_locked(config);
        if (!problem) __atomic_store_n(&opened, 1, __ATOMIC_RELEASE);
        phase(HL_PHASE_REGION_RELEASED);
    }
    if (why) *why = problem ? why_line : "";
    pthread_mutex_unlock(&opening);
    errno = saved;
    return problem;
}

int hl_ledger_is_open(void) { return __atomic_load_n(&opened, __ATOMIC_ACQUIRE); }

/* A child found out by the wiped page, or the first use after a fork or a close. */
static int attach_slowly(void) {
    int saved = errno, problem = 0;
    if (!*owner_page) hl_ledger_fork_child();
    pthread_mutex_lock(&opening);
    if (!attached) {
        int robust = region.header->lock_kind == HL_LOCK_ROBUST;
        problem = robust ? hl_region_gate_close(&region) : 0;
        if (!problem && robust && region.header->pid_namespace != hl_pid_namespace()) problem = -EXDEV;
        if (!problem) problem = attach();
        if (robust) hl_region_gate_open(&region);
        if (problem) {
            char line[256];
            snprintf(line, sizeof line, "no slot of the region can be taken: %s%s", strerror(-problem),
                     problem == -ENOSPC ? " (all are taken by living processes)" : "");
            say(line);
        }
    }
    pthread_mutex_unlock(&opening);
    errno = saved;
    return problem;
}

static int ready(void) {
    if (__builtin_expect(__atomic_load_n(&attached, __ATOMIC_ACQUIRE) && *owner_page, 1)) return 1;
    return hl_ledger_is_open() && !attach_slowly();
}

/* The table of entries is this process's, slot or no slot. */
static int has_entries(void) {
    if (!hl_ledger_is_open()) return 0;
    if (!*owner_page) hl_ledger_fork_child();
    return 1;
}

/* ready() first: it is what finds out about a fork and counts the epoch on. */
static int is_mine(uint64_t token) { return token && ready() && token == epoch; }

/* 0, or the slot was given back (hl_ledger_close) since ready() looked: -EAGAIN; or the lock failed. */
static int lock_own(void) {
    int problem = hl_region_lock(&region, slot);
    if (problem) {
        say("the region cannot be locked any more: its descriptor was closed and the file is out of reach");
        return problem;
    }
    const struct hl_region_slot *mine = &region.slot[slot];
    if (__builtin_expect(mine->generation == generation && mine->state == HL_SLOT_LIVE, 1)) return 0;
    hl_region_unlock(&region);
    return -EAGAIN;
}

void hl_ledger_close(void) {
    int saved = errno;
    pthread_mutex_lock(&opening);
    if (opened && attached && *owner_page) {
        HL_POINT(EXIT);
        /* c = 1: the books of this process are closed; no bytes go, they stay until its death */
        event(HL_EVENT_LEDGER, 0, 0, 0, 0, hl_ledger_used(0), 1, 0);
        __atomic_store_n(&attached, 0, __ATOMIC_RELEASE);
        if (hami.map) hl_hami_leave(&hami);
        if (!hl_region_leave(&region, slot)) __atomic_store_n(&attached, 1, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&opening);
    errno = saved;
}

void hl_ledger_status(uint32_t set_bits, uint32_t clear) {
    __atomic_fetch_and(&status_flags, ~clear, __ATOMIC_SEQ_CST);
    __atomic_fetch_or(&status_flags, set_bits, __ATOMIC_SEQ_CST);
    if (!__atomic_load_n(&attached, __ATOMIC_ACQUIRE) || !owner_page || !*owner_page) return;
    if (hami.map) hl_hami_status(&hami, (status_flags & HL_SLOT_SUSPENDED) != 0);
    __atomic_store_n(&region.slot[slot].flags, __atomic_load_n(&status_flags, __ATOMIC_SEQ_CST), __ATOMIC_SEQ_CST);
}

void hl_ledger_identity(uint32_t host_pid, uint32_t tier) {
    pthread_mutex_lock(&opening);
    if (opened && attached && *owner_page) {
        __atomic_store_n(&region.slot[slot].identity_tier, tier, __ATOMIC_RELAXED);
        __atomic_store_n(&region.slot[slot].host_pid, host_pid, __ATOMIC_RELEASE);
        if (hami.map && hami.mine) __atomic_store_n(&hami.mine->host_pid, (int32_t)host_pid, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&opening);
}

/* ---- charging ---- */

enum booking { BOOK_NOTHING, BOOK_PENDING, BOOK_USED };

/* Region lock held; `used` is what the container uses. held before used: see region.h. */
static uint64_t book(int device, uint64_t bytes, int kind, enum booking how, uint64_t used) {
    struct hl_region_slot_device *mine = own(device);
    struct hl_region_device *all = shared(device);
    add(how == BOOK_PENDING ? &mine->pending : &mine->used[kind], bytes);
    uint64_t held = mine->held + bytes;
    set(&mine->held, held);
    HL_POINT(MID_WRITE);
    set(&all->used, used + bytes);
    if (held > mine->peak) set(&mine->peak, held);
    if (used + bytes > all->peak) set(&all->peak, used + bytes);
    HL_POINT(PUBLISHED);
    return used + bytes;
}

static int32_t judge(int device, uint64_t bytes, int kind, uint64_t used, uint64_t limit, uint64_t mine) {
    if (used + bytes < used) return OUT_OF_MEMORY; /* beyond 64 bits: no policy needs to cope with it */
    if (verdict) return verdict(device, bytes, kind, used, limit, used > mine ? used - mine : 0);
    return limit && used + bytes > limit ? OUT_OF_MEMORY : 0;
}

/* Asks the policy and books what it admits, or refuses. `before`: what was in use when it was admitted. */
/* HAMi's admission: look, and look once more after clearing slots of the dead without the lock; what is booked is added
 * whatever others did meanwhile. */
static int32_t decide_hami(int device, uint64_t bytes, int kind, enum booking how, uint64_t *before) {
    if (!ready()) return OPERATING_SYSTEM;
    for (int again = 0;; again = 1) {
        uint64_t used = hl_hami_used(&hami, device), limit = load(&hami.map->limit[device]);
        int32_t refused = judge(device, bytes, kind, used, limit, hl_hami_mine(&hami, device));
        if (refused && !again && hl_hami_clear(&hami, 1)) continue;
        event(HL_EVENT_VERDICT, device, kind, refused, bytes, used, limit, 0);
        *before = used;
        if (refused || how == BOOK_NOTHING) return refused;
        hl_hami_add(&hami, device, bytes, kind);
        event(HL_EVENT_LEDGER, device, kind, 0, bytes, used + bytes, 0, 0);
        return 0;
    }
}

static int32_t decide(int device, uint64_t bytes, int kind, enum booking how, uint64_t *before) {
    const struct hl_region_device *all = shared(device);
    if (hami.map) return decide_hami(device, bytes, kind, how, before);
    for (;;) {
        if (!ready()) return OPERATING_SYSTEM;
        uint64_t repairs = load(&region.header->repairs), used = load(&all->used), limit = load(&all->limit);
        int32_t refused = judge(device, bytes, kind, used, limit, load(&own(device)->held));
        if (refused) {
            int saved = errno, buried = hl_region_sweep(&region, slot, device);
            errno = saved;
            if (buried || load(&region.header->repairs) != repairs) continue;
            add(&shared(device)->refused, 1);
            event(HL_EVENT_VERDICT, device, kind, refused, bytes, used, limit, 0);
            *before = used;
            return refused;
        }
        if (how != BOOK_NOTHING) {
            int problem = lock_own();
            if (problem == -EAGAIN) continue;
            if (problem) return OPERATING_SYSTEM;
            uint64_t now = load(&all->used);
            int holds = now <= used;
            uint64_t after = holds ? book(device, bytes, kind, how, now) : 0, when = now_if_told();
            hl_region_unlock(&region);
            if (!holds) continue;
            event(HL_EVENT_VERDICT, device, kind, 0, bytes, now, limit, when);
            event(HL_EVENT_LEDGER, device, kind, 0, bytes, after, 0, when);
            *before = now;
        } else {
            event(HL_EVENT_VERDICT, device, kind, 0, bytes, used, limit, 0);
            *before = used;
        }
        return 0;
    }
}

/* Takes bytes off the slot and the total. A dead lock leaves them booked until this process ends. */
static void give_back(int device, uint64_t bytes, int kind, enum booking from) {
    if (hami.map && bytes) {
        hl_hami_add(&hami, device, 0 - bytes, kind);
        event(HL_EVENT_LEDGER, device, kind, 0, 0 - bytes, hl_hami_used(&hami, device), 0, 0);
        return;
    }
    if (!bytes || lock_own()) return;
    struct hl_region_slot_device *mine = own(device);
    subtract(from == BOOK_PENDING ? &mine->pending : &mine->used[kind], bytes);
    set(&mine->held, mine->held - bytes);
    uint64_t after = shared(device)->used - bytes;
    set(&shared(device)->used, after);
    uint64_t when = now_if_told();
    hl_region_unlock(&region);
    event(HL_EVENT_LEDGER, device, kind, 0, 0 - bytes, after, 0, when);
}

static int32_t valid(int device, int kind) {
    if (device < 0 || device >= HL_REGION_DEVICES) return INVALID_DEVICE;
    return kind < 0 || kind >= HL_REGION_KINDS ? INVALID_VALUE : 0;
}

int32_t hl_ledger_reserve(int device, uint64_t bytes, int kind, struct hl_ticket *ticket) {
    *ticket = (struct hl_ticket){.device = device, .kind = kind, .bytes = bytes};
    int32_t problem = valid(device, kind);
    if (!problem)
        problem = decide(device, bytes, kind, mode == HL_MODE_RESERVE ? BOOK_PENDING : BOOK_NOTHING, &ticket->before);
    if (!problem) ticket->token = epoch;
    HL_POINT(ADMITTED);
    return problem;
}

void hl_ledger_cancel(struct hl_ticket *ticket) {
    if (!is_mine(ticket->token)) return;
    ticket->token = 0;
    if (mode == HL_MODE_RESERVE) give_back(ticket->device, ticket->bytes, ticket->kind, BOOK_PENDING);
}

int hl_ledger_ticket(int device, int kind, struct hl_ticket *ticket) {
    *ticket = (struct hl_ticket){.device = device, .kind = kind};
    if (valid(device, kind) || !ready()) return 0;
    ticket->token = epoch;
    return 1;
}

/* An entry that goes: its own bytes, or its part of a block that may be empty now. */
static void drop(const struct hl_entry *entry) {
    struct hl_entry block;
    if (!entry->size) give_back(entry->device, entry->bytes, entry->kind, BOOK_USED);
    else if (hl_entries_leave(entry, &block)) give_back(block.device, block.bytes, block.kind, BOOK_USED);
}

/* The driver gives an address out again only after it took it back: an entry still there was freed past us. */
static int32_t enter_entry(const struct hl_entry *entry) {
    struct hl_entry old;
    int replaced = hl_entries_insert(entry, &old);
    if (replaced > 0) drop(&old);
    return replaced < 0 ? OUT_OF_MEMORY : 0;
}

int32_t hl_ledger_keep(struct hl_ticket *ticket, uint64_t bytes) {
    HL_POINT(CALLED);
    if (!is_mine(ticket->token)) return 0; /* begun by a parent: its bytes are not ours */
    int device = ticket->device, kind = ticket->kind;
    uint64_t before;
    if (mode == HL_MODE_DOUBLE_CHECK) {
        ticket->token = 0;
        int32_t refused = bytes ? decide(device, bytes, kind, BOOK_USED, &before) : 0;
        if (refused) add(&shared(device)->rollbacks, 1);
        return refused;
    }
    if (bytes > ticket->bytes) {
        int32_t refused = decide(device, bytes - ticket->bytes, kind, BOOK_PENDING, &before);
        if (refused) {
            hl_ledger_cancel(ticket);
            return refused;
        }
    } else {
        give_back(device, ticket->bytes - bytes, kind, BOOK_PENDING);
    }
    ticket->token = 0;
    if (!bytes) return 0;
    add(&own(device)->used[kind], bytes); /* the sum, held, stays: no lock */
    subtract(&own(device)->pending, bytes);
    return 0;
}

int32_t hl_ledger_settle(struct hl_ticket *ticket, uint64_t pointer, uint64_t context, uint64_t bytes) {
    uint64_t token = ticket->token;
    int32_t refused = hl_ledger_keep(ticket, bytes);
    if (refused || !is_mine(token)) return refused;
    struct hl_entry entry = {.pointer = pointer,
                             .bytes = bytes,
                             .context = context,
                             .device = ticket->device,
                             .kind = ticket->kind,
                             .token = token};
    int32_t problem = enter_entry(&entry);
    if (problem) give_back(entry.device, bytes, entry.kind, BOOK_USED);
    return problem;
}

int32_t hl_ledger_settle_small(struct hl_ticket *ticket, uint64_t pointer, uint64_t context, uint64_t bytes) {
    uint64_t token = ticket->token;
    if (pointer % HL_BLOCK + bytes > HL_BLOCK) return hl_ledger_settle(ticket, pointer, context, bytes);
    struct hl_entry old = {0}, entry = {.pointer = pointer,
                                        .context = context,
                                        .device = ticket->device,
                                        .kind = ticket->kind,
                                        .size = (uint32_t)bytes,
                                        .token = token};
    int entered = is_mine(token) ? hl_entries_join(&entry, &old) : 1;
    if (entered) {
        hl_ledger_keep(ticket, 0);
    } else {
        struct hl_entry block = {.pointer = hl_entries_block(pointer),
                                 .bytes = HL_BLOCK,
                                 .context = context,
                                 .device = entry.device,
                                 .kind = HL_KIND_SYNC,
                                 .token = token};
        ticket->kind = HL_KIND_SYNC;
        int32_t refused = hl_ledger_keep(ticket, HL_BLOCK);
        if (refused) return refused;
        entered = hl_entries_found(&block, &entry, &old);
        if (entered <= 0) give_back(block.device, block.bytes, block.kind, BOOK_USED);
    }
    if (entered < 0) return OUT_OF_MEMORY;
    if (is_mine(token) && old.pointer) drop(&old);
    return 0;
}

uint64_t hl_ledger_room(uint64_t context) { return has_entries() ? hl_entries_room(context) : 0; }

void hl_ledger_give(int device, uint64_t bytes, int kind) {
    if (!valid(device, kind) && ready()) give_back(device, bytes, kind, BOOK_USED);
}

void hl_ledger_book(int device, uint64_t bytes, int kind) {
    if (!bytes || valid(device, kind) || !ready()) return;
    uint64_t after, when = 0;
    if (hami.map) {
        hl_hami_add(&hami, device, bytes, kind);
        after = hl_hami_used(&hami, device);
    } else {
        if (lock_own()) return;
        after = book(device, bytes, kind, BOOK_USED, shared(device)->used);
        when = now_if_told();
        hl_region_unlock(&region);
    }
    event(HL_EVENT_LEDGER, device, kind, 0, bytes, after, 0, when);
}

int hl_ledger_note(uint64_t pointer, uint64_t owner, int device, int kind, uint32_t count) {
    if (!has_entries()) return 0;
    struct hl_entry entry = {
        .pointer = pointer, .context = owner, .device = device, .kind = kind, .count = count, .token = epoch};
    return enter_entry(&entry) ? -ENOMEM : 0;
}

/* ---- uncharging ---- */

int hl_ledger_find(uint64_t pointer, struct hl_entry *out) { return has_entries() && hl_entries_find(pointer, out); }

int hl_ledger_detach(uint64_t pointer, struct hl_entry *out) {
    int known = has_entries() && hl_entries_remove(pointer, out);
    if (known) HL_POINT(DETACHED);
    return known;
}

void hl_ledger_credit(const struct hl_entry *entry) {
    HL_POINT(FREED);
    if (is_mine(entry->token)) drop(entry);
}

void hl_ledger_reattach(const struct hl_entry *entry) {
    if (!is_mine(entry->token)) return;
    if (enter_entry(entry)) drop(entry);
}

int hl_ledger_share(uint64_t pointer) {
    struct hl_entry none;
    return has_entries() && hl_entries_count_on(pointer, 1, &none);
}

int hl_ledger_unshare(uint64_t pointer, struct hl_entry *out) {
    return has_entries() ? hl_entries_count_on(pointer, -1, out) : 0;
}

void hl_ledger_share_again(uint64_t pointer, int unshared, const struct hl_entry *entry) {
    if (unshared == 1) hl_ledger_share(pointer);
    if (unshared != 2) return;
    struct hl_entry back = *entry;
    back.count = 1;
    hl_ledger_reattach(&back);
}

int32_t hl_ledger_extend(struct hl_ticket *ticket, uint64_t pointer, uint64_t context, uint64_t bytes) {
    uint64_t token = ticket->token;
    int32_t refused = hl_ledger_keep(ticket, bytes);
    if (refused || !bytes || !is_mine(token) || hl_entries_resize(pointer, (int64_t)bytes)) return refused;
    struct hl_entry entry = {.pointer = pointer,
                             .bytes = bytes,
                             .context = context,
                             .device = ticket->device,
                             .kind = ticket->kind,
                             .token = token};
    int32_t problem = enter_entry(&entry);
    if (problem) give_back(entry.device, bytes, entry.kind, BOOK_USED);
    return problem;
}

void hl_ledger_grow(uint64_t pointer, uint64_t context, int device, int kind, uint64_t bytes) {
    if (!bytes || valid(device, kind) || !ready()) return;
    hl_ledger_book(device, bytes, kind);
    if (hl_entries_resize(pointer, (int64_t)bytes)) return;
    struct hl_entry entry = {
        .pointer = pointer, .bytes = bytes, .context = context, .device = device, .kind = kind, .token = epoch};
    if (enter_entry(&entry)) give_back(device, bytes, kind, BOOK_USED);
}

void hl_ledger_shrink(uint64_t pointer, uint64_t bytes) {
    struct hl_entry entry;
    if (!bytes || !hl_ledger_find(pointer, &entry) || !is_mine(entry.token)) return;
    if (bytes > entry.bytes) bytes = entry.bytes;
    if (hl_entries_resize(pointer, -(int64_t)bytes)) give_back(entry.device, bytes, entry.kind, BOOK_USED);
}

uint64_t hl_ledger_release_context(uint64_t context) {
    if (!has_entries()) return 0;
    uint64_t sums[HL_ENTRY_DEVICES][HL_ENTRY_KINDS] = {{0}}, total = 0;
    if (!hl_entries_remove_context(context, sums)) return 0;
    for (int d = 0; d < HL_ENTRY_DEVICES; d++)
        for (int k = 0; k < HL_ENTRY_KINDS; k++) {
            give_back(d, sums[d][k], k, BOOK_USED);
            total += sums[d][k];
        }
    return total;
}

/* ---- whose row is whose ---- */

static const uint8_t nobodys[16];

int hl_ledger_row(const uint8_t uuid[16]) {
    if (!hl_ledger_is_open() || hami.map) return -1;
    for (int at = 0; at < HL_REGION_DEVICES; at++)
        if (!memcmp(region.device[at].uuid, uuid, sizeof nobodys)) return at;
    return -1;
}

int hl_ledger_is_taken(int at) {
    return at >= 0 && at < HL_REGION_DEVICES && hl_ledger_is_open() && !hami.map &&
           memcmp(region.device[at].uuid, nobodys, sizeof nobodys);
}

/* The row of this UUID; else its own number's; else a free one. -1: all are other devices'. */
static int find_row(int device, const uint8_t uuid[16]) {
    int known = hl_ledger_row(uuid);
    for (int turn = -1; known < 0 && turn < HL_REGION_DEVICES; turn++)
        if (!hl_ledger_is_taken(turn < 0 ? device : turn)) known = turn < 0 ? device : turn;
    return known;
}

int hl_ledger_claim(int device, const struct hl_ledger_claim *claim) {
    if (valid(device, 0) || !ready()) return -ENOTCONN;
    if (hami.map) {
        if (claim->by_uuid && claim->limit) set(&hami.map->limit[device], claim->limit);
        if (claim->by_uuid && claim->cores) set(&hami.map->sm_limit[device], claim->cores);
        return 0;
    }
    int problem = lock_own();
    if (problem) return problem;
    int at = find_row(device, claim->uuid);
    if (at >= 0) {
        struct hl_region_device *all = &region.device[at];
        /* The first who sees a device says what applies to it; the row's own limit is that of another number. */
        if (memcmp(all->uuid, claim->uuid, sizeof all->uuid) && (at != device || claim->by_uuid)) {
            set(&all->limit, claim->limit);
            set(&all->sm_limit, claim->cores);
        }
        memcpy(all->uuid, claim->uuid, sizeof all->uuid);
        rows[device] = at + 1;
    }
    hl_region_unlock(&region);
    return at < 0 ? -ENOSPC : 0;
}

/* ---- views ---- */

static int in_reach(int device) { return hl_ledger_is_open() && device >= 0 && device < HL_REGION_DEVICES; }

uint64_t hl_ledger_used(int device) {
    if (!in_reach(device)) return 0;
    return hami.map ? hl_hami_used(&hami, device) : load(&shared(device)->used);
}
uint64_t hl_ledger_limit(int device) {
    if (!in_reach(device)) return 0;
    return load(hami.map ? &hami.map->limit[device] : &shared(device)->limit);
}
int hl_ledger_mine(int device, int kind, uint64_t *held, uint64_t *of_kind) {
    if (valid(device, kind) || hami.map || !ready()) return 0;
    const struct hl_region_slot_device *mine = own(device);
    *held = load(&mine->held);
    *of_kind = load(&mine->used[kind]);
    return !load(&mine->pending);
}
uint64_t hl_ledger_live(void) { return has_entries() ? hl_entries_count() : 0; }

void *hl_ledger_policy_words(int device, size_t *bytes) {
    if (!in_reach(device)) return NULL;
    *bytes = sizeof shared(device)->policy;
    return shared(device)->policy;
}

/* ---- time (ledger.h) ---- */

struct hl_region_slot *hl_ledger_slot(void) { return ready() ? &region.slot[slot] : NULL; }

struct hl_region_device *hl_ledger_device(int device) { return in_reach(device) ? shared(device) : NULL; }

const struct hl_region_header *hl_ledger_header(void) { return hl_ledger_is_open() ? region.header : NULL; }

int hl_share_lock(void) { return ready() ? lock_own() : -ENOTCONN; }

void hl_share_unlock(void) { hl_region_unlock(&region); }

/* What the launch path tells the policy, of one moment; how large the device is it adds itself. */
static void facts(const struct hl_region_device *row, uint64_t *words) {
    words[0] = row->sm_limit;
    words[1] = words[2] = 0;
    words[3] = row->sample_flags;
    words[4] = load(&row->measured);
    words[5] = load(&row->charged);
    words[6] = load(&row->returned);
    words[8] = row->sample_sequence;
    words[9] = row->sample_time;
    words[10] = row->sample_own;
    words[11] = row->sample_all;
    words[12] = row->sample_window;
    words[13] = row->neighbours;
    words[14] = row->sample_own_ns;
    words[15] = row->sample_measured;
}

int hl_share_read(int device, struct hl_share *share) {
    int problem = in_reach(device) ? hl_share_lock() : -ENOTCONN;
    if (problem) return problem;
    memcpy(share->words, shared(device)->policy, sizeof share->words);
    facts(shared(device), share->words);
    share->version = shared(device)->policy_version;
    uint64_t in_flight = 0; /* with the slots, so that what a dead process had goes with it */
    for (uint32_t i = 0; i < region.header->slot_high; i++)
        if (region.slot[i].state == HL_SLOT_LIVE) in_flight += load(&region.slot[i].in_flight[row(device)]);
    share->words[HL_SHARE_IN_FLIGHT] = (int64_t)in_flight > 0 ? in_flight : 0;
    hl_region_unlock(&region);
    return 0;
}

int hl_share_commit(int device, const struct hl_share *share) {
    int problem = in_reach(device) ? hl_share_lock() : -ENOTCONN;
    if (problem) return problem;
    struct hl_region_device *all = shared(device);
    int first = all->policy_version == share->version;
    if (first) {
        memcpy(all->policy + HL_SHARE_OWN, share->words + HL_SHARE_OWN,
               sizeof share->words - HL_SHARE_OWN * sizeof share->words[0]);
        set(&all->policy_version, share->version + 1);
    }
    hl_region_unlock(&region);
    return first;
}

void hl_share_in_flight(int device, int64_t ns) { /* its callers hold the pacer's mutex: nobody else writes the word */
    if (!in_reach(device) || !ready()) return;
    uint64_t *word = &region.slot[slot].in_flight[row(device)];
    __atomic_store_n(word, __atomic_load_n(word, __ATOMIC_RELAXED) + (uint64_t)ns, __ATOMIC_RELAXED);
}

void hl_share_bury(void) {
    if (ready()) hl_region_sweep(&region, slot, -1); /* takes the lock itself when there is somebody to bury */
}

/* ---- a monitor outside ---- */

int hl_ledger_has_monitor(void) { return hl_ledger_is_open() && hami.map; }
int hl_ledger_may_launch(void) { return !hl_ledger_has_monitor() || hl_hami_may_launch(&hami); }

int hl_ledger_switched_off(void) { return hl_ledger_has_monitor() && hl_hami_switched_off(&hami); }

int hl_ledger_processes(int device, struct hl_ledger_process *out, int room) {
    if (!hl_ledger_is_open()) return -1;
    if (hl_ledger_has_monitor()) return hl_hami_processes(&hami, device, out, room);
    int found = 0;
    uint32_t high = __atomic_load_n(&region.header->slot_high, __ATOMIC_ACQUIRE);
    for (uint32_t i = 0; i < high && i < HL_REGION_SLOTS && found < room; i++) {
        const struct hl_region_slot *one = &region.slot[i];
        if (__atomic_load_n(&one->state, __ATOMIC_ACQUIRE) != HL_SLOT_LIVE) continue;
        out[found++] = (struct hl_ledger_process){
            .pid = one->pid,
            .host_pid = __atomic_load_n(&one->host_pid, __ATOMIC_RELAXED),
            .pid_namespace = one->pid_namespace,
            .held = device >= 0 && device < HL_REGION_DEVICES ? load(&one->device[row(device)].held) : 0};
    }
    return found;
}

void hl_ledger_sampled(int device, uint32_t host_pid, const uint64_t *bytes, const uint64_t *percent) {
    if (hl_ledger_has_monitor() && device >= 0 && device < HL_HAMI_DEVICES)
        hl_hami_sampled(&hami, device, host_pid, bytes, percent);
}

/* ---- fork ---- */

void hl_ledger_fork_prepare(void) {
    pthread_mutex_lock(&opening);
    hl_entries_fork_prepare();
    prepared = 1;
}

void hl_ledger_fork_parent(void) {
    prepared = 0;
    hl_entries_fork_parent();
    pthread_mutex_unlock(&opening);
}

/* The descriptor goes at once (it shares the gate with the parent); a slot is taken at the next use. */
void hl_ledger_fork_child(void) {
    int saved = errno;
    pthread_mutex_init(&opening, NULL);
    hl_entries_fork_child(prepared);
    prepared = 0;
    attached = 0;
    epoch++;
    if (opened) {
        *owner_page = 1;
        if (region.fd < 0) { /* private memory: this copy starts empty */
            memset(region.slot, 0, HL_REGION_SLOTS * sizeof *region.slot);
            for (int d = 0; d < HL_REGION_DEVICES; d++) region.device[d].used = 0;
            region.header->lock_holder = 0;
        }
        if (hl_region_fork_child(&region)) say("the region is out of reach in this fork child");
    }
    errno = saved;
}

/* ---- for tools ---- */

static int open_for_tool(struct hl_region *other, const char *path, char *why, size_t room) {
    char line[HL_WHY_BYTES];
    struct hl_region_new fresh = {.create = 0};
    int problem = hl_region_open(other, path, &fresh, line);
    if (problem) snprintf(why, room, "%s", line);
    return problem;
}

int hl_region_reap(const char *path, char *why, size_t room) {
    struct hl_region other;
    int problem = open_for_tool(&other, path, why, room);
    if (problem) return problem;
    const struct hl_region_header *header = other.header;
    int buried;
    if (hl_region_nobody_present(&other)) { /* and behind the gate nobody becomes so: no lock is needed */
        buried = hl_region_bury_all(&other);
        hl_region_lock_init(&other); /* a dead owner's mutex may need an owner's namespace to be repaired */
    } else if (header->lock_kind == HL_LOCK_ROBUST && header->pid_namespace != hl_pid_namespace()) {
        buried = -EXDEV;
        snprintf(why, room,
                 "%s: processes of PID namespace %llu still use the region, whose mutex means nothing in %llu; "
                 "reap from inside that container or after its last process ended",
                 path, (unsigned long long)header->pid_namespace, (unsigned long long)hl_pid_namespace());
    } else {
        if (header->lock_kind == HL_LOCK_FILE) hl_region_gate_open(&other);
        buried = hl_region_sweep(&other, HL_NO_SLOT, -1);
        if (!hl_region_lock(&other, HL_NO_SLOT)) hl_region_unlock(&other); /* repairs what a dead holder left */
    }
    hl_region_unmap(&other);
    return buried;
}
