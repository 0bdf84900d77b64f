/* Asks the host PID broker who we are.
 *
 * Invariants: one compiled-in path, nothing in the environment leads elsewhere. Nothing is sent or believed unless
 * directory, socket and the process that listens belong to root and nobody else can write to the directory; the
 * listener's user is asked of the kernel after connecting, so that swapping the socket between look and connect gains
 * nothing. One deadline for everything, which no byte renews. Exactly eight bytes out, exactly twelve in. No signal is
 * raised, no descriptor outlives the call, a forked child asks for itself.
 *
 * Root, seen from a user namespace that does not map it, is the overflow user; so is every other user outside. There a
 * read-only mount is asked for besides: who can make a directory cannot make it one of those, only the runtime can. */
#define _GNU_SOURCE
#include "identity.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#ifndef HL_BROKER_DIRECTORY /* tests compile this file with another place and owner */
#define HL_BROKER_DIRECTORY "/tmp/vgpulock/hostpid"
#endif
#ifndef HL_BROKER_OWNER
#define HL_BROKER_OWNER 0
#endif
#define HL_BROKER_SOCKET HL_BROKER_DIRECTORY "/broker.sock"

enum { REQUEST_BYTES = 8, RESPONSE_BYTES = 12, VERSION = 1, GET_PID = 1, STATUS_OK = 0 };
static const char magic[4] = {'H', 'P', 'I', 'D'};
static const ino_t first_user_namespace = 0xEFFFFFFD; /* fixed in the kernel */

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* -- trust -- */
struct view {            /* how this process sees users */
    bool first;          /* of the machine's own user namespace */
    uint32_t overflow;   /* what users outside look like */
    bool overflow_taken; /* somebody inside looks like that, too */
};

static bool read_small(const char *path, char *text, size_t size) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    ssize_t got = read(fd, text, size - 1);
    close(fd);
    if (got <= 0 || (size_t)got == size - 1) return false; /* what is cut is not judged */
    text[got] = 0;
    return true;
}

static bool look_around(struct view *view) {
    struct stat own;
    char text[4096];
    memset(view, 0, sizeof *view);
    if (stat("/proc/self/ns/user", &own)) return false;
    view->first = own.st_ino == first_user_namespace;
    if (view->first) return true;
    if (!read_small("/proc/sys/kernel/overflowuid", text, sizeof text)) return false;
    view->overflow = (uint32_t)strtoul(text, NULL, 10);
    if (!read_small("/proc/self/uid_map", text, sizeof text)) return false;
    for (char *line = text; *line;) {
        char *end = NULL;
        uint64_t inside = strtoull(line, &end, 10);
        (void)strtoull(end, &end, 10);
        uint64_t count = strtoull(end, &end, 10);
        if (view->overflow >= inside && view->overflow - inside < count) view->overflow_taken = true;
        line = strchr(line, '\n');
        if (!line) break;
        line++;
    }
    return true;
}

static bool is_root(const struct view *view, uint32_t uid) {
    if (view->first) return uid == (uint32_t)(HL_BROKER_OWNER);
    return uid == view->overflow && !view->overflow_taken;
}

static int check_place(const struct view *view) {
    struct stat seen;
    struct statvfs mounted;
    if (lstat(HL_BROKER_DIRECTORY, &seen)) return errno == EACCES ? HL_REASON_DENIED : HL_REASON_NO_DIRECTORY;
    if (!S_ISDIR(seen.st_mode)) return HL_REASON_DIRECTORY_TYPE;
    if (!is_root(view, seen.st_uid)) return HL_REASON_DIRECTORY_OWNER;
    if (seen.st_mode & 022) return HL_REASON_DIRECTORY_MODE;
    if (!view->first && (statvfs(HL_BROKER_DIRECTORY, &mounted) || !(mounted.f_flag & ST_RDONLY)))
        return HL_REASON_DIRECTORY_OWNER;
    if (lstat(HL_BROKER_SOCKET, &seen)) return errno == EACCES ? HL_REASON_DENIED : HL_REASON_NO_SOCKET;
    if (!S_ISSOCK(seen.st_mode)) return HL_REASON_SOCKET_TYPE;
    return is_root(view, seen.st_uid) ? HL_REASON_ANSWERED : HL_REASON_SOCKET_OWNER;
}

/* -- the wire -- */
/* 1 ready, 0 out of time. */
static int wait_for(int fd, short events, uint64_t deadline) {
    for (;;) {
        uint64_t now = now_ns();
        if (now >= deadline) return 0;
        struct pollfd item = {.fd = fd, .events = events};
        int ready = poll(&item, 1, (int)((deadline - now + 999999) / 1000000));
        if (ready > 0) return 1;
        if (ready < 0 && errno != EINTR) return 0;
    }
}

/* A stream socket whose queue is full refuses at once when it does not block; there a blocking connect with a time limit
 * is the only way to wait. */
