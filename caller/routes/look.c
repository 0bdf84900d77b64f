/* One lookup, and who owns its answer. */
#include "walk.h"

#include "hl_table.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define DECLARE_WEAK(name) extern __attribute__((weak, visibility("default"))) char name[];
#define DECLARE(name, ...) DECLARE_WEAK(name)
HL_TABLE(DECLARE)
static void *const linked[HL_NAME_COUNT] = {
/* each entry is a relocation that the loader binds; a driver may lack one */
#define X(name, ...) [HL_##name] = (void *)name,
    HL_TABLE(X)
#undef X
};

typedef void *(*dlsym_fn)(void *, const char *);
typedef void *(*dlvsym_fn)(void *, const char *, const char *);
typedef int (*resolver1)(const char *, void **, int, unsigned long long);
typedef int (*resolver2)(const char *, void **, int, unsigned long long, int *);

/* Code that lies in no object: calls its target and returns what that returned. */
void *walk_pad(void *target) {
    static unsigned char *page;
    static unsigned used;
    if (!target) return NULL;
    if (!page) {
        void *made = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (made == MAP_FAILED) return NULL;
        page = made;
    }
    for (unsigned at = 0; at < used; at += 32)
        if (!memcmp(page + at, &target, sizeof target)) return page + at + 8;
    unsigned char *slot = page + used;
    memcpy(slot, &target, sizeof target);
#if defined(__x86_64__)
    /* sub $8,%rsp; call *-18(%rip); add $8,%rsp; ret */
    static const unsigned char code[] = {0x48, 0x83, 0xec, 0x08, 0xff, 0x15, 0xee, 0xff,
                                         0xff, 0xff, 0x48, 0x83, 0xc4, 0x08, 0xc3};
#elif defined(__aarch64__)
    /* stp x29,x30,[sp,#-16]!; ldr x16, .-12; blr x16; ldp x29,x30,[sp],#16; ret */
    static const uint32_t code[] = {0xa9bf7bfd, 0x58ffffb0, 0xd63f0200, 0xa8c17bfd, 0xd65f03c0};
#endif
    memcpy(slot + 8, code, sizeof code);
    __builtin___clear_cache((char *)slot, (char *)slot + 32);
    used += 32;
    return slot + 8;
}

static void *through(const struct walk *walk, void *function) {
    void *pad = walk->host == HL_HOST_JIT ? walk_pad(function) : NULL;
    return pad ? pad : function;
}

static void *libc_handle(void) {
    static void *handle;
    if (!handle) handle = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
    if (!handle) handle = dlopen("libdl.so.2", RTLD_LAZY | RTLD_NOLOAD);
    return handle;
}

