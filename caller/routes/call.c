/* One call of what a lookup gave: every parameter gets a value of its own, the recording driver says what arrived. */
#include "walk.h"

#include "hl_signatures.h"
#include "hl_versions.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#if defined(__x86_64__)
enum { REGISTERS = 6 };
#else
enum { REGISTERS = 8 };
#endif
enum { STACK = 8, PARAMETERS = 16 };

struct given {
    uint64_t registers[8], stack[STACK];
    struct {
        uint64_t value;
        int8_t place; /* register number, 8 + stack slot, -1 = not compared */
        uint8_t width;
        bool pointer; /* to memory of the caller's */
    } parameter[PARAMETERS];
    unsigned count;
};

/* 1 MiB of zeroes a pointer: an interposer may read structures and arrays there. */
static uint64_t scratch(unsigned index) {
    static char *area;
    if (!area) {
        void *made = mmap(NULL, (size_t)PARAMETERS << 20, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (made == MAP_FAILED) abort();
        area = made;
    }
    return (uint64_t)(uintptr_t)(area + ((size_t)index << 20));
}

void walk_junk(struct hl_echo *echo) {
    echo->junk_start = scratch(0);
    echo->junk_end = scratch(PARAMETERS);
}

static void place(struct given *given, unsigned *reg, unsigned *slot, uint64_t value, unsigned width) {
    unsigned at = given->count++;
    given->parameter[at].value = value;
    given->parameter[at].width = (uint8_t)width;
    given->parameter[at].place = -1;
    if (*reg < REGISTERS) {
        given->parameter[at].place = (int8_t)*reg;
        given->registers[(*reg)++] = value;
    } else if (*slot < STACK) {
        given->parameter[at].place = (int8_t)(8 + *slot);
        given->stack[(*slot)++] = value;
    }
}

static void prepare(struct given *given, unsigned name) {
    const char *signature = hl_signature[name];
    unsigned reg = 0, slot = 0;
    memset(given, 0, sizeof *given);
    if (*signature == '?') { /* nobody knows: pointers to zeroes hurt least; nothing is compared */
        for (unsigned at = 0; at < REGISTERS; at++) given->registers[at] = scratch(at);
        return;
    }
    for (const char *at = signature; *at && given->count < PARAMETERS;) {
        uint64_t number = given->count + 1;
        switch (*at++) {
        case 'h': place(given, &reg, &slot, scratch(given->count), 8); break;
        case 'p':
            place(given, &reg, &slot, scratch(given->count), 8);
            given->parameter[given->count - 1].pointer = true;
            break;
        case 'l': place(given, &reg, &slot, number << 12, 8); break;
        case 'i': place(given, &reg, &slot, number, 4); break;
        case 's': {
            unsigned size = (unsigned)strtoul(at, (char **)&at, 10);
            if (size <= 8) place(given, &reg, &slot, number, 8);
            else {
                given->parameter[given->count++].place = -1; /* in memory: on the stack, or behind a pointer */
                if (REGISTERS == 8 && reg < REGISTERS) given->registers[reg++] = scratch(given->count - 1);
                else slot += size / 8;
            }
            break;
        }
        default: given->parameter[given->count++].place = -1; /* floating point: another register file */
        }
    }
}

static int32_t make(void *function, const struct given *given) {
    const uint64_t *r = given->registers, *s = given->stack;
#if defined(__x86_64__)
    typedef int32_t (*any)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                           uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);
    return ((any)function)(r[0], r[1], r[2], r[3], r[4], r[5], s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7]);
#else
    typedef int32_t (*any)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                           uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);
    return ((any)function)(r[0], r[1], r[2], r[3], r[4], r[5], r[6], r[7], s[0], s[1], s[2], s[3], s[4], s[5], s[6],
                           s[7]);
#endif
}

/* A wrapper may ask with a variable of its own, on its stack or its heap, and copy afterwards; but not with another of
 * the caller's parameters, nor with what happens to lie in a register. */
static bool replaced(const struct given *given, uint64_t address) {
    for (unsigned at = 0; at < given->count; at++)
        if (given->parameter[at].value == address) return false;
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512], right[8];
    unsigned long low, high;
    bool found = false;
    while (maps && !found && fgets(line, sizeof line, maps))
        found =
            sscanf(line, "%lx-%lx %7s", &low, &high, right) == 3 && address >= low && address < high && right[1] == 'w';
    if (maps) fclose(maps);
    return found;
}

static uint16_t differences(const struct given *given, const struct hl_echo_call *call) {
    uint16_t bits = 0;
    for (unsigned at = 0; at < given->count; at++) {
        int where = given->parameter[at].place;
        if (where < 0) continue;
        uint64_t arrived = where < 8 ? call->registers[where] : call->stack[where - 8];
        uint64_t mask = given->parameter[at].width == 4 ? UINT32_MAX : UINT64_MAX;
        if (!((arrived ^ given->parameter[at].value) & mask)) continue;
        if (given->parameter[at].pointer && replaced(given, arrived)) continue;
        bits |= (uint16_t)(1u << at);
    }
    return bits;
}

/* What the pointer is a pointer to: the name asked for, or the variant that the version map gives. */
static unsigned called_as(const struct hl_routes_row *row) {
    if (row->route < HL_WALK_RESOLVER1) return row->name;
    if (row->owner == HL_OWNER_DRIVER) return row->symbol;
    int id = hl_resolve_any(walk_base(row->name), row->version, row->flags, NULL);
    return id < 0 ? row->name : (unsigned)id;
}

/* Variants of one function: the names are alike up to version and stream suffixes. */
static bool same_stem(unsigned one, unsigned other) {
    const char *a = hl_name_text[one], *b = hl_name_text[other];
    while (*a && *a == *b) a++, b++;
    return (!*a || *a == '_') && (!*b || *b == '_');
}

void walk_call(struct walk *walk, struct hl_routes_row *row) {
    if (!row->pointer || row->owner == HL_OWNER_NONE) return;
    unsigned expected = called_as(row);
    struct given given;
    prepare(&given, expected);
    row->expected = (uint16_t)expected;
    for (int library = 0; library < 2; library++)
        if (walk->echo[library]) {
            walk->echo[library]->calls = 0;
            walk->echo[library]->under_test = expected;
        }
    row->state = HL_STATE_CALLING;
    row->reached = HL_NO_NAME;
    row->result = make((void *)(uintptr_t)row->pointer, &given);
    row->state = HL_STATE_DONE;
    for (int library = 0; library < 2; library++) {
        struct hl_echo *echo = walk->echo[library];
        if (!echo) continue;
        echo->under_test = HL_ECHO_NONE;
        row->nested += echo->calls;
        for (unsigned at = 0; at < echo->calls && at < HL_ECHO_CALLS; at++) {
            const struct hl_echo_call *call = &echo->call[at];
            if (call->name == expected) {
                if (!row->hits++) row->shifted = differences(&given, call);
                row->reached = (uint16_t)expected;
            } else if (row->reached == HL_NO_NAME && (call->answered || same_stem(call->name, expected))) {
                row->reached = (uint16_t)call->name;
            }
        }
    }
    row->stopped = row->reached == HL_NO_NAME;
}
