/* Modules, libraries, kernels, functions and links. A library is read when it is loaded but judged when it is first used
 * (lazy loading); a module is judged at once. Code and variables of a module take device memory of kind MODULE. */
#include "module.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SHARED_DEFAULT = 49152, CODE_BYTES_MAX = 1 << 20 };

struct kernel {
    uint32_t magic;
    struct library *library;
    const struct entry *entry;
    int dynamic_shared, carveout;
    struct kernel *next;
};

struct library {
    uint32_t magic;
    int trouble; /* what every use of it answers */
    struct image *image;
    struct kernel *kernels;
    struct module *modules; /* one a context, made at first use; linked by their own `next` in the context */
    struct library *next;
};

static int capability_of(uint32_t device) { return physical(device)->cc_major * 10 + physical(device)->cc_minor; }

/* ---- modules ---------------------------------------------------------------------------------------------- */

static struct alloc *hidden_alloc(struct ctx *ctx, uint64_t bytes) {
    if (bytes == 0) bytes = 1;
    struct alloc *a =
        bytes < BLOCK ? heap_alloc(&ctx->module, bytes) : run_alloc(ctx->device, HL_KIND_MODULE, bytes, 1);
    if (a) a->ctx = NULL; /* the module frees it, not the context's list */
    return a;
}

CUresult module_new(struct ctx *ctx, struct image *image, int owned, struct library *library, struct module **out) {
    struct module *m = calloc(1, sizeof *m);
    struct global *globals = image->variables ? calloc(image->variables, sizeof *globals) : NULL;
    if (!m || (image->variables && !globals)) {
        free(m);
        free(globals);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *m = (struct module){
        .magic = MAGIC_MODULE, .owned = owned, .ctx = ctx, .image = image, .globals = globals, .library = library};
    fake_lock();
    CUresult result = limits_module(ctx, image->uses);
    int failed =
        result || !(m->code = hidden_alloc(ctx, image->bytes < CODE_BYTES_MAX ? image->bytes : CODE_BYTES_MAX));
    if (m->code) m->code->hidden = 1;
    for (uint32_t i = 0; i < image->variables && !failed; i++) {
        globals[i].variable = &image->variable[i];
        failed = !(globals[i].alloc = hidden_alloc(ctx, image->variable[i].bytes));
    }
    m->next = ctx->modules;
    ctx->modules = m;
    if (failed) {
        m->owned = 0; /* the image stays the caller's */
        module_end(m);
    }
    fake_unlock();
    if (failed) return result ? result : CUDA_ERROR_OUT_OF_MEMORY;
    hl_latency(ctx->device, HL_LATENCY_MODULE_LOAD);
    *out = m;
    return CUDA_SUCCESS;
}

void module_end(struct module *m) {
    struct module **link = &m->ctx->modules;
    while (*link && *link != m) link = &(*link)->next;
    if (*link) *link = m->next;
    if (m->code) arena_free(m->code);
    for (uint32_t i = 0; i < m->image->variables; i++)
        if (m->globals[i].alloc) arena_free(m->globals[i].alloc);
    for (struct function *f = m->functions; f; f = f->next) f->magic = MAGIC_DEAD;
    free(m->globals);
    m->globals = NULL;
    m->code = NULL;
    if (m->owned) image_free(m->image);
    m->image = NULL;
    m->magic = MAGIC_DEAD;
}

void modules_end(struct ctx *ctx) {
    while (ctx->modules) module_end(ctx->modules);
}

static CUresult load(CUmodule *out, const void *data, size_t bytes) {
    struct ctx *ctx;
    CUresult result = need_ctx(&ctx);
    if (result) return result;
    if (!out || !data) return CUDA_ERROR_INVALID_VALUE;
    struct image *image;
    result = (CUresult)image_parse(data, bytes, capability_of(ctx->device), &image);
    if (result) return result;
    struct module *m;
    result = module_new(ctx, image, 1, NULL, &m);
    if (result) image_free(image);
    else *out = (CUmodule)(void *)m;
    return result;
}
ENTRY(cuModuleLoadData, (CUmodule * module, const void *image), load(module, image, 0))
ENTRY(cuModuleLoadFatBinary, (CUmodule * module, const void *image), load(module, image, 0))
ENTRY(cuModuleLoadDataEx,
      (CUmodule * module, const void *image, unsigned int count, CUjit_option *options, void **values),
      ((void)count, (void)options, (void)values, load(module, image, 0)))

/* The whole file with a NUL after it; NULL: it cannot be read. */
static void *read_file(const char *path, size_t *bytes) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat info;
    char *text = NULL;
    if (fd >= 0 && fstat(fd, &info) == 0 && S_ISREG(info.st_mode) &&
        (text = calloc(1, (size_t)info.st_size + 1)) != NULL) {
        size_t done = 0;
        for (ssize_t n; done < (size_t)info.st_size; done += (size_t)n) {
            n = read(fd, text + done, (size_t)info.st_size - done);
            if (n < 0 && errno == EINTR) n = 0;
            else if (n <= 0) break;
        }
        *bytes = done;
    }
    if (fd >= 0) close(fd);
    return text;
}

