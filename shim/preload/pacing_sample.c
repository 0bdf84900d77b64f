/* What NVML says: how much of the device this container's processes used lately, and who else is there.
 *
 * Invariants: NVML is asked by one process of the container at a time (the tick's claim) and with no lock held. A sample
 * counts once: only entries newer than the last ones seen are fresh. Which PIDs are ours own.c knows; without them a sample
 * is unusable and says so.
 *
 * Where all processes on the device write to the board of the node (pacing_board.c), that is the sample. */
#include "pacing.h"

#include "config.h"
#include "history.h"
#include "own.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SAMPLES = 256, PROCESSES = 256, HANDLES = 64, IDLE_NS = 400000000 };

static struct {
    int pid; /* of the process that initialised NVML */
    bool usable;
    nvmlDevice_t handle[HL_DEVICES];
    bool looked[HL_DEVICES];
    unsigned long long seen[HL_DEVICES];
} nvml;

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

/* One of ours at least is known to NVML by a number. */
static bool knows(const struct hl_own *own) {
    for (uint32_t i = 0; i < own->count; i++)
        if (own->process[i].listed) return true;
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
    static struct hl_own own;
    static struct present present;
    sample->cut = cut;
    if (pthread_mutex_trylock(&turn)) return; /* another device's turn: the next tick comes soon */
    nvmlDevice_t handle = start() ? handle_of(device) : NULL;
    __typeof__(&nvmlDeviceGetProcessUtilization) ask = HL_REAL(nvmlDeviceGetProcessUtilization);
    bool counted = handle && find_present(handle, &present);
    bool told = counted && hl_own_find(&own, device, present.list, present.count, sizeof *present.list);
    sample->known = told && own.all && own.count;
    sample->usable = told && knows(&own) && ask;
    for (unsigned i = 0; counted && i < present.count; i++) {
        uint64_t used = present.list[i].usedGpuMemory;
        sample->neighbours += !hl_own_listed(&own, present.list[i].pid);
        hl_ledger_sampled(device, present.list[i].pid, &used, NULL);
    }
    if (!board || hl_ledger_has_monitor() || !hl_board_sample(device, cut, hl_now_ns(), sample)) {
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
        if (!hl_own_listed(&own, list[i].pid)) continue;
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
