/* Arrays and mipmapped arrays: charged with what the driver says that they need.
 *
 * How an array lies in memory is the driver's affair. A twin of it that is made with deferred mapping takes no memory and
 * can be asked for its requirements; where that has no answer they are estimated, and asked for when the driver has made
 * the array. Invariants: a description that the driver refuses goes to the driver as it came; arrays that the program maps itself (sparse, deferred) cost nothing here. Below 2 MiB
 * an array shares a block that cannot be told, having no address: it is charged with its bytes. */
#include "preload.h"

#include "hl_layout_history.h"
#include "ledger.h"

#include <errno.h>

static uint64_t key_of(const void *array) { return (uint64_t)(uintptr_t)array | HL_TAG_ARRAY; }

static bool maps_itself(unsigned flags) { return flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING); }

/* 0: unknown, because the driver refuses such an array or has no such question. */
static uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *wanted, int device) {
    __typeof__(&cuArray3DCreate_v2) make = HL_REAL(cuArray3DCreate_v2);
    __typeof__(&cuArrayDestroy) destroy = HL_REAL(cuArrayDestroy);
    __typeof__(&cuArrayGetMemoryRequirements) ask = HL_REAL(cuArrayGetMemoryRequirements);
    CUDA_ARRAY3D_DESCRIPTOR twin = *wanted;
    CUDA_ARRAY_MEMORY_REQUIREMENTS needs = {.size = 0};
    CUarray array = NULL;
    twin.Flags |= CUDA_ARRAY3D_DEFERRED_MAPPING;
    if (!make || !destroy || !ask || make(&array, &twin) != CUDA_SUCCESS) return 0;
    if (ask(&needs, array, device) != CUDA_SUCCESS) needs.size = 0;
    destroy(array);
    return needs.size;
}

static uint64_t mipmap_bytes(const CUDA_ARRAY3D_DESCRIPTOR *wanted, unsigned levels, int device) {
    __typeof__(&cuMipmappedArrayCreate) make = HL_REAL(cuMipmappedArrayCreate);
    __typeof__(&cuMipmappedArrayDestroy) destroy = HL_REAL(cuMipmappedArrayDestroy);
    __typeof__(&cuMipmappedArrayGetMemoryRequirements) ask = HL_REAL(cuMipmappedArrayGetMemoryRequirements);
    CUDA_ARRAY3D_DESCRIPTOR twin = *wanted;
    CUDA_ARRAY_MEMORY_REQUIREMENTS needs = {.size = 0};
    CUmipmappedArray array = NULL;
    twin.Flags |= CUDA_ARRAY3D_DEFERRED_MAPPING;
    if (!make || !destroy || !ask || make(&array, &twin, levels) != CUDA_SUCCESS) return 0;
    if (ask(&needs, array, device) != CUDA_SUCCESS) needs.size = 0;
    destroy(array);
    return needs.size;
}

/* Where the driver does not say: rows of 512 bytes, and for mipmaps a third more. */
static uint64_t estimate(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels) {
    unsigned channel = 4;
    if (d->Format == CU_AD_FORMAT_UNSIGNED_INT8 || d->Format == CU_AD_FORMAT_SIGNED_INT8) channel = 1;
    if (d->Format == CU_AD_FORMAT_UNSIGNED_INT16 || d->Format == CU_AD_FORMAT_SIGNED_INT16 ||
        d->Format == CU_AD_FORMAT_HALF)
        channel = 2;
    uint64_t bytes, row;
    if (__builtin_mul_overflow((uint64_t)d->Width, (uint64_t)channel * d->NumChannels, &row) || row > UINT64_MAX - 511)
        return 0; /* the driver's to refuse */
    row = (row + 511) / 512 * 512;
    if (__builtin_mul_overflow(row, (uint64_t)(d->Height ? d->Height : 1), &bytes) ||
        __builtin_mul_overflow(bytes, (uint64_t)(d->Depth ? d->Depth : 1), &bytes))
        return 0;
    return levels > 1 && bytes < UINT64_MAX / 2 ? bytes + bytes / 3 : bytes;
}

struct making {
    struct hl_ticket ticket;
    uint64_t bytes;
    CUcontext context;
    CUresult code;
    enum hl_admission admission;
};

/* levels: 0 = a plain array. true: the thread is in the frame; what is refused has code. */
static bool making_open(struct making *making, const CUDA_ARRAY3D_DESCRIPTOR *wanted, unsigned levels) {
    int device = -1;
    if (!wanted || maps_itself(wanted->Flags) || hl_depth || !hl_ready() || !hl_enter()) return false;
    int saved = errno;
    making->admission = HL_PASS;
    if (hl_current(&making->context, &device)) {
        uint64_t told = levels ? mipmap_bytes(wanted, levels, device) : array_bytes(wanted, device);
        making->bytes = hl_taken(told ? told : estimate(wanted, levels));
        /* Not told: most likely no array that the driver makes, so it is asked first. */
        if (making->bytes)
            making->admission =
                hl_charge_begin(&making->ticket, device, told ? making->bytes : 0, HL_KIND_OTHER, &making->code);
    }
    errno = saved;
    return true;
}

