/* What is known of functions and kernels: attributes, names, parameters. Both answer alike; they differ in how the handle is
 * looked at and in whose settings are asked and changed. */
#include "module.h"

enum { ATTRIBUTES = 16, NO_DEVICE = -1 };

struct about {
    const struct entry *entry;
    struct settings *settings;
    uint32_t device;
};
/* device: the one that a kernel is asked for; NO_DEVICE where the question names none. */
typedef CUresult look(const void *handle, CUdevice device, struct about *out);

/* Questions about a function may be asked with or without a current context. */
static CUresult function_about(const void *handle, CUdevice device, struct about *out) {
    struct ctx *ctx;
    struct function *f;
    CUresult result = need_init();
    (void)device;
    if (result) return result;
    if (!handle) return CUDA_ERROR_INVALID_HANDLE;
    if (((const struct function *)handle)->magic == MAGIC_KERNEL && (result = need_ctx(&ctx)) != CUDA_SUCCESS)
        return result;
    if ((result = function_of(fake_current, (CUfunction)(uintptr_t)handle, &f)) != CUDA_SUCCESS) return result;
    *out = (struct about){f->entry, &f->settings, f->module->ctx->device};
    return CUDA_SUCCESS;
}

static CUresult kernel_about(const void *handle, CUdevice device, struct about *out) {
    struct kernel *k;
    CUresult result = kernel_of((CUkernel)(uintptr_t)handle, &k);
    if (result) return result;
    struct visible *v = device == NO_DEVICE ? &fake.visible[0] : visible_device(device);
    if (!v) return CUDA_ERROR_INVALID_DEVICE;
    *out = (struct about){k->entry, &k->settings, v->physical};
    return CUDA_SUCCESS;
}

static CUresult get(look *at, const void *handle, CUdevice device, int which, int *out) {
    struct about f;
    CUresult result = at(handle, device, &f);
    if (result) return result;
    if (!out || which < 0 || which >= ATTRIBUTES) return CUDA_ERROR_INVALID_VALUE;
    const struct entry *e = f.entry;
    switch (which) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *out = (int)e->max_threads; break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: *out = (int)e->shared; break;
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES: *out = (int)e->constant; break;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: *out = (int)e->local; break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *out = (int)e->registers; break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION: *out = e->ptx_version; break;
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *out = capability_of_device(f.device); break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *out = f.settings->dynamic_shared; break;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: *out = f.settings->carveout; break;
    default: *out = 0;
    }
    return CUDA_SUCCESS;
}
ENTRY(cuFuncGetAttribute, (int *value, CUfunction_attribute which, CUfunction function),
      get(function_about, function, NO_DEVICE, (int)which, value))
ENTRY(cuKernelGetAttribute, (int *value, CUfunction_attribute which, CUkernel kernel, CUdevice device),
      get(kernel_about, kernel, device < 0 ? fake.count : device, (int)which, value))

static CUresult set(look *at, const void *handle, CUdevice device, int which, int value) {
    struct about f;
    CUresult result = at(handle, device, &f);
    if (result) return result;
    if (which == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
        if (value < 0 || (uint32_t)value + f.entry->shared > physical(f.device)->shared_bytes_optin)
            return CUDA_ERROR_INVALID_VALUE;
        f.settings->dynamic_shared = value;
        return CUDA_SUCCESS;
    }
    if (which == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT) {
        if (value < -1 || value > 100) return CUDA_ERROR_INVALID_VALUE;
        f.settings->carveout = value;
        return CUDA_SUCCESS;
    }
    /* Cluster attributes are accepted; 10 (set by the compiler) and everything else cannot be changed. */
    return which >= 11 && which <= 14                ? CUDA_SUCCESS
           : which == 15 && value >= 0 && value <= 2 ? CUDA_SUCCESS
                                                     : CUDA_ERROR_INVALID_VALUE;
}
ENTRY(cuFuncSetAttribute, (CUfunction function, CUfunction_attribute which, int value),
      set(function_about, function, NO_DEVICE, (int)which, value))
