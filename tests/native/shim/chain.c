/* A wrapper library in a chain of several that define `ping`: each calls the next one by RTLD_NEXT and adds its own
 * digit, so the number tells in which order they were reached. Compile with -DDIGIT=n; the last one with -DLAST. */
#include <dlfcn.h>
#include <stddef.h>

int ping(void) {
#ifdef LAST
    return DIGIT;
#else
    int (*next)(void) = (int (*)(void))dlsym(RTLD_NEXT, "ping");
    return next ? 10 * next() + DIGIT : -1000;
#endif
}
