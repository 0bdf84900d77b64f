/* What a host gets when it asks for libpython by its usual name after the engine was booted: with argument "absent" it
 * must not be loaded in this process, with "present" it must. */
#define _GNU_SOURCE
#include "thin.h"
#include <dlfcn.h>
#include <string.h>

int main(int count, char **arguments) {
    CHECK(count > 2);
    CHECK(thin_admit(10) == 0);
    int present = dlopen(arguments[2], RTLD_NOW | RTLD_NOLOAD) != NULL;
    CHECK(present == !strcmp(arguments[1], "present"));
    CHECK(!dlsym(RTLD_DEFAULT, "Py_IsInitialized"));
    return 0;
}
