/* Arrays as the files of the driver share them. */
#ifndef HOOKLAB_ARRAY_H
#define HOOKLAB_ARRAY_H
#include "fake.h"

struct array {
    uint32_t magic;
    unsigned element; /* bytes of one element: all its channels */
    struct ctx *ctx;
    struct alloc *memory; /* NULL: deferred, or a level of a mipmap */
    struct array *parent; /* of a level */
    struct array *levels; /* of a mipmap: one a level */
    unsigned level_count;
    CUDA_ARRAY3D_DESCRIPTOR desc;
    uint64_t offset;       /* of its first byte in the process's memory file */
    uint64_t pitch, slice; /* bytes of a row and of a layer, padding included */
    struct array *next;
};

struct array *array_of(CUarray handle);              /* NULL: not a living array, or one without memory */
struct array *mipmap_of(CUmipmappedArray handle);    /* NULL: not a living mipmap */
unsigned array_channel_bytes(CUarray_format format); /* 0: no format that is known */
CUresult array_create(struct ctx *ctx, const CUDA_ARRAY3D_DESCRIPTOR *desc, struct array **out);
CUresult array_destroy(struct array *array);
#endif
