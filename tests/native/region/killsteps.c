/* SIGKILL at any instruction: a victim is stepped through a piece of ledger work, killed after k instructions, and the
 * survivor must find the books repairable: the lock free, no byte of the victim's in the way, its own bytes untouched.
 *
 * Usage: killsteps FOLDER robust|file WORK STRIDE [plant]. Deaths after 1, 1 + STRIDE, ... instructions until the work is
 * done. `enter` and `make` are long: there the victim runs to its k-th system call (entry and exit) and is stepped a few
 * instructions on from there. Prints how many deaths were survived. `plant` makes the survivor believe in one byte that
 * nobody took: it must fail.
 *
 *   reserve settle cancel credit context   one step of a charge's life
 *   bury    a process repairs the death of another
 *   leave   a process gives its slot back
 *   enter   a process opens the region and takes its slot
 *   make    a process makes the region: the next one must be able to */
#define _GNU_SOURCE
#include "kit.h"
#include "region.h"

#include <sys/ptrace.h>

static const uint64_t MIB = 1 << 20, LIMIT = 100 << 20, SURVIVOR = 10 << 20;
static char region_path[512];
static int robust;
static const char *work;
static struct hl_region direct; /* the survivor's own view of the file, to look at every slot */

static int is(const char *name) { return !strcmp(work, name); }

static void victim(void) {
    struct hl_ledger_config config = kit_config(region_path, robust, LIMIT);
    struct hl_ticket ticket;
    struct hl_entry entry;
    if (!is("enter") && !is("make")) {
        kit_open(&config);
        if (!is("bury") && !is("leave")) CHECK(!kit_take(0, 20 * MIB, 0x1000, 1) && !kit_take(0, 20 * MIB, 0x2000, 1));
        if (is("settle") || is("cancel")) CHECK(!hl_ledger_reserve(0, 30 * MIB, KIT_SYNC, &ticket));
    }
    CHECK(!ptrace(PTRACE_TRACEME, 0, 0, 0));
    raise(SIGSTOP);
    if (is("enter") || is("make")) kit_open(&config);
    if (is("reserve")) CHECK(!hl_ledger_reserve(0, 30 * MIB, KIT_SYNC, &ticket));
    if (is("settle")) CHECK(!hl_ledger_settle(&ticket, 0x3000, 1, 30 * MIB));
    if (is("cancel")) hl_ledger_cancel(&ticket);
    if (is("credit")) {
        CHECK(hl_ledger_detach(0x1000, &entry));
        hl_ledger_credit(&entry);
    }
    if (is("context")) CHECK(hl_ledger_release_context(1) == 40 * MIB);
    if (is("bury")) CHECK(!kit_take(0, 70 * MIB, 0x1000, 1)); /* only without the bytes of the dead */
    if (is("leave")) hl_ledger_close();
    raise(SIGSTOP);
}

/* Somebody who dies with 50 MiB before the victim comes. */
static void leave_a_corpse(void) {
    pid_t child = fork();
    if (!child) {
        hl_ledger_fork_child();
        CHECK(!kit_take(0, 50 * MIB, 0x1000, 1));
        kill(getpid(), SIGKILL);
    }
    CHECK(WIFSIGNALED(kit_wait(child)));
}

static pid_t start_victim(void) {
    pid_t child = fork();
    if (!child) { /* a new program: it must not have its parent's ledger open */
        execl("/proc/self/exe", "killsteps", "victim", region_path, robust ? "robust" : "file", work, NULL);
        _exit(9);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP);
    CHECK(!ptrace(PTRACE_SETOPTIONS, child, 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL));
    return child;
}

/* Goes on by `times` of `request`; 1 = the work was over before. */
static int go_on(pid_t child, enum __ptrace_request request, int expected, long times) {
    int status;
    for (long i = 0; i < times; i++) {
        CHECK(!ptrace(request, child, 0, 0));
        CHECK(waitpid(child, &status, 0) == child && WIFSTOPPED(status));
        if (WSTOPSIG(status) == SIGSTOP) return 1;
        CHECK(WSTOPSIG(status) == expected);
    }
    return 0;
}

