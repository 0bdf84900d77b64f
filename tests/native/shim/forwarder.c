/* A library that forwards its own names by looking them up in what it depends on, as cuDNN does. DEPENDENCY: the
 * library behind it. */
#ifdef DEPENDENCY
int cudnnCreate(int depth) { return depth + 1; }
int priv(void) { return 7; }
#else
#include <dlfcn.h>

int cudnnCreate(int depth) {
    void *handle = dlopen("libcudnn_dependency.so", RTLD_LAZY);
    int (*next)(int) = handle ? (int (*)(int))dlsym(handle, "cudnnCreate") : 0;
    return next && depth < 3 ? next(depth + 1) : -1;
}

int ask_default(const char *name) { /* a caller-relative lookup: only this library's own scope has the name */
    int (*volatile found)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, name);
    return found ? found() : -1;
}
#endif
