/* Streams that capture: work submitted to them becomes nodes of a graph. A capture begins on one stream, spreads to those
 * that wait for its events, and ends on the first. What would make it wait or wait for it breaks it. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "graph.h"

struct front { /* the nodes that whatever comes next in a stream depends on */
    struct node **node;
    unsigned count;
};

struct capture {
    uint64_t id;
    struct graph *graph;
    struct stream *origin;
    struct ctx *ctx;
    CUstreamCaptureMode mode;
    pthread_t thread;
    int broken, own_graph; /* own_graph: made by this capture */
    struct member {
        struct stream *stream;
        struct front front;
        struct member *next;
    } *members;
    struct capture *next;
};

struct recorded { /* what an event of a capture stands for */
    uint64_t id;
    struct front front;
};

static struct capture *captures; /* under the lock */
static uint64_t next_id = 1;
static __thread CUstreamCaptureMode thread_mode __attribute__((tls_model("initial-exec")));

static struct member *member_of(struct capture *c, const struct stream *s) {
    struct member *m = c->members;
    while (m && m->stream != s) m = m->next;
    return m;
}

static int front_add(struct front *f, struct node *const *nodes, unsigned count) {
    struct node **grown = realloc(f->node, (f->count + count + 1) * sizeof *grown);
    if (!grown) return -1;
    f->node = grown;
    for (unsigned i = 0; i < count; i++) {
        unsigned at = 0;
        while (at < f->count && f->node[at] != nodes[i]) at++;
        if (at == f->count) f->node[f->count++] = nodes[i];
    }
    return 0;
}

static struct member *join(struct capture *c, struct stream *s) {
    struct member *m = calloc(1, sizeof *m);
    if (!m) return NULL;
    m->stream = s;
    m->next = c->members;
    c->members = m;
    s->capture = c;
    return m;
}

static void break_up(struct capture *c) { c->broken = 1; }

/* The legacy stream waits for all streams that are not non-blocking: it cannot while one of them captures. */
static CUresult implicit(struct ctx *ctx, int breaks) {
    CUresult result = CUDA_SUCCESS;
    fake_lock();
    for (struct capture *c = captures; c; c = c->next)
        for (struct member *m = c->members; m && c->ctx == ctx; m = m->next)
            if (!(m->stream->flags & CU_STREAM_NON_BLOCKING)) {
                if (breaks) break_up(c);
                result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
            }
    fake_unlock();
    return result;
}

CUresult stream_use(struct ctx *ctx, struct stream *s, struct capture **out) {
    *out = s->capture;
    if (s->capture) return s->capture->broken ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
    return s == &ctx->legacy ? implicit(ctx, 1) : CUDA_SUCCESS;
}

struct node *capture_add(struct capture *c, struct stream *s, CUgraphNodeType type) {
    struct member *m = member_of(c, s);
    struct node *n = m ? node_new(c->graph, type, m->front.node, m->front.count) : NULL;
    if (!n || (!m->front.node && front_add(&m->front, NULL, 0))) return NULL;
    m->front.count = 0;
    return front_add(&m->front, &n, 1) ? NULL : n;
}

void capture_undo(struct capture *c, struct stream *s, struct node *n) {
    struct member *m = member_of(c, s);
    m->front.count = 0;
    (void)front_add(&m->front, n->needs, n->need_count);
    c->graph->count--;
    n->magic = MAGIC_DEAD;
}

