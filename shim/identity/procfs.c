/* Reads our PIDs of all namespace levels from a procfs that the operator mounted, and refuses one that cannot know.
 *
 * A procfs shows PIDs from the namespace it was mounted in downwards. One of a container says "NStgid: 6" and leaves out
 * that the machine says 8011: plausible and wrong. So its first number counts only where the mount is shown to be of the
 * machine's first PID namespace: process 2 is a kernel thread there and nowhere else (its flags are the kernel's own word,
 * unlike its name), or this process itself lives in that namespace.
 *
 * The last number must be our own PID: else the line is somebody else's. Nothing is opened but what is named here. */
#define _GNU_SOURCE
#include "identity.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

enum { PROCFS_MAGIC = 0x9fa0, KERNEL_THREAD = 0x00200000, TEXT = 16384 };
static const ino_t first_pid_namespace = 0xEFFFFFFC; /* fixed in the kernel */
static const char field[] = "NStgid:";

/* -- the parser -- */
static bool blank(char c) { return c == '\t' || c == ' '; }
static bool digit(char c) { return c >= '0' && c <= '9'; }

/* One word of the list. */
static enum hl_nstgid number(const char *at, const char *end, uint32_t *value) {
    bool negative = *at == '-';
    const char *digits = at + negative;
    uint64_t sum = 0;
    if (digits == end) return HL_NSTGID_JUNK;
    for (const char *c = digits; c < end; c++) {
        if (!digit(*c)) return HL_NSTGID_JUNK;
        if (sum <= INT_MAX) sum = sum * 10 + (uint64_t)(*c - '0');
    }
    if (*digits == '0' && end - digits > 1) return HL_NSTGID_JUNK; /* no kernel writes that */
    if (negative || !sum) return HL_NSTGID_NOT_POSITIVE;
    if (sum > INT_MAX) return HL_NSTGID_OVERFLOW;
    *value = (uint32_t)sum;
    return HL_NSTGID_OK;
}

static enum hl_nstgid list(const char *at, const char *end, uint32_t *pids, size_t room, size_t *count) {
    size_t found = 0;
    while (at < end) {
        if (!blank(*at)) return HL_NSTGID_JUNK; /* right behind the colon */
        while (at < end && blank(*at)) at++;
        if (at == end) return found ? HL_NSTGID_JUNK : HL_NSTGID_EMPTY;
        const char *stop = at;
        while (stop < end && !blank(*stop)) stop++;
        if (found == room) return HL_NSTGID_TOO_DEEP;
        enum hl_nstgid problem = number(at, stop, &pids[found]);
        if (problem) return problem;
        found++;
        at = stop;
    }
    if (!found) return HL_NSTGID_EMPTY;
    *count = found;
    return HL_NSTGID_OK;
}

/* The line that begins with the field's name, its newline excluded; 0 none, -1 a cut or a second one, 1 found. */
static int find(const char *text, size_t length, const char **from, const char **to) {
    const char *end = text + length;
    int found = 0;
    for (const char *line = text; line < end;) {
        const char *stop = memchr(line, '\n', (size_t)(end - line));
        size_t size = (size_t)((stop ? stop : end) - line);
        if (size >= sizeof field - 1 && !memcmp(line, field, sizeof field - 1)) {
            if (found || !stop) return -1; /* without its newline the last number may be half of one */
            *from = line + sizeof field - 1;
            *to = stop;
            found = 1;
        }
        line = stop ? stop + 1 : end;
    }
    return found;
}

enum hl_nstgid hl_nstgid_parse(const char *text, size_t length, uint32_t *pids, size_t room, size_t *count) {
    const char *from = NULL, *to = NULL;
    if (count) *count = 0;
    if (!text || !pids || !count) return HL_NSTGID_NULL;
    if (!room) return HL_NSTGID_NO_ROOM;
    int found = find(text, length, &from, &to);
    if (found <= 0) return found ? HL_NSTGID_JUNK : HL_NSTGID_NO_FIELD;
    return list(from, to, pids, room, count);
}

