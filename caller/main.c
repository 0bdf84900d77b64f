/* The player: `hooklab-caller [--step N] [--process N] [--container N] PROGRAM`. Plays the program's steps in order,
 * each between a STEP_BEGIN and a STEP_END record. With --step it is the image of an exec step: it ends that step and
 * plays what is nested in it. Exit status 0 unless a step says otherwise, 2 for a program that cannot be read. */
#include "caller.h"
#include "history.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct operation {
    const char *name;
    step_function play;
    int needs_context, ends_itself; /* ends_itself: the step writes its own end record */
} operations[] = {
    {"init", step_init, 0, 0},     {"context", step_context, 0, 0}, {"sync", step_sync, 1, 0},
    {"alloc", step_alloc, 1, 0},   {"free", step_free, 1, 0},       {"memset", step_memset, 1, 0},
    {"write", step_write, 1, 0},   {"read", step_read, 1, 0},       {"copy", step_copy, 1, 0},
    {"module", step_module, 1, 0}, {"launch", step_launch, 1, 0},   {"view", step_view, 0, 0},
    {"lookup", step_lookup, 0, 0}, {"random", step_random, 1, 0},   {"barrier", step_barrier, 0, 0},
    {"fork", step_fork, 0, 0},     {"exec", step_exec, 0, 0},       {"parallel", step_parallel, 0, 0},
    {"signal", step_signal, 0, 1}, {"exit", step_exit, 0, 1},       {"call", step_call, 0, 0},
    {"repeat", step_repeat, 0, 0}, {"give", step_give, 0, 0},       {"take", step_take, 0, 0},
};

static const struct operation *operation_of(const char *name) {
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++)
        if (strcmp(operations[i].name, name) == 0) return &operations[i];
    return NULL;
}

static void record(const struct play *play, uint8_t event, const struct outcome *out) {
    struct hl_event line = {.event = event,
                            .source = HL_SOURCE_CALLER,
                            .route = out->route,
                            .device = out->device,
                            .name = out->name,
                            .step = (uint16_t)play->step->index,
                            .result = out->result,
                            .extra = out->extra,
                            .a = out->a,
                            .b = out->b,
                            .c = out->c};
    hl_history_add(&line);
}

void report_end(const struct play *play, const struct outcome *out) { record(play, HL_EVENT_STEP_END, out); }

void nothing_done(struct outcome *out, const struct play *play) {
    *out = (struct outcome){.name = 0xFFFF, .route = play->how.route, .device = (uint8_t)play->device};
}

static struct play play_of(const struct program *program, const struct step *step) {
    struct play play = {.program = program, .step = step, .device = (int)step_number(step, "device", 0)};
    how_of(step, program, &play.how);
    return play;
}

static void play_step(const struct program *program, const struct step *step) {
    struct play play = play_of(program, step);
    struct outcome out;
    const struct operation *operation = operation_of(step->op);
    crash_step(step->index);
    nothing_done(&out, &play);
    record(&play, HL_EVENT_STEP_BEGIN, &out);
    if (!operation) {
        fprintf(stderr, "hooklab-caller: %s:%d: no operation %s\n", program->path, step->line, step->op);
        exit(2);
    }
    if (operation->needs_context) out.result = ensure_context(&play.how, play.device, &out);
    if (out.result == 0) operation->play(&play, &out);
    if (!operation->ends_itself) report_end(&play, &out);
}

void play_steps(const struct program *program, const struct step *steps, int count) {
    for (int i = 0; i < count; i++) play_step(program, &steps[i]);
}

const struct step *step_by_index(const struct step *steps, int count, int index) {
    for (int i = 0; i < count; i++) {
        if (steps[i].index == index) return &steps[i];
        const struct step *nested = step_by_index(steps[i].subs, steps[i].sub_count, index);
        if (nested) return nested;
    }
    return NULL;
}

static int usage(void) {
    fputs("usage: hooklab-caller [--step N] [--process N] [--container N] PROGRAM\n", stderr);
    return 2;
}

int main(int argc, char **argv) {
    struct program program;
    int at = 1, from = -1;
    for (; at + 1 < argc && strncmp(argv[at], "--", 2) == 0; at += 2) {
        if (strcmp(argv[at], "--step") == 0) from = atoi(argv[at + 1]);
        else if (strcmp(argv[at], "--process") == 0) setenv("HOOKLAB_PROCESS", argv[at + 1], 0);
        else if (strcmp(argv[at], "--container") == 0) setenv("HOOKLAB_CONTAINER", argv[at + 1], 0);
        else return usage();
    }
    if (at + 1 != argc) return usage();
    crash_watch();
    objects_begin();
    if (program_load(argv[at], &program)) return 2;
    if (from < 0) {
        control_start(strcmp(program_setting(&program, "start", "now"), "wait") == 0);
        play_steps(&program, program.steps, program.count);
    } else {
        const struct step *step = step_by_index(program.steps, program.count, from);
        if (!step) {
            fprintf(stderr, "hooklab-caller: %s: no step %d\n", program.path, from);
            return 2;
        }
        struct play play = play_of(&program, step);
        struct outcome out;
        nothing_done(&out, &play);
        report_end(&play, &out);
        play_steps(&program, step->subs, step->sub_count);
    }
    wait_for_children();
    objects_report();
    return 0;
}