ENTRY(cuKernelSetAttribute, (CUfunction_attribute which, int value, CUkernel kernel, CUdevice device),
      set(kernel_about, kernel, device < 0 ? fake.count : device, (int)which, value))

static CUresult exists(look *at, const void *handle) {
    struct about f;
    return at(handle, NO_DEVICE, &f);
}
/* A preference that changes nothing here: the handle and the value are looked at. */
static CUresult prefers(look *at, const void *handle, int value, int most) {
    CUresult result = exists(at, handle);
    return result == CUDA_SUCCESS && (value < 0 || value > most) ? CUDA_ERROR_INVALID_VALUE : result;
}
ENTRY(cuFuncSetCacheConfig, (CUfunction function, CUfunc_cache config),
      prefers(function_about, function, (int)config, CU_FUNC_CACHE_PREFER_EQUAL))
ENTRY(cuFuncSetSharedMemConfig, (CUfunction function, CUsharedconfig config),
      prefers(function_about, function, (int)config, CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE))
ENTRY(cuFuncLoad, (CUfunction function), exists(function_about, function))
ENTRY(cuKernelSetCacheConfig, (CUkernel kernel, CUfunc_cache config, CUdevice device),
      ((void)device, prefers(kernel_about, kernel, (int)config, CU_FUNC_CACHE_PREFER_EQUAL)))

static CUresult loaded(CUfunctionLoadingState *out, CUfunction handle) {
    CUresult result = exists(function_about, handle);
    if (result) return result;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = CU_FUNCTION_LOADING_STATE_LOADED;
    return CUDA_SUCCESS;
}
ENTRY(cuFuncIsLoaded, (CUfunctionLoadingState * state, CUfunction function), loaded(state, function))

static CUresult name(look *at, const void *handle, const char **out) {
    struct about f;
    CUresult result = at(handle, NO_DEVICE, &f);
    if (result) return result;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = f.entry->name;
    return CUDA_SUCCESS;
}
ENTRY(cuFuncGetName, (const char **out, CUfunction function), name(function_about, function, out))
ENTRY(cuKernelGetName, (const char **out, CUkernel kernel), name(kernel_about, kernel, out))

static CUresult parameter(look *at, const void *handle, size_t index, size_t *offset, size_t *bytes) {
    struct about f;
    CUresult result = at(handle, NO_DEVICE, &f);
    if (result) return result;
    if (!offset || index >= f.entry->count) return CUDA_ERROR_INVALID_VALUE;
    *offset = f.entry->parameter[index].offset;
    if (bytes) *bytes = f.entry->parameter[index].size;
    return CUDA_SUCCESS;
}
ENTRY(cuFuncGetParamInfo, (CUfunction function, size_t index, size_t *offset, size_t *bytes),
      parameter(function_about, function, index, offset, bytes))

static CUresult kernel_parameter(CUkernel kernel, size_t index, size_t *offset, size_t *bytes) {
    struct ctx *ctx;
    CUresult result = need_ctx(&ctx);
    return result ? result : parameter(kernel_about, kernel, index, offset, bytes);
}
ENTRY(cuKernelGetParamInfo, (CUkernel kernel, size_t index, size_t *offset, size_t *bytes),
      kernel_parameter(kernel, index, offset, bytes))

/* ---- where they come from -------------------------------------------------------------------------------------- */

static CUresult func_module(CUmodule *out, CUfunction handle) {
    struct function *f;
    CUresult result = exists(function_about, handle);
    if (result == CUDA_SUCCESS) result = function_of(fake_current, handle, &f);
    if (result) return result;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = (CUmodule)(void *)f->module;
    return CUDA_SUCCESS;
}
ENTRY(cuFuncGetModule, (CUmodule * module, CUfunction function), func_module(module, function))

static CUresult kernel_library(CUlibrary *out, CUkernel handle) {
    struct kernel *k;
    CUresult result = kernel_of(handle, &k);
    if (result) return result;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = (CUlibrary)(void *)k->library;
    return CUDA_SUCCESS;
}
ENTRY(cuKernelGetLibrary, (CUlibrary * library, CUkernel kernel), kernel_library(library, kernel))
