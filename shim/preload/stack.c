/* The stack limit: no allocation call, and yet it takes a stack for every thread that can be resident at once.
 *
 * Measured: beyond the default of 1 KiB it takes what is asked times the threads of all SMs, at once (4,152,360,960 bytes
 * for 16 KiB on an H200). It is charged before the driver takes it, to the context. */
#include "preload.h"

#include "hl_layout_history.h"
#include "ledger.h"

#include <errno.h>

enum { DEFAULT = 1024 };

static uint64_t stacks(int device, size_t bytes) {
    __typeof__(&cuDeviceGetAttribute) ask = HL_REAL(cuDeviceGetAttribute);
    int sms = 0, threads = 0;
    if (bytes <= DEFAULT || !ask || ask(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device) != CUDA_SUCCESS ||
        ask(&threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, device) != CUDA_SUCCESS)
        return 0;
    uint64_t all = (uint64_t)sms * (uint64_t)threads, more;
    return hl_taken(__builtin_mul_overflow(bytes - DEFAULT, all, &more) ? UINT64_MAX
                    : more < HL_BLOCK                                   ? HL_BLOCK
                                                                        : more);
}

HL_EXPORT CUresult CUDAAPI cuCtxSetLimit(CUlimit limit, size_t value) {
    HL_BEGIN(cuCtxSetLimit, CUDA_ERROR_NOT_FOUND);
    CUcontext context;
    int device = -1, saved = errno;
    if (limit != CU_LIMIT_STACK_SIZE || hl_depth || !hl_ready() || !hl_books_usable() || !hl_enter())
        return HL_PASS_ON(real(limit, value));
    CUresult result = CUDA_SUCCESS;
    enum hl_admission admission = HL_PASS;
    struct hl_ticket ticket;
    struct hl_entry now = {.bytes = 0};
    uint64_t key = 0, wanted = 0;
    size_t before = DEFAULT;
    __typeof__(&cuCtxGetLimit) ask = HL_REAL(cuCtxGetLimit);
    if (ask) ask(&before, limit);
    if (hl_current(&context, &device)) {
        key = (uint64_t)(uintptr_t)context | HL_TAG_STACK;
        if (!hl_ledger_find(key, &now)) now.bytes = 0;
        wanted = stacks(device, value);
        if (wanted > now.bytes)
            admission = hl_charge_begin(&ticket, device, wanted - now.bytes, HL_KIND_OTHER, &result);
    }
    errno = saved;
    if (admission != HL_REFUSED) result = real(limit, value);
    saved = errno;
    if (admission == HL_ADMITTED) {
        if (result != CUDA_SUCCESS) {
            hl_ledger_cancel(&ticket);
        } else if (hl_ledger_extend(&ticket, key, (uint64_t)(uintptr_t)context, ticket.bytes)) {
            real(limit, before);
            result = CUDA_ERROR_OUT_OF_MEMORY;
        }
    } else if (result == CUDA_SUCCESS && wanted < now.bytes) {
        hl_ledger_shrink(key, now.bytes - wanted);
    }
    if (result == CUDA_SUCCESS) hl_hidden_look(); /* a kernel's own local memory is a larger stack, too */
    errno = saved;
    hl_leave();
    return result;
}
