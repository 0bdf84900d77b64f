/* What a tenant sees of its device: total = min(limit, physical), free = what the limit leaves, and never more than is
 * physically there. CUDA and NVML agree.
 *
 * Invariants: the driver is asked first; its errors and what it wrote with them go through unchanged (only where NVML has
 * no memory figure of a card, the limit is one); each output is as optional as the driver has it. A device without a limit, or that CUDA does not see here, is shown as it is. Views need
 * no verdict and therefore no engine. */
#include "preload.h"

#include "ledger.h"

#include <errno.h>

struct share {
    uint64_t total, free;
};

/* false: no limit applies. */
static bool bound(uint64_t limit, uint64_t used, struct share *share) {
    if (!limit || hl_limits.plain_views) return false;
    if (!hl_books_usable()) used = limit;
    uint64_t left = used < limit ? limit - used : 0;
    if (share->total > limit) share->total = limit;
    if (share->free > left) share->free = left;
    return true;
}

static bool shrink(int device, struct share *share) {
    return device >= 0 && device < HL_DEVICES && bound(hl_books_limit(device), hl_ledger_used(device), share);
}

/* In a process that has not asked CUDA: the books know a device by its UUID once any process of the container has used it;
 * until then there is what was said of that UUID, or of the ordinal that it will have. */
static bool shrink_unasked(int ordinal, const unsigned char *uuid, struct share *share) {
    int at = hl_ledger_row(uuid);
    if (at >= 0) return bound(hl_ledger_limit(at), hl_ledger_used(at), share);
    if (ordinal < 0 || ordinal >= HL_DEVICES) return false;
    const struct hl_uuid_limit *own = hl_limits_of(uuid);
    return bound(own && own->has_memory ? own->memory : hl_books_limit(ordinal),
                 hl_ledger_is_taken(ordinal) ? 0 : hl_ledger_used(ordinal), share);
}

static unsigned narrow(uint64_t bytes) { return bytes > UINT32_MAX ? UINT32_MAX : (unsigned)bytes; }

static bool current_share(struct share *share) {
    CUcontext context;
    int device = -1, saved = errno;
    bool shrunk = hl_current(&context, &device) && shrink(device, share);
    errno = saved;
    return shrunk;
}

HL_EXPORT CUresult CUDAAPI cuMemGetInfo_v2(size_t *free, size_t *total) {
    HL_BEGIN(cuMemGetInfo_v2, CUDA_ERROR_NOT_FOUND);
    if (HL_UNLIKELY(hl_depth) || !hl_ready() || !hl_enter()) return HL_PASS_ON(real(free, total));
    size_t left = 0, whole = 0; /* both are needed whichever the caller wants */
    CUresult result = real(&left, &whole);
    struct share share = {whole, left};
    if (result == CUDA_SUCCESS) current_share(&share);
    if (free) *free = share.free;
    if (total) *total = share.total;
    hl_leave();
    return result;
}

HL_EXPORT CUresult CUDAAPI cuMemGetInfo(unsigned int *free, unsigned int *total) {
    HL_BEGIN(cuMemGetInfo, CUDA_ERROR_NOT_FOUND);
    if (HL_UNLIKELY(hl_depth) || !hl_ready() || !hl_enter()) return HL_PASS_ON(real(free, total));
    CUresult result = real(free, total);
    size_t left = 0, whole = 0; /* the narrow answer of the driver does not say how much there is */
    __typeof__(&cuMemGetInfo_v2) wide = HL_REAL(cuMemGetInfo_v2);
    if (result == CUDA_SUCCESS && wide && wide(&left, &whole) == CUDA_SUCCESS) {
        struct share share = {whole, left};
        if (current_share(&share)) {
            if (free) *free = narrow(share.free);
            if (total) *total = narrow(share.total);
        }
    }
    hl_leave();
    return result;
}

