/* Unit tests of the ledger in one program, also for sanitizers. Usage: units FOLDER NAME; without a name it lists them.
 *
 * Strategy: each test is a process of its own (a ledger opens once a process) with a region of its own in FOLDER; what it
 * expects is computed apart from the ledger. */
#define _GNU_SOURCE
#include "entries.h"
#include "kit.h"
#include "region.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

static char region_path[512];
static const uint64_t MIB = 1 << 20;

/* ---- the entry table against a plain array ---- */

enum { POINTERS = 3000, CONTEXTS = 40 };

static void entries(void) {
    static struct hl_entry model[POINTERS]; /* bytes 0 = absent */
    uint64_t random = 88172645463325252u, present = 0;
    for (int i = 0; i < 200000; i++) {
        uint64_t which = kit_random(&random) % POINTERS, action = kit_random(&random) % 100;
        uint64_t pointer = 0x7f0000000000 + which * (which % 3 ? 512 : 2 * MIB);
        struct hl_entry *mine = &model[which], seen;
        if (action < 45) {
            struct hl_entry entry = {.pointer = pointer,
                                     .bytes = 1 + kit_random(&random) % 9000,
                                     .context = kit_random(&random) % CONTEXTS,
                                     .device = (int)(which % 16),
                                     .kind = (int)(which % 8)};
            int replaced = hl_entries_insert(&entry, &seen);
            EQUAL(replaced, mine->bytes != 0);
            if (replaced) EQUAL(seen.bytes, mine->bytes);
            present += !replaced;
            *mine = entry;
        } else if (action < 70) {
            EQUAL(hl_entries_find(pointer, &seen), mine->bytes != 0);
            if (mine->bytes) EQUAL(seen.context, mine->context);
        } else if (action < 98 || i % 50) {
            EQUAL(hl_entries_remove(pointer, &seen), mine->bytes != 0);
            present -= mine->bytes != 0;
            if (mine->bytes) EQUAL(seen.bytes, mine->bytes);
            mine->bytes = 0;
        } else {
            uint64_t context = kit_random(&random) % CONTEXTS, sums[16][8] = {{0}}, count = 0;
            uint64_t removed = hl_entries_remove_context(context, sums);
            for (int p = 0; p < POINTERS; p++)
                if (model[p].bytes && model[p].context == context) {
                    sums[model[p].device][model[p].kind] -= model[p].bytes;
                    model[p].bytes = 0;
                    count++;
                }
            EQUAL(removed, count);
            for (int d = 0; d < 16; d++)
                for (int k = 0; k < 8; k++) EQUAL(sums[d][k], 0);
            present -= count;
        }
        EQUAL(hl_entries_count(), present);
    }
}

/* ---- life of a charge ---- */

