/* Makes, opens, checks and maps a region file.
 *
 * Invariants: making and checking happen behind the gate, so that of many first comers one makes the file and the rest
 * find it whole; magic is stored last, so a maker that is killed leaves a file that the next one makes again; a file of
 * any other kind is never written. Blocks are allocated at creation: a full disk is an error here and not a SIGBUS in the
 * host later. */
#define _GNU_SOURCE
#include "region.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

enum { HIGH_DESCRIPTOR = 512, HAMI_MAGIC = 19920718 };

static const size_t DEVICE_OFFSET = sizeof(struct hl_region_header);
static const size_t SLOT_OFFSET = sizeof(struct hl_region_header) + HL_REGION_DEVICES * sizeof(struct hl_region_device);
static const size_t REGION_BYTES = sizeof(struct hl_region_header) +
                                   HL_REGION_DEVICES * sizeof(struct hl_region_device) +
                                   HL_REGION_SLOTS * sizeof(struct hl_region_slot);

uint64_t hl_pid_namespace(void) {
    struct stat info;
    return stat("/proc/self/ns/pid", &info) ? 0 : info.st_ino;
}

__attribute__((format(printf, 3, 4))) static int refuse(char *why, int problem, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why, HL_WHY_BYTES, format, arguments);
    va_end(arguments);
    return problem;
}

/* The descriptors of a host are low; ours moves up, away from its dup2 and close loops. */
static int move_up(int fd) {
    for (int floor = HIGH_DESCRIPTOR; fd >= 0 && floor >= 8; floor /= 4) {
        int high = fcntl(fd, F_DUPFD_CLOEXEC, floor);
        if (high < 0) continue;
        close(fd);
        return high;
    }
    return fd;
}

static int is_ours(const struct hl_region *region, int fd) {
    struct stat info;
    return !fstat(fd, &info) && info.st_dev == region->file_device && info.st_ino == region->file_inode;
}

int hl_region_describe(const struct hl_region *region) {
    char link[32];
    snprintf(link, sizeof link, "/proc/self/fd/%d", region->fd);
    const char *names[] = {link, region->path}; /* the first also reaches a file that was unlinked or is out of sight */
    int problem = -ENOENT;
    for (int i = 0; i < 2; i++) {
        int fd = open(names[i], O_RDWR | O_CLOEXEC);
        if (fd < 0) {
            problem = -errno;
            continue;
        }
        if (is_ours(region, fd)) return move_up(fd);
        close(fd);
        problem = -ESTALE;
    }
    return problem;
}

int hl_region_fork_child(struct hl_region *region) {
    pthread_mutex_init(&region->local, NULL);
    region->presence = NULL; /* the mapping did not come along */
    if (region->fd < 0) return 0;
    int fd = hl_region_describe(region);
    if (is_ours(region, region->fd)) close(region->fd); /* else the host closed it and something else has its number */
    region->fd = fd < 0 ? INT32_MAX : fd;               /* a number that is never open: the next use tries again */
    return fd < 0 ? fd : 0;
}

static void point_into(struct hl_region *region, void *at) {
    region->header = at;
    region->device = (void *)((char *)at + DEVICE_OFFSET);
    region->slot = (void *)((char *)at + SLOT_OFFSET);
}

static void fill(struct hl_region *region, const struct hl_region_new *fresh, uint64_t name_space) {
    struct hl_region_header *header = region->header;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    header->version = HL_REGION_VERSION;
    header->header_bytes = sizeof *header;
    header->size = REGION_BYTES;
    header->layout_hash = HL_HOOKLAB_1_HASH;
    header->device_count = HL_REGION_DEVICES;
    header->slot_count = HL_REGION_SLOTS;
    header->device_offset = DEVICE_OFFSET;
    header->slot_offset = SLOT_OFFSET;
    header->lock_kind = name_space ? HL_LOCK_ROBUST : HL_LOCK_FILE;
    header->pid_namespace = name_space;
    header->created_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    for (int i = 0; i < HL_REGION_DEVICES; i++) {
        if (fresh->limit) region->device[i].limit = fresh->limit[i];
        if (fresh->sm_limit) region->device[i].sm_limit = fresh->sm_limit[i];
    }
    hl_region_lock_init(region);
    __atomic_store_n(&header->magic, HL_REGION_MAGIC, __ATOMIC_RELEASE);
}

/* Allocates and zeroes: what a killed maker left in it does not count. */
static int make_room(struct hl_region *region, const char *path, char *why) {
    struct rlimit files;
    if (!getrlimit(RLIMIT_FSIZE, &files) && files.rlim_cur < REGION_BYTES) /* growing a file beyond it is a signal */
        return refuse(why, -EFBIG,
                      "%s: the region cannot be made: this process may write files of %llu bytes only and it "
                      "needs %zu; raise ulimit -f",
                      path, (unsigned long long)files.rlim_cur, REGION_BYTES);
    if (ftruncate(region->fd, 0) || ftruncate(region->fd, (off_t)REGION_BYTES)) {
        int problem = errno;
        return refuse(why, -problem, "%s: the region cannot be made: %s; give a path on a writable file system", path,
                      strerror(problem));
    }
    int problem = posix_fallocate(region->fd, 0, (off_t)REGION_BYTES);
    if (problem)
        return refuse(why, -problem, "%s: the region cannot be made: %s; it needs %zu bytes", path, strerror(problem),
                      REGION_BYTES);
    fchmod(region->fd, 0666); /* processes of several users share the limit of a container */
    return 0;
}