/* What is to be answered; refused afterwards, the array must be destroyed. */
static CUresult making_close(struct making *making, CUresult result, const void *array) {
    int saved = errno;
    if (making->admission == HL_ADMITTED) {
        if (result != CUDA_SUCCESS) hl_ledger_cancel(&making->ticket);
        else if (hl_ledger_settle(&making->ticket, key_of(array), (uint64_t)(uintptr_t)making->context, making->bytes))
            making->admission = HL_REFUSED;
    }
    errno = saved;
    return making->admission == HL_REFUSED ? CUDA_ERROR_OUT_OF_MEMORY : result;
}

#define CREATE(name, out, description, level_count, call, undo)                                                        \
    HL_BEGIN(name, CUDA_ERROR_NOT_FOUND);                                                                              \
    struct making making;                                                                                              \
    if (!(out) || !making_open(&making, description, level_count)) return HL_PASS_ON(call);                            \
    CUresult result = making.code;                                                                                     \
    if (making.admission != HL_REFUSED) {                                                                              \
        result = call;                                                                                                 \
        result = making_close(&making, result, *(out));                                                                \
        __typeof__(&undo) destroy = HL_REAL(undo);                                                                     \
        if (making.admission == HL_REFUSED && destroy) destroy(*(out));                                                \
    }                                                                                                                  \
    hl_leave();                                                                                                        \
    return result

/* The older descriptions in the newest form. */
#define WIDE(old)                                                                                                      \
    (&(CUDA_ARRAY3D_DESCRIPTOR){                                                                                       \
        .Width = (old)->Width, .Height = (old)->Height, .Format = (old)->Format, .NumChannels = (old)->NumChannels})
#define WIDE3(old)                                                                                                     \
    (&(CUDA_ARRAY3D_DESCRIPTOR){.Width = (old)->Width,                                                                 \
                                .Height = (old)->Height,                                                               \
                                .Depth = (old)->Depth,                                                                 \
                                .Format = (old)->Format,                                                               \
                                .NumChannels = (old)->NumChannels,                                                     \
                                .Flags = (old)->Flags})

HL_EXPORT CUresult CUDAAPI cuArrayCreate(CUarray *out, const CUDA_ARRAY_DESCRIPTOR_v1 *d) {
    CREATE(cuArrayCreate, out, d ? WIDE(d) : NULL, 0, real(out, d), cuArrayDestroy);
}

HL_EXPORT CUresult CUDAAPI cuArrayCreate_v2(CUarray *out, const CUDA_ARRAY_DESCRIPTOR *d) {
    CREATE(cuArrayCreate_v2, out, d ? WIDE(d) : NULL, 0, real(out, d), cuArrayDestroy);
}

HL_EXPORT CUresult CUDAAPI cuArray3DCreate(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR_v1 *d) {
    CREATE(cuArray3DCreate, out, d ? WIDE3(d) : NULL, 0, real(out, d), cuArrayDestroy);
}

HL_EXPORT CUresult CUDAAPI cuArray3DCreate_v2(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *d) {
    CREATE(cuArray3DCreate_v2, out, d, 0, real(out, d), cuArrayDestroy);
}

HL_EXPORT CUresult CUDAAPI cuMipmappedArrayCreate(CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *d,
                                                  unsigned int levels) {
    CREATE(cuMipmappedArrayCreate, out, levels ? d : NULL, levels, real(out, d, levels), cuMipmappedArrayDestroy);
}

#define DESTROY(name, type)                                                                                            \
    HL_EXPORT CUresult CUDAAPI name(type array) {                                                                      \
        HL_BEGIN(name, CUDA_ERROR_NOT_FOUND);                                                                          \
        if (!array || hl_depth || !hl_ready() || !hl_books_usable() || !hl_enter()) return HL_PASS_ON(real(array));    \
        struct hl_entry entry;                                                                                         \
        uint64_t ends = hl_context_ends();                                                                             \
        int known = hl_ledger_detach(key_of(array), &entry);                                                           \
        CUresult result = real(array);                                                                                 \
        int saved = errno;                                                                                             \
        if (known && (result == CUDA_SUCCESS || hl_context_ends() != ends)) hl_ledger_credit(&entry);                  \
        else if (known) hl_ledger_reattach(&entry);                                                                    \
        errno = saved;                                                                                                 \
        hl_leave();                                                                                                    \
        return result;                                                                                                 \
    }
DESTROY(cuArrayDestroy, CUarray)
DESTROY(cuMipmappedArrayDestroy, CUmipmappedArray)
