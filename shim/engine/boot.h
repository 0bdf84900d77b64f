/* Starts the interpreter, once in a process, and holds the policy's methods. */
#ifndef HOOKLAB_ENGINE_BOOT_H
#define HOOKLAB_ENGINE_BOOT_H
#include "engine.h"
#include "gate.h"

struct hl_policy {
    PyObject *admit;                              /* never NULL after a successful boot */
    PyObject *settle, *release, *lease, *observe; /* NULL where the class has none */
    PyObject *bool_type, *none;
    uint32_t features;
};
extern struct hl_policy hl_policy;

extern const char hl_boot_source_hash[], hl_boot_python[];

/* After hl_gate_begin: boots with `config` (NULL: built-in policy, no log) unless that was done. 0 or HL_ENGINE_ABSENT.
 * Takes no loader lock; all threads that come meanwhile wait. */
int64_t hl_boot(const struct hl_engine_config *config);
uint64_t hl_boot_ns(void);
int hl_boot_admit_code(int64_t code); /* 1 = 0 or a CUresult */
#endif
