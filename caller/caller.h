/* hooklab-caller: plays a program of driver calls, each over the route that its step names. This header is what its
 * files share. Invariants: steps run one after another (threads exist only inside a `parallel` or `random` step); a
 * step asks the loader anew for every function, so that a lookup that changes its answer is seen; a step that fails
 * never ends the program: what it means is for the checks to say. */
#ifndef HOOKLAB_CALLER_H
#define HOOKLAB_CALLER_H
#include <stdint.h>
#include <stddef.h>
#include <cuda.h>
#include <nvml.h>
#include "hl_layout_history.h"

/* Every function the player calls. One list: the relocations, the ids and the lookups come from it. */
#define CALLER_CUDA(X)                                                                                                 \
    X(cuInit)                                                                                                          \
    X(cuDriverGetVersion)                                                                                              \
    X(cuDeviceGetCount)                                                                                                \
    X(cuDeviceGet)                                                                                                     \
    X(cuDeviceTotalMem_v2)                                                                                             \
    X(cuDevicePrimaryCtxRetain)                                                                                        \
    X(cuDevicePrimaryCtxRelease_v2)                                                                                    \
    X(cuDevicePrimaryCtxReset_v2)                                                                                      \
    X(cuCtxCreate_v2)                                                                                                  \
    X(cuCtxDestroy_v2)                                                                                                 \
    X(cuCtxSetCurrent)                                                                                                 \
    X(cuCtxPushCurrent_v2)                                                                                             \
    X(cuCtxPopCurrent_v2)                                                                                              \
    X(cuCtxSynchronize)                                                                                                \
    X(cuMemGetInfo_v2)                                                                                                 \
    X(cuMemAlloc_v2)                                                                                                   \
    X(cuMemAllocManaged)                                                                                               \
    X(cuMemAllocPitch_v2)                                                                                              \
    X(cuMemAllocAsync)                                                                                                 \
    X(cuMemFree_v2)                                                                                                    \
    X(cuMemFreeAsync)                                                                                                  \
    X(cuMemcpyHtoD_v2)                                                                                                 \
    X(cuMemcpyDtoH_v2)                                                                                                 \
    X(cuMemcpyDtoD_v2)                                                                                                 \
    X(cuMemsetD8_v2)                                                                                                   \
    X(cuMemsetD32_v2)                                                                                                  \
    X(cuModuleLoadData)                                                                                                \
    X(cuModuleUnload)                                                                                                  \
    X(cuModuleGetFunction)                                                                                             \
    X(cuLaunchKernel)                                                                                                  \
    X(cuStreamSynchronize)
#define CALLER_NVML(X)                                                                                                 \
    X(nvmlInit_v2)                                                                                                     \
    X(nvmlShutdown)                                                                                                    \
    X(nvmlDeviceGetCount_v2)                                                                                           \
    X(nvmlDeviceGetHandleByIndex_v2)                                                                                   \
    X(nvmlDeviceGetMemoryInfo)                                                                                         \
    X(nvmlDeviceGetMemoryInfo_v2)

enum caller_call {
#define X(name) C_##name,
    CALLER_CUDA(X) CALLER_NVML(X)
#undef X
        CALLER_COUNT
};

struct how {                    /* how a step finds its functions */
    uint8_t route;              /* HL_ROUTE_* */
    int version;                /* for getproc: the version asked, 0 = a modern one that has the same ABI */
    uint64_t flags;             /* for getproc */
    const char *symbol_version; /* for dlvsym; NULL = the usual way, see by_dlvsym */
};

struct outcome { /* what STEP_END says */
    int32_t result;
    uint64_t a, b, c;
    uint32_t extra;
    uint16_t name; /* hook id of the function that decided the result, 0xFFFF none */
    uint8_t route, device;
};

struct pair {
    const char *key, *value;
};
struct step {
    int index, line, pair_count, sub_count;
    const char *op;
    struct pair *pairs;
    struct step *subs; /* nested steps of fork, exec, parallel and repeat */
};
struct program {
    struct step *steps;
    int count;
    char *text;
    struct pair *settings;
    int setting_count;
    const char *path;
};

/* program.c */
int program_load(const char *path, struct program *program); /* 0, or -1 after one line on stderr */
const char *step_text(const struct step *step, const char *key, const char *otherwise);
uint64_t step_number(const struct step *step, const char *key, uint64_t otherwise);
const char *program_setting(const struct program *program, const char *key, const char *otherwise);
int split_list(const char *text, char ***items); /* comma list, each item percent-decoded; count */

