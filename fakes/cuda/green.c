/* Green contexts: parts of a device's multiprocessors. They are counted and handed back; the time of a kernel does not
 * depend on them here. A green context lives in the device's primary context, which it retains. */
#include <stdlib.h>
#include <string.h>

#include "fake.h"
#include "graph.h"

enum { MAGIC_GREEN = 0x47524e31, MAGIC_DESC = 0x47524431 };

struct desc {
    uint32_t magic, device;
    unsigned count; /* multiprocessors */
};

struct green {
    uint32_t magic;
    CUdevice device;
    unsigned count;
    unsigned long long id;
    struct ctx *ctx;
};

/* What a resource carries where the program does not look: whose multiprocessors they are. */
static uint32_t owner_of(const CUdevResource *r) {
    uint32_t words[2];
    memcpy(words, r->_internal_padding, sizeof words);
    return words[0] == MAGIC_DESC && words[1] < HL_MAX_DEVICES ? words[1] : HL_MAX_DEVICES;
}

static void fill(CUdevResource *r, uint32_t device, unsigned count) {
    uint32_t words[2] = {MAGIC_DESC, device};
    memset(r, 0, sizeof *r);
    r->type = CU_DEV_RESOURCE_TYPE_SM;
    memcpy(r->_internal_padding, words, sizeof words);
    r->sm.smCount = count;
}

/* The smallest part and its step, by generation of the architecture (documented). */
static unsigned smallest(uint32_t device) {
    return physical(device)->cc_major >= 9 ? 8 : physical(device)->cc_major >= 8 ? 4 : 2;
}
static unsigned step(uint32_t device) { return physical(device)->cc_major >= 9 ? 8 : 2; }

static CUresult answer(CUdevResource *out, int type, uint32_t device, unsigned count) {
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    fill(out, device, count);
    return CUDA_SUCCESS;
}

static CUresult of_device(CUdevice device, CUdevResource *out, int type) {
    CUresult result = need_init();
    if (result) return result;
    struct visible *v = visible_device(device);
    return v ? answer(out, type, v->physical, physical(v->physical)->sm_count) : CUDA_ERROR_INVALID_DEVICE;
}
ENTRY(cuDeviceGetDevResource, (CUdevice device, CUdevResource *out, CUdevResourceType type),
      of_device(device, out, (int)type))

static CUresult of_context(CUcontext handle, CUdevResource *out, int type) {
    struct ctx *ctx;
    CUresult result = need_init();
    if (result == CUDA_SUCCESS) result = graph_ctx(handle, &ctx);
    return result ? result : answer(out, type, ctx->device, physical(ctx->device)->sm_count);
}
ENTRY(cuCtxGetDevResource, (CUcontext ctx, CUdevResource *out, CUdevResourceType type), of_context(ctx, out, (int)type))

static CUresult split(CUdevResource *out, unsigned *groups, const CUdevResource *from, CUdevResource *rest,
                      unsigned flags, unsigned least) {
    CUresult result = need_init();
    if (result) return result;
    if (!groups || !from || from->type != CU_DEV_RESOURCE_TYPE_SM || owner_of(from) == HL_MAX_DEVICES || flags > 3)
        return CUDA_ERROR_INVALID_VALUE;
    uint32_t device = owner_of(from);
    unsigned all = from->sm.smCount, each = least < smallest(device) ? smallest(device) : least;
    each = (each + step(device) - 1) / step(device) * step(device);
    unsigned most = all / each;
    if (most == 0) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    unsigned made = out && *groups < most ? *groups : most;
    for (unsigned i = 0; out && i < made; i++) fill(&out[i], device, each);
    *groups = made;
    if (rest) fill(rest, device, out ? all - made * each : 0);
    if (rest && !(out && all > made * each)) rest->type = CU_DEV_RESOURCE_TYPE_INVALID;
    return CUDA_SUCCESS;
}
ENTRY(cuDevSmResourceSplitByCount,
      (CUdevResource * out, unsigned int *groups, const CUdevResource *from, CUdevResource *rest, unsigned int flags,
       unsigned int least),
      split(out, groups, from, rest, flags, least))

static CUresult describe(CUdevResourceDesc *out, const CUdevResource *list, unsigned count) {
    CUresult result = need_init();
    if (result) return result;
    if (!out || !list) return CUDA_ERROR_INVALID_VALUE;
    if (count == 0) fake_crash();
    unsigned sum = 0;
    for (unsigned i = 0; i < count; i++) {
        if (list[i].type != CU_DEV_RESOURCE_TYPE_SM || owner_of(&list[i]) == HL_MAX_DEVICES ||
            owner_of(&list[i]) != owner_of(&list[0]))
            return CUDA_ERROR_INVALID_RESOURCE_TYPE;
        sum += list[i].sm.smCount;
    }
    if (sum > physical(owner_of(&list[0]))->sm_count) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    struct desc *d = malloc(sizeof *d); /* lives as long as the process: nothing destroys one */
    if (!d) return CUDA_ERROR_OUT_OF_MEMORY;
    *d = (struct desc){MAGIC_DESC, owner_of(&list[0]), sum};
    *out = (CUdevResourceDesc)(void *)d;
    return CUDA_SUCCESS;
}
ENTRY(cuDevResourceGenerateDesc, (CUdevResourceDesc * out, CUdevResource *list, unsigned int count),
      describe(out, list, count))

