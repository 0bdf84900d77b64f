/* An auditor that changes nothing: with LD_AUDIT set, the loader binds every symbol through la_symbind64. A probe walks
 * under it, to see whether an interposer's hooks hold there. */
#include <link.h>

__attribute__((visibility("default"))) unsigned la_version(unsigned version) { return version; }

__attribute__((visibility("default"))) unsigned la_objopen(struct link_map *map, Lmid_t space, uintptr_t *cookie) {
    (void)map;
    (void)space;
    (void)cookie;
    return LA_FLG_BINDTO | LA_FLG_BINDFROM;
}

__attribute__((visibility("default"))) uintptr_t la_symbind64(ElfW(Sym) * symbol, unsigned index, uintptr_t *from,
                                                              uintptr_t *to, unsigned *flags, const char *name) {
    (void)index;
    (void)from;
    (void)to;
    (void)flags;
    (void)name;
    return symbol->st_value;
}
