/* Fresh namespaces, with a user namespace only where the kernel asks for one: as root without it, so that file owners
 * and devices look as they do in a real container; else with this user mapped to itself. */
#include "box.h"
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

void box_die_with_parent(void) { prctl(PR_SET_PDEATHSIG, SIGKILL); }

static int write_file(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    ssize_t size = (ssize_t)strlen(text);
    int failed = write(fd, text, (size_t)size) != size;
    close(fd);
    return failed ? -1 : 0;
}

static int map_self(unsigned user, unsigned group) {
    char line[64];
    (void)write_file("/proc/self/setgroups", "deny"); /* absent before Linux 3.19; then gid_map needs no denial */
    snprintf(line, sizeof line, "%u %u 1\n", user, user);
    if (write_file("/proc/self/uid_map", line)) return -1;
    snprintf(line, sizeof line, "%u %u 1\n", group, group);
    return write_file("/proc/self/gid_map", line);
}

int box_unshare(int pid_namespace, int *used_user, char *why, size_t size) {
    int flags = CLONE_NEWNS | (pid_namespace ? CLONE_NEWPID : 0);
    unsigned user = geteuid(), group = getegid();
    *used_user = 0;
    if (unshare(flags) != 0) {
        int first = errno;
        if (unshare(flags | CLONE_NEWUSER) != 0) {
            snprintf(why, size, "unshare: %s; with a user namespace: %s", strerror(first), strerror(errno));
            return -1;
        }
        *used_user = 1;
        if (map_self(user, group) != 0) {
            snprintf(why, size, "uid_map: %s", strerror(errno));
            return -1;
        }
    }
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) {
        snprintf(why, size, "private propagation: %s", strerror(errno));
        return -1;
    }
    return 0;
}

/* Tries what an init does, in a child that then ends: namespaces, a tmpfs, a bind, and /proc for the new PIDs. */
static int try_all(int report) {
    char why[256];
    int user = 0, status = 0;
    if (box_unshare(1, &user, why, sizeof why) != 0) return box_say(report, "no %s\n", why);
    pid_t child = fork();
    if (child == 0) {
        if (mount("tmpfs", "/tmp", "tmpfs", 0, "mode=755") != 0)
            _exit(box_say(report, "no tmpfs: %s\n", strerror(errno)) != 0 ? 1 : 2);
        if (mount("/usr", "/tmp", NULL, MS_BIND | MS_REC, NULL) != 0)
            _exit(box_say(report, "no bind mount: %s\n", strerror(errno)) != 0 ? 1 : 2);
        if (mount("proc", "/proc", "proc", 0, NULL) != 0)
            _exit(box_say(report, "no /proc for a private PID namespace: %s\n", strerror(errno)) != 0 ? 1 : 2);
        _exit(0);
    }
    if (child < 0) return box_say(report, "no fork into a PID namespace: %s\n", strerror(errno));
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
    if (status == 0) return box_say(report, user ? "user\n" : "direct\n");
    return 0;
}

int box_probe(int argc, char **argv) {
    (void)argc;
    (void)argv;
    return try_all(STDOUT_FILENO) == 0 ? 0 : 1;
}
