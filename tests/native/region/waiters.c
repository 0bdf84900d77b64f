/* Killed waiters and colliding ids. Usage: waiters FOLDER file|robust-misuse
 *
 * A holds the region lock; B waits for it and is killed; C asks. C must not get in before A has left, whatever ids the
 * three have: each of them is process 1 of a PID namespace of its own. (A robust mutex fails here: its owner word is a
 * namespace-local id, and B's death hands the lock on while A still holds it. `robust-misuse` shows that with the same
 * steps, so that this test is known to be able to fail.) Exit 77 where PID namespaces are forbidden. */
#define _GNU_SOURCE
#include "kit.h"
#include "region.h"

#include <fcntl.h>

static char region_path[512];

struct scene {
    uint32_t joined, b_may_ask, c_may_ask, a_in, a_may_leave, a_left, b_asks, c_asks, c_in,
        forbidden; /* forbidden: an errno */
    uint32_t c_in_while_a_held;
};
static struct scene *scene;

static void join_region(struct hl_region *region) {
    struct hl_region_new fresh = {.create = 0};
    char why[HL_WHY_BYTES];
    CHECK(!hl_region_open(region, region_path, &fresh, why));
    hl_region_gate_open(region);
}

static void a(struct hl_region *region) {
    CHECK(!hl_region_lock(region, 0));
    kit_count(&scene->a_in);
    kit_reach(&scene->a_may_leave, 1);
    kit_count(&scene->a_left);
    hl_region_unlock(region);
}

static void b(struct hl_region *region) {
    kit_reach(&scene->b_may_ask, 1);
    kit_count(&scene->b_asks);
    hl_region_lock(region, 1); /* killed here */
    _exit(1);
}

static void c(struct hl_region *region) {
    kit_reach(&scene->c_may_ask, 1);
    kit_count(&scene->c_asks);
    CHECK(!hl_region_lock(region, 2));
    if (!__atomic_load_n(&scene->a_left, __ATOMIC_ACQUIRE)) scene->c_in_while_a_held = 1;
    kit_count(&scene->c_in);
    hl_region_unlock(region);
}

/* A process that is number 1 of a new PID namespace; its PID as we see it. */
static pid_t start(void (*role)(struct hl_region *)) {
    int pids[2];
    pid_t inner = 0;
    CHECK(!pipe(pids));
    pid_t outer = fork();
    if (!outer) {
        scene->forbidden = (uint32_t)kit_new_pid_namespace();
        if (!scene->forbidden) inner = fork(); /* its PID as this namespace sees it */
        if (!inner) {
            if (scene->forbidden) _exit(0);
            CHECK(getpid() == 1);
            struct hl_region region;
            join_region(&region);
            kit_count(&scene->joined);
            role(&region);
            _exit(0);
        }
        CHECK(write(pids[1], &inner, sizeof inner) == sizeof inner);
        int status = kit_wait(inner);
        _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 0);
    }
    close(pids[1]);
    ssize_t got = read(pids[0], &inner, sizeof inner);
    close(pids[0]);
    return got == sizeof inner ? inner : -1;
}

/* Until the process sleeps inside a system call: it waits for the lock, for there is nothing else to wait for. */
static void until_asleep(pid_t pid) {
    char path[64], text[256];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    for (;;) {
        int fd = open(path, O_RDONLY);
        CHECK(fd >= 0);
        ssize_t length = read(fd, text, sizeof text - 1);
        close(fd);
        CHECK(length > 0);
        text[length] = 0;
        const char *state = strrchr(text, ')');
        if (state && state[2] == 'S') return;
        sched_yield();
    }
}

int main(int count, char **arguments) {
    if (count < 3) return 2;
    snprintf(region_path, sizeof region_path, "%s/region", arguments[1]);
    int misuse = !strcmp(arguments[2], "robust-misuse"), status;
    scene = kit_shared(sizeof *scene);
    pid_t maker = fork();
    if (!maker) {
        struct hl_ledger_config config = kit_config(region_path, misuse, 0);
        kit_open(&config);
        _exit(0);
    }
    EQUAL(kit_wait(maker), 0);
    pid_t waiter = start(b);
    if (scene->forbidden) {
        fprintf(stderr, "PID namespaces are forbidden: %s\n", strerror((int)scene->forbidden));
        return KIT_FORBIDDEN;
    }
    pid_t third = start(c);
    kit_reach(&scene->joined, 2);
    start(a);
    kit_reach(&scene->a_in, 1);
    kit_count(&scene->b_may_ask);
    kit_reach(&scene->b_asks, 1);
    until_asleep(waiter);
    kill(waiter, SIGKILL);
    CHECK(wait(&status) > 0); /* the outer process of B: B is gone */
    kit_count(&scene->c_may_ask);
    kit_reach(&scene->c_asks, 1);
    if (misuse) kit_reach(&scene->c_in, 1); /* it does get in; else this waits for ever and the test fails */
    else until_asleep(third);
    kit_count(&scene->a_may_leave);
    kit_reach(&scene->c_in, 1);
    while (wait(&status) > 0) EQUAL(status, 0);
    EQUAL(scene->c_in_while_a_held, misuse);
    return 0;
}
