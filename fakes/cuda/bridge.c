/* Kernels that are run elsewhere: `vadd` and `mail` become jobs that the node's server hands to a bridge, and so perhaps to
 * a real GPU. The caller waits for its job, so what it wrote is there before anything submitted later looks at it.
 *
 * One job holds 32 MiB; a larger launch is split into jobs that choose their own grid. An error that a real device would
 * only show later is left to the next synchronisation. */
#define _GNU_SOURCE
#include "bridge.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "history.h"
#include "hl_layout_history.h"
#include "node.h"

enum { PAGE = 4096 };

static uint64_t up(uint64_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }

static void record(const struct ctx *ctx, const struct hl_node_run *run, uint64_t ns) {
    if (hl_node.header->history_level == 0) return;
    struct hl_event event = {.event = HL_EVENT_BRIDGE,
                             .source = HL_SOURCE_FAKE,
                             .route = HL_ROUTE_NONE,
                             .device = (uint8_t)ctx->device,
                             .name = 0xFFFF,
                             .step = 0xFFFF,
                             .result = (int32_t)run->status,
                             .a = (uint64_t)run->opcode << 56 | run->n,
                             .b = run->kernel_ns,
                             .c = ns,
                             .extra = run->bad};
    hl_history_add(&event);
}

static CUresult one_job(struct ctx *ctx, struct hl_node_run *run, const struct bridge_data *data, uint64_t from) {
    uint64_t in = run->opcode == HL_RUN_VADD ? (uint64_t)run->n * 8 : 0;
    uint64_t out = run->opcode == HL_RUN_VADD ? (uint64_t)run->n * 4 : run->n;
    uint64_t bytes = HL_RUN_DATA + up(in) + up(out), start = hl_now_ns();
    int file = memfd_create("hooklab-run", MFD_CLOEXEC);
    if (file < 0) return CUDA_ERROR_OPERATING_SYSTEM;
    char *at =
        ftruncate(file, (off_t)bytes) ? MAP_FAILED : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (at == MAP_FAILED) {
        close(file);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    memcpy(at, run, sizeof *run);
    if (in) {
        memcpy(at + HL_RUN_DATA, data->a + from * 4, in / 2);
        memcpy(at + HL_RUN_DATA + in / 2, data->b + from * 4, in / 2);
    }
    int code = hl_node_run_elsewhere(file);
    memcpy(run, at, sizeof *run);
    if (code) { /* nobody answered: as an external device that failed */
        run->status = UINT32_MAX;
        run->result = CUDA_ERROR_EXTERNAL_DEVICE;
        run->deferred = 1;
    }
    if (run->result == CUDA_SUCCESS)
        memcpy(data->out + from * (run->opcode == HL_RUN_VADD ? 4 : 1), at + HL_RUN_DATA + up(in), out);
    munmap(at, bytes);
    close(file);
    record(ctx, run, hl_now_ns() - start);
    return run->deferred ? CUDA_SUCCESS : (CUresult)run->result;
}

CUresult bridge_run(struct ctx *ctx, uint32_t opcode, const struct shape *s, uint64_t n, const struct bridge_data *data,
                    uint64_t *kernel_ns) {
    uint64_t most = opcode == HL_RUN_VADD ? HL_RUN_VADD_MAX : HL_RUN_MAIL_MAX;
    *kernel_ns = 0;
    for (uint64_t from = 0; from < n; from += most) {
        struct hl_node_run run = {.opcode = opcode, .n = (uint32_t)(n - from < most ? n - from : most)};
        if (n <= most) {
            memcpy(run.grid, s->grid, sizeof run.grid);
            memcpy(run.block, s->block, sizeof run.block);
            run.shared = s->shared;
        }
        CUresult result = one_job(ctx, &run, data, from);
        if (result) return result;
        if (run.deferred) {
            __atomic_store_n(&ctx->sticky, run.result, __ATOMIC_RELEASE);
            return CUDA_SUCCESS;
        }
        *kernel_ns += run.kernel_ns;
    }
    return CUDA_SUCCESS;
}
