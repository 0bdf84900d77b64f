/* Many processes with many threads on one region, some killed at random points.
 *
 * Usage: stress FOLDER robust|file|namespaces reserve|double-check PROCESSES THREADS OPERATIONS SEED [plant]
 *
 * Every process takes and gives back at random. One in four kills itself: the thread that reaches a random operation
 * raises SIGKILL while its siblings are anywhere in theirs. Each thread keeps its own account of what it holds. It must
 * hold at every moment that no more than the limit is in use, and at the end: each survivor's slot shows what its threads
 * account for; the totals are the sum of the survivors; nothing is left once they have given everything back.
 * `namespaces`: two containers, each a PID namespace of its own, so that all PIDs collide; exit 77 with the reason where
 * the machine forbids them. `plant`: a survivor keeps one byte that it does not account for, and that must be found. */
#define _GNU_SOURCE
#include "kit.h"
#include "region.h"

#include <pthread.h>

enum { HELD = 48, MOST_PROCESSES = 64 };
static const uint64_t MIB = 1 << 20, LIMIT = 512 << 20;

struct scene {
    uint32_t overshoots, refused;          /* atomic */
    uint32_t done, victims_gone, examined; /* atomic, waited for */
    uint64_t kept[2];                      /* atomic: what the survivors still hold, by device */
};
static struct scene *scene;
static char region_path[512];
static int robust, threads, operations, planted;
static enum hl_memory_mode mode;
static uint64_t kill_at; /* operation of thread 0 at which the process dies; 0 = it survives */
static uint64_t seed_of_process;
static uint64_t kept[2]; /* by this process, atomic */

static int32_t admit(int device, uint64_t size, int kind, uint64_t used, uint64_t limit, uint64_t others) {
    (void)kind;
    if (device > 1 || used > limit || others > used) __atomic_fetch_add(&scene->overshoots, 1, __ATOMIC_RELAXED);
    if (size % 7 == 0) sched_yield(); /* let others in between the question and the commit */
    return used + size > limit ? 2 : 0;
}

static void *work(void *argument) {
    uint64_t me = (uint64_t)(uintptr_t)argument, seed = seed_of_process + 7919 * (me + 1), base = (me + 1) << 40,
             held[HELD] = {0};
    for (int i = 1; i <= operations; i++) {
        uint64_t which = kit_random(&seed) % HELD, bytes = 1 + kit_random(&seed) % (8 * MIB);
        int device = (int)(which & 1);
        if (me == 0 && kill_at && (uint64_t)i == kill_at) kill(getpid(), SIGKILL);
        struct hl_ticket ticket;
        struct hl_entry entry;
        if (!held[which]) {
            if (hl_ledger_reserve(device, bytes, KIT_SYNC, &ticket)) {
                __atomic_fetch_add(&scene->refused, 1, __ATOMIC_RELAXED);
            } else if (bytes % 11 == 0) {
                hl_ledger_cancel(&ticket); /* the driver failed */
            } else if (!hl_ledger_settle(&ticket, base + which, which % 3, bytes)) {
                held[which] = bytes;
            }
        } else if (bytes % 13 == 0) { /* the driver refuses to free */
            CHECK(hl_ledger_detach(base + which, &entry));
            hl_ledger_reattach(&entry);
        } else {
            CHECK(hl_ledger_detach(base + which, &entry));
            EQUAL(entry.bytes, held[which]);
            hl_ledger_credit(&entry);
            held[which] = 0;
        }
        if (hl_ledger_used(device) > LIMIT) __atomic_fetch_add(&scene->overshoots, 1, __ATOMIC_RELAXED);
    }
    for (uint64_t which = 0; which < HELD; which++) /* keep half: the totals must show it */
        if (held[which] && which % 4 < 2) {
            CHECK(kit_give(base + which));
        } else {
            __atomic_fetch_add(&kept[which & 1], held[which], __ATOMIC_RELAXED);
        }
    return NULL;
}

/* Nobody works any more: the slots hold what the survivors account for, and all the rest is to be had. */
static void examine(void) {
    struct hl_region region;
    struct hl_region_new fresh = {.create = 0};
    char why[HL_WHY_BYTES];
    CHECK(!hl_region_open(&region, region_path, &fresh, why));
    hl_region_gate_open(&region);
    for (int d = 0; d < 2; d++) {
        uint64_t rest = LIMIT - scene->kept[d], sum = 0;
        EQUAL(kit_take(d, rest + 1, 0x1000, 1), 2);
        EQUAL(kit_take(d, rest, 0x1000, 1), 0);
        EQUAL(kit_give(0x1000), 1);
        EQUAL(hl_ledger_used(d), scene->kept[d]);
        for (unsigned i = 0; i < HL_REGION_SLOTS; i++)
            if (region.slot[i].state == HL_SLOT_LIVE) sum += region.slot[i].device[d].held;
        EQUAL(sum, scene->kept[d]);
    }
}

