/* The board of a node: every paced process writes when it had work on a GPU, and each container reckons from all of
 * that how long its own kernels ran.
 *
 * Events around a container's work also span the time slices of its neighbours, and NVML credits a whole sample to one
 * process, so neither says what a container had while others were at work. What is known of both sides does: contexts
 * take turns by time slices, so of a time in which n have work each has its n-th part, one that joins runs first, and work that is not longer
 * than a slice runs in one piece: its events are stamped when its turn has come.
 *
 * The file is one for the node (HOOKLAB_BOARD; where the containers' common folder exists, a file in it). Invariants: a
 * row is written by the process that holds its byte lock, under its pacer's mutex, and read by everybody without one; a
 * reader takes an interval only if the ring has not come round to it meanwhile. A row whose process has died counts for
 * nobody. A forked child takes rows of its own. What stands here is a neighbour's word: it can make a container's
 * correction wrong within the bounds of its policy, and nothing else. */
#define _GNU_SOURCE
#include "pacing.h"

#include "config.h"
#include "history.h"
#include "hl_layout_board.h"
#include "ledger.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    HIGH_DESCRIPTOR = 512,
    MEMBERS = 64,            /* rows of one GPU that are looked at */
    LATE_NS = 500000000,     /* work that takes longer is not waited for */
    LEAST_NS = 50000000,     /* a window */
    LONGEST_NS = 1000000000, /* a window that would be longer begins anew */
    POINTS = 2 * MEMBERS * (HL_BOARD_INTERVALS + 1) + 2
};
static const char standard_folder[] = "/tmp/vgpulock", standard_file[] = "/tmp/vgpulock/hooklab.board";
static const size_t bytes = sizeof(struct hl_board_header) + HL_BOARD_ROWS * sizeof(struct hl_board_row);

static struct {
    pthread_mutex_t mutex;
    bool tried;
    int fd;
    struct hl_board_header *header; /* NULL: there is no board */
    uint64_t container;
} board = {.mutex = PTHREAD_MUTEX_INITIALIZER, .fd = -1};

static struct hl_board_row *rows(void) { return (struct hl_board_row *)(void *)(board.header + 1); }

static int file_lock(int command, int type, off_t at, bool *held) {
    struct flock lock = {.l_type = (short)type, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
    while (syscall(SYS_fcntl, board.fd, command, &lock))
        if (errno != EINTR) return -errno;
    if (held) *held = lock.l_type != F_UNLCK;
    return 0;
}

static const char *make(struct stat *status) {
    if (fstat(board.fd, status) || !S_ISREG(status->st_mode)) return "not a regular file";
    if (file_lock(F_OFD_SETLKW, F_WRLCK, HL_BOARD_GATE_BYTE, NULL)) return "no locks on this file system";
    const char *problem = NULL;
    if (fstat(board.fd, status)) problem = "cannot be read";
    else if ((size_t)status->st_size < bytes && ftruncate(board.fd, (off_t)bytes)) problem = "cannot be made larger";
    else (void)!fchmod(board.fd, 0666); /* other containers run as other users; not ours, not our business */
    if (!problem) {
        void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, board.fd, 0);
        struct hl_board_header *header = at == MAP_FAILED ? NULL : at;
        if (!header) {
            problem = "cannot be mapped";
        } else if (!header->magic) {
            header->version = HL_BOARD_VERSION;
            header->row_count = HL_BOARD_ROWS;
            header->layout_hash = HL_BOARD_HASH;
            __atomic_store_n(&header->magic, HL_BOARD_MAGIC, __ATOMIC_RELEASE);
        } else if (header->magic != HL_BOARD_MAGIC || header->layout_hash != HL_BOARD_HASH) {
            munmap(at, bytes);
            header = NULL;
            problem = "of another version";
        }
        board.header = header;
    }
    (void)file_lock(F_OFD_SETLK, F_UNLCK, HL_BOARD_GATE_BYTE, NULL);
    return problem;
}

/* Under board.mutex. Without a folder that containers share there is no board, which is no fault. */
static void begin(void) {
    if (board.tried) return;
    board.tried = true;
    const char *path = hl_config("HOOKLAB_BOARD");
    bool chosen = path && *path;
    if (chosen && !strcmp(path, "off")) return;
    if (!chosen && access(standard_folder, W_OK)) return;
    if (!chosen) path = standard_file;
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0 && errno == ENOENT) fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_CREAT, 0666);
    const char *problem = NULL;
    if (fd < 0) {
        problem = "cannot be opened";
    } else {
        struct stat status;
        board.fd = fcntl(fd, F_DUPFD_CLOEXEC, HIGH_DESCRIPTOR);
        if (board.fd < 0) board.fd = fd;
        else close(fd);
        problem = make(&status);
    }
    if (problem) hl_log(0, "the board %.200s is %s: neighbours are seen through NVML only", path, problem);
    if (problem && board.fd >= 0) {
        close(board.fd);
        board.fd = -1;
    }
    const struct hl_region_header *region = hl_ledger_header();
    board.container = (region ? region->created_ns : hl_now_ns()) | 1;
}

