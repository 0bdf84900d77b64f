/* The driver's resolver: cuGetProcAddress and cuGetProcAddress_v2.
 *
 * Invariants: the real resolver is asked first and its status and code are not touched. What it answered is replaced by
 * our hook of exactly the variant that it chose: the pointer is recognised as one of the driver's exports. Should a
 * driver answer with an address that it does not export, or export one function under two names, the version map tells
 * the variant; a hooked name never leaves as a pointer that no rule knows. The resolver asked for itself gives ours. */
#include "preload.h"

#include "hl_versions.h"

static void *ours_for(const char *symbol, void *real, int version, cuuint64_t flags) {
    int id = hl_hook_at(real);
    if (HL_LIKELY(id == -1) && HL_LIKELY(hl_hook_named(symbol) < 0))
        return real; /* bases are hooked names themselves */
    if (id < 0) id = hl_resolve_any(symbol, version, flags, NULL);
    void *hook = hl_hook_of(id);
    return hook ? hook : real;
}

static bool passes(const void *caller) { return hl_depth || hl_caller_is_driver(caller); }

HL_EXPORT CUresult CUDAAPI cuGetProcAddress_v2(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,
                                               CUdriverProcAddressQueryResult *symbolStatus) {
    HL_BEGIN(cuGetProcAddress_v2, CUDA_ERROR_NOT_FOUND);
    if (passes(__builtin_return_address(0)) || !hl_enter()) return real(symbol, pfn, cudaVersion, flags, symbolStatus);
    CUresult result = real(symbol, pfn, cudaVersion, flags, symbolStatus);
    hl_leave();
    if (result == CUDA_SUCCESS && *pfn) *pfn = ours_for(symbol, *pfn, cudaVersion, flags);
    return result;
}

HL_EXPORT CUresult CUDAAPI cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags) {
    HL_BEGIN(cuGetProcAddress, CUDA_ERROR_NOT_FOUND);
    if (passes(__builtin_return_address(0)) || !hl_enter()) return real(symbol, pfn, cudaVersion, flags);
    CUresult result = real(symbol, pfn, cudaVersion, flags);
    hl_leave();
    if (result == CUDA_SUCCESS && *pfn) *pfn = ours_for(symbol, *pfn, cudaVersion, flags);
    return result;
}
