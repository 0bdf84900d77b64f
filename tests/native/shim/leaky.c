/* A planted failure: an interposer that exports the names and nothing else (no dlsym, no resolver rule). Every route
 * except relocation escapes it. */
#include "hl_hooked.h"

#define DEFINE(name, ...)                                                                                              \
    int name(void) { return 1; }
HL_HOOKED(DEFINE)
