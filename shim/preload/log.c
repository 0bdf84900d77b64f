/* Lines on stderr: a whole line by one write, never stdout, no allocation. HOOKLAB_LOG = 0..3, default 1. */
#include "preload.h"

#include "config.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int threshold(void) {
    static int cached = -1;
    int level = __atomic_load_n(&cached, __ATOMIC_RELAXED);
    if (level >= 0) return level;
    const char *text = hl_config("HOOKLAB_LOG");
    level = text && *text >= '0' && *text <= '9' ? *text - '0' : 1;
    __atomic_store_n(&cached, level, __ATOMIC_RELAXED);
    return level;
}

void hl_log(int level, const char *format, ...) {
    int saved = errno;
    if (level <= threshold()) {
        char line[512] = "hooklab: ";
        size_t start = strlen(line);
        va_list arguments;
        va_start(arguments, format);
        int length = vsnprintf(line + start, sizeof line - start - 1, format, arguments);
        va_end(arguments);
        if (length > 0) {
            size_t end = start + (size_t)length;
            if (end > sizeof line - 2) end = sizeof line - 2;
            line[end] = '\n';
            if (write(STDERR_FILENO, line, end + 1) < 0) { /* nobody reads it */
            }
        }
    }
    errno = saved;
}

void hl_log_error(const char *line) { hl_log(0, "%s", line); }
