/* Memory and events of other processes, and memory of other APIs: IPC handles, shared pools, external memory.
 *
 * A process that hands out a handle shares that part of its memory file (lent.c); whoever opens the handle holds it and maps
 * it under addresses of its own. Opening takes nothing: the bytes are those of the process that allocated them, and stay
 * taken until it and all holders let go. A handle names its allocation by process slot, generation and buffer id, so a
 * stale one is refused. An event between processes keeps its time in a page after the device memory of its maker's file. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "foreign.h"

enum { IPC_MAGIC = 0x49504331, EVENT_MAGIC = 0x49504532, POOL_MAGIC = 0x49504f33, PAGE = 4096 };

struct ipc_handle { /* what is in the 64 bytes of a handle */
    uint32_t magic, slot;
    uint64_t generation, offset, bytes, id;
    uint32_t device, extra;
};
_Static_assert(sizeof(struct ipc_handle) <= 64, "a handle has 64 bytes");

struct imported {
    struct alloc *alloc;
    struct ipc_handle from;
    struct ctx *ctx;
    char *view;          /* what is mapped */
    uint64_t view_bytes; /* and how much */
    unsigned opened;
    struct imported *next;
};

struct pooled { /* a share that an imported pool holds, measured: after the pointer is freed, too */
    struct hl_share share;
    const struct pool *pool;
    struct pooled *next;
};

static struct pooled *pooled;

static struct imported *imported;

static struct hl_share share_of(const struct ipc_handle *h) { return (struct hl_share){h->slot, h->generation, h->id}; }

