/* Which tier answers: broker, procfs, experiment, or none; when it is asked; where the answer is written down.
 *
 * Invariants: nothing is asked before something needs the answer, and never inside cuInit: the first need is the first
 * context, and later whoever needs the PID and does not have it. An answer holds until the process ends or forks. Failure
 * is never for life: after a pause, which doubles up to a minute, the next need asks again. Each attempt writes for each
 * tier why it did not answer and how long it took, and one record of the outcome. */
#include "identity.h"

#include "config.h"
#include "history.h"
#include "ledger.h"
#include "preload.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

static const uint64_t first_pause_ns = 250000000, longest_pause_ns = 60000000000;

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static uint32_t host_pid;  /* release/acquire; 0 = unknown */
static uint64_t next_try;  /* release/acquire; CLOCK_MONOTONIC, ns */
static uint64_t pause_ns;  /* written by whoever has the turn */
static int needed_by_mode; /* 0 not looked yet, 1 no, 2 yes */

static bool set(const char *text) { return text && *text; }

static void tell(int tier, int reason, uint32_t pid, uint64_t ns, bool outcome) {
    struct hl_event event = {.event = HL_EVENT_IDENTITY,
                             .source = HL_SOURCE_SHIM,
                             .device = 0xFF,
                             .name = 0xFFFF,
                             .step = 0xFFFF,
                             .result = reason,
                             .a = (uint64_t)tier,
                             .b = pid,
                             .c = ns,
                             .extra = outcome};
    hl_history_add(&event);
}

static int ask_broker(int device, uint32_t *pid) {
    (void)device;
    const char *gate = hl_config("LIBVGPU_HOSTPID_BROKER");
    if (!set(gate)) return HL_REASON_DISABLED;
    return strcmp(gate, "1") ? HL_REASON_BAD_GATE : hl_broker_ask(pid);
}

static int ask_procfs(int device, uint32_t *pid) {
    (void)device;
    const char *root = hl_config("LIBVGPU_HOST_PROCFS");
    return set(root) ? hl_procfs_ask(root, pid) : HL_REASON_DISABLED;
}

static int ask_probe(int device, uint32_t *pid) {
    const char *gate = hl_config("HOOKLAB_IDENTITY_PROBE");
    if (set(gate) && !strcmp(gate, "0")) return HL_REASON_DISABLED;
    return hl_probe_ask(device, pid);
}

static const struct {
    int tier;
    const char *name;
    int (*ask)(int device, uint32_t *pid);
} tiers[] = {{HL_TIER_BROKER, "broker", ask_broker},
             {HL_TIER_PROCFS, "procfs", ask_procfs},
             {HL_TIER_PROBE, "probe", ask_probe}};
enum { TIERS = sizeof tiers / sizeof *tiers };

/* The turn is ours. */
static uint32_t resolve(int device) {
    uint64_t began = hl_now_ns();
    uint32_t pid = 0;
    int tier = HL_TIER_UNKNOWN, reason = HL_REASON_DISABLED;
    hl_phase(HL_PHASE_IDENTITY_ENTER, 0);
    for (int i = 0; i < TIERS && !pid; i++) {
        uint64_t asked = hl_now_ns();
        reason = tiers[i].ask(device, &pid);
        tell(tiers[i].tier, reason, pid, hl_now_ns() - asked, false);
        if (pid) tier = tiers[i].tier;
        else if (reason != HL_REASON_DISABLED) hl_log(2, "host PID: %s: %s", tiers[i].name, hl_reason_text(reason));
    }
    uint64_t ended = hl_now_ns();
    tell(tier, reason, pid, ended - began, true);
    if (pid) {
        hl_ledger_identity(pid, (uint32_t)tier);
        hl_history_host_pid(pid);
        hl_log(2, "host PID: %u, by the %s", pid, tiers[tier - 1].name);
        __atomic_store_n(&host_pid, pid, __ATOMIC_RELEASE);
    } else {
        pause_ns = !pause_ns ? first_pause_ns : pause_ns < longest_pause_ns / 2 ? pause_ns * 2 : longest_pause_ns;
        if (pause_ns == first_pause_ns)
            hl_log(1, "host PID unknown so far: %s; it is asked for again when needed", hl_reason_text(reason));
        __atomic_store_n(&next_try, ended + pause_ns, __ATOMIC_RELEASE);
    }
    hl_phase(HL_PHASE_IDENTITY_EXIT, (int)reason);
    return pid;
}

uint32_t hl_identity_host_pid(int device) {
    uint32_t pid = __atomic_load_n(&host_pid, __ATOMIC_ACQUIRE);
    if (HL_LIKELY(pid != 0)) return pid;
    if (hl_now_ns() < __atomic_load_n(&next_try, __ATOMIC_ACQUIRE)) return 0;
    int saved = errno;
    bool entered = hl_enter();
    pthread_mutex_lock(&turn);
    pid = __atomic_load_n(&host_pid, __ATOMIC_ACQUIRE);
    if (!pid && hl_now_ns() >= __atomic_load_n(&next_try, __ATOMIC_ACQUIRE)) pid = resolve(device);
    pthread_mutex_unlock(&turn);
    if (entered) hl_leave();
    errno = saved;
    return pid;
}

/* What makes the PID needed from the first context on: samples that must be joined to slots (a core limit), a context
 * whose cost only NVML knows, an operator who opened a tier or asks for it. */
static bool needed(void) {
    int known = __atomic_load_n(&needed_by_mode, __ATOMIC_RELAXED);
    if (known) return known == 2;
    const char *bytes = hl_config("HOOKLAB_CONTEXT_BYTES"), *wanted = hl_config("HOOKLAB_HOST_PID");
    bool yes = (set(bytes) && !strcmp(bytes, "learn")) || (set(wanted) && !strcmp(wanted, "1")) ||
               set(hl_config("LIBVGPU_HOSTPID_BROKER")) || set(hl_config("LIBVGPU_HOST_PROCFS"));
    for (int device = 0; device < HL_DEVICES; device++) yes = yes || hl_limits.cores[device];
    __atomic_store_n(&needed_by_mode, yes ? 2 : 1, __ATOMIC_RELAXED);
    return yes;
}

void hl_identity_context_made(int device) {
    if (needed()) hl_identity_host_pid(device);
}

void hl_identity_fork_child(void) {
    pthread_mutex_init(&turn, NULL);
    __atomic_store_n(&host_pid, 0, __ATOMIC_RELEASE);
    __atomic_store_n(&next_try, 0, __ATOMIC_RELEASE);
    pause_ns = 0;
    hl_probe_fork_child();
}
