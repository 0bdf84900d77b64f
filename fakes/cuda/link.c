/* Links. What comes out of a link is text or a cubin that a module reads again: the last input that has entries, or an empty
 * PTX module. A linker that merges several inputs is not modelled. */
#include <stdlib.h>
#include <string.h>

#include "module.h"

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
    result = (CUresult)image_parse(data, bytes, capability_of_device(l->device), &image);
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
    void *data = path ? image_file(path, &bytes) : NULL;
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
