/* Which processes use a device: a process is listed from its first context to its last. By which PID, and whether at all,
 * is the node's choice: drivers differ (hl_nvml_pid). A card that is cut lists the users of all its MIG devices. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "frame.h"

static const unsigned none = 0xFFFFFFFFu; /* no GPU instance, no compute instance */

struct user {
    uint32_t pid;
    uint64_t bytes;
    unsigned gpu_instance, compute_instance;
};

uint32_t hl_nvml_pid(const struct hl_node_process *process) {
    const struct hl_node_header *node = hl_node.header;
    uint64_t mine = hl_node.process->pid_namespace;
    if (node->nvml_pids == HL_NVML_PIDS_HOST || mine == 0 || mine == node->pid_namespace) return process->host_pid;
    return process->pid_namespace == mine ? process->ns_pid : 0;
}

static int users_of_row(uint32_t row, struct user *list) {
    const struct hl_node_device *device = &hl_node.devices[row];
    int found = 0;
    for (uint32_t slot = 0; slot < hl_node.header->process_capacity; slot++) {
        struct hl_node_process *process = &hl_node.processes[slot];
        if (__atomic_load_n(&process->state, __ATOMIC_ACQUIRE) == HL_PROCESS_FREE) continue;
        struct hl_node_process_device *held = &process->device[row];
        uint32_t contexts = __atomic_load_n(&held->context_count, __ATOMIC_ACQUIRE);
        uint32_t pid = hl_nvml_pid(process);
        if (contexts == 0 || pid == 0) continue;
        int64_t bytes =
            (int64_t)contexts * device->nvml_context_extra + __atomic_load_n(&held->shown, __ATOMIC_RELAXED);
        for (int kind = 0; kind < HL_KINDS; kind++)
            bytes += (int64_t)__atomic_load_n(&held->bytes[kind], __ATOMIC_RELAXED);
        list[found++] = (struct user){.pid = pid,
                                      .bytes = bytes > 0 ? (uint64_t)bytes : 0,
                                      .gpu_instance = device->parent ? device->gpu_instance : none,
                                      .compute_instance = device->parent ? device->compute_instance : none};
    }
    return found;
}

/* The users of a device, in order of rows and slots: *out (free it) and their number; -1 without memory. */
static int users(uint32_t index, struct user **out) {
    const struct hl_node_device *device = &hl_node.devices[index];
    uint32_t rows = 0, capacity = hl_node.header->process_capacity;
    for (uint32_t row = 0; row < hl_node.header->device_count; row++) rows += (uint32_t)hl_nvml_part_of(row, device);
    int found = 0;
    *out = malloc((size_t)rows * capacity * sizeof **out);
    if (!*out) return -1;
    for (uint32_t row = 0; row < hl_node.header->device_count; row++)
        if (hl_nvml_part_of(row, device)) found += users_of_row(row, *out + found);
    return found;
}

