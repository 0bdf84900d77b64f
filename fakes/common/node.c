/* See node.h. */
#define _GNU_SOURCE
#include "node.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "config.h"
#include "history.h"

enum { PATIENCE_S = 60, HIGH_FD = 200 };

static struct hl_node_header none_header;
static struct hl_node_process none_process;
static uint32_t none_calls[HL_NAME_COUNT];

#define NOWHERE                                                                                                        \
    {.header = &none_header,                                                                                           \
     .process = &none_process,                                                                                         \
     .calls = none_calls,                                                                                              \
     .container = -1,                                                                                                  \
     .index = -1,                                                                                                      \
     .memory_fd = -1}

struct hl_node_view hl_node = NOWHERE;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int attached, connection = -1, fork_handler, complained, papers;
static size_t mapped_bytes;
static void (*fork_child)(int);

static int integer(const char *key) {
    const char *text = hl_config(key);
    if (!text || *text < '0' || *text > '9') return -1;
    long value = strtol(text, NULL, 10);
    return value > 0x7fff ? -1 : (int)value;
}

static int fail(int code, const char *path, const char *why) {
    if (!complained) {
        complained = 1;
        fprintf(stderr, "hooklab fake driver: node %s: %s; start the program with `hooklab exec` or `hooklab run`\n",
                path ? path : "(HOOKLAB_NODE is not set)", why);
    }
    return code;
}

/* Low descriptor numbers belong to the host program. */
static int move_up(int fd) {
    int high = fcntl(fd, F_DUPFD_CLOEXEC, HIGH_FD);
    if (high < 0) return fd;
    close(fd);
    return high;
}

/* A connected socket, or -1 with *code. */
static int reach(const char *path, int *code) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    *code = ENAMETOOLONG;
    if (strlen(path) >= sizeof address.sun_path) return -1;
    strcpy(address.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    *code = errno;
    if (fd < 0) return -1;
    struct timeval patience = {PATIENCE_S, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    while (connect(fd, (struct sockaddr *)&address, sizeof address) < 0)
        if (errno != EINTR) {
            *code = errno;
            close(fd);
            return -1;
        }
    return fd;
}

union control {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(2 * sizeof(int))];
};

