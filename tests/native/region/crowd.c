/* Many processes at one region at once. Usage: crowd FOLDER race PROCESSES | full | namespace
 *
 *   race       PROCESSES begin together on a file that does not exist: one makes it, all enter, each with a slot and a
 *              generation of its own, and the limit is the maker's for all
 *   full       1024 living processes fill the region; the next gets -ENOSPC and one line; when one has died it gets in
 *   namespace  a robust region refuses a process of another PID namespace with -EXDEV and one line, takes it once nobody
 *              is present any more, and can be reaped from outside only then. Exit 77 where namespaces are forbidden. */
#define _GNU_SOURCE
#include "kit.h"
#include "region.h"

static char region_path[512];
static const uint64_t MIB = 1 << 20;

struct scene {
    uint32_t arrived, go, entered, end, limits_seen;
};
static struct scene *scene;

static pid_t start_guest(int robust, uint64_t limit) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child) return child;
    struct hl_ledger_config config = kit_config(region_path, robust, limit);
    kit_count(&scene->arrived);
    kit_reach(&scene->go, 1);
    kit_open(&config);
    CHECK(!kit_take(0, MIB, 0x1000, 1));
    if (hl_ledger_limit(0) == limit) __atomic_fetch_add(&scene->limits_seen, 1, __ATOMIC_RELAXED);
    kit_count(&scene->entered);
    kit_reach(&scene->end, 1);
    _exit(0);
}

static void open_direct(struct hl_region *region) {
    struct hl_region_new fresh = {.create = 0};
    char why[HL_WHY_BYTES] = "";
    if (hl_region_open(region, region_path, &fresh, why)) fprintf(stderr, "%s\n", why);
    CHECK(region->header);
    hl_region_gate_open(region);
}

static void race(int processes) {
    pid_t child[HL_REGION_SLOTS];
    struct hl_region region;
    for (int i = 0; i < processes; i++)
        child[i] = start_guest(1, 1000 * MIB + (uint64_t)i); /* each would make another */
    kit_reach(&scene->arrived, (uint32_t)processes);
    kit_count(&scene->go);
    kit_reach(&scene->entered, (uint32_t)processes);
    open_direct(&region);
    EQUAL(scene->limits_seen, 1); /* exactly one made it */
    EQUAL(region.header->slot_high, processes);
    EQUAL(region.header->generation, processes);
    EQUAL(region.device[0].used, (uint64_t)processes * MIB);
    for (int i = 0; i < processes; i++)
        for (int j = 0; j < i; j++)
            CHECK(region.slot[i].pid != region.slot[j].pid && region.slot[i].generation != region.slot[j].generation);
    kit_count(&scene->end);
    for (int i = 0; i < processes; i++) EQUAL(kit_wait(child[i]), 0);
}

static void full(void) {
    static pid_t child[HL_REGION_SLOTS];
    kit_count(&scene->go);
    for (int i = 0; i < HL_REGION_SLOTS; i++) {
        child[i] = start_guest(1, 0);
        if (i % 64 == 63) kit_reach(&scene->entered, (uint32_t)i + 1);
    }
    struct hl_ledger_config config = kit_config(region_path, 1, 0);
    const char *why = "";
    EQUAL(hl_ledger_open(&config, &why), -ENOSPC);
    fprintf(stderr, "%s\n", why);
    CHECK(strstr(why, region_path) && strstr(why, "1024") && !strchr(why, '\n'));
    CHECK(!hl_ledger_is_open());
    kill(child[500], SIGKILL);
    kit_wait(child[500]);
    kit_open(&config);
    EQUAL(hl_ledger_used(0), (uint64_t)(HL_REGION_SLOTS - 1) * MIB);
    kit_count(&scene->end);
    for (int i = 0; i < HL_REGION_SLOTS; i++)
        if (i != 500) EQUAL(kit_wait(child[i]), 0);
}

/* The child is process 1 of a new namespace. Its exit status, or it does not return. */
static int in_new_namespace(void (*what)(void)) {
    pid_t outer = fork();
    if (!outer) {
        int forbidden = kit_new_pid_namespace();
        if (forbidden) {
            fprintf(stderr, "PID namespaces are forbidden: %s\n", strerror(forbidden));
            _exit(KIT_FORBIDDEN);
        }
        pid_t inner = fork();
        if (!inner) {
            what();
            _exit(0);
        }
        int status = kit_wait(inner);
        _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
    }
    int status = kit_wait(outer);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

static void refused_here(void) {
    struct hl_ledger_config config = kit_config(region_path, 1, 0);
    const char *why = "";
    char line[HL_WHY_BYTES] = "";
    EQUAL(hl_ledger_open(&config, &why), -EXDEV);
    fprintf(stderr, "%s\n", why);
    CHECK(strstr(why, region_path) && strstr(why, "HOOKLAB_REGION_LOCK=file"));
    EQUAL(hl_region_reap(region_path, line, sizeof line), -EXDEV);
    CHECK(strstr(line, "reap from inside"));
}

static void taken_here(void) {
    struct hl_ledger_config config = kit_config(region_path, 1, 200 * MIB);
    kit_open(&config);
    EQUAL(hl_ledger_used(0), 0);
    EQUAL(hl_ledger_limit(0), 200 * MIB);      /* nobody lives in it: its own */
    CHECK(!kit_take(0, 200 * MIB, 0x1000, 1)); /* dies with it */
}

static int name_space(void) {
    char line[HL_WHY_BYTES] = "";
    kit_count(&scene->go);
    pid_t guest = start_guest(1, 100 * MIB);
    kit_reach(&scene->entered, 1);
    int status = in_new_namespace(refused_here);
    if (status == KIT_FORBIDDEN) {
        kill(guest, SIGKILL);
        kit_wait(guest);
        return status;
    }
    EQUAL(status, 0);
    kill(guest, SIGKILL);
    kit_wait(guest);
    EQUAL(in_new_namespace(taken_here), 0);
    EQUAL(hl_region_reap(region_path, line, sizeof line), 1); /* from outside: nobody is present */
    EQUAL(hl_region_reap(region_path, line, sizeof line), 0);
    return 0;
}

int main(int count, char **arguments) {
    if (count < 3) return 2;
    snprintf(region_path, sizeof region_path, "%s/region", arguments[1]);
    scene = kit_shared(sizeof *scene);
    if (!strcmp(arguments[2], "race")) race(atoi(arguments[3]));
    else if (!strcmp(arguments[2], "full")) full();
    else return name_space();
    return 0;
}
