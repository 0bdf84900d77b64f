/* Reads PTX text as far as a driver's user can tell: version and target, entries with their parameters, variables of the
 * module, and whether each statement begins with an instruction that exists. It does not type-check operands. */
#include "image.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum {
    INVALID_IMAGE = 200,
    INVALID_PTX = 218,
    UNSUPPORTED_PTX_VERSION = 222,
    NEWEST_MAJOR = 9,
    NEWEST_MINOR = 0,
    NO_MEMORY = 2
};

/* Sorted. */
static const char *const opcodes[] = {
    "abs",          "activemask",    "add",       "addc",       "alloca",
    "and",          "applypriority", "atom",      "bar",        "barrier",
    "bfe",          "bfi",           "bfind",     "bmsk",       "bra",
    "brev",         "brkpt",         "brx",       "call",       "clusterlaunchcontrol",
    "clz",          "cnot",          "copysign",  "cos",        "cp",
    "createpolicy", "cvt",           "cvta",      "discard",    "div",
    "dp2a",         "dp4a",          "elect",     "ex2",        "exit",
    "fence",        "fma",           "fns",       "getctarank", "griddepcontrol",
    "isspacep",     "istypep",       "ld",        "ldmatrix",   "ldu",
    "lg2",          "lop3",          "mad",       "mad24",      "madc",
    "mapa",         "match",         "max",       "mbarrier",   "membar",
    "min",          "mma",           "mov",       "movmatrix",  "mul",
    "mul24",        "multimem",      "nanosleep", "neg",        "not",
    "or",           "pmevent",       "popc",      "prefetch",   "prefetchu",
    "prmt",         "rcp",           "red",       "redux",      "rem",
    "ret",          "rsqrt",         "sad",       "selp",       "set",
    "setmaxnreg",   "setp",          "shf",       "shfl",       "shl",
    "shr",          "sin",           "slct",      "sqrt",       "st",
    "stackrestore", "stacksave",     "stmatrix",  "sub",        "subc",
    "suld",         "suq",           "sured",     "sust",       "szext",
    "tanh",         "tcgen05",       "tensormap", "testp",      "tex",
    "tld4",         "trap",          "txq",       "vabsdiff",   "vabsdiff2",
    "vabsdiff4",    "vadd",          "vadd2",     "vadd4",      "vavrg2",
    "vavrg4",       "vmad",          "vmax",      "vmax2",      "vmax4",
    "vmin",         "vmin2",         "vmin4",     "vote",       "vset",
    "vset2",        "vset4",         "vshl",      "vshr",       "vsub",
    "vsub2",        "vsub4",         "wgmma",     "wmma",       "xor",
};

struct text {
    const char *at, *end;
};

static int compare(const void *key, const void *element) {
    const struct text *t = key;
    const char *name = *(const char *const *)element;
    size_t length = (size_t)(t->end - t->at), other = strlen(name);
    int order = memcmp(t->at, name, length < other ? length : other);
    return order ? order : (length > other) - (length < other);
}

static int is_word(char c) { return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '%'; }

static void skip(struct text *t) {
    while (t->at < t->end && isspace((unsigned char)*t->at)) t->at++;
}

static struct text word(struct text *t) {
    skip(t);
    struct text w = {t->at, t->at};
    while (t->at < t->end && is_word(*t->at)) t->at++;
    w.end = t->at;
    return w;
}

static int equals(struct text w, const char *wanted) {
    return (size_t)(w.end - w.at) == strlen(wanted) && memcmp(w.at, wanted, strlen(wanted)) == 0;
}

/* Comments and string contents become spaces; line structure is of no meaning in PTX. */
static char *blank_comments(const char *text, size_t bytes) {
    char *copy = malloc(bytes + 1);
    if (!copy) return NULL;
    memcpy(copy, text, bytes);
    copy[bytes] = 0;
    for (char *c = copy; *c;) {
        if (c[0] == '/' && c[1] == '/') {
            while (*c && *c != '\n') *c++ = ' ';
        } else if (c[0] == '/' && c[1] == '*') {
            char *end = strstr(c + 2, "*/");
            char *stop = end ? end + 2 : c + strlen(c);
            memset(c, ' ', (size_t)(stop - c));
        } else if (*c == '"') {
            *c++ = ' ';
            while (*c && *c != '"') *c++ = ' ';
            if (*c) *c++ = ' ';
        } else {
            c++;
        }
    }
    return copy;
}

static uint32_t type_bytes(struct text w) {
    size_t length = (size_t)(w.end - w.at);
    if (equals(w, "pred")) return 1;
    if (equals(w, "texref") || equals(w, "samplerref") || equals(w, "surfref")) return 8;
    const char *digit = w.at;
    while (digit < w.end && !isdigit((unsigned char)*digit)) digit++;
    return length && digit < w.end ? (uint32_t)atoi(digit) / 8 : 0;
}