struct hl_board_row *hl_board_take(int device) {
    unsigned char uuid[16];
    struct hl_board_row *row = NULL;
    if (!hl_devices_uuid(device, uuid)) return NULL;
    pthread_mutex_lock(&board.mutex);
    begin();
    for (int i = 0; board.header && i < HL_BOARD_ROWS && !row; i++) {
        struct hl_board_row *at = &rows()[i];
        bool held = false;
        if (__atomic_load_n(&at->container,
                            __ATOMIC_ACQUIRE)) { /* perhaps of one that died; our own locks do not show */
            if (at->pid == (uint32_t)getpid() && at->container == board.container) continue;
            if (file_lock(F_OFD_GETLK, F_WRLCK, HL_BOARD_ROW_BYTE + i, &held) || held) continue;
        }
        if (file_lock(F_OFD_SETLK, F_WRLCK, HL_BOARD_ROW_BYTE + i, NULL)) continue;
        __atomic_store_n(&at->container, 0, __ATOMIC_RELEASE);
        memcpy(at->uuid, uuid, sizeof uuid);
        at->pid = (uint32_t)getpid();
        at->since = at->drain = at->head = 0;
        __atomic_store_n(&at->container, board.container, __ATOMIC_RELEASE);
        row = at;
    }
    pthread_mutex_unlock(&board.mutex);
    return row;
}

void hl_board_leave(void) {
    pthread_mutex_lock(&board.mutex);
    for (int device = 0; device < HL_DEVICES; device++)
        if (hl_pacers[device].board) __atomic_store_n(&hl_pacers[device].board->container, 0, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&board.mutex);
}

void hl_board_fork_child(void) { /* the rows are the parent's, and so are its locks, as long as it lives */
    if (board.fd >= 0) close(board.fd);
    if (board.header) munmap(board.header, bytes);
    pthread_mutex_init(&board.mutex, NULL);
    board.tried = false;
    board.fd = -1;
    board.header = NULL;
}

void hl_board_ran(struct hl_board_row *row, uint64_t start, uint64_t end) {
    uint64_t head = row->head;
    struct hl_board_interval *last = head ? &row->interval[(head - 1) % HL_BOARD_INTERVALS] : NULL;
    if (last && start < last->end) start = last->end;
    if (start >= end) return;
    if (last && start - last->end < HL_BOARD_JOIN_NS) {
        __atomic_store_n(&last->end, end, __ATOMIC_RELEASE);
        return;
    }
    struct hl_board_interval *next = &row->interval[head % HL_BOARD_INTERVALS];
    __atomic_store_n(&next->start, start, __ATOMIC_RELAXED);
    __atomic_store_n(&next->end, end, __ATOMIC_RELAXED);
    __atomic_store_n(&row->head, head + 1, __ATOMIC_RELEASE);
}

/* ---- reading ---- */

struct member {
    bool own;
    uint32_t count, at;
    uint64_t until, since, drain;                              /* until: the end of its newest interval */
    struct hl_board_interval interval[HL_BOARD_INTERVALS + 1]; /* oldest first; the last may be what is in flight */
};

static void read_row(const struct hl_board_row *row, uint64_t cut, struct member *member) {
    struct hl_board_interval found[HL_BOARD_INTERVALS];
    uint32_t count = 0;
    member->since = __atomic_load_n(&row->since, __ATOMIC_ACQUIRE);
    member->drain = __atomic_load_n(&row->drain, __ATOMIC_RELAXED);
    uint64_t head = __atomic_load_n(&row->head, __ATOMIC_ACQUIRE);
    for (uint64_t i = head; i > 0 && head - i < HL_BOARD_INTERVALS - 1; i--) {
        const struct hl_board_interval *at = &row->interval[(i - 1) % HL_BOARD_INTERVALS];
        found[count].start = __atomic_load_n(&at->start, __ATOMIC_RELAXED);
        found[count].end = __atomic_load_n(&at->end, __ATOMIC_RELAXED);
        if (found[count].end < cut) break;
        count++;
    }
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    uint64_t written = __atomic_load_n(&row->head, __ATOMIC_RELAXED) - head;
    if (written > HL_BOARD_INTERVALS - count)
        count = written > HL_BOARD_INTERVALS ? 0 : HL_BOARD_INTERVALS - (uint32_t)written;
    member->until = count ? found[0].end : 0;
    member->count = member->at = 0;
    for (uint32_t i = count; i > 0; i--) member->interval[member->count++] = found[i - 1];
}

/* How long the one that joined runs in the first `span` ns of a time that `n` share. */
static uint64_t joiner(uint64_t span, unsigned n) {
    const uint64_t slice = HL_BOARD_SLICE_NS;
    if (n == 2) {
        uint64_t rest = span % (2 * slice);
        return span / (2 * slice) * slice + (rest < slice ? rest : slice);
    }
    return span < slice ? span : slice + (span - slice) / n;
}

