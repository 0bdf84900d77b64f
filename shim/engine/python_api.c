/* Fills the table of CPython functions of the copy variant.
 *
 * In a constructor, that is inside the dlopen of the engine: dlopen and dlsym take the loader lock, which boot must not
 * (a thread in a constructor that makes a CUDA call holds it and waits for the thread that boots).
 */
#define _GNU_SOURCE
#include "python_api.h"

#ifdef HL_ENGINE_COPY
#include "engine.h"
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

struct hl_python hl_python;
static char missing[8192] = "the private libpython was not loaded";

static void load(void) {
    Dl_info self;
    char path[4096];
    if (!dladdr((void *)hl_engine, &self) || !self.dli_fname) {
        snprintf(missing, sizeof missing, "cannot find the engine's own file");
        return;
    }
    const char *slash = strrchr(self.dli_fname, '/');
    int length = slash ? (int)(slash - self.dli_fname) : 1;
    snprintf(path, sizeof path, "%.*s/libhooklab-python.so", length, slash ? self.dli_fname : ".");
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!library) {
        const char *why = dlerror();
        snprintf(missing, sizeof missing, "%s; build the engine again", why ? why : path);
        return;
    }
#define X(name)                                                                                                        \
    *(void **)&hl_python.name = dlsym(library, #name);                                                                 \
    if (!hl_python.name) {                                                                                             \
        snprintf(missing, sizeof missing, "%s has no %s", path, #name);                                                \
        return;                                                                                                        \
    }
    HL_PYTHON_FUNCTIONS(X)
#undef X
    *(void **)&hl_python.frozen = dlsym(library, "PyImport_FrozenModules");
    if (!hl_python.frozen) {
        snprintf(missing, sizeof missing, "%s has no PyImport_FrozenModules", path);
        return;
    }
    missing[0] = 0;
}

__attribute__((constructor)) static void load_python(void) {
    int saved = errno;
    load();
    errno = saved;
}

const char *hl_python_missing(void) { return missing[0] ? missing : NULL; }
#else
const char *hl_python_missing(void) { return NULL; }
#endif
