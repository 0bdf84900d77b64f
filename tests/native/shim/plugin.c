/* A library that looks names up for itself. With -DOWN it also defines a name of its own. */
#include <dlfcn.h>
#include <stddef.h>

void *plugin_next(const char *name) { return dlsym(RTLD_NEXT, name); }

void *plugin_default(const char *name) { return dlsym(RTLD_DEFAULT, name); }

#ifdef OWN
int OWN(void) { return 77; }
#endif
