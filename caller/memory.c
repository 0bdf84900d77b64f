/* Allocation, free, copies and fills. A step names its memory by the `as` of an alloc; one that needs memory that was
 * refused is skipped (result -1). Contents that a `write` puts down are a function of the position, so that a `read`
 * needs nothing but the size to judge every byte. */
#include "caller.h"
#include "history.h"
#include <stdlib.h>
#include <string.h>

#define CHUNK (1u << 20)

uint32_t memory_kind(const char *text) {
    static const struct {
        const char *name;
        uint32_t kind;
    } kinds[] = {
        {"sync", HL_KIND_SYNC}, {"managed", HL_KIND_MANAGED}, {"pitched", HL_KIND_PITCHED}, {"async", HL_KIND_ASYNC}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(text, kinds[i].name) == 0) return kinds[i].kind;
    return HL_KIND_SYNC;
}

static int32_t allocate(const struct play *play, uint32_t kind, uint64_t bytes, CUdeviceptr *pointer, uint64_t *taken,
                        uint16_t *name) {
    *taken = bytes;
    switch (kind) {
    case HL_KIND_MANAGED:
        *name = caller_hook_id(C_cuMemAllocManaged);
        return CALL(&play->how, cuMemAllocManaged, pointer, bytes, CU_MEM_ATTACH_GLOBAL);
    case HL_KIND_ASYNC:
        *name = caller_hook_id(C_cuMemAllocAsync);
        return CALL(&play->how, cuMemAllocAsync, pointer, bytes, NULL);
    case HL_KIND_PITCHED: {
        size_t pitch = 0, width = step_number(play->step, "width", 0), height = step_number(play->step, "height", 0);
        *name = caller_hook_id(C_cuMemAllocPitch_v2);
        if (!width) {
            width = bytes;
            height = 1;
        }
        int32_t result = CALL(&play->how, cuMemAllocPitch_v2, pointer, &pitch, width, height,
                              (unsigned)step_number(play->step, "element", 4));
        *taken = pitch * height;
        return result;
    }
    default: *name = caller_hook_id(C_cuMemAlloc_v2); return CALL(&play->how, cuMemAlloc_v2, pointer, bytes);
    }
}

/* With a count every allocation has an end record of its own; the last one is written by the caller of a step. A pointer
 * that a refused call left as it was reads 0 in the record, one that it wrote reads what it wrote. */
void step_alloc(const struct play *play, struct outcome *out) {
    const struct step *step = play->step;
    const char *text = step_text(step, "kind", step_text(step, "width", NULL) ? "pitched" : "sync");
    uint32_t kind = memory_kind(text);
    uint64_t bytes = step_number(step, "bytes", 0);
    for (uint64_t left = step_number(step, "count", 1); left; left--) {
        CUdeviceptr pointer = UNTOUCHED;
        uint64_t taken = 0, start = hl_now_ns();
        out->result = allocate(play, kind, bytes, &pointer, &taken, &out->name);
        out->c = hl_now_ns() - start;
        out->extra = kind;
        out->a = taken;
        out->b = pointer == UNTOUCHED ? 0 : pointer;
        if (out->result == CUDA_SUCCESS) {
            struct object *object = object_add(step_text(step, "as", "alloc"), OBJECT_MEMORY, pointer);
            object->bytes = taken;
            object->memory_kind = kind;
            object->device = play->device;
        }
        if (left > 1) report_end(play, out);
    }
}

static int32_t release(const struct play *play, uint64_t pointer, int async, uint16_t *name) {
    *name = caller_hook_id(async ? C_cuMemFreeAsync : C_cuMemFree_v2);
    return async ? CALL(&play->how, cuMemFreeAsync, pointer, NULL) : CALL(&play->how, cuMemFree_v2, pointer);
}

void step_free(const struct play *play, struct outcome *out) {
    const struct step *step = play->step;
    const char *what = step_text(step, "what", NULL), *kind = step_text(step, "kind", NULL);
    uint64_t start = hl_now_ns();
    if (!what) {
        out->b = step_number(step, "pointer", 0);
        out->result = release(play, out->b, kind && !strcmp(kind, "async"), &out->name);
        out->c = hl_now_ns() - start;
        return;
    }
    struct object *object = object_find(what, OBJECT_MEMORY);
    if (!object) {
        out->result = STEP_SKIPPED;
        return;
    }
    for (; object; object = object_find(what, OBJECT_MEMORY)) {
        int async = kind ? !strcmp(kind, "async") : object->memory_kind == HL_KIND_ASYNC;
        int32_t result = release(play, object->handle, async, &out->name);
        out->a += object->bytes;
        out->b = object->handle;
        out->extra = object->memory_kind;
        if (result != CUDA_SUCCESS) { /* still ours: a later step may try again */
            out->result = result;
            break;
        }
        object_drop(object);
    }
    out->c = hl_now_ns() - start;
}