static CUresult load_file(CUmodule *out, const char *path) {
    struct ctx *ctx;
    CUresult result = need_ctx(&ctx);
    if (result) return result;
    if (!out || !path) return CUDA_ERROR_INVALID_VALUE;
    size_t bytes = 0;
    void *data = read_file(path, &bytes);
    if (!data) return CUDA_ERROR_FILE_NOT_FOUND;
    result = load(out, data, 0);
    free(data);
    return result;
}
ENTRY(cuModuleLoad, (CUmodule * module, const char *path), load_file(module, path))

static CUresult module_of(CUmodule handle, struct module **out) {
    CUresult result = need_init();
    if (result) return result;
    struct module *m = (struct module *)(void *)handle;
    if (!m || m->magic != MAGIC_MODULE) return CUDA_ERROR_INVALID_HANDLE;
    *out = m;
    return CUDA_SUCCESS;
}

static CUresult unload(CUmodule handle) {
    struct module *m;
    CUresult result = module_of(handle, &m);
    if (result) return result;
    if (m->library) return CUDA_ERROR_NOT_PERMITTED; /* the library owns it */
    fake_lock();
    module_end(m);
    fake_unlock();
    return CUDA_SUCCESS;
}
ENTRY(cuModuleUnload, (CUmodule module), unload(module))

