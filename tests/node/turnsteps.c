/* Kills a process after every single instruction of playing a GPU's schedule, then lets the server's side open its lock and
 * the others go on: the ends and busy times of their work must be those of a schedule that nobody disturbed. Prints the
 * number of places tried and how many lay under the lock; a line that says what is wrong and exit 1 otherwise. argv[1] =
 * "plant" makes the half-written turn count: the planted failure that this harness must notice. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hl_layout_node.h"
#include "turns.h"

enum { VICTIM = 1, LONG = 2, SHORT = 3, SLOTS = 4, RING = 16, SIZE = 1 << 20 };
static const uint64_t began = 1000, killed = 1115, far = 1 << 20, work[SLOTS] = {[LONG] = 500, [SHORT] = 150};

static struct hl_node_header *header;
static uint64_t moment[SLOTS];

static void *at(uint64_t offset) { return (char *)header + offset; }

static void reset(void) {
    memset(header, 0, SIZE);
    *header = (struct hl_node_header){.device_count = 1,
                                      .process_capacity = SLOTS,
                                      .interval_capacity = RING,
                                      .time_scale_ppm = 1000000,
                                      .device_offset = 8192,
                                      .process_offset = 16384,
                                      .interval_offset = 65536,
                                      .turns_offset = 131072,
                                      .share_offset = 262144};
    struct hl_node_device *d = at(header->device_offset);
    d->slice_ns = 100;
    d->switch_ns = 11;
    d->idle_switch_ns = 7;
    for (uint32_t slot = LONG; slot < SLOTS; slot++)
        moment[slot] = hl_turns_submit(header, slot, 0, &(struct hl_work){.ns = work[slot]}, began, NULL);
}

/* 1 = killed after `steps` instructions, 0 = it was through before. */
static int run(long steps) {
    pid_t child = fork();
    if (child == 0) {
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        raise(SIGSTOP);
        (void)hl_turns_look(header, VICTIM + 1, 0, killed);
        _exit(0);
    }
    int status;
    if (child < 0 || waitpid(child, &status, 0) < 0 || !WIFSTOPPED(status)) exit(2);
    for (long i = 0; i < steps; i++) {
        if (ptrace(PTRACE_SINGLESTEP, child, NULL, NULL) || waitpid(child, &status, 0) < 0) exit(2);
        if (WIFEXITED(status)) return 0;
    }
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    return 1;
}

static void wrong(long step, const char *what, uint64_t is, uint64_t should) {
    printf("killed after %ld instructions: %s is %llu, should be %llu\n", step, what, (unsigned long long)is,
           (unsigned long long)should);
    exit(1);
}

static uint64_t busy(uint32_t slot) {
    const struct hl_node_device *d = at(header->device_offset);
    const struct hl_node_interval *ring = at(header->interval_offset);
    uint64_t sum = 0;
    for (uint64_t i = 0; i < d->interval_head; i++)
        if (ring[i].slot == slot) sum += ring[i].end_ns - ring[i].start_ns;
    return sum;
}

static uint64_t end(uint32_t slot) {
    if (!hl_turns_past(header, SHORT, moment[slot], far, NULL, NULL)) return 0;
    return hl_turns_when(header, SHORT, moment[slot], far);
}

int main(int argc, char **argv) {
    int plant = argc > 1 && strcmp(argv[1], "plant") == 0;
    header = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (header == MAP_FAILED) return 2;
    reset();
    uint64_t should[SLOTS] = {0};
    for (uint32_t slot = LONG; slot < SLOTS; slot++) should[slot] = end(slot);
    long step = 1, inside = 0;
    for (;; step++) {
        reset();
        struct hl_node_turns *turns = at(header->turns_offset);
        if (!run(step)) break;
        inside += turns->lock != 0;
        if (plant && turns->lock) turns->which ^= 1;
        if (hl_turns_leave(header, VICTIM, 1, killed)) wrong(step, "the lock", turns->lock, 0);
        for (uint32_t slot = LONG; slot < SLOTS; slot++) {
            if (end(slot) != should[slot]) wrong(step, "an end", end(slot), should[slot]);
            if (busy(slot) != work[slot]) wrong(step, "a busy time", busy(slot), work[slot]);
        }
    }
    printf("%ld %ld\n", step - 1, inside);
    return 0;
}
