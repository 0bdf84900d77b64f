/* What the exported dlsym and dlvsym answer (their entries are assembly: dlsym_ARCH.S).
 *
 * Invariants: a name that is not hooked goes to libc by a jump with the caller's own return address, so that RTLD_NEXT
 * means what it meant. For a hooked name the real answer comes first, and the hook replaces only a symbol of the real
 * driver: an absent name stays absent, another library's definition stays its own. A lookup allocates nothing, logs
 * nothing, takes no lock of ours and opens no library, so it is safe before anything is initialised. */
#include "preload.h"

#include "tables.h"

#include <dlfcn.h>
#include <string.h>

struct hl_answer {
    void *value; /* returned when jump is NULL */
    void *jump;  /* else: continue there as if we had never been called */
};

struct question {
    void *handle;
    const char *name, *version; /* version NULL: dlsym */
    const void *caller;
    int id;
    enum hl_library library;
};

/* dlsym itself may be looked up through libc's handle; the answer must be the exported entry. */
extern void *hl_entry_dlsym(void *, const char *) __asm__("dlsym");
extern void *hl_entry_dlvsym(void *, const char *, const char *) __asm__("dlvsym");

static struct link_map *own_map(void) {
    static struct link_map *cached;
    struct link_map *map = __atomic_load_n(&cached, __ATOMIC_RELAXED);
    if (map) return map;
    struct hl_place place;
    if (hl_place_of((void *)&own_map, &place) && place.map) map = (struct link_map *)(uintptr_t)place.map;
    __atomic_store_n(&cached, map, __ATOMIC_RELAXED);
    return map;
}

static bool ours(const void *address) {
    static const void *start, *end;
    const void *low = __atomic_load_n(&start, __ATOMIC_ACQUIRE);
    if (!low) {
        struct hl_place place;
        if (!hl_place_of((void *)&ours, &place)) return false;
        __atomic_store_n(&end, place.end, __ATOMIC_RELAXED);
        __atomic_store_n(&start, low = place.start, __ATOMIC_RELEASE);
    }
    return address >= low && address < __atomic_load_n(&end, __ATOMIC_RELAXED);
}

/* glibc's handles are its link maps. */
static void *own_handle(void) {
    struct link_map *map = own_map();
    for (struct link_map *at = _r_debug.r_map; !map && at;
         at = at->l_next) /* old C libraries: ours is near the start */
        if (ours(at->l_ld)) map = at;
    return map;
}

/* libc asked from here: the caller it sees is this library. Not inlined into a tail call, or it would see ours. */
static __attribute__((noinline)) void *ask(const struct question *q, void *handle) {
    void *volatile found =
        q->version ? hl_libc_dlvsym()(handle, q->name, q->version) : hl_libc_dlsym()(handle, q->name);
    return found;
}

/* Objects before ours in the loader's list are startup objects and are never unmapped: no lock is needed. */
static bool before_us(const void *address) {
    struct hl_place place, own;
    if (!hl_place_of(address, &place)) return false;
    if (!place.map) return hl_place_of((void *)&before_us, &own) && place.order < own.order;
    for (const struct link_map *at = own_map(); at; at = at->l_prev)
        if (at == place.map) return true;
    return false;
}

static struct hl_answer give(void *value) { return (struct hl_answer){value, NULL}; }

static HL_EARLY struct hl_answer leave(const struct question *q) {
    return (struct hl_answer){NULL, q->version ? (void *)hl_libc_dlvsym() : (void *)hl_libc_dlsym()};
}

static struct hl_answer substitute(const struct question *q, void *real) {
    if (!real || hl_real_owner(real) != q->library) return give(real);
    return give(hl_hook_of(q->id));
}

/* The global scope would answer with our own export whether or not a driver is there: what would it answer without us? */
static struct hl_answer without_us(const struct question *q) {
    void *next = ask(q, RTLD_NEXT);
    if (next) return substitute(q, next);
    /* An object opened later may see a driver that the global scope does not hold; its scope cannot be read, and
     * calling a driver that is there absent would break it. */
    if (!before_us(q->caller) && hl_real_defined(q->library, q->id)) return give(hl_hook_of(q->id));
    return give(NULL); /* the loader's own words for dlerror are those of the question above */
}

struct walk {
    const char *name;
    const void *caller;
    void *found; /* the first definition behind the caller that is not ours */
    bool behind;
};

