/* Two writers on one slot, a reader in between: what a sequence number lets a reader see.
 *
 * Usage: torn FOLDER hami|hooklab READS, or torn FOLDER write|write-two|take|come-and-go: writers for somebody else to read,
 * until standard input ends: one and two of hami-1.2, two of hooklab-1, and processes that enter hooklab-1 and end. Two
 * threads book and give back pairs of words that always agree; each change of a pair is one change of the books. A reader
 * that follows the protocol counts the reads that it had to believe and whose words do not fit together. Prints `READS
 * TORN`. With hami the second writer makes the number even in
 * the middle of the first one's change. With hooklab changes are made under the region lock and readers read one word. */
#define _GNU_SOURCE
#include "hami.h"
#include "kit.h"
#include "region.h"

#include <pthread.h>
#include <time.h>

static const uint64_t MIB = 1 << 20;
static struct hl_hami hami;
static struct hl_region region;
static int stop;

static void *write_hami(void *unused) {
    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
        hl_hami_add(&hami, 0, MIB, 1);
        hl_hami_add(&hami, 0, 0 - MIB, 1);
    }
    return unused;
}

/* With pauses: readers retry while the number moves, and a writer that never rests would starve them. */
static void *write_calmly(void *unused) {
    struct timespec nap = {.tv_nsec = 50000};
    for (uint64_t bytes = MIB; !__atomic_load_n(&stop, __ATOMIC_RELAXED); bytes = 0 - bytes) {
        hl_hami_add(&hami, 0, bytes, 1);
        nanosleep(&nap, NULL);
    }
    return unused;
}

/* total and its parts belong to one change: seen apart, the read is torn. */
static int read_hami(void) {
    const struct hl_hami_slot *slot = hami.mine;
    for (;;) {
        uint64_t before = __atomic_load_n(&slot->sequence, __ATOMIC_ACQUIRE);
        if (before & 1) continue;
        uint64_t total = __atomic_load_n(&slot->used[0].total, __ATOMIC_ACQUIRE);
        uint64_t data = __atomic_load_n(&slot->used[0].data, __ATOMIC_ACQUIRE);
        if (__atomic_load_n(&slot->sequence, __ATOMIC_ACQUIRE) == before) return total != data;
    }
}

static void *write_hooklab(void *argument) {
    uint64_t pointer = 0x1000 * (uint64_t)(uintptr_t)argument;
    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
        CHECK(!kit_take(0, MIB, pointer, 1));
        CHECK(kit_give(pointer));
    }
    return NULL;
}

/* Under the lock, as everybody who needs total and parts together: the one word of the slot and the total agree. */
static int read_hooklab(void) {
    CHECK(!hl_region_lock(&region, HL_NO_SLOT));
    int torn = region.device[0].used != region.slot[0].device[0].held;
    hl_region_unlock(&region);
    return torn;
}

/* One process after another in slot 1; the one in slot 0 stays. */
static void *come_and_go(void *path) {
    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
        pid_t child = fork();
        if (!child) {
            hl_ledger_fork_child();
            CHECK(hl_ledger_slot()); /* enters */
            hl_ledger_close();
            _exit(0);
        }
        CHECK(!kit_wait(child));
    }
    return path;
}

static int write_for_others(const char *path, const char *what) {
    char why[HL_WHY_BYTES];
    static const uint64_t none[16];
    int is_hami = !strncmp(what, "write", 5), writers = 1 + (!strcmp(what, "write-two") || !strcmp(what, "take"));
    if (is_hami) {
        CHECK(!hl_hami_open(&hami, path, none, none, why, sizeof why));
        CHECK(!hl_hami_register(&hami));
    } else {
        struct hl_ledger_config config = kit_config(path, 1, 0);
        kit_open(&config);
    }
    void *(*work)(void *) = !strcmp(what, "write") ? write_calmly
                            : is_hami              ? write_hami
                            : writers > 1          ? write_hooklab
                                                   : come_and_go;
    pthread_t thread[2];
    for (uintptr_t i = 0; i < (uintptr_t)writers; i++) CHECK(!pthread_create(&thread[i], NULL, work, (void *)(i + 1)));
    printf("writing\n");
    fflush(stdout);
    CHECK(!read(0, why, 1));
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < writers; i++) pthread_join(thread[i], NULL);
    return 0;
}

int main(int count, char **arguments) {
    char path[512], why[HL_WHY_BYTES];
    static const uint64_t none[16];
    if (count == 3) {
        snprintf(path, sizeof path, "%s/region", arguments[1]);
        return write_for_others(path, arguments[2]);
    }
    if (count < 4) return 2;
    int is_hami = !strcmp(arguments[2], "hami");
    long reads = atol(arguments[3]), torn = 0;
    snprintf(path, sizeof path, "%s/region", arguments[1]);
    if (is_hami) {
        CHECK(!hl_hami_open(&hami, path, none, none, why, sizeof why));
        CHECK(!hl_hami_register(&hami));
    } else {
        struct hl_ledger_config config = kit_config(path, 1, 0);
        struct hl_region_new fresh = {.create = 0};
        kit_open(&config);
        CHECK(!hl_region_open(&region, path, &fresh, why));
        hl_region_gate_open(&region);
    }
    pthread_t writers[2];
    for (uintptr_t i = 0; i < 2; i++)
        CHECK(!pthread_create(&writers[i], NULL, is_hami ? write_hami : write_hooklab, (void *)(i + 1)));
    for (long i = 0; i < reads && (!is_hami || !torn); i++) torn += is_hami ? read_hami() : read_hooklab();
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < 2; i++) pthread_join(writers[i], NULL);
    printf("%ld %ld\n", reads, torn);
    return 0;
}
