/* How a program comes by a driver function: one way a route. Link is a table of relocations of this executable; the
 * others ask the loader or the driver at every step. The resolver may answer with a function of another ABI than the
 * one we call (an old version asked); such an answer is refused here, because calling it would corrupt the stack. */
#include "caller.h"
#include "hl_names.h"
#include "hl_table.h"
#include "hl_versions.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODERN 12000 /* what a program built today asks for, unless that names another ABI */

static const char *const texts[CALLER_COUNT] = {
#define X(name) [C_##name] = #name,
    CALLER_CUDA(X) CALLER_NVML(X)
#undef X
};

static const uint16_t hook_ids[CALLER_COUNT] = {
#define X(name) [C_##name] = HL_##name,
    CALLER_CUDA(X) CALLER_NVML(X)
#undef X
};

static void *const linked[CALLER_COUNT] = {/* each entry is a relocation that the loader binds */
#define X(name) [C_##name] = (void *)&name,
                                           CALLER_CUDA(X) CALLER_NVML(X)
#undef X
};

static const struct {
    const char *base;
    int since;
} bases[HL_NAME_COUNT] = {
#define X(name, lib, action, fake, running, since, base) [HL_##name] = {base, since},
    HL_TABLE(X)
#undef X
};

uint16_t caller_hook_id(enum caller_call call) { return hook_ids[call]; }

int route_parse(const char *text, uint8_t *route) {
    static const struct {
        const char *name;
        uint8_t route;
    } routes[] = {{"link", HL_ROUTE_LINK},        {"dlsym", HL_ROUTE_DLSYM},   {"default", HL_ROUTE_DEFAULT},
                  {"next", HL_ROUTE_NEXT},        {"dlvsym", HL_ROUTE_DLVSYM}, {"getproc", HL_ROUTE_GETPROC},
                  {"getproc1", HL_ROUTE_GETPROC1}};
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++)
        if (strcmp(text, routes[i].name) == 0) {
            *route = routes[i].route;
            return 0;
        }
    return -1;
}

void how_of(const struct step *step, const struct program *program, struct how *how) {
    const char *text = step_text(step, "route", program_setting(program, "route", "link"));
    *how = (struct how){
        .version = (int)step_number(step, "version", 0),
        .flags = step_number(step, "resolver_flags", 0),
        .symbol_version = step_text(step, "symbol_version", NULL),
    };
    if (route_parse(text, &how->route)) {
        fprintf(stderr, "hooklab-caller: %s:%d: no route %s\n", program->path, step->line, text);
        exit(2);
    }
}

static const char *soname(const char *name) {
    return strncmp(name, "nvml", 4) == 0 ? "libnvidia-ml.so.1" : "libcuda.so.1";
}

static void *library(const char *name) {
    static void *cuda, *nvml;
    void **handle = strncmp(name, "nvml", 4) == 0 ? &nvml : &cuda;
    void *known = __atomic_load_n(handle, __ATOMIC_ACQUIRE);
    if (!known) {
        known = dlopen(soname(name), RTLD_NOW | RTLD_GLOBAL);
        if (!known) fprintf(stderr, "hooklab-caller: %s\n", dlerror());
        __atomic_store_n(handle, known, __ATOMIC_RELEASE);
    }
    return known;
}

typedef CUresult (*resolver2)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);
typedef CUresult (*resolver1)(const char *, void **, int, cuuint64_t);

/* The resolver itself is got by dlsym on the handle, as the usual clients do. */
static CUresult resolve(const char *base, int version, const struct how *how, void **pointer, int *status) {
    CUdriverProcAddressQueryResult answer = CU_GET_PROC_ADDRESS_SUCCESS;
    CUresult result = CUDA_ERROR_NOT_FOUND;
    *pointer = NULL;
    void *handle = library("cu");
    if (!handle) return result;
    if (how->route == HL_ROUTE_GETPROC) {
        resolver2 ask = (resolver2)dlsym(handle, "cuGetProcAddress_v2");
        if (ask) result = ask(base, pointer, version, how->flags, &answer);
    } else {
        resolver1 ask = (resolver1)dlsym(handle, "cuGetProcAddress");
        if (ask) result = ask(base, pointer, version, how->flags);
    }
    *status = (int)answer;
    return result;
}

