/* The way into the interpreter and out again.
 *
 * Between enter and leave the calling thread holds the front mutex and the interpreter's own lock, its cancellation is
 * off, and any further entry of the same thread (a signal handler, something the policy causes) answers
 * HL_ENGINE_REENTRY. errno is as before after leave. */
#ifndef HOOKLAB_ENGINE_GATE_H
#define HOOKLAB_ENGINE_GATE_H
#include "python_api.h"
#include <stdint.h>

struct hl_visit {
    int error;  /* the host's errno */
    int cancel; /* the host's cancellation state */
    int log;    /* set by a visitor that left a line in the reason for the log */
};

/* Marks the thread as inside without touching the interpreter: 0, or HL_ENGINE_REENTRY. */
int64_t hl_gate_begin(struct hl_visit *visit);
void hl_gate_end(struct hl_visit *visit);

/* After begin, once the interpreter runs: takes both locks. 0, or HL_ENGINE_FAULT when there is no memory for a thread
 * state (nothing is held then). */
int64_t hl_gate_lock(void);
void hl_gate_unlock(struct hl_visit *visit); /* and hands the reason to the log when visit->log is set */

/* The thread that booted, with the interpreter's lock held, opens the gate: its state is `main`. 0 or an errno. */
int hl_gate_open(PyInterpreterState *interpreter, PyThreadState *main);

/* Held while the interpreter boots, and by a fork, so that no child inherits half an interpreter. */
void hl_gate_boot_lock(void);
void hl_gate_boot_unlock(void);

void hl_gate_log_to(void (*log)(const char *)); /* never NULL */
void hl_gate_log(const char *line);
#endif
