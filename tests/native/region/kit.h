/* What the region's native tests share: a check that names its line, children that report, memory that they share. */
#ifndef HOOKLAB_REGION_KIT_H
#define HOOKLAB_REGION_KIT_H
#include "ledger.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition);                              \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)
#define EQUAL(seen, expected)                                                                                          \
    do {                                                                                                               \
        unsigned long long seen_ = (unsigned long long)(seen), expected_ = (unsigned long long)(expected);             \
        if (seen_ != expected_) {                                                                                      \
            fprintf(stderr, "%s:%d: %s is %llu, expected %llu\n", __FILE__, __LINE__, #seen, seen_, expected_);        \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

enum { KIT_SYNC = 1, KIT_MANAGED = 2 };

static inline void *kit_shared(size_t bytes) {
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

static inline void kit_log(const char *line) { fprintf(stderr, "%s\n", line); }

static inline struct hl_ledger_config kit_config(const char *path, int robust, uint64_t limit) {
    struct hl_ledger_config config = {.path = path, .robust = robust, .log = kit_log};
    config.limit[0] = config.limit[1] = limit;
    return config;
}

static inline void kit_open(const struct hl_ledger_config *config) {
    const char *why = "";
    int problem = hl_ledger_open(config, &why);
    if (problem) {
        fprintf(stderr, "open: %d: %s\n", problem, why);
        exit(1);
    }
}

/* Takes bytes at a pointer: what the policy or the books said. */
static inline int32_t kit_take(int device, uint64_t bytes, uint64_t pointer, uint64_t context) {
    struct hl_ticket ticket;
    int32_t refused = hl_ledger_reserve(device, bytes, KIT_SYNC, &ticket);
    return refused ? refused : hl_ledger_settle(&ticket, pointer, context, bytes);
}

static inline int kit_give(uint64_t pointer) {
    struct hl_entry entry;
    if (!hl_ledger_detach(pointer, &entry)) return 0;
    hl_ledger_credit(&entry);
    return 1;
}

static inline int kit_wait(pid_t child) {
    int status;
    while (waitpid(child, &status, 0) < 0) CHECK(errno == EINTR);
    return status;
}

static inline uint64_t kit_random(uint64_t *state) { /* xorshift: the same on every machine */
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Words in shared memory that only grow: kit_reach waits until one is at least value. */
static inline void kit_count(uint32_t *word) {
    __atomic_fetch_add(word, 1, __ATOMIC_RELEASE);
    syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

static inline void kit_reach(uint32_t *word, uint32_t value) {
    for (uint32_t now; (now = __atomic_load_n(word, __ATOMIC_ACQUIRE)) < value;)
        syscall(SYS_futex, word, FUTEX_WAIT, now, NULL, NULL, 0);
}

/* In a new PID namespace the child of the caller is its process 1. 0, or the errno that forbids it. */
static inline int kit_new_pid_namespace(void) {
    if (!unshare(CLONE_NEWPID)) return 0;
    return errno == EPERM && !unshare(CLONE_NEWUSER | CLONE_NEWPID) ? 0 : errno;
}
enum { KIT_FORBIDDEN = 77 }; /* exit status: the machine forbids namespaces */
#endif
