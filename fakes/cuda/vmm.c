/* Virtual memory management: handles of physical memory, reserved addresses, mappings between them.
 *
 * A handle's bytes lie in the process's memory file, or, when it may be exported, in a file of its own with a page after
 * the bytes that says what it is. An exported descriptor stands for the handle at the node's server, which hands the file to
 * those who import it and knows who holds it. A reservation has a second window of the same size, where mappings show their
 * bytes, so that one copy may cross several mappings. Invariant: memory is taken from the device from cuMemCreate until
 * no process has a reference, a mapping or a descriptor left. */
#define _GNU_SOURCE
#include "foreign.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PAGE = 4096, SHARE_MAGIC = 0x564d4d31, INDEX_BITS = 24 };

struct share { /* the page after the bytes of an exportable handle */
    uint32_t magic, device, on_host, pad;
    uint64_t bytes;
    CUmemAllocationProp prop;
};

struct handle {
    uint64_t value, bytes, file_offset;
    uint32_t references, maps;
    int fd, device;       /* physical index, -1 host */
    int lent;             /* made here and exported */
    struct hl_share held; /* imported: by whose name; else number 0 */
    struct alloc *run;
    struct share *share;
    CUmemAllocationProp prop;
};

struct reservation {
    uint64_t base, bytes;
    char *view;
    struct reservation *next;
};

struct mapping { /* beside its alloc record */
    struct alloc *alloc;
    struct handle *handle;
    struct mapping *next;
};

static struct handle **handles;
static uint32_t handle_room;
static uint64_t next_generation;
static struct reservation *reservations;
static struct mapping *mappings;

/* ---- handles: under the lock ------------------------------------------------------------------------------ */

static struct handle *handle_of(CUmemGenericAllocationHandle value) {
    uint64_t index = value & ((1u << INDEX_BITS) - 1);
    if (!index || index > handle_room) return NULL;
    struct handle *h = handles[index - 1];
    return h && h->value == value && h->references ? h : NULL;
}

static struct handle *handle_new(void) {
    uint32_t index = 0;
    while (index < handle_room && handles[index]) index++;
    if (index == handle_room) {
        uint32_t more = handle_room ? handle_room * 2 : 64;
        struct handle **grown = more < 1u << INDEX_BITS ? realloc(handles, more * sizeof *grown) : NULL;
        if (!grown) return NULL;
        memset(grown + handle_room, 0, (more - handle_room) * sizeof *grown);
        handles = grown;
        handle_room = more;
    }
    struct handle *h = calloc(1, sizeof *h);
    if (!h) return NULL;
    h->value = ++next_generation << INDEX_BITS | (index + 1);
    h->fd = -1;
    h->references = 1;
    handles[index] = h;
    return h;
}

/* Of the share that it is; allocations have the lower numbers (their ids). */
static uint64_t number_of(const struct handle *h) { return h->value | 1ull << 63; }

static void handle_end(struct handle *h) {
    if (h->references || h->maps) return;
    handles[(h->value & ((1u << INDEX_BITS) - 1)) - 1] = NULL;
    if (h->share) {
        uint64_t bytes = h->share->on_host ? 0 : h->bytes;
        if (h->held.number) hl_node_let_go(&h->held);
        else if (!(h->lent && hl_node_disown(number_of(h), bytes) == EBUSY) && bytes)
            hl_phys_give(h->share->device, HL_KIND_VMM, bytes);
        munmap(h->share, PAGE);
    } else if (h->run) {
        arena_free(h->run);
    }
    if (h->fd >= 0) close(h->fd);
    free(h);
}

static struct share *share_map(int fd, uint64_t bytes) {
    void *at = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)bytes);
    return at == MAP_FAILED ? NULL : at;
}

static int own_file(struct handle *h, uint64_t more) {
    int low = memfd_create("hooklab-vmm", MFD_CLOEXEC), fd = low < 0 ? -1 : fcntl(low, F_DUPFD_CLOEXEC, 200);
    if (low >= 0) close(low);
    h->fd = fd;
    return fd < 0 || ftruncate(fd, (off_t)(h->bytes + more)) ? -1 : 0;
}