/* The object a step works on, and how many of its bytes. */
static struct object *target(const struct play *play, const char *key, uint64_t *bytes, struct outcome *out) {
    struct object *object = object_find(step_text(play->step, key, NULL), OBJECT_MEMORY);
    if (!object) {
        out->result = STEP_SKIPPED;
        return NULL;
    }
    *bytes = step_number(play->step, "bytes", object->bytes);
    out->a = *bytes;
    out->b = object->handle;
    return object;
}

void step_memset(const struct play *play, struct outcome *out) {
    uint64_t bytes, start = hl_now_ns();
    struct object *object = target(play, "what", &bytes, out);
    if (!object) return;
    out->name = caller_hook_id(C_cuMemsetD8_v2);
    out->result =
        CALL(&play->how, cuMemsetD8_v2, object->handle, (unsigned char)step_number(play->step, "value", 0), bytes);
    if (out->result == CUDA_SUCCESS) {
        object->content = CONTENT_VALUE;
        object->value = (unsigned char)step_number(play->step, "value", 0);
    }
    out->b = 0;
    out->c = hl_now_ns() - start;
}

static unsigned char content(uint64_t position) { return (unsigned char)((position * 0x9E3779B97F4A7C15u) >> 56); }

void step_write(const struct play *play, struct outcome *out) {
    uint64_t bytes, start = hl_now_ns();
    struct object *object = target(play, "what", &bytes, out);
    unsigned char *host = object ? malloc(CHUNK) : NULL;
    out->name = caller_hook_id(C_cuMemcpyHtoD_v2);
    for (uint64_t at = 0; host && at < bytes && out->result == CUDA_SUCCESS; at += CHUNK) {
        uint64_t size = bytes - at < CHUNK ? bytes - at : CHUNK;
        for (uint64_t i = 0; i < size; i++) host[i] = content(at + i);
        out->result = CALL(&play->how, cuMemcpyHtoD_v2, object->handle + at, host, size);
    }
    free(host);
    if (object && out->result == CUDA_SUCCESS) object->content = CONTENT_PATTERN;
    out->b = 0;
    out->c = hl_now_ns() - start;
}

/* b = bytes that differ from what was last put there (nothing put there: zero, as new memory of the fake reads). */
void step_read(const struct play *play, struct outcome *out) {
    uint64_t bytes, start = hl_now_ns();
    struct object *object = target(play, "what", &bytes, out);
    unsigned char *host = object ? malloc(CHUNK) : NULL;
    out->name = caller_hook_id(C_cuMemcpyDtoH_v2);
    out->b = 0;
    for (uint64_t at = 0; host && at < bytes && out->result == CUDA_SUCCESS; at += CHUNK) {
        uint64_t size = bytes - at < CHUNK ? bytes - at : CHUNK;
        out->result = CALL(&play->how, cuMemcpyDtoH_v2, host, object->handle + at, size);
        for (uint64_t i = 0; i < size && out->result == CUDA_SUCCESS; i++)
            out->b += host[i] != (object->content == CONTENT_PATTERN ? content(at + i) : object->value);
    }
    free(host);
    out->c = hl_now_ns() - start;
}

void step_copy(const struct play *play, struct outcome *out) {
    uint64_t bytes, other, start = hl_now_ns();
    struct object *from = target(play, "from", &other, out), *to = from ? target(play, "to", &bytes, out) : NULL;
    if (!to) return;
    if (other < bytes) bytes = other;
    out->a = bytes;
    out->name = caller_hook_id(C_cuMemcpyDtoD_v2);
    out->result = CALL(&play->how, cuMemcpyDtoD_v2, to->handle, from->handle, bytes);
    if (out->result == CUDA_SUCCESS) {
        to->content = from->content;
        to->value = from->value;
    }
    out->b = 0;
    out->c = hl_now_ns() - start;
}
