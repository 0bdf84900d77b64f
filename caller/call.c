/* Any driver function by its name. What it is called with is written in the step: numbers, strings, names of what
 * earlier steps got, places for outputs, and buffers. Invariants: every buffer ends at an inaccessible page, so that a
 * callee which takes it for larger faults; an output keeps what the step put there unless the callee wrote it. Every
 * argument travels in a general register or on the stack; functions with floating-point arguments are not played.
 *
 * `with` is a list (program.c); the first letter of an item says what it is:
 *     n123            a number                            rNAME+N         what NAME stands for, plus N
 *     tTEXT           a string                            vNAME           the bytes of buffer NAME by value
 *     oNAME:N         eight bytes that hold N before; afterwards NAME stands for what they hold
 *     bNAME:SIZE:FILL:OUTS   a buffer of SIZE bytes, called NAME unless that is empty. FILL is WIDTH@OFFSET=VALUE/...
 *                     with a number or rNAME as value; OUTS is NAME@OFFSET/... of eight bytes to read afterwards */
#include "caller.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef uint64_t word;
enum {
#if defined(__x86_64__)
    REGISTERS = 6,
#else
    REGISTERS = 8,
#endif
    STACKED = 16,
    ITEMS = 24,
    CARRIED = 4096
};

struct item {
    char *text; /* as written, after its letter */
    char letter;
    word slot;       /* of an output */
    uint8_t *buffer; /* of a buffer */
    size_t size, mapped;
};

struct frame {
    word registers[REGISTERS], stack[STACKED];
    int in_registers, on_stack;
};

static int push(struct frame *frame, word value) {
    if (frame->in_registers < REGISTERS) frame->registers[frame->in_registers++] = value;
    else if (frame->on_stack < STACKED) frame->stack[frame->on_stack++] = value;
    else return -1;
    return 0;
}

/* A structure of more than 16 bytes: on x86_64 its words lie on the stack, elsewhere the address of a copy is passed. */
static int push_bytes(struct frame *frame, const uint8_t *bytes, size_t size) {
#if defined(__x86_64__)
    for (size_t at = 0; at < size; at += sizeof(word)) {
        word value = 0;
        if (frame->on_stack >= STACKED) return -1;
        memcpy(&value, bytes + at, size - at < sizeof value ? size - at : sizeof value);
        frame->stack[frame->on_stack++] = value;
    }
    return 0;
#else
    (void)size;
    return push(frame, (word)(uintptr_t)bytes);
#endif
}

/* A callee with fewer arguments does not look at the rest. */
static int32_t jump(void *function, const struct frame *frame) {
    const word *r = frame->registers, *s = frame->stack;
    typedef int32_t (*any)(word, word, word, word, word, word,
#if !defined(__x86_64__)
                           word, word,
#endif
                           word, word, word, word, word, word, word, word, word, word, word, word, word, word, word,
                           word);
    return ((any)function)(r[0], r[1], r[2], r[3], r[4], r[5],
#if !defined(__x86_64__)
                           r[6], r[7],
#endif
                           s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7], s[8], s[9], s[10], s[11], s[12], s[13],
                           s[14], s[15]);
}

static struct object *named(const char *name) {
    static const enum object_kind kinds[] = {OBJECT_VALUE, OBJECT_MEMORY, OBJECT_CONTEXT, OBJECT_MODULE};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        struct object *found = object_find(name, kinds[i]);
        if (found) return found;
    }
    return NULL;
}

/* `NAME` or `NAME+N`; -1 when nothing of that name was made. */
static int refer(const char *text, word *value) {
    char name[64];
    size_t length = strcspn(text, "+");
    if (length >= sizeof name) return -1;
    memcpy(name, text, length);
    name[length] = 0;
    struct object *object = named(name);
    if (!object) return -1;
    *value = object->handle + (text[length] ? strtoull(text + length + 1, NULL, 0) : 0);
    return 0;
}

static void bind(const char *name, word value, word bytes) {
    struct object *old = object_find(name, OBJECT_VALUE);
    if (old) object_drop(old);
    object_add(name, OBJECT_VALUE, value)->bytes = bytes;
}

static int fill(struct item *item, char *filling) {
    for (char *one; (one = strsep(&filling, "/")) != NULL;) {
        char *rest = one;
        size_t width = strtoull(rest, &rest, 10), at = *rest ? strtoull(rest + 1, &rest, 10) : 0;
        word value = 0;
        if (!*one) continue;
        if (*rest++ != '=' || width > sizeof value || at + width > item->size) return -1;
        if (*rest == 'r' && refer(rest + 1, &value)) return -1;
        if (*rest != 'r') value = strtoull(rest, NULL, 0);
        memcpy(item->buffer + at, &value, width);
    }
    return 0;
}

/* The buffer's name and outputs stay in the text: NAME, and after it OUTS at `*outs`. */
static int make_buffer(struct item *item, char **outs) {
    char *rest = item->text;
    strsep(&rest, ":");
    const char *size = rest ? strsep(&rest, ":") : NULL;
    char *filling = rest ? strsep(&rest, ":") : NULL;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (!size || !filling || !rest) return -1;
    *outs = rest;
    item->size = strtoull(size, NULL, 10);
    item->mapped = (item->size + page - 1) / page * page + page;
    uint8_t *map = mmap(NULL, item->mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED || mprotect(map + item->mapped - page, page, PROT_NONE)) abort();
    item->buffer = map + item->mapped - page - item->size;
    return fill(item, filling);
}

