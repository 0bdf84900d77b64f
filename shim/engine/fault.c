/* Keeps the reason of the last failure as one line and counts the policy's faults.
 *
 * Never prints: PyErr_Print would write into the host's stderr and would exit the host on SystemExit. The last byte of
 * the text stays zero, so that a reader beside a writer sees a mixed line at worst.
 */
#include "fault.h"
#include "python_api.h"
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static char reason[HL_REASON_BYTES];
static atomic_uint_fast64_t faults;
static PyObject *describe;

const char *hl_fault_reason(void) { return reason; }

uint64_t hl_fault_count(void) { return atomic_load_explicit(&faults, memory_order_relaxed); }

int hl_fault_add(void) {
    uint64_t now = atomic_fetch_add_explicit(&faults, 1, memory_order_relaxed) + 1;
    return now <= 8 || (now & (now - 1)) == 0;
}

void hl_fault_describe_with(void *function) { describe = function; }

void hl_fault_say(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, sizeof reason - 1, format, arguments);
    va_end(arguments);
    for (char *at = reason; *at; at++)
        if (*at == '\n' || *at == '\r') *at = ' ';
}

void hl_fault_say_exception(const char *what) {
    PyObject *type = NULL, *value = NULL, *trace = NULL, *line = NULL;
    const char *text = NULL;
    PY(PyErr_Fetch)(&type, &value, &trace);
    PY(PyErr_NormalizeException)(&type, &value, &trace);
    if (value && trace) PY(PyException_SetTraceback)(value, trace);
    if (describe && value) {
        PyObject *arguments[2] = {NULL, value};
        line = PY(PyObject_Vectorcall)(describe, arguments + 1, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    }
    if (line) text = PY(PyUnicode_AsUTF8AndSize)(line, NULL);
    if (!text) PY(PyErr_Clear)();
    hl_fault_say("%s%s%s", what, *what ? ": " : "",
                 text   ? text
                 : type ? ((PyTypeObject *)type)->tp_name
                        : "no exception");
    PY(Py_DecRef)(line);
    PY(Py_DecRef)(trace);
    PY(Py_DecRef)(value);
    PY(Py_DecRef)(type);
}