static int visit(struct dl_phdr_info *info, size_t size, void *data) {
    (void)size;
    struct walk *walk = data;
    const ElfW(Dyn) *dynamic = NULL;
    bool holds = false;
    for (unsigned i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[i];
        const char *start = (const char *)info->dlpi_addr + header->p_vaddr;
        if (header->p_type == PT_DYNAMIC) dynamic = (const ElfW(Dyn) *)start;
        if (header->p_type == PT_LOAD && (const char *)walk->caller >= start &&
            (const char *)walk->caller < start + header->p_memsz)
            holds = true;
    }
    if (!walk->behind) {
        walk->behind = holds;
        return 0;
    }
    struct hl_object object;
    if (hl_object_read(&object, info->dlpi_addr, dynamic)) {
        void *found = hl_object_symbol(&object, walk->name);
        if (found && !ours(found)) walk->found = found;
    }
    return walk->found != NULL;
}

/* RTLD_NEXT of a hooked name. From before us libc's answer is ours or that of an object in between, both right once the
 * name is known to exist. From behind us libc would give the driver away, so the objects behind the caller are read. */
static struct hl_answer next(const struct question *q) {
    if (before_us(q->caller)) {
        void *real = ask(q, RTLD_NEXT);
        if (!real || hl_real_owner(real) != q->library) return give(real);
        return leave(q);
    }
    if (!hl_real_defined(q->library, q->id)) return leave(q);
    struct walk walk = {.name = q->name, .caller = q->caller};
    dl_iterate_phdr(visit, &walk);
    if (!walk.behind) return leave(q); /* code in no object has no next one: libc gives nothing, and so do we */
    if (walk.found && hl_real_owner(walk.found) != q->library) return leave(q);
    return give(hl_hook_of(q->id));
}

/* The driver's own libraries, and a thread inside a real driver call, get the driver's symbol. */
static struct hl_answer for_driver(const struct question *q) {
    if (q->handle != RTLD_DEFAULT && q->handle != RTLD_NEXT) return leave(q);
    void *real = hl_real_defined(q->library, q->id);
    return real ? give(real) : leave(q);
}

static struct hl_answer answer(const struct question *q) {
    if (hl_depth || hl_caller_is_driver(q->caller)) return for_driver(q);
    if (q->handle == RTLD_NEXT) return next(q);
    void *real = ask(q, q->handle);
    if (!real) return give(NULL);
    if (!ours(real)) return substitute(q, real);
    /* Ours came first, so the scope asked is the global one; asked through our own handle it is simply our function. */
    if (q->handle && q->handle == own_handle()) return give(real);
    return without_us(q);
}

/* "dlsym" and "dlvsym" asked of libc's own handle: libc's answer would let every later lookup escape. */
static void *own_entry(const char *name) {
    if (!strcmp(name, "dlsym")) return (void *)&hl_entry_dlsym;
    if (!strcmp(name, "dlvsym")) return (void *)&hl_entry_dlvsym;
    return NULL;
}

static struct hl_answer for_own_entry(const struct question *q) {
    void *entry = own_entry(q->name);
    if (!entry || hl_depth || hl_caller_is_driver(q->caller)) return leave(q);
    void *real = ask(q, q->handle);
    return give(real && hl_real_owner(real) == HL_LIBRARY_LIBC ? entry : real);
}

static struct hl_answer for_driver_name(struct question *q) {
    q->id = hl_hook_named(q->name);
    if (q->id < 0) return leave(q);
    q->library = hl_library_of(q->id);
    return answer(q);
}

/* Whether libc's own dlsym could be the answer although our entries come first: an explicit handle skips us, and so does
 * a version, which our entries do not carry. RTLD_NEXT behind us means what follows us: that is asked for on purpose. */
static HL_EARLY bool reaches_libc(const struct question *q) {
    if (q->handle != RTLD_DEFAULT && q->handle != RTLD_NEXT) return true;
    return q->version && (q->handle == RTLD_DEFAULT || before_us(q->caller));
}

/* Called by the assembly entries. Whatever cannot be one of ours leaves from here. */
__attribute__((visibility("hidden"))) HL_EARLY struct hl_answer hl_lookup(void *handle, const char *name,
                                                                          const char *version, const void *caller) {
    struct question q = {.handle = handle, .name = name, .version = version, .caller = caller};
    if (!name) return leave(&q);
    if ((name[0] == 'c' && name[1] == 'u') || (name[0] == 'n' && name[1] == 'v')) return for_driver_name(&q);
    if (name[0] == 'd' && name[1] == 'l' && reaches_libc(&q)) return for_own_entry(&q);
    return leave(&q);
}
