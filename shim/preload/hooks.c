/* The hooks by name and by the driver's pointer. Every hooked name of the table is referenced here under its vendor
 * prototype, so a hook without a body, or with another signature, does not link or compile.
 *
 * Invariants: the tables are constants except the index by pointer, which is written when the CUDA library is opened
 * (threads that race write the same) and read without a lock. */
#include "preload.h"

#include "hl_hooked.h"

#include <string.h>

#define HL_NUMBER(name, ...) HL_AT_##name,
enum { HL_HOOKED(HL_NUMBER) HOOKS };
_Static_assert(HOOKS < 255, "the place of a hook is kept in a byte");

#define HL_FUNCTION(name, ...) [HL_AT_##name] = (void *)&name,
static void *const functions[HOOKS] = {HL_HOOKED(HL_FUNCTION)};
#define HL_ID(name, ...) [HL_AT_##name] = HL_##name,
static const uint16_t ids[HOOKS] = {HL_HOOKED(HL_ID)};
#define HL_PLACE(name, ...) [HL_##name] = HL_AT_##name + 1,
static const uint8_t place_of[HL_NAME_COUNT] = {HL_HOOKED(HL_PLACE)}; /* 0 = not hooked */

enum { INDEX = 256 };
_Static_assert(HOOKS * 2 <= INDEX, "the index by pointer must stay half empty");
static struct {
    void *real;
    int16_t id;
} by_pointer[INDEX];

void *hl_hook_of(int id) { return id >= 0 && place_of[id] ? functions[place_of[id] - 1] : NULL; }

int hl_hook_named(const char *name) {
    if (!(name[0] == 'c' && name[1] == 'u') && !(name[0] == 'n' && name[1] == 'v')) return -1;
    int id = hl_name_find(name);
    return id >= 0 && place_of[id] ? id : -1;
}

static unsigned slot(const void *real) { return (unsigned)(((uintptr_t)real * UINT64_C(0x9e3779b97f4a7c15)) >> 56); }

void hl_hooks_index(void *const *real) {
    struct {
        void *real;
        int16_t id;
    } made[INDEX] = {{NULL, 0}};
    for (int hook = 0; hook < HOOKS; hook++) {
        void *pointer = real[ids[hook]];
        if (!pointer) continue;
        unsigned at = slot(pointer);
        while (made[at].real && made[at].real != pointer) at = (at + 1) % INDEX;
        made[at].id = made[at].real ? -2 : (int16_t)ids[hook]; /* two names, one function: the name asked for decides */
        made[at].real = pointer;
    }
    for (unsigned at = 0; at < INDEX; at++) {
        __atomic_store_n(&by_pointer[at].id, made[at].id, __ATOMIC_RELAXED);
        __atomic_store_n(&by_pointer[at].real, made[at].real, __ATOMIC_RELEASE);
    }
}

int hl_hook_at(const void *real) {
    for (unsigned at = slot(real);; at = (at + 1) % INDEX) {
        void *there = __atomic_load_n(&by_pointer[at].real, __ATOMIC_ACQUIRE);
        if (!there) return -1;
        if (there == real) return __atomic_load_n(&by_pointer[at].id, __ATOMIC_ACQUIRE);
    }
}
