/* Steps about processes and threads: fork, exec, parallel, signal, exit. A forked child plays its nested steps and
 * ends; an exec'd image is this program again (`--step N`), which writes the end of step N and plays its nested
 * steps. A cleared environment is really cleared: only what the step names and the argument list reach the image. */
#include "caller.h"
#include "history.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

void step_fork(const struct play *play, struct outcome *out) {
    const struct step *step = play->step;
    int waits = (int)step_number(step, "wait", 1), status = 0;
    fflush(NULL);
    pid_t child = step_number(step, "raw", 0) ? (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
    if (child < 0) {
        out->result = errno;
        return;
    }
    if (child == 0) {
        hl_history_fork_child();
        control_forked();
        play_steps(play->program, step->subs, step->sub_count);
        wait_for_children();
        exit(0);
    }
    out->a = (uint64_t)child;
    if (!waits) return;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) {
            out->result = errno;
            return;
        }
    out->b = (uint64_t)(unsigned)status;
}

void wait_for_children(void) {
    int status;
    while (wait(&status) > 0 || errno == EINTR) {}
}

void step_exec(const struct play *play, struct outcome *out) {
    const struct step *step = play->step;
    char number[16], *arguments[12];
    const char *process = getenv("HOOKLAB_PROCESS"), *container = getenv("HOOKLAB_CONTAINER");
    int count = 0, clear = (int)step_number(step, "clear_environment", 0);
    snprintf(number, sizeof number, "%d", step->index);
    arguments[count++] = (char *)"hooklab-caller";
    arguments[count++] = (char *)"--step";
    arguments[count++] = number;
    if (clear && process) { /* who we are in the run is no setting of a guest: history records need it */
        arguments[count++] = (char *)"--process";
        arguments[count++] = (char *)process;
    }
    if (clear && container) {
        arguments[count++] = (char *)"--container";
        arguments[count++] = (char *)container;
    }
    arguments[count++] = (char *)play->program->path;
    arguments[count] = NULL;
    char *empty[1] = {NULL}, **list = NULL;
    if (clear) environ = empty;
    int extra = step_text(step, "environment", NULL) ? split_list(step_text(step, "environment", ""), &list) : 0;
    for (int i = 0; i < extra; i++)
        if (strchr(list[i], '=')) putenv(list[i]);
    fflush(NULL);
    execv("/proc/self/exe", arguments);
    out->result = errno;
}

struct thread {
    const struct play *play;
    int ordinal;
    pthread_t id;
    pthread_barrier_t *start;
};
static atomic_int ordinals;

static void *thread_main(void *argument) {
    struct thread *thread = argument;
    object_owner = thread->ordinal;
    pthread_barrier_wait(thread->start); /* all threads play their first step at once: that race is the point */
    play_steps(thread->play->program, thread->play->step->subs, thread->play->step->sub_count);
    return NULL;
}

void step_parallel(const struct play *play, struct outcome *out) {
    unsigned count = (unsigned)step_number(play->step, "threads", 2);
    struct thread *threads = calloc(count + 1, sizeof *threads);
    pthread_barrier_t start;
    out->a = count;
    if (!threads || pthread_barrier_init(&start, NULL, count)) {
        out->result = ENOMEM;
        free(threads);
        return;
    }
    for (unsigned i = 0; i < count; i++) {
        threads[i] = (struct thread){.play = play, .ordinal = atomic_fetch_add(&ordinals, 1) + 1, .start = &start};
        int error = pthread_create(&threads[i].id, NULL, thread_main, &threads[i]);
        if (error) { /* those already started wait for a count that cannot come: no way to go on */
            fprintf(stderr, "hooklab-caller: step %d: thread %u of %u: %s\n", play->step->index, i, count,
                    strerror(error));
            _exit(70);
        }
    }
    for (unsigned i = 0; i < count; i++) pthread_join(threads[i].id, NULL);
    pthread_barrier_destroy(&start);
    free(threads);
}

void step_signal(const struct play *play, struct outcome *out) {
    int number = (int)step_number(play->step, "signal", SIGTERM);
    out->a = (uint64_t)number;
    report_end(play, out); /* a fatal signal leaves no later moment; a survivor's second record is not written */
    out->result = kill(getpid(), number) ? errno : 0;
}

void step_exit(const struct play *play, struct outcome *out) {
    int code = (int)step_number(play->step, "code", 0);
    out->a = (uint64_t)code;
    report_end(play, out);
    objects_report();
    fflush(NULL);
    if (step_number(play->step, "quick", 0)) _exit(code);
    exit(code);
}