static void life(int robust, enum hl_memory_mode mode, const char *path) {
    struct hl_ledger_config config = kit_config(path, robust, 100 * MIB);
    config.mode = mode;
    struct hl_ticket ticket;
    struct hl_entry entry;
    EQUAL(hl_ledger_reserve(0, MIB, KIT_SYNC, &ticket), 304); /* not open */
    kit_open(&config);
    kit_open(&config); /* idempotent */
    EQUAL(hl_ledger_limit(0), 100 * MIB);
    EQUAL(hl_ledger_limit(2), 0);
    EQUAL(hl_ledger_reserve(16, MIB, KIT_SYNC, &ticket), 101);
    EQUAL(hl_ledger_reserve(0, MIB, 8, &ticket), 1);
    EQUAL(kit_take(0, 60 * MIB, 0x1000, 7), 0);
    EQUAL(hl_ledger_used(0), 60 * MIB);
    EQUAL(hl_ledger_reserve(0, 41 * MIB, KIT_SYNC, &ticket), 2);
    EQUAL(hl_ledger_reserve(0, UINT64_MAX, KIT_SYNC, &ticket), 2); /* a sum beyond 64 bits is not small */
    EQUAL(hl_ledger_reserve(0, 40 * MIB, KIT_SYNC, &ticket), 0);
    EQUAL(ticket.before, 60 * MIB);
    EQUAL(hl_ledger_used(0), (mode == HL_MODE_RESERVE ? 100 : 60) * MIB);
    hl_ledger_cancel(&ticket);
    hl_ledger_cancel(&ticket); /* a second time: nothing */
    EQUAL(hl_ledger_used(0), 60 * MIB);
    /* what the driver took differs */
    EQUAL(hl_ledger_reserve(0, 10 * MIB, KIT_MANAGED, &ticket), 0);
    EQUAL(hl_ledger_settle(&ticket, 0x2000, 7, 4 * MIB), 0);
    EQUAL(hl_ledger_used(0), 64 * MIB);
    EQUAL(hl_ledger_reserve(0, 10 * MIB, KIT_MANAGED, &ticket), 0);
    EQUAL(hl_ledger_settle(&ticket, 0x3000, 8, 37 * MIB), 2); /* over: nothing is recorded */
    EQUAL(hl_ledger_used(0), 64 * MIB);
    EQUAL(hl_ledger_find(0x3000, &entry), 0);
    EQUAL(hl_ledger_reserve(0, 10 * MIB, KIT_MANAGED, &ticket), 0);
    EQUAL(hl_ledger_settle(&ticket, 0x3000, 8, 36 * MIB), 0); /* just fits */
    EQUAL(hl_ledger_used(0), 100 * MIB);
    EQUAL(hl_ledger_live(), 3);
    /* find, detach, reattach, credit */
    EQUAL(hl_ledger_find(0x3000, &entry), 1);
    EQUAL(entry.bytes, 36 * MIB);
    EQUAL(entry.kind, KIT_MANAGED);
    EQUAL(hl_ledger_find(0x3001, &entry), 0);
    EQUAL(hl_ledger_detach(0x3000, &entry), 1);
    EQUAL(hl_ledger_detach(0x3000, &entry), 0);
    EQUAL(hl_ledger_find(0x3000, &entry), 0);
    CHECK(entry.pointer == 0x3000);
    EQUAL(hl_ledger_used(0), 100 * MIB); /* until the driver freed it */
    hl_ledger_reattach(&entry);
    EQUAL(hl_ledger_find(0x3000, &entry), 1);
    EQUAL(kit_give(0x3000), 1);
    EQUAL(hl_ledger_used(0), 64 * MIB);
    /* an address that comes back was freed past us */
    EQUAL(kit_take(0, MIB, 0x1000, 9), 0);
    EQUAL(hl_ledger_used(0), 5 * MIB);
    /* context end */
    EQUAL(kit_take(1, 3 * MIB, 0x5000, 7), 0);
    EQUAL(hl_ledger_release_context(7), 7 * MIB);
    EQUAL(hl_ledger_release_context(7), 0);
    EQUAL(hl_ledger_used(0), MIB);
    EQUAL(hl_ledger_used(1), 0);
    /* no limit: books all the same */
    EQUAL(kit_take(2, (uint64_t)1 << 50, 0x6000, 1), 0);
    EQUAL(hl_ledger_used(2), (uint64_t)1 << 50);
    size_t words;
    EQUAL(hl_ledger_policy_words(1, &words) != NULL, 1);
    EQUAL(words, 512);
    EQUAL(hl_ledger_policy_words(16, &words) == NULL, 1);
    hl_ledger_close(); /* holds bytes: they stay booked */
    EQUAL(hl_ledger_used(0), MIB);
    EQUAL(kit_give(0x1000) + kit_give(0x6000), 2);
    EQUAL(kit_take(0, 0, 0x7000, 5), 0);
    hl_ledger_close(); /* holds nothing, but knows an allocation of no bytes */
    EQUAL(hl_ledger_live(), 1);
    EQUAL(hl_ledger_release_context(5), 0);
    EQUAL(hl_ledger_live(), 0);
    EQUAL(kit_take(0, MIB, 0x1000, 9), 0); /* a late call enters again */
    EQUAL(hl_ledger_used(0), MIB);
}

static void life_robust(void) { life(1, HL_MODE_RESERVE, region_path); }
static void life_file(void) { life(0, HL_MODE_RESERVE, region_path); }
static void life_private(void) { life(0, HL_MODE_RESERVE, NULL); }
static void life_double_check(void) { life(1, HL_MODE_DOUBLE_CHECK, region_path); }

/* ---- the policy sees a snapshot; what it admits is committed only while that holds ---- */

