/* Prints what the books cost: ns of reserve + settle + detach + credit, by live allocations and lock kind. For people and
 * for docs; nothing asserts a time. Usage: cost REGION robust|file */
#include "history.h"
#include "ledger.h"

#include <stdio.h>
#include <string.h>

enum { ROUNDS = 200000, REPEATS = 5 };
static const uint64_t HELD[] = {0, 1000, 100000};

int main(int count, char **arguments) {
    const char *why = "usage: cost REGION robust|file";
    struct hl_ledger_config config = {.robust = count > 2 && !strcmp(arguments[2], "robust")};
    config.path = count > 1 ? arguments[1] : NULL;
    config.limit[0] = (uint64_t)1 << 40;
    if (count < 3 || hl_ledger_open(&config, &why)) {
        fprintf(stderr, "%s\n", why);
        return 2;
    }
    uint64_t live = 0;
    for (unsigned h = 0; h < sizeof HELD / sizeof *HELD; h++) {
        struct hl_ticket ticket;
        for (; live < HELD[h]; live++)
            if (hl_ledger_reserve(0, 512, 1, &ticket) ||
                hl_ledger_settle(&ticket, 0x7f0000000000 + live * 512, live % 4, 512))
                return 1;
        uint64_t best = UINT64_MAX;
        for (int r = 0; r < REPEATS; r++) {
            uint64_t begin = hl_now_ns();
            for (int i = 0; i < ROUNDS; i++) {
                struct hl_entry entry;
                uint64_t pointer = 0x7e0000000000 + (uint64_t)(i & 63) * 2097152;
                if (hl_ledger_reserve(0, 4096, 1, &ticket) || hl_ledger_settle(&ticket, pointer, 1, 4096) ||
                    !hl_ledger_detach(pointer, &entry))
                    return 1;
                hl_ledger_credit(&entry);
            }
            uint64_t took = hl_now_ns() - begin;
            if (took < best) best = took;
        }
        printf("%s lock, %6llu live: %5.0f ns\n", arguments[2], (unsigned long long)live, (double)best / ROUNDS);
    }
    return 0;
}