/* Whether the driver's answer to (base, version) has the ABI of `id`: itself or its per-thread variant. */
static int same_abi(int id, int version, uint64_t flags) {
    int status = 0;
    int chosen = hl_resolve(bases[id].base, version, flags, &status);
    if (chosen == id) return 1;
    if (chosen < 0) return 0;
    size_t size = strlen(hl_name_text[id]);
    const char *rest = hl_name_text[chosen];
    return strncmp(rest, hl_name_text[id], size) == 0 &&
           (!strcmp(rest + size, "_ptsz") || !strcmp(rest + size, "_ptds"));
}

static void *by_resolver(int id, const struct how *how) {
    int version = how->version, status = 0;
    if (!bases[id].base || !*bases[id].base) return NULL;
    if (!version) version = same_abi(id, MODERN, how->flags) ? MODERN : bases[id].since;
    if (!same_abi(id, version, how->flags)) {
        fprintf(stderr, "hooklab-caller: version %d of %s has another ABI than %s; only a lookup step may ask for it\n",
                version, bases[id].base, hl_name_text[id]);
        return NULL;
    }
    void *pointer = NULL;
    return resolve(bases[id].base, version, how, &pointer, &status) == CUDA_SUCCESS ? pointer : NULL;
}

typedef void *(*dlsym_function)(void *, const char *);

/* A driver's symbols have no version tags, so that dlvsym never finds them. What programs use it for is to get libc's
 * own dlsym by its tag, past anybody's hook, and to look the driver up with that. A step that names a tag of its own
 * asks for the driver's symbol with it. */
static void *by_dlvsym(void *handle, const char *name, const struct how *how) {
    static const char *const tags[] = {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"};
    void *found = NULL;
    if (!handle) return NULL;
    if (how->symbol_version) return dlvsym(handle, name, how->symbol_version);
    for (size_t i = 0; !found && i < sizeof tags / sizeof *tags; i++) found = dlvsym(RTLD_NEXT, "dlsym", tags[i]);
    return found ? ((dlsym_function)found)(handle, name) : NULL;
}

static void *by_name(const char *name, const struct how *how) {
    void *handle = library(name); /* also makes the library visible to the two handle-less lookups */
    switch (how->route) {
    case HL_ROUTE_DEFAULT: return dlsym(RTLD_DEFAULT, name);
    case HL_ROUTE_NEXT: return dlsym(RTLD_NEXT, name);
    case HL_ROUTE_DLVSYM: return by_dlvsym(handle, name, how);
    default: return handle ? dlsym(handle, name) : NULL;
    }
}

uint16_t caller_id_of(const char *name) {
    for (uint16_t id = 0; id < HL_NAME_COUNT; id++)
        if (strcmp(hl_name_text[id], name) == 0) return id;
    return 0xFFFF;
}

static void *link_of(const char *name) {
    for (int i = 0; i < CALLER_COUNT; i++)
        if (strcmp(texts[i], name) == 0) return linked[i];
    return NULL;
}

int caller_links(const char *name) { return link_of(name) != NULL; }

/* NVML has no resolver: the two resolver routes take its functions from the handle, as their clients do. */
static void *find(uint16_t id, void *own, const char *name, const struct how *how) {
    void *pointer = own;
    int nvml = strncmp(name, "nvml", 4) == 0;
    if (!nvml && (how->route == HL_ROUTE_GETPROC || how->route == HL_ROUTE_GETPROC1))
        pointer = id == 0xFFFF ? NULL : by_resolver(id, how);
    else if (how->route != HL_ROUTE_LINK) pointer = by_name(name, how);
    if (!pointer) fprintf(stderr, "hooklab-caller: %s was not found on its route\n", name);
    return pointer;
}

void *caller_find(enum caller_call call, const struct how *how) {
    return find(hook_ids[call], linked[call], texts[call], how);
}

void *caller_find_any(const char *name, const struct how *how) {
    return find(caller_id_of(name), link_of(name), name, how);
}

void *caller_find_name(const char *name, const struct how *how, int32_t *result, int *status) {
    void *pointer = NULL;
    *result = CUDA_SUCCESS;
    *status = 0;
    if (how->route == HL_ROUTE_GETPROC || how->route == HL_ROUTE_GETPROC1) {
        *result = (int32_t)resolve(name, how->version ? how->version : MODERN, how, &pointer, status);
        return pointer;
    }
    if (how->route != HL_ROUTE_LINK) return by_name(name, how);
    pointer = link_of(name);
    if (!pointer) *result = CUDA_ERROR_NOT_FOUND; /* this executable has no relocation of that name */
    return pointer;
}