static CUresult module_function(struct module *m, const struct entry *entry, struct function **out) {
    fake_lock();
    struct function *f = m->functions;
    while (f && f->entry != entry) f = f->next;
    if (!f && (f = calloc(1, sizeof *f)) != NULL) {
        f->magic = MAGIC_FUNCTION;
        f->module = m;
        f->entry = entry;
        f->dynamic_shared = SHARED_DEFAULT - (int)entry->shared;
        f->carveout = -1;
        f->block[0] = f->block[1] = f->block[2] = 1;
        f->next = m->functions;
        m->functions = f;
    }
    fake_unlock();
    *out = f;
    return f ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult get_function(CUfunction *out, CUmodule handle, const char *name) {
    struct ctx *ctx;
    struct module *m;
    CUresult result = need_ctx(&ctx);
    if (result) return result;
    if (!out || !name || !*name) return CUDA_ERROR_INVALID_VALUE;
    if ((result = module_of(handle, &m)) != CUDA_SUCCESS) return result;
    const struct entry *entry = image_entry(m->image, name);
    if (!entry) return CUDA_ERROR_NOT_FOUND;
    struct function *f;
    if ((result = module_function(m, entry, &f)) == CUDA_SUCCESS) *out = (CUfunction)(void *)f;
    return result;
}
ENTRY(cuModuleGetFunction, (CUfunction * function, CUmodule module, const char *name),
      get_function(function, module, name))

static CUresult find_global(struct module *m, const char *name, int managed_only, CUdeviceptr *at, size_t *bytes) {
    for (uint32_t i = 0; i < m->image->variables; i++)
        if (strcmp(m->image->variable[i].name, name) == 0 && (!managed_only || m->image->variable[i].is_managed)) {
            if (at) *at = (CUdeviceptr)(uintptr_t)arena.device_base + m->globals[i].alloc->offset;
            if (bytes) *bytes = m->image->variable[i].bytes;
            return CUDA_SUCCESS;
        }
    if (at) *at = 0;
    if (bytes) *bytes = 0;
    return CUDA_ERROR_NOT_FOUND;
}

static CUresult get_global(CUdeviceptr *at, size_t *bytes, CUmodule handle, const char *name) {
    struct ctx *ctx;
    struct module *m;
    CUresult result = need_ctx(&ctx);
    if (result == CUDA_SUCCESS) result = module_of(handle, &m);
    if (result) return result;
    if (!name || (!at && !bytes)) return CUDA_ERROR_INVALID_VALUE;
    return find_global(m, name, 0, at, bytes);
}
ENTRY(cuModuleGetGlobal_v2, (CUdeviceptr * at, size_t *bytes, CUmodule module, const char *name),
      get_global(at, bytes, module, name))

/* A variable's address does not fit 32 bits. */
static CUresult get_global32(CUmodule module, const char *name) {
    CUdeviceptr wide;
    CUresult result = get_global(&wide, NULL, module, name);
    return result ? result : CUDA_ERROR_INVALID_VALUE;
}
ENTRY(cuModuleGetGlobal, (CUdeviceptr_v1 * at, unsigned int *bytes, CUmodule module, const char *name),
      at || bytes ? get_global32(module, name) : CUDA_ERROR_INVALID_VALUE)

/* No image that is read here has texture or surface references: they were taken out of the language. */
static CUresult get_reference(const void *out, CUmodule handle, const char *name) {
    struct ctx *ctx;
    struct module *m;
    CUresult result = need_ctx(&ctx);
    if (result == CUDA_SUCCESS) result = module_of(handle, &m);
    if (result) return result;
    return out && name ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_INVALID_VALUE;
}
ENTRY(cuModuleGetTexRef, (CUtexref * out, CUmodule module, const char *name), get_reference(out, module, name))
ENTRY(cuModuleGetSurfRef, (CUsurfref * out, CUmodule module, const char *name), get_reference(out, module, name))

static CUresult function_count(unsigned *out, CUmodule handle) {
    struct module *m;
    CUresult result = module_of(handle, &m);
    if (result) return result;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = m->image->entries;
    return CUDA_SUCCESS;
}
ENTRY(cuModuleGetFunctionCount, (unsigned int *count, CUmodule module), function_count(count, module))

static CUresult enumerate_functions(CUfunction *out, unsigned count, CUmodule handle) {
    struct module *m;
    CUresult result = module_of(handle, &m);
    if (result) return result;
    if (!out || !count) return CUDA_ERROR_INVALID_VALUE;
    for (uint32_t i = 0; i < m->image->entries && i < count; i++) {
        struct function *f;
        if ((result = module_function(m, &m->image->entry[i], &f)) != CUDA_SUCCESS) return result;
        out[i] = (CUfunction)(void *)f;
    }
    return CUDA_SUCCESS;
}
ENTRY(cuModuleEnumerateFunctions, (CUfunction * functions, unsigned int count, CUmodule module),
      enumerate_functions(functions, count, module))

static CUresult loading_mode(CUmoduleLoadingMode *mode) {
    CUresult result = need_init();
    if (result) return result;
    if (!mode) return CUDA_ERROR_INVALID_VALUE;
    *mode = CU_MODULE_LAZY_LOADING;
    return CUDA_SUCCESS;
}
ENTRY(cuModuleGetLoadingMode, (CUmoduleLoadingMode * mode), loading_mode(mode))

/* ---- libraries and kernels -------------------------------------------------------------------------------- */

static CUresult library_load(CUlibrary *out, const void *data) {
    CUresult result = need_init();
    if (result) return result;
    if (!out || !data) return CUDA_ERROR_INVALID_VALUE;
    struct library *l = calloc(1, sizeof *l);
    if (!l) return CUDA_ERROR_OUT_OF_MEMORY;
    l->magic = MAGIC_LIBRARY;
    l->trouble = image_parse(data, 0, capability_of(fake.visible[0].physical), &l->image);
    for (uint32_t i = 0; !l->trouble && i < l->image->entries; i++) {
        struct kernel *k = calloc(1, sizeof *k);
        if (!k) {
            l->trouble = CUDA_ERROR_OUT_OF_MEMORY;
            break;
        }
        *k = (struct kernel){MAGIC_KERNEL, l, &l->image->entry[i], SHARED_DEFAULT - (int)l->image->entry[i].shared, -1,
                             l->kernels};
        l->kernels = k;
    }
    *out = (CUlibrary)(void *)l;
    return CUDA_SUCCESS;
}
API cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *options, void **values, unsigned int count,
                      CUlibraryOption *library_options, void **library_values, unsigned int library_count) {
    ENTER(cuLibraryLoadData);
    (void)options, (void)values, (void)count, (void)library_options, (void)library_values, (void)library_count;
    LEAVE(library_load(library, code), 0, 0);
}

