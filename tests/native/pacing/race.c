/* Threads of several processes race for the tokens of one container's bucket, through the limiter itself.
 *
 *   race REGION PROCESSES THREADS ALLOWANCE KILLED [overwrites]
 *
 * The bucket holds ALLOWANCE tokens and is never refilled; a launch costs 1 to 7 of them, and the driver refuses one in
 * eight. The first question of every process waits (10 s at most) until all of them have asked, so that their answers
 * collide whatever the machine does. KILLED processes die in the middle. One line of JSON: tokens spent by launches, held
 * by processes that ended well, left in the bucket and on their way back; answers that came too late; launches. */
#include "engine.h"
#include "history.h"
#include "ledger.h"
#include "pacing.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STARTED = HL_SHARE_OWN, LEFT, SEEN, MOST_NAPS = 20, BULK = 64 };

static struct { /* of all processes */
    uint64_t spent, held, conflicts, leases, launches, asked, ended;
} *all;
static uint64_t processes, allowance;
static bool dies;

/* ---- what the limiter's files ask of the rest of the shim ---- */

void hl_engine_failed(const struct hl_engine_api *api) { (void)api; }
void hl_sample_take(int device, bool board, uint64_t cut, struct hl_sample *sample) {
    (void)device, (void)board, (void)cut, (void)sample;
}
uint64_t hl_pace_now(void) { return hl_now_ns(); }
uint64_t hl_pace_true_now(void) { return hl_now_ns(); }

/* The bucket is empty: who has waited often enough goes home. No lock is held here. */
void hl_pace_nap(uint64_t ns) {
    static __thread int naps;
    (void)ns;
    if (dies) raise(SIGKILL); /* at the latest */
    struct timespec short_while = {.tv_nsec = 1000000};
    if (++naps < MOST_NAPS) nanosleep(&short_while, NULL);
    else pthread_exit(NULL);
}

/* Planted: a racy bucket, whose answers count although somebody else's was committed meanwhile. */
static bool overwrites;
int __real_hl_share_commit(int device, const struct hl_share *share);
int __wrap_hl_share_commit(int device, const struct hl_share *share);
int __wrap_hl_share_commit(int device, const struct hl_share *share) {
    struct hl_share now, late = *share;
    if (overwrites && hl_share_read(device, &now)) return -1;
    if (overwrites) late.version = now.version;
    return __real_hl_share_commit(device, overwrites ? &late : share);
}

/* ---- the bucket ---- */

static void meet(void) {
    static int met;
    if (__atomic_exchange_n(&met, 1, __ATOMIC_SEQ_CST)) return;
    __atomic_fetch_add(&all->asked, 1, __ATOMIC_SEQ_CST);
    uint64_t until = hl_now_ns() + UINT64_C(10000000000);
    while (__atomic_load_n(&all->asked, __ATOMIC_SEQ_CST) < processes && hl_now_ns() < until) sched_yield();
}

static int64_t lease(int device, int64_t cost, uint64_t now, void *shared, size_t bytes) {
    (void)device, (void)now, (void)bytes;
    uint64_t *words = shared, returned = words[6];
    if (!words[STARTED]) words[STARTED] = 1, words[LEFT] = allowance;
    words[LEFT] += returned - words[SEEN];
    words[SEEN] = returned;
    meet();
    sched_yield();
    uint64_t grant = cost > BULK ? (uint64_t)cost : BULK;
    if (grant > words[LEFT]) grant = words[LEFT];
    if (grant < (uint64_t)cost) return -1000000;
    words[LEFT] -= grant;
    return (int64_t)grant;
}

static uint32_t features(void) { return HL_ENGINE_HAS_LEASE | HL_ENGINE_PACES_BLOCKS; }
static const struct hl_engine_api api = {.lease = lease, .features = features};
const struct hl_engine_api *hl_engine_of_process(void) { return &api; }

static CUresult get_current(CUcontext *context) { return *context = (CUcontext)(uintptr_t)64, CUDA_SUCCESS; }

/* ---- who races ---- */

