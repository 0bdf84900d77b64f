/* Contexts: the steps that make and unmake them, and the implicit one. A step that needs a context gets the primary
 * context of its device retained and made current on its thread first, unless a `context` step was played in this
 * process: then the program's own contexts are the subject and nothing is added to them. */
#include "caller.h"
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#define DEVICES 16
static CUcontext primary[DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_int own_contexts;
static _Thread_local CUcontext current;

CUcontext current_context(void) { return current; }

int32_t adopt_context(const struct how *how, CUcontext context) {
    int32_t result = CALL(how, cuCtxSetCurrent, context);
    if (result == CUDA_SUCCESS) current = context;
    return result;
}

static int32_t device_handle(const struct how *how, int device, CUdevice *handle) {
    return CALL(how, cuDeviceGet, handle, device);
}

int32_t ensure_context(const struct how *how, int device, struct outcome *out) {
    if (atomic_load(&own_contexts)) return CUDA_SUCCESS;
    if (device < 0 || device >= DEVICES) return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&lock);
    int32_t result = CUDA_SUCCESS;
    if (!primary[device]) {
        CUdevice handle = 0;
        out->name = caller_hook_id(C_cuDeviceGet);
        result = device_handle(how, device, &handle);
        if (result == CUDA_SUCCESS) {
            out->name = caller_hook_id(C_cuDevicePrimaryCtxRetain);
            result = CALL(how, cuDevicePrimaryCtxRetain, &primary[device], handle);
            if (result != CUDA_SUCCESS) primary[device] = NULL;
        }
    }
    CUcontext context = primary[device];
    pthread_mutex_unlock(&lock);
    if (result != CUDA_SUCCESS || current == context) return result;
    out->name = caller_hook_id(C_cuCtxSetCurrent);
    return adopt_context(how, context);
}

void step_init(const struct play *play, struct outcome *out) {
    out->name = caller_hook_id(C_cuInit);
    out->result = CALL(&play->how, cuInit, (unsigned)step_number(play->step, "flags", 0));
}

void step_sync(const struct play *play, struct outcome *out) {
    out->name = caller_hook_id(C_cuCtxSynchronize);
    out->result = CALL(&play->how, cuCtxSynchronize);
}

static void remember(const struct play *play, CUcontext context) {
    struct object *object =
        object_add(step_text(play->step, "as", "context"), OBJECT_CONTEXT, (uint64_t)(uintptr_t)context);
    object->device = play->device;
}

void step_context(const struct play *play, struct outcome *out) {
    const struct how *how = &play->how;
    const char *op = step_text(play->step, "op", "retain");
    struct object *object = object_find(step_text(play->step, "what", "context"), OBJECT_CONTEXT);
    CUcontext context = object ? (CUcontext)(uintptr_t)object->handle : NULL; /* NOLINT: a handle, not a pointer */
    CUdevice handle = 0;
    int by_device = !strcmp(op, "retain") || !strcmp(op, "release") || !strcmp(op, "create") || !strcmp(op, "reset");
    atomic_store(&own_contexts, 1);
    if (by_device) {
        out->name = caller_hook_id(C_cuDeviceGet);
        out->result = device_handle(how, play->device, &handle);
        if (out->result != CUDA_SUCCESS) return;
    } else if (!object && strcmp(op, "pop") != 0) {
        out->result = STEP_SKIPPED;
        return;
    }
    if (!strcmp(op, "retain")) {
        out->name = caller_hook_id(C_cuDevicePrimaryCtxRetain);
        out->result = CALL(how, cuDevicePrimaryCtxRetain, &context, handle);
        if (out->result == CUDA_SUCCESS) {
            remember(play, context);
            out->result = adopt_context(how, context);
        }
    } else if (!strcmp(op, "release")) {
        out->name = caller_hook_id(C_cuDevicePrimaryCtxRelease_v2);
        out->result = CALL(how, cuDevicePrimaryCtxRelease_v2, handle);
    } else if (!strcmp(op, "reset")) {
        out->name = caller_hook_id(C_cuDevicePrimaryCtxReset_v2);
        out->result = CALL(how, cuDevicePrimaryCtxReset_v2, handle);
    } else if (!strcmp(op, "create")) {
        out->name = caller_hook_id(C_cuCtxCreate_v2);
        out->result = CALL(how, cuCtxCreate_v2, &context, (unsigned)step_number(play->step, "flags", 0), handle);
        if (out->result == CUDA_SUCCESS) {
            remember(play, context);
            current = context;
        }
    } else if (!strcmp(op, "destroy")) {
        out->name = caller_hook_id(C_cuCtxDestroy_v2);
        out->result = CALL(how, cuCtxDestroy_v2, context);
        if (current == context) current = NULL;
        object_drop(object);
    } else if (!strcmp(op, "push")) {
        out->name = caller_hook_id(C_cuCtxPushCurrent_v2);
        out->result = CALL(how, cuCtxPushCurrent_v2, context);
        if (out->result == CUDA_SUCCESS) current = context;
    } else {
        out->name = caller_hook_id(C_cuCtxPopCurrent_v2);
        out->result = CALL(how, cuCtxPopCurrent_v2, &context);
        current = NULL;
    }
    out->b = (uint64_t)(uintptr_t)context;
}
