/* Streams, events and host functions. A stream is the moment at which its queued work ends; waiting is sleeping until then.
 * Host functions run in submission order on one helper thread, as the driver's own thread would run them. */
#include "fake.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "graph.h"
#include "history.h"
#include "turns.h"

enum { PRIORITY_HIGHEST = -5, LEGACY = 1, PER_THREAD = 2, NULL_STREAM_ID = 7 };

/* ---- streams ---------------------------------------------------------------------------------------------- */

void stream_init(struct stream *s, struct ctx *ctx, uint32_t flags, int priority) {
    memset(s, 0, sizeof *s);
    s->magic = MAGIC_STREAM;
    s->ctx = ctx;
    s->flags = flags;
    s->priority = priority;
    s->id = fake.next_stream_id++;
}

struct stream *stream_of(struct ctx *ctx, CUstream handle, int default_stream) {
    uintptr_t value = (uintptr_t)handle;
    if (__builtin_expect(value <= PER_THREAD, 1)) {
        if (value == 0) value = (uintptr_t)default_stream;
        return value == PER_THREAD ? &ctx->per_thread : &ctx->legacy;
    }
    struct stream *s = (struct stream *)(void *)handle;
    if (__builtin_expect(s->magic != MAGIC_STREAM, 0)) fake_crash();
    return s;
}

static void pending_wait(struct stream *s) {
    for (uint32_t n; (n = __atomic_load_n(&s->pending, __ATOMIC_ACQUIRE)) != 0;)
        syscall(SYS_futex, &s->pending, FUTEX_WAIT_PRIVATE, n, NULL, NULL, 0);
}

void stream_wait(struct stream *s) {
    moment_wait(__atomic_load_n(&s->end, __ATOMIC_ACQUIRE));
    moment_wait(__atomic_load_n(&s->other, __ATOMIC_ACQUIRE));
    if (__atomic_load_n(&s->pending, __ATOMIC_ACQUIRE)) pending_wait(s);
    moment_settle();
}

int stream_idle(const struct stream *s) {
    return !__atomic_load_n(&s->pending, __ATOMIC_ACQUIRE) && moment_past(__atomic_load_n(&s->end, __ATOMIC_ACQUIRE)) &&
           moment_past(__atomic_load_n(&s->other, __ATOMIC_ACQUIRE));
}

/* A place in the queue that the stream's own work goes to. */
static int is_own(const struct stream *s, uint64_t moment) {
    return moment & HL_MOMENT_QUEUED && hl_moment_slot(moment) == hl_node.slot &&
           hl_moment_device(moment) == s->ctx->device;
}

void stream_work(struct stream *s, uint64_t moment) {
    if (__builtin_expect(is_own(s, moment), 1)) {
        uint64_t seen = __atomic_load_n(&s->end, __ATOMIC_RELAXED);
        while (seen < moment &&
               !__atomic_compare_exchange_n(&s->end, &seen, moment, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED)) {}
        return;
    }
    uint64_t seen = __atomic_load_n(&s->other, __ATOMIC_RELAXED);
    do {
        if (moment_past(moment) || moment_foreseen(seen) >= moment_foreseen(moment)) return;
    } while (!__atomic_compare_exchange_n(&s->other, &seen, moment, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED));
}

