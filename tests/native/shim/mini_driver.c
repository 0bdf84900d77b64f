/* The miniature driver's own behaviour: both resolvers (the generated version map over this library's own functions),
 * and lookups made from inside the driver, which must find the driver's symbols. */
#include "hl_names.h"
#include "hl_table.h"
#include "hl_versions.h"

#include <dlfcn.h>
#include <stddef.h>

#define DECLARE_CUDA(name) int name();
#define DECLARE_NVML(name)
#define DECLARE(name, library, ...) DECLARE_##library(name)
HL_TABLE(DECLARE)
#define ENTRY_CUDA(name) [HL_##name] = (void *)&name,
#define ENTRY_NVML(name)
#define ENTRY(name, library, ...) ENTRY_##library(name)
static void *const functions[HL_NAME_COUNT] = {HL_TABLE(ENTRY)};

int cuGetProcAddress_v2(const char *symbol, void **pfn, int version, unsigned long long flags, int *status) {
    int found = 0, id = hl_resolve_any(symbol, version, flags, &found);
    *pfn = id < 0 ? NULL : functions[id];
    if (status) *status = found;
    return 0;
}

int cuGetProcAddress(const char *symbol, void **pfn, int version, unsigned long long flags) {
    int id = hl_resolve_any(symbol, version, flags, NULL);
    if (id < 0) return 500;
    *pfn = functions[id];
    return 0;
}

/* What the driver's JIT compiler does: a lookup whose caller is the driver. The volatile keeps the call a call. */
void *mini_ask(void *handle, const char *name) {
    void *volatile found = dlsym(handle, name);
    return found;
}

void *mini_resolve(const char *name) {
    int (*resolver)(const char *, void **, int, unsigned long long, int *) =
        mini_ask(RTLD_DEFAULT, "cuGetProcAddress_v2");
    void *found = NULL;
    resolver(name, &found, -1, 0, NULL);
    return found;
}

/* A call of the driver that calls the program back, which then looks names up on this thread. */
int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    (void)device;
    void *(*callback)(void) = (void *(*)(void)) * bytes;
    *bytes = (size_t)callback();
    return 0;
}
