/* Allocations and frees: what the driver hands out is in the books before the caller sees it.
 *
 * Invariants: arguments that the driver refuses by itself (no pointer, no size, no context) go straight to it, so that
 * its answer is the one given and nothing is charged. Nothing is recorded for a failed call. A refusal is
 * CUDA_ERROR_OUT_OF_MEMORY (or the code that a user's policy chose) with the outputs zero, as the driver leaves them. A free takes the entry out before the
 * driver's free (whose address may be handed out again at once), credits it after a success and puts it back after a
 * failure. A pointer that is not in the books reaches the driver: it knows better. */
#include "preload.h"

#include "hl_layout_history.h"
#include "ledger.h"

#include <errno.h>

struct charge {
    struct hl_ticket ticket;
    CUcontext context;
    CUresult code; /* what a refusal answers */
    bool small;    /* shares a block */
    bool refused;  /* not admitted, or taken back after the driver's call: the outputs become zero */
};

/* false: nothing to do with us, call the driver and return what it says. With true the thread is inside the frame
 * unless the charge was refused. */
static bool charge_open(struct charge *charge, bool sane, uint64_t bytes, int kind) {
    int device = -1;
    if (HL_UNLIKELY(!sane || !bytes) || HL_UNLIKELY(hl_depth) || !hl_ready() || !hl_enter()) return false;
    if (hl_current(&charge->context, &device)) {
        uint64_t taken = hl_taken(bytes);
        charge->small = taken < HL_BLOCK && kind != HL_KIND_MANAGED;
        if (charge->small) taken = hl_ledger_room((uint64_t)(uintptr_t)charge->context) >= taken ? 0 : HL_BLOCK;
        enum hl_admission admission = hl_charge_begin(&charge->ticket, device, taken, kind, &charge->code);
        charge->refused = admission == HL_REFUSED;
        if (admission == HL_REFUSED) hl_leave();
        if (admission != HL_PASS) return true;
    }
    hl_leave();
    return false;
}

static CUresult charge_close(struct charge *charge, CUresult result, CUdeviceptr pointer, uint64_t bytes) {
    int saved = errno;
    uint64_t context = (uint64_t)(uintptr_t)charge->context, taken = hl_taken(bytes);
    if (result != CUDA_SUCCESS) {
        hl_ledger_cancel(&charge->ticket);
    } else if (charge->small && taken < HL_BLOCK ? hl_ledger_settle_small(&charge->ticket, pointer, context, taken)
                                                 : hl_ledger_settle(&charge->ticket, pointer, context, taken)) {
        __typeof__(&cuMemFree_v2) take_back = HL_REAL(cuMemFree_v2);
        if (take_back) take_back(pointer);
        charge->refused = true;
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    errno = saved;
    hl_leave();
    return result;
}

/* `out` must be clear when refused; `call` is the driver's call; `took` what it took, known after it. */
#define ALLOCATE(name, sane, bytes, kind, call, clear, pointer, took)                                                  \
    HL_BEGIN(name, CUDA_ERROR_NOT_FOUND);                                                                              \
    struct charge charge;                                                                                              \
    if (!charge_open(&charge, sane, bytes, kind)) return HL_PASS_ON(call);                                             \
    CUresult result = charge.code;                                                                                     \
    if (!charge.refused) {                                                                                             \
        result = call;                                                                                                 \
        result = charge_close(&charge, result, pointer, took);                                                         \
    }                                                                                                                  \
    if (charge.refused) clear;                                                                                         \
    return result

HL_EXPORT CUresult CUDAAPI cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize) {
    ALLOCATE(cuMemAlloc_v2, dptr, bytesize, HL_KIND_SYNC, real(dptr, bytesize), *dptr = 0, *dptr, bytesize);
}

HL_EXPORT CUresult CUDAAPI cuMemAlloc(CUdeviceptr_v1 *dptr, unsigned int bytesize) {
    ALLOCATE(cuMemAlloc, dptr, bytesize, HL_KIND_SYNC, real(dptr, bytesize), *dptr = 0, *dptr, bytesize);
}

