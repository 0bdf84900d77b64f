/* Registering and ending over and over, some killed at any moment: nothing drifts.
 *
 * Usage: cycles FOLDER CYCLES ROBUST SEED. Eight processes at a time; each opens, charges, sometimes frees, and ends or is
 * killed without having been asked. At the end the books are empty, every slot is free or reaped, and the table has never
 * needed more slots than processes lived at once (and were not yet buried). */
#define _GNU_SOURCE
#include "kit.h"
#include "region.h"

enum { AT_ONCE = 8 };
static const uint64_t MIB = 1 << 20;

static void live(const char *path, int robust, uint64_t random) {
    struct hl_ledger_config config =
        kit_config(path, robust, 8 * 4 * 8 * MIB); /* all the living fit, the dead do not */
    kit_open(&config);
    for (int i = 0; i < 4; i++) {
        uint64_t pointer = 0x1000 * (uint64_t)(i + 1);
        int32_t refused = kit_take(0, (1 + random % 8) * MIB, pointer, 1);
        CHECK(!refused);
        if (random >> i & 1) CHECK(kit_give(pointer));
    }
    if (random >> 8 & 1) hl_ledger_close();
    _exit(0);
}

int main(int count, char **arguments) {
    if (count < 5) return 2;
    char path[512], why[HL_WHY_BYTES] = "";
    long cycles = atol(arguments[2]), started = 0, running = 0;
    int robust = !strcmp(arguments[3], "robust");
    uint64_t state = (uint64_t)atoll(arguments[4]) * 2 + 1;
    pid_t child[AT_ONCE] = {0};
    snprintf(path, sizeof path, "%s/region", arguments[1]);
    while (started < cycles || running) {
        for (int i = 0; i < AT_ONCE; i++) {
            if (child[i] || started >= cycles) continue;
            uint64_t random = kit_random(&state);
            child[i] = fork();
            CHECK(child[i] >= 0);
            if (!child[i]) live(path, robust, random % 2 ? random : random & ~UINT64_C(7));
            started++, running++;
        }
        uint64_t random = kit_random(&state);
        if (random % 3 == 0 && child[random / 3 % AT_ONCE]) kill(child[random / 3 % AT_ONCE], SIGKILL);
        int status;
        pid_t ended = wait(&status);
        CHECK(ended > 0 && (WIFSIGNALED(status) ? WTERMSIG(status) == SIGKILL : !WEXITSTATUS(status)));
        for (int i = 0; i < AT_ONCE; i++)
            if (child[i] == ended) child[i] = 0, running--;
    }
    CHECK(hl_region_reap(path, why, sizeof why) >= 0);
    struct hl_region region;
    struct hl_region_new fresh = {.create = 0};
    CHECK(!hl_region_open(&region, path, &fresh, why));
    for (int d = 0; d < HL_REGION_DEVICES; d++) EQUAL(region.device[d].used, 0);
    for (int i = 0; i < HL_REGION_SLOTS; i++) EQUAL(region.slot[i].state, HL_SLOT_FREE);
    EQUAL(region.header->lock_holder, 0);
    CHECK(region.header->slot_high <= 3 * AT_ONCE);
    printf("%ld cycles, %u slots, %llu repairs\n", started, region.header->slot_high,
           (unsigned long long)region.header->repairs);
    return 0;
}