static int asked;

static int32_t overtaken(int device, uint64_t size, int kind, uint64_t used, uint64_t limit, uint64_t others) {
    (void)kind;
    if (!asked++) { /* another thread of the process takes bytes between the question and the commit */
        pthread_t thread;
        void *take(void *);
        CHECK(!pthread_create(&thread, NULL, take, NULL));
        CHECK(!pthread_join(thread, NULL)); /* no lock is held across a verdict, else this would hang */
    }
    CHECK(device == 0 && others == 0);
    return used + size > limit ? 2 : 0;
}

void *take(void *nothing) {
    CHECK(kit_take(0, 60 * MIB, 0x1000, 1) == 0);
    return nothing;
}

static void snapshot(void) {
    struct hl_ledger_config config = kit_config(region_path, 1, 100 * MIB);
    config.verdict = overtaken;
    kit_open(&config);
    EQUAL(kit_take(0, 60 * MIB, 0x2000, 1), 2); /* admitted at 0, but 60 were taken meanwhile */
    EQUAL(asked, 3);
    EQUAL(hl_ledger_used(0), 60 * MIB);
}

/* double-check: two that were both admitted; the second is rolled back at its re-check */
static void rollback(void) {
    struct hl_ledger_config config = kit_config(region_path, 0, 100 * MIB);
    config.mode = HL_MODE_DOUBLE_CHECK;
    kit_open(&config);
    struct hl_ticket one, two;
    EQUAL(hl_ledger_reserve(0, 60 * MIB, KIT_SYNC, &one), 0);
    EQUAL(hl_ledger_reserve(0, 60 * MIB, KIT_SYNC, &two), 0);
    EQUAL(hl_ledger_settle(&one, 0x1000, 1, 60 * MIB), 0);
    EQUAL(hl_ledger_settle(&two, 0x2000, 1, 60 * MIB), 2);
    EQUAL(hl_ledger_used(0), 60 * MIB);
    EQUAL(hl_ledger_live(), 1);
}

/* ---- the dead ---- */

static void dead_before_refusal(int robust) {
    int ready[2];
    CHECK(!pipe(ready));
    pid_t child = fork();
    if (!child) {
        struct hl_ledger_config config = kit_config(region_path, robust, 100 * MIB);
        kit_open(&config);
        struct hl_ticket ticket;
        CHECK(!kit_take(0, 50 * MIB, 0x1000, 1));
        CHECK(!hl_ledger_reserve(0, 50 * MIB, KIT_SYNC, &ticket)); /* in flight when it dies */
        CHECK(write(ready[1], "x", 1) == 1);
        for (;;) pause();
    }
    struct hl_ledger_config config = kit_config(region_path, robust, 1); /* the maker's limit counts */
    char byte;
    CHECK(read(ready[0], &byte, 1) == 1);
    kit_open(&config);
    EQUAL(kit_take(0, MIB, 0x1000, 1), 2);
    kill(child, SIGKILL);
    CHECK(WIFSIGNALED(kit_wait(child)));
    EQUAL(hl_ledger_used(0), 100 * MIB); /* nobody asked yet */
    EQUAL(kit_take(0, 100 * MIB, 0x1000, 1), 0);
    EQUAL(hl_ledger_used(0), 100 * MIB);
}

static pid_t fork_without_handlers(void) { return (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0); }

/* The limiter's tick buries too, and holds nothing of the region while it looks. */
static void bury_of_the_tick(int robust) {
    struct hl_ledger_config config = kit_config(region_path, robust, 100 * MIB);
    kit_open(&config);
    int ready[2];
    CHECK(!pipe(ready));
    pid_t child = fork_without_handlers();
    if (!child) {
        CHECK(!kit_take(0, 50 * MIB, 0x1000, 1));
        CHECK(write(ready[1], "x", 1) == 1);
        for (;;) pause();
    }
    char byte;
    CHECK(read(ready[0], &byte, 1) == 1);
    hl_share_bury();
    EQUAL(hl_ledger_used(0), 50 * MIB);
    kill(child, SIGKILL);
    CHECK(WIFSIGNALED(kit_wait(child)));
    hl_share_bury();
    EQUAL(hl_ledger_used(0), 0);
}