CUresult capture_unsafe(void) {
    if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
    CUresult result = CUDA_SUCCESS;
    pthread_t self = pthread_self();
    fake_lock();
    for (struct capture *c = captures; c; c = c->next) {
        int ours = pthread_equal(c->thread, self) && c->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
        int theirs = c->mode == CU_STREAM_CAPTURE_MODE_GLOBAL && thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
        if (ours || theirs) {
            break_up(c);
            result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    }
    fake_unlock();
    return result;
}

CUresult capture_forbids(struct stream *s) {
    if (!s->capture) return CUDA_SUCCESS;
    break_up(s->capture);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

/* ---- events ------------------------------------------------------------------------------------------------- */

static struct capture *running(uint64_t id) {
    struct capture *c = captures;
    while (c && c->id != id) c = c->next;
    return c;
}

/* While the capture runs, as documented; when it is over, as measured. */
CUresult capture_asks(const struct event *e) {
    if (!e->recorded) return CUDA_SUCCESS;
    fake_lock();
    int runs = running(e->recorded->id) != NULL;
    fake_unlock();
    return runs ? CUDA_ERROR_CAPTURED_EVENT : CUDA_ERROR_INVALID_VALUE;
}

CUresult capture_record(struct event *e, struct stream *s) {
    if (!s->capture) {
        if (e->recorded) {
            free(e->recorded->front.node);
            free(e->recorded);
            e->recorded = NULL;
        }
        return CUDA_SUCCESS;
    }
    struct member *m = member_of(s->capture, s);
    if (!e->recorded && !(e->recorded = calloc(1, sizeof *e->recorded))) return CUDA_ERROR_OUT_OF_MEMORY;
    e->recorded->id = s->capture->id;
    e->recorded->front.count = 0;
    return front_add(&e->recorded->front, m->front.node, m->front.count) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

int capture_wait(struct stream *s, struct event *e, CUresult *result) {
    *result = CUDA_SUCCESS;
    if (!e->recorded) {
        if (!s->capture) return 0;
        break_up(s->capture); /* it would depend on work outside the capture */
        *result = CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
        return 1;
    }
    fake_lock();
    struct capture *c = running(e->recorded->id);
    struct member *m = c ? member_of(c, s) : NULL;
    if (!c || (s->capture && s->capture != c)) {
        if (s->capture) break_up(s->capture);
        *result = s->capture ? CUDA_ERROR_STREAM_CAPTURE_MERGE : CUDA_ERROR_CAPTURED_EVENT;
    } else if (s == &s->ctx->legacy) {
        break_up(c);
        *result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    } else if ((!m && !(m = join(c, s))) || front_add(&m->front, e->recorded->front.node, e->recorded->front.count)) {
        *result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    fake_unlock();
    return 1;
}

/* ---- beginning and ending ------------------------------------------------------------------------------------ */

static CUresult begin(CUstream handle, struct graph *into, const CUgraphNode *needs, size_t count, int mode,
                      int default_stream) {
    struct ctx *ctx;
    CUresult result = need_ctx(&ctx);
    if (result) return result;
    struct stream *s = stream_of(ctx, handle, default_stream);
    if ((unsigned)mode > CU_STREAM_CAPTURE_MODE_RELAXED || (count && !needs)) return CUDA_ERROR_INVALID_VALUE;
    if (s == &s->ctx->legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (s->capture) return CUDA_ERROR_ILLEGAL_STATE;
    struct capture *c = calloc(1, sizeof *c);
    struct member *m = c ? join(c, s) : NULL;
    if (m) c->graph = into ? into : graph_new();
    if (!m || !c->graph || front_add(&m->front, (struct node *const *)(const void *)needs, (unsigned)count)) {
        s->capture = NULL;
        free(m);
        free(c);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    c->origin = s;
    c->ctx = s->ctx;
    c->mode = (CUstreamCaptureMode)mode;
    c->thread = pthread_self();
    c->own_graph = !into;
    fake_lock();
    c->id = next_id++;
    c->next = captures;
    captures = c;
    fake_unlock();
    __atomic_fetch_add(&fake.captures, 1, __ATOMIC_RELAXED);
    return CUDA_SUCCESS;
}
PAIR(cuStreamBeginCapture, cuStreamBeginCapture_ptsz, (CUstream stream),
     begin(stream, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_GLOBAL, DEFAULT_STREAM))
PAIR(cuStreamBeginCapture_v2, cuStreamBeginCapture_v2_ptsz, (CUstream stream, CUstreamCaptureMode mode),
     begin(stream, NULL, NULL, 0, (int)mode, DEFAULT_STREAM))
static CUresult begin_to(CUstream stream, CUgraph handle, const CUgraphNode *needs, size_t count, int mode, int ds) {
    CUresult result = need_init();
    struct graph *g = (struct graph *)(void *)handle;
    if (result) return result;
    return g && g->magic != MAGIC_DEAD ? begin(stream, g, needs, count, mode, ds) : CUDA_ERROR_INVALID_VALUE;
}
PAIR(cuStreamBeginCaptureToGraph, cuStreamBeginCaptureToGraph_ptsz,
     (CUstream stream, CUgraph graph, const CUgraphNode *needs, const CUgraphEdgeData *edges, size_t count,
      CUstreamCaptureMode mode),
     ((void)edges, begin_to(stream, graph, needs, count, (int)mode, DEFAULT_STREAM)))

static void mark_before(struct node *n, unsigned mark) {
    if (n->mark == mark) return;
    n->mark = mark;
    for (unsigned i = 0; i < n->need_count; i++) mark_before(n->needs[i], mark);
}

/* Whether every stream of the capture has come back to the one where it began. */
static int joined(struct capture *c) {
    static unsigned marks = 0x40000000;
    unsigned mark = ++marks;
    struct member *home = member_of(c, c->origin);
    for (unsigned i = 0; i < home->front.count; i++) mark_before(home->front.node[i], mark);
    for (struct member *m = c->members; m; m = m->next)
        for (unsigned i = 0; i < m->front.count; i++)
            if (m->front.node[i]->mark != mark) return 0;
    return 1;
}

static void finish(struct capture *c) {
    fake_lock();
    struct capture **link = &captures;
    while (*link != c) link = &(*link)->next;
    *link = c->next;
    fake_unlock();
    for (struct member *m = c->members, *next; m; m = next) {
        next = m->next;
        m->stream->capture = NULL;
        free(m->front.node);
        free(m);
    }
    free(c);
    __atomic_fetch_sub(&fake.captures, 1, __ATOMIC_RELAXED);
}

static CUresult end(CUstream handle, CUgraph *out, int default_stream) {
    struct ctx *ctx;
    CUresult result = need_ctx(&ctx);
    if (result) return result;
    struct stream *s = stream_of(ctx, handle, default_stream);
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    struct capture *c = s->capture;
    *out = NULL;
    if (!c) return CUDA_ERROR_ILLEGAL_STATE;
    if (c->origin != s) {
        break_up(c);
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    }
    if (c->mode != CU_STREAM_CAPTURE_MODE_RELAXED && !pthread_equal(c->thread, pthread_self()))
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    result = c->broken   ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
             : joined(c) ? CUDA_SUCCESS
                         : CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    if (result == CUDA_SUCCESS) *out = (CUgraph)(void *)c->graph;
    else if (c->own_graph) graph_end(c->graph);
    finish(c);
    return result;
}
PAIR(cuStreamEndCapture, cuStreamEndCapture_ptsz, (CUstream stream, CUgraph *graph), end(stream, graph, DEFAULT_STREAM))

/* ---- asking --------------------------------------------------------------------------------------------------- */

static CUresult info(CUstream handle, int default_stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                     const CUgraphNode **nodes, const CUgraphEdgeData **edges, size_t *count) {
    struct ctx *ctx;
    CUresult result = need_ctx(&ctx);
    if (result) return result;
    struct stream *s = stream_of(ctx, handle, default_stream);
    if (!status) return CUDA_ERROR_INVALID_VALUE;
    struct capture *c = s->capture;
    if (s == &ctx->legacy && capturing() && (result = implicit(ctx, 0)) != CUDA_SUCCESS) return result;
    *status = !c          ? CU_STREAM_CAPTURE_STATUS_NONE
              : c->broken ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                          : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_SUCCESS; /* the rest is left alone, as measured */
    struct member *m = member_of(c, s);
    if (id) *id = c->id;
    if (graph) *graph = (CUgraph)(void *)c->graph;
    if (nodes) *nodes = (const CUgraphNode *)(const void *)m->front.node;
    if (edges) *edges = NULL;
    if (count) *count = m->front.count;
    return CUDA_SUCCESS;
}
PAIR(cuStreamIsCapturing, cuStreamIsCapturing_ptsz, (CUstream stream, CUstreamCaptureStatus *out),
     info(stream, DEFAULT_STREAM, out, NULL, NULL, NULL, NULL, NULL))
PAIR(cuStreamGetCaptureInfo, cuStreamGetCaptureInfo_ptsz, (CUstream stream, CUstreamCaptureStatus *out, cuuint64_t *id),
     info(stream, DEFAULT_STREAM, out, id, NULL, NULL, NULL, NULL))
PAIR(cuStreamGetCaptureInfo_v2, cuStreamGetCaptureInfo_v2_ptsz,
     (CUstream stream, CUstreamCaptureStatus *out, cuuint64_t *id, CUgraph *graph, const CUgraphNode **nodes,
      size_t *count),
     info(stream, DEFAULT_STREAM, out, id, graph, nodes, NULL, count))
PAIR(cuStreamGetCaptureInfo_v3, cuStreamGetCaptureInfo_v3_ptsz,
     (CUstream stream, CUstreamCaptureStatus *out, cuuint64_t *id, CUgraph *graph, const CUgraphNode **nodes,
      const CUgraphEdgeData **edges, size_t *count),
     info(stream, DEFAULT_STREAM, out, id, graph, nodes, edges, count))

static CUresult exchange_mode(CUstreamCaptureMode *mode) {
    struct ctx *ctx;
    CUresult result = need_ctx(&ctx);
    if (result) return result;
    if (!mode || (unsigned)*mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
    CUstreamCaptureMode old = thread_mode;
    thread_mode = *mode;
    *mode = old;
    return CUDA_SUCCESS;
}
ENTRY(cuThreadExchangeStreamCaptureMode, (CUstreamCaptureMode * mode), exchange_mode(mode))

static CUresult update(CUstream handle, CUgraphNode *nodes, size_t count, unsigned flags, int default_stream) {
    struct ctx *ctx;
    CUresult result = need_ctx(&ctx);
    if (result) return result;
    struct stream *s = stream_of(ctx, handle, default_stream);
    if (!s->capture) return CUDA_ERROR_ILLEGAL_STATE;
    if (s->capture->broken) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES || (count && !nodes)) return CUDA_ERROR_INVALID_VALUE;
    struct member *m = member_of(s->capture, s);
    for (size_t i = 0; i < count; i++)
        if (((struct node *)(void *)nodes[i])->graph != s->capture->graph) return CUDA_ERROR_INVALID_VALUE;
    if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES) m->front.count = 0;
    return front_add(&m->front, (struct node *const *)(void *)nodes, (unsigned)count) ? CUDA_ERROR_OUT_OF_MEMORY
                                                                                      : CUDA_SUCCESS;
}
PAIR(cuStreamUpdateCaptureDependencies, cuStreamUpdateCaptureDependencies_ptsz,
     (CUstream stream, CUgraphNode *nodes, size_t count, unsigned int flags),
     update(stream, nodes, count, flags, DEFAULT_STREAM))
PAIR(cuStreamUpdateCaptureDependencies_v2, cuStreamUpdateCaptureDependencies_v2_ptsz,
     (CUstream stream, CUgraphNode *nodes, const CUgraphEdgeData *edges, size_t count, unsigned int flags),
     ((void)edges, update(stream, nodes, count, flags, DEFAULT_STREAM)))
