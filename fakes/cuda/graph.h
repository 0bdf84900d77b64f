/* Graphs as the files of the driver share them: nodes and how each is carried out, and streams that capture.
 *
 * A graph belongs to one thread at a time, as documented: no lock here. A destroyed node or graph stays as a corpse. */
#ifndef HOOKLAB_GRAPH_H
#define HOOKLAB_GRAPH_H
#include "module.h"

struct shape {
    unsigned grid[3], block[3], shared;
};

struct node {
    uint32_t magic;
    CUgraphNodeType type;
    struct graph *graph;
    struct node *source; /* the node that this one is a copy of */
    struct node **needs; /* dependencies */
    unsigned need_count, need_room;
    unsigned mark; /* of a walk */
    int disabled;  /* in an executable graph */
    union {
        struct {
            CUfunction handle;
            struct ctx *ctx;
            struct shape shape;
            unsigned char *values; /* parameters, packed */
            void **pointers;       /* into values: what a query gives out */
            int cooperative, priority;
        } kernel;
        struct {
            CUDA_MEMCPY3D what;
            struct ctx *ctx;
        } copy;
        struct {
            CUDA_MEMSET_NODE_PARAMS what;
            struct ctx *ctx;
        } fill;
        CUDA_HOST_NODE_PARAMS host;
        struct graph *child;
        CUevent event;
        struct {
            CUDA_MEM_ALLOC_NODE_PARAMS what;
            struct graph_memory *memory;
        } alloc;
        CUdeviceptr free;
        struct {
            CUstreamBatchMemOpParams *list;
            unsigned count;
            struct ctx *ctx;
        } ops;
        struct {
            CUexternalSemaphore *list;
            void *params;
            size_t each; /* bytes of one of the params */
            unsigned count;
        } semaphores;
        struct {
            struct condition *of;
            int kind;
            unsigned count;
            struct graph **bodies;
        } condition;
    };
};

struct graph {
    uint32_t magic;
    struct node **nodes;
    unsigned count, room;
    struct held *held; /* user objects */
    unsigned execs;    /* living instantiations */
    unsigned loose;    /* handles of conditions that no node has */
};

struct graph *graph_new(void);
void graph_end(struct graph *graph);
/* NULL: no memory. The dependencies must be nodes of the graph. */
struct node *node_new(struct graph *graph, CUgraphNodeType type, struct node *const *needs, size_t count);
int node_need(struct node *node, struct node *other); /* 0, or -1: no memory */
struct graph *graph_copy(const struct graph *from);
CUresult graph_run(struct ctx *ctx, struct graph *graph, struct stream *stream); /* its nodes, one after another */
struct graph *graph_of(CUgraph handle);                                          /* NULL: none that lives */
CUresult graph_ctx(CUcontext handle, struct ctx **out);                          /* NULL means the current one */

/* The entries of a kind of node: adding one, asking and changing it, changing it in an executable graph. SET fills the
 * node `n` or says why not. */
CUresult node_add(CUgraphNode *out, CUgraph graph, const CUgraphNode *needs, size_t count, CUgraphNodeType type,
                  struct node **node);
CUresult node_added(CUgraphNode *out, struct node *node, CUresult result);
struct node *node_typed(CUgraphNode handle, CUgraphNodeType type);
CUresult exec_node(CUgraphExec exec, CUgraphNode original, int type, struct node **out);
#define NEED_NODE(N, HANDLE, TYPE)                                                                                     \
    CUresult result = need_init();                                                                                     \
    if (result) return result;                                                                                         \
    struct node *N = node_typed(HANDLE, TYPE);                                                                         \
    if (!N) return CUDA_ERROR_INVALID_VALUE
