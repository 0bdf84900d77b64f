/* cuGetProcAddress, cuGetExportTable, error names. What the resolver answers is data (hl_versions); this file adds what a
 * driver refuses: versions above its own, unknown flags. Works before cuInit and in forked children, needs no node. */
#include "fake.h"

#include <string.h>

#include "hl_errors.h"
#include "hl_fake_stubs.h"
#include "hl_versions.h"

enum { FLAGS_KNOWN = 3 };

static CUresult lookup(const char *symbol, void **function, int version, uint64_t flags, int *status) {
    /* A driver knows versions up to its own; the node may say that this library is of an older generation. */
    int driver = hl_node.header->driver_version ? hl_node.header->driver_version : hl_fake_driver;
    if (version >= driver / 10 * 10 + 10 || version < -1 || flags > FLAGS_KNOWN) return CUDA_ERROR_INVALID_VALUE;
    int id = hl_resolve_driver(symbol, version, flags, driver, status);
    *function = id >= 0 ? hl_fake_address[(unsigned)id - hl_fake_first] : NULL;
    return CUDA_SUCCESS;
}

API cuGetProcAddress_v2(const char *symbol, void **function, int version, cuuint64_t flags,
                        CUdriverProcAddressQueryResult *status) {
    ENTER(cuGetProcAddress_v2);
    int known = 0;
    CUresult result = lookup(symbol, function, version, flags, &known);
    if (result == CUDA_SUCCESS && status) *status = (CUdriverProcAddressQueryResult)known;
    LEAVE(result, version, 0);
}

API cuGetProcAddress(const char *symbol, void **function, int version, cuuint64_t flags) {
    ENTER(cuGetProcAddress);
    void *found = NULL;
    int known = 0;
    CUresult result = lookup(symbol, &found, version, flags, &known);
    if (result == CUDA_SUCCESS && !found) result = CUDA_ERROR_NOT_FOUND;
    if (result == CUDA_SUCCESS) *function = found;
    LEAVE(result, version, 0);
}

/* No table is known: the vendor's own runtime and libraries need some of them and stop here, by design. */
API cuGetExportTable(const void **table, const CUuuid *id) {
    ENTER(cuGetExportTable);
    (void)id;
    if (table) *table = NULL;
    LEAVE(CUDA_ERROR_INVALID_VALUE, 0, 0);
}

API cuGetErrorName(CUresult error, const char **text) {
    ENTER(cuGetErrorName);
    *text = hl_cuda_error_name((int)error);
    LEAVE(*text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE, error, 0);
}

API cuGetErrorString(CUresult error, const char **text) {
    ENTER(cuGetErrorString);
    *text = hl_cuda_error_text((int)error);
    LEAVE(*text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE, error, 0);
}
