/* Texture and surface objects, and texture references. A kernel that reads through one is never executed here, so that an
 * object is what it was made of: checked when it is made, handed back when it is asked. */
#include <stdlib.h>
#include <string.h>

#include "array.h"
#include "fake.h"

enum { MAGIC_REFERENCE = 0x54524631, OBJECTS = 1 << 20, LINEAR_ALIGN = 512, PITCH_ALIGN = 32, TEXELS = 1 << 28 };

struct object { /* under the lock; the handle is the place + 1 */
    int is_surface;
    CUDA_RESOURCE_DESC resource;
    CUDA_TEXTURE_DESC texture;
    CUDA_RESOURCE_VIEW_DESC view;
};

struct reference {
    uint32_t magic;
    CUarray array;
    CUmipmappedArray mipmap;
    CUdeviceptr at;
    CUarray_format format;
    int channels;
    CUaddress_mode address[3];
    CUfilter_mode filter, mipmap_filter;
    float bias, clamp[2], border[4];
    int anisotropy;
    unsigned flags;
};

static struct object **objects;
static size_t room;

/* Whose memory it is is not looked at, measured. */
static CUresult judge_memory(CUdeviceptr at, size_t bytes, size_t alignment) {
    return at && bytes && at % alignment == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static unsigned texel(CUarray_format format, unsigned channels) {
    unsigned bytes = array_channel_bytes(format);
    return channels == 1 || channels == 2 || channels == 4 ? bytes * channels : 0;
}

static CUresult judge_resource(const CUDA_RESOURCE_DESC *r, int is_surface) {
    if (!r || r->flags) return CUDA_ERROR_INVALID_VALUE;
    switch ((int)r->resType) {
    case CU_RESOURCE_TYPE_ARRAY: return array_of(r->res.array.hArray) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY:
        if (is_surface) return CUDA_ERROR_INVALID_VALUE;
        return mipmap_of(r->res.mipmap.hMipmappedArray) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    case CU_RESOURCE_TYPE_LINEAR: {
        unsigned each = texel(r->res.linear.format, r->res.linear.numChannels);
        if (is_surface || !each || r->res.linear.sizeInBytes / each > TEXELS) return CUDA_ERROR_INVALID_VALUE;
        return judge_memory(r->res.linear.devPtr, r->res.linear.sizeInBytes, LINEAR_ALIGN);
    }
    case CU_RESOURCE_TYPE_PITCH2D: {
        unsigned each = texel(r->res.pitch2D.format, r->res.pitch2D.numChannels);
        if (is_surface || !each || !r->res.pitch2D.height || r->res.pitch2D.pitchInBytes % PITCH_ALIGN ||
            r->res.pitch2D.width > r->res.pitch2D.pitchInBytes / each)
            return CUDA_ERROR_INVALID_VALUE;
        size_t bytes;
        if (__builtin_mul_overflow(r->res.pitch2D.pitchInBytes, r->res.pitch2D.height - 1, &bytes))
            return CUDA_ERROR_INVALID_VALUE;
        return judge_memory(r->res.pitch2D.devPtr, bytes + r->res.pitch2D.width * each, LINEAR_ALIGN);
    }
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

static CUresult judge_texture(const CUDA_TEXTURE_DESC *t) {
    if (!t) return CUDA_ERROR_INVALID_VALUE;
    for (int i = 0; i < 3; i++)
        if ((unsigned)t->addressMode[i] > CU_TR_ADDRESS_MODE_BORDER) return CUDA_ERROR_INVALID_VALUE;
    return (unsigned)t->filterMode > CU_TR_FILTER_MODE_LINEAR ||
                   (unsigned)t->mipmapFilterMode > CU_TR_FILTER_MODE_LINEAR
               ? CUDA_ERROR_INVALID_VALUE
               : CUDA_SUCCESS;
}

/* Under the lock: a free place, or `room` where there is none. */
static size_t place(void) {
    size_t at = 0;
    while (at < room && objects[at]) at++;
    if (at < room || room == OBJECTS) return at;
    size_t more = room ? room * 2 : 64;
    struct object **grown = realloc(objects, more * sizeof *grown);
    if (!grown) return room;
    memset(grown + room, 0, (more - room) * sizeof *grown);
    objects = grown;
    room = more;
    return at;
}

static CUresult create(unsigned long long *out, const struct object *wanted) {
    struct object *o = malloc(sizeof *o);
    if (!o) return CUDA_ERROR_OUT_OF_MEMORY;
    *o = *wanted;
    fake_lock();
    size_t at = place();
    if (at < room) objects[at] = o;
    else free(o);
    CUresult result = at < room ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    fake_unlock();
    if (result == CUDA_SUCCESS) *out = at + 1;
    return result;
}

static CUresult create_texture(CUtexObject *out, const CUDA_RESOURCE_DESC *resource, const CUDA_TEXTURE_DESC *texture,
                               const CUDA_RESOURCE_VIEW_DESC *view) {
    struct ctx *ctx;
    CUresult result = need_ctx(&ctx);
    if (result) return result;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    if ((result = judge_resource(resource, 0)) != CUDA_SUCCESS || (result = judge_texture(texture)) != CUDA_SUCCESS)
        return result;
    /* A view is of an array only. */
    if (view && resource->resType != CU_RESOURCE_TYPE_ARRAY && resource->resType != CU_RESOURCE_TYPE_MIPMAPPED_ARRAY)
        return CUDA_ERROR_INVALID_VALUE;
    struct object o = {.resource = *resource, .texture = *texture};
    if (view) o.view = *view;
    return create(out, &o);
}
ENTRY(cuTexObjectCreate,
      (CUtexObject * out, const CUDA_RESOURCE_DESC *resource, const CUDA_TEXTURE_DESC *texture,
       const CUDA_RESOURCE_VIEW_DESC *view),
      create_texture(out, resource, texture, view))

static CUresult create_surface(CUsurfObject *out, const CUDA_RESOURCE_DESC *resource) {
    struct ctx *ctx;
    CUresult result = need_ctx(&ctx);
    if (result) return result;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    if ((result = judge_resource(resource, 1)) != CUDA_SUCCESS) return result;
    return create(out, &(struct object){.is_surface = 1, .resource = *resource});
}
ENTRY(cuSurfObjectCreate, (CUsurfObject * out, const CUDA_RESOURCE_DESC *resource), create_surface(out, resource))

/* Under the lock. */
static struct object *object_of(unsigned long long handle, int is_surface) {
    struct object *o = handle && handle <= room ? objects[handle - 1] : NULL;
    return o && o->is_surface == is_surface ? o : NULL;
}

static CUresult destroy(unsigned long long handle, int is_surface) {
    struct ctx *ctx;
    CUresult result = need_ctx(&ctx);
    if (result) return result;
    fake_lock();
    struct object *o = object_of(handle, is_surface);
    if (o) objects[handle - 1] = NULL;
    fake_unlock();
    free(o);
    return CUDA_SUCCESS; /* of what is none, too, measured */
}
ENTRY(cuTexObjectDestroy, (CUtexObject object), destroy(object, 0))
ENTRY(cuSurfObjectDestroy, (CUsurfObject object), destroy(object, 1))

#define DESCRIBE(NAME, HANDLE, SURFACE, TYPE, FIELD)                                                                   \
    static CUresult describe_##NAME(TYPE *out, HANDLE handle) {                                                        \
        CUresult result = need_init();                                                                                 \
        if (result) return result;                                                                                     \
        fake_lock();                                                                                                   \
        const struct object *o = object_of(handle, SURFACE);                                                           \
        if (o && out) *out = o->FIELD;                                                                                 \
        else result = CUDA_ERROR_INVALID_VALUE;                                                                        \
        fake_unlock();                                                                                                 \
        return result;                                                                                                 \
    }                                                                                                                  \
    ENTRY(NAME, (TYPE * out, HANDLE object), describe_##NAME(out, object))
DESCRIBE(cuTexObjectGetResourceDesc, CUtexObject, 0, CUDA_RESOURCE_DESC, resource)
DESCRIBE(cuTexObjectGetTextureDesc, CUtexObject, 0, CUDA_TEXTURE_DESC, texture)
DESCRIBE(cuTexObjectGetResourceViewDesc, CUtexObject, 0, CUDA_RESOURCE_VIEW_DESC, view)
DESCRIBE(cuSurfObjectGetResourceDesc, CUsurfObject, 1, CUDA_RESOURCE_DESC, resource)

/* ---- references: deprecated, but still in the driver -------------------------------------------------------------- */

static CUresult reference_create(CUtexref *out) {
    struct ctx *ctx;
    CUresult result = need_ctx(&ctx);
    if (result) return result;
    struct reference *r = out ? calloc(1, sizeof *r) : NULL;
    if (!r) return out ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
    r->magic = MAGIC_REFERENCE;
    r->format = CU_AD_FORMAT_FLOAT;
    r->channels = 1;
    *out = (CUtexref)(void *)r;
    return CUDA_SUCCESS;
}
ENTRY(cuTexRefCreate, (CUtexref * out), reference_create(out))

/* A reference that lives; 400 for what is none. */
static CUresult reference_of(CUtexref handle, struct reference **out) {
    struct ctx *ctx;
    CUresult result = need_ctx(&ctx);
    if (result) return result;
    *out = (struct reference *)(void *)handle;
    return *out && (*out)->magic == MAGIC_REFERENCE ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult reference_destroy(CUtexref handle) {
    struct reference *r;
    CUresult result = reference_of(handle, &r);
    if (result == CUDA_SUCCESS) r->magic = MAGIC_DEAD; /* stays as a corpse */
    return result;
}
ENTRY(cuTexRefDestroy, (CUtexref reference), reference_destroy(reference))

/* A setter: the condition under which it is right, and what it does to the reference `r`. */
#define SET(NAME, PARAMETERS, ARGUMENTS, RIGHT, ...)                                                                   \
    static CUresult set_##NAME PARAMETERS {                                                                            \
        struct reference *r;                                                                                           \
        CUresult result = reference_of(reference, &r);                                                                 \
        if (result) return result;                                                                                     \
        if (!(RIGHT)) return CUDA_ERROR_INVALID_VALUE;                                                                 \
        __VA_ARGS__;                                                                                                   \
        return CUDA_SUCCESS;                                                                                           \
    }                                                                                                                  \
    ENTRY(NAME, PARAMETERS, set_##NAME ARGUMENTS)
#define GET(NAME, PARAMETERS, ARGUMENTS, RIGHT, ...) SET(NAME, PARAMETERS, ARGUMENTS, RIGHT, __VA_ARGS__)
SET(cuTexRefSetArray, (CUtexref reference, CUarray array, unsigned int flags), (reference, array, flags),
    array_of(array) && flags <= CU_TRSA_OVERRIDE_FORMAT, r->array = array)
SET(cuTexRefSetMipmappedArray, (CUtexref reference, CUmipmappedArray mipmap, unsigned int flags),
    (reference, mipmap, flags), mipmap_of(mipmap) && flags <= CU_TRSA_OVERRIDE_FORMAT, r->mipmap = mipmap)
SET(cuTexRefSetAddress_v2, (size_t *offset, CUtexref reference, CUdeviceptr at, size_t bytes),
    (offset, reference, at, bytes), judge_memory(at, bytes, 1) == CUDA_SUCCESS && (offset || at % LINEAR_ALIGN == 0),
    r->at = at / LINEAR_ALIGN * LINEAR_ALIGN;
    if (offset) *offset = at % LINEAR_ALIGN)
SET(cuTexRefSetAddress2D_v3, (CUtexref reference, const CUDA_ARRAY_DESCRIPTOR *desc, CUdeviceptr at, size_t pitch),
    (reference, desc, at, pitch),
    desc && desc->Height && pitch % PITCH_ALIGN == 0 &&
        judge_memory(at, pitch *(desc->Height - 1) + desc->Width * texel(desc->Format, desc->NumChannels),
                     LINEAR_ALIGN) == CUDA_SUCCESS,
    r->at = at)
ENTRY(cuTexRefSetAddress2D_v2, (CUtexref reference, const CUDA_ARRAY_DESCRIPTOR *desc, CUdeviceptr at, size_t pitch),
      set_cuTexRefSetAddress2D_v3(reference, desc, at, pitch))
ENTRY(cuTexRefSetAddress, (unsigned int *offset, CUtexref reference, CUdeviceptr_v1 at, unsigned int bytes),
      ((void)offset, (void)reference, (void)at, (void)bytes, old_generation()))
ENTRY(cuTexRefSetAddress2D,
      (CUtexref reference, const CUDA_ARRAY_DESCRIPTOR_v1 *desc, CUdeviceptr_v1 at, unsigned int pitch),
      ((void)reference, (void)desc, (void)at, (void)pitch, old_generation()))
SET(cuTexRefSetFormat, (CUtexref reference, CUarray_format format, int channels), (reference, format, channels),
    texel(format, (unsigned)channels) != 0, r->format = format;
    r->channels = channels)
SET(cuTexRefSetAddressMode, (CUtexref reference, int dimension, CUaddress_mode mode), (reference, dimension, mode),
    dimension >= 0 && dimension < 3 && (unsigned)mode <= CU_TR_ADDRESS_MODE_BORDER, r->address[dimension] = mode)
SET(cuTexRefSetFilterMode, (CUtexref reference, CUfilter_mode mode), (reference, mode), 1, r->filter = mode)
SET(cuTexRefSetMipmapFilterMode, (CUtexref reference, CUfilter_mode mode), (reference, mode), 1,
    r->mipmap_filter = mode)
SET(cuTexRefSetMipmapLevelBias, (CUtexref reference, float bias), (reference, bias), 1, r->bias = bias)
SET(cuTexRefSetMipmapLevelClamp, (CUtexref reference, float low, float high), (reference, low, high), low <= high,
    r->clamp[0] = low;
    r->clamp[1] = high)
SET(cuTexRefSetMaxAnisotropy, (CUtexref reference, unsigned int most), (reference, most), most >= 1 && most <= 16,
    r->anisotropy = (int)most)
SET(cuTexRefSetBorderColor, (CUtexref reference, float *color), (reference, color), color != NULL,
    memcpy(r->border, color, sizeof r->border))
SET(cuTexRefSetFlags, (CUtexref reference, unsigned int flags), (reference, flags), flags < 64, r->flags = flags)

GET(cuTexRefGetArray, (CUarray * out, CUtexref reference), (out, reference), out && r->array, *out = r->array)
GET(cuTexRefGetMipmappedArray, (CUmipmappedArray * out, CUtexref reference), (out, reference), out && r->mipmap,
    *out = r->mipmap)
GET(cuTexRefGetAddress_v2, (CUdeviceptr * out, CUtexref reference), (out, reference), out && r->at, *out = r->at)
ENTRY(cuTexRefGetAddress, (CUdeviceptr_v1 * out, CUtexref reference), ((void)out, (void)reference, old_generation()))
GET(cuTexRefGetFormat, (CUarray_format * format, int *channels, CUtexref reference), (format, channels, reference),
    format || channels, if (format) *format = r->format;
    if (channels) *channels = r->channels)
GET(cuTexRefGetAddressMode, (CUaddress_mode * out, CUtexref reference, int dimension), (out, reference, dimension),
    out &&dimension >= 0 && dimension < 3, *out = r->address[dimension])
GET(cuTexRefGetFilterMode, (CUfilter_mode * out, CUtexref reference), (out, reference), out, *out = r->filter)
GET(cuTexRefGetMipmapFilterMode, (CUfilter_mode * out, CUtexref reference), (out, reference), out,
    *out = r->mipmap_filter)
GET(cuTexRefGetMipmapLevelBias, (float *out, CUtexref reference), (out, reference), out, *out = r->bias)
GET(cuTexRefGetMipmapLevelClamp, (float *low, float *high, CUtexref reference), (low, high, reference), low &&high,
    *low = r->clamp[0];
    *high = r->clamp[1])
GET(cuTexRefGetMaxAnisotropy, (int *out, CUtexref reference), (out, reference), out, *out = r->anisotropy)
GET(cuTexRefGetBorderColor, (float *out, CUtexref reference), (out, reference), out,
    memcpy(out, r->border, sizeof r->border))
GET(cuTexRefGetFlags, (unsigned int *out, CUtexref reference), (out, reference), out, *out = r->flags)

/* No module has surface references to set. */
static CUresult no_reference(void) {
    struct ctx *ctx;
    CUresult result = need_ctx(&ctx);
    return result ? result : CUDA_ERROR_INVALID_HANDLE;
}
ENTRY(cuSurfRefSetArray, (CUsurfref reference, CUarray array, unsigned int flags),
      ((void)reference, (void)array, (void)flags, no_reference()))
ENTRY(cuSurfRefGetArray, (CUarray * array, CUsurfref reference), ((void)array, (void)reference, no_reference()))