static CUresult library_file(CUlibrary *out, const char *path) {
    CUresult result = need_init();
    if (result) return result;
    if (!out || !path) return CUDA_ERROR_INVALID_VALUE;
    size_t bytes = 0;
    void *data = read_file(path, &bytes);
    if (!data) return CUDA_ERROR_FILE_NOT_FOUND;
    result = library_load(out, data);
    free(data);
    return result;
}
API cuLibraryLoadFromFile(CUlibrary *library, const char *path, CUjit_option *options, void **values,
                          unsigned int count, CUlibraryOption *library_options, void **library_values,
                          unsigned int library_count) {
    ENTER(cuLibraryLoadFromFile);
    (void)options, (void)values, (void)count, (void)library_options, (void)library_values, (void)library_count;
    LEAVE(library_file(library, path), 0, 0);
}

static CUresult library_of(CUlibrary handle, struct library **out) {
    CUresult result = need_init();
    if (result) return result;
    struct library *l = (struct library *)(void *)handle;
    if (!l || l->magic != MAGIC_LIBRARY) return CUDA_ERROR_INVALID_HANDLE;
    *out = l;
    return CUDA_SUCCESS;
}

static CUresult library_unload(CUlibrary handle) {
    struct library *l;
    CUresult result = library_of(handle, &l);
    if (result) return result;
    fake_lock();
    for (struct ctx *ctx = fake.contexts; ctx; ctx = ctx->next)
        for (struct module *m = ctx->modules, *next; m; m = next) {
            next = m->next;
            if (m->library == l) module_end(m);
        }
    for (struct kernel *k = l->kernels; k; k = k->next) k->magic = MAGIC_DEAD;
    l->magic = MAGIC_DEAD;
    image_free(l->image);
    l->image = NULL;
    fake_unlock();
    return CUDA_SUCCESS;
}
ENTRY(cuLibraryUnload, (CUlibrary library), library_unload(library))

/* The library as a module of this context. */
static CUresult library_module(struct library *l, struct ctx *ctx, struct module **out) {
    if (l->trouble) return (CUresult)l->trouble;
    fake_lock();
    struct module *m = ctx->modules;
    while (m && m->library != l) m = m->next;
    fake_unlock();
    *out = m;
    return m ? CUDA_SUCCESS : module_new(ctx, l->image, 0, l, out);
}

static CUresult get_module(CUmodule *out, CUlibrary handle) {
    struct ctx *ctx;
    struct library *l;
    struct module *m;
    CUresult result = need_ctx(&ctx);
    if (result == CUDA_SUCCESS) result = library_of(handle, &l);
    if (result == CUDA_SUCCESS) result = library_module(l, ctx, &m);
    if (result) return result;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = (CUmodule)(void *)m;
    return CUDA_SUCCESS;
}
ENTRY(cuLibraryGetModule, (CUmodule * module, CUlibrary library), get_module(module, library))

