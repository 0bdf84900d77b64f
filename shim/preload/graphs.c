/* Memory that graphs allocate: taken when they are launched, in steps of 32 MiB a device, and kept until a trim.
 *
 * Invariants: a process that never made an allocation node is not looked at. What an executable graph allocates is summed
 * when it is made; a launch that must take more than the device holds for graphs reserves it, and is refused where it does
 * not fit. What a launch took is booked by the device's meter (meters.h); it cannot be taken back. */
#include "meters.h"

#include "hl_layout_history.h"
#include "pacing.h"

#include <errno.h>
#include <stdlib.h>

uint32_t hl_graph_memory, hl_captures;
static const uint64_t STEP = 32 << 20;

static bool frame(void) { return HL_LIKELY(!hl_depth) && hl_ready() && hl_books_usable() && hl_enter(); }

static CUresult leave(CUresult result, int saved) {
    errno = saved;
    hl_leave();
    return result;
}

void hl_graphs_allocate(void) {
    if (__atomic_load_n(&hl_graph_memory, __ATOMIC_ACQUIRE)) return;
    for (int device = 0; device < hl_devices_count() && device < HL_DEVICES; device++)
        hl_meter_watch(HL_METER_GRAPH + (uint64_t)device, device);
    __atomic_store_n(&hl_graph_memory, 1, __ATOMIC_RELEASE);
}

/* ---- how graphs come to allocate ---- */

#define ADD(name, allocates, parameters, arguments)                                                                    \
    HL_EXPORT CUresult CUDAAPI name parameters {                                                                       \
        HL_BEGIN(name, CUDA_ERROR_NOT_FOUND);                                                                          \
        if (!frame()) return HL_PASS_ON(real arguments);                                                               \
        CUresult result = real arguments;                                                                              \
        int saved = errno;                                                                                             \
        if (result == CUDA_SUCCESS && (allocates)) hl_graphs_allocate();                                               \
        return leave(result, saved);                                                                                   \
    }
ADD(cuGraphAddMemAllocNode, true,
    (CUgraphNode * node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
     CUDA_MEM_ALLOC_NODE_PARAMS *params),
    (node, graph, dependencies, count, params))
ADD(cuGraphAddNode, params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC,
    (CUgraphNode * node, CUgraph graph, const CUgraphNode *dependencies, size_t count, CUgraphNodeParams *params),
    (node, graph, dependencies, count, params))
#define ADD_WITH_EDGES(name)                                                                                           \
    ADD(name, params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC,                                                            \
        (CUgraphNode * node, CUgraph graph, const CUgraphNode *dependencies, const CUgraphEdgeData *edges,             \
         size_t count, CUgraphNodeParams *params),                                                                     \
        (node, graph, dependencies, edges, count, params))
ADD_WITH_EDGES(cuGraphAddNode_v2)
ADD_WITH_EDGES(cuGraphAddNode_v3)

/* From the first capture on, stream-ordered allocations ask whether they are captured. */
#define CAPTURE(name, parameters, arguments)                                                                           \
    HL_EXPORT CUresult CUDAAPI name parameters {                                                                       \
        HL_BEGIN(name, CUDA_ERROR_NOT_FOUND);                                                                          \
        __atomic_store_n(&hl_captures, 1, __ATOMIC_RELAXED);                                                           \
        return HL_PASS_ON(real arguments);                                                                             \
    }
CAPTURE(cuStreamBeginCapture, (CUstream stream), (stream))
CAPTURE(cuStreamBeginCapture_ptsz, (CUstream stream), (stream))
CAPTURE(cuStreamBeginCapture_v2, (CUstream stream, CUstreamCaptureMode mode), (stream, mode))
CAPTURE(cuStreamBeginCapture_v2_ptsz, (CUstream stream, CUstreamCaptureMode mode), (stream, mode))
#define TO_GRAPH(name)                                                                                                 \
    CAPTURE(name,                                                                                                      \
            (CUstream stream, CUgraph graph, const CUgraphNode *dependencies, const CUgraphEdgeData *edges,            \
             size_t count, CUstreamCaptureMode mode),                                                                  \
            (stream, graph, dependencies, edges, count, mode))
TO_GRAPH(cuStreamBeginCaptureToGraph)
TO_GRAPH(cuStreamBeginCaptureToGraph_ptsz)

/* ---- what an executable graph allocates ---- */

static uint64_t key_of(CUgraphExec exec) { return (uint64_t)(uintptr_t)exec | HL_TAG_GRAPH; }

static uint64_t sum(CUgraph graph, int *device) {
    __typeof__(&cuGraphGetNodes) list = HL_REAL(cuGraphGetNodes);
    __typeof__(&cuGraphNodeGetType) type_of = HL_REAL(cuGraphNodeGetType);
    __typeof__(&cuGraphMemAllocNodeGetParams) ask = HL_REAL(cuGraphMemAllocNodeGetParams);
    __typeof__(&cuGraphChildGraphNodeGetGraph) child_of = HL_REAL(cuGraphChildGraphNodeGetGraph);
    size_t count = 0;
    uint64_t bytes = 0;
    if (!list || !type_of || !ask || !child_of || list(graph, NULL, &count) != CUDA_SUCCESS || !count) return 0;
    CUgraphNode *nodes = malloc(count * sizeof *nodes);
    if (!nodes || list(graph, nodes, &count) != CUDA_SUCCESS) count = 0;
    for (size_t i = 0; i < count; i++) {
        CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
        CUDA_MEM_ALLOC_NODE_PARAMS params;
        CUgraph child = NULL;
        if (type_of(nodes[i], &type) != CUDA_SUCCESS) continue;
        if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && ask(nodes[i], &params) == CUDA_SUCCESS) {
            bytes += params.bytesize;
            *device = params.poolProps.location.id;
        } else if (type == CU_GRAPH_NODE_TYPE_GRAPH && child_of(nodes[i], &child) == CUDA_SUCCESS) {
            bytes += sum(child, device);
        }
    }
    free(nodes);
    return bytes;
}

