/* Atomic words and the futex wake for Python code that shares files with C. One job: make each access one instruction
 * with sequential consistency; no state. */
#include "atomics.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

uint32_t hl_atomic_load32(const uint32_t *word) { return __atomic_load_n(word, __ATOMIC_SEQ_CST); }

void hl_atomic_store32(uint32_t *word, uint32_t value) { __atomic_store_n(word, value, __ATOMIC_SEQ_CST); }

int hl_atomic_cas32(uint32_t *word, uint32_t expected, uint32_t wanted) {
    return __atomic_compare_exchange_n(word, &expected, wanted, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

uint32_t hl_atomic_exchange32(uint32_t *word, uint32_t value) {
    return __atomic_exchange_n(word, value, __ATOMIC_SEQ_CST);
}

uint64_t hl_atomic_load64(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_SEQ_CST); }

void hl_atomic_store64(uint64_t *word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_SEQ_CST); }

uint64_t hl_atomic_add64(uint64_t *word, uint64_t delta) { return __atomic_add_fetch(word, delta, __ATOMIC_SEQ_CST); }

int hl_atomic_cas64(uint64_t *word, uint64_t expected, uint64_t wanted) {
    return __atomic_compare_exchange_n(word, &expected, wanted, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

long hl_futex_wake(uint32_t *word, int waiters) {
    int saved = errno;
    long woken = syscall(SYS_futex, word, FUTEX_WAKE, waiters, (void *)0, (void *)0, 0);
    if (woken < 0)
        woken = -errno;
    errno = saved;
    return woken;
}
