/* Symbol lookup in a mapped object's own tables (see tables.h).
 *
 * Invariants: only memory of the object itself is read, and it stays mapped because the caller holds it (libc and the
 * drivers are never unloaded once found, other objects are read inside the loader's own iteration). Nothing is written. */
#include "tables.h"

/* glibc relocates d_ptr in place on x86_64 and aarch64, except in objects it maps read-only (the vDSO). */
static HL_EARLY const void *at(ElfW(Addr) base, ElfW(Addr) value) {
    return (const void *)(value < base ? base + value : value);
}

HL_EARLY int hl_object_read(struct hl_object *object, ElfW(Addr) base, const ElfW(Dyn) * dynamic) {
    *object = (struct hl_object){.base = base, .soname = ""};
    if (!dynamic) return 0;
    ElfW(Addr) soname = 0;
    int has_soname = 0;
    for (const ElfW(Dyn) *entry = dynamic; entry->d_tag != DT_NULL; entry++) {
        switch (entry->d_tag) {
        case DT_SYMTAB: object->symbols = at(base, entry->d_un.d_ptr); break;
        case DT_STRTAB: object->strings = at(base, entry->d_un.d_ptr); break;
        case DT_VERSYM: object->versions = at(base, entry->d_un.d_ptr); break;
        case DT_GNU_HASH: object->gnu = at(base, entry->d_un.d_ptr); break;
        case DT_HASH: object->sysv = at(base, entry->d_un.d_ptr); break;
        case DT_SONAME: soname = entry->d_un.d_val, has_soname = 1; break;
        default: break;
        }
    }
    if (!object->symbols || !object->strings) return 0;
    if (has_soname) object->soname = object->strings + soname;
    return object->gnu || object->sysv;
}

static HL_EARLY void *value(const struct hl_object *object, uint32_t index, const char *name) {
    const ElfW(Sym) *symbol = &object->symbols[index];
    if (symbol->st_shndx == SHN_UNDEF || !hl_same_text(object->strings + symbol->st_name, name)) return NULL;
    unsigned type = ELF64_ST_TYPE(symbol->st_info), bind = ELF64_ST_BIND(symbol->st_info);
    if (bind == STB_LOCAL || type == STT_TLS || type == STT_GNU_IFUNC) return NULL;
    if (object->versions && object->versions[index] & 0x8000) return NULL; /* an old version kept for old programs */
    return (void *)(object->base + symbol->st_value);
}

static HL_EARLY void *by_gnu_hash(const struct hl_object *object, const char *name) {
    uint32_t hash = 5381;
    for (const unsigned char *c = (const unsigned char *)name; *c; c++) hash = hash * 33 + *c;
    const uint32_t *table = object->gnu;
    uint32_t buckets = table[0], first = table[1], words = table[2], shift = table[3];
    if (!buckets || !words) return NULL;
    const ElfW(Addr) *bloom = (const ElfW(Addr) *)(table + 4);
    const uint32_t *bucket = (const uint32_t *)(bloom + words), *chain = bucket + buckets;
    const unsigned bits = 8 * sizeof *bloom;
    ElfW(Addr) word = bloom[hash / bits & (words - 1)];
    ElfW(Addr) mask = (ElfW(Addr))1 << hash % bits | (ElfW(Addr))1 << (hash >> shift) % bits;
    if ((word & mask) != mask) return NULL;
    uint32_t index = bucket[hash % buckets];
    if (index < first) return NULL;
    for (;; index++) {
        uint32_t entry = chain[index - first];
        if ((entry | 1) == (hash | 1)) {
            void *found = value(object, index, name);
            if (found) return found;
        }
        if (entry & 1) return NULL;
    }
}

static HL_EARLY void *by_sysv_hash(const struct hl_object *object, const char *name) {
    uint32_t hash = 0;
    for (const unsigned char *c = (const unsigned char *)name; *c; c++) {
        hash = (hash << 4) + *c;
        uint32_t high = hash & 0xf0000000u;
        hash ^= high >> 24;
        hash &= ~high;
    }
    ElfW(Word) buckets = object->sysv[0];
    const ElfW(Word) *bucket = object->sysv + 2, *chain = bucket + buckets;
    if (!buckets) return NULL;
    for (ElfW(Word) index = bucket[hash % buckets]; index != STN_UNDEF; index = chain[index]) {
        void *found = value(object, index, name);
        if (found) return found;
    }
    return NULL;
}

HL_EARLY void *hl_object_symbol(const struct hl_object *object, const char *name) {
    return object->gnu ? by_gnu_hash(object, name) : by_sysv_hash(object, name);
}

HL_EARLY int hl_soname_is(const char *soname, const char *stem) {
    while (*stem && *soname == *stem) soname++, stem++;
    return !*stem && (!*soname || *soname == '.');
}

HL_EARLY int hl_same_text(const char *one, const char *other) {
    while (*one && *one == *other) one++, other++;
    return *one == *other;
}

HL_EARLY const char *hl_file_name(const char *path) {
    const char *name = path;
    for (; *path; path++)
        if (*path == '/') name = path + 1;
    return name;
}
