/* Atomic words for Python code that shares files with C. One job: make each access one instruction with sequential
 * consistency; no state. */
#include "atomics.h"

uint32_t hl_atomic_load32(const uint32_t *word) { return __atomic_load_n(word, __ATOMIC_SEQ_CST); }

void hl_atomic_store32(uint32_t *word, uint32_t value) { __atomic_store_n(word, value, __ATOMIC_SEQ_CST); }

uint64_t hl_atomic_load64(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_SEQ_CST); }

uint64_t hl_atomic_add64(uint64_t *word, uint64_t value) { return __atomic_fetch_add(word, value, __ATOMIC_SEQ_CST); }