static int check(const struct hl_region *region, const char *path, off_t size, char *why) {
    const struct hl_region_header *header = region->header;
    static const char *const mend = "remove the file or give another path";
    if (header->magic != HL_REGION_MAGIC)
        return refuse(why, -EPROTO, "%s: not a hooklab-1 region (magic 0x%llx); %s", path,
                      (unsigned long long)header->magic, mend);
    if (header->version != HL_REGION_VERSION)
        return refuse(why, -EPROTO, "%s: region version %u, this build reads version %u; %s", path, header->version,
                      HL_REGION_VERSION, mend);
    if (header->layout_hash != HL_HOOKLAB_1_HASH)
        return refuse(why, -EPROTO, "%s: the region was made with another layout (hash 0x%llx, ours 0x%llx); %s", path,
                      (unsigned long long)header->layout_hash, (unsigned long long)HL_HOOKLAB_1_HASH, mend);
    if (header->size != REGION_BYTES || (uint64_t)size != header->size)
        return refuse(why, -EPROTO, "%s: the region has %lld bytes, its header says %llu, a whole one %zu; %s", path,
                      (long long)size, (unsigned long long)header->size, REGION_BYTES, mend);
    if (header->header_bytes != sizeof *header || header->device_count != HL_REGION_DEVICES ||
        header->slot_count != HL_REGION_SLOTS || header->device_offset != DEVICE_OFFSET ||
        header->slot_offset != SLOT_OFFSET || header->slot_high > HL_REGION_SLOTS ||
        (header->lock_kind != HL_LOCK_ROBUST && header->lock_kind != HL_LOCK_FILE))
        return refuse(why, -EPROTO, "%s: the header of the region is damaged (counts, offsets or lock kind); %s", path,
                      mend);
    return 0;
}

/* Before anything is mapped: is the file ours to make, worth mapping, or somebody else's? */
static int look(struct hl_region *region, const char *path, off_t size, int create, int *make, char *why) {
    uint64_t magic = 0;
    ssize_t got = pread(region->fd, &magic, sizeof magic, 0);
    *make = create && (size == 0 || (size == (off_t)REGION_BYTES && got == sizeof magic && magic == 0));
    if (*make) return 0;
    if (got >= 4 && (uint32_t)magic == HAMI_MAGIC)
        return refuse(why, -EPROTO,
                      "%s: holds a region of HAMi-core, not of hooklab; remove the file or give another path", path);
    if (size < (off_t)sizeof *region->header)
        return refuse(
            why, -EPROTO,
            "%s: too short for a region (%lld bytes, a whole one has %zu); remove the file or give another path", path,
            (long long)size, REGION_BYTES);
    if (size < (off_t)REGION_BYTES && magic == HL_REGION_MAGIC)
        return refuse(
            why, -EPROTO,
            "%s: the region was truncated (%lld bytes, a whole one has %zu); remove the file or give another path",
            path, (long long)size, REGION_BYTES);
    if (size < (off_t)REGION_BYTES || magic != HL_REGION_MAGIC)
        return refuse(why, -EPROTO,
                      "%s: not a hooklab-1 region (%lld bytes, magic 0x%llx); remove the file or give another path",
                      path, (long long)size, (unsigned long long)magic);
    return 0;
}

