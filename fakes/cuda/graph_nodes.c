/* Nodes with parts of their own: memory operations, semaphores of other APIs, conditions.
 *
 * What a node was given is copied; what a query gives out points into the node. The value of a condition is what its
 * handle was made with, because no kernel that would change it is executed here; so the body of a loop whose condition
 * holds is carried out once. */
#include "graph.h"

#include <stdlib.h>
#include <string.h>

enum { MAGIC_CONDITION = 0x434f4e31 };

struct condition {
    uint32_t magic;
    struct graph *graph;
    unsigned value; /* at every launch */
    int used;       /* by a node */
};

/* ---- memory operations --------------------------------------------------------------------------------------- */

static CUresult set_ops(struct node *n, struct ctx *ctx, const CUstreamBatchMemOpParams *op, unsigned count,
                        unsigned flags) {
    CUresult result = memory_ops_judge(op, count, flags);
    CUstreamBatchMemOpParams *copy = result ? NULL : malloc((count + 1) * sizeof *op);
    if (!copy) return result ? result : CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(copy, op, count * sizeof *op);
    free(n->ops.list);
    n->ops.list = copy;
    n->ops.count = count;
    n->ops.ctx = ctx;
    return CUDA_SUCCESS;
}

static CUresult set_batch(struct node *n, const CUDA_BATCH_MEM_OP_NODE_PARAMS_v1 *p) {
    struct ctx *ctx;
    if (!p) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = graph_ctx(p->ctx, &ctx);
    return result ? result : set_ops(n, ctx, p->paramArray, p->count, p->flags);
}

CUresult memory_ops_capture(struct ctx *ctx, struct capture *c, struct stream *s, const CUstreamBatchMemOpParams *op,
                            unsigned count) {
    struct node *n = capture_add(c, s, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP);
    CUresult result = n ? set_ops(n, ctx, op, count, 0) : CUDA_ERROR_OUT_OF_MEMORY;
    if (n && result) capture_undo(c, s, n);
    return result;
}

static CUDA_BATCH_MEM_OP_NODE_PARAMS_v1 batch_of(const struct node *n) {
    return (CUDA_BATCH_MEM_OP_NODE_PARAMS_v1){
        .ctx = (CUcontext)(void *)n->ops.ctx, .count = n->ops.count, .paramArray = n->ops.list};
}
NODE_ADD(cuGraphAddBatchMemOpNode, BATCH_MEM_OP, (WHERE, const CUDA_BATCH_MEM_OP_NODE_PARAMS_v1 *p), set_batch(n, p))
NODE_SET(cuGraphBatchMemOpNodeSetParams, BATCH_MEM_OP, (CUgraphNode node, const CUDA_BATCH_MEM_OP_NODE_PARAMS_v1 *p),
         (node, p), set_batch(n, p))
NODE_GET(cuGraphBatchMemOpNodeGetParams, BATCH_MEM_OP, CUDA_BATCH_MEM_OP_NODE_PARAMS_v1, batch_of(n))
NODE_EXEC(cuGraphExecBatchMemOpNodeSetParams, BATCH_MEM_OP, (WHICH, const CUDA_BATCH_MEM_OP_NODE_PARAMS_v1 *p),
          (exec, node, p), set_batch(n, p))

/* ---- semaphores ------------------------------------------------------------------------------------------------ */

