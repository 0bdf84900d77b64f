/* The board of a node: every paced process writes when it had work on a GPU, and each container reckons from all of
 * that how long its own kernels ran.
 *
 * Events around a container's work also span the time slices of its neighbours, and NVML credits a whole sample to one
 * process, so neither says what a container had while others were at work. What is known of both sides does
 * (pacing_divide.c). A launch on an idle stream that takes no longer than a slice ran in one piece, for its events are
 * stamped when its turn has come; only such intervals are joined with each other.
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

enum { HIGH_DESCRIPTOR = 512 };
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

bool hl_board_sample(int device, uint64_t cut, uint64_t now, struct hl_sample *sample) {
    static struct hl_member members[HL_BOARD_MEMBERS]; /* one thread's turn at a time, as in hl_sample_take */
    unsigned char uuid[16];
    unsigned count = 0;
    if (!board.header || !hl_pacers[device].board || !hl_devices_uuid(device, uuid)) return false;
    if (now - cut > HL_BOARD_LONGEST_NS) cut = 0;
    for (int i = 0; i < HL_BOARD_ROWS; i++) {
        struct hl_board_row *row = &rows()[i];
        uint64_t container = __atomic_load_n(&row->container, __ATOMIC_ACQUIRE);
        if (!container || memcmp(row->uuid, uuid, sizeof uuid)) continue;
        bool ours = row == hl_pacers[device].board, held = ours;
        if (!ours && (file_lock(F_OFD_GETLK, F_WRLCK, HL_BOARD_ROW_BYTE + i, &held) || !held)) continue; /* it died */
        if (count == HL_BOARD_MEMBERS) return false;
        struct hl_member *member = &members[count++];
        hl_board_read(row, cut ? cut : now, member);
        member->own = container == board.container;
        sample->members++;
        sample->others += !member->own;
    }
    struct hl_division sums;
    sample->cut = cut;
    uint64_t until = hl_board_look(members, count, &sample->cut, now, &sums);
    if (!until) return true;
    uint64_t window = until - cut;
    sample->fresh = true;
    sample->time = until;
    sample->window = window;
    sample->own = sums.own * 10000 / window;
    sample->all = sums.all * 10000 / window;
    sample->own_ns = sums.own;
    sample->raw = sums.raw;
    return true;
}