static int connect_slowly(int fd, const struct sockaddr_un *address, uint64_t deadline) {
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags & ~O_NONBLOCK)) return errno;
    int problem;
    do {
        uint64_t now = now_ns();
        uint64_t left = now < deadline ? (deadline - now) / 1000 : 0;
        struct timeval patience = {.tv_sec = (time_t)(left / 1000000), .tv_usec = (suseconds_t)(left % 1000000)};
        if (!left) return EAGAIN; /* a time limit of zero would mean none */
        if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience)) return errno;
        problem = connect(fd, (const struct sockaddr *)address, sizeof *address) ? errno : 0;
    } while (problem == EINTR);
    if (fcntl(fd, F_SETFL, flags)) return errno;
    return problem;
}

static int connect_to(int fd, uint64_t deadline) {
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = HL_BROKER_SOCKET};
    int problem = connect(fd, (const struct sockaddr *)&address, sizeof address) ? errno : 0;
    if (problem == EAGAIN || problem == EINTR) problem = connect_slowly(fd, &address, deadline);
    if (problem == EINPROGRESS) {
        socklen_t size = sizeof problem;
        if (!wait_for(fd, POLLOUT, deadline)) return HL_REASON_CONNECT_TIMEOUT;
        if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &problem, &size)) problem = errno;
    }
    switch (problem) {
    case 0: return HL_REASON_ANSWERED;
    case ENOENT: return HL_REASON_NO_SOCKET;
    case ECONNREFUSED: return HL_REASON_REFUSED;
    case EACCES:
    case EPERM: return HL_REASON_DENIED;
    case EAGAIN: return HL_REASON_CONNECT_TIMEOUT;
    default: return HL_REASON_SYSTEM;
    }
}

static int move(int fd, unsigned char *bytes, size_t size, bool out, uint64_t deadline) {
    for (size_t done = 0; done < size;) {
        ssize_t moved = out ? send(fd, bytes + done, size - done, MSG_NOSIGNAL | MSG_DONTWAIT)
                            : recv(fd, bytes + done, size - done, MSG_DONTWAIT);
        if (moved > 0) {
            done += (size_t)moved;
        } else if (moved == 0 || errno == ECONNRESET || errno == EPIPE) {
            return HL_REASON_CLOSED;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            if (!wait_for(fd, out ? POLLOUT : POLLIN, deadline)) return HL_REASON_TIMEOUT;
        } else if (errno != EINTR) {
            return HL_REASON_SYSTEM;
        }
        if (done < size && now_ns() >= deadline) return HL_REASON_TIMEOUT;
    }
    return HL_REASON_ANSWERED;
}

static uint32_t word(const unsigned char *at, int bytes) {
    uint32_t value = 0;
    while (bytes--) value = value << 8 | *at++;
    return value;
}

int hl_broker_converse(int fd, uint64_t deadline, uint32_t *pid) {
    unsigned char request[REQUEST_BYTES] = {0, 0, 0, 0, 0, VERSION, 0, GET_PID};
    unsigned char response[RESPONSE_BYTES] = {0};
    *pid = 0;
    memcpy(request, magic, sizeof magic);
    int reason = move(fd, request, sizeof request, true, deadline);
    /* A broker that answers without reading all of it is none, but what it says may already be there. */
    if (reason == HL_REASON_ANSWERED) reason = move(fd, response, sizeof response, false, deadline);
    if (reason != HL_REASON_ANSWERED) return reason;
    uint32_t status = word(response + 6, 2), said = word(response + 8, 4);
    if (memcmp(response, magic, sizeof magic) || word(response + 4, 2) != VERSION) return HL_REASON_FRAME;
    if (status != STATUS_OK) return HL_REASON_STATUS;
    if (!said || said > INT_MAX) return HL_REASON_BAD_PID;
    *pid = said;
    return HL_REASON_ANSWERED;
}

int hl_broker_ask(uint32_t *pid) {
    uint64_t deadline = now_ns() + (uint64_t)HL_BROKER_PATIENCE_MS * 1000000;
    struct view view;
    *pid = 0;
    struct stat there;
    if (lstat(HL_BROKER_DIRECTORY, &there) && errno == ENOENT) return HL_REASON_NO_DIRECTORY; /* cheap where absent */
    if (!look_around(&view)) return HL_REASON_DIRECTORY_OWNER;
    int reason = check_place(&view);
    if (reason != HL_REASON_ANSWERED) return reason;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return HL_REASON_SYSTEM;
    reason = connect_to(fd, deadline);
    if (reason == HL_REASON_ANSWERED) {
        struct ucred peer;
        socklen_t size = sizeof peer;
        if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) || !is_root(&view, peer.uid))
            reason = HL_REASON_PEER_USER;
    }
    if (reason == HL_REASON_ANSWERED) reason = hl_broker_converse(fd, deadline, pid);
    close(fd);
    return reason;
}
