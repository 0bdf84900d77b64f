/* What steps named with `as`: allocations, contexts and modules. Several objects may carry one name (an alloc with a
 * count). A short list under one mutex: steps are few, the calls they make are what is tested. */
#include "caller.h"
#include "history.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

_Thread_local int object_owner;
static struct object *objects;
static pid_t owner;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void objects_begin(void) { owner = getpid(); }

static struct object *find_of(const char *name, enum object_kind kind, int owner) {
    for (struct object *object = objects; object; object = object->next)
        if (object->kind == kind && object->owner == owner && strcmp(object->name, name) == 0) return object;
    return NULL;
}

struct object *object_find(const char *name, enum object_kind kind) {
    if (!name) return NULL;
    pthread_mutex_lock(&lock);
    struct object *found = find_of(name, kind, object_owner);
    if (!found && object_owner) found = find_of(name, kind, 0);
    pthread_mutex_unlock(&lock);
    return found;
}

struct object *object_add(const char *name, enum object_kind kind, uint64_t handle) {
    struct object *object = calloc(1, sizeof *object);
    if (!object) abort();
    *object = (struct object){.kind = kind, .handle = handle, .owner = object_owner};
    strncpy(object->name, name, sizeof object->name - 1);
    pthread_mutex_lock(&lock);
    object->next = objects;
    objects = object;
    pthread_mutex_unlock(&lock);
    return object;
}

void object_drop(struct object *object) {
    pthread_mutex_lock(&lock);
    for (struct object **at = &objects; *at; at = &(*at)->next)
        if (*at == object) {
            *at = object->next;
            break;
        }
    pthread_mutex_unlock(&lock);
    free(object);
}

void objects_report(void) {
    if (getpid() != owner) return; /* a child's copy of the list says nothing of what its own driver holds */
    struct hl_event line = {
        .event = HL_EVENT_HELD, .source = HL_SOURCE_CALLER, .name = 0xFFFF, .step = 0xFFFF, .device = 0xFF};
    uint64_t count = 0;
    pthread_mutex_lock(&lock);
    for (struct object *object = objects; object; object = object->next) {
        if (object->kind != OBJECT_MEMORY) continue;
        line.a = object->bytes;
        line.b = object->handle;
        line.extra = object->memory_kind;
        line.device = (uint8_t)object->device;
        hl_history_add(&line);
        count++;
    }
    pthread_mutex_unlock(&lock);
    line = (struct hl_event){
        .event = HL_EVENT_HELD, .source = HL_SOURCE_CALLER, .name = 0xFFFF, .step = 0xFFFF, .a = count};
    line.device = 0xFF;
    hl_history_add(&line);
}
