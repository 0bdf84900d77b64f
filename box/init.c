/* `init`: holds a container's namespaces. With a PID namespace it is that namespace's process 1 and reaps what its
 * programs leave behind; killing it ends everything inside. The outer process only waits for it. */
#include "box.h"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void hold(void) {
    sigset_t children;
    sigemptyset(&children);
    sigaddset(&children, SIGCHLD);
    sigprocmask(SIG_BLOCK, &children, NULL);
    for (;;) {
        int status, number;
        while (waitpid(-1, &status, WNOHANG) > 0) {}
        sigwait(&children, &number);
    }
}

int box_init(int argc, char **argv) {
    const char *spec = NULL;
    int report = -1, pid_namespace = 0, user = 0, status = 0, link[2];
    char why[512] = "";
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--spec") == 0 && i + 1 < argc) spec = argv[++i];
        else if (strcmp(argv[i], "--report") == 0 && i + 1 < argc) report = atoi(argv[++i]);
        else if (strcmp(argv[i], "--pid-namespace") == 0) pid_namespace = 1;
    }
    if (!spec || report < 0) return 2;
    box_die_with_parent();
    if (box_unshare(pid_namespace, &user, why, sizeof why) != 0 || pipe(link) != 0) {
        box_say(report, "error %s\n", *why ? why : strerror(errno));
        return 1;
    }
    pid_t child = fork(); /* the first child of an unshared PID namespace is its process 1 */
    if (child < 0) {
        box_say(report, "error fork: %s\n", strerror(errno));
        return 1;
    }
    if (child == 0) {
        char byte;
        box_die_with_parent();
        close(link[1]);
        if (read(link[0], &byte, 1) == 1 && box_mounts(spec, why, sizeof why) == 0) {
            box_say(report, "ready\n");
            close(report);
            hold();
        }
        box_say(report, "error %s\n", *why ? why : "the outer process ended");
        _exit(1);
    }
    close(link[0]);
    box_say(report, "pid %d %s\n", (int)child,
            user ? "user" : "direct"); /* only the outer process knows the host's number */
    close(report);
    if (write(link[1], "g", 1) != 1) return 1;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
    return 0;
}
