/* Changes the accounts of a node as fast as it can, to be killed anywhere in between. */
#include <stdint.h>

#include "accounts.h"

enum { HELD = 64, KINDS = 8 };

static uint64_t next(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

void churn(void *base, uint32_t slot, uint32_t devices, uint64_t seed);
void churn(void *base, uint32_t slot, uint32_t devices, uint64_t seed) {
    struct {
        uint32_t device, kind;
        uint64_t bytes;
    } held[HELD] = {0};
    uint64_t state = seed * 2654435761u + 1;
    for (;;) {
        unsigned i = (unsigned)(next(&state) % HELD);
        if (held[i].bytes) {
            hl_accounts_give(base, slot, held[i].device, held[i].kind, held[i].bytes, 0);
            held[i].bytes = 0;
            continue;
        }
        held[i].device = (uint32_t)(next(&state) % devices);
        held[i].kind = (uint32_t)(next(&state) % KINDS);
        held[i].bytes = (next(&state) % 64 + 1) << 21;
        if (hl_accounts_take(base, slot, held[i].device, held[i].kind, held[i].bytes, 0)) held[i].bytes = 0;
    }
}
