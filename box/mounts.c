/* Plays a mount spec. One operation a line, fields separated by one space, paths percent-encoded:
 *
 *   keep PATH              stays visible when a later `cover` hides it
 *   mirror DIR             a tmpfs in DIR's place with every entry of DIR bound into it: new names can be made there
 *   cover SRC DIR          SRC in DIR's place (read-write); kept paths below DIR are bound back
 *   bind SRC DST ro|rw     SRC at DST, which is made (file or directory as SRC is) where it does not exist
 *   dir PATH               makes a directory and those above it
 *   proc                   /proc of the present PID namespace; last, because binds go through /proc/self/fd
 *
 * All sources are opened before the first mount: what covers them later cannot change what they mean. Remounting
 * read-only keeps the flags a bind inherited; in a user namespace the kernel refuses to drop them. */
#include "box.h"
#include "unquote.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define FIELDS 4
struct line {
    char *field[FIELDS];
    int count, source;
};
static struct line lines[512];
static int line_count;

static int fail(char *why, size_t size, const char *what, const char *path) {
    snprintf(why, size, "%s %s: %s", what, path, strerror(errno));
    return -1;
}

static int read_spec(const char *path, char *why, size_t size) {
    FILE *file = fopen(path, "re");
    char *text = NULL;
    size_t room = 0;
    ssize_t got;
    if (!file) return fail(why, size, "spec", path);
    while ((got = getline(&text, &room, file)) > 0) {
        if (text[got - 1] == '\n') text[got - 1] = 0;
        if (!*text) continue;
        if (line_count == (int)(sizeof lines / sizeof *lines)) {
            snprintf(why, size, "spec %s: too long", path);
            fclose(file);
            return -1;
        }
        struct line *line = &lines[line_count++];
        char *copy = strdup(text), *word;
        line->source = -1;
        while (copy && line->count < FIELDS && (word = strsep(&copy, " ")) != NULL) {
            hl_unquote(word);
            line->field[line->count++] = word;
        }
    }
    free(text);
    fclose(file);
    return 0;
}

/* Makes a directory and all above it. */
static int make_directory(const char *path) {
    char copy[PATH_MAX];
    if (snprintf(copy, sizeof copy, "%s", path) >= (int)sizeof copy) {
        errno = ENAMETOOLONG;
        return -1;
    }
    for (char *at = copy + 1; *at; at++)
        if (*at == '/') {
            *at = 0;
            if (mkdir(copy, 0755) != 0 && errno != EEXIST) return -1;
            *at = '/';
        }
    return mkdir(copy, 0755) != 0 && errno != EEXIST ? -1 : 0;
}

/* Makes something to mount over: a file or a directory, as the source is. */
static int make_point(const char *path, int directory) {
    struct stat seen;
    char above[PATH_MAX];
    if (stat(path, &seen) == 0) return 0;
    if (directory) return make_directory(path);
    snprintf(above, sizeof above, "%s", path);
    char *slash = strrchr(above, '/');
    if (slash && slash != above) {
        *slash = 0;
        if (make_directory(above) != 0) return -1;
    }
    int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
    if (fd < 0) return -1;
    close(fd);
    return 0;
}

static int bind_fd(int source, const char *target) {
    char from[64];
    struct stat seen;
    if (fstat(source, &seen) != 0 || make_point(target, S_ISDIR(seen.st_mode)) != 0) return -1;
    snprintf(from, sizeof from, "/proc/self/fd/%d", source);
    return mount(from, target, NULL, MS_BIND | MS_REC, NULL);
}

static int make_read_only(const char *target) {
    struct statvfs seen;
    unsigned long flags = MS_REMOUNT | MS_BIND | MS_RDONLY;
    if (statvfs(target, &seen) != 0) return -1;
    flags |= (seen.f_flag & ST_NOSUID ? MS_NOSUID : 0) | (seen.f_flag & ST_NODEV ? MS_NODEV : 0) |
             (seen.f_flag & ST_NOEXEC ? MS_NOEXEC : 0) | (seen.f_flag & ST_NOATIME ? MS_NOATIME : 0) |
             (seen.f_flag & ST_NODIRATIME ? MS_NODIRATIME : 0) | (seen.f_flag & ST_RELATIME ? MS_RELATIME : 0);
    return mount(NULL, target, NULL, flags, NULL);
}

struct entry {
    char *name, *link;
    int fd;
};

