/* The experiment: do something on the GPU that only we do, and see which process NVML says did it.
 *
 * What we do is to hold a random number of memory blocks for a moment: the one process whose memory grew by exactly that
 * and shrank by exactly that again is this one. Where this process has no context yet one is made for it, and the process
 * must have come with it and go with it. "Who is new in the list" alone would be wrong as soon as two start together.
 *
 * Invariants: one experiment at a time on a GPU of the node, by a file lock that every container sees and that the kernel
 * drops with its owner; where there is no such place the experiment still is never believed when two processes fit. Every
 * context, block, reservation, lock and NVML reference is given back on every path. Blocks and context are reserved in
 * the books first: an experiment does not break the container's limit either. */
#define _GNU_SOURCE
#include "identity.h"

#include "history.h"
#include "ledger.h"
#include "points.h"
#include "preload.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#ifndef HL_PROBE_GATE_DIRECTORY
#define HL_PROBE_GATE_DIRECTORY "/tmp/vgpulock"
#endif

enum { BLOCK = 2 << 20, MOST_BLOCKS = 32, ATTEMPTS = 4, ROWS = 4096 };
static const uint64_t gate_patience_ns = 10000000000u;

/* -- NVML -- */
struct row {
    uint32_t pid;
    uint64_t bytes;
};
struct list {
    struct row *rows;
    unsigned count;
};
struct eye { /* one GPU as NVML shows it */
    nvmlDevice_t device;
    char name[48]; /* GPU-... or MIG-... */
    bool started;
};

