/* hooklab-routes-host PLUGIN FILE HOST FIRST: a program that knows no driver and opens the walk as a plug-in, the way
 * HOST says. It fails with status 3 when the plug-in cannot be opened that way. */
#include "hl_layout_routes.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

typedef int (*walk_fn)(const char *, int, unsigned, const volatile unsigned *);

int main(int argc, char **argv) {
    if (argc != 5) return fprintf(stderr, "usage: hooklab-routes-host PLUGIN FILE HOST FIRST\n"), 2;
    int host = atoi(argv[3]);
    void *plugin;
    if (host == HL_HOST_NAMESPACE) plugin = dlmopen(LM_ID_NEWLM, argv[1], RTLD_NOW | RTLD_LOCAL);
    else {
        int how = host == HL_HOST_PLUGIN_GLOBAL ? RTLD_GLOBAL : RTLD_LOCAL;
        if (host == HL_HOST_PLUGIN_DEEP) how |= RTLD_DEEPBIND;
        plugin = dlopen(argv[1], RTLD_NOW | how);
    }
    walk_fn walk = plugin ? (walk_fn)dlsym(plugin, "hl_walk") : NULL;
    if (!walk) return fprintf(stderr, "hooklab-routes-host: %s\n", dlerror()), 3;
    return walk(argv[2], host, (unsigned)strtoul(argv[4], NULL, 10), NULL);
}
