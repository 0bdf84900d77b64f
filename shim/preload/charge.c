/* What all families have in common: whose device, how much, and whether it may be.
 *
 * What is charged is what the driver takes: blocks of 2 MiB for what has blocks of its own, and for smaller allocations
 * the block that they lie in, once (ledger.h). Before the call nobody knows whether a small one needs another block: it
 * is let in without a reservation where the blocks that are there have room, and asked for afterwards if it took one. */
#include "preload.h"

#include "ledger.h"

#include <errno.h>

enum { GRAIN = 512 };
static const uint64_t huge = UINT64_C(1) << 60; /* more than any device holds, and sums of it do not overflow */

uint64_t hl_taken(uint64_t bytes) {
    if (bytes > huge) return huge;
    uint64_t unit = bytes < HL_BLOCK ? GRAIN : HL_BLOCK;
    return (bytes + unit - 1) / unit * unit;
}

bool hl_current(CUcontext *context, int *device) {
    __typeof__(&cuCtxGetCurrent) current = HL_REAL(cuCtxGetCurrent);
    __typeof__(&cuCtxGetDevice) ordinal = HL_REAL(cuCtxGetDevice);
    CUdevice found = -1;
    *context = NULL;
    if (!current || !ordinal || current(context) != CUDA_SUCCESS || !*context || ordinal(&found) != CUDA_SUCCESS)
        return false;
    *device = found;
    return true;
}

static CUresult begin(struct hl_ticket *ticket, int device, uint64_t bytes, int kind, bool *kept) {
    *kept = false;
    if (device < 0 || device >= HL_DEVICES) {
        static int said;
        if (!hl_limits.any) return CUDA_SUCCESS;
        if (!__atomic_exchange_n(&said, 1, __ATOMIC_RELAXED))
            hl_log(0, "device %d: only %d devices have books; its charges are refused under a limit", device,
                   HL_DEVICES);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (hl_limits.refuse[device]) return CUDA_ERROR_OUT_OF_MEMORY;
    if (!hl_books_usable()) return hl_limits.memory[device] || hl_policy() ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
    if (!bytes) {
        *kept = hl_ledger_ticket(device, kind, ticket);
        return *kept ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    int32_t refused = hl_ledger_reserve(device, bytes, kind, ticket);
    if (refused == CUDA_ERROR_OPERATING_SYSTEM) return CUDA_ERROR_OUT_OF_MEMORY; /* nobody can count it */
    *kept = !refused;
    return (CUresult)refused;
}

enum hl_admission hl_charge_begin(struct hl_ticket *ticket, int device, uint64_t bytes, int kind, CUresult *code) {
    int saved = errno;
    bool kept = false;
    *code = begin(ticket, device, bytes, kind, &kept);
    if (HL_UNLIKELY(*code) && hl_meters_used && hl_meters_reclaim(device))
        *code = begin(ticket, device, bytes, kind, &kept);
    errno = saved;
    return *code ? HL_REFUSED : kept ? HL_ADMITTED : HL_PASS;
}
