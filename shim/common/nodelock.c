/* See nodelock.h. */
#define _GNU_SOURCE
#include "nodelock.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "hl_layout_node.h"

_Static_assert(HL_ACCOUNT_WAITERS == 0x80000000, "the bit that unlocking looks at");

void hl_node_lock_slow(uint32_t *word, uint32_t me) {
    for (int spin = 0; spin < 200; spin++) {
        uint32_t zero = 0;
        if (__atomic_load_n(word, __ATOMIC_RELAXED) == 0 &&
            __atomic_compare_exchange_n(word, &zero, me, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
            return;
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
    for (;;) {
        uint32_t seen = __atomic_load_n(word, __ATOMIC_RELAXED);
        if (seen == 0) {
            /* Others may sleep still: keep the bit, so that our unlock wakes one. */
            if (__atomic_compare_exchange_n(word, &seen, me | (uint32_t)HL_ACCOUNT_WAITERS, 0, __ATOMIC_ACQUIRE,
                                            __ATOMIC_RELAXED))
                return;
            continue;
        }
        if (!(seen & (uint32_t)HL_ACCOUNT_WAITERS)) {
            uint32_t marked = seen | (uint32_t)HL_ACCOUNT_WAITERS;
            if (!__atomic_compare_exchange_n(word, &seen, marked, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) continue;
            seen = marked;
        }
        /* Bounded: a waiter that was woken and killed before it took the lock must not strand the rest. */
        struct timespec limit = {0, 20000000};
        syscall(SYS_futex, word, FUTEX_WAIT, seen, &limit, NULL, 0);
    }
}

void hl_node_wake(uint32_t *word) { syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0); }

int hl_node_try_lock(uint32_t *word, uint32_t me) {
    for (int spin = 0; spin < 2000; spin++) {
        uint32_t seen = __atomic_load_n(word, __ATOMIC_RELAXED);
        if ((seen & ~(uint32_t)HL_ACCOUNT_WAITERS) == 0 &&
            __atomic_compare_exchange_n(word, &seen, me | seen, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
            return 1;
    }
    return 0;
}
