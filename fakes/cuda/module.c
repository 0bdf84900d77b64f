/* Modules, libraries, kernels and functions. A library is read when it is loaded but judged when it is first used
 * (lazy loading); a module is judged at once. Code and variables of a module take device memory of kind MODULE. */
#include "module.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SHARED_DEFAULT = 49152, CODE_BYTES_MAX = 1 << 20 };

struct library {
    uint32_t magic;
    int trouble; /* what every use of it answers */
    struct image *image;
    struct kernel *kernels;
    struct module *modules; /* one a context, made at first use; linked by their own `next` in the context */
    struct library *next;
};

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
    result = (CUresult)image_parse(data, bytes, capability_of_device(ctx->device), &image);
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
void *image_file(const char *path, size_t *bytes) {
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
    void *data = image_file(path, &bytes);
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
        f->settings = (struct settings){SHARED_DEFAULT - (int)entry->shared, -1};
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

ENTRY(cuModuleGetGlobal, (CUdeviceptr_v1 * at, unsigned int *bytes, CUmodule module, const char *name),
      ((void)at, (void)bytes, (void)module, (void)name, old_generation()))

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
    l->trouble = image_parse(data, 0, capability_of_device(fake.visible[0].physical), &l->image);
    for (uint32_t i = 0; !l->trouble && i < l->image->entries; i++) {
        struct kernel *k = calloc(1, sizeof *k);
        if (!k) {
            l->trouble = CUDA_ERROR_OUT_OF_MEMORY;
            break;
        }
        *k = (struct kernel){
            MAGIC_KERNEL, l, &l->image->entry[i], {SHARED_DEFAULT - (int)l->image->entry[i].shared, -1}, l->kernels};
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
    void *data = image_file(path, &bytes);
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

CUresult kernel_of(CUkernel handle, struct kernel **out) {
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
    if (result == CUDA_SUCCESS) (*out)->settings.dynamic_shared = k->settings.dynamic_shared;
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
