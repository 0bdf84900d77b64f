/* A guest that does what it is told: commands on stdin, one answer line each on stdout. For the stateful test.
 *
 *   open PATH robust|file reserve|double-check LIMIT -> 0 or -errno
 *   reserve TICKET DEVICE BYTES KIND    -> code BEFORE
 *   settle TICKET POINTER CONTEXT BYTES -> code
 *   cancel TICKET                       -> 0
 *   find|detach POINTER                 -> 0 | 1 BYTES
 *   credit|reattach POINTER             -> 0   (of what was detached)
 *   release CONTEXT                     -> BYTES
 *   used DEVICE                         -> BYTES
 *   live                                -> COUNT
 *   fork                                -> 0   (a child is forked that takes and keeps 1 byte and ends)
 *   close                               -> 0
 *
 * Started with an argument it books one byte more than it is told to settle: the stateful test must find that out. */
#define _GNU_SOURCE
#include "kit.h"

#include <pthread.h>

enum { TICKETS = 64, DETACHED = 64 };
static struct hl_ticket tickets[TICKETS];
static struct hl_entry detached[DETACHED]; /* pointer 0 = none */
static char path[512];
static uint64_t planted;

static int open_it(const char *rest) {
    char lock[16], mode[16];
    unsigned long long limit;
    CHECK(sscanf(rest, "%511s %15s %15s %llu", path, lock, mode, &limit) == 4);
    struct hl_ledger_config config = kit_config(path, !strcmp(lock, "robust"), limit);
    config.mode = strcmp(mode, "reserve") ? HL_MODE_DOUBLE_CHECK : HL_MODE_RESERVE;
    const char *why;
    CHECK(!pthread_atfork(hl_ledger_fork_prepare, hl_ledger_fork_parent, hl_ledger_fork_child));
    return hl_ledger_open(&config, &why);
}

static struct hl_entry *take_detached(uint64_t pointer) {
    for (int i = 0; i < DETACHED; i++)
        if (detached[i].pointer == pointer) return &detached[i];
    return NULL;
}

static void answer(const char *command, const char *rest) {
    unsigned long long a = 0, b = 0, c = 0, d = 0;
    struct hl_entry entry;
    sscanf(rest, "%llu %llu %llu %llu", &a, &b, &c, &d);
    if (!strcmp(command, "open")) {
        printf("%d\n", open_it(rest));
    } else if (!strcmp(command, "reserve")) {
        int32_t code = hl_ledger_reserve((int)b, c, (int)d, &tickets[a]);
        printf("%d %llu\n", code, (unsigned long long)tickets[a].before);
    } else if (!strcmp(command, "settle")) {
        printf("%d\n", hl_ledger_settle(&tickets[a], b, c, d + planted));
    } else if (!strcmp(command, "cancel")) {
        hl_ledger_cancel(&tickets[a]);
        puts("0");
    } else if (!strcmp(command, "find") || !strcmp(command, "detach")) {
        int found = *command == 'f' ? hl_ledger_find(a, &entry) : hl_ledger_detach(a, &entry);
        if (found && *command == 'd') *take_detached(0) = entry;
        printf("%d %llu\n", found, found ? (unsigned long long)entry.bytes : 0);
    } else if (!strcmp(command, "credit") || !strcmp(command, "reattach")) {
        struct hl_entry *it = take_detached(a);
        if (*command == 'c') hl_ledger_credit(it);
        else hl_ledger_reattach(it);
        it->pointer = 0;
        puts("0");
    } else if (!strcmp(command, "release")) {
        printf("%llu\n", (unsigned long long)hl_ledger_release_context(a));
    } else if (!strcmp(command, "used")) {
        printf("%llu\n", (unsigned long long)hl_ledger_used((int)a));
    } else if (!strcmp(command, "live")) {
        printf("%llu\n", (unsigned long long)hl_ledger_live());
    } else if (!strcmp(command, "fork")) {
        pid_t child = fork();
        if (!child) {
            int32_t code = kit_take(0, 1, 0x1000, 1);
            _exit((code == 0 || code == 2) && !hl_ledger_find(0x2000, &entry) ? 0 : 1);
        }
        printf("%d\n", kit_wait(child));
    } else if (!strcmp(command, "close")) {
        hl_ledger_close();
        puts("0");
    } else {
        exit(2);
    }
}

int main(int count, char **arguments) {
    (void)arguments;
    planted = count > 1;
    char line[1024], command[32];
    int at;
    while (fgets(line, sizeof line, stdin)) {
        CHECK(sscanf(line, "%31s %n", command, &at) >= 1);
        answer(command, line + at);
        fflush(stdout);
    }
    return 0;
}