static int ascending(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* The interval of `member` that covers all of [from, to), between two neighbouring ends of intervals; NULL: idle. */
static const struct hl_board_interval *covering(struct member *member, uint64_t from, uint64_t to) {
    while (member->at < member->count && member->interval[member->at].end <= from) member->at++;
    if (member->at == member->count) return NULL;
    const struct hl_board_interval *interval = &member->interval[member->at];
    return interval->start <= from && interval->end >= to ? interval : NULL;
}

struct sums {
    uint64_t own, all, raw;
};

static void divide(struct member *members, unsigned count, uint64_t cut, uint64_t until, struct sums *sums) {
    static uint64_t point[POINTS];
    size_t points = 0;
    point[points++] = cut;
    point[points++] = until;
    for (unsigned i = 0; i < count; i++)
        for (uint32_t k = 0; k < members[i].count; k++) {
            const struct hl_board_interval *at = &members[i].interval[k];
            if (at->start > cut && at->start < until) point[points++] = at->start;
            if (at->end > cut && at->end < until) point[points++] = at->end;
        }
    qsort(point, points, sizeof *point, ascending);
    for (size_t p = 0; p + 1 < points; p++) {
        uint64_t from = point[p], to = point[p + 1], joined = 0;
        if (from == to) continue;
        unsigned n = 0, mine = 0, brief = 0, brief_mine = 0;
        bool latest_mine = false;
        for (unsigned i = 0; i < count; i++) {
            const struct hl_board_interval *at = covering(&members[i], from, to);
            if (!at) continue;
            n++;
            mine += members[i].own;
            if (at->end - at->start <= HL_BOARD_SLICE_NS) {
                brief++;
                brief_mine += members[i].own;
            }
            if (at->start >= joined) {
                joined = at->start;
                latest_mine = members[i].own;
            }
        }
        if (!n) continue;
        uint64_t span = to - from;
        sums->all += span;
        sums->raw += mine * span;
        if (brief) { /* what is not longer than a slice ran in one piece, at the others' cost */
            sums->own += brief_mine * span;
            continue;
        }
        uint64_t first = n == 1 ? span : joiner(to - joined, n) - joiner(from - joined, n);
        uint64_t rest = n > 1 ? (span - first) / (n - 1) : 0;
        uint64_t had = latest_mine ? first + (mine - 1) * rest : mine * rest;
        sums->own += n == 1 ? had
                            : had / (HL_BOARD_SLICE_NS + HL_BOARD_SWITCH_NS) * HL_BOARD_SLICE_NS +
                                  had % (HL_BOARD_SLICE_NS + HL_BOARD_SWITCH_NS) * HL_BOARD_SLICE_NS /
                                      (HL_BOARD_SLICE_NS + HL_BOARD_SWITCH_NS);
    }
}

bool hl_board_sample(int device, uint64_t cut, uint64_t now, struct hl_sample *sample) {
    static struct member members[MEMBERS]; /* one thread's turn at a time, as in hl_sample_take */
    unsigned char uuid[16];
    unsigned count = 0;
    uint64_t until = now;
    if (!board.header || !hl_pacers[device].board || !hl_devices_uuid(device, uuid)) return false;
    if (now - cut > LONGEST_NS) cut = 0;
    for (int i = 0; i < HL_BOARD_ROWS; i++) {
        struct hl_board_row *row = &rows()[i];
        uint64_t container = __atomic_load_n(&row->container, __ATOMIC_ACQUIRE);
        if (!container || memcmp(row->uuid, uuid, sizeof uuid)) continue;
        bool ours = row == hl_pacers[device].board, held = ours;
        if (!ours && (file_lock(F_OFD_GETLK, F_WRLCK, HL_BOARD_ROW_BYTE + i, &held) || !held)) continue; /* it died */
        if (count == MEMBERS) return false;
        struct member *member = &members[count++];
        read_row(row, cut ? cut : now, member);
        member->own = container == board.container;
        sample->members++;
        sample->others += !member->own;
        if (!member->since) continue;
        if (member->since < member->until) member->since = member->until;
        if (member->since < until) until = member->since;
    }
    if (until + LATE_NS < now) until = now - LATE_NS;
    if (!cut) { /* the first look only learns where to begin */
        sample->cut = until;
        return true;
    }
    sample->cut = cut;
    if (until < cut + LEAST_NS) return true;
    for (unsigned i = 0; i < count; i++) { /* not measured yet and late: as long as it should have taken */
        struct member *member = &members[i];
        if (!member->since || member->since >= until || member->drain <= member->since) continue;
        struct hl_board_interval *last = member->count ? &member->interval[member->count - 1] : NULL;
        if (last && member->since - last->end < HL_BOARD_JOIN_NS) last->end = member->drain;
        else member->interval[member->count++] = (struct hl_board_interval){member->since, member->drain};
    }
    struct sums sums = {0};
    divide(members, count, cut, until, &sums);
    uint64_t window = until - cut;
    sample->cut = until;
    sample->fresh = true;
    sample->time = until;
    sample->window = window;
    sample->own = sums.own * 10000 / window;
    sample->all = sums.all * 10000 / window;
    sample->own_ns = sums.own;
    sample->raw = sums.raw;
    return true;
}
