/* Stream-ordered allocations: what is charged is what their pool holds, not what they ask for.
 *
 * A pool takes memory in steps of 32 MiB and keeps it beyond a free, until a synchronisation or a trim. Invariants: where
 * the pool's idle memory has room for an allocation nothing is reserved, because most likely nothing is taken; otherwise
 * the growth is reserved before the driver's call. After the call the meter says what was taken (meters.h). Growth that
 * nobody granted (the room was in pieces) and that does not fit is taken back on the same stream, and the pool trimmed.
 * The pool is known by its handle, so what is charged is its device, whatever device or stream is used. */
#include "meters.h"

#include "hl_layout_history.h"
#include "pacing.h"

#include <errno.h>

static const uint64_t STEP = 32 << 20;
static CUmemoryPool current[HL_DEVICES]; /* of a device, as far as it was asked; NULL = ask */

void hl_pools_forget(void) {
    for (int device = 0; device < HL_DEVICES; device++) __atomic_store_n(&current[device], NULL, __ATOMIC_RELEASE);
}

/* The device that a stream-ordered allocation lands on is its stream's. */
static bool stream_place(CUstream stream, CUcontext *context, int *device) {
    bool known = hl_current(context, device);
    if (!stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD) return known;
    __typeof__(&cuStreamGetCtx) owner = HL_REAL(cuStreamGetCtx);
    CUcontext found = NULL;
    if (!owner || owner(stream, &found) != CUDA_SUCCESS || !found || found == *context) return known;
    __typeof__(&cuCtxPushCurrent_v2) push = HL_REAL(cuCtxPushCurrent_v2);
    __typeof__(&cuCtxPopCurrent_v2) pop = HL_REAL(cuCtxPopCurrent_v2);
    if (!push || !pop || push(found) != CUDA_SUCCESS) return known;
    CUcontext pushed = NULL;
    known = hl_current(&pushed, device);
    pop(&pushed);
    *context = found;
    return known;
}

static struct hl_meter *current_meter(int device) {
    if (device < 0 || device >= HL_DEVICES) return NULL;
    CUmemoryPool pool = __atomic_load_n(&current[device], __ATOMIC_ACQUIRE);
    if (!pool) {
        __typeof__(&cuDeviceGetMemPool) ask = HL_REAL(cuDeviceGetMemPool);
        if (!ask || ask(&pool, device) != CUDA_SUCCESS || !pool) return NULL;
        __atomic_store_n(&current[device], pool, __ATOMIC_RELEASE);
    }
    return hl_meter_watch((uint64_t)(uintptr_t)pool, device);
}

/* A pool that we have not seen made: some device's default one, else taken for one of the stream's device. */
static struct hl_meter *named_meter(CUmemoryPool pool, int device) {
    struct hl_meter *found = hl_meter_find((uint64_t)(uintptr_t)pool);
    __typeof__(&cuDeviceGetDefaultMemPool) ask = HL_REAL(cuDeviceGetDefaultMemPool);
    if (found || !pool) return found;
    CUmemoryPool one = NULL;
    for (int other = 0; ask && other < hl_devices_count(); other++)
        if (ask(&one, other) == CUDA_SUCCESS && one == pool) device = other;
    return hl_meter_watch((uint64_t)(uintptr_t)pool, device);
}

struct pooled {
    struct hl_ticket ticket;
    struct hl_meter *meter; /* NULL: the pool could not be told, charged like any allocation */
    CUcontext context;
    CUstream stream;
    int device;
    CUresult code;
    bool refused, captured;
};

static uint64_t steps(uint64_t bytes) { return bytes > UINT64_MAX / 2 ? bytes : (bytes + STEP - 1) / STEP * STEP; }

static enum hl_admission admit(struct pooled *op, uint64_t bytes) {
    int kind = HL_KIND_ASYNC;
    if (!op->meter) return hl_charge_begin(&op->ticket, op->device, hl_taken(bytes), kind, &op->code);
    uint64_t room = hl_meter_room(op->meter);
    if (op->captured || room >= bytes) return hl_charge_begin(&op->ticket, op->device, 0, kind, &op->code);
    uint64_t most = steps(bytes), least = steps(bytes - room);
    enum hl_admission admission = hl_charge_begin(&op->ticket, op->device, most, kind, &op->code);
    if (admission == HL_REFUSED && least < most)
        admission = hl_charge_begin(&op->ticket, op->device, least, kind, &op->code);
    return admission;
}