static void dead_robust(void) { dead_before_refusal(1); }
static void dead_file(void) { dead_before_refusal(0); }
static void bury_robust(void) { bury_of_the_tick(1); }
static void bury_file(void) { bury_of_the_tick(0); }

/* ---- fork ---- */

static void child_of_fork(int robust, int bare, const char *path) {
    struct hl_ledger_config config = kit_config(path, robust, 100 * MIB);
    kit_open(&config);
    CHECK(!kit_take(0, 50 * MIB, 0x1000, 1));
    struct hl_ticket flight;
    struct hl_entry detached;
    CHECK(!kit_take(0, 5 * MIB, 0x2000, 1));
    CHECK(hl_ledger_detach(0x2000, &detached));
    CHECK(!hl_ledger_reserve(0, 10 * MIB, KIT_SYNC, &flight));
    uint64_t *words, others = path ? 65 * MIB : 0; /* private memory: the copy starts empty */
    size_t size;
    words = hl_ledger_policy_words(0, &size);
    if (!bare) hl_ledger_fork_prepare();
    pid_t child = bare ? fork_without_handlers() : fork();
    if (!child) {
        if (!bare) hl_ledger_fork_child();
        struct hl_entry entry;
        EQUAL(hl_ledger_settle(&flight, 0x3000, 1, 10 * MIB), 0); /* its parent's: dropped */
        hl_ledger_credit(&detached);
        EQUAL(hl_ledger_find(0x1000, &entry), 0);
        EQUAL(hl_ledger_live(), 0);
        EQUAL(hl_ledger_used(0), others);
        EQUAL(kit_take(0, 36 * MIB, 0x1000, 1), path ? 2 : 0);
        EQUAL(kit_take(0, 35 * MIB, 0x9000, 1), 0);
        EQUAL(hl_ledger_release_context(1), path ? 35 * MIB : 71 * MIB);
        EQUAL(hl_ledger_used(0), others);
        words[0] = 42; /* still mapped */
        _exit(0);
    }
    if (!bare) hl_ledger_fork_parent();
    EQUAL(kit_wait(child), 0);
    EQUAL(hl_ledger_used(0), 65 * MIB);
    EQUAL(words[0], path ? 42 : 0);
    EQUAL(hl_ledger_settle(&flight, 0x3000, 1, 10 * MIB), 0);
    hl_ledger_credit(&detached);
    EQUAL(kit_give(0x1000) + kit_give(0x3000), 2);
    EQUAL(hl_ledger_used(0), 0);
}

static void fork_robust(void) { child_of_fork(1, 0, region_path); }
static void fork_file(void) { child_of_fork(0, 0, region_path); }
static void fork_private(void) { child_of_fork(0, 0, NULL); }
static void fork_bare_robust(void) { child_of_fork(1, 1, region_path); }
static void fork_bare_file(void) { child_of_fork(0, 1, region_path); }

/* A child that never runs a handler outlives its killed parent: the parent's bytes come back all the same. */
static void orphan(int robust) {
    int ready[2], end[2];
    CHECK(!pipe(ready) && !pipe(end));
    pid_t parent = fork();
    if (!parent) {
        struct hl_ledger_config config = kit_config(region_path, robust, 100 * MIB);
        kit_open(&config);
        CHECK(!kit_take(0, 100 * MIB, 0x1000, 1));
        if (!fork_without_handlers()) {
            char byte;
            CHECK(write(ready[1], "x", 1) == 1);
            close(end[1]);
            _exit(read(end[0], &byte, 1) == 0 ? 0 : 1); /* until the test ends */
        }
        for (;;) pause();
    }
    char byte;
    CHECK(read(ready[0], &byte, 1) == 1);
    kill(parent, SIGKILL);
    kit_wait(parent);
    struct hl_ledger_config config = kit_config(region_path, robust, 100 * MIB);
    kit_open(&config);
    EQUAL(kit_take(0, 100 * MIB, 0x1000, 1), 0);
}

static void orphan_robust(void) { orphan(1); }
static void orphan_file(void) { orphan(0); }

/* ---- a host that closes everything ---- */

