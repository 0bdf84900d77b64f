/* Attributes of core dumps, of the process and of a context. They are kept and handed back; no dump is ever written, because
 * no kernel faults. What the environment says at the start wins for good, as documented. */
#include "fake.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TEXT = 1024 };

struct dump {
    uint64_t ctx; /* id; 0 the process */
    bool flag[CU_COREDUMP_MAX];
    unsigned generation;
    char file[TEXT], pipe[TEXT];
    struct dump *next;
};

static struct dump *dumps; /* under the lock; the process's is the last */

static const char *const variables[CU_COREDUMP_MAX] = {
    [CU_COREDUMP_ENABLE_ON_EXCEPTION] = "CUDA_ENABLE_COREDUMP_ON_EXCEPTION",
    [CU_COREDUMP_TRIGGER_HOST] = "CUDA_ENABLE_CPU_COREDUMP_ON_EXCEPTION",
    [CU_COREDUMP_LIGHTWEIGHT] = "CUDA_ENABLE_LIGHTWEIGHT_COREDUMP",
    [CU_COREDUMP_ENABLE_USER_TRIGGER] = "CUDA_ENABLE_USER_TRIGGERED_COREDUMP",
    [CU_COREDUMP_FILE] = "CUDA_COREDUMP_FILE",
    [CU_COREDUMP_PIPE] = "CUDA_COREDUMP_PIPE",
};

static int is_text(int which) { return which == CU_COREDUMP_FILE || which == CU_COREDUMP_PIPE; }

static size_t bytes_of(int which) {
    return is_text(which) ? TEXT : which == CU_COREDUMP_GENERATION_FLAGS ? sizeof(unsigned) : sizeof(bool);
}

static char *text_of(struct dump *d, int which) { return which == CU_COREDUMP_FILE ? d->file : d->pipe; }

static void text_set(char *to, const char *from) { /* the rest is zeros */
    size_t length = strnlen(from, TEXT - 1);
    memset(to, 0, TEXT);
    memcpy(to, from, length);
}

static void from_environment(struct dump *d) {
    for (int which = 1; which < CU_COREDUMP_MAX; which++) {
        const char *said = variables[which] ? getenv(variables[which]) : NULL;
        if (!said || !*said) continue;
        if (is_text(which)) text_set(text_of(d, which), said);
        else d->flag[which] = *said == '1';
    }
}

/* Under the lock: the values of a context, or of the process (0), which a context starts with. NULL: no memory. */
static struct dump *dump_of(const struct ctx *ctx) {
    uint64_t id = ctx ? ctx->id + 1 : 0;
    struct dump *d = dumps;
    while (d && d->ctx != id) d = d->next;
    if (d) return d;
    const struct dump *whole = id ? dump_of(NULL) : NULL;
    if ((id && !whole) || !(d = calloc(1, sizeof *d))) return NULL;
    if (whole) {
        *d = *whole;
        d->flag[CU_COREDUMP_ENABLE_ON_EXCEPTION] |= (ctx->flags & CU_CTX_USER_COREDUMP_ENABLE) != 0;
    } else {
        char host[256] = "";
        (void)gethostname(host, sizeof host - 1);
        d->flag[CU_COREDUMP_TRIGGER_HOST] = true;
        snprintf(d->file, sizeof d->file, "core.cuda.%s.%d", host, (int)getpid());
        snprintf(d->pipe, sizeof d->pipe, "corepipe.cuda.%s.%d", host, (int)getpid());
        from_environment(d);
    }
    d->ctx = id;
    d->next = dumps;
    dumps = d;
    return d;
}

static CUresult scope(int global, struct ctx **ctx) {
    *ctx = NULL;
    return global ? CUDA_SUCCESS : need_ctx(ctx); /* the process's may be asked before cuInit, measured */
}

static CUresult get(int global, int which, void *value, size_t *size) {
    struct ctx *ctx;
    CUresult result = scope(global, &ctx);
    if (result) return result;
    if (!size || which < 1 || which >= CU_COREDUMP_MAX) return CUDA_ERROR_INVALID_VALUE;
    if (!value) {
        *size = bytes_of(which);
        return CUDA_SUCCESS;
    }
    fake_lock();
    struct dump *d = dump_of(ctx);
    const char *text = d && is_text(which) ? text_of(d, which) : NULL;
    size_t needed = bytes_of(which); /* a text fills what there is of its room, measured */
    result = !d ? CUDA_ERROR_OUT_OF_MEMORY : !text && *size < needed ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS) {
        if (text) memcpy(value, text, *size < needed ? *size : needed);
        else if (which == CU_COREDUMP_GENERATION_FLAGS) memcpy(value, &d->generation, sizeof d->generation);
        else memcpy(value, &d->flag[which], sizeof d->flag[which]);
    }
    fake_unlock();
    return result;
}

static void change(struct dump *d, int which, const void *value, size_t size) {
    if (is_text(which)) {
        char text[TEXT] = "";
        memcpy(text, value, size < TEXT ? size : TEXT - 1);
        text_set(text_of(d, which), text);
    } else if (which == CU_COREDUMP_GENERATION_FLAGS) { /* the two deprecated flags say the same by other means */
        memcpy(&d->generation, value, sizeof d->generation);
        d->flag[CU_COREDUMP_LIGHTWEIGHT] =
            (d->generation & CU_COREDUMP_LIGHTWEIGHT_FLAGS) == CU_COREDUMP_LIGHTWEIGHT_FLAGS;
        d->flag[CU_COREDUMP_TRIGGER_HOST] = !(d->generation & CU_COREDUMP_SKIP_ABORT);
    } else {
        d->flag[which] = *(const unsigned char *)value != 0;
    }
    from_environment(d);
}

static CUresult set(int global, int which, const void *value, size_t *size) {
    struct ctx *ctx;
    CUresult result = scope(global, &ctx);
    if (result) return result;
    if (!size || which < 1 || which >= CU_COREDUMP_MAX) return CUDA_ERROR_INVALID_VALUE;
    if (!global && (which == CU_COREDUMP_ENABLE_USER_TRIGGER || which == CU_COREDUMP_PIPE))
        return CUDA_ERROR_INVALID_VALUE;
    if (!value) {
        *size = bytes_of(which);
        return CUDA_SUCCESS;
    }
    if (is_text(which) ? *size == 0 || *size > TEXT : *size < bytes_of(which)) return CUDA_ERROR_INVALID_VALUE;
    fake_lock();
    struct dump *d = dump_of(ctx);
    if (d) change(d, which, value, *size);
    fake_unlock();
    return d ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

ENTRY(cuCoredumpGetAttribute, (CUcoredumpSettings which, void *value, size_t *size), get(0, (int)which, value, size))
ENTRY(cuCoredumpGetAttributeGlobal, (CUcoredumpSettings which, void *value, size_t *size),
      get(1, (int)which, value, size))
ENTRY(cuCoredumpSetAttribute, (CUcoredumpSettings which, void *value, size_t *size), set(0, (int)which, value, size))
ENTRY(cuCoredumpSetAttributeGlobal, (CUcoredumpSettings which, void *value, size_t *size),
      set(1, (int)which, value, size))
