/* Reads a step program. The format, one item a line:
 *
 *     hooklab-program 1
 *     set KEY=VALUE                  settings: start=now|wait, route=ROUTE (for steps that name none)
 *     step INDEX OP KEY=VALUE ...    one step; INDEX is what its history records carry
 *     step INDEX fork|exec|parallel|repeat KEY=VALUE ...
 *     end                            the steps between belong to the one above
 *
 * Values are percent-encoded bytes (%20); a list is comma separated, each item encoded on its own (a comma inside an item is %2C). Sizes are plain bytes. Every error is one line with
 * file and line and ends the load: a program comes from the runner, so a bad one is a fault of the runner. */
#include "caller.h"
#include "unquote.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int split_list(const char *text, char ***items) {
    int count = 0;
    char *copy = strdup(text);
    char **list = calloc(strlen(text) + 2, sizeof *list);
    if (!copy || !list) abort();
    char *rest = copy;
    for (char *item; (item = strsep(&rest, ",")) != NULL;) {
        hl_unquote(item);
        list[count++] = item;
    }
    *items = list; /* lives as long as the program: a step is played a handful of times */
    return count;
}

static const char *find(const struct pair *pairs, int count, const char *key) {
    for (int i = 0; i < count; i++)
        if (strcmp(pairs[i].key, key) == 0) return pairs[i].value;
    return NULL;
}

const char *step_text(const struct step *step, const char *key, const char *otherwise) {
    const char *value = find(step->pairs, step->pair_count, key);
    return value ? value : otherwise;
}

uint64_t step_number(const struct step *step, const char *key, uint64_t otherwise) {
    const char *value = find(step->pairs, step->pair_count, key);
    return value ? strtoull(value, NULL, 0) : otherwise;
}

const char *program_setting(const struct program *program, const char *key, const char *otherwise) {
    const char *value = find(program->settings, program->setting_count, key);
    return value ? value : otherwise;
}

static int fail(const struct program *program, int line, const char *what) {
    fprintf(stderr, "hooklab-caller: %s:%d: %s\n", program->path, line, what);
    return -1;
}

static int is_list(const char *key) {
    return !strcmp(key, "environment") || !strcmp(key, "kinds") || !strcmp(key, "with");
}

static int is_nested(const char *op) {
    return !strcmp(op, "fork") || !strcmp(op, "exec") || !strcmp(op, "parallel") || !strcmp(op, "repeat");
}

/* Splits `KEY=VALUE ...` in place. Lists stay encoded: split_list decodes their items. */
static int read_pairs(char *rest, struct pair **pairs, int *count) {
    int room = *count;
    for (char *word; (word = strsep(&rest, " ")) != NULL;) {
        if (!*word) continue;
        char *equals = strchr(word, '=');
        if (!equals) return -1;
        *equals = 0;
        if (!is_list(word)) hl_unquote(equals + 1);
        struct pair *grown = realloc(*pairs, (size_t)(room + 1) * sizeof **pairs);
        if (!grown) abort();
        grown[room++] = (struct pair){word, equals + 1};
        *pairs = grown;
    }
    *count = room;
    return 0;
}

static char *slurp(const char *path) {
    FILE *file = fopen(path, "re");
    if (!file) return NULL;
    size_t size = 0, room = 65536;
    char *text = malloc(room + 1);
    for (size_t got; text && (got = fread(text + size, 1, room - size, file)) > 0;) {
        size += got;
        if (size == room) text = realloc(text, (room *= 2) + 1);
    }
    fclose(file);
    if (text) text[size] = 0;
    return text;
}

struct cursor {
    char *rest;
    int line;
};

/* Reads steps until `end` (inside a nested step) or the end of the text. */
static int read_steps(struct program *program, struct cursor *at, int inside, struct step **steps, int *count) {
    for (char *line; (line = strsep(&at->rest, "\n")) != NULL;) {
        at->line++;
        line += strspn(line, " \t");
        if (!*line || *line == '#') continue;
        if (strcmp(line, "end") == 0) return inside ? 0 : fail(program, at->line, "`end` without a step to end");
        char *rest = line;
        const char *word = strsep(&rest, " ");
        if (strcmp(word, "set") == 0) {
            if (!rest || read_pairs(rest, &program->settings, &program->setting_count))
                return fail(program, at->line, "`set` needs KEY=VALUE");
            continue;
        }
        if (strcmp(word, "step") != 0) return fail(program, at->line, "expected `step`, `set` or `end`");
        const char *index = strsep(&rest, " ");
        const char *op = rest ? strsep(&rest, " ") : NULL;
        if (!index || !op) return fail(program, at->line, "`step` needs an index and an operation");
        struct step *grown = realloc(*steps, (size_t)(*count + 1) * sizeof **steps);
        if (!grown) abort();
        *steps = grown;
        struct step *step = &grown[(*count)++];
        *step = (struct step){.index = atoi(index), .line = at->line, .op = op};
        if (rest && read_pairs(rest, &step->pairs, &step->pair_count))
            return fail(program, at->line, "a step's values are KEY=VALUE");
        if (is_nested(op)) {
            struct step *subs = NULL;
            int sub_count = 0;
            if (read_steps(program, at, 1, &subs, &sub_count)) return -1;
            step = &(*steps)[*count - 1];
            step->subs = subs;
            step->sub_count = sub_count;
        }
    }
    return inside ? fail(program, at->line, "a nested step without its `end`") : 0;
}

int program_load(const char *path, struct program *program) {
    *program = (struct program){.path = path};
    program->text = slurp(path);
    if (!program->text) {
        fprintf(stderr, "hooklab-caller: %s: %s\n", path, strerror(errno));
        return -1;
    }
    struct cursor at = {program->text, 1};
    char *magic = strsep(&at.rest, "\n");
    if (strcmp(magic, "hooklab-program 1") != 0) return fail(program, 1, "not a step program of version 1");
    return read_steps(program, &at, 0, &program->steps, &program->count);
}
