/* Forks: "storm N" forks N times beside three busy threads, "boot N" forks while another thread boots, "inside" forks in
 * a signal handler during a call, "waiting" forks while a thread lingers inside, "late" forks in a thread past its key
 * destructor. Children use the engine from their own and from a new thread, fork again, and must all succeed; SIGALRM
 * ends a child that hangs. */
#define _GNU_SOURCE
#include "thin.h"
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

static volatile int stop;

static void *busy(void *unused) {
    (void)unused;
    while (!stop) CHECK(thin_admit(10) == 0);
    return NULL;
}

static void *one_call(void *unused) {
    (void)unused;
    CHECK(thin_admit(10) == 0);
    return NULL;
}

static void expect_success(pid_t child) {
    int status = -1;
    CHECK(child > 0);
    CHECK(waitpid(child, &status, 0) == child);
    if (status) dprintf(2, "child ended with status %#x\n", (unsigned)status);
    CHECK(status == 0);
}

static void use_engine(void) {
    pthread_t thread;
    alarm(30);
    CHECK(thin_admit(10) == 0);
    CHECK(thin_admit(1000001) == 2);
    CHECK(!pthread_create(&thread, NULL, one_call, NULL));
    pthread_join(thread, NULL);
}

static _Noreturn void child(void) {
    use_engine();
    pid_t grandchild = fork();
    if (!grandchild) {
        use_engine();
        _exit(0);
    }
    expect_success(grandchild);
    exit(0);
}

static void storm(int count) {
    pthread_t threads[3];
    CHECK(thin_boot() == 0);
    for (int i = 0; i < 3; i++) CHECK(!pthread_create(&threads[i], NULL, busy, NULL));
    for (int i = 0; i < count; i++) {
        pid_t made = fork();
        if (!made) child();
        expect_success(made);
    }
    stop = 1;
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
}

static pthread_barrier_t barrier;

static void *booting(void *unused) {
    (void)unused;
    pthread_barrier_wait(&barrier);
    CHECK(thin_boot() == 0);
    return NULL;
}

static void fork_beside_boot(int count) {
    for (int i = 0; i < count; i++) { /* every round in a fresh process that has not booted */
        pid_t round = fork();
        if (!round) {
            pthread_t thread;
            alarm(30);
            thin_engine();
            pthread_barrier_init(&barrier, NULL, 2);
            CHECK(!pthread_create(&thread, NULL, booting, NULL));
            pthread_barrier_wait(&barrier);
            for (volatile int spin = 0; spin < i * 20000; spin++) {} /* another moment of the boot each round */
            pid_t made = fork();
            if (!made) child();
            expect_success(made);
            pthread_join(thread, NULL);
            CHECK(thin_admit(10) == 0);
            _exit(0);
        }
        expect_success(round);
    }
}

static volatile pid_t made_inside = -1;

static void fork_in_handler(int signal) {
    (void)signal;
    made_inside = fork();
    thin_words[LEAVE] = 1; /* in parent and child: both go on inside the call */
}

static void *kill_main(void *main_thread) {
    thin_wait_inside();
    pthread_kill(*(pthread_t *)main_thread, SIGUSR1);
    return NULL;
}

static void fork_inside(void) {
    pthread_t self = pthread_self(), thread;
    CHECK(thin_boot() == 0);
    CHECK(signal(SIGUSR1, fork_in_handler) != SIG_ERR);
    CHECK(!pthread_create(&thread, NULL, kill_main, &self));
    CHECK(thin_linger() == 7);
    if (!made_inside) child();
    pthread_join(thread, NULL);
    expect_success(made_inside);
    CHECK(thin_admit(10) == 0);
}

static void let_go(void) { thin_words[LEAVE] = 1; }

static void *linger(void *unused) {
    (void)unused;
    CHECK(thin_linger() == 7);
    return NULL;
}

static void fork_waiting(void) {
    pthread_t thread;
    CHECK(thin_boot() == 0);
    CHECK(!pthread_create(&thread, NULL, linger, NULL));
    thin_wait_inside();
    CHECK(!pthread_atfork(let_go, NULL, NULL)); /* runs before the engine's own handler, which waits for the thread */
    pid_t made = fork();
    if (!made) child();
    expect_success(made);
    pthread_join(thread, NULL);
}

static pthread_key_t key;

static void fork_in_destructor(void *unused) {
    (void)unused;
    CHECK(thin_engine()->admit(0, 10, 1, 0, 100, 0) == HL_ENGINE_REENTRY);
    pid_t made = fork();
    if (!made) {
        pthread_t thread;
        alarm(30);
        CHECK(!pthread_create(&thread, NULL, one_call, NULL)); /* this thread itself is past its end */
        pthread_join(thread, NULL);
        _exit(0);
    }
    expect_success(made);
}

static void *destroyed(void *unused) {
    (void)unused;
    CHECK(thin_admit(10) == 0);
    pthread_setspecific(key, &key);
    return NULL;
}

static void fork_late(void) {
    pthread_t thread;
    CHECK(thin_boot() == 0);
    pthread_key_create(&key, fork_in_destructor); /* made after the engine's key: runs after its destructor */
    CHECK(!pthread_create(&thread, NULL, destroyed, NULL));
    pthread_join(thread, NULL);
    CHECK(thin_admit(10) == 0);
}

int main(int count, char **arguments) {
    CHECK(count > 1);
    int times = count > 2 ? atoi(arguments[2]) : 1;
    if (!strcmp(arguments[1], "storm")) storm(times);
    else if (!strcmp(arguments[1], "boot")) fork_beside_boot(times);
    else if (!strcmp(arguments[1], "inside")) fork_inside();
    else if (!strcmp(arguments[1], "waiting")) fork_waiting();
    else if (!strcmp(arguments[1], "late")) fork_late();
    else CHECK(!"a known mode");
    return 0;
}
