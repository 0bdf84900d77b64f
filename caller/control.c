/* The channel to the runner: HOOKLAB_CONTROL_FD is one end of a stream socket pair. We say `ready`, and at a barrier
 * `arrive NAME`; the runner answers `go`, or `fail` when a participant can no longer come. Without a channel a start
 * needs no waiting, and a barrier with nobody to meet is an error of the step (ENOTCONN), not a hang. */
#include "caller.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int channel = -2; /* -2 not looked at, -1 none */

static int open_channel(void) {
    if (channel == -2) {
        const char *text = getenv("HOOKLAB_CONTROL_FD");
        channel = text ? atoi(text) : -1;
    }
    return channel;
}

static int say(const char *line) {
    size_t size = strlen(line);
    while (size) {
        ssize_t sent = write(channel, line, size);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) return errno ? errno : EPIPE;
        line += sent;
        size -= (size_t)sent;
    }
    return 0;
}

static int wait_for_answer(void) {
    char line[16];
    size_t used = 0;
    for (;;) {
        char byte;
        ssize_t got = read(channel, &byte, 1);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return ECANCELED;
        if (byte == '\n') break;
        if (used + 1 < sizeof line) line[used++] = byte;
    }
    line[used] = 0;
    return strcmp(line, "go") == 0 ? 0 : ECANCELED;
}

void control_start(int wait_for_go) {
    if (open_channel() < 0) return;
    if (say("ready\n") == 0 && wait_for_go && wait_for_answer() != 0)
        fprintf(stderr, "hooklab-caller: the start was cancelled by the runner; playing on\n");
}

int control_barrier(const char *name) {
    if (open_channel() < 0) return ENOTCONN;
    char line[128];
    snprintf(line, sizeof line, "arrive %.100s\n", name);
    int error = say(line);
    return error ? error : wait_for_answer();
}

void control_forked(void) {
    open_channel();
    channel = -1; /* parent and child would take each other's answers from one stream */
}

void step_barrier(const struct play *play, struct outcome *out) {
    out->result = control_barrier(step_text(play->step, "name", "barrier"));
}