static CUresult set_semaphores(struct node *n, const CUexternalSemaphore *list, const void *params, size_t each,
                               unsigned count) {
    CUresult result = semaphores_judge(list, params, count);
    if (result) return result;
    CUexternalSemaphore *handles = malloc(count * sizeof *list);
    void *copy = malloc(count * each);
    if (!handles || !copy) {
        free(handles);
        free(copy);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    memcpy(handles, list, count * sizeof *list);
    memcpy(copy, params, count * each);
    free(n->semaphores.list);
    free(n->semaphores.params);
    n->semaphores.list = handles;
    n->semaphores.params = copy;
    n->semaphores.each = each;
    n->semaphores.count = count;
    return CUDA_SUCCESS;
}

CUresult semaphores_capture(struct capture *c, struct stream *s, const CUexternalSemaphore *list, const void *params,
                            size_t each, unsigned count, int wait) {
    struct node *n = capture_add(c, s, wait ? CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT : CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL);
    CUresult result = n ? set_semaphores(n, list, params, each, count) : CUDA_ERROR_OUT_OF_MEMORY;
    if (n && result) capture_undo(c, s, n);
    return result;
}

#define SEMAPHORES(WORD, CAPITALS)                                                                                     \
    static CUresult set_##WORD(struct node *n, const CUDA_EXT_SEM_##CAPITALS##_NODE_PARAMS_v1 *p) {                    \
        return p ? set_semaphores(n, p->extSemArray, p->paramsArray, sizeof *p->paramsArray, p->numExtSems)            \
                 : CUDA_ERROR_INVALID_VALUE;                                                                           \
    }                                                                                                                  \
    static CUDA_EXT_SEM_##CAPITALS##_NODE_PARAMS_v1 get_##WORD(const struct node *n) {                                 \
        return (CUDA_EXT_SEM_##CAPITALS##_NODE_PARAMS_v1){n->semaphores.list, n->semaphores.params,                    \
                                                          n->semaphores.count};                                        \
    }                                                                                                                  \
    NODE_ADD(cuGraphAddExternalSemaphores##WORD##Node, EXT_SEMAS_##CAPITALS,                                           \
             (WHERE, const CUDA_EXT_SEM_##CAPITALS##_NODE_PARAMS_v1 *p), set_##WORD(n, p))                             \
    NODE_SET(cuGraphExternalSemaphores##WORD##NodeSetParams, EXT_SEMAS_##CAPITALS,                                     \
             (CUgraphNode node, const CUDA_EXT_SEM_##CAPITALS##_NODE_PARAMS_v1 *p), (node, p), set_##WORD(n, p))       \
    NODE_GET(cuGraphExternalSemaphores##WORD##NodeGetParams, EXT_SEMAS_##CAPITALS,                                     \
             CUDA_EXT_SEM_##CAPITALS##_NODE_PARAMS_v1, get_##WORD(n))                                                  \
    NODE_EXEC(cuGraphExecExternalSemaphores##WORD##NodeSetParams, EXT_SEMAS_##CAPITALS,                                \
              (WHICH, const CUDA_EXT_SEM_##CAPITALS##_NODE_PARAMS_v1 *p), (exec, node, p), set_##WORD(n, p))
SEMAPHORES(Signal, SIGNAL)
SEMAPHORES(Wait, WAIT)

/* ---- conditions -------------------------------------------------------------------------------------------------- */

static CUresult condition_create(CUgraphConditionalHandle *out, CUgraph handle, CUcontext owner, unsigned value,
                                 unsigned flags) {
    struct ctx *ctx;
    CUresult result = need_init();
    if (result) return result;
    struct graph *g = graph_of(handle);
    if (!g || !out || flags > CU_GRAPH_COND_ASSIGN_DEFAULT) return CUDA_ERROR_INVALID_VALUE;
    if ((result = graph_ctx(owner, &ctx)) != CUDA_SUCCESS) return result;
    struct condition *c = calloc(1, sizeof *c);
    if (!c) return CUDA_ERROR_OUT_OF_MEMORY;
    *c = (struct condition){MAGIC_CONDITION, g, flags & CU_GRAPH_COND_ASSIGN_DEFAULT ? value : 0, 0};
    g->loose++;
    *out = (CUgraphConditionalHandle)(uintptr_t)c;
    return CUDA_SUCCESS;
}
ENTRY(cuGraphConditionalHandleCreate,
      (CUgraphConditionalHandle * out, CUgraph graph, CUcontext ctx, unsigned int value, unsigned int flags),
      condition_create(out, graph, ctx, value, flags))

static CUresult set_condition(struct node *n, CUDA_CONDITIONAL_NODE_PARAMS *p) {
    struct ctx *ctx;
    struct condition *c = (struct condition *)(uintptr_t)p->handle;
    if (n->condition.bodies) return CUDA_ERROR_INVALID_VALUE; /* what a conditional node is cannot be changed */
    if (!c || c->magic != MAGIC_CONDITION || c->graph != n->graph || c->used) return CUDA_ERROR_INVALID_VALUE;
    unsigned most = p->type == CU_GRAPH_COND_TYPE_IF      ? 2
                    : p->type == CU_GRAPH_COND_TYPE_WHILE ? 1
                                                          : (unsigned)INT32_MAX;
    if ((int)p->type < 0 || (int)p->type > 2 || p->size == 0 || p->size > most) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = graph_ctx(p->ctx, &ctx);
    if (result) return result;
    struct graph **bodies = calloc(p->size, sizeof *bodies);
    for (unsigned i = 0; bodies && i < p->size; i++)
        if (!(bodies[i] = graph_new())) return CUDA_ERROR_OUT_OF_MEMORY;
    if (!bodies) return CUDA_ERROR_OUT_OF_MEMORY;
    c->used = 1;
    c->graph->loose--;
    n->condition.of = c;
    n->condition.kind = (int)p->type;
    n->condition.bodies = bodies;
    n->condition.count = p->size;
    p->phGraph_out = (CUgraph *)(void *)bodies;
    return CUDA_SUCCESS;
}

static CUresult run_condition(struct ctx *ctx, const struct node *n, struct stream *s) {
    unsigned value = n->condition.of->value, which = value;
    if (n->condition.kind == (int)CU_GRAPH_COND_TYPE_IF) which = value ? 0 : 1;
    else if (n->condition.kind == (int)CU_GRAPH_COND_TYPE_WHILE) which = value ? 0 : n->condition.count;
    return which < n->condition.count ? graph_run(ctx, n->condition.bodies[which], s) : CUDA_SUCCESS;
}

/* ---- all of them --------------------------------------------------------------------------------------------------- */

CUresult parts_set(struct node *n, CUgraphNodeParams *p) {
    switch ((int)p->type) {
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: {
        CUDA_BATCH_MEM_OP_NODE_PARAMS_v1 b = {
            .ctx = p->memOp.ctx, .count = p->memOp.count, .paramArray = p->memOp.paramArray, .flags = p->memOp.flags};
        return set_batch(n, &b);
    }
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL:
        return set_semaphores(n, p->extSemSignal.extSemArray, p->extSemSignal.paramsArray,
                              sizeof *p->extSemSignal.paramsArray, p->extSemSignal.numExtSems);
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT:
        return set_semaphores(n, p->extSemWait.extSemArray, p->extSemWait.paramsArray,
                              sizeof *p->extSemWait.paramsArray, p->extSemWait.numExtSems);
    case CU_GRAPH_NODE_TYPE_CONDITIONAL: return set_condition(n, &p->conditional);
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

void parts_empty(struct node *n) {
    if (n->type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP) {
        free(n->ops.list);
        n->ops.list = NULL;
    } else if (n->type == CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL || n->type == CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT) {
        free(n->semaphores.list);
        free(n->semaphores.params);
        n->semaphores.list = NULL;
        n->semaphores.params = NULL;
    } else if (n->type == CU_GRAPH_NODE_TYPE_CONDITIONAL) {
        for (unsigned i = 0; n->condition.bodies && i < n->condition.count; i++) graph_end(n->condition.bodies[i]);
        free(n->condition.bodies);
        n->condition.bodies = NULL;
    }
}

static void *copied(const void *from, size_t bytes) {
    void *to = malloc(bytes ? bytes : 1);
    if (to) memcpy(to, from, bytes);
    return to;
}

/* `to` has the bytes of `from`: its parts become its own. 0, or -1. */
int parts_copy(struct node *to, const struct node *from) {
    if (from->type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP) {
        to->ops.list = copied(from->ops.list, from->ops.count * sizeof *from->ops.list);
        return to->ops.list ? 0 : -1;
    }
    if (from->type == CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL || from->type == CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT) {
        to->semaphores.list = copied(from->semaphores.list, from->semaphores.count * sizeof *from->semaphores.list);
        to->semaphores.params = copied(from->semaphores.params, from->semaphores.count * from->semaphores.each);
        return to->semaphores.list && to->semaphores.params ? 0 : -1;
    }
    if (from->type != CU_GRAPH_NODE_TYPE_CONDITIONAL) return 0;
    to->condition.bodies = calloc(from->condition.count, sizeof *to->condition.bodies);
    if (!to->condition.bodies) return -1;
    for (unsigned i = 0; i < from->condition.count; i++)
        if (!(to->condition.bodies[i] = graph_copy(from->condition.bodies[i]))) {
            to->condition.count = i;
            return -1;
        }
    return 0;
}

CUresult parts_run(struct ctx *ctx, const struct node *n, struct stream *s) {
    switch ((int)n->type) {
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: return memory_ops_run(ctx, s, n->ops.list, n->ops.count);
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL: return semaphores_run(s, n->semaphores.list, n->semaphores.count, 0);
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT: return semaphores_run(s, n->semaphores.list, n->semaphores.count, 1);
    case CU_GRAPH_NODE_TYPE_CONDITIONAL: return run_condition(ctx, n, s);
    default: return CUDA_SUCCESS;
    }
}
