/* A planted failure: a dlsym hook that calls the real dlsym as an ordinary C function, so that RTLD_NEXT means "behind
 * this library" for everybody. */
#include <dlfcn.h>
#include <stddef.h>

void *dlsym(void *restrict handle, const char *restrict name) {
    static void *(*real)(void *, const char *);
    if (!real) real = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    if (!real) real = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.17");
    void *volatile found = real(handle, name);
    return found;
}
