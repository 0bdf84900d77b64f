/* Virtual memory management: the physical handle is what is charged, from its creation until neither a reference nor a
 * mapping is left. Addresses, imports and host memory cost nothing.
 *
 * Invariants: references and mappings of a handle are one count in its entry. It goes up before the driver's call and down
 * before it, too, and back after a failure: a handle that the driver uses again at once is never taken for the one before.
 * A mapping is noted under its address; unmapping a range looks at every block in it. Handles that are not in the books
 * (imported ones, the host's) and their mappings reach the driver and nothing else happens. */
#include "preload.h"

#include "hl_layout_history.h"
#include "ledger.h"

#include <errno.h>
#include <stdlib.h>

static uint64_t key_of(CUmemGenericAllocationHandle handle) { return handle | HL_TAG_PHYSICAL; }

static bool frame(void) { return HL_LIKELY(!hl_depth) && hl_ready() && hl_books_usable() && hl_enter(); }

static CUresult leave(CUresult result, int saved) {
    errno = saved;
    hl_leave();
    return result;
}

HL_EXPORT CUresult CUDAAPI cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
                                       const CUmemAllocationProp *prop, unsigned long long flags) {
    HL_BEGIN(cuMemCreate, CUDA_ERROR_NOT_FOUND);
    bool device = handle && prop && size && prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    /* Not: a device that is not there, which the driver refuses. */
    device = device && prop->location.id >= 0 && prop->location.id < hl_devices_count();
    if (!device || hl_depth || !hl_ready() || !hl_enter()) return HL_PASS_ON(real(handle, size, prop, flags));
    struct hl_ticket ticket;
    CUresult result = CUDA_SUCCESS;
    enum hl_admission admission =
        hl_charge_begin(&ticket, prop->location.id, hl_taken(size < HL_BLOCK ? HL_BLOCK : size), HL_KIND_VMM, &result);
    if (admission != HL_REFUSED) result = real(handle, size, prop, flags);
    int saved = errno;
    if (admission == HL_ADMITTED && result != CUDA_SUCCESS) {
        hl_ledger_cancel(&ticket);
    } else if (admission == HL_ADMITTED) {
        result = (CUresult)hl_ledger_settle(&ticket, key_of(*handle), 0, ticket.bytes);
        __typeof__(&cuMemRelease) release = HL_REAL(cuMemRelease);
        if (!result) hl_ledger_share(key_of(*handle));
        else if (release) release(*handle);
    }
    return leave(result, saved);
}

HL_EXPORT CUresult CUDAAPI cuMemRelease(CUmemGenericAllocationHandle handle) {
    HL_BEGIN(cuMemRelease, CUDA_ERROR_NOT_FOUND);
    if (!frame()) return HL_PASS_ON(real(handle));
    struct hl_entry entry;
    int was = hl_ledger_unshare(key_of(handle), &entry);
    CUresult result = real(handle);
    int saved = errno;
    if (result != CUDA_SUCCESS) hl_ledger_share_again(key_of(handle), was, &entry);
    else if (was == 2) hl_ledger_credit(&entry);
    if (!was && result == CUDA_SUCCESS) hl_hidden_look(); /* an import */
    return leave(result, saved);
}

HL_EXPORT CUresult CUDAAPI cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr) {
    HL_BEGIN(cuMemRetainAllocationHandle, CUDA_ERROR_NOT_FOUND);
    if (!frame()) return HL_PASS_ON(real(handle, addr));
    CUresult result = real(handle, addr);
    int saved = errno;
    if (result == CUDA_SUCCESS) hl_ledger_share(key_of(*handle)); /* its mapping keeps it there meanwhile */
    return leave(result, saved);
}

HL_EXPORT CUresult CUDAAPI cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                                    unsigned long long flags) {
    HL_BEGIN(cuMemMap, CUDA_ERROR_NOT_FOUND);
    if (!frame()) return HL_PASS_ON(real(ptr, size, offset, handle, flags));
    struct hl_entry entry;
    int known = hl_ledger_share(key_of(handle));
    CUresult result = real(ptr, size, offset, handle, flags);
    int saved = errno;
    bool noted = known && result == CUDA_SUCCESS && hl_ledger_find(key_of(handle), &entry) &&
                 !hl_ledger_note(ptr | HL_TAG_MAPPING, key_of(handle), entry.device, HL_KIND_VMM, 1);
    if (known && !noted && hl_ledger_unshare(key_of(handle), &entry) == 2) hl_ledger_credit(&entry);
    return leave(result, saved);
}

struct gone { /* a mapping under removal */
    struct hl_entry mapping, handle;
    int was;
};

static size_t mappings(uint64_t start, uint64_t size, struct gone *list, size_t room) {
    struct hl_entry found;
    size_t count = 0;
    for (uint64_t at = start; at - start < size; at += HL_BLOCK)
        if (room ? count < room && hl_ledger_detach(at | HL_TAG_MAPPING, &list[count].mapping)
                 : hl_ledger_find(at | HL_TAG_MAPPING, &found))
            count++;
    return count;
}

HL_EXPORT CUresult CUDAAPI cuMemUnmap(CUdeviceptr ptr, size_t size) {
    HL_BEGIN(cuMemUnmap, CUDA_ERROR_NOT_FOUND);
    if (!frame()) return HL_PASS_ON(real(ptr, size));
    int saved = errno;
    size_t count = ptr % HL_BLOCK ? 0 : mappings(ptr, size, NULL, 0);
    struct gone few[8], *list = count <= 8 ? few : malloc(count * sizeof *list);
    count = list && count ? mappings(ptr, size, list, count) : 0;
    for (size_t i = 0; i < count; i++) list[i].was = hl_ledger_unshare(list[i].mapping.context, &list[i].handle);
    errno = saved;
    CUresult result = real(ptr, size);
    saved = errno;
    for (size_t i = 0; i < count; i++)
        if (result != CUDA_SUCCESS) {
            hl_ledger_share_again(list[i].mapping.context, list[i].was, &list[i].handle);
            hl_ledger_reattach(&list[i].mapping);
        } else if (list[i].was == 2) {
            hl_ledger_credit(&list[i].handle);
        }
    if (list != few) free(list);
    if (!count && result == CUDA_SUCCESS) hl_hidden_look(); /* of an import */
    return leave(result, saved);
}