static void closed_descriptors(int robust) {
    char folder[512];
    snprintf(folder, sizeof folder, "%s", region_path);
    *strrchr(folder, '/') = 0;
    CHECK(!chdir(folder));
    struct hl_ledger_config config = kit_config("region", robust, 100 * MIB); /* from there */
    kit_open(&config);
    CHECK(!chdir("/"));
    CHECK(!kit_take(0, 40 * MIB, 0x1000, 1));
    CHECK(!syscall(SYS_close_range, 3, ~0u, 0));
    EQUAL(kit_take(0, 61 * MIB, 0x2000, 1), 2); /* asks about others: needs a descriptor again */
    EQUAL(kit_take(0, 60 * MIB, 0x2000, 1), 0);
    pid_t child = fork_without_handlers();
    if (!child) {
        EQUAL(kit_take(0, MIB, 0x1000, 1), 2); /* does not take its living parent for dead */
        _exit(0);
    }
    EQUAL(kit_wait(child), 0);
    EQUAL(kit_give(0x1000) + kit_give(0x2000), 2);
    EQUAL(hl_ledger_used(0), 0);
}

static void closed_robust(void) { closed_descriptors(1); }
static void closed_file(void) { closed_descriptors(0); }

/* ---- what cannot be opened: one line, no signal, no exit ---- */

static void refused(int expected, const char *part) {
    struct hl_ledger_config config = kit_config(region_path, 1, 0);
    const char *why = "";
    errno = 77;
    EQUAL(-hl_ledger_open(&config, &why), expected);
    EQUAL(errno, 77);
    CHECK(!strncmp(why, region_path, strlen(region_path) < 60 ? strlen(region_path) : 60));
    CHECK(strstr(why, part) && !strchr(why, '\n'));
    EQUAL(hl_ledger_is_open(), 0);
    EQUAL(hl_ledger_used(0), 0);
    EQUAL(kit_take(0, 1, 0x1000, 1), 304);
}

static void unopenable(void) {
    struct rlimit small = {.rlim_cur = 4096, .rlim_max = RLIM_INFINITY}, before;
    CHECK(!getrlimit(RLIMIT_FSIZE, &before) && !setrlimit(RLIMIT_FSIZE, &small));
    refused(EFBIG, "ulimit -f");
    CHECK(!setrlimit(RLIMIT_FSIZE, &before) && !unlink(region_path) && !mkdir(region_path, 0700));
    refused(EISDIR, "directory");
    CHECK(!rmdir(region_path) && !mkfifo(region_path, 0600));
    refused(EPROTO, "not a regular file");
    CHECK(!unlink(region_path) && !symlink(region_path, region_path));
    refused(ELOOP, "symbolic links");
    CHECK(!unlink(region_path));
    strcat(region_path, "/none");
    refused(ENOENT, "existing folder");
    memset(region_path + 1, 'x', sizeof region_path - 2);
    refused(ENAMETOOLONG, "too long");
    *strrchr(region_path, 'x') = 0;
}

/* ---- many allocations: nothing is quadratic (a test that takes minutes is noticed) ---- */

static void many(void) {
    struct hl_ledger_config config = kit_config(region_path, 1, 0);
    kit_open(&config);
    const uint64_t count = 300000;
    for (uint64_t i = 0; i < count; i++) CHECK(!kit_take(0, 512, 0x7f0000000000 + i * 512, i % 2));
    EQUAL(hl_ledger_release_context(0), count / 2 * 512); /* every second one of a full table */
    for (uint64_t i = 0; i < count; i += 2) CHECK(!kit_take(1, 512, 0x7f0000000000 + i * 512, 1000 + i));
    for (uint64_t i = 0; i < count; i += 2) EQUAL(hl_ledger_release_context(1000 + i), 512); /* a context each */
    EQUAL(hl_ledger_release_context(1), count / 2 * 512);
    EQUAL(hl_ledger_live(), 0);
    EQUAL(hl_ledger_used(0) + hl_ledger_used(1), 0);
}

/* ---- threads ---- */

enum { THREADS = 4, OPERATIONS = 4000, HELD = 64 };

static const uint64_t SCARCE = 40 << 20; /* so that many are refused */

