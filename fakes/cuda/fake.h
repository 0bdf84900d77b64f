/* What the files of the fake CUDA driver share: state, handles, and the frame around every entry.
 *
 * Rules: an exported name is never called from inside (each entry is a thin frame around a hidden function, so that no
 * interposer sees calls that the program did not make); nothing here looks symbols up; every structure below `fake` is
 * guarded by fake_lock() except what its comment says; a handle that was destroyed is kept as a marked corpse, because
 * the real driver faults on some dead handles and refuses others and neither may depend on luck. */
#ifndef HOOKLAB_FAKE_H
#define HOOKLAB_FAKE_H
#include <cuda.h>
#include <stddef.h>
#include <stdint.h>

#include "arena.h"
#include "call.h"
#include "hl_layout_history.h"

#define API __attribute__((visibility("default"))) CUresult CUDAAPI
#define ENTER(NAME)                                                                                                    \
    struct hl_call call;                                                                                               \
    if (hl_fake_enter(&call, HL_##NAME)) return (CUresult)hl_fake_refuse(&call)
#define LEAVE(RESULT, A, B) return (CUresult)hl_fake_leave(&call, (int32_t)(RESULT), (uint64_t)(A), (uint64_t)(B))
/* An entry that only frames a hidden function. */
#define ENTRY(NAME, PARAMETERS, BODY)                                                                                  \
    API NAME PARAMETERS;                                                                                               \
    API NAME PARAMETERS {                                                                                              \
        ENTER(NAME);                                                                                                   \
        LEAVE(BODY, 0, 0);                                                                                             \
    }
/* Legacy and per-thread variants: DEFAULT_STREAM is what a NULL stream means inside BODY. */
#define PAIR_VALUES(NAME, VARIANT, PARAMETERS, BODY, A, B)                                                             \
    API NAME PARAMETERS;                                                                                               \
    API NAME PARAMETERS {                                                                                              \
        enum { DEFAULT_STREAM = 1 };                                                                                   \
        ENTER(NAME);                                                                                                   \
        LEAVE(BODY, A, B);                                                                                             \
    }                                                                                                                  \
    API VARIANT PARAMETERS;                                                                                            \
    API VARIANT PARAMETERS {                                                                                           \
        enum { DEFAULT_STREAM = 2 };                                                                                   \
        ENTER(VARIANT);                                                                                                \
        LEAVE(BODY, A, B);                                                                                             \
    }
#define PAIR(NAME, VARIANT, PARAMETERS, BODY) PAIR_VALUES(NAME, VARIANT, PARAMETERS, BODY, 0, 0)

enum magic {
    MAGIC_CTX = 0x43545831,
    MAGIC_STREAM = 0x53545231,
    MAGIC_EVENT = 0x45564e31,
    MAGIC_MODULE = 0x4d4f4431,
    MAGIC_FUNCTION = 0x46554e31,
    MAGIC_KERNEL = 0x4b45521,
    MAGIC_LIBRARY = 0x4c494231,
    MAGIC_LINK = 0x4c4e4b31,
    MAGIC_POOL = 0x504f4f31,
    MAGIC_DEAD = 0x64656164,
};

enum { UNINITIALISED, READY, FORKED };
enum { LIMITS = 12 };

struct stream {
    uint32_t magic, flags;
    int priority;
    int per_thread;
    struct ctx *ctx;
    uint64_t id;
    uint64_t end;            /* atomic moment: this process's work on the device that was queued here last */
    uint64_t other;          /* atomic moment: what else must be over, 0 nothing */
    uint32_t pending;        /* atomic futex: host functions queued and not finished */
    struct capture *capture; /* that this stream belongs to */
    struct green *green;     /* that it was made for */
    struct {                 /* attributes that a program set */
        CUsynchronizationPolicy policy;
        CUaccessPolicyWindow window;
    } attribute;
    struct stream *next;
};

struct event {
    uint32_t magic, flags;
    struct ctx *ctx;
    uint64_t own_time;
    uint64_t *time;            /* atomic moment, 0 = never recorded; elsewhere when other processes see it */
    int64_t place;             /* in the page of shared times, -1 none */
    struct recorded *recorded; /* in a capture: the nodes that it stands for */
    struct stream *stream;
    struct event *place_before, *place_next; /* moment.c's list */
};

enum { QUEUE_DEPTH = 1024 }; /* launches that a context queues before the call waits */

struct ctx {
    uint32_t magic;
    int alive;  /* atomic: 0 = destroyed, or a primary context that nobody retains */
    int sticky; /* atomic: the error that every later call gets */
    int primary;
    uint32_t device; /* physical index */
    unsigned flags, api, attached;
    uint64_t id;
    struct heap sync, managed, module;
    struct alloc *allocs;
    struct stream *streams;
    struct module *modules;
    struct array *arrays;
    uint32_t peers; /* devices whose memory its kernels may touch, one bit each */
    struct stream legacy, per_thread;
    uint64_t queued[QUEUE_DEPTH]; /* moments at which the newest launches end */
    uint32_t queue_next;
    size_t limit[LIMITS];
    CUfunc_cache cache;
    CUsharedconfig shared;
    uint64_t local;           /* bytes of local memory that each resident thread has */
    int64_t local_bytes;      /* physical, beyond what a context has by itself; below 0: less than that */
    uint64_t functions_bytes; /* physical, for the device's own functions and the heap */
    unsigned loaded, ran;     /* USES_*: modules, and kernels of such */
    struct ctx *next;
};

struct visible { /* a device as this process counts them */
    uint32_t physical;
    unsigned retained; /* primary context */
    unsigned primary_flags;
    struct ctx *primary;
    struct pool *default_pool, *pool;
};

struct fake {
    int state; /* atomic */
    int count;
    struct visible visible[HL_MAX_DEVICES];
    struct ctx *contexts;
    uint64_t next_ctx_id, next_stream_id;
    uint32_t captures; /* atomic: captures under way */
    uint32_t lock;
};
extern struct fake fake;

void fake_lock(void);
void fake_unlock(void);
_Noreturn void fake_crash(void); /* what the real driver does with this handle */

/* The thread's context stack. */
extern __thread struct ctx *fake_current __attribute__((tls_model("initial-exec")));

static inline CUresult need_init(void) {
    return __builtin_expect(__atomic_load_n(&fake.state, __ATOMIC_ACQUIRE) == READY, 1) ? CUDA_SUCCESS
                                                                                        : CUDA_ERROR_NOT_INITIALIZED;
}

void ctx_fault(struct ctx *ctx);             /* work of the card touched what is not the program's */
CUresult ctx_trouble(const struct ctx *ctx); /* why it cannot be used: destroyed, a sticky error, its device lost */

/* The 32-bit generation of the interface: a context of the newer kind, as all are here, refuses its calls. */
static inline CUresult old_generation(void) {
    CUresult result = need_init();
    return result ? result : CUDA_ERROR_INVALID_CONTEXT;
}

static inline CUresult need_ctx(struct ctx **out) {
    struct ctx *ctx = fake_current;
    if (__builtin_expect(__atomic_load_n(&fake.state, __ATOMIC_ACQUIRE) != READY, 0)) return CUDA_ERROR_NOT_INITIALIZED;
    if (__builtin_expect(!ctx, 0)) return CUDA_ERROR_INVALID_CONTEXT;
    *out = ctx;
    if (__builtin_expect(!ctx->alive || ctx->sticky || hl_node.devices[ctx->device].lost, 0)) return ctx_trouble(ctx);
    return CUDA_SUCCESS;
}

static inline struct hl_node_device *physical(uint32_t device) { return &hl_node.devices[device]; }
struct visible *visible_device(CUdevice device); /* NULL: no such ordinal */
CUdevice ordinal_of(uint32_t physical_index);

/* Contexts (context.c). */
CUresult context_new(uint32_t device, unsigned flags, unsigned api, int primary, struct ctx *reuse, struct ctx **out);
void context_end(struct ctx *ctx); /* frees what it holds; the structure stays as a corpse */
CUresult context_push(struct ctx *ctx);
CUresult context_retain_primary(CUdevice device, struct ctx **out);
CUresult context_release_primary(CUdevice device);
CUresult primary_context(CUdevice device, struct ctx **out); /* the active primary context, or an error */

/* What a context takes beside allocations (limits.c). */
enum { USES_PRINTF = 1, USES_HEAP = 2 };
void limits_begin(struct ctx *ctx);
uint64_t limits_end(struct ctx *ctx); /* under the lock; how much less than its own bytes the context holds */
CUresult limits_module(struct ctx *ctx, unsigned uses); /* under the lock: a module is loaded */
CUresult limits_launch(struct ctx *ctx, uint64_t local, unsigned uses);

/* A kernel is launched; local: bytes a thread. */
static inline CUresult limits_fit(struct ctx *ctx, uint64_t local, unsigned uses) {
    return __builtin_expect(local > ctx->local || (uses & ~ctx->ran), 0) ? limits_launch(ctx, local, uses)
                                                                         : CUDA_SUCCESS;
}

/* Streams (stream.c). A handle to its stream; a dead one faults. */
struct stream *stream_of(struct ctx *ctx, CUstream handle, int default_stream);
void stream_init(struct stream *stream, struct ctx *ctx, uint32_t flags, int priority);
void stream_wait(struct stream *stream); /* all its work is done */
int stream_idle(const struct stream *stream);
void context_wait(struct ctx *ctx);
void stream_work(struct stream *stream, uint64_t moment); /* it comes after this */
uint64_t stream_start(struct stream *stream); /* CLOCK_MONOTONIC ns before which its next work must not start, 0 */
/* The stream's next work ends when step(data) says 1; asked again and again by a thread that frees data then. */
CUresult stream_block(struct stream *stream, int (*step)(void *), void *data);
CUresult stream_create(struct ctx *ctx, unsigned flags, int priority, struct stream **out);
CUresult context_event(struct ctx *ctx, CUevent event, int record); /* all streams: after them, or before them */
CUresult event_of(CUevent handle, struct event **out);
struct event *event_new(struct ctx *ctx, unsigned flags);

/* Moments (moment.c); 0 is always over. */
int moment_past(uint64_t moment);
void moment_wait(uint64_t moment);
uint64_t moment_foreseen(uint64_t moment); /* CLOCK_MONOTONIC ns, 0 when it is over */
uint64_t moment_time(struct event *event); /* when an event was that is done */
void moment_remember(struct event *event); /* its time is a place in this process's queue */
void moment_forget(struct event *event);   /* under the lock */
void moment_settle(void);                  /* after a wait */

/* Memory (memory.c, pool.c). */
CUresult memory_new(struct ctx *ctx, uint64_t bytes, uint32_t kind, CUdeviceptr *out);
void memory_end(struct alloc *alloc); /* any kind; under the lock */
struct freed {
    uint64_t bytes;
    uint32_t device;
    int ours, pooled; /* ours: not memory that somebody else made */
};
CUresult memory_free(CUdeviceptr pointer, struct freed *freed); /* any pointer that a free call may end */
struct alloc *memory_at(CUdeviceptr pointer, uint64_t *offset);
void pool_freed(struct alloc *alloc); /* under the lock, before arena_free */
void pools_settle(uint32_t device);   /* a synchronisation: pools give back what they may */
struct host {                         /* pinned host memory */
    char *at;
    uint64_t bytes, id;
    struct ctx *ctx;
    unsigned flags;
    int registered;
    struct pool *pool; /* a pool of the host gave it out */
    struct host *next;
};
struct host *host_at(uint64_t pointer);                                       /* under the lock */
struct host *host_pooled(struct ctx *ctx, struct pool *pool, uint64_t bytes); /* NULL: no memory */
void pool_host_freed(struct pool *pool, uint64_t bytes);                      /* under the lock */
int pool_is_shared(const struct pool *pool);                                  /* made with a handle type */
int pool_imported_file(CUmemoryPool handle);        /* its exporter's memory file; -1: no imported pool */
int peer_possible(uint32_t device, uint32_t other); /* device.c: physical indices */

/* What a context holds besides: under the lock, when it ends. */
void imports_end(struct ctx *ctx);
void arrays_end(struct ctx *ctx);
void hints_end(const struct alloc *alloc); /* managed.c: what was said of managed memory */
/* Where `bytes` bytes at a pointer really are. access: 'r' or 'w'. pageable: plain host memory is fine.
 * 0, or 1 when the range is not wholly inside what the pointer belongs to. */
CUresult memory_resolve(CUdeviceptr pointer, uint64_t bytes, int access, int pageable, char **out);
#endif