static CUresult get_kernel(CUkernel *out, CUlibrary handle, const char *name) {
    struct library *l;
    CUresult result = library_of(handle, &l);
    if (result) return result;
    if (!out || !name || !*name) return CUDA_ERROR_INVALID_VALUE;
    if (l->trouble) return (CUresult)l->trouble;
    for (struct kernel *k = l->kernels; k; k = k->next)
        if (strcmp(k->entry->name, name) == 0) {
            *out = (CUkernel)(void *)k;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_NOT_FOUND;
}
ENTRY(cuLibraryGetKernel, (CUkernel * kernel, CUlibrary library, const char *name), get_kernel(kernel, library, name))

static CUresult kernel_count(unsigned *out, CUlibrary handle) {
    struct library *l;
    CUresult result = library_of(handle, &l);
    if (result) return result;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = l->trouble ? 0 : l->image->entries;
    return CUDA_SUCCESS;
}
ENTRY(cuLibraryGetKernelCount, (unsigned int *count, CUlibrary library), kernel_count(count, library))

static CUresult enumerate_kernels(CUkernel *out, unsigned count, CUlibrary handle) {
    struct library *l;
    CUresult result = library_of(handle, &l);
    if (result) return result;
    if (!out || !count) return CUDA_ERROR_INVALID_VALUE;
    struct kernel *k = l->kernels;
    for (unsigned i = 0; k && i < count; i++, k = k->next) out[i] = (CUkernel)(void *)k;
    return CUDA_SUCCESS;
}
ENTRY(cuLibraryEnumerateKernels, (CUkernel * kernels, unsigned int count, CUlibrary library),
      enumerate_kernels(kernels, count, library))

static CUresult library_global(CUdeviceptr *at, size_t *bytes, CUlibrary handle, const char *name, int managed_only) {
    struct ctx *ctx;
    struct library *l;
    struct module *m;
    CUresult result = need_ctx(&ctx);
    if (result == CUDA_SUCCESS) result = library_of(handle, &l);
    if (result == CUDA_SUCCESS) result = library_module(l, ctx, &m);
    if (result) return result;
    if (!name || (!at && !bytes)) return CUDA_ERROR_INVALID_VALUE;
    return find_global(m, name, managed_only, at, bytes);
}
ENTRY(cuLibraryGetGlobal, (CUdeviceptr * at, size_t *bytes, CUlibrary library, const char *name),
      library_global(at, bytes, library, name, 0))
ENTRY(cuLibraryGetManaged, (CUdeviceptr * at, size_t *bytes, CUlibrary library, const char *name),
      library_global(at, bytes, library, name, 1))

/* No function of a fake can be called by the host: none is unified. */
static CUresult unified(void **out, CUlibrary handle) {
    struct library *l;
    CUresult result = library_of(handle, &l);
    (void)out;
    return result ? result : CUDA_ERROR_INVALID_VALUE;
}
ENTRY(cuLibraryGetUnifiedFunction, (void **out, CUlibrary library, const char *symbol),
      ((void)symbol, unified(out, library)))

static CUresult kernel_of(CUkernel handle, struct kernel **out) {
    CUresult result = need_init();
    if (result) return result;
    struct kernel *k = (struct kernel *)(void *)handle;
    if (k && k->magic == MAGIC_DEAD) fake_crash();
    if (!k || k->magic != MAGIC_KERNEL) return CUDA_ERROR_INVALID_HANDLE;
    *out = k;
    return CUDA_SUCCESS;
}

static CUresult kernel_function(struct ctx *ctx, struct kernel *k, struct function **out) {
    struct module *m;
    CUresult result = library_module(k->library, ctx, &m);
    if (result) return result;
    result = module_function(m, k->entry, out);
    if (result == CUDA_SUCCESS) (*out)->dynamic_shared = k->dynamic_shared;
    return result;
}

static CUresult kernel_get_function(CUfunction *out, CUkernel handle) {
    struct ctx *ctx;
    struct kernel *k;
    struct function *f;
    CUresult result = need_ctx(&ctx);
    if (result == CUDA_SUCCESS) result = kernel_of(handle, &k);
    if (result) return result;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    if ((result = kernel_function(ctx, k, &f)) == CUDA_SUCCESS) *out = (CUfunction)(void *)f;
    return result;
}
ENTRY(cuKernelGetFunction, (CUfunction * function, CUkernel kernel), kernel_get_function(function, kernel))

CUresult function_of(struct ctx *ctx, CUfunction handle, struct function **out) {
    struct function *f = (struct function *)(void *)handle;
    if (__builtin_expect(!f, 0)) return CUDA_ERROR_INVALID_HANDLE;
    if (__builtin_expect(f->magic == MAGIC_FUNCTION, 1)) {
        *out = f;
        return CUDA_SUCCESS;
    }
    if (f->magic == MAGIC_DEAD) fake_crash();
    if (f->magic == MAGIC_KERNEL) return kernel_function(ctx, (struct kernel *)(void *)handle, out);
    return CUDA_ERROR_INVALID_HANDLE;
}

/* ---- what is known of a function -------------------------------------------------------------------------- */

static CUresult attribute(const struct entry *e, int dynamic_shared, int carveout, int capability, int which,
                          int *out) {
    if (!out || which < 0 || which >= 16) return CUDA_ERROR_INVALID_VALUE;
    switch (which) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *out = (int)e->max_threads; break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: *out = (int)e->shared; break;
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES: *out = (int)e->constant; break;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: *out = (int)e->local; break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *out = (int)e->registers; break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION: *out = e->ptx_version; break;
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *out = capability; break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *out = dynamic_shared; break;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: *out = carveout; break;
    default: *out = 0;
    }
    return CUDA_SUCCESS;
}

