/* Configuration of a guest (see config.h).
 *
 * Invariants: a key is looked up once and keeps that answer for the life of the process, because getenv races with a
 * host that calls setenv; the answer is taken at the first question and not at load, because hosts set
 * CUDA_VISIBLE_DEVICES in themselves before their first CUDA call. Nothing is allocated: keys and values live in static
 * storage, and an answer that no longer fits is returned where it was found. Safe from any thread; errno is kept. */
#define _GNU_SOURCE
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef HL_CONFIG_FILE /* tests compile this file with another place */
#define HL_CONFIG_FILE "/usr/local/vgpu/hooklab.conf"
#endif

enum { KEYS = 256, NAME_BYTES = 128, FOUND = 64, ARENA = 32768, FILE_BYTES = 16384 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct {
    const char *key, *value;
} answers[KEYS];
static unsigned answered; /* entries below this index are whole and never change (release/acquire) */
static char arena[ARENA];
static size_t arena_used;
static char text[FILE_BYTES];
static int text_read;

static const char *keep(const char *value, size_t length) {
    if (arena_used + length + 1 > ARENA) return NULL;
    char *copy = arena + arena_used;
    memcpy(copy, value, length);
    copy[length] = 0;
    arena_used += length + 1;
    return copy;
}

/* The whole file, or nothing: a file that does not fit is read up to its last whole line. */
static void read_file(void) {
    if (text_read) return;
    text_read = 1;
    int fd = open(HL_CONFIG_FILE, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    size_t filled = 0;
    while (filled < FILE_BYTES - 1) {
        ssize_t got = read(fd, text + filled, FILE_BYTES - 1 - filled);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        filled += (size_t)got;
    }
    close(fd);
    if (filled == FILE_BYTES - 1)
        while (filled && text[filled - 1] != '\n') filled--;
    text[filled] = 0;
}

static int blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

/* KEY=VALUE lines; blanks around key and value do not count; '#' opens a comment line; the last line of a key wins. */
static const char *from_file(const char *key) {
    read_file();
    size_t length = strlen(key);
    const char *found = NULL, *end = NULL;
    for (const char *line = text; *line;) {
        const char *stop = strchrnul(line, '\n');
        while (line < stop && blank(*line)) line++;
        if ((size_t)(stop - line) > length && !memcmp(line, key, length)) {
            const char *at = line + length;
            while (at < stop && blank(*at)) at++;
            if (at < stop && *at == '=') {
                found = at + 1;
                end = stop;
                while (found < end && blank(*found)) found++;
                while (end > found && blank(end[-1])) end--;
            }
        }
        line = *stop ? stop + 1 : stop;
    }
    return found ? keep(found, (size_t)(end - found)) : NULL;
}

static int known(const char *key, unsigned count, const char **value) {
    for (unsigned i = 0; i < count; i++)
        if (!strcmp(answers[i].key, key)) {
            *value = answers[i].value;
            return 1;
        }
    return 0;
}

static void fork_prepare(void) { pthread_mutex_lock(&mutex); }
static void fork_parent(void) { pthread_mutex_unlock(&mutex); }
static void fork_child(void) { pthread_mutex_init(&mutex, NULL); }

const char *hl_config(const char *key) {
    static int handlers; /* 1 once a fork waits for a look-up under way */
    const char *value = NULL;
    if (known(key, __atomic_load_n(&answered, __ATOMIC_ACQUIRE), &value)) return value;
    int saved = errno;
    if (!__atomic_exchange_n(&handlers, 1, __ATOMIC_RELAXED)) pthread_atfork(fork_prepare, fork_parent, fork_child);
    pthread_mutex_lock(&mutex);
    if (!known(key, answered, &value)) {
        const char *found = getenv(key), *copy = NULL;
        if (found) {
            copy = keep(found, strlen(found));
            value = copy ? copy : found;
        } else {
            value = from_file(key);
        }
        const char *name = answered < KEYS ? keep(key, strlen(key)) : NULL;
        if (name) {
            answers[answered].key = name;
            answers[answered].value = value;
            __atomic_store_n(&answered, answered + 1, __ATOMIC_RELEASE);
        }
    }
    pthread_mutex_unlock(&mutex);
    errno = saved;
    return value;
}

/* Takes the name in front of '=' if it begins so and is not among them yet. */
static void collect(const char *line, const char *stop, const char *prefix, char names[][NAME_BYTES], unsigned *count) {
    while (line < stop && blank(*line)) line++;
    const char *equals = memchr(line, '=', (size_t)(stop - line));
    while (equals && equals > line && blank(equals[-1])) equals--;
    size_t length = equals ? (size_t)(equals - line) : 0;
    if (length >= NAME_BYTES || length < strlen(prefix) || memcmp(line, prefix, strlen(prefix)) || *count == FOUND)
        return;
    for (unsigned i = 0; i < *count; i++)
        if (strlen(names[i]) == length && !memcmp(names[i], line, length)) return;
    memcpy(names[*count], line, length);
    names[(*count)++][length] = 0;
}

void hl_config_each(const char *prefix, void (*found)(const char *)) {
    char names[FOUND][NAME_BYTES];
    unsigned count = 0;
    int saved = errno;
    pthread_mutex_lock(&mutex);
    for (char **entry = environ; entry && *entry; entry++)
        collect(*entry, *entry + strlen(*entry), prefix, names, &count);
    read_file();
    for (const char *line = text; *line;) {
        const char *stop = strchrnul(line, '\n');
        collect(line, stop, prefix, names, &count);
        line = *stop ? stop + 1 : stop;
    }
    pthread_mutex_unlock(&mutex);
    errno = saved;
    for (unsigned i = 0; i < count; i++) found(names[i]);
}

/* Shift of a unit letter, -1 if it is none. HAMi's units are binary whether or not they say so ("m", "MB", "MiB"). */
static int unit_shift(char c) {
    switch (c | 0x20) {
    case 'k': return 10;
    case 'm': return 20;
    case 'g': return 30;
    case 't': return 40;
    default: return -1;
    }
}

int hl_parse_size(const char *size, uint64_t *bytes) {
    if (!size) return 1;
    while (blank(*size) || *size == '\n') size++;
    if (!*size) return 1;
    if (*size < '0' || *size > '9') return -1;
    uint64_t value = 0;
    for (; *size >= '0' && *size <= '9'; size++)
        if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, (uint64_t)(*size - '0'), &value))
            return -1;
    while (blank(*size)) size++;
    int shift = unit_shift(*size);
    if (shift >= 0) {
        size++;
        if ((size[0] | 0x20) == 'i' && (size[1] | 0x20) == 'b') size++;
    } else {
        shift = 0;
    }
    if ((*size | 0x20) == 'b') size++;
    while (blank(*size) || *size == '\n') size++;
    if (*size || (shift && value >> (64 - shift))) return -1;
    *bytes = value << shift;
    return 0;
}
