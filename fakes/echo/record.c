/* The recorder behind every function of the recording driver, and the driver that calls go on to.
 *
 * Invariants: the next driver is opened by path from $HOOKLAB_ECHO_DRIVER (a folder) at the first call that needs it and
 * never closed. The resolvers go on like any other function, but the pointers they hand out are those of the recording
 * driver: what was got from here is recorded too. */
#include "echo.h"
#include "hl_names.h"
#include "hl_signatures.h"

#include "../../shim/preload/tables.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern const char hl_echo_stubs[], hl_echo_soname[];
extern const unsigned char hl_echo_there[]; /* by id - first: 1 = exported function */
extern const unsigned hl_echo_first, hl_echo_count;

struct hl_echo_next {
    void *jump; /* NULL: return value */
    int64_t value;
};
struct hl_echo_next hl_echo_record(uint32_t id, const uint64_t *registers, const uint64_t *stack);

#define EXPORT __attribute__((visibility("default")))
extern EXPORT struct hl_echo hl_echo;
EXPORT struct hl_echo hl_echo = {.under_test = HL_ECHO_NONE};

enum { CUDA_INVALID_HANDLE = 400, CUDA_NOT_FOUND = 500, NVML_INVALID_ARGUMENT = 2, NVML_FUNCTION_NOT_FOUND = 13 };
static void *next[HL_NAME_COUNT]; /* by id - first */
static pthread_once_t opened = PTHREAD_ONCE_INIT;

static void open_next(void) {
    char path[4096];
    const char *folder = getenv("HOOKLAB_ECHO_DRIVER");
    if (!folder) {
        fprintf(stderr, "hooklab: HOOKLAB_ECHO_DRIVER is not set: the recording driver has no driver to go on to\n");
        return;
    }
    snprintf(path, sizeof path, "%s/%s", folder, hl_echo_soname);
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        fprintf(stderr, "hooklab: %s: %s\n", path, dlerror());
        return;
    }
    struct link_map *map = NULL;
    struct hl_object object;
    if (dlinfo(handle, RTLD_DI_LINKMAP, &map) || !map || !hl_object_read(&object, map->l_addr, map->l_ld)) return;
    for (unsigned i = 0; i < hl_echo_count; i++) /* not dlsym: an interposer's would give its own function back */
        if (hl_echo_there[i]) next[i] = hl_object_symbol(&object, hl_name_text[hl_echo_first + i]);
}

__attribute__((constructor)) static void present(void) {
    hl_echo.version = HL_ECHO_STUB;
    hl_echo.first = hl_echo_first;
    hl_echo.count = hl_echo_count;
    hl_echo.stubs = hl_echo_stubs;
}

#if HL_ECHO_CUDA
typedef int (*resolver1)(const char *, void **, int, unsigned long long);
typedef int (*resolver2)(const char *, void **, int, unsigned long long, int *);

static void *stub_of(void *found) {
    for (unsigned i = 0; found && i < hl_echo_count; i++)
        if (next[i] == found) return (void *)(uintptr_t)(hl_echo_stubs + i * HL_ECHO_STUB);
    return found;
}

static int resolve1(const char *symbol, void **found, int version, unsigned long long flags) {
    int result = ((resolver1)next[HL_cuGetProcAddress])(symbol, found, version, flags);
    if (!result) *found = stub_of(*found);
    return result;
}

static int resolve2(const char *symbol, void **found, int version, unsigned long long flags, int *status) {
    int result = ((resolver2)next[HL_cuGetProcAddress_v2])(symbol, found, version, flags, status);
    if (!result) *found = stub_of(*found);
    return result;
}
#endif

static void *beyond(uint32_t id) {
    pthread_once(&opened, open_next);
    void *function = next[id - hl_echo_first];
#if HL_ECHO_CUDA
    if (function && id == HL_cuGetProcAddress) return (void *)&resolve1;
    if (function && id == HL_cuGetProcAddress_v2) return (void *)&resolve2;
#endif
    return function;
}

/* The same function, or one an interposer may have confused with it: the arguments are junk made for one prototype, so
 * nothing that acts on them may be called with them. What only asks, and what an interposer needs first, goes on. */
static int answered_here(uint32_t id) {
    if (hl_echo.under_test == HL_ECHO_NONE) return 0;
    if (id == hl_echo.under_test) return 1;
    const char *text = hl_name_text[id];
    if (strstr(text, "Get") || strstr(text, "Init") || strstr(text, "CtxSetCurrent") || strstr(text, "PrimaryCtxRe") ||
        strstr(text, "CtxPushCurrent") || strstr(text, "CtxPopCurrent"))
        return strncmp(text, hl_name_text[hl_echo.under_test], strlen(text)) == 0; /* a shorter variant of it */
    return 1;
}

/* A question about a handle that the walker made up: no driver may be asked, a real one would fall over it. */
static int about_junk(uint32_t id, const uint64_t *registers) {
    unsigned reg = 0;
    for (const char *at = hl_signature[id]; *at && *at != '?' && reg < 6; at++) {
        if (*at == 'h' && registers[reg] >= hl_echo.junk_start && registers[reg] < hl_echo.junk_end) return 1;
        if (strchr("hpli", *at)) reg++;
        else if (*at == 's' && at[1] == '8') reg++;
    }
    return 0;
}

__attribute__((visibility("hidden"), used)) struct hl_echo_next hl_echo_record(uint32_t id, const uint64_t *registers,
                                                                               const uint64_t *stack) {
    int here = 0, junk = 0;
    if (hl_echo.thread == (uint64_t)pthread_self()) {
        here = answered_here(id);
        junk = !here && hl_echo.under_test != HL_ECHO_NONE && about_junk(id, registers);
        uint32_t at = hl_echo.calls++;
        if (at < HL_ECHO_CALLS) {
            struct hl_echo_call *call = &hl_echo.call[at];
            call->name = id;
            call->answered = (uint32_t)here;
#if defined(__x86_64__)
            memcpy(call->registers, registers, 6 * sizeof *registers);
#else
            memcpy(call->registers, registers, 8 * sizeof *registers);
#endif
            memcpy(call->stack, stack, sizeof call->stack);
        }
    }
    if (here) return (struct hl_echo_next){NULL, hl_echo.answer};
    if (junk) return (struct hl_echo_next){NULL, id < HL_CUDA_COUNT ? CUDA_INVALID_HANDLE : NVML_INVALID_ARGUMENT};
    void *function = beyond(id);
    if (function) return (struct hl_echo_next){function, 0};
    return (struct hl_echo_next){NULL, id < HL_CUDA_COUNT ? CUDA_NOT_FOUND : NVML_FUNCTION_NOT_FOUND};
}
