/* What NVML says: how much of the device this container's processes used lately, and who else is there.
 *
 * Invariants: NVML is asked by one process of the container at a time (the tick's claim) and with no lock held. A sample
 * counts once: only entries newer than the last ones seen are fresh. A process is ours only by a PID that NVML knows it
 * by: the slot's host PID, or its PID where its namespace is the one that NVML counts in (HOOKLAB_HOST_NAMESPACE, else the
 * machine's first one), or its PID inside where NVML's list has this process by that. Nothing is guessed: without such
 * PIDs a sample is unusable and says so.
 *
 * Where all processes on the device write to the board of the node (pacing_board.c), that is the sample. */
#include "pacing.h"

#include "config.h"
#include "history.h"
#include "ledger.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SAMPLES = 256, PROCESSES = 256, HANDLES = 64, IDLE_NS = 400000000 };
static const uint64_t first_namespace = 4026531836; /* PROC_PID_INIT_INO of the kernel */

static struct {
    int pid; /* of the process that initialised NVML */
    bool usable;
    nvmlDevice_t handle[HL_DEVICES];
    bool looked[HL_DEVICES];
    unsigned long long seen[HL_DEVICES];
} nvml;

static uint64_t host_namespace(void) {
    const char *text = hl_config("HOOKLAB_HOST_NAMESPACE");
    return text && *text ? strtoull(text, NULL, 10) : first_namespace;
}

static bool start(void) {
    int self = getpid();
    if (nvml.pid == self) return nvml.usable;
    memset(&nvml, 0, sizeof nvml);
    nvml.pid = self;
    __typeof__(&nvmlInit_v2) init = HL_REAL(nvmlInit_v2);
    return nvml.usable = init && init() == NVML_SUCCESS;
}

static nvmlDevice_t handle_of(int device) {
    if (nvml.looked[device]) return nvml.handle[device];
    nvml.looked[device] = true;
    __typeof__(&nvmlDeviceGetCount_v2) count = HL_REAL(nvmlDeviceGetCount_v2);
    __typeof__(&nvmlDeviceGetHandleByIndex_v2) get = HL_REAL(nvmlDeviceGetHandleByIndex_v2);
    unsigned devices = 0;
    if (!count || !get || count(&devices) != NVML_SUCCESS) return NULL;
    for (unsigned i = 0; i < devices && i < HANDLES; i++) {
        nvmlDevice_t handle = NULL;
        if (get(i, &handle) == NVML_SUCCESS && hl_devices_nvml(handle) == device) return nvml.handle[device] = handle;
    }
    return NULL;
}

struct present { /* processes with a context on the device */
    unsigned count;
    nvmlProcessInfo_t list[PROCESSES];
};

/* False: NVML does not say. */
static bool find_present(nvmlDevice_t handle, struct present *present) {
    present->count = PROCESSES;
    __typeof__(&nvmlDeviceGetComputeRunningProcesses_v3) ask = HL_REAL(nvmlDeviceGetComputeRunningProcesses_v3);
    return ask && ask(handle, &present->count, present->list) == NVML_SUCCESS;
}

static bool is_present(const struct present *present, uint32_t pid) {
    for (unsigned i = 0; pid && i < present->count; i++)
        if (present->list[i].pid == pid) return true;
    return false;
}

struct own {
    uint32_t pid[HL_REGION_SLOTS];
    uint32_t count;
    bool all;       /* every living process is known */
    bool monitored; /* HAMi's books: its monitor reads there what NVML says */
};

static uint32_t outer_pid(const struct hl_region_slot *slot) {
    return slot->host_pid ? slot->host_pid : slot->pid_namespace == host_namespace() ? slot->pid : 0;
}

/* This process has a context, so NVML's list has it, by one number or the other: that tells whose numbers they are. */
static void find_own(struct own *own, const struct present *present) {
    const struct hl_region_header *header = hl_ledger_header();
    const struct hl_region_slot *self = hl_ledger_slot();
    int all = 0, told = hl_ledger_hosts(own->pid, HL_REGION_SLOTS, &all); /* where the slots are not these */
    own->count = told > 0 ? (uint32_t)told : 0;
    own->all = all;
    own->monitored = told >= 0;
    if (told >= 0) return;
    own->all = header != NULL;
    if (!header || !self) return;
    bool inner = !is_present(present, outer_pid(self)) && is_present(present, self->pid);
    const struct hl_region_slot *slots = (const void *)((const char *)header + header->slot_offset);
    uint32_t high = __atomic_load_n(&header->slot_high, __ATOMIC_ACQUIRE);
    for (uint32_t i = 0; i < high && i < HL_REGION_SLOTS; i++) {
        const struct hl_region_slot *slot = &slots[i];
        if (__atomic_load_n(&slot->state, __ATOMIC_ACQUIRE) != HL_SLOT_LIVE) continue;
        uint32_t pid = !inner ? outer_pid(slot) : slot->pid_namespace == self->pid_namespace ? slot->pid : 0;
        if (pid) own->pid[own->count++] = pid;
        else own->all = false;
    }
}

