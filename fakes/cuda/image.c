/* See image.h: which kind of image it is, fat binaries, and what a kernel of a known name and parameter list does. */
#include "image.h"

#include <elf.h>
#include <stdlib.h>
#include <string.h>

enum { INVALID_IMAGE = 200, NO_BINARY = 209 };

struct fat_header {
    uint32_t magic;
    uint16_t version, header_bytes;
    uint64_t bytes;
};

struct fat_part {
    uint16_t kind, version;
    uint32_t header_bytes;
    uint64_t bytes;
    uint32_t compressed_bytes, options;
    uint16_t minor, major;
    uint32_t architecture;
    uint32_t name_offset, name_bytes;
    uint64_t flags, zero, uncompressed_bytes;
};

struct fat_wrapper {
    uint32_t magic, version;
    const void *data;
    void *names;
};

struct entry *image_add_entry(struct image *image, const char *name, size_t length) {
    struct entry *grown = realloc(image->entry, (image->entries + 1) * sizeof *grown);
    if (!grown) return NULL;
    image->entry = grown;
    struct entry *e = &grown[image->entries++];
    memset(e, 0, sizeof *e);
    e->registers = 12;
    e->max_threads = 1024;
    e->name = strndup(name, length);
    return e->name ? e : NULL;
}

int image_add_variable(struct image *image, const char *name, size_t length, uint64_t bytes, int is_managed) {
    struct variable *grown = realloc(image->variable, (image->variables + 1) * sizeof *grown);
    if (!grown) return -1;
    image->variable = grown;
    grown[image->variables++] = (struct variable){strndup(name, length), bytes, is_managed};
    return 0;
}

void entry_add_parameter(struct entry *e, uint32_t offset, uint32_t size) {
    struct parameter *grown = realloc(e->parameter, (e->count + 1) * sizeof *grown);
    if (!grown) return;
    e->parameter = grown;
    grown[e->count++] = (struct parameter){offset, size};
    if (offset + size > e->bytes) e->bytes = offset + size;
}

/* `vadd`, or vadd of any signature as a C++ compiler writes it: _Z4vadd... */
static int is_named(const char *name, const char *wanted) {
    size_t length = strlen(wanted);
    if (strcmp(name, wanted) == 0) return 1;
    if (strncmp(name, "_Z", 2)) return 0;
    char *end;
    unsigned long digits = strtoul(name + 2, &end, 10);
    return digits == length && strncmp(end, wanted, length) == 0;
}

static int has(const struct entry *e, uint32_t count, const uint32_t *sizes) {
    if (e->count != count) return 0;
    for (uint32_t i = 0; i < count; i++)
        if (e->parameter[i].size != sizes[i]) return 0;
    return 1;
}

void entry_finish(struct entry *e, int waits_for_clock) {
    static const uint32_t vadd[] = {8, 8, 8, 4}, mail[] = {8, 4}, one[] = {8}, fill[] = {8, 4, 4}, copy[] = {8, 8, 4};
    e->hash = 14695981039346656037ull;
    for (const char *c = e->name; *c; c++) e->hash = (e->hash ^ (uint8_t)*c) * 1099511628211ull;
    if (is_named(e->name, "vadd") && has(e, 4, vadd)) e->behaviour = DOES_VADD;
    else if (is_named(e->name, "mail") && has(e, 2, mail)) e->behaviour = DOES_MAIL;
    else if (is_named(e->name, "mail_kernel") && has(e, 2, mail)) e->behaviour = DOES_MAIL_ALL;
    else if (is_named(e->name, "fill") && has(e, 3, fill)) e->behaviour = DOES_FILL;
    else if (is_named(e->name, "copy") && has(e, 3, copy)) e->behaviour = DOES_COPY;
    else if (waits_for_clock && has(e, 1, one)) e->behaviour = DOES_SPIN;
}

const struct entry *image_entry(const struct image *image, const char *name) {
    for (uint32_t i = 0; i < image->entries; i++)
        if (strcmp(image->entry[i].name, name) == 0) return &image->entry[i];
    return NULL;
}

void image_free(struct image *image) {
    if (!image) return;
    for (uint32_t i = 0; i < image->entries; i++) {
        free(image->entry[i].name);
        free(image->entry[i].parameter);
    }
    for (uint32_t i = 0; i < image->variables; i++) free(image->variable[i].name);
    free(image->entry);
    free(image->variable);
    free(image);
}