static CUresult set_attribute(uint32_t device, const struct entry *e, int *dynamic_shared, int *carveout, int which,
                              int value) {
    if (which == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
        if (value < 0 || (uint32_t)value + e->shared > physical(device)->shared_bytes_optin)
            return CUDA_ERROR_INVALID_VALUE;
        *dynamic_shared = value;
        return CUDA_SUCCESS;
    }
    if (which == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT) {
        if (value < -1 || value > 100) return CUDA_ERROR_INVALID_VALUE;
        *carveout = value;
        return CUDA_SUCCESS;
    }
    /* Cluster attributes are accepted; 10 (set by the compiler) and everything else cannot be changed. */
    return which >= 11 && which <= 14                ? CUDA_SUCCESS
           : which == 15 && value >= 0 && value <= 2 ? CUDA_SUCCESS
                                                     : CUDA_ERROR_INVALID_VALUE;
}

/* Questions about a function may be asked with or without a current context. */
static CUresult some_function(CUfunction handle, struct function **out) {
    CUresult result = need_init();
    if (result) return result;
    if (!handle) return CUDA_ERROR_INVALID_HANDLE;
    struct ctx *ctx;
    if (((struct function *)(void *)handle)->magic == MAGIC_KERNEL && (result = need_ctx(&ctx)) != CUDA_SUCCESS)
        return result;
    return function_of(fake_current, handle, out);
}

static CUresult func_get(int *out, int which, CUfunction handle) {
    struct function *f;
    CUresult result = some_function(handle, &f);
    return result
               ? result
               : attribute(f->entry, f->dynamic_shared, f->carveout, capability_of(f->module->ctx->device), which, out);
}
ENTRY(cuFuncGetAttribute, (int *value, CUfunction_attribute which, CUfunction function),
      func_get(value, (int)which, function))

static CUresult func_set(CUfunction handle, int which, int value) {
    struct function *f;
    CUresult result = some_function(handle, &f);
    return result ? result
                  : set_attribute(f->module->ctx->device, f->entry, &f->dynamic_shared, &f->carveout, which, value);
}
ENTRY(cuFuncSetAttribute, (CUfunction function, CUfunction_attribute which, int value),
      func_set(function, (int)which, value))

static CUresult func_exists(CUfunction handle) {
    struct function *f;
    return some_function(handle, &f);
}
ENTRY(cuFuncSetCacheConfig, (CUfunction function, CUfunc_cache config), ((void)config, func_exists(function)))
ENTRY(cuFuncSetSharedMemConfig, (CUfunction function, CUsharedconfig config), ((void)config, func_exists(function)))
ENTRY(cuFuncLoad, (CUfunction function), func_exists(function))

static CUresult func_loaded(CUfunctionLoadingState *out, CUfunction handle) {
    CUresult result = func_exists(handle);
    if (result) return result;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = CU_FUNCTION_LOADING_STATE_LOADED;
    return CUDA_SUCCESS;
}
ENTRY(cuFuncIsLoaded, (CUfunctionLoadingState * state, CUfunction function), func_loaded(state, function))

static CUresult func_name(const char **out, CUfunction handle) {
    struct function *f;
    CUresult result = some_function(handle, &f);
    if (result) return result;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = f->entry->name;
    return CUDA_SUCCESS;
}
ENTRY(cuFuncGetName, (const char **name, CUfunction function), func_name(name, function))

static CUresult func_module(CUmodule *out, CUfunction handle) {
    struct function *f;
    CUresult result = some_function(handle, &f);
    if (result) return result;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = (CUmodule)(void *)f->module;
    return CUDA_SUCCESS;
}
ENTRY(cuFuncGetModule, (CUmodule * module, CUfunction function), func_module(module, function))

static CUresult parameter(const struct entry *e, size_t index, size_t *offset, size_t *bytes) {
    if (!offset || index >= e->count) return CUDA_ERROR_INVALID_VALUE;
    *offset = e->parameter[index].offset;
    if (bytes) *bytes = e->parameter[index].size;
    return CUDA_SUCCESS;
}