/* A driver's symbols have no version tags. What programs use dlvsym for is to get libc's dlsym behind an interposer. */
static void *by_version(const struct walk *walk) {
    static const char *const tags[] = {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"};
    dlvsym_fn ask = (dlvsym_fn)through(walk, (void *)&dlvsym);
    void *volatile found = NULL;
    for (size_t at = 0; !found && at < sizeof tags / sizeof *tags; at++) found = ask(libc_handle(), "dlsym", tags[at]);
    return found;
}

static void *by_name(struct walk *walk, const struct hl_routes_row *row) {
    const char *name = hl_name_text[row->name];
    int nvml = row->name >= HL_CUDA_COUNT;
    dlsym_fn ask = (dlsym_fn)through(walk, (void *)&dlsym);
    void *volatile found = NULL; /* volatile: the call must not become a jump, which would lose us as its caller */
    switch (row->route) {
    case HL_WALK_LINK: return linked[row->name];
    case HL_WALK_DLSYM: found = ask(walk->handle[nvml], name); break;
    case HL_WALK_DEFAULT: found = ask(RTLD_DEFAULT, name); break;
    case HL_WALK_NEXT: found = ask(RTLD_NEXT, name); break;
    default: ask = (dlsym_fn)through(walk, by_version(walk)); found = ask ? ask(walk->handle[nvml], name) : NULL;
    }
    return found;
}

static void *resolve(struct walk *walk, resolver2 ask, const char *base, int version, unsigned long long flags,
                     struct hl_routes_row *row) {
    void *found = NULL;
    int status = -1;
    if (!ask) return NULL;
    int result = ((resolver2)through(walk, (void *)ask))(base, &found, version, flags, &status);
    if (row) row->lookup = result, row->status = status;
    return result ? NULL : found;
}

static void *by_resolver(struct walk *walk, struct hl_routes_row *row) {
    enum { ITSELF = 12000 }; /* the version since which the resolver's own name means its second form */
    const char *base = walk_base(row->name);
    resolver2 second = (resolver2)linked[HL_cuGetProcAddress_v2];
    void *found = NULL;
    switch (row->route) {
    case HL_WALK_RESOLVER1:
        row->status = -1;
        if (!linked[HL_cuGetProcAddress]) return NULL;
        row->lookup = ((resolver1)through(walk, linked[HL_cuGetProcAddress]))(base, &found, row->version, row->flags);
        return row->lookup ? NULL : found;
    case HL_WALK_RESOLVER2: break;
    case HL_WALK_DEPTH3:
        for (int depth = 0; depth < 3 && second; depth++)
            second = (resolver2)resolve(walk, second, "cuGetProcAddress", ITSELF, 0, NULL);
        break;
    default:
        second = (resolver2)((dlsym_fn)through(walk, (void *)&dlsym))(walk->handle[0], "cuGetProcAddress_v2");
        second = (resolver2)resolve(walk, second, "cuGetProcAddress", ITSELF, 0, NULL);
    }
    return resolve(walk, second, base, row->version, row->flags, row);
}

static uint8_t object_number(struct walk *walk, const char *path) {
    struct hl_routes_header *header = walk->header;
    for (unsigned at = 0; at < header->objects; at++)
        if (!strcmp(header->object + at * 256, path)) return (uint8_t)at;
    if (header->objects == HL_WALK_OBJECTS) return HL_WALK_OBJECTS - 1;
    snprintf(header->object + header->objects * 256, 256, "%s", path);
    return (uint8_t)header->objects++;
}

static void own(struct walk *walk, struct hl_routes_row *row, void *pointer) {
    row->symbol = HL_NO_NAME;
    row->owner = HL_OWNER_NONE;
    row->pointer = (uint64_t)(uintptr_t)pointer;
    if (!pointer) return;
    for (int library = 0; library < 2; library++) {
        const struct hl_echo *echo = walk->echo[library];
        if (!echo || (char *)pointer < echo->stubs || (char *)pointer >= echo->stubs + echo->count * HL_ECHO_STUB)
            continue;
        row->owner = HL_OWNER_DRIVER;
        row->symbol = (uint16_t)(echo->first + ((char *)pointer - echo->stubs) / HL_ECHO_STUB);
        return;
    }
    Dl_info info = {0};
    row->owner = HL_OWNER_UNKNOWN;
    if (!dladdr(pointer, &info) || !info.dli_fname) return;
    row->owner = HL_OWNER_OBJECT;
    row->object = object_number(walk, info.dli_fname);
    if (info.dli_sname && info.dli_saddr == pointer) {
        int id = hl_name_find(info.dli_sname);
        if (id >= 0) row->symbol = (uint16_t)id;
    }
}

void walk_look(struct walk *walk, struct hl_routes_row *row) {
    row->state = HL_STATE_LOOKING;
    for (int library = 0; library < 2; library++)
        if (walk->echo[library]) walk->echo[library]->calls = 0;
    unsigned before = walk->allocations ? *walk->allocations : 0;
    void *pointer = row->route < HL_WALK_RESOLVER1 ? by_name(walk, row) : by_resolver(walk, row);
    row->allocations = walk->allocations ? *walk->allocations - before : 0;
    for (int library = 0; library < 2; library++) {
        const struct hl_echo *echo = walk->echo[library];
        for (unsigned at = 0; echo && at < echo->calls && at < HL_ECHO_CALLS; at++) {
            unsigned name = echo->call[at].name;
            if (name == HL_cuGetProcAddress || name == HL_cuGetProcAddress_v2) row->asked++;
            else row->before++;
        }
    }
    own(walk, row, pointer);
    row->state = HL_STATE_FOUND;
}
