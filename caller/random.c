/* The random step: threads allocate and free at random and keep their own truth. What a thread checks of every call:
 * a success gives a non-zero pointer, a refusal gives the out-of-memory code and a zero pointer, a free of its own
 * pointer succeeds, and the tag it put at the head of an allocation is still there when it is freed (two owners of
 * one piece of memory would overwrite each other's). Wrong answers are counted, never fatal. The sequence of
 * operations follows the seed alone, so a run can be played again; how calls interleave does not. */
#include "caller.h"
#include "history.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KINDS 8
#define ROW 512 /* bytes of a row of a pitched piece: no padding is added to it */

struct shared {
    const struct play *play;
    CUcontext context;
    uint64_t operations, minimum, maximum, seed;
    int live_most, kinds[KINDS], kind_count;
    atomic_ullong done, wrong, refused;
    atomic_int unexpected; /* the first result that was neither success nor out of memory */
    __typeof__(&cuMemAlloc_v2) alloc;
    __typeof__(&cuMemAllocManaged) managed;
    __typeof__(&cuMemAllocAsync) async;
    __typeof__(&cuMemAllocPitch_v2) pitched;
    __typeof__(&cuMemFree_v2) release;
    __typeof__(&cuMemFreeAsync) release_async;
    __typeof__(&cuMemsetD32_v2) fill;
    __typeof__(&cuMemcpyDtoH_v2) fetch;
};

struct piece {
    CUdeviceptr pointer;
    uint64_t bytes;
    uint32_t tag;
    int kind;
};
struct worker {
    struct shared *shared;
    int ordinal;
    pthread_t thread;
};

static uint64_t next(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static void note_wrong(struct shared *shared, const char *what, int32_t result) {
    int none = 0;
    if (atomic_fetch_add(&shared->wrong, 1) == 0)
        fprintf(stderr, "hooklab-caller: step %d: %s (result %d)\n", shared->play->step->index, what, result);
    if (result != CUDA_SUCCESS) atomic_compare_exchange_strong(&shared->unexpected, &none, result);
}

static int take(struct shared *shared, struct piece *piece, uint64_t bytes) {
    int32_t result;
    size_t pitch = 0;
    piece->pointer = 0;
    piece->bytes = bytes;
    if (piece->kind == HL_KIND_MANAGED) result = (int32_t)shared->managed(&piece->pointer, bytes, CU_MEM_ATTACH_GLOBAL);
    else if (piece->kind == HL_KIND_ASYNC) result = (int32_t)shared->async(&piece->pointer, bytes, NULL);
    else if (piece->kind == HL_KIND_PITCHED)
        result = (int32_t)shared->pitched(&piece->pointer, &pitch, ROW, (bytes + ROW - 1) / ROW, 4);
    else result = (int32_t)shared->alloc(&piece->pointer, bytes);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
        atomic_fetch_add(&shared->refused, 1);
        if (piece->pointer) note_wrong(shared, "a refused allocation left a pointer", CUDA_SUCCESS);
        return 0;
    }
    if (result != CUDA_SUCCESS) {
        note_wrong(shared, "an allocation failed with a code other than out of memory", result);
        return 0;
    }
    if (!piece->pointer) {
        note_wrong(shared, "an allocation succeeded without a pointer", CUDA_SUCCESS);
        return 0;
    }
    result = (int32_t)shared->fill(piece->pointer, piece->tag, 1);
    if (result != CUDA_SUCCESS) note_wrong(shared, "a fill of a new allocation failed", result);
    return 1;
}

static void give(struct shared *shared, const struct piece *piece) {
    uint32_t seen = 0;
    int32_t result = (int32_t)shared->fetch(&seen, piece->pointer, sizeof seen);
    if (result != CUDA_SUCCESS) note_wrong(shared, "a copy from a live allocation failed", result);
    else if (seen != piece->tag) note_wrong(shared, "a live allocation lost its contents", CUDA_SUCCESS);
    result = (int32_t)(piece->kind == HL_KIND_ASYNC ? shared->release_async(piece->pointer, NULL)
                                                    : shared->release(piece->pointer));
    if (result == CUDA_SUCCESS) return;
    note_wrong(shared, "a free of a live allocation failed", result);
    struct object *kept = object_add("random", OBJECT_MEMORY, piece->pointer); /* still the program's own */
    kept->memory_kind = (uint32_t)piece->kind;
    kept->bytes = piece->bytes;
    kept->device = shared->play->device;
}

