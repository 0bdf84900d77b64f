/* One process of a crowd on a GPU. It waits for descriptor 3 to end, makes its first context, says one line, and keeps the
 * context until descriptor 4 ends.
 *
 *   member                 TRUTH RESULT: the PID that the machine sees (by the machine's procfs at /proc), and CUDA's word
 *   member naive GATE      TRUTH GUESS: "who is new in NVML's list while I hold the lock on GATE", as an interposer does
 *                          whose lock is per container: the flaw that a crowd over several containers must show */
#define _GNU_SOURCE
#include <cuda.h>
#include <fcntl.h>
#include <nvml.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

enum { ROWS = 256 };

static int first_pid(void) {
    char line[256];
    int pid = 0;
    FILE *status = fopen("/proc/self/status", "re");
    while (status && fgets(line, sizeof line, status))
        if (sscanf(line, "NStgid: %d", &pid) == 1) break;
    if (status) fclose(status);
    return pid;
}

static unsigned list(nvmlDevice_t device, nvmlProcessInfo_t *rows) {
    unsigned count = ROWS;
    return nvmlDeviceGetComputeRunningProcesses_v3(device, &count, rows) == NVML_SUCCESS ? count : 0;
}

static int guess(const char *gate) {
    nvmlProcessInfo_t before[ROWS], after[ROWS];
    nvmlDevice_t device;
    CUcontext context;
    int found = 0, fd = open(gate, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0 || flock(fd, LOCK_EX) || nvmlInit_v2() || nvmlDeviceGetHandleByIndex_v2(0, &device)) return -1;
    unsigned were = list(device, before);
    if (cuDevicePrimaryCtxRetain(&context, 0)) return -1;
    unsigned are = list(device, after);
    for (unsigned i = 0; i < are && !found; i++) {
        int known = 0;
        for (unsigned j = 0; j < were; j++) known |= before[j].pid == after[i].pid;
        if (!known) found = (int)after[i].pid;
    }
    cuDevicePrimaryCtxRelease_v2(0);
    close(fd);
    return found;
}

int main(int argc, char **argv) {
    char byte;
    CUcontext context;
    if (cuInit(0) || read(3, &byte, 1) < 0) return 1;
    int said = argc > 2 && !strcmp(argv[1], "naive") ? guess(argv[2]) : (int)cuDevicePrimaryCtxRetain(&context, 0);
    printf("%d %d\n", first_pid(), said);
    fflush(stdout);
    while (read(4, &byte, 1) > 0) {}
    return 0;
}