/* route.c */
int route_parse(const char *text, uint8_t *route); /* 0 or -1 */
void how_of(const struct step *step, const struct program *program, struct how *how);
void *caller_find(enum caller_call call, const struct how *how); /* NULL when the route has no answer */
void *caller_find_name(const char *name, const struct how *how, int32_t *result,
                       int *status); /* any name, for lookups */
uint16_t caller_hook_id(enum caller_call call);
uint16_t caller_id_of(const char *name);                        /* 0xFFFF for a name that the table has not */
int caller_links(const char *name);                             /* whether this executable has a relocation of it */
void *caller_find_any(const char *name, const struct how *how); /* as caller_find, by any name of the table */
#define UNTOUCHED ((CUdeviceptr)0x5A5A5A5A5A5A5A5Aull) /* what an output holds before a call: no driver returns it */
#define CALLER_NO_SYMBOL CUDA_ERROR_NOT_FOUND          /* result of a call whose function was not found */
#define CALL(how, name, ...)                                                                                           \
    (__extension__({                                                                                                   \
        __typeof__(&name) function_ = (__typeof__(&name))caller_find(C_##name, (how));                                 \
        function_ ? (int32_t)function_(__VA_ARGS__) : (int32_t)CALLER_NO_SYMBOL;                                       \
    }))

/* objects.c: what `as` named. A thread of a parallel step sees its own names first, then those from before it. */
enum object_kind { OBJECT_NONE, OBJECT_MEMORY, OBJECT_CONTEXT, OBJECT_MODULE, OBJECT_VALUE };
struct object {
    struct object *next;
    char name[64];
    enum object_kind kind;
    int owner, device;
    uint32_t memory_kind;
    uint64_t handle, bytes;
    int content; /* CONTENT_*: what the last write, memset or copy put there */
    unsigned char value;
};
enum {
    CONTENT_ZERO,
    CONTENT_PATTERN,
    CONTENT_VALUE
}; /* a new allocation is not judged before something was put there */
#define STEP_SKIPPED HL_STEP_SKIPPED   /* result of a step whose object was never made */
extern _Thread_local int object_owner; /* 0 outside parallel steps */
struct object *object_find(const char *name, enum object_kind kind);
struct object *object_add(const char *name, enum object_kind kind, uint64_t handle);
void object_drop(struct object *object);
void objects_begin(void);  /* at the start of the image */
void objects_report(void); /* HL_EVENT_HELD for the memory that is still held */

/* memory.c */
uint32_t memory_kind(const char *text); /* HL_KIND_* of sync, managed, pitched, async; sync for anything else */

/* context.c */
int32_t ensure_context(const struct how *how, int device, struct outcome *out); /* implicit primary context */
CUcontext current_context(void);                                 /* of this thread, as far as our steps know */
int32_t adopt_context(const struct how *how, CUcontext context); /* makes it current on this thread */

/* crash.c */
void crash_watch(void);
void crash_step(int index);

/* control.c */
void control_start(int wait_for_go);   /* says ready; waits for go when asked to */
int control_barrier(const char *name); /* 0 or an errno */
void control_forked(void);             /* a child has no channel */

struct play {
    const struct program *program;
    const struct step *step;
    struct how how;
    int device;
};
typedef void (*step_function)(const struct play *play, struct outcome *out);
void play_steps(const struct program *program, const struct step *steps, int count);
const struct step *step_by_index(const struct step *steps, int count, int index);
void report_end(const struct play *play, const struct outcome *out);
void nothing_done(struct outcome *out, const struct play *play);

void step_init(const struct play *, struct outcome *);
void step_context(const struct play *, struct outcome *);
void step_sync(const struct play *, struct outcome *);
void step_alloc(const struct play *, struct outcome *);
void step_free(const struct play *, struct outcome *);
void step_memset(const struct play *, struct outcome *);
void step_write(const struct play *, struct outcome *);
void step_read(const struct play *, struct outcome *);
void step_copy(const struct play *, struct outcome *);
void step_module(const struct play *, struct outcome *);
void step_launch(const struct play *, struct outcome *);
void step_view(const struct play *, struct outcome *);
void step_lookup(const struct play *, struct outcome *);
void step_random(const struct play *, struct outcome *);
void step_barrier(const struct play *, struct outcome *);
void step_fork(const struct play *, struct outcome *);
void step_exec(const struct play *, struct outcome *);
void step_parallel(const struct play *, struct outcome *);
void step_call(const struct play *, struct outcome *);
void step_give(const struct play *, struct outcome *);
void step_take(const struct play *, struct outcome *);
void step_repeat(const struct play *, struct outcome *);
void step_signal(const struct play *, struct outcome *);
void step_exit(const struct play *, struct outcome *);
void wait_for_children(void); /* at the end of a program */
#endif
