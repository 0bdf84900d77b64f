/* The parts of a cubin that name things: entries are symbols marked as entries, parameters are in .nv.info.NAME. */
#include "image.h"

#include <elf.h>
#include <string.h>

enum {
    INVALID_IMAGE = 200,
    NO_BINARY = 209,
    MACHINE_CUDA = 190,
    OTHER_ENTRY = 0x10,
    FORMAT_NONE = 1,
    FORMAT_BYTE = 2,
    FORMAT_HALF = 3,
    FORMAT_BLOCK = 4,
    ATTRIBUTE_PARAMETER = 0x17,
    ATTRIBUTE_PARAMETER_2 = 0x45,
};

struct view {
    const uint8_t *data;
    size_t bytes;
    Elf64_Ehdr head;
};

static int section(const struct view *v, uint32_t index, Elf64_Shdr *out) {
    uint64_t at = v->head.e_shoff + (uint64_t)index * v->head.e_shentsize;
    if (index >= v->head.e_shnum || at > v->bytes || v->bytes - at < sizeof *out) return -1;
    memcpy(out, v->data + at, sizeof *out);
    return out->sh_type == SHT_NOBITS || (out->sh_offset <= v->bytes && out->sh_size <= v->bytes - out->sh_offset) ? 0
                                                                                                                   : -1;
}

static const char *string(const struct view *v, const Elf64_Shdr *table, uint32_t at) {
    if (at >= table->sh_size) return NULL;
    const char *text = (const char *)v->data + table->sh_offset + at;
    return memchr(text, 0, table->sh_size - at) ? text : NULL;
}

static int find_section(const struct view *v, const char *prefix, const char *name, Elf64_Shdr *out) {
    Elf64_Shdr names;
    if (section(v, v->head.e_shstrndx, &names)) return -1;
    size_t length = strlen(prefix);
    for (uint32_t i = 0; i < v->head.e_shnum; i++) {
        const char *text = section(v, i, out) ? NULL : string(v, &names, out->sh_name);
        if (text && strncmp(text, prefix, length) == 0 && strcmp(text + length, name) == 0) return 0;
    }
    return -1;
}

struct found {
    uint32_t offset, size, seen;
};

static void read_parameters(const struct view *v, struct entry *e) {
    struct found found[PARAMETERS_MAX] = {{0}};
    Elf64_Shdr info;
    if (find_section(v, ".nv.info.", e->name, &info)) return;
    const uint8_t *at = v->data + info.sh_offset, *end = at + info.sh_size;
    while (end - at >= 4) {
        uint8_t format = at[0], what = at[1];
        uint16_t half;
        memcpy(&half, at + 2, 2);
        at += 4;
        if (format != FORMAT_BLOCK) {
            if (format < FORMAT_NONE || format > FORMAT_BLOCK) return;
            continue;
        }
        if (half > end - at) return;
        if ((what == ATTRIBUTE_PARAMETER || what == ATTRIBUTE_PARAMETER_2) && half >= 12) {
            uint16_t ordinal, offset;
            uint32_t word;
            memcpy(&ordinal, at + 4, 2);
            memcpy(&offset, at + 6, 2);
            memcpy(&word, at + 8, 4);
            if (ordinal < PARAMETERS_MAX)
                found[ordinal] = (struct found){offset, what == ATTRIBUTE_PARAMETER ? word >> 18 : word & 0xffff, 1};
        }
        at += half;
    }
    for (uint32_t i = 0; i < PARAMETERS_MAX && found[i].seen; i++)
        entry_add_parameter(e, found[i].offset, found[i].size);
}

int elf_parse(const uint8_t *data, size_t bytes, int capability, struct image *image) {
    struct view v = {.data = data, .bytes = bytes};
    memcpy(&v.head, data, sizeof v.head);
    if (v.head.e_ident[EI_CLASS] != ELFCLASS64 || v.head.e_machine != MACHINE_CUDA ||
        v.head.e_shentsize < sizeof(Elf64_Shdr))
        return INVALID_IMAGE;
    /* The architecture is in the low byte of the flags, or in the next one in the newer form (ABI 8 and later). */
    int arch = v.head.e_ident[EI_ABIVERSION] >= 8 ? (int)(v.head.e_flags >> 8 & 0xff) : (int)(v.head.e_flags & 0xff);
    image->target = arch;
    if (arch && (arch / 10 != capability / 10 || arch > capability)) return NO_BINARY;
    Elf64_Shdr symbols, strings;
    for (uint32_t i = 0; i < v.head.e_shnum; i++) {
        if (section(&v, i, &symbols)) return INVALID_IMAGE;
        if (symbols.sh_type != SHT_SYMTAB) continue;
        if (section(&v, symbols.sh_link, &strings)) return INVALID_IMAGE;
        for (uint64_t at = 0; at + sizeof(Elf64_Sym) <= symbols.sh_size; at += sizeof(Elf64_Sym)) {
            Elf64_Sym s;
            memcpy(&s, data + symbols.sh_offset + at, sizeof s);
            const char *name = string(&v, &strings, s.st_name);
            if (!name || !*name) continue;
            if (s.st_shndx == SHN_UNDEF) {
                image_calls(image, name, strlen(name));
                continue;
            }
            if (ELF64_ST_TYPE(s.st_info) == STT_FUNC && (s.st_other & OTHER_ENTRY)) {
                struct entry *e = image_add_entry(image, name, strlen(name));
                if (!e) return 2;
                e->binary_version = e->ptx_version = arch;
                read_parameters(&v, e);
                entry_finish(e, 0);
            } else if (ELF64_ST_TYPE(s.st_info) == STT_OBJECT && s.st_size && ELF64_ST_BIND(s.st_info) != STB_LOCAL) {
                if (image_add_variable(image, name, strlen(name), s.st_size, 0)) return 2;
            }
        }
        return 0;
    }
    return INVALID_IMAGE;
}