static void *work(void *argument) {
    struct worker *worker = argument;
    struct shared *shared = worker->shared;
    uint64_t state = (shared->seed + 1) * 0x9E3779B97F4A7C15u ^ ((uint64_t)worker->ordinal + 1) * 0xBF58476D1CE4E5B9u;
    struct piece *live = calloc((size_t)shared->live_most, sizeof *live);
    int count = 0;
    if (!live || !state) abort();
    int32_t result = adopt_context(&shared->play->how, shared->context);
    if (result != CUDA_SUCCESS) note_wrong(shared, "the context could not be made current", result);
    for (uint64_t i = 0; i < shared->operations; i++) {
        uint64_t roll = next(&state), where = next(&state);
        if (count == shared->live_most || (count && roll % 2)) {
            int chosen = (int)(where % (uint64_t)count);
            give(shared, &live[chosen]);
            live[chosen] = live[--count];
        } else {
            struct piece piece = {.kind = shared->kinds[(roll >> 8) % (uint64_t)shared->kind_count],
                                  .tag = (uint32_t)(where >> 32) ^ ((uint32_t)worker->ordinal << 24)};
            uint64_t span = shared->maximum - shared->minimum + 1;
            if (take(shared, &piece, shared->minimum + next(&state) % span)) live[count++] = piece;
        }
        atomic_fetch_add(&shared->done, 1);
    }
    while (count) give(shared, &live[--count]);
    free(live);
    return NULL;
}

static void read_kinds(const struct step *step, struct shared *shared) {
    char **items;
    int count = split_list(step_text(step, "kinds", "sync"), &items);
    for (int i = 0; i < count && shared->kind_count < KINDS; i++)
        shared->kinds[shared->kind_count++] = (int)memory_kind(items[i]);
}

static int find_all(struct shared *shared, const struct how *how) {
    shared->alloc = (__typeof__(shared->alloc))caller_find(C_cuMemAlloc_v2, how);
    shared->managed = (__typeof__(shared->managed))caller_find(C_cuMemAllocManaged, how);
    shared->pitched = (__typeof__(shared->pitched))caller_find(C_cuMemAllocPitch_v2, how);
    shared->async = (__typeof__(shared->async))caller_find(C_cuMemAllocAsync, how);
    shared->release = (__typeof__(shared->release))caller_find(C_cuMemFree_v2, how);
    shared->release_async = (__typeof__(shared->release_async))caller_find(C_cuMemFreeAsync, how);
    shared->fill = (__typeof__(shared->fill))caller_find(C_cuMemsetD32_v2, how);
    shared->fetch = (__typeof__(shared->fetch))caller_find(C_cuMemcpyDtoH_v2, how);
    return shared->alloc && shared->managed && shared->pitched && shared->async && shared->release &&
           shared->release_async && shared->fill && shared->fetch;
}

/* a = operations done, b = wrong answers, c = refusals, extra = threads; result = first unexpected code. */
void step_random(const struct play *play, struct outcome *out) {
    const struct step *step = play->step;
    int threads = (int)step_number(step, "threads", 1);
    struct shared shared = {
        .play = play,
        .context = current_context(),
        .operations = step_number(step, "operations", 100),
        .minimum = step_number(step, "min", 4096),
        .maximum = step_number(step, "max", 8u << 20),
        .seed = step_number(step, "seed", 0),
        .live_most = (int)step_number(step, "live", 64),
    };
    read_kinds(step, &shared);
    if (shared.minimum < sizeof(uint32_t)) shared.minimum = sizeof(uint32_t); /* room for the tag */
    if (shared.maximum < shared.minimum) shared.maximum = shared.minimum;
    if (shared.live_most < 1) shared.live_most = 1;
    out->name = caller_hook_id(C_cuMemAlloc_v2);
    out->extra = (uint32_t)threads;
    if (!find_all(&shared, &play->how)) {
        out->result = CALLER_NO_SYMBOL;
        return;
    }
    struct worker *workers = calloc((size_t)threads + 1, sizeof *workers);
    int started = 0;
    for (; workers && started < threads; started++) {
        workers[started] = (struct worker){.shared = &shared, .ordinal = started};
        if (pthread_create(&workers[started].thread, NULL, work, &workers[started])) break;
    }
    for (int i = 0; i < started; i++) pthread_join(workers[i].thread, NULL);
    free(workers);
    out->a = atomic_load(&shared.done);
    out->b = atomic_load(&shared.wrong);
    out->c = atomic_load(&shared.refused);
    out->result = atomic_load(&shared.unexpected);
    if (started < threads) out->result = -11; /* EAGAIN: the machine gave fewer threads than asked */
}
