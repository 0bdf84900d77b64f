/* The entry that a driver calls in a library named by CUDA_INJECTION64_PATH: says who answers there. The report has one
 * line: the file that owns cuMemAlloc_v2 for a tool that the driver loaded. */
#include "walk.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

__attribute__((visibility("default"))) int InitializeInjection(void);
__attribute__((visibility("default"))) int InitializeInjection(void) {
    const char *path = getenv("HOOKLAB_INJECTION_REPORT");
    FILE *file = path ? fopen(path, "w") : NULL;
    if (!file) return 1;
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY);
    void *volatile found = driver ? dlsym(driver, "cuMemAlloc_v2") : NULL;
    Dl_info info = {0};
    fprintf(file, "%s\n", found && dladdr(found, &info) && info.dli_fname ? info.dli_fname : "nobody");
    fclose(file);
    return 1;
}