HL_EXPORT CUresult CUDAAPI cuMemAllocManaged(CUdeviceptr *dptr, size_t bytesize, unsigned int flags) {
    ALLOCATE(cuMemAllocManaged, dptr && !hl_limits.oversubscribe, bytesize, HL_KIND_MANAGED,
             real(dptr, bytesize, flags), *dptr = 0, *dptr, bytesize);
}

/* Rows are reserved at the pitch that the driver will most likely choose and settled at the one it chose. A product
 * that does not fit is the driver's to refuse. */
enum { PITCH = 512 };
static uint64_t pitched(uint64_t width, uint64_t height, unsigned element) {
    uint64_t bytes = 0;
    if ((element != 4 && element != 8 && element != 16) || width > UINT64_MAX - PITCH) return 0;
    if (__builtin_mul_overflow((width + PITCH - 1) / PITCH * PITCH, height, &bytes)) return 0;
    return bytes;
}

HL_EXPORT CUresult CUDAAPI cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pPitch, size_t WidthInBytes, size_t Height,
                                              unsigned int ElementSizeBytes) {
    ALLOCATE(cuMemAllocPitch_v2, dptr && pPitch, pitched(WidthInBytes, Height, ElementSizeBytes), HL_KIND_PITCHED,
             real(dptr, pPitch, WidthInBytes, Height, ElementSizeBytes), (*dptr = 0, *pPitch = 0), *dptr,
             *pPitch * Height);
}

HL_EXPORT CUresult CUDAAPI cuMemAllocPitch(CUdeviceptr_v1 *dptr, unsigned int *pPitch, unsigned int WidthInBytes,
                                           unsigned int Height, unsigned int ElementSizeBytes) {
    ALLOCATE(cuMemAllocPitch, dptr && pPitch, pitched(WidthInBytes, Height, ElementSizeBytes), HL_KIND_PITCHED,
             real(dptr, pPitch, WidthInBytes, Height, ElementSizeBytes), (*dptr = 0, *pPitch = 0), *dptr,
             (uint64_t)*pPitch * Height);
}

struct release {
    struct hl_entry entry;
    uint64_t ends; /* contexts ended when the entry was taken out */
};

/* false: not in the books, call the driver and return what it says. */
static bool release_open(struct release *release, uint64_t pointer) {
    if (!pointer || HL_UNLIKELY(hl_depth) || !hl_ready() || !hl_books_usable() || !hl_enter()) return false;
    int saved = errno;
    release->ends = hl_context_ends();
    bool known = hl_ledger_detach(pointer, &release->entry);
    errno = saved;
    if (!known) hl_leave();
    return known;
}

static CUresult release_close(struct release *release, CUresult result, bool waits) {
    int saved = errno;
    /* A context that ended meanwhile took the memory with it; put back, its entry would be charged for ever. */
    bool gone = result == CUDA_SUCCESS || hl_context_ends() != release->ends;
    if (gone) hl_ledger_credit(&release->entry);
    else hl_ledger_reattach(&release->entry);
    if (result == CUDA_SUCCESS && release->entry.kind == HL_KIND_ASYNC) hl_pool_freed(&release->entry, waits);
    errno = saved;
    hl_leave();
    return result;
}

/* waits: the driver waits for the device, and pools may shrink. */
#define RELEASE(name, pointer, waits, call)                                                                            \
    HL_BEGIN(name, CUDA_ERROR_NOT_FOUND);                                                                              \
    struct release release;                                                                                            \
    if (!release_open(&release, pointer)) return HL_PASS_ON(call);                                                     \
    CUresult result = call;                                                                                            \
    return release_close(&release, result, waits)

HL_EXPORT CUresult CUDAAPI cuMemFree_v2(CUdeviceptr dptr) { RELEASE(cuMemFree_v2, dptr, true, real(dptr)); }

HL_EXPORT CUresult CUDAAPI cuMemFree(CUdeviceptr_v1 dptr) { RELEASE(cuMemFree, dptr, true, real(dptr)); }

HL_EXPORT CUresult CUDAAPI cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream) {
    RELEASE(cuMemFreeAsync, dptr, false, real(dptr, hStream));
}

HL_EXPORT CUresult CUDAAPI cuMemFreeAsync_ptsz(CUdeviceptr dptr, CUstream hStream) {
    RELEASE(cuMemFreeAsync_ptsz, dptr, false, real(dptr, hStream));
}