static int map_data(struct hl_region *region, const char *path, char *why) {
    int fd = hl_region_describe(region);
    void *at = fd < 0 ? MAP_FAILED : mmap(NULL, REGION_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    int problem = fd < 0 ? -fd : errno;
    if (fd >= 0) close(fd);
    if (at == MAP_FAILED) return refuse(why, -problem, "%s: the region cannot be mapped: %s", path, strerror(problem));
    point_into(region, at);
    return 0;
}

/* The only PID namespace of a robust region may have ended (a container started again over its old file). Behind the gate
 * with nobody present the mutex is nobody's: it is made anew for ours. */
static int admit_namespace(struct hl_region *region, const char *path, char *why) {
    struct hl_region_header *header = region->header;
    uint64_t ours = hl_pid_namespace();
    if (header->lock_kind != HL_LOCK_ROBUST || header->pid_namespace == ours) return 0;
    if (!ours || !hl_region_nobody_present(region))
        return refuse(why, -EXDEV,
                      "%s: the region's mutex belongs to PID namespace %llu and this process is in %llu; "
                      "use HOOKLAB_REGION_LOCK=file for a region shared between PID namespaces",
                      path, (unsigned long long)header->pid_namespace, (unsigned long long)ours);
    hl_region_bury_all(region);
    hl_region_lock_init(region);
    header->pid_namespace = ours;
    return 0;
}

/* A file that nobody lives in is left over from an earlier container: the limits of who comes next apply. Where somebody
 * lives, the limits are those that the living know; changing them is the business of whoever changes them for all. */
static void renew_limits(struct hl_region *region, const struct hl_region_new *fresh) {
    if (!hl_region_nobody_present(region)) return;
    for (int i = 0; i < HL_REGION_DEVICES; i++) {
        memset(region->device[i].uuid, 0, sizeof region->device[i].uuid);
        if (fresh->limit && fresh->limit[i])
            __atomic_store_n(&region->device[i].limit, fresh->limit[i], __ATOMIC_RELEASE);
        if (fresh->sm_limit && fresh->sm_limit[i])
            __atomic_store_n(&region->device[i].sm_limit, fresh->sm_limit[i], __ATOMIC_RELEASE);
    }
}

static int open_private(struct hl_region *region, const struct hl_region_new *fresh, char *why) {
    void *at = mmap(NULL, REGION_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return refuse(why, -errno, "the private region cannot be mapped: %s", strerror(errno));
    point_into(region, at);
    fill(region, fresh, 0);
    return 0;
}

/* The path from the root: the host may change its folder before the file is opened again. */
static int remember(struct hl_region *region, const char *path) {
    size_t length = 0;
    if (path[0] != '/') {
        if (!getcwd(region->path, sizeof region->path - 1)) return -1;
        length = strlen(region->path);
        region->path[length++] = '/';
    }
    if (length + strlen(path) >= sizeof region->path) return -1;
    strcpy(region->path + length, path);
    return 0;
}

int hl_region_open(struct hl_region *region, const char *path, const struct hl_region_new *fresh, char *why) {
    memset(region, 0, sizeof *region);
    pthread_mutex_init(&region->local, NULL);
    region->fd = -1;
    if (!path) return open_private(region, fresh, why);
    struct stat info;
    if (remember(region, path))
        return refuse(why, -ENAMETOOLONG,
                      "%.80s...: the path of the region is too long (%zu bytes) or its folder is gone", path,
                      strlen(path));
    int fd = open(path, O_RDWR | O_CLOEXEC); /* O_CREAT on another user's file in a sticky folder may be forbidden */
    if (fd < 0 && errno == ENOENT && fresh->create) fd = open(path, O_RDWR | O_CLOEXEC | O_CREAT, 0666);
    if (fd < 0) {
        int problem = errno;
        return refuse(why, -problem, "%s: the region cannot be opened: %s; give a writable path in an existing folder",
                      path, strerror(problem));
    }
    region->fd = move_up(fd);
    int problem = 0, make = 0;
    if (fstat(region->fd, &info) || !S_ISREG(info.st_mode)) {
        problem = refuse(why, -EPROTO, "%s: not a regular file; give another path for the region", path);
    } else {
        region->file_device = info.st_dev;
        region->file_inode = info.st_ino;
        problem = hl_region_gate_close(region);
        if (problem)
            refuse(why, problem,
                   "%s: the region cannot be locked: %s; its file system must know "
                   "open file description locks",
                   path, strerror(-problem));
    }
    if (!problem && fstat(region->fd, &info)) problem = refuse(why, -errno, "%s: %s", path, strerror(errno));
    if (!problem) problem = look(region, path, info.st_size, fresh->create, &make, why);
    if (!problem && make) problem = make_room(region, path, why);
    if (!problem) problem = map_data(region, path, why);
    if (!problem && make) fill(region, fresh, fresh->robust ? hl_pid_namespace() : 0);
    if (!problem) problem = check(region, path, make ? (off_t)REGION_BYTES : info.st_size, why);
    if (!problem && fresh->create) problem = admit_namespace(region, path, why);
    if (!problem && fresh->create && !make) renew_limits(region, fresh);
    if (problem) hl_region_unmap(region);
    return problem;
}

int hl_region_is_remote(const struct hl_region *region) {
    static const unsigned long remote[] = {0x6969 /* NFS */,
                                           0xFF534D42 /* CIFS */,
                                           0xFE534D42 /* SMB */,
                                           0x517B /* SMB, old */,
                                           0x5346414F /* AFS */,
                                           0x00C36400 /* Ceph */,
                                           0x0BD00BD0 /* Lustre */};
    struct statfs info;
    if (region->fd < 0 || fstatfs(region->fd, &info)) return 0;
    for (size_t i = 0; i < sizeof remote / sizeof *remote; i++)
        if (((unsigned long)info.f_type & 0xFFFFFFFFu) == remote[i]) return 1;
    return 0;
}

void hl_region_unmap(struct hl_region *region) {
    if (region->presence) munmap(region->presence, 1);
    if (region->header) munmap(region->header, REGION_BYTES);
    if (region->fd >= 0) close(region->fd);
    region->presence = NULL;
    region->header = NULL;
    region->fd = -1;
}
