/* Says where the player was when it crashes: step and frames on stderr, then the default action of the signal, so that
 * the wait status is what it would have been. Only calls that are safe in a handler once backtrace() was used before. */
#include "caller.h"
#include <execinfo.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static _Thread_local int step_now = -1;

void crash_step(int index) { step_now = index; }

static void crashed(int number) {
    void *frames[48];
    char line[96];
    int size = snprintf(line, sizeof line, "hooklab-caller: signal %d in step %d\n", number, step_now);
    if (write(STDERR_FILENO, line, (size_t)size) != size) _exit(128 + number);
    backtrace_symbols_fd(frames, backtrace(frames, 48), STDERR_FILENO);
    signal(number, SIG_DFL);
    raise(number);
}

void crash_watch(void) {
    static const int numbers[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};
    void *warm[2];
    stack_t stack = {.ss_size = 64 * 1024};
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = crashed;
    action.sa_flags = SA_ONSTACK | SA_NODEFER;
    backtrace(warm, 2); /* loads the unwinder now, not in a handler */
    stack.ss_sp = malloc(stack.ss_size);
    if (stack.ss_sp) sigaltstack(&stack, NULL); /* the main thread's overflow; other threads use their own stack */
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) sigaction(numbers[i], &action, NULL);
}