#define NODE_ADD(NAME, TYPE, PARAMETERS, SET)                                                                          \
    API NAME PARAMETERS;                                                                                               \
    API NAME PARAMETERS {                                                                                              \
        ENTER(NAME);                                                                                                   \
        struct node *n = NULL;                                                                                         \
        CUresult result = node_add(out, graph, needs, count, CU_GRAPH_NODE_TYPE_##TYPE, &n);                           \
        if (result == CUDA_SUCCESS) result = node_added(out, n, SET);                                                  \
        LEAVE(result, 0, result ? 0 : (uintptr_t)n);                                                                   \
    }
#define WHERE CUgraphNode *out, CUgraph graph, const CUgraphNode *needs, size_t count
#define NODE_SET(NAME, TYPE, PARAMETERS, ARGUMENTS, SET)                                                               \
    static CUresult change_##NAME PARAMETERS {                                                                         \
        NEED_NODE(n, node, CU_GRAPH_NODE_TYPE_##TYPE);                                                                 \
        return SET;                                                                                                    \
    }                                                                                                                  \
    ENTRY(NAME, PARAMETERS, change_##NAME ARGUMENTS)
#define NODE_GET(NAME, TYPE, OUT, VALUE)                                                                               \
    static CUresult get_##NAME(CUgraphNode node, OUT *out) {                                                           \
        NEED_NODE(n, node, CU_GRAPH_NODE_TYPE_##TYPE);                                                                 \
        if (!out) return CUDA_ERROR_INVALID_VALUE;                                                                     \
        *out = VALUE;                                                                                                  \
        return CUDA_SUCCESS;                                                                                           \
    }                                                                                                                  \
    ENTRY(NAME, (CUgraphNode node, OUT * out), get_##NAME(node, out))
#define NODE_EXEC(NAME, TYPE, PARAMETERS, ARGUMENTS, SET)                                                              \
    static CUresult exec_##NAME PARAMETERS {                                                                           \
        struct node *n;                                                                                                \
        CUresult result = exec_node(exec, node, CU_GRAPH_NODE_TYPE_##TYPE, &n);                                        \
        return result ? result : SET;                                                                                  \
    }                                                                                                                  \
    ENTRY(NAME, PARAMETERS, exec_##NAME ARGUMENTS)
#define WHICH CUgraphExec exec, CUgraphNode node

/* graph_nodes.c: nodes with parts of their own. */
CUresult parts_set(struct node *node, CUgraphNodeParams *params);
void parts_empty(struct node *node);
int parts_copy(struct node *to, const struct node *from);
CUresult parts_run(struct ctx *ctx, const struct node *node, struct stream *stream);

/* stream_memory.c, semaphore.c */
CUresult memory_ops_judge(const CUstreamBatchMemOpParams *ops, unsigned count, unsigned flags);
CUresult memory_ops_run(struct ctx *ctx, struct stream *stream, const CUstreamBatchMemOpParams *ops, unsigned count);
CUresult semaphores_judge(const CUexternalSemaphore *list, const void *params, unsigned count);
CUresult semaphores_run(struct stream *stream, const CUexternalSemaphore *list, unsigned count, int wait);

/* launch.c, copy.c, stream.c: checks that a call makes, and the work itself. */
CUresult kernel_prepare(struct ctx *ctx, struct node *node, CUfunction f, const struct shape *shape, void **params,
                        void **extra, int cooperative);
CUresult kernel_run(struct ctx *ctx, struct node *node, struct stream *stream);
CUresult copy_judge(const CUDA_MEMCPY3D *what);
CUresult copy_flat(struct ctx *ctx, struct stream *stream, CUdeviceptr to, CUdeviceptr from, size_t bytes);
CUresult copy_run(struct ctx *ctx, const CUDA_MEMCPY3D *what, struct stream *stream);
CUresult fill_judge(const CUDA_MEMSET_NODE_PARAMS *what);
CUresult fill_run(struct ctx *ctx, const CUDA_MEMSET_NODE_PARAMS *what, struct stream *stream);
CUresult host_run(struct stream *stream, CUhostFn function, void *data);
CUresult event_mark(struct event *event, struct stream *stream);
void stream_after(struct stream *stream, struct event *event);

/* graph_memory.c: memory whose addresses a node has from the start and whose bytes are taken when it runs. */
struct graph_memory *graph_memory_new(struct ctx *ctx, uint64_t bytes, CUdeviceptr *address);
void graph_memory_hold(struct graph_memory *memory);
void graph_memory_drop(struct graph_memory *memory);
CUresult graph_memory_take(struct graph_memory *memory);
int graph_memory_is_live(const struct graph_memory *memory);
CUresult graph_memory_free(CUdeviceptr address);

/* capture.c */
struct capture;
/* A call uses a stream while something captures (fake.captures): *out is the capture that gets the work, NULL none. */
CUresult stream_use(struct ctx *ctx, struct stream *stream, struct capture **out);
struct node *capture_add(struct capture *capture, struct stream *stream, CUgraphNodeType type); /* NULL: no memory */
void capture_undo(struct capture *capture, struct stream *stream, struct node *node);           /* the last one added */
CUresult capture_unsafe(void); /* a call that no capture of mode GLOBAL survives; 900 when one stands against it */
CUresult capture_forbids(struct stream *stream);  /* a wait or a query of a stream that captures: 900 */
CUresult capture_asks(const struct event *event); /* a query of or a wait for an event of a capture */
CUresult capture_record(struct event *event, struct stream *stream);
/* 1: the event is of a capture, and the stream belongs to it from now. */
int capture_wait(struct stream *stream, struct event *event, CUresult *result);

static inline int capturing(void) { return __builtin_expect(__atomic_load_n(&fake.captures, __ATOMIC_RELAXED), 0); }

/* graph_nodes.c: the same calls in a capture. */
CUresult memory_ops_capture(struct ctx *ctx, struct capture *capture, struct stream *stream,
                            const CUstreamBatchMemOpParams *ops, unsigned count);
CUresult semaphores_capture(struct capture *capture, struct stream *stream, const CUexternalSemaphore *list,
                            const void *params, size_t each, unsigned count, int wait);
#endif