/* [.directive [n]]* .type name [ '[' n ']' ]* : a parameter or a variable. Leaves t after it. */
static int declaration(struct text *t, struct text *name, uint64_t *bytes, uint32_t *align) {
    uint32_t size = 0, own_align = 0;
    uint64_t vector = 1;
    skip(t);
    while (t->at < t->end && *t->at == '.') {
        t->at++;
        struct text w = word(t);
        if (equals(w, "align")) {
            own_align = (uint32_t)strtoul(t->at, (char **)(void *)&t->at, 10);
        } else if (equals(w, "ptr") || equals(w, "global") || equals(w, "const") || equals(w, "shared") ||
                   equals(w, "local") || equals(w, "param")) {
            ;
        } else if (equals(w, "attribute")) {
            while (t->at < t->end && *t->at++ != ')') {}
        } else if (equals(w, "v2") || equals(w, "v4")) {
            vector = (uint64_t)(w.at[1] - '0');
        } else {
            size = type_bytes(w);
        }
        skip(t);
    }
    *name = word(t);
    if (!size || name->at == name->end) return -1;
    *bytes = size * vector;
    skip(t);
    while (t->at < t->end && *t->at == '[') {
        t->at++;
        uint64_t n = strtoull(t->at, (char **)(void *)&t->at, 0);
        *bytes *= n;
        while (t->at < t->end && *t->at != ']') t->at++;
        if (t->at < t->end) t->at++;
        skip(t);
    }
    *align = own_align ? own_align : size * (uint32_t)vector;
    return 0;
}

static int parameters(struct text *t, struct entry *e) {
    uint32_t offset = 0;
    skip(t);
    if (t->at >= t->end || *t->at != '(') return 0; /* an entry without a list has no parameters */
    t->at++;
    for (;;) {
        skip(t);
        if (t->at >= t->end) return -1;
        if (*t->at == ')') break;
        if (*t->at == ',') {
            t->at++;
            continue;
        }
        struct text name;
        uint64_t bytes;
        uint32_t align;
        if (declaration(t, &name, &bytes, &align)) return -1;
        if (align) offset = (offset + align - 1) / align * align;
        entry_add_parameter(e, offset, (uint32_t)bytes);
        offset += (uint32_t)bytes;
    }
    t->at++;
    return 0;
}

/* The statements of a body, from after its '{' to after the matching '}'. */
static int body(struct text *t, struct entry *e, int *clock) {
    int depth = 1;
    while (t->at < t->end) {
        skip(t);
        if (t->at >= t->end) return -1;
        char c = *t->at;
        if (c == '{') depth++;
        if (c == '}' && --depth == 0) {
            t->at++;
            return 0;
        }
        if (c == '{' || c == '}' || c == ';') {
            t->at++;
            continue;
        }
        const char *start = t->at;
        if (c == '.') { /* a directive: declarations and line information */
            struct text d = {t->at + 1, t->end}, name;
            struct text what = word(&d);
            uint64_t bytes;
            uint32_t align;
            int shared = equals(what, "shared");
            if ((shared || equals(what, "local")) && e && declaration(&d, &name, &bytes, &align) == 0)
                *(shared ? &e->shared : &e->local) += (uint32_t)bytes;
            if (equals(what, "loc") || equals(what, "pragma") || equals(what, "file")) {
                while (t->at < t->end && *t->at != '\n' && *t->at != ';') t->at++;
            } else {
                while (t->at < t->end && *t->at != ';' && *t->at != '\n' && *t->at != '{') t->at++;
                if (t->at < t->end && *t->at == '{') /* an initialiser or a call table */
                    while (t->at < t->end && *t->at++ != '}') {}
            }
            continue;
        }
        if (c == '@') { /* predicate */
            t->at++;
            if (t->at < t->end && *t->at == '!') t->at++;
            (void)word(t);
            continue;
        }
        struct text op = word(t);
        if (op.at == op.end) return -1;
        skip(t);
        if (t->at < t->end && *t->at == ':') { /* label */
            t->at++;
            continue;
        }
        if (!bsearch(&op, opcodes, sizeof opcodes / sizeof *opcodes, sizeof *opcodes, compare)) return -1;
        int braces = 0; /* vector operands: {%r1, %r2} */
        while (t->at < t->end && (*t->at != ';' || braces)) {
            braces += (*t->at == '{') - (*t->at == '}');
            if (braces < 0) return -1;
            t->at++;
        }
        if (t->at >= t->end) return -1;
        if (memmem(start, (size_t)(t->at - start), "%globaltimer", 12)) *clock = 1;
    }
    return -1;
}

