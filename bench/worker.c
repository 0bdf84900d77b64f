/* One worker of a start-up burst: `hooklab-bench --burst READY START ALLOCATE END INDEX [CONTROL]`, four descriptors first.
 *
 * A stage is a pipe whose only write end the parent holds: it says which stage it has reached by four bytes on READY (stage, index,
 * 0; small writes to a pipe are whole) and waits until the parent closes the pipe of the next stage, which wakes all workers at once.
 *     r  loaded, waiting      > START     cuInit
 *     i  cuInit returned      > ALLOCATE  context and first allocation
 *     a  allocated            > END       exit
 * So no worker's context or exit disturbs another's cuInit. What happened is told by STEP records in the history only; a
 * worker that dies before it could write one has no result, never a fast one.
 *
 * Controls measure the suspected parts one by one, after cuInit, in steps of their own. */
#define _GNU_SOURCE
#include "worker.h"

#include "history.h"
#include "hl_layout_history.h"
#include "hl_names.h"

#include <cuda.h>
#include <errno.h>
#include <fcntl.h>
#include <nvml.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { /* steps: lab/report/burst_phases.py reads them by these numbers */
       LOADED = 0,
       INIT = 1,
       ALLOCATE = 2,
       NVML_INIT = 10,
       SNAPSHOT = 11,
       RETAIN = 12,
       RETAIN_NESTED = 13,
       RELEASE = 14,
};
enum { FIRST_BYTES = 2 << 20, MANY = 4096 };

static void tell(uint8_t event, uint16_t step, uint16_t name, int32_t result, uint64_t ns) {
    struct hl_event record = {.event = event,
                              .source = HL_SOURCE_CALLER,
                              .route = HL_ROUTE_LINK,
                              .device = 0xFF,
                              .name = name,
                              .step = step,
                              .result = result,
                              .c = ns};
    hl_history_add(&record);
}

#define TIMED(step, id, call)                                                                                          \
    do {                                                                                                               \
        tell(HL_EVENT_STEP_BEGIN, step, id, 0, 0);                                                                     \
        uint64_t from = hl_now_ns();                                                                                   \
        int32_t answer = (int32_t)(call);                                                                              \
        tell(HL_EVENT_STEP_END, step, id, answer, hl_now_ns() - from);                                                 \
    } while (0)

/* 0, or the parent is gone. */
static int reach(int ready, char stage, unsigned index, int next) {
    char byte, message[4] = {stage, (char)(index & 0xFF), (char)(index >> 8 & 0xFF), 0};
    while (write(ready, message, sizeof message) < 0)
        if (errno != EINTR) return -1;
    while (read(next, &byte, 1) < 0)
        if (errno != EINTR) return -1;
    return 0;
}

static nvmlReturn_t snapshot(void) {
    static nvmlProcessInfo_t list[MANY];
    unsigned count = MANY;
    nvmlDevice_t device;
    nvmlReturn_t result = nvmlDeviceGetHandleByIndex_v2(0, &device);
    return result ? result : nvmlDeviceGetComputeRunningProcesses_v3(device, &count, list);
}

static CUresult first_allocation(CUcontext *context) {
    CUdevice device;
    CUdeviceptr pointer;
    CUresult result = cuDeviceGet(&device, 0);
    if (!result) result = cuDevicePrimaryCtxRetain(context, device);
    if (!result) result = cuCtxSetCurrent(*context);
    return result ? result : cuMemAlloc_v2(&pointer, FIRST_BYTES);
}