static bool open_eye(int device, struct eye *eye) {
    __typeof__(&cuDeviceGetUuid_v2) uuid_of = HL_REAL(cuDeviceGetUuid_v2);
    if (!uuid_of) uuid_of = HL_REAL(cuDeviceGetUuid);
    __typeof__(&nvmlInit_v2) start = HL_REAL(nvmlInit_v2);
    __typeof__(&nvmlDeviceGetHandleByUUID) handle_of = HL_REAL(nvmlDeviceGetHandleByUUID);
    CUuuid uuid;
    memset(eye, 0, sizeof *eye);
    if (!uuid_of || !start || !handle_of || uuid_of(&uuid, device) != CUDA_SUCCESS) return false;
    char *at = eye->name + snprintf(eye->name, sizeof eye->name, "GPU-");
    for (int i = 0; i < 16; i++)
        at += sprintf(at, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", (unsigned char)uuid.bytes[i]);
    if (start() != NVML_SUCCESS) return false;
    eye->started = true;
    if (handle_of(eye->name, &eye->device) == NVML_SUCCESS) return true;
    memcpy(eye->name, "MIG", 3); /* no card has it: a part of one */
    return handle_of(eye->name, &eye->device) == NVML_SUCCESS;
}

static void close_eye(struct eye *eye) {
    __typeof__(&nvmlShutdown) stop = HL_REAL(nvmlShutdown);
    if (eye->started && stop) stop();
    eye->started = false;
}

#define ASK(name, type)                                                                                                \
    {                                                                                                                  \
        __typeof__(&name) real = HL_REAL(name);                                                                        \
        type *infos = real ? calloc(room, sizeof *infos) : NULL;                                                       \
        if (real && !infos) return false;                                                                              \
        if (infos) {                                                                                                   \
            unsigned count = room;                                                                                     \
            nvmlReturn_t result = real(eye->device, &count, (void *)infos);                                            \
            if (result == NVML_SUCCESS && count <= room) {                                                             \
                list->rows = calloc(count + 1, sizeof *list->rows);                                                    \
                list->count = list->rows ? count : 0;                                                                  \
                for (unsigned i = 0; i < list->count; i++)                                                             \
                    list->rows[i] = (struct row){infos[i].pid, infos[i].usedGpuMemory};                                \
            }                                                                                                          \
            free(infos);                                                                                               \
            if (result != NVML_ERROR_FUNCTION_NOT_FOUND) return list->rows != NULL;                                    \
        }                                                                                                              \
    }

/* The compute processes of the device; the list's rows are the caller's to free. */
static bool look(const struct eye *eye, struct list *list) {
    unsigned room = ROWS;
    list->rows = NULL;
    list->count = 0;
    ASK(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t)
    ASK(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
    ASK(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t)
    return false;
}

static const struct row *row_of(const struct list *list, uint32_t pid) {
    for (unsigned i = 0; i < list->count; i++)
        if (list->rows[i].pid == pid) return &list->rows[i];
    return NULL;
}

static void drop(struct list *list) {
    free(list->rows);
    list->rows = NULL;
    list->count = 0;
}

/* Some drivers translate the PIDs of the list into the namespace of whoever asks: inside a container this process then
 * stands there under its inner PID (driver 580.159.04, H200). That is a key to the list, not the machine's PID. */
static int inner_seen; /* the experiment has shown that the list has inner PIDs; release/acquire */

void hl_probe_fork_child(void) { __atomic_store_n(&inner_seen, 0, __ATOMIC_RELEASE); }

static bool in_first_namespace(void) {
    struct stat own;
    return !stat("/proc/self/ns/pid", &own) && own.st_ino == 0xEFFFFFFC; /* fixed in the kernel */
}

/* Under the machine's PID; where that is known and not listed although we are, the list has inner ones. */
static const struct row *own_row(const struct list *list, uint32_t host_pid) {
    const struct row *row = host_pid ? row_of(list, host_pid) : NULL;
    bool inner = host_pid ? !in_first_namespace() : __atomic_load_n(&inner_seen, __ATOMIC_ACQUIRE);
    return row || !inner ? row : row_of(list, (uint32_t)getpid());
}

uint64_t hl_probe_bytes(int device, uint32_t host_pid) {
    struct eye eye;
    struct list list = {NULL, 0};
    uint64_t bytes = 0;
    if (open_eye(device, &eye) && look(&eye, &list)) {
        const struct row *row = own_row(&list, host_pid);
        if (row && row->bytes != (uint64_t)NVML_VALUE_NOT_AVAILABLE) bytes = row->bytes;
    }
    drop(&list);
    close_eye(&eye);
    return bytes;
}

/* -- the gate -- */
/* -1 with errno. In a sticky folder a foreign file must not be opened with O_CREAT (protected_regular). */
static int open_gate(const char *name) {
    char path[sizeof HL_PROBE_GATE_DIRECTORY + 80];
    snprintf(path, sizeof path, HL_PROBE_GATE_DIRECTORY "/hooklab-probe-%s.lock", name);
    for (int attempt = 0; attempt < 8; attempt++) {
        int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (fd < 0 && errno == ENOENT) {
            fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_CREAT | O_EXCL, 0666);
            if (fd >= 0) fchmod(fd, 0666); /* every user of the node passes here */
        }
        struct stat seen;
        if (fd >= 0 && (fstat(fd, &seen) || !S_ISREG(seen.st_mode))) {
            close(fd);
            errno = ENOTSUP;
            return -1;
        }
        if (fd >= 0 || (errno != EEXIST && errno != ENOENT)) return fd;
    }
    return -1;
}

/* A record lock belongs to this process, not to the descriptor: no child inherits it, and it ends with the process. */
static bool pass_gate(int fd) {
    uint64_t began = hl_now_ns();
    long pause_ns = 100000 + (long)(began % 100000);
    for (;;) {
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
        if (!fcntl(fd, F_SETLK, &lock)) return true;
        if (errno != EAGAIN && errno != EACCES && errno != EINTR) return false;
        if (hl_now_ns() - began > gate_patience_ns) return false;
        nanosleep(&(struct timespec){.tv_nsec = pause_ns}, NULL);
        if (pause_ns < 4000000) pause_ns += pause_ns / 4;
    }
}

/* -- the experiment -- */
struct trial {
    int device;
    const struct eye *eye;
    CUcontext context;
    bool made;     /* the context is of this experiment */
    bool retained; /* it must be released */
    bool alone;    /* the gate is ours */
};

/* Blocks held and given back; how the list looked before, during, after. */
static int hold_blocks(const struct trial *trial, uint64_t bytes, struct list views[3]) {
    struct hl_ticket ticket;
    CUresult code = CUDA_SUCCESS;
    __typeof__(&cuMemAlloc_v2) take = HL_REAL(cuMemAlloc_v2);
    __typeof__(&cuMemFree_v2) give = HL_REAL(cuMemFree_v2);
    CUdeviceptr at = 0;
    if (!take || !give || !look(trial->eye, &views[0])) return HL_REASON_NO_NVML;
    enum hl_admission admission = hl_charge_begin(&ticket, trial->device, bytes, HL_KIND_OTHER, &code);
    if (admission == HL_REFUSED) return HL_REASON_UNCONFIRMED;
    bool held = take(&at, bytes) == CUDA_SUCCESS;
    bool seen = held && look(trial->eye, &views[1]);
    if (held) give(at);
    if (admission == HL_ADMITTED) hl_ledger_cancel(&ticket);
    if (!held) return HL_REASON_UNCONFIRMED;
    return seen && look(trial->eye, &views[2]) ? HL_REASON_ANSWERED : HL_REASON_NO_NVML;
}

static int find_holder(const struct list views[3], uint64_t bytes, uint32_t *pid) {
    unsigned fits = 0;
    for (unsigned i = 0; i < views[1].count; i++) {
        const struct row *during = &views[1].rows[i];
        const struct row *before = row_of(&views[0], during->pid), *after = row_of(&views[2], during->pid);
        if (!before || !after || during->bytes == (uint64_t)NVML_VALUE_NOT_AVAILABLE) continue;
        if (during->bytes - before->bytes != bytes || during->bytes - after->bytes != bytes) continue;
        *pid = during->pid;
        fits++;
    }
    return fits == 1 ? HL_REASON_ANSWERED : fits ? HL_REASON_AMBIGUOUS : HL_REASON_UNCONFIRMED;
}

static int by_blocks(const struct trial *trial, uint32_t *pid) {
    int reason = HL_REASON_UNCONFIRMED;
    for (int attempt = 0; attempt < ATTEMPTS && reason != HL_REASON_ANSWERED; attempt++) {
        uint8_t chance = 0;
        if (getrandom(&chance, 1, GRND_NONBLOCK) != 1) chance = (uint8_t)(hl_now_ns() >> 6);
        unsigned most = MOST_BLOCKS >> 2 * attempt; /* a full device may still have room for less */
        uint64_t bytes = (uint64_t)(1 + chance % (most ? most : 1)) * BLOCK;
        struct list views[3] = {{NULL, 0}, {NULL, 0}, {NULL, 0}};
        reason = hold_blocks(trial, bytes, views);
        if (reason == HL_REASON_ANSWERED) reason = find_holder(views, bytes, pid);
        bool listed = views[0].count > 0;
        for (int i = 0; i < 3; i++) drop(&views[i]);
        if (reason == HL_REASON_NO_NVML) break;
        if (reason == HL_REASON_UNCONFIRMED && !listed) reason = HL_REASON_NOT_LISTED;
    }
    return reason;
}

/* The only one that came with our context; alone = nobody else tries meanwhile. */
static int by_coming(const struct list *before, const struct list *now, uint32_t *pid) {
    unsigned came = 0;
    for (unsigned i = 0; i < now->count; i++)
        if (!row_of(before, now->rows[i].pid)) {
            *pid = now->rows[i].pid;
            came++;
        }
    return came == 1 ? HL_REASON_ANSWERED : came ? HL_REASON_AMBIGUOUS : HL_REASON_NOT_LISTED;
}

static bool push(CUcontext context) {
    __typeof__(&cuCtxPushCurrent_v2) real = HL_REAL(cuCtxPushCurrent_v2);
    return real && real(context) == CUDA_SUCCESS;
}

static void pop(void) {
    __typeof__(&cuCtxPopCurrent_v2) real = HL_REAL(cuCtxPopCurrent_v2);
    CUcontext context;
    if (real) real(&context);
}

static bool primary_active(int device) {
    __typeof__(&cuDevicePrimaryCtxGetState) state = HL_REAL(cuDevicePrimaryCtxGetState);
    unsigned flags = 0;
    int active = 0;
    return state && state(device, &flags, &active) == CUDA_SUCCESS && active;
}

static void release(int device) {
    __typeof__(&cuDevicePrimaryCtxRelease_v2) real = HL_REAL(cuDevicePrimaryCtxRelease_v2);
    if (!real) real = HL_REAL(cuDevicePrimaryCtxRelease);
    if (real) real(device);
}

/* A context of ours on the device: the current one, else the primary one, which may have to be made. */
static bool take_context(struct trial *trial) {
    __typeof__(&cuDevicePrimaryCtxRetain) retain = HL_REAL(cuDevicePrimaryCtxRetain);
    int device = -1;
    if (hl_current(&trial->context, &device) && device == trial->device) return true;
    trial->made = !primary_active(trial->device);
    if (!retain || retain(&trial->context, trial->device) != CUDA_SUCCESS) return false;
    trial->retained = true;
    return true;
}

static int experiment(struct trial *trial, uint32_t *pid) {
    struct list before = {NULL, 0}, now = {NULL, 0}, end = {NULL, 0};
    int reason = look(trial->eye, &before) ? HL_REASON_ANSWERED : HL_REASON_NO_NVML;
    if (reason == HL_REASON_ANSWERED && !take_context(trial)) reason = HL_REASON_NO_CONTEXT;
    if (reason == HL_REASON_ANSWERED && !push(trial->context)) reason = HL_REASON_NO_CONTEXT;
    else if (reason == HL_REASON_ANSWERED) {
        reason = by_blocks(trial, pid);
        pop();
    }
    if (trial->made && reason == HL_REASON_ANSWERED && row_of(&before, *pid)) reason = HL_REASON_UNCONFIRMED;
    bool counted = false;
    if (trial->made && trial->alone && reason == HL_REASON_UNCONFIRMED && look(trial->eye, &now)) {
        reason = by_coming(&before, &now, pid); /* no room for a block, or a driver that tells no memory */
        counted = true;
    }
    if (trial->retained) release(trial->device);
    if (trial->made && reason == HL_REASON_ANSWERED && !primary_active(trial->device)) {
        bool gone = look(trial->eye, &end) && !row_of(&end, *pid);
        if (!gone && counted) reason = HL_REASON_UNCONFIRMED; /* blocks are proof enough without it */
    }
    drop(&before);
    drop(&now);
    drop(&end);
    return reason;
}

/* With a context of its own the experiment holds as much as a context costs: booked like one. */
static int behind_gate(int device, const struct eye *eye, bool alone, uint32_t *pid) {
    struct trial trial = {.device = device, .eye = eye, .alone = alone};
    struct hl_ticket ticket;
    CUresult code = CUDA_SUCCESS;
    CUcontext current = NULL;
    int where = -1;
    enum hl_admission admission = HL_PASS;
    bool have = (hl_current(&current, &where) && where == device) || primary_active(device);
    uint64_t cost = have ? 0 : hl_context_cost(device);
    if (cost) admission = hl_charge_begin(&ticket, device, cost, HL_KIND_CONTEXT, &code);
    if (admission == HL_REFUSED) return HL_REASON_NO_CONTEXT;
    int reason = experiment(&trial, pid);
    if (admission == HL_ADMITTED) hl_ledger_cancel(&ticket);
    return reason;
}

int hl_probe_ask(int device, uint32_t *pid) {
    struct eye eye = {.started = false};
    uint32_t found = 0;
    *pid = 0;
    if (device < 0 || device >= hl_devices_count()) return HL_REASON_NO_DEVICE;
    int reason = open_eye(device, &eye) ? HL_REASON_ANSWERED : HL_REASON_NO_NVML;
    if (reason == HL_REASON_ANSWERED) {
        int gate = open_gate(eye.name);
        bool absent = gate < 0 && errno == ENOENT; /* no place shared by the node */
        if (gate < 0 && !absent) reason = HL_REASON_GATE;
        else if (gate >= 0 && !pass_gate(gate)) reason = HL_REASON_GATE_TIMEOUT;
        else {
            HL_POINT(IDENTITY_GATE);
            reason = behind_gate(device, &eye, gate >= 0, &found);
        }
        if (gate >= 0) close(gate);
    }
    close_eye(&eye);
    if (reason == HL_REASON_ANSWERED && found == (uint32_t)getpid() && !in_first_namespace()) {
        __atomic_store_n(&inner_seen, 1, __ATOMIC_RELEASE);
        return HL_REASON_INNER_PIDS; /* also where both numbers happen to be the same: nothing tells the difference */
    }
    if (reason == HL_REASON_ANSWERED) *pid = found;
    return reason;
}