static size_t elf_size(const uint8_t *data) {
    Elf64_Ehdr h;
    memcpy(&h, data, sizeof h);
    uint64_t end = h.e_shoff + (uint64_t)h.e_shnum * h.e_shentsize,
             programs = h.e_phoff + (uint64_t)h.e_phnum * h.e_phentsize;
    return h.e_shoff ? (end > programs ? end : programs) : 0;
}

size_t image_size(const void *data) {
    if (*(const char *)data == 0) return 0;
    if (strncmp(data, ELFMAG, SELFMAG) == 0) return elf_size(data);
    if (strncmp(data, "\x50\xed\x55\xba", 4) == 0) {
        struct fat_header h;
        memcpy(&h, data, sizeof h);
        return h.header_bytes + h.bytes;
    }
    return strlen(data);
}

/* The part that a driver would pick: the highest binary that this device runs, else the highest PTX. */
static int fat_parse(const uint8_t *data, size_t bytes, int capability, struct image *image) {
    struct fat_header h;
    memcpy(&h, data, sizeof h);
    if (h.header_bytes < sizeof h || h.header_bytes > bytes || h.bytes > bytes - h.header_bytes) return INVALID_IMAGE;
    const uint8_t *at = data + h.header_bytes, *end = at + h.bytes;
    const struct fat_part *best = NULL;
    while (at + sizeof(struct fat_part) <= end) {
        struct fat_part part;
        memcpy(&part, at, sizeof part);
        if (part.header_bytes < 32 || part.header_bytes > (size_t)(end - at) ||
            part.bytes > (size_t)(end - at) - part.header_bytes)
            break;
        int arch = (int)part.architecture, is_elf = part.kind == 2;
        int runs = is_elf ? arch / 10 == capability / 10 && arch <= capability : part.kind == 1 && arch <= capability;
        if (runs &&
            (!best || (is_elf && best->kind == 1) || (is_elf == (best->kind == 2) && arch > (int)best->architecture)))
            best = (const struct fat_part *)(const void *)at;
        at += part.header_bytes + part.bytes;
    }
    if (!best) return NO_BINARY;
    struct fat_part part;
    memcpy(&part, best, sizeof part);
    if (part.compressed_bytes) return INVALID_IMAGE; /* compressed parts are not unpacked: docs/limitations.md */
    const uint8_t *body = (const uint8_t *)best + part.header_bytes;
    return part.kind == 2 ? elf_parse(body, part.bytes, capability, image)
                          : ptx_parse((const char *)body, strnlen((const char *)body, part.bytes), capability, image);
}

int image_parse(const void *data, size_t bytes, int capability, struct image **out) {
    if (!bytes) bytes = image_size(data);
    struct fat_wrapper wrapper;
    if (*(const uint8_t *)data == 0xB1 && strncmp(data, "\xb1\x43\x62\x46", 4) == 0) {
        memcpy(&wrapper, data, sizeof wrapper);
        data = wrapper.data;
        bytes = image_size(data);
    }
    struct image *image = calloc(1, sizeof *image);
    if (!image) return 2;
    image->bytes = bytes;
    int code = INVALID_IMAGE;
    if (bytes >= sizeof(Elf64_Ehdr) && memcmp(data, ELFMAG, SELFMAG) == 0) {
        image->kind = IMAGE_ELF;
        code = elf_parse(data, bytes, capability, image);
    } else if (bytes >= sizeof(struct fat_header) && memcmp(data, "\x50\xed\x55\xba", 4) == 0) {
        image->kind = IMAGE_ELF;
        code = fat_parse(data, bytes, capability, image);
    } else if (bytes) {
        image->kind = IMAGE_PTX;
        code = ptx_parse(data, strnlen(data, bytes), capability, image);
    }
    if (code) {
        image_free(image);
        return code;
    }
    for (uint32_t i = 0; i < image->entries; i++) image->entry[i].uses = image->uses;
    *out = image;
    return 0;
}

void image_calls(struct image *image, const char *name, size_t length) {
    static const struct {
        const char *name;
        unsigned use;
    } known[] = {{"vprintf", 1}, {"malloc", 2}, {"free", 2}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strlen(known[i].name) == length && memcmp(known[i].name, name, length) == 0) image->uses |= known[i].use;
}
