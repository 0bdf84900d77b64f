/* The entries of the engine: integers in, one call of the policy's method, an integer out.
 *
 * An answer is believed only when it is an int (no bool: True would be read as CUDA_ERROR_INVALID_VALUE by one and as
 * "admitted" by another) within the method's meanings. All else is a fault of the policy: counted, logged, and
 * answered with HL_ENGINE_FAULT.
 */
#include "boot.h"
#include "fault.h"

enum question { ADMIT, LEASE, OBSERVE, NOTE };
static const char *const question_names[] = {"admit", "lease", "observe", "settle or release"};

static int meaningful(enum question question, int64_t answer) {
    switch (question) {
    case ADMIT: return answer == 0 || hl_boot_admit_code(answer);
    case LEASE: return answer != 0 && answer > HL_ENGINE_REENTRY;
    default: return answer > HL_ENGINE_REENTRY;
    }
}

static int64_t fault(struct hl_visit *visit) {
    visit->log = hl_fault_add();
    return HL_ENGINE_FAULT;
}

/* arguments[0] is scratch space for the interpreter, arguments[1..count] are new references that end here. */
static int64_t ask(struct hl_visit *visit, enum question question, PyObject *method, PyObject **arguments,
                   size_t count) {
    PyObject *result = NULL;
    int64_t answer = 0;
    size_t made = 0;
    while (made < count && arguments[made + 1]) made++;
    if (__builtin_expect(made == count, 1))
        result = PY(PyObject_Vectorcall)(method, arguments + 1, count | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    if (__builtin_expect(!result, 0)) {
        hl_fault_say_exception(question_names[question]);
        answer = fault(visit);
    } else if (question == NOTE && result == hl_policy.none) {
        answer = 0;
    } else if (!PyType_HasFeature(Py_TYPE(result), Py_TPFLAGS_LONG_SUBCLASS) ||
               (PyObject *)Py_TYPE(result) == hl_policy.bool_type) {
        hl_fault_say("%s answered a %.100s where an int was expected", question_names[question],
                     Py_TYPE(result)->tp_name);
        answer = fault(visit);
    } else {
        int overflow = 0;
        answer = PY(PyLong_AsLongLongAndOverflow)(result, &overflow);
        if (overflow || !meaningful(question, answer)) {
            if (overflow) hl_fault_say("%s answered a number beyond 64 bits", question_names[question]);
            else hl_fault_say("%s answered %lld, which means nothing", question_names[question], (long long)answer);
            answer = fault(visit);
        }
    }
    PY(Py_DecRef)(result);
    for (size_t i = 1; i <= count; i++) PY(Py_DecRef)(arguments[i]);
    return answer;
}

static int64_t enter(struct hl_visit *visit, const struct hl_engine_config *config) {
    int64_t answer = hl_gate_begin(visit);
    if (__builtin_expect(answer != 0, 0)) return answer;
    answer = hl_boot(config);
    if (__builtin_expect(answer != 0, 0)) hl_gate_end(visit);
    return answer;
}

static PyObject *small(int value) { return PY(PyLong_FromLong)(value); }

static PyObject *bytes(uint64_t value) { return PY(PyLong_FromUnsignedLongLong)(value); }

static int64_t boot(const struct hl_engine_config *config) {
    struct hl_visit visit;
    int64_t answer = enter(&visit, config);
    if (!answer) hl_gate_end(&visit);
    return answer;
}

static int64_t admit(int device, uint64_t size, int kind, uint64_t used, uint64_t limit, uint64_t shared) {
    struct hl_visit visit;
    int64_t answer = enter(&visit, NULL);
    if (__builtin_expect(answer != 0, 0)) return answer;
    answer = hl_gate_lock();
    if (__builtin_expect(answer == 0, 1)) {
        PyObject *arguments[7] = {NULL,        small(device), bytes(size),  small(kind),
                                  bytes(used), bytes(limit),  bytes(shared)};
        answer = ask(&visit, ADMIT, hl_policy.admit, arguments, 6);
        hl_gate_unlock(&visit);
    }
    hl_gate_end(&visit);
    return answer;
}

/* A view of the shared words that ends with the call: a policy that keeps it gets an exception and not a dead mapping. */
static PyObject *view(void *shared, size_t shared_bytes, PyObject **raw) {
    static uint64_t nothing[1];
    *raw = PY(PyMemoryView_FromMemory)(shared ? shared : (void *)nothing,
                                       shared ? (Py_ssize_t)(shared_bytes & ~(size_t)7) : 0, PyBUF_WRITE);
    return *raw ? PY(PyObject_CallMethod)(*raw, "cast", "s", "Q") : NULL;
}

static int64_t end_view(struct hl_visit *visit, PyObject *words, PyObject *raw, int64_t answer) {
    PyObject *done = words ? PY(PyObject_CallMethod)(words, "release", NULL) : NULL;
    if (words && !done) PY(PyErr_Clear)();
    /* A slice or another view made of it survives the release, as an export beside `raw` itself. */
    if (words && (!done || ((PyMemoryViewObject *)raw)->mbuf->exports != 1)) {
        hl_fault_say("the policy keeps a view of the shared words");
        answer = fault(visit);
    }
    PY(Py_DecRef)(done);
    PY(Py_DecRef)(words);
    PY(Py_DecRef)(raw);
    return answer;
}

static int64_t lease(int device, int64_t cost, uint64_t now_ns, void *shared, size_t shared_bytes) {
    struct hl_visit visit;
    int64_t answer = enter(&visit, NULL);
    if (answer) return answer;
    if (!hl_policy.lease) {
        answer = cost; /* a policy that does not pace grants everything */
    } else if (!(answer = hl_gate_lock())) {
        PyObject *raw, *words = view(shared, shared_bytes, &raw);
        if (words) PY(Py_IncRef)(words);
        PyObject *arguments[5] = {NULL, small(device), PY(PyLong_FromLongLong)(cost), bytes(now_ns), words};
        answer = end_view(&visit, words, raw, ask(&visit, LEASE, hl_policy.lease, arguments, 4));
        hl_gate_unlock(&visit);
    }
    hl_gate_end(&visit);
    return answer;
}

static int64_t observe(int device, uint64_t busy_ns, uint64_t window_ns, uint64_t now_ns, void *shared,
                       size_t shared_bytes) {
    struct hl_visit visit;
    int64_t answer = enter(&visit, NULL);
    if (answer) return answer;
    if (hl_policy.observe && !(answer = hl_gate_lock())) {
        PyObject *raw, *words = view(shared, shared_bytes, &raw);
        if (words) PY(Py_IncRef)(words);
        PyObject *arguments[6] = {NULL, small(device), bytes(busy_ns), bytes(window_ns), bytes(now_ns), words};
        answer = end_view(&visit, words, raw, ask(&visit, OBSERVE, hl_policy.observe, arguments, 5));
        hl_gate_unlock(&visit);
    }
    hl_gate_end(&visit);
    return answer;
}

static int64_t settle(int device, uint64_t size, int kind, int ok) {
    struct hl_visit visit;
    int64_t answer = enter(&visit, NULL);
    if (answer) return answer;
    if (hl_policy.settle && !(answer = hl_gate_lock())) {
        PyObject *arguments[5] = {NULL, small(device), bytes(size), small(kind), small(ok)};
        answer = ask(&visit, NOTE, hl_policy.settle, arguments, 4);
        hl_gate_unlock(&visit);
    }
    hl_gate_end(&visit);
    return answer;
}

static int64_t release(int device, uint64_t size, int kind) {
    struct hl_visit visit;
    int64_t answer = enter(&visit, NULL);
    if (answer) return answer;
    if (hl_policy.release && !(answer = hl_gate_lock())) {
        PyObject *arguments[4] = {NULL, small(device), bytes(size), small(kind)};
        answer = ask(&visit, NOTE, hl_policy.release, arguments, 3);
        hl_gate_unlock(&visit);
    }
    hl_gate_end(&visit);
    return answer;
}

static uint32_t features(void) { /* 0 until booted */ return hl_policy.features; }

static const struct hl_engine_api api = {
    .abi = HL_ENGINE_ABI,
    .size = sizeof(struct hl_engine_api),
    .source_hash = hl_boot_source_hash,
    .python = hl_boot_python,
    .boot = boot,
    .reason = hl_fault_reason,
    .faults = hl_fault_count,
    .boot_ns = hl_boot_ns,
    .features = features,
    .admit = admit,
    .lease = lease,
    .observe = observe,
    .settle = settle,
    .release = release,
};

__attribute__((visibility("default"))) const struct hl_engine_api *hl_engine(void) { return &api; }
