/* A planted failure: the shim's resolver hook, except that it replaces nothing. It takes the place of
 * shim/preload/resolver.c in a variant of the shim that the tests build. */
#include "preload.h"

HL_EXPORT CUresult CUDAAPI cuGetProcAddress_v2(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,
                                               CUdriverProcAddressQueryResult *symbolStatus) {
    HL_BEGIN(cuGetProcAddress_v2, CUDA_ERROR_NOT_FOUND);
    return HL_PASS_ON(real(symbol, pfn, cudaVersion, flags, symbolStatus));
}

HL_EXPORT CUresult CUDAAPI cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags) {
    HL_BEGIN(cuGetProcAddress, CUDA_ERROR_NOT_FOUND);
    return HL_PASS_ON(real(symbol, pfn, cudaVersion, flags));
}