static bool is_own(const struct own *own, uint32_t pid) {
    for (uint32_t i = 0; i < own->count; i++)
        if (own->pid[i] == pid) return true;
    return false;
}

static uint64_t real_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t capped(uint64_t value) { return value > 10000 ? 10000 : value; }

void hl_sample_take(int device, bool board, uint64_t cut, struct hl_sample *sample) {
    static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
    static nvmlProcessUtilizationSample_t list[SAMPLES];
    static struct own own;
    static struct present present;
    sample->cut = cut;
    if (pthread_mutex_trylock(&turn)) return; /* another device's turn: the next tick comes soon */
    nvmlDevice_t handle = start() ? handle_of(device) : NULL;
    __typeof__(&nvmlDeviceGetProcessUtilization) ask = HL_REAL(nvmlDeviceGetProcessUtilization);
    bool counted = handle && find_present(handle, &present);
    if (counted) find_own(&own, &present);
    sample->known = counted && own.all && own.count;
    sample->usable = counted && own.count > 0 && ask;
    for (unsigned i = 0; counted && i < present.count; i++) {
        uint64_t used = present.list[i].usedGpuMemory;
        sample->neighbours += !is_own(&own, present.list[i].pid);
        hl_ledger_sampled(device, present.list[i].pid, &used, NULL);
    }
    if (!board || own.monitored || !hl_board_sample(device, cut, hl_now_ns(), sample)) {
        sample->cut = 0;
    } else if (!counted || present.count <= sample->members) { /* everybody who could be at work is on the board */
        sample->usable = sample->known = sample->exact = true;
        sample->neighbours = sample->others;
        goto done;
    }
    sample->fresh = false; /* somebody is there who tells nothing: NVML's word counts */
    if (!counted || !ask) goto done;
    unsigned count = SAMPLES;
    unsigned long long before = nvml.seen[device], newest = before;
    nvmlReturn_t result = ask(handle, list, &count, before);
    uint64_t real = real_ns();
    if (result == NVML_ERROR_NOT_FOUND || (result == NVML_SUCCESS && !count)) { /* nothing newer */
        if (!before) nvml.seen[device] = real / 1000;
        if (!before || real < before * 1000 + IDLE_NS) goto done;
        sample->fresh = true; /* nobody has used the device for longer than a sample takes */
        sample->window = real - before * 1000;
        sample->time = hl_now_ns();
        nvml.seen[device] = real / 1000;
        goto done;
    }
    if (result != NVML_SUCCESS) {
        sample->usable = false;
        goto done;
    }
    unsigned long long oldest = ~0ull;
    for (unsigned i = 0; i < count && i < SAMPLES; i++) {
        if (list[i].timeStamp > newest) newest = list[i].timeStamp;
        if (list[i].timeStamp > before && list[i].timeStamp < oldest) oldest = list[i].timeStamp;
    }
    nvml.seen[device] = newest;
    if (newest <= before || !before) goto done; /* the first look only learns where the samples are */
    uint64_t stamps = 0, mine = 0, all = 0, window = (newest - before) * 1000;
    for (unsigned i = 0; i < count && i < SAMPLES; i++) {
        if (list[i].timeStamp <= before || list[i].smUtil > 100) continue;
        bool repeated = false;
        for (unsigned j = 0; j < i && !repeated; j++) repeated = list[j].timeStamp == list[i].timeStamp;
        stamps += !repeated;
        all += list[i].smUtil;
        if (!is_own(&own, list[i].pid)) continue;
        uint64_t percent = list[i].smUtil;
        mine += percent;
        hl_ledger_sampled(device, list[i].pid, NULL, &percent);
    }
    if (!stamps) goto done;
    sample->fresh = true;
    sample->window = window;
    sample->own = capped(mine * 100 / stamps);
    sample->all = capped(all * 100 / stamps);
    sample->own_ns = window / stamps * mine / 100;

    uint64_t stamp = newest * 1000;
    sample->time = hl_now_ns() - (real > stamp ? real - stamp : 0);
done:
    pthread_mutex_unlock(&turn);
}
