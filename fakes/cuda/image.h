/* What is in a device image: PTX text, an ELF cubin, or a fat binary of these. Reads names, parameter lists and sizes;
 * translates nothing. */
#ifndef HOOKLAB_IMAGE_H
#define HOOKLAB_IMAGE_H
#include <stddef.h>
#include <stdint.h>

enum { PARAMETERS_MAX = 256, IMAGE_PTX = 1, IMAGE_ELF = 2 };
enum behaviour { DOES_NOTHING_KNOWN, DOES_VADD, DOES_MAIL, DOES_MAIL_ALL, DOES_FILL, DOES_COPY, DOES_SPIN };

struct parameter {
    uint32_t offset, size;
};

struct entry {
    char *name;
    uint32_t count, bytes; /* parameters and the length of their buffer */
    struct parameter *parameter;
    uint32_t registers, shared, constant, local, max_threads;
    int ptx_version, binary_version; /* 10 * major + minor */
    unsigned uses;                   /* its image's */
    enum behaviour behaviour;
    uint64_t hash;
};

struct variable {
    char *name;
    uint64_t bytes;
    int is_managed;
};

struct image {
    int kind, target;
    unsigned uses; /* of the device's own functions: 1 printf, 2 malloc and free */
    size_t bytes;  /* of the source */
    uint32_t entries, variables;
    struct entry *entry;
    struct variable *variable;
};

/* data: the image; bytes: its length, 0 = find out (PTX ends at a NUL, the others say). capability: 10 * major + minor of
 * the device. 0, or a CUresult: 200 not an image, 209 nothing for this device, 218 bad PTX, 222 PTX too new. */
int image_parse(const void *data, size_t bytes, int capability, struct image **out);
size_t image_size(const void *data); /* bytes of an image that says or shows where it ends */
void image_free(struct image *image);
const struct entry *image_entry(const struct image *image, const char *name);

/* image_ptx.c, image_elf.c */
int ptx_parse(const char *text, size_t bytes, int capability, struct image *image);
int elf_parse(const uint8_t *data, size_t bytes, int capability, struct image *image);
struct entry *image_add_entry(struct image *image, const char *name, size_t length);
int image_add_variable(struct image *image, const char *name, size_t length, uint64_t bytes, int is_managed);
void entry_add_parameter(struct entry *entry, uint32_t offset, uint32_t size);
void image_calls(struct image *image, const char *name, size_t length); /* a function that it does not define */
void entry_finish(struct entry *entry, int waits_for_clock);
#endif
