/* Makes and maps a region file of layout hami-1.2 (see hami.h). The file is one byte longer than its struct, as the first
 * opener leaves it; a longer one is a newer monitor's and is taken as it is, a shorter one is refused. */
#define _GNU_SOURCE
#include "config.h"
#include "hami.h"

#include <errno.h>
#include <fcntl.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(sizeof(sem_t) == sizeof(((struct hl_hami_region *)0)->lock), "sem_t of this libc is not the layout's");

__attribute__((format(printf, 4, 5))) static int refuse(char *why, size_t room, int problem, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why, room, format, arguments);
    va_end(arguments);
    return problem;
}

static int making_lock(int fd, int type) {
    struct flock lock = {.l_type = (short)type, .l_whence = SEEK_SET, .l_len = (off_t)sizeof(struct hl_hami_region)};
    while (fcntl(fd, F_SETLKW, &lock))
        if (errno != EINTR) return -errno;
    return 0;
}

/* Asked before the lock: processes that keep another layout may hold bytes of theirs as long as they live. */
static int is_foreign(int fd) {
    int32_t magic = 0;
    return pread(fd, &magic, sizeof magic, 0) == (ssize_t)sizeof magic && magic && magic != HL_HAMI_MAGIC;
}

static void fill(struct hl_hami_region *map, const uint64_t *limit, const uint64_t *cores) {
    map->major = HL_HAMI_MAJOR;
    map->minor = HL_HAMI_MINOR;
    for (int i = 0; i < HL_HAMI_DEVICES; i++) {
        map->limit[i] = limit ? limit[i] : 0;
        map->sm_limit[i] = cores && cores[i] ? cores[i] : 100;
    }
    sem_init((sem_t *)(void *)map->lock, 1, 1);
    sem_init((sem_t *)(void *)map->postinit_lock, 1, 1);
    map->utilization_switch = 1;
    map->recent_kernel = 2;
    const char *priority = hl_config("CUDA_TASK_PRIORITY");
    map->priority = priority && *priority ? (int32_t)strtol(priority, NULL, 10) : 1;
    __atomic_store_n(&map->proc_count, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&map->magic, HL_HAMI_MAGIC, __ATOMIC_RELEASE);
}

int hl_hami_open(struct hl_hami *hami, const char *path, const uint64_t *limit, const uint64_t *cores, char *why,
                 size_t room) {
    struct stat info;
    memset(hami, 0, sizeof *hami);
    if (!path)
        return refuse(why, room, -EINVAL,
                      "a region of layout hami-1.2 needs a path: set CUDA_DEVICE_MEMORY_SHARED_CACHE");
    int fd = open(path, O_RDWR | O_CLOEXEC | (limit ? O_CREAT : 0), 0666), problem = errno;
    if (fd < 0)
        return refuse(why, room, -problem,
                      "%s: the region cannot be opened: %s; give a writable path in an existing folder", path,
                      strerror(problem));
    if (is_foreign(fd)) {
        close(fd);
        return refuse(why, room, -EPROTO, "%s: not a region of layout hami-1.2; give another path", path);
    }
    problem = making_lock(fd, F_WRLCK);
    void *at = MAP_FAILED;
    if (problem) {
        refuse(why, room, problem, "%s: the region cannot be locked: %s; its file system must know POSIX locks", path,
               strerror(-problem));
    } else if (fstat(fd, &info) || !S_ISREG(info.st_mode)) {
        problem = refuse(why, room, -EPROTO, "%s: not a regular file; give another path for the region", path);
    } else if (!info.st_size && limit && pwrite(fd, "", 1, (off_t)sizeof(struct hl_hami_region)) != 1) {
        problem = refuse(why, room, -errno, "%s: the region cannot be made: %s; it needs %d bytes", path,
                         strerror(errno), HL_HAMI_FILE_BYTES);
    } else if (info.st_size && info.st_size < (off_t)sizeof(struct hl_hami_region)) {
        problem =
            refuse(why, room, -EPROTO, "%s: too short for a region of layout hami-1.2 (%lld bytes); give another path",
                   path, (long long)info.st_size);
    } else {
        at = mmap(NULL, sizeof(struct hl_hami_region), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (at == MAP_FAILED)
            problem = refuse(why, room, -errno, "%s: the region cannot be mapped: %s", path, strerror(errno));
    }
    if (!problem) {
        hami->map = at;
        int32_t magic = __atomic_load_n(&hami->map->magic, __ATOMIC_ACQUIRE);
        if (!magic && limit) fill(hami->map, limit, cores);
        else if (magic != HL_HAMI_MAGIC)
            problem = refuse(why, room, -EPROTO, "%s: not a region of layout hami-1.2 (magic %d); give another path",
                             path, magic);
        else if (hami->map->major != HL_HAMI_MAJOR || hami->map->minor != HL_HAMI_MINOR)
            problem = refuse(why, room, -EPROTO,
                             "%s: region version %u.%u, this build keeps version %d.%d; give another path", path,
                             hami->map->major, hami->map->minor, HL_HAMI_MAJOR, HL_HAMI_MINOR);
    }
    making_lock(fd, F_UNLCK);
    close(fd);
    if (problem && at != MAP_FAILED) munmap(at, sizeof(struct hl_hami_region)), hami->map = NULL;
    return problem;
}