static CUresult func_param(CUfunction handle, size_t index, size_t *offset, size_t *bytes) {
    struct function *f;
    CUresult result = some_function(handle, &f);
    return result ? result : parameter(f->entry, index, offset, bytes);
}
ENTRY(cuFuncGetParamInfo, (CUfunction function, size_t index, size_t *offset, size_t *bytes),
      func_param(function, index, offset, bytes))

static CUresult kernel_param(CUkernel handle, size_t index, size_t *offset, size_t *bytes) {
    struct ctx *ctx;
    struct kernel *k;
    CUresult result = need_ctx(&ctx);
    if (result == CUDA_SUCCESS) result = kernel_of(handle, &k);
    return result ? result : parameter(k->entry, index, offset, bytes);
}
ENTRY(cuKernelGetParamInfo, (CUkernel kernel, size_t index, size_t *offset, size_t *bytes),
      kernel_param(kernel, index, offset, bytes))

static CUresult kernel_get(int *out, int which, CUkernel handle, CUdevice device) {
    struct kernel *k;
    CUresult result = kernel_of(handle, &k);
    if (result) return result;
    struct visible *v = visible_device(device);
    if (!v) return CUDA_ERROR_INVALID_DEVICE;
    return attribute(k->entry, k->dynamic_shared, k->carveout, capability_of(v->physical), which, out);
}
ENTRY(cuKernelGetAttribute, (int *value, CUfunction_attribute which, CUkernel kernel, CUdevice device),
      kernel_get(value, (int)which, kernel, device))

static CUresult kernel_set(int which, int value, CUkernel handle, CUdevice device) {
    struct kernel *k;
    CUresult result = kernel_of(handle, &k);
    if (result) return result;
    struct visible *v = visible_device(device);
    if (!v) return CUDA_ERROR_INVALID_DEVICE;
    return set_attribute(v->physical, k->entry, &k->dynamic_shared, &k->carveout, which, value);
}
ENTRY(cuKernelSetAttribute, (CUfunction_attribute which, int value, CUkernel kernel, CUdevice device),
      kernel_set((int)which, value, kernel, device))

static CUresult kernel_exists(CUkernel handle) {
    struct kernel *k;
    return kernel_of(handle, &k);
}
ENTRY(cuKernelSetCacheConfig, (CUkernel kernel, CUfunc_cache config, CUdevice device),
      ((void)config, (void)device, kernel_exists(kernel)))

static CUresult kernel_name(const char **out, CUkernel handle) {
    struct kernel *k;
    CUresult result = kernel_of(handle, &k);
    if (result) return result;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = k->entry->name;
    return CUDA_SUCCESS;
}
ENTRY(cuKernelGetName, (const char **name, CUkernel kernel), kernel_name(name, kernel))

static CUresult kernel_library(CUlibrary *out, CUkernel handle) {
    struct kernel *k;
    CUresult result = kernel_of(handle, &k);
    if (result) return result;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = (CUlibrary)(void *)k->library;
    return CUDA_SUCCESS;
}
ENTRY(cuKernelGetLibrary, (CUlibrary * library, CUkernel kernel), kernel_library(library, kernel))

/* ---- links ------------------------------------------------------------------------------------------------ */

/* What comes out of a link is text or a cubin that these functions read again: the last input that has entries, or an
 * empty PTX module. A linker that merges several inputs is not modelled. */
struct link {
    uint32_t magic;
    uint32_t device;
    char *result;
    size_t bytes;
    unsigned inputs;
};

static CUresult link_of(CUlinkState handle, struct link **out) {
    CUresult result = need_init();
    if (result) return result;
    struct link *l = (struct link *)(void *)handle;
    if (!l || l->magic != MAGIC_LINK) return CUDA_ERROR_INVALID_HANDLE;
    *out = l;
    return CUDA_SUCCESS;
}

static CUresult link_create(CUlinkState *out) {
    struct ctx *ctx;
    CUresult result = need_ctx(&ctx);
    if (result) return result;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    struct link *l = calloc(1, sizeof *l);
    if (!l) return CUDA_ERROR_OUT_OF_MEMORY;
    l->magic = MAGIC_LINK;
    l->device = ctx->device;
    *out = (CUlinkState)(void *)l;
    return CUDA_SUCCESS;
}
ENTRY(cuLinkCreate, (unsigned int count, CUjit_option *options, void **values, CUlinkState *out),
      ((void)count, (void)options, (void)values, link_create(out)))
