/* What a program is told: memory views through CUDA and NVML, and what a lookup answers. */
#include "caller.h"
#include <dlfcn.h>
#include <string.h>

static void cuda_view(const struct play *play, struct outcome *out) {
    size_t free_bytes = 0, total = 0;
    out->name = caller_hook_id(C_cuMemGetInfo_v2);
    out->result = CALL(&play->how, cuMemGetInfo_v2, &free_bytes, &total);
    out->a = total;
    out->b = free_bytes;
    out->c = total - free_bytes;
}

static void total_view(const struct play *play, struct outcome *out) {
    CUdevice device = 0;
    size_t total = 0;
    out->name = caller_hook_id(C_cuDeviceGet);
    out->result = CALL(&play->how, cuDeviceGet, &device, play->device);
    if (out->result != CUDA_SUCCESS) return;
    out->name = caller_hook_id(C_cuDeviceTotalMem_v2);
    out->result = CALL(&play->how, cuDeviceTotalMem_v2, &total, device);
    out->a = total;
}

/* NVML is initialised and shut down by each view: its counts are the program's own business, not the step's. */
static void nvml_view(const struct play *play, int second, struct outcome *out) {
    const struct how *how = &play->how;
    nvmlDevice_t device = NULL;
    out->name = caller_hook_id(C_nvmlInit_v2);
    out->result = CALL(how, nvmlInit_v2);
    if (out->result != NVML_SUCCESS) return;
    out->name = caller_hook_id(C_nvmlDeviceGetHandleByIndex_v2);
    out->result = CALL(how, nvmlDeviceGetHandleByIndex_v2, (unsigned)play->device, &device);
    if (out->result == NVML_SUCCESS && second) {
        nvmlMemory_v2_t memory = {.version = nvmlMemory_v2};
        out->name = caller_hook_id(C_nvmlDeviceGetMemoryInfo_v2);
        out->result = CALL(how, nvmlDeviceGetMemoryInfo_v2, device, &memory);
        out->a = memory.total;
        out->b = memory.free;
        out->c = memory.used;
    } else if (out->result == NVML_SUCCESS) {
        nvmlMemory_t memory = {0};
        out->name = caller_hook_id(C_nvmlDeviceGetMemoryInfo);
        out->result = CALL(how, nvmlDeviceGetMemoryInfo, device, &memory);
        out->a = memory.total;
        out->b = memory.free;
        out->c = memory.used;
    }
    (void)CALL(how, nvmlShutdown);
}

void step_view(const struct play *play, struct outcome *out) {
    const char *api = step_text(play->step, "api", "cuda");
    if (!strcmp(api, "total")) total_view(play, out);
    else if (!strncmp(api, "nvml", 4)) nvml_view(play, !strcmp(api, "nvml2"), out);
    else if ((out->result = ensure_context(&play->how, play->device, out)) == CUDA_SUCCESS) cuda_view(play, out);
}

/* a = 1 when a pointer was given, b the pointer, c the resolver's status, extra = who owns it: 1 the driver, 2 another
 * object (a hook), 0 nobody. */
void step_lookup(const struct play *play, struct outcome *out) {
    int status = 0;
    struct how how = play->how;
    how.flags = step_number(play->step, "flags", 0);
    void *pointer = caller_find_name(step_text(play->step, "name", ""), &how, &out->result, &status);
    Dl_info info;
    out->a = pointer != NULL;
    out->b = (uint64_t)(uintptr_t)pointer;
    out->c = (uint64_t)status;
    if (pointer && dladdr(pointer, &info) && info.dli_fname) {
        const char *base = strrchr(info.dli_fname, '/');
        base = base ? base + 1 : info.dli_fname;
        out->extra = !strncmp(base, "libcuda.so", 10) || !strncmp(base, "libnvidia-ml.so", 15) ? 1 : 2;
    } else if (pointer) {
        out->extra = 2;
    }
}
