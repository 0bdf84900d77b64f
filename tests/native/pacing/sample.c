/* One look at NVML by the limiter, over an NVML, a ledger and a kernel that say what the test wants: whose PIDs are these?
 *
 * The files looked at are the product's (pacing_sample.c, own.c). A fresh copy of this library has seen no sample yet. */
#include "history.h"
#include "ledger.h"
#include "own.h"
#include "pacing.h"

#include <errno.h>
#include <string.h>
#include <sys/types.h>

#define RIG __attribute__((visibility("default")))

enum { MOST = 64 };

void *hl_real_table[HL_NAME_COUNT];
void *hl_real_load(int id) { return hl_real_table[id]; }

static struct hl_ledger_process rows[MOST];
static int row_count;
static uint64_t own_namespace;
static char host_namespace[32];
static bool board;

int hl_devices_nvml(nvmlDevice_t device) { return (int)(uintptr_t)device - 1; }
const char *hl_config(const char *key) { return strcmp(key, "HOOKLAB_HOST_NAMESPACE") ? NULL : host_namespace; }
uint64_t hl_pid_namespace(void) { return own_namespace; }
uint64_t hl_now_ns(void) { return 1000; }
int hl_ledger_has_monitor(void) { return 0; }
void hl_ledger_sampled(int device, uint32_t pid, const uint64_t *bytes, const uint64_t *percent) {
    (void)device, (void)pid, (void)bytes, (void)percent;
}
int hl_ledger_processes(int device, struct hl_ledger_process *out, int room) {
    (void)device;
    for (int i = 0; i < row_count && i < room; i++) out[i] = rows[i];
    return row_count;
}
bool hl_board_sample(int device, uint64_t cut, uint64_t now, struct hl_sample *sample) {
    (void)device, (void)cut, (void)now, (void)sample;
    return board;
}

static uint32_t here[MOST]; /* PIDs of processes that live in our namespace */
static int here_count;
int __wrap_kill(pid_t pid, int number);
int __wrap_kill(pid_t pid, int number) {
    (void)number;
    for (int i = 0; i < here_count; i++)
        if (here[i] == (uint32_t)pid) return 0;
    errno = ESRCH;
    return -1;
}

static nvmlProcessInfo_t present[MOST];
static unsigned present_count;
static nvmlProcessUtilizationSample_t entries[MOST];
static unsigned entry_count;
static int answer;

static nvmlReturn_t init(void) { return NVML_SUCCESS; }
static nvmlReturn_t count(unsigned *devices) { return *devices = 2, NVML_SUCCESS; }
static nvmlReturn_t get(unsigned index, nvmlDevice_t *device) {
    *device = (nvmlDevice_t)(uintptr_t)(index + 1);
    return NVML_SUCCESS;
}
static nvmlReturn_t processes(nvmlDevice_t device, unsigned *room, nvmlProcessInfo_t *list) {
    (void)device;
    memcpy(list, present, present_count * sizeof *list);
    *room = present_count;
    return NVML_SUCCESS;
}
static nvmlReturn_t utilisation(nvmlDevice_t device, nvmlProcessUtilizationSample_t *list, unsigned *room,
                                unsigned long long since) {
    (void)device;
    unsigned found = 0;
    for (unsigned i = 0; i < entry_count; i++)
        if (entries[i].timeStamp > since) list[found++] = entries[i];
    *room = found;
    return answer ? (nvmlReturn_t)answer : found ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

RIG void sample_world(uint64_t mine, const char *host, int with_nvml) {
    own_namespace = mine;
    strncpy(host_namespace, host, sizeof host_namespace - 1);
    if (!with_nvml) return;
    hl_real_table[HL_nvmlInit_v2] = init;
    hl_real_table[HL_nvmlDeviceGetCount_v2] = count;
    hl_real_table[HL_nvmlDeviceGetHandleByIndex_v2] = get;
    hl_real_table[HL_nvmlDeviceGetComputeRunningProcesses_v3] = processes;
    hl_real_table[HL_nvmlDeviceGetProcessUtilization] = utilisation;
}

RIG void sample_slot(uint32_t pid, uint32_t host_pid, uint64_t pid_namespace) {
    rows[row_count++] = (struct hl_ledger_process){.pid = pid, .host_pid = host_pid, .pid_namespace = pid_namespace};
}

RIG void sample_lives(uint32_t pid) { here[here_count++] = pid; }
RIG void sample_present(uint32_t pid) { present[present_count++].pid = pid; }
RIG void sample_entry(uint32_t pid, uint64_t time_us, uint32_t percent) {
    entries[entry_count++] = (nvmlProcessUtilizationSample_t){.pid = pid, .timeStamp = time_us, .smUtil = percent};
}
RIG void sample_fails(int result) { answer = result; }

/* usable, known, fresh, own, all, window, own_ns, neighbours */
RIG void sample_take(uint64_t *out) {
    struct hl_sample sample = {0};
    hl_sample_take(0, false, 0, &sample);
    uint64_t found[] = {sample.usable, sample.known,  sample.fresh,  sample.own,
                        sample.all,    sample.window, sample.own_ns, sample.neighbours};
    memcpy(out, found, sizeof found);
}
