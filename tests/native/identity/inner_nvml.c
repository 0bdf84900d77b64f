/* A libnvidia-ml.so.1 that shows this process under the PID of its own namespace, as real drivers do that translate the
 * list for whoever asks. Everything else is the fake behind it ($INNER_NVML). Only what the experiment uses is here. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <nvml.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void *real(const char *name) {
    static void *library;
    if (!library) library = dlopen(getenv("INNER_NVML"), RTLD_NOW | RTLD_LOCAL);
    return library ? dlsym(library, name) : NULL;
}

static unsigned outer_pid(void) {
    char line[256];
    unsigned pid = 0;
    FILE *status = fopen("/proc/self/status", "re");
    while (status && fgets(line, sizeof line, status))
        if (sscanf(line, "NStgid: %u", &pid) == 1) break;
    if (status) fclose(status);
    return pid;
}

#define REAL(name) ((__typeof__(&name))real(#name))
nvmlReturn_t nvmlInit_v2(void) { return REAL(nvmlInit_v2)(); }
nvmlReturn_t nvmlShutdown(void) { return REAL(nvmlShutdown)(); }
nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    return REAL(nvmlDeviceGetHandleByUUID)(uuid, device);
}
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *infos) {
    nvmlReturn_t result = REAL(nvmlDeviceGetComputeRunningProcesses_v3)(device, count, infos);
    for (unsigned i = 0; result == NVML_SUCCESS && i < *count; i++)
        if (infos[i].pid == outer_pid()) infos[i].pid = (unsigned)getpid();
    return result;
}
