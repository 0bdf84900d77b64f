/* Entries from where a call is already under way: "handler" from a signal handler that interrupts one, "log" from the log
 * function, "idle" from a handler outside any call (an ordinary call), "exit" ends the process while a thread is inside. */
#define _GNU_SOURCE
#include "thin.h"
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

static volatile int64_t answer = 1;
static volatile int handled;

static void call_in_handler(int signal) {
    (void)signal;
    answer = thin_engine()->admit(0, 10, 1, 0, 100, 0);
    handled++;
    thin_words[LEAVE] = 1;
}

static void *kill_main(void *main_thread) {
    thin_wait_inside();
    pthread_kill(*(pthread_t *)main_thread, SIGUSR1);
    return NULL;
}

static void in_handler(void) {
    pthread_t self = pthread_self(), thread;
    CHECK(thin_boot() == 0);
    CHECK(signal(SIGUSR1, call_in_handler) != SIG_ERR);
    CHECK(!pthread_create(&thread, NULL, kill_main, &self));
    CHECK(thin_linger() == 7);
    pthread_join(thread, NULL);
    CHECK(handled == 1 && answer == HL_ENGINE_REENTRY);
    CHECK(thin_admit(10) == 0);
}

static void idle(void) {
    CHECK(thin_boot() == 0);
    CHECK(signal(SIGUSR1, call_in_handler) != SIG_ERR);
    CHECK(!raise(SIGUSR1));
    CHECK(handled == 1 && answer == 0);
}

static void call_in_log(void) {
    answer = thin_engine()->admit(0, 10, 1, 0, 100, 0);
    handled++;
}

static void in_log(void) { /* policy Faulty: kind 5 raises */
    CHECK(thin_boot() == 0);
    thin_on_log = call_in_log;
    CHECK(thin_engine()->admit(0, 10, 5, 0, 100, 0) == HL_ENGINE_FAULT);
    CHECK(handled == 1 && answer == HL_ENGINE_REENTRY);
    CHECK(thin_engine()->admit(0, 10, 1, 0, 100, 0) == 0);
}

static void *linger(void *unused) {
    (void)unused;
    thin_linger();
    return NULL;
}

static void leave(void) {
    pthread_t thread;
    CHECK(thin_boot() == 0);
    CHECK(!pthread_create(&thread, NULL, linger, NULL));
    thin_wait_inside();
    exit(23);
}

int main(int count, char **arguments) {
    CHECK(count > 1);
    if (!strcmp(arguments[1], "handler")) in_handler();
    else if (!strcmp(arguments[1], "idle")) idle();
    else if (!strcmp(arguments[1], "log")) in_log();
    else if (!strcmp(arguments[1], "exit")) leave();
    else CHECK(!"a known mode");
    return 0;
}