static void guest(int index, int survivors, int victims) {
    struct hl_ledger_config config = kit_config(region_path, robust, LIMIT);
    config.verdict = admit;
    config.mode = mode;
    kit_open(&config);
    pthread_t thread[16];
    for (int i = 0; i < threads; i++) CHECK(!pthread_create(&thread[i], NULL, work, (void *)(uintptr_t)i));
    for (int i = 0; i < threads; i++) CHECK(!pthread_join(thread[i], NULL));
    if (kill_at) exit(3); /* never reached the operation at which to die */
    for (int d = 0; d < 2; d++) __atomic_fetch_add(&scene->kept[d], kept[d], __ATOMIC_RELAXED);
    struct hl_ticket ticket;
    if (planted) CHECK(!hl_ledger_reserve(0, 1, KIT_SYNC, &ticket));
    kit_count(&scene->done);
    if (index == 0) {
        kit_reach(&scene->done, (uint32_t)survivors);
        kit_reach(&scene->victims_gone, (uint32_t)victims);
        examine();
        kit_count(&scene->examined);
    }
    kit_reach(&scene->examined, 1);
    exit(0);
}

static pid_t start(int index, int survivors, int victims) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child) return child;
    uint64_t random = seed_of_process + 104729 * (uint64_t)(index + 1);
    seed_of_process = kit_random(&random) | 1;
    kill_at = index % 4 == 3 ? 1 + kit_random(&random) % (uint64_t)operations : 0;
    guest(index, survivors, victims);
    return 0;
}

static int ended_well(pid_t child, int index) {
    int status = kit_wait(child), victim = index % 4 == 3;
    if (victim) kit_count(&scene->victims_gone);
    if (victim ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL : status == 0) return 1;
    fprintf(stderr, "process %d ended with status %x\n", index, (unsigned)status);
    kit_count(&scene->examined); /* let the others go: the test has failed */
    return 0;
}

/* Victims are waited for first: the examination waits for their deaths. */
static int run(int first, int last, int survivors, int victims) {
    pid_t children[MOST_PROCESSES];
    int bad = 0;
    for (int i = first; i < last; i++) children[i] = start(i, survivors, victims);
    for (int i = first; i < last; i++)
        if (i % 4 == 3 && !ended_well(children[i], i)) bad = 1;
    for (int i = first; i < last; i++)
        if (i % 4 != 3 && !ended_well(children[i], i)) bad = 1;
    return bad;
}

int main(int count, char **arguments) {
    if (count < 8) return 2;
    snprintf(region_path, sizeof region_path, "%s/region", arguments[1]);
    int name_spaces = !strcmp(arguments[2], "namespaces"), processes = atoi(arguments[4]), bad = 0;
    robust = !strcmp(arguments[2], "robust");
    mode = strcmp(arguments[3], "reserve") ? HL_MODE_DOUBLE_CHECK : HL_MODE_RESERVE;
    threads = atoi(arguments[5]);
    operations = atoi(arguments[6]);
    seed_of_process = strtoull(arguments[7], NULL, 10) * 0x9e3779b97f4a7c15u | 1;
    planted = count > 8;
    CHECK(processes <= MOST_PROCESSES && threads <= 16);
    scene = kit_shared(sizeof *scene);
    int victims = processes / 4, survivors = processes - victims;
    if (name_spaces) {
        pid_t container[2];
        for (int c = 0; c < 2; c++) {
            container[c] = fork();
            if (!container[c]) {
                int forbidden = kit_new_pid_namespace();
                if (forbidden) {
                    fprintf(stderr, "PID namespaces are forbidden: %s\n", strerror(forbidden));
                    exit(KIT_FORBIDDEN);
                }
                pid_t init = fork(); /* process 1 */
                if (!init) exit(run(c * processes / 2, (c + 1) * processes / 2, survivors, victims));
                int status = kit_wait(init);
                exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
            }
        }
        for (int c = 0; c < 2; c++) {
            int status = kit_wait(container[c]);
            if (WIFEXITED(status) && WEXITSTATUS(status) == KIT_FORBIDDEN) return KIT_FORBIDDEN;
            bad |= status != 0;
        }
    } else {
        bad = run(0, processes, survivors, victims);
    }
    char why[HL_WHY_BYTES];
    struct hl_region region;
    struct hl_region_new fresh = {.create = 0};
    CHECK(hl_region_reap(region_path, why, sizeof why) >= 0);
    CHECK(!hl_region_open(&region, region_path, &fresh, why));
    for (int d = 0; d < 2; d++) EQUAL(region.device[d].used, 0);
    for (unsigned i = 0; i < HL_REGION_SLOTS; i++) CHECK(region.slot[i].state == HL_SLOT_FREE);
    EQUAL(scene->overshoots, 0);
    CHECK(region.device[0].peak <= LIMIT && region.device[1].peak <= LIMIT);
    printf("refused %u, repairs %llu, peak %llu of %llu\n", scene->refused, (unsigned long long)region.header->repairs,
           (unsigned long long)region.device[0].peak, (unsigned long long)LIMIT);
    return bad;
}
