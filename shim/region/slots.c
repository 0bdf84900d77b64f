/* Slots: how a process enters and leaves a region, and how the dead are found and buried.
 *
 * Invariants: a process is present exactly while its presence byte is locked (region.h); a slot is LIVE only while its
 * owner is present or has died; a slot is zeroed once, under the region lock, by whoever finds it LIVE and its byte
 * unlocked. PIDs in a slot are for people: no decision looks at them, so reuse and colliding namespaces do not matter. */
#define _GNU_SOURCE
#include "region.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int is_live(const struct hl_region *region, unsigned index) {
    return __atomic_load_n(&region->slot[index].state, __ATOMIC_ACQUIRE) == HL_SLOT_LIVE;
}

static unsigned slot_bound(const struct hl_region *region) {
    unsigned high = __atomic_load_n(&region->header->slot_high, __ATOMIC_ACQUIRE);
    return high < HL_REGION_SLOTS ? high : HL_REGION_SLOTS;
}

static uint64_t held(const struct hl_region *region, unsigned index, int device) {
    return __atomic_load_n(&region->slot[index].device[device].held, __ATOMIC_RELAXED);
}

/* Cannot tell = alive: bytes are never given away on a doubt. */
static int is_dead(struct hl_region *region, unsigned index) {
    int locked = 1;
    if (region->fd < 0) return 0;
    if (hl_region_file_lock(region, F_OFD_GETLK, F_WRLCK, HL_PRESENCE_BYTE + (off_t)index, 1, &locked)) return 0;
    return !locked;
}

int hl_region_nobody_present(struct hl_region *region) {
    int locked = 1;
    if (region->fd < 0) return 0;
    if (hl_region_file_lock(region, F_OFD_GETLK, F_WRLCK, HL_PRESENCE_BYTE, HL_REGION_SLOTS, &locked)) return 0;
    return !locked;
}

void hl_region_recompute(struct hl_region *region) {
    unsigned bound = slot_bound(region);
    for (int d = 0; d < HL_REGION_DEVICES; d++) {
        uint64_t sum = 0;
        for (unsigned i = 0; i < bound; i++)
            if (is_live(region, i)) sum += held(region, i, d);
        __atomic_store_n(&region->device[d].used, sum, __ATOMIC_RELEASE);
    }
    __atomic_add_fetch(&region->header->repairs, 1, __ATOMIC_RELEASE);
}

/* Everything but the generation, which outlives the owner. */
static void clear(struct hl_region_slot *slot) {
    memset((char *)slot + offsetof(struct hl_region_slot, pid), 0, sizeof *slot - offsetof(struct hl_region_slot, pid));
    slot->flags = 0;
}

static void bury(struct hl_region *region, unsigned index) {
    for (int d = 0; d < HL_REGION_DEVICES; d++) {
        uint64_t bytes = held(region, index, d);
        if (bytes) __atomic_sub_fetch(&region->device[d].used, bytes, __ATOMIC_RELEASE);
    }
    __atomic_add_fetch(&region->header->repairs, 1, __ATOMIC_RELEASE);
    HL_REGION_POINT(region, MID_REPAIR);
    /* Killed from here on, the next one finds lock_holder set and sums up the slots that are still LIVE. */
    for (int d = 0; d < HL_REGION_DEVICES; d++)
        __atomic_store_n(&region->slot[index].device[d].held, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&region->slot[index].state, HL_SLOT_FREE, __ATOMIC_RELEASE);
}

/* Whoever died inside the lock may have left a total above the sum of its parts, whether or not its slot still holds
 * anything. Taking the lock sets that right. */
static int died_inside(struct hl_region *region, int self) {
    uint32_t holder = __atomic_load_n(&region->header->lock_holder, __ATOMIC_ACQUIRE);
    if (!holder || (int64_t)holder == self + 1) return 0;
    return holder > HL_REGION_SLOTS || is_dead(region, holder - 1);
}

int hl_region_sweep(struct hl_region *region, int self, int device) {
    int buried = 0, locked = 0;
    if (died_inside(region, self) && !hl_region_lock(region, self)) hl_region_unlock(region);
    unsigned bound = slot_bound(region);
    for (unsigned i = 0; i < bound; i++) {
        if ((int)i == self || !is_live(region, i) || (device >= 0 && !held(region, i, device)) || !is_dead(region, i))
            continue;
        if (!locked) {
            if (hl_region_lock(region, self)) return buried;
            locked = 1;
            if (!is_live(region, i) || !is_dead(region, i)) continue; /* buried, or taken by another, in between */
        }
        bury(region, i);
        buried++;
    }
    if (locked) hl_region_unlock(region);
    return buried;
}