/* The count protocol: always the exact count out; too small a buffer is left alone. 0 = go on and copy *count rows. */
static nvmlReturn_t negotiate(unsigned found, unsigned *count, const void *infos) {
    unsigned room = *count;
    *count = found;
    if (room > 0 && !infos) return NVML_ERROR_INVALID_ARGUMENT;
    return room < found ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

/* `stride` 16 writes {pid, bytes}, 24 also the two instance ids: the record of the version the caller was built for. */
static nvmlReturn_t compute_list(nvmlDevice_t handle, unsigned *count, void *infos, size_t stride) {
    NVML_ANY_DEVICE(device, handle);
    if (!count) return NVML_ERROR_INVALID_ARGUMENT;
    hl_latency(handle->index, HL_LATENCY_NVML_QUERY);
    struct user *list;
    int found = users(handle->index, &list);
    nvmlReturn_t result = found < 0 ? NVML_ERROR_MEMORY : negotiate((unsigned)found, count, infos);
    if (result == NVML_SUCCESS) hl_output(infos, stride * (size_t)found);
    for (int i = 0; result == NVML_SUCCESS && i < found; i++) {
        if (stride == sizeof(nvmlProcessInfo_v1_t)) {
            nvmlProcessInfo_v1_t *row = (nvmlProcessInfo_v1_t *)infos + i;
            row->pid = list[i].pid;
            row->usedGpuMemory = list[i].bytes;
        } else {
            nvmlProcessInfo_t *row = (nvmlProcessInfo_t *)infos + i;
            row->pid = list[i].pid;
            row->usedGpuMemory = list[i].bytes;
            row->gpuInstanceId = list[i].gpu_instance;
            row->computeInstanceId = list[i].compute_instance;
        }
    }
    free(list);
    return result;
}

/* Nobody draws and no MPS server runs on the fake. */
static nvmlReturn_t empty_list(nvmlDevice_t handle, unsigned *count, const void *infos) {
    NVML_ANY_DEVICE(device, handle);
    return count ? negotiate(0, count, infos) : NVML_ERROR_INVALID_ARGUMENT;
}

_Static_assert(sizeof(nvmlProcessInfo_v1_t) == 16 && sizeof(nvmlProcessInfo_v2_t) == 24 &&
                   sizeof(nvmlProcessInfo_t) == 24,
               "strides of the process lists");

#define LIST(name, type, body)                                                                                         \
    NVML_BODY(name, (nvmlDevice_t handle, unsigned int *count, type *infos), (handle, count, infos)) { return body; }

LIST(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t, compute_list(handle, count, infos, sizeof *infos))
LIST(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, compute_list(handle, count, infos, sizeof *infos))
LIST(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t, compute_list(handle, count, infos, sizeof *infos))
LIST(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t, empty_list(handle, count, infos))
LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t, empty_list(handle, count, infos))
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t, empty_list(handle, count, infos))
LIST(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t, empty_list(handle, count, infos))
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, empty_list(handle, count, infos))
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t, empty_list(handle, count, infos))

NVML_BODY(nvmlDeviceGetRunningProcessDetailList, (nvmlDevice_t handle, nvmlProcessDetailList_t *list), (handle, list)) {
    NVML_ANY_DEVICE(device, handle);
    if (!list) return NVML_ERROR_INVALID_ARGUMENT;
    if (list->mode > NVML_PROCESS_MODE_MPS) return NVML_ERROR_INVALID_ARGUMENT;
    if (list->version != nvmlProcessDetailList_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    struct user *rows = NULL;
    int found = list->mode == NVML_PROCESS_MODE_COMPUTE ? users(handle->index, &rows) : 0;
    nvmlReturn_t result =
        found < 0 ? NVML_ERROR_MEMORY : negotiate((unsigned)found, &list->numProcArrayEntries, list->procArray);
    for (int i = 0; result == NVML_SUCCESS && i < found; i++)
        list->procArray[i] = (nvmlProcessDetail_v1_t){.pid = rows[i].pid,
                                                      .usedGpuMemory = rows[i].bytes,
                                                      .gpuInstanceId = rows[i].gpu_instance,
                                                      .computeInstanceId = rows[i].compute_instance};
    free(rows);
    return result;
}

/* A process of the node by what the server saw; any other by /proc, as far as this namespace shows it. */
NVML_BODY(nvmlSystemGetProcessName, (unsigned int pid, char *name, unsigned int length), (pid, name, length)) {
    if (!name || length == 0) return NVML_ERROR_INVALID_ARGUMENT;
    char text[256] = "";
    for (uint32_t slot = 0; slot < hl_node.header->process_capacity && !text[0]; slot++) {
        struct hl_node_process *process = &hl_node.processes[slot];
        if (__atomic_load_n(&process->state, __ATOMIC_ACQUIRE) == HL_PROCESS_LIVE && hl_nvml_pid(process) == pid)
            memcpy(text, process->command, sizeof text);
    }
    if (!text[0]) {
        char path[64];
        snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t got = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
        if (fd >= 0) close(fd);
        if (got <= 0) return NVML_ERROR_NOT_FOUND;
        text[got] = 0;
    }
    text[sizeof text - 1] = 0;
    snprintf(name, length, "%s", text);
    return NVML_SUCCESS;
}