HL_EXPORT CUresult CUDAAPI cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev) {
    HL_BEGIN(cuDeviceTotalMem_v2, CUDA_ERROR_NOT_FOUND);
    if (HL_UNLIKELY(hl_depth) || !hl_ready() || !hl_enter()) return HL_PASS_ON(real(bytes, dev));
    CUresult result = real(bytes, dev);
    if (result == CUDA_SUCCESS && bytes) {
        struct share share = {*bytes, 0};
        shrink(dev, &share);
        *bytes = share.total;
    }
    hl_leave();
    return result;
}

HL_EXPORT CUresult CUDAAPI cuDeviceTotalMem(unsigned int *bytes, CUdevice dev) {
    HL_BEGIN(cuDeviceTotalMem, CUDA_ERROR_NOT_FOUND);
    if (HL_UNLIKELY(hl_depth) || !hl_ready() || !hl_enter()) return HL_PASS_ON(real(bytes, dev));
    CUresult result = real(bytes, dev);
    size_t whole = 0;
    __typeof__(&cuDeviceTotalMem_v2) wide = HL_REAL(cuDeviceTotalMem_v2);
    if (result == CUDA_SUCCESS && bytes && wide && wide(&whole, dev) == CUDA_SUCCESS) {
        struct share share = {whole, 0};
        if (shrink(dev, &share)) *bytes = narrow(share.total);
    }
    hl_leave();
    return result;
}

/* What a card without a memory figure of its own has as far as NVML can tell: the limit decides, and what CUDA says. */
static const struct share unknown = {UINT64_MAX, UINT64_MAX};

static bool nvml_share(nvmlDevice_t device, struct share *share) {
    int saved = errno;
    unsigned char uuid[16];
    int ordinal = hl_devices_nvml(device);
    __typeof__(&cuDeviceTotalMem_v2) whole = HL_REAL(cuDeviceTotalMem_v2);
    size_t total = 0;
    if (share->total == unknown.total && hl_devices_count() && ordinal >= 0 && whole &&
        whole(&total, ordinal) == CUDA_SUCCESS)
        *share = (struct share){total, total};
    bool shrunk = hl_devices_count() || !hl_devices_handle_uuid(device, uuid) ? shrink(ordinal, share)
                                                                              : shrink_unasked(ordinal, uuid, share);
    errno = saved;
    return shrunk;
}

/* Other tenants' memory and the driver's own are not this tenant's: used is what is missing from its free. */
HL_EXPORT nvmlReturn_t DECLDIR nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    HL_BEGIN(nvmlDeviceGetMemoryInfo, NVML_ERROR_FUNCTION_NOT_FOUND);
    if (HL_UNLIKELY(hl_depth) || !hl_ready() || !hl_enter()) return HL_PASS_ON(real(device, memory));
    nvmlReturn_t result = real(device, memory);
    bool figure = result == NVML_SUCCESS;
    if (figure || (result == NVML_ERROR_NOT_SUPPORTED && memory)) {
        struct share share = figure ? (struct share){memory->total, memory->free} : unknown;
        if (nvml_share(device, &share)) {
            memory->total = share.total;
            memory->free = share.free;
            memory->used = share.total - share.free;
            result = NVML_SUCCESS;
        }
    }
    hl_leave();
    return result;
}

HL_EXPORT nvmlReturn_t DECLDIR nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    HL_BEGIN(nvmlDeviceGetMemoryInfo_v2, NVML_ERROR_FUNCTION_NOT_FOUND);
    if (HL_UNLIKELY(hl_depth) || !hl_ready() || !hl_enter()) return HL_PASS_ON(real(device, memory));
    nvmlReturn_t result = real(device, memory);
    bool figure = result == NVML_SUCCESS;
    if (figure || (result == NVML_ERROR_NOT_SUPPORTED && memory && memory->version == nvmlMemory_v2)) {
        struct share share = figure ? (struct share){memory->total, memory->free} : unknown;
        if (nvml_share(device, &share)) {
            memory->total = share.total;
            memory->free = share.free;
            memory->used = share.total - share.free;
            memory->reserved = 0;
            result = NVML_SUCCESS;
        }
    }
    hl_leave();
    return result;
}
