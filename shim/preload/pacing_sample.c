/* What NVML says: how much of the device this container's processes used lately, and who else is there.
 *
 * Invariants: NVML is asked by one process of the container at a time (the tick's claim) and with no lock held. A sample
 * counts once: only entries newer than the last ones seen are fresh. A process is ours only by a PID that NVML's PID
 * namespace knows it by: the slot's host PID, or its PID where its namespace is the one that NVML counts in
 * (HOOKLAB_HOST_NAMESPACE, else the machine's first one). Nothing is guessed: without such PIDs a sample is unusable and
 * says so. */
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

struct own {
    uint32_t pid[HL_REGION_SLOTS];
    uint32_t count;
    bool all; /* every living process is known */
};

static void find_own(struct own *own) {
    const struct hl_region_header *header = hl_ledger_header();
    uint64_t host = host_namespace();
    int all = 0, told = hl_ledger_hosts(own->pid, HL_REGION_SLOTS, &all); /* where the slots are not these */
    own->count = told > 0 ? (uint32_t)told : 0;
    own->all = all;
    if (told >= 0) return;
    own->all = header != NULL;
    if (!header) return;
    const struct hl_region_slot *slots = (const void *)((const char *)header + header->slot_offset);
    uint32_t high = __atomic_load_n(&header->slot_high, __ATOMIC_ACQUIRE);
    for (uint32_t i = 0; i < high && i < HL_REGION_SLOTS; i++) {
        const struct hl_region_slot *slot = &slots[i];
        if (__atomic_load_n(&slot->state, __ATOMIC_ACQUIRE) != HL_SLOT_LIVE) continue;
        uint32_t pid = slot->host_pid ? slot->host_pid : slot->pid_namespace == host ? slot->pid : 0;
        if (pid) own->pid[own->count++] = pid;
        else own->all = false;
    }
}

static bool is_own(const struct own *own, uint32_t pid) {
    for (uint32_t i = 0; i < own->count; i++)
        if (own->pid[i] == pid) return true;
    return false;
}

static uint64_t neighbours(int device, nvmlDevice_t handle, const struct own *own) {
    static nvmlProcessInfo_t list[PROCESSES]; /* one process's turn at a time, and one thread's */
    unsigned count = PROCESSES;
    uint64_t found = 0;
    __typeof__(&nvmlDeviceGetComputeRunningProcesses_v3) ask = HL_REAL(nvmlDeviceGetComputeRunningProcesses_v3);
    if (!ask || ask(handle, &count, list) != NVML_SUCCESS) return 0;
    for (unsigned i = 0; i < count && i < PROCESSES; i++) {
        uint64_t bytes = list[i].usedGpuMemory;
        found += !is_own(own, list[i].pid);
        hl_ledger_sampled(device, list[i].pid, &bytes, NULL);
    }
    return found;
}

static uint64_t real_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t capped(uint64_t value) { return value > 10000 ? 10000 : value; }

void hl_sample_take(int device, struct hl_sample *sample) {
    static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
    static nvmlProcessUtilizationSample_t list[SAMPLES];
    static struct own own;
    if (pthread_mutex_trylock(&turn)) return; /* another device's turn: the next tick comes soon */
    nvmlDevice_t handle = start() ? handle_of(device) : NULL;
    __typeof__(&nvmlDeviceGetProcessUtilization) ask = HL_REAL(nvmlDeviceGetProcessUtilization);
    if (!handle || !ask) goto done;
    find_own(&own);
    sample->known = own.all && own.count;
    sample->usable = own.count > 0;
    sample->neighbours = neighbours(device, handle, &own);
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
