/* Asks the identity tiers that need no CUDA, compiled with a test's own place for the broker.
 *
 *   ask broker                one question:  REASON PID NS
 *   ask procfs ROOT           the same of a procfs
 *   ask series N              N questions to the broker, one after another, a line each
 *   ask crowd N [ROOT]        N children released together, a line each: INNER-PID REASON PID NS; with ROOT the procfs.
 *                             They stay until standard input ends, so that a test may look at them
 *   ask until                 asks the broker without a pause until standard input ends; a line for each reason: REASON
 *                             TIMES WRONG, where WRONG counts answers that are not this process's PID
 *   ask forked                asks, forks, asks in the child: two lines INNER-PID REASON PID NS
 *   ask signal                counts the SIGPIPEs that a conversation with a closed stream raises: REASON COUNT */
#define _GNU_SOURCE
#include "identity.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct answer {
    int pid, reason;
    uint32_t told;
    uint64_t ns;
};

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static struct answer ask(const char *root) {
    struct answer answer = {.pid = getpid()};
    uint64_t began = now_ns();
    answer.reason = root ? hl_procfs_ask(root, &answer.told) : hl_broker_ask(&answer.told);
    answer.ns = now_ns() - began;
    return answer;
}

static void say(struct answer answer, int with_pid) {
    if (with_pid) printf("%d ", answer.pid);
    printf("%d %u %llu\n", answer.reason, answer.told, (unsigned long long)answer.ns);
    fflush(stdout);
}

static int crowd(int count, const char *root) {
    struct answer *answers =
        mmap(NULL, sizeof *answers * (size_t)count, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int gate[2], done[2], stay[2];
    char byte;
    if (answers == MAP_FAILED || pipe(gate) || pipe(done) || pipe(stay)) return 1;
    for (int i = 0; i < count; i++) {
        pid_t child = fork();
        if (child < 0) return 1;
        if (child) continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(gate[1]);
        close(stay[1]);
        if (read(gate[0], &byte, 1) < 0) _exit(1);
        answers[i] = ask(root);
        if (write(done[1], "d", 1) != 1) _exit(1);
        if (read(stay[0], &byte, 1) < 0) _exit(1);
        _exit(0);
    }
    close(gate[1]);
    for (int i = 0; i < count; i++)
        if (read(done[0], &byte, 1) != 1) return 1;
    for (int i = 0; i < count; i++) say(answers[i], 1);
    puts("end");
    fflush(stdout);
    while (read(STDIN_FILENO, &byte, 1) > 0) {}
    close(stay[1]);
    while (wait(NULL) > 0) {}
    return 0;
}

static void until(void) {
    unsigned long times[HL_REASON_COUNT] = {0}, wrong[HL_REASON_COUNT] = {0};
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    while (poll(&input, 1, 0) == 0) {
        struct answer answer = ask(NULL);
        times[answer.reason]++;
        wrong[answer.reason] += answer.told != (answer.reason == HL_REASON_ANSWERED ? (uint32_t)answer.pid : 0);
    }
    for (int reason = 0; reason < HL_REASON_COUNT; reason++)
        if (times[reason]) printf("%d %lu %lu\n", reason, times[reason], wrong[reason]);
}

static volatile sig_atomic_t pipes;
static void count_pipe(int number) {
    (void)number;
    pipes++;
}

static int signals(void) {
    int pair[2];
    uint32_t pid;
    signal(SIGPIPE, count_pipe);
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) return 1;
    close(pair[1]);
    printf("%d ", hl_broker_converse(pair[0], now_ns() + 1000000000u, &pid));
    printf("%d\n", (int)pipes);
    return 0;
}

static int forked(void) {
    say(ask(NULL), 1);
    pid_t child = fork();
    if (child == 0) {
        say(ask(NULL), 1);
        _exit(0);
    }
    return waitpid(child, NULL, 0) == child ? 0 : 1;
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    if (!strcmp(what, "broker")) say(ask(NULL), 0);
    else if (!strcmp(what, "procfs") && argc > 2) say(ask(argv[2]), 0);
    else if (!strcmp(what, "series") && argc > 2)
        for (int left = atoi(argv[2]); left > 0; left--) say(ask(NULL), 0);
    else if (!strcmp(what, "crowd") && argc > 2) return crowd(atoi(argv[2]), argc > 3 ? argv[3] : NULL);
    else if (!strcmp(what, "until")) until();
    else if (!strcmp(what, "forked")) return forked();
    else if (!strcmp(what, "signal")) return signals();
    else return 2;
    return 0;
}