static void made(CUgraphExec exec, CUgraph graph) {
    int device = -1;
    uint64_t bytes = sum(graph, &device);
    if (bytes && device >= 0 && device < HL_DEVICES)
        hl_ledger_note(key_of(exec), HL_METER_GRAPH, device, HL_KIND_OTHER, (uint32_t)((bytes + 511) / 512));
}

#define INSTANTIATE(name, parameters, arguments)                                                                       \
    HL_EXPORT CUresult CUDAAPI name parameters {                                                                       \
        HL_BEGIN(name, CUDA_ERROR_NOT_FOUND);                                                                          \
        if (HL_LIKELY(!__atomic_load_n(&hl_graph_memory, __ATOMIC_ACQUIRE)) || !frame())                               \
            return HL_PASS_ON(real arguments);                                                                         \
        CUresult result = real arguments;                                                                              \
        int saved = errno;                                                                                             \
        if (result == CUDA_SUCCESS) made(*exec, graph);                                                                \
        return leave(result, saved);                                                                                   \
    }
INSTANTIATE(cuGraphInstantiate, (CUgraphExec * exec, CUgraph graph, CUgraphNode *node, char *log, size_t size),
            (exec, graph, node, log, size))
INSTANTIATE(cuGraphInstantiate_v2, (CUgraphExec * exec, CUgraph graph, CUgraphNode *node, char *log, size_t size),
            (exec, graph, node, log, size))
INSTANTIATE(cuGraphInstantiateWithFlags, (CUgraphExec * exec, CUgraph graph, unsigned long long flags),
            (exec, graph, flags))
INSTANTIATE(cuGraphInstantiateWithParams, (CUgraphExec * exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params),
            (exec, graph, params))
INSTANTIATE(cuGraphInstantiateWithParams_ptsz,
            (CUgraphExec * exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params), (exec, graph, params))

HL_EXPORT CUresult CUDAAPI cuGraphExecDestroy(CUgraphExec exec) {
    HL_BEGIN(cuGraphExecDestroy, CUDA_ERROR_NOT_FOUND);
    if (HL_LIKELY(!__atomic_load_n(&hl_graph_memory, __ATOMIC_ACQUIRE)) || !frame()) return HL_PASS_ON(real(exec));
    struct hl_entry note;
    int known = hl_ledger_detach(key_of(exec), &note);
    CUresult result = real(exec);
    int saved = errno;
    if (known && result != CUDA_SUCCESS) hl_ledger_reattach(&note);
    return leave(result, saved);
}

/* ---- launches (inside the frame of launch.c) ---- */

CUresult hl_graph_launch(CUresult (*real)(CUgraphExec, CUstream), CUgraphExec exec, CUstream stream) {
    struct hl_entry note;
    struct hl_meter *meter = NULL;
    struct hl_ticket ticket;
    CUresult result = CUDA_SUCCESS;
    int saved = errno;
    enum hl_admission admission = HL_PASS;
    if (!__atomic_load_n(&hl_graph_memory, __ATOMIC_ACQUIRE)) return real(exec, stream);
    if (hl_books_usable() && hl_ledger_find(key_of(exec), &note))
        meter = hl_meter_find(HL_METER_GRAPH + (uint64_t)note.device);
    if (meter) {
        uint64_t wanted = ((uint64_t)note.count * 512 + STEP - 1) / STEP * STEP;
        uint64_t held = __atomic_load_n(&meter->booked, __ATOMIC_RELAXED);
        hl_meter_flies(meter, 1);
        admission = hl_charge_begin(&ticket, note.device, held >= wanted ? 0 : wanted, HL_KIND_ASYNC, &result);
        if (admission == HL_REFUSED && held)
            admission = hl_charge_begin(&ticket, note.device, wanted - held, HL_KIND_ASYNC, &result);
    }
    errno = saved;
    if (admission != HL_REFUSED) result = real(exec, stream);
    saved = errno;
    if (admission == HL_ADMITTED) {
        if (result != CUDA_SUCCESS) hl_ledger_cancel(&ticket);
        else hl_meter_settle(meter, &ticket);
    }
    if (meter) hl_meter_flies(meter, -1);
    if (result == CUDA_SUCCESS) hl_meters_look();
    errno = saved;
    return result;
}

HL_EXPORT CUresult CUDAAPI cuDeviceGraphMemTrim(CUdevice device) {
    HL_BEGIN(cuDeviceGraphMemTrim, CUDA_ERROR_NOT_FOUND);
    if (HL_LIKELY(!__atomic_load_n(&hl_graph_memory, __ATOMIC_ACQUIRE)) || !frame()) return HL_PASS_ON(real(device));
    CUresult result = real(device);
    int saved = errno;
    if (result == CUDA_SUCCESS) hl_meters_look();
    return leave(result, saved);
}