uint64_t stream_start(struct stream *s) {
    uint64_t other = __atomic_load_n(&s->other, __ATOMIC_ACQUIRE);
    if (__builtin_expect(!other, 1)) return 0;
    uint64_t foreseen = moment_foreseen(other);
    if (!foreseen) __atomic_compare_exchange_n(&s->other, &other, 0, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return foreseen;
}

void context_wait(struct ctx *ctx) {
    stream_wait(&ctx->legacy);
    stream_wait(&ctx->per_thread);
    /* Waits are outside the lock: look again from the start after each. */
    for (;;) {
        struct stream *busy = NULL;
        fake_lock();
        for (struct stream *s = ctx->streams; s && !busy; s = s->next)
            if (!stream_idle(s)) busy = s;
        fake_unlock();
        if (!busy) return;
        stream_wait(busy);
    }
}

CUresult stream_create(struct ctx *ctx, unsigned flags, int priority, struct stream **out) {
    struct stream *s = malloc(sizeof *s);
    if (!s) return CUDA_ERROR_OUT_OF_MEMORY;
    priority = priority > 0 ? 0 : priority < PRIORITY_HIGHEST ? PRIORITY_HIGHEST : priority;
    fake_lock();
    stream_init(s, ctx, flags, priority);
    s->next = ctx->streams;
    ctx->streams = s;
    fake_unlock();
    *out = s;
    return CUDA_SUCCESS;
}

static CUresult create(CUstream *out, unsigned flags, int priority) {
    struct ctx *ctx;
    struct stream *s;
    CUresult result = need_ctx(&ctx);
    if (result) return result;
    if (!out || (flags & ~(unsigned)CU_STREAM_NON_BLOCKING)) return CUDA_ERROR_INVALID_VALUE;
    if ((result = stream_create(ctx, flags, priority, &s)) == CUDA_SUCCESS) *out = (CUstream)(void *)s;
    return result;
}
ENTRY(cuStreamCreate, (CUstream * stream, unsigned int flags), create(stream, flags, 0))
ENTRY(cuStreamCreateWithPriority, (CUstream * stream, unsigned int flags, int priority),
      create(stream, flags, priority))

static CUresult destroy(CUstream handle) {
    CUresult result = need_init();
    if (result) return result;
    if ((uintptr_t)handle <= PER_THREAD) return CUDA_ERROR_INVALID_HANDLE;
    struct stream *s = stream_of(NULL, handle, LEGACY);
    stream_wait(s); /* the real call returns at once and lets the work finish; nothing can tell the two apart here */
    fake_lock();
    struct stream **link = &s->ctx->streams;
    while (*link && *link != s) link = &(*link)->next;
    if (*link) *link = s->next;
    s->magic = MAGIC_DEAD;
    fake_unlock();
    return CUDA_SUCCESS;
}
ENTRY(cuStreamDestroy, (CUstream stream), destroy(stream))
ENTRY(cuStreamDestroy_v2, (CUstream stream), destroy(stream))

/* The context and the stream of a call; without a context, 201. */
static CUresult both(CUstream handle, int default_stream, struct ctx **ctx, struct stream **stream) {
    CUresult result = need_ctx(ctx);
    if (result) return result;
    *stream = stream_of(*ctx, handle, default_stream);
    return CUDA_SUCCESS;
}

static CUresult query(CUstream handle, int default_stream) {
    struct ctx *ctx;
    struct stream *s;
    CUresult result = both(handle, default_stream, &ctx, &s);
    if (result == CUDA_SUCCESS && capturing()) result = capture_forbids(s);
    if (result) return result;
    return stream_idle(s) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
PAIR(cuStreamQuery, cuStreamQuery_ptsz, (CUstream stream), query(stream, DEFAULT_STREAM))

static CUresult synchronize(CUstream handle, int default_stream) {
    struct ctx *ctx;
    struct stream *s;
    CUresult result = both(handle, default_stream, &ctx, &s);
    if (result == CUDA_SUCCESS && capturing()) result = capture_forbids(s);
    if (result) return result;
    stream_wait(s);
    pools_settle(ctx->device);
    return ctx_trouble(ctx);
}
PAIR(cuStreamSynchronize, cuStreamSynchronize_ptsz, (CUstream stream), synchronize(stream, DEFAULT_STREAM))

#define GETTER(FUNCTION, TYPE, VALUE)                                                                                  \
    static CUresult FUNCTION(CUstream handle, int default_stream, TYPE *out) {                                         \
        struct ctx *ctx;                                                                                               \
        struct stream *s;                                                                                              \
        CUresult result = both(handle, default_stream, &ctx, &s);                                                      \
        if (result) return result;                                                                                     \
        if (!out) return CUDA_ERROR_INVALID_VALUE;                                                                     \
        *out = (TYPE)(VALUE);                                                                                          \
        return CUDA_SUCCESS;                                                                                           \
    }
GETTER(get_flags, unsigned int, s->flags)
GETTER(get_priority, int, s->priority)
GETTER(get_id, unsigned long long, s == &ctx->legacy ? (uint64_t)NULL_STREAM_ID : s->id)
GETTER(get_ctx, CUcontext, (void *)s->ctx)
GETTER(get_device, CUdevice, ordinal_of(s->ctx->device))

PAIR(cuStreamGetFlags, cuStreamGetFlags_ptsz, (CUstream stream, unsigned int *out),
     get_flags(stream, DEFAULT_STREAM, out))
PAIR(cuStreamGetPriority, cuStreamGetPriority_ptsz, (CUstream stream, int *out),
     get_priority(stream, DEFAULT_STREAM, out))
PAIR(cuStreamGetId, cuStreamGetId_ptsz, (CUstream stream, unsigned long long *out), get_id(stream, DEFAULT_STREAM, out))
/* Attributes. A stream that captures nothing and one that does are alike here. */
static CUresult attribute(CUstream handle, int which, CUlaunchAttributeValue *out, const CUlaunchAttributeValue *in,
                          int default_stream) {
    struct ctx *ctx;
    struct stream *s;
    CUresult result = both(handle, default_stream, &ctx, &s);
    if (result) return result;
    if (!out && !in) return CUDA_ERROR_INVALID_VALUE;
    switch (which) {
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
        if (out) out->accessPolicyWindow = s->attribute.window;
        else s->attribute.window = in->accessPolicyWindow;
        return CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
        if (in && (in->syncPolicy < CU_SYNC_POLICY_AUTO || in->syncPolicy > CU_SYNC_POLICY_BLOCKING_SYNC))
            return CUDA_ERROR_INVALID_VALUE;
        if (in) s->attribute.policy = in->syncPolicy;
        else out->syncPolicy = s->attribute.policy ? s->attribute.policy : CU_SYNC_POLICY_AUTO;
        return CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
        if (in) s->priority = in->priority > 0 ? 0 : in->priority < PRIORITY_HIGHEST ? PRIORITY_HIGHEST : in->priority;
        else out->priority = s->priority;
        return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}
PAIR(cuStreamGetAttribute, cuStreamGetAttribute_ptsz,
     (CUstream stream, CUlaunchAttributeID which, CUlaunchAttributeValue *value),
     attribute(stream, (int)which, value, NULL, DEFAULT_STREAM))
PAIR(cuStreamSetAttribute, cuStreamSetAttribute_ptsz,
     (CUstream stream, CUlaunchAttributeID which, const CUlaunchAttributeValue *value),
     attribute(stream, (int)which, NULL, value, DEFAULT_STREAM))
static CUresult copy_attributes(CUstream to, CUstream from, int default_stream) {
    struct ctx *ctx;
    struct stream *a, *b;
    CUresult result = both(to, default_stream, &ctx, &a);
    if (result == CUDA_SUCCESS) result = both(from, default_stream, &ctx, &b);
    if (result) return result;
    a->attribute = b->attribute;
    a->priority = b->priority;
    return CUDA_SUCCESS;
}
PAIR(cuStreamCopyAttributes, cuStreamCopyAttributes_ptsz, (CUstream to, CUstream from),
     copy_attributes(to, from, DEFAULT_STREAM))

PAIR(cuStreamGetCtx, cuStreamGetCtx_ptsz, (CUstream stream, CUcontext *out), get_ctx(stream, DEFAULT_STREAM, out))
PAIR(cuStreamGetDevice, cuStreamGetDevice_ptsz, (CUstream stream, CUdevice *out),
     get_device(stream, DEFAULT_STREAM, out))

static CUresult get_ctx_v2(CUstream handle, int default_stream, CUcontext *ctx, CUgreenCtx *green) {
    CUresult result = get_ctx(handle, default_stream, ctx);
    if (result == CUDA_SUCCESS && green) {
        const struct stream *s = stream_of(fake_current, handle, default_stream);
        *green = (CUgreenCtx)(void *)s->green;
    }
    return result;
}
PAIR(cuStreamGetCtx_v2, cuStreamGetCtx_v2_ptsz, (CUstream stream, CUcontext *ctx, CUgreenCtx *green),
     get_ctx_v2(stream, DEFAULT_STREAM, ctx, green))

static CUresult attach_memory(CUdeviceptr at, size_t bytes, unsigned flags, CUstream handle, int default_stream) {
    struct ctx *ctx;
    struct stream *s;
    CUresult result = both(handle, default_stream, &ctx, &s);
    if (result) return result;
    uint64_t offset;
    fake_lock();
    struct alloc *a = memory_at(at, &offset);
    int fits = a && a->kind == HL_KIND_MANAGED && bytes <= a->bytes;
    fake_unlock();
    return fits && (flags == 1 || flags == 2 || flags == 4) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
PAIR(cuStreamAttachMemAsync, cuStreamAttachMemAsync_ptsz,
     (CUstream stream, CUdeviceptr at, size_t bytes, unsigned int flags),
     attach_memory(at, bytes, flags, stream, DEFAULT_STREAM))

/* ---- events ----------------------------------------------------------------------------------------------- */

CUresult event_of(CUevent handle, struct event **out) {
    CUresult result = need_init();
    if (result) return result;
    struct event *e = (struct event *)(void *)handle;
    if (!e) return CUDA_ERROR_INVALID_HANDLE;
    if (e->magic == MAGIC_DEAD) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (e->magic != MAGIC_EVENT) return CUDA_ERROR_INVALID_HANDLE;
    *out = e;
    return CUDA_SUCCESS;
}

struct event *event_new(struct ctx *ctx, unsigned flags) {
    struct event *e = calloc(1, sizeof *e);
    if (!e) return NULL;
    e->magic = MAGIC_EVENT;
    e->flags = flags;
    e->ctx = ctx;
    e->time = &e->own_time;
    e->place = -1;
    return e;
}

static CUresult event_create(CUevent *out, unsigned flags) {
    struct ctx *ctx;
    CUresult result = need_ctx(&ctx);
    if (result) return result;
    if (!out || flags > 7 || ((flags & CU_EVENT_INTERPROCESS) && !(flags & CU_EVENT_DISABLE_TIMING)))
        return CUDA_ERROR_INVALID_VALUE;
    struct event *e = event_new(ctx, flags);
    *out = (CUevent)(void *)e;
    return e ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
ENTRY(cuEventCreate, (CUevent * event, unsigned int flags), event_create(event, flags))

/* A dead event is refused, not a fault: its corpse stays for a while. Programs make events by the million, so the oldest
 * corpses go. */
static void bury_event(struct event *e) {
    static struct event *graves[1024];
    static unsigned next;
    fake_lock();
    moment_forget(e);
    e->magic = MAGIC_DEAD;
    struct event *oldest = graves[next % 1024];
    graves[next++ % 1024] = e;
    fake_unlock();
    free(oldest);
}

static CUresult event_destroy(CUevent handle) {
    struct event *e;
    CUresult result = event_of(handle, &e);
    if (result) return result;
    bury_event(e);
    return CUDA_SUCCESS;
}
ENTRY(cuEventDestroy, (CUevent event), event_destroy(event))
ENTRY(cuEventDestroy_v2, (CUevent event), event_destroy(event))

static int event_done(const struct event *e) {
    uint64_t moment = __atomic_load_n(e->time, __ATOMIC_ACQUIRE);
    return !moment || (moment_past(moment) && !(e->stream && e->stream->magic == MAGIC_STREAM &&
                                                __atomic_load_n(&e->stream->pending, __ATOMIC_ACQUIRE)));
}

CUresult event_mark(struct event *e, struct stream *s) {
    uint32_t device = s->ctx->device;
    uint64_t other = __atomic_load_n(&s->other, __ATOMIC_ACQUIRE), start = stream_start(s), moment;
    moment = hl_turns_mark(hl_node.base, hl_node.slot, device, __atomic_load_n(&s->end, __ATOMIC_ACQUIRE), hl_now_ns());
    if (is_own(s, moment)) stream_work(s, moment);
    if (__builtin_expect(start && start > moment_foreseen(moment), 0)) moment = other;
    e->stream = s;
    __atomic_store_n(e->time, moment, __ATOMIC_RELEASE);
    if (is_own(s, moment) && !(e->flags & CU_EVENT_DISABLE_TIMING)) moment_remember(e);
    return CUDA_SUCCESS;
}

static CUresult event_record(CUevent handle, CUstream stream, unsigned flags, int default_stream) {
    struct ctx *ctx;
    struct event *e;
    CUresult result = need_ctx(&ctx);
    if (result == CUDA_SUCCESS) result = event_of(handle, &e);
    if (result) return result;
    struct stream *s = stream_of(ctx, stream, default_stream);
    if (flags & ~(unsigned)CU_EVENT_RECORD_EXTERNAL) return CUDA_ERROR_INVALID_VALUE;
    if (capturing() || e->recorded) {
        struct capture *c;
        if ((result = stream_use(ctx, s, &c)) != CUDA_SUCCESS) return result;
        if (c && flags == CU_EVENT_RECORD_EXTERNAL) {
            struct node *n = capture_add(c, s, CU_GRAPH_NODE_TYPE_EVENT_RECORD);
            if (n) n->event = handle;
            return n ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
        }
        if ((result = capture_record(e, s)) != CUDA_SUCCESS || c) return result;
    }
    if (flags) return CUDA_ERROR_ILLEGAL_STATE; /* outside a capture */
    return event_mark(e, s);
}
PAIR(cuEventRecord, cuEventRecord_ptsz, (CUevent event, CUstream stream),
     event_record(event, stream, 0, DEFAULT_STREAM))
PAIR(cuEventRecordWithFlags, cuEventRecordWithFlags_ptsz, (CUevent event, CUstream stream, unsigned int flags),
     event_record(event, stream, flags, DEFAULT_STREAM))

static CUresult event_query(CUevent handle) {
    struct event *e;
    CUresult result = event_of(handle, &e);
    if (result) return result;
    if ((result = ctx_trouble(e->ctx)) != CUDA_SUCCESS) return result;
    if ((result = capture_asks(e)) != CUDA_SUCCESS) return result;
    return event_done(e) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
ENTRY(cuEventQuery, (CUevent event), event_query(event))

static CUresult event_synchronize(CUevent handle) {
    struct event *e;
    CUresult result = event_of(handle, &e);
    if (result) return result;
    if ((result = capture_asks(e)) != CUDA_SUCCESS) return result;
    moment_wait(__atomic_load_n(e->time, __ATOMIC_ACQUIRE));
    moment_settle();
    if (e->stream && e->stream->magic == MAGIC_STREAM) pending_wait(e->stream);
    pools_settle(e->ctx->device);
    return ctx_trouble(e->ctx);
}
ENTRY(cuEventSynchronize, (CUevent event), event_synchronize(event))

static CUresult event_elapsed(float *out, CUevent from, CUevent to) {
    struct event *a, *b;
    CUresult result = event_of(from, &a);
    if (result == CUDA_SUCCESS) result = event_of(to, &b);
    if (result) return result;
    if (!out || !*a->time || !*b->time || ((a->flags | b->flags) & CU_EVENT_DISABLE_TIMING))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!event_done(a) || !event_done(b)) return CUDA_ERROR_NOT_READY;
    *out = (float)((double)((int64_t)moment_time(b) - (int64_t)moment_time(a)) / 1e6);
    return CUDA_SUCCESS;
}
ENTRY(cuEventElapsedTime, (float *ms, CUevent from, CUevent to), event_elapsed(ms, from, to))
ENTRY(cuEventElapsedTime_v2, (float *ms, CUevent from, CUevent to), event_elapsed(ms, from, to))

void stream_after(struct stream *s, struct event *e) {
    uint64_t moment = __atomic_load_n(e->time, __ATOMIC_ACQUIRE);
    if (moment) stream_work(s, moment);
}

static CUresult wait_event(CUstream stream, CUevent event, unsigned flags, int default_stream) {
    struct ctx *ctx;
    struct event *e;
    CUresult result = need_ctx(&ctx);
    if (result == CUDA_SUCCESS) result = event_of(event, &e);
    if (result) return result;
    struct stream *s = stream_of(ctx, stream, default_stream);
    if (flags & ~(unsigned)CU_EVENT_WAIT_EXTERNAL) return CUDA_ERROR_INVALID_VALUE;
    if (flags && !s->capture) return CUDA_ERROR_ILLEGAL_STATE;
    if (flags) {
        struct node *n = capture_add(s->capture, s, CU_GRAPH_NODE_TYPE_WAIT_EVENT);
        if (n) n->event = event;
        return n ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    if ((capturing() || e->recorded) && capture_wait(s, e, &result)) return result;
    stream_after(s, e);
    return CUDA_SUCCESS;
}
PAIR(cuStreamWaitEvent, cuStreamWaitEvent_ptsz, (CUstream stream, CUevent event, unsigned int flags),
     wait_event(stream, event, flags, DEFAULT_STREAM))

/* All streams of a context: the event comes after what is queued in each, or each waits for it. */
CUresult context_event(struct ctx *ctx, CUevent event, int record) {
    struct event *e;
    CUresult result = event_of(event, &e);
    if (result) return result;
    if (e->ctx != ctx && record) return CUDA_ERROR_INVALID_HANDLE;
    if (capturing() && capture_unsafe()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    struct stream *latest = &ctx->legacy;
    fake_lock();
    for (struct stream *s = ctx->streams; s; s = s->next) {
        if (!record) stream_after(s, e);
        else if (s->end > latest->end || s->pending) latest = s;
    }
    fake_unlock();
    if (!record) stream_after(&ctx->legacy, e);
    return record ? event_mark(e, latest) : CUDA_SUCCESS;
}

static CUresult whole_context(CUcontext handle, CUevent event, int record) {
    struct ctx *ctx;
    CUresult result = need_init();
    if (result == CUDA_SUCCESS) result = graph_ctx(handle, &ctx);
    return result ? result : context_event(ctx, event, record);
}
ENTRY(cuCtxRecordEvent, (CUcontext ctx, CUevent event), whole_context(ctx, event, 1))
ENTRY(cuCtxWaitEvent, (CUcontext ctx, CUevent event), whole_context(ctx, event, 0))

/* ---- host functions --------------------------------------------------------------------------------------- */

struct job {
    CUhostFn function;
    CUstreamCallback callback;
    void *data;
    CUstream handle;
    struct stream *stream;
    uint64_t end, other; /* moments: what is before it on the stream */
    struct job *next;
};

static pthread_mutex_t job_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t job_cond = PTHREAD_COND_INITIALIZER;
static struct job *first_job, **last_job = &first_job;
static int helper_runs;

static void *helper(void *unused) {
    (void)unused;
    for (;;) {
        pthread_mutex_lock(&job_mutex);
        while (!first_job) pthread_cond_wait(&job_cond, &job_mutex);
        struct job *job = first_job;
        first_job = job->next;
        if (!first_job) last_job = &first_job;
        pthread_mutex_unlock(&job_mutex);
        moment_wait(job->end);
        moment_wait(job->other);
        if (job->function) job->function(job->data);
        else job->callback(job->handle, CUDA_SUCCESS, job->data);
        __atomic_fetch_sub(&job->stream->pending, 1, __ATOMIC_RELEASE);
        syscall(SYS_futex, &job->stream->pending, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
        free(job);
    }
    return NULL;
}

/* Threads of the driver take no signals of the program. */
static int start_thread(void *(*run)(void *), void *argument) {
    sigset_t all, old;
    pthread_t thread;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int code = pthread_create(&thread, NULL, run, argument);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (code == 0) pthread_detach(thread);
    return code;
}

static int start_helper(void) {
    int code = helper_runs ? 0 : start_thread(helper, NULL);
    helper_runs |= code == 0;
    return code;
}

struct block {
    struct stream *stream;
    int (*step)(void *);
    void *data;
};

static void *blocked(void *argument) {
    struct block b = *(struct block *)argument;
    free(argument);
    for (uint64_t pause = 1000; !b.step(b.data); pause = pause < 200000 ? pause * 2 : pause)
        hl_sleep_until(hl_now_ns() + pause);
    free(b.data);
    __atomic_fetch_sub(&b.stream->pending, 1, __ATOMIC_RELEASE);
    syscall(SYS_futex, &b.stream->pending, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
    return NULL;
}

/* A thread of its own, not the helper: what is waited for may come from any other stream. */
CUresult stream_block(struct stream *s, int (*step)(void *), void *data) {
    struct block *b = malloc(sizeof *b);
    if (!b) return CUDA_ERROR_OUT_OF_MEMORY;
    *b = (struct block){s, step, data};
    __atomic_fetch_add(&s->pending, 1, __ATOMIC_RELAXED);
    if (start_thread(blocked, b) == 0) return CUDA_SUCCESS;
    __atomic_fetch_sub(&s->pending, 1, __ATOMIC_RELAXED);
    free(b);
    return CUDA_ERROR_OPERATING_SYSTEM;
}

static CUresult queue_job(struct stream *s, CUstream handle, CUhostFn function, CUstreamCallback callback, void *data) {
    struct job *job = malloc(sizeof *job);
    if (!job) return CUDA_ERROR_OUT_OF_MEMORY;
    *job = (struct job){.function = function,
                        .callback = callback,
                        .data = data,
                        .handle = handle,
                        .stream = s,
                        .end = __atomic_load_n(&s->end, __ATOMIC_ACQUIRE),
                        .other = __atomic_load_n(&s->other, __ATOMIC_ACQUIRE)};
    pthread_mutex_lock(&job_mutex);
    int code = start_helper();
    if (!code) {
        __atomic_fetch_add(&s->pending, 1, __ATOMIC_RELAXED);
        *last_job = job;
        last_job = &job->next;
        pthread_cond_signal(&job_cond);
    }
    pthread_mutex_unlock(&job_mutex);
    if (code) free(job);
    return code ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}
static CUresult submit(CUstream handle, CUhostFn function, CUstreamCallback callback, void *data, int default_stream) {
    struct ctx *ctx;
    CUresult result = need_ctx(&ctx);
    if (result) return result;
    struct stream *s = stream_of(ctx, handle, default_stream);
    if (!function && !callback) return CUDA_ERROR_INVALID_VALUE;
    if (capturing()) {
        struct capture *c;
        if ((result = stream_use(ctx, s, &c)) != CUDA_SUCCESS) return result;
        if (c && callback) return capture_forbids(s);
        if (c) {
            struct node *n = capture_add(c, s, CU_GRAPH_NODE_TYPE_HOST);
            if (n) n->host = (CUDA_HOST_NODE_PARAMS){function, data};
            return n ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    return queue_job(s, handle, function, callback, data);
}

CUresult host_run(struct stream *s, CUhostFn function, void *data) { return queue_job(s, NULL, function, NULL, data); }
PAIR(cuLaunchHostFunc, cuLaunchHostFunc_ptsz, (CUstream stream, CUhostFn function, void *data),
     submit(stream, function, NULL, data, DEFAULT_STREAM))
static CUresult add_callback(CUstream stream, CUstreamCallback callback, void *data, unsigned flags,
                             int default_stream) {
    return flags && !need_init() ? CUDA_ERROR_INVALID_VALUE : submit(stream, NULL, callback, data, default_stream);
}
PAIR(cuStreamAddCallback, cuStreamAddCallback_ptsz,
     (CUstream stream, CUstreamCallback callback, void *data, unsigned int flags),
     add_callback(stream, callback, data, flags, DEFAULT_STREAM))
