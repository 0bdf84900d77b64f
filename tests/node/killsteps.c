/* Kills a process after every single instruction of a change of the accounts, then lets the server's side put the books
 * right. argv[1]: take | give. Prints the number of places tried; a line that says what is wrong and exit 1 otherwise.
 * argv[2] = "plant" leaves the undo out: the planted failure that this harness must notice. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "accounts.h"
#include "hl_layout_node.h"

enum { VICTIM = 1, OTHER = 2, KIND = 3, BIG = 5 << 20, SMALL = 2 << 20, BYTES = 1 << 20 };

static struct hl_node_header *header;

static struct hl_node_device *device(void) { return (void *)((char *)header + header->device_offset); }
static struct hl_node_container *container(void) { return (void *)((char *)header + header->container_offset); }
static struct hl_node_process *process(int slot) {
    return (struct hl_node_process *)(void *)((char *)header + header->process_offset) + slot;
}

static void make_node(void) {
    size_t size = 1 << 20;
    header = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (header == MAP_FAILED) exit(2);
    header->device_count = 1;
    header->process_capacity = 4;
    header->container_capacity = 2;
    header->device_offset = 4096;
    header->container_offset = 8192;
    header->process_offset = 16384;
    device()->total_bytes = 1u << 30;
}

static void reset(void) {
    uint64_t total = device()->total_bytes;
    memset(device(), 0, sizeof *device());
    memset(container(), 0, sizeof *container());
    memset(process(0), 0, 4 * sizeof *process(0));
    device()->total_bytes = total;
    hl_accounts_take(header, OTHER, 0, KIND, SMALL, NULL);
    hl_accounts_take(header, VICTIM, 0, KIND, BIG, NULL);
}

static void change(int give) {
    struct hl_accounts_after after = {0};
    if (give) hl_accounts_give(header, VICTIM, 0, KIND, BYTES, &after);
    else hl_accounts_take(header, VICTIM, 0, KIND, BYTES, &after);
}

/* 1 = killed after `steps` instructions, 0 = it was through before. */
static int run(int give, long steps) {
    pid_t child = fork();
    if (child == 0) {
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        raise(SIGSTOP);
        change(give);
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

int main(int argc, char **argv) {
    int give = argc > 1 && strcmp(argv[1], "give") == 0, plant = argc > 2;
    make_node();
    long step = 1, inside = 0;
    for (;; step++) {
        reset();
        if (!run(give, step)) break;
        inside += device()->account_lock != 0;
        if (plant) device()->account_lock = 0;
        else hl_accounts_undo(header, VICTIM);
        uint64_t held = process(VICTIM)->device[0].bytes[KIND];
        if (device()->account_lock) wrong(step, "the lock", device()->account_lock, 0);
        if (device()->used != SMALL + held) wrong(step, "used after undo", device()->used, SMALL + held);
        uint64_t given = 0;
        if (hl_accounts_bury(header, VICTIM, NULL, &given)) wrong(step, "bury", 1, 0);
        if (given != held) wrong(step, "given back", given, held);
        if (device()->used != SMALL) wrong(step, "used", device()->used, SMALL);
        if (container()->used[0] != SMALL) wrong(step, "container", container()->used[0], SMALL);
        if (hl_accounts_take(header, OTHER, 0, KIND, 1, NULL)) wrong(step, "a take by the other", 1, 0);
    }
    printf("%ld %ld\n", step - 1, inside);
    return 0;
}