static void drop_buffer(const struct item *item) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    munmap(item->buffer - (item->mapped - page - item->size), item->mapped);
}

static int prepare(struct item *item, struct frame *frame, char **outs) {
    word value = 0;
    struct object *object;
    switch (item->letter) {
    case 'n': return push(frame, strtoull(item->text, NULL, 0));
    case 't': return push(frame, (word)(uintptr_t)item->text);
    case 'r': return refer(item->text, &value) ? -1 : push(frame, value);
    case 'v':
        object = object_find(item->text, OBJECT_VALUE);
        if (!object || !object->bytes) return -1;
        return push_bytes(frame, (const uint8_t *)(uintptr_t)object->handle, object->bytes); /* NOLINT: our buffer */
    case 'o':
        *outs = item->text;
        strsep(outs, ":");
        item->slot = *outs ? strtoull(*outs, NULL, 0) : 0;
        return push(frame, (word)(uintptr_t)&item->slot);
    case 'b': return make_buffer(item, outs) ? -1 : push(frame, (word)(uintptr_t)item->buffer);
    default: return -1;
    }
}

static void told(struct outcome *out, int *count, word value) {
    word *places[] = {&out->a, &out->b, &out->c};
    if (*count < 3) *places[(*count)++] = value;
}

static void collect(struct item *item, char *outs, struct outcome *out, int *count) {
    if (item->letter == 'o') {
        bind(item->text, item->slot, 0);
        told(out, count, item->slot);
    }
    if (item->letter != 'b') return;
    for (char *one; (one = strsep(&outs, "/")) != NULL;) {
        char *at = strchr(one, '@');
        word value = 0;
        if (!at) continue;
        *at++ = 0;
        size_t offset = strtoull(at, NULL, 10), room = item->size - offset;
        memcpy(&value, item->buffer + offset, room < sizeof value ? room : sizeof value);
        bind(one, value, 0);
        told(out, count, value);
    }
    if (*item->text) bind(item->text, (word)(uintptr_t)item->buffer, item->size);
    else drop_buffer(item);
}

void step_call(const struct play *play, struct outcome *out) {
    const char *name = step_text(play->step, "name", "");
    struct item items[ITEMS];
    struct frame frame = {.in_registers = 0};
    struct how how = play->how;
    char **list = NULL, *outs[ITEMS] = {NULL};
    int count = split_list(step_text(play->step, "with", ""), &list), results = 0;
    memset(items, 0, sizeof items);
    if (count == 1 && !*list[0]) count = 0;
    if (count > ITEMS) count = ITEMS;
    if (!step_text(play->step, "route", NULL) && !caller_links(name)) how.route = HL_ROUTE_DLSYM;
    out->route = how.route;
    out->name = caller_id_of(name);
    void *function = caller_find_any(name, &how);
    out->result = function ? CUDA_SUCCESS : (int32_t)CALLER_NO_SYMBOL;
    for (int i = 0; i < count && out->result == CUDA_SUCCESS; i++) {
        items[i] = (struct item){.letter = *list[i], .text = list[i] + 1};
        if (prepare(&items[i], &frame, &outs[i])) out->result = STEP_SKIPPED;
    }
    if (out->result == CUDA_SUCCESS) {
        out->result = jump(function, &frame);
        for (int i = 0; i < count; i++) collect(&items[i], outs[i], out, &results);
    }
}

/* Where one process leaves what another takes: beside the step programs of the run. */
static FILE *handed(const struct play *play, const char *mode) {
    char path[4096];
    const char *slash = strrchr(play->program->path, '/');
    int folder = slash ? (int)(slash - play->program->path + 1) : 0;
    snprintf(path, sizeof path, "%.*shanded-%s", folder, play->program->path, step_text(play->step, "what", ""));
    return fopen(path, mode);
}

void step_give(const struct play *play, struct outcome *out) {
    struct object *object = named(step_text(play->step, "what", ""));
    if (!object) {
        out->result = STEP_SKIPPED;
        return;
    }
    int buffer = object->kind == OBJECT_VALUE && object->bytes;
    const void *from = buffer ? (const void *)(uintptr_t)object->handle : &object->handle; /* NOLINT: our buffer */
    size_t size = buffer ? object->bytes : sizeof object->handle;
    FILE *file = handed(play, "we");
    if (!file || fputc(buffer ? 'b' : 'v', file) == EOF || fwrite(from, 1, size, file) != size) out->result = errno;
    if (file && fclose(file)) out->result = errno;
}

void step_take(const struct play *play, struct outcome *out) {
    const char *what = step_text(play->step, "what", "");
    uint8_t *bytes = calloc(1, CARRIED + 1);
    FILE *file = handed(play, "re");
    size_t size = file && bytes ? fread(bytes, 1, CARRIED + 1, file) : 0;
    if (file) fclose(file);
    if (size < 2) {
        free(bytes);
        out->result = STEP_SKIPPED;
        return;
    }
    word value = 0;
    if (*bytes == 'b') { /* lives as long as its name, which is the program's */
        bind(what, (word)(uintptr_t)(bytes + 1), size - 1);
        return;
    }
    memcpy(&value, bytes + 1, sizeof value);
    bind(what, value, 0);
    free(bytes);
}

void step_repeat(const struct play *play, struct outcome *out) {
    (void)out;
    for (uint64_t left = step_number(play->step, "count", 1); left; left--)
        play_steps(play->program, play->step->subs, play->step->sub_count);
}
