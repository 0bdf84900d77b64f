/* Modules, libraries, kernels and functions. */
#ifndef HOOKLAB_MODULE_H
#define HOOKLAB_MODULE_H
#include "fake.h"
#include "image.h"

struct settings { /* attributes of a function or a kernel that can be set */
    int dynamic_shared, carveout;
};

struct kernel {
    uint32_t magic;
    struct library *library;
    const struct entry *entry;
    struct settings settings;
    struct kernel *next;
};

struct function {
    uint32_t magic;
    struct module *module;
    const struct entry *entry;
    struct settings settings;
    uint64_t old_shared; /* cuFuncSetSharedSize and cuFuncSetBlockShape */
    unsigned block[3];
    unsigned char old_params[4096];
    struct function *next;
};

struct global {
    const struct variable *variable;
    struct alloc *alloc;
};

struct module {
    uint32_t magic;
    int owned; /* the image is ours to free */
    struct ctx *ctx;
    struct image *image;
    struct alloc *code; /* what the code takes on the device */
    struct global *globals;
    struct function *functions;
    struct library *library;
    struct module *next;
};

/* A CUfunction or a CUkernel used as one. 0, 400 for what is neither; faults on the corpse of one. */
CUresult function_of(struct ctx *ctx, CUfunction handle, struct function **out);
CUresult kernel_of(CUkernel handle, struct kernel **out);
void *image_file(const char *path, size_t *bytes); /* a whole file with a NUL after it; NULL: it cannot be read */
static inline int capability_of_device(uint32_t device) {
    return physical(device)->cc_major * 10 + physical(device)->cc_minor;
}
void modules_end(struct ctx *ctx); /* under the lock, the context ends */
CUresult module_new(struct ctx *ctx, struct image *image, int owned, struct library *library, struct module **out);
void module_end(struct module *module); /* under the lock */
#endif