static void *work(void *argument) {
    uint64_t seed = 0x9e3779b97f4a7c15u * ((uint64_t)(uintptr_t)argument + 1),
             base = ((uint64_t)(uintptr_t)argument + 1) << 40;
    uint64_t held[HELD] = {0};
    for (int i = 0; i < OPERATIONS; i++) {
        uint64_t which = kit_random(&seed) % HELD, bytes = 1 + kit_random(&seed) % (4 * MIB);
        if (held[which]) {
            EQUAL(kit_give(base + which), 1);
            held[which] = 0;
        } else if (!kit_take((int)(which & 1), bytes, base + which, which % 5)) {
            held[which] = bytes;
        }
        CHECK(hl_ledger_used((int)(which & 1)) <= SCARCE);
    }
    for (int i = 0; i < HELD; i++)
        if (held[i]) EQUAL(kit_give(base + (uint64_t)i), 1);
    return NULL;
}

static void threads(int robust, enum hl_memory_mode mode) {
    struct hl_ledger_config config = kit_config(region_path, robust, SCARCE);
    config.mode = mode;
    kit_open(&config);
    pthread_t thread[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++) CHECK(!pthread_create(&thread[i], NULL, work, (void *)i));
    for (int i = 0; i < THREADS; i++) CHECK(!pthread_join(thread[i], NULL));
    EQUAL(hl_ledger_live(), 0);
    EQUAL(hl_ledger_used(0), 0);
    EQUAL(hl_ledger_used(1), 0);
}

static void threads_robust(void) { threads(1, HL_MODE_RESERVE); }
static void threads_file(void) { threads(0, HL_MODE_RESERVE); }
static void threads_double_check(void) { threads(1, HL_MODE_DOUBLE_CHECK); }

/* ---- planted failures: what the other tests and the sanitizers must be able to see ---- */

static void planted_wrong_sum(void) {
    struct hl_ledger_config config = kit_config(region_path, 1, 100 * MIB);
    kit_open(&config);
    CHECK(!kit_take(0, MIB, 0x1000, 1));
    EQUAL(hl_ledger_used(0), 2 * MIB);
}

static void planted_overflow(void) {
    volatile char *small = malloc(8);
    small[8] = 1;
    free((void *)small);
}

static void planted_undefined(void) {
    volatile int large = INT32_MAX;
    large = large + 1;
}

static int raced;
static void *race(void *nothing) {
    for (int i = 0; i < 1000; i++) raced++;
    return nothing;
}

static void planted_race(void) {
    pthread_t one, two;
    CHECK(!pthread_create(&one, NULL, race, NULL) && !pthread_create(&two, NULL, race, NULL));
    pthread_join(one, NULL);
    pthread_join(two, NULL);
}

static const struct {
    const char *name;
    void (*run)(void);
} TESTS[] = {
    {"entries", entries},
    {"life_robust", life_robust},
    {"life_file", life_file},
    {"life_private", life_private},
    {"life_double_check", life_double_check},
    {"snapshot", snapshot},
    {"rollback", rollback},
    {"bury_robust", bury_robust},
    {"bury_file", bury_file},
    {"dead_robust", dead_robust},
    {"dead_file", dead_file},
    {"fork_robust", fork_robust},
    {"fork_file", fork_file},
    {"fork_private", fork_private},
    {"fork_bare_robust", fork_bare_robust},
    {"fork_bare_file", fork_bare_file},
    {"orphan_robust", orphan_robust},
    {"orphan_file", orphan_file},
    {"closed_robust", closed_robust},
    {"closed_file", closed_file},
    {"unopenable", unopenable},
    {"many", many},
    {"threads_robust", threads_robust},
    {"threads_file", threads_file},
    {"threads_double_check", threads_double_check},
    {"planted_wrong_sum", planted_wrong_sum},
    {"planted_overflow", planted_overflow},
    {"planted_undefined", planted_undefined},
    {"planted_race", planted_race},
};

int main(int count, char **arguments) {
    for (size_t i = 0; i < sizeof TESTS / sizeof *TESTS; i++)
        if (count < 3) {
            puts(TESTS[i].name);
        } else if (!strcmp(TESTS[i].name, arguments[2])) {
            snprintf(region_path, sizeof region_path, "%s/region", arguments[1]);
            TESTS[i].run();
            return 0;
        }
    return count < 3 ? 0 : 2;
}
