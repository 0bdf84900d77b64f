/* What a driver tells a program by itself: its error log, and notices of a device that is asked for too much memory. The fake
 * has neither to tell: listeners are known and never called, the log is there and empty. */
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>

enum { MAGIC_LISTENER = 0x4c535431 };

struct listener {
    uint32_t magic, device;
};

static CUresult listen(uint32_t device, int has_function, void **out) {
    struct listener *l = has_function ? calloc(1, sizeof *l) : NULL;
    if (!l) return has_function ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
    *l = (struct listener){MAGIC_LISTENER, device};
    if (out) *out = l;
    return CUDA_SUCCESS;
}

/* A corpse stays, so that asking for it again faults, as measured. */
static CUresult deaf(void *handle, uint32_t device) {
    struct listener *l = handle;
    if (l && l->magic == MAGIC_DEAD) fake_crash();
    if (!l || l->magic != MAGIC_LISTENER || l->device != device) return CUDA_ERROR_INVALID_VALUE;
    l->magic = MAGIC_DEAD;
    return CUDA_SUCCESS;
}

enum { NO_DEVICE = HL_MAX_DEVICES };

/* ---- the log: it needs no initialisation --------------------------------------------------------------------- */

ENTRY(cuLogsRegisterCallback, (CUlogsCallback function, void *data, CUlogsCallbackHandle *out),
      ((void)data, listen(NO_DEVICE, function != NULL, (void **)out)))
ENTRY(cuLogsUnregisterCallback, (CUlogsCallbackHandle handle), deaf(handle, NO_DEVICE))

static CUresult current(CUlogIterator *out) { /* flags are not looked at, measured */
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = 0;
    return CUDA_SUCCESS;
}
ENTRY(cuLogsCurrent, (CUlogIterator * out, unsigned int flags), ((void)flags, current(out)))

static CUresult to_file(const char *path, unsigned flags) {
    FILE *file = path && !flags ? fopen(path, "we") : NULL;
    if (!file) return CUDA_ERROR_INVALID_VALUE;
    return fclose(file) == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
ENTRY(cuLogsDumpToFile, (CUlogIterator * from, const char *path, unsigned int flags),
      ((void)from, to_file(path, flags)))

static CUresult to_memory(char *buffer, size_t *size, unsigned flags) {
    if (!buffer || !size || flags) return CUDA_ERROR_INVALID_VALUE;
    if (*size) *buffer = 0;
    *size = 0;
    return CUDA_SUCCESS;
}
ENTRY(cuLogsDumpToMemory, (CUlogIterator * from, char *buffer, size_t *size, unsigned int flags),
      ((void)from, to_memory(buffer, size, flags)))

/* ---- memory budget ------------------------------------------------------------------------------------------- */

static CUresult budget_listen(CUdevice device, CUasyncCallback function, CUasyncCallbackHandle *out) {
    CUresult result = need_init();
    if (result) return result;
    struct visible *v = visible_device(device);
    if (!v) return CUDA_ERROR_INVALID_DEVICE;
    return out ? listen(v->physical, function != NULL, (void **)out) : CUDA_ERROR_INVALID_VALUE;
}
ENTRY(cuDeviceRegisterAsyncNotification,
      (CUdevice device, CUasyncCallback function, void *data, CUasyncCallbackHandle *out),
      ((void)data, budget_listen(device, function, out)))

static CUresult budget_deaf(CUdevice device, CUasyncCallbackHandle handle) {
    CUresult result = need_init();
    if (result) return result;
    struct visible *v = visible_device(device);
    return v ? deaf(handle, v->physical) : CUDA_ERROR_INVALID_DEVICE;
}
ENTRY(cuDeviceUnregisterAsyncNotification, (CUdevice device, CUasyncCallbackHandle handle), budget_deaf(device, handle))