/* Maps [offset, offset + bytes) of a file under new addresses that sit in their 2 MiB block as the maker's do. */
static CUresult import(int fd, const struct ipc_handle *from, uint8_t special, struct ctx *ctx, CUdeviceptr *out) {
    uint64_t inside = from->offset % BLOCK, page = from->offset % PAGE;
    struct imported *i = calloc(1, sizeof *i);
    if (!i) return CUDA_ERROR_OUT_OF_MEMORY;
    void *base = address_reserve(inside + from->bytes, BLOCK);
    i->view_bytes = page + from->bytes;
    i->view = base == MAP_FAILED ? MAP_FAILED
                                 : mmap(NULL, i->view_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd,
                                        (off_t)(from->offset - page));
    if (i->view == MAP_FAILED) {
        if (base != MAP_FAILED) munmap(base, inside + from->bytes);
        free(i);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    (void)madvise(i->view, i->view_bytes, MADV_DONTDUMP);
    i->from = *from;
    i->ctx = ctx;
    i->opened = 1;
    fake_lock();
    i->alloc = foreign_add((uintptr_t)base + inside, from->bytes, i->view + page, from->device, HL_KIND_SYNC);
    if (i->alloc) {
        i->alloc->special = special;
        i->alloc->ctx = ctx;
        i->next = imported;
        imported = i;
        *out = i->alloc->offset;
    }
    fake_unlock();
    if (i->alloc) return CUDA_SUCCESS;
    munmap(i->view, i->view_bytes);
    munmap(base, inside + from->bytes);
    free(i);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult import_share(const struct ipc_handle *from, uint8_t special, struct ctx *ctx, CUdeviceptr *out) {
    int fd;
    struct hl_share share = share_of(from);
    if (hl_node_hold(&share, -1, &fd)) return CUDA_ERROR_INVALID_VALUE; /* its maker is gone, or has freed it */
    CUresult result = import(fd, from, special, ctx, out);
    if (result) hl_node_let_go(&share);
    close(fd);
    return result;
}

/* Under the lock. */
static void forget(struct imported **link) {
    struct imported *i = *link;
    *link = i->next;
    uint64_t base = i->alloc->offset / BLOCK * BLOCK;
    munmap((void *)(uintptr_t)base, i->alloc->offset - base + i->alloc->bytes);
    munmap(i->view, i->view_bytes);
    foreign_remove(i->alloc);
    struct hl_share share = share_of(&i->from);
    if (i->from.magic == IPC_MAGIC) hl_node_let_go(&share); /* external memory is no share of anybody's */
    free(i);
}

void imported_pool_ends(const struct pool *pool) {
    for (struct pooled **link = &pooled, *p; (p = *link);) {
        if (p->pool != pool) {
            link = &p->next;
            continue;
        }
        *link = p->next;
        hl_node_let_go(&p->share);
        free(p);
    }
}

int imported_end(struct alloc *alloc) {
    if (alloc->special == SPECIAL_GRAPH) return graph_memory_end(alloc);
    if (alloc->special != SPECIAL_IMPORTED) return 0;
    for (struct imported **link = &imported; *link; link = &(*link)->next)
        if ((*link)->alloc == alloc) {
            forget(link);
            return 1;
        }
    return 0;
}

void imports_end(struct ctx *ctx) {
    for (struct imported **link = &imported; *link;)
        if ((*link)->ctx == ctx) forget(link);
        else link = &(*link)->next;
}

/* ---- memory ------------------------------------------------------------------------------------------------ */

static CUresult get_handle(CUipcMemHandle *out, CUdeviceptr pointer) {
    struct ctx *ctx;
    CUresult result = need_ctx(&ctx);
    if (result) return result;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    uint64_t offset;
    struct ipc_handle h = {.magic = IPC_MAGIC, .slot = hl_node.slot, .generation = hl_node.process->generation};
    fake_lock();
    struct alloc *a = memory_at(pointer, &offset);
    int fits = a && !a->data && !a->pool && (a->kind == HL_KIND_SYNC || a->kind == HL_KIND_PITCHED);
    int shared = fits && lent_new(a) == 0;
    if (shared) {
        h.offset = a->offset;
        h.bytes = a->bytes;
        h.id = a->id;
        h.device = a->device;
        arena_written(a->offset, a->bytes); /* others write without asking */
    }
    fake_unlock();
    if (!fits) return CUDA_ERROR_INVALID_VALUE;
    if (!shared) return CUDA_ERROR_OPERATING_SYSTEM;
    memset(out, 0, sizeof *out);
    memcpy(out, &h, sizeof h);
    return CUDA_SUCCESS;
}
ENTRY(cuIpcGetMemHandle, (CUipcMemHandle * handle, CUdeviceptr pointer), get_handle(handle, pointer))

static CUresult open_handle(CUdeviceptr *out, const CUipcMemHandle *handle, unsigned flags) {
    struct ctx *ctx;
    if (out) *out = 0;
    CUresult result = need_ctx(&ctx);
    if (result) return result;
    struct ipc_handle h;
    memcpy(&h, handle, sizeof h);
    if (!out || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS || h.magic != IPC_MAGIC) return CUDA_ERROR_INVALID_VALUE;
    if (h.slot == hl_node.slot && h.generation == hl_node.process->generation) return CUDA_ERROR_INVALID_CONTEXT;
    fake_lock();
    struct imported *i = imported;
    while (i && (i->alloc->special != SPECIAL_IPC || i->ctx != ctx || memcmp(&i->from, &h, sizeof h))) i = i->next;
    if (i) {
        i->opened++;
        *out = i->alloc->offset;
    }
    fake_unlock();
    if (i) return CUDA_SUCCESS;
    return import_share(&h, SPECIAL_IPC, ctx, out);
}
#define OPEN(NAME)                                                                                                     \
    API NAME(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags);                                         \
    API NAME(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags) {                                        \
        ENTER(NAME);                                                                                                   \
        CUresult result = open_handle(pointer, &handle, flags);                                                        \
        LEAVE(result, 0, result ? 0 : *pointer);                                                                       \
    }
OPEN(cuIpcOpenMemHandle)
OPEN(cuIpcOpenMemHandle_v2)

static CUresult close_handle(CUdeviceptr pointer) {
    struct ctx *ctx;
    CUresult result = need_ctx(&ctx);
    if (result) return result;
    result = CUDA_ERROR_INVALID_VALUE;
    fake_lock();
    for (struct imported **link = &imported; *link; link = &(*link)->next)
        if ((*link)->alloc->special == SPECIAL_IPC && (*link)->alloc->offset == pointer) {
            if (--(*link)->opened == 0) forget(link);
            result = CUDA_SUCCESS;
            break;
        }
    fake_unlock();
    return result;
}
ENTRY(cuIpcCloseMemHandle, (CUdeviceptr pointer), close_handle(pointer))

/* ---- events ------------------------------------------------------------------------------------------------ */

enum { EVENT_SLOTS = HL_SHARED_BYTES / 8 };

static uint64_t *shared_times;
static uint32_t shared_used;

/* Under the lock: a place for the time of an event that other processes see; its number, -1 none. */
static int64_t event_place(uint64_t **out) {
    if (!shared_times) {
        void *at = mmap(NULL, HL_SHARED_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, hl_node.memory_fd,
                        (off_t)hl_node.memory_bytes);
        if (at == MAP_FAILED) return -1;
        shared_times = at;
    }
    if (shared_used == EVENT_SLOTS) return -1;
    *out = &shared_times[shared_used];
    return shared_used++;
}

static CUresult get_event(CUipcEventHandle *out, CUevent handle) {
    struct event *e = NULL;
    CUresult result = event_of(handle, &e);
    if (result) return result;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    if (!(e->flags & CU_EVENT_INTERPROCESS)) return CUDA_ERROR_INVALID_HANDLE;
    fake_lock();
    if (e->place < 0) {
        uint64_t *at = NULL;
        e->place = event_place(&at);
        if (e->place >= 0) {
            __atomic_store_n(at, *e->time, __ATOMIC_RELEASE);
            __atomic_store_n(&e->time, at, __ATOMIC_RELEASE);
        }
    }
    fake_unlock();
    if (e->place < 0 || hl_node_share(HL_SHARE_MEMORY_FILE, 0, 0, 0, 0, hl_node.memory_fd, 0))
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct ipc_handle h = {.magic = EVENT_MAGIC,
                           .slot = hl_node.slot,
                           .generation = hl_node.process->generation,
                           .offset = (uint64_t)e->place,
                           .device = e->ctx->device,
                           .extra = e->flags};
    memset(out, 0, sizeof *out);
    memcpy(out, &h, sizeof h);
    return CUDA_SUCCESS;
}
ENTRY(cuIpcGetEventHandle, (CUipcEventHandle * handle, CUevent event), get_event(handle, event))

static CUresult open_event(CUevent *out, const CUipcEventHandle *handle) {
    struct ctx *ctx;
    CUresult result = need_ctx(&ctx);
    if (result) return result;
    struct ipc_handle h;
    memcpy(&h, handle, sizeof h);
    if (!out || h.magic != EVENT_MAGIC || h.offset >= EVENT_SLOTS) return CUDA_ERROR_INVALID_VALUE;
    if (h.slot == hl_node.slot && h.generation == hl_node.process->generation) return CUDA_ERROR_INVALID_CONTEXT;
    struct hl_share share = {h.slot, h.generation, HL_SHARE_MEMORY_FILE};
    int fd;
    if (hl_node_hold(&share, -1, &fd)) return CUDA_ERROR_INVALID_VALUE;
    void *page = mmap(NULL, HL_SHARED_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)hl_node.memory_bytes);
    close(fd);
    if (page == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    struct event *e = event_new(ctx, h.extra);
    if (!e) {
        munmap(page, HL_SHARED_BYTES);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    e->time = (uint64_t *)page + h.offset; /* mapped until the process ends: a dead event's corpse may be asked */
    *out = (CUevent)(void *)e;
    return CUDA_SUCCESS;
}
API cuIpcOpenEventHandle(CUevent *event, CUipcEventHandle handle);
API cuIpcOpenEventHandle(CUevent *event, CUipcEventHandle handle) {
    ENTER(cuIpcOpenEventHandle);
    LEAVE(open_event(event, &handle), 0, 0);
}

/* ---- pools ------------------------------------------------------------------------------------------------- */

static CUresult export_pointer(CUmemPoolPtrExportData *out, CUdeviceptr pointer) {
    CUresult result = need_init();
    if (result) return result;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    uint64_t offset;
    struct ipc_handle h = {.magic = POOL_MAGIC, .slot = hl_node.slot, .generation = hl_node.process->generation};
    fake_lock();
    struct alloc *a = memory_at(pointer, &offset);
    int fits = a && !a->data && a->pool && pool_is_shared(a->pool) && lent_new(a) == 0;
    if (fits) {
        h.offset = a->offset;
        h.bytes = a->bytes;
        h.id = a->id;
        h.device = a->device;
        arena_written(a->offset, a->bytes);
    }
    fake_unlock();
    if (!fits) return CUDA_ERROR_INVALID_VALUE;
    memset(out, 0, sizeof *out);
    memcpy(out, &h, sizeof h);
    return CUDA_SUCCESS;
}
ENTRY(cuMemPoolExportPointer, (CUmemPoolPtrExportData * data, CUdeviceptr pointer), export_pointer(data, pointer))

static CUresult import_pointer(CUdeviceptr *out, CUmemoryPool pool, const CUmemPoolPtrExportData *data) {
    struct ctx *ctx;
    if (out) *out = 0;
    CUresult result = need_ctx(&ctx);
    if (result) return result;
    struct ipc_handle h;
    if (!out || !data || pool_imported_file(pool) < 0) return CUDA_ERROR_INVALID_VALUE;
    memcpy(&h, data, sizeof h);
    if (h.magic != POOL_MAGIC || h.bytes > hl_node.memory_bytes || h.offset > hl_node.memory_bytes - h.bytes)
        return CUDA_ERROR_INVALID_VALUE;
    struct pooled *p = calloc(1, sizeof *p);
    if (!p) return CUDA_ERROR_OUT_OF_MEMORY;
    if ((result = import_share(&h, SPECIAL_IMPORTED, ctx, out)) != CUDA_SUCCESS) {
        free(p);
        return result;
    }
    fake_lock();
    *p = (struct pooled){share_of(&h), (const struct pool *)(const void *)pool, pooled};
    pooled = p;
    fake_unlock();
    return CUDA_SUCCESS;
}
ENTRY(cuMemPoolImportPointer, (CUdeviceptr * pointer, CUmemoryPool pool, CUmemPoolPtrExportData *data),
      import_pointer(pointer, pool, data))

/* ---- external memory --------------------------------------------------------------------------------------- */

struct external {
    uint32_t magic;
    int fd;
    uint64_t bytes;
    struct ctx *ctx;
};
enum { MAGIC_EXTERNAL = 0x45585431 };

/* A file of another API's memory: whatever can be mapped and is as long as it says. Its descriptor is ours from now. */
static CUresult import_external(CUexternalMemory *out, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *desc) {
    struct ctx *ctx;
    CUresult result = need_ctx(&ctx);
    if (result) return result;
    if (!out || !desc || desc->size == 0 || (desc->flags & ~(unsigned)CUDA_EXTERNAL_MEMORY_DEDICATED))
        return CUDA_ERROR_INVALID_VALUE;
    if (desc->type != CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD)
        return desc->type >= CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_WIN32 &&
                       desc->type <= CU_EXTERNAL_MEMORY_HANDLE_TYPE_NVSCIBUF
                   ? CUDA_ERROR_NOT_SUPPORTED
                   : CUDA_ERROR_INVALID_VALUE;
    struct stat info;
    if (fstat(desc->handle.fd, &info) || !S_ISREG(info.st_mode) || (uint64_t)info.st_size < desc->size)
        return CUDA_ERROR_UNKNOWN; /* no memory of any API that could be imported */
    struct external *e = calloc(1, sizeof *e);
    if (!e) return CUDA_ERROR_OUT_OF_MEMORY;
    *e = (struct external){MAGIC_EXTERNAL, desc->handle.fd, desc->size, ctx};
    *out = (CUexternalMemory)(void *)e;
    return CUDA_SUCCESS;
}
ENTRY(cuImportExternalMemory, (CUexternalMemory * memory, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *desc),
      import_external(memory, desc))

static struct external *external_of(CUexternalMemory handle) {
    struct external *e = (struct external *)(void *)handle;
    return e && e->magic == MAGIC_EXTERNAL ? e : NULL;
}

static CUresult map_external(CUdeviceptr *out, CUexternalMemory handle, const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *desc) {
    struct ctx *ctx;
    CUresult result = need_ctx(&ctx);
    if (result) return result;
    struct external *e = external_of(handle);
    if (!e) return CUDA_ERROR_INVALID_HANDLE;
    if (!out || !desc || desc->flags || desc->size == 0 || desc->size > e->bytes ||
        desc->offset > e->bytes - desc->size)
        return CUDA_ERROR_INVALID_VALUE;
    struct ipc_handle from = {.offset = desc->offset, .bytes = desc->size, .device = ctx->device};
    return import(e->fd, &from, SPECIAL_IMPORTED, ctx, out);
}
ENTRY(cuExternalMemoryGetMappedBuffer,
      (CUdeviceptr * pointer, CUexternalMemory memory, const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *desc),
      map_external(pointer, memory, desc))

static CUresult destroy_external(CUexternalMemory handle) {
    struct ctx *ctx;
    CUresult result = need_ctx(&ctx);
    if (result) return result;
    struct external *e = external_of(handle);
    if (!e) return CUDA_ERROR_INVALID_HANDLE;
    e->magic = MAGIC_DEAD;
    close(e->fd);
    return CUDA_SUCCESS;
}
ENTRY(cuDestroyExternalMemory, (CUexternalMemory memory), destroy_external(memory))