static int function(struct text *t, struct image *image, int is_entry, int version) {
    skip(t);
    if (!is_entry && t->at < t->end && *t->at == '(') /* return value */
        while (t->at < t->end && *t->at++ != ')') {}
    struct text name = word(t);
    if (name.at == name.end) return INVALID_PTX;
    struct entry scratch = {0}, *e = &scratch;
    if (is_entry) {
        e = image_add_entry(image, name.at, (size_t)(name.end - name.at));
        if (!e) return NO_MEMORY;
        e->ptx_version = e->binary_version = version;
    }
    int code = parameters(t, e) ? INVALID_PTX : 0, clock = 0;
    /* Performance directives, then a body or (a declaration) ';'. */
    while (!code && t->at < t->end && *t->at != '{' && *t->at != ';') {
        if (*t->at == '.') {
            t->at++;
            struct text d = word(t);
            if (equals(d, "maxntid") && is_entry) {
                unsigned long threads = 1;
                for (char *next;; t->at = next + 1) {
                    threads *= strtoul(t->at, &next, 10);
                    while (isspace((unsigned char)*next)) next++;
                    if (*next != ',') break;
                }
                e->max_threads = (uint32_t)threads;
            }
        } else {
            t->at++;
        }
    }
    if (!code && t->at >= t->end) code = INVALID_PTX;
    if (!code && !is_entry && *t->at == ';') image_calls(image, name.at, (size_t)(name.end - name.at));
    if (!code && *t->at++ == '{') code = body(t, is_entry ? e : NULL, &clock) ? INVALID_PTX : 0;
    if (is_entry) entry_finish(e, clock);
    else free(scratch.parameter);
    return code;
}

static int module(struct text t, int capability, struct image *image) {
    struct text w;
    int target = 0;
    uint32_t constant = 0;
    skip(&t);
    if (t.at >= t.end || *t.at++ != '.' || !equals(word(&t), "version")) return INVALID_IMAGE;
    skip(&t);
    char *next;
    long major = strtol(t.at, &next, 10), minor = *next == '.' ? strtol(next + 1, &next, 10) : -1;
    if (next == t.at || minor < 0) return INVALID_PTX;
    if (major > NEWEST_MAJOR || (major == NEWEST_MAJOR && minor > NEWEST_MINOR)) return UNSUPPORTED_PTX_VERSION;
    t.at = next;
    while (skip(&t), t.at < t.end) {
        if (*t.at == ';') {
            t.at++;
            continue;
        }
        if (*t.at++ != '.') return INVALID_PTX;
        w = word(&t);
        if (equals(w, "target")) {
            w = word(&t);
            if (w.end - w.at < 4 || memcmp(w.at, "sm_", 3)) return INVALID_PTX;
            target = atoi(w.at + 3);
            if (target > capability) return INVALID_PTX;
            while (t.at < t.end && *t.at != '\n' && *t.at != '.') t.at++;
        } else if (equals(w, "address_size")) {
            if (strtol(t.at, &next, 10) != 64) return INVALID_PTX;
            t.at = next;
        } else if (equals(w, "entry") || equals(w, "func")) {
            int code = function(&t, image, equals(w, "entry"), target);
            if (code) return code;
        } else if (equals(w, "visible") || equals(w, "extern") || equals(w, "weak") || equals(w, "common")) {
            ;
        } else if (equals(w, "global") || equals(w, "const") || equals(w, "shared") || equals(w, "tex")) {
            struct text name;
            uint64_t bytes;
            uint32_t align;
            int is_managed = t.end - t.at > 20 && memmem(t.at, 20, "managed", 7) != NULL;
            if (declaration(&t, &name, &bytes, &align)) return INVALID_PTX;
            if (!equals(w, "shared") &&
                image_add_variable(image, name.at, (size_t)(name.end - name.at), bytes, is_managed))
                return NO_MEMORY;
            constant += equals(w, "const") ? (uint32_t)bytes : 0;
            while (t.at < t.end && *t.at != ';') t.at++;
        } else if (equals(w, "section")) {
            while (t.at < t.end && *t.at++ != '}') {}
        } else if (equals(w, "file") || equals(w, "loc") || equals(w, "pragma") || equals(w, "alias") ||
                   equals(w, "metadata")) {
            while (t.at < t.end && *t.at != '\n' && *t.at != ';') t.at++;
        } else {
            return INVALID_PTX;
        }
    }
    if (!target) return INVALID_PTX;
    image->target = target;
    for (uint32_t i = 0; i < image->entries; i++)
        image->entry[i].constant = constant; /* a module's constants are one bank, seen by all its entries */
    return 0;
}

int ptx_parse(const char *text, size_t bytes, int capability, struct image *image) {
    char *copy = blank_comments(text, bytes);
    if (!copy) return NO_MEMORY;
    int code = module((struct text){copy, copy + strlen(copy)}, capability, image);
    free(copy);
    return code;
}
