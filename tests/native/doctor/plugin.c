/* A library whose driver references are its own: opened with RTLD_DEEPBIND it binds them past any interposer. */
#include <cuda.h>
#include <dlfcn.h>

int hooklab_plugin(void) { return cuInit(0) || !dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"); }
