/* Semaphores of other APIs. An opaque descriptor is an eventfd here, the one thing of the kind that a process without a
 * graphics API can make: signalling adds one, waiting takes what there is. Other processes may hold the other end. */
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fake.h"
#include "graph.h"

enum { MAGIC_SEMAPHORE = 0x53454d31 };

struct semaphore {
    uint32_t magic;
    int fd; /* ours from the import on */
};

struct wait {
    unsigned count, next;
    CUexternalSemaphore list[];
};

static struct semaphore *semaphore_of(CUexternalSemaphore handle) {
    struct semaphore *s = (struct semaphore *)(void *)handle;
    return s && s->magic == MAGIC_SEMAPHORE ? s : NULL;
}

static int is_eventfd(int fd) {
    char path[40], target[40] = {0};
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return readlink(path, target, sizeof target - 1) > 0 && strcmp(target, "anon_inode:[eventfd]") == 0;
}

static CUresult import(CUexternalSemaphore *out, const CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC *desc) {
    struct ctx *ctx;
    CUresult result = need_ctx(&ctx);
    if (result) return result;
    if (!out || !desc || desc->flags) return CUDA_ERROR_INVALID_VALUE;
    if (desc->type != CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD)
        return desc->type > CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD &&
                       desc->type <= CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_WIN32
                   ? CUDA_ERROR_NOT_SUPPORTED
                   : CUDA_ERROR_INVALID_VALUE;
    if (!is_eventfd(desc->handle.fd)) return CUDA_ERROR_UNKNOWN; /* no semaphore of any API */
    struct semaphore *s = calloc(1, sizeof *s);
    if (!s) return CUDA_ERROR_OUT_OF_MEMORY;
    *s = (struct semaphore){MAGIC_SEMAPHORE, desc->handle.fd};
    *out = (CUexternalSemaphore)(void *)s;
    return CUDA_SUCCESS;
}
ENTRY(cuImportExternalSemaphore, (CUexternalSemaphore * semaphore, const CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC *desc),
      import(semaphore, desc))

static CUresult destroy(CUexternalSemaphore handle) {
    struct ctx *ctx;
    CUresult result = need_ctx(&ctx);
    if (result) return result;
    struct semaphore *s = semaphore_of(handle);
    if (!s) return CUDA_ERROR_INVALID_HANDLE;
    s->magic = MAGIC_DEAD;
    close(s->fd);
    return CUDA_SUCCESS;
}
ENTRY(cuDestroyExternalSemaphore, (CUexternalSemaphore semaphore), destroy(semaphore))

CUresult semaphores_judge(const CUexternalSemaphore *list, const void *params, unsigned count) {
    if (!list || !params || count == 0) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; i++)
        if (!semaphore_of(list[i])) return CUDA_ERROR_INVALID_HANDLE;
    return CUDA_SUCCESS;
}

/* 1: all were there, or the next one was destroyed meanwhile. */
static int step(void *data) {
    struct wait *w = data;
    for (; w->next < w->count; w->next++) {
        const struct semaphore *s = semaphore_of(w->list[w->next]);
        if (!s) return 1;
        struct pollfd ready = {.fd = s->fd, .events = POLLIN};
        uint64_t seen;
        if (poll(&ready, 1, 0) <= 0 || read(s->fd, &seen, sizeof seen) != sizeof seen) return 0;
    }
    return 1;
}

CUresult semaphores_run(struct stream *s, const CUexternalSemaphore *list, unsigned count, int wait) {
    stream_wait(s);
    if (!wait) {
        for (unsigned i = 0; i < count; i++) {
            const struct semaphore *one = semaphore_of(list[i]);
            uint64_t add = 1;
            if (!one) return CUDA_ERROR_INVALID_HANDLE;
            if (write(one->fd, &add, sizeof add) != sizeof add) return CUDA_ERROR_OPERATING_SYSTEM;
        }
        return CUDA_SUCCESS;
    }
    struct wait *w = malloc(sizeof *w + count * sizeof *list);
    if (!w) return CUDA_ERROR_OUT_OF_MEMORY;
    w->count = count;
    w->next = 0;
    memcpy(w->list, list, count * sizeof *list);
    CUresult result = CUDA_SUCCESS;
    if (!step(w) && (result = stream_block(s, step, w)) == CUDA_SUCCESS) return result;
    free(w);
    return result;
}

static CUresult queue(const CUexternalSemaphore *list, const void *params, size_t each, unsigned count, CUstream handle,
                      int wait, int default_stream) {
    struct ctx *ctx;
    CUresult result = need_ctx(&ctx);
    if (result) return result;
    struct stream *s = stream_of(ctx, handle, default_stream);
    if ((result = semaphores_judge(list, params, count)) != CUDA_SUCCESS) return result;
    if (capturing()) {
        struct capture *c;
        if ((result = stream_use(ctx, s, &c)) != CUDA_SUCCESS) return result;
        if (c) return semaphores_capture(c, s, list, params, each, count, wait);
    }
    return semaphores_run(s, list, count, wait);
}
PAIR(cuSignalExternalSemaphoresAsync, cuSignalExternalSemaphoresAsync_ptsz,
     (const CUexternalSemaphore *list, const CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS *params, unsigned int count,
      CUstream stream),
     queue(list, params, sizeof *params, count, stream, 0, DEFAULT_STREAM))
PAIR(cuWaitExternalSemaphoresAsync, cuWaitExternalSemaphoresAsync_ptsz,
     (const CUexternalSemaphore *list, const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS *params, unsigned int count,
      CUstream stream),
     queue(list, params, sizeof *params, count, stream, 1, DEFAULT_STREAM))
