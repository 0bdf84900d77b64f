/* The symbol tables of an object that is already mapped, read without the loader: no lock, no allocation. */
#ifndef HOOKLAB_TABLES_H
#define HOOKLAB_TABLES_H
#include <link.h>
#include <stddef.h>
#include <stdint.h>

struct hl_object {
    ElfW(Addr) base;
    const ElfW(Sym) * symbols;
    const char *strings;
    const ElfW(Half) * versions; /* NULL: unversioned */
    const uint32_t *gnu;         /* DT_GNU_HASH or NULL */
    const ElfW(Word) * sysv;     /* DT_HASH or NULL */
    const char *soname;          /* "" if it has none */
};

/* Lookups run before anything is initialised, a sanitizer's runtime included, which asks dlsym for what it replaces: such
 * functions are not instrumented and call nothing of libc. */
#define HL_EARLY __attribute__((no_sanitize_address))

/* 1 = read, 0 = the object has no usable symbol table. */
int hl_object_read(struct hl_object *object, ElfW(Addr) base, const ElfW(Dyn) * dynamic);
/* Address of the default version of a defined symbol, NULL if the object does not define it. An indirect function
 * gives NULL too: running its resolver is the loader's business. */
void *hl_object_symbol(const struct hl_object *object, const char *name);
/* 1 if the soname is `stem` or `stem` followed by a version: "libcuda.so" fits libcuda.so.1 and not libcuda.sox. */
int hl_soname_is(const char *soname, const char *stem);
int hl_same_text(const char *one, const char *other);
const char *hl_file_name(const char *path); /* what follows the last slash */
#endif