static CUresult create(CUgreenCtx *out, CUdevResourceDesc handle, CUdevice device, unsigned flags) {
    CUresult result = need_init();
    if (result) return result;
    const struct desc *d = (const struct desc *)(const void *)handle;
    struct visible *v = visible_device(device);
    if (!out || (d && d->magic != MAGIC_DESC) || flags != CU_GREEN_CTX_DEFAULT_STREAM) return CUDA_ERROR_INVALID_VALUE;
    if (!v || (d && v->physical != d->device)) return CUDA_ERROR_INVALID_DEVICE;
    struct green *g = calloc(1, sizeof *g);
    if (!g) return CUDA_ERROR_OUT_OF_MEMORY;
    *g = (struct green){MAGIC_GREEN, device, d ? d->count : physical(v->physical)->sm_count, 0, NULL};
    if ((result = context_retain_primary(device, &g->ctx)) != CUDA_SUCCESS) {
        free(g);
        return result;
    }
    fake_lock();
    g->id = fake.next_ctx_id++;
    fake_unlock();
    *out = (CUgreenCtx)(void *)g;
    return CUDA_SUCCESS;
}
ENTRY(cuGreenCtxCreate, (CUgreenCtx * out, CUdevResourceDesc desc, CUdevice device, unsigned int flags),
      create(out, desc, device, flags))

static CUresult green_of(CUgreenCtx handle, struct green **out) {
    CUresult result = need_init();
    if (result) return result;
    *out = (struct green *)(void *)handle;
    return *out && (*out)->magic == MAGIC_GREEN ? ctx_trouble((*out)->ctx) : CUDA_ERROR_INVALID_CONTEXT;
}

static CUresult destroy(CUgreenCtx handle) {
    struct green *g;
    CUresult result = green_of(handle, &g);
    if (result) return result;
    g->magic = MAGIC_DEAD; /* stays as a corpse */
    return context_release_primary(g->device);
}
ENTRY(cuGreenCtxDestroy, (CUgreenCtx green), destroy(green))

static CUresult as_context(CUcontext *out, CUgreenCtx handle) {
    struct green *g;
    CUresult result = green_of(handle, &g);
    if (result) return result;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = (CUcontext)(void *)g->ctx;
    return CUDA_SUCCESS;
}
ENTRY(cuCtxFromGreenCtx, (CUcontext * out, CUgreenCtx green), as_context(out, green))

static CUresult of_green(CUgreenCtx handle, CUdevResource *out, int type) {
    struct green *g;
    CUresult result = green_of(handle, &g);
    return result ? result : answer(out, type, g->ctx->device, g->count);
}
ENTRY(cuGreenCtxGetDevResource, (CUgreenCtx green, CUdevResource *out, CUdevResourceType type),
      of_green(green, out, (int)type))

static CUresult get_id(CUgreenCtx handle, unsigned long long *out) {
    struct green *g;
    CUresult result = green_of(handle, &g);
    if (result) return result;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = g->id;
    return CUDA_SUCCESS;
}
ENTRY(cuGreenCtxGetId, (CUgreenCtx green, unsigned long long *out), get_id(green, out))

static CUresult at_event(CUgreenCtx handle, CUevent event, int record) {
    struct green *g;
    CUresult result = green_of(handle, &g);
    return result ? result : context_event(g->ctx, event, record);
}
ENTRY(cuGreenCtxRecordEvent, (CUgreenCtx green, CUevent event), at_event(green, event, 1))
ENTRY(cuGreenCtxWaitEvent, (CUgreenCtx green, CUevent event), at_event(green, event, 0))

static CUresult make_stream(CUstream *out, CUgreenCtx handle, unsigned flags, int priority) {
    struct green *g;
    struct stream *s;
    CUresult result = green_of(handle, &g);
    if (result) return result;
    if (!out || flags != CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
    if ((result = stream_create(g->ctx, flags, priority, &s)) != CUDA_SUCCESS) return result;
    s->green = g;
    *out = (CUstream)(void *)s;
    return CUDA_SUCCESS;
}
ENTRY(cuGreenCtxStreamCreate, (CUstream * out, CUgreenCtx green, unsigned int flags, int priority),
      make_stream(out, green, flags, priority))

static CUresult of_stream(CUstream handle, CUgreenCtx *out) {
    struct ctx *ctx;
    CUresult result = need_ctx(&ctx);
    if (result) return result;
    const struct stream *s = stream_of(ctx, handle, 1);
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = (CUgreenCtx)(void *)s->green;
    return CUDA_SUCCESS;
}
ENTRY(cuStreamGetGreenCtx, (CUstream stream, CUgreenCtx *out), of_stream(stream, out))
