/* Modules, libraries, kernels and functions. */
#ifndef HOOKLAB_MODULE_H
#define HOOKLAB_MODULE_H
#include "fake.h"
#include "image.h"

struct function {
    uint32_t magic;
    struct module *module;
    const struct entry *entry;
    int dynamic_shared, carveout; /* attributes that can be set */
    uint64_t old_shared;          /* cuFuncSetSharedSize and cuFuncSetBlockShape */
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
void modules_end(struct ctx *ctx); /* under the lock, the context ends */
CUresult module_new(struct ctx *ctx, struct image *image, int owned, struct library *library, struct module **out);
void module_end(struct module *module); /* under the lock */
#endif
