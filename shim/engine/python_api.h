/* The functions of CPython that the engine calls, and how they are reached.
 *
 * Static variant: plain calls, bound inside this library. Copy variant: through a table that a constructor fills from
 * the private libpython, because a plain reference would bind to the libpython of a host that is Python itself.
 * Functions only: a data symbol (Py_None, PyExc_*) would be the host's. Macros and inline functions of Python.h that use
 * one (PyLong_CheckExact, Py_RETURN_NONE ...) must not be used here either.
 */
#ifndef HOOKLAB_ENGINE_PYTHON_API_H
#define HOOKLAB_ENGINE_PYTHON_API_H
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#define HL_PYTHON_FUNCTIONS(X)                                                                                         \
    X(PyPreConfig_InitIsolatedConfig)                                                                                  \
    X(Py_PreInitialize)                                                                                                \
    X(PyConfig_InitIsolatedConfig)                                                                                     \
    X(PyConfig_SetString)                                                                                              \
    X(PyConfig_Clear)                                                                                                  \
    X(Py_InitializeFromConfig)                                                                                         \
    X(PyStatus_Exception)                                                                                              \
    X(PyInterpreterState_Main)                                                                                         \
    X(PyThreadState_New)                                                                                               \
    X(PyThreadState_Clear)                                                                                             \
    X(PyThreadState_DeleteCurrent)                                                                                     \
    X(PyEval_RestoreThread)                                                                                            \
    X(PyEval_SaveThread)                                                                                               \
    X(PyOS_BeforeFork)                                                                                                 \
    X(PyOS_AfterFork_Parent)                                                                                           \
    X(PyOS_AfterFork_Child)                                                                                            \
    X(PyGC_Disable)                                                                                                    \
    X(PyImport_ImportModule)                                                                                           \
    X(PyObject_GetAttrString)                                                                                          \
    X(PyObject_CallFunction)                                                                                           \
    X(PyObject_CallMethod)                                                                                             \
    X(PyObject_Vectorcall)                                                                                             \
    X(PyTuple_GetItem)                                                                                                 \
    X(PyTuple_Size)                                                                                                    \
    X(PyMemoryView_FromMemory)                                                                                         \
    X(PyLong_FromLong)                                                                                                 \
    X(PyLong_FromLongLong)                                                                                             \
    X(PyLong_FromUnsignedLongLong)                                                                                     \
    X(PyLong_AsLongLongAndOverflow)                                                                                    \
    X(PyUnicode_AsUTF8AndSize)                                                                                         \
    X(PyUnicode_DecodeFSDefault)                                                                                       \
    X(PyErr_Fetch)                                                                                                     \
    X(PyErr_NormalizeException)                                                                                        \
    X(PyErr_Clear)                                                                                                     \
    X(PyException_SetTraceback)                                                                                        \
    X(Py_IncRef)                                                                                                       \
    X(Py_DecRef)

#ifdef HL_ENGINE_COPY
struct hl_python {
#define X(name) __typeof__(&name) name;
    HL_PYTHON_FUNCTIONS(X)
#undef X
    const struct _frozen **frozen;
};
extern struct hl_python hl_python;
#define PY(name) (hl_python.name)
#define PY_FROZEN (*hl_python.frozen)
#else
#define PY(name) name
#define PY_FROZEN PyImport_FrozenModules
#endif

/* NULL when the interpreter can be called, else why not. Set before any entry of the engine can run. */
const char *hl_python_missing(void);
#endif