static int kill_after(long calls, long steps) {
    pid_t child = start_victim();
    int over = go_on(child, PTRACE_SYSCALL, SIGTRAP | 0x80, calls) || go_on(child, PTRACE_SINGLESTEP, SIGTRAP, steps),
        status;
    kill(child, SIGKILL);
    while (waitpid(child, &status, 0) == child && !WIFSIGNALED(status)) {}
    return over;
}

static void survive(uint64_t planted) {
    EQUAL(kit_take(0, LIMIT - SURVIVOR + 1, 0x8000, 1), 2);
    EQUAL(kit_take(0, LIMIT - SURVIVOR, 0x8000, 1), 0); /* every byte of the dead is back before this is refused */
    EQUAL(kit_take(1, LIMIT, 0x9000, 1), 0);
    EQUAL(hl_ledger_used(0), LIMIT + planted);
    EQUAL(kit_give(0x8000) + kit_give(0x9000), 2);
    EQUAL(hl_ledger_used(0), SURVIVOR);
    EQUAL(hl_ledger_used(1), 0);
    uint64_t sum = 0;
    for (unsigned i = 0; i < HL_REGION_SLOTS; i++)
        if (direct.slot[i].state == HL_SLOT_LIVE) sum += direct.slot[i].device[0].held;
    EQUAL(sum, SURVIVOR);
    EQUAL(direct.header->lock_holder, 0);
}

/* After a maker's death: whoever comes next makes the region or finds it whole. */
static void make_again(uint64_t planted) {
    pid_t child = fork();
    if (!child) {
        struct hl_ledger_config config = kit_config(region_path, robust, LIMIT);
        kit_open(&config);
        EQUAL(kit_take(0, LIMIT + 1, 0x1000, 1), 2);
        EQUAL(kit_take(0, LIMIT - planted, 0x1000, 1), 0);
        EQUAL(hl_ledger_used(0), LIMIT);
        exit(0);
    }
    int status = kit_wait(child);
    CHECK(WIFEXITED(status) && !WEXITSTATUS(status));
    CHECK(!unlink(region_path));
}

static void open_survivor(void) {
    struct hl_ledger_config config = kit_config(region_path, robust, LIMIT);
    struct hl_region_new fresh = {.create = 0};
    char why[HL_WHY_BYTES];
    kit_open(&config);
    CHECK(!kit_take(0, SURVIVOR, 0x7000, 1));
    CHECK(!hl_region_open(&direct, region_path, &fresh, why));
    hl_region_gate_open(&direct);
}

int main(int count, char **arguments) {
    static const long AFTER_CALL[] = {0, 25, 120, 500}; /* instructions after a system call */
    if (count == 5 && !strcmp(arguments[1], "victim")) {
        snprintf(region_path, sizeof region_path, "%s", arguments[2]);
        robust = !strcmp(arguments[3], "robust");
        work = arguments[4];
        victim();
        return 0;
    }
    if (count < 5) return 2;
    snprintf(region_path, sizeof region_path, "%s/region", arguments[1]);
    robust = !strcmp(arguments[2], "robust");
    work = arguments[3];
    int by_call = is("enter") || is("make"), over = 0;
    long stride = atol(arguments[4]), deaths = 0;
    if (!is("make")) open_survivor();
    for (long n = 0; !over; n++) {
        if (is("bury")) leave_a_corpse();
        long position = n * stride;
        over = by_call ? kill_after(position / 4, AFTER_CALL[position % 4]) : kill_after(0, 1 + position);
        if (is("make")) make_again(count > 5);
        else survive(count > 5);
        deaths++;
    }
    printf("%ld deaths survived\n", deaths - 1);
    return 0;
}