/* -- the guard -- */
/* Bytes read, -1 with errno; what does not fit is an error. */
static ssize_t read_at(int root, const char *name, char *text, size_t size) {
    int fd = openat(root, name, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    size_t filled = 0;
    ssize_t got = 0;
    while (filled < size && ((got = read(fd, text + filled, size - filled)) > 0 || (got < 0 && errno == EINTR)))
        if (got > 0) filled += (size_t)got;
    close(fd);
    return got < 0 || filled == size ? -1 : (ssize_t)filled;
}

/* 1 process 2 is a kernel thread without a parent, 0 it is not, -1 it cannot be seen. */
static int shows_kernel_threads(int root) {
    char text[1024];
    ssize_t length = read_at(root, "2/stat", text, sizeof text - 1);
    if (length <= 0) return -1;
    text[length] = 0;
    char *at = strrchr(text, ')'); /* the name before it may hold anything */
    if (!at) return 0;
    long parent = -1;
    unsigned long flags = 0;
    for (int number = 2; at && number < 9; number++) { /* field 3 is the state, 4 the parent, 9 the flags */
        at = strchr(at + 1, ' ');
        if (at && number + 1 == 4) parent = strtol(at, NULL, 10);
        if (at && number + 1 == 9) flags = strtoul(at, NULL, 10);
    }
    return at && parent == 0 && (flags & KERNEL_THREAD) ? 1 : 0;
}

static bool is_procfs(int root) {
#ifdef HL_PROCFS_ANY /* tests show this file directories that only look like one */
    (void)root;
    return true;
#else
    struct statfs info;
    return !fstatfs(root, &info) && info.f_type == PROCFS_MAGIC;
#endif
}

static int read_levels(int root, uint32_t *pids, size_t *count) {
    char text[TEXT];
    ssize_t length = read_at(root, "self/status", text, sizeof text);
    if (length < 0) return HL_REASON_NOT_SEEN;
    switch (hl_nstgid_parse(text, (size_t)length, pids, HL_NSTGID_LEVELS, count)) {
    case HL_NSTGID_OK: return HL_REASON_ANSWERED;
    case HL_NSTGID_NO_FIELD: return HL_REASON_NO_FIELD;
    case HL_NSTGID_TOO_DEEP: return HL_REASON_TOO_DEEP;
    default: return HL_REASON_MALFORMED;
    }
}

static int judge(int root, uint32_t *pid) {
    uint32_t pids[HL_NSTGID_LEVELS];
    size_t count = 0;
    if (!is_procfs(root)) return HL_REASON_NOT_PROCFS;
    int reason = read_levels(root, pids, &count);
    if (reason != HL_REASON_ANSWERED) return reason;
    if (pids[count - 1] != (uint32_t)syscall(SYS_getpid)) return HL_REASON_OTHER_PROCESS;
    struct stat own;
    bool at_home = !fstatat(root, "self/ns/pid", &own, 0) && own.st_ino == first_pid_namespace;
    if (at_home && count > 1) return HL_REASON_MALFORMED; /* nobody is above the first */
    if (!at_home) {
        int threads = shows_kernel_threads(root);
        if (threads == 0 || (threads < 0 && count == 1)) return HL_REASON_PRIVATE_PROCFS;
        if (threads < 0) return HL_REASON_UNPROVEN;
        if (count == 1) return HL_REASON_MALFORMED; /* we live below it and it does not say so */
    }
    *pid = pids[0];
    return HL_REASON_ANSWERED;
}

int hl_procfs_ask(const char *path, uint32_t *pid) {
    *pid = 0;
    if (!path || path[0] != '/') return HL_REASON_BAD_GATE;
    int root = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (root < 0) return HL_REASON_NOT_PROCFS;
    int reason = judge(root, pid);
    close(root);
    return reason;
}
