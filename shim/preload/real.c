/* The real functions: libc's own dlsym and dlvsym, and every name of the hook table in the driver's two libraries.
 *
 * Invariants: libc's functions come from its ELF tables, because asking the loader for "dlsym" is the recursion that
 * makes interposers fall over. The driver's libraries are opened by soname, the already mapped one first, by the first
 * wrapper that runs and never by a lookup; they are never closed. The table has one writer's worth of truth: threads
 * that race write the same pointers, and `ready` is published after the last of them. */
#include "preload.h"

#include "tables.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>

void *hl_real_table[HL_NAME_COUNT];

static const char *const sonames[] = {[HL_LIBRARY_CUDA] = "libcuda.so.1", [HL_LIBRARY_NVML] = "libnvidia-ml.so.1"};
static const char *const stems[] = {[HL_LIBRARY_CUDA] = "libcuda.so", [HL_LIBRARY_NVML] = "libnvidia-ml.so"};
static struct {
    int ready; /* release/acquire: the table and the range are whole */
    const void *start, *end;
} libraries[2];

/* -- libc -- */
HL_EARLY void *hl_libc_symbol(const char *name) {
    /* 2.34 and later have them in libc; before that they are in libdl, which we link against and which is therefore
     * mapped. Both are startup objects: the part of the list that is walked never changes. */
    static const char *const homes[] = {"libc.so", "libdl.so"};
    for (unsigned home = 0; home < 2; home++)
        for (const struct link_map *map = _r_debug.r_map; map; map = map->l_next) {
            struct hl_object object;
            if (!map->l_name || !hl_soname_is(hl_file_name(map->l_name), homes[home])) continue;
            if (!hl_object_read(&object, map->l_addr, map->l_ld) || !hl_soname_is(object.soname, homes[home])) continue;
            void *found = hl_object_symbol(&object, name);
            if (found) return found;
            break;
        }
    return NULL;
}

HL_EARLY hl_dlsym_fn hl_libc_dlsym(void) {
    static void *cached;
    void *found = __atomic_load_n(&cached, __ATOMIC_RELAXED);
    if (HL_UNLIKELY(!found)) __atomic_store_n(&cached, found = hl_libc_symbol("dlsym"), __ATOMIC_RELAXED);
    return (hl_dlsym_fn)found;
}

HL_EARLY hl_dlvsym_fn hl_libc_dlvsym(void) {
    static void *cached;
    void *found = __atomic_load_n(&cached, __ATOMIC_RELAXED);
    if (HL_UNLIKELY(!found)) __atomic_store_n(&cached, found = hl_libc_symbol("dlvsym"), __ATOMIC_RELAXED);
    return (hl_dlvsym_fn)found;
}

/* -- the driver -- */
static bool load(enum hl_library library) {
    void *handle = dlopen(sonames[library], RTLD_LAZY | RTLD_NOLOAD);
    if (!handle) handle = dlopen(sonames[library], RTLD_LAZY | RTLD_LOCAL);
    struct link_map *map = NULL;
    if (!handle || dlinfo(handle, RTLD_DI_LINKMAP, &map) || !map) return false;
    struct hl_object object;
    if (!hl_object_read(&object, map->l_addr, map->l_ld)) return false;
    int first = library == HL_LIBRARY_CUDA ? 0 : HL_CUDA_COUNT;
    int last = library == HL_LIBRARY_CUDA ? HL_CUDA_COUNT : HL_NAME_COUNT;
    void *found[HL_NAME_COUNT] = {NULL}, *inside = NULL;
    for (int id = first; id < last; id++) {
        found[id] = hl_object_symbol(&object, hl_name_text[id]);
        if (found[id]) inside = found[id];
    }
    struct hl_place place;
    if (inside && hl_place_of(inside, &place)) {
        libraries[library].start = place.start;
        libraries[library].end = place.end;
    }
    if (library == HL_LIBRARY_CUDA) hl_hooks_index(found); /* before a wrapper can find its real resolver */
    for (int id = first; id < last; id++) __atomic_store_n(&hl_real_table[id], found[id], __ATOMIC_RELEASE);
    __atomic_store_n(&libraries[library].ready, 1, __ATOMIC_RELEASE);
    return true;
}

bool hl_real_ready(enum hl_library library) { return __atomic_load_n(&libraries[library].ready, __ATOMIC_ACQUIRE); }

void *hl_real_load(int id) {
    enum hl_library library = hl_library_of(id);
    if (!hl_real_ready(library)) {
        int saved = errno;
        load(library);
        errno = saved;
    }
    return __atomic_load_n(&hl_real_table[id], __ATOMIC_ACQUIRE);
}

enum hl_library hl_real_owner(const void *address) {
    for (int library = 0; library < 2; library++)
        if (hl_real_ready(library) && address >= libraries[library].start && address < libraries[library].end)
            return library;
    struct hl_place place;
    return hl_place_of(address, &place) ? hl_place_library(&place) : HL_LIBRARY_NONE;
}

struct wanted {
    const char *stem, *name;
    void *found;
};

static int visit(struct dl_phdr_info *info, size_t size, void *data) {
    (void)size;
    struct wanted *wanted = data;
    struct hl_object object;
    for (unsigned i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
        const ElfW(Dyn) *dynamic = (const ElfW(Dyn) *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
        if (hl_object_read(&object, info->dlpi_addr, dynamic) && hl_soname_is(object.soname, wanted->stem))
            wanted->found = hl_object_symbol(&object, wanted->name);
        return wanted->found != NULL;
    }
    return 0;
}

/* Before the first wrapper ran, the loader's list is asked; only the rare lookups that need this (a default or next
 * lookup that the global scope does not answer) come here, and the real dlsym takes the same lock. */
void *hl_real_defined(enum hl_library library, int id) {
    if (hl_real_ready(library)) return __atomic_load_n(&hl_real_table[id], __ATOMIC_ACQUIRE);
    struct wanted wanted = {.stem = stems[library], .name = hl_name_text[id]};
    dl_iterate_phdr(visit, &wanted);
    return wanted.found;
}