static void *run(void *argument) {
    uint64_t chance = (uint64_t)(uintptr_t)argument * UINT64_C(0x9e3779b97f4a7c15) + 1;
    for (uint64_t number = 0;; number++) {
        chance = chance * UINT64_C(6364136223846793005) + 1442695040888963407u;
        uint64_t blocks = 1 + (chance >> 33) % 7;
        struct hl_launch launch = {.entry = HL_ENTRY_KERNEL,
                                   .id = HL_cuLaunchKernel,
                                   .object = (void *)(uintptr_t)64,
                                   .blocks = blocks,
                                   .threads = 1};
        struct hl_pace pace;
        struct hl_estimate *estimate = hl_estimate_of(&launch);
        __atomic_store_n(&estimate->ns, 500, __ATOMIC_RELAXED);
        __atomic_store_n(&estimate->samples, 2, __ATOMIC_RELAXED); /* known: the short way is taken, too */
        if (!hl_pace_enter(&pace, &launch)) abort();
        bool refused = !((chance >> 40) % 8);
        if (!refused) __atomic_fetch_add(&all->spent, blocks, __ATOMIC_SEQ_CST);
        hl_pace_leave(&pace, refused ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS);
        __atomic_fetch_add(&all->launches, 1, __ATOMIC_RELAXED);
        if (dies && number == 50) raise(SIGKILL);
    }
    return NULL;
}

static int process(const char *region, uint64_t number, int threads) {
    hl_real_table[HL_cuCtxGetCurrent] = get_current;
    struct hl_ledger_config config = {.path = region};
    config.sm_limit[0] = 50;
    const char *why = "";
    if (hl_ledger_open(&config, &why) || !hl_ledger_slot()) return fprintf(stderr, "%s\n", why), 1;
    hl_pacing_prepare();
    pthread_t thread[64];
    for (int i = 0; i < threads; i++)
        if (pthread_create(&thread[i], NULL, run, (void *)(uintptr_t)(number * 64 + (unsigned)i))) return 1;
    for (int i = 0; i < threads; i++) pthread_join(thread[i], NULL);
    __atomic_fetch_add(&all->held, (uint64_t)hl_pacers[0].tokens, __ATOMIC_SEQ_CST);
    __atomic_fetch_add(&all->conflicts, hl_pace_slot()->conflicts, __ATOMIC_SEQ_CST);
    __atomic_fetch_add(&all->leases, hl_pace_slot()->leases, __ATOMIC_SEQ_CST);
    __atomic_fetch_add(&all->ended, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&all->ended, __ATOMIC_SEQ_CST) <= processes) sched_yield(); /* until the books are read */
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 6) return 2;
    overwrites = argc > 6 && !strcmp(argv[6], "overwrites");
    alarm(60);
    processes = strtoull(argv[2], NULL, 10);
    int threads = atoi(argv[3]);
    allowance = strtoull(argv[4], NULL, 10);
    uint64_t killed = strtoull(argv[5], NULL, 10), lost = 0;
    all = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED || threads < 1 || threads > 64) return 2;
    for (uint64_t i = 0; i < processes; i++) {
        pid_t child = fork();
        if (child < 0) return 1;
        if (child) continue;
        alarm(60);
        dies = i < killed;
        _exit(process(argv[1], i, threads));
    }
    for (uint64_t i = 0; i < killed; i++) {
        int status = 0;
        if (wait(&status) < 0 || !WIFSIGNALED(status)) return 1;
        lost++;
    }
    struct timespec short_while = {.tv_nsec = 1000000};
    while (__atomic_load_n(&all->ended, __ATOMIC_SEQ_CST) < processes - killed) nanosleep(&short_while, NULL);
    struct hl_ledger_config config = {.path = argv[1]};
    const char *why = "";
    if (hl_ledger_open(&config, &why) || !hl_ledger_slot()) return fprintf(stderr, "%s\n", why), 1;
    struct hl_share share;
    if (hl_share_read(0, &share)) return 1;
    uint64_t back = hl_ledger_device(0)->returned - share.words[SEEN];
    printf("{\"spent\": %llu, \"held\": %llu, \"left\": %llu, \"back\": %llu, \"conflicts\": %llu, \"leases\": %llu, "
           "\"launches\": %llu}\n",
           (unsigned long long)all->spent, (unsigned long long)all->held, (unsigned long long)share.words[LEFT],
           (unsigned long long)back, (unsigned long long)all->conflicts, (unsigned long long)all->leases,
           (unsigned long long)all->launches);
    __atomic_store_n(&all->ended, processes + 1, __ATOMIC_SEQ_CST);
    while (wait(NULL) > 0) {}
    return 0;
}
