/* Who asks: which object an address lies in, and whether it is one of the driver's own libraries.
 *
 * Invariants: no lock, no allocation where the C library has _dl_find_object (2.35 and later). Before that, ranges are
 * remembered in a small append-only table, so that the loader's lock is taken once an object and not once a lookup.
 * Only ranges of the driver's libraries and of the startup objects may be remembered: they are never unmapped, others
 * may be, and their addresses handed to somebody else. */
#include "preload.h"

#include "tables.h"

#include <string.h>

/* struct dl_find_object of glibc 2.35; declared here because the headers of older C libraries lack it. */
struct found_object {
    unsigned long long flags;
    void *start, *end;
    struct link_map *map;
    void *eh_frame;
    unsigned long long reserved[16];
};
typedef int (*find_object_fn)(void *address, struct found_object *result);

static bool driver_library(const char *name) {
    static const char *const stems[] = {"libcuda.so", "libnvidia-", "libcudadebugger.so", "libnvcuvid.so",
                                        "libnvoptix.so"};
    const char *slash = strrchr(name, '/');
    const char *base = slash ? slash + 1 : name;
    if (base[0] != 'l' || base[1] != 'i' || base[2] != 'b') return false;
    for (size_t i = 0; i < sizeof stems / sizeof *stems; i++)
        if (!strncmp(base, stems[i], strlen(stems[i]))) return true;
    return false;
}

static enum hl_library library_of(const struct hl_object *object) {
    if (hl_soname_is(object->soname, "libcuda.so")) return HL_LIBRARY_CUDA;
    if (hl_soname_is(object->soname, "libnvidia-ml.so")) return HL_LIBRARY_NVML;
    if (hl_soname_is(object->soname, "libc.so") || hl_soname_is(object->soname, "libdl.so")) return HL_LIBRARY_LIBC;
    return HL_LIBRARY_NONE;
}

static find_object_fn find_object(void) {
#ifdef HL_NO_FIND_OBJECT /* tests build this way to run the path of old C libraries */
    return NULL;
#else
    static find_object_fn cached; /* every thread finds the same one */
    static int looked;
    if (__atomic_load_n(&looked, __ATOMIC_ACQUIRE)) return __atomic_load_n(&cached, __ATOMIC_RELAXED);
    find_object_fn found = (find_object_fn)hl_libc_symbol("_dl_find_object");
    __atomic_store_n(&cached, found, __ATOMIC_RELAXED);
    __atomic_store_n(&looked, 1, __ATOMIC_RELEASE);
    return found;
#endif
}

/* -- the path without _dl_find_object -- */
enum { RANGES = 64 };
static struct {
    const void *start, *end;
    bool driver;
    enum hl_library library;
    int order;
} ranges[RANGES];
static unsigned claimed, published;

struct search {
    const char *address;
    const void *start, *end;
    int order;
    bool driver;
    enum hl_library library;
};

static int visit(struct dl_phdr_info *info, size_t size, void *data) {
    (void)size;
    struct search *search = data;
    const ElfW(Dyn) *dynamic = NULL;
    const char *low = NULL, *high = NULL;
    for (unsigned i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[i];
        const char *start = (const char *)info->dlpi_addr + header->p_vaddr;
        if (header->p_type == PT_DYNAMIC) dynamic = (const ElfW(Dyn) *)start;
        if (header->p_type != PT_LOAD) continue;
        if (!low || start < low) low = start;
        if (start + header->p_memsz > high) high = start + header->p_memsz;
    }
    if (!low || search->address < low || search->address >= high) {
        search->order++;
        return 0;
    }
    struct hl_object object;
    search->start = low;
    search->end = high;
    search->driver = driver_library(info->dlpi_name);
    search->library = hl_object_read(&object, info->dlpi_addr, dynamic) ? library_of(&object) : HL_LIBRARY_NONE;
    return 1;
}

static bool place_by_range(const void *address, struct hl_place *place) {
    unsigned count = __atomic_load_n(&published, __ATOMIC_ACQUIRE);
    for (unsigned i = 0; i < count; i++)
        if (address >= ranges[i].start && address < ranges[i].end) {
            *place = (struct hl_place){ranges[i].start,  ranges[i].end,     NULL,
                                       ranges[i].driver, ranges[i].library, ranges[i].order};
            return true;
        }
    struct search search = {.address = address};
    if (!dl_iterate_phdr(visit, &search)) return false;
    *place = (struct hl_place){search.start, search.end, NULL, search.driver, search.library, search.order};
    if (search.driver || search.order == 0) { /* the main program is the first */
        unsigned expected = count;
        if (count < RANGES &&
            __atomic_compare_exchange_n(&claimed, &expected, count + 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
            ranges[count].start = search.start;
            ranges[count].end = search.end;
            ranges[count].driver = search.driver;
            ranges[count].library = search.library;
            ranges[count].order = search.order;
            __atomic_store_n(&published, count + 1, __ATOMIC_RELEASE);
        }
    }
    return true;
}

bool hl_place_of(const void *address, struct hl_place *place) {
    find_object_fn find = find_object();
    if (!find) return place_by_range(address, place);
    struct found_object found;
    if (find((void *)(uintptr_t)address, &found)) return false; /* code of a JIT or of a foreign call */
    *place = (struct hl_place){found.start, found.end, found.map, false, HL_LIBRARY_NONE, -1};
    place->driver = found.map && found.map->l_name && driver_library(found.map->l_name);
    return true;
}

enum hl_library hl_place_library(const struct hl_place *place) {
    struct hl_object object;
    if (!place->map) return place->library;
    return hl_object_read(&object, place->map->l_addr, place->map->l_ld) ? library_of(&object) : HL_LIBRARY_NONE;
}

bool hl_caller_is_driver(const void *return_address) {
    struct hl_place place;
    return hl_place_of(return_address, &place) && place.driver;
}
