/* Names that begin like the driver's and are not: their provider is the walker's own plug-in, asked by its handle. A
 * wide prefix in an interposer takes them away from it. */
#include "walk.h"

#include "hl_foreign.h"

#include <dlfcn.h>
#include <stdlib.h>

#define DEFINE(name)                                                                                                   \
    __attribute__((visibility("default"))) int name(void);                                                             \
    __attribute__((visibility("default"))) int name(void) { return 0; }
HL_FOREIGN(DEFINE)

void walk_foreign(struct walk *walk) {
#define TEXT(name) #name,
    static const char *const names[] = {HL_FOREIGN(TEXT)};
    const char *path = getenv("HOOKLAB_ROUTES_PLUGIN");
    void *provider = path ? dlopen(path, RTLD_LAZY | RTLD_LOCAL) : NULL;
    void *anchor = provider ? dlsym(provider, "hl_walk") : NULL;
    Dl_info home = {0}, owner;
    if (!anchor || !dladdr(anchor, &home)) return;
    for (unsigned at = 0; at < sizeof names / sizeof *names; at++) {
        void *volatile found = dlsym(provider, names[at]);
        walk->header->foreign_asked |= 1u << at;
        if (!found || !dladdr(found, &owner) || owner.dli_fbase != home.dli_fbase)
            walk->header->foreign_wrong |= 1u << at;
    }
}
