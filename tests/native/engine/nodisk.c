/* A host without a disk: its own open, stat and so on stand before libc's and refuse every path but the policy's, once
 * the engine is loaded. Says on standard error what was asked for, and how many descriptors it was given to lack. */
#define _GNU_SOURCE
#include "thin.h"
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>

static int refusing;
static const char *allowed; /* the policy's file, or NULL */

static int refused(const char *path) {
    if (!refusing || (allowed && !strcmp(path, allowed))) return 0;
    dprintf(2, "refused %s\n", path);
    errno = ENOENT;
    return 1;
}

#define OPEN(name)                                                                                                     \
    EXPORT int name(const char *path, int flags, ...) {                                                                \
        va_list more;                                                                                                  \
        va_start(more, flags);                                                                                         \
        int mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(more, int) : 0;                                            \
        va_end(more);                                                                                                  \
        return refused(path) ? -1 : (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);                             \
    }
OPEN(open)
OPEN(open64)

#define PATH_ONLY(name, ...)                                                                                           \
    EXPORT int name(const char *path, ##__VA_ARGS__) {                                                                 \
        (void)other;                                                                                                   \
        if (refused(path)) return -1;                                                                                  \
        errno = ENOSYS;                                                                                                \
        return -1;                                                                                                     \
    }
PATH_ONLY(stat64, void *other)
PATH_ONLY(lstat64, void *other)
PATH_ONLY(access, int other)

EXPORT FILE *fopen64(const char *path, const char *mode) {
    (void)mode;
    if (!refused(path)) errno = ENOSYS;
    return NULL;
}

EXPORT void *opendir(const char *path) {
    if (!refused(path)) errno = ENOSYS;
    return NULL;
}

EXPORT ssize_t readlink(const char *path, char *buffer, size_t size) {
    (void)buffer, (void)size;
    if (!refused(path)) errno = ENOSYS;
    return -1;
}

int main(void) {
    static char path[4096];
    const char *policy = getenv("THIN_POLICY");
    if (policy && strchr(policy, ':')) {
        snprintf(path, sizeof path, "%s", policy);
        *strrchr(path, ':') = 0;
        allowed = path;
    }
    CHECK(thin_engine() != NULL);
    refusing = 1;
    CHECK(open("/etc/passwd", O_RDONLY) == -1); /* the refusal works */
    if (thin_boot()) {
        dprintf(2, "%s\n", thin_engine()->reason());
        return 3;
    }
    CHECK(thin_admit(10) == 0);
    CHECK(thin_admit(1000001) == 2);
    return 0;
}
