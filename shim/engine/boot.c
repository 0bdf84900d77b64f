/* Starts the private interpreter and loads the policy.
 *
 * Everything is imported here, from frozen data and built-in modules; nothing is ever loaded from disk but the user's
 * policy file. Isolated from the host: no environment, no locale change, no signal handlers, no standard streams. Never
 * finalised: threads may be inside when the process exits.
 */
#define _GNU_SOURCE
#include "boot.h"
#include "fault.h"
#include "hl_frozen.h"
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#ifdef HL_ENGINE_COPY
const char hl_boot_python[] = HL_ENGINE_PYTHON " copy";
#else
const char hl_boot_python[] = HL_ENGINE_PYTHON " static";
#endif
const char hl_boot_source_hash[] = HL_POLICY_HASH;

struct hl_policy hl_policy;

enum { NEVER, READY, FAILED };
static atomic_int outcome = NEVER;
static atomic_uint_fast64_t boot_time;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static __thread const struct hl_engine_config *wanted __attribute__((tls_model("initial-exec")));

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static int failed(const char *what, PyStatus status) {
    hl_fault_say("the interpreter does not start: %s: %s", what, status.err_msg ? status.err_msg : "exit requested");
    return -1;
}

static int start_interpreter(void) {
    PyPreConfig before;
    PY(PyPreConfig_InitIsolatedConfig)(&before);
    before.utf8_mode = 1;
    before.configure_locale = 0;
    before.coerce_c_locale = 0;
    before.coerce_c_locale_warn = 0;
    PyStatus status = PY(Py_PreInitialize)(&before);
    if (PY(PyStatus_Exception)(status)) return failed("pre-initialisation", status);
    PyConfig config;
    PY(PyConfig_InitIsolatedConfig)(&config);
    config.site_import = 0;
    config.user_site_directory = 0;
    config.write_bytecode = 0;
    config.install_signal_handlers = 0;
    config.faulthandler = 0;
    config.parse_argv = 0;
    config.pathconfig_warnings = 0;
    config.configure_c_stdio = 0;
    config.use_hash_seed = 1; /* the same set order in every process: one policy, one result */
    config.hash_seed = 0;
    config.module_search_paths_set = 1; /* and empty */
    wchar_t **names[] = {&config.program_name,     &config.executable,     &config.home,
                         &config.prefix,           &config.exec_prefix,    &config.base_prefix,
                         &config.base_exec_prefix, &config.base_executable};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        status = PY(PyConfig_SetString)(&config, names[i], L"/nonexistent/hooklab-engine");
        if (PY(PyStatus_Exception)(status)) break;
    }
    if (!PY(PyStatus_Exception)(status)) status = PY(Py_InitializeFromConfig)(&config);
    PY(PyConfig_Clear)(&config);
    return PY(PyStatus_Exception)(status) ? failed("initialisation", status) : 0;
}

static PyObject *item(PyObject *tuple, Py_ssize_t index) { /* a new reference, NULL for None */
    PyObject *value = PY(PyTuple_GetItem)(tuple, index);
    if (value == hl_policy.none) return NULL;
    PY(Py_IncRef)(value);
    return value;
}

static int load_policy(const char *policy, const char *pacing) {
    PyObject *host = PY(PyImport_ImportModule)("lab.policy._host");
    PyObject *describe = host ? PY(PyObject_GetAttrString)(host, "describe") : NULL;
    PyObject *prepare = describe ? PY(PyObject_GetAttrString)(host, "prepare") : NULL;
    PyObject *spec = prepare ? PY(PyUnicode_DecodeFSDefault)(policy) : NULL;
    PyObject *pace = spec ? PY(PyUnicode_DecodeFSDefault)(pacing) : NULL;
    PyObject *made = NULL;
    hl_fault_describe_with(describe); /* its reference is kept for ever */
    if (pace) made = PY(PyObject_CallFunction)(prepare, "OO", spec, pace);
    if (made && PY(PyTuple_Size)(made) == 9) {
        hl_policy.none = PY(PyTuple_GetItem)(made, 7);
        PY(Py_IncRef)(hl_policy.none);
        hl_policy.features = (uint32_t)PY(PyLong_AsLongLongAndOverflow)(PY(PyTuple_GetItem)(made, 0), &(int){0});
        hl_policy.admit = item(made, 1);
        hl_policy.settle = item(made, 2);
        hl_policy.release = item(made, 3);
        hl_policy.lease = item(made, 4);
        hl_policy.observe = item(made, 5);
        hl_policy.bool_type = item(made, 6);
        const char *told = PY(PyUnicode_AsUTF8AndSize)(PY(PyTuple_GetItem)(made, 8), NULL);
        if (told && *told) hl_gate_log(told);
    }
    if (!hl_policy.admit) hl_fault_say_exception("");
    PY(Py_DecRef)(made);
    PY(Py_DecRef)(pace);
    PY(Py_DecRef)(spec);
    PY(Py_DecRef)(prepare);
    PY(Py_DecRef)(host);
    return hl_policy.admit ? 0 : -1;
}

static int start(const char *policy, const char *pacing) {
    const char *missing = hl_python_missing();
    if (missing) {
        hl_fault_say("%s", missing);
        return -1;
    }
    PY_FROZEN = hl_frozen_modules;
    if (start_interpreter()) return -1;
    PY(PyGC_Disable)();
    int result = load_policy(policy, pacing);
    PyInterpreterState *interpreter = PY(PyInterpreterState_Main)();
    PyThreadState *main = PY(PyEval_SaveThread)();
    if (!result && (result = hl_gate_open(interpreter, main)))
        hl_fault_say("no thread key for the engine: %s", strerror(result));
    return result;
}

static void boot_once(void) {
    hl_gate_boot_lock();
    if (atomic_load(&outcome) == NEVER) { /* else: forked after the boot, before once took note of it */
        const struct hl_engine_config *config = wanted;
        if (config && config->log) hl_gate_log_to(config->log);
        uint64_t begin = now_ns();
        int result =
            start(config && config->policy ? config->policy : "", config && config->pacing ? config->pacing : "");
        atomic_store(&boot_time, now_ns() - begin);
        atomic_store(&outcome, result ? FAILED : READY);
        if (result) hl_gate_log(hl_fault_reason());
    }
    hl_gate_boot_unlock();
}

int64_t hl_boot(const struct hl_engine_config *config) {
    int now = atomic_load_explicit(&outcome, memory_order_acquire);
    if (__builtin_expect(now == NEVER, 0)) {
        wanted = config;
        pthread_once(&once, boot_once);
        wanted = NULL;
        now = atomic_load_explicit(&outcome, memory_order_acquire);
    }
    return now == READY ? 0 : HL_ENGINE_ABSENT;
}

uint64_t hl_boot_ns(void) { return atomic_load(&boot_time); }

int hl_boot_admit_code(int64_t code) {
    int low = 0, high = HL_ADMIT_CODES;
    while (low < high) {
        int middle = (low + high) / 2;
        if (hl_admit_codes[middle] == code) return 1;
        if (hl_admit_codes[middle] < code) low = middle + 1;
        else high = middle;
    }
    return 0;
}
