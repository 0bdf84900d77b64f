/* What went wrong last, and how often. Written while the gate is held; read at any time. */
#ifndef HOOKLAB_ENGINE_FAULT_H
#define HOOKLAB_ENGINE_FAULT_H
#include <stddef.h>
#include <stdint.h>

#define HL_REASON_BYTES 1024

const char *hl_fault_reason(void); /* static storage, "" if nothing went wrong */
uint64_t hl_fault_count(void);

__attribute__((format(printf, 1, 2))) void hl_fault_say(const char *format, ...); /* sets the reason */
/* Takes the interpreter's current exception, puts it as one line into the reason and clears it. */
void hl_fault_say_exception(const char *what);
/* Counts a fault of the policy. 1 when it is one of those that are logged: the first eight, then every power of two, so
 * that a policy that always raises cannot flood the log. */
int hl_fault_add(void);

void hl_fault_describe_with(void *describe); /* the Python function that turns an exception into a line; borrowed */
#endif
