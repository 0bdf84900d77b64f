/* The region lock, in two kinds, and the byte locks under it.
 *
 * HL_LOCK_ROBUST: a robust process-shared mutex in the file. Its owner word is a thread id of one PID namespace, so it is
 * used only where every user lives in the same one; else two owners look alike, and a killed waiter can hand the lock to
 * a third while the first still holds it.
 * HL_LOCK_FILE: an open file description lock on HL_LOCK_BYTE (the kernel releases it at death and knows no ids) plus a
 * mutex among the threads of a process, who share the description.
 * Either way nobody sleeps while holding it, and it is never held across a verdict or a driver call.
 *
 * fcntl is called through syscall(): the libc function is a cancellation point, and a thread cancelled in it would keep
 * the mutex for ever. */
#define _GNU_SOURCE
#include "region.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A host that closes our descriptor releases what it locked; the presence is not among it, and we open another. */
int hl_region_file_lock(struct hl_region *region, int command, int type, off_t start, off_t length, int *held) {
    for (;;) {
        struct flock lock = {.l_type = (short)type, .l_whence = SEEK_SET, .l_start = start, .l_len = length};
        if (!syscall(SYS_fcntl, region->fd, command, &lock)) {
            if (held) *held = lock.l_type != F_UNLCK;
            return 0;
        }
        if (errno == EINTR) continue;
        if (errno != EBADF) return -errno;
        int fd = hl_region_describe(region);
        if (fd < 0) return fd;
        region->fd = fd;
    }
}

int hl_region_gate_close(struct hl_region *region) {
    return region->fd < 0 ? 0 : hl_region_file_lock(region, F_OFD_SETLKW, F_WRLCK, HL_LOCK_BYTE, 1, NULL);
}

void hl_region_gate_open(struct hl_region *region) {
    if (region->fd >= 0) hl_region_file_lock(region, F_OFD_SETLK, F_UNLCK, HL_LOCK_BYTE, 1, NULL);
}

static pthread_mutex_t *robust(struct hl_region *region) { return (pthread_mutex_t *)(void *)region->header->lock; }

int hl_region_lock_init(struct hl_region *region) {
    _Static_assert(sizeof(pthread_mutex_t) <= sizeof region->header->lock, "pthread_mutex_t outgrew its room");
    if (region->header->lock_kind != HL_LOCK_ROBUST) return 0;
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    int problem = pthread_mutex_init(robust(region), &attributes);
    pthread_mutexattr_destroy(&attributes);
    return -problem;
}

int hl_region_lock(struct hl_region *region, int slot) {
    struct hl_region_header *header = region->header;
    int problem;
    HL_REGION_POINT(region, BEFORE_LOCK);
    if (header->lock_kind == HL_LOCK_ROBUST) {
        problem = pthread_mutex_lock(robust(region));
        if (problem == EOWNERDEAD) problem = pthread_mutex_consistent(robust(region));
        if (problem) return -problem;
    } else {
        int saved = errno;
        pthread_mutex_lock(&region->local);
        problem = hl_region_gate_close(region);
        errno = saved;
        if (problem) {
            pthread_mutex_unlock(&region->local);
            return problem;
        }
    }
    HL_REGION_POINT(region, LOCKED);
    uint32_t died = __atomic_exchange_n(&header->lock_holder, (uint32_t)(slot + 1) ? (uint32_t)(slot + 1) : UINT32_MAX,
                                        __ATOMIC_SEQ_CST);
    HL_REGION_POINT(region, OWNED);
    if (died) hl_region_recompute(region);
    return 0;
}

void hl_region_unlock(struct hl_region *region) {
    struct hl_region_header *header = region->header;
    __atomic_store_n(&header->lock_holder, 0, __ATOMIC_RELEASE);
    if (header->lock_kind == HL_LOCK_ROBUST) {
        pthread_mutex_unlock(robust(region));
    } else {
        int saved = errno;
        hl_region_gate_open(region);
        errno = saved;
        pthread_mutex_unlock(&region->local);
    }
}