static bool pool_open(struct pooled *op, bool sane, CUmemoryPool pool, bool named, CUstream stream, bool per_thread,
                      uint64_t bytes) {
    if (HL_UNLIKELY(!sane || !bytes) || HL_UNLIKELY(hl_depth) || !hl_ready() || !hl_books_usable() || !hl_enter())
        return false;
    int saved = errno;
    *op = (struct pooled){.stream = stream};
    enum hl_admission admission = HL_PASS;
    if (stream_place(stream, &op->context, &op->device)) {
        op->meter = named ? named_meter(pool, op->device) : current_meter(op->device);
        if (op->meter) op->device = op->meter->device;
        op->captured = __atomic_load_n(&hl_captures, __ATOMIC_RELAXED) && hl_stream_captures(stream, per_thread);
        if (op->captured) hl_graphs_allocate(); /* a node of the graph, which takes nothing yet */
        if (op->meter) hl_meter_flies(op->meter, 1);
        if (op->device >= 0) admission = admit(op, bytes);
        if (op->meter && admission != HL_ADMITTED) hl_meter_flies(op->meter, -1);
    }
    op->refused = admission == HL_REFUSED;
    errno = saved;
    if (admission != HL_ADMITTED) hl_leave();
    return admission != HL_PASS;
}

static void take_back(const struct pooled *op, CUdeviceptr pointer) {
    __typeof__(&cuMemFreeAsync) release = HL_REAL(cuMemFreeAsync);
    __typeof__(&cuMemPoolTrimTo) trim = HL_REAL(cuMemPoolTrimTo);
    if (release) release(pointer, op->stream);
    if (!op->meter) return;
    if (trim) trim((CUmemoryPool)(uintptr_t)op->meter->key, __atomic_load_n(&op->meter->booked, __ATOMIC_RELAXED));
    hl_meter_settle(op->meter, NULL); /* what the driver keeps all the same is there, granted or not */
}

static uint32_t units(uint64_t bytes) { return (uint32_t)((bytes + 511) / 512); }

static CUresult pool_close(struct pooled *op, CUresult result, CUdeviceptr pointer, uint64_t bytes) {
    int saved = errno;
    int32_t refused = 0;
    if (result != CUDA_SUCCESS) {
        hl_ledger_cancel(&op->ticket);
    } else if (!op->meter) {
        refused = hl_ledger_settle(&op->ticket, pointer, (uint64_t)(uintptr_t)op->context, hl_taken(bytes));
    } else {
        refused = hl_meter_settle(op->meter, &op->ticket);
        if (!refused && !op->captured &&
            !hl_ledger_note(pointer, op->meter->key, op->device, HL_KIND_ASYNC, units(bytes))) {
            __atomic_fetch_add(&op->meter->live, 1, __ATOMIC_ACQ_REL);
            __atomic_fetch_add(&op->meter->filled, (uint64_t)units(bytes) * 512, __ATOMIC_RELAXED);
        }
    }
    if (op->meter) hl_meter_flies(op->meter, -1);
    if (result != CUDA_SUCCESS) hl_meters_look(); /* a driver that finds no room empties pools first */
    if (refused) {
        take_back(op, pointer);
        op->refused = true;
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    errno = saved;
    hl_leave();
    return result;
}

void hl_pool_freed(const struct hl_entry *entry, bool waited) {
    struct hl_meter *meter = entry->count ? hl_meter_find(entry->context) : NULL;
    if (meter) {
        __atomic_fetch_sub(&meter->filled, (uint64_t)entry->count * 512, __ATOMIC_RELAXED);
        __atomic_fetch_sub(&meter->live, 1, __ATOMIC_ACQ_REL);
    }
    if (waited) hl_meters_look();
}

#define POOLED(name, pool, named, per_thread, call)                                                                    \
    HL_BEGIN(name, CUDA_ERROR_NOT_FOUND);                                                                              \
    struct pooled op;                                                                                                  \
    if (!pool_open(&op, dptr, pool, named, hStream, per_thread, bytesize)) return HL_PASS_ON(call);                    \
    CUresult result = op.code;                                                                                         \
    if (!op.refused) {                                                                                                 \
        result = call;                                                                                                 \
        result = pool_close(&op, result, *dptr, bytesize);                                                             \
    }                                                                                                                  \
    if (op.refused) *dptr = 0;                                                                                         \
    return result

HL_EXPORT CUresult CUDAAPI cuMemAllocAsync(CUdeviceptr *dptr, size_t bytesize, CUstream hStream) {
    POOLED(cuMemAllocAsync, NULL, false, false, real(dptr, bytesize, hStream));
}

HL_EXPORT CUresult CUDAAPI cuMemAllocAsync_ptsz(CUdeviceptr *dptr, size_t bytesize, CUstream hStream) {
    if (!hStream) hStream = CU_STREAM_PER_THREAD; /* what 0 means under this name; a roll-back frees on the same one */
    POOLED(cuMemAllocAsync_ptsz, NULL, false, true, real(dptr, bytesize, hStream));
}

HL_EXPORT CUresult CUDAAPI cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool,
                                                   CUstream hStream) {
    POOLED(cuMemAllocFromPoolAsync, pool, true, false, real(dptr, bytesize, pool, hStream));
}

