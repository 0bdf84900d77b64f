/* Locks in the node file: one word that names its holder, taken by a single CAS, so that the node server knows who died
 * holding it and can open it. Holders do a few instructions only: no driver call, no sleep, no history record. */
#ifndef HOOKLAB_NODELOCK_H
#define HOOKLAB_NODELOCK_H
#include <stdint.h>

void hl_node_lock_slow(uint32_t *word, uint32_t me);
void hl_node_wake(uint32_t *word);                 /* one waiter */
int hl_node_try_lock(uint32_t *word, uint32_t me); /* 1: taken. Never sleeps */

/* me: process slot + 1, or HL_ACCOUNT_SERVER. */
static inline void hl_node_lock(uint32_t *word, uint32_t me) {
    uint32_t zero = 0;
    if (!__atomic_compare_exchange_n(word, &zero, me, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
        hl_node_lock_slow(word, me);
}

static inline void hl_node_unlock(uint32_t *word) {
    if (__atomic_exchange_n(word, 0, __ATOMIC_RELEASE) & UINT32_C(0x80000000)) hl_node_wake(word);
}
#endif
