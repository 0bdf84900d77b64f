/* Atomic words of shared files for callers that have no atomics of their own (Python through ctypes).
 * Pointers must be naturally aligned; order is sequentially consistent. */
#ifndef HOOKLAB_ATOMICS_H
#define HOOKLAB_ATOMICS_H
#include <stdint.h>
uint32_t hl_atomic_load32(const uint32_t *word);
void hl_atomic_store32(uint32_t *word, uint32_t value);
int hl_atomic_cas32(uint32_t *word, uint32_t expected, uint32_t wanted);     /* 1 = changed */
uint32_t hl_atomic_exchange32(uint32_t *word, uint32_t value);               /* the value before */
uint64_t hl_atomic_load64(const uint64_t *word);
void hl_atomic_store64(uint64_t *word, uint64_t value);
uint64_t hl_atomic_add64(uint64_t *word, uint64_t delta);                    /* the value after */
int hl_atomic_cas64(uint64_t *word, uint64_t expected, uint64_t wanted);     /* 1 = changed */
long hl_futex_wake(uint32_t *word, int waiters);                             /* woken, or -errno; shared futex */
#endif