HL_EXPORT CUresult CUDAAPI cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool,
                                                        CUstream hStream) {
    if (!hStream) hStream = CU_STREAM_PER_THREAD;
    POOLED(cuMemAllocFromPoolAsync_ptsz, pool, true, true, real(dptr, bytesize, pool, hStream));
}

/* ---- pools ---- */

static bool watches(void) { return HL_LIKELY(!hl_depth) && hl_ready() && hl_books_usable(); }

HL_EXPORT CUresult CUDAAPI cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *poolProps) {
    HL_BEGIN(cuMemPoolCreate, CUDA_ERROR_NOT_FOUND);
    if (!watches() || !hl_enter()) return HL_PASS_ON(real(pool, poolProps));
    CUresult result = real(pool, poolProps);
    int saved = errno;
    if (result == CUDA_SUCCESS) {
        bool on_device = poolProps->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
        struct hl_meter *before = hl_meter_find((uint64_t)(uintptr_t)*pool);
        if (before) hl_meter_end(before); /* its handle is used again: nothing of it is left */
        hl_meter_watch((uint64_t)(uintptr_t)*pool, on_device ? poolProps->location.id : -1);
    }
    errno = saved;
    hl_leave();
    return result;
}

HL_EXPORT CUresult CUDAAPI cuMemPoolDestroy(CUmemoryPool pool) {
    HL_BEGIN(cuMemPoolDestroy, CUDA_ERROR_NOT_FOUND);
    if (!watches() || !hl_enter()) return HL_PASS_ON(real(pool));
    CUresult result = real(pool);
    int saved = errno;
    if (result == CUDA_SUCCESS) {
        hl_pools_forget(); /* a device whose current pool it was has its default one again */
        struct hl_meter *meter = hl_meter_find((uint64_t)(uintptr_t)pool);
        if (meter) hl_meter_finish(meter);
    }
    errno = saved;
    hl_leave();
    return result;
}

/* After a success: look again, or forget which pool is a device's. */
#define AFTER(name, parameters, arguments, then)                                                                       \
    HL_EXPORT CUresult CUDAAPI name parameters {                                                                       \
        HL_BEGIN(name, CUDA_ERROR_NOT_FOUND);                                                                          \
        if (HL_LIKELY(!__atomic_load_n(&hl_meters_used, __ATOMIC_RELAXED)) || !watches() || !hl_enter())               \
            return HL_PASS_ON(real arguments);                                                                         \
        CUresult result = real arguments;                                                                              \
        int saved = errno;                                                                                             \
        if (result == CUDA_SUCCESS) then();                                                                            \
        errno = saved;                                                                                                 \
        hl_leave();                                                                                                    \
        return result;                                                                                                 \
    }
AFTER(cuMemPoolTrimTo, (CUmemoryPool pool, size_t keep), (pool, keep), hl_meters_look)
AFTER(cuDeviceSetMemPool, (CUdevice device, CUmemoryPool pool), (device, pool), hl_pools_forget)
AFTER(cuMemSetMemPool, (CUmemLocation * location, CUmemAllocationType type, CUmemoryPool pool), (location, type, pool),
      hl_pools_forget)

/* ---- what pools give memory back at ---- */

AFTER(cuCtxSynchronize, (void), (), hl_meters_look)
AFTER(cuCtxSynchronize_v2, (CUcontext context), (context), hl_meters_look)
AFTER(cuStreamSynchronize, (CUstream stream), (stream), hl_meters_look)
AFTER(cuStreamSynchronize_ptsz, (CUstream stream), (stream), hl_meters_look)
AFTER(cuEventSynchronize, (CUevent event), (event), hl_meters_look)
