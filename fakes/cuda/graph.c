/* Graphs: nodes, edges, copies of graphs, executable graphs and their launch. A launch carries the nodes out one after
 * another on its stream, in an order that their dependencies allow; the device has one queue anyway. */
#include "graph.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAGIC_GRAPH = 0x47525031,
    MAGIC_NODE = 0x474e4431,
    MAGIC_EXEC = 0x47455831,
    MAGIC_OBJECT = 0x55534f31,
    INSTANTIATE_FLAGS = 15,
};

struct exec {
    uint32_t magic;
    unsigned long long flags;
    struct graph *graph, *from; /* from: what it is an instance of, a corpse perhaps */
    struct node **order;
};

struct object { /* user object */
    uint32_t magic, references;
    void *pointer;
    CUhostFn destroy;
};

struct held {
    struct object *object;
    unsigned references;
    struct held *next;
};

/* ---- building ----------------------------------------------------------------------------------------------- */

struct graph *graph_new(void) {
    struct graph *g = calloc(1, sizeof *g);
    if (g) g->magic = MAGIC_GRAPH;
    return g;
}

int node_need(struct node *n, struct node *other) {
    if (n->need_count == n->need_room) {
        unsigned more = n->need_room ? n->need_room * 2 : 4;
        struct node **grown = realloc(n->needs, more * sizeof *grown);
        if (!grown) return -1;
        n->needs = grown;
        n->need_room = more;
    }
    n->needs[n->need_count++] = other;
    return 0;
}

struct node *node_new(struct graph *g, CUgraphNodeType type, struct node *const *needs, size_t count) {
    if (g->count == g->room) {
        unsigned more = g->room ? g->room * 2 : 16;
        struct node **grown = realloc(g->nodes, more * sizeof *grown);
        if (!grown) return NULL;
        g->nodes = grown;
        g->room = more;
    }
    struct node *n = calloc(1, sizeof *n);
    if (!n) return NULL;
    n->magic = MAGIC_NODE;
    n->type = type;
    n->graph = g;
    for (size_t i = 0; i < count; i++)
        if (node_need(n, needs[i])) return NULL;
    g->nodes[g->count++] = n;
    return n;
}

static void release_object(struct object *o, unsigned count) {
    if (__atomic_sub_fetch(&o->references, count, __ATOMIC_ACQ_REL)) return;
    o->magic = MAGIC_DEAD;
    if (o->destroy) o->destroy(o->pointer);
}

static void node_empty(struct node *n) {
    if (n->type == CU_GRAPH_NODE_TYPE_KERNEL) {
        free(n->kernel.values);
        free(n->kernel.pointers);
        n->kernel.values = NULL;
        n->kernel.pointers = NULL;
    } else if (n->type == CU_GRAPH_NODE_TYPE_GRAPH) {
        if (n->child) graph_end(n->child);
        n->child = NULL;
    } else if (n->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
        if (n->alloc.memory) graph_memory_drop(n->alloc.memory);
        n->alloc.memory = NULL;
    } else {
        parts_empty(n);
    }
}

void graph_end(struct graph *g) {
    for (unsigned i = 0; i < g->count; i++) {
        node_empty(g->nodes[i]);
        g->nodes[i]->magic = MAGIC_DEAD;
    }
    while (g->held) {
        struct held *h = g->held;
        g->held = h->next;
        release_object(h->object, h->references);
        free(h);
    }
    g->count = 0;
    g->magic = MAGIC_DEAD;
}

static int copy_kernel(struct node *to, const struct node *from) {
    struct function *f;
    if (function_of(from->kernel.ctx, from->kernel.handle, &f)) return -1;
    const struct entry *e = f->entry;
    to->kernel.values = malloc(e->bytes ? e->bytes : 1);
    to->kernel.pointers = malloc((e->count ? e->count : 1) * sizeof *to->kernel.pointers);
    if (!to->kernel.values || !to->kernel.pointers) return -1;
    memcpy(to->kernel.values, from->kernel.values, e->bytes);
    for (uint32_t i = 0; i < e->count; i++) to->kernel.pointers[i] = to->kernel.values + e->parameter[i].offset;
    return 0;
}

/* What a node does, copied into a node of the same type. 0, or -1. */
static int node_fill(struct node *to, const struct node *from) {
    node_empty(to);
    to->disabled = from->disabled;
    memcpy(&to->kernel, &from->kernel, sizeof *from - offsetof(struct node, kernel));
    if (from->type == CU_GRAPH_NODE_TYPE_KERNEL) return copy_kernel(to, from);
    if (from->type == CU_GRAPH_NODE_TYPE_GRAPH) return (to->child = graph_copy(from->child)) ? 0 : -1;
    if (from->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) graph_memory_hold(to->alloc.memory);
    return parts_copy(to, from);
}

static unsigned index_of(const struct graph *g, const struct node *n) {
    unsigned i = 0;
    while (i < g->count && g->nodes[i] != n) i++;
    return i;
}

struct graph *graph_copy(const struct graph *from) {
    struct graph *g = graph_new();
    if (!g) return NULL;
    for (unsigned i = 0; i < from->count; i++) {
        struct node *n = node_new(g, from->nodes[i]->type, NULL, 0);
        if (!n) goto failed;
        n->source = from->nodes[i];
        if (node_fill(n, from->nodes[i])) goto failed;
    }
    for (unsigned i = 0; i < from->count; i++)
        for (unsigned k = 0; k < from->nodes[i]->need_count; k++)
            if (node_need(g->nodes[i], g->nodes[index_of(from, from->nodes[i]->needs[k])])) goto failed;
    return g;
failed:
    graph_end(g);
    return NULL;
}

struct graph *graph_of(CUgraph handle) {
    struct graph *g = (struct graph *)(void *)handle;
    return g && g->magic == MAGIC_GRAPH ? g : NULL;
}

static struct node *node_of(CUgraphNode handle) {
    struct node *n = (struct node *)(void *)handle;
    return n && n->magic == MAGIC_NODE ? n : NULL;
}

struct node *node_typed(CUgraphNode handle, CUgraphNodeType type) {
    struct node *n = node_of(handle);
    return n && n->type == type ? n : NULL;
}

#define NEED_GRAPH(G, HANDLE)                                                                                          \
    CUresult result = need_init();                                                                                     \
    if (result) return result;                                                                                         \
    struct graph *G = graph_of(HANDLE);                                                                                \
    if (!G) return CUDA_ERROR_INVALID_VALUE