int hl_region_bury_all(struct hl_region *region) {
    int buried = 0;
    for (unsigned i = 0; i < slot_bound(region); i++)
        if (is_live(region, i)) {
            bury(region, i);
            buried++;
        }
    hl_region_recompute(region);
    __atomic_store_n(&region->header->lock_holder, 0, __ATOMIC_RELEASE);
    return buried;
}

/* Locks the presence byte of some slot nobody lives in; its index or -errno. Region lock held. */
static int become_present(struct hl_region *region) {
    if (region->fd < 0) return is_live(region, 0) ? -ENOSPC : 0;
    int fd = hl_region_describe(region), problem = -ENOSPC;
    if (fd < 0) return fd;
    for (unsigned i = 0; i < HL_REGION_SLOTS; i++) {
        if (is_live(region, i)) continue;
        struct flock lock = {
            .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = HL_PRESENCE_BYTE + (off_t)i, .l_len = 1};
        if (fcntl(fd, F_OFD_SETLK, &lock)) {
            if (errno == EAGAIN || errno == EACCES) continue; /* given back, its memory not yet gone */
            problem = -errno;
            break;
        }
        void *at = mmap(NULL, 1, PROT_NONE, MAP_SHARED, fd, 0);
        if (at == MAP_FAILED || madvise(at, 1, MADV_DONTFORK)) {
            problem = -errno;
            if (at != MAP_FAILED) munmap(at, 1);
            break;
        }
        region->presence = at;
        problem = (int)i;
        break;
    }
    close(fd);
    return problem;
}

static uint64_t own_start_time(void) {
    char text[1024];
    int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    if (length <= 0) return 0;
    text[length] = 0;
    const char *at = strrchr(text, ')'); /* the name may hold anything, blanks and brackets too */
    for (int field = 2; at && field < 22; field++) {
        at = strchr(at, ' ');
        if (at) at++;
    }
    return at ? strtoull(at, NULL, 10) : 0;
}

static void own_name(char comm[16]) {
    int fd = open("/proc/self/comm", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    ssize_t length = read(fd, comm, 15);
    close(fd);
    if (length > 0 && comm[length - 1] == '\n') comm[length - 1] = 0;
}

int hl_region_enter(struct hl_region *region) {
    hl_region_sweep(region, HL_NO_SLOT, -1);
    struct hl_region_slot identity = {
        .pid = (uint32_t)getpid(), .start_time = own_start_time(), .pid_namespace = hl_pid_namespace()};
    own_name(identity.comm);
    int problem = hl_region_lock(region, HL_NO_SLOT);
    if (problem) return problem;
    int index = become_present(region);
    if (index >= 0) {
        struct hl_region_slot *slot = &region->slot[index];
        uint64_t generation = region->header->generation + 1;
        region->header->generation = generation;
        clear(slot);
        slot->generation = generation;
        __atomic_store_n(&slot->sequence, 1, __ATOMIC_RELEASE);
        slot->pid = identity.pid;
        slot->start_time = identity.start_time;
        slot->pid_namespace = identity.pid_namespace;
        memcpy(slot->comm, identity.comm, sizeof slot->comm);
        __atomic_store_n(&slot->sequence, 2, __ATOMIC_RELEASE);
        if ((unsigned)index >= region->header->slot_high)
            __atomic_store_n(&region->header->slot_high, (uint32_t)index + 1, __ATOMIC_RELEASE);
        __atomic_store_n(&slot->state, HL_SLOT_LIVE, __ATOMIC_RELEASE);
        HL_REGION_POINT(region, PUBLISHED);
    }
    hl_region_unlock(region);
    return index;
}

int hl_region_leave(struct hl_region *region, int index) {
    if (hl_region_lock(region, index)) return 0;
    struct hl_region_slot *slot = &region->slot[index];
    uint64_t bytes = 0;
    for (int d = 0; d < HL_REGION_DEVICES; d++) bytes |= slot->device[d].held;
    if (!bytes) __atomic_store_n(&slot->state, HL_SLOT_FREE, __ATOMIC_RELEASE);
    hl_region_unlock(region);
    if (bytes) return 0;
    if (region->presence) munmap(region->presence, 1);
    region->presence = NULL;
    return 1;
}
