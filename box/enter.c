/* `enter`: runs one program, inside a container's namespaces or (without --of) where we are. The guest's environment
 * comes from a file, so that nothing meant for the guest (a preload above all) touches this process. Joining a PID
 * namespace needs a fork; the waiting parent then forwards signals and ends as the program ended. */
#include "box.h"
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

struct options {
    int of, user, pid_namespace, report, hold;
    const char *environment, *cwd;
    char **command;
};

static volatile sig_atomic_t guest;

static void forward(int number) {
    if (guest > 0) kill(guest, number);
}

static char **read_environment(const char *path) {
    struct stat seen;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &seen) != 0) return NULL;
    char *text = calloc(1, (size_t)seen.st_size + 1);
    char **list = calloc((size_t)seen.st_size + 2, sizeof *list);
    if (!text || !list || read(fd, text, (size_t)seen.st_size) != seen.st_size) return NULL;
    close(fd);
    int count = 0;
    for (char *at = text; at < text + seen.st_size; at += strlen(at) + 1) list[count++] = at;
    return list;
}

static int join(const struct options *options, const char *kind, int flag) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/ns/%s", options->of, kind);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    int failed = setns(fd, flag);
    int error = errno;
    close(fd);
    errno = error;
    return failed;
}

/* Descriptors are opened before any namespace changes: /proc/PID is that of the outer namespace only until then. */
static int join_all(const struct options *options) {
    if (options->user && join(options, "user", CLONE_NEWUSER) != 0) return -1;
    if (options->pid_namespace && join(options, "pid", CLONE_NEWPID) != 0) return -1;
    return join(options, "mnt", CLONE_NEWNS);
}

static void wait_for_go(int fd) {
    char byte = 0;
    if (box_say(fd, "ready\n") != 0) return;
    while (byte != '\n') {
        ssize_t got = read(fd, &byte, 1);
        if (got == 0 || (got < 0 && errno != EINTR)) break;
    }
    close(fd);
}

static int become(const struct options *options, char **environment) {
    extern char **environ;
    box_die_with_parent();
    if (options->hold >= 0) wait_for_go(options->hold);
    if (options->cwd && chdir(options->cwd) != 0) {
        fprintf(stderr, "hooklab-box: %s: %s\n", options->cwd, strerror(errno));
        return 127;
    }
    environ = environment;
    execvp(options->command[0], options->command); /* searched in the guest's PATH */
    int error = errno;
    fprintf(stderr, "hooklab-box: %s: %s\n", options->command[0], strerror(error));
    return error == ENOENT ? 127 : 126;
}

static int end_like(int status) {
    if (!WIFSIGNALED(status)) return WEXITSTATUS(status);
    struct rlimit none = {0, 0};
    sigset_t all;
    setrlimit(RLIMIT_CORE, &none); /* the guest has left its own core where it wanted one */
    prctl(PR_SET_DUMPABLE, 0);
    signal(WTERMSIG(status), SIG_DFL);
    sigfillset(&all);
    sigprocmask(SIG_UNBLOCK, &all, NULL);
    kill(getpid(), WTERMSIG(status));
    return 128 + WTERMSIG(status);
}

static int parse(int argc, char **argv, struct options *options) {
    *options = (struct options){.report = -1, .hold = -1};
    for (int i = 1; i < argc; i++) {
        int more = i + 1 < argc;
        if (strcmp(argv[i], "--") == 0) {
            options->command = &argv[i + 1];
            return more ? 0 : -1;
        }
        if (strcmp(argv[i], "--user") == 0) options->user = 1;
        else if (strcmp(argv[i], "--pid-namespace") == 0) options->pid_namespace = 1;
        else if (strcmp(argv[i], "--of") == 0 && more) options->of = atoi(argv[++i]);
        else if (strcmp(argv[i], "--report") == 0 && more) options->report = atoi(argv[++i]);
        else if (strcmp(argv[i], "--hold") == 0 && more) options->hold = atoi(argv[++i]);
        else if (strcmp(argv[i], "--environment") == 0 && more) options->environment = argv[++i];
        else if (strcmp(argv[i], "--cwd") == 0 && more) options->cwd = argv[++i];
        else return -1;
    }
    return -1;
}

int box_enter(int argc, char **argv) {
    extern char **environ;
    struct options options;
    if (parse(argc, argv, &options) != 0) return 2;
    char **environment = options.environment ? read_environment(options.environment) : environ;
    if (!environment) {
        fprintf(stderr, "hooklab-box: %s: %s\n", options.environment, strerror(errno));
        return 125;
    }
    if (options.of && join_all(&options) != 0) {
        fprintf(stderr, "hooklab-box: joining the container of process %d: %s\n", options.of, strerror(errno));
        return 125;
    }
    if (options.report >= 0) fcntl(options.report, F_SETFD, FD_CLOEXEC);
    if (!options.pid_namespace) {
        box_say(options.report, "pid %d\n", (int)getpid());
        return become(&options, environment);
    }
    static const int forwarded[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCONT, SIGWINCH};
    pid_t child = fork();
    if (child < 0) {
        fprintf(stderr, "hooklab-box: fork: %s\n", strerror(errno));
        return 125;
    }
    if (child == 0) return become(&options, environment);
    guest = child;
    for (size_t i = 0; i < sizeof forwarded / sizeof *forwarded; i++) signal(forwarded[i], forward);
    box_say(options.report, "pid %d\n", (int)child);
    for (int fd = 3; fd < 256; fd++) close(fd); /* a control channel ends with the guest, not with us */
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
    return end_like(status);
}