static CUresult backing(struct handle *h) {
    int exportable = h->prop.requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE, on_host = h->device < 0;
    if (!exportable && !on_host) {
        h->run = run_alloc((uint32_t)h->device, HL_KIND_VMM, h->bytes, 1);
        if (!h->run) return CUDA_ERROR_OUT_OF_MEMORY;
        h->run->hidden = 1;
        h->file_offset = h->run->offset;
        arena_written(h->file_offset, h->bytes); /* device work writes through the mapping without asking */
        return CUDA_SUCCESS;
    }
    if (!on_host && hl_phys_take((uint32_t)h->device, HL_KIND_VMM, h->bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    if (own_file(h, PAGE) == 0 && (h->share = share_map(h->fd, h->bytes)) != NULL) {
        *h->share = (struct share){.magic = SHARE_MAGIC,
                                   .device = on_host ? 0 : (uint32_t)h->device,
                                   .on_host = (uint32_t)on_host,
                                   .bytes = h->bytes,
                                   .prop = h->prop};
        return CUDA_SUCCESS;
    }
    if (!on_host) hl_phys_give((uint32_t)h->device, HL_KIND_VMM, h->bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult create(CUmemGenericAllocationHandle *out, size_t bytes, const CUmemAllocationProp *prop,
                       unsigned long long flags) {
    CUresult result = need_init();
    if (result) return result;
    if (!out || !prop || flags || bytes == 0 || bytes % BLOCK || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    int on_host =
        prop->location.type == CU_MEM_LOCATION_TYPE_HOST || prop->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
    if (!on_host && prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
    if (prop->requestedHandleTypes & ~(unsigned)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return prop->requestedHandleTypes == CU_MEM_HANDLE_TYPE_FABRIC ? CUDA_ERROR_NOT_PERMITTED
                                                                       : CUDA_ERROR_INVALID_VALUE;
    struct visible *v = on_host ? NULL : visible_device(prop->location.id);
    if (!on_host && !v) return CUDA_ERROR_INVALID_DEVICE;
    if (v && bytes > physical(v->physical)->total_bytes) return CUDA_ERROR_OUT_OF_MEMORY;
    fake_lock();
    struct handle *h = handle_new();
    result = h ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    if (h) {
        h->bytes = bytes;
        h->prop = *prop;
        h->device = v ? (int)v->physical : -1;
        if ((result = backing(h)) != CUDA_SUCCESS) {
            h->references = 0;
            h->share = NULL;
            handle_end(h);
        } else {
            *out = h->value;
        }
    }
    fake_unlock();
    if (v && physical(v->physical)->latency_ns[HL_LATENCY_ALLOC]) hl_latency(v->physical, HL_LATENCY_ALLOC);
    return result;
}

API cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                unsigned long long flags) {
    ENTER(cuMemCreate);
    CUresult result = create(handle, size, prop, flags);
    LEAVE(result, size, result ? 0 : *handle);
}

static CUresult release(CUmemGenericAllocationHandle value) {
    CUresult result = need_init();
    if (result) return result;
    fake_lock();
    struct handle *h = handle_of(value);
    if (h) {
        h->references--;
        handle_end(h);
    }
    fake_unlock();
    return h ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
API cuMemRelease(CUmemGenericAllocationHandle handle) {
    ENTER(cuMemRelease);
    LEAVE(release(handle), 0, handle);
}

static CUresult granularity(size_t *out, const CUmemAllocationProp *prop, int option) {
    CUresult result = need_init();
    if (result) return result;
    if (!out || !prop || (unsigned)option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) return CUDA_ERROR_INVALID_VALUE;
    *out = BLOCK; /* whatever the location says, as measured */
    return CUDA_SUCCESS;
}
ENTRY(cuMemGetAllocationGranularity,
      (size_t *granularity_out, const CUmemAllocationProp *prop, CUmemAllocationGranularity_flags option),
      granularity(granularity_out, prop, (int)option))

static CUresult properties(CUmemAllocationProp *out, CUmemGenericAllocationHandle value) {
    CUresult result = need_init();
    if (result) return result;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    fake_lock();
    struct handle *h = handle_of(value);
    if (h) *out = h->prop;
    fake_unlock();
    return h ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
ENTRY(cuMemGetAllocationPropertiesFromHandle, (CUmemAllocationProp * prop, CUmemGenericAllocationHandle handle),
      properties(prop, handle))

/* ---- reservations ----------------------------------------------------------------------------------------- */

static CUresult reserve(CUdeviceptr *out, size_t bytes, size_t alignment, unsigned long long flags) {
    CUresult result = need_init();
    if (result) return result;
    if (!out || flags || bytes == 0 || bytes % BLOCK || (alignment & (alignment - 1))) return CUDA_ERROR_INVALID_VALUE;
    struct reservation *r = calloc(1, sizeof *r);
    if (!r) return CUDA_ERROR_OUT_OF_MEMORY;
    void *base = address_reserve(bytes, alignment > BLOCK ? alignment : BLOCK);
    void *view = base == MAP_FAILED ? MAP_FAILED : address_reserve(bytes, BLOCK);
    if (view == MAP_FAILED) {
        if (base != MAP_FAILED) munmap(base, bytes);
        free(r);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *r = (struct reservation){(uintptr_t)base, bytes, view, NULL};
    fake_lock();
    r->next = reservations;
    reservations = r;
    fake_unlock();
    *out = r->base;
    return CUDA_SUCCESS;
}
ENTRY(cuMemAddressReserve,
      (CUdeviceptr * at, size_t size, size_t alignment, CUdeviceptr hint, unsigned long long flags),
      ((void)hint, reserve(at, size, alignment, flags)))

static CUresult address_free(CUdeviceptr at, size_t bytes) {
    CUresult result = need_init();
    if (result) return result;
    fake_lock();
    struct reservation **link = &reservations, *r;
    while ((r = *link) && r->base != at) link = &r->next;
    int fits = r && r->bytes == bytes && !foreign_overlaps(at, bytes);
    if (fits) *link = r->next;
    fake_unlock();
    if (!fits) return CUDA_ERROR_INVALID_VALUE;
    munmap((void *)(uintptr_t)r->base, bytes);
    munmap(r->view, bytes);
    free(r);
    return CUDA_SUCCESS;
}
ENTRY(cuMemAddressFree, (CUdeviceptr at, size_t size), address_free(at, size))

/* ---- mappings --------------------------------------------------------------------------------------------- */

/* The reservation that holds all of [at, at + bytes). */
static struct reservation *reservation_around(uint64_t at, uint64_t bytes) {
    struct reservation *r = reservations;
    while (r && (at < r->base || at - r->base >= r->bytes || bytes > r->bytes - (at - r->base))) r = r->next;
    return r;
}

static CUresult map(CUdeviceptr at, size_t bytes, size_t offset, CUmemGenericAllocationHandle value,
                    unsigned long long flags) {
    CUresult result = need_init();
    if (result) return result;
    if (flags || bytes == 0 || at % BLOCK || bytes % BLOCK) return CUDA_ERROR_INVALID_VALUE;
    if (offset) return CUDA_ERROR_NOT_SUPPORTED;
    struct mapping *m = calloc(1, sizeof *m);
    if (!m) return CUDA_ERROR_OUT_OF_MEMORY;
    fake_lock();
    struct handle *h = handle_of(value);
    struct reservation *r = reservation_around(at, bytes);
    result = CUDA_ERROR_INVALID_VALUE;
    if (h && r && bytes <= h->bytes && !foreign_overlaps(at, bytes)) {
        char *view = r->view + (at - r->base);
        void *seen = mmap(view, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE,
                          h->fd >= 0 ? h->fd : hl_node.memory_fd, (off_t)h->file_offset);
        struct alloc *a = seen == MAP_FAILED
                              ? NULL
                              : foreign_add(at, bytes, view, h->device < 0 ? 0 : (uint32_t)h->device, HL_KIND_VMM);
        result = a ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
        if (a) {
            (void)madvise(view, bytes, MADV_DONTDUMP);
            a->special = SPECIAL_MAPPED;
            h->maps++;
            *m = (struct mapping){a, h, mappings};
            mappings = m;
        }
    }
    fake_unlock();
    if (result) free(m);
    return result;
}
ENTRY(cuMemMap,
      (CUdeviceptr at, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags),
      map(at, size, offset, handle, flags))

/* 1: [at, at + bytes) is made of whole mappings, and of nothing else. */
static int whole(uint64_t at, uint64_t bytes) {
    uint64_t end = at + bytes;
    while (at < end) {
        struct alloc *a = foreign_at(at);
        if (!a || a->special != SPECIAL_MAPPED || a->offset != at || a->bytes > end - at) return 0;
        at += a->bytes;
    }
    return 1;
}

/* 1: no mapping lies across an end of [at, at + bytes). */
static int splits_none(uint64_t at, uint64_t bytes) {
    for (const struct mapping *m = mappings; m; m = m->next) {
        uint64_t start = m->alloc->offset, end = start + m->alloc->bytes;
        if (start < at + bytes && at < end && (start < at || end > at + bytes)) return 0;
    }
    return 1;
}

/* Addresses that nothing is mapped at may be unmapped too, as measured: they must only be reserved. */
static CUresult unmap(CUdeviceptr at, size_t bytes) {
    CUresult result = need_init();
    if (result) return result;
    if (bytes == 0 || at % BLOCK || bytes % BLOCK || at + bytes < at) return CUDA_ERROR_INVALID_VALUE;
    fake_lock();
    int fits = reservation_around(at, bytes) && splits_none(at, bytes);
    for (struct mapping **link = &mappings, *m; fits && (m = *link);) {
        if (m->alloc->offset - at >= bytes) {
            link = &m->next;
            continue;
        }
        *link = m->next;
        (void)mmap(m->alloc->data, m->alloc->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE,
                   -1, 0);
        foreign_remove(m->alloc);
        m->handle->maps--;
        handle_end(m->handle);
        free(m);
    }
    fake_unlock();
    return fits ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
API cuMemUnmap(CUdeviceptr at, size_t size) {
    ENTER(cuMemUnmap);
    LEAVE(unmap(at, size), size, at);
}

static CUresult retain(CUmemGenericAllocationHandle *out, void *address) {
    CUresult result = need_init();
    if (result) return result;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    fake_lock();
    struct alloc *a = foreign_at((uintptr_t)address);
    struct mapping *m = mappings;
    while (m && m->alloc != a) m = m->next;
    if (a && m) {
        m->handle->references++;
        *out = m->handle->value;
    }
    fake_unlock();
    return a && m ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
ENTRY(cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle * handle, void *address), retain(handle, address))

static CUresult set_access(CUdeviceptr at, size_t bytes, const CUmemAccessDesc *list, size_t count) {
    CUresult result = need_init();
    if (result) return result;
    if (!list || count == 0 || bytes == 0 || at % BLOCK || bytes % BLOCK || at + bytes < at)
        return CUDA_ERROR_INVALID_VALUE;
    uint16_t read = 0, write = 0, named = 0;
    for (size_t i = 0; i < count; i++) {
        if (list[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
            if (list[i].location.type == CU_MEM_LOCATION_TYPE_HOST ||
                list[i].location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA)
                continue;
            return CUDA_ERROR_INVALID_VALUE;
        }
        struct visible *v = visible_device(list[i].location.id);
        if (!v) return CUDA_ERROR_INVALID_VALUE; /* no 101 here, as measured */
        uint16_t bit = (uint16_t)(1u << v->physical);
        if (list[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && list[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
            list[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
            return CUDA_ERROR_INVALID_VALUE;
        named |= bit;
        if (list[i].flags >= CU_MEM_ACCESS_FLAGS_PROT_READ) read |= bit;
        if (list[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE) write |= bit;
    }
    fake_lock();
    int fits = whole(at, bytes);
    for (uint64_t p = at; fits && p < at + bytes;) {
        struct alloc *a = foreign_at(p);
        a->readable = (uint16_t)((a->readable & ~named) | read);
        a->writable = (uint16_t)((a->writable & ~named) | write);
        p += a->bytes;
    }
    fake_unlock();
    return fits ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
ENTRY(cuMemSetAccess, (CUdeviceptr at, size_t size, const CUmemAccessDesc *list, size_t count),
      set_access(at, size, list, count))

static CUresult get_access(unsigned long long *flags, const CUmemLocation *where, CUdeviceptr at) {
    CUresult result = need_init();
    if (result) return result;
    if (!flags || !where || where->type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
    struct visible *v = visible_device(where->id);
    if (!v) return CUDA_ERROR_INVALID_DEVICE;
    fake_lock();
    struct alloc *a = foreign_at(at);
    int ours = a && a->special == SPECIAL_MAPPED;
    unsigned bit = 1u << v->physical;
    if (ours)
        *flags = a->writable & bit   ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                 : a->readable & bit ? CU_MEM_ACCESS_FLAGS_PROT_READ
                                     : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    fake_unlock();
    return ours ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
ENTRY(cuMemGetAccess, (unsigned long long *flags, const CUmemLocation *where, CUdeviceptr at),
      get_access(flags, where, at))

/* ---- between processes ------------------------------------------------------------------------------------ */

/* A new descriptor that stands for a handle, -1 none. */
static int paper_of(struct handle *h) {
    int fd;
    struct hl_share share = {hl_node.slot, hl_node.process->generation, number_of(h)};
    if (h->held.number) share = h->held;
    else if (hl_node_share(share.number, h->share->device, HL_KIND_VMM, 0, h->share->on_host ? 0 : h->bytes, h->fd, 1))
        return -1;
    if (hl_node_paper(&share, &fd)) return -1;
    h->lent |= !h->held.number;
    return fd;
}

static CUresult export_handle(void *out, CUmemGenericAllocationHandle value, int type, unsigned long long flags) {
    CUresult result = need_init();
    if (result) return result;
    if (!out || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
    fake_lock();
    struct handle *h = handle_of(value);
    int ours = h && h->share && (h->prop.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    int fd = ours ? paper_of(h) : -1;
    fake_unlock();
    if (!ours) return CUDA_ERROR_INVALID_VALUE;
    if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
    memcpy(out, &fd, sizeof fd);
    return CUDA_SUCCESS;
}
ENTRY(cuMemExportToShareableHandle,
      (void *shareable, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type, unsigned long long flags),
      export_handle(shareable, handle, (int)type, flags))

/* An imported handle is the exporter's memory: no bytes are taken here. Importing what this process made gives another
 * handle of the same memory. */
static CUresult import_handle(CUmemGenericAllocationHandle *out, void *shareable, int type) {
    CUresult result = need_init();
    if (result) return result;
    if (!out || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
    int theirs = (int)(intptr_t)shareable, fd = -1;
    struct stat info;
    struct share *share = NULL;
    struct hl_share held;
    if (theirs < 0 || hl_node_hold(&held, theirs, &fd)) return CUDA_ERROR_UNKNOWN; /* measured, of what is no memory */
    if (fstat(fd, &info) == 0 && info.st_size > PAGE && info.st_size % BLOCK == PAGE)
        share = share_map(fd, (uint64_t)info.st_size - PAGE);
    if (share && share->magic == SHARE_MAGIC && share->bytes == (uint64_t)info.st_size - PAGE) {
        fake_lock();
        struct handle *h = handle_new();
        if (h) {
            h->bytes = share->bytes;
            h->fd = fd;
            h->share = share;
            h->device = share->on_host ? -1 : (int)share->device;
            h->prop = share->prop;
            h->held = held;
            *out = h->value;
        }
        fake_unlock();
        if (h) return CUDA_SUCCESS;
        result = CUDA_ERROR_OUT_OF_MEMORY;
    } else {
        result = CUDA_ERROR_UNKNOWN; /* a pool's */
    }
    if (share) munmap(share, PAGE);
    hl_node_let_go(&held);
    close(fd);
    return result;
}
ENTRY(cuMemImportFromShareableHandle,
      (CUmemGenericAllocationHandle * handle, void *shareable, CUmemAllocationHandleType type),
      import_handle(handle, shareable, (int)type))
