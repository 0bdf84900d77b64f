/* Asks for every hooked name over every route and prints, a line each: route, name asked, name expected, the file that
 * owns the answer, the symbol there. Linked against both drivers; the test decides what is right. */
#include "hl_hooked.h"
#include "hl_names.h"
#include "hl_versions.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DECLARE(name, ...) extern __attribute__((weak)) int name(); /* weak: a driver may lack one */
HL_HOOKED(DECLARE)

typedef int (*resolver2)(const char *, void **, int, unsigned long long, int *);
typedef int (*resolver1)(const char *, void **, int, unsigned long long);

static void say(const char *route, const char *asked, const char *expected, void *pointer) {
    Dl_info info = {0};
    const char *file = "-", *symbol = "-";
    if (pointer && dladdr(pointer, &info)) {
        const char *slash = strrchr(info.dli_fname, '/');
        file = slash ? slash + 1 : info.dli_fname;
        if (info.dli_sname && info.dli_saddr == pointer) symbol = info.dli_sname;
    }
    printf("%s %s %s %s %s\n", route, asked, expected, file, symbol);
}

static void *resolve(resolver2 ask, const char *name, int version, unsigned long long flags) {
    void *found = NULL;
    return ask(name, &found, version, flags, NULL) ? NULL : found;
}

static void one(const char *name, const char *base, int since, void *linked, void *cuda, void *nvml) {
    void *handle = name[0] == 'n' ? nvml : cuda;
    const char *version = name[0] == 'n' ? "libnvidia-ml.so.1" : "libcuda.so.1"; /* the tags of the real libraries */
    say("link", name, name, linked);
    say("handle", name, name, dlsym(handle, name));
    say("default", name, name, dlsym(RTLD_DEFAULT, name));
    say("next", name, name, dlsym(RTLD_NEXT, name));
    say("program", name, name, dlsym(dlopen(NULL, RTLD_LAZY), name));
    say("dlvsym", name, name, dlvsym(handle, name, version));
    say("dlvsym-default", name, name, dlvsym(RTLD_DEFAULT, name, version));
    if (!*base) return;
    unsigned long long flags = strstr(name, "_ptsz") ? 2 : 0;
    resolver2 second = (resolver2)dlsym(cuda, "cuGetProcAddress_v2");
    resolver1 first = (resolver1)dlsym(cuda, "cuGetProcAddress");
    void *found = NULL;
    say("resolver", base, name, resolve(second, base, since, flags));
    if (first(base, &found, since, flags)) found = NULL;
    say("resolver1", base, name, found);
    resolver2 deep = second;
    for (int depth = 0; depth < 3 && deep; depth++) deep = (resolver2)resolve(deep, "cuGetProcAddress", 12000, 0);
    say("depth3", base, name, deep ? resolve(deep, base, since, flags) : NULL);
    for (int step = -10; step <= 10; step += 20) { /* the variant that the version map names at the boundary */
        int status = 0, id = hl_resolve_any(base, since + step, flags, &status);
        say(step < 0 ? "below" : "above", base, id < 0 ? "-" : hl_name_text[id],
            resolve(second, base, since + step, flags));
    }
}

int main(void) {
    void *cuda = dlopen("libcuda.so.1", RTLD_LAZY), *nvml = dlopen("libnvidia-ml.so.1", RTLD_LAZY);
    if (!cuda || !nvml) return fprintf(stderr, "%s\n", dlerror()), 2;
#define ASK(name, library, action, fake, running, since, base) one(#name, base, since, (void *)&name, cuda, nvml);
    HL_HOOKED(ASK)
    return 0;
}