ENTRY(cuLinkCreate_v2, (unsigned int count, CUjit_option *options, void **values, CUlinkState *out),
      ((void)count, (void)options, (void)values, link_create(out)))

static CUresult link_add(CUlinkState handle, int type, const void *data, size_t bytes) {
    struct link *l;
    struct image *image;
    CUresult result = link_of(handle, &l);
    if (result) return result;
    if (!data || !bytes || type < 0 || type >= CU_JIT_NUM_INPUT_TYPES) return CUDA_ERROR_INVALID_VALUE;
    if (type == CU_JIT_INPUT_LIBRARY || type == CU_JIT_INPUT_NVVM || type == CU_JIT_INPUT_OBJECT)
        return CUDA_ERROR_NOT_SUPPORTED;
    result = (CUresult)image_parse(data, bytes, capability_of(l->device), &image);
    if (result) return result;
    int better = image->entries || !l->result;
    int merges = image->entries && l->inputs;
    image_free(image);
    if (merges) return CUDA_ERROR_NOT_SUPPORTED;
    l->inputs += better;
    if (!better) return CUDA_SUCCESS;
    char *copy = calloc(1, bytes + 1);
    if (!copy) return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(copy, data, bytes);
    free(l->result);
    l->result = copy;
    l->bytes = bytes;
    return CUDA_SUCCESS;
}
#define LINK_ADD(NAME)                                                                                                 \
    API NAME(CUlinkState state, CUjitInputType type, void *data, size_t bytes, const char *name, unsigned int count,   \
             CUjit_option *options, void **values);                                                                    \
    API NAME(CUlinkState state, CUjitInputType type, void *data, size_t bytes, const char *name, unsigned int count,   \
             CUjit_option *options, void **values) {                                                                   \
        ENTER(NAME);                                                                                                   \
        (void)name, (void)count, (void)options, (void)values;                                                          \
        LEAVE(link_add(state, (int)type, data, bytes), bytes, 0);                                                      \
    }
LINK_ADD(cuLinkAddData)
LINK_ADD(cuLinkAddData_v2)

static CUresult link_file(CUlinkState handle, int type, const char *path) {
    struct link *l;
    CUresult result = link_of(handle, &l);
    if (result) return result;
    size_t bytes = 0;
    void *data = path ? read_file(path, &bytes) : NULL;
    if (!path) return CUDA_ERROR_INVALID_VALUE;
    if (!data) return CUDA_ERROR_FILE_NOT_FOUND;
    result = link_add(handle, type, data, bytes);
    free(data);
    return result;
}
#define LINK_FILE(NAME)                                                                                                \
    API NAME(CUlinkState state, CUjitInputType type, const char *path, unsigned int count, CUjit_option *options,      \
             void **values);                                                                                           \
    API NAME(CUlinkState state, CUjitInputType type, const char *path, unsigned int count, CUjit_option *options,      \
             void **values) {                                                                                          \
        ENTER(NAME);                                                                                                   \
        (void)count, (void)options, (void)values;                                                                      \
        LEAVE(link_file(state, (int)type, path), 0, 0);                                                                \
    }
LINK_FILE(cuLinkAddFile)
LINK_FILE(cuLinkAddFile_v2)

static CUresult link_complete(CUlinkState handle, void **out, size_t *bytes) {
    struct link *l;
    CUresult result = link_of(handle, &l);
    if (result) return result;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    if (!l->result) {
        static const char empty[] = ".version 6.0\n.target sm_50\n.address_size 64\n";
        if (!(l->result = strdup(empty))) return CUDA_ERROR_OUT_OF_MEMORY;
        l->bytes = sizeof empty;
    }
    *out = l->result;
    if (bytes) *bytes = l->bytes;
    return CUDA_SUCCESS;
}
ENTRY(cuLinkComplete, (CUlinkState state, void **cubin, size_t *bytes), link_complete(state, cubin, bytes))

static CUresult link_destroy(CUlinkState handle) {
    struct link *l;
    CUresult result = link_of(handle, &l);
    if (result) return result;
    free(l->result);
    l->magic = MAGIC_DEAD;
    return CUDA_SUCCESS;
}
ENTRY(cuLinkDestroy, (CUlinkState state), link_destroy(state))
