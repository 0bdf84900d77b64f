/* What launches here and a monitor outside tell each other in a region of layout hami-1.2 (hami.h).
 *
 * Invariants: every word is read and written whole and alone, no lock is taken: what lands in a slot that is being moved
 * is set right by the next sample. A launch never undoes a block: recent_kernel is raised only from the value that was
 * seen, so a monitor's -1 stays until a monitor takes it away. */
#define _GNU_SOURCE
#include "hami.h"

#include "ledger.h"

#include <errno.h>
#include <signal.h>
#include <time.h>

enum { BETWEEN_S = 1, RECENT = 2 };

/* Seconds since 1970 of the newest launch, at most once a second a process and never backwards. */
static void say_kernel(struct hl_hami *hami) {
    struct timespec time;
    clock_gettime(CLOCK_REALTIME_COARSE, &time);
    uint64_t now = (uint64_t)time.tv_sec, said = __atomic_load_n(&hami->kernel_said, __ATOMIC_RELAXED);
    if (now - said < BETWEEN_S) return;
    if (!__atomic_compare_exchange_n(&hami->kernel_said, &said, now, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) return;
    uint64_t last = __atomic_load_n(&hami->map->last_kernel_time, __ATOMIC_RELAXED);
    while (last < now && !__atomic_compare_exchange_n(&hami->map->last_kernel_time, &last, now, 1, __ATOMIC_RELEASE,
                                                      __ATOMIC_RELAXED)) {}
}

int hl_hami_may_launch(struct hl_hami *hami) {
    int32_t *word = &hami->map->recent_kernel, recent = __atomic_load_n(word, __ATOMIC_ACQUIRE);
    say_kernel(hami);
    if (recent < 0) return 0;
    if (recent != RECENT) __atomic_compare_exchange_n(word, &recent, RECENT, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
    return 1;
}

int hl_hami_switched_off(const struct hl_hami *hami) {
    return !__atomic_load_n(&hami->map->utilization_switch, __ATOMIC_RELAXED);
}

static int bound(const struct hl_hami *hami) {
    int count = __atomic_load_n(&hami->map->proc_count, __ATOMIC_ACQUIRE);
    return count < 0 ? 0 : count < HL_HAMI_SLOTS ? count : HL_HAMI_SLOTS;
}

int hl_hami_processes(const struct hl_hami *hami, int device, struct hl_ledger_process *out, int room) {
    int found = 0;
    int saved = errno;
    uint64_t here = hl_pid_namespace(); /* the region is for one namespace */
    for (int i = 0; i < bound(hami) && found < room; i++) {
        const struct hl_hami_slot *slot = &hami->map->procs[i];
        int32_t pid = __atomic_load_n(&slot->pid, __ATOMIC_ACQUIRE);
        if (!pid || (kill(pid, 0) && errno == ESRCH)) continue; /* a dead one's slot stays until somebody clears it */
        int32_t host = __atomic_load_n(&slot->host_pid, __ATOMIC_ACQUIRE);
        out[found++] =
            (struct hl_ledger_process){.pid = (uint32_t)pid,
                                       .host_pid = host > 0 ? (uint32_t)host : 0,
                                       .pid_namespace = here,
                                       .held = device >= 0 && device < HL_HAMI_DEVICES
                                                   ? __atomic_load_n(&slot->used[device].total, __ATOMIC_RELAXED)
                                                   : 0};
    }
    errno = saved;
    return found;
}

void hl_hami_sampled(struct hl_hami *hami, int device, uint32_t host_pid, const uint64_t *bytes,
                     const uint64_t *percent) {
    for (int i = 0; i < bound(hami); i++) {
        struct hl_hami_slot *slot = &hami->map->procs[i];
        if (__atomic_load_n(&slot->host_pid, __ATOMIC_ACQUIRE) != (int32_t)host_pid) continue;
        if (bytes) __atomic_store_n(&slot->monitor_used[device], *bytes, __ATOMIC_RELAXED);
        if (percent) __atomic_store_n(&slot->util[device].sm, *percent, __ATOMIC_RELAXED);
    }
}
