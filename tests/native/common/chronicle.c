/* Writers of one history. Usage: chronicle PROCESSES THREADS EVENTS VICTIMS (HOOKLAB_HISTORY names the file)
 *
 * Every event carries a = writer, b = number, c = a check value of both. The first VICTIMS processes are killed by the
 * event that one of their threads reaches half-way; the first survivor forks a child that writes one event more. */
#define _GNU_SOURCE
#include "history.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static int threads, events, process, victim;

static void say(uint64_t writer, uint64_t number) {
    struct hl_event event = {.event = 17,
                             .source = 1,
                             .name = 0xFFFF,
                             .step = (uint16_t)number,
                             .device = 0xFF,
                             .a = writer,
                             .b = number,
                             .c = (writer << 32 | number) * 0x9e3779b97f4a7c15u};
    hl_history_add(&event);
}

static void *work(void *argument) {
    uint64_t me = (uint64_t)(uintptr_t)argument;
    for (int i = 0; i < events; i++) {
        if (victim && me == 0 && i == events / 2) kill(getpid(), SIGKILL);
        say((uint64_t)process * 100 + me, (uint64_t)i);
    }
    return NULL;
}

int main(int count, char **arguments) {
    if (count < 5) return 2;
    int processes = atoi(arguments[1]), victims = atoi(arguments[4]), bad = 0;
    threads = atoi(arguments[2]);
    events = atoi(arguments[3]);
    pid_t child[64];
    for (process = 0; process < processes; process++) {
        child[process] = fork();
        if (child[process]) continue;
        victim = process < victims;
        if (!hl_history_on()) return 3;
        pthread_t thread[16];
        for (int i = 0; i < threads; i++) pthread_create(&thread[i], NULL, work, (void *)(uintptr_t)i);
        for (int i = 0; i < threads; i++) pthread_join(thread[i], NULL);
        if (process == victims) {
            pid_t grandchild = fork();
            if (!grandchild) {
                say(9999, (uint64_t)getpid());
                _exit(0);
            }
            waitpid(grandchild, NULL, 0);
            hl_history_host_pid(77777);
            say(8888, 0);
        }
        _exit(0);
    }
    for (int i = 0; i < processes; i++) {
        int status;
        waitpid(child[i], &status, 0);
        if (i < victims ? !WIFSIGNALED(status) : status != 0) bad = 1;
    }
    return bad;
}