#define NEED_ANY(N, HANDLE)                                                                                            \
    CUresult result = need_init();                                                                                     \
    if (result) return result;                                                                                         \
    struct node *N = node_of(HANDLE);                                                                                  \
    if (!N) return CUDA_ERROR_INVALID_VALUE

static CUresult graph_create(CUgraph *out, unsigned flags) {
    CUresult result = need_init();
    if (result) return result;
    if (!out || flags) return CUDA_ERROR_INVALID_VALUE;
    struct graph *g = graph_new();
    *out = (CUgraph)(void *)g;
    return g ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
ENTRY(cuGraphCreate, (CUgraph * graph, unsigned int flags), graph_create(graph, flags))

static CUresult graph_destroy(CUgraph handle) {
    NEED_GRAPH(g, handle);
    graph_end(g);
    return CUDA_SUCCESS;
}
ENTRY(cuGraphDestroy, (CUgraph graph), graph_destroy(graph))

/* A graph with memory nodes cannot be cloned and has one instance at a time, as documented. */
static int has_memory_nodes(const struct graph *g) {
    for (unsigned i = 0; i < g->count; i++)
        if (g->nodes[i]->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || g->nodes[i]->type == CU_GRAPH_NODE_TYPE_MEM_FREE)
            return 1;
    return 0;
}

static CUresult graph_clone(CUgraph *out, CUgraph handle) {
    NEED_GRAPH(g, handle);
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    if (has_memory_nodes(g)) return CUDA_ERROR_NOT_SUPPORTED;
    struct graph *copy = graph_copy(g);
    *out = (CUgraph)(void *)copy;
    return copy ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
ENTRY(cuGraphClone, (CUgraph * copy, CUgraph graph), graph_clone(copy, graph))

/* Makes a node with its dependencies judged; the caller says what it does, or takes it away again. */
CUresult node_add(CUgraphNode *out, CUgraph handle, const CUgraphNode *needs, size_t count, CUgraphNodeType type,
                  struct node **node) {
    NEED_GRAPH(g, handle);
    if (!out || (count && !needs)) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        struct node *n = node_of(needs[i]);
        if (!n || n->graph != g) return CUDA_ERROR_INVALID_VALUE;
        for (size_t k = 0; k < i; k++)
            if (needs[k] == needs[i]) return CUDA_ERROR_INVALID_VALUE;
    }
    *node = node_new(g, type, (struct node *const *)(const void *)needs, count);
    return *node ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult node_added(CUgraphNode *out, struct node *n, CUresult result) {
    if (result == CUDA_SUCCESS) {
        *out = (CUgraphNode)(void *)n;
        return result;
    }
    n->graph->count--;
    node_empty(n);
    n->magic = MAGIC_DEAD;
    return result;
}

/* ---- what nodes do ------------------------------------------------------------------------------------------- */

CUresult graph_ctx(CUcontext handle, struct ctx **out) {
    struct ctx *ctx = (struct ctx *)(void *)handle;
    if (!ctx) return need_ctx(out);
    *out = ctx;
    return ctx->magic == MAGIC_CTX ? ctx_trouble(ctx) : CUDA_ERROR_INVALID_CONTEXT;
}

static CUresult set_kernel(struct node *n, const CUDA_KERNEL_NODE_PARAMS_v2 *p) {
    struct ctx *ctx;
    if (!p) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = graph_ctx(p->ctx, &ctx);
    if (result) return result;
    struct shape shape = {
        {p->gridDimX, p->gridDimY, p->gridDimZ}, {p->blockDimX, p->blockDimY, p->blockDimZ}, p->sharedMemBytes};
    CUfunction f = p->func ? p->func : (CUfunction)(void *)p->kern;
    return kernel_prepare(ctx, n, f, &shape, p->kernelParams, p->extra, 0);
}

static CUresult set_copy(struct node *n, const CUDA_MEMCPY3D *p, CUcontext handle) {
    struct ctx *ctx;
    if (!p) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = graph_ctx(handle, &ctx);
    if (result == CUDA_SUCCESS) result = copy_judge(p);
    if (result) return result;
    n->copy.what = *p;
    n->copy.ctx = ctx;
    return CUDA_SUCCESS;
}

static CUresult set_fill(struct node *n, const CUDA_MEMSET_NODE_PARAMS *p, CUcontext handle) {
    struct ctx *ctx;
    if (!p) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = graph_ctx(handle, &ctx);
    if (result == CUDA_SUCCESS) result = fill_judge(p);
    if (result) return result;
    n->fill.what = *p;
    n->fill.ctx = ctx;
    return CUDA_SUCCESS;
}

static CUresult set_host(struct node *n, const CUDA_HOST_NODE_PARAMS *p) {
    if (!p || !p->fn) return CUDA_ERROR_INVALID_VALUE;
    n->host = *p;
    return CUDA_SUCCESS;
}

static CUresult set_child(struct node *n, CUgraph handle) {
    struct graph *child = graph_of(handle), *copy;
    if (!child || child == n->graph) return CUDA_ERROR_INVALID_VALUE;
    if (!(copy = graph_copy(child))) return CUDA_ERROR_OUT_OF_MEMORY;
    if (n->child) graph_end(n->child);
    n->child = copy;
    return CUDA_SUCCESS;
}

static CUresult set_event(struct node *n, CUevent event) {
    struct event *e;
    CUresult result = event ? event_of(event, &e) : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) n->event = event;
    return result;
}

static CUresult set_alloc(struct node *n, CUDA_MEM_ALLOC_NODE_PARAMS *p) {
    struct ctx *ctx;
    CUresult result = need_ctx(&ctx);
    if (result) return result;
    if (!p || p->bytesize == 0 || p->poolProps.allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
        p->poolProps.handleTypes != CU_MEM_HANDLE_TYPE_NONE ||
        p->poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    if (!visible_device(p->poolProps.location.id)) return CUDA_ERROR_INVALID_DEVICE;
    n->alloc.memory = graph_memory_new(ctx, p->bytesize, &p->dptr);
    if (!n->alloc.memory) return CUDA_ERROR_OUT_OF_MEMORY;
    n->alloc.what = *p;
    n->alloc.what.accessDescs = NULL;
    n->alloc.what.accessDescCount = 0;
    return CUDA_SUCCESS;
}

static CUresult set_free(struct node *n, CUdeviceptr at) {
    if (!at) return CUDA_ERROR_INVALID_VALUE;
    n->free = at;
    return CUDA_SUCCESS;
}

NODE_ADD(cuGraphAddKernelNode_v2, KERNEL, (WHERE, const CUDA_KERNEL_NODE_PARAMS_v2 *p), set_kernel(n, p))
NODE_ADD(cuGraphAddMemcpyNode, MEMCPY, (WHERE, const CUDA_MEMCPY3D *p, CUcontext ctx), set_copy(n, p, ctx))
NODE_ADD(cuGraphAddMemsetNode, MEMSET, (WHERE, const CUDA_MEMSET_NODE_PARAMS *p, CUcontext ctx), set_fill(n, p, ctx))
NODE_ADD(cuGraphAddHostNode, HOST, (WHERE, const CUDA_HOST_NODE_PARAMS *p), set_host(n, p))
NODE_ADD(cuGraphAddChildGraphNode, GRAPH, (WHERE, CUgraph child), set_child(n, child))
NODE_ADD(cuGraphAddEmptyNode, EMPTY, (WHERE), ((void)n, CUDA_SUCCESS))
NODE_ADD(cuGraphAddEventRecordNode, EVENT_RECORD, (WHERE, CUevent event), set_event(n, event))
NODE_ADD(cuGraphAddEventWaitNode, WAIT_EVENT, (WHERE, CUevent event), set_event(n, event))
NODE_ADD(cuGraphAddMemAllocNode, MEM_ALLOC, (WHERE, CUDA_MEM_ALLOC_NODE_PARAMS *p), set_alloc(n, p))
NODE_ADD(cuGraphAddMemFreeNode, MEM_FREE, (WHERE, CUdeviceptr at), set_free(n, at))

static CUDA_KERNEL_NODE_PARAMS_v2 newer(const CUDA_KERNEL_NODE_PARAMS_v1 *p) {
    return (CUDA_KERNEL_NODE_PARAMS_v2){.func = p->func,
                                        .gridDimX = p->gridDimX,
                                        .gridDimY = p->gridDimY,
                                        .gridDimZ = p->gridDimZ,
                                        .blockDimX = p->blockDimX,
                                        .blockDimY = p->blockDimY,
                                        .blockDimZ = p->blockDimZ,
                                        .sharedMemBytes = p->sharedMemBytes,
                                        .kernelParams = p->kernelParams,
                                        .extra = p->extra};
}
static CUresult set_kernel_v1(struct node *n, const CUDA_KERNEL_NODE_PARAMS_v1 *p) {
    if (!p) return CUDA_ERROR_INVALID_VALUE;
    CUDA_KERNEL_NODE_PARAMS_v2 more = newer(p);
    return set_kernel(n, &more);
}
NODE_ADD(cuGraphAddKernelNode, KERNEL, (WHERE, const CUDA_KERNEL_NODE_PARAMS_v1 *p), set_kernel_v1(n, p))

/* The general form: by the type inside the parameters. */
static CUresult set_any(struct node *n, CUgraphNodeParams *p) {
    switch ((int)p->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
        CUDA_KERNEL_NODE_PARAMS_v2 k;
        memcpy(&k, &p->kernel, sizeof k);
        return set_kernel(n, &k);
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY: return set_copy(n, &p->memcpy.copyParams, p->memcpy.copyCtx);
    case CU_GRAPH_NODE_TYPE_MEMSET: {
        CUDA_MEMSET_NODE_PARAMS m = {p->memset.dst,         p->memset.pitch, p->memset.value,
                                     p->memset.elementSize, p->memset.width, p->memset.height};
        return set_fill(n, &m, p->memset.ctx);
    }
    case CU_GRAPH_NODE_TYPE_HOST: {
        CUDA_HOST_NODE_PARAMS h = {p->host.fn, p->host.userData};
        return set_host(n, &h);
    }
    case CU_GRAPH_NODE_TYPE_GRAPH: return set_child(n, p->graph.graph);
    case CU_GRAPH_NODE_TYPE_EMPTY: return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT: return set_event(n, p->eventWait.event);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD: return set_event(n, p->eventRecord.event);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: {
        CUDA_MEM_ALLOC_NODE_PARAMS a;
        memcpy(&a, &p->alloc, sizeof a);
        CUresult result = set_alloc(n, &a);
        p->alloc.dptr = a.dptr;
        return result;
    }
    case CU_GRAPH_NODE_TYPE_MEM_FREE: return set_free(n, p->free.dptr);
    default: return parts_set(n, p);
    }
}

static CUresult add_any(CUgraphNode *out, CUgraph graph, const CUgraphNode *needs, size_t count, CUgraphNodeParams *p) {
    struct node *n = NULL;
    if (!p && !need_init()) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = node_add(out, graph, needs, count, p ? p->type : CU_GRAPH_NODE_TYPE_EMPTY, &n);
    return result ? result : node_added(out, n, set_any(n, p));
}
ENTRY(cuGraphAddNode, (WHERE, CUgraphNodeParams *p), add_any(out, graph, needs, count, p))
ENTRY(cuGraphAddNode_v2,
      (CUgraphNode * out, CUgraph graph, const CUgraphNode *needs, const CUgraphEdgeData *edges, size_t count,
       CUgraphNodeParams *p),
      ((void)edges, add_any(out, graph, needs, count, p)))

/* ---- asking and changing ------------------------------------------------------------------------------------- */

static CUresult get_kernel(CUgraphNode handle, CUDA_KERNEL_NODE_PARAMS_v2 *out) {
    NEED_NODE(n, handle, CU_GRAPH_NODE_TYPE_KERNEL);
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    const struct shape *s = &n->kernel.shape;
    *out = (CUDA_KERNEL_NODE_PARAMS_v2){.func = n->kernel.handle,
                                        .gridDimX = s->grid[0],
                                        .gridDimY = s->grid[1],
                                        .gridDimZ = s->grid[2],
                                        .blockDimX = s->block[0],
                                        .blockDimY = s->block[1],
                                        .blockDimZ = s->block[2],
                                        .sharedMemBytes = s->shared,
                                        .kernelParams = n->kernel.pointers,
                                        .ctx = (CUcontext)(void *)n->kernel.ctx};
    return CUDA_SUCCESS;
}
ENTRY(cuGraphKernelNodeGetParams_v2, (CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v2 *p), get_kernel(node, p))
static CUresult get_kernel_v1(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v1 *out) {
    CUDA_KERNEL_NODE_PARAMS_v2 more;
    CUresult result = get_kernel(node, out ? &more : NULL);
    if (result == CUDA_SUCCESS) memcpy(out, &more, sizeof *out);
    return result;
}
ENTRY(cuGraphKernelNodeGetParams, (CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v1 *p), get_kernel_v1(node, p))

NODE_SET(cuGraphKernelNodeSetParams_v2, KERNEL, (CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v2 *p), (node, p),
         set_kernel(n, p))
NODE_SET(cuGraphKernelNodeSetParams, KERNEL, (CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1 *p), (node, p),
         set_kernel_v1(n, p))
NODE_SET(cuGraphMemcpyNodeSetParams, MEMCPY, (CUgraphNode node, const CUDA_MEMCPY3D *p), (node, p),
         set_copy(n, p, (CUcontext)(void *)n->copy.ctx))
NODE_SET(cuGraphMemsetNodeSetParams, MEMSET, (CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *p), (node, p),
         set_fill(n, p, (CUcontext)(void *)n->fill.ctx))
NODE_SET(cuGraphHostNodeSetParams, HOST, (CUgraphNode node, const CUDA_HOST_NODE_PARAMS *p), (node, p), set_host(n, p))
NODE_SET(cuGraphEventRecordNodeSetEvent, EVENT_RECORD, (CUgraphNode node, CUevent event), (node, event),
         set_event(n, event))
NODE_SET(cuGraphEventWaitNodeSetEvent, WAIT_EVENT, (CUgraphNode node, CUevent event), (node, event),
         set_event(n, event))

NODE_GET(cuGraphMemcpyNodeGetParams, MEMCPY, CUDA_MEMCPY3D, n->copy.what)
NODE_GET(cuGraphMemsetNodeGetParams, MEMSET, CUDA_MEMSET_NODE_PARAMS, n->fill.what)
NODE_GET(cuGraphHostNodeGetParams, HOST, CUDA_HOST_NODE_PARAMS, n->host)
NODE_GET(cuGraphChildGraphNodeGetGraph, GRAPH, CUgraph, (CUgraph)(void *)n->child)
NODE_GET(cuGraphEventRecordNodeGetEvent, EVENT_RECORD, CUevent, n->event)
NODE_GET(cuGraphEventWaitNodeGetEvent, WAIT_EVENT, CUevent, n->event)
NODE_GET(cuGraphMemAllocNodeGetParams, MEM_ALLOC, CUDA_MEM_ALLOC_NODE_PARAMS, n->alloc.what)
NODE_GET(cuGraphMemFreeNodeGetParams, MEM_FREE, CUdeviceptr, n->free)

static CUresult set_node(CUgraphNode handle, CUgraphNodeParams *p) {
    NEED_ANY(n, handle);
    if (!p || p->type != n->type || n->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || n->type == CU_GRAPH_NODE_TYPE_MEM_FREE)
        return CUDA_ERROR_INVALID_VALUE;
    return set_any(n, p);
}
ENTRY(cuGraphNodeSetParams, (CUgraphNode node, CUgraphNodeParams *p), set_node(node, p))

static CUresult get_type(CUgraphNode handle, CUgraphNodeType *out) {
    NEED_ANY(n, handle);
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = n->type;
    return CUDA_SUCCESS;
}
ENTRY(cuGraphNodeGetType, (CUgraphNode node, CUgraphNodeType *type), get_type(node, type))

static CUresult find_in_clone(CUgraphNode *out, CUgraphNode original, CUgraph clone) {
    NEED_GRAPH(g, clone);
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < g->count; i++)
        if ((void *)g->nodes[i]->source == (void *)original && original) {
            *out = (CUgraphNode)(void *)g->nodes[i];
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_VALUE;
}
ENTRY(cuGraphNodeFindInClone, (CUgraphNode * out, CUgraphNode original, CUgraph clone),
      find_in_clone(out, original, clone))

/* A list of handles: with no room the number alone; with room for more than there are, NULL in the rest. */
struct list {
    CUgraphNode *first, *second;
    size_t room, count;
};

static void put(struct list *l, const struct node *first, const struct node *second) {
    if (l->count < l->room) {
        if (l->first) l->first[l->count] = (CUgraphNode)(uintptr_t)first;
        if (l->second) l->second[l->count] = (CUgraphNode)(uintptr_t)second;
    }
    l->count++;
}

static CUresult finish(struct list *l, size_t *count) {
    if (!l->first && !l->second) {
        *count = l->count;
        return CUDA_SUCCESS;
    }
    for (size_t i = l->count; i < l->room; i++) {
        if (l->first) l->first[i] = NULL;
        if (l->second) l->second[i] = NULL;
    }
    *count = l->count < l->room ? l->count : l->room;
    return CUDA_SUCCESS;
}

static CUresult get_nodes(CUgraph handle, CUgraphNode *nodes, size_t *count, int roots) {
    NEED_GRAPH(g, handle);
    if (!count) return CUDA_ERROR_INVALID_VALUE;
    struct list l = {nodes, NULL, *count, 0};
    for (unsigned i = 0; i < g->count; i++)
        if (!roots || g->nodes[i]->need_count == 0) put(&l, g->nodes[i], NULL);
    return finish(&l, count);
}
ENTRY(cuGraphGetNodes, (CUgraph graph, CUgraphNode *nodes, size_t *count), get_nodes(graph, nodes, count, 0))
ENTRY(cuGraphGetRootNodes, (CUgraph graph, CUgraphNode *nodes, size_t *count), get_nodes(graph, nodes, count, 1))

static void plain(CUgraphEdgeData *edges, size_t count) {
    if (edges) memset(edges, 0, count * sizeof *edges);
}

static CUresult get_edges(CUgraph handle, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *edges, size_t *count) {
    NEED_GRAPH(g, handle);
    if (!count || !from != !to) return CUDA_ERROR_INVALID_VALUE;
    struct list l = {from, to, *count, 0};
    plain(edges, from ? *count : 0);
    for (unsigned i = 0; i < g->count; i++)
        for (unsigned k = 0; k < g->nodes[i]->need_count; k++) put(&l, g->nodes[i]->needs[k], g->nodes[i]);
    return finish(&l, count);
}
ENTRY(cuGraphGetEdges, (CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count),
      get_edges(graph, from, to, NULL, count))
ENTRY(cuGraphGetEdges_v2, (CUgraph graph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *edges, size_t *count),
      get_edges(graph, from, to, edges, count))

static CUresult get_needs(CUgraphNode handle, CUgraphNode *nodes, CUgraphEdgeData *edges, size_t *count, int after) {
    NEED_ANY(n, handle);
    if (!count) return CUDA_ERROR_INVALID_VALUE;
    struct list l = {nodes, NULL, *count, 0};
    plain(edges, nodes ? *count : 0);
    for (unsigned i = 0; !after && i < n->need_count; i++) put(&l, n->needs[i], NULL);
    for (unsigned i = 0; after && i < n->graph->count; i++)
        for (unsigned k = 0; k < n->graph->nodes[i]->need_count; k++)
            if (n->graph->nodes[i]->needs[k] == n) put(&l, n->graph->nodes[i], NULL);
    return finish(&l, count);
}
ENTRY(cuGraphNodeGetDependencies, (CUgraphNode node, CUgraphNode *nodes, size_t *count),
      get_needs(node, nodes, NULL, count, 0))
ENTRY(cuGraphNodeGetDependencies_v2, (CUgraphNode node, CUgraphNode *nodes, CUgraphEdgeData *edges, size_t *count),
      get_needs(node, nodes, edges, count, 0))
ENTRY(cuGraphNodeGetDependentNodes, (CUgraphNode node, CUgraphNode *nodes, size_t *count),
      get_needs(node, nodes, NULL, count, 1))
ENTRY(cuGraphNodeGetDependentNodes_v2, (CUgraphNode node, CUgraphNode *nodes, CUgraphEdgeData *edges, size_t *count),
      get_needs(node, nodes, edges, count, 1))

static unsigned need_index(const struct node *n, const struct node *other) {
    unsigned i = 0;
    while (i < n->need_count && n->needs[i] != other) i++;
    return i;
}

static CUresult edges(CUgraph handle, const CUgraphNode *from, const CUgraphNode *to, size_t count, int remove) {
    NEED_GRAPH(g, handle);
    if (count && (!from || !to)) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        struct node *a = node_of(from[i]), *b = node_of(to[i]);
        if (!a || !b || a == b || a->graph != g || b->graph != g) return CUDA_ERROR_INVALID_VALUE;
        if ((need_index(b, a) < b->need_count) != remove) return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t i = 0; i < count; i++) {
        struct node *a = node_of(from[i]), *b = node_of(to[i]);
        if (!remove && node_need(b, a)) return CUDA_ERROR_OUT_OF_MEMORY;
        if (remove) b->needs[need_index(b, a)] = b->needs[--b->need_count];
    }
    return CUDA_SUCCESS;
}
#define EDGES(NAME, REMOVE)                                                                                            \
    ENTRY(NAME, (CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count),                         \
          edges(graph, from, to, count, REMOVE))                                                                       \
    ENTRY(NAME##_v2,                                                                                                   \
          (CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, const CUgraphEdgeData *data, size_t count),  \
          ((void)data, edges(graph, from, to, count, REMOVE)))
EDGES(cuGraphAddDependencies, 0)
EDGES(cuGraphRemoveDependencies, 1)

static CUresult destroy_node(CUgraphNode handle) {
    NEED_ANY(n, handle);
    struct graph *g = n->graph;
    if (n->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || n->type == CU_GRAPH_NODE_TYPE_MEM_FREE)
        return CUDA_ERROR_NOT_SUPPORTED; /* such graphs keep their nodes, as documented */
    for (unsigned i = 0; i < g->count; i++) {
        unsigned at = need_index(g->nodes[i], n);
        if (at < g->nodes[i]->need_count) g->nodes[i]->needs[at] = g->nodes[i]->needs[--g->nodes[i]->need_count];
    }
    unsigned at = index_of(g, n);
    memmove(g->nodes + at, g->nodes + at + 1, (g->count - at - 1) * sizeof *g->nodes);
    g->count--;
    node_empty(n);
    n->magic = MAGIC_DEAD;
    return CUDA_SUCCESS;
}
ENTRY(cuGraphDestroyNode, (CUgraphNode node), destroy_node(node))

static CUresult kernel_attribute(CUgraphNode handle, int which, CUlaunchAttributeValue *out,
                                 const CUlaunchAttributeValue *in) {
    NEED_NODE(n, handle, CU_GRAPH_NODE_TYPE_KERNEL);
    if (!out && !in) return CUDA_ERROR_INVALID_VALUE;
    int *value = which == CU_LAUNCH_ATTRIBUTE_COOPERATIVE ? &n->kernel.cooperative
                 : which == CU_LAUNCH_ATTRIBUTE_PRIORITY  ? &n->kernel.priority
                                                          : NULL;
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    if (out) memcpy(out, value, sizeof *value);
    else memcpy(value, in, sizeof *value);
    return CUDA_SUCCESS;
}
ENTRY(cuGraphKernelNodeGetAttribute, (CUgraphNode node, CUlaunchAttributeID which, CUlaunchAttributeValue *value),
      kernel_attribute(node, (int)which, value, NULL))
ENTRY(cuGraphKernelNodeSetAttribute, (CUgraphNode node, CUlaunchAttributeID which, const CUlaunchAttributeValue *value),
      kernel_attribute(node, (int)which, NULL, value))

static CUresult copy_attributes(CUgraphNode to, CUgraphNode from) {
    NEED_NODE(a, to, CU_GRAPH_NODE_TYPE_KERNEL);
    struct node *b = node_typed(from, CU_GRAPH_NODE_TYPE_KERNEL);
    if (!b) return CUDA_ERROR_INVALID_VALUE;
    a->kernel.cooperative = b->kernel.cooperative;
    a->kernel.priority = b->kernel.priority;
    return CUDA_SUCCESS;
}
ENTRY(cuGraphKernelNodeCopyAttributes, (CUgraphNode to, CUgraphNode from), copy_attributes(to, from))

static CUresult dot(CUgraph handle, const char *path) {
    static const char *const kinds[] = {"KERNEL",    "MEMCPY",   "MEMSET", "HOST",         "GRAPH",
                                        "EMPTY",     "WAIT",     "RECORD", "SEMAS_SIGNAL", "SEMAS_WAIT",
                                        "MEM_ALLOC", "MEM_FREE", "MEM_OP", "CONDITIONAL"};
    NEED_GRAPH(g, handle);
    FILE *file = path ? fopen(path, "we") : NULL;
    if (!file) return path ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_ERROR_INVALID_VALUE;
    fputs("digraph dot {\n", file);
    for (unsigned i = 0; i < g->count; i++) {
        unsigned kind = (unsigned)g->nodes[i]->type;
        fprintf(file, "  n%u [label=\"%u %s\"];\n", i, i, kind < sizeof kinds / sizeof *kinds ? kinds[kind] : "OTHER");
        for (unsigned k = 0; k < g->nodes[i]->need_count; k++)
            fprintf(file, "  n%u -> n%u;\n", index_of(g, g->nodes[i]->needs[k]), i);
    }
    fputs("}\n", file);
    return fclose(file) ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}
ENTRY(cuGraphDebugDotPrint, (CUgraph graph, const char *path, unsigned int flags), ((void)flags, dot(graph, path)))

/* ---- executable graphs --------------------------------------------------------------------------------------- */

/* Nodes in an order in which each comes after what it needs; NULL with *cyclic = 1 where there is none. */
static struct node **sorted(const struct graph *g, int *cyclic) {
    struct node **order = malloc((g->count + 1) * sizeof *order);
    unsigned done = 0, before;
    if (!order) return NULL;
    for (unsigned i = 0; i < g->count; i++) g->nodes[i]->mark = 0;
    do {
        before = done;
        for (unsigned i = 0; i < g->count; i++) {
            struct node *n = g->nodes[i];
            unsigned ready = 0;
            if (n->mark) continue;
            while (ready < n->need_count && n->needs[ready]->mark) ready++;
            if (ready < n->need_count) continue;
            n->mark = 1;
            order[done++] = n;
        }
    } while (done < g->count && done > before);
    *cyclic = done < g->count;
    if (!*cyclic) return order;
    free(order);
    return NULL;
}

static CUresult instantiate(CUgraphExec *out, CUgraph handle, unsigned long long flags) {
    NEED_GRAPH(g, handle);
    struct ctx *ctx;
    if (!out || (flags & ~(unsigned long long)INSTANTIATE_FLAGS) ||
        ((flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) &&
         (flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH)))
        return CUDA_ERROR_INVALID_VALUE;
    if ((result = need_ctx(&ctx)) != CUDA_SUCCESS) return result;
    if (g->loose) return CUDA_ERROR_INVALID_VALUE;
    if (g->execs && has_memory_nodes(g)) return CUDA_ERROR_NOT_SUPPORTED;
    struct exec *e = calloc(1, sizeof *e);
    if (!e) return CUDA_ERROR_OUT_OF_MEMORY;
    int cyclic = 0;
    e->graph = graph_copy(g);
    e->order = e->graph ? sorted(e->graph, &cyclic) : NULL;
    if (!e->order) {
        if (e->graph) graph_end(e->graph);
        free(e);
        return cyclic ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;
    }
    e->magic = MAGIC_EXEC;
    e->flags = flags;
    e->from = g;
    g->execs++;
    *out = (CUgraphExec)(void *)e;
    return CUDA_SUCCESS;
}
ENTRY(cuGraphInstantiateWithFlags, (CUgraphExec * exec, CUgraph graph, unsigned long long flags),
      instantiate(exec, graph, flags))
static CUresult instantiate_log(CUgraphExec *exec, CUgraph graph, CUgraphNode *bad, char *log, size_t bytes) {
    CUresult result = instantiate(exec, graph, 0);
    if (bad) *bad = NULL;
    if (log && bytes) log[0] = 0;
    return result;
}
ENTRY(cuGraphInstantiate, (CUgraphExec * exec, CUgraph graph, CUgraphNode *bad, char *log, size_t bytes),
      instantiate_log(exec, graph, bad, log, bytes))
ENTRY(cuGraphInstantiate_v2, (CUgraphExec * exec, CUgraph graph, CUgraphNode *bad, char *log, size_t bytes),
      instantiate_log(exec, graph, bad, log, bytes))
static CUresult instantiate_params(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *p) {
    if (!p) return need_init() ? CUDA_ERROR_NOT_INITIALIZED : CUDA_ERROR_INVALID_VALUE;
    CUresult result = instantiate(exec, graph, p->flags);
    p->hErrNode_out = NULL;
    p->result_out = result == CUDA_SUCCESS               ? CUDA_GRAPH_INSTANTIATE_SUCCESS
                    : result == CUDA_ERROR_INVALID_VALUE ? CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE
                                                         : CUDA_GRAPH_INSTANTIATE_ERROR;
    return result;
}
PAIR(cuGraphInstantiateWithParams, cuGraphInstantiateWithParams_ptsz,
     (CUgraphExec * exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *p), instantiate_params(exec, graph, p))

static CUresult exec_of(CUgraphExec handle, struct exec **out) {
    CUresult result = need_init();
    if (result) return result;
    *out = (struct exec *)(void *)handle;
    return *out && (*out)->magic == MAGIC_EXEC ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult exec_destroy(CUgraphExec handle) {
    struct exec *e;
    CUresult result = exec_of(handle, &e);
    if (result) return result;
    graph_end(e->graph);
    e->from->execs--;
    free(e->order);
    e->order = NULL;
    e->magic = MAGIC_DEAD;
    return CUDA_SUCCESS;
}
ENTRY(cuGraphExecDestroy, (CUgraphExec exec), exec_destroy(exec))

static CUresult exec_flags(CUgraphExec handle, cuuint64_t *out) {
    struct exec *e;
    CUresult result = exec_of(handle, &e);
    if (result) return result;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = e->flags;
    return CUDA_SUCCESS;
}
ENTRY(cuGraphExecGetFlags, (CUgraphExec exec, cuuint64_t *flags), exec_flags(exec, flags))

static CUresult run_nodes(struct ctx *ctx, struct node **order, unsigned count, struct stream *s);

static CUresult run_node(struct ctx *ctx, struct node *n, struct stream *s) {
    struct event *event;
    CUresult result;
    switch ((int)n->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: return kernel_run(ctx, n, s);
    case CU_GRAPH_NODE_TYPE_MEMCPY: return copy_run(ctx, &n->copy.what, s);
    case CU_GRAPH_NODE_TYPE_MEMSET: return fill_run(ctx, &n->fill.what, s);
    case CU_GRAPH_NODE_TYPE_HOST: return host_run(s, n->host.fn, n->host.userData);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        result = event_of(n->event, &event);
        return result ? result : event_mark(event, s);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
        result = event_of(n->event, &event);
        if (result == CUDA_SUCCESS) stream_after(s, event);
        return result;
    case CU_GRAPH_NODE_TYPE_GRAPH: return graph_run(ctx, n->child, s);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: return graph_memory_take(n->alloc.memory);
    case CU_GRAPH_NODE_TYPE_MEM_FREE: stream_wait(s); return graph_memory_free(n->free);
    default: return parts_run(ctx, n, s);
    }
}

static CUresult run_nodes(struct ctx *ctx, struct node **order, unsigned count, struct stream *s) {
    CUresult result = CUDA_SUCCESS;
    for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++)
        if (!order[i]->disabled) result = run_node(ctx, order[i], s);
    return result;
}

CUresult graph_run(struct ctx *ctx, struct graph *g, struct stream *s) {
    int cyclic;
    struct node **order = sorted(g, &cyclic);
    CUresult result = order ? run_nodes(ctx, order, g->count, s) : CUDA_ERROR_INVALID_VALUE;
    free(order);
    return result;
}

static CUresult launch(CUgraphExec handle, CUstream stream, int default_stream) {
    struct ctx *ctx;
    struct exec *e;
    CUresult result = need_ctx(&ctx);
    if (result == CUDA_SUCCESS) result = exec_of(handle, &e);
    if (result) return result;
    struct stream *s = stream_of(ctx, stream, default_stream);
    if (capturing()) {
        struct capture *c;
        if ((result = stream_use(ctx, s, &c)) != CUDA_SUCCESS) return result;
        if (c) {
            struct node *n = capture_add(c, s, CU_GRAPH_NODE_TYPE_GRAPH);
            n->child = graph_copy(e->graph);
            return n->child ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    for (unsigned i = 0; i < e->graph->count; i++) {
        struct node *n = e->graph->nodes[i];
        if (n->type != CU_GRAPH_NODE_TYPE_MEM_ALLOC || !graph_memory_is_live(n->alloc.memory)) continue;
        if (!(e->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH)) return CUDA_ERROR_INVALID_VALUE;
        (void)graph_memory_free(n->alloc.what.dptr);
    }
    if (physical(ctx->device)->latency_ns[HL_LATENCY_LAUNCH]) hl_latency(ctx->device, HL_LATENCY_LAUNCH);
    return run_nodes(ctx, e->order, e->graph->count, s);
}
PAIR(cuGraphLaunch, cuGraphLaunch_ptsz, (CUgraphExec exec, CUstream stream), launch(exec, stream, DEFAULT_STREAM))

static CUresult upload(CUgraphExec handle, CUstream stream, int default_stream) {
    struct ctx *ctx;
    struct exec *e;
    CUresult result = need_ctx(&ctx);
    if (result == CUDA_SUCCESS) result = exec_of(handle, &e);
    if (result) return result;
    (void)stream_of(ctx, stream, default_stream);
    return CUDA_SUCCESS;
}
PAIR(cuGraphUpload, cuGraphUpload_ptsz, (CUgraphExec exec, CUstream stream), upload(exec, stream, DEFAULT_STREAM))

/* The node of the executable graph that came from a node of the graph. */
CUresult exec_node(CUgraphExec handle, CUgraphNode original, int type, struct node **out) {
    struct exec *e;
    CUresult result = exec_of(handle, &e);
    if (result) return result;
    for (unsigned i = 0; i < e->graph->count; i++)
        if ((void *)e->graph->nodes[i]->source == (void *)original && original) {
            *out = e->graph->nodes[i];
            return type < 0 || (int)(*out)->type == type ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
        }
    return CUDA_ERROR_INVALID_VALUE;
}

NODE_EXEC(cuGraphExecKernelNodeSetParams_v2, KERNEL, (WHICH, const CUDA_KERNEL_NODE_PARAMS_v2 *p), (exec, node, p),
          set_kernel(n, p))
NODE_EXEC(cuGraphExecKernelNodeSetParams, KERNEL, (WHICH, const CUDA_KERNEL_NODE_PARAMS_v1 *p), (exec, node, p),
          set_kernel_v1(n, p))
NODE_EXEC(cuGraphExecMemcpyNodeSetParams, MEMCPY, (WHICH, const CUDA_MEMCPY3D *p, CUcontext ctx), (exec, node, p, ctx),
          set_copy(n, p, ctx))
NODE_EXEC(cuGraphExecMemsetNodeSetParams, MEMSET, (WHICH, const CUDA_MEMSET_NODE_PARAMS *p, CUcontext ctx),
          (exec, node, p, ctx), set_fill(n, p, ctx))
NODE_EXEC(cuGraphExecHostNodeSetParams, HOST, (WHICH, const CUDA_HOST_NODE_PARAMS *p), (exec, node, p), set_host(n, p))
NODE_EXEC(cuGraphExecChildGraphNodeSetParams, GRAPH, (WHICH, CUgraph child), (exec, node, child), set_child(n, child))
NODE_EXEC(cuGraphExecEventRecordNodeSetEvent, EVENT_RECORD, (WHICH, CUevent event), (exec, node, event),
          set_event(n, event))
NODE_EXEC(cuGraphExecEventWaitNodeSetEvent, WAIT_EVENT, (WHICH, CUevent event), (exec, node, event),
          set_event(n, event))

static CUresult exec_set(CUgraphExec exec, CUgraphNode node, CUgraphNodeParams *p) {
    struct node *n;
    CUresult result = exec_node(exec, node, -1, &n);
    if (result) return result;
    if (!p || p->type != n->type || n->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || n->type == CU_GRAPH_NODE_TYPE_MEM_FREE)
        return CUDA_ERROR_INVALID_VALUE;
    return set_any(n, p);
}
ENTRY(cuGraphExecNodeSetParams, (WHICH, CUgraphNodeParams *p), exec_set(exec, node, p))

/* Kernels, copies and fills can be switched off. */
static CUresult enabled(CUgraphExec exec, CUgraphNode node, unsigned *get, unsigned set) {
    struct node *n;
    CUresult result = exec_node(exec, node, -1, &n);
    if (result) return result;
    if (n->type > CU_GRAPH_NODE_TYPE_MEMSET) return CUDA_ERROR_INVALID_VALUE;
    if (get) *get = !n->disabled;
    else n->disabled = set == 0;
    return CUDA_SUCCESS;
}
ENTRY(cuGraphNodeSetEnabled, (WHICH, unsigned int enable), enabled(exec, node, NULL, enable))
ENTRY(cuGraphNodeGetEnabled, (WHICH, unsigned int *out), out ? enabled(exec, node, out, 0) : CUDA_ERROR_INVALID_VALUE)

static CUresult update(CUgraphExec handle, CUgraph graph, CUgraphNode *bad, CUgraphExecUpdateResult *why) {
    struct exec *e;
    CUresult result = exec_of(handle, &e);
    if (result) return result;
    struct graph *g = graph_of(graph), *mine = e->graph;
    if (!g || !why) return CUDA_ERROR_INVALID_VALUE;
    *why = CU_GRAPH_EXEC_UPDATE_SUCCESS;
    if (bad) *bad = NULL;
    if (g->count != mine->count) *why = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    for (unsigned i = 0; i < g->count && *why == CU_GRAPH_EXEC_UPDATE_SUCCESS; i++) {
        struct node *a = g->nodes[i], *b = mine->nodes[i];
        if (bad) *bad = (CUgraphNode)(void *)a;
        if (a->type != b->type) *why = CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
        else if (a->need_count != b->need_count) *why = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
        else if (a->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && a->alloc.memory != b->alloc.memory)
            *why = CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
        for (unsigned k = 0; k < a->need_count && *why == CU_GRAPH_EXEC_UPDATE_SUCCESS; k++)
            if (index_of(g, a->needs[k]) != index_of(mine, b->needs[k]))
                *why = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    }
    if (*why != CU_GRAPH_EXEC_UPDATE_SUCCESS) return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    if (bad) *bad = NULL;
    for (unsigned i = 0; i < g->count; i++) {
        if (node_fill(mine->nodes[i], g->nodes[i])) return CUDA_ERROR_OUT_OF_MEMORY;
        mine->nodes[i]->source = g->nodes[i];
    }
    return CUDA_SUCCESS;
}
ENTRY(cuGraphExecUpdate, (CUgraphExec exec, CUgraph graph, CUgraphNode *bad, CUgraphExecUpdateResult *why),
      update(exec, graph, bad, why))
ENTRY(cuGraphExecUpdate_v2, (CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info),
      info ? (info->errorFromNode = NULL, update(exec, graph, &info->errorNode, &info->result))
           : CUDA_ERROR_INVALID_VALUE)

/* ---- user objects --------------------------------------------------------------------------------------------- */

static CUresult object_create(CUuserObject *out, void *pointer, CUhostFn destroy, unsigned references, unsigned flags) {
    CUresult result = need_init();
    if (result) return result;
    if (!out || !destroy || references == 0 || references > INT32_MAX || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
        return CUDA_ERROR_INVALID_VALUE;
    struct object *o = calloc(1, sizeof *o);
    if (!o) return CUDA_ERROR_OUT_OF_MEMORY;
    *o = (struct object){MAGIC_OBJECT, references, pointer, destroy};
    *out = (CUuserObject)(void *)o;
    return CUDA_SUCCESS;
}
ENTRY(cuUserObjectCreate,
      (CUuserObject * object, void *pointer, CUhostFn destroy, unsigned int references, unsigned int flags),
      object_create(object, pointer, destroy, references, flags))

static struct object *object_of(CUuserObject handle) {
    struct object *o = (struct object *)(void *)handle;
    return o && o->magic == MAGIC_OBJECT ? o : NULL;
}

static CUresult object_change(CUuserObject handle, unsigned count, int release) {
    CUresult result = need_init();
    if (result) return result;
    struct object *o = object_of(handle);
    if (!o || count == 0 || count > INT32_MAX || (release && count > o->references)) return CUDA_ERROR_INVALID_VALUE;
    if (release) release_object(o, count);
    else __atomic_fetch_add(&o->references, count, __ATOMIC_RELAXED);
    return CUDA_SUCCESS;
}
ENTRY(cuUserObjectRetain, (CUuserObject object, unsigned int count), object_change(object, count, 0))
ENTRY(cuUserObjectRelease, (CUuserObject object, unsigned int count), object_change(object, count, 1))

static CUresult graph_retain(CUgraph graph, CUuserObject handle, unsigned count, unsigned flags) {
    NEED_GRAPH(g, graph);
    struct object *o = object_of(handle);
    if (!o || count == 0 || flags > CU_GRAPH_USER_OBJECT_MOVE) return CUDA_ERROR_INVALID_VALUE;
    struct held *h = g->held;
    while (h && h->object != o) h = h->next;
    if (!h) {
        if (!(h = calloc(1, sizeof *h))) return CUDA_ERROR_OUT_OF_MEMORY;
        h->object = o;
        h->next = g->held;
        g->held = h;
    }
    h->references += count;
    if (!(flags & CU_GRAPH_USER_OBJECT_MOVE)) __atomic_fetch_add(&o->references, count, __ATOMIC_RELAXED);
    return CUDA_SUCCESS;
}
ENTRY(cuGraphRetainUserObject, (CUgraph graph, CUuserObject object, unsigned int count, unsigned int flags),
      graph_retain(graph, object, count, flags))

static CUresult graph_release(CUgraph graph, CUuserObject handle, unsigned count) {
    NEED_GRAPH(g, graph);
    struct object *o = object_of(handle);
    struct held **link = &g->held;
    while (*link && (*link)->object != o) link = &(*link)->next;
    struct held *h = *link;
    if (!o || !h || count == 0 || count > h->references) return CUDA_ERROR_INVALID_VALUE;
    h->references -= count;
    if (h->references == 0) {
        *link = h->next;
        free(h);
    }
    release_object(o, count);
    return CUDA_SUCCESS;
}
ENTRY(cuGraphReleaseUserObject, (CUgraph graph, CUuserObject object, unsigned int count),
      graph_release(graph, object, count))