static void controls(const char *what) {
    CUdevice device;
    CUcontext context;
    if (cuDeviceGet(&device, 0)) return;
    if (!strcmp(what, "phase_probe")) {
        TIMED(NVML_INIT, HL_nvmlInit_v2, nvmlInit_v2());
        TIMED(SNAPSHOT, HL_nvmlDeviceGetComputeRunningProcesses_v3, snapshot());
        TIMED(RETAIN, HL_cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain(&context, device));
        TIMED(SNAPSHOT, HL_nvmlDeviceGetComputeRunningProcesses_v3, snapshot());
        TIMED(RELEASE, HL_cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxRelease_v2(device));
    } else if (!strcmp(what, "retain")) {
        TIMED(RETAIN, HL_cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain(&context, device));
        TIMED(RETAIN_NESTED, HL_cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain(&context, device));
        cuDevicePrimaryCtxRelease_v2(device);
        TIMED(RELEASE, HL_cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxRelease_v2(device));
    } else if (!strcmp(what, "hold_primary")) {
        TIMED(RETAIN, HL_cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain(&context, device));
    } else if (!strcmp(what, "hold_nonprimary")) {
        TIMED(RETAIN, HL_cuCtxCreate_v2, cuCtxCreate_v2(&context, 0, device));
    }
}

/* HAMi's two generations of a node-wide lock file around the identity experiment, as baselines: a file created exclusively,
 * tried again after 1 to 5 waits and taken for left behind after 20 tries, and an advisory lock that the kernel queues. */
enum { TRIES = 20, LONGEST_WAITS = 5 };

static int lock_file(const char *path, int exclusive, long wait_ms, unsigned seed) {
    if (!exclusive) {
        int fd = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0666);
        while (fd >= 0 && flock(fd, LOCK_EX))
            if (errno != EINTR) return close(fd), -1;
        return fd;
    }
    for (int tries = 0;; tries++) {
        int fd = open(path, O_CREAT | O_EXCL | O_CLOEXEC, S_IRWXU);
        if (fd >= 0 || errno != EEXIST) return fd;
        if (tries == TRIES) {
            unlink(path); /* perhaps another one's, who is still inside */
            tries = 0;
            continue;
        }
        fprintf(stderr, "unified_lock locked, waiting 1 second...\n");
        long ms = wait_ms * (1 + rand_r(&seed) % LONGEST_WAITS);
        struct timespec wait = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
        nanosleep(&wait, NULL);
    }
}

static CUresult init_behind_a_file(int exclusive, unsigned index) {
    const char *path = getenv("HOOKLAB_BURST_LOCK"), *wait = getenv("HOOKLAB_BURST_WAIT_MS");
    CUdevice device;
    CUcontext context;
    CUresult result = cuInit(0);
    if (!result) result = cuDeviceGet(&device, 0);
    if (result || !path) return result ? result : CUDA_ERROR_INVALID_VALUE;
    int fd = lock_file(path, exclusive, wait ? atol(wait) : 1000, index);
    if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
    nvmlInit_v2();
    snapshot();
    result = cuDevicePrimaryCtxRetain(&context, device);
    if (!result) {
        snapshot();
        result = cuDevicePrimaryCtxRelease_v2(device);
    }
    if (exclusive) unlink(path);
    close(fd);
    return result;
}

int worker_main(int argc, char **argv) {
    if (argc < 7) return 2;
    tell(HL_EVENT_STEP_END, LOADED, 0xFFFF, 0, 0);
    int ready = atoi(argv[2]), start = atoi(argv[3]), allocate = atoi(argv[4]), end = atoi(argv[5]);
    unsigned index = (unsigned)atoi(argv[6]);
    const char *control = argc > 7 ? argv[7] : "";
    if (reach(ready, 'r', index, start)) return 3;
    CUresult result;
    int exclusive = !strcmp(control, "unified_exclusive"), behind = exclusive || !strcmp(control, "unified_flock");
    TIMED(INIT, HL_cuInit, result = behind ? init_behind_a_file(exclusive, index) : cuInit(0));
    if (behind) control = "";
    if (!result) controls(control);
    if (reach(ready, 'i', index, allocate)) return 3;
    CUcontext context;
    if (!result && !*control) TIMED(ALLOCATE, HL_cuMemAlloc_v2, first_allocation(&context));
    return reach(ready, 'a', index, end) ? 3 : 0;
}