/* One request and its reply. lent: a descriptor that goes along, -1 none. fds: what came back, -1 none; only on 0. */
static int exchange(int fd, const struct hl_node_request *request, int lent, struct hl_node_reply *reply, int fds[2]) {
    union control control = {.bytes = {0}};
    struct iovec vector = {(void *)(uintptr_t)request, sizeof *request};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
    if (lent >= 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(sizeof lent);
        struct cmsghdr *part = CMSG_FIRSTHDR(&message);
        part->cmsg_level = SOL_SOCKET;
        part->cmsg_type = SCM_RIGHTS;
        part->cmsg_len = CMSG_LEN(sizeof lent);
        memcpy(CMSG_DATA(part), &lent, sizeof lent);
    }
    fds[0] = fds[1] = -1;
    ssize_t done;
    errno = 0;
    while ((done = sendmsg(fd, &message, MSG_NOSIGNAL)) < 0 && errno == EINTR) {}
    if (done != (ssize_t)sizeof *request) return errno ? errno : EPROTO;
    vector = (struct iovec){reply, sizeof *reply};
    message = (struct msghdr){
        .msg_iov = &vector, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    while ((done = recvmsg(fd, &message, MSG_CMSG_CLOEXEC)) < 0 && errno == EINTR) {}
    if (done < 0) return errno == EAGAIN ? ETIMEDOUT : errno;
    for (struct cmsghdr *part = CMSG_FIRSTHDR(&message); part; part = CMSG_NXTHDR(&message, part))
        if (part->cmsg_level == SOL_SOCKET && part->cmsg_type == SCM_RIGHTS)
            memcpy(fds, CMSG_DATA(part),
                   part->cmsg_len - CMSG_LEN(0) > 2 * sizeof(int) ? 2 * sizeof(int) : part->cmsg_len - CMSG_LEN(0));
    int code = 0;
    if (done != (ssize_t)sizeof *reply || reply->magic != HL_NODE_MAGIC || reply->version != HL_NODE_VERSION)
        code = EPROTO;
    else if (reply->status) code = reply->status > 0 ? reply->status : EPROTO;
    for (int i = 0; code && i < 2; i++) {
        if (fds[i] >= 0) close(fds[i]);
        fds[i] = -1;
    }
    return code;
}

static int talk(const char *path, uint32_t kind, int *fd_out, struct hl_node_reply *reply, int fds[2]) {
    int code, fd = reach(path, &code);
    if (fd < 0) return code;
    struct hl_node_request request = {.magic = HL_NODE_MAGIC,
                                      .version = HL_NODE_VERSION,
                                      .kind = kind,
                                      .container = integer("HOOKLAB_CONTAINER"),
                                      .index = integer("HOOKLAB_PROCESS"),
                                      .ns_pid = (uint32_t)getpid()};
    code = exchange(fd, &request, -1, reply, fds);
    if (code) close(fd);
    else *fd_out = fd;
    return code;
}

static int inside(uint64_t offset, uint64_t bytes, uint64_t size) { return offset <= size && bytes <= size - offset; }

/* NULL or why this file cannot be used. */
static const char *unfit(const struct hl_node_header *h, uint64_t size) {
    if (h->magic != HL_NODE_MAGIC) return "its file is not a node file";
    if (h->version != HL_NODE_VERSION || h->layout_hash != HL_NODE_HASH)
        return "its file has another layout version: rebuild hooklab";
    if (h->names_hash != HL_NAMES_HASH || h->name_count != HL_NAME_COUNT)
        return "it was made with another hook table: rebuild hooklab";
    if (h->size > size || h->device_count == 0 || h->device_count > HL_MAX_DEVICES ||
        h->process_capacity > HL_MAX_PROCESSES ||
        !inside(h->turns_offset, h->device_count * sizeof(struct hl_node_turns), size) ||
        !inside(h->share_offset, (uint64_t)h->device_count * h->process_capacity * sizeof(struct hl_node_share),
                size) ||
        !inside(h->device_offset, h->device_count * sizeof(struct hl_node_device), size) ||
        !inside(h->container_offset, h->container_capacity * sizeof(struct hl_node_container), size) ||
        !inside(h->process_offset, h->process_capacity * sizeof(struct hl_node_process), size) ||
        !inside(h->fault_offset, h->fault_capacity * sizeof(struct hl_node_fault), size) ||
        !inside(h->call_offset, h->name_count * sizeof(uint64_t), size) ||
        !inside(h->process_call_offset, (uint64_t)h->process_capacity * h->name_count * sizeof(uint32_t), size) ||
        !inside(h->interval_offset, (uint64_t)h->device_count * h->interval_capacity * sizeof(struct hl_node_interval),
                size))
        return "its file is truncated";
    return NULL;
}

/* The fork child: the parent's slot is not ours, its connection must not outlive it here. The old mapping stays mapped:
 * a thread of the parent may have been inside it, and pointers into it may be on our stack. */
static void in_child(void) {
    int was = attached;
    if (connection >= 0) close(connection);
    if (hl_node.memory_fd >= 0) close(hl_node.memory_fd);
    connection = -1;
    attached = complained = papers = 0;
    memset(none_calls, 0, sizeof none_calls);
    memset(&none_process, 0, sizeof none_process);
    hl_node = (struct hl_node_view)NOWHERE;
    pthread_mutex_init(&mutex, NULL);
    if (fork_child) fork_child(was);
}

void hl_node_on_fork(void (*child)(int)) { fork_child = child; }
int hl_node_attached(void) { return __atomic_load_n(&attached, __ATOMIC_ACQUIRE); }

static int attach_locked(uint32_t kind) {
    const char *path = hl_config("HOOKLAB_NODE");
    if (!path || !*path) return fail(ENOENT, NULL, "no fake node to attach to");
    if (!fork_handler) {
        if (pthread_atfork(NULL, NULL, in_child)) return fail(ENOMEM, path, "pthread_atfork failed");
        fork_handler = 1;
    }
    struct hl_node_reply reply;
    int fd = -1, fds[2];
    int code = talk(path, kind, &fd, &reply, fds);
    if (code) return fail(code, path, strerror(code));
    const char *why = NULL;
    struct stat info;
    void *base = MAP_FAILED;
    int needs_memory = kind == HL_REQUEST_ATTACH_CUDA;
    if (fds[0] < 0 || (needs_memory && fds[1] < 0)) why = "it sent no files";
    else if (fstat(fds[0], &info) || info.st_size < (off_t)sizeof(struct hl_node_header)) why = "its file is truncated";
    else if ((base = mmap(NULL, (size_t)info.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0)) == MAP_FAILED)
        why = strerror(errno);
    else why = unfit(base, (uint64_t)info.st_size);
    struct hl_node_header *h = base;
    if (!why && reply.slot >= h->process_capacity) why = "it gave a slot that its file does not have";
    if (fds[0] >= 0) close(fds[0]);
    if (why) {
        if (base != MAP_FAILED) munmap(base, (size_t)info.st_size);
        if (fds[1] >= 0) close(fds[1]);
        close(fd);
        return fail(EPROTO, path, why);
    }
    mapped_bytes = (size_t)info.st_size;
    connection = move_up(fd);
    struct hl_node_view view = NOWHERE;
    char *at = base;
    view.base = base;
    view.header = h;
    view.devices = (struct hl_node_device *)(void *)(at + h->device_offset);
    view.containers = (struct hl_node_container *)(void *)(at + h->container_offset);
    view.processes = (struct hl_node_process *)(void *)(at + h->process_offset);
    view.process = view.processes + reply.slot;
    view.faults = (struct hl_node_fault *)(void *)(at + h->fault_offset);
    view.node_calls = (uint64_t *)(void *)(at + h->call_offset);
    view.calls = (uint32_t *)(void *)(at + h->process_call_offset) + (size_t)reply.slot * h->name_count;
    view.slot = reply.slot;
    view.host_pid = reply.host_pid;
    view.container = view.process->container;
    view.index = view.process->index;
    if (needs_memory) {
        view.memory_fd = move_up(fds[1]);
        view.memory_bytes = reply.memory_bytes;
    } else if (fds[1] >= 0) {
        close(fds[1]);
    }
    hl_history_host_pid(reply.host_pid);
    /* Calls made before there was a node (resolver look-ups) belong to this process too. */
    for (size_t name = 0; name < HL_NAME_COUNT; name++) {
        uint32_t early = __atomic_exchange_n(&none_calls[name], 0, __ATOMIC_RELAXED);
        if (early) __atomic_fetch_add(&view.calls[name], early, __ATOMIC_RELAXED);
    }
    hl_node = view;
    __atomic_store_n(&attached, 1, __ATOMIC_RELEASE);
    return 0;
}

int hl_node_attach(uint32_t kind) {
    if (hl_node_attached()) return 0;
    int keep = errno;
    pthread_mutex_lock(&mutex);
    int code = attached ? 0 : attach_locked(kind);
    pthread_mutex_unlock(&mutex);
    errno = keep;
    return code;
}

/* A request over the connection of this process. */
static int ask(struct hl_node_request *request, int lent, struct hl_node_reply *reply, int fds[2]) {
    int keep = errno;
    fds[0] = fds[1] = -1;
    request->magic = HL_NODE_MAGIC;
    request->version = HL_NODE_VERSION;
    pthread_mutex_lock(&mutex);
    int code = connection < 0 ? ENOTCONN : exchange(connection, request, lent, reply, fds);
    pthread_mutex_unlock(&mutex);
    errno = keep;
    return code;
}

static int ask_of(uint32_t kind, const struct hl_share *share, uint64_t bytes) {
    struct hl_node_request request = {
        .kind = kind, .slot = share->slot, .generation = share->generation, .share = share->number, .bytes = bytes};
    struct hl_node_reply reply;
    int fds[2];
    return ask(&request, -1, &reply, fds);
}

int hl_node_share(uint64_t number, uint32_t device, uint32_t kind, uint64_t offset, uint64_t bytes, int file,
                  int own_file) {
    struct hl_node_request request = {.kind = HL_REQUEST_SHARE,
                                      .share = number,
                                      .device = device,
                                      .memory = kind,
                                      .offset = offset,
                                      .bytes = bytes,
                                      .flags = own_file ? HL_SHARE_OWN_FILE : 0};
    struct hl_node_reply reply;
    int fds[2];
    return ask(&request, file, &reply, fds);
}

int hl_node_paper(const struct hl_share *share, int *paper) {
    struct hl_node_request request = {
        .kind = HL_REQUEST_PAPER, .slot = share->slot, .generation = share->generation, .share = share->number};
    struct hl_node_reply reply;
    int fds[2], code = ask(&request, -1, &reply, fds);
    *paper = fds[0];
    __atomic_store_n(&papers, 1, __ATOMIC_RELAXED);
    return code ? code : fds[0] < 0 ? EPROTO : 0;
}

int hl_node_hold(struct hl_share *share, int paper, int *file) {
    struct hl_node_request request = {.kind = HL_REQUEST_HOLD};
    if (paper >= 0) {
        __atomic_store_n(&papers, 1, __ATOMIC_RELAXED);
    } else {
        request.slot = share->slot;
        request.generation = share->generation;
        request.share = share->number;
    }
    struct hl_node_reply reply;
    int fds[2], code = ask(&request, paper, &reply, fds);
    if (code == 0 && fds[0] < 0) code = EPROTO;
    if (code) return code;
    *share = (struct hl_share){reply.slot, reply.generation, reply.share};
    *file = move_up(fds[0]);
    return 0;
}

void hl_node_let_go(const struct hl_share *share) { (void)ask_of(HL_REQUEST_LET_GO, share, 0); }

int hl_node_disown(uint64_t number, uint64_t bytes) {
    return ask_of(HL_REQUEST_DISOWN, &(struct hl_share){.number = number}, bytes);
}

int hl_node_settle_papers(void) {
    if (__builtin_expect(!__atomic_load_n(&papers, __ATOMIC_RELAXED), 1)) return 0;
    (void)hl_node_share_held(HL_SHARE_MEMORY_FILE);
    return 1;
}

int hl_node_share_held(uint64_t number) { return ask_of(HL_REQUEST_HELD, &(struct hl_share){.number = number}, 0); }

int hl_node_run_elsewhere(int file) {
    int keep = errno, code = ENOTCONN, fds[2];
    const char *path = hl_config("HOOKLAB_NODE");
    int fd = path ? reach(path, &code) : -1;
    if (fd >= 0) {
        struct hl_node_request request = {.magic = HL_NODE_MAGIC, .version = HL_NODE_VERSION, .kind = HL_REQUEST_RUN};
        struct hl_node_reply reply;
        code = exchange(fd, &request, file, &reply, fds);
        for (int i = 0; code == 0 && i < 2; i++)
            if (fds[i] >= 0) close(fds[i]);
        close(fd);
    }
    errno = keep;
    return code;
}