/* The entries of a directory, opened, before something covers it. */
static int list(const char *path, struct entry **entries, int *count) {
    DIR *directory = opendir(path);
    if (!directory) return -1;
    *entries = NULL;
    *count = 0;
    for (struct dirent *item; (item = readdir(directory)) != NULL;) {
        char target[PATH_MAX];
        if (strcmp(item->d_name, ".") == 0 || strcmp(item->d_name, "..") == 0) continue;
        struct entry entry = {.fd = -1};
        ssize_t size = readlinkat(dirfd(directory), item->d_name, target, sizeof target - 1);
        if (size >= 0) {
            target[size] = 0;
            entry.link = strdup(target);
        } else {
            entry.fd = openat(dirfd(directory), item->d_name, O_PATH | O_CLOEXEC | O_NOFOLLOW);
            if (entry.fd < 0) continue; /* gone meanwhile, or not ours to see: then it is not there */
        }
        entry.name = strdup(item->d_name);
        struct entry *grown = realloc(*entries, (size_t)(*count + 1) * sizeof **entries);
        if (!grown || !entry.name) abort();
        grown[(*count)++] = entry;
        *entries = grown;
    }
    closedir(directory);
    return 0;
}

static int mirror(const char *path, char *why, size_t size) {
    struct entry *entries;
    int count;
    if (list(path, &entries, &count) != 0) return fail(why, size, "mirror", path);
    if (mount("tmpfs", path, "tmpfs", 0, "mode=755") != 0) return fail(why, size, "tmpfs on", path);
    for (int i = 0; i < count; i++) {
        char target[PATH_MAX];
        snprintf(target, sizeof target, "%s/%s", path, entries[i].name);
        if (entries[i].link) {
            if (symlink(entries[i].link, target) != 0) return fail(why, size, "symlink", target);
        } else if (bind_fd(entries[i].fd, target) != 0) {
            return fail(why, size, "bind", target);
        }
        if (entries[i].fd >= 0) close(entries[i].fd);
        free(entries[i].link);
        free(entries[i].name);
    }
    free(entries);
    return 0;
}

static int below(const char *path, const char *directory) {
    size_t size = strlen(directory);
    return strncmp(path, directory, size) == 0 && path[size] == '/';
}

static int cover(const struct line *line, char *why, size_t size) {
    if (bind_fd(line->source, line->field[2]) != 0) return fail(why, size, "cover", line->field[2]);
    for (int i = 0; i < line_count; i++)
        if (strcmp(lines[i].field[0], "keep") == 0 && lines[i].source >= 0 &&
            below(lines[i].field[1], line->field[2]) && bind_fd(lines[i].source, lines[i].field[1]) != 0)
            return fail(why, size, "keep", lines[i].field[1]);
    return 0;
}

static int play(const struct line *line, char *why, size_t size) {
    const char *op = line->field[0];
    if (strcmp(op, "keep") == 0) return 0;
    if (strcmp(op, "mirror") == 0 && line->count == 2) return mirror(line->field[1], why, size);
    if (strcmp(op, "cover") == 0 && line->count == 3) return cover(line, why, size);
    if (strcmp(op, "dir") == 0 && line->count == 2)
        return make_directory(line->field[1]) == 0 ? 0 : fail(why, size, "directory", line->field[1]);
    if (strcmp(op, "bind") == 0 && line->count == 4) {
        if (bind_fd(line->source, line->field[2]) != 0) return fail(why, size, "bind", line->field[2]);
        if (strcmp(line->field[3], "ro") == 0 && make_read_only(line->field[2]) != 0)
            return fail(why, size, "read-only", line->field[2]);
        return 0;
    }
    if (strcmp(op, "proc") == 0)
        return mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) == 0
                   ? 0
                   : fail(why, size, "mount", "/proc");
    snprintf(why, size, "spec: no operation %s with %d fields", op, line->count);
    return -1;
}

int box_mounts(const char *spec, char *why, size_t size) {
    if (read_spec(spec, why, size) != 0) return -1;
    for (int i = 0; i < line_count; i++) {
        const char *op = lines[i].field[0];
        int needed = strcmp(op, "cover") == 0 || strcmp(op, "bind") == 0;
        if (lines[i].count < 2 || (!needed && strcmp(op, "keep") != 0)) continue;
        lines[i].source = open(lines[i].field[1], O_PATH | O_CLOEXEC);
        if (lines[i].source < 0 && needed) return fail(why, size, op, lines[i].field[1]);
    }
    for (int i = 0; i < line_count; i++)
        if (play(&lines[i], why, size) != 0) return -1;
    for (int i = 0; i < line_count; i++)
        if (lines[i].source >= 0) close(lines[i].source);
    return 0;
}
