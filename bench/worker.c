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
#include <nvml.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

int worker_main(int argc, char **argv) {
    if (argc < 7) return 2;
    tell(HL_EVENT_STEP_END, LOADED, 0xFFFF, 0, 0);
    int ready = atoi(argv[2]), start = atoi(argv[3]), allocate = atoi(argv[4]), end = atoi(argv[5]);
    unsigned index = (unsigned)atoi(argv[6]);
    const char *control = argc > 7 ? argv[7] : "";
    if (reach(ready, 'r', index, start)) return 3;
    CUresult result;
    TIMED(INIT, HL_cuInit, result = cuInit(0));
    if (!result) controls(control);
    if (reach(ready, 'i', index, allocate)) return 3;
    CUcontext context;
    if (!result && !*control) TIMED(ALLOCATE, HL_cuMemAlloc_v2, first_allocation(&context));
    return reach(ready, 'a', index, end) ? 3 : 0;
}
